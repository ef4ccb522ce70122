"""The field's own job, on rows of the Criteo click logs' shape: gpupipe, hand-written Polars, NVTabular where it is.

    python benchmarks/criteo.py [--rows 4000000] [--rounds 3] [--nvtabular PYTHON] [--engine NAME]

A label, 13 integers with missing values and 26 columns of 32-bit hashes; the hashes have the cardinalities of MLPerf's
DLRM and Zipf's distribution. Missing numbers become 0, and all go through log(1 + x) and are normalised; each hash
becomes an id by how often it occurs; everything is written as Parquet. The rows are made up, not Criteo's. Each engine
runs in a process of its own, in turns, its imports not counted; the sums of the columns that they write are compared.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LABEL = "label"
NUMBERS = [f"I{number}" for number in range(1, 14)]
CARDINALITIES = dict(
    zip(
        [f"C{number}" for number in range(1, 27)],
        [
            *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10),
            *(2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
        ],
        strict=True,
    )
)
HASHES = list(CARDINALITIES)
ROWS, GROUP = 4_000_000, 250_000
DEFAULT = Path(__file__).parents[1] / "data" / "big"
MISSING = 0.1


def make(path: Path, rows: int) -> None:
    """Write rows of the logs' shape, a row group at a time.

    The k-th most frequent of c values has the share log(1 + 1 / k) / log(c + 1), about that of Zipf's law.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)

    def parts() -> Iterator[pa.Table]:
        for start in range(0, rows, GROUP):
            size = min(GROUP, rows - start)
            columns = {LABEL: pa.array(random.integers(0, 2, size, dtype=np.int32))}
            for name in NUMBERS:
                values = random.lognormal(2, 2, size).clip(0, 2**30).astype(np.int32)
                columns[name] = pa.array(values, mask=random.random(size) < MISSING)
            for place, (name, distinct) in enumerate(CARDINALITIES.items()):
                rank = ((distinct + 1) ** random.random(size)).astype(np.int64) - 1
                mixed = (rank.astype(np.uint64) * np.uint64(0x9E3779B1) + np.uint64(place)).astype(np.uint32)
                columns[name] = pa.array(mixed.view(np.int32))
            yield pa.table(columns)

    made = parts()
    first = next(made)
    draft = path.with_suffix(".draft")
    with pq.ParquetWriter(draft, first.schema) as writer:
        writer.write_table(first)
        for part in made:
            writer.write_table(part)
    draft.replace(path)


def with_gpupipe(source: Path, out: Path) -> Callable[[], Any]:
    import gpupipe as gp
    from gpupipe import preprocessing as pre
    from gpupipe.backend import select

    select("cpu")
    assert gp.Pipeline is not None

    def job() -> None:
        data = gp.read_parquet(source)
        fill = pre.SimpleImputer(strategy="constant", fill_value=0)
        features = gp.Features(
            (NUMBERS, [fill, pre.Log1p(), pre.StandardScaler()]), (HASHES, pre.Categorify()), keep=[LABEL]
        )
        gp.Pipeline([], features, backend="cpu").fit(data).transform(data).write_parquet(out)

    return job


def with_polars(source: Path, out: Path) -> Callable[[], Any]:
    import polars as pl
    from polars import col

    def job() -> None:
        rows = pl.scan_parquet(source).with_columns(col(c).fill_null(0).cast(pl.Float64).log1p() for c in NUMBERS)
        moments = rows.select(
            *(col(c).mean().alias(f"{c}_mean") for c in NUMBERS),
            *(col(c).std(ddof=0).alias(f"{c}_std") for c in NUMBERS),
        )
        counts = [
            pl.scan_parquet(source)
            .select(c)
            .group_by(c)
            .agg(pl.len())
            .sort("len", c, descending=[True, False])
            .select(c, pl.int_range(2, pl.len() + 2, dtype=pl.Int32).alias(f"{c}_id"))
            for c in HASHES
        ]
        found = moments.collect(engine="streaming").row(0, named=True)
        ids = [table.collect(engine="streaming") for table in counts]
        for c, table in zip(HASHES, ids, strict=True):
            rows = rows.join(table.lazy(), on=c, how="left", maintain_order="left")
        out.mkdir()
        rows.select(
            *(((col(c) - found[f"{c}_mean"]) / found[f"{c}_std"]).cast(pl.Float32) for c in NUMBERS),
            *(col(f"{c}_id").alias(c) for c in HASHES),
            LABEL,
        ).sink_parquet(out / "part.parquet", engine="streaming")

    return job


