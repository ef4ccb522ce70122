"""What hangs on the stand-in Series: `.cat`, `.dt`, and the Index, which is one without its frame."""

from __future__ import annotations

from typing import Any

import cudf as real
import numpy as np
import pandas as pd
import pyarrow as pa
from cudf.core.accessors.categorical import CategoricalAccessor
from cudf.core.series import DatetimeProperties

from .signatures import checked, not_imitated
from .standin_cupy import DeviceArray

TEXT = pd.StringDtype(na_value=np.nan)


class Categories:
    """`.cat` of a category."""

    def __init__(self, series: Any) -> None:
        self._series = series

    def __getattr__(self, name: str) -> Any:
        raise not_imitated("cudf.Series.cat", CategoricalAccessor, name)

    @property
    def codes(self) -> Any:
        return type(self._series).of(self._series.data.astype(self._series.dtype.codes_dtype), self._series.valid)

    @property
    def categories(self) -> Any:
        return self._series.dtype.categories


class Times:
    """`.dt` of timestamps."""

    def __init__(self, series: Any) -> None:
        self._series = series

    def __getattr__(self, name: str) -> Any:
        if name not in (
            "year",
            "month",
            "day",
            "hour",
            "minute",
            "second",
            "weekday",
            "dayofweek",
            "dayofyear",
            "quarter",
        ):
            raise not_imitated("cudf.Series.dt", DatetimeProperties, name)
        parts = getattr(pd.Series(self._series.data).dt, name).to_numpy().astype("int16")
        return type(self._series).of(parts, self._series.valid)

    @checked("cudf.Series.dt.strftime", DatetimeProperties.strftime)
    def strftime(self, date_format: str) -> Any:
        written = pd.Series(self._series.data).dt.strftime(date_format).to_numpy().astype(object)
        return type(self._series).of(written, self._series.valid, TEXT)

    @checked("cudf.Series.dt.tz_convert", DatetimeProperties.tz_convert)
    def tz_convert(self, tz: Any) -> Any:
        return type(self._series).of(
            self._series.data, self._series.valid, pd.DatetimeTZDtype(self._series.dtype.unit, tz)
        )

    @checked("cudf.Series.dt.tz_localize", DatetimeProperties.tz_localize)
    def tz_localize(self, tz: Any) -> Any:
        if tz is not None or str(self._series.dtype.tz) != "UTC":
            raise NotImplementedError("the stand-in takes UTC off, no more")
        return type(self._series).of(self._series.data, self._series.valid)


class Index:
    """A column without its frame: categories, or the names of rows."""

    def __init__(self, values: Any, name: Any = None) -> None:
        self.held, self.name = values, name
        self.dtype = values.dtype

    def __getattr__(self, name: str) -> Any:
        raise not_imitated("cudf.Index", real.Index, name)

    def __len__(self) -> int:
        return len(self.held)

    @property
    def names(self) -> list[Any]:
        return [self.name]

    def to_arrow(self) -> pa.Array:
        return self.held.to_arrow()

    @checked("cudf.Index.to_cupy", real.Index.to_cupy)
    def to_cupy(self) -> DeviceArray:
        return self.held.to_cupy()

    @checked("cudf.Index.take", real.Index.take)
    def take(self, indices: Any) -> Index:
        rows = indices.held.data if isinstance(indices, Index) else indices.host
        return Index(type(self.held).of(self.held.data[rows], None, self.dtype), self.name)

    @checked("cudf.Index.equals", real.Index.equals)
    def equals(self, other: Any) -> bool:
        return isinstance(other, Index) and self.to_arrow().equals(other.to_arrow())
