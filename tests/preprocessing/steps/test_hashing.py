"""Buckets of hashes: pinned, for the law is that they never change; spread evenly; order counts in a cross."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe import errors, schema
from gpupipe.backend import Backend, Column
from gpupipe.backend.dictionaries import strings
from gpupipe.preprocessing import HashBucket, HashedCross
from tests.raising import raises

MASK = 2**64 - 1


def mixed(seed: int, number: int) -> int:
    """SplitMix64 in Python's integers."""
    return finalized(((number + 1) * 0x9E3779B97F4A7C15 + finalized(seed)) & MASK)


def finalized(state: int) -> int:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = ((state ^ (state >> shift)) * factor) & MASK
    return state ^ (state >> 31)


def bits(value: Any, seed: int) -> int:
    """The hash of one value by its definition."""
    if isinstance(value, str):
        power = total = 0
        power = 1
        for byte in value.encode():
            power = power * 0x9E3779B97F4A7C15 & MASK
            total = (total + (byte + 1) * power) & MASK
        return mixed(seed, total)
    return mixed(seed, int(value) & MASK)


VALUES = {
    "str": st.sampled_from(["", "a", "ab", "ba", "ß", "日本", "\U0001f6eb"]),
    "Int64": st.integers(-(2**63), 2**63 - 1),
    "UInt64": st.integers(0, 2**64 - 1),
    "boolean": st.booleans(),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(VALUES))
@settings(deadline=None, max_examples=40)
@given(data=st.data(), seed=st.integers(0, 2**40), num_buckets=st.integers(1, 10**6))
def test_the_bucket_is_the_hash_by_its_definition(dtype: str, data: st.DataObject, seed: int, num_buckets: int) -> None:
    values = data.draw(st.lists(st.none() | VALUES[dtype], min_size=1, max_size=20))
    frame = pd.DataFrame({"x": pd.array(values, dtype=dtype)})
    found = HashBucket(num_buckets, seed=seed).fit_transform(frame)["x"]
    assert found.tolist() == [0 if v is None else 2 + bits(v, seed) % num_buckets for v in values]


def test_both_backends_have_these_buckets(backend: Backend) -> None:
    """Written down: a saved pipeline keeps its ids in every version and on every device."""
    texts = Column(
        "string", backend.to_device(np.array([0, 1, -1, 2, 3], "int8")), None, strings(["", "a", "ß", "JFK"])
    )
    valid = backend.to_device(np.array([True, True, False, True, True]))
    numbers = Column("int16", backend.to_device(np.array([0, 1, 5, -7, 300], "int16")), valid)
    columns = {"s": texts, "n": numbers}
    found = HashBucket(1000).transform_columns(columns, backend)
    assert backend.to_host(found["s"].data).tolist() == [537, 513, 0, 589, 671]
    assert backend.to_host(found["n"].data).tolist() == [537, 702, 0, 326, 239]
    crossed = HashedCross(1000).transform_columns(columns, backend)["s_x_n"]
    assert backend.to_host(crossed.data).tolist() == [539, 860, 0, 701, 917]


def test_a_missing_value_is_not_hashed() -> None:
    frame = pd.DataFrame({"s": pd.array(["a", None], dtype="str"), "n": pd.array([None, 3], dtype="Int64")})
    assert (HashBucket(1).fit_transform(frame).to_numpy() == [[2, 0], [0, 2]]).all()
    assert HashedCross(1).fit_transform(frame)["s_x_n"].tolist() == [0, 0]


def test_a_number_of_buckets_per_column() -> None:
    frame = pd.DataFrame({"a": range(5000), "b": range(5000)})
    step = HashBucket({"a": 10, "b": 300}).fit(frame)
    found = step.transform(frame)
    assert [sorted(set(found[name])) for name in "ab"] == [list(range(2, 12)), list(range(2, 302))]
    fields = step.output_fields([schema.Field(name, "int64") for name in "ab"])
    assert [(item.cardinality, item.nullable, item.kind) for item in fields] == [
        (12, False, schema.Kind.CATEGORICAL),
        (302, False, schema.Kind.CATEGORICAL),
    ]


@pytest.mark.parametrize("made", [lambda n: n, lambda n: f"N{n}", lambda n: n << 32])
def test_values_are_spread_evenly(made: Any) -> None:
    """Chi-square of 64 buckets: 63 degrees of freedom, 130 is beyond once in a million."""
    frame = pd.DataFrame({"a": [made(n) for n in range(20_000)], "b": [made(n // 200) for n in range(20_000)]})
    for ids in (HashBucket(64).fit_transform(frame)["a"], HashedCross(64).fit_transform(frame)["a_x_b"]):
        counts = np.bincount(ids - 2, minlength=64)
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 130


def test_a_cross_knows_the_order_of_its_columns() -> None:
    places = [f"P{n}" for n in range(100)]
    pairs = pd.DataFrame([(a, b) for a in places for b in places if a < b], columns=["origin", "dest"])
    swapped = pairs[["dest", "origin"]].set_axis(["origin", "dest"], axis=1)
    step = HashedCross(10**6)
    there, back = step.fit_transform(pairs)["origin_x_dest"], step.transform(swapped)["origin_x_dest"]
    assert (there == back).mean() < 0.01


def test_rows_with_the_same_value_in_both_columns_are_spread() -> None:
    frame = pd.DataFrame({"a": range(1000), "b": range(1000), "c": range(1000)})
    assert HashedCross(10**6).fit_transform(frame[["a", "b"]])["a_x_b"].nunique() > 990
    assert HashedCross(10**6).fit_transform(frame)["a_x_b_x_c"].nunique() > 990


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), min_size=1, max_size=30))
def test_a_cross_is_a_function_of_the_row(rows: list[tuple[str, int, bool]]) -> None:
    frame = pd.DataFrame(rows, columns=["s", "n", "b"])
    found = HashedCross(10**9).fit_transform(frame)["s_x_n_x_b"].tolist()
    by_row = dict(zip(rows, found, strict=True))
    assert [by_row[row] for row in rows] == found
    assert len(set(found)) == len(by_row)
    assert all(a != b for a, b in pairwise(sorted(set(found))))


def test_what_is_refused() -> None:
    frame = pd.DataFrame({"carrier": ["a"], "x": [0.5]})
    with raises(errors.BadConfig, where="HashedCross", got=["carrier"]):
        HashedCross(10).fit(frame[["carrier"]])
    with raises(errors.ColumnNotFound, where="HashBucket(num_buckets=...)", column="carrier"):
        HashBucket({"carier": 10}).fit(frame[["carrier"]])
    with raises(errors.BadConfig, where="HashBucket(num_buckets=)", got=0):
        HashBucket(0).fit(frame[["carrier"]])
    for cls in (HashBucket, HashedCross):  # an int32 id would be negative
        with pytest.raises(errors.BadConfig, match=r"\(num_buckets=\): makes no sense, got 2147483648"):
            cls(2**31)
    with raises(errors.BadConfig, where="HashBucket(seed=)", got=1.5):
        HashBucket(10, seed=1.5).fit(frame[["carrier"]])
    with raises(errors.SchemaMismatch, where="HashBucket, column 'x'", got="float64"):
        HashBucket(10).fit(frame)
