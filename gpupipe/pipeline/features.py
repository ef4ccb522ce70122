"""Features: columns with their learned steps, target, weight and keys; and a default set for a table."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from gpupipe import preprocessing as pre
from gpupipe.backend import Array, Backend, Column, Frame, Matrix, infer_backend
from gpupipe.backend.columns import as_floats, chain_columns, get_storage, refuse_passengers, require_comparable
from gpupipe.backend.dictionaries import Dictionary, find_positions, strings, unite_dictionaries
from gpupipe.backend.estimators import is_estimator
from gpupipe.backend.kernels import sort_unique
from gpupipe.errors import BadConfig, BadData, ExpressionError, LeakageError, SchemaMismatch
from gpupipe.expressions import Expression, parse
from gpupipe.expressions.evaluate import evaluate
from gpupipe.io import Dataset, as_dataset
from gpupipe.pipeline.auto_features import NUM_FIRST, look_at_rows, propose_groups
from gpupipe.pipeline.row_sets import RowSet
from gpupipe.preprocessing.learned_state import require_state
from gpupipe.preprocessing.learned_step import defer_columns, find_fused_start
from gpupipe.schema import FLOATS, INTEGERS, WIDE, Field, Kind, Role, Schema, get_element_dtype, shorten_list
from gpupipe.selectors import Selector
from gpupipe.step import in_step
from gpupipe.support.calls import answer_calls
from gpupipe.support.origins import ANY_ROW, Origins, When, find_leaks, shift
from gpupipe.support.text import derive, format_columns
from gpupipe.support.validation import as_list, check_choice, check_name, check_names, is_sequence, refuse_choice

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
    def given(self) -> str:
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
                schema.require(name, f"Features({self.given if len(self.columns) > _MANY else self.columns})")
        fields = [schema[name] for name in self.columns]
        refuse_passengers(fields, "Features")
        for step in self.steps:
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
        for place, step in enumerate(steps):
            if place == alone:
                stored = {name: get_storage(column) for name, column in columns.items()}
                read = {name: partial(columns.__getitem__, name) for name in columns}
                if (late := defer_columns(stored, read, steps[place:], backend)) is not None:
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


def to_feature_group(given: Any) -> FeatureGroup:
    """Convert an item of `Features(groups)` to a feature group."""
    is_chain = isinstance(given, tuple) and len(given) in (2, 3)
    columns, steps, name = (*given, None)[:3] if is_chain else (given, [], None)
    selector = columns if isinstance(columns, Selector) else None
    columns = list(columns) if isinstance(columns, tuple) else columns
    if not (selector or isinstance(columns, str) or _are_names(columns)) or not isinstance(name, str | None):
        expected = "columns, (columns, steps) or (columns, steps, name); columns are a name, some, or a selector"
        remedy = _format_spelling(given)
        raise BadConfig("Features", "a group is malformed", got=given, expected=expected, remedy=remedy)
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


def _format_spelling(given: Any) -> str:
    """Format the correct spelling of a group whose parts are in another order, as scikit-learn's are."""
    parts = list(given) if isinstance(given, tuple) else [given]
    columns = next((part for part in parts if _are_names(part)), None)
    step = next((part for part in parts if isinstance(part, pre.LearnedStep) or is_estimator(part)), None)
    name = next((part for part in parts if isinstance(part, str)), None)
    if isinstance(given, list) and given and all(isinstance(part, tuple) for part in given):
        return f"Features({', '.join(map(repr, given))})"
    spelled = ", ".join(repr(part) for part in (columns or ["distance"], step, name) if part is not None)
    return f"({spelled})"


FEW = 20  # distinct whole numbers up to which they are classes, where each is in two rows or more on average
MAX_CLASSES = 10_000  # the same, where somebody says that they are classes
TASKS = ("auto", "classification", "regression")
_NO_NUMBERS = ("bool", "string", "timestamp")


def describe_coarse(name: str, dtype: str, low: float, high: float) -> str:
    """Describe float32's spacing at the larger bound where it exceeds 1/1000 of the range; else return nothing."""
    largest = max(abs(low), abs(high))
    if dtype not in WIDE or not low < high or (dtype != "float64" and largest <= 2**24):
        return ""
    with np.errstate(over="ignore", invalid="ignore"):
        spacing = float(np.spacing(np.float32(largest)))
    return f"{spacing:g} in a range of {high - low:g} ({name})" if spacing > (high - low) / 1000 else ""


def note_lost_digits(what: str, whose: str, told: Sequence[str], remedy: str) -> list[tuple[str, int]]:
    """Return the note for the log, with its level, on what `describe_coarse` has told; none where that is nothing."""
    fact = f"the batches' float32 is coarser than 1/1000 of {whose} range"
    return [(f"{what} digits: {fact}: {', '.join(told)}; try {remedy}", logging.WARNING)] if told else []


