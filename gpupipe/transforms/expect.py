"""Expectations: checks of values, whose violations are counted in a fit, or are an error; all rows pass."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.columns import require_comparable_constant
from gpupipe.backend.dictionaries import find_positions, parse_values
from gpupipe.backend.kernels import hash_column, sort_unique
from gpupipe.errors import BadConfig, BadData
from gpupipe.schema import FLOATS, INTEGERS, Field, Kind, Schema
from gpupipe.support.text import format_count
from gpupipe.support.times import parse_microseconds
from gpupipe.support.validation import (
    as_list,
    check_bool,
    check_choice,
    check_names,
    is_number,
    is_sequence,
    refuse_argument,
)
from gpupipe.transforms.transform import Names, Transform


@dataclass(frozen=True)
class Findings:
    """Violations: the rows of some partitions that break a rule, as a mergeable summary."""

    num_rows: int = 0
    counts: dict[tuple[str, str], Counter[int]] = field(default_factory=dict)
    examples: Mapping[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    distinct: Mapping[str, Any] = field(default_factory=dict)
    repeated: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Findings) -> Findings:
        keys = self.counts | other.counts
        counts = {key: Counter(self.counts.get(key)) + Counter(other.counts.get(key)) for key in keys}
        distinct, repeated = dict(self.distinct), dict(self.repeated)
        for name, bits in other.distinct.items():
            both = np.concatenate([distinct.get(name, bits[:0]), bits])
            distinct[name] = sort_unique(both, np)
            repeated[name] = repeated.get(name, 0) + other.repeated[name] + len(both) - len(distinct[name])
        examples = dict(self.examples)
        for key, example in other.examples.items():
            examples[key] = min(examples.get(key, example), example, key=lambda pair: pair[0])
        return Findings(self.num_rows + other.num_rows, counts, examples, distinct, repeated)

    def example(self, name: str, rule: str) -> Any:
        """Return one value that breaks a rule; None where it is missing, or not known."""
        return self.examples.get((name, rule), (0, None))[1]

    @property
    def totals(self) -> dict[tuple[str, str], int]:
        """The number of rows that break each rule, by column and rule, where there are any."""
        totals = {key: sum(counter.values()) for key, counter in self.counts.items()}
        totals |= {(name, "unique"): number for name, number in self.repeated.items()}
        return {key: number for key, number in totals.items() if number}


class Expect(Transform):
    """Check the values of columns at this position among the steps; all rows pass unchanged.

    A fit that learns something counts the rows that break a rule, in the pass it makes anyway (`fit_report.checks`); so
    does `Pipeline.check` for other data. Missing values break only `nullable`.

    Args:
        min, max: no value is less or more; numbers, or for times text in ISO 8601.
        nullable: whether values may be missing.
        values: no value is any other.
        unique: whether no two rows may have the same value.
        on_violation: `"count"`, or `"raise"` for BadData with column, count and value, wherever rows are transformed
            too: there columns that are not in the data are not checked, and `unique` is checked within each partition.

    Raises BadConfig for no rule, or one that the column's type cannot have (at `output_schema`).

    Memory: a boolean per row at a time; on the host a number per rule and partition, for `unique` 8 bytes per value.

    Example:
        >>> import pandas as pd, gpupipe as gp
        >>> flights = pd.DataFrame({"distance": [100.0, -5.0, None]})
        >>> gp.Pipeline([Expect("distance", min=0)]).fit(flights).check(flights).summary
        "'distance' should be at least 0, and is not in 1 row"
    """

    def __init__(
        self,
        columns: Names,
        *,
        min: Any = None,  # noqa: A002 - the rule's usual name
        max: Any = None,  # noqa: A002
        nullable: bool = True,
        values: Sequence[Any] | None = None,
        unique: bool = False,
        on_violation: Literal["count", "raise"] = "count",
    ) -> None:
        check_names(self, empty=False, columns=columns)
        for name, end in (("min", min), ("max", max)):
            is_finite = is_number(end) and math.isfinite(end)
            if not (end is None or is_finite or isinstance(end, str | date | np.datetime64)):
                raise refuse_argument(self, name, end, "a finite number, or a time as text in ISO 8601", f"{name}=0")
        check_bool(self, nullable=nullable, unique=unique)
        check_choice(self, ("count", "raise"), on_violation=on_violation)
        if values is not None and not (is_sequence(values) and len(values)):
            raise refuse_argument(self, "values", values, "a list of values", "values=['...']")
        if min is None and max is None and nullable and values is None and not unique:
            where, expected = "Expect", "one or more of min=, max=, nullable=False, values=, unique=True"
            raise BadConfig(where, "no rule is given", expected=expected, remedy=f"Expect({columns!r}, nullable=False)")
        self.columns, self.min, self.max, self.nullable = as_list(columns), _plain(min), _plain(max), nullable
        self.values = None if values is None else list(map(_plain, values))
        self.unique, self.on_violation = unique, on_violation

    def output_schema(self, schema: Schema) -> Schema:
        schema.require(self.columns, "Expect")
        for item in schema.select(self.columns):
            self._ends(item)
            self._listed(item)
            if self.unique and item.kind in (Kind.LIST, Kind.PASSENGER):
                raise self._unfit(item, "numbers, booleans, text or times")
        return schema

    def needs(self, outputs: AbstractSet[str], schema: Schema) -> set[str]:
        return {*outputs, *self.columns}

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        if self.on_violation == "raise":
            self.look(frame, schema, backend)
        return frame

    def of(self, columns: Sequence[str]) -> Self:
        """Return the same step for these of its columns, which may be none."""
        step = copy(self)
        step.columns = list(columns)
        return step

    @property
    def rules(self) -> dict[str, str]:
        """The rules in words, by the name of the argument."""
        listed = [*map(repr, (self.values or ())[:4]), *(["..."] if len(self.values or ()) > 4 else [])]
        words = {
            "min": "" if self.min is None else f"at least {self.min}",
            "max": "" if self.max is None else f"at most {self.max}",
            "nullable": "" if self.nullable else "there",
            "values": "" if self.values is None else f"one of {', '.join(listed)}",
            "unique": "there once only" if self.unique else "",
        }
        return {rule: text for rule, text in words.items() if text}

    def look(self, frame: Frame, schema: Schema, backend: Backend, row_id: int = 0) -> Findings:
        """Count the rows of a coded frame that break a rule; `row_id` is its partition's first."""
        xp, columns = backend.xp, {name: backend.column(frame, name) for name in self.columns}
        rules = {name: self._masks(schema[name], column, backend) for name, column in columns.items()}
        masks = {(name, rule): mask for name, checks in rules.items() for rule, mask in checks.items()}
        unique: dict[str, Array] = {}
        for name, column in columns.items() if self.unique else ():
            missing, bits = column.missing(xp), hash_column(column, 0, backend)
            unique[name] = bits if missing is None else bits[~missing]
        numbers = [xp.count_nonzero(mask()) for mask in masks.values()]
        totals = backend.to_host(xp.stack([xp.asarray(item) for item in numbers])).tolist() if numbers else []
        violations = {key: int(total) for key, total in zip(masks, totals, strict=True) if total}
        examples = {key: (row_id, _first(masks[key](), columns[key[0]], backend)) for key in violations}
        distinct = {name: backend.to_host(sort_unique(bits, xp)) for name, bits in unique.items()}
        repeated = {name: len(unique[name]) - len(bits) for name, bits in distinct.items()}
        counts = {key: Counter({row_id: total}) for key, total in violations.items()}
        findings = Findings(len(frame), counts, examples, distinct, repeated)
        self.enforce(findings)
        return findings

    def enforce(self, findings: Findings) -> None:
        """Raise `BadData` where rows break a rule, if that is asked for."""
        if self.on_violation != "raise" or not findings.totals:
            return
        (name, rule), total = next(iter(findings.totals.items()))
        where = f"Expect, column {name!r}"
        problem = f"{format_count(total, 'row')} of {findings.num_rows:,} are not as expected"
        remedy = "data as it was agreed on, a Filter before this step, or on_violation='count'"
        raise BadData(where, problem, got=findings.example(name, rule), expected=self.rules[rule], remedy=remedy)

    def _masks(self, item: Field, column: Column, backend: Backend) -> dict[str, Callable[[], Array]]:
        """Return for each rule the function that gives n booleans, true where a row breaks it."""
        xp, masks = backend.xp, dict[str, Callable[[], Array]]()
        missing = column.missing(xp)
        low, high = self._ends(item)

        def among_present(mask: Array) -> Array:
            return mask if missing is None else mask & ~missing

        if low is not None:
            masks["min"] = lambda: among_present(column.data < low)
        if high is not None:
            masks["max"] = lambda: among_present(column.data > high)
        if not self.nullable and missing is not None:
            masks["nullable"] = lambda: missing
        listed = self._listed(item)
        if listed is not None and column.dictionary is not None:
            allowed = np.append(find_positions(column.dictionary, listed) >= 0, True)
            table = backend.to_device(~allowed)
            masks["values"] = lambda: table[column.data]
        elif listed is not None:
            constants = listed.to_numpy(zero_copy_only=False)
            values = backend.to_device(constants.astype(column.data.dtype) if item.dtype in FLOATS else constants)
            masks["values"] = lambda: among_present(~xp.isin(column.data, values))
        return masks

    def _ends(self, item: Field) -> list[Any]:
        """Return the least and greatest value as the column stores them; None where its type allows no other."""
        if self.min is None and self.max is None:
            return [None, None]
        if item.dtype not in (*INTEGERS, *FLOATS, "timestamp"):
            raise self._unfit(item, "numbers or times, which have an order")
        low, high = (self._end(end, item, up=up) for end, up in ((self.min, True), (self.max, False)))
        if low is not None and high is not None and low > high:
            raise self._unfit(item, "a range with a value in it, min <= max")
        return [low, high]

    def _end(self, end: Any, item: Field, *, up: bool) -> Any:
        if end is None:
            return None
        if item.dtype == "timestamp":
            require_comparable_constant(item, end, f"Expect({item.name!r})")
            try:
                return parse_microseconds(end)
            except (TypeError, ValueError):
                raise self._unfit(item, "text in ISO 8601, such as '2013-01-31'") from None
        if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
            raise self._unfit(item, "finite numbers")
        if item.dtype in FLOATS:
            return float(end)
        limits = np.iinfo(item.dtype)
        if (end <= limits.min) if up else (end >= limits.max):
            return None
        if not limits.min <= end <= limits.max:
            raise self._unfit(item, f"numbers that {item.dtype} can hold")
        return math.ceil(end) if up else math.floor(end)

    def _listed(self, item: Field) -> Any:
        """Return the allowed values as a dictionary of the column's type; None where none are listed."""
        if self.values is None:
            return None
        if item.kind in (Kind.LIST, Kind.PASSENGER):
            raise self._unfit(item, "numbers, booleans, text or times")
        try:
            return parse_values(self.values, item.dtype)[0]
        except (TypeError, ValueError, OverflowError):
            raise self._unfit(item, f"values of type {item.dtype}") from None

    def _unfit(self, item: Field, expected: str) -> BadConfig:
        problem = f"a rule does not go with a column of type {item.dtype}"
        return BadConfig(f"Expect({item.name!r})", problem, got=self, expected=expected, remedy="another rule")


def _plain(value: Any) -> Any:
    """Return a value in a form that a file can hold: a number of NumPy's as Python's, a time as text."""
    if isinstance(value, np.number | np.bool_):
        return value.item()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _first(mask: Array, column: Column, backend: Backend) -> Any:
    """Return the first value at which a mask is true."""
    example = column.take(backend.xp.flatnonzero(mask)[:1])
    return backend.to_arrow(backend.frame({"value": example}, 1))["value"][0].as_py()
