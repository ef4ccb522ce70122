"""Targets and weights: columns or expressions over columns, and their transform."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.columns import as_floats, refuse_passengers, require_comparable
from gpupipe.backend.dictionaries import Dictionary, find_positions, strings, unite_dictionaries
from gpupipe.backend.expressions.evaluate import evaluate
from gpupipe.errors import BadConfig, BadData, ExpressionError, SchemaMismatch
from gpupipe.expressions import Expression, parse
from gpupipe.pipeline.feature_group import FeatureGroup
from gpupipe.preprocessing import Invertible, LearnedStep, StandardScaler
from gpupipe.schema import FLOATS, INTEGERS, WIDE, Field, Kind, Role, Schema

FEW = 20
"""Up to so many distinct whole numbers are taken for classes, where each is in two rows or more on average."""

MAX_CLASSES = 10_000
"""Up to so many distinct whole numbers are classes where somebody says that they are."""

TASKS = ("auto", "classification", "regression")
_NO_NUMBERS = ("bool", "string", "timestamp")


def coarse_spacing(dtype: str, ends: tuple[float, float]) -> float | None:
    """Return float32's spacing at the larger bound where it exceeds 1/1000 of the range; else None.

    None too for what float32 holds exactly: its own values, and whole numbers up to 2**24.
    """
    low, high = ends
    largest = max(abs(low), abs(high))
    if dtype not in WIDE or not low < high or (dtype != "float64" and largest <= 2**24):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        spacing = float(np.spacing(np.float32(largest)))
    return spacing if spacing > (high - low) / 1000 else None


class _Label:
    """Base class of labels: a column, or an expression over columns."""

    role: Role

    def __init__(self, text: str) -> None:
        self.text = text
        self.reset()

    def reset(self) -> None:
        """Clear what an earlier `fit` learned."""
        self.is_column: bool | None = None

    def bind(self, schema: Schema) -> None:
        """Remember whether `text` names a column of the fit's schema: `1960` is a number where no column is there."""
        self.is_column = self.text in schema

    def expression(self, schema: Schema) -> Expression | None:
        """Parse the expression; None where `text` is the name of a column."""
        is_column = self.text in schema if self.is_column is None else self.is_column
        return None if is_column else parse(self.text, f"{self.role}={self.text!r}")

    def reads(self, schema: Schema) -> list[str]:
        """List the columns it is computed from."""
        expression = self.expression(schema)
        return [self.text] if expression is None else list(expression.reads)

    def is_in(self, schema: Schema) -> bool:
        """Return whether all columns it reads are present."""
        try:
            return all(name in schema for name in self.reads(schema))
        except ExpressionError:  # the name of a column, and no expression, where that column is not there
            return False

    def lineage(self, schema: Schema) -> frozenset[str]:
        """Return the source columns it is computed from."""
        return frozenset().union(*(schema[name].lineage for name in self.reads(schema)))

    def raw_field(self, schema: Schema) -> Field:
        """Return the field of the values before they are stored as a target or a weight."""
        expression = self.expression(schema)
        if expression is None:
            refuse_passengers([schema[self.text]], self.role.value)
            return replace(schema[self.text], role=self.role, written_as="")
        read = map(schema.__getitem__, expression.reads)
        return replace(Field.derived(self.role.value, expression.check(schema), read, "Features"), role=self.role)

    def raw_column(self, frame: Frame, schema: Schema, backend: Backend) -> Column:
        """Compute the values of one frame."""
        expression = self.expression(schema)
        if expression is None:
            return backend.column(frame, self.text)
        columns = {name: backend.column(frame, name) for name in expression.reads}
        return evaluate(expression, columns, backend, len(frame))


@dataclass(frozen=True)
class TargetSummary:
    """Target values of some partitions: a mergeable summary."""

    num_rows: int
    num_missing: int
    limit: int  # of distinct numbers that are kept
    strings: Dictionary | None = None  # the distinct ones, of a target of strings
    numbers: frozenset[int] | None = frozenset()  # the distinct whole numbers and booleans; None for more than `limit`
    fractions: bool = False  # whether some number is not whole
    low: float = math.inf
    high: float = -math.inf

    def __add__(self, other: TargetSummary) -> TargetSummary:
        found = [part for part in (self.strings, other.strings) if part is not None]
        numbers = None if self.numbers is None or other.numbers is None else self.numbers | other.numbers
        return replace(
            self,
            num_rows=self.num_rows + other.num_rows,
            num_missing=self.num_missing + other.num_missing,
            strings=unite_dictionaries(found) if found else None,
            numbers=None if numbers is None or len(numbers) > self.limit else numbers,
            fractions=self.fractions or other.fractions,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
        )

    @property
    def is_binary(self) -> bool:
        """Whether there are booleans, or zeros and ones, and nothing else."""
        return self.numbers is not None and not self.fractions and {0, 1} >= self.numbers != frozenset()

    def is_repeated(self, values: Dictionary | frozenset[int]) -> bool:
        """Return whether each of these values is in two rows or more on average."""
        return 2 * len(values) <= self.num_rows - self.num_missing


