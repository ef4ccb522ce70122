"""CSV and JSON Lines reader: files are parsed once into temporary Parquet files."""

from __future__ import annotations

import codecs
import logging
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import pyarrow as pa

from gpupipe.backend.arrow import Reading, arrow_type, dtype_from_arrow, map_schema
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import BadConfig, ColumnNotFound, SchemaMismatch
from gpupipe.io.dataset import Dataset, Names
from gpupipe.io.formats.file_source import BadFilePolicy, FileSource, open_all
from gpupipe.io.formats.parquet import ParquetFile, open_footer
from gpupipe.io.formats.spill import TempParquet
from gpupipe.io.planning.partitions import partition_limit
from gpupipe.io.relational.csv import NULL_VALUES, CsvFile, CsvForm
from gpupipe.io.relational.ndjson import JsonFile
from gpupipe.io.relational.text_file import BLOCK_BYTES, Column, TextFile, open_text
from gpupipe.io.relational.time_formats import DIRECTIVE, TimeFormats, explain_format
from gpupipe.io.stores import Input, PathLike, Paths, StorageOptions, find_files
from gpupipe.progress import Progress
from gpupipe.schema import DTYPES, LISTS, shorten_list
from gpupipe.support.calls import answer_calls
from gpupipe.support.forks import require_threads
from gpupipe.support.validation import as_list, check_dtypes, check_instance, check_integer, check_name, check_names

_PACKED = ("", ".gz", ".bz2", ".xz", ".zst", ".zip")
CSV_SUFFIXES = [f".csv{packed}" for packed in _PACKED]
JSON_SUFFIXES = [f"{name}{packed}" for name in (".jsonl", ".ndjson", ".json") for packed in _PACKED]
_log = logging.getLogger("gpupipe")
_EMPTY = Reading(None, change="objects without keys, whose type the first rows do not settle")
_ALIGNED = r"gp.from_frame(pandas.read_csv(path, sep=r'\s+'))"
_NO_VALUE = "without any value, read as another file shows, else as float64"
_NO_NAME = "without a name, as pandas writes row names; its name is ''"


