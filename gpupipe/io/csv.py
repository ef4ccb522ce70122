"""CSV files, parsed once on the host into temporary Parquet files."""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.csv as arrow_csv

from gpupipe.backend.arrow import arrow_type, dtype_of
from gpupipe.errors import BadConfig, BadFile, ColumnNotFound, SchemaMismatch
from gpupipe.io.dataset import Dataset
from gpupipe.io.parquet import ParquetSource
from gpupipe.io.paths import PathLike, find_files
from gpupipe.io.source import partition_limit
from gpupipe.io.spool import Spool
from gpupipe.schema import DTYPES, Field
from gpupipe.words import as_list, counted

__all__ = ["NULL_VALUES", "read_csv"]

NULL_VALUES = ("", "NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "<NA>", "#N/A", "#NA")
_UNREADABLE = (OSError, EOFError, UnicodeDecodeError, zlib.error)
BLOCK_BYTES = 8 << 20
"""Text that is parsed at a time; types that are not given are inferred from the first block of the first file."""


def read_csv(
    path: PathLike | Sequence[PathLike],
    *,
    columns: str | Sequence[str] | None = None,
    dtypes: Mapping[str, str] | None = None,
    names: str | Sequence[str] | None = None,
    delimiter: str = ",",
    null_values: str | Sequence[str] = NULL_VALUES,
    timestamp_formats: str | Sequence[str] = (),
    partition_bytes: int | None = None,
    backend: str = "auto",
) -> Dataset:
    r"""Open CSV files as one table.

    The files are parsed here, once and on the host for both backends, into temporary Parquet files that are removed
    with the dataset; every later pass reads those. Types that are not given are inferred from the first 8 MiB of the
    first file and hold for all: a later value that does not fit is an error, never a changed type.

    Args:
        path: a file, a list of files, a pattern, a folder (all `*.csv` and `*.csv.gz` below it), or a URL
            that fsspec knows.
        columns: the columns to have; all by default.
        dtypes: types by column, from `gpupipe.schema.DTYPES`; for `"timestamp"` see `timestamp_formats`.
        names: the columns' names, where the files have no header row.
        delimiter: what separates values.
        null_values: what stands for a missing value, in columns of any type.
        timestamp_formats: `strptime` formats tried in turn; ISO 8601 by default. Times with an offset become UTC.
        partition_bytes: decoded bytes of a partition; 128 MiB on the CPU and 1 GiB on the GPU by default.
        backend: `"auto"`, `"cpu"` or `"gpu"`: whose frames the dataset gives.

    Raises:
        BadFile: a file is missing, empty or not UTF-8, or a row has too few or too many values; names file and row.
        SchemaMismatch: a value does not fit its column's type, or files differ in their columns.
        ColumnNotFound, BadConfig: an argument names no column or no type.

    Memory: a block of text, and a row group of up to 32 MiB; the whole table on disk, in Parquet.

    Example:
        >>> import tempfile, pathlib, gpupipe as gp
        >>> file = pathlib.Path(tempfile.mkdtemp(), "flights.csv")
        >>> _ = file.write_text("origin,delay\nJFK,4.5\nLGA,NA\n")
        >>> gp.read_csv(file).compute()
          origin  delay
        0    JFK    4.5
        1    LGA    NaN
    """
    asked = dict(dtypes or {})
    for name, dtype in asked.items():
        if dtype not in DTYPES:
            raise BadConfig(
                f"read_csv(dtypes={{{name!r}: ...}})",
                "unknown type",
                got=dtype,
                expected=f"one of {', '.join(DTYPES)}",
                remedy="'string'",
            )
    if len(delimiter.encode()) != 1:
        raise BadConfig(
            "read_csv", "delimiter is no single character", got=delimiter, expected="one ASCII character", remedy="','"
        )
    form = _Format(
        delimiter, None if names is None else as_list(names), as_list(null_values), as_list(timestamp_formats)
    )
    limit = partition_limit(partition_bytes, backend)
    paths = find_files(path, [".csv", ".csv.gz"])
    first = _header(paths[0], form)
    chosen = None if columns is None else as_list(columns)
    for name in (*(chosen or ()), *asked):
        if name not in first.names:
            raise ColumnNotFound.among(paths[0], name, first.names)
    types = _types(first, form, asked, first.names if chosen is None else chosen)
    fields = [Field(name, dtype_of(kind) or "string") for name, kind in types.items()]
    spool = Spool(limit)
    files = []
    for name in paths:
        header = _header(name, form)
        _check_same(first, header, list(types), whole=columns is None)
        files.append(spool.write(_batches(header, form, types), fields, name))
    source = ParquetSource(files, limit=limit, owner=spool)
    return Dataset(source, source.schema, backend)


@dataclass(frozen=True)
class _Format:
    """How the files are written; `names` where they have no header row."""

    delimiter: str
    names: list[str] | None
    null_values: list[str]
    timestamp_formats: list[str]


@dataclass(frozen=True)
class _Header:
    """A file, its columns and whether any row follows."""

    path: str
    names: list[str]
    has_rows: bool


def _header(path: str, form: _Format) -> _Header:
    try:
        with fsspec.open(path, "rt", compression="infer", encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=form.delimiter)
            names = form.names or next((row for row in rows if row), [])
            has_rows = any(line.strip() for line in file)
    except (*_UNREADABLE, csv.Error) as cause:
        raise _unreadable(path, cause) from cause
    if not names or (form.names and not has_rows):
        raise BadFile(path, "the file is empty", expected="a header row, or rows and names=", remedy="write it again")
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SchemaMismatch(
            path, "columns share a name", got=twice, expected="unique names", remedy="another header row"
        )
    return _Header(path, names, has_rows)


def _types(header: _Header, form: _Format, asked: Mapping[str, str], columns: Sequence[str]) -> dict[str, pa.DataType]:
    """The type each column is parsed as: as asked, else as its values in the first block look."""
    inferred: dict[str, pa.DataType] = dict.fromkeys(header.names, pa.null())
    if header.has_rows:
        # What is asked for is looked at as text, but for times: whether they have an offset shows in the values.
        known = {name: arrow_type(dtype) for name, dtype in asked.items() if dtype != "timestamp"}
        with _opened(header, form, known, columns) as reader:
            inferred = {item.name: item.type for item in reader.schema}
    return {name: _parsed_as(inferred[name], asked.get(name)) for name in columns}


def _parsed_as(inferred: pa.DataType, asked: str | None) -> pa.DataType:
    if asked is not None and asked != "timestamp":
        return arrow_type(asked)
    if pa.types.is_timestamp(inferred):
        return pa.timestamp("ns" if inferred.unit == "ns" else "us", inferred.tz)
    if asked == "timestamp" or pa.types.is_date(inferred):
        return pa.timestamp("us")
    return arrow_type("string") if dtype_of(inferred) in (None, "string") else inferred


def _check_same(first: _Header, other: _Header, columns: Sequence[str], *, whole: bool) -> None:
    missing = [name for name in columns if name not in other.names]
    added = [name for name in other.names if name not in first.names] if whole else []
    if missing or added:
        name = (missing or added)[0]
        raise SchemaMismatch(
            other.path,
            f"column {name!r} is {'not there' if missing else 'not in ' + first.path}",
            got=other.names,
            expected=f"the columns of {first.path}",
            remedy="read_csv(..., columns=[...]) with what the files share",
        )


def _batches(header: _Header, form: _Format, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    if header.has_rows:
        with _opened(header, form, types, list(types)) as reader:
            yield from reader


@contextmanager
def _opened(
    header: _Header, form: _Format, types: Mapping[str, pa.DataType], columns: Sequence[str]
) -> Iterator[arrow_csv.CSVStreamingReader]:
    refused: list[Any] = []

    def refuse(row: Any) -> str:
        refused.append(row)
        return "error"

    try:
        with (
            fsspec.open(header.path, "rb", compression="infer") as file,
            arrow_csv.open_csv(
                file,
                # One thread: only then does the parser know row numbers.
                arrow_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=form.names),
                arrow_csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=True, invalid_row_handler=refuse),
                arrow_csv.ConvertOptions(
                    column_types=dict(types),
                    include_columns=list(columns),
                    null_values=form.null_values,
                    strings_can_be_null=True,
                    timestamp_parsers=[*form.timestamp_formats, arrow_csv.ISO8601],
                ),
            ) as reader,
        ):
            yield reader
    except (*_UNREADABLE, pa.ArrowException) as cause:
        raise _explained(header, cause, refused) from cause


