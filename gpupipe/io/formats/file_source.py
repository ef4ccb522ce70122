"""File source: the files of one table, their schema, the policy for bad ones, and their rows in partitions."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from gpupipe.backend import Backend, Frame, select
from gpupipe.backend.arrow import Reading, conform, dtype_from_arrow, get_arrow_types, plain_table, read_as, read_index
from gpupipe.backend.cast import cast_column
from gpupipe.cluster.executor import Executor
from gpupipe.errors import BadData, BadFile, ColumnNotFound, SchemaMismatch
from gpupipe.io.planning.partitions import Partition, ReadCounter, RowRange, row_bytes
from gpupipe.io.planning.row_filters import Bounds, exactly
from gpupipe.io.planning.table import Source
from gpupipe.io.stores import FileNote, Input, is_remote, one_line
from gpupipe.schema import FLOATS, INTEGERS, LISTS, Field, Kind, Schema, get_element_dtype, is_passenger, to_list_dtype
from gpupipe.support.origins import Origins, name_memory, read_origins
from gpupipe.support.text import format_count
from gpupipe.support.validation import as_list, check_choice

Files = TypeVar("Files", bound="TableFile")
Readings: TypeAlias = Mapping[str, tuple[object, Reading]]  # columns by name: their type, and what it is read as
_CHECKED_AT_ONCE = 16
_FRAMES = 64  # that are put together at a time
_UTC = "timestamp[us, tz=UTC]"
_PADDED = Reading("int64", change="leading zeros in the folder's name are no part of the number")
_log = logging.getLogger("gpupipe")


@dataclass(frozen=True)
class TableFile:
    """Base class of files whose rows are read in groups: row groups, stripes, record batches."""

    origin: Input  # the file that was named
    schema: pa.Schema = field(repr=False)
    group_rows: tuple[int, ...]
    num_bytes: int = 0
    num_heads: int = 0  # the rows before those of the table, such as a header
    unit: ClassVar[str] = "group"  # what its groups are called

    @property
    def stored(self) -> Input:
        """The file that is read: the original, or its copy."""
        return self.origin

    def is_read_with(self, other: TableFile, fields: Sequence[Field]) -> bool:
        """Return whether cuDF can read this file and another in one call: both local, with equal schemas."""
        return False

    def holds(self, name: str) -> bool:
        """Return whether a column is in the file itself."""
        return bool(self.schema.get_field_index(name) >= 0)

    def dtype(self, name: str) -> str | None:
        """Return the dtype that a column of the file is read as; None where nothing here carries its type."""
        return dtype_from_arrow(self.schema.field(name).type)

    def table(self, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
        """Read all rows of these groups, these columns at least, in the file's types."""
        raise NotImplementedError

    def read(self, groups: Sequence[int], fields: Sequence[Field], backend: Backend) -> Frame:
        """Read all rows of these groups as a coded frame of these columns, which are among its own."""
        table = self.table(groups, [item.name for item in fields])
        return backend.from_arrow(host_table(table, fields), fields)

    def bounds(self, group: int, name: str) -> Bounds | None:
        return None

    def null_count(self, name: str) -> int | None:
        """Return the nulls of a column in all rows; None where the number is unavailable, as of nested columns."""
        return None

    def text_bytes(self, group: int, names: Sequence[str]) -> int:
        """Return an upper bound, or an estimate, of the bytes of these columns' dictionaries."""
        return self.stored_bytes(group, names)

    def stored_bytes(self, group: int, names: Sequence[str]) -> int:
        """Return the bytes of these columns in the file; here an equal part of the file's size for each group."""
        cells = max(1, sum(self.group_rows) * len(self.schema))
        return self.num_bytes * self.group_rows[group] * len(names) // cells

    def change(self) -> str | None:
        """Describe how the file has changed since it was opened; None where it has not, or cannot."""
        return self.origin.change()

    def types(self) -> dict[str, pa.DataType]:
        """Return the types of the columns by name, those of its folders' keys too; raise for a name that repeats."""
        require_unique(self.schema.names, self.origin.path, "write the file again")
        types = dict(zip(self.schema.names, self.schema.types, strict=True))
        return types | {name: value.type for name, value in self.origin.keys.items() if name not in types}

    def describe(self, groups: Sequence[int]) -> str:
        """Describe groups in words: `group 2`, `groups 0-2`, `groups 0, 2`."""
        if len(groups) == 1:
            return f"{self.unit} {groups[0]}"
        if list(groups) == list(range(groups[0], groups[-1] + 1)):
            return f"{self.unit}s {groups[0]}-{groups[-1]}"
        return f"{self.unit}s {', '.join(map(str, groups))}"