@answer_calls
def read_csv(
    path: PathLike | Sequence[PathLike],
    *,
    columns: str | Sequence[str] | None = None,
    dtypes: Mapping[str, str] | None = None,
    names: str | Sequence[str] | None = None,
    sep: str = ",",
    encoding: str = "utf-8",
    skip_rows: int = 0,
    comment: str | None = None,
    decimal: str = ".",
    thousands: str | None = None,
    null_values: str | Sequence[str] | Mapping[str, str | Sequence[str]] = NULL_VALUES,
    timestamp_formats: str | Sequence[str] | Mapping[str, str | Sequence[str]] = (),
    on_mismatch: str = "raise",
    on_bad: str = "raise",
    storage_options: StorageOptions | None = None,
    partition_bytes: int | None = None,
    backend: str = "auto",
) -> Dataset:
    r"""Open CSV files as one table.

    The files are parsed here, once, by Polars (on a GPU by cuDF, through Polars' plan; not yet run on one), into
    temporary Parquet files that are removed with the dataset; every later pass reads those. Types that are not given
    are inferred on the host, from the first 8 MiB of the first file, of a column that is empty there from where its
    values begin, and hold for all: a later value that does not fit is an error, never a changed type. Rows and quotes
    are as pandas reads them: blank lines are no rows, and quotes protect delimiters, line breaks and, doubled, quotes.
    For more about the arguments see `read_parquet`.

    Args:
        path: a folder stands for all `*.csv` below it; packed ones (`.gz`, `.bz2`, `.xz`, `.zst`, `.zip` of one file).
        columns: the columns to have; all by default.
        dtypes: types by column, from `gpupipe.schema.DTYPES`; for `"timestamp"` see `timestamp_formats`.
        names: the columns' names, where the files have no header row, or `skip_rows` leaves it out.
        sep: what separates values.
        encoding: one that Python knows; any but UTF-8 is converted into a temporary file first.
        skip_rows: lines to leave out at the beginning of each file.
        comment: what a line that is left out begins with.
        decimal: the decimal point of numbers.
        thousands: the separator that is removed behind digits of numbers, before the decimal point.
        null_values: texts that mean a missing value, as the empty one does, in columns of any type, quoted or not; they
            stand in place of `NA` and its kin. Or, by column, `{"day": "unknown"}`: beside these, in that column alone.
        timestamp_formats: `strptime` formats that text in any column may have, beside ISO 8601; a text that two of them
            read as different times is an error. Or, by column, `{"day": "%d/%m/%Y"}`: such a column has times in these
            formats alone, in digits too, as `"%Y%m%d"`. Times with an offset become UTC, which `Dataset.conversions`
            notes.
        on_mismatch: for a file that lacks a column of the first, or has a value that does not fit its column; with
            `"cast"` a later file's column of another type is cast exactly (3.0 to int64 3), or is an error when it is
            read. Columns that the first file does not have are left out and noted.
        on_bad: for a file that cannot be read, in any row.
        storage_options: for the file system of a URL.
        partition_bytes: decoded bytes of a partition.
        backend: whose frames the dataset returns.

    Raises:
        BadFile: a file is missing, empty or in another encoding; or a row, which is named, has too few or too many
            values.
        PlanFailed, OutOfDeviceMemory: the engine or the device failed; nothing is wrong with the file.
        SchemaMismatch: a value does not fit its column's type, or files differ in their columns.
        ColumnNotFound, BadConfig: an argument names no column or no type.

    Memory: what Polars' streaming engine takes, some hundred MiB; the whole table on disk, in Parquet. Text that is
        packed, in a store, or not in UTF-8 is on disk too while it is parsed.

    Example:
        >>> import tempfile, pathlib, gpupipe as gp
        >>> file = pathlib.Path(tempfile.mkdtemp(), "flights.csv")
        >>> _ = file.write_text("origin,delay\nJFK,4.5\nLGA,NA\n")
        >>> gp.read_csv(file).compute()["delay"].tolist()
        [4.5, nan]
    """
    check_names("read_csv", None, columns=columns)
    dtypes = _check_dtypes("read_csv", dtypes, DTYPES)
    form = _make_form(
        dtypes,
        names=names,
        sep=sep,
        encoding=encoding,
        skip_rows=skip_rows,
        comment=comment,
        decimal=decimal,
        thousands=thousands,
        null_values=null_values,
        timestamp_formats=timestamp_formats,
    )
    policy, limit = BadFilePolicy(on_mismatch, on_bad), partition_limit(partition_bytes, backend)
    _check_form(form, get_executor().resolve(backend))
    parser = _CsvParser(form, dtypes, columns, policy, limit, backend)
    return parser.read(path, CSV_SUFFIXES, storage_options)


@answer_calls
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
    r"""Open JSON Lines files, an object per line, as one table.

    Files are parsed as by `read_csv`. Columns and types that are not given are those of the first 8 MiB of the first
    file, and of a key that is null there those of its first values: a key that is not there in some line is a missing
    value, a later value that does not fit or a later key that is new is an error. Objects in objects, and lists of any
    kind, are columns that are carried. For more about the arguments see `read_parquet`.

    Args:
        path: a folder stands for all `*.jsonl`, `*.ndjson` and `*.json` below it; and packed ones, as `read_csv`.
        columns: the columns to have; all by default. With them, other keys may be new.
        dtypes: types by column, from `gpupipe.schema.DTYPES` and `LISTS`; `"timestamp"` for text in ISO 8601, times
            with an offset become UTC, which `Dataset.conversions` notes. Also for keys that the first lines lack.
        on_mismatch: with `"cast"` new keys are left out in the first file too, as they are in later ones, and a column
            of another type is cast, as by `read_csv`.
        on_bad: for a file that cannot be read, in any line.
        storage_options: for the file system of a URL.
        partition_bytes: decoded bytes of a partition.
        backend: whose frames the dataset returns.

    Raises:
        BadFile: a file is missing, empty or not UTF-8, or a line is no JSON object; names file and row.
        SchemaMismatch: a value does not fit its column's type, or a key is new in the first file; names file and row.
        PlanFailed, OutOfDeviceMemory, ColumnNotFound, BadConfig: as `read_csv`.

    Memory: as `read_csv`.

    Example:
        >>> import tempfile, pathlib, gpupipe as gp
        >>> file = pathlib.Path(tempfile.mkdtemp(), "flights.jsonl")
        >>> _ = file.write_text('{"origin": "JFK", "delay": 4.5}\n{"origin": "LGA"}\n')
        >>> gp.read_json(file).compute()["delay"].tolist()
        [4.5, nan]
    """
    check_names("read_json", None, columns=columns)
    dtypes = _check_dtypes("read_json", dtypes, (*DTYPES, *LISTS))
    policy, limit = BadFilePolicy(on_mismatch, on_bad), partition_limit(partition_bytes, backend)
    return _JsonParser(dtypes, columns, policy, limit, backend).read(path, JSON_SUFFIXES, storage_options)


