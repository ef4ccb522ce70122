"""One pass over the partitions: a mergeable summary of each, and their sum."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

from gpupipe import preprocessing as pre
from gpupipe.backend import Array, Backend, Frame, select
from gpupipe.backend.kernels import find_bounds
from gpupipe.io import Dataset, Partition, in_halves, run_partitions
from gpupipe.monitoring.profile import Sample, draw_rows
from gpupipe.monitoring.reports import ExpectationReport
from gpupipe.pipeline.edges import SampledRows
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.leak_hints import list_hints
from gpupipe.pipeline.plan import ColumnUses, FitTask
from gpupipe.pipeline.target import NUM_FIRST
from gpupipe.pipeline.transform_plan import TransformPlan
from gpupipe.preprocessing import Columns
from gpupipe.preprocessing.learned_step import tabulate
from gpupipe.preprocessing.summaries import Extremes, ValueCounts
from gpupipe.step import in_step
from gpupipe.transforms import Transform

_FIRST_ROWS = slice(NUM_FIRST)
_MOST_HINTED = 200  # features that are looked at, each takes .2 ms
Summaries: TypeAlias = dict[Hashable, Any]
"""What partitions give, and a pass adds up, by key; see `PartitionPass`."""


class FrameCache:
    """Cache of partitions' frames in this process; it holds all or, where they take more than `room` bytes, none."""

    def __init__(self, room: int = 0) -> None:
        self._room, self._frames, self._partitions, self._lock = room, dict[int, Frame](), set[int](), Lock()

    def __reduce__(self) -> tuple[type[FrameCache], tuple[()]]:
        return FrameCache, ()

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, partition: int, frame: Frame) -> None:
        """Keep a partition's frame, unless it comes in halves."""
        with self._lock:
            if partition in self._partitions:
                self._frames.pop(partition, None)
                return
            self._partitions.add(partition)
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
    summarizes each ("target", text), and counts rows "without target". With `total`, the dataset's rows at most, it
    gives of the features' columns the "extremes", by block of columns, or how many values are ("missing", name), of so
    many "described" rows, and draws a "sample" of rows: their numbers, counts of the ("drawn values", name) of columns
    that become ids, and of a fit the "sampled rows" for the edges of bins. Of the `hinted` partition's first rows it
    gives the "hints" which features alone tell the target.
    """

    plan: TransformPlan
    backend: str
    features: Features | None = None  # rows without their target are left out, where the data has it
    tasks: Sequence[FitTask] = ()
    of_target: bool = False
    total: int | None = None
    sampled: Sequence[str] = ()
    hinted: int | None = None  # the partition's number
    first: dict[int, Frame] = field(default_factory=dict)  # source columns read already, by partition; taken when used
    cached: FrameCache = field(default_factory=FrameCache)  # what an earlier pass kept
    cache: FrameCache = field(default_factory=FrameCache)  # what a later pass reads again
    again: Collection[str] = ()  # the columns of that

    def __call__(self, part: Dataset) -> Summaries:
        (partition,) = part.partitions
        backend, plan = select(self.backend), self.plan.copy()
        summaries: Summaries = {"partitions": Counter([partition.index])}
        frame = self.cached.take(partition.index)
        if frame is None:
            frame = _read(part, plan.reads, backend, self.first.pop(partition.index, None))
            first_row = partition.spans[0].identity if partition.spans else 0
            frame = plan.run(frame, backend, _row_ids(plan, partition, backend), summaries, first_row)
        rows = self._rows(frame, partition, backend)
        summaries["rows"] = len(frame)
        for number, task in enumerate(self.tasks):
            summaries |= _learn(number, task, rows, backend)
        if self.of_target and self.features is not None and self.features.target is not None:
            summaries |= self.features.target.summarize(frame, plan.output_schema, backend)
            summaries["without target"] = len(frame) - len(rows.frame)
        if partition.index == self.hinted:
            summaries["hints"] = self._list_hints(rows, backend)
        if self.total is not None:
            summaries |= self._describe(rows.frame, partition, summaries, backend)
        if self.again:
            self.cache.put(partition.index, backend.select(rows.frame, self.again))
        return summaries

    def _rows(self, frame: Frame, partition: Partition, backend: Backend) -> _Rows:
        raw, schema = dict[str, Any](), self.plan.output_schema
        target = None if self.features is None else self.features.target
        if target is not None and all(name in frame.columns for name in target.reads(schema)):
            present = target.present(frame, schema, backend)
            if present is not None:
                frame = backend.filter(frame, present)
            raw = target.raw_columns(frame, schema, backend)
        # The same row has the same identity for any partitioning, so what is drawn by it does not depend on partitions.
        steps = (step for task in self.tasks for step in task.group.steps)
        draws = any(isinstance(step, pre.GatheredStep | pre.CrossFittedStep) for step in steps)
        return _Rows(frame, raw, partition.frame_ids(frame, backend) if draws else None)

    def _list_hints(self, rows: _Rows, backend: Backend) -> list[tuple[str, str]]:
        """List which of the first features alone tell a single target in the first rows, and how; but allowed ones."""
        if self.features is None or self.features.target is None or len(rows.target) != 1:
            return []
        ((label, target),) = rows.target.items()
        names = dict.fromkeys(name for group in self.features.groups for name in group.columns)
        excluded = {*self.features.allow_leak, *self.features.target.reads(self.plan.output_schema)}
        used = [name for name in names if name in rows.frame.columns and name not in excluded][:_MOST_HINTED]
        columns = {name: backend.column(rows.frame, name).take(_FIRST_ROWS) for name in used}
        return [*list_hints(columns, target.take(_FIRST_ROWS), label, backend).items()]

    @cached_property
    def _uses(self) -> ColumnUses:
        assert self.features is not None
        return ColumnUses.of(self.features, self.plan.output_schema.select(self.plan.outputs))

    def _describe(self, frame: Frame, partition: Partition, step_summaries: Summaries, backend: Backend) -> Summaries:
        """Summarize the features' columns, as far as the steps' summaries do not already, and draw the sample."""
        assert self.total is not None
        numbers, unscaled, rangeless, categories = self._uses
        first = [n for n, task in enumerate(self.tasks) if task.position == 0 and not task.group.of_target]
        blocks = [block for n in first if isinstance(block := step_summaries["step", n, 0], Extremes)]
        names = {name for block in blocks for name in block.names}
        columns = {name: backend.column(frame, name) for name in [*numbers, *unscaled] if name not in names}
        if columns:
            blocks.append(Extremes.of_blocks(columns, tabulate(columns, find_bounds, 3, backend)))
        rows = backend.select(frame, list(dict.fromkeys([*numbers, *categories, *self.sampled])))
        rows = draw_rows(rows, partition, self.total, len(numbers) + len(categories), backend)
        sample = Sample.of(rows, numbers, backend)
        summaries: Summaries = {
            "described": len(frame),
            "sample": sample,
            **{("drawn values", name): ValueCounts.of(backend.column(rows, name), backend) for name in categories},
            **{("extremes", number): block for number, block in enumerate(blocks)},
            **count_missing({name: backend.column(frame, name) for name in rangeless}, backend),
        }
        if self.of_target:
            summaries["sampled rows"] = SampledRows.of(rows, self.plan.output_schema, self.sampled, sample, backend)
        return summaries


def count_missing(columns: Columns, backend: Backend) -> dict[Hashable, int]:
    """Count each column's missing values, under ("missing", name)."""
    xp = backend.xp
    masks = {name: column.missing(xp) for name, column in columns.items()}
    counts = [xp.asarray(xp.count_nonzero(mask)) for mask in masks.values() if mask is not None]
    host_counts = iter(backend.to_host(xp.stack(counts)).tolist() if counts else [])
    return {("missing", name): 0 if mask is None else next(host_counts) for name, mask in masks.items()}


