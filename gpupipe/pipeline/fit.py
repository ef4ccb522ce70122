"""Pipeline fit: a few passes over the partitions, each of which merges the summaries of its steps; and its report."""

from __future__ import annotations

import html
import logging
import time
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpupipe.backend import Frame, select
from gpupipe.cluster import get_executor
from gpupipe.config import settings
from gpupipe.errors import BadData
from gpupipe.io import Dataset, FileNote
from gpupipe.io.relational.side_columns import SideColumns
from gpupipe.monitoring.drift import Profile
from gpupipe.monitoring.expectation_report import ExpectationReport
from gpupipe.pipeline.apply import output_ranges
from gpupipe.pipeline.column_stats import ColumnStats, coarse_spacing
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.fit_partition import (
    DescribeColumns,
    DrawSample,
    DtypeProbe,
    FrameCache,
    Learn,
    Observer,
    PartitionPass,
    SummarizeTarget,
    Timing,
    fold,
    list_numbers,
    list_unscaled,
)
from gpupipe.pipeline.lineage import compute_lineage
from gpupipe.pipeline.observe import build_profiles, check_report, select_kind
from gpupipe.pipeline.plan import (
    FitTask,
    TransformPlan,
    collect_wanted,
    likely_reads,
    mark_source,
    materialize_window_columns,
    plan_passes,
    resolve_selectors,
)
from gpupipe.pipeline.targets import TargetSet
from gpupipe.preprocessing import Categorify, LearnedStep, SimpleImputer
from gpupipe.schema import Kind, Schema
from gpupipe.support.text import format_count, html_table, shorten_list, text_table
from gpupipe.transforms import JoinAsOf, Map, Transform
from gpupipe.transforms.join import TableJoin


@dataclass(frozen=True)
class StepReport:
    """Report of one step's part in a fit.

    Args:
        number: the pass it learned in, from 1.
        step: its class.
        columns: those it learned from, or how many.
        missing: their missing values.
        rare: the share of their rows whose value has no id of its own, in a sample; None where ids are not made.
        seconds: of all threads and workers together; on a GPU until its work was handed over.
        num_bytes: the size of the columns it read.
    """

    number: int
    step: str
    columns: str
    missing: int
    rare: float | None
    seconds: float
    num_bytes: int

    @property
    def cells(self) -> list[str]:
        """For a table."""
        rare = "" if self.rare is None else f"{self.rare:.2%}"
        size = f"{self.num_bytes / 1e6:.1f}"
        return [str(self.number), self.step, self.columns, f"{self.missing:,}", rare, f"{self.seconds:.3f}", size]


@dataclass
class FitReport:
    """Report of a fit: rows, steps and timings; displays as text and in a notebook.

    Args:
        num_rows: rows after the transforms; 0 where nothing is learned, since then nothing is read.
        num_without_target: rows of those left out because their target is missing.
        num_reads: how often the data was read, counted in whole passes.
        num_halved: partitions that were too large for memory, and were worked on in halves.
        unmatched: the share of rows without a match, by the join's name.
        rejected: the files whose rows it did not see, and why.
        seconds: wall time.
        steps: each step's part.
        notes: what was decided on the target, and which columns selectors left out.
        checks: what was not as `expect=` says.
    """

    num_rows: int = 0
    num_without_target: int = 0
    num_reads: int = 0
    num_halved: int = 0
    unmatched: dict[str, float] = field(default_factory=dict)
    rejected: tuple[FileNote, ...] = ()
    seconds: float = 0.0
    steps: Sequence[StepReport] = ()
    notes: list[str] = field(default_factory=list)
    checks: ExpectationReport = field(default_factory=ExpectationReport)

    def __str__(self) -> str:
        if not self.num_reads:
            return f"nothing to learn; {self.seconds:.1f} s"
        joins = "".join(f", {share:.1%} without a match in {name}" for name, share in self.unmatched.items())
        left_out = f", {self.num_without_target:,} without a target left out" if self.num_without_target else ""
        files = f", {format_count(len(self.rejected), 'file')} rejected" if self.rejected else ""
        halved = (
            f", {format_count(self.num_halved, 'partition')} in halves for want of memory" if self.num_halved else ""
        )
        rows, reads = format_count(self.num_rows, "row"), format_count(self.num_reads, "read")
        return f"fitted on {rows}{left_out}{joins}{files}; {reads}{halved}, {self.seconds:.1f} s"

    def _table(self) -> list[list[str]]:
        head = ["pass", "step", "columns", "missing", "rare", "seconds", "MB"]
        return [head, *(item.cells for item in self.steps)]

    def __repr__(self) -> str:
        parts = [str(self), *(["\n".join(self.notes)] if self.notes else [])]
        parts += [text_table(self._table())] if self.steps else []
        parts += [] if self.checks.passed else [repr(self.checks)]
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        table = html_table(self._table()) if self.steps else ""
        told = "".join(f"<p>{html.escape(line)}</p>" for line in [str(self), *self.notes])
        return f"{told}{table}{'' if self.checks.passed else self.checks._repr_html_()}"