def read_text(
    kind: str, path: PathLike, texts: Collection[str], dialect: Mapping[str, Any], *, on_mismatch: str, on_bad: str
) -> Dataset:
    """Read files as `read_csv` or `read_json` does by default, but those of `texts` that are there as text.

    These are columns that were text in a fit: of zip codes without a leading zero, and of dates, another type is seen.
    `dialect` are arguments of `read_csv`.
    """
    policy, limit = BadFilePolicy(on_mismatch, on_bad), partition_limit(None, "auto")
    if kind == "csv":
        parameters, names = signature(read_csv).parameters, signature(_make_form).parameters.keys() - {"dtypes"}
        form = _make_form({}, **{name: dialect.get(name, parameters[name].default) for name in names})
        _check_form(form, get_executor().resolve("auto"))
        return _CsvParser(form, {}, None, policy, limit, "auto", texts).read(path, CSV_SUFFIXES, None)
    return _JsonParser({}, None, policy, limit, "auto", texts).read(path, JSON_SUFFIXES, None)


def _make_form(
    dtypes: dict[str, str],
    *,
    names: str | Sequence[str] | None,
    sep: str,
    encoding: str,
    skip_rows: int,
    comment: str | None,
    decimal: str,
    thousands: str | None,
    null_values: str | Sequence[str] | Mapping[str, str | Sequence[str]],
    timestamp_formats: str | Sequence[str] | Mapping[str, str | Sequence[str]],
) -> CsvForm:
    """Make the form that arguments of `read_csv` describe; columns with formats of their own are times in `dtypes`."""
    check_names("read_csv", None, names=names)
    by_column = timestamp_formats if isinstance(timestamp_formats, Mapping) else {}
    for_all = () if isinstance(timestamp_formats, Mapping) else timestamp_formats
    column_nulls = null_values if isinstance(null_values, Mapping) else {}
    null_values = NULL_VALUES if isinstance(null_values, Mapping) else null_values
    check_names("read_csv", null_values=null_values, timestamp_formats=for_all)
    for column, texts in column_nulls.items():
        check_name("read_csv", null_values=column)
        check_names("read_csv", null_values=texts)
    for column, formats in by_column.items():
        check_name("read_csv", timestamp_formats=column)
        check_names("read_csv", empty=False, timestamp_formats=formats)
    check_name("read_csv", sep=sep, encoding=encoding, decimal=decimal)
    check_name("read_csv", None, comment=comment, thousands=thousands)
    check_integer("read_csv", "[0, inf)", skip_rows=skip_rows)
    if other := [column for column in by_column if dtypes.setdefault(column, "timestamp") != "timestamp"]:
        got, remedy = dtypes[other[0]], f"dtypes={{{other[0]!r}: 'timestamp'}}, or no formats of it"
        problem = f"column {other[0]!r} has formats of times"
        raise BadConfig("read_csv", problem, got=got, expected="a timestamp", remedy=remedy)
    try:
        codec = codecs.lookup(encoding).name
    except LookupError as cause:
        expected, remedy = "one that Python knows", "encoding='latin-1'"
        raise BadConfig("read_csv", "no such encoding", got=encoding, expected=expected, remedy=remedy) from cause
    return CsvForm(
        delimiter=sep,
        names=None if names is None else as_list(names),
        null_values=list(dict.fromkeys(["", *as_list(null_values)])),
        column_nulls={name: as_list(texts) for name, texts in column_nulls.items()},
        timestamp_formats=TimeFormats(tuple(as_list(for_all))),
        column_formats={name: TimeFormats(tuple(as_list(each)), with_iso=False) for name, each in by_column.items()},
        encoding="utf-8" if codec in ("utf-8", "utf-8-sig", "ascii") else codec,
        comment=comment,
        skip_rows=skip_rows,
        decimal=decimal,
        thousands=thousands,
    )


