"""CSV files, parsed once on the host into temporary Parquet files."""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from gpupipe.backend.arrow import arrow_type, dtype_of
from gpupipe.backend.arrow_types import workable
from gpupipe.errors import BadConfig, BadFile, ColumnNotFound, SchemaMismatch
from gpupipe.io.admission import Admission, open_all
from gpupipe.io.dataset import Dataset
from gpupipe.io.files import FileSource
from gpupipe.io.offsets import offsets_of, with_changes
from gpupipe.io.parquet import ParquetFile
from gpupipe.io.paths import Input, PathLike, StorageOptions, decompressed, find_files
from gpupipe.io.source import partition_limit
from gpupipe.io.spool import Spool, without_values
from gpupipe.schema import DTYPES
from gpupipe.support.validation import check_dtypes, check_instance, check_name, check_names
from gpupipe.words import as_list, counted

__all__ = ["NULL_VALUES", "read_csv"]

NULL_VALUES = ("", "NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "<NA>", "#N/A", "#NA")
_UNREADABLE = (OSError, EOFError, UnicodeDecodeError, zlib.error)
_NO_NAME = "without a name, as pandas writes row names; its name is ''"
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
    on_mismatch: str = "raise",
    on_bad: str = "raise",
    storage_options: StorageOptions | None = None,
    partition_bytes: int | None = None,
    backend: str = "auto",
) -> Dataset:
    r"""Open CSV files as one table.

    The files are parsed here, once and on the host for both backends, into temporary Parquet files that are removed
    with the dataset; every later pass reads those. Types that are not given are inferred from the first 8 MiB of the
    first file and hold for all: a later value that does not fit is an error, never a changed type.

    Args:
        path: a file, a list of files, a pattern, a folder (all `*.csv` below it), or a URL that fsspec knows; packed
            ones too (`.gz`, `.zst`). Folders named `key=value` give columns.
        columns: the columns to have; all by default.
        dtypes: types by column, from `gpupipe.schema.DTYPES`; for `"timestamp"` see `timestamp_formats`.
        names: the columns' names, where the files have no header row.
        delimiter: what separates values.
        null_values: what stands for a missing value, in columns of any type.
        timestamp_formats: `strptime` formats tried in turn; ISO 8601 by default. Times with an offset become UTC,
            which `Dataset.conversions` notes.
        on_mismatch: what is done about a file with other columns than the first, or with a value that does not fit its
            column; see `read_parquet`. With `"cast"` values still have to fit.
        on_bad: what is done about a file that cannot be read, in any row; see `read_parquet`.
        storage_options: for the file system of a URL; see `read_parquet`.
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
    check_names("read_csv", None, columns=columns, names=names)
    check_names("read_csv", null_values=null_values, timestamp_formats=timestamp_formats)
    check_name("read_csv", delimiter=delimiter)
    check_instance("read_csv", Mapping, "types by the names of columns", None, dtypes=dtypes)
    asked = dict(dtypes or {})
    check_dtypes("read_csv", DTYPES, asked)
    if len(delimiter.encode()) != 1:
        raise BadConfig(
            "read_csv", "delimiter is no single character", got=delimiter, expected="one ASCII character", remedy="','"
        )
    form = _Format(
        delimiter, None if names is None else as_list(names), as_list(null_values), as_list(timestamp_formats)
    )
    admission, limit = Admission(on_mismatch, on_bad), partition_limit(partition_bytes, backend)
    chosen, spool = None if columns is None else as_list(columns), Spool(limit)
    parser = _Parser(form, asked, chosen, spool, admission)
    files = open_all(find_files(path, [".csv", ".csv.gz", ".csv.zst"], storage_options), parser, admission, at_once=1)
    source = FileSource(files, columns=chosen, limit=limit, admission=admission, spool=spool)
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

    one: Input
    names: list[str]
    has_rows: bool

    @property
    def path(self) -> str:
        return self.one.path


class _Parser:
    """Brings one file after the other to the columns and types that the first has shown."""

    def __init__(
        self,
        form: _Format,
        asked: Mapping[str, str],
        columns: Sequence[str] | None,
        spool: Spool,
        admission: Admission,
    ) -> None:
        self._form, self._asked, self._columns = form, asked, columns
        self._spool, self._admission = spool, admission
        self._first: _Header | None = None
        self._types: dict[str, pa.DataType] = {}
        self._changes: dict[str, str] = {}

    def __call__(self, one: Input) -> ParquetFile:
        header = _header(one, self._form)
        first = self._first or header
        types = self._learned(header) if self._first else self._look(header, one)
        for difference in _differences(first, header, list(types), whole=self._columns is None):
            if not self._admission.casts or not set(types) & set(header.names):
                raise difference
            if difference.problem.endswith(first.path):  # what is not there shows in the file that is written
                self._admission.adapt(one.path, f"{difference.problem} and left out")
        present = {name: kind for name, kind in types.items() if name in header.names}
        fields, read = workable(pa.schema(list(present.items())))
        self._admission.convert(one.path, with_changes(read, self._changes))
        first_row = 1 if self._form.names else 2
        file = self._spool.write(_batches(header, self._form, present), list(fields), one, first_row)
        self._first, self._types = first, types
        return without_values(file, present)

    def _learned(self, header: _Header) -> dict[str, pa.DataType]:
        """The types so far, and those of columns that had no value so far."""
        untold = [name for name, kind in self._types.items() if pa.types.is_null(kind) and name in header.names]
        if not untold or not header.has_rows:
            return self._types
        return self._types | self._found(header, untold)

    def _found(self, header: _Header, names: Sequence[str]) -> dict[str, pa.DataType]:
        types, changes = _types(header, self._form, self._asked, names, self._admission)
        self._changes |= changes
        return types

    def _look(self, header: _Header, one: Input) -> dict[str, pa.DataType]:
        known = [*header.names, *one.keys]
        for name in (*(self._columns or ()), *self._asked):
            if name not in known:
                raise ColumnNotFound.among(one.path, name, known)
        wanted = header.names if self._columns is None else [name for name in self._columns if name in header.names]
        return self._found(header, wanted or header.names[:1])


def _header(one: Input, form: _Format) -> _Header:
    path = one.path
    try:
        with decompressed(one) as packed, io.TextIOWrapper(packed, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=form.delimiter)
            names = form.names or next((row for row in rows if row), [])
            has_rows = any(line.strip() for line in file)
    except BadFile:
        raise
    except (*_UNREADABLE, csv.Error) as cause:
        raise _unreadable(path, cause) from cause
    if not names or (form.names and not has_rows):
        raise BadFile(path, "the file is empty", expected="a header row, or rows and names=", remedy="write it again")
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SchemaMismatch(
            path, "columns share a name", got=twice, expected="unique names", remedy="another header row"
        )
    return _Header(one, names, has_rows)


def _types(
    header: _Header, form: _Format, asked: Mapping[str, str], columns: Sequence[str], admission: Admission
) -> tuple[dict[str, pa.DataType], dict[str, str]]:
    """The type each column is parsed as, as asked or as its values in the first block look; and what that changes."""
    inferred: dict[str, pa.DataType] = dict.fromkeys(header.names, pa.null())
    changes = {"": _NO_NAME} if "" in columns else {}
    if header.has_rows:
        # What is asked for is looked at as text, but for times: whether they have an offset shows in the values.
        known = {name: arrow_type(dtype) for name, dtype in asked.items() if dtype != "timestamp"}
        with _opened(header, form, known, columns) as (reader, watched):
            inferred = {item.name: item.type for item in reader.schema}
            batch = reader.read_next_batch()
        doubtful = [name for name in columns if name not in asked and _is_doubtful(batch[name], watched)]
        zoned = [name for name in columns if getattr(inferred[name], "tz", None) is not None]
        texts = {name: batch[name] for name in columns if name not in asked and pa.types.is_string(inferred[name])}
        if again := [*doubtful, *zoned]:
            with _opened(header, form, dict.fromkeys(again, pa.large_string()), again) as (reader, _):
                batch = reader.read_next_batch()
            texts |= {name: batch[name] for name in zoned}
            inferred |= {name: _number(batch[name], inferred[name], name, header, admission) for name in doubtful}
        found = {name: offsets_of(values) for name, values in texts.items()}
        changes |= {name: change for name, change in found.items() if change}
    return {name: _parsed_as(inferred[name], asked.get(name)) for name in columns}, changes


def _is_doubtful(values: pa.Array, watched: _Watched) -> bool:
    """Whether numbers may be written otherwise than pyarrow infers."""
    if pa.types.is_integer(values.type):
        return watched.hexadecimal
    if not pa.types.is_floating(values.type):
        return False
    beyond = pc.any(pc.greater(pc.abs(values), 2.0**53)).as_py()
    return bool(beyond and pc.all(pc.equal(pc.floor(values), values)).as_py())


def _number(texts: pa.Array, inferred: pa.DataType, name: str, header: _Header, admission: Admission) -> pa.DataType:
    """The type of a column of numbers: pyarrow infers 0x10 as an integer, and large or signed integers as floats."""
    if pa.types.is_integer(inferred):
        return pa.large_string() if _any(texts, _HEXADECIMAL) else inferred
    present = texts.drop_null()
    if not pc.all(pc.match_substring_regex(present, r"^\s*[-+]?[0-9]+\s*$")).as_py():
        return inferred
    integers = [int(text) for text in pc.unique(present).to_pylist()]
    low, high = min(integers), max(integers)
    if low >= 0 and 2**63 <= high < 2**64 and not _any(present, r"\+"):
        return pa.uint64()
    admission.adapt(header.path, f"column {name!r} has integers that no type of 64 bits holds, read as string")
    return pa.large_string()


def _any(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _parsed_as(inferred: pa.DataType, asked: str | None) -> pa.DataType:
    if asked is not None and asked != "timestamp":
        return arrow_type(asked)
    if pa.types.is_timestamp(inferred):
        return pa.timestamp("ns" if inferred.unit == "ns" else "us", inferred.tz)
    if asked == "timestamp" or pa.types.is_date(inferred):
        return pa.timestamp("us")
    dtype = dtype_of(inferred)
    return inferred if dtype is not None and dtype in DTYPES and dtype != "string" else arrow_type("string")


def _differences(first: _Header, other: _Header, columns: Sequence[str], *, whole: bool) -> Iterator[SchemaMismatch]:
    missing = [name for name in columns if name not in other.names]
    added = [name for name in other.names if name not in first.names] if whole else []
    for name in (*missing, *added):
        yield SchemaMismatch(
            other.path,
            f"column {name!r} is {'not there' if name in missing else 'not in ' + first.path}",
            got=other.names,
            expected=f"the columns of {first.path}",
            remedy="columns=[...] with what the files share, on_mismatch='cast' or 'skip'",
        )


def _batches(header: _Header, form: _Format, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    if not header.has_rows:
        return
    # A float32 is parsed as float64, which shows what is beyond it.
    wide = {name: pa.float64() if pa.types.is_float32(kind) else kind for name, kind in types.items()}
    integers = [name for name, kind in types.items() if pa.types.is_integer(kind)]
    with _opened(header, form, wide, list(types), integers) as (reader, _):
        yield from reader


def _refuse_hexadecimal(header: _Header, form: _Format, integers: Sequence[str]) -> None:
    """Raise for the first hexadecimal number among integers, which pyarrow would read."""
    first_row = 1 if form.names else 2
    with _opened(header, form, dict.fromkeys(integers, pa.large_string()), integers) as (reader, _):
        for batch in reader:
            for name in integers:
                found = pc.match_substring_regex(batch[name], _HEXADECIMAL)
                row = pc.index(found, pa.scalar(True)).as_py()
                if row >= 0:
                    raise SchemaMismatch(
                        header.path,
                        f"row {first_row + row}, column {name!r}: a hexadecimal number",
                        got=batch[name][row].as_py(),
                        expected="decimal digits, as in the rows before",
                        remedy=f"dtypes={{{name!r}: 'string'}}",
                    )
            first_row += batch.num_rows


@contextmanager
def _opened(
    header: _Header,
    form: _Format,
    types: Mapping[str, pa.DataType],
    columns: Sequence[str],
    integers: Sequence[str] = (),
) -> Iterator[tuple[arrow_csv.CSVStreamingReader, _Watched]]:
    refused: list[Any] = []

    def refuse(row: Any) -> str:
        refused.append(row)
        return "error"

    try:
        with (
            decompressed(header.one) as file,
            arrow_csv.open_csv(
                watched := _Watched(file),
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
            yield reader, watched
            if integers and watched.hexadecimal:
                _refuse_hexadecimal(header, form, integers)
    except BadFile:
        raise
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


class _Watched(io.RawIOBase):
    """A file that is read in order, and whether its bytes so far hold `0x`."""

    def __init__(self, file: Any) -> None:
        self.hexadecimal = False
        self._file, self._end = file, b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        some: bytes = self._file.read(size)
        if not self.hexadecimal and (b"x" in some or b"X" in some):  # ten times faster than to look for both letters
            self.hexadecimal = re.search(b"0[xX]", self._end + some) is not None
        self._end = some[-1:]
        return some


def _wider(seen: str) -> str:
    """A type that the refused value fits."""
    whole = re.search(r"'(-?[0-9]+)'", seen)
    if whole is not None:
        return "uint64" if 0 <= int(whole[1]) < 2**64 else "string"
    return "float64" if re.search(r"'[-+0-9.eE]+'", seen) else "string"


_HEXADECIMAL = "^\\s*0[xX]"
_UNFIT = re.compile(r"In CSV column #(\d+): Row #(\d+): CSV conversion error to (.+?): (.*)", re.DOTALL)


def _unreadable(path: str, cause: Exception) -> BadFile:
    return BadFile(
        path,
        f"cannot be read as CSV ({cause})",
        expected="text in UTF-8",
        remedy="write it as UTF-8, or the right path",
    )
