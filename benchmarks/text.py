"""CSV and JSON lines of 2 GB each to a dataset, beside the same files written to Parquet by Polars.

    python benchmarks/text.py [--rounds 3]

Ours finds types, parses times, counts keys and rows, and writes temporary Parquet files. Polars is measured as it is by
default, where times stay text, and for CSV with its own inference of times as well. Each run is a process of its own,
in turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from environment import peak_gb, spread, timed, write_result

import gpupipe as gp

DATA = Path(__file__).parents[1] / "data" / "flights.parquet"
CSV_COPIES, JSON_COPIES = 60, 20
BAR = 1.2


def make(folder: Path) -> None:
    """The flights several times over, as CSV and as JSON lines."""
    frame = pl.read_parquet(DATA).with_columns(pl.col("time_hour").dt.strftime("%Y-%m-%d %H:%M:%S"))
    pl.concat([frame] * CSV_COPIES).write_csv(folder / "flights.csv", null_value="NA")
    pl.concat([frame] * JSON_COPIES).write_ndjson(folder / "flights.jsonl")


def jobs(folder: Path) -> dict[str, Callable[[], Any]]:
    csv, lines, out = folder / "flights.csv", folder / "flights.jsonl", folder / "out.parquet"
    return {
        "CSV, gpupipe": lambda: gp.read_csv(csv, backend="cpu"),
        "CSV, Polars": lambda: pl.scan_csv(csv, null_values="NA").sink_parquet(out),
        "CSV, Polars with times": lambda: pl.scan_csv(csv, null_values="NA", try_parse_dates=True).sink_parquet(out),
        "JSON lines, gpupipe": lambda: gp.read_json(lines, backend="cpu"),
        "JSON lines, Polars": lambda: pl.scan_ndjson(lines).sink_parquet(out),
    }


def run_one(job: str, folder: Path) -> None:
    """One job once, in this process, whose libraries are loaded before; its figures as one JSON line."""
    gp.read_parquet(DATA, columns="year", backend="cpu").head()
    pl.scan_parquet(DATA).select("year").collect(engine="streaming")
    figures = timed(jobs(folder)[job])
    figures["peak_gb"] = peak_gb()
    print(json.dumps(figures))


def measure(rounds: int) -> dict[str, Any]:
    """Seconds and memory of all jobs, in turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        megabytes = {path.name: round(path.stat().st_size / 1e6) for path in sorted(folder.iterdir())}
        runs: dict[str, list[dict[str, float]]] = {job: [] for job in jobs(folder)}
        for number in range(rounds):
            for job, done in runs.items():
                command = [sys.executable, __file__, "--job", job, "--folder", name]
                printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
                done.append(json.loads(printed.splitlines()[-1]))
                print(f"round {number + 1}, {job}: {done[-1]}", file=sys.stderr, flush=True)
    keys = ("cpu_s", "wall_s", "peak_gb")
    figures = {job: {key: spread([run[key] for run in done]) for key in keys} for job, done in runs.items()}
    return {"rounds": rounds, "megabytes": megabytes, "figures": figures, "bars": bars(figures)}


def bars(figures: dict[str, dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """What was asked for beside what was found."""
    found = {
        form: figures[f"{form}, gpupipe"]["cpu_s"]["median"] / figures[f"{form}, Polars"]["cpu_s"]["median"]
        for form in ("CSV", "JSON lines")
    }
    return [
        {
            "what": f"{form}: CPU seconds over those of Polars, which leaves times as text",
            "found": ratio,
            "bar": f"at most {BAR}",
            "met": ratio <= BAR,
        }
        for form, ratio in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--job", help="run this one once, in this process")
    parser.add_argument("--folder", type=Path, help="where its files are")
    parsed = parser.parse_args()
    if parsed.job:
        run_one(parsed.job, parsed.folder)
    else:
        print(write_result("text_cpu", measure(parsed.rounds)))


if __name__ == "__main__":
    main()
