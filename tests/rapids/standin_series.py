"""cuDF's columns on NumPy, with its habits: null beside NaN, rubbish under a null, categories that raise, no host copy.

Each method is bound to cuDF's own signature first; what cuDF has and this does not is `NotImplementedError`.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import cudf as real
import numpy as np
import pandas as pd
import pyarrow as pa

from . import standin_lists
from .signatures import checked, not_imitated
from .standin_accessors import TEXT, Categories, Index, Times
from .standin_cupy import DeviceArray
from .standin_lists import ListDtype, Lists, PlcColumn

_RUBBISH = {"b": True, "i": 77, "u": 77, "f": 1234.5, "M": 77, "O": "rubbish"}


def own(method: Any) -> Any:
    """A method of the stand-in `Series`, callable as the real one; what it gives keeps the index."""

    @wraps(method)
    def keeping(self: Series, *args: Any, **kwargs: Any) -> Any:
        made = method(self, *args, **kwargs)
        if isinstance(made, Series) and made is not self:
            made.index = self.index
        return made

    return checked(f"cudf.Series.{method.__name__}", getattr(real.Series, method.__name__))(keeping)


class CategoricalDtype:
    name = "category"
    kind = "O"

    @checked("cudf.CategoricalDtype", real.CategoricalDtype.__init__)
    def __init__(self, categories: Any = None, ordered: bool = False) -> None:
        self.held = None if categories is None else as_series(categories)
        self.ordered = ordered

    @property
    def categories(self) -> Index:
        return Index(self.held if self.held is not None else as_series(pa.array([], pa.large_string())))

    @property
    def codes_dtype(self) -> Any:
        """What pandas would use, which cuDF's accessor gives."""
        return next(
            np.dtype(name) for name in ("int8", "int16", "int32", "int64") if len(self.held) < np.iinfo(name).max
        )

    def __str__(self) -> str:
        return "category"


