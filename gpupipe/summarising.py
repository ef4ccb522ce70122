"""What a fit does with one partition, as values that a worker of a cluster can be sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpupipe.backend import Array, Backend, Frame, select
from gpupipe.features import Features
from gpupipe.fitted_rows import FittedRows
from gpupipe.io import Dataset, Partition, in_halves
from gpupipe.plan import Prefix, Task
from gpupipe.preprocessing import Columns, CrossFittedStep, FoldStep, WholeFrameStep
from gpupipe.schema import Schema
from gpupipe.step import in_step
from gpupipe.targets import TargetsSummary
from gpupipe.transforms import Map

__all__ = ["Outcome", "Pass", "Trial"]


@dataclass
class Outcome:
    """What one partition, or several, contribute to a pass.

    Args:
        partition: the index of the first.
        num_rows: after the transforms.
        target: what was seen of the target.
        summaries: of each task, of each of its steps.
        joined: rows seen and rows without a match, by the join's name.
        rows: what tells them from other rows, where a step learns from the target.
        kept: the columns a later pass needs again; lost in a sum.
    """

    partition: int
    num_rows: int
    target: TargetsSummary
    summaries: list[list[Any]]
    joined: Mapping[str, tuple[int, int]]
    rows: FittedRows = FittedRows()  # noqa: RUF009
    kept: Frame | None = None

    def __add__(self, other: Outcome) -> Outcome:
        summaries = [
            [a + b for a, b in zip(mine, theirs, strict=True)]
            for mine, theirs in zip(self.summaries, other.summaries, strict=True)
        ]
        joined = {n: (seen + other.joined[n][0], lost + other.joined[n][1]) for n, (seen, lost) in self.joined.items()}
        num_rows, rows = self.num_rows + other.num_rows, self.rows + other.rows
        return Outcome(self.partition, num_rows, self.target + other.target, summaries, joined, rows)


@dataclass(frozen=True)
class Pass:
    """One pass over the data, as a function of a dataset of one partition.

    Args:
        number: which pass it is, from 0.
        tasks: what is learned.
        features: whose target is looked at; rows without it are left out.
        prefix: the transforms.
        schema: after the transforms.
        backend: `"cpu"` or `"gpu"`.
        again: the columns to keep for later passes.
        kept: what an earlier pass kept, by partition; taken out when used.
        first: source columns that were read already, by partition; taken out when used.
    """

    number: int
    tasks: Sequence[Task]
    features: Features
    prefix: Prefix
    schema: Schema
    backend: str
    again: Collection[str]
    kept: dict[int, Frame]
    first: dict[int, Frame]

    def __call__(self, part: Dataset) -> Outcome:
        (partition,) = part.partitions
        backend, prefix, seen = select(self.backend), self.prefix.copy(), TargetsSummary()
        frame = self.kept.pop(partition.index, None)
        if frame is None:
            frame = _read(part, prefix.reads, backend, self.first.pop(partition.index, None))
            frame = prefix.run(frame, backend, _row_ids(prefix, partition, backend))
        num_rows = len(frame)
        target = self.features.target
        with_target = target is not None and all(name in frame.columns for name in target.reads(self.schema))
        raw: Columns = {}
        if with_target and target is not None:
            seen = target.summarise(frame, self.schema, backend)
            present = target.present(frame, self.schema, backend)
            if present is not None:
                frame = backend.filter(frame, present)
            raw = target.raw_columns(frame, self.schema, backend)
        # The same row has the same identity for any partitioning, so what is drawn by it does not depend on partitions.
        drawn = self.features.cross_fits or any(
            isinstance(s, WholeFrameStep) for task in self.tasks for s in task.steps
        )
        row_ids = partition.row_ids(backend.xp)[backend.positions(frame)] if drawn else None
        summaries = []
        for task in self.tasks:
            if task.group.of_target:
                columns = task.group.through(raw, backend, task.position)
            else:
                columns = task.group.columns_of(frame, backend, task.position, row_ids)
            found = []
            for place, step in enumerate(task.steps):
                found.append(_summary(step, columns, backend, raw, row_ids))
                columns = step.transform_columns(columns, backend) if place < task.free else columns
            summaries.append(found)
        rows = (
            self.features.rows_of(frame, self.schema, backend, row_ids)
            if row_ids is not None and self.number == 0
            else FittedRows()
        )
        kept = backend.select(frame, self.again) if self.again else None
        return Outcome(partition.index, num_rows, seen, summaries, prefix.joined, rows, kept)


@dataclass(frozen=True)
class Trial:
    """A function of the user's on the rows of one partition, to see which types come out.

    Args:
        step: the function's.
        prefix: the transforms before it.
        before: the schema it is given.
        wanted: what is wanted of it.
        reads: the source columns to read, some for the first pass.
        backend: `"cpu"` or `"gpu"`.
        first: gets the frame read, by partition.
    """

    step: Map
    prefix: Prefix
    before: Schema
    wanted: frozenset[str]
    reads: Sequence[str]
    backend: str
    first: dict[int, Frame]

    def __call__(self, part: Dataset) -> dict[str, str] | None:
        (whole,) = part.partitions
        types = in_halves(partial(self._types, whole), part)
        return next((found for found in types if found is not None), None)

    def _types(self, whole: Partition, part: Dataset) -> dict[str, str] | None:
        (partition,) = part.partitions
        backend, prefix = select(self.backend), self.prefix.copy()
        frame = _read(part, self.reads, backend, self.first.pop(partition.index, None))
        seen = prefix.run(backend.select(frame, prefix.reads), backend, _row_ids(prefix, partition, backend))
        with in_step(self.step):
            self.step.apply(seen, self.before, self.wanted, backend)
        if partition == whole:
            self.first[partition.index] = frame
        return self.step.dtypes_


def _read(part: Dataset, names: Sequence[str], backend: Backend, known: Frame | None) -> Frame:
    """These source columns of the partition, at least; those in `known` are not read again."""
    missing = [name for name in names if known is None or name not in known.columns]
    if known is None:
        return part.read(part.partitions[0], missing, backend)
    if not missing:
        return known
    more = part.read(part.partitions[0], missing, backend)
    return backend.assign(known, {name: backend.column(more, name) for name in missing})


def _row_ids(prefix: Prefix, partition: Partition, backend: Backend) -> Array | None:
    return partition.row_ids(backend.xp) if prefix.draws_rows else None


def _summary(step: FoldStep, columns: Columns, backend: Backend, target: Columns, row_ids: Array | None) -> Any:
    with in_step(step):
        if isinstance(step, CrossFittedStep):
            return step.summarise(columns, backend, target=target, row_numbers=row_ids)
        if isinstance(step, WholeFrameStep):
            return step.summarise(columns, backend, row_ids)
        return step.summarise(columns, backend)
