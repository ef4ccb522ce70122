"""What goes wrong in the middle of a plan: one error that says what, and nothing is left of it."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import gpupipe as gp
from gpupipe.errors import BadFile, PlanFailed
from gpupipe.files import writing_scratch
from gpupipe.io.relational import engine
from gpupipe.io.relational.gathering import Gathered
from gpupipe.io.relational.scan import Scan
from tests.io.meeting import few_bytes

ROWS = 60_000
VERBS: dict[str, Callable[[gp.Dataset], gp.Dataset]] = {
    "sort": lambda d: d.sort("x"),
    "shuffle": lambda d: d.shuffle(1),
    "group": lambda d: d.group_by("k").agg(x=("x", "list")),
    "join": lambda d: d.join(d, on="k", many=True, columns="x"),
    "deduplicate": lambda d: d.deduplicate(["k", "x"]),
}


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture(params=["frame", "files"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> gp.Dataset:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"k": random.integers(0, ROWS // 2, ROWS), "x": random.standard_normal(ROWS)})
    if request.param == "frame":
        return gp.from_frame(frame, num_partitions=3, backend="cpu")
    frame.to_parquet(tmp_path / "rows.parquet")
    return gp.read_parquet(tmp_path / "rows.parquet", backend="cpu")


@contextmanager
def files_no_larger_than(num_bytes: int) -> Iterator[None]:
    """The system ends every file there, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("memory", [400_000, 4_000_000], ids=["cut into buckets", "a large result"])
def test_a_disk_that_is_full(
    data: gp.Dataset, scratch: Path, verb: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_bytes(monkeypatch, memory)
    if memory > 1_000_000:
        monkeypatch.setattr("gpupipe.io.relational.gathering.get_table_limit", lambda: 1000)
        monkeypatch.setattr(engine, "count_buckets", lambda *_: 1)
    with files_no_larger_than(2_000), pytest.raises(BadFile) as caught:
        VERBS[verb](data).compute()
    assert caught.value.where.startswith(str(scratch))
    assert "File too large" in caught.value.problem and "TMPDIR" in (caught.value.remedy or "")
    assert list(scratch.iterdir()) == []
    few_bytes(monkeypatch, 1 << 40)
    assert len(VERBS[verb](data)) > 0


def test_a_full_disk_of_which_polars_says_less(tmp_path: Path) -> None:
    """As it happens by chance: the file ended within a header of Parquet."""
    cause = pl.exceptions.ComputeError("parquet: File out of specification: Invalid thrift: transport error")
    with files_no_larger_than(2_000), pytest.raises(BadFile, match="File too large"), writing_scratch(tmp_path):
        raise cause
    with pytest.raises(pl.exceptions.ComputeError), writing_scratch(tmp_path):  # a source's file may be what is damaged
        raise cause


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("where", ["a bucket", "a batch"])
def test_an_interrupted_plan_leaves_nothing(
    data: gp.Dataset, scratch: Path, verb: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_bytes(monkeypatch, 1_000_000)
    owner, name = (engine, "_scan_bucket") if where == "a bucket" else (Gathered, "_add")
    work, interrupted = getattr(owner, name), list[None]()

    def interrupt(*given: Any) -> Any:
        found = work(*given)
        if not interrupted:
            interrupted.append(None)
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(owner, name, interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        VERBS[verb](data).compute()
    assert list(scratch.iterdir()) == [] and caught.tb is not None  # a notebook keeps it, and all that it refers to
    assert len(VERBS[verb](data)) > 0


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may arrive in a finalizer
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("seconds", [0.02, 0.1])
def test_a_signal_at_any_moment_leaves_nothing(
    data: gp.Dataset, scratch: Path, verb: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_bytes(monkeypatch, 1_000_000)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs tests in the background ignores it
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with suppress(KeyboardInterrupt):
            deque((found, len(found)) for found in (VERBS[verb](data) for _ in range(20)))
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    for thread in threading.enumerate():
        if thread.name.startswith("gpupipe"):
            thread.join()  # what it had begun
    gc.collect()
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_that_is_tidied_up(
    data: gp.Dataset, scratch: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_bytes(monkeypatch, 1_000_000)
    bucket = engine._scan_bucket

    def tidied(one: Scan, folder: Path, number: int) -> pl.LazyFrame:
        found = bucket(one, folder, number)
        if number == 1:
            shutil.rmtree(folder)
        return found

    monkeypatch.setattr(engine, "_scan_bucket", tidied)
    with pytest.raises(PlanFailed) as caught:
        VERBS[verb](data).compute()
    assert caught.value.where == verb and "No such file" in caught.value.problem
    assert list(scratch.iterdir()) == []


def test_a_result_that_is_tidied_up(data: gp.Dataset, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_bytes(monkeypatch, 1_000_000)
    found = data.sort("x")
    assert len(found) == ROWS
    (folder,) = scratch.iterdir()
    shutil.rmtree(folder)
    for use in (found.compute, lambda: found.sort("k").compute()):
        with pytest.raises(BadFile) as caught:
            use()
        assert str(folder) in str(caught.value)


@pytest.mark.parametrize("how", ["left", "inner", "right", "outer"])
@pytest.mark.parametrize("memory", [1 << 40, 1_000_000])
def test_a_right_side_without_rows(data: gp.Dataset, how: Any, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    few_bytes(monkeypatch, memory)
    for nothing in (data.filter("x > 100"), data.filter("x + 0 > 100")):
        found = data.join(nothing, on="k", how=how).compute()
        kept = data.compute() if how in ("left", "outer") else data.compute()[:0]
        pd.testing.assert_frame_equal(found[["k", "x"]], kept, check_dtype=False)
        assert found["x_right"].isna().all()
        other = nothing.join(data.deduplicate("k"), on="k", how=how)
        assert len(other) == (len(data.deduplicate("k")) if how in ("right", "outer") else 0)


@pytest.mark.parametrize("verb", VERBS)
def test_a_table_without_rows(data: gp.Dataset, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for memory in (1 << 40, 1_000_000):
        few_bytes(monkeypatch, memory)
        assert len(VERBS[verb](data.filter("x > 100")).compute()) == 0
