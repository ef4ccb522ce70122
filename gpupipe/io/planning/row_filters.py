"""Row filters: selections by values, by time, at random or by row ids, and what statistics of a file tell of them."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Protocol, Self, TypeAlias

import numpy as np

from gpupipe.backend import Array, Backend, Frame
from gpupipe.backend.kernels import hash_column, splitmix64
from gpupipe.errors import BadConfig
from gpupipe.expressions import parse
from gpupipe.expressions.comparisons import compare
from gpupipe.expressions.evaluate import evaluate
from gpupipe.expressions.operands import truth
from gpupipe.expressions.tree import Constant, Span
from gpupipe.files import writing_scratch
from gpupipe.io.planning.partitions import Partition
from gpupipe.io.stores import fetch, get_stat, is_remote, make_lost_file_error
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema
from gpupipe.support.origins import When, has_values, name_part
from gpupipe.support.text import parse_number
from gpupipe.support.times import parse_microseconds, to_microseconds

Bounds: TypeAlias = tuple[Any, Any]  # the lowest and the highest present value of some rows, as rows are compared
Condition: TypeAlias = tuple[str, str, Any]  # a column, a comparison and a constant, such as `("month", ">=", 10)`


def excludes(condition: Condition, bounds: Bounds, item: Field) -> bool:
    """Return whether no value within `bounds` can satisfy the condition, so that its rows need not be read."""
    _, sign, constant = condition
    if sign == "in":
        return all(excludes((item.name, "==", each), bounds, item) for each in constant)
    try:
        value = _compare_as(constant, item)
    except BadConfig:
        return False
    low, high = bounds
    outside = {"<": low >= value, "<=": low > value, ">": high <= value, ">=": high < value}
    outside["=="] = outside[">="] or outside["<="]
    return bool(outside.get(sign, False))


def comparable(value: Any, item: Field, where: str) -> Any:
    """Convert a constant to the form in which the column's values compare: times to microseconds; else raise."""
    if isinstance(value, np.generic):
        value = (value.astype("datetime64[us]") if isinstance(value, np.datetime64) else value).item()
    if item.dtype == "timestamp":
        expected, example = "a date or a time, as text in ISO format or as datetime", "'2013-10-01'"
        if isinstance(value, str | date) and str(value) != "NaT":
            with suppress(ValueError):
                return parse_microseconds(value) if isinstance(value, str) else to_microseconds(value)
    elif item.dtype == "string":
        expected, example = "text", "'M'"
        if isinstance(value, str):
            return value
    else:
        expected, example = "a number", "10"
        if isinstance(value, int | float) and not math.isnan(value):
            return value
        if isinstance(value, str) and (number := parse_number(value)) is not None:
            example = repr(number)
        elif isinstance(value, str | date) and (digits := re.match(r"(\d{4})-(\d\d)-(\d\d)", str(value))):
            example = f"{digits[1]}, if it holds years; at={''.join(digits.groups())}, if it holds dates as digits"
    problem, remedy = f"column {item.name!r} is {item.dtype}", f"at={example}"
    raise BadConfig(where, problem, got=value, expected=expected, remedy=remedy)


def _compare_as(constant: Any, item: Field) -> Any:
    """Convert a condition's constant as `comparable` does; a time that a split was cut at is in microseconds."""
    is_cut = item.dtype == "timestamp" and isinstance(constant, int)
    return constant if is_cut else comparable(constant, item, "")


