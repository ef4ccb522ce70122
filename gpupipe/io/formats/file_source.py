"""File source: the files of one table, their schema, the policy for bad ones, and their rows in partitions."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, groupby, islice
from operator import attrgetter
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from gpupipe.backend import Backend, Frame, select
from gpupipe.backend.arrow import conform, plain_table
from gpupipe.backend.arrow_types import Reading, arrow_type, dtype_from_arrow, read_as
from gpupipe.backend.columns import cast_column
from gpupipe.cluster.executor import Executor
from gpupipe.errors import BadData, BadFile, ColumnNotFound, SchemaMismatch
from gpupipe.io.planning.partitions import (
    Bounds,
    FileNote,
    Partition,
    ReadCounter,
    RowRange,
    Source,
    conversions,
    exactly,
    row_bytes,
)
from gpupipe.io.stores.file_errors import one_line
from gpupipe.io.stores.find_files import Input
from gpupipe.io.stores.remote_file import is_remote
from gpupipe.schema import FLOATS, INTEGERS, LISTS, Field, Kind, Schema, get_element_dtype, is_passenger, to_list_dtype
from gpupipe.support.text import format_count
from gpupipe.support.validation import check_choice


@dataclass(frozen=True)
class TableFile:
    """Base class of files whose rows are read in groups: row groups, stripes, record batches.

    Args:
        origin: the file that was named.
        schema: its columns.
        group_rows: rows of each group.
        num_bytes: the file's size.
    """

    origin: Input
    schema: pa.Schema = field(repr=False)
    group_rows: tuple[int, ...]
    num_bytes: int = 0
    unit: ClassVar[str] = "group"
    """What its groups are called."""

    @property
    def stored(self) -> Input:
        """The file that is read: the original, or its copy."""
        return self.origin

    def is_read_with(self, other: TableFile, fields: Sequence[Field]) -> bool:
        """Return whether cuDF can read this file and another in one call."""
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
        """See `Source.bounds`."""
        return None

    def null_count(self, name: str) -> int | None:
        """Return the nulls of a column in all rows; None where the number is unavailable."""
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


def narrowest(schema: pa.Schema) -> str:
    """Return the column that is fetched where only rows are counted.

    Example:
        >>> narrowest(pa.schema([("text", pa.string()), ("wide", pa.int64()), ("flag", pa.bool_())]))
        'flag'
    """

    def width(item: pa.Field) -> int:
        try:
            return int(item.type.bit_width)
        except ValueError:  # of varying width
            return 1 << 20

    return str(min(schema, key=width).name)


def host_table(table: pa.Table, fields: Sequence[Field], *, exact: bool = True) -> pa.Table:
    """Cast a table's columns to the dtypes of the fields; a NaN that becomes another dtype is missing.

    A column without a value fits any type. A float64 is rounded to float32 only where the cast need not be `exact`.
    A value that does not fit is BadData with its `row`; SchemaMismatch where nothing connects the two types.
    """
    return pa.table({item.name: _cast(table.column(item.name), item, exact=exact) for item in fields})


def _cast(column: pa.ChunkedArray, item: Field, *, exact: bool) -> pa.Array:
    own = dtype_from_arrow(column.type)
    if column.null_count == len(column):
        return conform(pa.nulls(len(column)), item)
    if own is None or own == item.dtype:
        return conform(column, item)
    cpu = select("cpu")
    frame = cpu.from_arrow(pa.table({item.name: column}), [replace(item, dtype=own)])
    made = cast_column(cpu.column(frame, item.name), item.dtype, item.name, cpu, exact=exact)
    return conform(cpu.to_arrow(cpu.assign(frame, {item.name: made})).column(item.name), item)


_CHECKED_AT_ONCE = 16
_FRAMES = 64  # that are put together at a time
_UTC = "timestamp[us, tz=UTC]"
_PADDED = Reading("int64", change="leading zeros in the folder's name are no part of the number")
_log = logging.getLogger("gpupipe")
Files = TypeVar("Files", bound=TableFile)


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

    def convert(self, name: str, columns: Mapping[str, tuple[object, Reading]]) -> None:
        """Write down which columns of a file do not come out as they went in, given their types; each once."""
        new = {column: pair for column, pair in columns.items() if (column, str(pair[0])) not in self._conversions}
        for note in conversions(name, new):
            column = note.column or ""
            kind, reading = columns[column]
            self._conversions[column, str(kind)] = note
            if reading.dtype is None:
                self.left_out[column] = str(kind)

    def close(self, num_files: int) -> tuple[FileNote, ...]:
        """Return the notes, logged; no more may follow. Raise BadFile where no file is left."""
        if self.notes and not num_files:
            raise BadFile(
                self.notes[0].file,
                f"none of {len(self.notes)} files can be used; this one: {self.notes[0].reason}",
                expected="one at least",
                remedy="on_bad='raise' and on_mismatch='raise', which show what is wrong",
            )
        if self.notes:
            shown = "; ".join(map(str, self.notes[:3])) + ("; ..." if len(self.notes) > 3 else "")
            many = len({note.file for note in self.notes})
            told = "1 file is not read as it is" if many == 1 else f"{many:,} files are not read as they are"
            _log.warning("%s: %s", told, shown)
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

    def attempt(one: Input) -> Any:
        try:
            return opener(one.stamped())
        except (BadFile, SchemaMismatch) as error:
            return error

    opened: dict[int, Any] = {}
    results: Any = Executor(min(at_once, len(inputs))).map(attempt, inputs)
    with closing(results):
        for number, found in enumerate(results):
            try:
                if isinstance(found, BadFile | SchemaMismatch):
                    raise found
                opened[number] = finish(found)
            except (BadFile, SchemaMismatch) as error:
                policy.refuse(inputs[number].path, error)
    return opened


def agree_on_schema(
    files: Mapping[int, Files], columns: Sequence[str] | None, policy: BadFilePolicy
) -> tuple[dict[str, Reading], dict[int, Files]]:
    """Return the dtypes the columns are read as, and the usable files; report differences to `policy`.

    `columns` are those that the files have to share, all of the first file's by default. A column of Arrow's type null
    has no value at all, and is one of any type: that of the first file with a value. Where files are cast, integers and
    floats are of the widest type of their kind in any file: none is rounded.
    """
    kept: dict[int, Files] = {}
    agreement = None
    widest = _widest(files.values()) if policy.casts else {}
    twice: set[str] = set()
    same: set[tuple[int, tuple[str, ...]]] = set()  # most files share one schema object with the first
    for number, file in files.items():
        try:
            if agreement is None:
                agreement = _Agreement(file, columns, widest)
            if (id(file.schema), tuple(file.origin.keys)) not in same:
                agreement.check(file, policy)
                if not policy.casts:
                    same.add((id(file.schema), tuple(file.origin.keys)))
        except SchemaMismatch as error:
            policy.refuse(file.origin.path, error)
        else:
            kept[number] = file
            for name in map(unquote, re.findall(r"/([^/=]+)=-?0[0-9]", file.origin.path)):
                key = None if name in file.schema.names else file.origin.keys.get(name)
                if key is not None and pa.types.is_integer(key.type):
                    policy.convert(file.origin.path, {name: (key.type, _PADDED)})
            for name in sorted({*file.origin.keys}.intersection(file.schema.names).difference(twice)):
                twice.add(name)
                told = f"column {name!r} is in the file and in its folder's name; the files' own is read"
                policy.adapt(file.origin.path, told)
    return _readings(agreement.dtypes, columns, kept, policy) if agreement else {}, kept


def _readings(
    dtypes: Mapping[str, str], columns: Sequence[str] | None, files: Mapping[int, TableFile], policy: BadFilePolicy
) -> dict[str, Reading]:
    """Return the dtypes of the columns if all files have the given ones; add a note on each converted column."""
    written: dict[str, set[str]] = {name: set() for name in dtypes}
    unknown: dict[str, tuple[str, tuple[object, Reading]]] = {}
    for file in {(id(file.schema), tuple(file.origin.keys)): file for file in files.values()}.values():
        read = {name: (kind, read_as(kind)) for name, kind in _types(file).items()}
        read = {name: pair for name, pair in read.items() if columns is None or name in columns}
        changed = {name: (kind, found) for name, (kind, found) in read.items() if not pa.types.is_null(kind)}
        policy.convert(file.origin.path, changed)
        for name in changed.keys() & written.keys():
            written[name].add(changed[name][1].written_as)
        unknown |= {name: (file.origin.path, pair) for name, pair in read.items() if pa.types.is_null(pair[0])}
    for name, (path, pair) in unknown.items():
        if name in written and not written[name]:
            policy.convert(path, {name: pair})
    found = {}
    for name, dtype in dtypes.items():
        ways = written[name] or {""}
        one = next(iter(ways)) if len(ways) == 1 else _UTC if all("tz=" in way for way in ways) else ""
        found[name] = Reading(dtype, one)
        if len(ways) > 1:
            kinds = " and ".join(sorted(way or "timestamp[us]" for way in ways))
            change = f"as the files differ, read as {one or 'timestamp[us]'}, the same times in UTC"
            policy.convert(next(iter(files.values())).origin.path, {name: (kinds, Reading(dtype, one, change))})
    return found


class _Agreement:
    """Columns' types by name, and the file each was first found in."""

    def __init__(self, first: TableFile, columns: Sequence[str] | None, widest: Mapping[str, str]) -> None:
        types = _types(first)
        for name in columns or ():
            if name not in types:
                raise ColumnNotFound.among(first.origin.path, name, types)
        self._widest = widest
        dtypes = {name: widest.get(name) or dtype_from_arrow(kind) for name, kind in types.items()}
        self.dtypes = {name: dtype for name, dtype in dtypes.items() if dtype and (columns is None or name in columns)}
        self._first, self._takes_all = first.origin.path, columns is None
        self._known_from = {name: self._first for name in self.dtypes if not pa.types.is_null(types[name])}

    def check(self, file: TableFile, policy: BadFilePolicy) -> None:
        """Raise unless a file has these columns, or is cast; learn the types of those that had no value before."""
        types = _types(file)
        named = {name: dtype_from_arrow(kind) for name, kind in types.items() if not pa.types.is_null(kind)}
        new = {name: dtype for name, dtype in named.items() if dtype and name not in self._known_from}
        new = {name: self._widest.get(name, dtype) for name, dtype in new.items() if name in self.dtypes}
        wanted = self.dtypes | new
        differing = [name for name in wanted if name not in types or (name in named and named[name] != wanted[name])]
        if self._takes_all:
            differing += [
                name for name, kind in types.items() if name not in wanted and dtype_from_arrow(kind) is not None
            ]
        unworkable = []
        for name in (name for name in differing if name in types):
            dtype, other = dtype_from_arrow(types[name]), wanted.get(name)
            if dtype is None or other is None:
                can_be = other is None
            else:  # lists can only be lists
                can_be = (dtype in LISTS) == (other in LISTS) and is_passenger(dtype) == is_passenger(other)
            unworkable += [] if can_be else [name]
        shown = {name: dtype_from_arrow(kind) or str(kind) for name, kind in types.items()}
        if differing and (unworkable or not policy.casts):
            name = (unworkable or differing)[0]
            known_from = self._known_from.get(name, self._first)
            raise SchemaMismatch(
                file.origin.path,
                f"column {name!r} is {shown.get(name, 'not there')}",
                expected=f"{wanted.get(name, 'no such column')}, as in {known_from}",
                remedy="columns=[...] with what all files share, on_mismatch="
                + ("'skip', or it written anew" if policy.casts else "'cast' or 'skip', or it written anew"),
            )
        if differing:
            told = []
            for name in differing:
                what = f"{shown.get(name)}, read as {wanted[name]}" if name in wanted else "new and left out"
                told.append(f"column {name!r} is {what if name in types else 'not there and missing throughout'}")
            policy.adapt(file.origin.path, "; ".join(told))
        self.dtypes |= new
        self._known_from |= dict.fromkeys(new, file.origin.path)


