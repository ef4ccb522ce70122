"""Helper functions for columns: conversions, checks, and key types, for both backends."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from gpupipe.backend.arrow_types import Reading, arrow_type
from gpupipe.backend.protocol import Array, Column, Matrix, RawColumn
from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.expressions.tree import has_offset
from gpupipe.schema import (
    FLOATS,
    INTEGERS,
    OF_A_DATASET,
    Field,
    Kind,
    Schema,
    get_element_dtype,
    is_passenger,
    suggest_conversion,
)
from gpupipe.support.text import derive
from gpupipe.support.validation import is_integer, is_number, parse_duration_us

_CASTABLE = ("decimal", "duration[", "time32[", "time64[")
Distance = int | float  # microseconds between times, or the difference of numbers


def floats(column: Column, xp: ModuleType) -> Array:
    """Convert a numeric or boolean column to n float64, NaN where missing."""
    data = column.data.astype(xp.float64, copy=False)
    return data if column.valid is None else xp.where(column.valid, data, xp.nan)


def as_floats(data: Array, dtype: str) -> Array:
    """Cast numbers to floats; values beyond the range become infinite, which the reader has to refuse."""
    with np.errstate(over="ignore"):
        return data.astype(dtype)


def refuse_times(name: str, cause: Exception) -> NoReturn:
    """Raise `BadData` for a column with a time out of range of int64 microseconds."""
    expected = "times from -290307 to 294246, which 64 bits of microseconds hold"
    remedy = "the unit that the numbers are in; or the column as int64, or without those times"
    raise BadData(f"column {name!r}", f"a time is out of range ({cause})", expected=expected, remedy=remedy) from cause


def refuse_type(name: str, dtype: object, remedy: str | None = None) -> NoReturn:
    """Raise `SchemaMismatch` for a column of an unsupported type."""
    problem = "no column here can hold such values"
    expected = "a type of the table in docs/guide-files.md"
    remedy = remedy or f"frame.astype({{{name!r}: 'str'}}), or the frame without it"
    raise SchemaMismatch(f"column {name!r}", problem, got=str(dtype), expected=expected, remedy=remedy)


def check_names(names: Iterable[object]) -> None:
    """Raise `SchemaMismatch` for the first column whose name is not a string."""
    for name in names:
        if not isinstance(name, str):
            remedy = "frame.rename(columns=str)"
            raise SchemaMismatch("frame", "a column's name is no string", got=name, expected="strings", remedy=remedy)


def build_schema(dtypes: Mapping[str, str], nullable: Iterable[bool], readings: Mapping[str, Reading] | None) -> Schema:
    """Build the fields of a coded frame, each the start of a lineage, written as the types they were read from."""
    fields = []
    for (name, dtype), may_miss in zip(dtypes.items(), nullable, strict=True):
        written_as = "" if readings is None else readings[name].written_as
        fields.append(Field(name, dtype, nullable=may_miss, lineage=frozenset({name}), written_as=written_as))
    return Schema(fields)


def get_storage(column: Column) -> RawColumn | None:
    """Return a numeric or boolean column in its storage form; None for any other."""
    return RawColumn(column.data, column.valid) if column.dtype in (*FLOATS, *INTEGERS, "bool") else None


def missing_column(dtype: str, num_rows: int, xp: ModuleType) -> Column:
    """Create a column in which every value is missing."""
    element = get_element_dtype(dtype)
    if element is not None:
        none = missing_column(element, 0, xp)
        return Column(dtype, xp.zeros(num_rows + 1, dtype="int64"), xp.zeros(num_rows, dtype=bool), None, none)
    if dtype in FLOATS:
        return Column(dtype, xp.full(num_rows, xp.nan, dtype=dtype))
    if dtype == "string":
        return Column(dtype, xp.full(num_rows, -1, dtype="int32"), None, pa.array([], pa.large_string()))
    if is_passenger(dtype):
        return Column(dtype, xp.full(num_rows, -1, dtype="int64"), None, pa.array([], arrow_type(dtype)))
    stored = "int64" if dtype == "timestamp" else dtype
    return Column(dtype, xp.zeros(num_rows, dtype=stored), xp.zeros(num_rows, dtype=bool))


def with_missing_row(column: Column, xp: ModuleType) -> Column:
    """Append one missing value to a column, so that gathering at -1 gives a missing value."""
    last, valid = missing_column(column.dtype, 1, xp), None
    if last.valid is not None:
        known = xp.ones(len(column), dtype=bool) if column.valid is None else column.valid
        valid = xp.concatenate([known, last.valid])
    end = last.data.astype(column.data.dtype) if column.elements is None else column.data[-1:]
    return Column(column.dtype, xp.concatenate([column.data, end]), valid, column.dictionary, column.elements)


def refuse_passengers(fields: Iterable[Field], where: str) -> None:
    """Raise `SchemaMismatch` for the first field that is only carried."""
    for item in fields:
        if item.kind == Kind.PASSENGER:
            raise SchemaMismatch(
                f"{where}, column {item.name!r}",
                "values of this type are carried, and nothing is computed of them",
                got=item.dtype,
                expected="numbers, booleans, text, times, or lists of them",
                remedy=suggest_conversion(item.name, item.dtype),
            )


def require_comparable(fields: Iterable[Field], where: str) -> None:
    """Raise `SchemaMismatch` for the first field that has no order and no hash: lists, and types only carried."""
    for item in fields:
        refuse_passengers([item], where)
        if item.kind == Kind.LIST:
            place, expected = f"{where}, column {item.name!r}", "a column with one value in each row"
            remedy = f"another column; or one made of it, T.{derive(item.name, 'len({})', f'{item.name}_length')}"
            raise SchemaMismatch(place, "lists are not compared", got=item.dtype, expected=expected, remedy=remedy)


def require_comparable_times(ours: Field, theirs: Field, where: str) -> None:
    """Raise `SchemaMismatch` for times with a time zone compared with times without one."""
    if ours.dtype != "timestamp" or theirs.dtype != "timestamp" or bool(ours.zone) == bool(theirs.zone):
        return
    zoned, naive = (ours, theirs) if ours.zone else (theirs, ours)
    both = {ours.name: "int64", theirs.name: "int64"}
    raise SchemaMismatch(
        where,
        f"the times of {zoned.name!r} have a time zone, and those of {naive.name!r} have none",
        got=f"{ours.name!r} {ours.zone or 'without a zone'}, {theirs.name!r} {theirs.zone or 'without a zone'}",
        expected="both with a time zone, or both without",
        remedy=f"frame[{naive.name!r}].dt.tz_localize({zoned.zone!r}), or whichever zone they are in; "
        f"T.Cast({both}) of both if they are UTC",
    )


def require_comparable_constant(item: Field, value: Any, where: str) -> None:
    """Raise `SchemaMismatch` for a constant time with an offset or a zone beside a column of times without a zone."""
    if item.dtype == "timestamp" and not item.zone and has_offset(value):
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        raise SchemaMismatch(
            where,
            f"the times of {item.name!r} have no time zone, and a time beside them has an offset from UTC",
            got=str(value),
            expected="times without an offset, or a column with a zone",
            remedy=f"{moment.replace(tzinfo=None).isoformat(' ')!r}; or frame[{item.name!r}].dt.tz_localize('UTC') "
            "before, or whichever zone they are in",
        )


def one_key_type(left: Field, right: Field) -> str:
    """Which columns to cast, or to make, so that the keys of a join are of one type, for an error's remedy."""
    both = {left.dtype, right.dtype}
    numbers = {*INTEGERS, *FLOATS}
    if "timestamp" in both and both & numbers:
        return f"pd.to_datetime(frame[{left.name!r}], unit='s') of the numbers, or whichever unit they are in"
    castable = all(one in {*numbers, "bool", "string", "timestamp"} or one.startswith(_CASTABLE) for one in both)
    if not castable or ("timestamp" in both and "string" not in both):
        return "another key, or one of plain values made in both tables before the join"
    texts = "timestamp" if "timestamp" in both else "string"
    dtype = texts if "string" in both else "float64" if both & {*FLOATS} else "int64"
    wanted = numbers if dtype in numbers else {dtype}
    sides = [name for item, name in ((left, "left"), (right, "right")) if item.dtype not in wanted]
    return f"T.Cast({{{left.name!r}: {dtype!r}}}) of the {' and the '.join(sides)} table before the join"


