"""Ten million flights for the benchmarks: the year of `data/flights.parquet`, thirty times over, each time another.

    python benchmarks/big_flights.py [--out data/big/flights.parquet] [--copies 30]

Beside it lie the planes and the weather of that year, in the columns that jobs look up. Each copy is shuffled; its
delays, times in the air and distances are jittered; columns are added that a year of flights lacks: a customer (100,000
names, a long tail, 2 % missing), a fare (log-normal, 5 % missing), a load, the flight number as text. Written as zstd
Parquet in row groups of a million, a copy at a time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[1]
DEFAULT = ROOT / "data" / "big" / "flights.parquet"

AS_THEY_ARE = {
    "year": pa.int32(),
    "month": pa.int32(),
    "day": pa.int32(),
    "hour": pa.int32(),
    "sched_dep_time": pa.int64(),
    "flight": pa.int64(),
    "carrier": pa.large_string(),
    "tailnum": pa.large_string(),
    "origin": pa.large_string(),
    "dest": pa.large_string(),
}
JITTERED = ["dep_delay", "arr_delay", "air_time", "distance"]
CUSTOMERS = pa.array([f"C{number:06d}" for number in range(100_000)], pa.large_string())
ROWS_PER_GROUP = 1_000_000
LOOKUPS = {
    "planes": ["tailnum", "year", "type", "manufacturer", "model", "engines", "seats", "engine"],
    "weather": ["origin", "time_hour", "temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib"],
}


def another_year(flights: pa.Table, random: np.random.Generator) -> pa.Table:
    """The same flights in another order, with other noise and other passengers."""
    rows = flights.num_rows
    flights = flights.take(random.permutation(rows))
    made = {name: flights[name].cast(dtype) for name, dtype in AS_THEY_ARE.items()}
    for name in JITTERED:
        factor, summand = 1 + 0.02 * random.standard_normal(rows), 0.3 * random.standard_normal(rows)
        made[name] = flights[name].to_numpy() * factor + summand
    made["air_time"][random.random(rows) < 0.01] = np.nan
    made["time_hour"] = flights["time_hour"]
    seconds = random.integers(0, 3600, rows).astype("timedelta64[s]")
    made["sched_ts"] = flights["time_hour"].to_numpy() + seconds
    ranks = np.minimum((random.pareto(1.1, rows) * 400).astype(np.int64), len(CUSTOMERS) - 1)
    made["customer"] = CUSTOMERS.take(pa.array(ranks, mask=random.random(rows) < 0.02))
    number = made["flight"].cast(pa.large_string())
    made["flightno"] = pc.binary_join_element_wise(made["carrier"], number, pa.scalar("", pa.large_string()))
    fares = np.exp(random.normal(5, 0.6, rows))
    made["fare"] = np.where(random.random(rows) < 0.05, np.nan, fares)
    made["load"] = random.beta(5, 2, rows)
    arrays = {name: _without_nan(v) if isinstance(v, np.ndarray) else v for name, v in made.items()}
    return pa.table(arrays)


def _without_nan(values: np.ndarray) -> pa.Array:
    """NaN becomes missing."""
    return pa.array(values, from_pandas=True)


def make(out: Path = DEFAULT, copies: int = 30, seed: int = 7) -> None:
    """Write the file; it appears under its name when it is whole. Memory: about 1.5 million rows."""
    flights = pq.read_table(ROOT / "data" / "flights.parquet")
    random = np.random.default_rng(seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_suffix(".draft")
    waiting = another_year(flights, random)
    with pq.ParquetWriter(draft, waiting.schema, compression="zstd") as writer:
        for _ in range(copies - 1):
            waiting = pa.concat_tables([waiting, another_year(flights, random)])
            while waiting.num_rows >= ROWS_PER_GROUP:
                writer.write_table(waiting.slice(0, ROWS_PER_GROUP), row_group_size=ROWS_PER_GROUP)
                waiting = waiting.slice(ROWS_PER_GROUP)
        writer.write_table(waiting, row_group_size=ROWS_PER_GROUP)
    draft.replace(out)
    make_lookups(out.parent)


def make_lookups(folder: Path) -> None:
    """Write the planes and the weather where they are not there; a plane's year is no longer called as a flight's."""
    for name, columns in LOOKUPS.items():
        path = folder / f"{name}.parquet"
        if not path.exists():
            table = pq.read_table(ROOT / "data" / path.name, columns=columns)
            names = ["plane_year" if column == "year" else column for column in table.column_names]
            pq.write_table(table.rename_columns(names), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT)
    parser.add_argument("--copies", type=int, default=30)
    parsed = parser.parse_args()
    make(parsed.out, parsed.copies)
    print(f"{parsed.out}: {pq.read_metadata(parsed.out).num_rows:,} rows")


if __name__ == "__main__":
    main()
