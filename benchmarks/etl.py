"""From Parquet to features on 10 million rows: gpupipe, hand-written Polars, pandas + scikit-learn, side by side.

    python benchmarks/etl.py [--data data/big] [--rounds 3] [--engine NAME]

The job is to fit, transform and write: Categorify (ids from 2 by count, 1 rare or unknown, 0 missing; at least 20 rows)
on carrier, origin, dest, tailnum, flightno, customer, month, hour; impute the mean and scale dep_delay, arr_delay,
air_time, distance, fare; int32 ids and float32 numbers as snappy Parquet. Each engine runs in a process of its own, in
turns, its imports not counted. What gpupipe writes is compared with what Polars writes by the columns' sums;
scikit-learn's ids are numbered in another order. The data is made where it is absent (22 s, 663 MB).
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
from environment import peak_gb, spread, timed, write_result

CATEGORIES = ["carrier", "origin", "dest", "tailnum", "flightno", "customer", "month", "hour"]
NUMBERS = ["dep_delay", "arr_delay", "air_time", "distance", "fare"]
MIN_FREQUENCY = 20


def with_gpupipe(source: Path, out: Path) -> Any:
    import gpupipe as gp
    from gpupipe import preprocessing as pre
    from gpupipe.backend import select

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

    # What the package loads when it is first used is loaded before the clock starts, as the others' imports are.
    assert gp.Pipeline is not None
    select("cpu")
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


OURS, POLARS, PANDAS = "gpupipe", "Polars, streaming", "pandas + scikit-learn"
ENGINES = {OURS: with_gpupipe, POLARS: with_polars, PANDAS: with_pandas}


def run_one(engine: str, source: Path) -> None:
    """Run one engine in this process and print its figures, and the sums of what it wrote, as one JSON line."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        out = Path(folder) / "out"
        figures = timed(ENGINES[engine](source, out))
        figures["peak_gb"] = peak_gb()
        print(json.dumps({"figures": figures, "sums": sums(out)}))


def sums(out: Path) -> dict[str, float]:
    """The sum of each written column, whatever the order of the rows."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    table = ds.dataset(out, format="parquet").to_table()
    return {name: float(pc.sum(table[name].cast("double")).as_py()) for name in table.column_names}


def measure(source: Path, rounds: int) -> dict[str, Any]:
    """Seconds and memory of each engine, in turns, and how far our sums are from those of Polars."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ENGINES}
    written: dict[str, dict[str, float]] = {}
    for number in range(rounds):
        for name in ENGINES:
            call = [sys.executable, __file__, "--data", str(source.parent), "--engine", name]
            done = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            runs[name].append(found["figures"])
            written[name] = found["sums"]
            print(f"round {number + 1}, {name}: {found['figures']['cpu_s']:.1f} CPU s", file=sys.stderr, flush=True)
    figures = {
        name: {key: spread([run[key] for run in done]) for key in ("cpu_s", "wall_s", "peak_gb")}
        for name, done in runs.items()
    }
    theirs = written[POLARS]
    apart = max(abs(value - theirs[name]) / (1 + abs(theirs[name])) for name, value in written[OURS].items())
    return {"rounds": rounds, "figures": figures, "bars": bars(figures), "largest_difference_to_polars": apart}


def bars(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """What was asked for, what was found, whether that is enough."""
    ours, polars, pandas = (figures[name]["cpu_s"]["median"] for name in (OURS, POLARS, PANDAS))
    return [
        {"what": "CPU s, gpupipe / Polars", "bar": "at most 0.8", "found": ours / polars, "met": ours <= 0.8 * polars},
        {
            "what": "CPU s, pandas + scikit-learn / gpupipe",
            "bar": "at least 3",
            "found": pandas / ours,
            "met": pandas >= 3 * ours,
        },
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=big_flights.DEFAULT.parent, help="the folder of flights.parquet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", choices=ENGINES, help="run this one once, in this process")
    parsed = parser.parse_args()
    source = parsed.data / "flights.parquet"
    if not source.exists():
        print(f"making {source}", file=sys.stderr, flush=True)
        big_flights.make(source)
    if parsed.engine:
        run_one(parsed.engine, source)
    else:
        print(write_result("etl_cpu", measure(source, parsed.rounds)))


if __name__ == "__main__":
    main()
