"""Decode Parquet files with whatever KvikIO was told in the environment; one JSON line per codec.

python benchmarks/gpu/decoding.py FOLDER ROWS [--dry]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import torch
from environment import spread
from table import files_of, forget

import gpupipe as gp
from gpupipe.backend import Backend, select
from gpupipe.io.planning.partitions import row_bytes
from gpupipe.schema import Field

CODECS = ["snappy", "zstd"]
ROUNDS = 3


def main() -> None:
    folder, rows, dry = Path(sys.argv[1]), int(sys.argv[2]), "--dry" in sys.argv
    backend = select("cpu" if dry else "gpu")
    for codec in CODECS:
        files = files_of(folder, rows, codec)
        fields = list(gp.read_parquet(files, backend=backend.name).schema)
        decode(files[:1], fields, backend)  # what is done once per process
        forget(files)
        cold, found = decode(files, fields, backend), [decode(files, fields, backend) for _ in range(ROUNDS)]
        gigabytes, seconds = rows * row_bytes(fields) / 1e9, spread(found)
        speeds = {"gb_per_s": gigabytes / seconds["median"], "from_disk_gb_per_s": gigabytes / cold}
        print(json.dumps({"codec": codec} | speeds | {"seconds": seconds}), flush=True)


def decode(files: list[Path], fields: list[Field], backend: Backend) -> float:
    """Seconds, the device's work included."""
    groups = [list(range(pq.read_metadata(path).num_row_groups)) for path in files]
    started = time.perf_counter()
    for path, wanted in zip(files, groups, strict=True):
        backend.read_parquet([path], [wanted], fields)
    if backend.name == "gpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
