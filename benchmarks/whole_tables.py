"""Whole tables sorted, grouped, joined, looked back in and the like: gpupipe beside hand-written streaming Polars.

    python benchmarks/whole_tables.py [--data data/big] [--rounds 3] [--rows 10000000] [--only VERB ...]

Each verb reads flights of eleven columns from Parquet and writes its result as one Parquet file (snappy); windows and
the as-of join add columns to the flights, which stay in their order. Each engine is a process of its own, in turns, its
imports not counted. What both wrote is compared: rows, missing values, and sums that are weighted by the row's place
where the order is given. The result file is written where nothing was left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import big_flights
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from environment import peak_gb, spread, timed, write_result

OURS, POLARS = "gpupipe", "Polars, streaming"
ROWS = 10_000_000
CPU_BAR, PEAK_BAR = 1.25, 1.3
READ = ["time_hour", "tailnum", "origin", "dest", "customer", "dep_delay", "distance", "fare"]
PRIME, OTHER_PRIME = 998_244_353, 2_147_483_647
WINDOWS = ("lag", "rolling, 7 rows", "rolling, 7 days", "rolling, 7 days before")
VERBS = ("sort", "shuffle", "group_by", "join", "deduplicate", "sample", *WINDOWS, "join_asof")
UNORDERED = ("shuffle", "sample")
ALIKE = ["tailnum", "dest", "customer"]


def sources(folder: Path, rows: int) -> tuple[Path, Path]:
    """Name the files of the flights and of the tickets."""
    return folder / f"journeys_{rows}.parquet", folder / f"tickets_{rows}.parquet"


def make(folder: Path, rows: int) -> None:
    """Write so many flights, each a leg of a booking, and tickets for half of them, in another order; unless there."""
    flights, tickets = sources(folder, rows)
    if flights.exists() and tickets.exists():
        return
    source = folder / "flights.parquet" if rows <= ROWS else folder / "flights_100m.parquet"
    if not source.exists():
        copies = -(-max(rows, ROWS) // 336_776)
        big_flights.make(source, copies)
    first, random = 0, np.random.default_rng(5)
    draft = flights.with_suffix(".draft")
    writer = None
    for batch in pq.ParquetFile(source).iter_batches(big_flights.ROWS_PER_GROUP, columns=READ):
        numbers = np.arange(first, min(first + len(batch), rows)) * PRIME % rows
        table = pa.table(batch).slice(0, len(numbers))
        table = table.append_column("booking", pa.array(numbers // 3))
        table = table.append_column("leg", pa.array((numbers % 3).astype(np.int32)))
        # No two flights have the same time: of those that do, Polars' windows hold the later rows too, and ours do not.
        times = table["time_hour"].to_numpy() + (numbers * (3_600_000_000 // rows)).astype("timedelta64[us]")
        table = table.append_column("departed", pa.array(times))
        writer = writer or pq.ParquetWriter(draft, table.schema, compression="zstd")
        writer.write_table(table)
        first += len(numbers)
    assert writer is not None
    writer.close()
    assert first == rows, f"{source} has {first} rows"
    draft.replace(flights)
    half = rows // 2
    writer = None
    for start in range(0, half, big_flights.ROWS_PER_GROUP):
        numbers = np.arange(start, min(start + big_flights.ROWS_PER_GROUP, half)) * OTHER_PRIME % half * 2
        seats = pa.array(np.char.add((numbers % 40 + 1).astype(str), "A"), pa.large_string())
        prices = pa.array(random.normal(200, 50, len(numbers)))
        keys = {"booking": pa.array(numbers // 3), "leg": pa.array((numbers % 3).astype(np.int32))}
        table = pa.table({**keys, "price": prices, "seat": seats})
        writer = writer or pq.ParquetWriter(draft, table.schema, compression="zstd")
        writer.write_table(table)
    assert writer is not None
    writer.close()
    draft.replace(tickets)


def with_gpupipe(verb: str, flights: Path, tickets: Path, out: Path, memory: float | None) -> Callable[[], Any]:
    import gpupipe as gp
    from gpupipe import transforms as T
    from gpupipe.backend import select

    select("cpu")
    assert gp.read_parquet is not None  # imports what it takes
    if memory:
        gp.configure(memory_limit=int(memory * 1e9))
    rows = pq.read_metadata(flights).num_rows
    own: Any = {"by": "tailnum", "order_by": "departed"}

    def with_step(step: T.Transform) -> Callable[[gp.Dataset], gp.Dataset]:
        return lambda data: gp.Pipeline([step], backend="cpu").fit(data).transform(data)

    verbs: dict[str, Callable[[gp.Dataset], gp.Dataset]] = {
        "sort": lambda data: data.sort(["tailnum", "time_hour"]),
        "shuffle": lambda data: data.shuffle(1),
        "group_by": lambda data: data.group_by("customer").agg(delay=("dep_delay", "mean"), legs=("leg", "size")),
        "join": lambda data: data.join(gp.read_parquet(tickets, backend="cpu"), on=["booking", "leg"]),
        "deduplicate": lambda data: data.deduplicate(ALIKE),
        "sample": lambda data: data.sample(n=rows // 10, seed=1),
        "lag": with_step(T.Lag("dep_delay", **own)),
        "rolling, 7 rows": with_step(T.Rolling("dep_delay", 7, **own)),
        "rolling, 7 days": with_step(T.Rolling("dep_delay", "7 days", **own)),
        "rolling, 7 days before": with_step(T.Rolling("dep_delay", "7 days", closed="left", **own)),
        "join_asof": lambda data: data.join_asof(
            gp.read_parquet(flights.with_name("weather.parquet"), backend="cpu"),
            left_on="departed",
            right_on="time_hour",
            by="origin",
            columns=["temp", "visib"],
        ),
    }
    return lambda: verbs[verb](gp.read_parquet(flights, backend="cpu")).write_parquet(out)


def with_polars(verb: str, flights: Path, tickets: Path, out: Path, _: float | None) -> Callable[[], Any]:
    import polars as pl
    from polars import col

    known, value = col("tailnum").is_not_null(), col("dep_delay")

    def over(made: pl.Expr) -> pl.Expr:
        return pl.when(known).then(made.over("tailnum", order_by="departed"))

    def job() -> None:
        data, numbered = pl.scan_parquet(flights), pl.scan_parquet(flights, row_index_name="row")
        match verb:
            case "sort":
                found = data.sort("tailnum", "time_hour", nulls_last=True, maintain_order=True)
            case "shuffle":
                found = numbered.with_columns(col("row").hash(1)).sort("row").drop("row")
            case "group_by":
                groups = data.drop_nulls("customer").group_by("customer")
                found = groups.agg(delay=col("dep_delay").mean(), legs=pl.len().cast(pl.Int64)).sort("customer")
            case "join":
                keys = ["booking", "leg"]
                found = data.join(pl.scan_parquet(tickets), on=keys, how="left", maintain_order="left")
            case "deduplicate":
                found = data.unique(ALIKE, keep="first", maintain_order=True)
            case "sample":
                num_rows = data.select(pl.len()).collect().item() // 10
                bits = numbered.select("row", bits=col("row").hash(1))
                drawn = bits.bottom_k(num_rows, by="bits").select("row")
                found = numbered.join(drawn, on="row", how="semi", maintain_order="left").drop("row")
            case "lag":
                found = data.with_columns(over(value.shift(1)).alias("dep_delay_lag_1_by_tailnum"))
            case "rolling, 7 rows":
                found = data.with_columns(over(value.rolling_mean(7)).alias("dep_delay_rolling_mean_7_by_tailnum"))
            case "rolling, 7 days" | "rolling, 7 days before":
                closed: Any = "left" if verb.endswith("before") else "right"
                made = over(value.rolling_mean_by("departed", "7d", closed=closed))
                found = data.with_columns(made.alias("dep_delay_rolling_mean_7_days_by_tailnum"))
            case _:
                weather = pl.scan_parquet(flights.with_name("weather.parquet"))
                found = numbered.sort("departed").join_asof(
                    weather.select("origin", "temp", "visib", departed="time_hour").sort("departed"),
                    on="departed",
                    by="origin",
                    check_sortedness=False,
                )
                found = found.sort("row").drop("row")
        found.sink_parquet(out, compression="snappy", engine="streaming")

    return job


ENGINES = {OURS: with_gpupipe, POLARS: with_polars}


def digest(path: Path, verb: str) -> dict[str, list[float]]:
    """Of each column the missing values, and a sum that is weighted by the row's place where the order is given."""
    import polars as pl

    table = pl.scan_parquet(path, row_index_name="⟨row⟩")
    place = pl.col("⟨row⟩") % 1009 + 1 if verb not in UNORDERED else pl.lit(1)
    numbers = {
        name: pl.col(name).hash() % 1000 if kind in (pl.String, pl.Datetime("us", "UTC")) else pl.col(name)
        for name, kind in table.collect_schema().items()
        if name != "⟨row⟩"
    }
    sums = [(value.cast(pl.Float64) * place).sum().alias(name) for name, value in numbers.items()]
    nulls = [pl.col(name).null_count().alias(f"{name} missing") for name in numbers]
    found = table.select(pl.len().alias("rows"), *nulls, *([] if verb == "sample" else sums))
    return found.collect(engine="streaming").row(0, named=True)


