"""Fit of a pipeline: passes over the partitions, from whose sums the steps learn, and what was observed on the way."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gpupipe import preprocessing as pre
from gpupipe.backend import Frame, select
from gpupipe.cluster.executor import get_executor
from gpupipe.config import settings
from gpupipe.errors import BadData
from gpupipe.io import Dataset
from gpupipe.monitoring.profile import Profiles, Sample
from gpupipe.monitoring.reports import ExpectationReport
from gpupipe.pipeline.bound_pipeline import select_rows
from gpupipe.pipeline.column_stats import ColumnStats, build_profiles, collect_stats, compute_ranges
from gpupipe.pipeline.edges import compute_edges, extend_edges, list_sampled_columns
from gpupipe.pipeline.feature_group import GroupFields
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.fit_report import FitReport, StepReport
from gpupipe.pipeline.float32 import describe_coarse, note_lost_digits
from gpupipe.pipeline.partition_pass import (
    FrameCache,
    PartitionPass,
    Summaries,
    merge_summaries,
    probe_dtypes,
    select_kind,
)
from gpupipe.pipeline.plan import (
    ColumnUses,
    FitTask,
    collect_columns,
    infer_schemas,
    list_unused,
    mark_source,
    plan_passes,
    resolve_selectors,
    trace_columns,
)
from gpupipe.pipeline.row_sets import RowSet, compute_lineage
from gpupipe.pipeline.stretches import Stretches, find_stretches
from gpupipe.pipeline.transform_plan import TransformPlan
from gpupipe.pipeline.window_warnings import list_orders, warn_of_cuts
from gpupipe.schema import Kind, Schema, shorten_list
from gpupipe.support.collector import pause_collector
from gpupipe.support.text import escape_line, format_count
from gpupipe.transforms import Map, Transform, WholeTableTransform
from gpupipe.transforms.join import TableJoin

KEEP_BYTES = 1 << 30
"""Columns a later pass needs stay in memory up to this many bytes, and up to a quarter of `memory_limit`."""
MAX_HASHED_ROWS = 1 << 20
"""Rows in memory up to this number are known again by a hash of their labels, which takes milliseconds."""

_EXACT = 2**53
_SHOWN = 12  # hints at features that tell the target
_log = logging.getLogger("gpupipe")


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
        self.profiles = Profiles(Sample(), {}, {})
        self.stats: dict[str, ColumnStats] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self._order_values: dict[str, Stretches] = {}  # of the rows learned from
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
        if any(isinstance(step, Map) for step in steps):
            self._fix_functions(schema)
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
        for note in list_unused(self.steps, features, self.source):
            self._note(note)
        dataset, number, later = self.dataset, 0, plan_passes(features) or [[]]
        self._read_once = ColumnUses.of(features, self.schema).unscaled
        columns = collect_columns(later, features, self.schema).union(self._read_once)
        alone = {name for group in features.groups if not group.steps for name in group.columns}
        with_alone = TransformPlan(self.steps, self.source, columns | alone)
        if len(TransformPlan(self.steps, self.source, columns).joins) < len(with_alone.joins):
            # Features without a step of a join: how many rows it finds is told, too.
            self._read_once, columns = [*self._read_once, *alone.difference(self._read_once)], columns | alone
        whole = TransformPlan(self.steps, self.source, columns, counting=True)  # `Expect` looks at window columns too
        warn_of_cuts(whole.window_steps, dataset)
        whole, self.dataset = whole.attach_window_columns(dataset, self.backend, counts_ties=True)
        self._check_ties(features, whole)
        self.dataset = self.dataset if self._rows is None else self.dataset.filter(self._rows)
        if orders := list_orders(whole.window_steps, self.source):
            self._order_values = find_stretches(self.dataset, orders, self.backend)
        self._side_columns = whole.side_columns
        self.report.num_reads += len(self._side_columns)
        if self.dataset is not dataset:  # what was read of it may be in other partitions now
            self._first = {}
        observed: Summaries = {}
        while later:
            tasks, *later = later
            repeatable = [task.last for task in tasks if task.steps[-1].may_repeat]
            summaries = self._fold(features, number, tasks, [repeatable, *later] if repeatable else later)
            if number == 0:
                observed = summaries
                self._observe_rows(features, summaries)
            self._finalize(number, tasks, summaries)
            again = [task for task in repeatable if task.steps[-1].unfinished]
            later, number = [again, *later] if again else later, number + 1
        self._observe_columns(features, observed)
        # For `gp.calibrate` the rows of a fit are worth knowing where that costs next to nothing.
        is_cheap = dataset.source.inputs() is not None or sum(p.num_rows for p in dataset.partitions) <= MAX_HASHED_ROWS
        if features._cross_fits or (features.target is not None and is_cheap):
            features.lineage_ = compute_lineage(self._selected, features._label_sources(self.schema))
        if features.target is not None:
            features._fitted_rows = RowSet.of(self._selected, features._target_sources(self.schema))

    def _fold(
        self, features: Features, number: int, tasks: Sequence[FitTask], later: Sequence[Sequence[FitTask]]
    ) -> Summaries:
        """Run one pass: return the sums of the partitions' summaries, and keep what the `later` passes read again."""
        is_first = number == 0
        columns = collect_columns([tasks, *later], features, self.schema).union(self._read_once if is_first else ())
        checked = None if is_first else frozenset[str]()  # by each Expect, once
        plan = TransformPlan(self.steps, self.source, columns, data_columns=checked, counting=is_first)
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
            sampled=list_sampled_columns(self.outputs, plan.output_schema.select(plan.outputs)) if is_first else (),
            hinted=self.dataset.partitions[0].index if is_first and self.dataset.partitions else None,
            first=self._first,
            cached=cached,
            cache=self._cache,
            again=again if get_executor().in_process else (),
        )
        summaries = merge_summaries(work, self.dataset, f"fit {number + 1}/{number + 1 + len(later)}")
        if not summaries:
            expected, remedy = "rows to learn from", "a look at the files or the split"
            raise BadData("fit", "the dataset has no partitions", expected=expected, remedy=remedy)
        self.report.num_halved += sum(times > 1 for times in summaries["partitions"].values())
        return summaries

    def _observe_rows(self, features: Features, summaries: Summaries) -> None:
        """Report the rows of the first pass; decide on the target's task."""
        self.report.num_rows = summaries["rows"]
        for join in (step for step in self.steps if isinstance(step, TableJoin)):
            join.count_fit(*(summaries["join", join.name][key] for key in ("seen", "lost")))
            if join.unmatched_share == 1:
                self._note(
                    f"{join.class_name}({join.name!r}): no row has a match: {join.explain_no_match()}", logging.WARNING
                )
        if features.target is not None:
            self.report.num_without_target = summaries["without target"]
            for note, level in features.target.finalize(select_kind(summaries, "target"), self.schema):
                self._note(note, level)
        self._note_hints(features, dict(summaries.get("hints", ())))
        self.report.coerced = dict(sum(select_kind(summaries, "coerced").values(), Counter[str]()))

    def _note_hints(self, features: Features, hints: Mapping[str, str]) -> None:
        """Warn of features that alone tell the target, unless `Features.auto` has, or a split keeps their groups."""
        remarks = {remark.partition(": ")[0] for remark in features.remarks}
        named = remarks.union(map(escape_line, self.dataset.group_columns))
        notes = [f"feature {name!r}: {hint}" for name, hint in hints.items() if escape_line(name) not in named]
        for note in notes[:_SHOWN]:
            self._note(note, logging.WARNING)
        if (more := len(notes) - _SHOWN) > 0:
            self._note(f"as much may be said of {format_count(more, 'feature')} more", logging.WARNING)

    def _finalize(self, number: int, tasks: Sequence[FitTask], summaries: Summaries) -> None:
        """Let the steps learn from the sums of their summaries."""
        for index, task in enumerate(tasks):
            self._learned.append((number, task, [summaries["timing", index, n] for n in range(len(task.steps))]))
            fill = task.steps[task.free]
            try:
                for n, step in enumerate(task.steps):
                    summary = summaries["step", index, n]
                    if n > task.free:
                        assert isinstance(fill, pre.SimpleImputer), "only an imputer folds with the step after it"
                        summary = summary.filled(fill.statistics_)
                    _finish(step, summary, self.backend)
            except BadData as error:
                raise self._add_missing_targets(error) from error

    @pause_collector()
    def _observe_columns(self, features: Features, summaries: Summaries) -> None:
        """Report what the first pass has seen of columns, now that all steps hold their state."""
        # Of the fitted pipeline each column of the source is the start, wherever it has come from.
        self.source = Schema(item.as_origin() for item in self.source)
        self.schema = TransformPlan(self.steps, self.source, None).output_schema
        self.outputs = features._output_fields(self.schema)
        uses = ColumnUses.of(features, self.schema)
        stats, unscaled = collect_stats(summaries, uses), {*uses.unscaled}.difference(uses.numbers)
        rows, sample = summaries["sampled rows"], summaries["sample"]
        edges = compute_edges(features, self.schema, rows, sample, self.backend)  # profiles may sort the sample
        self.profiles = build_profiles(summaries, stats, uses)
        self.stats = {name: stat for name, stat in stats.items() if name not in unscaled}
        self.ranges = compute_ranges(self.outputs, self.schema, self.stats)
        self.edges = {name: extend_edges(each, self.ranges.get(name)) for name, each in edges.items()}
        # A column of the source that the transforms leave unchanged has the range that the fit has seen.
        columns = {item.name: item for item in self.schema if item.name in self.stats}
        same = [item.name for item in self.source if item == columns.get(item.name)]
        ends = {name: self.stats[name].range for name in same}
        seen_ends = {name: pair for name, pair in ends.items() if pair is not None}
        ordered = {name: each.ends for name, each in self._order_values.items()}
        gaps = {name: each.longest_gap for name, each in self._order_values.items()}
        known_gaps = {name: gap for name, gap in gaps.items() if gap is not None}
        self.source = Schema(self.source, seen_ends | ordered, gaps=known_gaps)
        self._warn_of_float32(stats)
        for line in _list_uninformative(features, self.stats, summaries["described"]):
            self._note(line, logging.WARNING)
        if findings := select_kind(summaries, "expect"):
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
        remedy, facts = f"({list(coarse)[:5]}, pre.StandardScaler())", list(coarse.values())[:5]
        for note, level in note_lost_digits(f"features {shorten_list(coarse)} lose", "their", facts, remedy):
            self._note(note, level)

    def _note(self, note: str, level: int = logging.INFO) -> None:
        self.report.notes.append(note)
        _log.log(level, "%s", note)

    def _report_step(self, number: int, task: FitTask, costs: Sequence[Mapping[str, Any]]) -> StepReport:
        names = [name for name in task.group.columns if name in self.stats]
        unknown = self.profiles.unknown if isinstance(task.steps[-1], pre.Categorify) else {}
        rare = [unknown[name] for name in names if name in unknown]
        return StepReport(
            number + 1,
            " + ".join(step.class_name for step in task.steps),
            shorten_list(task.group.columns),
            sum(self.stats[name].missing for name in names),
            sum(rare) / len(rare) if rare else None,
            sum(cost["seconds"] for cost in costs),
            max((cost["num_bytes"] for cost in costs), default=0),
        )

    def _fix_functions(self, schema: Schema) -> None:
        """Run each user function on the first partition that has rows, to learn its output schema."""
        if self.features is not None:
            resolve_selectors(self.steps, self.features, schema, strict=False)
        for position, step in enumerate(self.steps):
            if not isinstance(step, Map):
                continue
            source = mark_source(self.steps, self.features, self.dataset.schema)
            schemas = infer_schemas(self.steps, source)
            plan = TransformPlan(self.steps[: position + 1], source, step.adds or (), data_columns=frozenset())
            names = set(plan.reads)
            if self.features is not None:  # what the first pass will read, by names alone: others have not run yet
                fed = self.features.inputs | self.features._label_reads(schemas[-1])
                names |= trace_columns(self.steps, schemas, fed)
            reads = [name for name in source.names if name in names]
            trial = partial(probe_dtypes, plan, reads, self.backend, self._first)
            for partition in self.dataset.partitions:
                (step.dtypes_,) = get_executor().map(trial, [self.dataset.of_partitions([partition])], at_once=1)
                if step.dtypes_ is not None:
                    break

    @pause_collector()
    def _check(self, features: Features) -> None:
        # A label that reads no column, such as the name `1960` where no column has it.
        labels = [(label, text) for label in features._labels for text in label.texts]
        constants = [text for label, text in labels if not label.reads(self.schema, [text])]
        self.schema.require(constants, "Features")
        self.schema.require(features.keep, "Features")
        if features.target is not None:
            features.target.check(self.schema)  # before its names: it offers quotation marks for a word that is none
        self.schema.require(sorted(features._label_reads(self.schema)), "Features")
        # Before leaks: columns that are not there, or of a type no step takes.
        self.outputs = features._output_fields(self.schema)
        for note in features._check_leaks(self.schema):
            self._note(note, logging.WARNING)

    def _check_ties(self, features: Features, plan: TransformPlan) -> None:
        """Check for leaks again, where windows look at rows of the same time."""
        schema, positions, after = self.schema, set[int](), plan.compute_schema({*plan.ties})
        for position, num_ties in plan.ties.items():
            positions.add(position)
            before, schema = schema, plan.compute_schema(positions)
            step = plan.steps[position]
            assert isinstance(step, WholeTableTransform), "others have no order"
            for note in features._check_ties(schema, before, after, step, num_ties):
                self._note(note, logging.WARNING)

    def _add_missing_targets(self, error: BadData) -> BadData:
        without = self.report.num_without_target
        if not without:
            return error
        rows, lost = format_count(self.report.num_rows - without, "row"), format_count(without, "row")
        problem = f"{error.problem} in the {rows} with a target; {lost} without one teach nothing"
        facts = {} if error.got is None else {"got": error.got}
        return BadData(error.where, problem, expected=error.expected, remedy=error.remedy, **facts)


