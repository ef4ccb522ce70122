"""Learning a pipeline's state: a few passes over the partitions, each a fold shared by every step that is ready."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

from gpupipe.backend import Frame, select
from gpupipe.cluster import get_executor
from gpupipe.config import settings
from gpupipe.errors import BadData
from gpupipe.io import Dataset
from gpupipe.io.relational.side_columns import SideColumns
from gpupipe.monitoring.profiles import Profile
from gpupipe.pipeline.column_stats import Seen, coarse_spacing
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.fit_partition import (
    DescribeColumns,
    DrawSample,
    FrameCache,
    Learn,
    Observer,
    PartitionPass,
    SummarizeTarget,
    Timing,
    Trial,
    fold,
    numbers_of,
    unscaled_of,
)
from gpupipe.pipeline.fit_report import FitReport, StepReport
from gpupipe.pipeline.lineage import lineage_of
from gpupipe.pipeline.observe import check_report, of_kind, profiles_of
from gpupipe.pipeline.output_ranges import output_ranges
from gpupipe.pipeline.plan import Prefix, Task, likely_reads, marked_source, plan_passes, resolve_selectors, wanted_in
from gpupipe.pipeline.targets import Targets
from gpupipe.pipeline.window_columns import put_together
from gpupipe.preprocessing import Categorify, FoldStep, SimpleImputer
from gpupipe.schema import Kind, Schema
from gpupipe.support.text import counted, shortened
from gpupipe.transforms import JoinAsOf, Map, Transform
from gpupipe.transforms.table_join import TableJoin

__all__ = ["Fitting"]

_log = logging.getLogger("gpupipe")

_EXACT = 2**53
KEEP_BYTES = 1 << 30
"""Columns a later pass needs stay in memory up to this many bytes, and up to a quarter of `memory_limit`."""


class Fitting:
    """One fit of `steps` and `features` on `dataset`.

    Args:
        steps: transforms.
        features: what is learned.
        dataset: the rows.
        backend: `"cpu"` or `"gpu"`.

    Attributes:
        source: the dataset's schema with label columns marked.
        schema: the schema after the transforms, types of functions' results included.
        profiles: what the columns that features see look like, in the rows drawn.
        seen: those columns, in all rows that steps learn from.
        ranges: of outputs, by name.
    """

    def __init__(
        self,
        steps: Sequence[Transform],
        features: Features | None,
        dataset: Dataset,
        backend: str,
    ) -> None:
        self.steps, self.features, self.dataset, self.backend = steps, features, dataset, backend
        self.profiles: dict[str, Profile] = {}
        self.seen: dict[str, Seen] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self._learned: list[tuple[int, Task, list[Timing]]] = []
        self._found: Mapping[Hashable, Any] = {}
        self.report = FitReport(rejected=dataset.rejected)
        self._first: dict[int, Frame] = {}
        self._side_columns: Mapping[int, SideColumns] = {}
        self._cache = FrameCache()
        self._started = time.perf_counter()
        for step in steps:
            if isinstance(step, Map | TableJoin):
                step.reset()
        if features is not None:
            features.reset()
        resolve_selectors(steps, features, dataset.schema, strict=False)
        self._fix_functions()
        resolve_selectors(steps, features, dataset.schema)
        for note in () if features is None else features.left_out:
            self.report.notes.append(note)
            _log.info("%s", note)
        self.source = marked_source(steps, features, dataset.schema)
        self.schema = Prefix(steps, self.source, None).output_schema

    def run(self) -> FitReport:
        """Fit everything; the steps hold their state afterwards."""
        if self.features is not None:
            self._check(self.features)
            given = self.dataset
            later, number = plan_passes(self.features) or [[]], 0
            self._meet({*wanted_in(later, self.features, self.schema), *unscaled_of(self.features, self.schema)})
            while later:
                tasks, *later = later
                repeatable = [task.last for task in tasks if task.steps[-1].may_repeat]
                self._run_pass(self.features, number, tasks, later=[repeatable, *later] if repeatable else later)
                again = [task for task in repeatable if task.steps[-1].unfinished]
                later, number = [again, *later] if again else later, number + 1
            self._conclude(self.features)
            if self.features.cross_fits:
                self.features.lineage_ = lineage_of(given, self.features.label_sources(self.schema))
        joins = [step for step in self.steps if isinstance(step, TableJoin) and step.rows_seen_]
        self.report.unmatched = {join.name: join.unmatched_share for join in joins}
        self.report.seconds = time.perf_counter() - self._started
        return self.report

    def _conclude(self, features: Features) -> None:
        """Report what was observed of the rows, now that all steps hold their state."""
        found, report = self._found, self.report
        columns = of_kind(found, "column")
        self.profiles = profiles_of(found, features, self.schema)
        unscaled = set(unscaled_of(features, self.schema)) - set(numbers_of(features, self.schema))
        self.seen = {name: seen for name, seen in columns.items() if name not in unscaled}
        self.ranges = output_ranges(features, self.schema, self.seen)
        self._warn_of_float32(features, columns)
        for line in _uninformative(features, self.seen):
            report.notes.append(line)
            _log.warning("%s", line)
        report.checks = check_report(found, self.steps, self.dataset.partitions)
        if not report.checks.passed:
            _log.warning("Expect: %s", report.checks.summary)
        unused = features.target is not None and not features.target.group.steps
        learned = [found for found in self._learned if not (unused and found[1].group.of_target)]
        report.steps = [self._step_report(*found) for found in learned]

    def _warn_of_float32(self, features: Features, seen: Mapping[str, Seen]) -> None:
        """Warn of features whose values float32 puts together."""
        coarse: dict[str, str] = {}
        for group in features.groups:
            for item in group.fields(self.schema):
                name = group.rename(item.name)
                plain = seen[item.name].range if not group.steps and item.name in seen else None
                ends = plain or self.ranges.get(name)
                spacing = None if ends is None or item.kind != Kind.CONTINUOUS else coarse_spacing(item.dtype, ends)
                if ends is not None and spacing is not None:
                    coarse[name] = f"{spacing:g} in a range of {ends[1] - ends[0]:g} ({name})"
        if coarse:
            remedy = f"({list(coarse)[:5]}, pre.StandardScaler())"
            self._warn(
                f"features {shortened(list(coarse))} lose digits: the batches' float32 is coarser than 1/1000 of their "
                f"range: {', '.join(list(coarse.values())[:5])}; try {remedy}"
            )

    def _warn(self, note: str) -> None:
        self.report.notes.append(note)
        _log.warning("%s", note)

    def _step_report(self, number: int, task: Task, costs: Sequence[Timing]) -> StepReport:
        names = [name for name in task.group.columns if name in self.seen]
        shares = [self.profiles[name].unknown for name in names if name in self.profiles]
        rare = [share for share in shares if share is not None] if isinstance(task.steps[-1], Categorify) else []
        return StepReport(
            number + 1,
            " + ".join(step.class_name for step in task.steps),
            shortened(task.group.columns),
            sum(self.seen[name].missing for name in names),
            sum(rare) / len(rare) if rare else None,
            sum(cost.seconds for cost in costs),
            max((cost.num_bytes for cost in costs), default=0),
        )

    def _fix_functions(self) -> None:
        """Run each function on the first partition that has rows, so that what it puts out is known to what follows."""
        for position, step in enumerate(self.steps):
            if not isinstance(step, Map):
                continue
            source = marked_source(self.steps, self.features, self.dataset.schema)
            before = Prefix(self.steps[:position], source, None).output_schema
            wanted = frozenset(step.adds or before.names)
            unchecked = frozenset[str]()
            prefix = Prefix(self.steps[:position], source, step.needs(wanted, before), there=unchecked)
            names = {*prefix.reads, *likely_reads(self.steps, self.features, source)}
            reads = [name for name in source.names if name in names]
            trial = Trial(step, prefix, before, wanted, reads, self.backend, self._first)
            for part in self.dataset.parts():
                (step.dtypes_,) = get_executor().map(trial, [part], at_once=1)
                if step.dtypes_ is not None:
                    break

    def _check(self, features: Features) -> None:
        """Everything that names and types can tell, before any pass."""
        self.schema.require(features.constants(self.schema), "Features")
        self.schema.require([*features.keep, *sorted(features.label_reads(self.schema))], "Features")
        if features.target is not None:
            features.target.check(self.schema)
        features.check_leaks(self.schema)
        features.check_leaks(self._schema_of_own_rows())
        features.output_schema(self.schema)

    def _schema_of_own_rows(self) -> Schema:
        """The schema in which what a step finds in the rows that are learned from has their columns' lineage."""
        steps = [copy(step) if isinstance(step, JoinAsOf) else step for step in self.steps]
        for step in steps:
            if isinstance(step, JoinAsOf) and step.lag is None and _shares_files(step.right, self.dataset):
                step.finds_own_rows = True
        return Prefix(steps, self.source, None).output_schema

    def _meet(self, wanted: set[str]) -> None:
        """Make the columns of steps that look at other rows."""
        prefix, dataset = put_together(Prefix(self.steps, self.source, wanted), self.dataset, self.backend)
        self._side_columns = prefix.side_columns
        self.report.num_reads += len(self._side_columns)
        if dataset is not self.dataset:  # what was read of it may be in other partitions now
            self.dataset, self._first = dataset, {}

    def _run_pass(
        self, features: Features, number: int, tasks: Sequence[Task], later: Sequence[Sequence[Task]]
    ) -> None:
        wanted = wanted_in([tasks, *later], features, self.schema)
        observers: list[Observer] = [Learn(place, task) for place, task in enumerate(tasks)]
        if number == 0:
            wanted |= set(unscaled_of(features, self.schema))
        checked = None if number == 0 else frozenset[str]()  # by each Expect, once
        prefix = Prefix(self.steps, self.source, wanted, there=checked, counting=number == 0).knowing(
            self._side_columns
        )
        if number == 0:
            there, total = self.schema.select(prefix.wanted), sum(part.num_rows for part in self.dataset.partitions)
            ranged = [("step", n, 0) for n, task in enumerate(tasks) if task.position == 0 and not task.group.of_target]
            observers += [SummarizeTarget(features), DescribeColumns(features, there, ranged)]
            observers += [DrawSample(features, there, total)]
        limit = settings().memory_limit
        cached, self._cache = self._cache, FrameCache(KEEP_BYTES if limit is None else min(KEEP_BYTES, limit // 4))
        self.report.num_reads += number == 0 or len(cached) < self.dataset.num_partitions
        again = {name for tasks_ in later for task in tasks_ for name in task.reads(features, self.schema)}
        work = PartitionPass(
            observers,
            prefix,
            self.schema,
            self.backend,
            features,
            first=self._first,
            cached=cached,
            cache=self._cache,
            again=again if get_executor().in_process else (),
        )
        found = fold(work, self.dataset, f"fit {number + 1}/{number + 1 + len(later)}")
        if not found:
            raise BadData(
                "fit",
                "the dataset has no partitions",
                expected="rows to learn from",
                remedy="a look at the files or the split",
            )
        self.report.num_halved += sum(times > 1 for times in found["partitions"].values())
        if number == 0:
            self._found = found
            self.report.num_rows = found["rows"]
            if features.target is not None:
                self.report.num_without_target = found["target"].num_missing
                features.target.finish(found["target"], self.schema)
                self._tell_task(features.target)
            for join in (step for step in self.steps if isinstance(step, TableJoin)):
                join.rows_seen_, join.rows_unmatched_ = (found["join", join.name][key] for key in ("seen", "lost"))
        for place, task in enumerate(tasks):
            self._learned.append((number, task, [found["timing", place, n] for n in range(len(task.steps))]))
            done = task.free + 1
            try:
                for n, step in enumerate(task.steps):
                    summary = found["step", place, n]
                    _finish(step, summary if n < done else summary.filled(_fills(task.steps[task.free])), self.backend)
            except BadData as error:
                raise self._of_rows_with_target(error) from error

    def _of_rows_with_target(self, error: BadData) -> BadData:
        """The error of a step, which rows without a target teach nothing, with how many these are."""
        without = self.report.num_without_target
        if not without:
            return error
        there = counted(self.report.num_rows - without, "row")
        problem = f"{error.problem} in the {there} with a target; {counted(without, 'row')} without one teach nothing"
        facts = {} if error.got is None else {"got": error.got}
        return BadData(error.where, problem, expected=error.expected, remedy=error.remedy, **facts)

    def _tell_task(self, target: Targets) -> None:
        """Say what the target was found to be; loudly where it may be meant otherwise."""
        note = f"target {target.text!r}: {target.task_}"
        if target.doubt:
            self._warn(f"{note}; {target.doubt}")
        else:
            self.report.notes.append(note)
            _log.info("%s", note)
        if target.coarse:
            self._warn(
                f"target {target.text!r} loses digits: the batches' float32 is coarser than 1/1000 of its range: "
                f"{', '.join(target.coarse)}; try Features(target_transform=pre.StandardScaler())"
            )


def _shares_files(table: Any, dataset: Dataset) -> bool:
    """Whether rows of a table may be those of a dataset: they come from the same reader call, or from one file."""
    if not isinstance(table, Dataset):
        return False
    files = (table.source.inputs() or {}).keys() & (dataset.source.inputs() or {}).keys()
    return table.source is dataset.source or bool(files)


def _uninformative(features: Features, seen: Mapping[str, Seen]) -> list[str]:
    """What the fit has shown to be the same in every row, or nearly so."""
    found = []
    for group in features.groups:
        empty, one = [], []
        for step in group.steps:
            if isinstance(step, Categorify):
                sizes = {name: len(values) for name, values in step.vocabularies_.items()}
                empty += [name for name, size in sizes.items() if size == 0 and not step.num_buckets]
                whole = step.min_frequency is None and step.max_categories is None and step.vocabulary is None
                one += [name for name, size in sizes.items() if size == 1 and whole]
        one = [name for name in one if name in seen and not seen[name].missing]
        numbers = {name: seen[name] for name in group.columns if name in seen and group.steps}
        # Integers from 2**53 on may differ although their floats are equal.
        alike = [name for name, column in numbers.items() if column.low == column.high and not column.missing]
        one += [name for name in alike if abs(numbers[name].low) < _EXACT]
        if empty:
            found.append(f"Categorify of {shortened(empty)}: no value occurs often enough, so its vocabulary is empty")
        if one:
            found.append(f"{shortened(one)}: the same value in every row of the fit")
    return found


def _finish(step: FoldStep, summary: Any, backend: str) -> None:
    """Let a step learn from all partitions' sum; from rows on a GPU worker where partitions are worked on there.

    Rows that CPU workers gathered are learned from here, with the threads and so the last bits of one process.
    """
    executor = get_executor()
    if executor.in_process or backend == "cpu" or not getattr(summary, "holds_rows", False):
        step.finish(summary)
    else:
        vars(step).update(executor.call(partial(_learned, step, backend), summary))


def _learned(step: FoldStep, backend: str, summary: Any) -> dict[str, Any]:
    """On a worker: the attributes that a step learns from rows; they need no GPU."""
    before = dict(vars(step))
    step.finish(summary.on(select(backend)))
    return {name: value for name, value in vars(step).items() if name not in before or before[name] is not value}


def _fills(imputer: FoldStep) -> dict[str, Any]:
    assert isinstance(imputer, SimpleImputer), "only an imputer folds with the step after it"
    return imputer.statistics_