def _widest(files: Iterable[TableFile]) -> dict[str, str]:
    """Return, by column, the type that holds all values of its files' types of the first one's kind."""
    widest: dict[str, str] = {}
    for file in {id(file.schema): file for file in files}.values():
        for item in file.schema:
            dtype = None if pa.types.is_null(item.type) else dtype_from_arrow(item.type)
            if dtype is not None:
                widest[item.name] = _wider(widest.get(item.name, dtype), dtype)
    return widest


def _wider(dtype: str, other: str) -> str:
    one, two = get_element_dtype(dtype), get_element_dtype(other)
    if one is not None and two is not None:
        return to_list_dtype(_wider(one, two))
    kind = next((kind for kind in (INTEGERS, FLOATS) if dtype in kind and other in kind), None)
    wider = str(np.promote_types(dtype, other)) if kind else dtype
    return wider if wider in (kind or ()) else dtype


def _types(file: TableFile) -> dict[str, pa.DataType]:
    names = file.schema.names
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SchemaMismatch(
            file.origin.path, "columns share a name", got=twice, expected="unique names", remedy="write the file again"
        )
    held = {item.name: item.type for item in file.schema}
    return held | {name: value.type for name, value in file.origin.keys.items() if name not in held}


def read_frame(file: TableFile, spans: Sequence[RowRange], fields: Sequence[Field], backend: Backend) -> Frame:
    """Read the spans' rows with these columns as a frame, decoded as the file and the backend do best."""
    held, groups, num_rows = _select_fields(file, spans, fields)
    if held:
        with _name_file_in_errors(file, groups):
            frame = file.read(groups, held, backend)
        _check_rows(file, groups, len(frame), num_rows)
    else:
        frame = backend.frame({}, num_rows)
    pieces = _pieces(file, spans)
    if pieces != [(0, num_rows)]:
        rows = backend.xp.concatenate([backend.xp.arange(start, start + length) for start, length in pieces])
        frame = backend.concat([backend.take(frame, rows)])
    if len(held) == len(fields):
        return frame
    added = [item for item in fields if item not in held]
    constants = backend.from_arrow(_repeat_keys(file, groups, added, len(frame)), added)
    frame = backend.assign(frame, {item.name: backend.column(constants, item.name) for item in added})
    return backend.select(frame, [item.name for item in fields])


