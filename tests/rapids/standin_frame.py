"""cuDF's frames on the columns of `standin_series`, with its habits.

A merge shuffles, matches nulls and makes integers floats. Parquet moves columns into the index, numbers rows from the
file's start and adds columns found in the path.
"""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import cudf as real
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from .signatures import checked, not_imitated
from .standin_accessors import Index
from .standin_cupy import DeviceArray
from .standin_lists import ListDtype
from .standin_series import CategoricalDtype, Series, as_series

_random = np.random.default_rng(0)


class RangeIndex(Index):
    @checked("cudf.RangeIndex", real.RangeIndex.__init__)
    def __init__(self, start: int, stop: int | None = None) -> None:
        super().__init__(Series.of(np.arange(start) if stop is None else np.arange(start, stop)))


class CategoricalIndex(Index):
    @classmethod
    @checked("cudf.CategoricalIndex.from_codes", real.CategoricalIndex.from_codes.__func__)
    def from_codes(cls, codes: Any, categories: Any, ordered: bool) -> CategoricalIndex:
        """Codes become unsigned as they are, of as many bytes as the categories need: -1 would be one of the last."""
        values, dtype = as_series(codes), CategoricalDtype(categories, ordered)
        size = next(kind for kind in ("uint8", "uint16", "uint32") if len(dtype.held) <= np.iinfo(kind).max)
        unsigned = values.data.astype(size).astype(np.int64)
        known = unsigned[values.notnull_mask()]
        if len(known) and known.max() >= len(dtype.held):
            raise IndexError("a code beyond the categories reads memory that is not theirs")
        return cls(Series.of(unsigned, values.valid, dtype))


def own(method: Any) -> Any:
    return checked(f"cudf.DataFrame.{method.__name__}", getattr(real.DataFrame, method.__name__))(method)


