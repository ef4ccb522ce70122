"""ETL side by side on the 10 M-row set: fit, transform and write as gpupipe, hand-written Polars, pandas + scikit-learn.

    python benchmarks/etl.py [--data data/big] [--rounds 3] [--rows N]

The job: Categorify (ids from 2 by count, 1 rare or unknown, 0 missing; at least 20 rows) on carrier, origin, dest,
tailnum, flightno, customer, month, hour; impute the mean and scale dep_delay, arr_delay, air_time, distance, fare; write
int32 ids and float32 numbers as snappy Parquet. Each engine runs in a process of its own, in turns; CPU seconds (user +
system, imports apart), wall seconds and peak memory, medians with the range. Ids are compared with Polars' by checksum.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

CATEGORIES = ["carrier", "origin", "dest", "tailnum", "flightno", "customer", "month", "hour"]
NUMBERS = ["dep_delay", "arr_delay", "air_time", "distance", "fare"]
MIN_FREQUENCY = 20


def with_gpupipe(source: Path, out: Path) -> Any:
    import gpupipe as gp
    from gpupipe import preprocessing as pre

    def job() -> None:
        data = gp.read_parquet(source)
        pipeline = gp.Pipeline(
            [],
            gp.Features(
                (CATEGORIES, pre.Categorify(min_frequency=MIN_FREQUENCY)),
                (NUMBERS, [pre.SimpleImputer(), pre.StandardScaler()]),
            ),
            backend="cpu",
        ).fit(data)
        pipeline.transform(data).write_parquet(out)

    import gpupipe.io
    import gpupipe.pipeline

    return job


def with_polars(source: Path, out: Path) -> Any:
    import polars as pl
    from polars import col

    def job() -> None:
        data = pl.scan_parquet(source)
        counts = [
            data.select(c)
            .drop_nulls()
            .group_by(c)
            .agg(pl.len())
            .filter(col("len") >= MIN_FREQUENCY)
            .sort("len", c, descending=[True, False])
            .select(c, pl.int_range(2, pl.len() + 2, dtype=pl.Int32).alias(f"{c}_id"))
            for c in CATEGORIES
        ]
        moments = data.select(
            *[col(c).mean().alias(f"{c}_mean") for c in NUMBERS],
            *[col(c).std(ddof=0).alias(f"{c}_std") for c in NUMBERS],
            *[col(c).is_null().mean().alias(f"{c}_gap") for c in NUMBERS],
        )
        found, *ids = pl.collect_all([moments, *counts], engine="streaming")
        learned = found.row(0, named=True)
        scaled = []
        for c in NUMBERS:
            mean, deviation = learned[f"{c}_mean"], learned[f"{c}_std"] * (1 - learned[f"{c}_gap"]) ** 0.5
            scaled.append(((col(c) - mean) / deviation).fill_null(0.0).cast(pl.Float32))
        frame = data
        for c, table in zip(CATEGORIES, ids, strict=True):
            frame = frame.join(table.lazy(), on=c, how="left", maintain_order="left")
        coded = [
            pl.when(col(c).is_null()).then(0).otherwise(col(f"{c}_id").fill_null(1)).cast(pl.Int32).alias(c)
            for c in CATEGORIES
        ]
        frame.select(*coded, *scaled).sink_parquet(out / "all.parquet", compression="snappy", engine="streaming")

    out.mkdir()
    return job


def with_pandas(source: Path, out: Path) -> Any:
    import numpy as np
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder, StandardScaler

    def job() -> None:
        frame = pd.read_parquet(source, columns=[*CATEGORIES, *NUMBERS])
        encoder = OrdinalEncoder(
            min_frequency=MIN_FREQUENCY,
            handle_unknown="use_encoded_value",
            unknown_value=-1,
            encoded_missing_value=-2,
            dtype=np.int32,
        )
        both = ColumnTransformer(
            [("ids", encoder, CATEGORIES), ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), NUMBERS)]
        )
        block = both.fit_transform(frame)
        made = pd.DataFrame(block, columns=[*CATEGORIES, *NUMBERS])
        made.astype(dict.fromkeys(CATEGORIES, "int32") | dict.fromkeys(NUMBERS, "float32")).to_parquet(
            out / "all.parquet", compression="snappy"
        )

    out.mkdir()
    return job


ENGINES = {"gpupipe": with_gpupipe, "polars": with_polars, "pandas + scikit-learn": with_pandas}


def run_one(engine: str, source: Path) -> None:
    """Run one engine in this process and print its figures as one JSON line."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        out = Path(folder) / "out"
        job = ENGINES[engine](source, out)
        before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        job()
        wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(
            json.dumps(
                {
                    "engine": engine,
                    "cpu_s": cpu,
                    "wall_s": wall,
                    "peak_gb": after.ru_maxrss * 1024 / 1e9,
                    "sums": checksums(out),
                }
            )
        )


def checksums(out: Path) -> dict[str, float]:
    """The sum of each written column, whatever the order of the rows."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    table = ds.dataset(out, format="parquet").to_table()
    return {name: float(pc.sum(table[name].cast("double")).as_py()) for name in table.column_names}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data/big"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", choices=ENGINES)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parsed = parser.parse_args()
    source = parsed.data / "flights.parquet"
    if parsed.engine:
        run_one(parsed.engine, source)
        return

    from environment import environment

    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ENGINES}
    for number in range(parsed.rounds):
        for name in ENGINES:
            call = [sys.executable, __file__, "--data", str(parsed.data), "--engine", name]
            done = subprocess.run(call, check=True, capture_output=True, text=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"round {number + 1}, {name}: {runs[name][-1]['cpu_s']:.1f} CPU s", flush=True)
    report(runs, environment(), parsed.out)


def report(runs: dict[str, list[dict[str, Any]]], machine: dict[str, Any], out: Path) -> None:
    """Print the table and write the result file."""
    figures = {
        name: {key: spread([run[key] for run in done]) for key in ("cpu_s", "wall_s", "peak_gb")}
        for name, done in runs.items()
    }
    ours = figures["gpupipe"]
    print(f"\n{'engine':24}{'CPU s':>24}{'wall s':>24}{'peak GB':>10}{'ours / theirs (CPU, wall)':>30}")
    for name, found in figures.items():
        cells = [
            f"{found[key]['median']:.2f} ({found[key]['min']:.2f}-{found[key]['max']:.2f})"
            for key in ("cpu_s", "wall_s")
        ]
        ratios = " , ".join(f"{ours[key]['median'] / found[key]['median']:.2f}" for key in ("cpu_s", "wall_s"))
        print(f"{name:24}{cells[0]:>24}{cells[1]:>24}{found['peak_gb']['median']:>10.2f}{ratios:>30}")
    theirs = runs["polars"][-1]["sums"]
    worst = max(
        abs(value - theirs[name]) / (1 + abs(theirs[name])) for name, value in runs["gpupipe"][-1]["sums"].items()
    )
    print(f"largest relative difference of a column's sum to Polars': {worst:.1e}")
    out.mkdir(parents=True, exist_ok=True)
    result = {"what": "etl", "machine": machine, "figures": figures, "largest_difference_to_polars": worst}
    (out / "etl_cpu.json").write_text(json.dumps(result, indent=1) + "\n")


def spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


if __name__ == "__main__":
    main()
