"""Feature group: columns and the learned steps they pass through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from gpupipe import preprocessing as pre
from gpupipe.backend import Array, Backend, Column, Frame, Matrix
from gpupipe.backend.columns import get_storage, refuse_passengers
from gpupipe.backend.estimators import is_estimator
from gpupipe.errors import BadConfig, ColumnNotFound
from gpupipe.preprocessing.learned_state import require_state
from gpupipe.preprocessing.learned_step import defer_columns, find_fused_start
from gpupipe.schema import Field, Schema
from gpupipe.selectors import Selector
from gpupipe.step import in_step
from gpupipe.support.origins import Origins
from gpupipe.support.text import format_columns
from gpupipe.support.validation import as_list, is_sequence

_MANY = 60  # from so many columns on their names are not written out


@dataclass(frozen=True)
class FeatureGroup:
    """Feature group: columns and the learned steps they pass through."""

    columns: list[str]
    steps: list[pre.LearnedStep]
    name: str | None = None  # stands before the outputs' names
    of_target: bool = False  # the columns are those of the target, which may be no columns of the frame
    selector: Selector | None = None  # chooses the columns when a pipeline is fitted; before that there are none

    def __copy__(self) -> FeatureGroup:
        return replace(self, steps=[copy(step) for step in self.steps])

    @property
    def caption(self) -> str:
        """The columns, or what will choose them, for people."""
        return repr(self.selector) if self.selector is not None and not self.columns else format_columns(self.columns)

    @property
    def looks_at(self) -> list[str]:
        """The columns that are read once the steps are fitted."""
        return self.steps[0].looks_at(self.columns) if self.steps else self.columns

    @property
    def cross_fits(self) -> bool:
        """Whether a step of it learns from the target."""
        return any(isinstance(step, pre.CrossFittedStep) for step in self.steps)

    def fields(self, schema: Schema) -> list[Field]:
        """Return the fields after the steps, for an input of `schema`."""
        for name in self.columns:
            if name not in schema:
                schema.require(name, f"Features({self.caption if len(self.columns) > _MANY else self.columns})")
        fields = [schema[name] for name in self.columns]
        refuse_passengers(fields, "Features")
        for position, step in enumerate(self.steps):
            self._require_keys(position, [item.name for item in fields], schema)
            lineage: frozenset[str] = frozenset().union(*(item.lineage for item in fields))
            origins: Origins = frozenset().union(*(item.origins for item in fields))
            with_units, name = {item.name for item in fields if step.keeps_units}, step.class_name
            fields = [
                item.replace(
                    lineage=item.lineage or lineage,
                    origins=item.origins or origins,
                    step=name,
                    units=item.units if item.name in with_units else "",
                )
                for item in step.output_fields(fields)
            ]
        return fields

    def _require_keys(self, position: int, names: Sequence[str], schema: Schema) -> None:
        """Raise `ColumnNotFound` for keys of a step that are columns beside the group, with the group that has them."""
        step, *later = self.steps[position:]
        by = as_list(step.by) if isinstance(step, pre.GroupStats | pre.GroupImputer) else []
        if keys := [name for name in by if name in schema and name not in names]:
            where, problem = f"{step.class_name}(by=...)", f"column {keys[0]!r} is not among those of the group"
            columns = format_names(list(dict.fromkeys([*keys, *self.columns])), single=False)
            remedy = f"({columns}, {[step, *later] if later else step})"
            error = ColumnNotFound(where, problem, got=names, expected="the columns of by= in the group", remedy=remedy)
            error.column = keys[0]
            raise error

    def check_state(self) -> None:
        """Raise `ArtifactError` for steps from a file that were not fitted on each other's outputs."""
        names = self.columns
        for step in self.steps:
            require_state(step.names_in_ == names, step.class_name, "names_in_", step.names_in_, str(names))
            names = step.output_names(names)

    def compute_columns(
        self, frame: Frame, backend: Backend, upto: int | None = None, row_ids: Array | None = None
    ) -> Mapping[str, Column]:
        """Compute one frame's columns after `upto` steps (or all), out of fold with `row_ids` of the fit's rows."""
        names = self.columns if upto == 0 else self.looks_at
        matrix = backend.matrix(frame, names)
        if matrix is not None:
            return self.apply_steps(matrix, backend, upto, row_ids)
        read = {name: partial(backend.column, frame, name) for name in names}
        if upto is None and backend.fuses() and self.steps and not find_fused_start(self.steps):
            stored = {name: backend.stored(frame, name) for name in names}
            if (late := defer_columns(stored, read, self.steps, backend)) is not None:
                return late
        return self.apply_steps({name: column() for name, column in read.items()}, backend, upto, row_ids)

    def apply_steps(
        self, columns: Mapping[str, Column], backend: Backend, upto: int | None = None, row_ids: Array | None = None
    ) -> Mapping[str, Column]:
        """Apply the first `upto` steps to columns already selected from a frame."""
        steps = self.steps[:upto]
        alone = find_fused_start(steps) if upto is None and backend.fuses() else len(steps)
        for position, step in enumerate(steps):
            if position == alone:
                stored = {name: get_storage(column) for name, column in columns.items()}
                read = {name: partial(columns.__getitem__, name) for name in columns}
                if (late := defer_columns(stored, read, steps[position:], backend)) is not None:
                    return late
            with in_step(step):
                if row_ids is not None and isinstance(step, pre.CrossFittedStep):
                    columns = step.cross_fitted_columns(columns, backend, row_ids)
                else:
                    columns = step.transform_columns(columns, backend)
        return columns

    def rename(self, name: str) -> str:
        """Return an output's name, prefixed by the group's name where one was given."""
        return name if self.name is None else f"{self.name}_{name}"

    def renamed(self, columns: Mapping[str, Column]) -> Mapping[str, Column]:
        """Return outputs under their prefixed names."""
        if self.name is not None and isinstance(columns, Matrix):
            return Matrix(list(map(self.rename, columns)), columns.data)
        return columns if self.name is None else {self.rename(name): column for name, column in columns.items()}


