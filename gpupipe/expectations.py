"""What a user says of the columns of every frame, and the rows found that are otherwise: counted by partition."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.dictionaries import given_values, positions_in
from gpupipe.backend.hashing import hash_column
from gpupipe.errors import BadConfig, BadData
from gpupipe.expressions.tree import microseconds
from gpupipe.schema import FLOATS, INTEGERS, Field, Kind, Schema
from gpupipe.support.validation import (
    check_bool,
    check_choice,
    check_instance,
    check_number,
    is_sequence,
    refuse_argument,
)
from gpupipe.words import counted

__all__ = ["Expect", "Expectations", "Findings"]


@dataclass(frozen=True)
class Expect:
    """What is expected of a column's values.

    Args:
        min: no value is less; a number, or for a time text in ISO 8601.
        max: no value is more.
        nullable: whether values may be missing.
        values: no value is any other.
        unique: whether no two rows may have the same value.
    """

    min: Any = None
    max: Any = None
    nullable: bool = True
    values: Sequence[Any] | None = None
    unique: bool = False

    def __post_init__(self) -> None:
        for name, end in (("min", self.min), ("max", self.max)):
            if not isinstance(end, str | date | np.datetime64):
                check_number(self, "(-inf, inf)", None, **{name: end})
        check_bool(self, nullable=self.nullable, unique=self.unique)
        if not (self.values is None or is_sequence(self.values)):
            raise refuse_argument(self, "values", self.values, "a list of values", example=["..."])

    @property
    def rules(self) -> dict[str, str]:
        """What is expected, in words, by the name of the argument."""
        shown = "" if self.values is None else ", ".join(map(repr, list(self.values)[:4]))
        told = {
            "min": None if self.min is None else f"at least {self.min}",
            "max": None if self.max is None else f"at most {self.max}",
            "nullable": None if self.nullable else "there",
            "values": None if self.values is None else f"one of {shown}{', ...' if len(self.values) > 4 else ''}",
            "unique": "there once only" if self.unique else None,
        }
        return {rule: text for rule, text in told.items() if text is not None}

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        plain = [end if end is None or isinstance(end, int | float) else _written(end) for end in self.ends]
        values = None if self.values is None else [_written(value) for value in self.values]
        return {"min": plain[0], "max": plain[1], "nullable": self.nullable, "values": values, "unique": self.unique}

    @property
    def ends(self) -> tuple[Any, Any]:
        """The least and the greatest value allowed."""
        return self.min, self.max


@dataclass(frozen=True)
class Findings:
    """The rows in some partitions that are not as expected.

    Args:
        num_rows: rows that were looked at.
        counts: for each column and rule by partition, that is by its first row's identity: how many rows.
        examples: for each column and rule the first partition with such a value, and the first one there.
        distinct: for each column whose values are to be unique, 64 bits of each value, ascending.
        repeated: of those, how many rows had a value that another had.
    """

    num_rows: int = 0
    counts: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict)
    examples: Mapping[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    distinct: Mapping[str, Any] = field(default_factory=dict)
    repeated: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Findings) -> Findings:
        counts = {key: dict(found) for key, found in self.counts.items()}
        for key, theirs in other.counts.items():
            mine = counts.setdefault(key, {})
            for place, number in theirs.items():
                mine[place] = mine.get(place, 0) + number
        distinct, repeated = dict(self.distinct), dict(self.repeated)
        for name, bits in other.distinct.items():
            both = np.concatenate([distinct.get(name, bits[:0]), bits])
            distinct[name] = np.unique(both)
            repeated[name] = repeated.get(name, 0) + other.repeated[name] + len(both) - len(distinct[name])
        examples = dict(self.examples)
        for key, found in other.examples.items():
            examples[key] = min(examples.get(key, found), found, key=lambda pair: pair[0])
        return Findings(self.num_rows + other.num_rows, counts, examples, distinct, repeated)

    def example(self, name: str, rule: str) -> Any:
        """One value that is not as expected; None where it is missing, or nobody knows."""
        return self.examples.get((name, rule), (0, None))[1]

    @property
    def totals(self) -> dict[tuple[str, str], int]:
        """How many rows are not as expected, by column and rule, where there are any."""
        totals = {key: sum(found.values()) for key, found in self.counts.items()}
        totals |= {(name, "unique"): number for name, number in self.repeated.items()}
        return {key: number for key, number in totals.items() if number}


class Expectations:
    """What is expected of the columns of each frame as it is read, before any step.

    Args:
        by_name: what is expected of each column.
        on_violation: `"report"` to count and log what is otherwise, `"raise"` to stop at it.

    Raises:
        BadConfig: what is given makes no sense.
    """

    def __init__(self, by_name: Mapping[Any, Any], on_violation: str = "report") -> None:
        expects, remedy = "a mapping from columns to gp.Expect", "expect={'x': gp.Expect(min=0)}"
        check_instance("Pipeline", Mapping, expects, remedy=remedy, expect=by_name)
        for name, expected in by_name.items():
            if not (isinstance(name, str) and isinstance(expected, Expect)):
                expects = f"a gp.Expect for column {name!r}"
                raise refuse_argument("Pipeline", "expect", expected, expects, f"{{{name!r}: gp.Expect(min=0)}}")
        check_choice("Pipeline", ("report", "raise"), on_violation=on_violation)
        self.by_name, self.on_violation = dict(by_name), on_violation

    def check(self, schema: Schema) -> None:
        """Raise unless the columns are there, and of types the expectations can be told of.

        Raises:
            ColumnNotFound: a column is not there.
            BadConfig: an end or a value that the column's type cannot have.
        """
        schema.require(list(self.by_name), "Pipeline(expect=)")
        for name, expected in self.by_name.items():
            _ends(expected, schema[name])
            _listed(expected, schema[name])
            if expected.unique and schema[name].kind in (Kind.LIST, Kind.PASSENGER):
                raise _unfit(expected, schema[name], "numbers, booleans, text or times")

    def look(self, frame: Frame, schema: Schema, backend: Backend, place: int = 0) -> Findings:
        """What one frame that holds some of the columns has that is otherwise.

        Args:
            frame: coded.
            schema: the types of its columns.
            backend: the frame's.
            place: what stands for its partition.

        Raises:
            BadData: with `on_violation="raise"`, anything is; names column, count and value.

        Memory: a boolean per row at a time; one number per rule goes to the host. For `unique` 8 bytes per distinct
            value do, and are kept as long as the findings.
        """
        xp = backend.xp
        masks: dict[tuple[str, str], Callable[[], Array]] = {}
        unique: dict[str, Array] = {}
        for name, expected in self.by_name.items():
            if name not in frame.columns:
                continue
            column = backend.column(frame, name)
            for rule, mask in _masks(expected, schema[name], column, backend).items():
                masks[name, rule] = mask
            if expected.unique:
                missing = column.missing(xp)
                bits = hash_column(column, 0, backend)
                unique[name] = bits if missing is None else bits[~missing]
        numbers = [xp.count_nonzero(mask()) for mask in masks.values()]
        totals = backend.to_host(xp.stack([xp.asarray(item) for item in numbers])).tolist() if numbers else []
        found = {key: int(total) for key, total in zip(masks, totals, strict=True) if total}
        examples = {key: (place, _first(masks[key](), backend.column(frame, key[0]), backend)) for key in found}
        distinct = {name: backend.to_host(xp.unique(bits)) for name, bits in unique.items()}
        repeated = {name: len(unique[name]) - len(bits) for name, bits in distinct.items()}
        findings = Findings(
            len(frame), {key: {place: total} for key, total in found.items()}, examples, distinct, repeated
        )
        self.enforce(findings)
        return findings

    def enforce(self, findings: Findings, where: str = "") -> None:
        """Raise, if that is asked for, unless all is as expected.

        Raises:
            BadData: names the column, how many rows, one value, and what was expected.
        """
        if self.on_violation != "raise" or not findings.totals:
            return
        (name, rule), total = next(iter(findings.totals.items()))
        raise BadData(
            f"expect, column {name!r}{where}",
            f"{counted(total, 'row')} of {findings.num_rows:,} are not as expected",
            got=findings.example(name, rule),
            expected=self.by_name[name].rules[rule],
            remedy="data as it was agreed on, a Filter before the pipeline, or on_violation='report'",
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        by_name = {name: expected.to_json() for name, expected in self.by_name.items()}
        return {"columns": by_name, "on_violation": self.on_violation}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Expectations:
        """What `to_json` wrote."""
        by_name = {name: Expect(**given) for name, given in content["columns"].items()}
        return cls(by_name, content["on_violation"])


def _masks(expected: Expect, item: Field, column: Column, backend: Backend) -> dict[str, Callable[[], Array]]:
    """For each rule what gives n booleans, true where a row is not as expected."""
    xp, made = backend.xp, dict[str, Callable[[], Array]]()
    missing = column.missing(xp)
    low, high = _ends(expected, item)

    def among_present(mask: Array) -> Array:
        return mask if missing is None else mask & ~missing

    if low is not None:
        made["min"] = lambda: among_present(column.data < low)
    if high is not None:
        made["max"] = lambda: among_present(column.data > high)
    if not expected.nullable and missing is not None:
        made["nullable"] = lambda: missing
    listed = _listed(expected, item)
    if listed is not None and column.dictionary is not None:
        allowed = np.append(positions_in(column.dictionary, listed) >= 0, True)
        table = backend.to_device(~allowed)
        made["values"] = lambda: table[column.data]
    elif listed is not None:
        known = listed.to_numpy(zero_copy_only=False)
        values = backend.to_device(known.astype(column.data.dtype) if item.dtype in FLOATS else known)
        made["values"] = lambda: among_present(~xp.isin(column.data, values))
    return made


def _ends(expected: Expect, item: Field) -> list[Any]:
    """The least and greatest value as the column stores them; None where its type allows no other."""
    if expected.ends == (None, None):
        return [None, None]
    if item.dtype not in (*INTEGERS, *FLOATS, "timestamp"):
        raise _unfit(expected, item, "numbers or times, which have an order")
    low, high = (_end(end, item, expected, up=up) for end, up in zip(expected.ends, (True, False), strict=True))
    if low is not None and high is not None and low > high:
        raise _unfit(expected, item, "a range with a value in it, min <= max")
    return [low, high]


def _end(end: Any, item: Field, expected: Expect, *, up: bool) -> Any:
    if end is None:
        return None
    if item.dtype == "timestamp":
        try:
            return microseconds(_written(end))
        except (TypeError, ValueError):
            raise _unfit(expected, item, "text in ISO 8601, such as '2013-01-31'") from None
    if isinstance(end, bool) or not isinstance(end, int | float | np.number) or not math.isfinite(end):
        raise _unfit(expected, item, "finite numbers")
    if item.dtype in FLOATS:
        return float(end)
    limits = np.iinfo(item.dtype)
    if (end <= limits.min) if up else (end >= limits.max):
        return None
    if not limits.min <= end <= limits.max:
        raise _unfit(expected, item, f"numbers that {item.dtype} can hold")
    return math.ceil(end) if up else math.floor(end)


def _listed(expected: Expect, item: Field) -> Any:
    """The allowed values as a dictionary of the column's type; None where none are listed."""
    if expected.values is None:
        return None
    if item.kind in (Kind.LIST, Kind.PASSENGER):
        raise _unfit(expected, item, "numbers, booleans, text or times")
    try:
        values = expected.values if isinstance(expected.values, str) else list(expected.values)
        return given_values(values, item.dtype)[0]
    except (TypeError, ValueError, OverflowError):
        raise _unfit(expected, item, f"values of type {item.dtype}") from None


def _written(value: Any) -> Any:
    """A value as JSON has it: a number of NumPy's as Python's, a time as text."""
    if isinstance(value, np.number | np.bool_):
        return value.item()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _unfit(expected: Expect, item: Field, wanted: str) -> BadConfig:
    return BadConfig(
        f"expect={{{item.name!r}: ...}}",
        f"it does not go with a column of type {item.dtype}",
        got=expected,
        expected=wanted,
        remedy="another expectation",
    )


def _first(mask: Array, column: Column, backend: Backend) -> Any:
    """The first value at which a mask is true."""
    one = column.take(backend.xp.flatnonzero(mask)[:1])
    return backend.to_arrow(backend.frame({"value": one}, 1))["value"][0].as_py()