def with_nvtabular(source: Path, out: Path) -> Callable[[], Any]:
    import nvtabular as nvt
    from merlin.io import Dataset
    from nvtabular import ops

    def job() -> None:
        numbers = NUMBERS >> ops.FillMissing() >> ops.LogOp() >> ops.Normalize(out_dtype="float32")
        hashes = HASHES >> ops.Categorify(out_path=f"{out}_statistics")
        workflow = nvt.Workflow(numbers + hashes + [LABEL])
        data = Dataset(str(source), engine="parquet", part_size="128MB")
        workflow.fit(data)
        workflow.transform(data).to_parquet(str(out), out_files_per_proc=None)

    return job


OURS, POLARS, NVTABULAR = "gpupipe", "Polars, a join per column", "NVTabular 23.8.0"
ENGINES = {OURS: with_gpupipe, POLARS: with_polars, NVTABULAR: with_nvtabular}
FIRST_ID = {OURS: 2, POLARS: 2, NVTABULAR: 3}


def run_one(engine: str, source: Path) -> None:
    """One engine once, in this process; its figures, and the sums of what it wrote, as one JSON line."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        out = Path(folder) / "out"
        job = ENGINES[engine](source, out)
        cpu, wall = time.process_time(), time.perf_counter()
        job()
        figures = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}
        figures["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        print(json.dumps({"figures": figures, "sums": sums_of(out, FIRST_ID[engine])}))


def sums_of(folder: Path, first_id: int) -> dict[str, float]:
    """For each number the sum of its squares, for each hash how many ids there are and their sum, from 0 up."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    files, sums = [pq.ParquetFile(path) for path in sorted(folder.glob("*.parquet"))], dict[str, float]()
    for name in [LABEL, *NUMBERS, *HASHES]:
        total, largest = 0.0, 0
        for file in files:
            values = file.read(columns=[name])[name].cast("float64")
            if name in HASHES:
                values = pc.subtract(values, first_id)
                largest = max(largest, int(pc.max(values).as_py()))
            total += pc.sum(pc.multiply(values, values) if name in NUMBERS else values).as_py()
        sums |= {name: total, f"largest {name}": largest} if name in HASHES else {name: total}
    return sums


def measure(source: Path, rounds: int, nvtabular: str | None) -> dict[str, Any]:
    """Seconds and memory of each, in turns; what they wrote has to be the same."""
    from environment import spread

    programs = {OURS: sys.executable, POLARS: sys.executable} | ({NVTABULAR: nvtabular} if nvtabular else {})
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in programs}
    sums: dict[str, dict[str, float]] = {}
    for number in range(rounds):
        for name, python in programs.items():
            call = [python, __file__, "--source", str(source), "--engine", name]
            done = subprocess.run(call, check=True, stdout=subprocess.PIPE)
            found = json.loads(done.stdout.splitlines()[-1])
            runs[name].append(found["figures"])
            sums[name] = found["sums"]
            print(f"round {number + 1}, {name}: {found['figures']}", file=sys.stderr, flush=True)
    check_same(sums)
    keys = ("cpu_s", "wall_s", "peak_gb")
    figures = {name: {key: spread([run[key] for run in done]) for key in keys} for name, done in runs.items()}
    ratio = {key: figures[OURS][key]["median"] / figures[POLARS][key]["median"] for key in keys}
    asked = [("CPU s, gpupipe / Polars", ratio["cpu_s"], 0.7), ("peak memory, gpupipe / Polars", ratio["peak_gb"], 1.3)]
    bars = [
        {"what": what, "bar": f"at most {most}", "found": found, "met": found <= most} for what, found, most in asked
    ]
    return {"rounds": rounds, "figures": figures, "bars": bars}


def check_same(sums: dict[str, dict[str, float]]) -> None:
    """Compare the sums that the engines wrote.

    NVTabular orders values that occur equally often as it likes: the sums of ids are the same all the same.
    """
    for name, theirs in sums.items():
        apart = {key: abs(value - sums[OURS][key]) / (1 + abs(value)) for key, value in theirs.items()}
        assert max(apart.values()) < 1e-5, (name, max(apart, key=lambda key: apart[key]), apart)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nvtabular", help="an interpreter that can import nvtabular")
    parser.add_argument("--source", type=Path, help="the rows, made if not there; by default in data/big")
    parser.add_argument("--engine", choices=ENGINES, help="run this one once, in this process")
    parsed = parser.parse_args()
    source = parsed.source or DEFAULT / f"criteo_{parsed.rows}.parquet"
    if not source.exists():
        source.parent.mkdir(parents=True, exist_ok=True)
        make(source, parsed.rows)
    if parsed.engine:
        run_one(parsed.engine, source)
    else:
        from environment import write_result

        result = measure(source, parsed.rounds, parsed.nvtabular)
        print(write_result("criteo_cpu", {"rows": parsed.rows, **result}))


if __name__ == "__main__":
    main()
