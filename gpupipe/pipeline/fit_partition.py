"""Fit of one partition: picklable functions that workers of a cluster run.

All that a fit observes is a mergeable summary: a partition gives a mapping of them, and a fit adds the mappings.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Protocol, TypeAlias

from gpupipe.backend import Array, Backend, Frame, select
from gpupipe.io import Dataset, Partition, in_halves, run_partitions
from gpupipe.monitoring.drift import Sample, draw_rows
from gpupipe.pipeline.column_stats import ColumnStats, compute_column_stats, count_missing, ranges_from_summary
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.plan import FitTask, TransformPlan, Typed
from gpupipe.preprocessing import Categorify, Columns, CrossFittedStep, GatheredStep, LearnedStep, SimpleImputer
from gpupipe.schema import FLOATS, INTEGERS, LISTS, WIDE, Schema
from gpupipe.step import in_step
from gpupipe.transforms import Map

Summaries: TypeAlias = Mapping[Hashable, Any]
"""Summaries by key; those of one key can be added."""


def fold(work: PartitionPass, dataset: Dataset, title: str) -> dict[Hashable, Any]:
    """Add up the summaries of all partitions, in their order."""
    total: dict[Hashable, Any] = {}
    with closing(run_partitions(work, dataset, work.backend, title)) as partitions:
        for found in partitions:
            total |= {key: total[key] + summary if key in total else summary for key, summary in found.items()}
    return total


@dataclass(frozen=True)
class Rows:
    """Rows of one partition after the transforms.

    Args:
        whole: all of them.
        frame: those that have a target, where there is one.
        target: the target's columns of these, as steps see them.
        schema: of the frame.
        backend: where it is.
        row_ids: the identity of each row of `frame`, where an observer asks for them.
    """

    whole: Frame
    frame: Frame
    target: Columns
    schema: Schema
    backend: Backend
    row_ids: Array | None


class Observer(Protocol):
    """Protocol of functions that summarize the rows of a partition."""

    @property
    def needs_ids(self) -> bool:
        """Whether it asks for the rows' identities."""

    def __call__(self, rows: Rows, found: Summaries) -> dict[Hashable, Any]:
        """Summarize rows; `found` holds the summaries of the observers before this one."""


@dataclass(frozen=True)
class Timing:
    """Time and memory that a step took on some partitions.

    Args:
        seconds: wall time, added up.
        num_bytes: the size of the columns it read.
    """

    seconds: float = 0.0
    num_bytes: int = 0

    def __add__(self, other: Timing) -> Timing:
        return Timing(self.seconds + other.seconds, self.num_bytes + other.num_bytes)


@dataclass(frozen=True)
class SummarizeTarget:
    """Observer of the target's values, or of its missing values, under "target".

    Args:
        features: whose target it is.
    """

    features: Features
    needs_ids = False

    def __call__(self, rows: Rows, found: Summaries) -> dict[Hashable, Any]:
        target = self.features.target
        return {} if target is None else {"target": target.summarize(rows.whole, rows.schema, rows.backend)}


@dataclass(frozen=True)
class Learn:
    """Observer for a learned step: its summary under ("step", number, place), its cost under ("timing", number, place).

    Args:
        number: of the task.
        task: whose steps learn.
    """

    number: int
    task: FitTask

    @property
    def needs_ids(self) -> bool:
        """Steps that draw or gather rows, or deal them to folds, do."""
        return any(isinstance(step, GatheredStep | CrossFittedStep) for step in self.task.group.steps)

    def __call__(self, rows: Rows, found: Summaries) -> dict[Hashable, Any]:
        task, backend, made = self.task, rows.backend, dict[Hashable, Any]()
        if task.group.of_target:
            columns = task.group.apply_steps(rows.target, backend, task.position)
        else:
            columns = task.group.compute_columns(rows.frame, backend, task.position, rows.row_ids)
        before, summary = task.steps[task.free].summary_key, None
        for place, step in enumerate(task.steps):
            started = time.perf_counter()
            if not (place > task.free and step.summary_key is not None and step.summary_key == before):
                summary = _summary(step, columns, backend, rows.target, rows.row_ids)
            made["step", self.number, place] = summary
            made["timing", self.number, place] = Timing(time.perf_counter() - started, _num_bytes(columns))
            columns = step.transform_columns(columns, backend) if place < task.free else columns
        return made