_log = logging.getLogger("gpupipe")

_EXACT = 2**53
KEEP_BYTES = 1 << 30
"""Columns a later pass needs stay in memory up to this many bytes, and up to a quarter of `memory_limit`."""


class PipelineFit:
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
        self.seen: dict[str, ColumnStats] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self._learned: list[tuple[int, FitTask, list[Timing]]] = []
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
        self.source = mark_source(steps, features, dataset.schema)
        self.schema = TransformPlan(steps, self.source, None).output_schema

    def run(self) -> FitReport:
        """Fit everything; the steps hold their state afterwards."""
        if self.features is not None:
            self._check(self.features)
            given = self.dataset
            later, number = plan_passes(self.features) or [[]], 0
            self._attach_window_columns(
                {*collect_wanted(later, self.features, self.schema), *list_unscaled(self.features, self.schema)}
            )
            while later:
                tasks, *later = later
                repeatable = [task.last for task in tasks if task.steps[-1].may_repeat]
                self._run_pass(self.features, number, tasks, later=[repeatable, *later] if repeatable else later)
                again = [task for task in repeatable if task.steps[-1].unfinished]
                later, number = [again, *later] if again else later, number + 1
            self._conclude(self.features)
            if self.features.cross_fits:
                self.features.lineage_ = compute_lineage(given, self.features.label_sources(self.schema))
        joins = [step for step in self.steps if isinstance(step, TableJoin) and step.rows_seen_]
        self.report.unmatched = {join.name: join.unmatched_share for join in joins}
        self.report.seconds = time.perf_counter() - self._started
        return self.report

    def _conclude(self, features: Features) -> None:
        """Report what was observed of the rows, now that all steps hold their state."""
        found, report = self._found, self.report
        columns = select_kind(found, "column")
        self.profiles = build_profiles(found, features, self.schema)
        unscaled = set(list_unscaled(features, self.schema)) - set(list_numbers(features, self.schema))
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

    def _warn_of_float32(self, features: Features, seen: Mapping[str, ColumnStats]) -> None:
        """Warn of features whose distinct values are equal in float32."""
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
                f"features {shorten_list(list(coarse))} lose digits: the batches' float32 is coarser than 1/1000 of "
                f"their range: {', '.join(list(coarse.values())[:5])}; try {remedy}"
            )

    def _warn(self, note: str) -> None:
        self.report.notes.append(note)
        _log.warning("%s", note)

    def _step_report(self, number: int, task: FitTask, costs: Sequence[Timing]) -> StepReport:
        names = [name for name in task.group.columns if name in self.seen]
        shares = [self.profiles[name].unknown for name in names if name in self.profiles]
        rare = [share for share in shares if share is not None] if isinstance(task.steps[-1], Categorify) else []
        return StepReport(
            number + 1,
            " + ".join(step.class_name for step in task.steps),
            shorten_list(task.group.columns),
            sum(self.seen[name].missing for name in names),
            sum(rare) / len(rare) if rare else None,
            sum(cost.seconds for cost in costs),
            max((cost.num_bytes for cost in costs), default=0),
        )

    def _fix_functions(self) -> None:
        """Run each user function on the first partition that has rows, to learn its output schema."""
        for position, step in enumerate(self.steps):
            if not isinstance(step, Map):
                continue
            source = mark_source(self.steps, self.features, self.dataset.schema)
            before = TransformPlan(self.steps[:position], source, None).output_schema
            wanted = frozenset(step.adds or before.names)
            unchecked = frozenset[str]()
            prefix = TransformPlan(self.steps[:position], source, step.needs(wanted, before), there=unchecked)
            names = {*prefix.reads, *likely_reads(self.steps, self.features, source)}
            reads = [name for name in source.names if name in names]
            trial = DtypeProbe(step, prefix, before, wanted, reads, self.backend, self._first)
            for partition in self.dataset.partitions:
                part = self.dataset.of_partitions([partition])
                (step.dtypes_,) = get_executor().map(trial, [part], at_once=1)
                if step.dtypes_ is not None:
                    break

    def _check(self, features: Features) -> None:
        """Check names and dtypes before any pass."""
        self.schema.require(features.constants(self.schema), "Features")
        self.schema.require([*features.keep, *sorted(features.label_reads(self.schema))], "Features")
        if features.target is not None:
            features.target.check(self.schema)
        features.check_leaks(self.schema)
        features.check_leaks(self._training_schema())
        features.output_schema(self.schema)

    def _training_schema(self) -> Schema:
        """Return the schema, with lineage, of the rows that are learned from."""
        steps = [copy(step) if isinstance(step, JoinAsOf) else step for step in self.steps]
        for step in steps:
            if isinstance(step, JoinAsOf) and step.lag is None and _shares_files(step.right, self.dataset):
                step.finds_own_rows = True
        return TransformPlan(steps, self.source, None).output_schema

    def _attach_window_columns(self, wanted: set[str]) -> None:
        """Compute the columns of window steps."""
        prefix, dataset = materialize_window_columns(
            TransformPlan(self.steps, self.source, wanted), self.dataset, self.backend
        )
        self._side_columns = prefix.side_columns
        self.report.num_reads += len(self._side_columns)
        if dataset is not self.dataset:  # what was read of it may be in other partitions now
            self.dataset, self._first = dataset, {}

    def _run_pass(
        self, features: Features, number: int, tasks: Sequence[FitTask], later: Sequence[Sequence[FitTask]]
    ) -> None:
        wanted = collect_wanted([tasks, *later], features, self.schema)
        observers: list[Observer] = [Learn(place, task) for place, task in enumerate(tasks)]
        if number == 0:
            wanted |= set(list_unscaled(features, self.schema))
        checked = None if number == 0 else frozenset[str]()  # by each Expect, once
        prefix = TransformPlan(self.steps, self.source, wanted, there=checked, counting=number == 0).with_side_columns(
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
                features.target.finalize(found["target"], self.schema)
                self._report_task(features.target)
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
                raise self._add_missing_targets(error) from error

    def _add_missing_targets(self, error: BadData) -> BadData:
        """Add the number of rows that lack a target to a step's error."""
        without = self.report.num_without_target
        if not without:
            return error
        there = format_count(self.report.num_rows - without, "row")
        problem = (
            f"{error.problem} in the {there} with a target; {format_count(without, 'row')} without one teach nothing"
        )
        facts = {} if error.got is None else {"got": error.got}
        return BadData(error.where, problem, expected=error.expected, remedy=error.remedy, **facts)

    def _report_task(self, target: TargetSet) -> None:
        """Report the inferred task; warn where another task may be meant."""
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
    """Return whether a table may contain rows of a dataset: both come from one reader call or from one file."""
    if not isinstance(table, Dataset):
        return False
    files = (table.source.inputs() or {}).keys() & (dataset.source.inputs() or {}).keys()
    return table.source is dataset.source or bool(files)


def _uninformative(features: Features, seen: Mapping[str, ColumnStats]) -> list[str]:
    """List the columns that the fit has shown to be constant, or nearly so."""
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
            found.append(
                f"Categorify of {shorten_list(empty)}: no value occurs often enough, so its vocabulary is empty"
            )
        if one:
            found.append(f"{shorten_list(one)}: the same value in every row of the fit")
    return found


def _finish(step: LearnedStep, summary: Any, backend: str) -> None:
    """Finalize a step from the merged summary, on a GPU worker where partitions are processed there.

    Rows that CPU workers gathered are learned from here, with the threads and so the last bits of one process.
    """
    executor = get_executor()
    if executor.in_process or backend == "cpu" or not getattr(summary, "holds_rows", False):
        step.finalize(summary)
    else:
        vars(step).update(executor.call(partial(_finalize, step, backend), summary))


def _finalize(step: LearnedStep, backend: str, summary: Any) -> dict[str, Any]:
    """Return the attributes that a step learns from gathered rows, on a worker; they need no GPU."""
    before = dict(vars(step))
    step.finalize(summary.on(select(backend)))
    return {name: value for name, value in vars(step).items() if name not in before or before[name] is not value}


def _fills(imputer: LearnedStep) -> dict[str, Any]:
    assert isinstance(imputer, SimpleImputer), "only an imputer folds with the step after it"
    return imputer.statistics_