def read_frame_from_files(
    files: Sequence[tuple[TableFile, Sequence[RowRange]]], fields: Sequence[Field], backend: Backend
) -> Frame | None:
    """Read whole row groups of Parquet files of one schema in one call; None where there are others, or damage."""
    (first, _), paths, row_groups = files[0], list[str](), list[list[int]]()
    for file, spans in files:
        held, groups, num_rows = _select_fields(file, spans, fields)
        is_whole = len(held) == len(fields) and _pieces(file, spans) == [(0, num_rows)]
        if not (is_whole and file.is_read_with(first, fields)):
            return None
        paths.append(file.stored.path)
        row_groups.append(groups)
    try:
        frame = backend.read_parquet(paths, row_groups, fields)
    except OSError:  # one by one they tell which of them it is
        return None
    for file, spans in files:
        _check_unchanged(file, [span.group for span in spans])
    wanted = sum(span.num_rows for _, spans in files for span in spans)
    return frame if len(frame) == wanted else None


def read_table(file: TableFile, spans: Sequence[RowRange], fields: Sequence[Field]) -> pa.Table:
    """Read the same to the host, as Arrow columns in the types that `backend.arrow.conform` gives."""
    held, groups, num_rows = _select_fields(file, spans, fields)
    columns: dict[str, pa.ChunkedArray] = {}
    if held:
        with _name_file_in_errors(file, groups):
            table = host_table(file.table(groups, [item.name for item in held]), held)
        _check_rows(file, groups, table.num_rows, num_rows)
        table = pa.concat_tables(table.slice(start, length) for start, length in _pieces(file, spans))
        columns = dict(zip(table.column_names, table.columns, strict=True))
    added = [item for item in fields if item not in held]
    constants = _repeat_keys(file, groups, added, sum(span.num_rows for span in spans))
    columns |= dict(zip(constants.column_names, constants.columns, strict=True))
    return pa.table({item.name: columns[item.name] for item in fields})