def _check_dtypes(owner: str, dtypes: Mapping[str, str] | None, allowed: Sequence[str]) -> dict[str, str]:
    check_instance(owner, Mapping, "types by the names of columns", None, dtypes=dtypes)
    types = dict(dtypes or {})
    check_dtypes(owner, allowed, types)
    return types


def _check_form(form: CsvForm, backend: str) -> None:
    def refuse(problem: str, got: object, expected: str, remedy: str) -> BadConfig:
        return BadConfig("read_csv", problem, got=got, expected=expected, remedy=remedy)

    marks = {"sep": form.delimiter, "decimal": form.decimal, "thousands": form.thousands}
    for name, mark in marks.items():
        if mark is not None and (len(mark) != 1 or len(mark.encode()) != 1 or mark in '"\r\n'):
            expected = "one ASCII character, no quotation mark and no line break"
            remedy = _ALIGNED if name == "sep" and mark == r"\s+" else f"{name}=','"
            raise refuse(f"{name} is no single character", mark, expected, remedy)
    if form.decimal == form.thousands:
        remedy = "decimal=',', thousands='.'"
        raise refuse("decimal and thousands are the same", form.decimal, "two characters", remedy)
    if form.comment == "":
        raise refuse("comment is empty", "", "what comments begin with", "'#'")
    pattern, library = ("%[YmdHIMSfyjpz%]", "cuDF") if backend == "gpu" else (DIRECTIVE, "Polars")
    options = (form.timestamp_formats, *form.column_formats.values())
    formats = [text for option in options for text in option.own_formats]
    if unknown := [text for text in formats if "%" in re.sub(pattern, "", text)]:
        expected, remedy = "%Y %m %d %H %I %M %S %f %y %j %p %z", "the column as text by dtypes="
        if backend == "gpu":
            remedy = f"backend='cpu', or {remedy}"
        else:
            expected += " %b %B %a %A %e %k %l %.f %T %R %F %D and the others of strftime, but %Z"
        raise refuse(f"timestamp_formats has a directive that {library} does not know", unknown[0], expected, remedy)
    for text in formats:
        if problem := explain_format(text):
            expected, remedy = "a year, and %p beside %I", "timestamp_formats='%d/%m/%Y %H:%M'"
            raise refuse(f"timestamp_formats has {problem}", text, expected, remedy)


