"""CSV files and JSON lines, parsed once into temporary Parquet files."""

from __future__ import annotations

import codecs
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from gpupipe.backend.arrow_types import Reading, dtype_of, workable
from gpupipe.cluster import active
from gpupipe.errors import BadConfig, ColumnNotFound, SchemaMismatch
from gpupipe.io.dataset import Dataset
from gpupipe.io.formats.bad_files import Admission, open_all
from gpupipe.io.formats.file_source import FileSource
from gpupipe.io.formats.parquet import ParquetFile, open_footer
from gpupipe.io.formats.temp_parquet import Spool
from gpupipe.io.planning.partitions import partition_limit
from gpupipe.io.relational.csv import NULL_VALUES, CsvFile, CsvForm, open_csv
from gpupipe.io.relational.ndjson import JsonFile, open_json
from gpupipe.io.relational.text_values import BLOCK_BYTES, Column
from gpupipe.io.stores.find_files import Input, PathLike, StorageOptions, find_files
from gpupipe.schema import DTYPES, LISTS
from gpupipe.support.text import as_list
from gpupipe.support.validation import (
    check_dtypes,
    check_instance,
    check_integer,
    check_name,
    check_names,
)

__all__ = ["read_csv", "read_json"]

_JSON_SUFFIXES = [f"{name}{packed}" for name in (".jsonl", ".ndjson", ".json") for packed in ("", ".gz", ".zst")]
_EMPTY = Reading(None, change="objects without keys, whose type the first rows do not settle")
_NO_VALUE = "without any value, read as another file shows, else as float64"
_NO_NAME = "without a name, as pandas writes row names; its name is ''"