def describe_groups(unit: str, groups: Sequence[int]) -> str:
    """Describe groups in words.

    Example:
        >>> describe_groups("row group", [4]), describe_groups("stripe", [0, 1, 2])
        ('row group 4', 'stripes 0-2')
        >>> describe_groups("row group", [0, 2])
        'row groups 0, 2'
    """
    if len(groups) == 1:
        return f"{unit} {groups[0]}"
    if list(groups) == list(range(groups[0], groups[-1] + 1)):
        return f"{unit}s {groups[0]}-{groups[-1]}"
    return f"{unit}s {', '.join(map(str, groups))}"


def _select_fields(
    file: TableFile, spans: Sequence[RowRange], fields: Sequence[Field]
) -> tuple[list[Field], list[int], int]:
    """Return the columns the file holds, the groups, and the rows these have."""
    groups = [span.group for span in spans]
    return [item for item in fields if file.holds(item.name)], groups, sum(file.group_rows[group] for group in groups)


def _pieces(file: TableFile, spans: Sequence[RowRange]) -> list[tuple[int, int]]:
    """List the first row and number of rows of each span within the whole groups; merge spans that touch."""
    pieces: list[tuple[int, int]] = []
    before = 0
    for span in spans:
        start = before + span.first_row - sum(file.group_rows[: span.group])
        if pieces and sum(pieces[-1]) == start:
            pieces[-1] = pieces[-1][0], pieces[-1][1] + span.num_rows
        else:
            pieces.append((start, span.num_rows))
        before += file.group_rows[span.group]
    return pieces


