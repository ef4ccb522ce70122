"""Value replacement: clipping, logarithms, and mappings of values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from gpupipe.backend import Backend, Column, Frame
from gpupipe.backend.columns import require_comparable, require_comparable_constant
from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.expressions.numbers import apply_function
from gpupipe.expressions.texts import replace_texts
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema
from gpupipe.support.text import format_count, refer_to
from gpupipe.support.times import parse_microseconds
from gpupipe.support.validation import as_list, check_instance, check_names, is_bool, is_number, refuse_argument
from gpupipe.transforms.transform import ColumnwiseTransform, Names

_TYPED = {"bool": "True or False", "string": "text", "timestamp": "a time as text in ISO 8601"}


class Clip(ColumnwiseTransform):
    """Clip numbers or times to a range; missing stays missing, and the type stays.

    `low` and `high` are the ends, None for none; of times as text in ISO 8601. Raises BadConfig for no end, for ends
    that do not ascend or that the column's type cannot hold, and SchemaMismatch for a column of anything else.

    Memory: one new column per column.

    Example:
        >>> import pandas as pd
        >>> Clip("x", 0, 10).transform(pd.DataFrame({"x": [-5, 7, 99]}))["x"].tolist()
        [0, 7, 10]
    """

    def __init__(self, columns: Names, low: float | str | None = None, high: float | str | None = None) -> None:
        check_names(self, columns=columns)
        ends: dict[str, Any] = {"low": low, "high": high}
        for name, end in ends.items():
            is_whole = isinstance(end, int) and not is_bool(end)  # maybe beyond a float
            if not (end is None or isinstance(end, str) or is_whole or (is_number(end) and not math.isnan(end))):
                remedy = f"{name}={end.isoformat() if hasattr(end, 'isoformat') else 0!r}"
                raise refuse_argument(self, name, end, "a number, or a time as text in ISO 8601", remedy)
        if low is None and high is None:
            raise BadConfig("Clip", "no range is given", expected="low, high or both", remedy="Clip(columns, low=0)")
        self.columns = as_list(columns)
        self.low, self.high = low, high

    def output_schema(self, schema: Schema) -> Schema:
        schema.require(self.columns, "Clip")
        items = [_require_type(schema[name], (*INTEGERS, *FLOATS, "timestamp"), "Clip") for name in self.columns]
        for item in items:
            ends = [end for end in self._ends(item) if end is not None]
            if ends != sorted(ends):
                got, expected = (self.low, self.high), "low <= high"
                raise BadConfig("Clip", "the range is empty", got=got, expected=expected, remedy="swap them")
        return schema.assign(replace(item.with_instants(), step="Clip") for item in items)

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        columns = {}
        for name in (name for name in self.columns if name in outputs):
            column = backend.column(frame, name)
            ends = [None if end is None else column.data.dtype.type(end) for end in self._ends(schema[name])]
            columns[name] = replace(column, data=backend.xp.clip(column.data, *ends))
        return backend.assign(frame, columns) if columns else frame

    def list_owned(self, owned: AbstractSet[str], schema: Schema) -> AbstractSet[str]:
        return owned | {*self.columns}

    def _ends(self, item: Field) -> list[Any]:
        """Return low and high as the column stores them, at most what its type can hold; None where there is none."""
        low, high = self.low, self.high
        if item.dtype != "timestamp":
            least, most = _limits(item.dtype)
            first, last = (-np.inf, np.inf) if item.dtype in FLOATS else (least, most)
            low = first if isinstance(low, int | float) and low < least else low
            high = last if isinstance(high, int | float) and high > most else high
        return [None if end is None else _convert_value(end, item, "Clip") for end in (low, high)]


class Log1p(ColumnwiseTransform):
    """Compute the natural logarithm of 1 + x, exact for small x; float32 stays, everything else becomes float64.

    Raises BadData for a value of -1 or less, with column and value, and SchemaMismatch for a column without numbers.

    Memory: one new column per column, and a boolean per row while values are checked.

    Example:
        >>> import pandas as pd
        >>> Log1p("x").transform(pd.DataFrame({"x": [0.0, 1.0]}))["x"].round(4).tolist()
        [0.0, 0.6931]
    """

    def __init__(self, columns: Names) -> None:
        check_names(self, columns=columns)
        self.columns = as_list(columns)

    def output_schema(self, schema: Schema) -> Schema:
        schema.require(self.columns, "Log1p")
        items = [_require_type(schema[name], (*INTEGERS, *FLOATS, "bool"), "Log1p") for name in self.columns]
        return schema.assign(replace(item, dtype=_get_float_type(item.dtype), step="Log1p", units="") for item in items)

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        columns, xp = {name: backend.column(frame, name) for name in self.columns if name in outputs}, backend.xp
        if not columns:
            return frame
        signed = {name: column for name, column in columns.items() if not column.dtype.startswith(("u", "b"))}
        bad = {n: c.data <= -1 if c.valid is None else (c.data <= -1) & c.valid for n, c in signed.items()}
        counts = backend.to_host(xp.stack([xp.count_nonzero(mask) for mask in bad.values()])) if bad else []
        for (name, mask), count in zip(bad.items(), counts, strict=True):
            if count:
                problem = f"{format_count(int(count), 'value')} of -1 or less"
                remedy = f"Clip({name!r}, 0) or Filter({f'{refer_to(name)} > -1'!r}) before it"
                got = backend.to_host(columns[name].data[mask][:1])[0].item()
                raise BadData(f"Log1p of column {name!r}", problem, got=got, expected="numbers above -1", remedy=remedy)
        results = {n: apply_function("log1p", c, _get_float_type(c.dtype), xp) for n, c in columns.items()}
        return backend.assign(frame, results)

    def list_owned(self, owned: AbstractSet[str], schema: Schema) -> AbstractSet[str]:
        return owned | {*self.columns}


class Replace(ColumnwiseTransform):
    """Replace values by others, all at once: a new value is not replaced again.

    `values` has, by column, the new value by the old one. None is missing on either side; times are text in ISO 8601.
    Other values stay, and so does the column's type. Raises BadConfig for a value that the type cannot hold, and
    SchemaMismatch for a column of lists.

    Memory: one new column per column; of strings, the distinct ones go through the host.

    Example:
        >>> import pandas as pd
        >>> Replace({"gate": {None: -1, 9: 90}}).transform(pd.DataFrame({"gate": [7.0, None, 9.0]}))["gate"].tolist()
        [7.0, -1.0, 90.0]
    """

    def __init__(self, values: Mapping[str, Mapping[Any, Any]]) -> None:
        check_instance(self, Mapping, "for each column a mapping", remedy="values={'x': {-1: None}}", values=values)
        check_names(self, values=list(values))
        for name, pairs in dict[str, Any](values).items():
            if not isinstance(pairs, Mapping):
                where = f"Replace of column {name!r}"
                remedy = f"Replace({{{name!r}: {{None: {pairs!r}}}}}) for missing ones"
                raise BadConfig(where, "no mapping", got=pairs, expected="new values by the old ones", remedy=remedy)
        self.values = {name: dict(pairs) for name, pairs in values.items()}

    def output_schema(self, schema: Schema) -> Schema:
        schema.require(self.values, "Replace")
        require_comparable([schema[name] for name in self.values], "Replace")
        fields = []
        for item in schema.select(self.values):
            _, news, fill = self._stored(item)
            fills = None in self.values[item.name] and fill is not None
            is_nullable = None in news or (item.nullable and not fills)
            fields.append(replace(item.with_instants(), nullable=is_nullable, step="Replace"))
        return schema.assign(fields)

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        columns = {}
        for name in (name for name in self.values if name in outputs):
            column = backend.column(frame, name)
            how = replace_texts if column.dictionary is not None else _replace_values
            columns[name] = how(column, *self._stored(schema[name]), backend)
        return backend.assign(frame, columns) if columns else frame

    def _stored(self, item: Field) -> tuple[list[Any], list[Any], Any]:
        """Return old and new values as the column stores them, and the one for missing values."""
        items = self.values[item.name].items()
        pairs = {_convert_or_none(old, item): _convert_or_none(new, item) for old, new in items}
        fill = pairs.pop(None, None)
        olds = sorted(pairs)
        return olds, [pairs[old] for old in olds], fill


def _replace_values(column: Column, olds: list[Any], news: list[Any], fill: Any, backend: Backend) -> Column:
    """Replace numbers, booleans and times; `olds` ascend."""
    xp, data, dtype = backend.xp, column.data, column.data.dtype
    missing = column.missing(xp)
    is_blank = None
    if olds:
        sortable = "int8" if dtype.name == "bool" else dtype.name
        old_values = backend.to_device(np.array(olds, dtype=dtype).astype(sortable))
        none = np.nan if dtype.kind == "f" else 0
        table = backend.to_device(np.array([none if new is None else new for new in news], dtype=dtype))
        positions = xp.minimum(xp.searchsorted(old_values, data.astype(sortable)), len(olds) - 1)
        is_replaced = old_values[positions] == data if missing is None else (old_values[positions] == data) & ~missing
        data = xp.where(is_replaced, table[positions], data)
        if None in news and dtype.kind != "f":
            is_blank = is_replaced & backend.to_device(np.array([new is None for new in news]))[positions]
    if fill is not None and missing is not None:
        data, missing = xp.where(missing, dtype.type(fill), data), None
    if dtype.kind == "f":
        return Column(column.dtype, data)
    absent = is_blank if missing is None else missing if is_blank is None else missing | is_blank
    return Column(column.dtype, data, None if absent is None else ~absent)


def _require_type(item: Field, dtypes: Sequence[str], where: str) -> Field:
    if item.dtype not in dtypes:
        problem, expected = "not a number", "numbers or times" if "timestamp" in dtypes else "numbers"
        remedy, got = f"Cast({{{item.name!r}: 'float64'}}) before it, or leave {item.name!r} out", item.dtype
        raise SchemaMismatch(f"{where} of column {item.name!r}", problem, got=got, expected=expected, remedy=remedy)
    return item


def _get_float_type(dtype: str) -> str:
    return dtype if dtype in FLOATS else "float64"


def _convert_value(value: Any, item: Field, where: str) -> Any:
    """Return a value as the column's type stores it."""
    plain = value.item() if isinstance(value, np.generic) else value
    result: Any = None
    if item.dtype == "string":
        result = plain if isinstance(plain, str) else None
    elif item.dtype == "timestamp":
        require_comparable_constant(item, plain, f"{where} of column {item.name!r}")
        with suppress(ValueError):
            result = parse_microseconds(plain) if isinstance(plain, str) else None
    elif item.dtype == "bool":
        result = bool(plain) if isinstance(plain, bool | int | float) and plain in (0, 1) else None
    elif isinstance(plain, int | float) and not isinstance(plain, bool):
        least, most = _limits(item.dtype)
        if item.dtype in FLOATS and (least <= plain <= most or plain in (-np.inf, np.inf)):
            result = float(np.dtype(item.dtype).type(plain))
        elif item.dtype in INTEGERS and plain == plain // 1 and least <= plain <= most:
            result = int(plain)
    if result is None or _is_nan(result):
        remedy = f"Cast({{{item.name!r}: ...}}) before it, to a type that can"
        if item.dtype == "string" and isinstance(plain, int | float):
            cast = {item.name: "float64" if isinstance(plain, float) else "int64"}
            remedy = f"{str(plain)!r}, and T.Cast({cast}) behind it where all become numbers"
        if item.dtype == "timestamp":
            remedy = repr(value.isoformat()) if hasattr(value, "isoformat") else "'2013-10-01 06:00'"
        problem = f"{item.dtype} cannot hold a value"
        expected = _TYPED.get(item.dtype, f"a number that {item.dtype} can hold")
        raise BadConfig(f"{where} of column {item.name!r}", problem, got=value, expected=expected, remedy=remedy)
    return result


def _limits(dtype: str) -> tuple[Any, Any]:
    """Return the least and the greatest finite number of a type."""
    limits: Any = np.finfo(dtype) if dtype in FLOATS else np.iinfo(dtype)
    return np.asarray(limits.min).item(), np.asarray(limits.max).item()


def _convert_or_none(value: Any, item: Field) -> Any:
    """Convert a value of `Replace` as `_convert_value` does; NaN is missing as None is."""
    return None if value is None or _is_nan(value) else _convert_value(value, item, "Replace")


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(np.isnan(value))