def read_csv(
    path: PathLike | Sequence[PathLike],
    *,
    columns: str | Sequence[str] | None = None,
    dtypes: Mapping[str, str] | None = None,
    names: str | Sequence[str] | None = None,
    delimiter: str = ",",
    encoding: str = "utf-8",
    skip_rows: int = 0,
    comment: str | None = None,
    decimal: str = ".",
    thousands: str | None = None,
    null_values: str | Sequence[str] = NULL_VALUES,
    timestamp_formats: str | Sequence[str] = (),
    on_mismatch: str = "raise",
    on_bad: str = "raise",
    storage_options: StorageOptions | None = None,
    partition_bytes: int | None = None,
    backend: str = "auto",
) -> Dataset:
    r"""Open CSV files as one table.

    The files are parsed here, once, by Polars (on a GPU by cuDF, through Polars' plan; not yet run on one), into
    temporary Parquet files that are removed with the dataset; every later pass reads those. Types that are not given
    are inferred on the host, from the first 8 MiB of the first file, and hold for all: a later value that does not fit
    is an error, never a changed type. Rows and quotes are as pandas reads them: blank lines are no rows, and quotes
    protect delimiters, line breaks and, doubled, quotes.

    Args:
        path: a file, a list of files, a pattern, a folder (all `*.csv` below it), or a URL that fsspec knows; packed
            ones too (`.gz`, `.zst`). Folders named `key=value` give columns.
        columns: the columns to have; all by default.
        dtypes: types by column, from `gpupipe.schema.DTYPES`; for `"timestamp"` see `timestamp_formats`.
        names: the columns' names, where the files have no header row, or `skip_rows` leaves it out.
        delimiter: what separates values.
        encoding: one that Python knows; any but UTF-8 is converted into a temporary file first.
        skip_rows: lines to leave out at the beginning of each file.
        comment: what a line that is left out begins with.
        decimal: the decimal point of numbers.
        thousands: what stands between the digits of numbers, to be left out.
        null_values: what stands for a missing value, in columns of any type, in quotes too.
        timestamp_formats: `strptime` formats tried in turn; ISO 8601 by default. Times with an offset become UTC,
            which `Dataset.conversions` notes.
        on_mismatch: what is done about a file with other columns than the first, or with a value that does not fit its
            column; see `read_parquet`. With `"cast"` values still have to fit.
        on_bad: what is done about a file that cannot be read, in any row; see `read_parquet`.
        storage_options: for the file system of a URL; see `read_parquet`.
        partition_bytes: decoded bytes of a partition; 128 MiB on the CPU and 1 GiB on the GPU by default.
        backend: `"auto"`, `"cpu"` or `"gpu"`: whose frames the dataset gives.

    Raises:
        BadFile: a file is missing, empty or in another encoding, or a row has too few or too many values; names file
            and row.
        SchemaMismatch: a value does not fit its column's type, or files differ in their columns.
        ColumnNotFound, BadConfig: an argument names no column or no type.

    Memory: what Polars' streaming engine takes, some hundred MiB; the whole table on disk, in Parquet. Text that is
        packed, in a store, or not in UTF-8 is on disk too while it is parsed.

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
    check_name("read_csv", delimiter=delimiter, encoding=encoding, decimal=decimal)
    check_name("read_csv", None, comment=comment, thousands=thousands)
    check_integer("read_csv", "[0, inf)", skip_rows=skip_rows)
    check_instance("read_csv", Mapping, "types by the names of columns", None, dtypes=dtypes)
    asked = dict(dtypes or {})
    check_dtypes("read_csv", DTYPES, asked)
    form = CsvForm(
        delimiter,
        None if names is None else as_list(names),
        as_list(null_values),
        as_list(timestamp_formats),
        _codec(encoding),
        comment,
        skip_rows,
        decimal,
        thousands,
    )
    admission, limit = Admission(on_mismatch, on_bad), partition_limit(partition_bytes, backend)
    engine = active().resolve(backend)
    _check_form(form, engine)
    chosen, spool = None if columns is None else as_list(columns), Spool(limit)
    opener = partial(open_csv, form=form, folder=spool.folder, backend=engine)
    parser = _CsvParser(opener, asked, chosen, spool, admission)
    files = open_all(find_files(path, [".csv", ".csv.gz", ".csv.zst"], storage_options), parser, admission, at_once=1)
    source = FileSource(files, columns=chosen, limit=limit, admission=admission, spool=spool)
    return Dataset(source, source.schema, backend)


def read_json(
    path: PathLike | Sequence[PathLike],
    *,
    columns: str | Sequence[str] | None = None,
    dtypes: Mapping[str, str] | None = None,
    on_mismatch: str = "raise",
    on_bad: str = "raise",
    storage_options: StorageOptions | None = None,
    partition_bytes: int | None = None,
    backend: str = "auto",
) -> Dataset:
    r"""Open files with a JSON object per line as one table.

    The files are parsed here, once, by Polars (on a GPU by cuDF, through Polars' plan; not yet run on one), into
    temporary Parquet files that are removed with the dataset; every later pass reads those. Columns and types that are
    not given are those of the first 8 MiB of the first file: a key that is not there in some line is a missing value, a
    later value that does not fit or a later key that is new is an error. Objects in objects, and lists of any kind, are
    columns that are carried.

    Args:
        path: a file, a list of files, a pattern, a folder (all `*.jsonl`, `*.ndjson` and `*.json` below it), or a URL
            that fsspec knows; packed ones too (`.gz`, `.zst`). Folders named `key=value` give columns.
        columns: the columns to have; all by default. With them, other keys may be new.
        dtypes: types by column, from `gpupipe.schema.DTYPES` and `LISTS`; `"timestamp"` for text in ISO 8601, times
            with an offset become UTC, which `Dataset.conversions` notes. A column that is named here need not be in
            the first lines.
        on_mismatch: what is done about a file with other columns or types than the first; see `read_parquet`. With
            `"cast"` new keys are left out; values still have to fit.
        on_bad: what is done about a file that cannot be read, in any line; see `read_parquet`.
        storage_options: for the file system of a URL; see `read_parquet`.
        partition_bytes: decoded bytes of a partition; 128 MiB on the CPU and 1 GiB on the GPU by default.
        backend: `"auto"`, `"cpu"` or `"gpu"`: whose frames the dataset gives.

    Raises:
        BadFile: a file is missing, empty or not UTF-8, or a line is no JSON object; names file and row.
        SchemaMismatch: a value does not fit its column's type, or a key is new; names file, row and column.
        ColumnNotFound, BadConfig: an argument names no column or no type.

    Memory: what Polars' streaming engine takes, some hundred MiB; the whole table on disk, in Parquet. Text that is
        packed or in a store is on disk too while it is parsed.

    Example:
        >>> import tempfile, pathlib, gpupipe as gp
        >>> file = pathlib.Path(tempfile.mkdtemp(), "flights.jsonl")
        >>> _ = file.write_text('{"origin": "JFK", "delay": 4.5}\n{"origin": "LGA"}\n')
        >>> gp.read_json(file).compute()
          origin  delay
        0    JFK    4.5
        1    LGA    NaN
    """
    check_names("read_json", None, columns=columns)
    check_instance("read_json", Mapping, "types by the names of columns", None, dtypes=dtypes)
    asked = dict(dtypes or {})
    check_dtypes("read_json", (*DTYPES, *LISTS), asked)
    admission, limit = Admission(on_mismatch, on_bad), partition_limit(partition_bytes, backend)
    chosen, spool = None if columns is None else as_list(columns), Spool(limit)
    opener = partial(open_json, folder=spool.folder, backend=active().resolve(backend), is_whole=chosen is None)
    parser = _JsonParser(opener, asked, chosen, spool, admission)
    files = open_all(find_files(path, _JSON_SUFFIXES, storage_options), parser, admission, at_once=1)
    source = FileSource(files, columns=chosen, limit=limit, admission=admission, spool=spool)
    return Dataset(source, source.schema, backend)


def _codec(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
    except LookupError as cause:
        raise BadConfig(
            "read_csv", "no such encoding", got=encoding, expected="one that Python knows", remedy="encoding='latin-1'"
        ) from cause
    return "utf-8" if name in ("utf-8", "utf-8-sig", "ascii") else name


def _check_form(form: CsvForm, backend: str) -> None:
    marks = {"delimiter": form.delimiter, "decimal": form.decimal, "thousands": form.thousands}
    for name, mark in marks.items():
        if mark is not None and (len(mark) != 1 or len(mark.encode()) != 1 or mark in '"\r\n'):
            raise BadConfig(
                "read_csv",
                f"{name} is no single character",
                got=mark,
                expected="one ASCII character, no quotation mark and no line break",
                remedy=f"{name}=','",
            )
    if form.decimal == form.thousands:
        raise BadConfig(
            "read_csv",
            "decimal and thousands are the same",
            got=form.decimal,
            expected="two characters",
            remedy="decimal=',', thousands='.'",
        )
    unknown = [one for one in form.timestamp_formats if re.sub("%[YmdHIMSfyjpz%]", "", one).count("%")]
    if unknown and backend == "gpu":
        raise BadConfig(
            "read_csv",
            "timestamp_formats has a directive that cuDF does not know",
            got=unknown[0],
            expected="%Y %m %d %H %I %M %S %f %y %j %p %z",
            remedy="backend='cpu', or the column as text by dtypes=",
        )
    if "" not in form.null_values and backend == "gpu":
        raise BadConfig(
            "read_csv",
            "null_values leaves out '', which cuDF always takes for a missing value",
            got=list(form.null_values),
            expected="'' among them",
            remedy="backend='cpu', or null_values=['', ...]",
        )
    if form.comment == "":
        raise BadConfig("read_csv", "comment is empty", got="", expected="what comments begin with", remedy="'#'")


File = TypeVar("File")


class _TextFile(Protocol):
    """A file of text that is open."""

    def write(self, columns: Mapping[str, Column], target: Path, group_rows: int) -> dict[str, str]:
        """Write these columns to a Parquet file; gives what becomes of values that the first rows did not show."""


class _Parser(Generic[File]):
    """Brings one file after the other to the columns and types that the first has shown."""

    def __init__(
        self,
        opener: Callable[[Input], AbstractContextManager[File]],
        asked: Mapping[str, str],
        columns: Sequence[str] | None,
        spool: Spool,
        admission: Admission,
    ) -> None:
        self._open, self._asked, self._chosen = opener, asked, columns
        self._spool, self._admission = spool, admission
        self._columns: dict[str, Column] = {}


class _CsvParser(_Parser[CsvFile]):
    """CSV: a file has its columns in its header."""

    _first: tuple[str, list[str]] | None = None

    def __call__(self, one: Input) -> ParquetFile:
        with self._open(one) as file:
            first = self._first or (one.path, file.names)
            columns = self._learned(file) if self._first else self._look(file, one)
            for difference in _differences(first, one.path, file.names, list(columns), whole=self._chosen is None):
                if not self._admission.casts or not set(columns) & set(file.names):
                    raise difference
                if difference.problem.endswith(first[0]):  # what is not there shows in the file that is written
                    self._admission.adapt(one.path, f"{difference.problem} and left out")
            present = {name: column for name, column in columns.items() if name in file.names}
            written = _write(file, present, one, self._spool, self._admission)
        self._first, self._columns = first, columns
        return written

    def _learned(self, file: CsvFile) -> dict[str, Column]:
        """The types so far, and those of columns that had no value so far."""
        unknown = [name for name, column in self._columns.items() if pa.types.is_null(column.kind)]
        unknown = [name for name in unknown if name in file.names]
        return self._columns | (file.infer(self._asked, unknown) if unknown else {})

    def _look(self, file: CsvFile, one: Input) -> dict[str, Column]:
        known = [*file.names, *one.keys]
        for name in (*(self._chosen or ()), *self._asked):
            if name not in known:
                raise ColumnNotFound.among(one.path, name, known)
        wanted = [name for name in file.names if self._chosen is None or name in self._chosen]
        return file.infer(self._asked, wanted or file.names[:1])


class _JsonParser(_Parser[JsonFile]):
    """JSON lines: a row may have keys that no other has."""

    _left_out: Mapping[str, pa.DataType] = {}

    def __call__(self, one: Input) -> ParquetFile:
        with self._open(one) as file:
            columns = self._learned(file) if self._columns else self._look(file, one)
            file.left_out = set(self._left_out)
            written = _write(file, columns, one, self._spool, self._admission)
            for name, row in file.new.items():
                if not self._admission.casts:
                    raise SchemaMismatch(
                        one.path,
                        f"column {name!r} is new in row {row}",
                        got=name,
                        expected=f"the columns of the first {BLOCK_BYTES >> 20} MiB",
                        remedy=f"dtypes={{{name!r}: ...}}, columns=[...], or on_mismatch='cast', which leaves it out",
                    )
                self._admission.adapt(one.path, f"column {name!r} is new and left out")
        self._columns = columns
        return written

    def _learned(self, file: JsonFile) -> dict[str, Column]:
        """The types so far, and those of columns that had no value so far."""
        unknown = [name for name, column in self._columns.items() if pa.types.is_null(column.kind)]
        found = file.infer(self._asked) if unknown else {}
        return self._columns | {name: found[name] for name in unknown if name in found}

    def _look(self, file: JsonFile, one: Input) -> dict[str, Column]:
        found = file.infer(self._asked)
        self._left_out = {name: column.kind for name, column in found.items() if dtype_of(column.kind) is None}
        self._admission.convert(one.path, {name: (kind, _EMPTY) for name, kind in self._left_out.items()})
        found = {name: column for name, column in found.items() if name not in self._left_out}
        for name in self._chosen or ():
            if name in self._left_out:
                raise SchemaMismatch(
                    one.path,
                    f"column {name!r}: {_EMPTY.change}",
                    got=str(self._left_out[name]),
                    expected="objects with keys in the first rows",
                    remedy="columns= without it",
                )
            if name not in found and name not in one.keys:
                raise ColumnNotFound.among(one.path, name, [*found, *one.keys])
        names = [name for name in found if self._chosen is None or name in self._chosen] or [*found][:1]
        return {name: found[name] for name in names}


def _write(
    file: _TextFile, columns: Mapping[str, Column], one: Input, spool: Spool, admission: Admission
) -> ParquetFile:
    """Write columns of a file to a temporary one, and down what becomes of them.

    Raises:
        BadFile, SchemaMismatch: see `_TextFile.write`.
    """
    fields, read = workable(pa.schema([(name, column.kind) for name, column in columns.items()]))
    target = spool.folder / f"{uuid.uuid4().hex}.parquet"
    try:
        later = file.write(columns, target, spool.group_rows(fields))
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    for name, column in columns.items():
        kind, reading = read[name]
        change = _NO_VALUE if pa.types.is_null(column.kind) else reading.change
        changes = [change, column.change or later.get(name, ""), _NO_NAME if name == "" else ""]
        read[name] = kind, replace(reading, change=", ".join(filter(None, changes)))
    admission.convert(one.path, read)
    for name, column in columns.items():
        if column.adapted:
            admission.adapt(one.path, f"column {name!r} {column.adapted}")
    found = open_footer(one, spool.keep(target))
    # Columns without a value fit what another file shows of their type.
    untold = {name for name, column in columns.items() if pa.types.is_null(column.kind)}
    schema = [item.with_type(pa.null()) if item.name in untold else item for item in found.schema]
    return replace(found, schema=pa.schema(schema))


def _differences(
    first: tuple[str, list[str]], path: str, names: Sequence[str], columns: Sequence[str], *, whole: bool
) -> Iterator[SchemaMismatch]:
    missing = [name for name in columns if name not in names]
    added = [name for name in names if name not in first[1]] if whole else []
    for name in (*missing, *added):
        yield SchemaMismatch(
            path,
            f"column {name!r} is {'not there' if name in missing else 'not in ' + first[0]}",
            got=list(names),
            expected=f"the columns of {first[0]}",
            remedy="columns=[...] with what the files share, on_mismatch='cast' or 'skip'",
        )
