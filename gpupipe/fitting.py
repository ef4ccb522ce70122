"""Learning a pipeline's state: a few passes over the partitions, each a fold shared by every step that is ready."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from gpupipe.backend import Frame
from gpupipe.cluster import active
from gpupipe.config import settings
from gpupipe.errors import BadData
from gpupipe.features import Features
from gpupipe.io import Dataset, FileNote, over_partitions
from gpupipe.plan import Prefix, Task, likely_reads, marked_source, plan_passes, resolve_selectors, wanted_in
from gpupipe.preprocessing import FoldStep, SimpleImputer
from gpupipe.summarising import Outcome, Pass, Trial
from gpupipe.transforms import Join, Map, Transform
from gpupipe.words import counted

__all__ = ["FitReport", "Fitting"]

KEEP_BYTES = 1 << 30
"""Columns a later pass needs stay in memory up to this many bytes, and up to a quarter of `memory_limit`."""


@dataclass
class FitReport:
    """What a fit saw and did.

    Args:
        num_rows: rows after the transforms; 0 where nothing is learned, since then nothing is read.
        num_without_target: rows of those left out because their target is missing.
        num_reads: how often the data was read, counted in whole passes.
        num_halved: partitions that were too large for memory, and were worked on in halves.
        unmatched: the share of rows without a match, by the join's name.
        rejected: the files whose rows it did not see, and why.
        seconds: wall time.
    """

    num_rows: int = 0
    num_without_target: int = 0
    num_reads: int = 0
    num_halved: int = 0
    unmatched: dict[str, float] = field(default_factory=dict)
    rejected: tuple[FileNote, ...] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        if not self.num_reads:
            return f"nothing to learn; {self.seconds:.1f} s"
        joins = "".join(f", {share:.1%} without a match in {name}" for name, share in self.unmatched.items())
        left_out = f", {self.num_without_target:,} without a target left out" if self.num_without_target else ""
        files = f", {counted(len(self.rejected), 'file')} rejected" if self.rejected else ""
        halved = f", {counted(self.num_halved, 'partition')} in halves for want of memory" if self.num_halved else ""
        rows, reads = counted(self.num_rows, "row"), counted(self.num_reads, "read")
        return f"fitted on {rows}{left_out}{joins}{files}; {reads}{halved}, {self.seconds:.1f} s"


class Fitting:
    """One fit of `steps` and `features` on `dataset`.

    Attributes:
        source: the dataset's schema with label columns marked.
        schema: the schema after the transforms, types of functions' results included.
    """

    def __init__(self, steps: Sequence[Transform], features: Features | None, dataset: Dataset, backend: str) -> None:
        self.steps, self.features, self.dataset, self.backend = steps, features, dataset, backend
        self.report = FitReport(rejected=dataset.rejected)
        self._first: dict[int, Frame] = {}
        self._kept: dict[int, Frame] = {}
        self._started = time.perf_counter()
        for step in steps:
            if isinstance(step, Map | Join):
                step.reset()
        if features is not None and features.target is not None:
            features.target.reset()
            features.rows_ = None
        resolve_selectors(steps, features, dataset.schema, strict=False)
        self._fix_functions()
        resolve_selectors(steps, features, dataset.schema)
        self.source = marked_source(steps, features, dataset.schema)
        self.schema = Prefix(steps, self.source, None).output_schema

    def run(self) -> FitReport:
        """Fit everything; the steps hold their state afterwards."""
        if self.features is not None:
            self._check(self.features)
            later, number = plan_passes(self.features) or [[]], 0
            while later:
                tasks, *later = later
                repeatable = [task.last for task in tasks if task.steps[-1].may_repeat]
                self._run_pass(self.features, number, tasks, later=[repeatable, *later] if repeatable else later)
                again = [task for task in repeatable if task.steps[-1].unfinished]
                later, number = [again, *later] if again else later, number + 1
        self.report.unmatched = {s.name: s.unmatched_share for s in self.steps if isinstance(s, Join) and s.rows_seen_}
        self.report.seconds = time.perf_counter() - self._started
        return self.report

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
        features.output_schema(self.schema)
        if features.target is not None:
            features.target.check(self.schema)
        features.check_leaks(self.schema)

    def _run_pass(
        self, features: Features, number: int, tasks: Sequence[Task], later: Sequence[Sequence[Task]]
    ) -> None:
        prefix = Prefix(self.steps, self.source, wanted_in([tasks, *later], features, self.schema))
        again = {name for tasks_ in later for task in tasks_ for name in task.reads(features, self.schema)}
        kept, self._kept = self._kept, {}
        self.report.num_reads += number == 0 or len(kept) < self.dataset.num_partitions
        here = active().in_process
        work = Pass(
            number, tasks, features, prefix, self.schema, self.backend, again if here else (), kept, self._first
        )
        title = f"fit {number + 1}/{number + 1 + len(later)}"
        with closing(over_partitions(work, self.dataset, self.backend, title)) as outcomes:
            total = self._total(outcomes)
        if number == 0:
            self.report.num_rows = total.num_rows
            self.report.num_without_target = total.target.num_missing
            if features.target is not None:
                features.target.finish(total.target, self.schema)
            features.rows_ = total.rows if features.cross_fits else None
            for join in (step for step in self.steps if isinstance(step, Join)):
                join.rows_seen_, join.rows_unmatched_ = total.joined.get(join.name, (0, 0))
        for task, summaries in zip(tasks, total.summaries, strict=True):
            done = task.free + 1
            for step, summary in zip(task.steps[:done], summaries[:done], strict=True):
                step.finish(summary)
            for step, summary in zip(task.steps[done:], summaries[done:], strict=True):
                step.finish(summary.filled(_fills(task.steps[task.free])))

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


def _fills(imputer: FoldStep) -> dict[str, Any]:
    assert isinstance(imputer, SimpleImputer), "only an imputer folds with the step after it"
    return imputer.statistics_
