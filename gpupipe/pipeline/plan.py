"""Fit plan: the columns each transform needs, the learned steps that share a pass, and the columns of window steps."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.errors import BadConfig
from gpupipe.io import Dataset
from gpupipe.io.planning.table import Table
from gpupipe.io.relational.side_columns import Attach, SideColumns, compute_columns
from gpupipe.io.relational.sort import ensure_unique_row_ids
from gpupipe.pipeline.feature_group import FeatureGroup
from gpupipe.pipeline.features import Features
from gpupipe.preprocessing import LearnedStep, SimpleImputer, StatelessStep
from gpupipe.schema import ROW, Role, Schema
from gpupipe.step import in_step
from gpupipe.support.text import shorten_list
from gpupipe.transforms import Expect, Join, Map, Sample, Transform, WholeTableTransform
from gpupipe.transforms.join import TableJoin


@dataclass(frozen=True)
class _Stage:
    step: Transform
    schema: Schema
    """The schema of its input."""
    wanted: frozenset[str]
    number: int
    """Its place among all steps."""


class TransformPlan:
    """Plan of the transforms in order, pruned to the wanted columns.

    Args:
        steps: the transforms.
        schema: the source's columns.
        wanted: the columns asked for after the last step; None asks for all.
        predicting: leave out the steps that drop rows only in training.
        there: the source's columns that the data has, where it may have fewer; others are not checked by `Expect`.
        counting: whether each `Expect` counts; else only those that raise are applied.
    """

    def __init__(
        self,
        steps: Sequence[Transform],
        schema: Schema,
        wanted: Iterable[str] | None,
        *,
        predicting: bool = False,
        there: AbstractSet[str] | None = None,
        counting: bool = False,
    ) -> None:
        numbers = [n for n, step in enumerate(steps) if not (predicting and getattr(step, "when", "") == "train")]
        used, schemas = [steps[number] for number in numbers], [schema]
        for step in used:
            schemas.append(step.output_schema(schemas[-1]))
        self.output_schema = schemas[-1]
        needed = set(self.output_schema.names if wanted is None else wanted)
        self.output_schema.require(sorted(needed), "pipeline")
        self.wanted = [name for name in self.output_schema.names if name in needed]
        stages = []
        for number, step, before in zip(reversed(numbers), reversed(used), reversed(schemas[:-1]), strict=True):
            used_as = step
            if isinstance(step, Expect):
                checks = counting or step.on_violation == "raise"
                used_as = step.of(_list_checkable(step, before, schema, there) if checks else ())
            stages.append(_Stage(used_as, before, frozenset(needed), number))
            needed = used_as.needs(needed, before)
        self._stages = stages[::-1]
        self.reads = [name for name in schema.names if name in needed]
        self.steps, self._source = used, schema
        self.keeps_rows = not any(step.changes_rows for step in used)
        self.side_columns: Mapping[int, SideColumns] = {}

    @property
    def draws_rows(self) -> bool:
        """Whether `run` asks for the rows' identities."""
        return bool(self.side_columns) or any(isinstance(step, Sample) for step in self.steps)

    @property
    def is_empty(self) -> bool:
        """Whether the wanted columns are the source's, of all its rows."""
        makers = [stage for stage in self._stages if isinstance(stage.step, WholeTableTransform)]
        return len(makers) == len(self._stages) and not self.window_steps

    @property
    def window_steps(self) -> list[int]:
        """The positions of window steps whose columns are wanted."""
        return [
            position
            for position, stage in enumerate(self._stages)
            if isinstance(stage.step, WholeTableTransform) and not stage.wanted.isdisjoint(stage.step.makes)
        ]

    def window_step(self, position: int) -> tuple[WholeTableTransform, Schema, list[str]]:
        """Return a window step, the schema before it, and the columns wanted of it."""
        stage = self._stages[position]
        assert isinstance(stage.step, WholeTableTransform), "no other step's rows have to meet"
        return stage.step, stage.schema, [name for name in stage.step.makes if name in stage.wanted]

    def prefix_of(self, position: int, side_columns: Mapping[int, SideColumns]) -> TransformPlan:
        """Return the plan of the steps before a window step, pruned to what it reads."""
        step, _, _ = self.window_step(position)
        checked = frozenset[str]()  # by each Expect in `run`
        return TransformPlan(self.steps[:position], self._source, step.reads, there=checked).with_side_columns(
            side_columns
        )

    def with_side_columns(self, found: Mapping[int, SideColumns]) -> TransformPlan:
        """Return the plan with window steps' columns attached, by the steps' positions.

        Without these, `run` takes a frame to hold all rows there are.
        """
        made = copy(self)
        made.side_columns = {position: found[position] for position in self.window_steps if position in found}
        return made

    @property
    def attach(self) -> Attach | None:
        """What gives the wanted columns where no step has to run any more; None where one has to."""
        if not self.side_columns or not all(isinstance(stage.step, WholeTableTransform) for stage in self._stages):
            return None
        found = ((self.side_columns[position], tuple(self.window_step(position)[2])) for position in self.window_steps)
        return Attach(tuple(found), tuple(self.wanted))

    def copy(self) -> TransformPlan:
        """Return a copy with copies of the steps, whose joins count from 0."""
        made = copy(self)
        stages = [replace(stage, step=copy(stage.step)) for stage in self._stages]
        for stage in stages:
            if isinstance(stage.step, TableJoin):
                stage.step.reset()
        vars(made).update(_stages=stages)
        return made

    def run(
        self,
        frame: Frame,
        backend: Backend,
        row_ids: Array | None = None,
        found: dict[Hashable, Any] | None = None,
        place: int = 0,
    ) -> Frame:
        """Run all steps on a coded frame that holds `reads`; return the frame of the wanted columns.

        With `draws_rows`, `row_ids` are the identities of the rows that the frame's index counts; where they are not
        given, the index' numbers stand for them. `found` gets what steps count, as summaries; `place` is the identity
        of the first row there.
        """
        frame = backend.select(frame, self.reads)
        for position, stage in enumerate(self._stages):
            with in_step(stage.step):
                if isinstance(stage.step, Sample):
                    frame = stage.step.apply(frame, stage.schema, stage.wanted, backend, row_ids)
                elif position in self.side_columns:
                    assert row_ids is not None, "these columns are found by the rows' identities"
                    _, _, names = self.window_step(position)
                    columns = self.side_columns[position].columns(names, row_ids[backend.positions(frame)], backend)
                    frame = backend.assign(frame, columns)
                elif isinstance(stage.step, Expect) and found is not None:
                    found["expect", stage.number] = stage.step.look(frame, stage.schema, backend, place)
                else:
                    frame = stage.step.apply(frame, stage.schema, stage.wanted, backend)
            if isinstance(stage.step, TableJoin) and found is not None:
                found["join", stage.step.name] = Counter(seen=stage.step.rows_seen_, lost=stage.step.rows_unmatched_)
        return backend.select(frame, self.wanted)