class _Parser(ABC):
    """Base class of parsers that convert each file to the columns and types of the first."""

    def __init__(
        self,
        dtypes: Mapping[str, str],
        columns: Names | None,
        policy: BadFilePolicy,
        limit: int,
        backend: str,
        texts: Collection[str] = (),
    ) -> None:
        self._dtypes, self._names, self._texts = dtypes, None if columns is None else as_list(columns), texts
        self._policy, self._limit, self._backend = policy, limit, backend
        self._engine = get_executor().resolve(backend)
        self._spool = TempParquet(limit)
        self._columns: dict[str, Column] = {}

    def read(self, path: Paths, suffixes: Sequence[str], options: StorageOptions | None) -> Dataset:
        """Parse files one after the other, and build a dataset of them; if that fails, remove the temporary files."""
        require_threads("read")
        try:
            inputs = find_files(path, suffixes, options)
            with Progress(title="parse", total=len(inputs), unit=" files", leave=False) as bar:

                def parse(input_file: Input) -> ParquetFile:
                    bar.set_postfix_str(input_file.path.rpartition("/")[2])
                    try:
                        return self._parse(input_file)
                    except SchemaMismatch as error:
                        if error.column is None or len(inputs) == 1:
                            raise
                        raise self._offer_for_many_files(error, error.column) from error
                    finally:
                        bar.update()

                files = open_all(inputs, parse, self._policy, at_once=1)
            source = FileSource(files, columns=self._names, limit=self._limit, policy=self._policy, spool=self._spool)
        except BaseException:
            self._spool.remove()
            raise
        return Dataset(source, source.schema, self._backend)

    def _write_or_cast(
        self, file: TextFile, columns: Mapping[str, Column], input_file: Input, infer: Callable[[str], Column]
    ) -> tuple[ParquetFile, dict[str, Column]]:
        """Write columns as `_write` does; where files are cast, one whose values do not fit in the file's own type.

        The source casts it when it is read, as one of a Parquet file. The types that are returned are the known ones.
        """
        file_columns, errors = dict[str, Column](), dict[str | None, SchemaMismatch]()
        while True:
            try:
                parquet_file, final_columns = self._write(file, {**columns, **file_columns}, input_file)
            except SchemaMismatch as error:
                name = error.column
                if name in errors:  # its own type is that of a value which does not fit, and not that of the others
                    raise errors[name] from None
                if name is None or not self._policy.casts or not self._columns:
                    raise
                kind, column = columns[name].kind, infer(name)
                # A number in text is no time, as one of microseconds in a Parquet file is.
                is_time = pa.types.is_timestamp(kind) != pa.types.is_timestamp(column.kind)
                if is_time or column.adapted or column.kind in (kind, pa.null()):
                    raise
                file_columns[name], errors[name] = column, error
            else:
                return parquet_file, {**final_columns, **{name: columns[name] for name in file_columns}}

    def _offer_for_many_files(self, error: SchemaMismatch, name: str) -> SchemaMismatch:
        """Return the error for a value that does not fit, with what helps where there are other files."""
        remedy = f"{error.remedy}; or on_mismatch='quarantine', which leaves the file out"
        is_whole = re.fullmatch(r"[-+]?[0-9]+\.0*", str(error.got)) and error.expected.startswith(("int", "uint"))
        is_number = isinstance(error.got, int | float) and error.expected.startswith("string")
        if (is_whole or is_number) and self._columns and name not in self._dtypes and not self._policy.casts:
            use = "reads whole numbers" if is_whole else "makes text of numbers"
            remedy = f"on_mismatch='cast', which {use}; or {remedy}"
        return SchemaMismatch(error.where, error.problem, got=error.got, expected=error.expected, remedy=remedy)

    @abstractmethod
    def _parse(self, input_file: Input) -> ParquetFile:
        """Write a file's rows to a temporary file with the known columns, and keep what is known of them now."""

    def _write(
        self, file: TextFile, columns: Mapping[str, Column], input_file: Input
    ) -> tuple[ParquetFile, dict[str, Column]]:
        """Write columns of a file to a temporary file, and record how their values were converted."""
        target = self._spool.folder / f"{uuid.uuid4().hex}.parquet"
        try:
            fields = map_schema(pa.schema([(name, column.kind) for name, column in columns.items()]))[0]
            final_columns = file.write(columns, target, self._spool.group_rows(fields))
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        read = map_schema(pa.schema([(name, column.kind) for name, column in final_columns.items()]))[1]
        for name, column in final_columns.items():
            kind, reading = read[name]
            change = _NO_VALUE if pa.types.is_null(column.kind) else reading.change
            changes = filter(None, [change, column.change, _NO_NAME if name == "" else ""])
            read[name] = kind, replace(reading, change=", ".join(changes))
            if column.adapted:
                self._policy.adapt(input_file.path, f"column {name!r} {column.adapted}")
        self._policy.convert(input_file.path, read)
        parquet_file = open_footer(input_file, self._spool.keep(target))
        # Times have the zone that the text has: cuDF writes every time as UTC. Columns without a value fit what another
        # file shows of their type.
        kinds = {name: column.kind for name, column in final_columns.items()}
        schema = [item.with_type(_as_parsed(item.type, kinds[item.name])) for item in parquet_file.schema]
        return replace(parquet_file, schema=pa.schema(schema)), final_columns


