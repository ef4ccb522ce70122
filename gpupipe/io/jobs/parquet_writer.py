"""Parquet writer: tables to one file, or to a folder per partition value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from gpupipe.backend import Backend, Frame
from gpupipe.backend.arrow import parquet_path
from gpupipe.backend.arrow_types import get_file_type, is_list
from gpupipe.backend.protocol import ParquetLayout
from gpupipe.cluster import default_threads
from gpupipe.config import settings
from gpupipe.errors import BadData
from gpupipe.io.planning.partitions import row_bytes
from gpupipe.io.stores.find_files import check_folder_text, folder_name
from gpupipe.schema import FLOATS, Schema, get_element_dtype
from gpupipe.support.validation import check_choice, check_integer

_GROUP_ROWS, _GPU_GROUP_ROWS, _GPU_CHUNK_BYTES = 1_000_000, 10_000_000, 128_000_000
_TEXT_BYTES = 16  # a guess
_DAY = 86_400_000_000  # microseconds
_SAMPLED_ROWS, _DICTIONARY_BYTES = 1_000_000, 8 << 20
_CODECS = ("snappy", "zstd", "lz4", "gzip", "brotli", "none")


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """Options of Parquet files, as of `Dataset.write_parquet`."""

    rows_per_group: int | None = None
    compression: str = "snappy"
    partition_by: tuple[str, ...] = ()
    shuffle: Literal[False, "partition", "full"] = False
    seed: int = 0
    layout: Literal["default", "gpu"] = "default"

    def __post_init__(self) -> None:
        check_choice("write_parquet", _CODECS, compression=self.compression)
        check_choice("write_parquet", (False, "partition", "full"), shuffle=self.shuffle)
        check_choice("write_parquet", ("default", "gpu"), layout=self.layout)
        check_integer("write_parquet", "[1, inf)", None, rows_per_group=self.rows_per_group)

    def lay_out(self, schema: Schema) -> ParquetLayout:
        """Choose the layout of a file of these columns."""
        for_gpu = self.layout == "gpu"
        rows = self.rows_per_group or (_count_gpu_group_rows(schema) if for_gpu else _GROUP_ROWS)
        # A dictionary of floats costs a hash per value and is thrown away when it has grown too large.
        coded = (item.name for item in schema if (get_element_dtype(item.dtype) or item.dtype) not in FLOATS)
        return ParquetLayout(rows, self.compression, frozenset(coded), has_many_pages=for_gpu)


def write_file(tables: Iterable[pa.Table], schema: Schema, path: Path, options: ParquetOptions) -> None:
    """Write all tables to one file. Memory: as many tables as make a row group."""
    types, layout = get_file_types(schema), options.lay_out(schema)
    cast = (cast_to_file_types(table, types) for table in tables)
    groups = map(pa.concat_tables, cut_rows(cast, layout.rows_per_group))
    first = next(groups)
    fields, sizes = [item for item in schema if item.name in layout.dictionary], {}
    if options.layout == "gpu":
        fields = [item for item in fields if _has_repeats(first.column(item.name))]
        # One that grows too large in the middle of a chunk leaves pages of two encodings.
        sizes = {"dictionary_pagesize_limit": _DICTIONARY_BYTES, "max_rows_per_page": layout.page_rows(first.num_rows)}
    coded = [parquet_path(item) for item in fields]
    with pq.ParquetWriter(path, types, compression=layout.compression, use_dictionary=coded, **sizes) as writer:
        for table in chain([first], groups):
            writer.write_table(table, row_group_size=layout.rows_per_group)


def cut_rows(tables: Iterable[pa.Table], num_rows: int) -> Iterator[list[pa.Table]]:
    """Cut the rows of one or more tables into tables of this many rows; the last may be shorter."""
    waiting: list[pa.Table] = []
    missing, is_first, table = num_rows, True, None
    for table in tables:
        rest = table
        while rest.num_rows >= missing:
            yield [*waiting, rest.slice(0, missing)]
            rest, waiting, missing, is_first = rest.slice(missing), [], num_rows, False
        if rest.num_rows:
            waiting.append(rest)
            missing -= rest.num_rows
    if waiting or is_first:
        yield waiting or [table]


def group_rows(path: Path) -> list[int]:
    """Read the rows of each row group of a file."""
    # Not collected by the writer: where a disk is full, it would raise for what it cannot collect, and hide why.
    written = pq.read_metadata(path)
    return [written.row_group(group).num_rows for group in range(written.num_row_groups)]


def write_hive(tables: Iterable[pa.Table], schema: Schema, folder: Path, name: str, options: ParquetOptions) -> None:
    """Write to a folder per combination of values of `options.partition_by`, with a file `name` in each.

    Memory: row groups of all the folders that are open.
    """
    types, layout = get_file_types(schema), options.lay_out(schema)
    # pyarrow escapes the keys' values, but not their names.
    names = [folder_name(name) if name in options.partition_by else name for name in types.names]
    written = pa.schema([item.with_name(name) for item, name in zip(types, names, strict=True)])
    keys = pa.schema([written.field(folder_name(key)) for key in options.partition_by])
    form = pads.ParquetFileFormat()
    coded = [parquet_path(item) for item in schema if item.name in layout.dictionary - {*options.partition_by}]
    texts = [key for key in options.partition_by if schema[key].dtype == "string"]

    def batches() -> Iterator[pa.RecordBatch]:
        for table in tables:
            whole = cast_to_file_types(table, types)
            for key in texts:
                check_folder_text(key, whole.column(key))
            yield from whole.rename_columns(names).to_batches()

    pads.write_dataset(
        batches(),
        folder,
        schema=written,
        format=form,
        partitioning=pads.partitioning(keys, flavor="hive"),
        basename_template=f"{name}-{{i}}.parquet",
        file_options=form.make_write_options(compression=layout.compression, use_dictionary=coded),
        max_rows_per_group=layout.rows_per_group,
        max_partitions=10_000,
        use_threads=False,
    )


def _count_gpu_group_rows(schema: Schema) -> int:
    """Count the rows of a row group that fills a GPU: 10 million, or 128 MB of the widest column, or fewer by memory.

    arXiv 2602.17335 measured which sizes decode fastest.
    """
    widest = max((_TEXT_BYTES if item.dtype == "string" else row_bytes([item]) for item in schema), default=1)
    rows = min(_GPU_GROUP_ROWS, _GPU_CHUNK_BYTES // widest)
    limit = settings().memory_limit
    return rows if limit is None else max(1, min(rows, limit // (4 * default_threads() * max(1, row_bytes(schema)))))


def _has_repeats(column: pa.ChunkedArray) -> bool:
    """Return whether a dictionary halves a column at least, by its first million rows."""
    values = column.slice(0, _SAMPLED_ROWS).drop_null()
    values = values.combine_chunks().flatten() if is_list(values.type) else values
    if not len(values) or pa.types.is_nested(values.type):
        return bool(len(values))
    distinct = pc.count_distinct(values).as_py()
    codes = distinct.bit_length() * len(values) / (8 * values.nbytes)
    return bool(codes + distinct / len(values) <= 0.5)


def get_file_types(schema: Schema) -> pa.Schema:
    """Return the types of the columns in files, with their units as metadata."""
    return pa.schema(
        pa.field(item.name, get_file_type(item), metadata={"units": item.units} if item.units else None)
        for item in schema
    )


def cast_to_file_types(table: pa.Table, types: pa.Schema) -> pa.Table:
    """Cast columns to the types of a file; raise `BadData` for a time of day in a column of dates."""
    for item in types:
        column = table.column(item.name)
        if pa.types.is_date32(item.type) and pa.types.is_timestamp(column.type):
            days = column.cast(item.type, safe=False)
            lost = pc.index(pc.not_equal(days.cast(column.type), column), value=True).as_py()
            if lost >= 0:
                raise _no_date(item.name, column[lost].as_py())
    return table.select(types.names).cast(types)


def with_dates(frame: Frame, types: pa.Schema, backend: Backend) -> Frame:
    """Check that date columns hold whole days, and return the frame; `cast_to_file_types` checks those of tables."""
    for name in (item.name for item in types if pa.types.is_date32(item.type)):
        column = backend.column(frame, name)
        missing, lost = column.missing(backend.xp), column.data % _DAY != 0
        lost = lost if missing is None else lost & ~missing
        if bool(lost.any()):
            raise _no_date(name, np.datetime64(int(column.data[int(lost.argmax())]), "us").item())
    return frame


def _no_date(name: str, value: object) -> BadData:
    where, problem = f"write_parquet, column {name!r}", "a time of day in a column that is written as dates"
    expected = "dates, as in the table that the column comes from"
    remedy = f"T.Cast({{{name!r}: 'timestamp'}}), which makes it a column of times"
    return BadData(where, problem, got=value, expected=expected, remedy=remedy)
