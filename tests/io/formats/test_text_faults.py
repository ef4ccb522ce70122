"""What fails while text is parsed is reported as what it is, and nothing is left of it; progress is shown."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

import gpupipe as gp
from gpupipe.errors import BadFile, ClusterLost, OutOfDeviceMemory, PlanFailed
from gpupipe.io.relational import engine

TEXTS = {"csv": "a,b\n1,x\n2,y\n", "jsonl": '{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n'}
FULL = "std::bad_alloc: out_of_memory: CUDA error at: /rmm/mr/device.hpp:90: cudaErrorMemoryAllocation out of memory"
ILLEGAL = "CUDA error encountered at: /cudf/src/io/json.cu:7: 700 cudaErrorIllegalAddress an illegal memory access"


@pytest.fixture(params=TEXTS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    found = tmp_path / f"a.{request.param}"
    found.write_text(TEXTS[request.param])
    return found


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def read(path: Path, *others: Path, **options: Any) -> gp.Dataset:
    return (gp.read_csv if path.suffix == ".csv" else gp.read_json)([path, *others], **options)


@pytest.mark.parametrize("is_passed_on", [False, True])
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (MemoryError(FULL), OutOfDeviceMemory),
        (RuntimeError(ILLEGAL), PlanFailed),
        (MemoryError("Unable to allocate 8.00 GiB"), MemoryError),
        (RuntimeError("what nobody has foreseen"), PlanFailed),
    ],
)
def test_a_fault_of_the_device_is_no_bad_file(
    path: Path, scratch: Path, fault: Exception, expected: type, is_passed_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> None:
        if is_passed_on and "Unable" not in str(fault):  # Polars keeps the words alone
            raise pl.exceptions.ComputeError(f"{type(fault).__name__}: {fault}")
        raise pl.exceptions.ComputeError(f"{type(fault).__name__}: {fault}") from fault

    of_gpu = SimpleNamespace(refuse=lambda *_: None, write=write)
    monkeypatch.setattr(engine, "_import_gpu_engine", lambda: of_gpu)
    monkeypatch.setattr("gpupipe.cluster.executor.Executor.resolve", lambda *_: "gpu")
    with pytest.raises(expected) as caught:
        read(path, on_bad="skip")
    assert not isinstance(caught.value, BadFile)
    if isinstance(caught.value, (OutOfDeviceMemory, PlanFailed)):
        assert caught.value.where == str(path)
        assert str(fault) in caught.value.problem
        assert "backend='cpu'" in caught.value.remedy
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    "fault", [MemoryError("malloc of size 64 failed"), ClusterLost("a", "b", expected="", remedy="")]
)
def test_other_faults_pass_unchanged(
    path: Path, scratch: Path, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sink(*_: object) -> None:
        raise fault

    monkeypatch.setattr("gpupipe.io.relational.text_file.sink", sink)
    with pytest.raises(type(fault)) as caught:
        read(path, on_bad="skip")
    assert caught.value is fault
    assert list(scratch.iterdir()) == []


def test_a_file_that_may_not_be_read_names_the_reason(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sink(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("gpupipe.io.relational.text_file.sink", sink)
    with pytest.raises(BadFile) as caught:
        read(path)
    assert "Permission denied" in caught.value.problem and "UTF-8" not in str(caught.value)


@pytest.mark.parametrize("place", ["scratch", "store"])
def test_an_interrupt_leaves_nothing(path: Path, scratch: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if place == "store":
        monkeypatch.setattr(
            "gpupipe.io.formats.spill.settings", lambda: SimpleNamespace(scratch="memory://interrupted")
        )
    second = path.with_name(f"b{path.suffix}")
    second.write_text(path.read_text())
    sink = engine.sink

    def interrupted(plan: pl.LazyFrame, where: str, *rest: Any) -> None:
        sink(plan, where, *rest)
        if where == str(second):
            raise KeyboardInterrupt

    monkeypatch.setattr("gpupipe.io.relational.text_file.sink", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        read(path, second)
    assert list(scratch.iterdir()) == [] and caught.tb is not None  # a notebook keeps it, and all that it refers to
    if place == "store":
        import fsspec

        assert fsspec.filesystem("memory").find("interrupted") == []


@pytest.mark.soak
def test_a_signal_while_text_is_parsed_leaves_nothing(path: Path, scratch: Path) -> None:
    head, _, row = path.read_text().rstrip().partition("\n")
    path.write_text(f"{head}\n" + f"{row.splitlines()[-1]}\n" * 2_000_000)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs tests in the background ignores it
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            deque(read(path) for _ in range(100))
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_names_the_file_on_a_terminal(path: Path, is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", shown)
    read(path, path)
    assert (path.name in shown.getvalue(), "1/2" in shown.getvalue()) == (is_terminal, is_terminal)
