"""Categorify on ten million rows with ever more distinct strings: what a large vocabulary costs in time and memory.

    python benchmarks/vocabulary.py [--rounds 3]

Fit and transform of one column, partition by partition, each size in a process of its own, in turns; beyond 32 MB of
distinct values the counts go to temporary files.
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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from environment import peak_gb, spread, timed, write_result

import gpupipe as gp
from gpupipe import preprocessing as pre

ROWS = 10_000_000
SIZES = {"100 thousand": 100_000, "1 million": 1_000_000, "10 million": 10_000_000}


def make(path: Path, distinct: int) -> None:
    """A column of strings of 13 characters, each as often as any other, in no order."""
    numbers = np.random.default_rng(0).permutation(np.resize(np.arange(distinct), ROWS))
    with pq.ParquetWriter(path, pa.schema([("user", pa.large_string())])) as writer:
        for part in np.split(numbers, 20):
            digits = pc.utf8_lpad(pa.array(part).cast(pa.string()), 8, "0")
            users = pc.binary_join_element_wise("user", digits, "-").cast(pa.large_string())
            writer.write_table(pa.table({"user": users}), row_group_size=len(part))


def learn_and_apply(path: Path) -> Callable[[], None]:
    def job() -> None:
        data = gp.read_parquet(path, backend="cpu")
        pipeline = gp.Pipeline([], gp.Features((["user"], pre.Categorify()))).fit(data)
        largest = max(int(frame["user"].max()) for frame in pipeline.transform(data))
        assert largest == SIZES[path.stem] + 1, largest

    return job


def run_one(size: str) -> None:
    """One size once, in this process; its figures as one JSON line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{size}.parquet"
        subprocess.run([sys.executable, __file__, "--make", str(path)], check=True)
        figures = timed(learn_and_apply(path))
    figures["peak_gb"] = peak_gb()
    print(json.dumps(figures))


def measure(rounds: int) -> dict[str, Any]:
    """Seconds and memory of all sizes, in turns."""
    runs: dict[str, list[dict[str, float]]] = {size: [] for size in SIZES}
    for number in range(rounds):
        for size in SIZES:
            done = subprocess.run([sys.executable, __file__, "--size", size], check=True, stdout=subprocess.PIPE)
            runs[size].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"round {number + 1}, {size}: {runs[size][-1]}", file=sys.stderr, flush=True)
    keys = ("cpu_s", "wall_s", "peak_gb")
    figures = {
        f"{size} distinct values": {key: spread([run[key] for run in done]) for key in keys}
        for size, done in runs.items()
    }
    return {"rounds": rounds, "figures": figures, "bars": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", choices=SIZES, help="run this one once, in this process")
    parser.add_argument("--make", type=Path, help="only make the rows, for the size that names the file")
    parsed = parser.parse_args()
    if parsed.make:
        make(parsed.make, SIZES[parsed.make.stem])
    elif parsed.size:
        run_one(parsed.size)
    else:
        print(write_result("vocabulary_cpu", measure(parsed.rounds)))


if __name__ == "__main__":
    main()
