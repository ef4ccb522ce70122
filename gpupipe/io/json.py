"""JSON lines, parsed once on the host into temporary Parquet files."""

from __future__ import annotations

import json
import re
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from gpupipe.backend.arrow_types import Reading, arrow_type, dtype_of, workable
from gpupipe.errors import BadFile, ColumnNotFound, SchemaMismatch
from gpupipe.io.admission import Admission, open_all
from gpupipe.io.damage import one_line
from gpupipe.io.dataset import Dataset
from gpupipe.io.files import FileSource
from gpupipe.io.offsets import offsets_of, with_changes
from gpupipe.io.parquet import ParquetFile
from gpupipe.io.paths import Input, PathLike, StorageOptions, decompressed, find_files
from gpupipe.io.source import partition_limit
from gpupipe.io.spool import Spool, without_values
from gpupipe.schema import DTYPES, LISTS, is_passenger
from gpupipe.support.validation import check_dtypes, check_instance, check_names
from gpupipe.words import as_list

__all__ = ["read_json"]

_NESTED = Reading(None, change="nested values, whose type the first rows do not settle")

BLOCK_BYTES = 8 << 20
"""Text that is parsed at a time; types that are not given are inferred from the first block of the first file."""
_SUFFIXES = [f"{name}{packed}" for name in (".jsonl", ".ndjson", ".json") for packed in ("", ".gz", ".zst")]
_MARK = "\ufeff".encode()  # some editors begin a file with it
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}"
_UNREADABLE = (OSError, EOFError, UnicodeDecodeError, zlib.error)


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

    The files are parsed here, once and on the host for both backends, into temporary Parquet files that are removed
    with the dataset; every later pass reads those. Columns and types that are not given are those of the first 8 MiB
    of the first file: a key that is not there in some line is a missing value, a later value that does not fit or a
    later key that is new is an error.

    Args:
        path: a file, a list of files, a pattern, a folder (all `*.jsonl`, `*.ndjson` and `*.json` below it), or a URL
            that fsspec knows; packed ones too (`.gz`, `.zst`). Folders named `key=value` give columns.
        columns: the columns to have; all by default, but for types that are left out.
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

    Memory: a block of text, and a row group of up to 32 MiB; the whole table on disk, in Parquet.

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
    parser = _Parser(asked, chosen, spool, admission)
    files = open_all(find_files(path, _SUFFIXES, storage_options), parser, admission, at_once=1)
    source = FileSource(files, columns=chosen, limit=limit, admission=admission, spool=spool)
    return Dataset(source, source.schema, backend)