def _list_checkable(step: Expect, before: Schema, source: Schema, there: AbstractSet[str] | None) -> list[str]:
    """List the columns that a step can check where the data has only some of the source's."""
    return [
        name
        for name in step.columns
        if there is None or all(column in there for column in before[name].lineage if column in source)
    ]


def mark_source(steps: Sequence[Transform], features: Features | None, schema: Schema) -> Schema:
    """Return the source's schema with each column the start of a lineage, and label columns marked by their role.

    Labels are the columns that only target, weight and filters that act in training only read.
    """
    sources = (item.as_source() for item in schema)
    plain = Schema(item if item.role is None else replace(item, role=None) for item in sources)
    if features is None:
        return plain
    schemas = _infer_schemas(steps, plain)
    by_labels = _backwards(steps, schemas, features.label_reads(schemas[-1]))
    by_features = _backwards(steps, schemas, features.inputs, predicting=True)
    labels = by_labels - by_features
    return Schema(replace(item, role=Role.LABEL) if item.name in labels else item for item in plain)


def resolve_selectors(
    steps: Sequence[Transform], features: Features | None, schema: Schema, *, strict: bool = True
) -> None:
    """Resolve the selectors of `features` against the columns after the transforms.

    Without `strict`, functions that have not run yet may still add some.
    """
    if features is not None:
        features.resolve(_infer_schemas(steps, Schema(item.as_source() for item in schema))[-1], strict=strict)