def require_unique(names: Sequence[str], where: str, remedy: str) -> None:
    """Raise SchemaMismatch for names that repeat."""
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise SchemaMismatch(where, "columns share a name", got=twice, expected="unique names", remedy=remedy)


def narrowest(schema: pa.Schema) -> str:
    """Return the column that is fetched where only rows are counted."""
    widths = {item.name: item.type.bit_width if pa.types.is_primitive(item.type) else math.inf for item in schema}
    return str(min(widths, key=widths.__getitem__))


def host_table(table: pa.Table, fields: Sequence[Field], *, exact: bool = True) -> pa.Table:
    """Cast a table's columns to the dtypes of the fields; a NaN that becomes another dtype is missing.

    A column without a value fits any type. A float64 is rounded to float32 only where the cast need not be `exact`.
    A value that does not fit is BadData with its `row`; SchemaMismatch where nothing connects the two types.
    """
    return pa.table({item.name: _cast(table.column(item.name), item, exact=exact) for item in fields})


def _cast(column: pa.ChunkedArray, item: Field, *, exact: bool) -> pa.Array:
    dtype = dtype_from_arrow(column.type)
    if column.null_count == len(column):
        return conform(pa.nulls(len(column)), item)
    if dtype is None or dtype == item.dtype:
        return conform(column, item)
    cpu = select("cpu")
    frame = cpu.from_arrow(pa.table({item.name: column}), [replace(item, dtype=dtype)])
    written_as = read_as(column.type).written_as
    values = cpu.column(frame, item.name)
    result = cast_column(values, item.dtype, item.name, cpu, exact=exact, written_as=written_as)
    return conform(cpu.to_arrow(cpu.assign(frame, {item.name: result})).column(item.name), item)


def write_conversion_notes(file: str, columns: Readings) -> list[FileNote]:
    """List a logged note for each column that is converted, given its type and the dtype it is read as."""
    notes = []
    for name, (kind, reading) in columns.items():
        if reading.change:
            action = "left out" if reading.dtype is None else "converted"
            note = FileNote(file, action, f"{kind}: {reading.change}", name)
            _log.log(logging.WARNING if reading.dtype is None or reading.is_lossy else logging.INFO, "%s", note)
            notes.append(note)
    return notes


class BadFilePolicy:
    """Bad file policy: the caller's choice for files that differ (`on_mismatch`) or cannot be read, and its outcome."""

    def __init__(self, on_mismatch: str = "raise", on_bad: str = "raise") -> None:
        check_choice("read", ("raise", "cast", "skip", "quarantine"), on_mismatch=on_mismatch)
        check_choice("read", ("raise", "skip", "quarantine"), on_bad=on_bad)
        self.casts = on_mismatch == "cast"
        self.notes: list[FileNote] = []
        self.left_out: dict[str, str] = {}
        self._conversions: dict[tuple[str, str], FileNote] = {}
        self._on_mismatch, self._on_bad = on_mismatch, on_bad

    def refuse(self, name: str, error: BadFile | SchemaMismatch) -> None:
        """Skip a file and record why, or raise the error if that is the choice."""
        choice = self._on_bad if isinstance(error, BadFile) else self._on_mismatch
        if choice in ("raise", "cast"):
            raise error
        reason = str(error).partition("\n")[0].removeprefix(f"{error.where}: ").removesuffix(".")
        self.notes.append(FileNote(name, "quarantined" if choice == "quarantine" else "skipped", reason))

    def adapt(self, name: str, difference: str) -> None:
        """Write down that a file is brought to the first one's columns."""
        self.notes.append(FileNote(name, "cast", difference))

    def convert(self, name: str, columns: Readings) -> None:
        """Write down which columns of a file do not come out as they went in, given their types; each once."""
        new = {column: pair for column, pair in columns.items() if (column, str(pair[0])) not in self._conversions}
        for note in write_conversion_notes(name, new):
            column = note.column or ""
            kind, reading = columns[column]
            self._conversions[column, str(kind)] = note
            if reading.dtype is None:
                self.left_out[column] = str(kind)

    def leave_out(self, name: str, columns: Mapping[str, object], reason: str) -> None:
        """Write down which columns of a file, by their types, no step can read, and why; each once."""
        extra = Reading(None, change=reason)
        self.convert(name, {column: (kind, extra) for column, kind in columns.items() if column not in self.left_out})

    def close(self, num_files: int) -> tuple[FileNote, ...]:
        """Return the notes, logged; no more may follow. Raise BadFile where no file is left."""
        if self.notes and not num_files:
            first = self.notes[0]
            problem = f"none of {len(self.notes)} files can be used; this one: {first.reason}"
            remedy = "on_bad='raise' and on_mismatch='raise', which show what is wrong"
            raise BadFile(first.file, problem, expected="one at least", remedy=remedy)
        if self.notes:
            examples = "; ".join(map(str, self.notes[:3])) + ("; ..." if len(self.notes) > 3 else "")
            many = len({note.file for note in self.notes})
            summary = "1 file is not read as it is" if many == 1 else f"{many:,} files are not read as they are"
            _log.warning("%s: %s", summary, examples)
        return *self.notes, *self._conversions.values()


