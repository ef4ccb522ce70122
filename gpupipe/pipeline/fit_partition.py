"""Fit of one partition: picklable functions that workers of a cluster run.

All that a fit observes is a mergeable summary: a partition gives a mapping of them, and a fit adds the mappings.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from gpupipe.backend import Array, Backend, Frame, select
from gpupipe.backend.float_kernels import find_bounds
from gpupipe.io import Dataset, Partition, in_halves, run_partitions
from gpupipe.monitoring.drift import Profile, Sample, draw_rows
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.plan import FitTask, TransformPlan, Typed
from gpupipe.preprocessing import Categorify, Columns, CrossFittedStep, GatheredStep, LearnedStep, SimpleImputer
from gpupipe.preprocessing.numeric import tabulate
from gpupipe.preprocessing.summaries.moments import Extremes, Moments
from gpupipe.schema import FLOATS, INTEGERS, LISTS, WIDE, Schema
from gpupipe.step import in_step
from gpupipe.transforms import Map


@dataclass(frozen=True)
class ColumnStats:
    """Column statistics of some partitions: rows without a value, the least number and the greatest; mergeable."""

    missing: int = 0
    low: float = np.inf
    high: float = -np.inf

    def __add__(self, other: ColumnStats) -> ColumnStats:
        return ColumnStats(self.missing + other.missing, min(self.low, other.low), max(self.high, other.high))

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the greatest number, where both are numbers a file can hold."""
        return (self.low, self.high) if np.isfinite(self.low) and np.isfinite(self.high) else None


def ranges_from_summary(summary: object) -> dict[str, ColumnStats]:
    """Return the statistics of the columns whose range a step's summary contains."""
    found = summary.extremes if isinstance(summary, Moments) else summary
    if not isinstance(found, Extremes):
        return {}
    numbers = zip(found.missing.tolist(), found.low.tolist(), found.high.tolist(), strict=True)
    return {name: ColumnStats(*seen) for name, seen in zip(found.names, numbers, strict=True)}


def count_missing(columns: Columns, backend: Backend) -> dict[str, ColumnStats]:
    """Count the missing values of columns that have no meaningful range."""
    xp = backend.xp
    masks = {name: column.missing(xp) for name, column in columns.items()}
    counts = {name: xp.asarray(xp.count_nonzero(mask)) for name, mask in masks.items() if mask is not None}
    found = backend.to_host(xp.stack(list(counts.values()))).tolist() if counts else []
    numbers = dict(zip(counts, found, strict=True))
    return {name: ColumnStats(int(numbers.get(name, 0))) for name in columns}


def fold(work: PartitionPass, dataset: Dataset, title: str) -> dict[Hashable, Any]:
    """Add up the summaries of all partitions, in their order."""
    total: dict[Hashable, Any] = {}
    with closing(run_partitions(work, dataset, work.backend, title)) as partitions:
        for found in partitions:
            total |= {key: total[key] + summary if key in total else summary for key, summary in found.items()}
    return total


def select_kind(found: Mapping[Hashable, Any], kind: str) -> dict[Any, Any]:
    """Return the summaries of one kind, by the second part of their key."""
    return {key[1]: summary for key, summary in found.items() if isinstance(key, tuple) and key[0] == kind}


def build_profiles(found: Mapping[Hashable, Any], features: Features, schema: Schema) -> dict[str, Profile]:
    """Return the profile of each column that features read, from a pass's summaries."""
    vocabularies = {name: step.vocabularies_[name] for name, step in map_categories(features, schema).items()}
    num_rows = max(found["described"], 1)
    missing = {name: seen.missing / num_rows for name, seen in select_kind(found, "column").items()}
    profiles: dict[str, Profile] = found["sample"].profiles(vocabularies, missing)
    return profiles


class FrameCache:
    """Cache of partitions' frames in this process; it holds all or, where they take more than `room` bytes, none."""

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


class _Rows(NamedTuple):
    """Rows of one partition after the transforms."""

    frame: Frame  # those that have a target, where there is one
    target: Columns  # of these, as steps see them
    row_ids: Array | None  # where something is drawn by them, the identity of each row