class Series:
    """`data` and `valid` (None: no nulls) are NumPy's; a category's data are its codes."""

    __module__ = "cudf.core.series"
    __hash__ = None  # type: ignore[assignment]
    index: Any = None

    @checked("cudf.Series", real.Series.__init__)
    def __init__(
        self,
        data: Any = None,
        index: Any = None,
        dtype: Any = None,
        name: Any = None,
        copy: bool = False,
        nan_as_null: bool = True,
    ) -> None:
        if (index, dtype, name, copy) != (None, None, None, False):
            raise NotImplementedError("the stand-in makes a Series of data alone")
        if isinstance(data, DeviceArray):
            self._set(data.host, None)
            if data.host.ndim != 1:
                raise ValueError("a column has one dimension")
            if nan_as_null and data.dtype.kind == "f" and np.isnan(data.host).any():
                self._set(data.host, ~np.isnan(data.host))
        else:
            made = as_series(data)
            self._set(made.data, made.valid, made.dtype)

    @classmethod
    def of(cls, data: Any, valid: Any = None, dtype: Any = None) -> Series:
        made = cls.__new__(cls)
        made._set(data, valid, dtype)
        return made

    def _set(self, data: Any, valid: Any, dtype: Any = None) -> None:
        if valid is not None and not valid.all():
            data = np.where(valid, data, np.array(_RUBBISH[data.dtype.kind]).astype(data.dtype))
        self.data, self.valid = data, None if valid is None or valid.all() else valid
        self.dtype = dtype if dtype is not None else data.dtype

    def __getattr__(self, name: str) -> Any:
        raise not_imitated("cudf.Series", real.Series, name)

    def __len__(self) -> int:
        return len(self.data)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a host array is not allowed. Consider `.to_arrow()` or `.to_pandas()`.")

    __array__ = __iter__ = __bool__ = tolist = to_list = _refuse

    @property
    def has_nulls(self) -> bool:
        return self.valid is not None

    @property
    def is_category(self) -> bool:
        return isinstance(self.dtype, CategoricalDtype)

    @property
    def cat(self) -> Categories:
        if not self.is_category:
            raise AttributeError("Can only use .cat accessor with a 'category' dtype")
        return Categories(self)

    @property
    def list(self) -> Lists:
        if not isinstance(self.dtype, ListDtype):
            raise AttributeError("Can only use .list accessor with a 'list' dtype")  # noqa: TRY004 - as cuDF does
        return Lists(self)

    @own
    def to_pylibcudf(self) -> tuple[PlcColumn, dict[str, Any]]:
        return PlcColumn.of(self), {"name": None, "index": self.index}

    @classmethod
    def from_pylibcudf(cls, col: PlcColumn) -> Series:
        return col.series

    @property
    def dt(self) -> Times:
        if self.data.dtype.kind != "M":
            raise AttributeError("Can only use .dt accessor with datetimelike values")
        return Times(self)

    @own
    def isna(self) -> Series:
        null = np.zeros(len(self), bool) if self.valid is None else ~self.valid
        return Series.of(null | np.isnan(self.data) if self.data.dtype.kind == "f" else null)

    @own
    def notna(self) -> Series:
        return Series.of(~self.isna().data)

    @own
    def sum(self) -> Any:
        return self.data[self.notnull_mask()].sum()

    @own
    def any(self) -> bool:
        return bool((self.data & self.notnull_mask()).any())

    @own
    def isin(self, values: Any) -> Series:
        return Series.of(np.isin(self.data, np.array(values, dtype=self.data.dtype)) & self.notnull_mask())

    @property
    def hasnans(self) -> bool:
        return bool(self.isna().data.any())

    @own
    def nans_to_nulls(self) -> Series:
        return Series.of(self.data.copy(), self.notna().data, self.dtype)

    @own
    def copy(self, deep: bool = True) -> Series:
        return Series.of(self.data.copy() if deep else self.data, self.valid, self.dtype)

    @own
    def fillna(self, value: Any) -> Series:
        if self.is_category:
            raise ValueError(f"fill_value={value!r} must be in categories")
        if self.data.dtype.kind == "b" and not isinstance(value, bool):
            raise TypeError(f"Cannot safely cast non-equivalent {type(value).__name__} to bool")
        return Series.of(np.where(self.isna().data, np.array(value).astype(self.data.dtype), self.data))

    @own
    def where(self, cond: Any, other: Any = None) -> Series:
        if other is not None or not isinstance(cond, Series) or cond.dtype != bool:
            raise NotImplementedError("the stand-in knows where(Series of bool) alone")
        return Series.of(self.data, cond.notna().data & cond.data & self.notnull_mask(), self.dtype)

    def notnull_mask(self) -> Any:
        return np.ones(len(self), bool) if self.valid is None else self.valid

    @own
    def to_cupy(self, dtype: Any = None, copy: bool = False, na_value: Any = None) -> DeviceArray:
        if self.is_category or self.data.dtype.kind not in "biuf":
            raise TypeError(f"{self.dtype} has no CuPy form")
        series = self
        if self.has_nulls and na_value is not None:
            series = self.fillna(na_value)
        elif self.has_nulls:
            if self.data.dtype.kind == "b":
                raise ValueError("Column must have no nulls for dtype=bool")
            kind = self.data.dtype if self.data.dtype.kind == "f" else "float64"
            series = Series.of(np.where(self.valid, self.data.astype(kind), np.nan).astype(kind))
        data = series.data if dtype is None else series.data.astype(dtype, copy=False)
        return DeviceArray(data.copy() if copy else data)

    @own
    def astype(self, dtype: Any, copy: bool = True) -> Series:
        made = self._as(dtype)
        return made.copy() if copy and made.data is self.data else made

    def _as(self, dtype: Any) -> Series:
        if isinstance(dtype, CategoricalDtype) or dtype == "category":
            return self._as_category(dtype if isinstance(dtype, CategoricalDtype) else CategoricalDtype())
        if dtype == "str":
            return self._as_text()
        kind = np.dtype(dtype)
        if self.is_category or self.dtype == TEXT:
            if self.notnull_mask().any():
                raise NotImplementedError(f"{self.dtype} to {kind}")
            return Series.of(np.zeros(len(self), kind), self.valid)
        if getattr(self.dtype, "tz", None) is not None:
            raise TypeError("Cannot use .astype to convert from timezone-aware dtype to timezone-naive dtype.")
        if kind.kind == "M" and self.data.dtype.kind in "iu":
            return Series.of(self.data.astype("int64", copy=False).view(kind), self.valid)
        if self.data.dtype.kind == "M" and kind.kind == "i":
            return Series.of(self.data.view("int64").astype(kind, copy=False), self.valid)
        with np.errstate(all="ignore"):
            return Series.of(self.data.astype(kind, copy=False), self.valid)

    def _as_category(self, dtype: CategoricalDtype) -> Series:
        if self.is_category:
            if dtype.held is not None:
                raise NotImplementedError("the stand-in gives a category no other categories")
            return self
        if dtype.held is None:
            dtype = CategoricalDtype(Series.of(np.unique(self.data[self.notnull_mask()]), None, self.dtype))
        known = dtype.held.data.astype(self.data.dtype)  # cuDF casts the categories, whether they fit or not
        places = {value: code for code, value in enumerate(known.tolist())}
        codes = np.array([places.get(value, -1) for value in self.data.tolist()], dtype=np.int64)
        return Series.of(codes, self.notnull_mask() & (codes >= 0), dtype)

    def _as_text(self) -> Series:
        if self.is_category:
            values = np.append(self.dtype.held.data.astype(object), "")
            return Series.of(values[np.where(self.notnull_mask(), self.data, -1)], self.valid, TEXT)
        if self.dtype == TEXT:
            return self
        return Series.of(np.array([str(value) for value in self.data.tolist()], dtype=object), self.valid, TEXT)

    @classmethod
    def from_arrow(cls, array: Any) -> Series:
        return as_series(array)

    def to_arrow(self) -> pa.Array:
        missing = ~self.notnull_mask()
        if isinstance(self.dtype, ListDtype):
            return standin_lists.to_arrow(self)
        if self.is_category:
            return pa.DictionaryArray.from_arrays(pa.array(self.data, mask=missing), self.dtype.held.to_arrow())
        kind = pa.large_string() if self.dtype == TEXT else None
        made = pa.array(self.data, type=kind, mask=missing, from_pandas=False)
        return made.cast(pa.timestamp(self.dtype.unit, str(self.dtype.tz))) if getattr(self.dtype, "tz", None) else made

    def to_pandas(self) -> Any:
        return self.to_arrow().to_pandas()

    def gathered(self, rows: Any) -> Series:
        """Rows by position, null at -1 (which cuDF's own gather gives after a join)."""
        valid = np.append(self.notnull_mask(), False)[rows]
        data = np.append(self.data, np.array([_RUBBISH[self.data.dtype.kind]]).astype(self.data.dtype))[rows]
        return Series.of(data, valid, self.dtype)