def open_all(
    inputs: Sequence[Input],
    opener: Callable[[Input], Any],
    policy: BadFilePolicy,
    *,
    finish: Callable[[Any], Any] = lambda opened: opened,
    at_once: int = _CHECKED_AT_ONCE,
) -> dict[int, Any]:
    """Open every file, by its position; `policy` says what is done about those that cannot be used.

    `opener` raises BadFile or SchemaMismatch for a file that cannot be used, and is called in threads, with one in
    order. `finish` makes the result of what it gave, in the calling thread: what a library allocates in many short
    threads stays with the process long after it is freed.
    """

    def attempt(input_file: Input) -> Any:
        try:
            return opener(input_file.stamped())
        except (BadFile, SchemaMismatch, UnicodeDecodeError) as error:
            return error

    opened: dict[int, Any] = {}
    results: Any = Executor(min(at_once, len(inputs))).map(attempt, inputs)
    with closing(results):
        for number, result in enumerate(results):
            path = inputs[number].path
            try:
                if isinstance(result, BadFile | SchemaMismatch | UnicodeDecodeError):
                    raise result
                opened[number] = finish(result)
            except UnicodeDecodeError as cause:
                problem, expected = f"damaged: a column's name is no text ({cause})", "names in UTF-8"
                error = BadFile(path, problem, expected=expected, remedy="copy or write the file again")
                policy.refuse(path, error)
            except (BadFile, SchemaMismatch) as error:
                policy.refuse(path, error)
    return opened


def agree_on_schema(
    files: Mapping[int, Files], columns: Sequence[str] | None, policy: BadFilePolicy
) -> tuple[dict[str, Reading], dict[int, Files]]:
    """Return the dtypes the columns are read as, and the usable files; report differences to `policy`.

    `columns` are those that the files have to share, all of the first file's by default. A column of Arrow's type null
    has no value at all, and is one of any type: that of the first file with a value. Where files are cast, integers and
    floats are of the widest type of their kind in any file: none is rounded.
    """
    usable_files: dict[int, Files] = {}
    agreement = None
    twice: set[str] = set()
    same: set[object] = set()
    for number, file in files.items():
        try:
            agreement = agreement or _Agreement(file, columns, policy, files.values())
            if _identify_schema(file) not in same:
                agreement.check(file)
        except SchemaMismatch as error:
            policy.refuse(file.origin.path, error)
            continue
        usable_files[number] = file
        if not policy.casts:
            same.add(_identify_schema(file))
        for name in map(unquote, re.findall(r"/([^/=]+)=-?0[0-9]", file.origin.path)):
            key = None if name in file.schema.names else file.origin.keys.get(name)
            if key is not None and pa.types.is_integer(key.type):
                policy.convert(file.origin.path, {name: (key.type, _PADDED)})
        for name in sorted({*file.origin.keys}.intersection(file.schema.names).difference(twice)):
            twice.add(name)
            message = f"column {name!r} is in the file and in its folder's name; the files' own is read"
            policy.adapt(file.origin.path, message)
    return agreement.list_readings(usable_files.values()) if agreement else {}, usable_files


def _identify_schema(file: TableFile) -> object:
    """Return what most files have in common with the first: one schema object, and folders of the same keys."""
    return id(file.schema), tuple(file.origin.keys)