def likely_reads(steps: Sequence[Transform], features: Features | None, schema: Schema) -> set[str]:
    """Return the source columns a fit will read, by names alone while some functions have not run yet."""
    if features is None:
        return set()
    schemas = _infer_schemas(steps, schema)
    reads = _backwards(steps, schemas, features.inputs | features.label_reads(schemas[-1]))
    return {name for name in reads if name in schema}


def collect_wanted(passes: Sequence[Sequence[FitTask]], features: Features, after: Schema) -> set[str]:
    """Return the columns after the transforms that these passes read."""
    columns = {name for tasks in passes for task in tasks if not task.group.of_target for name in task.group.columns}
    return columns | features.label_reads(after)


def _infer_schemas(steps: Sequence[Transform], schema: Schema) -> list[Schema]:
    """List the schema before each step and after the last, up to the first function that has not run yet."""
    schemas = [schema]
    known = True
    for step in steps:
        known = known and not (isinstance(step, Map) and step.dtypes_ is None)
        schemas.append(step.output_schema(schemas[-1]) if known else schemas[-1])
    return schemas


def _backwards(
    steps: Sequence[Transform], schemas: Sequence[Schema], wanted: AbstractSet[str], *, predicting: bool = False
) -> set[str]:
    """Return the columns before the first step that `wanted` is computed from."""
    needed = set(wanted)
    for step, before in zip(reversed(steps), reversed(schemas[:-1]), strict=True):
        if not (predicting and getattr(step, "when", "always") == "train"):
            needed = _explicit_needs(step, needed, before)
    return needed


def _explicit_needs(step: Transform, wanted: AbstractSet[str], schema: Schema) -> set[str]:
    """Return the columns a step needs by name; functions that read everything, and checks, name none."""
    if isinstance(step, Expect):
        return set(wanted)
    if isinstance(step, Map) and step.reads is None:
        return set(wanted) - set(step.adds or ())
    return step.needs(wanted, schema)


@dataclass(frozen=True)
class FitTask:
    """Task of one pass for one group: the step at `position`, with the one after it where they are summarized together.

    Before them stand `free` steps that learn nothing from the rows and transform them at once.
    """

    group: FeatureGroup
    position: int
    fused: bool
    free: int = 0

    def reads(self, features: Features, schema: Schema) -> set[str]:
        """Return the columns it reads, including the target's where needed; `schema` is that after the transforms."""
        of_target = self.group.of_target or self.group.cross_fits
        labels = features.target.reads(schema) if of_target and features.target is not None else []
        return set(labels) | (set() if self.group.of_target else set(self.group.columns))

    @property
    def steps(self) -> list[LearnedStep]:
        return self.group.steps[self.position : self.position + self.free + 1 + self.fused]

    @property
    def last(self) -> FitTask:
        """The same for its last step alone."""
        return FitTask(self.group, self.position + len(self.steps) - 1, fused=False)


def plan_passes(features: Features) -> list[list[FitTask]]:
    """Plan the tasks of each pass; there are as many passes as the longest chain of dependent steps."""
    passes: list[list[FitTask]] = []
    for group in features.learned:
        position, number = 0, 0
        while position < len(group.steps):
            free = _num_free(group.steps[position:])
            fused = _folds_with_next(group.steps[position + free : position + free + 2])
            if number == len(passes):
                passes.append([])
            passes[number].append(FitTask(group, position, fused, free))
            position, number = position + free + 1 + fused, number + 1
    return passes


