"""How cost grows with rows, columns, distinct values and partitions: CPU seconds at several sizes, and their exponents.

    python benchmarks/growth.py [--rounds 3] [--data data/big]

One size of each series after the other, in turns, in this process after a round that warms up. The exponent is the
slope of the logarithm of the median over that of the size, by least squares: 1 is proportional, 0 is for free. Small
sizes have costs of their own that do not grow, so a second exponent is that of the two largest sizes alone.

Series: the rows of the demonstration's kind of job (read, filter, derive, scale, ids, hand over to torch); columns of
a million rows that are imputed, scaled and handed over; distinct strings of three million rows that become ids;
partitions that three million rows are cut into, fitted and transformed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import big_flights
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from environment import interleaved, spread, with_steady_malloc, write_result

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T

ROWS = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
COLUMNS = (4, 8, 16, 32, 64, 128)
DISTINCT = (100, 1_000, 10_000, 100_000, 1_000_000, 3_000_000)
PARTITIONS = (1, 4, 16, 64, 256)
NUMBERS = ["dep_delay", "distance", "air_time", "fare"]
TEXTS = ["carrier", "origin", "dest", "tailnum"]

Job = Callable[[], Any]


def by_rows(flights: Path, folder: Path) -> dict[int, Job]:
    """The first rows of the table, as files; the whole program on them."""
    table = pq.read_table(flights, columns=[*NUMBERS, *TEXTS, "arr_delay"])
    jobs: dict[int, Job] = {}
    for rows in ROWS:
        path = folder / f"{rows}.parquet"
        pq.write_table(table.slice(0, rows), path, row_group_size=500_000)
        jobs[rows] = lambda path=path: _whole_program(path)  # type: ignore[misc]
    return jobs


def _whole_program(path: Path) -> None:
    steps = [T.Filter("notnull(arr_delay)"), T.Derive(speed="distance / air_time")]
    features = gp.Features(
        ([*NUMBERS, "speed"], [pre.SimpleImputer(), pre.StandardScaler()]),
        (TEXTS, pre.Categorify()),
        target="arr_delay > 15",
    )
    data = gp.read_parquet(path, backend="cpu")
    gp.Pipeline(steps, features, backend="cpu").fit(data).loader(data)


def by_columns() -> dict[int, Job]:
    """Normal numbers of which some are missing."""
    rng = np.random.default_rng(0)
    jobs: dict[int, Job] = {}
    for columns in COLUMNS:
        numbers = rng.standard_normal((1_000_000, columns))
        numbers[::17] = np.nan
        frame = pd.DataFrame(numbers, columns=[f"x{place}" for place in range(columns)])
        data = gp.from_frame(frame, backend="cpu")
        features = gp.Features((list(frame), [pre.SimpleImputer(), pre.StandardScaler()]))
        jobs[columns] = lambda data=data, features=features: (  # type: ignore[misc]
            gp.Pipeline([], features, backend="cpu").fit(data).loader(data)
        )
    return jobs


def by_distinct_values(folder: Path) -> dict[int, Job]:
    """Strings of 13 characters, each as often as any other, in no order."""
    jobs: dict[int, Job] = {}
    for distinct in DISTINCT:
        numbers = np.random.default_rng(0).permutation(np.resize(np.arange(distinct), 3_000_000))
        path = folder / f"distinct_{distinct}.parquet"
        pd.DataFrame({"user": "user-" + pd.Series(numbers).astype(str).str.zfill(8)}).to_parquet(path)
        jobs[distinct] = lambda path=path: _ids(gp.read_parquet(path, backend="cpu"))  # type: ignore[misc]
    return jobs


def by_partitions(flights: Path) -> dict[int, Job]:
    """The same rows in memory, cut into ever more partitions."""
    frame = pq.read_table(flights, columns=[*NUMBERS, *TEXTS]).slice(0, 3_000_000).to_pandas()
    jobs: dict[int, Job] = {}
    for parts in PARTITIONS:
        data = gp.from_frame(frame, num_partitions=parts, backend="cpu")
        jobs[parts] = lambda data=data: _ids(data, TEXTS, NUMBERS)  # type: ignore[misc]
    return jobs


def _ids(data: gp.Dataset, texts: Sequence[str] = ("user",), numbers: Sequence[str] = ()) -> None:
    groups: list[Any] = [(list(texts), pre.Categorify())]
    groups += [(list(numbers), pre.StandardScaler())] if numbers else []
    pipeline = gp.Pipeline([], gp.Features(*groups), backend="cpu").fit(data)
    for _ in pipeline.transform(data):
        pass


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of log(seconds) over log(sizes)."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def measure(flights: Path, rounds: int) -> dict[str, Any]:
    """CPU seconds of every size of every series, and the exponents."""
    figures: dict[str, Any] = {}
    exponents: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=flights.parent) as name:
        folder = Path(name)
        series: dict[str, Callable[[], dict[int, Job]]] = {
            "rows": lambda: by_rows(flights, folder),
            "columns": by_columns,
            "distinct values": lambda: by_distinct_values(folder),
            "partitions": lambda: by_partitions(flights),
        }
        for what, make in series.items():
            runs = interleaved({str(size): job for size, job in make().items()}, rounds)
            found = {size: spread([run["cpu_s"] for run in done]) for size, done in runs.items()}
            sizes, seconds = [float(size) for size in found], [each["median"] for each in found.values()]
            figures[what] = found
            exponents[what] = {"all": exponent(sizes, seconds), "largest": exponent(sizes[-2:], seconds[-2:])}
            print(f"{what}: {exponents[what]}", flush=True)
    return {"rounds": rounds, "figures": figures, "exponents": exponents, "bars": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=big_flights.DEFAULT.parent)
    parsed = parser.parse_args()
    with_steady_malloc()
    flights = parsed.data / "flights.parquet"
    if not flights.exists():
        big_flights.make(flights)
    print(write_result("growth_cpu", measure(flights, parsed.rounds)))


if __name__ == "__main__":
    main()
