"""All that a model learns to predict: a target, several numbers or conditions, and the steps they go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.columns import refuse_lists
from gpupipe.errors import BadConfig
from gpupipe.group import Group
from gpupipe.preprocessing import FoldStep, Invertible
from gpupipe.schema import Field, Kind, Role, Schema
from gpupipe.target import Target, TargetSummary

__all__ = ["Targets", "TargetsSummary"]


@dataclass(frozen=True)
class TargetsSummary:
    """The targets' values in some partitions: rows in which one is missing, and each target's own summary."""

    num_missing: int = 0
    each: tuple[TargetSummary, ...] = ()

    def __add__(self, other: TargetsSummary) -> TargetsSummary:
        if not (self.each and other.each):
            return self if self.each else other
        each = tuple(mine + theirs for mine, theirs in zip(self.each, other.each, strict=True))
        return TargetsSummary(self.num_missing + other.num_missing, each)


class Targets:
    """The targets of a pipeline.

    Args:
        texts: label columns, or expressions over label columns.
        steps: what a regression's values go through before they are stored; `inverse` brings predictions back.

    Raises:
        BadConfig: no target, one twice, or a step that cannot be undone.
    """

    role = Role.TARGET

    def __init__(self, texts: Sequence[str], steps: Sequence[FoldStep] = ()) -> None:
        if not texts or len(set(texts)) < len(texts):
            raise BadConfig(
                "Features(target=)",
                "a target stands there twice" if texts else "it is empty",
                got=list(texts),
                expected="a column, an expression, or a list of different ones",
                remedy="target='arr_delay', or target=None",
            )
        for step in steps:
            if not isinstance(step, Invertible):
                raise BadConfig(
                    "Features(target_transform=)",
                    "a step that cannot be undone",
                    got=step,
                    expected="steps with inverse_transform: Log1p, StandardScaler, MinMaxScaler, ...",
                    remedy="target_transform=[pre.Log1p(), pre.StandardScaler()]",
                )
        self.each = [Target(text) for text in texts]
        self.group = Group(list(texts), list(steps), of_target=True)

    def copy(self) -> Targets:
        """The same with targets and steps of its own, which hold what these have learned."""
        made = copy(self)
        made.each = [copy(item) for item in self.each]
        made.group = replace(self.group, steps=[copy(step) for step in self.group.steps])
        return made

    @property
    def text(self) -> str:
        """All of them, as they were given."""
        return ", ".join(item.text for item in self.each)

    @property
    def _numbers_only(self) -> bool:
        """Whether 0 and 1 are numbers here, not classes."""
        return len(self.each) > 1 or bool(self.group.steps)

    def _labels_only(self, schema: Schema) -> bool:
        """Whether several conditions are asked at once, each true or false by itself."""
        plain = len(self.each) > 1 and not self.group.steps
        return plain and all(item.raw_field(schema).dtype == "bool" for item in self.each)

    def reads(self, schema: Schema) -> list[str]:
        """The columns they are computed from."""
        return list(dict.fromkeys(name for item in self.each for name in item.reads(schema)))

    def is_in(self, schema: Schema) -> bool:
        """Whether all columns they read are there."""
        return all(item.is_in(schema) for item in self.each)

    def lineage(self, schema: Schema) -> frozenset[str]:
        """The source columns they are computed from."""
        return frozenset().union(*(item.lineage(schema) for item in self.each))

    def raw_columns(self, frame: Frame, schema: Schema, backend: Backend) -> dict[str, Column]:
        """The values of one frame as they are computed, by their text."""
        return {item.text: item.raw_column(frame, schema, backend) for item in self.each}

    # learning ---------------------------------------------------------------------------------------------------------
    def reset(self) -> None:
        """Forget the classes an earlier `fit` found."""
        for item in self.each:
            item.reset()

    def present(self, frame: Frame, schema: Schema, backend: Backend) -> Array | None:
        """n booleans, False where a target is missing; None when none is."""
        found = [item.present(frame, schema, backend) for item in self.each]
        masks = [mask for mask in found if mask is not None]
        return None if not masks else backend.xp.stack(masks).all(axis=0)

    def summarise(self, frame: Frame, schema: Schema, backend: Backend) -> TargetsSummary:
        """One partition's contribution to what `finish` learns."""
        present = self.present(frame, schema, backend)
        missing = 0 if present is None else len(present) - int(present.sum())
        return TargetsSummary(missing, tuple(item.summarise(frame, schema, backend) for item in self.each))

    def check(self, schema: Schema) -> None:
        """Raise what types can tell.

        Raises:
            BadConfig: a target that has to be a number is none.
            SchemaMismatch: a target of lists; a step does not work on numbers.
        """
        refuse_lists(self._raw_schema(schema), "target")
        if self._numbers_only and not self._labels_only(schema):
            for item in self.each:
                if item.raw_field(schema).dtype in ("string", "bool", "timestamp"):
                    raise BadConfig(
                        f"target {item.text!r}",
                        "it is no number, as each of several targets and a transformed one have to be",
                        got=item.raw_field(schema).dtype,
                        expected="a regression's target, or conditions alone",
                        remedy="one target without target_transform, or a Cast of this one before",
                    )
        self.group.fields(self._raw_schema(schema))

    def finish(self, summary: TargetsSummary, schema: Schema) -> Self:
        """Fix the classes.

        Raises:
            BadData: there is no row with a target, or only one class.
        """
        for item, found in zip(self.each, summary.each, strict=True):
            item.finish(found, schema, number=self._numbers_only)
        return self

    # applying ---------------------------------------------------------------------------------------------------------
    def fields(self, schema: Schema) -> list[Field]:
        """The stored targets: float32 0/1 or number, or int32 class index."""
        if len(self.each) == 1:
            stored = self.each[0].field(schema)
            return [replace(stored, step=self.group.steps[-1].class_name) if self.group.steps else stored]
        number = {"dtype": "float32", "kind": Kind.CONTINUOUS}
        return [replace(item.field(schema), name=item.text, **number) for item in self.each]  # type: ignore[arg-type]

    def columns(self, frame: Frame, schema: Schema, backend: Backend) -> dict[str, Column]:
        """The stored targets of one frame under the names `fields` gives; missing stays missing.

        Raises:
            BadData: a value that is no class, or that a step cannot transform.
        """
        names = [item.name for item in self.fields(schema)]
        if self.group.steps:
            made = self.group.through(self.raw_columns(frame, schema, backend), backend)
        else:
            made = {item.text: item.column(frame, schema, backend) for item in self.each}
        return dict(zip(names, made.values(), strict=True))

    def inverse(self, columns: Sequence[Column], backend: Backend) -> list[Column]:
        """Stored values, or predictions of them, one column per target, in the targets' own units."""
        found = dict(zip(self.group.columns, columns, strict=True))
        for step in reversed(self.group.steps):
            assert isinstance(step, Invertible), "the constructor looks at that"
            found = step.inverse_columns(found, backend)
        return list(found.values())

    def _raw_schema(self, schema: Schema) -> Schema:
        return Schema(replace(item.raw_field(schema), name=item.text) for item in self.each)

    def get_state(self) -> list[dict[str, Any]]:
        """The classes of each."""
        return [item.get_state() for item in self.each]

    def set_state(self, state: Sequence[Mapping[str, Any]]) -> Self:
        """Take back what `get_state` gave; returns self."""
        for item, known in zip(self.each, state, strict=True):
            item.set_state(known)
        return self