class Target(_Label):
    """Target: the values a model learns to predict, classes or a regression's numbers."""

    role = Role.TARGET

    def reset(self) -> None:
        super().reset()
        self.classes_: tuple[Any, ...] | None = None

    def summarize(self, frame: Frame, schema: Schema, backend: Backend, limit: int) -> TargetSummary:
        """Summarize one partition for the decision on the task; keep up to `limit` distinct numbers."""
        xp = backend.xp
        column = self.raw_column(frame, schema, backend)
        missing = column.missing(xp)
        present = column.data if missing is None else column.data[~missing]
        made = TargetSummary(len(column), len(column) - len(present), limit)
        if column.dictionary is not None:
            return replace(made, strings=column.dictionary.take(backend.to_host(xp.unique(present))))
        if column.dtype == "bool":
            return replace(made, numbers=frozenset({int(present.any()), int(present.all())} if len(present) else ()))
        if len(present):
            low, high = backend.to_host(xp.stack([present.min(), present.max()])).tolist()
            made = replace(made, low=float(low), high=float(high))
        if column.dtype in FLOATS and bool((~xp.isfinite(present) | (present != xp.floor(present))).any()):
            return replace(made, numbers=None, fractions=True)
        for some in (present[: 4 * limit], present):  # the first rows of a regression are enough
            ordered = xp.sort(some)
            distinct = xp.concatenate([ordered[:1], ordered[1:][ordered[1:] != ordered[:-1]]])
            if len(distinct) > limit:
                return replace(made, numbers=None)
        return replace(made, numbers=frozenset(int(value) for value in backend.to_host(distinct)))

    def check_values(self, summary: TargetSummary, schema: Schema) -> None:
        """Raise where nothing can be learned."""
        if summary.num_rows == summary.num_missing:
            raise BadData(
                f"target {self.text!r}",
                f"none of {summary.num_rows} rows has a value",
                expected="rows with a target",
                remedy="another split, or a look at the steps before",
            )
        if self.raw_field(schema).dtype == "timestamp":
            raise SchemaMismatch(
                f"target {self.text!r}",
                "a time cannot be predicted",
                expected="a number, a condition or strings",
                remedy="the difference of two times",
            )

    def fix_classes(self, summary: TargetSummary, schema: Schema) -> None:
        """Fix the classes: the distinct values in ascending order; zeros and ones are both classes."""
        where = f"target {self.text!r}"
        if summary.strings is not None:
            classes: tuple[Any, ...] = tuple(sorted(summary.strings.to_pylist()))
        elif summary.numbers is None or summary.fractions:
            raise BadData(
                where,
                "numbers with fractions are no classes" if summary.fractions else "too many distinct numbers",
                expected=f"at most {summary.limit:,} distinct whole numbers, strings or a condition",
                remedy="task='regression', or a condition such as target='price > 100'",
            )
        else:
            kind = bool if self.raw_field(schema).dtype == "bool" else int
            classes = tuple(kind(value) for value in sorted(summary.numbers))
        if len(classes) < 2:
            raise BadData(
                where,
                "all rows have the same value",
                got=classes[0],
                expected="at least two classes",
                remedy="another split or target",
            )
        self.classes_ = classes

    def field(self, schema: Schema) -> Field:
        """Return the stored target's field: float32 0/1 or number, or int32 class index."""
        number = len(self.classes_ or ())
        made = replace(self.raw_field(schema), classes=self.classes_, cardinality=number if number > 2 else None)
        if number > 2:
            return replace(made, dtype="int32", kind=Kind.CATEGORICAL)
        return replace(made, dtype="float32", kind=Kind.CONTINUOUS)

    def column(self, frame: Frame, schema: Schema, backend: Backend, number: str) -> Column:
        """Compute the number (of that type), or the class index, of each row of one frame; missing stays missing."""
        xp = backend.xp
        column = self.raw_column(frame, schema, backend)
        missing = column.missing(xp)
        if self.classes_ is None:
            data = as_floats(column.data, number)
            return Column(number, data if missing is None else xp.where(missing, data.dtype.type(xp.nan), data))
        there = xp.ones(len(column), dtype=bool) if missing is None else ~missing
        if column.dictionary is not None:
            table = backend.to_device(find_positions(column.dictionary, strings(self.classes_)))
            index = xp.append(table, -1)[column.data]
            unknown = (index < 0) & there
        elif column.dtype == "bool":
            index, unknown = column.data, xp.zeros_like(there)
        else:
            known = xp.asarray(self.classes_, dtype=column.data.dtype)
            index = xp.clip(xp.searchsorted(known, column.data), 0, len(known) - 1)
            unknown = (known[index] != column.data) & there
        if bool(unknown.any()):
            first = backend.to_host(column.data[unknown][:1])[0].item()
            raise BadData(
                f"target {self.text!r}",
                "a class that was not there in fit",
                got=first if column.dictionary is None else column.dictionary[first].as_py(),
                expected=f"one of {self.classes_}",
                remedy="fit on data that holds every class",
            )
        if len(self.classes_) == 2:
            return Column("float32", xp.where(there, index.astype("float32"), xp.float32(xp.nan)))
        index = xp.where(there, index, -1).astype("int32")
        return Column("int32", index, None if bool(there.all()) else there)


