"""Sketches against exact counts: the same for any parts, and within what they say."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.backend import select
from gpupipe.backend.dictionaries import strings
from gpupipe.io.description.sketches import DistinctSketch, FrequentValues

CPU = select("cpu")


def count(values: list[int], limit: int) -> FrequentValues:
    distinct, counts = np.unique(np.array(values, dtype=np.int64), return_counts=True)
    return FrequentValues.from_numbers(distinct, counts, "int64", CPU, limit)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=40), min_size=1, max_size=5), st.integers(1, 14))
def test_counts_are_too_low_by_no_more_than_the_error(parts: list[list[int]], limit: int) -> None:
    truth = Counter(value for part in parts for value in part)
    found = reduce(add, (count(part, limit) for part in parts))
    kept = dict(zip(found.values.to_pylist(), found.counts.tolist(), strict=True))
    assert len(kept) <= limit and found.error <= truth.total() / limit
    assert all(0 <= truth[value] - kept.get(value, 0) <= found.error for value in truth)
    if len(truth) <= limit:
        assert found.error == 0
    order = sorted(truth, key=lambda value: (-truth[value], value))
    if found.error == 0:
        assert found.rank(3) == [(value, truth[value]) for value in order[:3]]


def test_a_frequent_value_among_many_rare_ones_is_ranked_and_none_of_these() -> None:
    parts = [[7] * 30 + list(range(1000 * part, 1000 * part + 500)) for part in range(1, 5)]
    found = reduce(add, (count(part, 50) for part in parts))
    ((value, number),) = found.rank(5)
    assert value == 7 and 0 <= 4 * 30 - number <= found.error < 120


def test_texts_are_shortened_as_numbers_are() -> None:
    found = FrequentValues(strings(["a", "b", "c"]), np.array([5, 2, 1]), 2).shortened()
    assert (found.values.to_pylist(), found.counts.tolist(), found.error) == (["a", "b"], [4, 1], 1)


@pytest.mark.parametrize("dtype", ["float64", "int64", "string"])
def test_the_estimate_of_distinct_values(dtype: str) -> None:
    values = np.random.default_rng(5).permutation(200_000)
    sketches = []
    for part in np.array_split(np.append(values, values[:50_000]), 4):
        if dtype == "string":
            sketches.append(DistinctSketch.from_texts(strings([f"id {value}" for value in part]), 4096))
        else:
            sketches.append(DistinctSketch.from_numbers(np.sort(part).astype(dtype), dtype, CPU, 4096))
    whole, other = reduce(add, sketches), reduce(add, sketches[::-1])
    assert not whole.is_exact and abs(whole.estimate - 200_000) < 4 / np.sqrt(4096) * 200_000
    assert whole.hashes.tolist() == other.hashes.tolist()
    if dtype == "string":
        assert whole.texts is not None and other.texts is not None
        assert whole.texts.to_pylist() == other.texts.to_pylist() and len(whole.texts) == 64


def test_few_values_are_counted_exactly() -> None:
    sketch = DistinctSketch.from_texts(strings(["a", "b"]), 8) + DistinctSketch.from_texts(strings(["b", "c"]), 8)
    assert sketch.is_exact and sketch.estimate == 3
    assert sketch.texts is not None and sorted(sketch.texts.to_pylist()) == ["a", "b", "c"]