class DataFrame:
    __module__ = "cudf.core.dataframe"
    __hash__ = None  # type: ignore[assignment]

    @checked("cudf.DataFrame", real.DataFrame.__init__)
    def __init__(self, data: Any = None, index: Any = None, nan_as_null: bool = True) -> None:
        series = {
            name: as_series(values) if not isinstance(values, DeviceArray) else Series(values, nan_as_null=nan_as_null)
            for name, values in (data or {}).items()
        }
        lengths = {len(values) for values in series.values()}
        if len(lengths) > 1:
            raise ValueError("All arrays must be of the same length")
        positions = [
            values.index if values.index is not None else RangeIndex(len(values)) for values in series.values()
        ]
        if any(
            len(other) != len(positions[0]) or (other.held.data != positions[0].held.data).any()
            for other in positions[1:]
        ):
            raise AssertionError("columns of different indexes would be aligned, row by row")
        self._columns = series
        self.index = index if index is not None else positions[0] if positions else RangeIndex(max(lengths, default=0))

    @classmethod
    def of(cls, columns: dict[Any, Series], index: Index | None = None) -> DataFrame:
        made = cls.__new__(cls)
        made._columns = columns
        made.index = index if index is not None else RangeIndex(max(map(len, columns.values()), default=0))
        return made

    def __getattr__(self, name: str) -> Any:
        raise not_imitated("cudf.DataFrame", real.DataFrame, name)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def columns(self) -> Any:
        return pd.Index(list(self._columns))

    @property
    def dtypes(self) -> pd.Series:
        return pd.Series({name: series.dtype for name, series in self._columns.items()}, dtype=object)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), len(self._columns)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, list):
            return DataFrame.of({name: self._columns[name] for name in key}, self.index)
        if not isinstance(key, str):
            raise NotImplementedError("the stand-in selects columns only")
        found = self._columns[key]
        series = Series.of(found.data, found.valid, found.dtype)
        series.index = self.index
        return series

    def __setitem__(self, key: str, value: Any) -> None:
        series = Series(value) if not isinstance(value, Series) else value
        if len(series) != len(self) or (
            isinstance(value, Series) and value.index is not None and len(value.index) != len(self)
        ):
            raise ValueError("Length of values does not match index length")
        self._columns = {**self._columns, key: series}

    @property
    def iloc(self) -> Rows:
        return Rows(self)

    @own
    def copy(self, deep: bool = True) -> DataFrame:
        held = {n: Series.of(s.data.copy() if deep else s.data, s.valid, s.dtype) for n, s in self._columns.items()}
        return DataFrame.of(held, self.index)

    @own
    def memory_usage(self, index: bool = True) -> Series:
        return Series.of(np.array([held.data.nbytes for held in self._columns.values()]))

    @own
    def assign(self, **columns: Any) -> DataFrame:
        made = DataFrame.of(dict(self._columns), self.index)
        for name, value in columns.items():
            made[name] = value
        return made

    @own
    def rename(self, *, columns: Any, copy: bool = True) -> DataFrame:
        held = self.copy(deep=copy)._columns
        return DataFrame.of({columns.get(name, name): values for name, values in held.items()}, self.index)

    @own
    def reset_index(self, drop: bool = False) -> DataFrame:
        kept = dict(self._columns)
        if not drop:
            kept = {self.index.name or "index": self.index.held, **kept}
        return DataFrame.of(kept, RangeIndex(len(self)))

    @own
    def take(self, indices: Any) -> DataFrame:
        if not isinstance(indices, DeviceArray) or indices.dtype.kind not in "iu":
            raise TypeError("Gather map must have integer dtype")
        rows = indices.host
        if len(rows) and (rows.min() < -len(self) or rows.max() >= len(self)):
            raise IndexError(f"Gather map is out of bounds for [0, {len(self)})")
        return self.taken(rows)

    def taken(self, rows: Any) -> DataFrame:
        columns = {
            name: Series.of(values.data[rows], None if values.valid is None else values.valid[rows], values.dtype)
            for name, values in self._columns.items()
        }
        return DataFrame.of(columns, Index(Series.of(self.index.held.data[rows])))

    @own
    def dropna(self, *, subset: Any) -> DataFrame:
        return self.taken(np.flatnonzero(np.logical_and.reduce([self._columns[name].notna().data for name in subset])))

    @own
    def sort_values(self, by: Any) -> DataFrame:
        order = np.lexsort([self._columns[name].fillna(2**53).data for name in reversed(by)])
        return self.taken(order)

    @own
    def merge(self, right: DataFrame, *, on: Any, how: str) -> DataFrame:
        if any(side[name].is_category for side in (self, right) for name in on):
            raise NotImplementedError("the stand-in merges no categories")
        keys = [pd.DataFrame({str(n): _keys(side[n]) for n in on}) for side in (self, right)]
        pairs = (
            keys[0]
            .assign(left=range(len(self)))
            .merge(keys[1].assign(right=range(len(right))), on=list(map(str, on)), how=how)
        )
        pairs = pairs.iloc[_random.permutation(len(pairs))]
        rows = [pairs[side].fillna(-1).to_numpy().astype(np.int64) for side in ("left", "right")]
        added = {
            name: _upcast(values, values.gathered(rows[1])) for name, values in right._columns.items() if name not in on
        }
        if set(added) & set(self._columns):
            raise ValueError("columns overlap")
        return DataFrame.of({name: values.gathered(rows[0]) for name, values in self._columns.items()} | added)

    @classmethod
    def from_arrow(cls, table: Any) -> DataFrame:
        return DataFrame.of(
            {name: as_series(table.column(name)) for name in table.column_names}, RangeIndex(table.num_rows)
        )

    @classmethod
    @checked("cudf.DataFrame.from_pylibcudf", real.DataFrame.from_pylibcudf.__func__)
    def from_pylibcudf(cls, table: Any, metadata: Any = None) -> DataFrame:
        """Of what a reader has read, which knows its names, or of a table with names beside it."""
        if isinstance(table, pa.Table):
            assert metadata is None
            return cls.from_arrow(table)
        assert set(metadata) == {"columns"}
        columns = dict(zip(metadata["columns"], table.columns, strict=True))
        return cls.from_arrow(pa.table({name: column.cast(_as_read(column.type)) for name, column in columns.items()}))

    @own
    def to_arrow(self, preserve_index: Any = None) -> pa.Table:
        if preserve_index is not False:
            raise NotImplementedError("the stand-in keeps no index")
        return pa.table({str(name): values.to_arrow() for name, values in self._columns.items()})

    @own
    def to_pandas(self) -> pd.DataFrame:
        return self.to_arrow(preserve_index=False).to_pandas()