def exactly(value: Any) -> Bounds | None:
    """Return the bounds of rows that all have this value; None where it is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    compared = to_microseconds(value) if isinstance(value, date) else value
    return compared, compared


def name_ranges(conditions: Iterable[tuple[Condition, str]], schema: Schema, made_by: str | None) -> list[str]:
    """Name the parts of a table that conditions cut out, each after a range of one column.

    Rows that satisfy `x <= 5` are below 6 where x has integers: in no part with those that satisfy `x > 5`. `made_by`
    is how the table was made, and the text beside a condition how its column was computed: another column of the same
    name, such as another table's, has other ranges.
    """
    names = []
    for (column, sign, constant), definitions in conditions:
        if column not in schema:
            continue
        item, constants = schema[column], constant if sign == "in" else (constant,)
        values = [(origin.column, origin.when) for origin in item.origins if has_values(origin)]
        kind = f"range of {column}"
        if definitions or item.step or values != [(column, When.NOW)]:
            if made_by is None:
                continue
            kind += repr((made_by, definitions, sorted(item.origins)))
        with suppress(BadConfig, OverflowError, ValueError):  # a constant of another type, an infinite one, or none
            bounds = [_compare_as(each, item) for each in constants]
            value, after = min(bounds), _get_next(max(bounds), item)
            ranges = {"<": (None, value), "<=": (None, after), ">": (after, None), ">=": (value, None)}
            names.append(name_part(kind, ranges.get(sign, (value, after)), outside=sign == "!="))
    return names


def _get_next(value: Any, item: Field) -> Any:
    """Return the least value that a column may have beyond this one."""
    if item.dtype == "string":
        return f"{value}\0"
    after = math.floor(value) + 1  # OverflowError of an infinity
    if item.dtype not in FLOATS:
        return after
    return math.nextafter(float(value), math.inf) if float(value) == value else value


class Selection(Protocol):
    """Row filter that depends on each row alone."""

    @property
    def reads(self) -> AbstractSet[str]:
        """The columns it reads."""

    @property
    def compares(self) -> AbstractSet[str]:
        """The columns whose values decide, and not just whether they are there."""
        return self.reads

    @property
    def conditions(self) -> Sequence[Condition]:
        """What every row it keeps satisfies."""
        return ()

    def keep(self, frame: Frame, partition: Partition, backend: Backend) -> Array:
        """Compute a boolean per row of a coded frame that holds `reads`; its index counts rows of the partition."""


@dataclass(frozen=True)
class Where(Selection):
    """Filter for the rows where an expression is true; a missing result drops the row."""

    text: str

    @property
    def reads(self) -> AbstractSet[str]:
        return frozenset(parse(self.text, "filter").reads)

    @property
    def compares(self) -> AbstractSet[str]:
        return parse(self.text, "filter").compares

    @property
    def conditions(self) -> Sequence[Condition]:
        return list(parse(self.text, "filter").conjuncts())

    def keep(self, frame: Frame, partition: Partition, backend: Backend) -> Array:
        expression = parse(self.text, "filter")
        columns = {name: backend.column(frame, name) for name in expression.reads}
        return truth(evaluate(expression, columns, backend, len(frame)), backend.xp)


@dataclass(frozen=True)
class Between(Selection):
    """Range filter: `low <= column < high`; a bound that is None is open."""

    column: str
    low: Any
    high: Any

    @property
    def reads(self) -> AbstractSet[str]:
        return frozenset({self.column})

    def name_part(self, drawn_from: str) -> str:
        """Name these rows among all of the table, for their origins."""
        return name_part(f"split by {self.column}", (self.low, self.high))

    @property
    def conditions(self) -> Sequence[Condition]:
        bounds = ((">=", self.low), ("<", self.high))
        return [(self.column, sign, bound) for sign, bound in bounds if bound is not None]

    def keep(self, frame: Frame, partition: Partition, backend: Backend) -> Array:
        column, inside = backend.column(frame, self.column), None
        for _, sign, bound in self.conditions:
            dtype = column.dtype
            if dtype in (*INTEGERS, *FLOATS):  # a fraction stays one even where the column has integers
                dtype = "float64" if isinstance(bound, float) else "int64"
            matches = compare(sign, column, Constant(bound, dtype, Span(0, 0)), backend).true
            inside = matches if inside is None else inside & matches
        return inside


@dataclass(frozen=True)
class RandomSplit(Selection):
    """Random split: the rows whose 64 random bits, drawn by `seed` and the row's identity, are in `low <= bits < high`.

    `high` None is 2^64. The value of a column `by` takes the place of the row's identity; `outside` keeps the others.
    """

    seed: int
    low: int
    high: int | None
    by: str | None = None
    outside: bool = False

    @property
    def reads(self) -> AbstractSet[str]:
        return frozenset() if self.by is None else frozenset({self.by})

    @property
    def compares(self) -> AbstractSet[str]:
        return frozenset()

    def keep(self, frame: Frame, partition: Partition, backend: Backend) -> Array:
        return self._inside(hash_column(backend.column(frame, self.by or ""), self.seed, backend))

    def name_part(self, drawn_from: str) -> str:
        """Name these rows among all of the table, for their origins; the identities drawn are of rows made so."""
        kind = f"{type(self).__name__} {self.seed} {self.by} {drawn_from}"
        return name_part(kind, (self.low, self.high), outside=self.outside)

    def keep_rows(self, row_ids: Array, backend: Backend) -> Array:
        """Compute a boolean per row, given the row ids."""
        return self._inside(splitmix64(self.seed, row_ids))

    def _inside(self, bits: Array) -> Array:
        inside = bits >= np.uint64(self.low)
        inside = inside if self.high is None else inside & (bits < np.uint64(self.high))
        return ~inside if self.outside else inside


@dataclass(frozen=True)
class StratifiedSplit(RandomSplit):
    """Stratified random split: rows whose bits, drawn by row id, are between the bounds of their class in column `by`.

    `low` and `high` are for a class that is not listed. All bounds are of the upper 63 bits; `classes` are ascending.
    """

    classes: tuple[int, ...] = ()
    bounds: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def draw(frame: Frame, by: str, seed: int, partition: Partition, backend: Backend) -> tuple[Array, Array]:
        """Draw for each row of a frame 64 bits of its class in column `by`, and 63 bits of its row id."""
        row_ids = partition.frame_ids(frame, backend)
        return hash_column(backend.column(frame, by), 0, backend), splitmix64(seed, row_ids) >> np.uint64(1)

    def keep(self, frame: Frame, partition: Partition, backend: Backend) -> Array:
        xp = backend.xp
        hashes, bits = self.draw(frame, self.by or "", self.seed, partition, backend)
        classes = backend.to_device(np.array([*self.classes, 0], dtype=np.uint64))
        plain = self.low, 1 << 63 if self.high is None else self.high
        bounds = backend.to_device(np.array([*self.bounds, plain], dtype=np.uint64))
        index = xp.searchsorted(classes[:-1], hashes)
        index = xp.where(classes[index] == hashes, index, len(self.classes))
        inside = (bits >= bounds[index, 0]) & (bits < bounds[index, 1])
        return ~inside if self.outside else inside


@dataclass(frozen=True)
class RowIdFilter:
    """Filter for the rows whose id is listed in a file: ascending uint64 (`.npy`), `made_by` as in `Source.made_by`.

    Only what a partition needs is read, or all of it from a store. `owner` is kept alive: the folder the file lies in.
    A bit for each row would take up to 64 times less, but ids have gaps between files: each filter, which travels to
    all workers, would carry the first id and the rows of every file.
    """

    file: str = field(repr=False)
    made_by: str | None
    owner: object = field(repr=False, compare=False)

    @classmethod
    def of(cls, spool: Any, ids: Iterable[Any], num_rows: int, made_by: str | None) -> Self:
        """Write `num_rows` identities, which come in arrays, ascending, to a folder such as `TempParquet`."""
        path = spool.folder / "rows.npy"
        with writing_scratch(spool.folder), path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<u8", "fortran_order": False, "shape": (num_rows,)})
            for chunk in ids:
                file.write(np.ascontiguousarray(chunk, dtype="<u8").data)
        return cls(spool.keep(path), made_by, spool)

    def keep_rows(self, row_ids: Array, backend: Backend) -> Array:
        """Compute a boolean per row, given the row ids."""
        xp = backend.xp
        if not len(row_ids):
            return xp.ones(0, dtype=bool)
        ends = backend.to_host(xp.stack([row_ids.min(), row_ids.max()]))
        kept_ids, first = _between(self.file, *ends), ends[0]
        if ends[1] - first == len(row_ids) - 1:  # all identities in between
            keep = xp.zeros(len(row_ids), dtype=bool)
            keep[backend.to_device((kept_ids - first).view(np.int64))] = True
            return keep[(row_ids - first).view(np.int64)]
        kept_ids = backend.to_device(np.append(kept_ids, ends[1] + np.uint64(1)))  # one at least, and one behind all
        return kept_ids[xp.searchsorted(kept_ids, row_ids)] == row_ids


def _between(file: str, first: np.uint64, last: np.uint64) -> Any:
    """Return the part of an ascending array on disk between two values, both included."""
    try:
        if is_remote(file):
            (content,) = fetch(file, [(0, get_stat(file).size)])
            values = np.load(io.BytesIO(content))
        else:
            values = np.load(file, mmap_mode="r")
    except (OSError, ValueError) as cause:
        raise make_lost_file_error(file, cause) from cause
    return np.array(values[np.searchsorted(values, first) : np.searchsorted(values, last, side="right")])
