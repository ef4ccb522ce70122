"""Whole tables ten times as large in 4 GB of memory: sort, join and group of 100 million rows beside 10 million.

    python benchmarks/whole_tables_large.py [--data data/big] [--rounds 1] [--rows 100000000] [--memory 4]

The jobs of `whole_tables.py` by gpupipe alone, which is told to take half of that memory (`memory_limit`), each size in
a process of its own, in turns. The larger table is the smaller one over and over, with other bookings. A run takes half
an hour and 25 GB of disk; what is between lies in TMPDIR.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import big_flights
import pyarrow.parquet as pq
from environment import write_result
from whole_tables import OURS, READ, ROWS, make, run, sources, spreads

VERBS = ("sort", "join", "group_by")
SPEED_BAR = 0.7


def repeat(folder: Path, rows: int) -> None:
    """Write the flights that `make` cuts so many rows from: those of `whole_tables.py`, over and over."""
    source, target = folder / "flights.parquet", folder / "flights_100m.parquet"
    if not source.exists():
        big_flights.make(source)
    draft = target.with_suffix(".draft")
    flights = pq.ParquetFile(source)
    types = flights.read_row_group(0, columns=READ).schema
    with pq.ParquetWriter(draft, types, compression="lz4") as writer:
        for _ in range(-(-rows // flights.metadata.num_rows)):
            for batch in flights.iter_batches(big_flights.ROWS_PER_GROUP, columns=READ):
                writer.write_batch(batch)
    draft.replace(target)


def measure(folder: Path, rounds: int, rows: int, memory: float) -> dict[str, Any]:
    """Seconds, memory and rows per second of each verb at both sizes."""
    sizes = {f"{size // 1_000_000} million rows": size for size in (ROWS, rows)}
    runs: dict[str, list[dict[str, float]]] = {f"{verb}, {size}": [] for verb in VERBS for size in sizes}
    for _ in range(rounds):
        for verb in VERBS:
            for name, size in sizes.items():
                runs[f"{verb}, {name}"].append(run(OURS, verb, folder, size, memory / 2)["figures"])
    figures, (small, large) = {what: spreads(done) for what, done in runs.items()}, sizes
    bars = []
    for verb in VERBS:
        few, many = figures[f"{verb}, {small}"], figures[f"{verb}, {large}"]
        peak, speed = many["peak_gb"]["median"], many["million_rows_per_s"]["median"]
        share = speed / few["million_rows_per_s"]["median"]
        bars += [
            {"what": f"{verb}: peak GB, {large}", "bar": f"at most {memory:g}", "found": peak, "met": peak <= memory},
            {
                "what": f"{verb}: rows/s, {large} / {small}",
                "bar": f"at least {SPEED_BAR}",
                "found": share,
                "met": share >= SPEED_BAR,
            },
        ]
    return {"rounds": rounds, "rows": rows, "figures": figures, "bars": bars}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=big_flights.DEFAULT.parent)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=10 * ROWS)
    parser.add_argument("--memory", type=float, default=4.0, help="GB")
    parsed = parser.parse_args()
    for rows in (ROWS, parsed.rows):
        if rows > ROWS and not sources(parsed.data, rows)[0].exists():
            repeat(parsed.data, rows)
        make(parsed.data, rows)
    result = measure(parsed.data, parsed.rounds, parsed.rows, parsed.memory)
    for bar in result["bars"]:
        print(f"{bar['what']}: {bar['found']:.2f}, {bar['bar']}: {'held' if bar['met'] else 'MISSED'}")
    if parsed.rows == 10 * ROWS:
        print(write_result("whole_tables_large_cpu", result))


if __name__ == "__main__":
    main()