class Rows:
    """`.iloc`, by a slice of rows alone."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    def __getitem__(self, rows: slice) -> DataFrame:
        if not isinstance(rows, slice):
            raise NotImplementedError("the stand-in's iloc takes a slice")
        return self._frame.taken(np.arange(len(self._frame))[rows])


def _keys(values: Series) -> Any:
    """Null matches null and NaN matches NaN, never each other."""
    keys = values.data.astype(object)
    keys[~values.notnull_mask()] = "\0null"
    return pd.Series(keys, dtype=object)


def _upcast(before: Series, after: Series) -> Series:
    """Rows without a match make an integer column a float one."""
    lost = after.has_nulls and not before.has_nulls and after.data.dtype.kind in "iu" and not after.is_category
    return Series.of(after.data.astype("float64"), after.valid) if lost else after


@checked("cudf.concat", real.concat)
def concat(objs: Any, *, ignore_index: bool) -> DataFrame:
    names = list(objs[0].columns)
    joined = {}
    for name in names:
        parts = [frame[name] for frame in objs]
        if parts[0].is_category:
            values = np.unique(np.concatenate([part.dtype.held.data for part in parts]).astype(object))
            united = CategoricalDtype(Series.of(_random.permutation(values), None, parts[0].dtype.held.dtype))
            parts = [part.astype("str").astype(united) for part in parts]
        if len({str(part.dtype) for part in parts}) > 1:
            raise ValueError("All columns must be the same type")
        valid = np.concatenate([part.notnull_mask() for part in parts])
        joined[name] = Series.of(np.concatenate([part.data for part in parts]), valid, parts[0].dtype)
    return DataFrame.of(joined, RangeIndex(sum(map(len, objs))))


@checked("cudf.from_pandas", real.from_pandas)
def from_pandas(obj: pd.DataFrame) -> DataFrame:
    return DataFrame.of({name: as_series(obj[name]) for name in obj.columns}, Index(as_series(np.asarray(obj.index))))


def _as_read(kind: pa.DataType) -> pa.DataType:
    """Parquet has one kind of list, whatever Arrow's schema says; libcudf's times have no zone."""
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_type)
    return pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind


@checked("cudf.read_parquet", real.read_parquet)
def read_parquet(
    filepath_or_buffer: Any,
    *,
    columns: Any,
    row_groups: Any,
    use_pandas_metadata: bool = True,
    dataset_kwargs: Any = None,
    ignore_missing_columns: bool = True,
) -> DataFrame:
    tables, schemas, start = [], [], 0
    for source, groups in zip(filepath_or_buffer, row_groups, strict=True):
        with pq.ParquetFile(source) as file:
            there = set(file.schema_arrow.names)
            if not ignore_missing_columns and not set(columns) <= there:
                raise ValueError(f"CUDF failure at: Encountered non-existent column {sorted(set(columns) - there)}")
            try:
                tables.append(file.read_row_groups(groups, columns=[name for name in columns if name in there]))
            except (OSError, pa.ArrowException) as cause:
                raise RuntimeError(f"CUDF failure at: {cause}") from cause
            start += sum(file.metadata.row_group(i).num_rows for i in range(min(groups)))
            written = json.loads((file.schema_arrow.metadata or {}).get(b"pandas", b"{}"))
            schemas.append(file.schema_arrow.remove_metadata())
    if any(schema != schemas[0] for schema in schemas):
        raise RuntimeError("CUDF failure at: All sources must have the same schema")
    table = pa.concat_tables([one.replace_schema_metadata() for one in tables]).unify_dictionaries()
    frame = DataFrame.from_arrow(table.cast(pa.schema([item.with_type(_as_read(item.type)) for item in table.schema])))
    if dataset_kwargs is None:
        for name, value in re.findall(r"([^/=]+)=([^/]+)/", str(filepath_or_buffer)):
            frame[name] = as_series([value] * len(frame)).astype("category")
    for name in written.get("index_columns", []):
        if isinstance(name, dict):
            frame.index = RangeIndex(start, start + len(frame))
        elif name in frame.columns:
            (label,) = [column["name"] for column in written["columns"] if column["field_name"] == name]
            frame.index = Index(frame[name], label)
            frame = frame[[other for other in frame.columns if other != name]]
    return frame


cudf = SimpleNamespace(
    DataFrame=DataFrame,
    Series=Series,
    Index=Index,
    RangeIndex=RangeIndex,
    CategoricalDtype=CategoricalDtype,
    CategoricalIndex=CategoricalIndex,
    ListDtype=ListDtype,
    concat=concat,
    from_pandas=from_pandas,
    read_parquet=read_parquet,
    api=SimpleNamespace(
        types=SimpleNamespace(
            is_string_dtype=lambda dtype: (
                not isinstance(dtype, CategoricalDtype | ListDtype) and real.api.types.is_string_dtype(dtype)
            )
        )
    ),
)