def _binary(name: str) -> Any:
    def apply(self: Series, other: Any) -> Series:
        if self.is_category:
            if name not in ("__eq__", "__ne__") or other not in self.dtype.held.data:
                raise ValueError(f"a category does not know {other!r} here")
            other = self.dtype.held.data.tolist().index(other)
        valid = self.notnull_mask() & (other.notnull_mask() if isinstance(other, Series) else True)
        with np.errstate(all="ignore"):
            return Series.of(getattr(self.data, name)(other.data if isinstance(other, Series) else other), valid)

    return apply


for _name in ("add", "sub", "mul", "truediv", "and", "or", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Series, f"__{_name}__", _binary(f"__{_name}__"))


def as_series(values: Any) -> Series:
    """A Series of what cuDF makes one of: Arrow, pandas, lists, its own."""
    if isinstance(values, Series):
        return values
    if isinstance(values, Index):
        return values.held
    array = pa.array(values, from_pandas=True) if not isinstance(values, (pa.Array, pa.ChunkedArray)) else values
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    valid = ~array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_list(array.type):
        return standin_lists.of_arrow(Series, array, as_series)
    if pa.types.is_dictionary(array.type):
        codes = array.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return Series.of(codes, valid, CategoricalDtype(as_series(array.dictionary)))
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type) or pa.types.is_null(array.type):
        return Series.of(np.array([text or "" for text in array.to_pylist()], dtype=object), valid, TEXT)
    if pa.types.is_timestamp(array.type):
        data = array.cast(pa.int64()).fill_null(0).to_numpy().view(f"datetime64[{array.type.unit}]")
        return Series.of(data, valid, pd.DatetimeTZDtype(array.type.unit, array.type.tz) if array.type.tz else None)
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_boolean(array.type)):
        raise NotImplementedError(f"the stand-in has no {array.type}")
    data = array.fill_null(False if pa.types.is_boolean(array.type) else 0).to_numpy(zero_copy_only=False)
    return Series.of(np.array(data), valid)
