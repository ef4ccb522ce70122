"""A hundred million rows beside ten: the job of `etl.py`, whose memory and speed must not depend on the rows.

    python benchmarks/large.py [--rounds 3] [--copies 297]

Fit, transform and write, each size in a process of its own, in turns. The larger set is made where it is absent (four
minutes, 6.6 GB on the disk), with the recipe of `big_flights.py`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import big_flights
import pyarrow.parquet as pq
from environment import spread, timed, write_result
from etl import with_gpupipe

SMALL, LARGE = "10 million rows", "100 million rows"
PATHS = {SMALL: big_flights.DEFAULT, LARGE: big_flights.DEFAULT.with_name("flights_100m.parquet")}


def run_one(size: str) -> None:
    """One size once, in this process; its figures as one JSON line."""
    source = PATHS[size]
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        out = Path(folder) / "out"
        figures = timed(with_gpupipe(source, out))
        figures["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        rows = pq.read_metadata(source).num_rows
        written = sum(pq.read_metadata(path).num_rows for path in out.rglob("*.parquet"))
        assert written == rows, f"{written} of {rows} rows were written"
        figures["million_rows_per_s"] = rows / figures["wall_s"] / 1e6
    print(json.dumps(figures))


def measure(rounds: int) -> dict[str, Any]:
    """Seconds, memory and rows per second of both sizes, in turns."""
    runs: dict[str, list[dict[str, float]]] = {size: [] for size in PATHS}
    for number in range(rounds):
        for size in PATHS:
            done = subprocess.run([sys.executable, __file__, "--size", size], check=True, stdout=subprocess.PIPE)
            runs[size].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"round {number + 1}, {size}: {runs[size][-1]}", file=sys.stderr, flush=True)
    keys = ("cpu_s", "wall_s", "peak_gb", "million_rows_per_s")
    figures = {size: {key: spread([run[key] for run in done]) for key in keys} for size, done in runs.items()}
    return {"rounds": rounds, "figures": figures, "bars": bars(figures)}


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
    parser.add_argument("--copies", type=int, default=297, help="of the year, in the larger set")
    parser.add_argument("--size", choices=PATHS, help="run this one once, in this process")
    parsed = parser.parse_args()
    if parsed.size:
        run_one(parsed.size)
        return
    for size, copies in ((SMALL, 30), (LARGE, parsed.copies)):
        if not PATHS[size].exists():
            print(f"making {PATHS[size]}", file=sys.stderr, flush=True)
            big_flights.make(PATHS[size], copies)
    print(write_result("large_cpu", measure(parsed.rounds)))


if __name__ == "__main__":
    main()
