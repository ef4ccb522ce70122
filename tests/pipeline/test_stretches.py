"""The longest gap of a column is that of all its values, however they are cut into partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe.backend import select
from gpupipe.pipeline import stretches
from gpupipe.pipeline.stretches import Stretches, find_stretches

CPU = select("cpu")


@given(
    values=st.lists(st.integers(-50, 50) | st.integers(-(2**50), 2**50), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    most=st.sampled_from([2, 5, 4096]),
)
def test_parts_add_up_to_the_whole(values: list[int], cuts: list[int], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretches, "_MOST_GAPS", most)
        parts = np.split(np.array(values), sorted(min(cut, len(values)) for cut in cuts))
        total, *more = [Stretches.of(part, CPU) for part in parts if len(part)]
        for part in more:
            total = total + part
        distinct = np.unique(values)
        longest = np.diff(distinct.astype(float)).max() if len(distinct) > 1 else 0
        assert total.ends == (min(values), max(values))
        if total.longest_gap is not None:
            assert len(distinct) >= 5 and total.longest_gap >= longest
        if most == 4096:
            assert total.longest_gap == (longest if len(distinct) >= 5 else None)
        assert len(total.lows) <= most + 1


@pytest.mark.parametrize("num_partitions", [1, 7])
def test_beyond_so_many_gaps_the_shorter_ones_are_closed(monkeypatch: pytest.MonkeyPatch, num_partitions: int) -> None:
    monkeypatch.setattr(stretches, "_MOST_GAPS", 4096)
    times = pd.date_range("2024-01-01", periods=30_000, freq="min").delete(slice(9_000, 9_100))
    frame: Any = pd.DataFrame({"at": times, "n": np.arange(len(times))})
    for table, longest in ((frame, 1), (frame.sample(frac=1, random_state=1), 9)):
        data = gp.from_frame(table.reset_index(drop=True), num_partitions=num_partitions, backend="cpu")
        both = find_stretches(data, ["at", "n"], "cpu")
        assert both["at"].longest_gap == 101 * 60e6 and 1 <= (both["n"].longest_gap or 0) <= longest
        assert both["n"].ends == (0, len(times) - 1)
