"""CSV and JSON lines of 2 GB each to a dataset, beside the same files written to Parquet by Polars.

    python benchmarks/text.py [--rounds 3]

Ours finds types, parses times, counts keys and rows, and writes temporary Parquet files. Polars is measured as it is by
default, where times stay text, and for CSV with its own inference of times as well. What ours does before Polars parses
CSV (the survey of the bytes) and after it has parsed JSON lines (the count of the values) is measured by itself, too.
Each run is a process of its own, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from environment import peak_gb, spread, timed, write_result

import gpupipe as gp
from gpupipe.io.relational.csv import survey_rows
from gpupipe.io.relational.ndjson import count_values

DATA = Path(__file__).parents[1] / "data" / "flights.parquet"
CSV_COPIES, JSON_COPIES = 60, 20
BAR, GB_PER_S = 1.1, 2.0
SURVEY, COUNT = "CSV, the survey alone", "JSON lines, the count alone"
ONE_CORE = ", one core"


def make(folder: Path) -> None:
    """The flights several times over, as CSV and as JSON lines."""
    frame = pl.read_parquet(DATA).with_columns(pl.col("time_hour").dt.strftime("%Y-%m-%d %H:%M:%S"))
    pl.concat([frame] * CSV_COPIES).write_csv(folder / "flights.csv", null_value="NA")
    pl.concat([frame] * JSON_COPIES).write_ndjson(folder / "flights.jsonl")
    frame.head(9).write_csv(folder / "few.csv")
    frame.head(9).write_ndjson(folder / "few.jsonl")


def jobs(folder: Path) -> dict[str, Callable[[], Any]]:
    csv, lines, out = folder / "flights.csv", folder / "flights.jsonl", folder / "out.parquet"
    num_columns = len(pl.read_parquet_schema(DATA))
    alone = {SURVEY: lambda: survey_rows(csv, ",", num_columns), COUNT: lambda: count_values(lines, None)}

    def with_one_core(job: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> None:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            job()

        return run

    return {
        "CSV, gpupipe": lambda: gp.read_csv(csv, backend="cpu"),
        "CSV, Polars": lambda: pl.scan_csv(csv, null_values="NA").sink_parquet(out),
        "CSV, Polars with times": lambda: pl.scan_csv(csv, null_values="NA", try_parse_dates=True).sink_parquet(out),
        "JSON lines, gpupipe": lambda: gp.read_json(lines, backend="cpu"),
        "JSON lines, Polars": lambda: pl.scan_ndjson(lines).sink_parquet(out),
        **alone,
        **{f"{name}{ONE_CORE}": with_one_core(job) for name, job in alone.items()},
    }


def run_one(job: str, folder: Path) -> None:
    """One job once, in this process, whose libraries and loops are loaded before; its figures as one JSON line."""
    gp.read_parquet(DATA, columns="year", backend="cpu").head()
    pl.scan_parquet(DATA).select("year").collect(engine="streaming")
    gp.read_csv(folder / "few.csv", backend="cpu")
    gp.read_json(folder / "few.jsonl", backend="cpu")
    figures = timed(jobs(folder)[job])
    figures["peak_gb"] = peak_gb()
    print(json.dumps(figures))


def measure(rounds: int) -> dict[str, Any]:
    """Seconds and memory of all jobs, in turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        megabytes = {path.name: round(path.stat().st_size / 1e6) for path in sorted(folder.glob("flights.*"))}
        runs: dict[str, list[dict[str, float]]] = {job: [] for job in jobs(folder)}
        for number in range(rounds):
            for job, done in runs.items():
                command = [sys.executable, __file__, "--job", job, "--folder", name]
                printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
                done.append(json.loads(printed.splitlines()[-1]))
                print(f"round {number + 1}, {job}: {done[-1]}", file=sys.stderr, flush=True)
    keys = ("cpu_s", "wall_s", "peak_gb")
    figures = {job: {key: spread([run[key] for run in done]) for key in keys} for job, done in runs.items()}
    return {"rounds": rounds, "megabytes": megabytes, "figures": figures, "bars": bars(figures, megabytes)}


def bars(figures: dict[str, dict[str, dict[str, float]]], megabytes: dict[str, int]) -> list[dict[str, Any]]:
    """What was asked for beside what was found."""
    seconds = {job: found["cpu_s"]["median"] for job, found in figures.items()}
    times = {
        f"{form}: CPU seconds over those of Polars, which leaves times as text": seconds[f"{form}, gpupipe"]
        / seconds[f"{form}, Polars"]
        for form in ("CSV", "JSON lines")
    }
    rates = {
        f"{job}: GB in a CPU second of each of two cores": 2 * megabytes[file] / 1e3 / seconds[job]
        for job, file in ((SURVEY, "flights.csv"), (COUNT, "flights.jsonl"))
    }
    return [
        *(
            {"what": what, "found": found, "bar": f"at most {BAR}", "met": found <= BAR}
            for what, found in times.items()
        ),
        *(
            {"what": what, "found": found, "bar": f"at least {GB_PER_S}", "met": found >= GB_PER_S}
            for what, found in rates.items()
        ),
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
