"""What has to be read and done: which columns each transform needs, and which learned steps share a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from gpupipe.backend import Array, Backend, Frame
from gpupipe.io.relational.side_columns import Attach, SideColumns
from gpupipe.pipeline.feature_group import Group
from gpupipe.pipeline.features import Features
from gpupipe.preprocessing import FoldStep, SimpleImputer, StatelessStep
from gpupipe.schema import Role, Schema
from gpupipe.step import in_step
from gpupipe.transforms import Expect, Map, Sample, Transform, WholeTableTransform
from gpupipe.transforms.table_join import TableJoin

__all__ = ["Prefix", "Task", "likely_reads", "marked_source", "plan_passes", "resolve_selectors", "wanted_in"]


@dataclass(frozen=True)
class _Stage:
    step: Transform
    schema: Schema
    """The schema of its input."""
    wanted: frozenset[str]
    number: int
    """Its place among all steps."""


class Prefix:
    """The transforms in order, pruned to what is wanted of them.

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
                used_as = step.of(_checked(step, before, schema, there) if checks else ())
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
        return len(makers) == len(self._stages) and not self.meeting

    @property
    def meeting(self) -> list[int]:
        """The steps, by their position, that look at other rows, and whose columns are wanted."""
        return [
            position
            for position, stage in enumerate(self._stages)
            if isinstance(stage.step, WholeTableTransform) and not stage.wanted.isdisjoint(stage.step.makes)
        ]

    def stage(self, position: int) -> tuple[WholeTableTransform, Schema, list[str]]:
        """Such a step, the schema before it, and the columns wanted of it."""
        stage = self._stages[position]
        assert isinstance(stage.step, WholeTableTransform), "no other step's rows have to meet"
        return stage.step, stage.schema, [name for name in stage.step.makes if name in stage.wanted]

    def before(self, position: int, side_columns: Mapping[int, SideColumns]) -> Prefix:
        """The steps before such a step, pruned to what it reads."""
        step, _, _ = self.stage(position)
        checked = frozenset[str]()  # by each Expect in `run`
        return Prefix(self.steps[:position], self._source, step.reads, there=checked).knowing(side_columns)

    def knowing(self, found: Mapping[int, SideColumns]) -> Prefix:
        """The same, with the columns of steps that look at other rows made already, by the steps' position.

        Without these, `run` takes a frame to hold all rows there are.
        """
        made = copy(self)
        made.side_columns = {position: found[position] for position in self.meeting if position in found}
        return made

    @property
    def attach(self) -> Attach | None:
        """What gives the wanted columns where no step has to run any more; None where one has to."""
        if not self.side_columns or not all(isinstance(stage.step, WholeTableTransform) for stage in self._stages):
            return None
        found = ((self.side_columns[position], tuple(self.stage(position)[2])) for position in self.meeting)
        return Attach(tuple(found), tuple(self.wanted))

    def copy(self) -> Prefix:
        """The same with steps of its own, whose joins count from 0."""
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
        """The coded frame after all steps, with the wanted columns; `frame` is coded and holds `reads`.

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
                    _, _, names = self.stage(position)
                    columns = self.side_columns[position].columns(names, row_ids[backend.positions(frame)], backend)
                    frame = backend.assign(frame, columns)
                elif isinstance(stage.step, Expect) and found is not None:
                    found["expect", stage.number] = stage.step.look(frame, stage.schema, backend, place)
                else:
                    frame = stage.step.apply(frame, stage.schema, stage.wanted, backend)
            if isinstance(stage.step, TableJoin) and found is not None:
                found["join", stage.step.name] = Counter(seen=stage.step.rows_seen_, lost=stage.step.rows_unmatched_)
        return backend.select(frame, self.wanted)


def _checked(step: Expect, before: Schema, source: Schema, there: AbstractSet[str] | None) -> list[str]:
    """The columns that a step can check, where the data has only some of the source's."""
    return [
        name
        for name in step.columns
        if there is None or all(column in there for column in before[name].lineage if column in source)
    ]


def marked_source(steps: Sequence[Transform], features: Features | None, schema: Schema) -> Schema:
    """The source's schema with each column the start of a lineage, and label columns marked by their role.

    Labels are the columns that only target, weight and filters that act in training only read.
    """
    sources = (item.as_source() for item in schema)
    plain = Schema(item if item.role is None else replace(item, role=None) for item in sources)
    if features is None:
        return plain
    schemas = _known_schemas(steps, plain)
    by_labels = _backwards(steps, schemas, features.label_reads(schemas[-1]))
    by_features = _backwards(steps, schemas, features.inputs, predicting=True)
    labels = by_labels - by_features
    return Schema(replace(item, role=Role.LABEL) if item.name in labels else item for item in plain)