class Labels:
    """Base class of target and weight: columns, or expressions over columns, by their text."""

    role: Role

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self._columns: AbstractSet[str] | None = None

    def reset(self) -> None:
        """Clear what an earlier `fit` learned."""
        self._columns = None

    def bind(self, schema: Schema) -> None:
        """Remember which texts name columns of the fit's schema: `1960` is a number where no column is there."""
        self._columns = {text for text in self.texts if text in schema}

    @property
    def text(self) -> str:
        return ", ".join(self.texts)

    def _parse(self, text: str, schema: Schema) -> Expression | None:
        """Parse the expression; None for the name of a column."""
        is_column = text in (schema if self._columns is None else self._columns)
        return None if is_column else parse(text, f"{self.role}={text!r}")

    def reads(self, schema: Schema, texts: Sequence[str] | None = None) -> list[str]:
        """List the columns that these labels (by default all) are computed from."""
        parsed = {text: self._parse(text, schema) for text in (self.texts if texts is None else texts)}
        return list(dict.fromkeys(n for text, found in parsed.items() for n in (found.reads if found else [text])))

    def is_in(self, schema: Schema) -> bool:
        """Return whether all columns they read are present."""
        try:
            return all(name in schema for name in self.reads(schema))
        except ExpressionError:  # the name of a column, and no expression, where that column is not there
            return False

    def rename(self, name: str, taken: AbstractSet[str]) -> str:
        """Return an output's name: the role for an expression, or its text where a feature has that name."""
        return self.text if name in taken and name == self.role else name

    def lineage(self, schema: Schema) -> frozenset[str]:
        """Return the source columns they are computed from."""
        return frozenset().union(*(schema[name].lineage for name in self.reads(schema)))

    def origins(self, schema: Schema) -> Origins:
        """Return the columns of tables read that their values come from."""
        return frozenset().union(*(schema[name].origins for name in self.reads(schema)))

    def raw_fields(self, schema: Schema) -> dict[str, Field]:
        """Return by text the fields of the values before they are stored."""
        found: dict[str, Field] = {}
        for text in self.texts:
            expression = self._parse(text, schema)
            if expression is None:
                refuse_passengers([schema[text]], self.role.value)
                made = replace(schema[text], written_as="")
            else:
                read = map(schema.__getitem__, expression.reads)
                made = Field.derived(self.role.value, expression.check(schema), read, "Features")
            found[text] = replace(made, role=self.role)
        return found

    def raw_columns(self, frame: Frame, schema: Schema, backend: Backend) -> dict[str, Column]:
        """Compute by text the values of one frame."""
        found: dict[str, Column] = {}
        for text in self.texts:
            expression = self._parse(text, schema)
            if expression is None:
                found[text] = backend.column(frame, text)
            else:
                columns = {name: backend.column(frame, name) for name in expression.reads}
                found[text] = evaluate(expression, columns, backend, len(frame))
        return found


class Weight(Labels):
    """Weight: how much each row counts; a number that is never negative, never missing."""

    role = Role.WEIGHT

    def fields(self, schema: Schema) -> list[Field]:
        """Return the stored weight's field, float32; `BadConfig` where it is no number."""
        (raw,) = self.raw_fields(schema).values()
        if raw.dtype not in (*INTEGERS, *FLOATS, "bool"):
            where, problem = f"weight {self.text!r}", "a weight has to be a number"
            raise BadConfig(where, problem, got=raw.dtype, expected="numbers", remedy="a numeric column")
        return [replace(raw, dtype="float32", kind=Kind.CONTINUOUS)]

    def columns(self, frame: Frame, schema: Schema, backend: Backend, *, stored: bool) -> dict[str, Column]:
        """Compute the weights of one frame; `BadData` where one is negative, infinite or missing."""
        xp = backend.xp
        (column,) = self.raw_columns(frame, schema, backend).values()
        missing = column.missing(xp)
        data = as_floats(column.data, "float32")
        bad = (data < 0) | ~xp.isfinite(data)
        bad = bad if missing is None else bad | missing
        if bool(bad.any()):
            there = data if missing is None else data[~missing]
            text = f"coalesce({self.text}, 1.0)"
            if len(there) == len(data):
                text = f"abs({self.text})" if bool((there < 0).any()) else f"clip({self.text}, 0.0, 1e6)"
            where, problem = f"weight {self.text!r}", f"{int(bad.sum())} weights are negative, infinite or missing"
            raise BadData(where, problem, expected="numbers from 0 up", remedy=f"weight={text!r} or a Filter")
        return {self.fields(schema)[0].name: Column("float32", data)}


@dataclass(frozen=True)
class TargetValues:
    """Values of one target in some partitions: a mergeable summary."""

    num_rows: int
    num_missing: int
    limit: int  # of distinct numbers that are kept
    strings: Dictionary | None = None  # the distinct ones, of a target of strings
    numbers: frozenset[int] | None = frozenset()  # the distinct whole numbers and booleans; None for more than `limit`
    fractions: bool = False  # whether some number is not whole
    low: float = math.inf
    high: float = -math.inf

    @classmethod
    def of(cls, column: Column, backend: Backend, limit: int) -> TargetValues:
        """Summarize one partition for the decision on the task; keep up to `limit` distinct numbers."""
        xp, missing = backend.xp, column.missing(backend.xp)
        present = column.data if missing is None else column.data[~missing]
        made = cls(len(column), len(column) - len(present), limit)
        if column.dictionary is not None:
            return replace(made, strings=column.dictionary.take(backend.to_host(sort_unique(present, xp))))
        if column.dtype == "bool":
            return replace(made, numbers=frozenset({int(present.any()), int(present.all())} if len(present) else ()))
        if len(present):
            low, high = backend.to_host(xp.stack([present.min(), present.max()])).tolist()
            made = replace(made, low=float(low), high=float(high))
        if column.dtype in FLOATS and bool((~xp.isfinite(present) | (present != xp.floor(present))).any()):
            return replace(made, numbers=None, fractions=True)
        for some in (present[: 4 * limit], present):  # the first rows of a regression are enough
            ordered = xp.sort(some)  # NumPy's unique hashes, which takes three times as long
            distinct = xp.concatenate([ordered[:1], ordered[1:][ordered[1:] != ordered[:-1]]])
            if len(distinct) > limit:
                return replace(made, numbers=None)
        return replace(made, numbers=frozenset(int(value) for value in backend.to_host(distinct)))

    def __add__(self, other: TargetValues) -> TargetValues:
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
    def num_present(self) -> int:
        return self.num_rows - self.num_missing

    @property
    def is_binary(self) -> bool:
        """Whether there are booleans, or zeros and ones, and nothing else."""
        return self.numbers is not None and not self.fractions and {0, 1} >= self.numbers != frozenset()

    def is_repeated(self, values: Dictionary | frozenset[int]) -> bool:
        """Return whether each of these values is in two rows or more on average."""
        return 2 * len(values) <= self.num_present

    def check(self, text: str, dtype: str) -> None:
        """Raise where nothing can be learned."""
        where = f"target {text!r}"
        if not self.num_present:
            problem, expected = f"none of {self.num_rows} rows has a value", "rows with a target"
            raise BadData(where, problem, expected=expected, remedy="another split, or a look at the steps before")
        strings = None if self.strings is None else self.strings.to_pylist()
        values = strings or ({self.low, self.high} if self.fractions else self.numbers)
        if values is not None and len(values) == 1:
            (value,) = values
            problem, got = "all rows have the same value", bool(value) if dtype == "bool" else value
            raise BadData(where, problem, got=got, expected="two values at least", remedy="another split or target")
        if dtype == "timestamp":
            expected, remedy = "a number, a condition or strings", "the difference of two times"
            raise SchemaMismatch(where, "a time cannot be predicted", expected=expected, remedy=remedy)

    def list_classes(self, text: str, dtype: str) -> tuple[Any, ...]:
        """List the classes: the distinct values in ascending order."""
        where = f"target {text!r}"
        if self.strings is not None:
            return tuple(sorted(self.strings.to_pylist()))
        if self.numbers is None or self.fractions:
            problem = "numbers with fractions are no classes" if self.fractions else "too many distinct numbers"
            expected = f"at most {self.limit:,} distinct whole numbers, strings or a condition"
            remedy = "task='regression', or a condition such as target='price > 100'"
            raise BadData(where, problem, expected=expected, remedy=remedy)
        return tuple(map(bool if dtype == "bool" else int, sorted(self.numbers)))