def merge_summaries(work: PartitionPass, dataset: Dataset, title: str) -> Summaries:
    """Add up the summaries of all partitions, in their order."""
    total: Summaries = {}
    with closing(run_partitions(work, dataset, work.backend, title)) as partitions:
        for summaries in partitions:
            sums: dict[tuple[int, int], Any] = {}  # a summary under several keys, which steps share, is merged once
            for key, summary in summaries.items():
                pair = id(total.get(key)), id(summary)
                if pair not in sums:
                    sums[pair] = total[key] + summary if key in total else summary
                total[key] = sums[pair]
    return total


def select_kind(summaries: Summaries, kind: str) -> dict[Any, Any]:
    """Return the summaries of one kind, by the second part of their key."""
    return {key[1]: summary for key, summary in summaries.items() if isinstance(key, tuple) and key[0] == kind}


def _learn(number: int, task: FitTask, rows: _Rows, backend: Backend) -> Summaries:
    if task.group.of_target:
        columns = task.group.apply_steps(rows.target, backend, task.position)
    else:
        columns = task.group.compute_columns(rows.frame, backend, task.position, rows.row_ids)
    before, summary, summaries = task.steps[task.free].summary_key, None, Summaries()
    for index, step in enumerate(task.steps):
        started = time.perf_counter()
        if not (index > task.free and step.summary_key is not None and step.summary_key == before):
            more: dict[str, Any] = {"target": rows.target} if isinstance(step, pre.CrossFittedStep) else {}
            if isinstance(step, pre.CrossFittedStep | pre.GatheredStep):
                more["row_numbers"] = rows.row_ids
            with in_step(step):
                summary = step.summarize(columns, backend, **more)
        seconds: Any = time.perf_counter() - started
        arrays = [array for column in columns.values() for array in (column.data, column.valid) if array is not None]
        summaries["step", number, index] = summary
        summaries["timing", number, index] = Counter(seconds=seconds, num_bytes=sum(array.nbytes for array in arrays))
        columns = step.transform_columns(columns, backend) if index < task.free else columns
    return summaries


