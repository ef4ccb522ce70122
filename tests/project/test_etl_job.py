"""The job template as a scheduler runs it: a process with arguments, an exit code and a file of metrics."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import gpupipe as gp

ROOT = Path(__file__).parents[2]
JOB = ROOT / "examples" / "etl_job.py"


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of forty row groups: as many partitions, so that a job can be stopped in the middle."""
    path = tmp_path_factory.mktemp("in") / "flights.parquet"
    table = pq.read_table(ROOT / "data" / "flights.parquet").slice(0, 20_000)
    pq.write_table(table, path, row_group_size=500)
    return path


def start(source: Path, folder: Path, *options: str) -> subprocess.Popen[str]:
    given = [str(source), str(folder / "features"), "--pipeline", str(folder / "pipeline")]
    given += ["--metrics", str(folder / "metrics.json"), "--partition-bytes", "1", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, str(JOB), *given], env=environment, stderr=subprocess.PIPE, text=True)


def finish(job: subprocess.Popen[str], folder: Path) -> tuple[int, dict[str, Any], str]:
    """The job's exit code, metrics and log."""
    _, log = job.communicate(timeout=300)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["exit_code"] == job.returncode, log
    return job.returncode, metrics, log


def features(folder: Path) -> pd.DataFrame:
    return gp.read_parquet(folder / "features").compute()


def test_it_ends_goes_on_after_sigterm_and_has_nothing_left_to_do(flights: Path, tmp_path: Path) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    straight.mkdir()
    stopped.mkdir()
    code, whole, log = finish(start(flights, straight), straight)
    assert (code, whole["status"], whole["rows_out"], whole["parts_before"]) == (0, "done", 20_000, 0), log
    assert whole["parts"] == 40

    job = start(flights, stopped)
    until = time.monotonic() + 100
    while not list(stopped.glob(".features.draft/*/*.record")) and job.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    job.send_signal(signal.SIGTERM)
    code, metrics, log = finish(job, stopped)
    assert (code, metrics["status"]) == (143, "stopped"), log
    assert "the same call goes on" in log and not (stopped / "features").exists()

    code, rest, log = finish(start(flights, stopped), stopped)
    assert (code, rest["rows_out"]) == (0, 20_000), log
    assert 0 < rest["parts_before"] < 40 and f"pipeline of {stopped / 'pipeline'}" in log
    pd.testing.assert_frame_equal(features(stopped), features(straight))

    code, again, log = finish(start(flights, straight), straight)
    assert (code, again["parts_before"]) == (0, 40), log


def test_bad_input_is_told_and_has_a_code_of_its_own(tmp_path: Path) -> None:
    code, metrics, log = finish(start(tmp_path / "none.parquet", tmp_path), tmp_path)
    assert (code, metrics["status"]) == (2, "failed")
    assert "no such file" in metrics["error"] and "no such file" in log and "Traceback" not in log
    assert not (tmp_path / "features").exists()