class TargetSet(Labels):
    """Targets of a pipeline: what a model learns, the steps of a regression's values, the task, and classes by text."""

    role = Role.TARGET

    def __init__(
        self, texts: Sequence[str], steps: Sequence[pre.LearnedStep] | Literal["auto"] = (), task: str = "auto"
    ) -> None:
        super().__init__(texts)
        self.auto = steps == "auto"
        given, where = (
            [] if isinstance(steps, str) else list(map(to_learned_step, steps)),
            "Features(target_transform=)",
        )
        for step in given:
            if not isinstance(step, pre.Invertible):
                expected = "steps with inverse_transform: Log1p, StandardScaler, MinMaxScaler, ..."
                remedy = "target_transform=[pre.Log1p(), pre.StandardScaler()]"
                raise BadConfig(where, "a step that cannot be undone", got=step, expected=expected, remedy=remedy)
        if given and task == "classification":
            expected, remedy = "a regression's target, or no steps", "task='regression', or no target_transform"
            raise BadConfig(where, "classes go through no steps", got=given, expected=expected, remedy=remedy)
        self.task = "regression" if given else task
        self.group = FeatureGroup(list(texts), given, of_target=True)
        self.classes_: dict[str, tuple[Any, ...]] = {}
        self.first_task: str | None = None
        """What the first fit has decided of whole numbers; with more or fewer rows the same values could be both."""

    def __copy__(self) -> TargetSet:
        made = object.__new__(TargetSet)
        vars(made).update(vars(self) | {"group": copy(self.group)})
        return made

    # learning ---------------------------------------------------------------------------------------------------------
    def reset(self) -> None:
        """Clear what an earlier `fit` learned; a possible regression is standardised until its values decide."""
        super().reset()
        self.classes_ = {}
        if self.auto:
            self._standardise(self.task != "classification")

    def present(self, frame: Frame, schema: Schema, backend: Backend) -> Array | None:
        """Return n booleans, False where a target is missing; None when none is."""
        found = [column.missing(backend.xp) for column in self.raw_columns(frame, schema, backend).values()]
        masks = [~missing for missing in found if missing is not None]
        return None if not masks else backend.xp.stack(masks).all(axis=0)

    def summarize(self, frame: Frame, schema: Schema, backend: Backend) -> dict[Hashable, TargetValues]:
        """Summarize one partition for `finalize`, each target under ("target", its text)."""
        limit = MAX_CLASSES if "classification" in (self.task, self.first_task) else FEW
        columns = self.raw_columns(frame, schema, backend)
        return {("target", text): TargetValues.of(column, backend, limit) for text, column in columns.items()}

    def check(self, schema: Schema) -> None:
        """Check the targets' dtypes, and drop the standardisation of targets that are not numbers."""
        raw = self._raw_schema(schema)
        require_comparable(raw, "target")
        for item in raw:
            several = len(raw) > 1 and item.dtype in ("string", "timestamp")
            if several or (self.task == "regression" and item.dtype in _NO_NUMBERS):
                raise _refuse_number(item)
        if self.auto and any(item.dtype in _NO_NUMBERS for item in raw):
            self._standardise(False)
        self.group.fields(raw)

    def finalize(self, values: Mapping[str, TargetValues], schema: Schema) -> list[tuple[str, int]]:
        """Decide on the task as scikit-learn's `type_of_target` does, and fix the classes; return notes for the log."""
        raw = self._raw_schema(schema)
        found = [(values[item.name], item) for item in raw]
        for each, item in found:
            each.check(item.name, item.dtype)
        has_classes, reason, doubt = self._decide([each for each, _ in found], raw)
        are_whole = all(item.dtype not in _NO_NUMBERS and not each.fractions for each, item in found)
        self.first_task = ("classification" if has_classes else "regression") if are_whole else None
        if has_classes:
            self.classes_ = {item.name: each.list_classes(item.name, item.dtype) for each, item in found}
        if self.auto and (has_classes or any(each.is_binary for each, _ in found)):
            self._standardise(False)
        inside = ", standardised inside (target_transform='auto')" if self.auto and self.group.steps else ""
        note = f"target {self.text!r}: {Schema(self.fields(schema)).task} ({reason}){inside}{doubt}"
        plain = [] if has_classes or self.group.steps else found
        told = [describe_coarse(item.name, item.dtype, each.low, each.high) for each, item in plain]
        remedy = "Features(target_transform=pre.StandardScaler())"
        lost = note_lost_digits(f"target {self.text!r} loses", "its", [*filter(None, told)], remedy)
        return [(note, logging.WARNING if doubt else logging.INFO), *lost]

    def _decide(self, found: Sequence[TargetValues], raw: Schema) -> tuple[bool, str, str]:
        """Return whether the targets are classes, why, and what to do where they may be something else."""
        given = f"task={self.task!r}" if self.auto or not self.group.steps else "target_transform="
        if len(found) > 1:
            are_binary = all(item.is_binary for item in found)
            if are_binary and self.task == "auto" and self.first_task == "regression":
                return False, "as in the fit before", ""
            return *self._decide_several(are_binary, raw, given), ""
        if self.task != "auto":
            return self.task == "classification", given, ""
        ((one,), (item,)) = found, raw
        if one.strings is not None:
            doubt = "; an id is no target: choose another column, or say Features(task='classification')"
            is_id = len(one.strings) > FEW and not one.is_repeated(one.strings)
            return True, f"{len(one.strings)} distinct strings", doubt if is_id else ""
        if item.dtype == "bool":
            return True, "true or false", ""
        if one.fractions:
            return False, "numbers with fractions", ""
        if self.first_task is not None:
            return self.first_task == "classification", "as in the fit before", ""
        if one.numbers is None:
            return False, f"more than {FEW} distinct whole numbers", ""
        values, rows = ", ".join(map(str, sorted(one.numbers))), one.num_present
        doubt = "; say Features(task='regression') or Features(task='classification')"
        few = f": with other rows it may be the other task{doubt}" if rows < 2 * FEW else ""
        if len(one.numbers) == 2:
            return True, f"the numbers {values}", "" if one.is_binary else few
        if one.is_repeated(one.numbers):
            return True, f"{len(one.numbers)} distinct whole numbers in {rows:,} rows: {values}", few or doubt
        return False, f"fewer than two rows for each of {len(one.numbers)} distinct whole numbers", few

    def _decide_several(self, are_binary: bool, raw: Schema, given: str) -> tuple[bool, str]:
        for item in raw:
            if item.dtype == "bool" and not are_binary:
                raise _refuse_number(item)
        if self.task == "classification" and not are_binary:
            where, problem = "Features(task='classification')", "several targets that are not all conditions"
            expected = "one target, or several of 0 and 1 only"
            remedy = "a condition of each, such as 'stars > 3', or task='regression'"
            raise BadConfig(where, problem, got=raw.names, expected=expected, remedy=remedy)
        if self.task == "regression":
            return False, given
        return are_binary, "0 and 1 only, each" if are_binary else "several numbers"

    def _standardise(self, wanted: bool) -> None:
        self.group = replace(self.group, steps=[pre.StandardScaler()] if wanted else [])

    def _raw_schema(self, schema: Schema) -> Schema:
        return Schema(replace(item, name=text) for text, item in self.raw_fields(schema).items())

    # applying ---------------------------------------------------------------------------------------------------------
    def fields(self, schema: Schema) -> list[Field]:
        """List the stored targets' fields: float32 0/1 or number, or int32 class index; several go by their texts."""
        found = []
        for text, raw in self.raw_fields(schema).items():
            classes = self.classes_.get(text)
            made = replace(raw, classes=classes, dtype="float32", kind=Kind.CONTINUOUS, cardinality=None)
            if classes is not None and len(classes) > 2:
                made = replace(made, dtype="int32", kind=Kind.CATEGORICAL, cardinality=len(classes))
            if len(self.texts) > 1:
                made = replace(made, name=text)
            elif self.group.steps:
                made = replace(made, step=self.group.steps[-1].class_name)
            found.append(made)
        return found

    def in_own_units(self, schema: Schema) -> Schema:
        """Return the output schema, with the targets in their own units, as `columns` computes them."""
        if not self.group.steps:
            return schema
        return Schema(replace(item, dtype="float64") if item.role == Role.TARGET else item for item in schema)

    def columns(self, frame: Frame, schema: Schema, backend: Backend, *, stored: bool) -> dict[str, Column]:
        """Compute one frame's targets, as `stored` or in their own units; missing stays missing."""
        made: Mapping[str, Column] = self.raw_columns(frame, schema, backend)
        if stored and self.group.steps:
            made = self.group.apply_steps(made, backend)
        else:
            made = {text: self._column(text, column, backend) for text, column in made.items()}
        return dict(zip((item.name for item in self.fields(schema)), made.values(), strict=True))

    def _column(self, text: str, column: Column, backend: Backend) -> Column:
        """Convert values to numbers, or to the indices of their classes; missing stays missing."""
        xp, missing, classes = backend.xp, column.missing(backend.xp), self.classes_.get(text)
        if classes is None:
            number = "float64" if self.group.steps else "float32"
            data = as_floats(column.data, number)
            return Column(number, data if missing is None else xp.where(missing, data.dtype.type(xp.nan), data))
        there = xp.ones(len(column), dtype=bool) if missing is None else ~missing
        if column.dictionary is not None:
            table = backend.to_device(find_positions(column.dictionary, strings(classes)))
            index = xp.append(table, -1)[column.data]
            unknown = (index < 0) & there
        elif column.dtype == "bool":
            index, unknown = column.data, xp.zeros_like(there)
        else:
            known = xp.asarray(classes, dtype=column.data.dtype)
            index = xp.clip(xp.searchsorted(known, column.data), 0, len(known) - 1)
            unknown = (known[index] != column.data) & there
        if bool(unknown.any()):
            first = backend.to_host(column.data[unknown][:1])[0].item()
            got = first if column.dictionary is None else column.dictionary[first].as_py()
            problem, remedy = "a class that was not there in fit", "fit on data that holds every class"
            raise BadData(f"target {text!r}", problem, got=got, expected=f"one of {classes}", remedy=remedy)
        if len(classes) == 2:
            return Column("float32", xp.where(there, index.astype("float32"), xp.float32(xp.nan)))
        index = xp.where(there, index, -1).astype("int32")
        return Column("int32", index, None if bool(there.all()) else there)

    def get_state(self) -> list[dict[str, Any]]:
        """Return the classes of each."""
        return [{"classes_": list(self.classes_[text]) if text in self.classes_ else None} for text in self.texts]

    def set_state(self, state: Sequence[Mapping[str, Any]], steps: Sequence[pre.LearnedStep]) -> None:
        """Restore what `get_state` returned, and the fitted steps."""
        self.group = replace(self.group, steps=list(steps))
        known = zip(self.texts, (item["classes_"] for item in state), strict=True)
        self.classes_ = {text: tuple(classes) for text, classes in known if classes is not None}
        if any(len(classes) < 2 or sorted(set(classes)) != [*classes] for classes in self.classes_.values()):
            raise ValueError(f"classes are two or more, ascending, not {self.classes_}")
        self.first_task = "classification" if self.classes_ else "regression"


