"""Dictionary arithmetic against Python's own."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.backend.dictionaries import (
    find_known,
    find_positions,
    make_dictionary,
    merge_counts,
    sort_by_count,
    strings,
    unite_dictionaries,
    value_type,
)

WORDS = st.lists(st.text(max_size=4), unique=True, max_size=10)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers(1, 2**62), max_size=8), min_size=1, max_size=5))
def test_counts_add_up_exactly(parts: list[dict[str, int]]) -> None:
    parts = [{key: count // len(parts) for key, count in part.items()} for part in parts]
    values, counts = merge_counts([(strings(list(part)), np.array(list(part.values()), "int64")) for part in parts])
    wanted: Counter[str] = Counter()
    for part in parts:
        wanted.update(part)
    assert dict(zip(values.to_pylist(), counts.tolist(), strict=True)) == wanted
    assert counts.dtype == np.int64


@settings(deadline=None, max_examples=60)
@given(WORDS, WORDS)
def test_positions(values: list[str], vocabulary: list[str]) -> None:
    found = find_positions(strings(values), strings(vocabulary))
    assert found.tolist() == [vocabulary.index(v) if v in vocabulary else -1 for v in values]
    assert found.dtype == np.int64
    assert find_known(strings(values), strings(vocabulary)).tolist() == [v in vocabulary for v in values]
    assert find_positions(pa.array(values, pa.string()), strings(vocabulary)).tolist() == found.tolist()


@settings(deadline=None, max_examples=60)
@given(st.lists(WORDS, min_size=1, max_size=4))
def test_uniting_keeps_the_first_of_each(parts: list[list[str]]) -> None:
    assert unite_dictionaries([strings(part) for part in parts]).to_pylist() == list(
        dict.fromkeys(v for part in parts for v in part)
    )


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.text(max_size=3), st.integers(1, 3), max_size=12))
def test_ties_are_broken_by_utf8(counts: dict[str, int]) -> None:
    values, numbers = sort_by_count(strings(list(counts)), np.array(list(counts.values()), "int64"))
    wanted = sorted(counts, key=lambda value: (-counts[value], value.encode()))
    assert values.to_pylist() == wanted
    assert numbers.tolist() == [counts[value] for value in wanted]


NUMBERS = st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(NUMBERS, st.integers(1, 3) | st.integers(1, 2**62), max_size=12)
    | st.dictionaries(st.integers(-9, 9), st.integers(1, 3), max_size=12),
    st.integers(0, 1),
)
def test_integers_are_sorted_as_any_values(counts: dict[int, int], is_unsigned: int) -> None:
    counts = {value + is_unsigned * 2**63: count for value, count in counts.items()}
    kind = pa.uint64() if is_unsigned else pa.int64()
    values, numbers = sort_by_count(pa.array(list(counts), kind), np.array(list(counts.values()), "int64"))
    by_hand = sorted(counts, key=lambda value: (-counts[value], value))
    assert values.to_pylist() == by_hand and values.type == kind
    assert numbers.tolist() == [counts[value] for value in by_hand] and numbers.dtype == np.int64


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers_of_a_whole_type_are_sorted(name: str) -> None:
    ends = np.iinfo(name)
    values, numbers = sort_by_count(
        pa.array([ends.min, ends.max, 3, 5], pa.type_for_alias(name)), np.array([1, 2, 7, 7])
    )
    assert values.to_pylist() == [3, 5, ends.max, ends.min] and values.type == pa.type_for_alias(name)
    assert numbers.tolist() == [7, 7, 2, 1]


@pytest.mark.parametrize(
    ("values", "dtype", "wanted"),
    [
        ([True, False], "bool", pa.int64()),
        (np.array([1, 2], "int8"), "int8", pa.int64()),
        (np.array([2**64 - 1], "uint64"), "uint64", pa.uint64()),
        ([0.5], "float32", pa.float64()),
        (["a"], "string", pa.large_string()),
        (pa.array(["a"]), "string", pa.large_string()),
    ],
)
def test_types(values: object, dtype: str, wanted: pa.DataType) -> None:
    made = make_dictionary(values, dtype)
    assert made.type == wanted == value_type(dtype)
    assert made.to_pylist() == list(values) if not isinstance(values, pa.Array) else made.to_pylist() == ["a"]


def test_strings_of_an_empty_pandas_column() -> None:
    made = strings(pd.Categorical(pd.array([], dtype="str")).categories)
    assert isinstance(made, pa.LargeStringArray) and len(made) == 0