class Weight(_Label):
    """Weight: how much each row counts; a number that is never negative, never missing."""

    role = Role.WEIGHT

    def fields(self, schema: Schema) -> list[Field]:
        """Return the stored weight's field, float32; `BadConfig` where it is no number."""
        raw = self.raw_field(schema)
        if raw.dtype not in (*INTEGERS, *FLOATS, "bool"):
            raise BadConfig(
                f"weight {self.text!r}",
                "a weight has to be a number",
                got=raw.dtype,
                expected="numbers",
                remedy="a numeric column",
            )
        return [replace(raw, dtype="float32", kind=Kind.CONTINUOUS)]

    def columns(self, frame: Frame, schema: Schema, backend: Backend, *, stored: bool) -> dict[str, Column]:
        """Compute the weights of one frame; `BadData` where one is negative, infinite or missing."""
        xp = backend.xp
        column = self.raw_column(frame, schema, backend)
        missing = column.missing(xp)
        data = as_floats(column.data, "float32")
        bad = (data < 0) | ~xp.isfinite(data)
        bad = bad if missing is None else bad | missing
        if bool(bad.any()):
            there = data if missing is None else data[~missing]
            text = f"fillna({self.text}, 1.0)"
            if len(there) == len(data):
                text = f"abs({self.text})" if bool((there < 0).any()) else f"clip({self.text}, 0.0, 1e6)"
            raise BadData(
                f"weight {self.text!r}",
                f"{int(bad.sum())} weights are negative, infinite or missing",
                expected="numbers from 0 up",
                remedy=f"weight={text!r} or a Filter",
            )
        return {self.fields(schema)[0].name: Column("float32", data)}