def whole_numbers(column: Column, kind: np.dtype[Any], xp: ModuleType) -> tuple[Array, Array]:
    """Convert to n int64 or uint64, and n booleans: False where missing, fractional or out of range."""
    data = column.data
    if data.dtype.kind == "f":
        # The range's ends are powers of two, which floats of any width hold.
        least, beyond = float(np.iinfo(kind).min), float(np.iinfo(kind).max + 1)
        found = (data >= least) & (data < beyond) & (xp.floor(data) == data)
        values = xp.where(found, data, 0).astype(kind)
    else:
        values = data.astype(kind, copy=False)
        if data.dtype.kind == "b" or np.can_cast(data.dtype, kind):
            found = xp.ones(len(data), dtype=bool)
        else:
            found = (values >= 0) == (data >= 0)  # a cast to 64 bits keeps an integer, or changes its sign
    return values, found if column.valid is None else found & column.valid


def key_dtype(dtypes: AbstractSet[str]) -> str:
    """Return the common type in which keys of these types are compared by value."""
    if len(dtypes) == 1:
        return next(iter(dtypes))
    if dtypes <= {*FLOATS}:
        return "float64"
    return "uint64" if "uint64" in dtypes else "int64"


def as_key(column: Column, dtype: str, xp: ModuleType) -> Column:
    """Cast a key to the type it is compared in; missing where that type has no such value, which matches no key."""
    if dtype in (column.dtype, "float64"):
        return column if column.dtype == dtype else Column(dtype, column.data.astype(dtype))
    return Column(dtype, *whole_numbers(column, np.dtype(dtype), xp))


