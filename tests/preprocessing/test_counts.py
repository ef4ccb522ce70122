"""Counts of distinct values against collections.Counter."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.backend import select
from gpupipe.preprocessing import counts
from gpupipe.preprocessing.counts import ValueCounts

CPU = select("cpu")


def counted(values: Any) -> ValueCounts:
    return ValueCounts.of(CPU.column(CPU.encode(pd.DataFrame({"x": values})), "x"), CPU)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.sampled_from(["a", "b", "ß", "日本", None]), max_size=12), min_size=1, max_size=5))
def test_strings_over_partitions(parts: list[list[str | None]]) -> None:
    total = counted(pd.array(parts[0], dtype="str"))
    for part in parts[1:]:
        total += counted(pd.array(part, dtype="str"))
    wanted = Counter(value for part in parts for value in part)
    assert total.missing == wanted.pop(None, 0)
    values, numbers = total.ranked()
    assert dict(zip(values.to_pylist(), numbers.tolist(), strict=True)) == wanted
    assert numbers.tolist() == sorted(wanted.values(), reverse=True)


@pytest.mark.parametrize("low", [0, -7, 2**62])
@pytest.mark.parametrize("spread", [1, 10**6, 2**50])
def test_integers_near_each_other_and_far_apart(low: int, spread: int) -> None:
    values = low + np.random.default_rng(0).integers(0, 50, 1000) * spread
    found, numbers = counted(values).ranked()
    assert dict(zip(found.to_pylist(), numbers.tolist(), strict=True)) == Counter(values.tolist())


def test_both_zeros_are_one_value_and_nan_is_missing() -> None:
    found = counted([0.0, -0.0, np.nan, 1.5])
    values, numbers = found.ranked()
    assert (values.to_pylist(), numbers.tolist(), found.missing) == ([0.0, 1.5], [2, 1], 1)


def test_small_dictionaries_wait_and_large_ones_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "_WAITING_VALUES", 10)
    total = counted(["a", "b", "c", "d"])
    for _ in range(30):
        total += counted(["a", "b", "c", "e"])
        assert sum(len(values) for values, _ in total.parts) <= 10
    values, numbers = total.ranked()
    assert dict(zip(values.to_pylist(), numbers.tolist(), strict=True)) == {"a": 31, "b": 31, "c": 31, "d": 1, "e": 30}


def test_filling_counts_the_missing() -> None:
    found = counted(pd.array(["a", None, None], dtype="str"))
    assert found.filled("new").ranked()[0].to_pylist() == ["new", "a"]
    assert found.filled("a").ranked()[1].tolist() == [3]
    flags = counted(pd.array([True, None], dtype="boolean")).filled(True)
    assert flags.ranked()[1].tolist() == [2]
