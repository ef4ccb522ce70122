"""Fit plan: the columns each transform needs, the learned steps that share a pass, and the columns of window steps."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.errors import BadConfig
from gpupipe.io import Dataset
from gpupipe.io.planning.table import Table
from gpupipe.io.relational.side_columns import Attach, SideColumns, compute_columns
from gpupipe.io.relational.sort import ensure_unique_row_ids
from gpupipe.pipeline.features import FeatureGroup, Features
from gpupipe.preprocessing import LearnedStep, SimpleImputer, StatelessStep
from gpupipe.schema import ROW, Role, Schema, shorten_list
from gpupipe.step import in_step
from gpupipe.transforms import Expect, Join, Map, Sample, Transform, WholeTableTransform
from gpupipe.transforms.join import TableJoin

_log = logging.getLogger("gpupipe")

Typed = Callable[[Frame, Backend], Frame]
"""Gives the columns of a frame as read the types that steps expect."""


class _Stage(NamedTuple):
    step: Transform
    schema: Schema  # of its input
    wanted: frozenset[str]
    number: int  # its place among all steps


class TransformPlan:
    """Plan of the transforms in order, pruned to the columns that are wanted after the last (all, with None).

    `predicting` leaves out the steps that drop rows only in training. `there` are the source's columns that the data
    has, where it may have fewer: others are not checked by `Expect`, of which each counts if `counting`, and else only
    those that raise are applied.
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
        self.steps, schemas = [steps[number] for number in numbers], [schema]
        for step in self.steps:
            schemas.append(step.output_schema(schemas[-1]))
        self.output_schema = schemas[-1]
        needed = set(self.output_schema.names if wanted is None else wanted)
        self.output_schema.require(sorted(needed), "pipeline")
        self.wanted = [name for name in self.output_schema.names if name in needed]
        self._stages: list[_Stage] = []
        for number, step, before in zip(reversed(numbers), reversed(self.steps), reversed(schemas[:-1]), strict=True):
            used_as = step
            if isinstance(step, Expect):
                lacking = set() if there is None else {*schema.names} - there
                checks = counting or step.on_violation == "raise"
                used_as = step.of(
                    [name for name in step.columns if checks and lacking.isdisjoint(before[name].lineage)]
                )
            self._stages.insert(0, _Stage(used_as, before, frozenset(needed), number))
            needed = used_as.needs(needed, before)
        self.reads = [name for name in schema.names if name in needed]
        self._source = schema
        self.keeps_rows = not any(step.changes_rows for step in self.steps)
        self.side_columns: Mapping[int, SideColumns] = {}
        """Of window steps, by position; without these, `run` takes a frame to hold all rows there are."""

    @property
    def draws_rows(self) -> bool:
        """Whether `run` asks for the rows' identities."""
        return bool(self.side_columns) or any(isinstance(step, Sample) for step in self.steps)

    @property
    def window_steps(self) -> dict[int, tuple[WholeTableTransform, Schema, list[str]]]:
        """By its position each window step whose columns are wanted, the schema before it, and these columns."""
        return {
            position: (step, before, [name for name in step.makes if name in wanted])
            for position, (step, before, wanted, _) in enumerate(self._stages)
            if isinstance(step, WholeTableTransform) and not wanted.isdisjoint(step.makes)
        }

    def before(self, position: int) -> TransformPlan:
        """Return the plan of the steps before a window step, pruned to what it reads."""
        step = self.steps[position]
        assert isinstance(step, WholeTableTransform), "no other step's rows have to meet"
        checked = frozenset[str]()  # by each Expect in `run`
        return TransformPlan(self.steps[:position], self._source, step.reads, there=checked)

    def with_side_columns(self, found: Mapping[int, SideColumns]) -> TransformPlan:
        """Return the plan with window steps' columns attached."""
        made = copy(self)
        made.side_columns = {position: found[position] for position in self.window_steps if position in found}
        return made

    @property
    def only_attaches(self) -> bool:
        """Whether no step but window steps has to run."""
        return all(isinstance(stage.step, WholeTableTransform) for stage in self._stages)

    @property
    def attach(self) -> Attach | None:
        """What gives the wanted columns where no step has to run any more; None where one has to."""
        if not self.side_columns or not self.only_attaches:
            return None
        found = ((self.side_columns[place], tuple(names)) for place, (_, _, names) in self.window_steps.items())
        return Attach(tuple(found), tuple(self.wanted))

    def copy(self) -> TransformPlan:
        """Return a copy with copies of the steps, whose joins count from 0."""
        made = copy(self)
        made._stages = [stage._replace(step=copy(stage.step)) for stage in self._stages]
        for stage in made._stages:
            if isinstance(stage.step, TableJoin):
                stage.step.reset()
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
        for position, (step, before, wanted, number) in enumerate(self._stages):
            with in_step(step):
                if isinstance(step, Sample):
                    frame = step.apply(frame, before, wanted, backend, row_ids)
                elif position in self.side_columns and isinstance(step, WholeTableTransform):
                    assert row_ids is not None, "these columns are found by the rows' identities"
                    names, ids = [name for name in step.makes if name in wanted], row_ids[backend.positions(frame)]
                    frame = backend.assign(frame, self.side_columns[position].columns(names, ids, backend))
                elif isinstance(step, Expect) and found is not None:
                    found["expect", number] = step.look(frame, before, backend, place)
                else:
                    frame = step.apply(frame, before, wanted, backend)
            if isinstance(step, TableJoin) and found is not None:
                found["join", step.name] = Counter(seen=step.rows_seen_, lost=step.rows_unmatched_)
        return backend.select(frame, self.wanted)


