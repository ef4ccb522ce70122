"""Learning a pipeline's state: a few passes over the partitions, each a fold shared by every step that is ready."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpupipe.backend import Array, Backend, Frame
from gpupipe.errors import BadData
from gpupipe.features import Features
from gpupipe.io import Dataset, Partition
from gpupipe.passes import in_partition, over_partitions
from gpupipe.plan import Prefix, Task, likely_reads, marked_source, plan_passes, wanted_in
from gpupipe.preprocessing import Columns, FoldStep, SimpleImputer, WholeFrameStep
from gpupipe.target import TargetSummary
from gpupipe.transforms import Join, Map, Transform
from gpupipe.words import counted

__all__ = ["FitReport", "Fitting"]

KEEP_BYTES = 1 << 30
"""Columns that a later pass needs again stay in memory up to this many bytes; beyond it they are read again."""


@dataclass
class FitReport:
    """What a fit saw and did.

    Args:
        num_rows: rows after the transforms; 0 where nothing is learned, since then nothing is read.
        num_without_target: rows of those left out because their target is missing.
        num_reads: how often the data was read, counted in whole passes.
        unmatched: the share of rows without a match, by the join's name.
        seconds: wall time.
    """

    num_rows: int = 0
    num_without_target: int = 0
    num_reads: int = 0
    unmatched: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        if not self.num_reads:
            return f"nothing to learn; {self.seconds:.1f} s"
        joins = "".join(f", {share:.1%} without a match in {name}" for name, share in self.unmatched.items())
        left_out = f", {self.num_without_target:,} without a target left out" if self.num_without_target else ""
        rows, reads = counted(self.num_rows, "row"), counted(self.num_reads, "read")
        return f"fitted on {rows}{left_out}{joins}; {reads}, {self.seconds:.1f} s"


@dataclass
class _Outcome:
    """One partition's contribution to one pass."""

    num_rows: int
    target: TargetSummary
    summaries: list[list[Any]]
    kept: Frame | None


