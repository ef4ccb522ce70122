"""Two Dask workers of one thread each beside one, on 10 million rows: fit, transform and write, the job of `etl.py`.

    python benchmarks/cluster.py [--data data/big] [--rounds 3] [--workers N]

Each number of workers is measured in a program of its own, in turns: the second of two runs, so that workers have
imported what they use and hold the memory they work in. pyarrow and BLAS have one thread in both cases,
and nothing is read ahead within a worker. CPU seconds are those of the workers and of the program that drives them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import big_flights
import psutil
import pyarrow.parquet as pq
from environment import spread, write_result
from etl import with_gpupipe

WORKERS = {"1 worker": 1, "2 workers": 2}
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ARROW_IO_THREADS"), "1"
)  # pyarrow's pool goes by the first
BAR = 1.6


def run_one(source: Path, n_workers: int) -> None:
    """One number of workers once, in this program; its figures as one JSON line."""
    import gpupipe as gp

    rows = pq.read_metadata(source).num_rows
    with tempfile.TemporaryDirectory(dir=source.parent) as name, gp.Cluster(n_workers=n_workers, gpu=False):
        folder = Path(name)
        out = folder / "out"
        with_gpupipe(source, folder / "warm")()
        shutil.rmtree(folder / "warm")
        job, cpu, wall = with_gpupipe(source, out), cpu_seconds(), perf_counter()
        job()
        figures = {"wall_s": perf_counter() - wall, "cpu_s": cpu_seconds() - cpu}
        figures["million_rows_per_s"] = rows / figures["wall_s"] / 1e6
        written = sum(pq.read_metadata(path).num_rows for path in out.rglob("*.parquet"))
        assert written == rows, f"{written} of {rows} rows were written"
    print(json.dumps(figures))


def cpu_seconds() -> float:
    """User and system seconds of this process and of those it has started, so far."""
    here = psutil.Process()
    times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
    return float(sum(found.user + found.system for found in times))


def measure(source: Path, rounds: int) -> dict[str, Any]:
    """Seconds and rows per second with one worker and with two, in turns."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in WORKERS}
    for number in range(rounds):
        for name, n_workers in WORKERS.items():
            call = [sys.executable, __file__, "--data", str(source.parent), "--workers", str(n_workers)]
            done = subprocess.run(call, check=True, stdout=subprocess.PIPE, env=os.environ | ONE_THREAD)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"round {number + 1}, {name}: {runs[name][-1]}", file=sys.stderr, flush=True)
    keys = ("cpu_s", "wall_s", "million_rows_per_s")
    figures = {name: {key: spread([run[key] for run in done]) for key in keys} for name, done in runs.items()}
    return {
        "rounds": rounds,
        "setting": {"threads_per_worker": 1} | ONE_THREAD,
        "figures": figures,
        "bars": bars(figures),
    }


def bars(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """What was asked for, what was found, whether that is enough."""
    one, two = (figures[name]["million_rows_per_s"]["median"] for name in WORKERS)
    return [{"what": "rows/s, 2 workers / 1", "bar": f"at least {BAR}", "found": two / one, "met": two >= BAR * one}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=big_flights.DEFAULT.parent, help="the folder of flights.parquet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, help="run once with so many, in this program")
    parsed = parser.parse_args()
    source = parsed.data / "flights.parquet"
    if not source.exists():
        print(f"making {source}", file=sys.stderr, flush=True)
        big_flights.make(source)
    if parsed.workers:
        run_one(source, parsed.workers)
    else:
        print(write_result("cluster_cpu", measure(source, parsed.rounds)))


if __name__ == "__main__":
    main()
