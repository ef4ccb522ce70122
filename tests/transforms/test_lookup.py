"""Keys found by exact equality of numbers, for every pair of types and at the ends of their ranges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe import transforms as T
from gpupipe.backend import Column, select
from gpupipe.schema import FLOATS, INTEGERS
from gpupipe.transforms.join import Lookup
from tests.examples import examples
from tests.raising import raises

CPU = select("cpu")
NUMBERS = (*INTEGERS, *FLOATS)
PAIRS = list(itertools.product(NUMBERS, NUMBERS))

# The ends of every type's range, where floats stop holding every integer, and their neighbours.
ENDS = [
    sign * 2**bits + near
    for bits in (0, 1, 7, 8, 15, 16, 24, 31, 32, 53, 61, 62, 63, 64)
    for sign, near in itertools.product((1, -1), (-1, 0, 1))
]
NO_INTEGERS = [0.5, -0.5, 1.5, 2**52 + 0.5, 1e300, -1e300, 2.0**65, math.inf, -math.inf]


def of_type(dtype: str, *, as_key: bool = False) -> st.SearchStrategy[Any]:
    """Values of that type and None; as a key of the right table, without what is refused there."""
    if dtype in FLOATS:
        number = np.dtype(dtype).type
        ends = {float(number(end)) for end in ENDS}
        if as_key:
            return st.one_of(st.none(), st.sampled_from(sorted(end for end in ends if -(2**63) <= end < 2**63)))
        return st.one_of(
            st.none(),
            st.sampled_from(sorted(ends)),
            st.sampled_from([float(np.float64(odd)) for odd in NO_INTEGERS if dtype == "float64" or abs(odd) != 1e300]),
            st.floats(width=32 if dtype == "float32" else 64, allow_nan=False),
        )
    info = np.iinfo(dtype)
    ends = {end for end in ENDS if info.min <= end <= info.max}
    return st.one_of(st.none(), st.sampled_from(sorted(ends)), st.integers(int(info.min), int(info.max)))


def column_of(values: Sequence[Any], dtype: str) -> Column:
    if dtype == "string":
        words = sorted({value for value in values if value is not None})
        codes = [-1 if value is None else words.index(value) for value in values]
        return Column(dtype, np.array(codes, dtype="int8"), None, pa.array(words, pa.large_string()))
    if dtype in FLOATS:
        return Column(dtype, np.array([math.nan if value is None else value for value in values], dtype=dtype))
    # A missing place holds a number that is a key, to be sure that it is not looked at.
    data = np.array([1 if value is None else value for value in values], dtype=dtype)
    valid = np.array([value is not None for value in values], dtype=bool)
    return Column(dtype, data, None if valid.all() else valid)


def rows_found(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]], types: list[tuple[str, str]]) -> list[int]:
    names = [f"k{position}" for position in range(len(types))]
    keys = [
        {name: column_of([row[i] for row in rows], types[i][side]) for i, name in enumerate(names)}
        for side, rows in enumerate((left, right))
    ]
    with np.errstate(all="raise"):
        found: list[int] = Lookup(keys[1], CPU, "Join", "many=True").find(keys[0], CPU).tolist()
    return found


def rows_expected(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]]) -> list[int]:
    """Python compares and hashes integers and floats by their exact values."""
    rows = {key: row for row, key in enumerate(right) if None not in key}
    return [rows.get(key, -1) for key in left]


@pytest.mark.slow
@pytest.mark.parametrize(("left_type", "right_type"), PAIRS)
@examples(25)
@given(data=st.data())
def test_numbers_are_found_by_value(left_type: str, right_type: str, data: st.DataObject) -> None:
    keys = data.draw(st.lists(of_type(right_type, as_key=True), max_size=8, unique=True))
    like_keys = [key for key in keys if key is not None and fits(key, left_type)]
    seen = of_type(left_type) if not like_keys else st.one_of(of_type(left_type), st.sampled_from(like_keys))
    left, right = [(value,) for value in data.draw(st.lists(seen, max_size=12))], [(key,) for key in keys]
    assert rows_found(left, right, [(left_type, right_type)]) == rows_expected(left, right)


def fits(value: float, dtype: str) -> bool:
    if dtype in FLOATS:
        return float(np.dtype(dtype).type(value)) == value
    return value == int(value) and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max


@examples(200)
@given(st.data())
def test_several_keys_are_found_together(data: st.DataObject) -> None:
    kinds = st.one_of(st.tuples(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS)), st.just(("string", "string")))
    types = data.draw(st.lists(kinds, min_size=2, max_size=2))
    words = st.sampled_from([None, "JFK", "LGA", ""])
    of_right = [words if kind == "string" else of_type(kind, as_key=True) for _, kind in types]
    right = data.draw(st.lists(st.tuples(*of_right), max_size=8, unique=True))
    of_left = []
    for position, (kind, _) in enumerate(types):
        met = [row[position] for row in right if row[position] is not None]
        again = [value for value in met if kind == "string" or fits(value, kind)]
        fresh = words if kind == "string" else of_type(kind)
        of_left.append(st.one_of(fresh, *([st.sampled_from(again)] * 3 if again else [])))
    left = data.draw(st.lists(st.tuples(*of_left), max_size=12))
    assert rows_found(left, right, types) == rows_expected(left, right)


@pytest.mark.slow
@pytest.mark.parametrize(("left_type", "right_type"), PAIRS)
@pytest.mark.filterwarnings("ignore:You are merging on int and float columns")
def test_numbers_are_found_as_pandas_does(left_type: str, right_type: str) -> None:
    left_values = [3, None, 100, 0, 7, 100, 2] + ([0.5, -1.0, math.inf] if left_type in FLOATS else [])
    left, right = (
        pd.DataFrame({"k": pd.array(values, dtype=dtype.replace("int", "Int").replace("uI", "UI"))})
        for values, dtype in (
            (left_values, left_type.replace("float", "Float")),
            ([100, 7, None, 0, 1], right_type.replace("float", "Float")),
        )
    )
    right["row"] = np.arange(len(right), dtype=np.int64)
    expected = left.merge(right.dropna(), on="k", how="left")["row"]
    joined = T.Join(right, on="k").transform(left)["row"]
    assert joined.fillna(-1).astype(int).tolist() == expected.fillna(-1).astype(int).tolist()
    assert set(joined.dropna()) == {0, 1, 3}


@pytest.mark.parametrize(
    ("left_type", "left", "right_type", "right", "expected"),
    [
        ("float64", [1.5, 1.0], "int64", [1, 2**62], [-1, 0]),
        ("float32", [0.5, math.inf, 2.0**24], "int64", [2**24 + 1, 2**24 + 3], [-1, -1, -1]),
        ("float64", [2.0**63, -(2.0**63), -math.inf], "int64", [2**63 - 1, -(2**63)], [-1, 1, -1]),
        ("int64", [-1, 5], "uint64", [2**64 - 1, 5], [-1, 1]),
        ("uint64", [2**64 - 1, 2**63], "int64", [-1, -(2**63)], [-1, -1]),
        ("uint64", [2**64 - 1, 2**63 + 1, 2**63 - 1], "uint64", [2**63 + 1, 2**64 - 1], [1, 0, -1]),
        ("float64", [2.0**63, 2.0**64, 2.0**53], "uint64", [2**63, 2**63 + 1, 2**53 + 1], [0, -1, -1]),
        ("int64", [2**53, 2**53 + 1], "float64", [2.0**53], [0, -1]),
        ("int64", [-(2**63), 0, 2**63 - 1], "int64", [2**63 - 1, -(2**63)], [1, -1, 0]),
        ("int64", [2**62, -(2**62)], "int64", [-(2**62), 2**62 - 1], [-1, 0]),
    ],
)
def test_the_ends_of_the_types(left_type: str, left: list, right_type: str, right: list, expected: list) -> None:
    found = rows_found([(value,) for value in left], [(key,) for key in right], [(left_type, right_type)])
    assert found == expected


@pytest.mark.parametrize("odd", [0.5, 2.0**52 - 0.5, math.inf, -math.inf, 2.0**63, -1e300])
def test_a_number_that_is_no_key_is_refused_in_the_table(odd: float) -> None:
    with raises(errors.BadConfig, where="Join", remedy="many=True") as caught:
        Lookup({"k": Column("float64", np.array([1.0, odd, math.nan]))}, CPU, "Join", "many=True")
    assert caught.value.got == odd
    assert caught.value.remedy.startswith("many=True")


def test_a_table_whose_every_row_lacks_one_of_its_keys() -> None:
    wide = [0, 1, 2**30]
    right = [(value, None) for value in wide] + [(None, value) for value in wide]
    assert rows_found([(1, 1), (None, 1), (0, 2**30)], right, [("int64", "int64")] * 2) == [-1, -1, -1]


def test_a_partition_does_not_wait_for_the_device() -> None:
    lookups = [
        Lookup({"k": column_of([0, far], "int64")}, CPU, "Join", "many=True") for far in (7, 2**40 - 1, 2**63 - 1)
    ]
    before = CPU.transfers.count
    for lookup in lookups:
        assert lookup.find({"k": column_of([0.0, 0.5, None], "float64")}, CPU).tolist() == [0, -1, -1]
    assert CPU.transfers.count == before
