"""cuDF's columns of lists on the columns of `standin_series`, and as much of pylibcudf as puts one together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cudf as real
import numpy as np
import pyarrow as pa
import pylibcudf
from cudf.core.accessors.lists import ListMethods

from .signatures import check, checked, not_imitated
from .standin_io import io, table


class ListDtype:
    """Of a column whose data are an object for each row: the Series of its elements."""

    kind = "O"

    @checked("cudf.ListDtype", real.ListDtype.__init__)
    def __init__(self, element_type: Any) -> None:
        self.element_type = element_type

    def __str__(self) -> str:
        return "list"


class Lists:
    """`.list` of a column of lists."""

    def __init__(self, series: Any) -> None:
        self._series = series

    def __getattr__(self, name: str) -> Any:
        raise not_imitated("cudf.Series.list", ListMethods, name)

    @checked("cudf.Series.list.len", ListMethods.len)
    def len(self) -> Any:
        there = self._series.notnull_mask()
        lengths = [len(row) if valid else 77 for row, valid in zip(self._series.data, there, strict=True)]
        return type(self._series).of(np.array(lengths, np.int32), self._series.valid)

    @property
    def leaves(self) -> Any:
        """Of the rows there are, counted from 0 whatever the index."""
        kept = self._series.data[self._series.notnull_mask()].tolist()
        return joined([*kept, empty(type(self._series), self._series.dtype.element_type)])


def empty(kind: Any, element: Any) -> Any:
    return kind.of(np.zeros(0, object if not isinstance(element, np.dtype) else element), None, element)


def joined(parts: list[Any]) -> Any:
    data, valid = (np.concatenate(found) for found in ([p.data for p in parts], [p.notnull_mask() for p in parts]))
    return type(parts[0]).of(data, valid, parts[-1].dtype)


def of_offsets(kind: Any, offsets: Any, leaves: Any, valid: Any) -> Any:
    rows = np.empty(len(offsets) - 1, object)
    masks = leaves.notnull_mask()
    for row, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        rows[row] = kind.of(leaves.data[start:end], masks[start:end], leaves.dtype)
    return kind.of(rows, valid, ListDtype(leaves.dtype))


def of_arrow(kind: Any, array: Any, as_series: Any) -> Any:
    if not pa.types.is_list(array.type) or pa.types.is_dictionary(array.type.value_type):
        raise NotImplementedError(f"cuDF is given no {array.type} here")
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    valid = ~array.is_null().to_numpy(zero_copy_only=False)
    return of_offsets(kind, np.append(0, np.cumsum(lengths)), as_series(array.flatten()), valid)


def to_arrow(series: Any) -> pa.Array:
    lengths = [len(row) if valid else 0 for row, valid in zip(series.data, series.notnull_mask(), strict=True)]
    offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
    return pa.ListArray.from_arrays(offsets, series.list.leaves.to_arrow(), mask=pa.array(~series.notnull_mask()))


class PlcColumn:
    """`pylibcudf.Column`: one that cuDF has handed over, or lists put together."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check("pylibcudf.Column", pylibcudf.Column, args, kwargs)
        kind, size, data, mask, null_count, offset, (offsets, leaves) = args
        if (kind, data, offset) != ("LIST", None, 0) or offsets.series.data.dtype != np.int32:
            raise NotImplementedError("the stand-in puts lists together, of 32-bit offsets")
        if len(offsets.series) != size + 1 or offsets.series.data[-1] != len(leaves.series):
            raise ValueError("offsets that do not go with the elements")
        if null_count != (0 if mask is None else int((~mask).sum())):
            raise ValueError("if this is incorrect, bad things happen")
        if str(leaves.series.dtype) == "category":
            raise NotImplementedError("lists of categories")
        self.series = of_offsets(type(leaves.series), offsets.series.data, leaves.series, mask)

    @classmethod
    def of(cls, series: Any) -> PlcColumn:
        made = cls.__new__(cls)
        made.series = series
        return made

    def offset(self) -> int:
        """As of a slice: what its buffers hold before is not its own."""
        return 3

    def data(self) -> Any:
        return np.concatenate([np.ones(3, self.series.data.dtype), self.series.data]).view(np.uint8)

    def null_mask(self) -> Any:
        return np.packbits(np.append([False, True, False], self.series.notnull_mask()), bitorder="little")


def _bools_to_mask(*args: Any, **kwargs: Any) -> tuple[Any, int]:
    check("pylibcudf.transform.bools_to_mask", pylibcudf.transform.bools_to_mask, args, kwargs)
    found = args[0].series.data
    return found, int((~found).sum())


def _cast(*args: Any) -> SimpleNamespace:
    check("pylibcudf.unary.cast", pylibcudf.unary.cast, args, {})
    column, kind = args
    if kind != "TIMESTAMP_DAYS":
        raise NotImplementedError("the stand-in casts times to days")
    return SimpleNamespace(series=SimpleNamespace(to_arrow=lambda: column.series.to_arrow().cast(pa.date32())))


plc = SimpleNamespace(
    Column=PlcColumn,
    DataType=lambda kind: kind,
    TypeId=SimpleNamespace(**{name: name for name in ("LIST", "TIMESTAMP_MICROSECONDS", "TIMESTAMP_DAYS")}),
    Table=table,
    io=io,
    unary=SimpleNamespace(cast=_cast),
    transform=SimpleNamespace(bools_to_mask=_bools_to_mask),
)
