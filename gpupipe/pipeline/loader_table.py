"""Loader table: the features of all rows as one block of tensors, or streamed where that is too large."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpupipe.backend import Backend, Column, select
from gpupipe.cluster.executor import Executor, get_executor
from gpupipe.io import Dataset, in_halves, run_partitions
from gpupipe.pipeline.bound_pipeline import BoundPipeline
from gpupipe.schema import Role, is_passenger
from gpupipe.support.calls import check_call
from gpupipe.support.validation import check_choice

if TYPE_CHECKING:
    import torch

    from gpupipe.tensors import FeatureTable, Loader

_log = logging.getLogger("gpupipe")
_KEPT_BYTES = 8  # of a kept column, per row
# `gpupipe.tensors` is imported where tensors are made: PyTorch takes longer to import than a small fit.


class StreamedParts:
    """Row groups of a Dataset, read again each epoch; where steps leave out rows, one pass counts those that stay."""

    def __init__(self, run: BoundPipeline, dataset: Dataset, backend: Backend, dtype: str) -> None:
        self.schema, self.backend, self.dtype = run.schema, backend, dtype
        self._run, self._dataset = run, dataset
        self._pieces = [part.keep([span]) for part in dataset.partitions for span in part.spans if span.num_rows]
        self.names: Sequence[str] = [piece.description for piece in self._pieces]
        self.rows: Sequence[int] = [piece.num_rows for piece in self._pieces]
        if self._pieces and (run.draws_rows or not (run.keeps_rows and dataset.keeps_rows)):
            self.rows = self._count()

    def read(self, parts: Sequence[int]) -> Generator[Iterable[Mapping[str, Column]]]:
        """Yield the columns of these parts in order, each in one piece, or in several where memory does not suffice."""
        work = partial(load_columns, self._run, self.backend.name)

        def pieces(number: int) -> list[Mapping[str, Column]]:
            return list(in_halves(work, self._dataset.of_partitions([self._pieces[number]])))

        yield from Executor().map(pieces, parts, at_once=1 if self.backend.name == "gpu" else None)

    def _count(self) -> list[int]:
        work, rows = partial(_count_rows, self._run, self.backend.name), [0] * len(self._pieces)
        dataset, number, counted = self._dataset.of_partitions(self._pieces), 0, 0
        with closing(run_partitions(work, dataset, self.backend.name, "count")) as counts:
            for num_inputs, num_outputs in counts:  # a part in halves gives two counts
                rows[number], counted = rows[number] + num_outputs, counted + num_inputs
                if counted == self._pieces[number].num_rows:
                    number, counted = number + 1, 0
        return rows


def load_columns(
    run: BoundPipeline, backend_name: str, part: Dataset, *, on_host: bool = False
) -> Mapping[str, Column]:
    """Compute the output columns of one partition; a worker's go to the host, lest they are opened on the GPU here."""
    backend, partition = select(backend_name), part.partitions[0]
    row_ids = partition.row_ids(backend.xp) if run.draws_rows else None
    columns = run.columns(part.read(partition, run.reads, backend), backend, row_ids, stored=True)[0]
    return {name: column.move(backend.to_host) for name, column in columns.items()} if on_host else columns


def _count_rows(run: BoundPipeline, backend_name: str, part: Dataset) -> tuple[int, int]:
    return part.partitions[0].num_rows, len(next(iter(load_columns(run, backend_name, part).values())))


def make_loader(
    run: BoundPipeline, dataset: Dataset, backend: str, *, device: str, residency: str, dtype: str, **options: Any
) -> Loader:
    """Build the loader of `Pipeline.loader`; check `options`, which are `Loader`'s own, before anything is read."""
    made_by: type[Loader] = import_module("gpupipe.tensors.loader").Loader
    check_call("Pipeline.loader", made_by, None, **options)
    table, batch_device, location = build_table(run, dataset, backend, device=device, residency=residency, dtype=dtype)
    return made_by(table, device=batch_device, residency=location, **options)


def build_table(
    run: BoundPipeline, dataset: Dataset, backend: str, *, device: str, residency: str, dtype: str
) -> tuple[FeatureTable | StreamedParts, torch.device, str]:
    """Build a table of the transformed rows; return it, the batches' device and the table's location."""
    tensors, torch = import_module("gpupipe.tensors.loader"), import_module("torch")
    check_choice("loader", tensors.RESIDENCIES, residency=residency)
    is_local, keep_fields = get_executor().in_process, run.schema.with_role(Role.KEEP)
    make_parts = partial(StreamedParts, run, dataset, select(backend if is_local else "auto"), dtype)
    has_bound = not (run.plan.adds_rows or dataset.adds_rows)
    bound = sum(partition.num_rows for partition in dataset.partitions) if has_bound else sum(make_parts().rows)
    row_bytes = tensors.FeatureTable.row_bytes_of(run.schema, dtype)
    if device == "auto":  # the backend's, or a GPU of this process where the backend is elsewhere
        is_backends = is_local or backend == "cpu"
        device = select(backend).device if is_backends else ("cuda" if torch.cuda.is_available() else "cpu")
    tensors.require_device(device)
    batch_device = torch.device(device)
    if carried := [item.name for item in keep_fields if is_passenger(item.dtype)]:
        _log.info("loader: batches are without the kept columns %s, which no tensor can hold", carried)
    size = bound * (row_bytes + _KEPT_BYTES * len(keep_fields))
    free_bytes: dict[str, int | None] = {}
    if residency == "auto":
        if is_local:
            select(backend).trim()  # what the fit has left is free
        free_bytes = {kind: tensors.get_free_bytes(torch.device(kind)) for kind in {"cpu", batch_device.type}}
    location = tensors.choose_residency(residency, size, batch_device, free_bytes)
    if location != "device":
        _log.info("loader: a table of %.2f GB, residency=%r", size / 1e9, location)
    if location == "stream":
        return make_parts(), batch_device, location
    table_device = batch_device if location == "device" else torch.device("cpu")
    if is_local and table_device.type == torch.device(select(backend).device).type:
        select(backend).make_room(bound * row_bytes)
    block, rows = tensors.FeatureTable.allocate(run.schema, bound, table_device, dtype=dtype), 0
    work, writer = partial(load_columns, run, backend, on_host=not is_local), select(backend if is_local else "cpu")
    with closing(run_partitions(work, dataset, backend, "load")) as parts:
        for columns in parts:
            rows += block.write(rows, columns, writer)
    return block.narrow(rows), batch_device, location