def _explained(header: _Header, cause: Exception, refused: Sequence[Any]) -> BadFile | SchemaMismatch:
    if refused:
        row = refused[0]
        return BadFile(
            header.path,
            f"row {row.number} has {counted(row.actual_columns, 'value')}",
            got=row.text,
            expected=f"{counted(row.expected_columns, 'value')}, as in the first row",
            remedy="quotes around values that hold the delimiter, or delimiter=",
        )
    found = _UNFIT.search(str(cause))
    if found is None:
        return _unreadable(header.path, cause)
    name, row_number, kind, seen = header.names[int(found[1])], found[2], found[3], found[4]
    if "UTF8" in seen:
        return _unreadable(header.path, cause)
    return SchemaMismatch(
        header.path,
        f"row {row_number}, column {name!r}: {seen}",
        expected=f"{kind}, as asked for or as in the first {BLOCK_BYTES >> 20} MiB",
        remedy="timestamp_formats=['%d/%m/%Y'], as the times are written"
        if "timestamp" in kind
        else f"dtypes={{{name!r}: {_wider(seen)!r}}}",
    )


def _wider(seen: str) -> str:
    """A type that the refused value fits."""
    return "float64" if re.search(r"'[-+0-9.eE]+'", seen) else "string"


_UNFIT = re.compile(r"In CSV column #(\d+): Row #(\d+): CSV conversion error to (.+?): (.*)", re.DOTALL)


def _unreadable(path: str, cause: Exception) -> BadFile:
    return BadFile(
        path,
        f"cannot be read as CSV ({cause})",
        expected="text in UTF-8",
        remedy="write it as UTF-8, or the right path",
    )
