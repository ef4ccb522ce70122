"""Target: the task, the classes and the values that a model learns."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from gpupipe import preprocessing as pre
from gpupipe.backend import Array, Backend, Column, Frame, infer_backend, select_for
from gpupipe.backend.columns import as_floats, require_comparable
from gpupipe.backend.dictionaries import Dictionary, find_positions, strings, unite_dictionaries
from gpupipe.backend.kernels import sort_unique
from gpupipe.errors import BadConfig, BadData, SchemaMismatch, nearest
from gpupipe.expressions import Expression
from gpupipe.expressions.spellings import parenthesize
from gpupipe.io import Dataset
from gpupipe.pipeline.feature_group import FeatureGroup, to_learned_step
from gpupipe.pipeline.float32 import describe_coarse, note_lost_digits
from gpupipe.pipeline.labels import Labels
from gpupipe.schema import FLOATS, LISTS, Field, Kind, Role, Schema, shorten_list
from gpupipe.support.text import escape_line, format_count, refer_to

if TYPE_CHECKING:
    import torch

NUM_FIRST = 10_000
"""Rows that are looked at before a fit."""
FEW = 20  # distinct whole numbers up to which they are classes, where each is in two rows or more on average
MAX_CLASSES = 10_000  # the same, where somebody says that they are classes
_log = logging.getLogger("gpupipe")
TASKS = ("auto", "classification", "regression")
_NO_NUMBERS = ("bool", "string", "timestamp")
_MANY_GAPS = 0.1  # the share of rows without a value of an expression from which on that is worth a warning
_MOST_MISSING = 0.4  # the share without a value of a target that is a column, from which on that is
_MANY_TEXTS = 1_000  # of a column, among which none is searched that is like one in a condition


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
    compared: Mapping[str, Dictionary] = field(default_factory=dict)
    """The distinct texts of the columns that a condition compares, by name, while it has one value in all rows."""
    gaps: Mapping[str, int] = field(default_factory=Counter)
    """The rows without a value that lack one of a column, too, by the names of those an expression reads."""
    num_undefined: int = 0
    """The rows without a value where every column that an expression reads has one, as `log(x)` of numbers below 0."""

    @classmethod
    def of(cls, column: Column, backend: Backend, limit: int) -> TargetValues:
        """Summarize one partition for the decision on the task; keep up to `limit` distinct numbers."""
        xp, missing = backend.xp, column.missing(backend.xp)
        present = column.data if missing is None else column.data[~missing]
        summary = cls(len(column), len(column) - len(present), limit)
        if column.dictionary is not None:
            return replace(summary, strings=column.dictionary.take(backend.to_host(sort_unique(present, xp))))
        if column.dtype == "bool":
            return replace(summary, numbers=frozenset({int(present.any()), int(present.all())} if len(present) else ()))
        if len(present):
            low, high = backend.to_host(xp.stack([present.min(), present.max()])).tolist()
            summary = replace(summary, low=float(low), high=float(high))
        if column.dtype in FLOATS and bool((~xp.isfinite(present) | (present != xp.floor(present))).any()):
            return replace(summary, numbers=None, fractions=True)
        for block in (present[: 4 * limit], present):  # the first rows of a regression are enough
            ordered = xp.sort(block)  # NumPy's unique hashes, which takes three times as long
            distinct = xp.concatenate([ordered[:1], ordered[1:][ordered[1:] != ordered[:-1]]])
            if len(distinct) > limit:
                return replace(summary, numbers=None)
        return replace(summary, numbers=frozenset(int(value) for value in backend.to_host(distinct)))

    def __add__(self, other: TargetValues) -> TargetValues:
        parts = [part for part in (self.strings, other.strings) if part is not None]
        numbers = None if self.numbers is None or other.numbers is None else self.numbers | other.numbers
        return replace(
            self,
            num_rows=self.num_rows + other.num_rows,
            num_missing=self.num_missing + other.num_missing,
            strings=unite_dictionaries(parts) if parts else None,
            numbers=None if numbers is None or len(numbers) > self.limit else numbers,
            fractions=self.fractions or other.fractions,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            compared={
                name: unite_dictionaries([texts, other.compared[name]])
                for name, texts in self.compared.items()
                if name in other.compared and self.numbers == other.numbers
            },
            gaps=Counter(self.gaps) + Counter(other.gaps),
            num_undefined=self.num_undefined + other.num_undefined,
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

    @property
    def wide_gaps(self) -> list[str]:
        """The columns that leave rows without a value, if these are many."""
        are_many = min(self.num_missing, sum(self.gaps.values())) >= _MANY_GAPS * self.num_rows
        return [name for name, num_rows in self.gaps.items() if num_rows and are_many]

    def describe_gaps(self) -> str:
        """Say in how many rows columns leave the target without a value."""
        rows = f"{self.num_missing:,} of {format_count(self.num_rows, 'row')}"
        return f"{' or '.join(map(escape_line, self.wide_gaps))} is missing in {rows}"

    def check(self, text: str, dtype: str, expression: Expression | None) -> None:
        """Raise where nothing can be learned; `expression` is that of a target that is no column."""
        where = f"target {text!r}"
        if not self.num_present:
            problem, expected = f"none of {self.num_rows} rows has a value", "rows with a target"
            raise BadData(where, problem, expected=expected, remedy="another split, or a look at the steps before")
        strings = None if self.strings is None else self.strings.to_pylist()
        values = strings or ({self.low, self.high} if self.fractions else self.numbers)
        if values is not None and len(values) == 1:
            (value,) = values
            problem, got = "all rows have the same value", bool(value) if dtype == "bool" else value
            expected, remedy = "two values at least", "another split or target"
            if expression is not None and self.wide_gaps and dtype == "bool" and value:
                remedy = f"target={f'coalesce({expression.text}, False)'!r}, since {self.describe_gaps()}"
            for name, constant in () if expression is None else _list_texts(expression):
                texts = self.compared[name].to_pylist() if name in self.compared else []
                if texts and constant not in texts:
                    expected = f"values that column {name!r} has: {shorten_list(map(repr, sorted(texts)), FEW)}"
                    if near := nearest(constant, texts):
                        remedy = f"target={_replace_text(text, constant, near)!r} (the closest value)"
            raise BadData(where, problem, got=got, expected=expected, remedy=remedy)
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
            remedy = f"task='regression', or a condition such as target={f'{parenthesize(text)} > 100'!r}"
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
        chain, where = (
            [] if isinstance(steps, str) else list(map(to_learned_step, steps)),
            "Features(target_transform=)",
        )
        for step in chain:
            if not isinstance(step, pre.Invertible):
                expected = "steps with inverse_transform: Log1p, StandardScaler, MinMaxScaler, ..."
                remedy = "target_transform=[pre.Log1p(), pre.StandardScaler()]"
                raise BadConfig(where, "a step that cannot be undone", got=step, expected=expected, remedy=remedy)
        if chain and task == "classification":
            expected, remedy = "a regression's target, or no steps", "task='regression', or no target_transform"
            raise BadConfig(where, "classes go through no steps", got=chain, expected=expected, remedy=remedy)
        self.task = "regression" if chain else task
        self.group = FeatureGroup(list(texts), chain, of_target=True)
        self.classes_: dict[str, tuple[Any, ...]] = {}
        self.first_task: str | None = None
        """What the first fit has decided of whole numbers; with more or fewer rows the same values could be both."""

    def __copy__(self) -> TargetSet:
        target = object.__new__(TargetSet)
        vars(target).update(vars(self) | {"group": copy(self.group)})
        return target

    # learning ---------------------------------------------------------------------------------------------------------
    def reset(self) -> None:
        """Clear what an earlier `fit` learned; a possible regression is standardised until its values decide."""
        super().reset()
        self.classes_ = {}
        if self.auto:
            self._standardise(self.task != "classification")

    def present(self, frame: Frame, schema: Schema, backend: Backend) -> Array | None:
        """Return n booleans, False where a target is missing; None when none is."""
        missing_masks = [column.missing(backend.xp) for column in self.raw_columns(frame, schema, backend).values()]
        masks = [~missing for missing in missing_masks if missing is not None]
        return None if not masks else backend.xp.stack(masks).all(axis=0)

    def summarize(self, frame: Frame, schema: Schema, backend: Backend) -> dict[Hashable, TargetValues]:
        """Summarize one partition for `finalize`, each target under ("target", its text)."""
        limit = MAX_CLASSES if "classification" in (self.task, self.first_task) else FEW
        summaries: dict[Hashable, TargetValues] = {}
        for text, column in self.raw_columns(frame, schema, backend).items():
            summary, expression = TargetValues.of(column, backend, limit), self._parse(text, schema)
            if expression is not None and summary.num_missing:
                gaps, num_undefined = _count_gaps(column, expression.reads, frame, backend)
                summary = replace(summary, gaps=gaps, num_undefined=num_undefined)
            if column.dtype == "bool" and expression is not None and summary.numbers and len(summary.numbers) == 1:
                texts = {name: backend.column(frame, name).dictionary for name, _ in _list_texts(expression)}
                compared = {name: item for name, item in texts.items() if item is not None and len(item) <= _MANY_TEXTS}
                summary = replace(summary, compared=compared)
            summaries["target", text] = summary
        return summaries

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
        pairs = [(values[item.name], item) for item in raw]
        for each, item in pairs:
            each.check(item.name, item.dtype, self._parse(item.name, schema))
        has_classes, reason, doubt = self._decide([each for each, _ in pairs], raw)
        are_whole = all(item.dtype not in _NO_NUMBERS and not each.fractions for each, item in pairs)
        self.first_task = ("classification" if has_classes else "regression") if are_whole else None
        if has_classes:
            self.classes_ = {item.name: each.list_classes(item.name, item.dtype) for each, item in pairs}
        if self.auto and (has_classes or any(each.is_binary for each, _ in pairs)):
            self._standardise(False)
        inside = ", standardised inside (target_transform='auto')" if self.auto and self.group.steps else ""
        note = f"target {self.text!r}: {Schema(self.fields(schema)).task} ({reason}){inside}{doubt}"
        plain = [] if has_classes or self.group.steps else pairs
        facts = [describe_coarse(item.name, item.dtype, each.low, each.high) for each, item in plain]
        remedy = "Features(target_transform=pre.StandardScaler())"
        lost = note_lost_digits(f"target {self.text!r} loses", "its", [*filter(None, facts)], remedy)
        gaps = [(line, logging.WARNING) for each, item in pairs for line in self._explain_gaps(each, item, schema)]
        return [(note, logging.WARNING if doubt else logging.INFO), *lost, *gaps]

    def _explain_gaps(self, values: TargetValues, item: Field, schema: Schema) -> list[str]:
        """Say what leaves many rows without an expression's value, and what gives them one; nothing of few."""
        expression, columns, notes = self._parse(item.name, schema), values.wide_gaps, list[str]()
        if expression is None:
            rows = f"{values.num_missing:,} of {format_count(values.num_rows, 'row')}"
            has_many = values.num_missing >= _MOST_MISSING * values.num_rows
            return [f"target {item.name!r}: it is missing in {rows}, and these are left out"] if has_many else []
        if values.num_undefined >= _MANY_GAPS * values.num_rows:
            rows = f"{values.num_undefined:,} of {format_count(values.num_rows, 'row')}"
            filled = f"target={f'coalesce({expression.text}, False)'!r} keeps them; " if item.dtype == "bool" else ""
            notes.append(
                f"target {item.name!r}: it has no value in {rows} where its columns have one, as log(x) of numbers "
                f"below 0, and these are left out; {filled}a step T.Filter({f'notnull({expression.text})'!r}) says so"
            )
        if not columns:
            return notes
        keeps = ""
        if item.dtype == "bool":
            are_texts = all(schema[name].dtype == "string" for name in columns)
            filled = expression.fill_texts(columns) if are_texts else f"coalesce({expression.text}, False)"
            keeps = f"where that is an answer, {'target=' if len(self.texts) == 1 else ''}{filled!r} keeps them; "
        condition = " and ".join(f"notnull({refer_to(name)})" for name in columns)
        note = f"target {item.name!r}: {values.describe_gaps()}, and these rows are left out"
        return [*notes, f"{note}; {keeps}where it is unknown, a step T.Filter({condition!r}) says so"]

    def _decide(self, summaries: Sequence[TargetValues], raw: Schema) -> tuple[bool, str, str]:
        """Return whether the targets are classes, why, and what to do where they may be something else."""
        argument = f"task={self.task!r}" if self.auto or not self.group.steps else "target_transform="
        if len(summaries) > 1:
            are_binary = all(item.is_binary for item in summaries)
            if are_binary and self.task == "auto" and self.first_task == "regression":
                return False, "as in the fit before", ""
            return *self._decide_several(are_binary, raw, argument), ""
        if self.task != "auto":
            return self.task == "classification", argument, ""
        ((summary,), (item,)) = summaries, raw
        if summary.strings is not None:
            doubt = "; an id is no target: choose another column, or say task='classification'"
            is_id = len(summary.strings) > FEW and not summary.is_repeated(summary.strings)
            return True, f"{len(summary.strings)} distinct strings", doubt if is_id else ""
        if item.dtype == "bool":
            return True, "true or false", ""
        if summary.fractions:
            return False, "numbers with fractions", ""
        if self.first_task is not None:
            return self.first_task == "classification", "as in the fit before", ""
        if summary.numbers is None:
            return False, f"more than {FEW} distinct whole numbers", ""
        values, rows = ", ".join(map(str, sorted(summary.numbers))), summary.num_present
        doubt = "; say task='regression' or task='classification'"
        few = f": with other rows it may be the other task{doubt}" if rows < 2 * FEW else ""
        if len(summary.numbers) == 2:
            return True, f"the numbers {values}", "" if summary.is_binary else few
        if summary.is_repeated(summary.numbers):
            return True, f"{len(summary.numbers)} distinct whole numbers in {rows:,} rows: {values}", few or doubt
        return False, f"fewer than two rows for each of {len(summary.numbers)} distinct whole numbers", few

    def _decide_several(self, are_binary: bool, raw: Schema, argument: str) -> tuple[bool, str]:
        for item in raw:
            if item.dtype == "bool" and not are_binary:
                raise _refuse_number(item)
        if self.task == "classification" and not are_binary:
            where, problem = "Features(task='classification')", "several targets that are not all conditions"
            expected = "one target, or several of 0 and 1 only"
            remedy = "a condition of each, such as 'stars > 3', or task='regression'"
            raise BadConfig(where, problem, got=raw.names, expected=expected, remedy=remedy)
        if self.task == "regression":
            return False, argument
        return are_binary, "0 and 1 only, each" if are_binary else "several numbers"

    def _standardise(self, is_scaled: bool) -> None:
        self.group = replace(self.group, steps=[pre.StandardScaler()] if is_scaled else [])

    def _raw_schema(self, schema: Schema) -> Schema:
        return Schema(replace(item, name=text) for text, item in self.raw_fields(schema).items())

    # applying ---------------------------------------------------------------------------------------------------------
    def fields(self, schema: Schema) -> list[Field]:
        """List the stored targets' fields: float32 0/1 or number, or int32 class index; several go by their texts."""
        outputs = []
        for text, raw in self.raw_fields(schema).items():
            classes = self.classes_.get(text)
            output = replace(raw, classes=classes, dtype="float32", kind=Kind.CONTINUOUS, cardinality=None)
            if classes is not None and len(classes) > 2:
                output = replace(output, dtype="int32", kind=Kind.CATEGORICAL, cardinality=len(classes))
            if len(self.texts) > 1:
                output = replace(output, name=text)
            elif self.group.steps:
                output = replace(output, step=self.group.steps[-1].class_name)
            outputs.append(output)
        return outputs

    def in_own_units(self, schema: Schema) -> Schema:
        """Return the output schema, with the targets in their own units, as `columns` computes them."""
        if not self.group.steps:
            return schema
        return Schema(replace(item, dtype="float64") if item.role == Role.TARGET else item for item in schema)

    def columns(self, frame: Frame, schema: Schema, backend: Backend, *, stored: bool) -> dict[str, Column]:
        """Compute one frame's targets, as `stored` or in their own units; missing stays missing."""
        targets: Mapping[str, Column] = self.raw_columns(frame, schema, backend)
        if stored and self.group.steps:
            self._warn_of_ends(targets)
            targets = self.group.apply_steps(targets, backend)
        else:
            targets = {text: self._column(text, column, backend) for text, column in targets.items()}
        return dict(zip((item.name for item in self.fields(schema)), targets.values(), strict=True))

    def _warn_of_ends(self, targets: Mapping[str, Column]) -> None:
        """Warn of values beyond the fit's, which a QuantileTransformer stores as its ends."""
        step = self.group.steps[0]
        if not isinstance(step, pre.QuantileTransformer):
            return
        for (text, column), (low, high) in zip(targets.items(), step.quantiles_[[0, -1]].T.tolist(), strict=True):
            values = as_floats(column.data, "float64")
            is_beyond = (values < low) | (values > high)
            is_beyond = is_beyond if column.valid is None else is_beyond & column.valid
            if num_beyond := int(is_beyond.sum()):
                message = "target %r: %d of %d values are beyond the fit's, %g to %g, and count as these in figures"
                _log.warning(message, text, num_beyond, len(column), low, high)

    def _column(self, text: str, column: Column, backend: Backend) -> Column:
        """Convert values to numbers, or to the indices of their classes; missing stays missing."""
        xp, missing, classes = backend.xp, column.missing(backend.xp), self.classes_.get(text)
        if classes is None:
            number = "float64" if self.group.steps else "float32"
            data = as_floats(column.data, number)
            return Column(number, data if missing is None else xp.where(missing, data.dtype.type(xp.nan), data))
        present = xp.ones(len(column), dtype=bool) if missing is None else ~missing
        if column.dictionary is not None:
            table = backend.to_device(find_positions(column.dictionary, strings(classes)))
            index = xp.append(table, -1)[column.data]
            unknown = (index < 0) & present
        elif column.dtype == "bool":
            index, unknown = column.data, xp.zeros_like(present)
        else:
            values = xp.asarray(classes, dtype=column.data.dtype)
            index = xp.clip(xp.searchsorted(values, column.data), 0, len(values) - 1)
            unknown = (values[index] != column.data) & present
        if bool(unknown.any()):
            first = backend.to_host(column.data[unknown][:1])[0].item()
            got = first if column.dictionary is None else column.dictionary[first].as_py()
            problem, remedy = "a class that was not there in fit", "fit on data that holds every class"
            if column.dictionary is None:
                remedy = f"task='regression', if these are counts, or {remedy}"
            expected = f"one of {shorten_list(map(repr, classes), FEW)}"
            raise BadData(f"target {text!r}", problem, got=got, expected=expected, remedy=remedy)
        if len(classes) == 2:
            return Column("float32", xp.where(present, index.astype("float32"), xp.float32(xp.nan)))
        index = xp.where(present, index, -1).astype("int32")
        return Column("int32", index, None if bool(present.all()) else present)

    def get_state(self) -> list[dict[str, Any]]:
        """Return the classes of each."""
        return [{"classes_": list(self.classes_[text]) if text in self.classes_ else None} for text in self.texts]

    def set_state(self, state: Sequence[Mapping[str, Any]], steps: Sequence[pre.LearnedStep]) -> None:
        """Restore what `get_state` returned, and the fitted steps."""
        self.group = replace(self.group, steps=list(steps))
        pairs = zip(self.texts, (item["classes_"] for item in state), strict=True)
        self.classes_ = {text: tuple(classes) for text, classes in pairs if classes is not None}
        if not all(map(_are_classes, self.classes_.values())):
            raise ValueError(f"classes are two or more of one type, ascending, not {self.classes_}")
        if not self.classes_:
            self.group.check_state()
        self.first_task = "classification" if self.classes_ else "regression"