@dataclass(frozen=True)
class PartitionPass:
    """One pass over the data, as a function of a dataset of one partition that returns summaries.

    It gives "partitions" and "rows" (after the transforms) and what the transforms count; of each step of the tasks its
    summary under ("step", number of the task, place) and its cost under ("timing", number, place). With `of_target` it
    summarizes each ("target", text), and counts rows "without target". With `total`, the dataset's rows at most, the
    features' columns get missing values and ranges under ("column", name), of so many "described" rows, and a "sample"
    of rows is drawn.
    """

    prefix: TransformPlan
    backend: str
    features: Features | None = None  # rows without their target are left out, where the data has it
    tasks: Sequence[FitTask] = ()
    of_target: bool = False
    total: int | None = None
    typed: Typed | None = None  # what is done to a frame before the first transform
    first: dict[int, Frame] = field(default_factory=dict)  # source columns read already, by partition; taken when used
    cached: FrameCache = field(default_factory=FrameCache)  # what an earlier pass kept
    cache: FrameCache = field(default_factory=FrameCache)  # what a later pass reads again
    again: Collection[str] = ()  # the columns of that

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
        for number, task in enumerate(self.tasks):
            found |= _learn(number, task, rows, backend)
        if self.of_target and self.features is not None and self.features.target is not None:
            found |= self.features.target.summarize(frame, prefix.output_schema, backend)
            found["without target"] = len(frame) - len(rows.frame)
        if self.total is not None:
            found |= self._describe(rows, found, backend)
        if self.again:
            self.cache.put(partition.index, backend.select(rows.frame, self.again))
        return found

    def _rows(self, frame: Frame, partition: Partition, backend: Backend) -> _Rows:
        raw, schema = dict[str, Any](), self.prefix.output_schema
        target = None if self.features is None else self.features.target
        if target is not None and all(name in frame.columns for name in target.reads(schema)):
            present = target.present(frame, schema, backend)
            if present is not None:
                frame = backend.filter(frame, present)
            raw = target.raw_columns(frame, schema, backend)
        # The same row has the same identity for any partitioning, so what is drawn by it does not depend on partitions.
        steps = (step for task in self.tasks for step in task.group.steps)
        draws = self.total is not None or any(isinstance(step, GatheredStep | CrossFittedStep) for step in steps)
        return _Rows(frame, raw, partition.row_ids(backend.xp)[backend.positions(frame)] if draws else None)

    @cached_property
    def _described(self) -> tuple[list[str], dict[str, None], list[str], list[str]]:
        """The columns that are numbers to features, those with a range, those without, and those that become ids."""
        assert self.features is not None
        schema = self.prefix.output_schema.select(self.prefix.wanted)
        numbers = list_numbers(self.features, schema)
        looked_at = {name for group in self.features.groups if group.steps for name in group.looks_at} - set(numbers)
        others = [item.name for item in schema if item.name in looked_at and item.dtype not in LISTS]
        ranged = dict.fromkeys([*numbers, *list_unscaled(self.features, schema)])
        return numbers, ranged, others, list(map_categories(self.features, schema))

    def _describe(self, rows: _Rows, found: Mapping[Hashable, Any], backend: Backend) -> dict[Hashable, Any]:
        """Summarize the features' columns, as far as the steps' summaries do not already, and draw the sample."""
        assert rows.row_ids is not None
        assert self.total is not None
        numbers, ranged, others, categories = self._described
        seen: dict[str, ColumnStats] = {}
        for number, task in enumerate(self.tasks):
            if task.position == 0 and not task.group.of_target:
                told = ranges_from_summary(found["step", number, 0])
                seen |= {name: item for name, item in told.items() if name in ranged}
        columns = {name: backend.column(rows.frame, name) for name in ranged if name not in seen}
        if columns:
            seen |= ranges_from_summary(Extremes.of_blocks(columns, tabulate(columns, find_bounds, 3, backend)))
        seen |= count_missing({name: backend.column(rows.frame, name) for name in others}, backend)
        drawn = draw_rows(rows.row_ids, self.total, len(numbers) + len(categories), backend)
        sample = Sample.of(rows.frame, drawn, numbers, categories, backend)
        counts: dict[Hashable, Any] = {"described": len(rows.frame), "sample": sample}
        return counts | {("column", name): item for name, item in seen.items()}


def _learn(number: int, task: FitTask, rows: _Rows, backend: Backend) -> dict[Hashable, Any]:
    if task.group.of_target:
        columns = task.group.apply_steps(rows.target, backend, task.position)
    else:
        columns = task.group.compute_columns(rows.frame, backend, task.position, rows.row_ids)
    before, summary, made = task.steps[task.free].summary_key, None, dict[Hashable, Any]()
    for place, step in enumerate(task.steps):
        started = time.perf_counter()
        if not (place > task.free and step.summary_key is not None and step.summary_key == before):
            summary = _summarize(step, columns, backend, rows)
        seconds: Any = time.perf_counter() - started
        arrays = [array for column in columns.values() for array in (column.data, column.valid) if array is not None]
        made["step", number, place] = summary
        made["timing", number, place] = Counter(seconds=seconds, num_bytes=sum(array.nbytes for array in arrays))
        columns = step.transform_columns(columns, backend) if place < task.free else columns
    return made


def _summarize(step: LearnedStep, columns: Columns, backend: Backend, rows: _Rows) -> Any:
    with in_step(step):
        if isinstance(step, CrossFittedStep):
            return step.summarize(columns, backend, target=rows.target, row_numbers=rows.row_ids)
        if isinstance(step, GatheredStep):
            return step.summarize(columns, backend, rows.row_ids)
        return step.summarize(columns, backend)


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
    """Dtype probe: a user's function run on the rows of one partition, to infer its output dtypes."""

    step: Map
    prefix: TransformPlan  # the transforms before it
    before: Schema  # that it is given
    wanted: frozenset[str]  # of it
    reads: Sequence[str]  # the source columns to read, some for the first pass
    backend: str
    first: dict[int, Frame]  # gets the frame read, by partition

    def __call__(self, part: Dataset) -> dict[str, str] | None:
        (whole,) = part.partitions
        types = in_halves(partial(self._infer, whole), part)
        return next((found for found in types if found is not None), None)

    def _infer(self, whole: Partition, part: Dataset) -> dict[str, str] | None:
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
    if known is not None and not missing:
        return known
    more = part.read(part.partitions[0], missing, backend)
    return more if known is None else backend.assign(known, {name: backend.column(more, name) for name in missing})


def _row_ids(prefix: TransformPlan, partition: Partition, backend: Backend) -> Array | None:
    return partition.row_ids(backend.xp) if prefix.draws_rows else None
