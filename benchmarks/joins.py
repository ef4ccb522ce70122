"""The join-heavy job on 10 million rows, streamed: gpupipe, hand-written Polars, hand-written pandas, side by side.

    python benchmarks/joins.py [--data data/big] [--rounds 3] [--engine NAME]

Keep flights of 200 miles or more that left; join planes and weather; derive speed, the plane's age, night, the minutes
between two times, log fares; the mean delay of each destination joined back; scale eight numbers (missing ones become
0), code four texts by count; then hand over, a million rows or so at a time, a float32 and an integer matrix, as a
trainer would take them. Each engine runs in a process of its own, in turns, its imports not counted; nobody holds the
table. What they hand over is compared by the columns' sums.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import big_flights
from environment import peak_gb, spread, write_result

NUMBERS = ["dep_delay", "air_time", "distance", "fare", "speed", "plane_age", "temp", "wind_speed"]
AS_THEY_ARE = ["is_night", "lead_min", "dest_delay"]
TEXTS = ["tailnum", "dest", "flightno", "customer"]
PLANES, WEATHER = ["tailnum", "plane_year", "seats"], ["origin", "time_hour", "temp", "wind_speed"]
READ = [
    *("year", "hour", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "air_time", "distance"),
    *("time_hour", "sched_ts", "customer", "flightno", "fare"),
]
MIN_COUNT = 20
ROWS = 1_000_000

Batches = Iterator[tuple[Any, Any]]


def with_gpupipe(folder: Path) -> Callable[[], Batches]:
    import numpy as np

    import gpupipe as gp
    from gpupipe import preprocessing as pre
    from gpupipe import transforms as T
    from gpupipe.backend import select

    select("cpu")
    assert gp.Pipeline is not None

    def job() -> Batches:
        data = gp.read_parquet(folder / "flights.parquet").filter("distance >= 200 and notnull(dep_delay)")
        weather = gp.read_parquet(folder / "weather.parquet", columns=WEATHER)
        means = data.group_by("dest").agg(dest_delay=("arr_delay", "mean"))
        steps = [
            T.Join(gp.read_parquet(folder / "planes.parquet", columns=PLANES), on="tailnum", name="planes"),
            T.Join(weather, on=["origin", "time_hour"], name="weather"),
            T.Join(means, on="dest", name="means"),
            T.Derive(
                speed="distance / (air_time / 60)",
                plane_age="year - plane_year",
                is_night="hour < 6 or hour >= 22",
                lead_min="(sched_ts - time_hour) / 60",
                fare="log1p(fare)",
                dep_delay="clip(dep_delay, -60, 600)",
            ),
        ]
        features = gp.Features(
            (NUMBERS, [pre.StandardScaler(), pre.SimpleImputer(strategy="constant", fill_value=0)]),
            AS_THEY_ARE,
            (TEXTS, pre.Categorify(min_frequency=MIN_COUNT)),
        )
        pipeline = gp.Pipeline(steps, features, backend="cpu").fit(data)
        for frame in pipeline.transform(data):
            yield frame[NUMBERS + AS_THEY_ARE].to_numpy(dtype=np.float32), frame[TEXTS].to_numpy()

    return job


def with_polars(folder: Path) -> Callable[[], Batches]:
    import polars as pl
    from polars import col

    def derived(flights: pl.LazyFrame) -> pl.LazyFrame:
        planes = pl.scan_parquet(folder / "planes.parquet").select(PLANES)
        weather = pl.scan_parquet(folder / "weather.parquet").select(WEATHER)
        return (
            flights.filter(col("distance") >= 200, col("dep_delay").is_not_null())
            .join(planes, on="tailnum", how="left")
            .join(weather, on=["origin", "time_hour"], how="left")
            .with_columns(
                speed=col("distance") / (col("air_time") / 60),
                plane_age=col("year") - col("plane_year"),
                is_night=(col("hour") < 6) | (col("hour") >= 22),
                lead_min=(col("sched_ts") - col("time_hour")).dt.total_seconds() / 60,
                fare=col("fare").log1p(),
                dep_delay=col("dep_delay").clip(-60, 600),
            )
        )

    def job() -> Batches:
        flights = pl.scan_parquet(folder / "flights.parquet").select(READ)
        rows = flights.select(pl.len()).collect().item()
        seen = derived(flights)
        moments = seen.select(
            *(col(c).mean().alias(f"{c}_mean") for c in NUMBERS),
            *(col(c).std(ddof=0).alias(f"{c}_std") for c in NUMBERS),
        )
        means = seen.group_by("dest").agg(dest_delay=col("arr_delay").mean())
        counts = [
            seen.select(c)
            .drop_nulls()
            .group_by(c)
            .agg(pl.len())
            .filter(col("len") >= MIN_COUNT)
            .sort("len", c, descending=[True, False])
            .select(c, pl.int_range(2, pl.len() + 2, dtype=pl.Int32).alias(f"{c}_id"))
            for c in TEXTS
        ]
        found, means_there, *ids = pl.collect_all([moments, means, *counts], engine="streaming")
        learned = found.row(0, named=True)
        for start in range(0, rows, ROWS):
            part = derived(flights.slice(start, ROWS)).join(means_there.lazy(), on="dest", how="left")
            for c, table in zip(TEXTS, ids, strict=True):
                part = part.join(table.lazy(), on=c, how="left")
            made = part.select(
                *(
                    ((col(c) - learned[f"{c}_mean"]) / learned[f"{c}_std"]).fill_null(0).cast(pl.Float32)
                    for c in NUMBERS
                ),
                *(col(c).cast(pl.Float32) for c in AS_THEY_ARE),
                *(
                    pl.when(col(c).is_null()).then(0).otherwise(col(f"{c}_id").fill_null(1)).cast(pl.Int32).alias(c)
                    for c in TEXTS
                ),
            ).collect(engine="streaming")
            yield made.select(NUMBERS + AS_THEY_ARE).to_numpy(order="c"), made.select(TEXTS).to_numpy(order="c")

    return job


def with_pandas(folder: Path) -> Callable[[], Batches]:
    import numpy as np
    import pandas as pd
    import pyarrow.parquet as pq

    def job() -> Batches:
        file = pq.ParquetFile(folder / "flights.parquet")
        planes = pd.read_parquet(folder / "planes.parquet", columns=PLANES)
        weather = pd.read_parquet(folder / "weather.parquet", columns=WEATHER)

        def derived(group: int) -> pd.DataFrame:
            frame = file.read_row_group(group, columns=READ).to_pandas()
            frame = frame[(frame["distance"] >= 200) & frame["dep_delay"].notna()]
            frame = frame.merge(planes, on="tailnum", how="left").merge(weather, on=["origin", "time_hour"], how="left")
            return frame.assign(
                speed=frame["distance"] / (frame["air_time"] / 60),
                plane_age=frame["year"] - frame["plane_year"],
                is_night=(frame["hour"] < 6) | (frame["hour"] >= 22),
                lead_min=(frame["sched_ts"] - frame["time_hour"]).dt.total_seconds() / 60,
                fare=np.log1p(frame["fare"]),
                dep_delay=frame["dep_delay"].clip(-60, 600),
            )

        sums, delays, counts = [], [], []
        for group in range(file.num_row_groups):
            frame = derived(group)
            numbers = frame[NUMBERS]
            sums.append(np.stack([numbers.count(), numbers.sum(), (numbers * numbers).sum()]))
            delays.append(frame.groupby("dest")["arr_delay"].agg(["sum", "count"]))
            counts.append([frame[c].value_counts() for c in TEXTS])
        total, first, second = sum(sums)
        mean = first / total
        deviation = np.sqrt(second / total - mean * mean)
        both = pd.concat(delays).groupby(level=0).sum()
        means = (both["sum"] / both["count"]).rename("dest_delay").reset_index()
        kinds = []
        for position in range(len(TEXTS)):
            count = pd.concat([part[position] for part in counts]).groupby(level=0).sum()
            ranked = count[count >= MIN_COUNT].sort_index().sort_values(ascending=False, kind="stable")
            kinds.append(pd.CategoricalDtype(ranked.index))
        for group in range(file.num_row_groups):
            frame = derived(group).merge(means, on="dest", how="left")
            scaled = ((frame[NUMBERS] - mean) / deviation).fillna(0.0)
            numbers = pd.concat([scaled, frame[AS_THEY_ARE]], axis=1).to_numpy(dtype=np.float32)
            ids = np.empty((len(frame), len(TEXTS)), np.int32)
            for position, (name, kind) in enumerate(zip(TEXTS, kinds, strict=True)):
                codes = frame[name].astype(kind).cat.codes.to_numpy()
                ids[:, position] = np.where(frame[name].isna(), 0, np.where(codes < 0, 1, codes + 2))
            yield numbers, ids

    return job


OURS, POLARS, PANDAS = "gpupipe", "Polars, streaming", "pandas, by row groups"
ENGINES = {OURS: with_gpupipe, POLARS: with_polars, PANDAS: with_pandas}


def run_one(engine: str, folder: Path) -> None:
    """One engine once, in this process; its figures, and the sums of what it handed over, as one JSON line."""
    import numpy as np

    job = ENGINES[engine](folder)
    sums: Any = 0.0
    rows, checking = 0, 0.0
    cpu, wall = time.process_time(), time.perf_counter()
    for numbers, ids in job():
        before = time.process_time()
        sums = sums + np.concatenate([part.sum(0, dtype=np.float64) for part in (numbers, ids)])
        rows += len(ids)
        checking += time.process_time() - before
    figures = {"cpu_s": time.process_time() - cpu - checking, "wall_s": time.perf_counter() - wall - checking}
    figures["peak_gb"] = peak_gb()
    print(json.dumps({"figures": figures, "rows": rows, "sums": sums.tolist()}))


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Seconds and memory of each, in turns; what they handed over has to be the same."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ENGINES}
    sums: dict[str, list[float]] = {}
    for number in range(rounds):
        for name in ENGINES:
            call = [sys.executable, __file__, "--data", str(folder), "--engine", name]
            done = subprocess.run(call, check=True, stdout=subprocess.PIPE)
            found = json.loads(done.stdout.splitlines()[-1])
            runs[name].append(found["figures"])
            sums[name] = [found["rows"], *found["sums"]]
            print(f"round {number + 1}, {name}: {found['figures']['cpu_s']:.1f} CPU s", file=sys.stderr, flush=True)
    apart = {
        name: max(abs(a - b) / (1 + abs(b)) for a, b in zip(theirs, sums[OURS], strict=True))
        for name, theirs in sums.items()
    }
    assert max(apart.values()) < 1e-4, apart
    keys = ("cpu_s", "wall_s", "peak_gb")
    figures = {name: {key: spread([run[key] for run in done]) for key in keys} for name, done in runs.items()}
    ours, polars, pandas = (figures[name]["cpu_s"]["median"] for name in ENGINES)
    bars = [
        {"what": "CPU s, gpupipe / Polars", "bar": "at most 0.7", "found": ours / polars, "met": ours <= 0.7 * polars},
        {"what": "CPU s, gpupipe / pandas", "bar": "at most 0.4", "found": ours / pandas, "met": ours <= 0.4 * pandas},
    ]
    return {"rounds": rounds, "figures": figures, "bars": bars, "largest_difference": apart}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=big_flights.DEFAULT.parent)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", choices=ENGINES, help="run this one once, in this process")
    parsed = parser.parse_args()
    if parsed.engine:
        run_one(parsed.engine, parsed.data)
    else:
        print(write_result("joins_cpu", measure(parsed.data, parsed.rounds)))


if __name__ == "__main__":
    main()
