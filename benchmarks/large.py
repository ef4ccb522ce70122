"""A hundred million rows beside ten: the job of `etl.py`, whose memory and speed must not depend on the rows.

    python benchmarks/large.py [--rounds 3] [--data data/big]

Fit, transform and write, each size in a process of its own, in turns. The larger set is made where it is absent (four
minutes, 6.6 GB), with the recipe of `big_flights.py`. Eight GB are read and written for the larger set: where a disk is
slower than that, it is the disk that is measured, so the result says in what file system the sets lie; `--data` may
name a folder in memory (`/dev/shm/big`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import big_flights
import pyarrow.parquet as pq
from environment import peak_gb, spread, timed, write_result
from etl import with_gpupipe

SMALL, LARGE = "10 million rows", "100 million rows"
FILES = {SMALL: "flights.parquet", LARGE: "flights_100m.parquet"}


def run_one(source: Path) -> None:
    """One size once, in this process; its figures as one JSON line."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        out = Path(folder) / "out"
        figures = timed(with_gpupipe(source, out))
        figures["peak_gb"] = peak_gb()
        rows = pq.read_metadata(source).num_rows
        written = sum(pq.read_metadata(path).num_rows for path in out.rglob("*.parquet"))
        assert written == rows, f"{written} of {rows} rows were written"
        figures["million_rows_per_s"] = rows / figures["wall_s"] / 1e6
    print(json.dumps(figures))


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Seconds, memory and rows per second of both sizes, in turns."""
    runs: dict[str, list[dict[str, float]]] = {size: [] for size in FILES}
    for number in range(rounds):
        for size in FILES:
            call = [sys.executable, __file__, "--data", str(folder), "--size", size]
            done = subprocess.run(call, check=True, stdout=subprocess.PIPE)
            runs[size].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"round {number + 1}, {size}: {runs[size][-1]}", file=sys.stderr, flush=True)
    keys = ("cpu_s", "wall_s", "peak_gb", "million_rows_per_s")
    figures = {size: {key: spread([run[key] for run in done]) for key in keys} for size, done in runs.items()}
    setting = {"rounds": rounds, "file_system": file_system(folder)}
    return {"setting": setting, "figures": figures, "bars": bars(figures)}


def file_system(folder: Path) -> str:
    """The kind of the file system a folder is in, such as `ext4` or `tmpfs`."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    place = folder.resolve()
    return max(((mount, kind) for mount, kind in mounts if place.is_relative_to(mount)), key=lambda m: len(m[0]))[1]


def bars(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """What was asked for, what was found, whether that is enough."""
    small, large = ({key: found["median"] for key, found in figures[size].items()} for size in (SMALL, LARGE))
    memory, speed = (large[key] / small[key] for key in ("peak_gb", "million_rows_per_s"))
    peak = large["peak_gb"]
    return [
        {"what": "peak GB at 100 million", "bar": "at most 1.5", "found": peak, "met": peak <= 1.5},
        {"what": "peak, 100 million / 10 million", "bar": "at most 1.1", "found": memory, "met": memory <= 1.1},
        {"what": "rows/s, 100 million / 10", "bar": "0.85 to 1.15", "found": speed, "met": 0.85 <= speed <= 1.15},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=big_flights.DEFAULT.parent)
    parser.add_argument("--copies", type=int, default=297, help="of the year, in the larger set")
    parser.add_argument("--size", choices=FILES, help="run this one once, in this process")
    parsed = parser.parse_args()
    if parsed.size:
        run_one(parsed.data / FILES[parsed.size])
        return
    for size, copies in ((SMALL, 30), (LARGE, parsed.copies)):
        path = parsed.data / FILES[size]
        if not path.exists():
            print(f"making {path}", file=sys.stderr, flush=True)
            big_flights.make(path, copies)
    print(write_result("large_cpu", measure(parsed.data, parsed.rounds)))


if __name__ == "__main__":
    main()
