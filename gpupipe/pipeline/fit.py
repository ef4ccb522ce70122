"""Pipeline fit: a few passes over the partitions, each of which adds up the summaries of its steps; and its report.

What a pass does with one partition is `PartitionPass`, `fold` adds up what it returns, and `PipelineFit` lets the steps
learn from the sums.
"""

from __future__ import annotations

import hashlib
import html
import logging
import time
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from gpupipe import preprocessing as pre
from gpupipe.backend import Array, Backend, Column, Frame, Matrix, select
from gpupipe.backend.columns import floats
from gpupipe.backend.dictionaries import find_known
from gpupipe.backend.kernels import find_bounds, hash_column
from gpupipe.cluster.executor import default_threads, get_executor
from gpupipe.config import settings
from gpupipe.errors import BadData
from gpupipe.io import Dataset, FileNote, Partition, in_halves, row_bytes, run_partitions
from gpupipe.io.planning.table import ReadCounter
from gpupipe.monitoring.reports import ExpectationReport, Profile
from gpupipe.pipeline.apply import TransformPlan, select_rows
from gpupipe.pipeline.edges import SampledRows, compute_edges, list_sampled_columns
from gpupipe.pipeline.feature_group import FeatureGroup, GroupFields
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.float32 import describe_coarse, note_lost_digits
from gpupipe.pipeline.row_sets import RowSet
from gpupipe.preprocessing import Columns
from gpupipe.preprocessing.learned_step import tabulate
from gpupipe.preprocessing.summaries import Extremes, ValueCounts
from gpupipe.schema import FLOATS, INTEGERS, LISTS, WIDE, Kind, Role, Schema, shorten_list
from gpupipe.step import in_step
from gpupipe.support.text import format_columns, format_count, html_table, text_table
from gpupipe.transforms import Expect, Map, Transform, WholeTableTransform
from gpupipe.transforms.join import TableJoin

SAMPLE_ROWS = 1 << 15
"""The approximate size of the sample that is profiled; all rows of a smaller dataset, fewer of a wide one."""
KEEP_BYTES = 1 << 30
"""Columns a later pass needs stay in memory up to this many bytes, and up to a quarter of `memory_limit`."""
MAX_HASHED_ROWS = 1 << 20
"""Rows in memory up to this number are known again by a hash of their labels, which takes milliseconds."""

_SAMPLE_NUMBERS, _FEWEST_ROWS = 1 << 24, 1 << 12  # 128 MiB, but where there are more than 4,096 columns
_LEAST_GB = 0.01  # of memory that is shown
_SEED = 0x5EED
_DECILES = np.arange(1, 10) / 10
_EXACT = 2**53
_log = logging.getLogger("gpupipe")

Summaries: TypeAlias = dict[Hashable, Any]
"""What partitions give, and a fold adds up, by key; see `PartitionPass`."""


# what is read, and in how many passes ---------------------------------------------------------------------------------
def mark_source(steps: Sequence[Transform], features: Features | None, schema: Schema) -> Schema:
    """Return the source's schema, each column the start of a lineage, and those for labels alone marked."""
    plain = Schema(item.as_source().replace(role=None) for item in schema)
    if features is None:
        return plain
    schemas = _infer_schemas(steps, plain)
    labels = _backwards(steps, schemas, features._label_reads(schemas[-1]))
    labels -= _backwards(steps, schemas, features.inputs, predicting=True)
    return Schema(replace(item, role=Role.LABEL) if item.name in labels else item for item in plain)


def resolve_selectors(steps: Sequence[Transform], features: Features, schema: Schema, *, strict: bool) -> None:
    """Resolve the selectors of `features`; without `strict`, functions that have not run yet may still add columns."""
    features._resolve(_infer_schemas(steps, Schema(item.as_source() for item in schema))[-1], strict=strict)


def _infer_schemas(steps: Sequence[Transform], schema: Schema) -> list[Schema]:
    """List the schema before each step and after the last, up to the first function that has not run yet."""
    schemas, known = [schema], True
    for step in steps:
        known = known and not (isinstance(step, Map) and step.dtypes_ is None)
        schemas.append(step.output_schema(schemas[-1]) if known else schemas[-1])
    return schemas


def _backwards(
    steps: Sequence[Transform], schemas: Sequence[Schema], wanted: AbstractSet[str], *, predicting: bool = False
) -> set[str]:
    """Return the columns that `wanted` is computed from; functions that read everything, and checks, name none."""
    needed = set(wanted)
    for step, before in zip(reversed(steps), reversed(schemas[:-1]), strict=True):
        if isinstance(step, Map) and step.reads is None:
            needed -= set(step.adds or ())
        elif not isinstance(step, Expect) and not (predicting and getattr(step, "when", "always") == "train"):
            needed = step.needs(needed, before)
    return needed


@dataclass(frozen=True)
class FitTask:
    """Task of one pass for one group: `size` steps, the `free` first of which learn nothing from rows."""

    group: FeatureGroup
    position: int
    size: int = 1
    free: int = 0

    def reads(self, features: Features, schema: Schema) -> set[str]:
        """Return the columns it reads, including the target's where needed; `schema` is that after the transforms."""
        of_target = self.group.of_target or self.group.cross_fits
        labels = features.target.reads(schema) if of_target and features.target is not None else []
        return set(labels) | (set() if self.group.of_target else set(self.group.columns))

    @property
    def steps(self) -> list[pre.LearnedStep]:
        return self.group.steps[self.position : self.position + self.size]

    @property
    def last(self) -> FitTask:
        """The same for its last step alone."""
        return FitTask(self.group, self.position + self.size - 1)


def plan_passes(features: Features) -> list[list[FitTask]]:
    """Plan the tasks of each pass; there are as many passes as the longest chain of dependent steps."""
    passes: list[list[FitTask]] = []
    for group in features._learned:
        position, number = 0, 0
        while position < len(group.steps):
            free = _num_free(group.steps[position:])
            size = free + 1 + _folds_with_next(group.steps[position + free : position + free + 2])
            if number == len(passes):
                passes.append([])
            passes[number].append(FitTask(group, position, size, free))
            position, number = position + size, number + 1
    return passes