class Fitting:
    """One fit of `steps` and `features` on `dataset`.

    Attributes:
        source: the dataset's schema with label columns marked.
        schema: the schema after the transforms, types of functions' results included.
    """

    def __init__(
        self, steps: Sequence[Transform], features: Features | None, dataset: Dataset, backend: Backend
    ) -> None:
        self.steps, self.features, self.dataset, self.backend = steps, features, dataset, backend
        self.report = FitReport()
        self._first: dict[int, Frame] = {}
        self._kept: dict[int, Frame] = {}
        self._started = time.perf_counter()
        for step in steps:
            if isinstance(step, Map | Join):
                step.reset()
        if features is not None and features.target is not None:
            features.target.reset()
        self._fix_functions()
        self.source = marked_source(steps, features, dataset.schema)
        self.schema = Prefix(steps, self.source, None).output_schema

    def run(self) -> FitReport:
        """Fit everything; the steps hold their state afterwards."""
        if self.features is not None:
            self._check()
            passes = plan_passes(self.features)
            for number, tasks in enumerate(passes or [[]]):
                self._run_pass(number, tasks, later=passes[number + 1 :])
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
            for partition in self.dataset.partitions:
                with in_partition(partition):
                    frame = self._read(partition, [name for name in source.names if name in names])
                    self._first[partition.index] = frame
                    seen = prefix.run(self.backend.select(frame, prefix.reads), self.backend)
                    step.apply(seen, before, wanted, self.backend)
                if step.dtypes_ is not None:
                    break

    def _read(self, partition: Partition, names: Sequence[str]) -> Frame:
        """These columns of one partition; the first ones, read for the functions, are not read again."""
        frame = self._first.pop(partition.index, None)
        if frame is None:
            return self.dataset.read(partition, names, self.backend)
        missing = [name for name in names if name not in frame.columns]
        if missing:
            more = self.dataset.read(partition, missing, self.backend)
            frame = self.backend.assign(frame, {name: self.backend.column(more, name) for name in missing})
        return frame

    def _check(self) -> None:
        """Everything that names and types can tell, before any pass."""
        assert self.features is not None
        self.schema.require([*self.features.keep, *sorted(self.features.label_reads(self.schema))], "Features")
        self.features.output_schema(self.schema)
        self.features.check_leaks(self.schema)

    def _run_pass(self, number: int, tasks: Sequence[Task], later: Sequence[Sequence[Task]]) -> None:
        assert self.features is not None
        prefix = Prefix(self.steps, self.source, wanted_in([tasks, *later], self.features, self.schema))
        again = {name for tasks_ in later for task in tasks_ for name in task.group.columns}
        kept, self._kept = self._kept, {}
        partitions = self.dataset.partitions
        self.report.num_reads += number == 0 or len(kept) < len(partitions)
        total: _Outcome | None = None

        def work(partition: Partition) -> _Outcome:
            return self._summarise(partition, kept.pop(partition.index, None), prefix, tasks, again)

        room, title = KEEP_BYTES, f"fit {number + 1}/{number + 1 + len(later)}"
        for partition, outcome in zip(partitions, over_partitions(work, partitions, self.backend, title), strict=True):
            if outcome.kept is not None and room >= 0:
                self._kept[partition.index] = outcome.kept
                room -= int(outcome.kept.memory_usage(index=False).sum())
            total = outcome if total is None else _sum(total, outcome)
        if room < 0:
            self._kept.clear()
        if total is None:
            raise BadData(
                "fit",
                "the dataset has no partitions",
                expected="rows to learn from",
                remedy="a look at the files or the split",
            )
        self._finish(number, tasks, total)

    def _summarise(
        self, partition: Partition, frame: Frame | None, prefix: Prefix, tasks: Sequence[Task], again: set[str]
    ) -> _Outcome:
        assert self.features is not None
        target, backend, seen = self.features.target, self.backend, TargetSummary()
        if frame is None:
            read = self._read(partition, prefix.reads)
            frame = prefix.run(backend.select(read, prefix.reads), backend)
        num_rows = len(frame)
        if target is not None and all(name in frame.columns for name in target.reads(self.schema)):
            seen = target.summarise(frame, self.schema, backend)
            present = target.present(frame, self.schema, backend)
            if present is not None:
                frame = backend.filter(frame, present)
        # The same row has the same number for any partitioning, so what is sampled by it does not depend on partitions.
        row_numbers = partition.row_ids(backend.xp)[backend.positions(frame)]
        summaries = []
        for task in tasks:
            columns = task.group.columns_of(frame, backend, task.position)
            summaries.append([_summary(step, columns, backend, row_numbers) for step in task.steps])
        return _Outcome(num_rows, seen, summaries, backend.select(frame, again) if again else None)

    def _finish(self, number: int, tasks: Sequence[Task], total: _Outcome) -> None:
        assert self.features is not None
        if number == 0:
            self.report.num_rows = total.num_rows
            self.report.num_without_target = total.target.num_missing
            if self.features.target is not None:
                self.features.target.finish(total.target, self.schema)
        for task, summaries in zip(tasks, total.summaries, strict=True):
            first, *rest = task.steps
            first.finish(summaries[0])
            for step, summary in zip(rest, summaries[1:], strict=True):
                step.finish(summary.filled(_fills(first)))


def _summary(step: FoldStep, columns: Columns, backend: Backend, row_numbers: Array) -> Any:
    if isinstance(step, WholeFrameStep):
        return step.summarise(columns, backend, row_numbers)
    return step.summarise(columns, backend)


def _sum(left: _Outcome, right: _Outcome) -> _Outcome:
    summaries = [
        [a + b for a, b in zip(mine, theirs, strict=True)]
        for mine, theirs in zip(left.summaries, right.summaries, strict=True)
    ]
    return _Outcome(left.num_rows + right.num_rows, left.target + right.target, summaries, None)


def _fills(imputer: FoldStep) -> dict[str, Any]:
    assert isinstance(imputer, SimpleImputer), "only an imputer folds with the step after it"
    return imputer.statistics_
