"""A fork of a process that has run Polars says so at once, where it would wait for ever."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.errors import PlanFailed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are not forked by default")
FRAME = pd.DataFrame({"x": [3, 1, 2], "s": ["A b", "c", None]})


def run_in_fork(action: Callable[[], object]) -> str:
    """Run it in a forked child, which has ten seconds, and return the error it met."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python 3.12, on threads
        child = os.fork()
    if not child:
        signal.alarm(10)
        try:
            action()
            told = ""
        except PlanFailed as error:
            told = str(error)
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "it hung"
    return told


@pytest.mark.slow
@pytest.mark.parametrize("action", ["sort", "read_csv", "to_polars", "window"])
def test_a_forked_child_says_spawn(action: str, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("x\n1\n")
    gp.from_frame(FRAME).sort("x").compute()  # from here on Polars' threads run
    actions: dict[str, Callable[[], object]] = {
        "sort": lambda: gp.from_frame(FRAME).sort("x").compute(),
        "read_csv": lambda: gp.read_csv(file),
        "to_polars": lambda: gp.from_polars(gp.from_frame(FRAME).sort("x").to_polars().lazy()).compute(),
        "window": lambda: gp.Pipeline([T.Lag("x", order_by="x")]).fit(FRAME).transform(FRAME),
    }
    told = run_in_fork(actions[action])
    assert "forked from one that had run Polars" in told and "get_context('spawn')" in told


def test_what_needs_no_plan_works_in_a_fork(tmp_path: Path) -> None:
    data = gp.from_frame(FRAME)
    data.sort("x").write_parquet(tmp_path / "a.parquet")
    step = gp.Pipeline([T.Derive(low="lower(s)", part="split(s, ' ', 0)")]).fit(FRAME)
    assert run_in_fork(lambda: step.transform(gp.read_parquet(tmp_path / "a.parquet")).compute()) == ""


def sort_rows() -> list[int]:
    return list(gp.from_frame(FRAME).sort("x").compute()["x"])


def sort_in_fork_and_here() -> tuple[str, list[int]]:
    assert gp.read_csv and "polars" in sys.modules  # imported, and not run
    return run_in_fork(sort_rows), sort_rows()


@pytest.mark.slow  # a process that imports everything, which is the remedy
def test_a_spawned_child_runs_plans_and_so_does_its_fork_before_the_first() -> None:
    sort_rows()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(sort_in_fork_and_here) == ("", [1, 2, 3])