def _as_parsed(file_type: pa.DataType, parsed_type: pa.DataType) -> pa.DataType:
    """Return the type of a column of a temporary file, given the type in its footer and the one that was parsed."""
    if pa.types.is_timestamp(parsed_type):
        return pa.timestamp(file_type.unit, parsed_type.tz)
    return parsed_type if pa.types.is_null(parsed_type) else file_type


class _CsvParser(_Parser):
    """CSV parser: a file lists its columns in its header."""

    _first: tuple[str, list[str]] | None = None

    def __init__(self, form: CsvForm, *options: Any) -> None:
        super().__init__(*options)
        self._form = form

    def _parse(self, input_file: Input) -> ParquetFile:
        form, folder = self._form, self._spool.folder
        with open_text(input_file, folder, "CSV", form.encoding, form.skip_rows) as text:
            file = CsvFile(input_file.path, text, form, folder, self._engine)
            first = self._first or (input_file.path, file.names)
            columns = self._columns or self._infer(file, input_file)
            missing = [name for name in columns if name not in file.names]
            added = [name for name in file.names if name not in first[1]] if self._names is None else []
            # What is not there shows in the file that is written, where files are cast.
            if missing and (not self._policy.casts or not set(columns) & set(file.names)):
                problem, expected = f"column {missing[0]!r} is not there", f"the columns of {first[0]}"
                remedy = "columns=[...] with what the files share, on_mismatch='cast' or 'skip'"
                if not set(columns) & set(file.names):
                    remedy = "a pattern or a list of the files of one table, or on_mismatch='skip'"
                raise SchemaMismatch(input_file.path, problem, got=list(file.names), expected=expected, remedy=remedy)
            self._policy.leave_out(
                input_file.path, dict.fromkeys(added, "text"), f"the first file, {first[0]}, does not have it"
            )
            shared_columns = {name: columns[name] for name in columns if name in file.names}

            def infer(name: str) -> Column:
                if pa.types.is_integer(columns[name].kind) and name not in self._dtypes:
                    file.refuse_padded(name)
                return file.infer(self._dtypes, [name])[name]

            parquet_file, final_columns = self._write_or_cast(file, shared_columns, input_file, infer)
            parquet_file = replace(parquet_file, num_heads=0 if form.names else 1)
        if not self._columns:
            self._log_formats(final_columns, input_file.path)
            if sep := file.find_other_separator():
                name = file.names[0]
                _log.warning("%s: one column, %r; sep=%r would make several of it", input_file.path, name, sep)
        self._first, self._columns = first, columns | final_columns
        return parquet_file

    def _infer(self, file: CsvFile, input_file: Input) -> dict[str, Column]:
        all_names = [*file.names, *input_file.keys]
        for name in (*(self._names or ()), *self._dtypes):
            if name not in all_names:
                raise ColumnNotFound.among(input_file.path, name, all_names)
        for name in (*self._form.column_formats, *self._form.column_nulls):  # a folder's name is no text of the file
            if name not in file.names:
                raise ColumnNotFound.among(input_file.path, name, file.names)
        names = [name for name in file.names if self._names is None or name in self._names]
        dtypes = dict.fromkeys(set(self._texts).intersection(file.names), "string") | {**self._dtypes}
        return file.infer(dtypes, names or file.names[:1])

    def _log_formats(self, columns: Mapping[str, Column], path: str) -> None:
        """Log which columns the formats do not fit, and which numbers they would fit."""
        own_formats = self._form.timestamp_formats.own_formats
        texts = [name for name, column in columns.items() if pa.types.is_large_string(column.kind)]
        if own_formats and texts and not any(column.formats for column in columns.values()):
            formats = ", ".join(map(repr, own_formats))
            _log.warning("%s: no column has times in timestamp_formats=%s; text are %s", path, formats, texts)
        for name, column in columns.items():
            if column.format and not pa.types.is_timestamp(column.kind):
                remedy = f"timestamp_formats={{{name!r}: {column.format!r}}}"
                _log.warning("%s: column %r has numbers, which %s makes times of", path, name, remedy)