def _repeat_keys(file: TableFile, groups: Sequence[int], fields: Sequence[Field], num_rows: int) -> pa.Table:
    """Build columns of one value each: a folder's key, or missing throughout."""
    if not fields:
        return pa.table({})
    zeros, keys = pa.repeat(pa.scalar(0, pa.int32()), num_rows), file.origin.keys
    columns = {
        item.name: pa.DictionaryArray.from_arrays(zeros, pa.array([keys[item.name]]))
        if item.name in keys
        else pa.nulls(num_rows)
        for item in fields
    }
    with _name_file_in_errors(file, groups):
        return host_table(pa.table(columns), fields)


def _check_rows(file: TableFile, groups: Sequence[int], found: int, expected: int) -> None:
    if found != expected:
        raise BadFile(
            file.origin.path,
            f"{describe_groups(file.unit, groups)} hold other rows than before",
            got=found,
            expected=format_count(expected, "row"),
            remedy="make the dataset again; the file was replaced",
        )
    _check_unchanged(file, groups)


def _check_unchanged(file: TableFile, groups: Sequence[int]) -> None:
    if change := file.change():
        raise BadFile(
            file.origin.path,
            f"{describe_groups(file.unit, groups)} may be of two versions of the file: {change}",
            expected="files that stay as they are",
            remedy="make the dataset again",
        )


@contextmanager
def _name_file_in_errors(file: TableFile, groups: Sequence[int]) -> Iterator[None]:
    """Name the file in whatever fails inside."""
    try:
        yield
    except (OSError, pa.ArrowException) as cause:
        if isinstance(cause, BadFile) and not is_remote(file.origin.path):  # a reader's own words
            raise
        raise BadFile(
            file.origin.path,
            f"{describe_groups(file.unit, groups)} cannot be read ({file.change() or one_line(cause)})",
            expected="the rows its footer tells of",
            remedy="write the file again; it is damaged, or was replaced after the dataset was made",
        ) from cause
    except BadData as cause:
        ends = [0, *accumulate(file.group_rows)]
        rows = chain.from_iterable(range(ends[group], ends[group + 1]) for group in groups)
        row = next(islice(rows, cause.row or 0, None))
        raise SchemaMismatch(
            file.origin.path,
            f"row {row + 1}, {cause.where.removeprefix('Cast of ')}: a value does not fit",
            got=cause.got,
            expected=cause.expected,
            remedy="on_mismatch='skip'; a file of the other type named first, if that holds all; or it written anew",
        ) from cause
    except SchemaMismatch as cause:
        raise SchemaMismatch(
            file.origin.path, f"{cause.where}: {cause.problem}", expected=cause.expected, remedy="on_mismatch='skip'"
        ) from cause