def collect_wanted(passes: Sequence[Sequence[FitTask]], features: Features, schema: Schema) -> set[str]:
    """Return the columns that these passes read, the labels' too; `schema` is that after the transforms."""
    read = (task.reads(features, schema) for tasks in passes for task in tasks)
    return features._label_reads(schema).union(*read)


def _num_free(steps: Sequence[pre.LearnedStep]) -> int:
    """Count the steps before the first that learns from the rows; the last one is never among them."""
    free = [*(not _learns(step) for step in steps[:-1]), False].index(False)
    # The fill of an imputer costs nothing where it enters the summary of the step that learns.
    return free - (free > 0 and _learns(steps[free]) and _folds_with_next(steps[free - 1 : free + 1]))


def _learns(step: pre.LearnedStep) -> bool:
    is_constant = isinstance(step, pre.SimpleImputer) and step.strategy == "constant"
    return not is_constant and not isinstance(step, pre.StatelessStep)


def _folds_with_next(steps: Sequence[pre.LearnedStep]) -> bool:
    """Return whether an imputer's fill can enter the summary of the step after it."""
    if len(steps) < 2 or not isinstance(steps[0], pre.SimpleImputer):
        return False
    return not steps[0].add_indicator and steps[1].fills_late


class ColumnUses(NamedTuple):
    """How features use the columns after the transforms."""

    numbers: list[str]
    unscaled: list[str]  # wide numbers that are features without a step
    others: list[str]  # those that steps read, which have no range
    categories: dict[str, pre.Categorify]  # those that become ids unchanged, except for missing values

    @classmethod
    def of(cls, features: Features, schema: Schema) -> Self:
        """Find out how `features` use the columns of `schema`."""
        groups = [group for group in features.groups if group.steps]
        alone = {name for group in features.groups if not group.steps for name in group.columns}
        scaling = [group for group in groups if not isinstance(group.steps[-1], pre.Categorify)]
        scaled = {name for group in scaling for name in group.looks_at}
        dtypes = (*FLOATS, *INTEGERS, "bool")
        numbers = [item.name for item in schema if item.name in scaled and item.dtype in dtypes]
        unscaled = [item.name for item in schema if item.name in alone and item.dtype in WIDE]
        read = {name for group in groups for name in group.looks_at}.difference(numbers)
        others = [item.name for item in schema if item.name in read and item.dtype not in LISTS]
        categories: dict[str, pre.Categorify] = {}
        for group in groups:
            *before, last = group.steps
            if isinstance(last, pre.Categorify) and all(isinstance(step, pre.SimpleImputer) for step in before):
                names = [name for name in group.columns if name in schema and schema[name].dtype not in LISTS]
                categories = dict.fromkeys(names, last) | categories
        return cls(numbers, unscaled, others, categories)


def explain_fit(
    steps: Sequence[Transform], features: Features | None, dataset: Dataset | None, backend: str
) -> list[str]:
    """Explain what a fit on this data would do; without data, only what follows from the steps."""
    if features is None:
        return ["nothing is learned"]
    if dataset is not None:
        features = copy(features)
        resolve_selectors(steps, features, dataset.schema, strict=False)
    passes, lines = plan_passes(features), list[str]()
    for window in (step for step in steps if isinstance(step, WholeTableTransform)):
        what = f"{window.class_name} of {format_columns(window.inputs) or 'rows'}"
        of_what = f"of each {', '.join(window.keys)}" if window.keys else "of the table"
        lines.append(f"before: {what} brings all rows {of_what} together")
    lines += [
        f"pass {number}: {' + '.join(step.class_name for step in task.steps)} of {task.group.given}"
        for number, tasks in enumerate(passes, 1)
        for task in tasks
    ]
    rows = None if dataset is None else sum(partition.num_rows for partition in dataset.partitions)
    gathered = ((task, step) for tasks in passes for task in tasks for step in task.steps)
    for task, step in gathered:
        if isinstance(step, pre.GatheredStep):
            how, of_what = "gathered", "from all rows, in memory"
            if rows is None or rows > step.max_rows:
                how, of_what = "sampled", f"from at most {step.max_rows:,} rows, gathered in memory"
            lines.append(f"{how}: {step.class_name} of {task.group.given} learns {of_what}")
    if dataset is None:
        return [*lines, *features.left_out]
    unused = _list_unused(steps, features, mark_source(steps, features, dataset.schema))
    return [*lines, *unused, *features.left_out, *_estimate_costs(steps, features, dataset, backend)]


def _list_unused(steps: Sequence[Transform], features: Features, source: Schema) -> list[str]:
    """List the steps that make columns for nothing."""
    after = TransformPlan(steps, source, None).output_schema
    wanted = features.inputs.union(features.keep, features._label_reads(after))
    return TransformPlan(steps, source, wanted, counting=True).list_unused()


def _estimate_costs(steps: Sequence[Transform], features: Features, dataset: Dataset, backend: str) -> list[str]:
    """Estimate what the first pass reads, and its memory: a partition per thread, read and transformed."""
    source = mark_source(steps, features, dataset.schema)
    wanted = collect_wanted(plan_passes(features), features, TransformPlan(steps, source, None).output_schema)
    plan = TransformPlan(steps, source, wanted, counting=True)
    width = row_bytes(source.select(plan.reads)) + row_bytes(plan.output_schema.select(plan.wanted))
    rows = max(partition.num_rows for partition in dataset.partitions)
    at_once = min(1 if backend == "gpu" else default_threads(), dataset.num_partitions)
    parts = f"{at_once} of {format_count(dataset.num_partitions, 'partition')} at a time"
    parts += f", up to {format_count(rows, 'row')} of {width} bytes"
    size = rows * width * at_once / 1e9
    others = _format_names([name for name in source.names if name not in plan.reads]) or "nothing"
    return [
        f"the fit reads: {_format_names(plan.reads)}",
        f"the fit does not read: {others}",
        f"memory: {f'about {size:.2f}' if size >= _LEAST_GB else f'less than {_LEAST_GB}'} GB ({parts})",
    ]


