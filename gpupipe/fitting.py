"""Learning a pipeline's state: a few passes over the partitions, each a fold shared by every step that is ready."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from functools import partial
from typing import Any

from gpupipe.backend import Frame, select
from gpupipe.check_report import CheckReport, places_in
from gpupipe.cluster import active
from gpupipe.config import settings
from gpupipe.errors import BadData
from gpupipe.expectations import Expectations
from gpupipe.features import Features
from gpupipe.io import Dataset, over_partitions
from gpupipe.io.relational.side_columns import SideColumns
from gpupipe.plan import Prefix, Task, likely_reads, marked_source, plan_passes, resolve_selectors, wanted_in
from gpupipe.preprocessing import Categorify, FoldStep, SimpleImputer
from gpupipe.profiles import Profile
from gpupipe.ranges import output_ranges
from gpupipe.reports import FitReport, StepReport
from gpupipe.schema import Kind, Schema
from gpupipe.seen import Note, Seen, Taking, coarse_spacing
from gpupipe.summarising import Cost, Outcome, Pass, Trial
from gpupipe.targets import Targets
from gpupipe.together import put_together
from gpupipe.transforms import JoinAsOf, Map, Transform
from gpupipe.transforms.table_join import TableJoin
from gpupipe.watching import categories_of, numbers_of, others_of, unscaled_of
from gpupipe.words import shortened

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
        expectations: of its columns.
        samples: whether rows are drawn, to compare others with.

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
        expectations: Expectations | None = None,
        *,
        samples: bool = False,
    ) -> None:
        self.steps, self.features, self.dataset, self.backend = steps, features, dataset, backend
        self._expectations, self._samples = expectations or Expectations({}), samples
        self.profiles: dict[str, Profile] = {}
        self.seen: dict[str, Seen] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self._learned: list[tuple[int, Task, list[Cost]]] = []
        self._note = Note()
        self.report = FitReport(rejected=dataset.rejected)
        self._first: dict[int, Frame] = {}
        self._side_columns: Mapping[int, SideColumns] = {}
        self._kept: dict[int, Frame] = {}
        self._started = time.perf_counter()
        for step in steps:
            if isinstance(step, Map | TableJoin):
                step.reset()
        if features is not None and features.target is not None:
            features.target.reset()
            features.rows_ = None
        resolve_selectors(steps, features, dataset.schema, strict=False)
        self._fix_functions()
        resolve_selectors(steps, features, dataset.schema)
        for note in () if features is None else features.left_out:
            self.report.notes.append(note)
            _log.info("%s", note)
        self.source = marked_source(steps, features, dataset.schema)
        self.schema = Prefix(steps, self.source, None).output_schema
        self._expectations.check(self.source)

    def run(self) -> FitReport:
        """Fit everything; the steps hold their state afterwards."""
        if self.features is not None:
            self._check(self.features)
            later, number = plan_passes(self.features) or [[]], 0
            self._meet({*wanted_in(later, self.features, self.schema), *unscaled_of(self.features, self.schema)})
            while later:
                tasks, *later = later
                repeatable = [task.last for task in tasks if task.steps[-1].may_repeat]
                self._run_pass(self.features, number, tasks, later=[repeatable, *later] if repeatable else later)
                again = [task for task in repeatable if task.steps[-1].unfinished]
                later, number = [again, *later] if again else later, number + 1
            self._conclude(self.features)
        joins = [step for step in self.steps if isinstance(step, TableJoin) and step.rows_seen_]
        self.report.unmatched = {join.name: join.unmatched_share for join in joins}
        self.report.seconds = time.perf_counter() - self._started
        return self.report

    def _conclude(self, features: Features) -> None:
        """Tell what was noted of the rows, now that all steps hold their state."""
        note, report, categories = self._note, self.report, categories_of(features, self.schema)
        unscaled = set(unscaled_of(features, self.schema)) - set(numbers_of(features, self.schema))
        self.seen = {name: seen for name, seen in note.columns.items() if name not in unscaled}
        self.ranges = output_ranges(features, self.schema, self.seen)
        self._warn_of_float32(features, note.columns)
        if self._samples:
            vocabularies = {name: step.vocabularies_[name] for name, (_, step) in categories.items()}
            missing = {name: seen.missing / max(note.num_rows, 1) for name, seen in note.columns.items()}
            self.profiles = note.sample.profiles(vocabularies, missing)
        for line in _uninformative(features, self.seen):
            report.notes.append(line)
            _log.warning("%s", line)
        self._expectations.enforce(note.findings)
        report.checks = CheckReport.of(note.findings, self._expectations, places_in(self.dataset.partitions))
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

    def _step_report(self, number: int, task: Task, costs: Sequence[Cost]) -> StepReport:
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
            prefix = Prefix(self.steps[:position], source, step.needs(wanted, before))
            names = {*prefix.reads, *likely_reads(self.steps, self.features, source)}
            reads = [name for name in source.names if name in names]
            trial = Trial(step, prefix, before, wanted, reads, self.backend, self._first)
            for part in self.dataset.parts():
                (step.dtypes_,) = active().map(trial, [part], at_once=1)
                if step.dtypes_ is not None:
                    break

    def _check(self, features: Features) -> None:
        """Everything that names and types can tell, before any pass."""
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
        if number == 0:
            wanted |= set(unscaled_of(features, self.schema))
        prefix = Prefix(self.steps, self.source, wanted).knowing(self._side_columns)
        again = {name for tasks_ in later for task in tasks_ for name in task.reads(features, self.schema)}
        kept, self._kept = self._kept, {}
        self.report.num_reads += number == 0 or len(kept) < self.dataset.num_partitions
        here = active().in_process
        work = Pass(
            number,
            tasks,
            features,
            prefix,
            self.schema,
            self.backend,
            again if here else (),
            kept,
            self._first,
            self._taking(features, prefix) if number == 0 else None,
        )
        title = f"fit {number + 1}/{number + 1 + len(later)}"
        with closing(over_partitions(work, self.dataset, self.backend, title)) as outcomes:
            total = self._total(outcomes)
        if number == 0:
            self.report.num_rows = total.num_rows
            self.report.num_without_target = total.target.num_missing
            if features.target is not None:
                features.target.finish(total.target, self.schema)
                self._tell_task(features.target)
            features.rows_ = total.rows if features.cross_fits else None
            self._note = total.note
            for join in (step for step in self.steps if isinstance(step, TableJoin)):
                join.rows_seen_, join.rows_unmatched_ = total.joined.get(join.name, (0, 0))
        self._learned += [(number, task, costs) for task, costs in zip(tasks, total.costs, strict=True)]
        for task, summaries in zip(tasks, total.summaries, strict=True):
            done = task.free + 1
            for step, summary in zip(task.steps[:done], summaries[:done], strict=True):
                _finish(step, summary, self.backend)
            for step, summary in zip(task.steps[done:], summaries[done:], strict=True):
                _finish(step, summary.filled(_fills(task.steps[task.free])), self.backend)

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

    def _taking(self, features: Features, prefix: Prefix) -> Taking:
        """What the first pass notes."""
        there = self.schema.select(prefix.wanted)
        numbers = numbers_of(features, there)
        return Taking(
            self._expectations,
            self.source,
            numbers,
            list(categories_of(features, there)),
            unscaled_of(features, there),
            others_of(features, there, numbers),
            self._samples,
            sum(partition.num_rows for partition in self.dataset.partitions),
        )

    def _total(self, outcomes: Iterator[Outcome]) -> Outcome:
        """The sum of all, in order; columns a later pass needs are kept while there is room."""
        limit = settings().memory_limit
        total, room = None, KEEP_BYTES if limit is None else min(KEEP_BYTES, limit // 4)
        seen, halved = set[int](), set[int]()
        for outcome in outcomes:
            halved |= {outcome.partition} & seen
            seen.add(outcome.partition)
            if outcome.kept is not None and room >= 0:
                self._kept[outcome.partition] = outcome.kept
                room -= int(outcome.kept.memory_usage(index=False).sum())
            total = outcome if total is None else total + outcome
        self.report.num_halved += len(halved)
        for partition in list(self._kept) if room < 0 else halved & self._kept.keys():
            del self._kept[partition]
        if total is None:
            raise BadData(
                "fit",
                "the dataset has no partitions",
                expected="rows to learn from",
                remedy="a look at the files or the split",
            )
        return total


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
    executor = active()
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
