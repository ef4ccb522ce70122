"""Target sets: one target, or several numbers or conditions, and their target transform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.columns import require_comparable
from gpupipe.errors import BadConfig
from gpupipe.pipeline.column_stats import coarse_spacing
from gpupipe.pipeline.feature_group import FeatureGroup
from gpupipe.pipeline.labels import FEW, MAX_CLASSES, Target, TargetSummary
from gpupipe.preprocessing import Invertible, LearnedStep, StandardScaler
from gpupipe.schema import Field, Kind, Role, Schema

__all__ = ["TASKS", "TargetSet", "TargetSetSummary"]

TASKS = ("auto", "classification", "regression")


@dataclass(frozen=True)
class TargetSetSummary:
    """Summary of the targets in some partitions: rows with a missing target, and each target's own summary."""

    num_missing: int = 0
    each: tuple[TargetSummary, ...] = ()

    def __add__(self, other: TargetSetSummary) -> TargetSetSummary:
        if not (self.each and other.each):
            return self if self.each else other
        each = tuple(mine + theirs for mine, theirs in zip(self.each, other.each, strict=True))
        return TargetSetSummary(self.num_missing + other.num_missing, each)


class TargetSet:
    """Targets of a pipeline.

    Args:
        texts: label columns, or expressions over label columns.
        steps: what a regression's values go through before they are stored; `inverse` brings predictions back. "auto"
            standardises them.
        task: "classification", "regression", or "auto" to decide by the values.

    Attributes:
        task_: what the last `fit` has decided, as `Schema.task` names it, and why.
        doubt: what to say where the values could be meant otherwise than that decision; else empty.
        coarse: targets without steps that lose digits in a batch's float32, and how many.

    Raises:
        BadConfig: no target, one twice, a step that cannot be undone, an unknown task, or classes with steps.
    """

    role = Role.TARGET

    def __init__(
        self, texts: Sequence[str], steps: Sequence[LearnedStep] | Literal["auto"] = (), task: str = "auto"
    ) -> None:
        if not texts or len(set(texts)) < len(texts):
            raise BadConfig(
                "Features(target=)",
                "a target stands there twice" if texts else "it is empty",
                got=list(texts),
                expected="a column, an expression, or a list of different ones",
                remedy="target='arr_delay', or target=None",
            )
        self.auto = steps == "auto"
        given = [] if isinstance(steps, str) else list(steps)
        for step in given:
            if not isinstance(step, Invertible):
                raise BadConfig(
                    "Features(target_transform=)",
                    "a step that cannot be undone",
                    got=step,
                    expected="steps with inverse_transform: Log1p, StandardScaler, MinMaxScaler, ...",
                    remedy="target_transform=[pre.Log1p(), pre.StandardScaler()]",
                )
        if given and task == "classification":
            raise BadConfig(
                "Features(target_transform=)",
                "classes go through no steps",
                got=given,
                expected="a regression's target, or no steps",
                remedy="task='regression', or no target_transform",
            )
        self.task = "regression" if given else task
        self.each = [Target(text) for text in texts]
        self.group = FeatureGroup(list(texts), given, of_target=True)
        self.task_, self.doubt = "", ""
        self.coarse: list[str] = []

    def copy(self) -> TargetSet:
        """Return a copy with copies of all targets and steps, including their learned state."""
        made = copy(self)
        made.each = [copy(item) for item in self.each]
        made.group = replace(self.group, steps=[copy(step) for step in self.group.steps])
        return made

    @property
    def text(self) -> str:
        """All of them, as they were given."""
        return ", ".join(item.text for item in self.each)

    def reads(self, schema: Schema) -> list[str]:
        """List the columns they are computed from."""
        return list(dict.fromkeys(name for item in self.each for name in item.reads(schema)))

    def is_in(self, schema: Schema) -> bool:
        """Return whether all columns they read are present."""
        return all(item.is_in(schema) for item in self.each)

    def lineage(self, schema: Schema) -> frozenset[str]:
        """Return the source columns they are computed from."""
        return frozenset().union(*(item.lineage(schema) for item in self.each))

    def raw_columns(self, frame: Frame, schema: Schema, backend: Backend) -> dict[str, Column]:
        """Compute the values of one frame, by the targets' text."""
        return {item.text: item.raw_column(frame, schema, backend) for item in self.each}

    def bind(self, schema: Schema) -> None:
        """Remember which of them are columns of the fit's schema."""
        for item in self.each:
            item.bind(schema)

    # learning ---------------------------------------------------------------------------------------------------------
    def reset(self) -> None:
        """Clear what an earlier `fit` learned; a possible regression is standardised until its values decide."""
        for item in self.each:
            item.reset()
        self.task_, self.doubt, self.coarse = "", "", []
        if self.auto:
            self._standardise(self.task != "classification")

    def present(self, frame: Frame, schema: Schema, backend: Backend) -> Array | None:
        """Return n booleans, False where a target is missing; None when none is."""
        found = [item.present(frame, schema, backend) for item in self.each]
        masks = [mask for mask in found if mask is not None]
        return None if not masks else backend.xp.stack(masks).all(axis=0)

    def summarize(self, frame: Frame, schema: Schema, backend: Backend) -> TargetSetSummary:
        """Summarize one partition for `finalize`."""
        present = self.present(frame, schema, backend)
        missing = 0 if present is None else len(present) - int(present.sum())
        limit = MAX_CLASSES if self.task == "classification" else FEW
        return TargetSetSummary(missing, tuple(item.summarize(frame, schema, backend, limit) for item in self.each))

    def check(self, schema: Schema) -> None:
        """Check the targets' dtypes, and drop the standardisation of targets that are not numbers.

        Raises:
            BadConfig: a target that has to be a number is none.
            SchemaMismatch: a target of lists; a step does not work on numbers.
        """
        raw = self._raw_schema(schema)
        require_comparable(raw, "target")
        for item in raw:
            several = len(raw) > 1 and item.dtype in ("string", "timestamp")
            if several or (self.task == "regression" and item.dtype in ("bool", "string", "timestamp")):
                raise _no_number(item)
        if self.auto and any(item.dtype in ("bool", "string", "timestamp") for item in raw):
            self._standardise(False)
        self.group.fields(raw)

    def finalize(self, summary: TargetSetSummary, schema: Schema) -> Self:
        """Decide on the task, as scikit-learn's `type_of_target` does, and fix the classes.

        Raises:
            BadData: there is no row with a target, only one class, or numbers that are no classes.
            BadConfig: conditions mixed with numbers, or several targets of more than two classes.
        """
        for item, found in zip(self.each, summary.each, strict=True):
            item.check_values(found, schema)
        classes, reason = self._decide(summary.each, self._raw_schema(schema))
        if classes:
            for item, found in zip(self.each, summary.each, strict=True):
                item.fix_classes(found, schema)
        if self.auto and (classes or any(found.is_binary for found in summary.each)):
            self._standardise(False)
        kind = Schema(self.fields(schema)).task
        inside = ", standardised inside (target_transform='auto')" if self.auto and self.group.steps else ""
        self.task_ = f"{kind} ({reason}){inside}"
        if not classes and not self.group.steps:
            self.coarse = self._coarse(summary.each, schema)
        return self

    def _coarse(self, found: Sequence[TargetSummary], schema: Schema) -> list[str]:
        """List the targets that lose digits in a batch's float32, with the spacing."""
        spacings = [
            (item.text, coarse_spacing(item.raw_field(schema).dtype, (one.low, one.high)), one.high - one.low)
            for item, one in zip(self.each, found, strict=True)
        ]
        return [f"{gap:g} in a range of {width:g} ({text})" for text, gap, width in spacings if gap is not None]

    def _decide(self, found: Sequence[TargetSummary], raw: Schema) -> tuple[bool, str]:
        """Return whether the targets are classes, and why."""
        if len(found) > 1:
            return self._decide_several(all(item.is_binary for item in found), raw)
        if self.task != "auto":
            return self.task == "classification", self._given
        ((one,), (item,)) = found, raw
        if one.is_distinct:
            self.doubt = "an id is no target: choose another column, or say Features(task='classification')"
        if one.strings is not None or item.dtype == "bool":
            return True, "true or false" if one.strings is None else f"{len(one.strings)} distinct strings"
        if one.numbers is None:
            return False, "numbers with fractions" if one.fractions else f"more than {FEW} distinct whole numbers"
        values = ", ".join(map(str, sorted(one.numbers)))
        if len(one.numbers) == 2:
            return True, f"the numbers {values}"
        if one.is_few:
            self.doubt = "say Features(task='regression') or Features(task='classification')"
            return True, f"{len(one.numbers)} distinct whole numbers in {one.num_present:,} rows: {values}"
        if len(one.numbers) == 1:
            return False, f"all rows have the value {values}"
        return False, f"fewer than two rows for each of {len(one.numbers)} distinct whole numbers"

    def _decide_several(self, labels: bool, raw: Schema) -> tuple[bool, str]:
        conditions = [item for item in raw if item.dtype == "bool"]
        if conditions and not labels:
            raise _no_number(conditions[0])
        if self.task == "classification" and not labels:
            raise BadConfig(
                "Features(task='classification')",
                "several targets that are not all conditions",
                got=raw.names,
                expected="one target, or several of 0 and 1 only",
                remedy="a condition of each, such as 'stars > 3', or task='regression'",
            )
        if self.task == "regression":
            return False, self._given
        return labels, "0 and 1 only, each" if labels else "several numbers"

    @property
    def _given(self) -> str:
        """What has said the task."""
        return f"task={self.task!r}" if self.auto or not self.group.steps else "target_transform="

    def _standardise(self, wanted: bool) -> None:
        self.group = replace(self.group, steps=[StandardScaler()] if wanted else [])

    # applying ---------------------------------------------------------------------------------------------------------
    def fields(self, schema: Schema) -> list[Field]:
        """List the stored targets' fields: float32 0/1 or number, or int32 class index."""
        if len(self.each) == 1:
            stored = self.each[0].field(schema)
            return [replace(stored, step=self.group.steps[-1].class_name) if self.group.steps else stored]
        number = {"dtype": "float32", "kind": Kind.CONTINUOUS}
        return [replace(item.field(schema), name=item.text, **number) for item in self.each]  # type: ignore[arg-type]

    def in_own_units(self, schema: Schema) -> Schema:
        """Return the output schema, with the targets in their own units, as `columns` computes them."""
        if not self.group.steps:
            return schema
        wide = [replace(item, dtype="float64") if item.role == Role.TARGET else item for item in schema]
        return Schema(wide)

    def columns(self, frame: Frame, schema: Schema, backend: Backend, *, stored: bool) -> dict[str, Column]:
        """Compute the targets of one frame under the names `fields` gives; missing stays missing.

        Args:
            frame: coded.
            schema: of its columns.
            backend: where they live.
            stored: whether they went through the steps; else they are in their own units, float64 where there are
                steps.

        Raises:
            BadData: a value that is no class, or that a step cannot transform.
        """
        names = [item.name for item in self.fields(schema)]
        if stored and self.group.steps:
            made = self.group.apply_steps(self.raw_columns(frame, schema, backend), backend)
        else:
            made = {
                item.text: item.column(frame, schema, backend, "float64" if self.group.steps else "float32")
                for item in self.each
            }
        return dict(zip(names, made.values(), strict=True))

    def inverse(self, columns: Sequence[Column], backend: Backend) -> list[Column]:
        """Convert stored values or predictions, one column per target, to the targets' own units."""
        found = dict(zip(self.group.columns, columns, strict=True))
        for step in reversed(self.group.steps):
            assert isinstance(step, Invertible), "the constructor looks at that"
            found = step.inverse_columns(found, backend)
        return list(found.values())

    def _raw_schema(self, schema: Schema) -> Schema:
        return Schema(replace(item.raw_field(schema), name=item.text) for item in self.each)

    def get_state(self) -> list[dict[str, Any]]:
        """Return the classes of each."""
        return [item.get_state() for item in self.each]

    def set_state(self, state: Sequence[Mapping[str, Any]], steps: Sequence[LearnedStep]) -> Self:
        """Restore what `get_state` returned, and the fitted steps; return self."""
        self.group = replace(self.group, steps=list(steps))
        for item, known in zip(self.each, state, strict=True):
            item.set_state(known)
        return self


def _no_number(item: Field) -> BadConfig:
    return BadConfig(
        f"target {item.name!r}",
        "it is no number, as a regression's target and each of several have to be",
        got=item.dtype,
        expected="a regression's target, or conditions alone",
        remedy="one target without target_transform and task, or a Cast of this one before",
    )