def _format_names(names: Sequence[str]) -> str:
    """Format columns' names, in quotes where one is empty or contains a comma."""
    return format_columns([name if name.strip() and "," not in name else repr(name) for name in names])


# what is observed of columns ------------------------------------------------------------------------------------------
class ColumnStats(NamedTuple):
    """Column statistics: rows without a value, the least number and the greatest."""

    missing: int = 0
    low: float = np.inf
    high: float = -np.inf

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the greatest number, where both are numbers a file can hold."""
        return (self.low, self.high) if np.isfinite(self.low) and np.isfinite(self.high) else None


def collect_stats(found: Summaries, uses: ColumnUses) -> dict[str, ColumnStats]:
    """Return the statistics of the columns that features read, from a pass's summaries."""
    names = {*uses.numbers, *uses.unscaled}
    stats: dict[str, ColumnStats] = {}
    for block in select_kind(found, "extremes").values():
        numbers = zip(block.names, block.missing.tolist(), block.low.tolist(), block.high.tolist(), strict=True)
        stats |= {name: ColumnStats(*seen) for name, *seen in numbers if name in names}
    return stats | {name: ColumnStats(missing) for name, missing in select_kind(found, "missing").items()}


def count_missing(columns: Columns, backend: Backend) -> dict[Hashable, int]:
    """Count each column's missing values, under ("missing", name)."""
    xp = backend.xp
    masks = {name: column.missing(xp) for name, column in columns.items()}
    counts = [xp.asarray(xp.count_nonzero(mask)) for mask in masks.values() if mask is not None]
    found = iter(backend.to_host(xp.stack(counts)).tolist() if counts else [])
    return {("missing", name): 0 if mask is None else next(found) for name, mask in masks.items()}


