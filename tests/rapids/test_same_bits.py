"""Sums by group have the same bits in every run of the GPU twin, though CuPy's atomics add in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.backend.columns import Backend
from gpupipe.backend.groups import GroupSums

from .oracle import host
from .standin_frame import cudf

RANDOM = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "word": RANDOM.choice(["a", "b", "c"], 4000),
        "x": RANDOM.standard_normal(4000) * 10.0 ** RANDOM.integers(-9, 9, 4000),
        "y": RANDOM.standard_normal(4000),
    }
)


def test_the_stand_in_adds_as_atomics_do(rehearsed_backend: Backend) -> None:
    ids, values = (rehearsed_backend.to_device(array) for array in (np.zeros(4000, int), TABLE["x"].to_numpy()))
    sums = {float(rehearsed_backend.xp.bincount(ids, weights=values)[0]) for _ in range(20)}
    assert len(sums) > 1


@pytest.mark.parametrize("ids", [[], [0], [2, 0, 2, 2, 0, 2, 2], [1] * 1000, list(range(300))], ids=len)
def test_sums_by_group_are_those_of_a_cpu(rehearsed_backend: Backend, ids: list[int]) -> None:
    numbers, values = np.array(ids, np.int64), TABLE["x"].to_numpy()[: len(ids)]
    found = GroupSums(rehearsed_backend.to_device(numbers), 301, rehearsed_backend.xp)
    wanted = GroupSums(numbers, 301, np).compute(values)
    np.testing.assert_allclose(host(found.compute(rehearsed_backend.to_device(values))), wanted, rtol=1e-12, atol=1e-12)


def test_an_infinity_stays_in_its_group(rehearsed_backend: Backend) -> None:
    ids, values = np.array([0, 1, 2, 2, 0]), np.array([1.0, np.inf, np.nan, 1.0, 2.0])
    found = GroupSums(rehearsed_backend.to_device(ids), 3, rehearsed_backend.xp).compute(
        rehearsed_backend.to_device(values)
    )
    np.testing.assert_array_equal(host(found), [3.0, np.inf, np.nan])


def encoded(_: Backend) -> Any:
    return pre.TargetEncoder().fit(cudf.from_pandas(TABLE[["word"]]), cudf.from_pandas(TABLE[["x"]])).get_state()


def clustered(_: Backend) -> Any:
    return pre.KMeans(3, max_rows=500, max_passes=2).fit(cudf.from_pandas(TABLE[["x", "y"]])).get_state()


@pytest.mark.parametrize("work", [encoded, clustered])
def test_a_second_run_gives_the_same_bits(rehearsed_backend: Backend, work: Callable[[Backend], Any]) -> None:
    first = repr_of(work(rehearsed_backend))
    for _ in range(5):
        assert repr_of(work(rehearsed_backend)) == first


def repr_of(state: Any) -> Any:
    """What tells states apart by their last bit."""
    if isinstance(state, dict):
        return {name: repr_of(value) for name, value in state.items()}
    if isinstance(state, pa.Array):
        return state.to_pylist()
    return state.tobytes() if isinstance(state, np.ndarray) else repr(state)


def test_both_zeros_are_one_least_value(rehearsed_backend: Backend) -> None:
    frame = pd.DataFrame({"word": ["a", "a"], "x": [0.0, -0.0]})
    for table in (frame, frame[::-1]):
        found = gp.from_frame(table).group_by("word").agg(low=("x", "min"))
        assert repr(rehearsed_backend.to_arrow(found.compute())["low"].to_pylist()) == "[0.0]"