@dataclass(frozen=True)
class DescribeColumns:
    """Observer of missing values and ranges of the features' columns, under ("column", name); also "described" rows.

    Args:
        features: which see them.
        schema: of the columns there are.
        learned: the keys of steps' summaries that may tell the same of some columns.
    """

    features: Features
    schema: Schema
    learned: Sequence[Hashable] = ()
    needs_ids = False

    def __call__(self, rows: Rows, found: Summaries) -> dict[Hashable, Any]:
        names = dict.fromkeys([*list_numbers(self.features, self.schema), *list_unscaled(self.features, self.schema)])
        seen: dict[str, ColumnStats] = {}
        for key in self.learned:
            seen |= {name: item for name, item in ranges_from_summary(found[key]).items() if name in names}
        seen |= compute_column_stats(
            {name: rows.backend.column(rows.frame, name) for name in names if name not in seen}, rows.backend
        )
        others = {name: rows.backend.column(rows.frame, name) for name in list_others(self.features, self.schema)}
        seen |= count_missing(others, rows.backend)
        return {"described": len(rows.frame)} | {("column", name): item for name, item in seen.items()}


@dataclass(frozen=True)
class DrawSample:
    """Observer that draws a "sample" of rows by their row ids, so the same under any partitioning.

    Args:
        features: which see them.
        schema: of the columns there are.
        total: rows of the dataset at most.
    """

    features: Features
    schema: Schema
    total: int
    needs_ids = True

    def __call__(self, rows: Rows, found: Summaries) -> dict[Hashable, Any]:
        assert rows.row_ids is not None
        numbers = list_numbers(self.features, self.schema)
        categories = list(map_categories(self.features, self.schema))
        drawn = draw_rows(rows.row_ids, self.total, len(numbers) + len(categories), rows.backend)
        return {"sample": Sample.of(rows.frame, drawn, numbers, categories, rows.backend)}


class FrameCache:
    """Cache of partitions' frames in this process; it holds all or none of them.

    Args:
        room: bytes they may take; where they take more, none is kept.
    """

    def __init__(self, room: int = 0) -> None:
        self._room, self._frames, self._seen, self._lock = room, dict[int, Frame](), set[int](), Lock()

    def __reduce__(self) -> tuple[type[FrameCache], tuple[()]]:
        return FrameCache, ()

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, partition: int, frame: Frame) -> None:
        """Keep a partition's frame, unless it comes in halves."""
        with self._lock:
            if partition in self._seen:
                self._frames.pop(partition, None)
                return
            self._seen.add(partition)
            self._room -= int(frame.memory_usage(index=False).sum())
            if self._room < 0:
                self._frames.clear()
            else:
                self._frames[partition] = frame

    def take(self, partition: int) -> Frame | None:
        """Return a partition's frame and drop it from the cache."""
        return self._frames.pop(partition, None)


