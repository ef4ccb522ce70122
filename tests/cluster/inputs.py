"""What the tests of this room share: flights in a file per day, pipelines over them, and what was written of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.io.stores import MANIFEST
from tests.cluster.steps import lateness

ROOT = Path(__file__).parents[2]
DAYS = 12

SOAKED = range(100, 120)
"""Twenty repetitions in `make soak`; the number is the seed."""
ONCE = [0, *(pytest.param(number, marks=pytest.mark.soak) for number in SOAKED)]
"""One in `make test-all`, or these twenty."""


def write_days(folder: Path, days: range) -> Path:
    """A file of one row group per day of January, about 850 flights each."""
    flights = pq.read_table(ROOT / "data" / "flights.parquet", filters=[("month", "==", 1)])
    folder.mkdir(exist_ok=True)
    for day in days:
        table = flights.filter(pc.equal(flights["day"], day))
        pq.write_table(table, folder / f"day{day:02d}.parquet")
    return folder


def read_days(folder: Path) -> gp.Dataset:
    """A partition per file."""
    return gp.read_parquet(folder, partition_bytes=120_000, backend="cpu")


def pipeline(fn: Callable[[Any], Any] = lateness) -> gp.Pipeline:
    """With a function of the user's, a join, and steps that take one pass and two."""
    planes = gp.read_parquet(ROOT / "data" / "planes.parquet", columns=["tailnum", "seats", "engines"]).compute()
    return gp.Pipeline(
        [T.Map(fn, reads=["day", "dep_delay"], adds=["late"]), T.Join(planes, on="tailnum", name="planes")],
        gp.Features(
            (["dep_delay", "distance"], [pre.SimpleImputer(strategy="median"), pre.StandardScaler()]),
            (["seats", "engines"], [pre.SimpleImputer(), pre.StandardScaler(), pre.PCA(n_components=1)]),
            (["carrier", "dest"], pre.Categorify(min_frequency=5)),
            (["late"], pre.SimpleImputer(strategy="most_frequent")),
            target="arr_delay > 15",
            keep=["flight", "day"],
        ),
        backend="cpu",
    )


def state_of(fitted: gp.Pipeline) -> list[Any]:
    """All that was learned, and what was seen on the way, as plain values; floats as their bits."""
    assert fitted.features is not None and fitted.fit_report is not None
    report = fitted.fit_report
    steps = [step.get_state() for group in fitted.features.groups for step in group.steps]
    return [_plain(steps), report.num_rows, report.num_without_target, report.unmatched]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value.to_pylist()
    if isinstance(value, np.ndarray | np.generic | float):
        return np.asarray(value).dtype.str, np.asarray(value).tobytes()
    return value


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder without its manifest, which tells of the pipeline and of the inputs' names."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    assert files.pop(MANIFEST).is_file()
    return {name: path.read_bytes() for name, path in sorted(files.items())}


def script(path: Path, text: str) -> list[str]:
    """The command that runs a program of its own."""
    path.write_text(text)
    return [sys.executable, "-W", "error", str(path)]


def environment() -> dict[str, str]:
    """Of such a program."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program, killed in the end whatever happens."""
    with subprocess.Popen(command, env=environment(), text=True, cwd=ROOT, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; what is over is no process even if nobody has asked for its end."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], Any]) -> Any:
    """What the condition gives once it is true; on a busy machine to start a process takes a minute."""
    deadline = time.monotonic() + 180
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
    return found