class FileSource(Source):
    """Source of the rows of files that have the same columns.

    Args:
        files: at least one, by their position among those that were found.
        columns: the columns the files have to share; all of the first file's by default.
        limit: decoded bytes of a partition; one group of a file is the least.
        policy: handles files that differ, and holds notes on those that could not be opened.
        spool: kept alive as long as the source: the temporary folder of the files.
    """

    made_by: str | None = ""
    partitions: Sequence[Partition] = ()

    def __init__(
        self,
        files: Mapping[int, TableFile],
        *,
        columns: Sequence[str] | None = None,
        limit: int,
        policy: BadFilePolicy | None = None,
        spool: Any = None,
    ) -> None:
        policy = policy or BadFilePolicy()
        readings, self.files = agree_on_schema(files, columns, policy)
        dtypes = {name: str(reading.dtype) for name, reading in readings.items()}
        self.left_out: Mapping[str, str] = policy.left_out
        self.notes: Sequence[FileNote] = policy.close(len(self.files))
        self.reads = ReadCounter()
        self._spool = spool
        units = _units(self.files.values())
        self.schema = Schema(
            Field(
                name,
                dtype,
                nullable=dtype in FLOATS or any(_null_count(file, name) != 0 for file in self.files.values()),
                units=units.get(name, ""),
                written_as=readings[name].written_as,
            ).as_source()
            for name, dtype in dtypes.items()
        )
        self._limit = limit
        self.cut()

    def read(self, partition: Partition, fields: Sequence[Field], backend: Backend) -> Frame:
        """Read exactly these columns; an unreadable file, or a value that cannot be cast, is named."""
        files = self._count(partition, fields)
        if not fields:
            return backend.frame({}, partition.num_rows)
        if len(files) == 1:
            return read_frame(*files[0], fields, backend)
        if not files or backend.name == "cpu":  # a frame for each of thousands of small files would take far more room
            return backend.from_arrow(_concat_tables(files, fields), fields)
        whole = read_frame_from_files(files, fields, backend)
        if whole is not None:
            return whole
        frames = (read_frame(*file, fields, backend) for file in files)
        return backend.concat([backend.concat(some) for some in iter(lambda: list(islice(frames, _FRAMES)), [])])

    def table(self, partition: Partition, fields: Sequence[Field]) -> pa.Table:
        """Read exactly these columns; see `Source.table`."""
        files = self._count(partition, fields)
        # Row groups have dictionaries of their own, which nobody needs as one here.
        return plain_table(_concat_tables([(file, [span]) for file, spans in files for span in spans], fields))

    def only(self, partitions: Sequence[Partition]) -> Self:
        """Return the partitions' own files; see `Source.only`."""
        part = self._with({span.file for partition in partitions for span in partition.spans})
        part.partitions = list(partitions)
        return part

    def inputs(self) -> dict[str, str] | None:
        """Return the stamps by the files' names; see `Source.inputs`."""
        stamps = {file.origin.path: file.origin.stamp for file in self.files.values()}
        known = {name: stamp for name, stamp in stamps.items() if stamp is not None}
        return known if len(known) == len(stamps) else None

    def of_files(self, names: AbstractSet[str]) -> Self:
        """See `Source.of_files`."""
        part = self._with({number for number, file in self.files.items() if file.origin.path in names})
        part.cut()
        return part

    def files_of(self, partition: Partition) -> list[str]:
        """List the files in the partition's order."""
        return list(dict.fromkeys(self.files[span.file].origin.path for span in partition.spans))

    def _count(self, partition: Partition, fields: Sequence[Field]) -> list[tuple[TableFile, list[RowRange]]]:
        """Count and return the partition's files and their spans, just before they are read."""
        if self._spool is not None:
            self._spool.check()
        names = [item.name for item in fields]
        self.reads.add(partition.spans, names, self.stored_bytes(partition, names))
        return [(self.files[number], spans) for number, spans in _by_file(partition.spans)]

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
        counts = [_null_count(file, name) for file in self.files.values()]
        return None if None in counts else sum(count or 0 for count in counts)

    def cut(self) -> None:
        """Pack groups up to the limit; a file begins a partition unless all of it fits into the open one."""
        width, limit = row_bytes(self.schema), self._limit
        strings = [item.name for item in self.schema if item.dtype in ("string", *LISTS) or item.kind == Kind.PASSENGER]
        packs: list[list[RowRange]] = [[]]
        taken = [0]
        for number, file in self.files.items():
            rows = zip(accumulate(file.group_rows, initial=0), file.group_rows, strict=False)
            spans = [RowRange(number, group, first, count) for group, (first, count) in enumerate(rows) if count]
            texts = [name for name in strings if file.holds(name)]
            sizes = [span.num_rows * width + file.text_bytes(span.group, texts) for span in spans]
            for place, (span, size) in enumerate(zip(spans, sizes, strict=True)):
                if packs[-1] and taken[-1] + (size if place else sum(sizes)) > limit:
                    packs.append([])
                    taken.append(0)
                packs[-1].append(span)
                taken[-1] += size
        self.partitions = [
            Partition(index, tuple(spans), self._describe(spans, num_bytes))
            for index, (spans, num_bytes) in enumerate(zip(packs, taken, strict=True))
        ]

    def _describe(self, spans: Sequence[RowRange], num_bytes: int) -> str:
        files = _by_file(spans)
        shown = files if len(files) < 4 else [files[0], files[-1]]
        parts = []
        for number, own in shown:
            file = self.files[number]
            parts.append(f"{file.origin.path} {describe_groups(file.unit, [span.group for span in own])}")
        text = ", ".join(parts) if len(files) < 4 else f"{parts[0]} ... {parts[1]} ({len(files)} files)"
        if num_bytes <= self._limit:
            return text
        unit = self.files[spans[0].file].unit
        return f"{text} ({num_bytes:,} bytes, over the limit of {self._limit:,}: one {unit} is the least)"

    def stored_bytes(self, partition: Partition, names: Sequence[str]) -> int:
        """Sum the bytes of these columns of a partition in the files."""
        total = 0
        for number, spans in _by_file(partition.spans):
            held = [name for name in names if self.files[number].holds(name)]
            total += sum(self.files[number].stored_bytes(span.group, held) for span in spans)
        return total