GroupFields: TypeAlias = Sequence[tuple[FeatureGroup, Sequence[Field]]]
"""The groups of features, each with the fields that come out of it."""


def format_names(names: Sequence[str], *, single: bool = True) -> str:
    """Format column names as code, a `single` one without brackets; more than 60 are abbreviated."""
    if len(names) > _MANY:
        return f"<{format_columns(names)}>"
    return repr(names[0] if single and len(names) == 1 else list(names))


def to_feature_group(argument: Any) -> FeatureGroup:
    """Convert an item of `Features(groups)` to a feature group."""
    is_chain = isinstance(argument, tuple) and len(argument) in (2, 3)
    columns, steps, name = (*argument, None)[:3] if is_chain else (argument, [], None)
    selector = columns if isinstance(columns, Selector) else None
    columns = list(columns) if isinstance(columns, tuple) else columns
    if not (selector or isinstance(columns, str) or _are_names(columns)) or not isinstance(name, str | None):
        expected = "columns, (columns, steps) or (columns, steps, name); columns are a name, some, or a selector"
        remedy = _format_spelling(argument)
        raise BadConfig("Features", "a group is malformed", got=argument, expected=expected, remedy=remedy)
    chain = list(map(to_learned_step, steps if isinstance(steps, list | tuple) else [steps]))
    return FeatureGroup([] if selector else as_list(columns), chain, name, selector=selector)


def to_learned_step(step: Any) -> pre.LearnedStep:
    """Return a learned step unchanged, and an estimator wrapped as one."""
    if isinstance(step, type):
        problem, expected = "a class in the place of a step", "steps of gpupipe.preprocessing, or estimators"
        remedy = f"{'pre.' if issubclass(step, pre.LearnedStep) else ''}{step.__name__}()"
        raise BadConfig("Features", problem, got=step, expected=expected, remedy=remedy)
    return step if isinstance(step, pre.LearnedStep) else pre.EstimatorStep(step)


def _are_names(value: Any) -> bool:
    return is_sequence(value) and len(value) > 0 and all(isinstance(name, str) for name in value)


def _format_spelling(argument: Any) -> str:
    """Format the correct spelling of a group whose parts are in another order, as scikit-learn's are."""
    parts = list(argument) if isinstance(argument, tuple) else [argument]
    columns = next((part for part in parts if _are_names(part)), None)
    step = next((part for part in parts if isinstance(part, pre.LearnedStep) or is_estimator(part)), None)
    name = next((part for part in parts if isinstance(part, str)), None)
    if isinstance(argument, list) and argument and all(isinstance(part, tuple) for part in argument):
        return f"Features({', '.join(map(repr, argument))})"
    spelled = ", ".join(repr(part) for part in (columns or ["distance"], step, name) if part is not None)
    return f"({spelled})"