class _Parser:
    """Brings one file after the other to the columns and types that the first has shown."""

    def __init__(
        self, asked: Mapping[str, str], columns: Sequence[str] | None, spool: Spool, admission: Admission
    ) -> None:
        self._asked = pa.schema([(name, _parsed_as(arrow_type(dtype))) for name, dtype in asked.items()])
        self._columns, self._spool, self._admission = columns, spool, admission
        self._types: pa.Schema | None = None
        self._changes: dict[str, str] = {}
        self.left_out: dict[str, str] = {}

    def __call__(self, one: Input) -> ParquetFile:
        blocks = _Blocks(one)
        if self._types is None:
            types, left_out = self._look(next(iter(blocks)), one)
        else:
            types, left_out = self._learned(self._types, blocks), self.left_out
        fields, read = workable(types)
        self._admission.convert(one.path, with_changes(read, self._changes))
        # A float32 is parsed as float64, which shows what is beyond it.
        wide = pa.schema([item.with_type(_widened(item.type)) for item in types])
        file = self._spool.write(self._batches(blocks, wide, left_out), list(fields), one)
        self._types, self.left_out = types, left_out
        return without_values(file, {item.name: item.type for item in types})

    def _learned(self, types: pa.Schema, blocks: _Blocks) -> pa.Schema:
        """The types so far, and those of columns that had no value so far."""
        known = [item for item in types if not pa.types.is_null(item.type)]
        if len(known) == len(types):
            return types
        found, changes = next(iter(blocks)).look(pa.schema(known), (), None)
        self._changes |= changes
        learned = {item.name: _parsed_as(item.type) for item in found if not _is_nested(item.type)}
        return pa.schema([(item.name, learned.get(item.name, item.type)) for item in types])

    def _look(self, block: _Block, one: Input) -> tuple[pa.Schema, dict[str, str]]:
        """The types all files are parsed in, and the types of what is left out."""
        times = [item.name for item in self._asked if pa.types.is_timestamp(item.type)]
        found, self._changes = block.look(self._asked, times, self._columns)
        nested = {item.name: item.type for item in found if _is_nested(item.type)}
        self._admission.convert(one.path, {name: (kind, _NESTED) for name, kind in nested.items()})
        left_out = {name: str(kind) for name, kind in nested.items()}
        names = [name for name in found.names if name not in left_out]
        if self._columns is not None:
            for name in self._columns:
                if name in left_out:
                    raise SchemaMismatch(
                        one.path,
                        f"column {name!r}: {_NESTED.change}",
                        got=left_out[name],
                        expected="plain values, or lists of them",
                        remedy="gp.from_frame(polars.read_ndjson(...)), or columns without it",
                    )
                if name not in names and name not in one.keys:
                    raise ColumnNotFound.among(one.path, name, [*names, *one.keys])
            names = [name for name in names if name in self._columns] or names[:1]
        return pa.schema([(name, _parsed_as(found.field(name).type)) for name in names]), left_out

    def _batches(self, blocks: _Blocks, types: pa.Schema, left_out: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        told: set[str] = set()
        for block in blocks:
            table = block.parse(types, "infer" if self._columns is None else "ignore")
            new = [name for name in table.column_names if name not in types.names and name not in left_out]
            if new and not self._admission.casts:
                raise SchemaMismatch(
                    block.path,
                    f"column {new[0]!r} is new in or after row {block.first_row}",
                    got=str(table.schema.field(new[0]).type),
                    expected=f"the columns of the first {BLOCK_BYTES >> 20} MiB",
                    remedy=f"dtypes={{{new[0]!r}: ...}}, columns=[...], or on_mismatch='cast', which leaves it out",
                )
            for name in new:
                if name not in told:
                    self._admission.adapt(block.path, f"column {name!r} is new and left out")
            told.update(new)
            yield from table.select(types.names).to_batches()


def _is_nested(kind: pa.DataType) -> bool:
    dtype = dtype_of(kind)
    return dtype is None or is_passenger(dtype)


def _parsed_as(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_parsed_as(kind.value_type))  # the parser knows no large ones
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return arrow_type("string") if dtype_of(kind) == "string" else kind


def _widened(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_widened(kind.value_type))
    return pa.float64() if pa.types.is_float32(kind) else kind


class _Blocks:
    """A file's lines in blocks that are parsed at a time; one at least has an object."""

    def __init__(self, one: Input) -> None:
        self._one, self._path = one, one.path

    def __iter__(self) -> Iterator[_Block]:
        rows = 0
        for text in self._texts():
            yield _Block(self._path, text, rows + 1)
            rows += text.count(b"\n")
        if rows == 0:
            raise BadFile(self._path, "the file is empty", expected="a JSON object per line", remedy="write it again")

    def _texts(self) -> Iterator[bytes]:
        """Whole lines, each with its end."""
        rest = b""
        try:
            with decompressed(self._one) as file:
                rest = file.read(len(_MARK)).removeprefix(_MARK)
                while read := file.read(BLOCK_BYTES):
                    whole, end, tail = read.rpartition(b"\n")
                    if end and (rest + whole).strip():
                        yield rest + whole + end
                        rest = tail
                    else:
                        rest += read
        except BadFile:
            raise
        except _UNREADABLE as cause:
            raise BadFile(
                self._path,
                f"cannot be read as JSON ({one_line(cause)})",
                expected="text in UTF-8",
                remedy="write it as UTF-8, or the right path",
            ) from cause
        if rest.strip():
            yield rest.rstrip() + b"\n"


class _Block:
    """Some lines of a file.

    Args:
        path: the file.
        text: the lines, each with its end.
        first_row: the first line's number, from 1.
    """

    def __init__(self, path: str, text: bytes, first_row: int) -> None:
        self.path, self.first_row, self._text = path, first_row, text

    def parse(self, types: pa.Schema, others: str) -> pa.Table:
        """The lines as a table with columns of these types; `others` is what is done about other keys."""
        # pyarrow ends the process where the first value is `null`.
        stray = re.search(rb"^[^\S\n]*[^{\s]", self._text, re.MULTILINE)
        if stray is not None:
            raise self._no_object(self._text[: stray.start()].count(b"\n"), "does not begin with {")
        try:
            str(self._text, "utf-8")
            return _parse(self._text, types, others)
        except (UnicodeDecodeError, pa.ArrowException) as cause:
            raise self._explained(cause, types, others) from cause

    def look(
        self, types: pa.Schema, times: Sequence[str], columns: Sequence[str] | None
    ) -> tuple[pa.Schema, dict[str, str]]:
        """These types, and those of other columns by their values; and what becomes of the offsets of times.

        Of `times`, which are among the types, the values show whether they have a zone.
        """
        given = pa.schema([item.with_type(pa.string()) if item.name in times else item for item in types])
        kinds = {item.name: item.type for item in self.parse(given, "infer").schema}
        inferred = [name for name, kind in kinds.items() if name not in types.names and pa.types.is_timestamp(kind)]
        table = self.parse(pa.schema([*given, *((name, pa.string()) for name in inferred)]), "infer").select([*kinds])
        kinds = {item.name: item.type for item in table.schema}
        changes: dict[str, str] = {}
        for name, kind in list(kinds.items()):
            if (name in types.names and name not in times) or (columns is not None and name not in columns):
                continue
            leaf = kind.value_type if pa.types.is_list(kind) else kind
            if pa.types.is_float64(leaf) and re.search(rb"[0-9]{19}", self._text) and self._are_integers(name):
                kinds[name] = pa.list_(pa.uint64()) if leaf is not kind else pa.uint64()
            elif pa.types.is_string(kind):
                change = offsets_of(table.column(name))
                changes |= {name: change} if change else {}
                if name in (*times, *inferred) or _are_times(table.column(name)):
                    kinds[name] = _time_of(table.column(name)) or (pa.timestamp("us") if name in times else kind)
        return pa.schema(list(kinds.items())), changes

    def _are_integers(self, name: str) -> bool:
        """Whether a column's values are written as integers, which pyarrow infers as floats beyond int64."""
        values: dict[int, int] = {}
        for position, line in enumerate(self._text.splitlines()):
            value = json.loads(line).get(name) if line.strip() else None
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, float):
                    return False
                if one is not None and not 0 <= one < 2**64:
                    values.setdefault(position, one)
        for position, one in values.items():
            raise SchemaMismatch(
                self.path,
                f"row {self.first_row + position}, column {name!r}: no type of 64 bits holds all its integers",
                got=one,
                expected="integers from -2**63 to 2**63 - 1, or from 0 to 2**64 - 1",
                remedy=f"the integers in quotation marks, or dtypes={{{name!r}: 'float64'}}, which rounds them",
            )
        return True

    def _explained(self, cause: Exception, types: pa.Schema, others: str) -> BadFile | SchemaMismatch:
        """The first line that fails, found by halving, and why it does."""
        lines = self._text.splitlines(keepends=True)
        ends = range(1, len(lines) + 1)
        position = bisect_left(ends, True, key=lambda end: not _parses(b"".join(lines[:end]), types, others))
        if position == len(lines):
            return self._no_object(0, one_line(cause))
        try:
            values = json.loads(lines[position])
        except ValueError as error:
            return self._no_object(position, str(error))
        for item in types:
            if item.name in values and not _parses(lines[position], pa.schema([item]), "ignore"):
                return self._unfit(position, item.name, values[item.name], str(item.type))
        named = re.search(r"Column\(/(.+?)\) changed from (\w+)", str(cause))
        if named is not None and named[1] in values:
            return self._unfit(position, named[1], values[named[1]], f"{named[2]}, as in the rows before")
        return self._no_object(position, one_line(cause))

    def _unfit(self, position: int, name: str, value: object, expected: str) -> SchemaMismatch:
        return SchemaMismatch(
            self.path,
            f"row {self.first_row + position}, column {name!r} does not fit",
            got=value,
            expected=f"{expected}; types are as asked for or as in the first {BLOCK_BYTES >> 20} MiB",
            remedy=f"dtypes={{{name!r}: ...}}, or the file written again with values of one type",
        )

    def _no_object(self, position: int, problem: str) -> BadFile:
        return BadFile(
            self.path,
            f"row {self.first_row + position} is no JSON object ({problem})",
            got=self._text.split(b"\n")[position][:80],
            expected="an object in braces per line",
            remedy="the file written again, one object per line",
        )