class _JsonParser(_Parser):
    """JSON Lines parser: a row may have keys that no other row has."""

    _first = ""
    _left_out: Mapping[str, pa.DataType] = {}

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self._gaps: set[str] = set()  # the columns without a value in some file

    def _parse(self, input_file: Input) -> ParquetFile:
        with open_text(input_file, self._spool.folder, "JSON") as text:
            file = JsonFile(
                input_file.path, text, self._engine, is_whole=self._names is None, is_first=not self._columns
            )
            columns = self._columns or self._infer(file, input_file)
            first = self._first or input_file.path
            file.left_out = set(self._left_out)
            types = columns
            parquet_file, columns = self._write_or_cast(
                file, types, input_file, lambda name: file.infer(self._dtypes).get(name, types[name])
            )
            for name, row in file.new.items():
                # A column of the table, and no type is known of it.
                if not self._policy.casts and first == input_file.path:
                    problem, expected = f"column {name!r} is new in row {row}", "the columns of the first"
                    remedy = f"dtypes={{{name!r}: ...}}, columns=[...], or on_mismatch='cast', which leaves it out"
                    expected = f"{expected} {BLOCK_BYTES >> 20} MiB"
                    raise SchemaMismatch(input_file.path, problem, got=name, expected=expected, remedy=remedy)
            self._policy.leave_out(
                input_file.path, dict.fromkeys(file.new, "key"), f"the first rows of {first} do not have it"
            )
            self._note_gaps(parquet_file, file.new, input_file.path)
        self._first, self._columns = first, columns
        return parquet_file

    def _note_gaps(self, parquet_file: ParquetFile, new_keys: Collection[str], path: str) -> None:
        """Note the columns without a value in a file, each once: its lines may have them under another key."""
        num_rows = sum(parquet_file.group_rows)
        names = [name for name, column in self._columns.items() if not pa.types.is_null(column.kind)]
        for name in names if num_rows else ():
            if name not in self._gaps and parquet_file.null_count(name) == num_rows:
                self._gaps.add(name)
                keys = f"; new keys are {shorten_list(new_keys)}" if new_keys else ""
                self._policy.adapt(path, f"no line has a value of {name!r}, which is missing throughout{keys}")

    def _infer(self, file: JsonFile, input_file: Input) -> dict[str, Column]:
        columns = file.infer(self._dtypes)
        for name in columns.keys() & set(self._texts):
            kind = columns[name].kind
            if pa.types.is_timestamp(kind) or pa.types.is_null(kind):  # a number is no text here, where quotes tell
                columns[name] = Column(arrow_type("string"))
        self._left_out = {
            name: column.kind for name, column in columns.items() if dtype_from_arrow(column.kind) is None
        }
        self._policy.convert(input_file.path, {name: (kind, _EMPTY) for name, kind in self._left_out.items()})
        columns = {name: column for name, column in columns.items() if name not in self._left_out}
        for name in self._names or ():
            if name in self._left_out:
                problem, got = f"column {name!r}: {_EMPTY.change}", str(self._left_out[name])
                expected, remedy = "objects with keys in the first rows", "columns= without it"
                raise SchemaMismatch(input_file.path, problem, got=got, expected=expected, remedy=remedy)
            if name not in columns and name not in input_file.keys:
                raise ColumnNotFound.among(input_file.path, name, [*columns, *input_file.keys])
        names = [name for name in columns if self._names is None or name in self._names] or [*columns][:1]
        return {name: columns[name] for name in names}