def draw_rows(frame: Frame, partition: Partition, total: int, num_columns: int, backend: Backend) -> Frame:
    """Draw a partition's part of the sample of at most `total` rows, by their ids: the same under any partitioning."""
    wanted = min(SAMPLE_ROWS, max(_SAMPLE_NUMBERS // max(num_columns, 1), _FEWEST_ROWS))
    if total <= wanted:
        return frame
    return backend.take(frame, partition.draw(frame, _SEED, int(wanted / total * 2.0**64), backend))


@dataclass(frozen=True)
class Sample:
    """Sample of rows from some partitions: a mergeable summary.

    `numbers` are of each part the values of the columns `names`, C x rows float64 on the host, NaN where there is none,
    or no finite one; `categories` count by the name of a column that becomes ids how often each value occurs.
    """

    num_rows: int = 0
    names: tuple[str, ...] = ()
    numbers: tuple[Any, ...] = ()
    categories: Mapping[str, ValueCounts] = field(default_factory=dict)

    @classmethod
    def of(cls, frame: Frame, numbers: Sequence[str], categories: Sequence[str], backend: Backend) -> Self:
        """Copy the sampled rows of one partition."""
        counts = {name: ValueCounts.of(backend.column(frame, name), backend) for name in categories}
        if not numbers:
            return cls(len(frame), categories=counts)
        matrix, xp = backend.matrix(frame, numbers), backend.xp
        if matrix is not None:
            values = xp.array(matrix.data, dtype="float64", order="C")  # rows that sort fast, and ours
        else:
            values = xp.stack([floats(backend.column(frame, name), xp) for name in numbers])
        xp.copyto(values, xp.nan, where=xp.isinf(values))
        return cls(len(frame), tuple(numbers), (backend.to_host(values),), counts)

    def __add__(self, other: Self) -> Self:
        categories = {name: item + other.categories[name] for name, item in self.categories.items()}
        num_rows, numbers = self.num_rows + other.num_rows, self.numbers + other.numbers
        return replace(self, num_rows=num_rows, numbers=numbers, categories=categories)

    @cached_property
    def sorted_values(self) -> dict[str, Any]:
        """The finite values of each column of numbers, ascending, float64."""
        if not self.names:
            return {}
        # Only which values a column has counts, so those of a single part are sorted in place.
        table = self.numbers[0] if len(self.numbers) == 1 else np.concatenate(self.numbers, axis=1)
        table.sort(axis=1)  # NaN last
        totals = table.shape[1] - np.count_nonzero(np.isnan(table), axis=1)
        return {name: row[:total] for name, row, total in zip(self.names, table, totals.tolist(), strict=True)}

    def profiles(self, vocabularies: Mapping[str, Any], missing: Mapping[str, float]) -> dict[str, Profile]:
        """Return the profile of each column that has a share of `missing` values; `vocabularies` are of ids' values."""
        found = {name: Profile(share) for name, share in missing.items()}
        columns = {name: values for name, values in self.sorted_values.items() if len(values)}
        deciles = _compute_deciles([*columns.values()]).tolist()
        found |= {
            name: _profile_numbers(values, edges, missing[name])
            for (name, values), edges in zip(columns.items(), deciles, strict=True)
        }
        for name, counts in self.categories.items():
            values, numbers = counts.ranked()
            total = int(numbers.sum()) + counts.missing
            is_known = find_known(values, vocabularies[name]) if len(values) else np.zeros(0, dtype=bool)
            share = int(numbers[~is_known].sum()) / total if total else 0.0
            found[name] = replace(found[name], unknown=share)
        return found


def _profile_numbers(values: Any, deciles: Sequence[float], missing: float) -> Profile:
    """Compute the profile of finite numbers in ascending order, so that sums do not depend on partitions."""
    edges = [*(low for low, high in pairwise(deciles) if low != high), deciles[-1]]
    # Each value once, by its share: the mean of equal ones is what they are, to the last digit.
    weight: Any = 1 / len(values)
    distinct, is_last = values, values[1:] != values[:-1]
    if not is_last.all():
        last = np.append(is_last, True).nonzero()[0]
        distinct, weight = values[last], np.diff(last, prepend=-1) / len(values)
    unit = max(abs(float(values[0])), abs(float(values[-1])), 1.0)  # whose squares are floats
    mean = float((distinct * weight).sum())
    std = unit * float(np.sqrt((np.square(distinct / unit - mean / unit) * weight).sum()))
    ends = [0, *values.searchsorted(edges, side="right").tolist(), len(values)]
    shares = [(end - start) / len(values) for start, end in pairwise(ends)]
    return Profile(missing, mean, std, tuple(edges), tuple(shares))


def _compute_deciles(columns: Sequence[Any]) -> Any:
    """Compute the deciles of columns of ascending values, as `Histogram.quantiles` does, C x 9; zeros have no sign."""
    last = np.array([len(values) - 1 for values in columns], dtype=np.int64)[:, None]
    rank = _DECILES * last
    lower = rank.astype(np.int64)
    ranks = np.stack([lower, np.minimum(lower + 1, last)], axis=1)
    ends = np.array([values[each] for values, each in zip(columns, ranks, strict=True)]).reshape(-1, 2, len(_DECILES))
    part, below, above = rank - lower, ends[:, 0], ends[:, 1]
    with np.errstate(over="ignore"):
        gap = above - below
        return np.where(part < 0.5, below + gap * part, above - gap * (1 - part)) + 0.0


def build_profiles(found: Summaries, stats: Mapping[str, ColumnStats], uses: ColumnUses) -> dict[str, Profile]:
    """Return the profile of each column that features read, from a pass's summaries and the columns' statistics."""
    sample: Sample = found["sample"]
    missing = {name: seen.missing / max(found["described"], 1) for name, seen in stats.items()}
    return sample.profiles({name: step.vocabularies_[name] for name, step in uses.categories.items()}, missing)


# one pass -------------------------------------------------------------------------------------------------------------
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
    summarizes each ("target", text), and counts rows "without target". With `total`, the dataset's rows at most, it
    gives of the features' columns the "extremes", by block of columns, or how many values are ("missing", name), of so
    many "described" rows, and draws a "sample" of rows; of a fit the "sampled rows" for the edges of bins, too.
    """

    plan: TransformPlan
    backend: str
    features: Features | None = None  # rows without their target are left out, where the data has it
    tasks: Sequence[FitTask] = ()
    of_target: bool = False
    total: int | None = None
    sampled: Sequence[str] = ()
    first: dict[int, Frame] = field(default_factory=dict)  # source columns read already, by partition; taken when used
    cached: FrameCache = field(default_factory=FrameCache)  # what an earlier pass kept
    cache: FrameCache = field(default_factory=FrameCache)  # what a later pass reads again
    again: Collection[str] = ()  # the columns of that

    def __call__(self, part: Dataset) -> Summaries:
        (partition,) = part.partitions
        backend, plan = select(self.backend), self.plan.copy()
        found: Summaries = {"partitions": Counter([partition.index])}
        frame = self.cached.take(partition.index)
        if frame is None:
            frame = _read(part, plan.reads, backend, self.first.pop(partition.index, None))
            place = partition.spans[0].identity if partition.spans else 0
            frame = plan.run(frame, backend, _row_ids(plan, partition, backend), found, place)
        rows = self._rows(frame, partition, backend)
        found["rows"] = len(frame)
        for number, task in enumerate(self.tasks):
            found |= _learn(number, task, rows, backend)
        if self.of_target and self.features is not None and self.features.target is not None:
            found |= self.features.target.summarize(frame, plan.output_schema, backend)
            found["without target"] = len(frame) - len(rows.frame)
        if self.total is not None:
            found |= self._describe(rows.frame, partition, found, backend)
        if self.again:
            self.cache.put(partition.index, backend.select(rows.frame, self.again))
        return found

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

    @cached_property
    def _uses(self) -> ColumnUses:
        assert self.features is not None
        return ColumnUses.of(self.features, self.plan.output_schema.select(self.plan.wanted))

    def _describe(self, frame: Frame, partition: Partition, found: Summaries, backend: Backend) -> Summaries:
        """Summarize the features' columns, as far as the steps' summaries do not already, and draw the sample."""
        assert self.total is not None
        numbers, unscaled, others, categories = self._uses
        first = [n for n, task in enumerate(self.tasks) if task.position == 0 and not task.group.of_target]
        blocks = [block for n in first if isinstance(block := found["step", n, 0], Extremes)]
        known = {name for block in blocks for name in block.names}
        columns = {name: backend.column(frame, name) for name in [*numbers, *unscaled] if name not in known}
        if columns:
            blocks.append(Extremes.of_blocks(columns, tabulate(columns, find_bounds, 3, backend)))
        drawn = backend.select(frame, list(dict.fromkeys([*numbers, *categories, *self.sampled])))
        drawn = draw_rows(drawn, partition, self.total, len(numbers) + len(categories), backend)
        summaries: Summaries = {
            "described": len(frame),
            "sample": Sample.of(drawn, numbers, [*categories], backend),
            **{("extremes", number): block for number, block in enumerate(blocks)},
            **count_missing({name: backend.column(frame, name) for name in others}, backend),
        }
        if self.of_target:
            summaries["sampled rows"] = SampledRows.of(drawn, self.sampled, backend)
        return summaries


def fold(work: PartitionPass, dataset: Dataset, title: str) -> Summaries:
    """Add up the summaries of all partitions, in their order."""
    total: Summaries = {}
    with closing(run_partitions(work, dataset, work.backend, title)) as partitions:
        for found in partitions:
            sums: dict[tuple[int, int], Any] = {}  # a summary under several keys, which steps share, is merged once
            for key, summary in found.items():
                pair = id(total.get(key)), id(summary)
                if pair not in sums:
                    sums[pair] = total[key] + summary if key in total else summary
                total[key] = sums[pair]
    return total


def select_kind(found: Summaries, kind: str) -> dict[Any, Any]:
    """Return the summaries of one kind, by the second part of their key."""
    return {key[1]: summary for key, summary in found.items() if isinstance(key, tuple) and key[0] == kind}


def _learn(number: int, task: FitTask, rows: _Rows, backend: Backend) -> Summaries:
    if task.group.of_target:
        columns = task.group.apply_steps(rows.target, backend, task.position)
    else:
        columns = task.group.compute_columns(rows.frame, backend, task.position, rows.row_ids)
    before, summary, made = task.steps[task.free].summary_key, None, Summaries()
    for place, step in enumerate(task.steps):
        started = time.perf_counter()
        if not (place > task.free and step.summary_key is not None and step.summary_key == before):
            more: dict[str, Any] = {"target": rows.target} if isinstance(step, pre.CrossFittedStep) else {}
            if isinstance(step, pre.CrossFittedStep | pre.GatheredStep):
                more["row_numbers"] = rows.row_ids
            with in_step(step):
                summary = step.summarize(columns, backend, **more)
        seconds: Any = time.perf_counter() - started
        arrays = [array for column in columns.values() for array in (column.data, column.valid) if array is not None]
        made["step", number, place] = summary
        made["timing", number, place] = Counter(seconds=seconds, num_bytes=sum(array.nbytes for array in arrays))
        columns = step.transform_columns(columns, backend) if place < task.free else columns
    return made


def _read(part: Dataset, names: Sequence[str], backend: Backend, known: Frame | None) -> Frame:
    """Read at least these source columns of the partition; those in `known` are not read again."""
    missing = [name for name in names if known is None or name not in known.columns]
    if known is not None and not missing:
        return known
    more = part.read(part.partitions[0], missing, backend)
    return more if known is None else backend.assign(known, {name: backend.column(more, name) for name in missing})


def _row_ids(plan: TransformPlan, partition: Partition, backend: Backend) -> Array | None:
    return partition.row_ids(backend.xp) if plan.draws_rows else None


def probe_dtypes(
    plan: TransformPlan, reads: Sequence[str], backend_name: str, first: dict[int, Frame], part: Dataset
) -> dict[str, str] | None:
    """Run the transforms on one partition's rows, to infer the dtypes that the last, a user's function, puts out."""
    backend, (whole,) = select(backend_name), part.partitions

    def infer(some: Dataset) -> dict[str, str] | None:
        (partition,) = some.partitions
        frame, tried = _read(some, reads, backend, first.pop(partition.index, None)), plan.copy()
        tried.run(frame, backend, _row_ids(tried, partition, backend))
        if partition == whole:
            first[partition.index] = frame
        made: dict[str, str] | None = vars(tried._stages[-1].step)["dtypes_"]
        return made

    return next((found for found in in_halves(infer, part) if found is not None), None)


def profile_rows(
    plan: TransformPlan, backend: str, features: Features, schema: Schema, dataset: Dataset
) -> tuple[Sample, dict[str, Profile]]:
    """Draw a sample of a dataset's rows in one pass, and profile the columns of `schema` that features read."""
    total = sum(partition.num_rows for partition in dataset.partitions)
    found = fold(PartitionPass(plan, backend, features, total=total), dataset, "drift")
    uses = ColumnUses.of(features, schema)
    return found["sample"], build_profiles(found, collect_stats(found, uses), uses)


def check_rows(plan: TransformPlan, backend: str, steps: Sequence[Transform], dataset: Dataset) -> ExpectationReport:
    """Count a dataset's rows that break a rule of an `Expect` among the steps, in one pass."""
    findings = select_kind(fold(PartitionPass(plan, backend), dataset, "check"), "expect")
    return ExpectationReport.of(findings, steps, dataset.partitions)


# the whole fit --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class StepReport:
    """Report of one step's part in a fit."""

    number: int  # of the pass it learned in, from 1
    step: str  # its class
    columns: str  # those it learned from, or how many
    missing: int  # their missing values
    rare: float | None  # the share of their rows whose value has no id of its own, in a sample; None without ids
    seconds: float  # of all threads and workers together; on a GPU until its work was handed over
    num_bytes: int  # the size of the columns it read

    @property
    def _cells(self) -> list[str]:
        rare = "" if self.rare is None else f"{self.rare:.2%}"
        size = f"{self.num_bytes / 1e6:.1f}"
        return [str(self.number), self.step, self.columns, f"{self.missing:,}", rare, f"{self.seconds:.3f}", size]


@dataclass
class FitReport:
    """Report of a fit: rows, steps and timings; displays as text and in a notebook."""

    num_rows: int = 0  # after the transforms; 0 where nothing is learned, since then nothing is read
    num_without_target: int = 0  # of those left out because their target is missing
    num_reads: int = 0  # of the data, counted in whole passes
    num_halved: int = 0  # partitions that were too large for memory, and were worked on in halves
    unmatched: dict[str, float] = field(default_factory=dict)  # the share of rows without a match, by the join's name
    coerced: dict[str, int] = field(default_factory=dict)  # the values that `T.Cast` made missing, by column
    rejected: tuple[FileNote, ...] = ()  # the files whose rows it did not see, and why
    seconds: float = 0.0  # wall time
    steps: Sequence[StepReport] = ()
    notes: list[str] = field(default_factory=list)  # on the target's task, and on columns that selectors left out
    checks: ExpectationReport = field(default_factory=ExpectationReport)  # of each `T.Expect`

    def __str__(self) -> str:
        if not self.num_reads:
            return f"nothing to learn; {self.seconds:.1f} s"
        told = [f"fitted on {format_count(self.num_rows, 'row')}"]
        told += [f"{self.num_without_target:,} without a target left out"] if self.num_without_target else []
        told += [f"{share:.1%} without a match in {name}" for name, share in self.unmatched.items()]
        told += [
            f"{format_count(count, 'value')} of {name!r} made missing by Cast" for name, count in self.coerced.items()
        ]
        told += [f"{format_count(len(self.rejected), 'file')} rejected"] if self.rejected else []
        halved = f", {format_count(self.num_halved, 'partition')} in halves for want of memory"
        reads = format_count(self.num_reads, "read") + (halved if self.num_halved else "")
        return f"{', '.join(told)}; {reads}, {self.seconds:.1f} s"

    def _table(self) -> list[list[str]]:
        return [["pass", "step", "columns", "missing", "rare", "seconds", "MB"], *(item._cells for item in self.steps)]

    def __repr__(self) -> str:
        table = text_table(self._table()) if self.steps else ""
        checks = "" if self.checks.passed else repr(self.checks)
        return "\n\n".join(filter(None, [str(self), "\n".join(self.notes), table, checks]))

    def _repr_html_(self) -> str:
        table = html_table(self._table()) if self.steps else ""
        told = "".join(f"<p>{html.escape(line)}</p>" for line in [str(self), *self.notes])
        return f"{told}{table}{'' if self.checks.passed else self.checks._repr_html_()}"


class PipelineFit:
    """One fit; it leaves the source's schema, the outputs' statistics, and `profiles` of the columns of features."""

    def __init__(
        self,
        steps: Sequence[Transform],
        features: Features | None,
        dataset: Dataset,
        backend: str,
        rows: str | None = None,
    ) -> None:
        self.steps, self.features, self.dataset, self.backend = steps, features, dataset, backend
        self._rows, self._selected = rows, select_rows(dataset, rows)
        self.profiles: dict[str, Profile] = {}
        self.stats: dict[str, ColumnStats] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self.edges: dict[str, tuple[float, ...]] = {}
        self.outputs: GroupFields = ()
        self.report = FitReport(rejected=dataset.rejected)
        self._learned: list[tuple[int, FitTask, list[Mapping[str, Any]]]] = []
        self._first: dict[int, Frame] = {}
        self._cache = FrameCache()
        self._started, schema = time.perf_counter(), dataset.locate_origins()
        for step in steps:
            if isinstance(step, Map | TableJoin):
                step.reset()
        if features is not None:
            features.lineage_ = features._fitted_rows = None
            for learned in (*features._labels, *features._steps):
                learned.reset()
            resolve_selectors(steps, features, schema, strict=False)
        self._fix_functions()
        if features is not None:
            resolve_selectors(steps, features, schema, strict=True)
            for note in features.left_out:
                self._note(note)
        self.source = mark_source(steps, features, schema)
        self.schema = TransformPlan(steps, self.source, None).output_schema

    def run(self) -> FitReport:
        """Fit everything; the steps hold their state afterwards."""
        if self.features is not None:
            self._learn(self.features)
        joins = [step for step in self.steps if isinstance(step, TableJoin) and step.rows_seen_]
        self.report.unmatched = {join.name: join.unmatched_share for join in joins}
        self.report.seconds = time.perf_counter() - self._started
        return self.report

    def _learn(self, features: Features) -> None:
        self._check(features)
        for note in _list_unused(self.steps, features, self.source):
            self._note(note)
        given, number, later = self.dataset, 0, plan_passes(features) or [[]]
        self._unscaled = ColumnUses.of(features, self.schema).unscaled
        wanted = collect_wanted(later, features, self.schema).union(self._unscaled)
        whole = TransformPlan(self.steps, self.source, wanted, counting=True)  # `Expect` looks at window columns too
        whole.warn_of_cuts(given)
        whole, self.dataset = whole.attach_window_columns(given, self.backend)
        self.dataset = self.dataset if self._rows is None else self.dataset.filter(self._rows)
        self._side_columns = whole.side_columns
        self.report.num_reads += len(self._side_columns)
        if self.dataset is not given:  # what was read of it may be in other partitions now
            self._first = {}
        observed: Summaries = {}
        while later:
            tasks, *later = later
            repeatable = [task.last for task in tasks if task.steps[-1].may_repeat]
            found = self._fold(features, number, tasks, [repeatable, *later] if repeatable else later)
            if number == 0:
                observed = found
                self._observe_rows(features, found)
            self._finalize(number, tasks, found)
            again = [task for task in repeatable if task.steps[-1].unfinished]
            later, number = [again, *later] if again else later, number + 1
        self._observe_columns(features, observed)
        # For `gp.calibrate` the rows of a fit are worth knowing where that costs next to nothing.
        is_cheap = given.source.inputs() is not None or sum(p.num_rows for p in given.partitions) <= MAX_HASHED_ROWS
        if features._cross_fits or (features.target is not None and is_cheap):
            features.lineage_ = compute_lineage(self._selected, features._label_sources(self.schema))
            features._fitted_rows = RowSet.of(self._selected, features._target_sources(self.schema))

    def _fold(
        self, features: Features, number: int, tasks: Sequence[FitTask], later: Sequence[Sequence[FitTask]]
    ) -> Summaries:
        """Run one pass: return the sums of the partitions' summaries, and keep what the `later` passes read again."""
        is_first = number == 0
        wanted = collect_wanted([tasks, *later], features, self.schema).union(self._unscaled if is_first else ())
        checked = None if is_first else frozenset[str]()  # by each Expect, once
        plan = TransformPlan(self.steps, self.source, wanted, there=checked, counting=is_first)
        limit = settings().memory_limit
        cached, self._cache = self._cache, FrameCache(KEEP_BYTES if limit is None else min(KEEP_BYTES, limit // 4))
        self.report.num_reads += is_first or len(cached) < self.dataset.num_partitions
        again = {name for tasks_ in later for task in tasks_ for name in task.reads(features, self.schema)}
        work = PartitionPass(
            plan.replace(side_columns={position: self._side_columns[position] for position in plan.window_steps}),
            self.backend,
            features,
            tasks,
            of_target=is_first,
            total=sum(part.num_rows for part in self.dataset.partitions) if is_first else None,
            sampled=list_sampled_columns(self.outputs, plan.output_schema.select(plan.wanted)) if is_first else (),
            first=self._first,
            cached=cached,
            cache=self._cache,
            again=again if get_executor().in_process else (),
        )
        found = fold(work, self.dataset, f"fit {number + 1}/{number + 1 + len(later)}")
        if not found:
            expected, remedy = "rows to learn from", "a look at the files or the split"
            raise BadData("fit", "the dataset has no partitions", expected=expected, remedy=remedy)
        self.report.num_halved += sum(times > 1 for times in found["partitions"].values())
        return found

    def _observe_rows(self, features: Features, found: Summaries) -> None:
        """Report the rows of the first pass; decide on the target's task."""
        self.report.num_rows = found["rows"]
        if features.target is not None:
            self.report.num_without_target = found["without target"]
            for note, level in features.target.finalize(select_kind(found, "target"), self.schema):
                self._note(note, level)
        self.report.coerced = dict(sum(select_kind(found, "coerced").values(), Counter[str]()))
        for join in (step for step in self.steps if isinstance(step, TableJoin)):
            join.rows_seen_, join.rows_unmatched_ = (found["join", join.name][key] for key in ("seen", "lost"))

    def _finalize(self, number: int, tasks: Sequence[FitTask], found: Summaries) -> None:
        """Let the steps learn from the sums of their summaries."""
        for place, task in enumerate(tasks):
            self._learned.append((number, task, [found["timing", place, n] for n in range(len(task.steps))]))
            fill = task.steps[task.free]
            try:
                for n, step in enumerate(task.steps):
                    summary = found["step", place, n]
                    if n > task.free:
                        assert isinstance(fill, pre.SimpleImputer), "only an imputer folds with the step after it"
                        summary = summary.filled(fill.statistics_)
                    _finish(step, summary, self.backend)
            except BadData as error:
                raise self._add_missing_targets(error) from error

    def _observe_columns(self, features: Features, found: Summaries) -> None:
        """Report what the first pass has seen of columns, now that all steps hold their state."""
        # Of the fitted pipeline each column of the source is the start, wherever it has come from.
        self.source = Schema(item.as_origin() for item in self.source)
        self.schema = TransformPlan(self.steps, self.source, None).output_schema
        self.outputs = features._output_fields(self.schema)
        uses = ColumnUses.of(features, self.schema)
        stats, unscaled = collect_stats(found, uses), {*uses.unscaled}.difference(uses.numbers)
        self.profiles = build_profiles(found, stats, uses)
        self.stats = {name: seen for name, seen in stats.items() if name not in unscaled}
        self.ranges = _output_ranges(self.outputs, self.schema, self.stats)
        self.edges = compute_edges(features, self.schema, found["sampled rows"], self.backend)
        # A column of the source that the transforms leave unchanged has the range that the fit has seen.
        same = [item.name for item in self.source if item.name in self.schema and self.schema[item.name] == item]
        ends = {name: self.stats[name].range for name in same if name in self.stats}
        self.source = Schema(self.source, {name: pair for name, pair in ends.items() if pair is not None})
        self._warn_of_float32(stats)
        for line in _list_uninformative(features, self.stats):
            self._note(line, logging.WARNING)
        if findings := select_kind(found, "expect"):
            self.report.checks = ExpectationReport.of(findings, self.steps, self.dataset.partitions)
            if not self.report.checks.passed:
                _log.warning("Expect: %s", self.report.checks.summary)
        used = features._learned  # without the target's steps, where its classes need none
        self.report.steps = [self._report_step(*entry) for entry in self._learned if entry[1].group in used]

    def _warn_of_float32(self, stats: Mapping[str, ColumnStats]) -> None:
        coarse: dict[str, str] = {}
        for group, outputs in self.outputs:
            for item in outputs:
                name = group.rename(item.name)
                plain = stats[item.name].range if not group.steps and item.name in stats else None
                ends = plain or self.ranges.get(name)
                is_number = item.kind == Kind.CONTINUOUS
                if is_number and ends is not None and (fact := describe_coarse(name, item.dtype, *ends)):
                    coarse[name] = fact
        remedy, told = f"({list(coarse)[:5]}, pre.StandardScaler())", list(coarse.values())[:5]
        for note, level in note_lost_digits(f"features {shorten_list(coarse)} lose", "their", told, remedy):
            self._note(note, level)

    def _note(self, note: str, level: int = logging.INFO) -> None:
        self.report.notes.append(note)
        _log.log(level, "%s", note)

    def _report_step(self, number: int, task: FitTask, costs: Sequence[Mapping[str, Any]]) -> StepReport:
        names = [name for name in task.group.columns if name in self.stats]
        shares = [self.profiles[name].unknown for name in names if name in self.profiles]
        rare = [share for share in shares if share is not None] if isinstance(task.steps[-1], pre.Categorify) else []
        return StepReport(
            number + 1,
            " + ".join(step.class_name for step in task.steps),
            shorten_list(task.group.columns),
            sum(self.stats[name].missing for name in names),
            sum(rare) / len(rare) if rare else None,
            sum(cost["seconds"] for cost in costs),
            max((cost["num_bytes"] for cost in costs), default=0),
        )

    def _fix_functions(self) -> None:
        """Run each user function on the first partition that has rows, to learn its output schema."""
        for position, step in enumerate(self.steps):
            if not isinstance(step, Map):
                continue
            source = mark_source(self.steps, self.features, self.dataset.schema)
            schemas = _infer_schemas(self.steps, source)
            plan = TransformPlan(self.steps[: position + 1], source, step.adds or (), there=frozenset())
            names = set(plan.reads)
            if self.features is not None:  # what the first pass will read, by names alone: others have not run yet
                fed = self.features.inputs | self.features._label_reads(schemas[-1])
                names |= _backwards(self.steps, schemas, fed)
            reads = [name for name in source.names if name in names]
            trial = partial(probe_dtypes, plan, reads, self.backend, self._first)
            for partition in self.dataset.partitions:
                (step.dtypes_,) = get_executor().map(trial, [self.dataset.of_partitions([partition])], at_once=1)
                if step.dtypes_ is not None:
                    break

    def _check(self, features: Features) -> None:
        # A label that reads no column, such as the name `1960` where no column has it.
        labels = [(label, text) for label in features._labels for text in label.texts]
        constants = [text for label, text in labels if not label.reads(self.schema, [text])]
        self.schema.require(constants, "Features")
        self.schema.require([*features.keep, *sorted(features._label_reads(self.schema))], "Features")
        if features.target is not None:
            features.target.check(self.schema)
        # Before leaks: columns that are not there, or of a type no step takes.
        self.outputs = features._output_fields(self.schema)
        for note in features._check_leaks(self.schema):
            self._note(note, logging.WARNING)

    def _add_missing_targets(self, error: BadData) -> BadData:
        without = self.report.num_without_target
        if not without:
            return error
        there, lost = format_count(self.report.num_rows - without, "row"), format_count(without, "row")
        problem = f"{error.problem} in the {there} with a target; {lost} without one teach nothing"
        facts = {} if error.got is None else {"got": error.got}
        return BadData(error.where, problem, expected=error.expected, remedy=error.remedy, **facts)


def _list_uninformative(features: Features, stats: Mapping[str, ColumnStats]) -> list[str]:
    """List the columns that the fit has shown to be constant, or nearly so."""
    found = []
    for group in features.groups:
        empty, one = [], []
        for step in (step for step in group.steps if isinstance(step, pre.Categorify)):
            sizes = {name: len(values) for name, values in step.vocabularies_.items()}
            empty += [name for name, size in sizes.items() if size == 0 and not step.num_buckets]
            whole = step.min_frequency is None and step.max_categories is None and step.vocabulary is None
            one += [name for name, size in sizes.items() if size == 1 and whole]
        one = [name for name in one if name in stats and not stats[name].missing]
        numbers = {name: stats[name] for name in group.columns if name in stats and group.steps}
        # Integers from 2**53 on may differ although their floats are equal.
        alike = [name for name, column in numbers.items() if column.low == column.high and not column.missing]
        one += [name for name in alike if abs(numbers[name].low) < _EXACT]
        if empty:
            reason = "no value occurs often enough, so its vocabulary is empty"
            found.append(f"Categorify of {shorten_list(empty)}: {reason}")
        if one:
            found.append(f"{shorten_list(one)}: the same value in every row of the fit")
    return list(dict.fromkeys(found))  # a column may be in two groups


def _finish(step: pre.LearnedStep, summary: Any, backend: str) -> None:
    """Finalize a step from the merged summary, on a GPU worker where partitions are processed there."""
    executor = get_executor()
    if executor.in_process or backend == "cpu" or not getattr(summary, "holds_rows", False):
        step.finalize(summary)
    else:
        vars(step).update(executor.call(partial(_finalize, step, backend), summary))


def _finalize(step: pre.LearnedStep, backend: str, summary: Any) -> dict[str, Any]:
    """Return the attributes that a step learns from gathered rows, on a worker; they need no GPU."""
    before = dict(vars(step))
    step.finalize(summary.on(select(backend)))
    return {name: value for name, value in vars(step).items() if name not in before or before[name] is not value}


def _output_ranges(
    fields: GroupFields, schema: Schema, stats: Mapping[str, ColumnStats]
) -> dict[str, tuple[float, float]]:
    """Compute the minimum and maximum of ids, and of numbers that go through steps which keep their order."""
    found: dict[str, tuple[float, float]] = {}
    for group, outputs in fields:
        for item in outputs:
            if item.kind == Kind.CATEGORICAL and item.cardinality is not None:
                found[group.rename(item.name)] = (0, item.cardinality - 1)
        if group.steps and all(step.monotone for step in group.steps):
            ends = {name: stats[name] for name in group.columns if name in stats and stats[name].range is not None}
            if len(ends) == len(group.columns):
                found |= _transform_ranges(group, schema, ends)
    return found


def _transform_ranges(
    group: FeatureGroup, schema: Schema, stats: Mapping[str, ColumnStats]
) -> dict[str, tuple[float, float]]:
    columns: Mapping[str, Column]
    if stats and all(schema[name].dtype == "float64" for name in stats):
        ends = [(seen.low, seen.high, np.nan if seen.missing else seen.low) for seen in stats.values()]
        columns = Matrix([*stats], np.array(ends))
    else:
        columns = {name: _ends(schema[name].dtype, seen) for name, seen in stats.items()}
    outputs = {name: item for name, item in group.apply_steps(columns, select("cpu")).items() if item.dtype != "bool"}
    table = np.stack([floats(column, np) for column in outputs.values()]) if outputs else np.zeros((0, 3))
    table[np.isinf(table)] = np.nan
    low, high = np.fmin.reduce(table, axis=1).tolist(), np.fmax.reduce(table, axis=1).tolist()
    ranges = zip(map(group.rename, outputs), low, high, strict=True)
    return {name: (least, most) for name, least, most in ranges if least <= most}


def _ends(dtype: str, seen: ColumnStats) -> Column:
    """Build a column of the minimum, the maximum, and a third row: missing if the column has gaps, else the minimum."""
    ends = [seen.low, seen.high, seen.low]
    if dtype in FLOATS:
        return Column(dtype, np.array([seen.low, seen.high, np.nan if seen.missing else seen.low]).astype(dtype))
    if dtype != "bool":
        info = np.iinfo(dtype)  # the float nearest to 2**63 - 1 is one more than it
        ends = [min(max(int(end), info.min), info.max) for end in ends]
    return Column(dtype, np.array(ends, dtype=dtype), np.array([True, True, False]) if seen.missing else None)


def compute_lineage(dataset: Dataset, names: Sequence[str]) -> str | None:
    """Compute the id of a dataset's rows: files by their stamps, rows in memory by these columns; None without one."""
    query, source = dataset.query.identity(), dataset.source
    if query is None or source.made_by is None or any(name not in dataset.schema for name in names):
        return None
    inputs = source.inputs()
    if inputs is not None:
        return hashlib.sha256(repr(((source.made_by, sorted(inputs.items())), query)).encode()).hexdigest()
    quiet, backend, read = copy(source), select("cpu"), sorted(dataset.query.reads(names))
    quiet.reads = ReadCounter()  # this is no pass over the data
    digests = [hashlib.sha256(name.encode()) for name in read]
    for partition in quiet.partitions:
        frame = quiet.read(partition, [source.schema[name] for name in read], backend)
        for name, digest in zip(read, digests, strict=True):
            digest.update(hash_column(backend.column(frame, name), 0, backend).tobytes())
    contents = [digest.hexdigest() for digest in digests]
    return hashlib.sha256(repr((contents, query)).encode()).hexdigest()
