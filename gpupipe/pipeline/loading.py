"""Loader construction: build the table of a Dataset's transformed rows on the right device."""

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
from gpupipe.io import Dataset, run_partitions
from gpupipe.pipeline.apply import BoundPipeline
from gpupipe.pipeline.stream_parts import StreamedParts, load_columns
from gpupipe.schema import Role
from gpupipe.tensors import FeatureTable, Loader, require_device
from gpupipe.tensors.passthrough import get_stored_fields
from gpupipe.tensors.placement import choose_residency, get_free_bytes

__all__ = ["build_table", "make_loader"]

_KEPT_BYTES = 8
_log = logging.getLogger("gpupipe")


def make_loader(
    run: BoundPipeline,
    dataset: Dataset,
    backend: str,
    *,
    device: str,
    residency: str,
    dtype: str,
    **options: Any,
) -> Loader:
    """Build the loader of `Pipeline.loader`; check `options`, which are `Loader`'s own, before anything is read."""
    signature(Loader).bind(None, **options)
    table, wanted, chosen = build_table(run, dataset, backend, device=device, residency=residency, dtype=dtype)
    return Loader(table, device=wanted, residency=chosen, **options)


def build_table(
    run: BoundPipeline, dataset: Dataset, backend: str, *, device: str, residency: str, dtype: str
) -> tuple[FeatureTable | StreamedParts, torch.device, str]:
    """Build a table of the transformed rows; return it, the batches' device and the table's location.

    On a cluster rows are transformed by `backend` there and reach this process in the host's memory; it uses a GPU of
    its own for the table that it trains on, and for nothing else.
    """
    here = get_executor().in_process
    bound = sum(partition.num_rows for partition in dataset.partitions)
    row_bytes = FeatureTable.row_bytes_of(run.schema, dtype)
    name = _device(backend, here=here) if device == "auto" else device
    require_device(name)
    wanted = torch.device(name)
    kept = run.schema.with_role(Role.KEEP)
    if carried := [item.name for item in kept if item not in get_stored_fields(run.schema)]:
        _log.info("loader: batches are without the kept columns %s, which no tensor can hold", carried)
    size = bound * (row_bytes + _KEPT_BYTES * len(kept))
    free_bytes: dict[str, int | None] = {}
    if residency == "auto":
        if here:
            select(backend).trim()  # what the fit has left is free
        free_bytes = {kind: get_free_bytes(torch.device(kind)) for kind in {"cpu", wanted.type}}
    chosen = choose_residency(residency, size, wanted, free_bytes)
    if chosen != "device":
        _log.info("loader: a table of %.2f GB, residency=%r", size / 1e9, chosen)
    if chosen == "stream":
        table: FeatureTable | StreamedParts = StreamedParts(run, dataset, select(backend if here else "auto"), dtype)
    else:
        place = wanted if chosen == "device" else torch.device("cpu")
        if here and place.type == torch.device(select(backend).device).type:
            select(backend).make_room(bound * row_bytes)
        table = _write_block(run, dataset, backend, FeatureTable.allocate(run.schema, bound, place, dtype=dtype))
    return table, wanted, chosen


def _device(backend: str, *, here: bool) -> str:
    """Return the default device of batches: the backend's, or a GPU of this process where the backend is elsewhere."""
    if here or backend == "cpu":
        return select(backend).device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _write_block(run: BoundPipeline, dataset: Dataset, backend: str, block: FeatureTable) -> FeatureTable:
    """Write the dataset's rows into a preallocated block."""
    rows = 0
    work, writer = (load_columns, select(backend)) if get_executor().in_process else (_on_host, select("cpu"))
    with closing(run_partitions(partial(work, run, backend), dataset, backend, "load")) as parts:
        for columns in parts:
            rows += block.write(rows, columns, writer)
    return block.narrow(rows)


def _on_host(run: BoundPipeline, backend: str, part: Dataset) -> Mapping[str, Column]:
    """Run `load_columns` on a worker, and return host arrays: GPU arrays would be opened on the program's GPU."""
    move = select(backend).to_host
    return {name: column.move(move) for name, column in load_columns(run, backend, part).items()}