def _read(part: Dataset, names: Sequence[str], backend: Backend, frame: Frame | None) -> Frame:
    """Read at least these source columns of the partition; those in `frame` are not read again."""
    missing = [name for name in names if frame is None or name not in frame.columns]
    if frame is not None and not missing:
        return frame
    more = part.read(part.partitions[0], missing, backend)
    return more if frame is None else backend.assign(frame, {name: backend.column(more, name) for name in missing})


def _row_ids(plan: TransformPlan, partition: Partition, backend: Backend) -> Array | None:
    return partition.row_ids(backend.xp) if plan.draws_rows else None


def probe_dtypes(
    plan: TransformPlan, reads: Sequence[str], backend_name: str, first: dict[int, Frame], part: Dataset
) -> dict[str, str] | None:
    """Run the transforms on one partition's rows, to infer the dtypes that the last, a user's function, puts out."""
    backend, (whole,) = select(backend_name), part.partitions

    def infer(piece: Dataset) -> dict[str, str] | None:
        (partition,) = piece.partitions
        frame, tried = _read(piece, reads, backend, first.pop(partition.index, None)), plan.copy()
        tried.run(frame, backend, _row_ids(tried, partition, backend))
        if partition == whole:
            first[partition.index] = frame
        dtypes: dict[str, str] | None = vars(tried._stages[-1].step)["dtypes_"]
        return dtypes

    return next((dtypes for dtypes in in_halves(infer, part) if dtypes is not None), None)


def check_rows(plan: TransformPlan, backend: str, steps: Sequence[Transform], dataset: Dataset) -> ExpectationReport:
    """Count a dataset's rows that break a rule of an `Expect` among the steps, in one pass."""
    findings = select_kind(merge_summaries(PartitionPass(plan, backend), dataset, "check"), "expect")
    return ExpectationReport.of(findings, steps, dataset.partitions)