@dataclass(frozen=True)
class PartitionPass:
    """One pass over the data, as a function of a dataset of one partition that returns summaries.

    It gives "partitions" and "rows" (after the transforms), what the transforms count, and what observers do.

    Args:
        observers: in this order.
        prefix: the transforms.
        schema: after the transforms.
        backend: `"cpu"` or `"gpu"`.
        features: rows without their target are left out, where the data has it.
        typed: what is done to a frame before the first transform; None does nothing.
        first: source columns that were read already, by partition; taken out when used.
        cached: what an earlier pass kept.
        cache: what a later pass reads again.
        again: the columns of that.
    """

    observers: Sequence[Observer]
    prefix: TransformPlan
    schema: Schema
    backend: str
    features: Features | None = None
    typed: Typed | None = None
    first: dict[int, Frame] = field(default_factory=dict)
    cached: FrameCache = field(default_factory=FrameCache)
    cache: FrameCache = field(default_factory=FrameCache)
    again: Collection[str] = ()

    def __call__(self, part: Dataset) -> dict[Hashable, Any]:
        (partition,) = part.partitions
        backend, prefix = select(self.backend), self.prefix.copy()
        found: dict[Hashable, Any] = {"partitions": Counter([partition.index])}
        frame = self.cached.take(partition.index)
        if frame is None:
            frame = _read(part, prefix.reads, backend, self.first.pop(partition.index, None))
            place = partition.spans[0].identity if partition.spans else 0
            frame = frame if self.typed is None else self.typed(frame, backend)
            frame = prefix.run(frame, backend, _row_ids(prefix, partition, backend), found, place)
        rows = self._rows(frame, partition, backend)
        found["rows"] = len(frame)
        for observe in self.observers:
            found |= observe(rows, found)
        if self.again:
            self.cache.put(partition.index, backend.select(rows.frame, self.again))
        return found

    def _rows(self, frame: Frame, partition: Partition, backend: Backend) -> Rows:
        whole, raw = frame, dict[str, Any]()
        target = None if self.features is None else self.features.target
        if target is not None and all(name in frame.columns for name in target.reads(self.schema)):
            present = target.present(frame, self.schema, backend)
            if present is not None:
                frame = backend.filter(frame, present)
            raw = dict(target.raw_columns(frame, self.schema, backend))
        # The same row has the same identity for any partitioning, so what is drawn by it does not depend on partitions.
        wanted = any(observer.needs_ids for observer in self.observers)
        row_ids = partition.row_ids(backend.xp)[backend.positions(frame)] if wanted else None
        return Rows(whole, frame, raw, self.schema, backend, row_ids)


def list_numbers(features: Features, schema: Schema) -> list[str]:
    """List the columns that features use as numbers, among those after the transforms."""
    dtypes = (*FLOATS, *INTEGERS, "bool")
    groups = [group for group in features.groups if group.steps and not isinstance(group.steps[-1], Categorify)]
    names = {name for group in groups for name in group.looks_at}
    return [item.name for item in schema if item.name in names and item.dtype in dtypes]


def list_unscaled(features: Features, schema: Schema) -> list[str]:
    """List the columns of wide numbers that are features without a step."""
    names = {name for group in features.groups if not group.steps for name in group.columns}
    return [item.name for item in schema if item.name in names and item.dtype in WIDE]


def list_others(features: Features, schema: Schema) -> list[str]:
    """List the columns that steps read and features do not use as numbers; only missing values are counted."""
    names = {name for group in features.groups if group.steps for name in group.looks_at}
    names -= set(list_numbers(features, schema))
    return [item.name for item in schema if item.name in names and item.dtype not in LISTS]


def map_categories(features: Features, schema: Schema) -> dict[str, Categorify]:
    """Map the columns that become ids unchanged, except for missing values, to their `Categorify` step."""
    found: dict[str, Categorify] = {}
    for group in (group for group in features.groups if group.steps):
        *before, last = group.steps
        if isinstance(last, Categorify) and all(isinstance(step, SimpleImputer) for step in before):
            names = [name for name in group.columns if name in schema and schema[name].dtype not in LISTS]
            found = dict.fromkeys(names, last) | found
    return found


@dataclass(frozen=True)
class DtypeProbe:
    """Dtype probe: a user's function run on the rows of one partition, to infer its output dtypes.

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
    prefix: TransformPlan
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
    """Read at least these source columns of the partition; those in `known` are not read again."""
    missing = [name for name in names if known is None or name not in known.columns]
    if known is None:
        return part.read(part.partitions[0], missing, backend)
    if not missing:
        return known
    more = part.read(part.partitions[0], missing, backend)
    return backend.assign(known, {name: backend.column(more, name) for name in missing})


def _num_bytes(columns: Columns) -> int:
    arrays = [array for column in columns.values() for array in (column.data, column.valid) if array is not None]
    return sum(array.nbytes for array in arrays)


def _row_ids(prefix: TransformPlan, partition: Partition, backend: Backend) -> Array | None:
    return partition.row_ids(backend.xp) if prefix.draws_rows else None


def _summary(step: LearnedStep, columns: Columns, backend: Backend, target: Columns, row_ids: Array | None) -> Any:
    with in_step(step):
        if isinstance(step, CrossFittedStep):
            return step.summarize(columns, backend, target=target, row_numbers=row_ids)
        if isinstance(step, GatheredStep):
            return step.summarize(columns, backend, row_ids)
        return step.summarize(columns, backend)