class _Agreement:
    """Columns' types by name, and the file each was first found in."""

    def __init__(
        self, first: TableFile, columns: Sequence[str] | None, policy: BadFilePolicy, files: Iterable[TableFile]
    ) -> None:
        types = first.types()
        for name in columns or ():
            if name not in types:
                if name in read_index(first.schema):
                    raise _refuse_index(first.origin.path, name, "a column")
                raise ColumnNotFound.among(first.origin.path, name, types)
        self._policy, self._columns, self._first = policy, columns, first.origin.path
        self._widest = _find_widest(files) if policy.casts else {}
        dtypes = {name: self._widest.get(name) or dtype_from_arrow(kind) for name, kind in types.items()}
        self._dtypes = {name: dtype for name, dtype in dtypes.items() if dtype and (columns is None or name in columns)}
        self._known_from = {name: self._first for name in self._dtypes if not pa.types.is_null(types[name])}
        self._are_zoned = {name: _is_zoned(types[name]) for name in self._known_from}

    def check(self, file: TableFile) -> None:
        """Raise unless a file has these columns, or is cast; learn the types of those that had no value before."""
        types = file.types()
        index = {name: pair for name, pair in read_index(file.schema).items() if name not in types}
        index = {name: pair for name, pair in index.items() if self._columns is None or name in self._columns}
        dtypes = {name: dtype_from_arrow(kind) for name, kind in types.items()}
        valued = {name for name, kind in types.items() if not pa.types.is_null(kind)}
        learned = [name for name in valued & self._dtypes.keys() - self._known_from.keys() if dtypes[name]]
        schema = self._dtypes | {name: self._widest.get(name, str(dtypes[name])) for name in learned}
        differing = [name for name in schema if name not in types or (name in valued and dtypes[name] != schema[name])]
        zone_flags = {name: _is_zoned(types[name]) for name in valued & schema.keys()}
        mixed_names = [name for name, is_zoned in zone_flags.items() if is_zoned != self._are_zoned.get(name, is_zoned)]
        differing += [name for name in mixed_names if name not in differing]
        extra = [name for name, dtype in dtypes.items() if name not in schema and dtype is not None]
        differing += [name for name in extra if name in file.origin.keys and self._columns is None]  # other folders
        lost = [name for name in differing if name in types and not _is_castable(dtypes[name], schema.get(name))]
        type_names = {name: (name not in mixed_names and dtypes[name]) or str(kind) for name, kind in types.items()}
        if differing and (lost or not self._policy.casts):
            name = (lost or differing)[0]
            dtype = schema.get(name, "no such column")
            if name in mixed_names:
                dtype = f"times with{'' if self._are_zoned[name] else 'out'} a time zone"
            expected = f"{dtype}, as in {self._known_from.get(name, self._first)}"
            if name in index:
                raise _refuse_index(file.origin.path, name, expected)
            problem = f"column {name!r} is {type_names.get(name, 'not there')}"
            remedy = "columns=[...] with what all files share, on_mismatch="
            remedy += "'skip', or it written anew" if self._policy.casts else "'cast' or 'skip', or it written anew"
            raise SchemaMismatch(file.origin.path, problem, expected=expected, remedy=remedy)
        if differing:
            changes = []
            for name in differing:
                what = f"{type_names.get(name)}, read as {schema[name]}" if name in schema else "new and left out"
                changes.append(f"column {name!r} is {what if name in types else 'not there and missing throughout'}")
            self._policy.adapt(file.origin.path, "; ".join(changes))
        self._policy.convert(file.origin.path, index)
        if self._columns is None:
            reason = f"the first file, {self._first}, does not have it"
            self._policy.leave_out(file.origin.path, {name: types[name] for name in extra}, reason)
        self._dtypes = schema
        self._known_from |= dict.fromkeys(learned, file.origin.path)
        self._are_zoned = zone_flags | self._are_zoned

    def list_readings(self, files: Iterable[TableFile]) -> dict[str, Reading]:
        """Return what the columns of the usable files are read as; add a note on each converted column."""
        ways_by_name: dict[str, set[str]] = {name: set() for name in self._dtypes}
        unknown: dict[str, tuple[str, tuple[object, Reading]]] = {}
        for file in {_identify_schema(file): file for file in files}.values():
            path = file.origin.path
            read = {name: (kind, read_as(kind)) for name, kind in file.types().items()}
            read = {name: pair for name, pair in read.items() if self._columns is None or name in self._columns}
            valued = {name: pair for name, pair in read.items() if not pa.types.is_null(pair[0])}
            self._policy.convert(path, valued)
            for name in valued.keys() & ways_by_name.keys():
                ways_by_name[name].add(valued[name][1].written_as)
            unknown |= {name: (path, pair) for name, pair in read.items() if name not in valued}
        for name, (path, pair) in unknown.items():
            if name in ways_by_name and not ways_by_name[name]:
                self._policy.convert(path, {name: pair})
        readings = {}
        for name, dtype in self._dtypes.items():
            ways = (ways_by_name[name] if dtype == "timestamp" else None) or {""}
            written_as = next(iter(ways)) if len(ways) == 1 else _UTC if all("tz=" in way for way in ways) else ""
            readings[name] = Reading(dtype, written_as)
            if len(ways) > 1:
                kinds = " and ".join(sorted(way or "timestamp[us]" for way in ways))
                change = f"as the files differ, read as {written_as or 'timestamp[us]'}, the same times in UTC"
                self._policy.convert(next(iter(files)).origin.path, {name: (kinds, Reading(dtype, written_as, change))})
        return readings


