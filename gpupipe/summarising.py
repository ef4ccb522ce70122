"""What a fit does with one partition, as values that a worker of a cluster can be sent."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpupipe.backend import Array, Backend, Frame, select
from gpupipe.expectations import Findings
from gpupipe.features import Features
from gpupipe.io import Dataset, Partition, in_halves
from gpupipe.plan import Prefix, Task
from gpupipe.preprocessing import Columns, CrossFittedStep, FoldStep, WholeFrameStep
from gpupipe.schema import Schema
from gpupipe.seen import Note, Seen, Taking, told_by
from gpupipe.step import in_step
from gpupipe.targets import TargetsSummary
from gpupipe.transforms import Map

__all__ = ["Cost", "Outcome", "Pass", "Trial"]


@dataclass(frozen=True)
class Cost:
    """What a step's look at some partitions took.

    Args:
        seconds: wall time, added up.
        num_bytes: of the columns it looked at.
    """

    seconds: float = 0.0
    num_bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.num_bytes + other.num_bytes)


@dataclass
class Outcome:
    """What one partition, or several, contribute to a pass.

    Args:
        partition: the index of the first.
        num_rows: after the transforms.
        target: what was seen of the target.
        summaries: of each task, of each of its steps.
        joined: rows seen and rows without a match, by the join's name.
        costs: what that took, of each task, of each of its steps.
        note: what was noted beside it.
        kept: the columns a later pass needs again; lost in a sum.
    """

    partition: int
    num_rows: int
    target: TargetsSummary
    summaries: list[list[Any]]
    joined: Mapping[str, tuple[int, int]]
    costs: list[list[Cost]] = field(default_factory=list)
    note: Note = field(default_factory=Note)
    kept: Frame | None = None

    def __add__(self, other: Outcome) -> Outcome:
        summaries, costs = _added(self.summaries, other.summaries), _added(self.costs, other.costs)
        joined = {n: (seen + other.joined[n][0], lost + other.joined[n][1]) for n, (seen, lost) in self.joined.items()}
        num_rows, note = self.num_rows + other.num_rows, self.note + other.note
        return Outcome(self.partition, num_rows, self.target + other.target, summaries, joined, costs, note)


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
        taking: what is noted beside; None notes nothing.
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
    taking: Taking | None = None

    def __call__(self, part: Dataset) -> Outcome:
        (partition,) = part.partitions
        backend, prefix, seen, taking = select(self.backend), self.prefix.copy(), TargetsSummary(), self.taking
        frame, findings = self.kept.pop(partition.index, None), Findings()
        if frame is None:
            reads = [*prefix.reads, *(name for name in (taking.reads if taking else ()) if name not in prefix.reads)]
            frame = _read(part, reads, backend, self.first.pop(partition.index, None))
            if taking is not None:
                findings = taking.findings(frame, backend, partition.spans[0].identity if partition.spans else 0)
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
        drawn = (taking is not None and taking.samples) or self.features.cross_fits
        drawn = drawn or any(isinstance(s, WholeFrameStep) for task in self.tasks for s in task.steps)
        row_ids = partition.row_ids(backend.xp)[backend.positions(frame)] if drawn else None
        told: dict[str, Seen] = {}
        summaries, costs = [], []
        for task in self.tasks:
            if task.group.of_target:
                columns = task.group.through(raw, backend, task.position)
            else:
                columns = task.group.columns_of(frame, backend, task.position, row_ids)
            found, took, before = list[Any](), [], task.steps[task.free].summary_key
            for place, step in enumerate(task.steps):
                started = time.perf_counter()
                if place > task.free and step.summary_key is not None and step.summary_key == before:
                    found.append(found[-1])
                else:
                    found.append(_summary(step, columns, backend, raw, row_ids))
                took.append(Cost(time.perf_counter() - started, _num_bytes(columns)))
                columns = step.transform_columns(columns, backend) if place < task.free else columns
            if task.position == 0 and not task.group.of_target:
                told |= told_by(found[0])
            summaries.append(found)
            costs.append(took)
        note = Note() if taking is None else taking.note(findings, frame, row_ids, told, backend)
        kept = backend.select(frame, self.again) if self.again else None
        return Outcome(partition.index, num_rows, seen, summaries, prefix.joined, costs, note, kept)


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


def _added(mine: Sequence[Sequence[Any]], theirs: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(mine, theirs, strict=True)]


def _num_bytes(columns: Columns) -> int:
    arrays = [array for column in columns.values() for array in (column.data, column.valid) if array is not None]
    return sum(array.nbytes for array in arrays)


def _row_ids(prefix: Prefix, partition: Partition, backend: Backend) -> Array | None:
    return partition.row_ids(backend.xp) if prefix.draws_rows else None


def _summary(step: FoldStep, columns: Columns, backend: Backend, target: Columns, row_ids: Array | None) -> Any:
    with in_step(step):
        if isinstance(step, CrossFittedStep):
            return step.summarise(columns, backend, target=target, row_numbers=row_ids)
        if isinstance(step, WholeFrameStep):
            return step.summarise(columns, backend, row_ids)
        return step.summarise(columns, backend)