def _count_gaps(values: Column, names: Sequence[str], frame: Frame, backend: Backend) -> tuple[dict[str, int], int]:
    """Count the missing values of each column in the rows whose `values` are missing, and the rows where none is."""
    no_value, gaps = values.missing(backend.xp), dict[str, int]()
    if no_value is None:
        return gaps, 0
    undefined = no_value
    for name in names:
        if (missing := backend.column(frame, name).missing(backend.xp)) is not None:
            gaps[name] = int((missing & no_value).sum())
            undefined = undefined & ~missing
    return gaps, int(undefined.sum())


def _are_classes(values: Sequence[Any]) -> bool:
    """Whether these are two or more ascending texts, booleans, or whole numbers that fit one type of 64 bits."""
    kinds = {*map(type, values)}
    if len(values) < 2 or len(kinds) > 1 or not kinds <= {str, bool, int} or sorted({*values}) != [*values]:
        return False
    return kinds != {int} or (values[0] >= -(2**63) and values[-1] < (2**63 if values[0] < 0 else 2**64))


def _list_texts(expression: Expression) -> list[tuple[str, str]]:
    """List the texts that a condition asks for, each with its column."""
    conditions = [(name, text) for name, sign, text in expression.conjuncts() if sign in ("==", "in")]
    pairs = [(name, item) for name, texts in conditions for item in (texts if isinstance(texts, tuple) else (texts,))]
    return [(name, text) for name, text in pairs if isinstance(text, str)]