def run_one(engine: str, verb: str, folder: Path, rows: int, memory: float | None) -> None:
    """One verb by one engine once, in this process; its figures, and a digest of what it wrote, as one JSON line."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        out = Path(scratch) / "out.parquet"
        figures = timed(ENGINES[engine](verb, *sources(folder, rows), out, memory))
        figures["peak_gb"] = peak_gb()
        figures["million_rows_per_s"] = rows / figures["wall_s"] / 1e6
        print(json.dumps({"figures": figures, "digest": digest(out, verb)}))


def run(engine: str, verb: str, folder: Path, rows: int, memory: float | None = None) -> dict[str, Any]:
    """One verb by one engine once, in a process of its own."""
    call = [sys.executable, __file__, "--data", str(folder), "--rows", str(rows), "--only", verb, "--engine", engine]
    call += ["--memory", str(memory)] if memory else []
    done = subprocess.run(call, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{verb}, {engine}, {rows:,} rows: {found['figures']}", file=sys.stderr, flush=True)
    return found


def measure(folder: Path, rounds: int, rows: int, verbs: Sequence[str]) -> dict[str, Any]:
    """Seconds and memory of each verb by each engine, in turns; what they wrote has to be the same."""
    figures: dict[str, Any] = {}
    for verb in verbs:
        runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
        wrote: dict[str, dict[str, float]] = {}
        for _ in range(rounds):
            for engine in ENGINES:
                found = run(engine, verb, folder, rows)
                runs[engine].append(found["figures"])
                wrote[engine] = found["digest"]
        assert wrote[OURS].keys() == wrote[POLARS].keys(), wrote
        checked = ["rows"] if verb == "sample" else wrote[OURS]  # other rows are drawn
        apart = {name: abs(wrote[OURS][name] - wrote[POLARS][name]) / (1 + abs(wrote[OURS][name])) for name in checked}
        assert max(apart.values()) < 1e-9, (verb, apart)
        figures[verb] = {engine: spreads(done) for engine, done in runs.items()}
    return {"rounds": rounds, "rows": rows, "figures": figures, "bars": bars(figures)}


def spreads(runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """The median, the best and the worst of each figure."""
    return {key: spread([run[key] for run in runs]) for key in runs[0]}


def bars(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """What was asked for, what was found, whether that is enough."""
    made = []
    for verb, found in figures.items():
        for key, what, bar in (("cpu_s", "CPU s", CPU_BAR), ("peak_gb", "peak GB", PEAK_BAR)):
            share = found[OURS][key]["median"] / found[POLARS][key]["median"]
            made.append(
                {
                    "what": f"{verb}: {what}, gpupipe / Polars",
                    "bar": f"at most {bar:g}",
                    "found": share,
                    "met": share <= bar,
                }
            )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=big_flights.DEFAULT.parent)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--only", nargs="+", choices=VERBS, default=VERBS)
    parser.add_argument("--engine", choices=ENGINES, help="run the verb of --only once, in this process")
    parser.add_argument("--memory", type=float, help="of that process: GB that gpupipe is told it may take")
    parsed = parser.parse_args()
    if parsed.engine:
        run_one(parsed.engine, parsed.only[0], parsed.data, parsed.rows, parsed.memory)
        return
    make(parsed.data, parsed.rows)
    result = measure(parsed.data, parsed.rounds, parsed.rows, parsed.only)
    for bar in result["bars"]:
        print(f"{bar['what']}: {bar['found']:.2f}, {bar['bar']}: {'held' if bar['met'] else 'MISSED'}")
    if parsed.rows == ROWS and tuple(parsed.only) == VERBS:
        print(write_result("whole_tables_cpu", result))


if __name__ == "__main__":
    main()
