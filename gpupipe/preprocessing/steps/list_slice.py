"""List slicing: parts of lists, and lists of one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.columns import locate_values, with_missing_row
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.preprocessing.learned_step import Columns, StatelessStep, fits
from gpupipe.schema import FLOATS, Field, get_element_dtype
from gpupipe.support.validation import check_bool, check_integer, is_bool, is_number, refuse_argument


class ListSlice(StatelessStep):
    """List slicing: consecutive elements of each list, as NVTabular's operator of that name.

    `ListSlice(10)` is the first ten, `ListSlice(-10)` the last ten, `ListSlice(1, 11)` ten but the first; otherwise
    `start` and `end` mean what they do in Python's `row[start:end]`. With `pad` all lists, missing ones too, are filled
    at their end to one length, `end - start` or `-start`, by `pad_value`: None, a missing element, is the only one for
    text and times.
    Raises: BadConfig for `pad` without a length, or a `pad_value` that the elements' type does not hold; SchemaMismatch
    for a column of no lists.
    Memory: transform allocates the elements that are kept, and two int64 for each while they are gathered.

    Example:
        >>> import pandas as pd
        >>> ListSlice(2, pad=True).fit_transform(pd.DataFrame({"seen": [[7, 8, 9], [5], []]}))["seen"].tolist()
        [[7, 8], [5, 0], [0, 0]]
    """

    def __init__(self, start: int, end: int | None = None, pad: bool = False, pad_value: float | None = 0) -> None:
        check_integer(self, "(-inf, inf)", start=start)
        check_integer(self, "(-inf, inf)", None, end=end)
        check_bool(self, pad=pad)
        if not (pad_value is None or is_bool(pad_value) or is_number(pad_value)):
            raise refuse_argument(self, "pad_value", pad_value, "a number, a boolean or None")
        self.start, self.end, self.pad, self.pad_value = start, end, pad, pad_value

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        for item in fields:
            element = get_element_dtype(item.dtype)
            if element is None:
                where, problem = f"ListSlice, column {item.name!r}", "its values are no lists"
                expected, remedy = "a column of lists", "slice(text, 0, 10) in an expression, for text"
                raise SchemaMismatch(where, problem, got=item.dtype, expected=expected, remedy=remedy)
            if self.pad:
                self._check_pad(item, element)
        return [replace(item, nullable=item.nullable and not self.pad) for item in fields]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        return {name: self._sliced(column, backend.xp) for name, column in columns.items()}

    @property
    def _bounds(self) -> tuple[int, int | None]:
        return (0, self.start) if self.start > 0 and self.end is None else (self.start, self.end)

    @property
    def _length(self) -> int:
        """The length of all lists with `pad`; not positive where it is unknown."""
        start, end = self._bounds
        if start >= 0:
            return -1 if end is None else end - start
        return -start if end is None or end >= 0 else end - start

    def _sliced(self, column: Column, xp: Any) -> Column:
        elements = column.elements
        assert elements is not None
        begins, lengths = column.data[:-1], column.data[1:] - column.data[:-1]
        start, end = self._bounds
        first = _find_positions(start, lengths, xp)
        last = lengths if end is None else _find_positions(end, lengths, xp)
        counts = xp.maximum(last - first, 0)
        if self.pad:
            return self._padded(column, begins + first, counts, xp)
        places, offsets = locate_values(begins + first, counts, xp)
        return Column(column.dtype, offsets, column.valid, None, elements.take(places))

    def _padded(self, column: Column, starts: Array, counts: Array, xp: Any) -> Column:
        elements, length = column.elements, self._length
        assert elements is not None
        steps = xp.arange(length)
        mask = (steps < counts[:, None]).ravel()
        places = (starts[:, None] + steps).ravel()
        output = with_missing_row(elements, xp).take(xp.where(mask, places, -1))
        if self.pad_value is not None:
            valid = None if elements.valid is None else output.valid | ~mask
            data = xp.where(mask, output.data, output.data.dtype.type(self.pad_value))
            output = Column(elements.dtype, data, valid)
        return Column(column.dtype, xp.arange(len(column) + 1) * length, None, None, output)

    def _check_pad(self, item: Field, element: str) -> None:
        if self._length < 1:
            got, problem = {"start": self.start, "end": self.end}, "there is no length to pad to"
            remedy = "ListSlice(10, pad=True), or ListSlice(-10, pad=True) for the last ones"
            raise BadConfig("ListSlice(pad=True)", problem, got=got, expected="a number of elements", remedy=remedy)
        if self.pad_value is None and item.cardinality is None:
            return
        value: Any = self.pad_value
        holds = value is not None and element not in ("string", "timestamp")
        holds = holds and (fits(element, value) or (element in FLOATS and bool(np.isnan(value))))
        if not holds or (item.cardinality is not None and not 0 <= (value or 0) < item.cardinality):
            where, problem = f"ListSlice(pad_value=), column {item.name!r}", "the elements' type does not hold it"
            expected, remedy = f"a value of {element}", "pad_value=None, a missing element"
            if item.cardinality is not None:
                expected, remedy = f"{expected} below {item.cardinality}", "pad_value=0, a missing id"
            raise BadConfig(where, problem, got=self.pad_value, expected=expected, remedy=remedy)


def _find_positions(position: int, lengths: Array, xp: Any) -> Array:
    """Return a position in each list, from its end where negative; its end where the list is shorter."""
    return xp.maximum(lengths + position, 0) if position < 0 else xp.minimum(lengths, position)