def mark_source(steps: Sequence[Transform], features: Features | None, schema: Schema) -> Schema:
    """Return the source's schema with each column the start of a lineage, and label columns marked by their role.

    Labels are the columns that only target, weight and filters that act in training only read.
    """
    sources = (item.as_source() for item in schema)
    plain = Schema(item if item.role is None else replace(item, role=None) for item in sources)
    if features is None:
        return plain
    schemas = _infer_schemas(steps, plain)
    labels = _backwards(steps, schemas, features._label_reads(schemas[-1]))
    labels -= _backwards(steps, schemas, features.inputs, predicting=True)
    return Schema(replace(item, role=Role.LABEL) if item.name in labels else item for item in plain)


def resolve_selectors(steps: Sequence[Transform], features: Features, schema: Schema, *, strict: bool) -> None:
    """Resolve the selectors of `features`; without `strict`, functions that have not run yet may still add columns."""
    features._resolve(_infer_schemas(steps, Schema(item.as_source() for item in schema))[-1], strict=strict)


def likely_reads(steps: Sequence[Transform], features: Features, schema: Schema) -> set[str]:
    """Return the source columns a fit will read, by names alone while some functions have not run yet."""
    schemas = _infer_schemas(steps, schema)
    reads = _backwards(steps, schemas, features.inputs | features._label_reads(schemas[-1]))
    return {name for name in reads if name in schema}


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


def collect_wanted(passes: Sequence[Sequence[FitTask]], features: Features, after: Schema) -> set[str]:
    """Return the columns after the transforms that these passes read."""
    columns = {name for tasks in passes for task in tasks if not task.group.of_target for name in task.group.columns}
    return columns | features._label_reads(after)


def plan_passes(features: Features) -> list[list[FitTask]]:
    """Plan the tasks of each pass; there are as many passes as the longest chain of dependent steps."""
    passes: list[list[FitTask]] = []
    for group in features._learned:
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


def materialize_window_columns(
    prefix: TransformPlan, dataset: Dataset, backend: str, typed: Typed | None = None
) -> tuple[TransformPlan, Dataset]:
    """Compute the columns of window steps; return the plan that contains them, and the dataset to run it on.

    `typed` is done to a frame before the first step. Memory: see `compute_columns`.
    """
    windows = prefix.window_steps
    if not windows:
        return prefix, dataset
    blind = [step.class_name for step, _, _ in windows.values() if dataset.query.cuts_history(step.keys)]
    if blind:
        _log.warning(
            "%s: a split part of the data, whose rows do not see those of the other parts; for a whole history "
            "transform first, gp.Pipeline(steps).fit(data).transform(data), and split what comes out",
            shorten_list(dict.fromkeys(blind)),
        )
    dataset = ensure_unique_row_ids(replace(dataset, backend=backend))
    found: dict[int, SideColumns] = {}
    for position, (step, schema, wanted) in windows.items():
        before = prefix.before(position).with_side_columns(found)
        for repeating in (other for other in before.steps if isinstance(other, Join) and other.many):
            problem = "a window step follows a join that repeats rows"
            remedy = "the join after it, or Dataset.join(..., many=True) before the pipeline"
            raise BadConfig("Pipeline", problem, got=repeating, expected="rows that can be told apart", remedy=remedy)
        inputs = list(schema.select(step.reads))
        made = [item for item in step.made_fields(schema) if item.name in wanted]
        plan = partial(step.plan, schema=schema, wanted=frozenset(wanted), backend=backend)
        is_source = typed is None and before.only_attaches and not before.window_steps
        rows = None if is_source else partial(_gather, before, typed)
        with in_step(step):
            found[position] = compute_columns(dataset, inputs, step.keys, plan, made, type(step).__name__, rows)
    return prefix.with_side_columns(found), dataset


def _gather(before: TransformPlan, typed: Typed | None, part: Table, backend: Backend) -> Frame:
    """Read a partition's columns for a window step."""
    (partition,) = part.partitions
    ids = partition.row_ids(backend.xp)
    frame = part.read(partition, before.reads, backend)
    frame = frame if typed is None else typed(frame, backend)
    frame = before.copy().run(frame, backend, ids)
    return backend.assign(frame, {ROW: Column("uint64", ids[backend.positions(frame)])})