def _replace_text(condition: str, text: str, other: str) -> str:
    """Return the condition with another text in the same quotation marks."""

    def quote(match: re.Match[str]) -> str:
        return repr(other) if match[1] in other else f"{match[1]}{other}{match[1]}"

    return re.sub(rf"(['\"]){re.escape(text)}\1", quote, condition)


def _refuse_number(item: Field) -> BadConfig:
    problem = "it is no number, as a regression's target and each of several have to be"
    expected = "a regression's target, or conditions alone"
    remedy = "one target without target_transform and task, or a Cast of this one before"
    return BadConfig(f"target {item.name!r}", problem, got=item.dtype, expected=expected, remedy=remedy)


def decide_task(target: TargetSet, dataset: Dataset) -> tuple[str, str]:
    """Decide on the task of one target of whole numbers whose rows are all among the first; else it is "auto".

    Return also a note, where other people would decide otherwise.
    """
    schema = dataset.schema
    if len(target.texts) > 1 or not target.is_in(schema):
        return "auto", ""
    (item,) = target._raw_schema(schema)
    first = () if item.dtype in (*_NO_NUMBERS, *LISTS) else dataset.select(target.reads(schema)).head(NUM_FIRST)
    if not 0 < len(first) < NUM_FIRST:
        return "auto", ""
    backend = infer_backend(first)
    (values,) = target.summarize(backend.encode(first), schema, backend).values()
    if not values.num_present or values.fractions or values.is_binary:
        return "auto", ""
    has_classes, reason, doubt = target._decide([values], target._raw_schema(schema))
    task = "classification" if has_classes else "regression"
    return task, f"the target {target.text!r}: {task}, of {reason}{doubt}" if doubt else ""