def _are_times(texts: pa.ChunkedArray) -> bool:
    present = texts.drop_null()
    return len(present) > 0 and bool(pc.all(pc.match_substring_regex(present, _TIME)).as_py())


def _time_of(texts: pa.ChunkedArray) -> pa.DataType | None:
    """The type of texts that are all times in ISO 8601, all with an offset or all without; None of others."""
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            texts.cast(kind)
        except pa.ArrowInvalid:
            continue
        return kind
    return None


def _parse(text: bytes, types: pa.Schema, others: str) -> pa.Table:
    """The text as a table; times go through text, as pyarrow's parser of JSON drops their offsets without an error."""
    times = {item.name for item in types if pa.types.is_timestamp(item.type)}
    table = arrow_json.read_json(
        pa.BufferReader(text),
        arrow_json.ReadOptions(use_threads=False, block_size=max(len(text), 1 << 16)),
        arrow_json.ParseOptions(
            explicit_schema=pa.schema([i.with_type(pa.string()) if i.name in times else i for i in types]),
            unexpected_field_behavior=others,
        ),
    )
    return table.cast(pa.schema([types.field(i.name) if i.name in times else i for i in table.schema]))


def _parses(text: bytes, types: pa.Schema, others: str) -> bool:
    try:
        str(text, "utf-8")
        _parse(text, types, others)
    except (UnicodeDecodeError, pa.ArrowException):
        return False
    return True
