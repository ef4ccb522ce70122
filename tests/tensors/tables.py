"""A block whose row i holds i, 2i, 3i ... in its columns, and what batches of it hold."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from gpupipe.backend import Backend, Column, select
from gpupipe.schema import Field, Kind, Role, Schema
from gpupipe.tensors import Batch, FeatureTable

FIELDS = [
    Field("x", "float32", role=Role.FEATURE),
    Field("c", "int32", Kind.CATEGORICAL, cardinality=1_000_000, role=Role.FEATURE),
    Field("y", "float32", role=Role.TARGET),
    Field("k", "int64", role=Role.KEEP),
]
SCHEMA = Schema(FIELDS)
WEIGHTED = Schema([*FIELDS, Field("w", "float32", role=Role.WEIGHT)])


def block_of(
    rows: int, backend: Backend | None = None, schema: Schema = SCHEMA, first: int = 0, dtype: str = "float32"
) -> FeatureTable:
    """Rows `first` to `first + rows`."""
    backend = select("cpu") if backend is None else backend
    block = FeatureTable.allocate(schema, rows, backend.device, dtype=dtype)
    values = np.arange(first, first + rows)
    columns = {"x": ("float64", 2), "c": ("int32", 1), "y": ("float32", 3), "k": ("int64", 5), "w": ("float32", 4)}
    made = {
        name: Column(dtype, backend.to_device((values * times).astype(dtype)))
        for name, (dtype, times) in columns.items()
    }
    block.write(0, made, backend)
    return block


def rows_of(batches: Iterable[Batch]) -> list[int]:
    """The rows that were given, padding left out; each with what belongs to it."""
    seen = []
    for batch in batches:
        real = slice(None) if batch.weight is None else batch.weight > 0
        row = batch.codes[:, 0][real]
        assert batch.target is not None
        assert torch.equal(batch.numeric[:, 0][real], row * 2.0)
        assert torch.equal(batch.target[real], row * 3.0)
        assert torch.equal(batch.keep["k"][real], row.long() * 5)
        seen += row.tolist()
    return seen
