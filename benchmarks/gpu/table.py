"""The table of the GPU benchmark: 32 numbers, some with gaps, 7 ids and a target, in Parquet files of a million."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["CARDINALITY", "FILE_ROWS", "IDS", "NUMBERS", "TARGET", "files_of", "forget"]

FILE_ROWS = 1_000_000
NUMBERS, IDS, TARGET = [f"x{i}" for i in range(32)], [f"c{i}" for i in range(7)], "y"
GAPS, CARDINALITY = 8, 1000  # columns with 5 % missing, distinct ids


def files_of(folder: Path, rows: int, compression: str = "snappy") -> list[Path]:
    """Files that hold so many rows, written where they are not there; larger tables begin with the smaller ones."""
    if rows < FILE_ROWS:
        wanted = {folder / f"{compression}-{rows}.parquet": (rows, 0)}
    else:
        wanted = {
            folder / f"{compression}-{part:03}.parquet": (FILE_ROWS, part) for part in range(-(-rows // FILE_ROWS))
        }
    folder.mkdir(parents=True, exist_ok=True)
    missing = {path: asked for path, asked in wanted.items() if not path.exists()}
    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:  # NumPy and pyarrow work beside each other
        list(pool.map(lambda item: _write(item[0], *item[1], compression), missing.items()))
    return list(wanted)


def forget(files: list[Path]) -> None:
    """Take the files out of the page cache, so that the next to read them reads the disk; no file of tmpfs is taken."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _write(path: Path, rows: int, seed: int, compression: str) -> None:
    draw = np.random.default_rng(seed)
    numbers = [draw.standard_normal(rows, dtype=np.float32) for _ in NUMBERS]
    target = numbers[-1] + 0.5 * numbers[-2] + 0.1 * draw.standard_normal(rows, dtype=np.float32)
    arrays = {
        name: pa.array(values, mask=draw.random(rows) < 0.05 if place < GAPS else None)
        for place, (name, values) in enumerate(zip(NUMBERS, numbers, strict=True))
    }
    ids = {name: (CARDINALITY * draw.random(rows) ** 2).astype(np.int32) for name in IDS}
    draft = path.with_suffix(".draft")
    pq.write_table(pa.table(arrays | ids | {TARGET: target}), draft, compression=compression, row_group_size=FILE_ROWS)
    draft.replace(path)