def chain_columns(*parts: Mapping[str, Column]) -> Mapping[str, Column]:
    """Chain columns of different names into one mapping, in order; a `Matrix` among them stays one."""
    known: list[Any] = []
    for part in parts:
        if known and not isinstance(part, Matrix) and not isinstance(known[-1], Matrix):
            known[-1] = {**known[-1], **part}
        elif len(part):
            known.append(part)
    if not known:
        return {}
    # A ChainMap goes through its maps from the last to the first.
    return known[0] if len(known) == 1 else ChainMap(*reversed(known))


def split_parts(columns: Mapping[str, Column]) -> list[Mapping[str, Column]]:
    """Return the mappings that `chain_columns` chained."""
    return [*reversed(columns.maps)] if isinstance(columns, ChainMap) else [columns]


def order_dtype(left: Field, right: Field, where: str) -> str:
    """Choose the type in which both sides of an as-of join are ordered by value."""
    for item, side in ((left, "left"), (right, "right")):
        if item.dtype not in (*INTEGERS, *FLOATS, "timestamp"):
            remedy = suggest_conversion(item.name, item.dtype) if is_passenger(item.dtype) else "another column"
            if item.dtype in ("string", "bool"):
                cast = {item.name: "timestamp" if item.dtype == "string" else "int8"}
                remedy = f"T.Cast({cast}) before it, {OF_A_DATASET}"
            raise SchemaMismatch(
                f"{where}, column {item.name!r}",
                f"values on the {side} have no distance from each other",
                got=item.dtype,
                expected="numbers, dates or times",
                remedy=remedy,
            )
    require_comparable_times(left, right, f"{where}, left and right")
    both = {left.dtype, right.dtype}
    if both == {"timestamp"}:
        return "timestamp"
    if "timestamp" not in both:
        if both <= {*INTEGERS}:
            found = np.promote_types(left.dtype, right.dtype).name
            if found in INTEGERS:
                return "uint64" if found == "uint64" else "int64"
        elif not both & {"int64", "uint64"}:
            return "float64"
    raise SchemaMismatch(
        where,
        f"{left.name!r} is {left.dtype} on the left and {right.name!r} {right.dtype} on the right",
        expected="times on both sides, or numbers of which one type holds both",
        remedy=f"T.Cast({{{right.name!r}: {left.dtype!r}}}) on the right before it",
    )


def check_distance(value: Any, where: str) -> None:
    """Raise `BadConfig` unless a value is a number >= 0, a duration, or None."""
    if value is None or (is_number(value) and value >= 0) or parse_duration_us(value, least=0) is not None:
        return
    raise _make_error(value, where, "a number from 0 on, or a length of time", "'2h' for times, 10 for numbers")


def convert_distance(value: Any, dtype: str, where: str) -> Distance | None:
    """Convert a distance to the units of a type that orders rows."""
    check_distance(value, where)
    if value is None:
        return None
    found: Distance | None = None
    if dtype == "timestamp":
        expected, example, found = "a length of time", "'2h'", parse_duration_us(value, least=0)
    elif dtype == "float64":
        expected, example, found = "a number", "10", float(value) if is_number(value) else None
    else:
        expected, example, found = "an integer", "10", int(value) if is_integer(value) else None
    if found is None:
        order = "times" if dtype == "timestamp" else dtype
        raise _make_error(value, where, f"{expected}, for the order is one of {order}", example)
    return found


def _make_error(value: Any, where: str, expected: str, example: str) -> BadConfig:
    name = where.rpartition("(")[2].removesuffix("=)")
    return BadConfig(where, "makes no sense", got=value, expected=expected, remedy=f"{name}={example}")