def _concat_tables(files: Sequence[tuple[TableFile, Sequence[RowRange]]], fields: Sequence[Field]) -> pa.Table:
    if not files:
        return pa.schema([(item.name, arrow_type(item.dtype)) for item in fields]).empty_table()
    return pa.concat_tables(read_table(*file, fields) for file in files)


def _null_count(file: TableFile, name: str) -> int | None:
    if not any(file.group_rows):
        return 0
    if file.holds(name):
        return None if file.dtype(name) in FLOATS else file.null_count(name)
    return 0 if name in file.origin.keys and file.origin.keys[name].is_valid else sum(file.group_rows)


def _units(files: Iterable[TableFile]) -> dict[str, str]:
    """Return the units in the files' metadata, of columns for which all files that state any agree."""
    stated: dict[str, set[str]] = {}
    for schema in {id(file.schema): file.schema for file in files}.values():
        for item in schema:
            if item.metadata and b"units" in item.metadata:
                stated.setdefault(item.name, set()).add(item.metadata[b"units"].decode(errors="replace"))
    return {name: next(iter(found)) for name, found in stated.items() if len(found) == 1}


def _by_file(spans: Iterable[RowRange]) -> list[tuple[int, list[RowRange]]]:
    return [(number, list(own)) for number, own in groupby(spans, attrgetter("file"))]