class TargetInverse:
    """Inverse of a fitted `target_transform`; `by_default` where nobody asked for that transform."""

    def __init__(self, targets: TargetSet) -> None:
        self._targets = targets
        self.by_default = targets.auto

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Convert B values, or B x T, to the targets' units, float64 there; `SchemaMismatch` for another shape.

        Of one target B x K values are K of it, such as quantiles.
        """
        backend = select_for(values)
        wide, names = values if values.ndim == 2 else values[:, None], self._targets.texts
        if len(names) == 1 and wide.ndim == 2 and wide.shape[1] > 1:
            quantiles: torch.Tensor = import_module("torch").stack([self(column) for column in wide.unbind(1)], 1)
            return quantiles
        if wide.ndim != 2 or wide.shape[1] != len(names):
            problem = "the model's outputs are not one value per target, so they have no units of its own"
            got, expected = tuple(values.shape), f"a value a row for each of {names}"
            remedy = "Features(target_transform=None)"
            raise SchemaMismatch("target_transform", problem, got=got, expected=expected, remedy=remedy)
        device = values.device if backend.name == "gpu" else "cpu"
        parts = [backend.xp.from_dlpack(part.contiguous()) for part in wide.detach().double().to(device).unbind(1)]
        columns = {name: Column("float64", part) for name, part in zip(names, parts, strict=True)}
        for step in reversed(self._targets.group.steps):
            assert isinstance(step, pre.Invertible), "the constructor checks that"
            columns = step.inverse_columns(columns, backend)
        # Written into torch's memory: what CuPy frees may be taken by another thread before torch's stream has read it.
        output: torch.Tensor = wide.new_empty(wide.shape, dtype=import_module("torch").float64, device=device)
        backend.xp.stack([column.data for column in columns.values()], axis=1, out=backend.xp.from_dlpack(output))
        if output.device.type == "cuda":  # CuPy has written on the default stream; the caller reads on its own
            cuda = import_module("torch").cuda
            cuda.current_stream(output.device).wait_stream(cuda.default_stream(output.device))
        return output.to(values.device).reshape(values.shape)
