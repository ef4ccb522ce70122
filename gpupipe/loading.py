"""A loader over a Dataset's transformed rows: where its table goes, and how it gets there."""

from __future__ import annotations

import logging
from contextlib import closing
from functools import partial
from typing import Any

import torch

from gpupipe.backend import Backend
from gpupipe.features import Features
from gpupipe.fitted_rows import FittedRows
from gpupipe.io import Dataset, over_partitions
from gpupipe.schema import Role
from gpupipe.streaming import StreamedParts, loaded
from gpupipe.tensors import Block, Loader, require_device
from gpupipe.tensors.kept import held
from gpupipe.tensors.residency import choose_residency, room_on
from gpupipe.transformation import Transformation

__all__ = ["make_loader", "table_of"]

_KEPT_BYTES = 8
_log = logging.getLogger("gpupipe")


def make_loader(
    run: Transformation,
    dataset: Dataset,
    backend: Backend,
    features: Features | None,
    *,
    device: str,
    residency: str,
    dtype: str,
    out_of_fold: bool | None,
    **options: Any,
) -> Loader:
    """The loader of `Pipeline.loader`; `options` are `Loader`'s own."""
    table, wanted, chosen, seen = table_of(run, dataset, backend, device=device, residency=residency, dtype=dtype)
    if features is not None and seen is not None:
        features.check_rows(seen, out_of_fold)
    return Loader(table, device=wanted, residency=chosen, **options)


def table_of(
    run: Transformation, dataset: Dataset, backend: Backend, *, device: str, residency: str, dtype: str
) -> tuple[Block | StreamedParts, torch.device, str, FittedRows | None]:
    """A table of the transformed rows, where batches of it are wanted, where it lies, and what tells its rows."""
    bound = sum(partition.num_rows for partition in dataset.partitions)
    row_bytes = Block.row_bytes_of(run.schema, dtype)
    name = backend.device if device == "auto" else device
    require_device(name)
    wanted = torch.device(name)
    kept = run.schema.with_role(Role.KEEP)
    if carried := [item.name for item in kept if item not in held(run.schema)]:
        _log.info("loader: batches are without the kept columns %s, which no tensor can hold", carried)
    size = bound * (row_bytes + _KEPT_BYTES * len(kept))
    rooms: dict[str, int | None] = {}
    if residency == "auto":
        backend.trim()  # what the fit has left is free
        rooms = {kind: room_on(torch.device(kind)) for kind in {"cpu", wanted.type}}
    chosen = choose_residency(residency, size, wanted, rooms)
    if chosen != "device":
        _log.info("loader: a table of %.2f GB, residency=%r", size / 1e9, chosen)
    if chosen == "stream":
        streamed = StreamedParts(run, dataset, backend, dtype)
        table: Block | StreamedParts = streamed
        seen = streamed.seen
    else:
        place = wanted if chosen == "device" else torch.device("cpu")
        if place.type == torch.device(backend.device).type:
            backend.make_room(bound * row_bytes)
        table, seen = _written(run, dataset, backend, Block.allocate(run.schema, bound, place, dtype=dtype))
    return table, wanted, chosen, seen


def _written(run: Transformation, dataset: Dataset, backend: Backend, block: Block) -> tuple[Block, FittedRows]:
    """The dataset's rows in a block that has room for them, and what tells them from others."""
    rows, seen = 0, FittedRows()
    with closing(over_partitions(partial(loaded, run, backend.name), dataset, backend.name, "load")) as parts:
        for columns, told in parts:
            rows, seen = rows + block.write(rows, columns, backend), seen + told
    return block.narrow(rows), seen
