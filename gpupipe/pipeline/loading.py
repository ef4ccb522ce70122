"""A loader over a Dataset's transformed rows: where its table goes, and how it gets there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from inspect import signature
from typing import Any

import torch

from gpupipe.backend import Column, select
from gpupipe.cluster import get_executor
from gpupipe.io import Dataset, over_partitions
from gpupipe.pipeline.apply import Transformation
from gpupipe.pipeline.stream_parts import StreamedParts, loaded
from gpupipe.schema import Role
from gpupipe.tensors import Block, Loader, require_device
from gpupipe.tensors.passthrough import held
from gpupipe.tensors.placement import choose_residency, room_on

__all__ = ["make_loader", "table_of"]

_KEPT_BYTES = 8
_log = logging.getLogger("gpupipe")


def make_loader(
    run: Transformation,
    dataset: Dataset,
    backend: str,
    *,
    device: str,
    residency: str,
    dtype: str,
    **options: Any,
) -> Loader:
    """The loader of `Pipeline.loader`; `options` are `Loader`'s own, refused before anything is read."""
    signature(Loader).bind(None, **options)
    table, wanted, chosen = table_of(run, dataset, backend, device=device, residency=residency, dtype=dtype)
    return Loader(table, device=wanted, residency=chosen, **options)


def table_of(
    run: Transformation, dataset: Dataset, backend: str, *, device: str, residency: str, dtype: str
) -> tuple[Block | StreamedParts, torch.device, str]:
    """A table of the transformed rows, where batches of it are wanted, and where it lies.

    On a cluster rows are transformed by `backend` there and reach this process in the host's memory; it uses a GPU of
    its own for the table that it trains on, and for nothing else.
    """
    here = get_executor().in_process
    bound = sum(partition.num_rows for partition in dataset.partitions)
    row_bytes = Block.row_bytes_of(run.schema, dtype)
    name = _device(backend, here=here) if device == "auto" else device
    require_device(name)
    wanted = torch.device(name)
    kept = run.schema.with_role(Role.KEEP)
    if carried := [item.name for item in kept if item not in held(run.schema)]:
        _log.info("loader: batches are without the kept columns %s, which no tensor can hold", carried)
    size = bound * (row_bytes + _KEPT_BYTES * len(kept))
    rooms: dict[str, int | None] = {}
    if residency == "auto":
        if here:
            select(backend).trim()  # what the fit has left is free
        rooms = {kind: room_on(torch.device(kind)) for kind in {"cpu", wanted.type}}
    chosen = choose_residency(residency, size, wanted, rooms)
    if chosen != "device":
        _log.info("loader: a table of %.2f GB, residency=%r", size / 1e9, chosen)
    if chosen == "stream":
        table: Block | StreamedParts = StreamedParts(run, dataset, select(backend if here else "auto"), dtype)
    else:
        place = wanted if chosen == "device" else torch.device("cpu")
        if here and place.type == torch.device(select(backend).device).type:
            select(backend).make_room(bound * row_bytes)
        table = _written(run, dataset, backend, Block.allocate(run.schema, bound, place, dtype=dtype))
    return table, wanted, chosen


def _device(backend: str, *, here: bool) -> str:
    """Where batches go by default: the backend's device, or a GPU of this process where the backend is elsewhere."""
    if here or backend == "cpu":
        return select(backend).device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _written(run: Transformation, dataset: Dataset, backend: str, block: Block) -> Block:
    """The dataset's rows in a block that has room for them."""
    rows = 0
    work, writer = (loaded, select(backend)) if get_executor().in_process else (_on_host, select("cpu"))
    with closing(over_partitions(partial(work, run, backend), dataset, backend, "load")) as parts:
        for columns in parts:
            rows += block.write(rows, columns, writer)
    return block.narrow(rows)


def _on_host(run: Transformation, backend: str, part: Dataset) -> Mapping[str, Column]:
    """What `loaded` gives, as a worker sends it: opened in the program, arrays of a GPU would be put on one there."""
    move = select(backend).to_host
    return {name: column.move(move) for name, column in loaded(run, backend, part).items()}
