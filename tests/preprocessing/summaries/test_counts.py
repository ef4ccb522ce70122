"""Counts of distinct values against collections.Counter."""

from __future__ import annotations

import resource
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe import configure
from gpupipe.backend import select
from gpupipe.backend.dictionaries import SpilledCounts, strings
from gpupipe.errors import BadFile
from gpupipe.preprocessing import summaries as counts
from gpupipe.preprocessing.summaries import ValueCounts

CPU = select("cpu")


def counted(values: Any) -> ValueCounts:
    return ValueCounts.of(CPU.column(CPU.encode(pd.DataFrame({"x": values})), "x"), CPU)


@pytest.mark.slow
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


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    parts=st.lists(st.lists(st.integers(-40, 40), min_size=1, max_size=30), min_size=2, max_size=8),
    kind=st.sampled_from(["string", "integer", "float"]),
    min_count=st.integers(1, 4),
    data=st.data(),
)
def test_counts_on_disk_are_the_counts_in_memory(
    parts: list[list[int]], kind: str, min_count: int, data: st.DataObject
) -> None:
    made = {"string": lambda n: f"v{n}", "integer": lambda n: n << 40, "float": lambda n: n / 4}[kind]
    summaries = [counted([made(n) for n in part]) for part in parts]
    with pytest.MonkeyPatch.context() as patch:
        expected = sum(summaries[1:], summaries[0]).ranked(min_count)
        patch.setattr(counts, "_WAITING_VALUES", data.draw(st.integers(0, 20)))
        patch.setattr(counts, "_RESIDENT_BYTES", data.draw(st.integers(0, 200)))
        cut = data.draw(st.integers(1, len(summaries) - 1))
        left, right = (sum(half[1:], half[0]) for half in (summaries[:cut], summaries[cut:]))
        values, numbers = (left + right).ranked(min_count)
    assert values.equals(expected[0])
    assert numbers.tolist() == expected[1].tolist()


def test_more_values_than_should_stay_in_memory_go_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "_WAITING_VALUES", 1000)
    configure(memory_limit=32 * 10_000)
    total = counted([f"v{n}" for n in range(100)])
    for start in range(100, 20_000, 100):
        total += counted([f"v{n}" for n in range(start - 100, start + 100)])
        assert sum(values.nbytes for values, _ in total.parts) < 60_000
    folders = [folder.path for folder in total.spilled.runs]
    assert len(folders) > 3 and all(folder.is_dir() for folder in folders)
    values, numbers = total.ranked(min_count=2)
    assert (len(values), set(numbers.tolist())) == (19_900, {2})
    del total
    assert not any(folder.exists() for folder in folders)


def test_no_room_on_disk() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(BadFile, match=r"(?s)distinct values cannot be set down there .*TMPDIR="):
            SpilledCounts().with_run(strings([f"v{n}" for n in range(1000)]), np.ones(1000, "int64"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
