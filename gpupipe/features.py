"""Which columns become features, by which learned steps, and what stands beside them: target, weight, kept columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from gpupipe.backend import Backend, Column, Frame
from gpupipe.errors import BadConfig, LeakageError, SchemaMismatch
from gpupipe.preprocessing import FoldStep, WholeFrame
from gpupipe.schema import Field, Kind, Role, Schema
from gpupipe.step import in_step
from gpupipe.target import Target, Weight
from gpupipe.words import as_list

__all__ = ["Features", "Group"]


@dataclass(frozen=True)
class Group:
    """Some columns and the learned steps they go through together."""

    columns: list[str]
    steps: list[FoldStep]
    name: str | None = None

    def fields(self, schema: Schema, upto: int | None = None) -> list[Field]:
        """The fields after the first `upto` steps (all by default), for an input of `schema`."""
        fields = [schema[name] for name in self.columns]
        for step in self.steps[:upto]:
            lineage: frozenset[str] = frozenset().union(*(item.lineage for item in fields))
            made = step.output_fields(fields)
            fields = [item if item.lineage else replace(item, lineage=lineage) for item in made]
            fields = [replace(item, step=type(step).__name__) for item in fields]
        return fields

    def columns_of(self, frame: Frame, backend: Backend, upto: int | None = None) -> dict[str, Column]:
        """The columns of one frame after the first `upto` steps (all by default)."""
        columns = {name: backend.column(frame, name) for name in self.columns}
        for step in self.steps[:upto]:
            with in_step(step):
                columns = step.transform_columns(columns, backend)
        return columns

    def rename(self, name: str) -> str:
        """The output's name: with a group's name in front, where one was given."""
        return name if self.name is None else f"{self.name}_{name}"


class Features:
    """The step from frame to tensors.

    Args:
        groups: each `(columns, step or steps)`, `(columns, steps, name)` or just columns; a column's name alone stands
            for a list of one. A scikit-learn or cuML estimator may stand in a list of steps as it is. With a name the
            group's outputs are called `name_output`.
        target: the label column, or an expression over label columns. A condition, a boolean or an integer that is only
            ever 0 or 1 makes a binary task, strings make classes, other numbers a regression.
        weight: the same, for sample weights.
        keep: columns carried beside the features and never fed to a model.
        allow_leak: label columns that a feature may read all the same.

    Example:
        >>> from gpupipe import preprocessing as pre
        >>> Features((["distance"], pre.StandardScaler()), ["night"], target="arr_delay > 15").groups[0].columns
        ['distance']
    """

    def __init__(
        self,
        *groups: Any,
        target: str | None = None,
        weight: str | None = None,
        keep: str | Sequence[str] = (),
        allow_leak: str | Sequence[str] = (),
    ) -> None:
        self.groups = [_group(given) for given in groups]
        self.target = None if target is None else Target(target)
        self.weight = None if weight is None else Weight(weight)
        self.keep = as_list(keep)
        self.allow_leak = as_list(allow_leak)
        steps = [step for group in self.groups for step in group.steps]
        if len({id(step) for step in steps}) < len(steps):
            raise BadConfig(
                "Features",
                "one step stands in two places",
                got=[repr(step) for step in steps],
                expected="a step of its own in each place, since each learns its own state",
                remedy="a second one with the same parameters",
            )
        if not self.groups:
            raise BadConfig(
                "Features", "no columns are given", expected="at least one group", remedy="Features(['distance'])"
            )

    def copy(self) -> Features:
        """The same with steps and labels of its own, which hold what these have learned.

        Memory: shares what was learned.
        """
        made = copy(self)
        made.groups = [replace(group, steps=[copy(step) for step in group.steps]) for group in self.groups]
        made.target, made.weight = copy(self.target), copy(self.weight)
        return made

    @property
    def inputs(self) -> set[str]:
        """The columns the groups read."""
        return {name for group in self.groups for name in group.columns}

    def label_reads(self, schema: Schema) -> set[str]:
        """The columns target and weight read."""
        return {name for label in self._labels for name in label.reads(schema)}

    def output_schema(self, schema: Schema) -> Schema:
        """Features, then target and weight where `schema` has their columns, then kept columns.

        Raises:
            SchemaMismatch: a feature would be text or a time.
            BadConfig: two outputs have the same name.
        """
        fields: list[Field] = []
        for group in self.groups:
            schema.require(group.columns, f"Features({group.columns})")
            fields += [_feature(replace(item, name=group.rename(item.name))) for item in group.fields(schema)]
        fields += [label.field(schema) for label in self._labels if label.is_in(schema)]
        taken = {item.name for item in fields}
        fields += [replace(schema[n], name=out, role=Role.KEEP) for n, out in self._kept(schema, taken).items()]
        return Schema(fields)

    @property
    def _labels(self) -> list[Target | Weight]:
        return [label for label in (self.target, self.weight) if label is not None]

    def _kept(self, schema: Schema, taken: AbstractSet[str]) -> dict[str, str]:
        """The kept columns there are, and their names in the output: the same ones with labels and without."""
        taken = taken | {name for label in self._labels for name in (label.text, str(label.role))}
        return {name: f"{name}_keep" if name in taken else name for name in self.keep if name in schema}

    def check_leaks(self, schema: Schema) -> None:
        """Raise `LeakageError` for a feature computed from a column the target is computed from."""
        if self.target is None:
            return
        secret = self.target.lineage(schema) - set(self.allow_leak)
        for group in self.groups:
            for item in group.fields(schema):
                leaked = sorted(item.lineage & secret)
                if leaked:
                    raise LeakageError(
                        f"feature {item.name!r}",
                        f"it is computed from {leaked}, which the target {self.target.text!r} is computed from too",
                        expected="features that are known before the target is",
                        remedy=f"leave it out, or allow_leak={leaked} if that is meant",
                    )

    def columns(self, frame: Frame, schema: Schema, backend: Backend) -> dict[str, Column]:
        """All columns of `output_schema(schema)` for one frame, under their output names."""
        made: dict[str, Column] = {}
        for group in self.groups:
            for name, column in group.columns_of(frame, backend).items():
                made[group.rename(name)] = column
        for label in self._labels:
            if label.is_in(schema):
                made[label.field(schema).name] = label.column(frame, schema, backend)
        kept = {out: backend.column(frame, name) for name, out in self._kept(schema, made.keys()).items()}
        return made | kept


def _group(given: Any) -> Group:
    if isinstance(given, tuple):
        if len(given) not in (2, 3):
            raise BadConfig(
                "Features",
                "a group is malformed",
                got=given,
                expected="(columns, steps) or (columns, steps, name)",
                remedy="(['distance'], pre.StandardScaler())",
            )
        columns, steps, name = (*given, None)[:3]
        chain = list(steps) if isinstance(steps, list | tuple) else [steps]
        return Group(_names(columns), [_step(step) for step in chain], name)
    return Group(_names(given), [])


def _names(columns: str | Iterable[str]) -> list[str]:
    names = as_list(columns)
    if not names or not all(isinstance(name, str) for name in names):
        raise BadConfig(
            "Features", "a group names no columns", got=columns, expected="names of columns", remedy="['distance']"
        )
    return names


def _step(step: Any) -> FoldStep:
    return step if isinstance(step, FoldStep) else WholeFrame(step)


def _feature(item: Field) -> Field:
    if item.kind in (Kind.TEXT, Kind.TIME):
        hint = "pre.Categorify()" if item.kind == Kind.TEXT else f"T.Derive(hour='hour({item.name})')"
        raise SchemaMismatch(
            f"feature {item.name!r}",
            f"{item.dtype} values cannot be fed to a network",
            expected="numbers or ids",
            remedy=f"{hint}, or keep=[{item.name!r}] to carry it beside the features",
        )
    return replace(item, role=Role.FEATURE)