class TargetSet:
    """Targets of a pipeline: label columns or expressions, the steps of a regression's values, and the task.

    A fit leaves in `task_` what it has decided and why, in `doubt` what to say where the values could be meant
    otherwise, and in `coarse` the targets without steps that lose digits in a batch's float32.
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

    def __copy__(self) -> TargetSet:
        made = object.__new__(TargetSet)
        each, group = [copy(item) for item in self.each], copy(self.group)
        vars(made).update(vars(self) | {"each": each, "group": group})
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
        found = [column.missing(backend.xp) for column in self.raw_columns(frame, schema, backend).values()]
        masks = [~missing for missing in found if missing is not None]
        return None if not masks else backend.xp.stack(masks).all(axis=0)

    def summarize(self, frame: Frame, schema: Schema, backend: Backend) -> dict[Hashable, TargetSummary]:
        """Summarize one partition for `finalize`, each target under ("target", its text)."""
        limit = MAX_CLASSES if self.task == "classification" else FEW
        return {("target", item.text): item.summarize(frame, schema, backend, limit) for item in self.each}

    def check(self, schema: Schema) -> None:
        """Check the targets' dtypes, and drop the standardisation of targets that are not numbers."""
        raw = self._raw_schema(schema)
        require_comparable(raw, "target")
        for item in raw:
            several = len(raw) > 1 and item.dtype in ("string", "timestamp")
            if several or (self.task == "regression" and item.dtype in _NO_NUMBERS):
                raise _no_number(item)
        if self.auto and any(item.dtype in _NO_NUMBERS for item in raw):
            self._standardise(False)
        self.group.fields(raw)

    def finalize(self, summaries: Mapping[str, TargetSummary], schema: Schema) -> None:
        """Decide on the task, as scikit-learn's `type_of_target` does, and fix the classes."""
        every, raw = [summaries[item.text] for item in self.each], self._raw_schema(schema)
        for item, found in zip(self.each, every, strict=True):
            item.check_values(found, schema)
        classes, reason = self._decide(every, raw)
        if classes:
            for item, found in zip(self.each, every, strict=True):
                item.fix_classes(found, schema)
        if self.auto and (classes or any(found.is_binary for found in every)):
            self._standardise(False)
        inside = ", standardised inside (target_transform='auto')" if self.auto and self.group.steps else ""
        self.task_ = f"{Schema(self.fields(schema)).task} ({reason}){inside}"
        if classes or self.group.steps:
            return
        for plain, found in zip(raw, every, strict=True):
            spacing = coarse_spacing(plain.dtype, (found.low, found.high))
            if spacing is not None:
                self.coarse.append(f"{spacing:g} in a range of {found.high - found.low:g} ({plain.name})")

    def _decide(self, found: Sequence[TargetSummary], raw: Schema) -> tuple[bool, str]:
        """Return whether the targets are classes, and why."""
        given = f"task={self.task!r}" if self.auto or not self.group.steps else "target_transform="
        if len(found) > 1:
            labels = all(item.is_binary for item in found)
            self._check_several(labels, raw)
            if self.task == "regression":
                return False, given
            return labels, "0 and 1 only, each" if labels else "several numbers"
        if self.task != "auto":
            return self.task == "classification", given
        ((one,), (item,)) = found, raw
        if one.strings is not None:
            if len(one.strings) > FEW and not one.is_repeated(one.strings):
                self.doubt = "an id is no target: choose another column, or say Features(task='classification')"
            return True, f"{len(one.strings)} distinct strings"
        if item.dtype == "bool":
            return True, "true or false"
        if one.numbers is None:
            return False, "numbers with fractions" if one.fractions else f"more than {FEW} distinct whole numbers"
        values = ", ".join(map(str, sorted(one.numbers)))
        if len(one.numbers) == 2:
            return True, f"the numbers {values}"
        if len(one.numbers) == 1:
            return False, f"all rows have the value {values}"
        if one.is_repeated(one.numbers):
            self.doubt = "say Features(task='regression') or Features(task='classification')"
            rows = one.num_rows - one.num_missing
            return True, f"{len(one.numbers)} distinct whole numbers in {rows:,} rows: {values}"
        return False, f"fewer than two rows for each of {len(one.numbers)} distinct whole numbers"

    def _check_several(self, labels: bool, raw: Schema) -> None:
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

    def _standardise(self, wanted: bool) -> None:
        self.group = replace(self.group, steps=[StandardScaler()] if wanted else [])

    # applying ---------------------------------------------------------------------------------------------------------
    def fields(self, schema: Schema) -> list[Field]:
        """List the stored targets' fields: float32 0/1 or number, or int32 class index."""
        if len(self.each) == 1:
            stored = self.each[0].field(schema)
            return [replace(stored, step=self.group.steps[-1].class_name) if self.group.steps else stored]
        plain = [replace(item.field(schema), name=item.text, dtype="float32") for item in self.each]
        return [replace(item, kind=Kind.CONTINUOUS) for item in plain]

    def in_own_units(self, schema: Schema) -> Schema:
        """Return the output schema, with the targets in their own units, as `columns` computes them."""
        if not self.group.steps:
            return schema
        return Schema(replace(item, dtype="float64") if item.role == Role.TARGET else item for item in schema)

    def columns(self, frame: Frame, schema: Schema, backend: Backend, *, stored: bool) -> dict[str, Column]:
        """Compute the targets of one frame under the names `fields` gives; missing stays missing.

        With `stored` they went through the steps; else they are in their own units, float64 where there are steps.
        """
        if stored and self.group.steps:
            made: Mapping[str, Column] = self.group.apply_steps(self.raw_columns(frame, schema, backend), backend)
        else:
            number = "float64" if self.group.steps else "float32"
            made = {item.text: item.column(frame, schema, backend, number) for item in self.each}
        return dict(zip((item.name for item in self.fields(schema)), made.values(), strict=True))

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
        return [{"classes_": None if item.classes_ is None else list(item.classes_)} for item in self.each]

    def set_state(self, state: Sequence[Mapping[str, Any]], steps: Sequence[LearnedStep]) -> None:
        """Restore what `get_state` returned, and the fitted steps."""
        self.group = replace(self.group, steps=list(steps))
        for item, known in zip(self.each, state, strict=True):
            item.classes_ = None if known["classes_"] is None else tuple(known["classes_"])


def _no_number(item: Field) -> BadConfig:
    return BadConfig(
        f"target {item.name!r}",
        "it is no number, as a regression's target and each of several have to be",
        got=item.dtype,
        expected="a regression's target, or conditions alone",
        remedy="one target without target_transform and task, or a Cast of this one before",
    )