def _refuse_number(item: Field) -> BadConfig:
    problem = "it is no number, as a regression's target and each of several have to be"
    expected = "a regression's target, or conditions alone"
    remedy = "one target without target_transform and task, or a Cast of this one before"
    return BadConfig(f"target {item.name!r}", problem, got=item.dtype, expected=expected, remedy=remedy)


_log = logging.getLogger("gpupipe")
_SHOWN = 12  # columns that are left out


@answer_calls
class Features:
    """Step from frame to tensors: feature groups, target, weight and kept columns.

    Args:
        groups: each `(columns, step or steps)`, `(columns, steps, name)` (outputs are called `name_output`) or just
            columns, or a column's name; a mapping from columns to steps stands for a group each. A scikit-learn or cuML
            estimator may be a step. A selector of `gpupipe.selectors` chooses columns at each `fit`, among those that
            are not the target, the weight, kept, or computed from what these are computed from (`explain` and the fit
            report name those).
        target: the label column, or an expression over label columns; a list of several conditions (of 0 and 1), or of
            several numbers, makes a model with as many outputs.
        task: `"classification"`, `"regression"`, or `"auto"`, which decides as scikit-learn's `type_of_target` and logs
            why: conditions, booleans, strings and two distinct whole numbers are classes; with a warning, up to 20
            distinct whole numbers are, each in two rows or more on average; other numbers are a regression's. Of whole
            numbers the first fit decides for all later ones, because more rows could make the other task of them.
        target_transform: steps a regression's target goes through before it is learned, such as `[pre.Log1p()]`;
            `"auto"` standardises it, None leaves it. Predictions and metrics are in its own units.
        weight: the column or expression of sample weights.
        keep: columns carried along with the features and never fed to a model.
        allow_leak: features that may hold the target all the same, each by its column's own name; the fit report notes
            them. What is known before needs no permission: a `Lag` back, or a window with `closed="left"`, of a target.

    Example:
        >>> from gpupipe import preprocessing as pre
        >>> Features((["distance"], pre.StandardScaler()), ["night"], target="arr_delay > 15").groups[0].columns
        ['distance']
    """

    def __init__(
        self,
        *groups: Any,
        target: str | Sequence[str] | None = None,
        task: str = "auto",
        target_transform: pre.LearnedStep | Sequence[pre.LearnedStep] | str | None = "auto",
        weight: str | None = None,
        keep: str | Sequence[str] = (),
        allow_leak: str | Sequence[str] = (),
    ) -> None:
        listed = (given.items() if isinstance(given, Mapping) else [given] for given in groups)
        self.groups = [to_feature_group(one) for some in listed for one in some]
        _check_labels("Features", target, weight, keep)
        check_choice("Features", TASKS, task=task)
        check_names("Features", allow_leak=allow_leak)
        chain = _to_chain(target_transform)
        self.target = None if target is None else TargetSet(as_list(target), chain, task)
        self.weight = None if weight is None else Weight([weight])
        self.keep, self.allow_leak = as_list(keep), as_list(allow_leak)
        self.lineage_: str | None = None
        self._fitted_rows: RowSet | None = None  # not saved
        self.left_out: list[str] = []
        self.omitted: list[str] = []
        self.remarks: list[str] = []
        steps = self._steps
        if len({id(step) for step in steps}) < len(steps):
            problem, got = "one step stands in two places", [repr(step) for step in steps]
            expected = "a step of its own in each place, since each learns its own state"
            remedy = "a second one with the same parameters"
            raise BadConfig("Features", problem, got=got, expected=expected, remedy=remedy)
        if not self.groups:
            expected, remedy = "at least one group", "Features(['distance'])"
            raise BadConfig("Features", "no columns are given", expected=expected, remedy=remedy)
        needing = [type(step).__name__ for step in steps if hasattr(step, "needs_target")] if self._cross_fits else []
        needing += [] if task == "auto" else ["task"]
        needing += [] if chain in ("auto", []) else ["target_transform"]
        if self.target is None and needing:
            expected, remedy = "the column or expression it learns from", "Features(..., target='arr_delay')"
            raise BadConfig(f"Features, {needing[-1]}", "there is no target", expected=expected, remedy=remedy)

    @classmethod
    def auto(
        cls,
        data: Any,
        *,
        target: str | Sequence[str] | None = None,
        weight: str | None = None,
        keep: str | Sequence[str] = (),
        min_frequency: int | None = None,
    ) -> Features:
        """Propose features by the columns' dtypes; the result's `repr` is the code that builds it.

        Numbers are imputed by the median and scaled; booleans are imputed by the most frequent; strings become ids, and
        so do strings and integers in lists; integers of few values (in the first 10,000 rows at most 32, or at most 256
        of 40 rows each) become both, numbers called `number_<column>` and ids; times become the year, weekends and
        places in the year, the week and the day, imputed and scaled. Left out, and named by the log, the `repr` and the
        fit report, are columns without a value in these rows, types that no step takes, row names that pandas writes
        (an empty name, or `__index_level_0__`), and what earlier pipelines computed from the target's columns. Said in
        the same places of columns that are taken: ids that no two rows share, one value in all rows, text that stands
        for numbers, money, percent or dates, with the steps that parse it, and text of many values, with a step for its
        parts. It knows nothing of what the columns mean: look for those that are only known after the target is.

        `data` may be a Schema too, and then all integers are amounts. The columns of `target`, `weight` and `keep`
        become no features. A target of whole numbers other than 0 and 1 has its task written down where there are less
        than 10,000 rows, since part of them could decide otherwise. Strings and ids rarer than `min_frequency` are all
        one; by default 5, in less than 1,000 rows none.

        Raises `BadConfig`: no column is left.
        Memory: the first 10,000 rows of the columns of numbers and times.

        Example:
            >>> from gpupipe.schema import Field, Schema
            >>> Features.auto(Schema([Field("distance", "float64"), Field("late", "bool")]), target="late")
            Features(
                (['distance'], [SimpleImputer(strategy='median'), StandardScaler()]),
                target='late',
            )
        """
        _check_labels("Features.auto", target, weight, keep)
        dataset = None if isinstance(data, Schema) else as_dataset(data)
        schema: Schema = data if dataset is None else dataset.schema
        labels = set() if target is None else {*TargetSet(as_list(target)).reads(schema)}
        taken = {*as_list(keep), *labels, *([] if weight is None else Weight([weight]).reads(schema))}
        first = look_at_rows(schema, dataset)
        secret: Origins = frozenset().union(*(item.origins for item in schema if item.name in labels))
        leaks = {item.name: find_leaks(item.origins, secret) for item in schema}
        useless = {
            name: f"computed from {', '.join(sources)}, as the target is" for name, sources in leaks.items() if sources
        }
        useless |= first.useless
        least = first.min_frequency if min_frequency is None else min_frequency
        free = [item for item in schema if item.name not in taken and item.name not in useless]
        groups = propose_groups(free, first.ids, least)
        task = "auto" if dataset is None or target is None else _decide_task(TargetSet(as_list(target)), dataset)
        made = cls(*groups, target=target, task=task, weight=weight, keep=keep)
        used = taken.union(*(group[0] for group in groups))
        reasons = {item.name: useless.get(item.name, item.dtype) for item in schema if item.name not in used}
        made.omitted = [f"{name or repr(name)} ({reason})" for name, reason in reasons.items()]
        made.remarks = [f"{item.name}: {first.remarks[item.name]}" for item in free if item.name in first.remarks]
        for line in made._proposal_notes():
            _log.warning("%s", line)
        for name in sorted(taken - set(schema.names)):
            _log.warning("Features.auto: no column %r is there: a step before the features has to make it", name)
        return made

    def _resolve(self, schema: Schema, *, strict: bool) -> None:
        """Resolve selectors against the columns after the transforms, which may lack some unless `strict`."""
        self.left_out = self._proposal_notes()
        if not any(group.selector is not None for group in self.groups):
            return
        there = [label for label in self._labels if label.is_in(schema)]
        named = {name for label in there for name in label.reads(schema)}
        kept = named | set(self.keep)
        secret: Origins = frozenset().union(*(label.origins(schema) for label in there))
        leaks = {item.name: find_leaks(item.origins, secret) for item in schema if item.name not in self.allow_leak}
        tied = {name for name, sources in leaks.items() if sources} - kept
        for position, group in enumerate(self.groups):
            if group.selector is None:
                continue
            if strict:
                group.selector.check(schema)
            taken = [item.name for item in schema if group.selector.takes(item)]
            lost = [name for name in taken if name in tied]
            sources = sorted({source for name in lost for source in leaks[name]})
            chosen = [name for name in taken if name not in kept | tied]
            if strict and not chosen:
                where, problem = f"Features({group.selector!r})", "it chooses no column that may be a feature"
                expected = f"one at least of {sorted({*schema.names} - kept - tied)}"
                remedy = f"allow_leak={lost} if that is meant" if lost else "another selector, or names"
                raise BadConfig(where, problem, got=taken, expected=expected, remedy=remedy)
            self.groups[position] = replace(group, columns=chosen)
            reason = f"computed from {', '.join(sources)}, as the target or weight is; "
            reason += f"Features(allow_leak={lost}) takes them"
            told = {"the target or weight": [name for name in taken if name in named], reason: lost}
            for reason, names in told.items():
                self.left_out += [f"{group.selector!r} leaves out {shorten_list(names)}: {reason}"] if names else []

    def _proposal_notes(self) -> list[str]:
        """List what `auto` has left out, and what it has seen in columns that it took."""
        told = [f"Features.auto leaves out {shorten_list(self.omitted, _SHOWN)}"] if self.omitted else []
        more = len(self.remarks) - _SHOWN
        told += [f"Features.auto takes {remark}" for remark in self.remarks[:_SHOWN]]
        return told + ([f"Features.auto says as much of {more} columns more"] if more > 0 else [])

    def __repr__(self) -> str:
        lines = []
        for group in self.groups:
            shown = format_names(group.columns, single=False) if group.selector is None else repr(group.selector)
            if group.steps or group.name:
                shown = f"({shown}, {group.steps!r}{'' if group.name is None else f', {group.name!r}'})"
            lines.append(shown)
        if self.target is not None:
            texts, steps = self.target.texts, self.target.group.steps
            lines.append(f"target={(texts[0] if len(texts) == 1 else texts)!r}")
            if self.target.task != "auto" and (self.target.auto or not steps):
                lines.append(f"task={self.target.task!r}")
            if not self.target.auto:
                lines.append(f"target_transform={steps or None!r}")
        lines += [] if self.weight is None else [f"weight={self.weight.text!r}"]
        lines += [f"keep={format_names(self.keep)}"] if self.keep else []
        lines += [f"allow_leak={format_names(self.allow_leak)}"] if self.allow_leak else []
        lines = [f"    {line},\n" for line in lines]
        lines += [f"    # left out: {shorten_list(self.omitted, _SHOWN)}\n"] if self.omitted else []
        lines += [f"    # {remark}\n" for remark in self.remarks[:_SHOWN]]
        return f"Features(\n{''.join(lines)})"

    def __copy__(self) -> Features:
        """Copy the steps and labels too; what was learned is shared."""
        made = object.__new__(type(self))
        parts = {"groups": list(map(copy, self.groups)), "target": copy(self.target), "weight": copy(self.weight)}
        vars(made).update(vars(self) | parts)
        return made

    @property
    def _learned(self) -> list[FeatureGroup]:
        """The groups, and that of the target where it goes through steps."""
        return self.groups + ([self.target.group] if self.target is not None and self.target.group.steps else [])

    @property
    def _steps(self) -> list[pre.LearnedStep]:
        return [step for group in self._learned for step in group.steps]

    @property
    def _cross_fits(self) -> bool:
        """Whether a step learns from the target, so that training rows need out-of-fold values."""
        return any(group.cross_fits for group in self.groups)

    @property
    def inputs(self) -> set[str]:
        """The columns the groups read once they are fitted."""
        return {name for group in self.groups for name in group.looks_at}

    def _label_reads(self, schema: Schema) -> set[str]:
        return {name for label in self._labels for name in label.reads(schema)}

    def _output_fields(self, schema: Schema) -> GroupFields:
        return [(group, group.fields(schema)) for group in self.groups]

    def _output_schema(self, schema: Schema, outputs: GroupFields) -> Schema:
        """Return the schema of features, the `outputs`, and of labels and kept columns that are there."""
        fields = [_feature(item, group.rename(item.name)) for group, made in outputs for item in made]
        taken = {item.name for item in fields}
        for label in (label for label in self._labels if label.is_in(schema)):
            fields += [replace(item, name=label.rename(item.name, taken)) for item in label.fields(schema)]
        taken = {item.name for item in fields}
        fields += [replace(schema[n], name=out, role=Role.KEEP) for n, out in self._kept(schema, taken).items()]
        try:
            return Schema(fields)
        except BadConfig as error:
            remedy = "a name for one of the feature groups, (columns, steps, 'name'), or a column renamed before"
            raise BadConfig("Features", error.problem, got=error.got, expected=error.expected, remedy=remedy) from None

    @property
    def _labels(self) -> list[TargetSet | Weight]:
        return [label for label in (self.target, self.weight) if label is not None]

    def _kept(self, schema: Schema, taken: AbstractSet[str]) -> dict[str, str]:
        """Map the kept columns that exist to their output names, which are the same with labels and without."""
        taken = taken | {name for label in self._labels for name in (label.text, str(label.role), *label.texts)}
        return {name: f"{name}_keep" if name in taken else name for name in self.keep if name in schema}

    def _check_leaks(self, schema: Schema) -> list[str]:
        """Raise for a feature that holds the target, unless that is allowed; return notes on those that are."""
        columns: dict[str, Origins] = {}
        for group in self.groups:
            whens = ANY_ROW if any(isinstance(step, pre.GroupStats) for step in group.steps) else (When.NOW,)
            for name in group.columns:
                columns[name] = columns.get(name, frozenset()) | shift(schema[name].origins, *whens)
        for name in self.allow_leak:
            if name not in columns:
                expected = f"features, each by its column's own name: {shorten_list(map(repr, columns), _SHOWN)}"
                remedy = "allow_leak=[] first: the error then names the features that need it"
                problem = "no feature is called so"
                raise BadConfig("Features(allow_leak=)", problem, got=name, expected=expected, remedy=remedy)
        if self.target is None:
            return []
        notes, secret = [], self.target.origins(schema)
        for name, origins in columns.items():
            if not (leaked := find_leaks(origins, secret)):
                continue
            why = f"it is computed from {leaked}, which the target {self.target.text!r} is computed from too"
            if name in self.allow_leak:
                notes.append(f"feature {name!r} may leak, as allow_leak permits: {why}")
                continue
            expected = "features that are known before the target is, as lags and windows of earlier rows are"
            remedy = f"leave it out, or Features(allow_leak=[{name!r}]) if that is meant"
            step, is_later = schema[name].step, any(one.when == When.AFTER for one in origins)
            if step in ("Rolling", "Expanding") and not is_later:
                remedy = f"T.{step}(..., closed='left'), which leaves out the row's own value; or {remedy}"
            raise LeakageError(f"feature {name!r}", why, expected=expected, remedy=remedy)
        return notes

    def _columns(
        self, frame: Frame, schema: Schema, backend: Backend, row_ids: Array | None = None, *, stored: bool = False
    ) -> Mapping[str, Column]:
        """Compute all columns of `_output_schema` for one frame; see `compute_columns`, `TargetSet.columns`."""
        made = [group.renamed(group.compute_columns(frame, backend, row_ids=row_ids)) for group in self.groups]
        there = [label for label in self._labels if label.is_in(schema)]
        taken = set[str]().union(*made) if there or self.keep else set[str]()
        labels = {
            label.rename(name, taken): column
            for label in there
            for name, column in label.columns(frame, schema, backend, stored=stored).items()
        }
        taken |= labels.keys()
        kept = {out: backend.column(frame, name) for name, out in self._kept(schema, taken).items()}
        return chain_columns(*made, labels, kept)

    def _mark_own_target(self, schema: Schema, after: Schema) -> Schema:
        """Return the output's schema, where columns learned from these rows' target have its origins too."""
        if self.target is None:
            return schema
        secret, groups = self.target.origins(after), [group for group in self.groups if group.cross_fits]
        names = [group.rename(item.name) for group in groups for item in group.fields(after)]
        return schema.assign(
            replace(schema[name], origins=schema[name].origins | secret) for name in names if name in schema
        )

    def _target_sources(self, schema: Schema) -> list[str]:
        """List the columns of the data that the target reads, by the transformed `schema`."""
        reads = [] if self.target is None else self.target.reads(schema)
        return sorted({source for name in reads for source in schema[name].lineage})

    def _label_sources(self, schema: Schema) -> list[str]:
        """List the columns of the data that target-learning steps and the target read, by the transformed `schema`."""
        names = {name for group in self.groups if group.cross_fits for name in group.columns}
        names |= set() if self.target is None else set(self.target.reads(schema))
        return sorted({source for name in names for source in schema[name].lineage})

    def _check_rows(self, lineage: str | None, out_of_fold: bool | None, shares_rows: bool) -> None:
        """Raise where rows to train on, of this id or some of the fit's, would leak their own target to a model."""
        if not self._cross_fits or self.lineage_ is None:
            return
        names = [name for group in self.groups if group.cross_fits for name in group.columns]
        same = lineage == self.lineage_
        if out_of_fold is None and (same or shares_rows):
            which = "the rows" if same else "of the table"
            problem = f"these are {which} the pipeline was fitted on, and features of {names} hold their own target"
            remedy = "loader(train, out_of_fold=True); False if that is meant, as to look at how a model overfits"
            if not same:
                remedy = "fit on part of a split(), and load the other; out_of_fold=False if no row was in the fit"
            expected = "features learned from the target of other rows"
            raise LeakageError("loader", problem, expected=expected, remedy=remedy)
        if out_of_fold and not same:
            where, expected = "loader(out_of_fold=True)", "the dataset or frame that was fitted on"
            got = "other files, another query, or other values or another order of rows in memory"
            remedy = "loader(data) for rows that were not fitted on, or pipeline.fit(data) on these first"
            raise BadConfig(where, "not the rows of the fit", got=got, expected=expected, remedy=remedy)


