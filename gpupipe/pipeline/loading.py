"""Loader construction: the table of a Dataset's transformed rows on the right device, or read again each epoch."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from gpupipe.backend import Backend, Column, select
from gpupipe.cluster.executor import Executor, get_executor
from gpupipe.errors import SchemaMismatch
from gpupipe.io import Dataset, in_halves, run_partitions
from gpupipe.pipeline.apply import BoundPipeline
from gpupipe.pipeline.features import TargetSet
from gpupipe.schema import Role
from gpupipe.support.validation import check_choice
from gpupipe.tensors import FeatureTable, Loader, require_device
from gpupipe.tensors.feature_table import get_stored_fields
from gpupipe.tensors.loader import RESIDENCIES, choose_residency, get_free_bytes

_KEPT_BYTES = 8
_log = logging.getLogger("gpupipe")


class TargetInverse:
    """Inverse of a fitted `target_transform`; `by_default` where nobody asked for that transform."""

    def __init__(self, targets: TargetSet) -> None:
        self._targets = targets
        self.by_default = targets.auto

    def __call__(self, values: Tensor) -> Tensor:
        """Convert B values, or B x T, to the targets' units; float64 on the same device.

        Raises:
            BadData: a value is beyond float64 there.
            SchemaMismatch: not one value per target.
        """
        backend = select("gpu" if values.is_cuda else "cpu")
        wide, names = values if values.ndim == 2 else values[:, None], [item.text for item in self._targets.each]
        if wide.ndim != 2 or wide.shape[1] != len(names):
            raise SchemaMismatch(
                "target_transform",
                "the model's outputs are not one value per target, so they have no units of its own",
                got=tuple(values.shape),
                expected=f"a value a row for each of {names}",
                remedy="Features(target_transform=None)",
            )
        parts = wide.detach().double().unbind(1)
        columns = [Column("float64", backend.xp.from_dlpack(part.contiguous())) for part in parts]
        made: list[Any] = [from_dlpack(item.data) for item in self._targets.inverse(columns, backend)]
        return torch.stack(made, 1).reshape(values.shape)


class StreamedParts:
    """Row groups of a Dataset, read and transformed again each epoch.

    Where steps leave out rows, one pass counts those that stay. `dtype` is of the numbers in the loader's windows.
    """

    def __init__(self, run: BoundPipeline, dataset: Dataset, backend: Backend, dtype: str) -> None:
        self.schema, self.backend, self.dtype = run.schema, backend, dtype
        self._run, self._dataset = run, dataset
        self._pieces = [part.keep([span]) for part in dataset.partitions for span in part.spans if span.num_rows]
        self.names: Sequence[str] = [piece.description for piece in self._pieces]
        self.rows: Sequence[int] = [piece.num_rows for piece in self._pieces]
        if self._pieces and (run.draws_rows or not (run.keeps_rows and dataset.query.keeps_rows)):
            self.rows = self._count()

    def read(self, parts: Sequence[int]) -> Generator[Iterable[Mapping[str, Column]]]:
        """Yield the columns of these parts in order, each in one piece, or in several where memory does not suffice."""
        work = partial(load_columns, self._run, self.backend.name)

        def pieces(number: int) -> list[Mapping[str, Column]]:
            return list(in_halves(work, self._dataset.of_partitions([self._pieces[number]])))

        yield from Executor().map(pieces, parts, at_once=1 if self.backend.name == "gpu" else None)

    def _count(self) -> list[int]:
        work, rows = partial(_count_rows, self._run, self.backend.name), [0] * len(self._pieces)
        dataset, number, looked_at = self._dataset.of_partitions(self._pieces), 0, 0
        with closing(run_partitions(work, dataset, self.backend.name, "count")) as counts:
            for given, kept in counts:  # a part in halves gives two counts
                rows[number], looked_at = rows[number] + kept, looked_at + given
                if looked_at == self._pieces[number].num_rows:
                    number, looked_at = number + 1, 0
        return rows


def load_columns(run: BoundPipeline, backend_name: str, part: Dataset) -> Mapping[str, Column]:
    """Compute the output columns of one partition, on a worker."""
    backend, partition = select(backend_name), part.partitions[0]
    row_ids = partition.row_ids(backend.xp) if run.draws_rows else None
    return run.columns(part.read(partition, run.reads, backend), backend, row_ids, stored=True)[0]


def _count_rows(run: BoundPipeline, backend_name: str, part: Dataset) -> tuple[int, int]:
    """Count a partition's rows before and after the transforms."""
    return part.partitions[0].num_rows, len(next(iter(load_columns(run, backend_name, part).values())))


def make_loader(
    run: BoundPipeline, dataset: Dataset, backend: str, *, device: str, residency: str, dtype: str, **options: Any
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
    check_choice("loader", RESIDENCIES, residency=residency)
    here = get_executor().in_process
    bound = sum(partition.num_rows for partition in dataset.partitions)
    row_bytes = FeatureTable.row_bytes_of(run.schema, dtype)
    if device == "auto":  # the backend's, or a GPU of this process where the backend is elsewhere
        is_backends = here or backend == "cpu"
        device = select(backend).device if is_backends else ("cuda" if torch.cuda.is_available() else "cpu")
    require_device(device)
    wanted = torch.device(device)
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
        return StreamedParts(run, dataset, select(backend if here else "auto"), dtype), wanted, chosen
    place = wanted if chosen == "device" else torch.device("cpu")
    if here and place.type == torch.device(select(backend).device).type:
        select(backend).make_room(bound * row_bytes)
    block, rows = FeatureTable.allocate(run.schema, bound, place, dtype=dtype), 0
    work, writer = (load_columns, select(backend)) if here else (_load_on_host, select("cpu"))
    with closing(run_partitions(partial(work, run, backend), dataset, backend, "load")) as parts:
        for columns in parts:
            rows += block.write(rows, columns, writer)
    return block.narrow(rows), wanted, chosen


def _load_on_host(run: BoundPipeline, backend: str, part: Dataset) -> Mapping[str, Column]:
    """Run `load_columns` on a worker, and return host arrays: GPU arrays would be opened on the program's GPU."""
    move = select(backend).to_host
    return {name: column.move(move) for name, column in load_columns(run, backend, part).items()}