def _num_free(steps: Sequence[LearnedStep]) -> int:
    """Count the steps before the first that learns from the rows; the last one is never among them."""
    free = [*(not _learns(step) for step in steps[:-1]), False].index(False)
    # The fill of an imputer costs nothing where it enters the summary of the step that learns.
    return free - (free > 0 and _learns(steps[free]) and _folds_with_next(steps[free - 1 : free + 1]))


def _learns(step: LearnedStep) -> bool:
    return not isinstance(step, StatelessStep) and not (isinstance(step, SimpleImputer) and step.strategy == "constant")


def _folds_with_next(steps: Sequence[LearnedStep]) -> bool:
    """Return whether an imputer's fill can enter the summary of the step after it."""
    return (
        len(steps) == 2 and isinstance(steps[0], SimpleImputer) and not steps[0].add_indicator and steps[1].fills_late
    )


_log = logging.getLogger("gpupipe")

Typed = Callable[[Frame, Backend], Frame]
"""Gives the columns of a frame as read the types that steps expect."""


def materialize_window_columns(
    prefix: TransformPlan, dataset: Dataset, backend: str, typed: Typed | None = None
) -> tuple[TransformPlan, Dataset]:
    """Compute the columns of window steps; return the plan that contains them, and the dataset to run it on.

    Args:
        prefix: the steps.
        dataset: all rows that such a step is to see.
        backend: `"cpu"` or `"gpu"`.
        typed: what is done to a frame before the first step; None does nothing.

    Raises:
        BadConfig: a join that repeats rows stands before such a step.

    Memory: see `compute_columns`.
    """
    if not prefix.window_steps:
        return prefix, dataset
    blind = [
        step.class_name
        for step, _, _ in map(prefix.window_step, prefix.window_steps)
        if dataset.query.cuts_history(step.keys)
    ]
    if blind:
        _log.warning(
            "%s: a split part of the data, whose rows do not see those of the other parts; for a whole history "
            "transform first, gp.Pipeline(steps).fit(data).transform(data), and split what comes out",
            shorten_list(dict.fromkeys(blind)),
        )
    dataset = ensure_unique_row_ids(replace(dataset, backend=backend))
    found: dict[int, SideColumns] = {}
    for position in prefix.window_steps:
        before = prefix.prefix_of(position, found)
        _check_identities(before)
        step, schema, wanted = prefix.window_step(position)
        inputs = list(schema.select(step.reads))
        made = [item for item in step.made_fields(schema) if item.name in wanted]
        plan = partial(step.plan, schema=schema, wanted=frozenset(wanted), backend=backend)
        rows = None if typed is None and before.is_empty else _Gathering(before, typed)
        with in_step(step):
            found[position] = compute_columns(dataset, inputs, step.keys, plan, made, type(step).__name__, rows)
    return prefix.with_side_columns(found), dataset


def _check_identities(before: TransformPlan) -> None:
    for step in before.steps:
        if isinstance(step, Join) and step.many:
            raise BadConfig(
                "Pipeline",
                "a window step follows a join that repeats rows",
                got=step,
                expected="rows that can be told apart",
                remedy="the join after it, or Dataset.join(..., many=True) before the pipeline",
            )


@dataclass(frozen=True)
class _Gathering:
    """Function that reads a partition's columns for a window step."""

    before: TransformPlan
    typed: Typed | None

    def __call__(self, part: Table, backend: Backend) -> Frame:
        (partition,) = part.partitions
        ids = partition.row_ids(backend.xp)
        frame = part.read(partition, self.before.reads, backend)
        frame = frame if self.typed is None else self.typed(frame, backend)
        frame = self.before.copy().run(frame, backend, ids)
        return backend.assign(frame, {ROW: Column("uint64", ids[backend.positions(frame)])})