def _check_labels(owner: str, target: Any, weight: Any, keep: Any) -> None:
    check_names(owner, None, empty=False, target=target)
    check_name(owner, None, weight=weight)
    check_names(owner, keep=keep)


def _to_chain(target_transform: Any) -> list[pre.LearnedStep] | Literal["auto"]:
    if isinstance(target_transform, str):
        if target_transform != "auto":
            raise refuse_choice("Features", "target_transform", target_transform, ["auto", None], "steps")
        return "auto"
    given = () if target_transform is None else target_transform
    return list(given) if isinstance(given, list | tuple) else [to_learned_step(given)]


def _feature(item: Field, name: str) -> Field:
    item = item.replace(name=name, role=Role.FEATURE)
    of_lists = get_element_dtype(item.dtype) in ("string", "timestamp")
    if item.kind not in (Kind.TEXT, Kind.TIME) and not of_lists:
        return item
    remedy = "another column" if of_lists else f"T.{derive(item.name, 'hour({})', 'hour')}"
    remedy = "pre.Categorify()" if item.kind == Kind.TEXT or item.dtype == "list<string>" else remedy
    remedy += "" if of_lists else f", or keep=[{item.name!r}] to carry it beside the features"
    problem = f"{item.dtype} values cannot be fed to a network"
    expected = "lists of ids or numbers" if of_lists else "numbers or ids"
    raise SchemaMismatch(f"feature {item.name!r}", problem, expected=expected, remedy=remedy)


def _decide_task(target: TargetSet, dataset: Dataset) -> str:
    """Decide on the task of one target of whole numbers whose rows are all among the first; else "auto"."""
    schema = dataset.schema
    if len(target.texts) > 1 or not target.is_in(schema):
        return "auto"
    (item,) = target._raw_schema(schema)
    first = () if item.dtype in _NO_NUMBERS else dataset.select(target.reads(schema)).head(NUM_FIRST)
    if not 0 < len(first) < NUM_FIRST:
        return "auto"
    backend = infer_backend(first)
    (values,) = target.summarize(backend.encode(first), schema, backend).values()
    if not values.num_present or values.fractions or values.is_binary:
        return "auto"
    return "classification" if target._decide([values], target._raw_schema(schema))[0] else "regression"