def _list_uninformative(features: Features, stats: Mapping[str, ColumnStats], num_rows: int) -> list[str]:
    """List the columns that the fit has shown to be constant, or nearly so, by the statistics of so many rows."""
    sentences = []
    for group in features.groups:
        empty, constants = [], []
        for step in (step for step in group.steps if isinstance(step, pre.Categorify)):
            sizes = {name: len(values) for name, values in step.vocabularies_.items()}
            empty += [name for name, size in sizes.items() if size == 0 and not step.num_buckets]
            whole = step.min_frequency is None and step.max_categories is None and step.vocabulary is None
            constants += [name for name, size in sizes.items() if size == 1 and whole]
        constants = [name for name in constants if name in stats and not stats[name].missing]
        numbers = {name: stats[name] for name in group.columns if name in stats and group.steps}
        # Integers from 2**53 on may differ although their floats are equal.
        alike = [name for name, column in numbers.items() if column.low == column.high and not column.missing]
        constants += [name for name in alike if abs(numbers[name].low) < _EXACT]
        gaps = [name for name, column in numbers.items() if column.missing == num_rows and name not in empty]
        # Of the others `Features.auto` has said it.
        constants = [name for name in constants if name not in features.constants]
        if empty:
            reason = "no value occurs often enough, so its vocabulary is empty"
            sentences.append(f"Categorify of {shorten_list(empty)}: {reason}")
        if constants:
            sentences.append(f"{shorten_list(constants)}: the same value in every row of the fit")
        if gaps:
            sentences.append(f"{shorten_list(gaps)}: no value in any row of the fit")
    return list(dict.fromkeys(sentences))  # a column may be in two groups


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
