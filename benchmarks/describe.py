"""Ten million flights described column by column, beside Polars: CPU, time and memory.

    python benchmarks/describe.py [--rounds 5] [--data data/big/flights.parquet]

Each call is in a process of its own, in turns; what is timed begins after the imports. Polars gives counts, means,
spreads, extremes and quartiles; gpupipe gives these, and different values, frequent values, distributions and notes,
and with a target how much each column says about it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import big_flights
import polars as pl
import pyarrow.parquet as pq
from environment import peak_gb, spread, timed, with_steady_malloc, write_result

import gpupipe as gp

OURS, TARGET = "gpupipe", "gpupipe, with a target"
COLLECTED, LAZY = "Polars, collected", "Polars, lazy"
ENOUGH = 2.0


def list_jobs(source: Path) -> dict[str, Callable[[], Any]]:
    """List the calls that are compared."""
    return {
        OURS: lambda: gp.read_parquet(source).describe(),
        TARGET: lambda: gp.read_parquet(source).describe("arr_delay > 15"),
        COLLECTED: lambda: pl.scan_parquet(source).collect().describe(),
        LAZY: lambda: pl.scan_parquet(source).describe(),
    }


def run_one(source: Path, name: str) -> None:
    """Time one call in this process; its figures as one JSON line."""
    print(json.dumps({**timed(list_jobs(source)[name]), "peak_gb": peak_gb()}))


def measure(source: Path, rounds: int) -> dict[str, Any]:
    """Measure all calls, in turns."""
    names = list(list_jobs(source))
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            call = [sys.executable, __file__, "--data", str(source), "--name", name]
            done = subprocess.run(call, check=True, stdout=subprocess.PIPE)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"round {number + 1}, {name}: {runs[name][-1]}", file=sys.stderr, flush=True)
    keys = ("cpu_s", "wall_s", "peak_gb")
    figures = {name: {key: spread([run[key] for run in done]) for key in keys} for name, done in runs.items()}
    rows = pq.read_metadata(source).num_rows
    return {"setting": {"rounds": rounds, "rows": rows}, "figures": figures, "bars": list_bars(figures)}


def list_bars(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare what was asked for with what was found: beside the way of Polars that takes less."""
    least = min(figures[name]["cpu_s"]["median"] for name in (COLLECTED, LAZY))
    ratios = {f"{name}: CPU / Polars": figures[name]["cpu_s"]["median"] / least for name in (OURS, TARGET)}
    asked = f"at most {ENOUGH:g}"
    return [{"what": what, "bar": asked, "found": found, "met": found <= ENOUGH} for what, found in ratios.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=big_flights.DEFAULT)
    parser.add_argument("--name", help="one call, in this process")
    parsed = parser.parse_args()
    with_steady_malloc()
    if not parsed.data.exists():
        big_flights.make(parsed.data)
    if parsed.name:
        run_one(parsed.data, parsed.name)
        return
    print(write_result("describe_cpu", measure(parsed.data, parsed.rounds)))


if __name__ == "__main__":
    main()