def _refuse_index(path: str, name: str, expected: str) -> SchemaMismatch:
    """Build the error for a column that pandas keeps as its index, not among the file's columns."""
    problem = f"column {name!r} is not there: the file keeps it as pandas' RangeIndex, in its metadata alone"
    return SchemaMismatch(path, problem, expected=expected, remedy="data.reset_index() in pandas before it is written")


def _is_zoned(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _is_castable(dtype: str | None, other: str | None) -> bool:
    """Return whether a column of this dtype may be cast to another, or left out; lists can only be lists."""
    if dtype is None or other is None:
        return other is None
    return (dtype in LISTS) == (other in LISTS) and is_passenger(dtype) == is_passenger(other)


def _find_widest(files: Iterable[TableFile]) -> dict[str, str]:
    """Return, by column, the type that holds all values of its files' types of the first one's kind."""
    widest: dict[str, str] = {}
    for file in {id(file.schema): file for file in files}.values():
        for item in file.schema:
            dtype = None if pa.types.is_null(item.type) else dtype_from_arrow(item.type)
            if dtype is not None:
                widest[item.name] = _wider(widest.get(item.name, dtype), dtype)
    return widest


def _wider(dtype: str, other: str) -> str:
    element, other_element = get_element_dtype(dtype), get_element_dtype(other)
    if element is not None and other_element is not None:
        return to_list_dtype(_wider(element, other_element))
    kind = next((kind for kind in (INTEGERS, FLOATS) if dtype in kind and other in kind), None)
    wider = str(np.promote_types(dtype, other)) if kind else dtype
    return wider if wider in (kind or ()) else dtype


Pieces: TypeAlias = Sequence[tuple[TableFile, Sequence[RowRange]]]  # spans of rows by the file they are in


def _read_frame(file: TableFile, spans: Sequence[RowRange], fields: Sequence[Field], backend: Backend) -> Frame:
    """Read the spans' rows with these columns as a frame, decoded as the file and the backend do best."""
    groups, file_fields = [span.group for span in spans], [item for item in fields if file.holds(item.name)]
    num_rows = sum(file.group_rows[group] for group in groups)
    if file_fields:
        with _name_file_in_errors(file, groups):
            frame = file.read(groups, file_fields, backend)
        _check_unchanged(file, groups, len(frame))
    else:
        frame = backend.frame({}, num_rows)
    frame = take_spans(frame, file.group_rows, spans, backend)
    if len(file_fields) == len(fields):
        return frame
    added = [item for item in fields if not file.holds(item.name)]
    constants = backend.from_arrow(_repeat_keys(file, groups, added, len(frame)), added)
    frame = backend.assign(frame, {item.name: backend.column(constants, item.name) for item in added})
    return backend.select(frame, [item.name for item in fields])


def _read_frame_of_files(files: Pieces, fields: Sequence[Field], backend: Backend) -> Frame | None:
    """Read whole row groups of Parquet files of one schema in one call; None where there are others, or damage."""
    paths, row_groups = list[str](), list[list[int]]()
    for file, spans in files:
        holds_all = all(file.holds(item.name) for item in fields)
        is_whole = all(span.num_rows == file.group_rows[span.group] for span in spans)
        if not (holds_all and is_whole and file.is_read_with(files[0][0], fields)):
            return None
        paths.append(file.stored.path)
        row_groups.append([span.group for span in spans])
    try:
        frame = backend.read_parquet(paths, row_groups, fields)
    except OSError:  # one by one they tell which of them it is
        return None
    for (file, _), groups in zip(files, row_groups, strict=True):
        _check_unchanged(file, groups)
    return frame if len(frame) == sum(span.num_rows for _, spans in files for span in spans) else None


def _read_tables(files: Pieces, fields: Sequence[Field]) -> pa.Table:
    """Read the spans' rows to the host, as Arrow columns in the types that `backend.arrow.conform` gives."""
    if not files:
        return get_arrow_types(fields).empty_table()
    return pa.concat_tables(_read_table(*file, fields) for file in files)


def _read_table(file: TableFile, spans: Sequence[RowRange], fields: Sequence[Field]) -> pa.Table:
    groups, file_fields = [span.group for span in spans], [item for item in fields if file.holds(item.name)]
    columns: dict[str, pa.ChunkedArray] = {}
    if file_fields:
        with _name_file_in_errors(file, groups):
            table = host_table(file.table(groups, [item.name for item in file_fields]), file_fields)
        _check_unchanged(file, groups, table.num_rows)
        pieces = locate_spans(file.group_rows, spans)
        table = pa.concat_tables(table.slice(start, length) for start, length in pieces)
        columns = dict(zip(table.column_names, table.columns, strict=True))
    added = [item for item in fields if not file.holds(item.name)]
    constants = _repeat_keys(file, groups, added, sum(span.num_rows for span in spans))
    columns |= dict(zip(constants.column_names, constants.columns, strict=True))
    return pa.table({item.name: columns[item.name] for item in fields})


def locate_spans(group_rows: Sequence[int], spans: Sequence[RowRange]) -> list[tuple[int, int]]:
    """List the first row and number of rows of each span within the whole groups; merge spans that touch."""
    pieces: list[tuple[int, int]] = []
    first_rows, before = [0, *accumulate(group_rows)], 0
    for span in spans:
        start = before + span.first_row - first_rows[span.group]
        if pieces and sum(pieces[-1]) == start:
            pieces[-1] = pieces[-1][0], pieces[-1][1] + span.num_rows
        else:
            pieces.append((start, span.num_rows))
        before += group_rows[span.group]
    return pieces


def take_spans(frame: Frame, group_rows: Sequence[int], spans: Sequence[RowRange], backend: Backend) -> Frame:
    """Take the spans' rows of a frame that holds all rows of their groups."""
    pieces = locate_spans(group_rows, spans)
    if pieces == [(0, len(frame))]:
        return frame
    rows = backend.xp.concatenate([backend.xp.arange(start, start + length) for start, length in pieces])
    return backend.concat([backend.take(frame, rows)])


def _repeat_keys(file: TableFile, groups: Sequence[int], fields: Sequence[Field], num_rows: int) -> pa.Table:
    """Build columns of one value each: a folder's key, or missing throughout."""
    if not fields:
        return pa.table({})
    zeros, keys = pa.repeat(pa.scalar(0, pa.int32()), num_rows), file.origin.keys
    columns = {item.name: pa.nulls(num_rows) for item in fields}
    for name in columns.keys() & keys.keys():
        columns[name] = pa.DictionaryArray.from_arrays(zeros, pa.array([keys[name]]))
    with _name_file_in_errors(file, groups):
        return host_table(pa.table(columns), fields)


def _check_unchanged(file: TableFile, groups: Sequence[int], num_rows: int | None = None) -> None:
    """Raise for a file that has changed, or had other than its number of rows when it was read."""
    where, expected = file.describe(groups), sum(file.group_rows[group] for group in groups)
    if num_rows not in (None, expected):
        problem, remedy = f"{where} hold other rows than before", "make the dataset again; the file was replaced"
        expected_rows = format_count(expected, "row")
        raise BadFile(file.origin.path, problem, got=num_rows, expected=expected_rows, remedy=remedy)
    if change := file.change():
        problem, remedy = f"{where} may be of two versions of the file: {change}", "make the dataset again"
        raise BadFile(file.origin.path, problem, expected="files that stay as they are", remedy=remedy)


@contextmanager
def _name_file_in_errors(file: TableFile, groups: Sequence[int]) -> Iterator[None]:
    """Name the file in whatever fails inside."""
    path = file.origin.path
    try:
        yield
    except (OSError, pa.ArrowException) as cause:
        if isinstance(cause, BadFile) and not is_remote(path):  # a reader's own words
            raise
        problem = f"{file.describe(groups)} cannot be read ({file.change() or one_line(cause)})"
        remedy = "write the file again; it is damaged, or was replaced after the dataset was made"
        raise BadFile(path, problem, expected="the rows its footer tells of", remedy=remedy) from cause
    except BadData as cause:
        ends = [0, *accumulate(file.group_rows)]
        rows = chain.from_iterable(range(ends[group], ends[group + 1]) for group in groups)
        row = next(islice(rows, cause.row or 0, None))
        problem = f"row {file.num_heads + row + 1}, {cause.where.removeprefix('Cast of ')}: a value does not fit"
        remedy = "on_mismatch='skip'; a file of the other type named first, if that holds all; or it written anew"
        raise SchemaMismatch(path, problem, got=cause.got, expected=cause.expected, remedy=remedy) from cause
    except SchemaMismatch as cause:
        problem = f"{cause.where}: {cause.problem}"
        raise SchemaMismatch(path, problem, expected=cause.expected, remedy="on_mismatch='skip'") from cause


class FileSource(Source):
    """Source of the rows of files that have the same columns, by their position among those that were found.

    `columns` are those the files have to share, all of the first file's by default; `limit` is for the decoded bytes of
    a partition, whose least is one group of a file. `policy` handles files that differ, and holds notes on those that
    could not be opened; `spool` is kept alive as long as the source: the temporary folder of the files.
    """

    made_by: str | None = ""
    partitions: Sequence[Partition] = ()

    def __init__(
        self,
        files: Mapping[int, TableFile],
        *,
        columns: str | Sequence[str] | None = None,
        limit: int,
        policy: BadFilePolicy | None = None,
        spool: Any = None,
    ) -> None:
        policy = policy or BadFilePolicy()
        readings, self.files = agree_on_schema(files, None if columns is None else as_list(columns), policy)
        self.left_out: Mapping[str, str] = policy.left_out
        self.notes: Sequence[FileNote] = policy.close(len(self.files))
        self.listings = frozenset(file.origin.listing for file in self.files.values() if file.origin.listing)
        self.reads = ReadCounter()
        self._spool, self._limit = spool, limit
        units = _find_units(self.files.values())
        schema = Schema(
            Field(
                name,
                str(reading.dtype),
                nullable=reading.dtype in FLOATS or any(_count_nulls(file, name) != 0 for file in self.files.values()),
                units=units.get(name, ""),
                written_as=reading.written_as,
            ).as_source()
            for name, reading in readings.items()
        )
        schema = schema.with_origins(_name_table(self.files.values()), _find_origins(self.files.values()))
        self.schema = schema.with_order(
            {key for file in self.files.values() for key in file.origin.keys if key in schema}
        )
        self.cut()

    def read(self, partition: Partition, fields: Sequence[Field], backend: Backend) -> Frame:
        files = self._count(partition, fields)
        if not fields:
            return backend.frame({}, partition.num_rows)
        if len(files) == 1:
            return _read_frame(*files[0], fields, backend)
        if not files or backend.name == "cpu":  # a frame for each of thousands of small files would take far more room
            return backend.from_arrow(_read_tables(files, fields), fields)
        whole = _read_frame_of_files(files, fields, backend)
        if whole is not None:
            return whole
        frames = (_read_frame(*file, fields, backend) for file in files)
        return backend.concat([backend.concat(batch) for batch in iter(lambda: list(islice(frames, _FRAMES)), [])])

    def table(self, partition: Partition, fields: Sequence[Field]) -> pa.Table:
        files = self._count(partition, fields)
        # Row groups have dictionaries of their own, which nobody needs as one here.
        return plain_table(_read_tables([(file, [span]) for file, spans in files for span in spans], fields))

    def only(self, partitions: Sequence[Partition]) -> Self:
        part = self._with({span.file for partition in partitions for span in partition.spans})
        part.partitions = list(partitions)
        return part

    def inputs(self) -> dict[str, str] | None:
        stamps = {file.origin.path: file.origin.stamp for file in self.files.values()}
        inputs = {name: stamp for name, stamp in stamps.items() if stamp is not None}
        return inputs if len(inputs) == len(stamps) else None

    def of_files(self, names: AbstractSet[str]) -> Self:
        part = self._with({number for number, file in self.files.items() if file.origin.path in names})
        part.cut()
        return part

    def files_of(self, partition: Partition) -> list[str]:
        return list(dict.fromkeys(self.files[span.file].origin.path for span in partition.spans))

    def _count(self, partition: Partition, fields: Sequence[Field]) -> list[tuple[TableFile, list[RowRange]]]:
        """Count and return the partition's files and their spans, just before they are read."""
        if self._spool is not None:
            self._spool.check()
        names = [item.name for item in fields]
        self.reads.add(partition.spans, names, self.stored_bytes(partition, names))
        return [(self.files[number], spans) for number, spans in group_by_file(partition.spans)]

    def _with(self, numbers: AbstractSet[int]) -> Self:
        part = copy(self)
        part.files = {number: file for number, file in self.files.items() if number in numbers}
        return part

    def bounds(self, span: RowRange, name: str) -> Bounds | None:
        """Return the bounds from the folder's name or the file's statistics; see `Source.bounds`."""
        file = self.files[span.file]
        if file.holds(name):
            return file.bounds(span.group, name) if file.dtype(name) == self.schema[name].dtype else None
        return exactly(file.origin.keys[name].as_py()) if name in file.origin.keys else None

    def null_count(self, name: str) -> int | None:
        """Sum the files' null counts; None for floats, whose NaN counts as missing too."""
        if self.schema[name].dtype in FLOATS:
            return None
        counts = [_count_nulls(file, name) for file in self.files.values()]
        return None if None in counts else sum(count or 0 for count in counts)

    def cut(self) -> None:
        """Pack groups up to the limit; a file begins a partition unless all of it fits into the open one."""
        width, limit = row_bytes(self.schema), self._limit
        strings = [item.name for item in self.schema if item.dtype in ("string", *LISTS) or item.kind == Kind.PASSENGER]
        packs: list[list[RowRange]] = [[]]
        pack_bytes = [0]
        for number, file in self.files.items():
            rows = zip(accumulate(file.group_rows, initial=0), file.group_rows, strict=False)
            spans = [RowRange(number, group, first, count) for group, (first, count) in enumerate(rows) if count]
            texts = [name for name in strings if file.holds(name)]
            sizes = [span.num_rows * width + file.text_bytes(span.group, texts) for span in spans]
            for position, (span, size) in enumerate(zip(spans, sizes, strict=True)):
                if packs[-1] and pack_bytes[-1] + (size if position else sum(sizes)) > limit:
                    packs.append([])
                    pack_bytes.append(0)
                packs[-1].append(span)
                pack_bytes[-1] += size
        cut = ((tuple(spans), self._describe(spans, size)) for spans, size in zip(packs, pack_bytes, strict=True))
        self.partitions = [Partition(index, *facts) for index, facts in enumerate(cut)]

    def _describe(self, spans: Sequence[RowRange], num_bytes: int) -> str:
        files = [(self.files[number], pieces) for number, pieces in group_by_file(spans)]
        examples = files if len(files) < 4 else [files[0], files[-1]]
        parts = [f"{file.origin.path} {file.describe([span.group for span in pieces])}" for file, pieces in examples]
        text = ", ".join(parts) if len(files) < 4 else f"{parts[0]} ... {parts[1]} ({len(files)} files)"
        if num_bytes <= self._limit:
            return text
        over = f"{num_bytes:,} bytes, over the limit of {self._limit:,}: one {files[0][0].unit} is the least"
        return f"{text} ({over})"

    def stored_bytes(self, partition: Partition, names: Sequence[str]) -> int:
        """Sum the bytes of these columns of a partition in the files."""
        total = 0
        for number, spans in group_by_file(partition.spans):
            columns = [name for name in names if self.files[number].holds(name)]
            total += sum(self.files[number].stored_bytes(span.group, columns) for span in spans)
        return total


def _count_nulls(file: TableFile, name: str) -> int | None:
    if not any(file.group_rows):
        return 0
    if file.holds(name):
        return None if file.dtype(name) in FLOATS else file.null_count(name)
    return 0 if name in file.origin.keys and file.origin.keys[name].is_valid else sum(file.group_rows)


def _find_units(files: Iterable[TableFile]) -> dict[str, str]:
    """Return the units in the files' metadata, of columns for which all files that state any agree."""
    stated: dict[str, set[str]] = {}
    for schema in {id(file.schema): file.schema for file in files}.values():
        for item in schema:
            if item.metadata and b"units" in item.metadata:
                stated.setdefault(item.name, set()).add(item.metadata[b"units"].decode(errors="replace"))
    return {name: next(iter(units)) for name, units in stated.items() if len(units) == 1}


def _find_origins(files: Iterable[TableFile]) -> dict[str, Origins]:
    """Return the origins in the files' metadata, all that any file states; a manifest has those of folders' keys."""
    stated: dict[str, Origins] = {}
    for file in {(id(file.schema), id(file.origin.origins)): file for file in files}.values():
        texts: dict[str, str | bytes] = {**file.origin.origins}
        texts |= {item.name: item.metadata[b"origins"] for item in file.schema if b"origins" in (item.metadata or {})}
        for name, text in texts.items():
            stated[name] = stated.get(name, frozenset()) | read_origins(text)
    return stated


def _name_table(files: Iterable[TableFile]) -> str:
    """Name the table of these files: alike in any process for the same first file; anew for a stream."""
    first = next(iter(files), None)
    if first is None or first.origin.stamp is None:
        return name_memory()
    path = first.origin.path
    return hashlib.sha256((path if is_remote(path) else str(Path(path).resolve())).encode()).hexdigest()[:16]


def group_by_file(spans: Iterable[RowRange]) -> list[tuple[int, list[RowRange]]]:
    """List the spans of each file, by its number."""
    return [(number, list(file_spans)) for number, file_spans in groupby(spans, attrgetter("file"))]