def resolve_selectors(
    steps: Sequence[Transform], features: Features | None, schema: Schema, *, strict: bool = True
) -> None:
    """Let the selectors of `features` choose among the columns there are after the transforms.

    Without `strict`, functions that have not run yet may still add some.
    """
    if features is not None:
        features.resolve(_known_schemas(steps, Schema(item.as_source() for item in schema))[-1], strict=strict)


def likely_reads(steps: Sequence[Transform], features: Features | None, schema: Schema) -> set[str]:
    """The source columns a fit will read, as far as names tell while some functions have not run yet."""
    if features is None:
        return set()
    schemas = _known_schemas(steps, schema)
    reads = _backwards(steps, schemas, features.inputs | features.label_reads(schemas[-1]))
    return {name for name in reads if name in schema}


def wanted_in(passes: Sequence[Sequence[Task]], features: Features, after: Schema) -> set[str]:
    """The columns that these passes look at, of those there are after the transforms."""
    columns = {name for tasks in passes for task in tasks if not task.group.of_target for name in task.group.columns}
    return columns | features.label_reads(after)


def _known_schemas(steps: Sequence[Transform], schema: Schema) -> list[Schema]:
    """The schema before each step and after the last; from a function that has not run yet on, the last one known."""
    schemas = [schema]
    known = True
    for step in steps:
        known = known and not (isinstance(step, Map) and step.dtypes_ is None)
        schemas.append(step.output_schema(schemas[-1]) if known else schemas[-1])
    return schemas


def _backwards(
    steps: Sequence[Transform], schemas: Sequence[Schema], wanted: AbstractSet[str], *, predicting: bool = False
) -> set[str]:
    """The columns before the first step that `wanted` is computed from."""
    needed = set(wanted)
    for step, before in zip(reversed(steps), reversed(schemas[:-1]), strict=True):
        if not (predicting and getattr(step, "when", "always") == "train"):
            needed = _explicit_needs(step, needed, before)
    return needed


def _explicit_needs(step: Transform, wanted: AbstractSet[str], schema: Schema) -> set[str]:
    """What a step needs; a function that reads whatever it is given, or a check, claims no column by that."""
    if isinstance(step, Expect):
        return set(wanted)
    if isinstance(step, Map) and step.reads is None:
        return set(wanted) - set(step.adds or ())
    return step.needs(wanted, schema)


@dataclass(frozen=True)
class Task:
    """What one pass learns for one group: its step number `position`, and the one after it where they fold together.

    Before them stand `free` steps that learn nothing from the rows and transform them at once.
    """

    group: Group
    position: int
    fused: bool
    free: int = 0

    def reads(self, features: Features, schema: Schema) -> set[str]:
        """The columns it looks at, the target's where it does; `schema` is that after the transforms."""
        of_target = self.group.of_target or self.group.cross_fits
        labels = features.target.reads(schema) if of_target and features.target is not None else []
        return set(labels) | (set() if self.group.of_target else set(self.group.columns))

    @property
    def steps(self) -> list[FoldStep]:
        return self.group.steps[self.position : self.position + self.free + 1 + self.fused]

    @property
    def last(self) -> Task:
        """The same for its last step alone."""
        return Task(self.group, self.position + len(self.steps) - 1, fused=False)


def plan_passes(features: Features) -> list[list[Task]]:
    """The tasks of each pass over the data; as many passes as the longest chain of dependent steps."""
    passes: list[list[Task]] = []
    for group in features.learned:
        position, number = 0, 0
        while position < len(group.steps):
            free = _num_free(group.steps[position:])
            fused = _folds_with_next(group.steps[position + free : position + free + 2])
            if number == len(passes):
                passes.append([])
            passes[number].append(Task(group, position, fused, free))
            position, number = position + free + 1 + fused, number + 1
    return passes


def _num_free(steps: Sequence[FoldStep]) -> int:
    """Count the steps before the first that learns from the rows; the last one is never among them."""
    free = [*(not _learns(step) for step in steps[:-1]), False].index(False)
    # The fill of an imputer costs nothing where it enters the summary of the step that learns.
    return free - (free > 0 and _learns(steps[free]) and _folds_with_next(steps[free - 1 : free + 1]))


def _learns(step: FoldStep) -> bool:
    return not isinstance(step, StatelessStep) and not (isinstance(step, SimpleImputer) and step.strategy == "constant")


def _folds_with_next(steps: Sequence[FoldStep]) -> bool:
    """Whether an imputer's fill can enter the summary of the step after it."""
    return (
        len(steps) == 2 and isinstance(steps[0], SimpleImputer) and not steps[0].add_indicator and steps[1].fills_late
    )
