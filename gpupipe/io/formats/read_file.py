"""Reads of one file's rows: as a frame, or as a table where many small files become one frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain, islice

import pyarrow as pa

from gpupipe.backend import Backend, Frame
from gpupipe.errors import BadData, BadFile, SchemaMismatch
from gpupipe.io.formats.arrow_file import host_table
from gpupipe.io.formats.parquet import ParquetFile
from gpupipe.io.formats.table_file import TableFile
from gpupipe.io.planning.partitions import RowRange
from gpupipe.io.stores.file_errors import one_line
from gpupipe.io.stores.hive import Keys
from gpupipe.io.stores.remote_file import is_remote
from gpupipe.schema import Field
from gpupipe.support.text import format_count

__all__ = ["describe_groups", "holds", "read_frame", "read_frame_from_files", "read_table"]


def read_frame(file: TableFile, spans: Sequence[RowRange], fields: Sequence[Field], backend: Backend) -> Frame:
    """Read the spans' rows with these columns as a frame, decoded as the file and the backend do best.

    Raises:
        BadFile: the file cannot be read, or is not what it was.
        SchemaMismatch: a value does not fit the type it is cast to.
    """
    held, groups, num_rows = _select_fields(file, spans, fields)
    with _name_file_in_errors(file, groups):
        frame = file.read(groups, held, backend) if held else backend.frame({}, num_rows)
    _check(file, groups, len(frame), num_rows if held else None)
    pieces = _pieces(file, spans)
    if pieces != [(0, num_rows)]:
        rows = backend.xp.concatenate([backend.xp.arange(start, start + length) for start, length in pieces])
        frame = backend.concat([backend.take(frame, rows)])
    if len(held) == len(fields):
        return frame
    added = [item for item in fields if item not in held]
    arrays = {item.name: _repeat_key(file.origin.keys, item, len(frame)) for item in added}
    with _name_file_in_errors(file, groups):
        constants = backend.from_arrow(host_table(pa.table(arrays), added), added)
    frame = backend.assign(frame, {item.name: backend.column(constants, item.name) for item in added})
    return backend.select(frame, [item.name for item in fields])


def read_frame_from_files(
    files: Sequence[tuple[TableFile, Sequence[RowRange]]], fields: Sequence[Field], backend: Backend
) -> Frame | None:
    """Read whole row groups of Parquet files of one schema in one call; None where the files are not such, or damaged.

    Raises:
        BadFile: a file is not what it was.
    """
    (first, _), paths, row_groups = files[0], list[str](), list[list[int]]()
    for file, spans in files:
        held, groups, num_rows = _select_fields(file, spans, fields)
        is_whole = len(held) == len(fields) and _pieces(file, spans) == [(0, num_rows)]
        if not (is_whole and isinstance(file, ParquetFile) and isinstance(first, ParquetFile)):
            return None
        if not file.is_read_with(first, fields):
            return None
        paths.append(file.stored.path)
        row_groups.append(groups)
    try:
        frame = backend.read_parquet_files(paths, row_groups, fields)
    except OSError:  # one by one they tell which of them it is
        return None
    for file, spans in files:
        _check_unchanged(file, [span.group for span in spans])
    wanted = sum(span.num_rows for _, spans in files for span in spans)
    return frame if len(frame) == wanted else None


def read_table(file: TableFile, spans: Sequence[RowRange], fields: Sequence[Field]) -> pa.Table:
    """Read the same to the host, as Arrow columns in the types that `backend.arrow.conform` gives; raise the same."""
    held, groups, num_rows = _select_fields(file, spans, fields)
    names = [item.name for item in held]
    columns: dict[str, pa.ChunkedArray] = {}
    if held:
        with _name_file_in_errors(file, groups):
            table = host_table(file.table(groups, names), held)
        _check(file, groups, table.num_rows, num_rows)
        table = pa.concat_tables(table.slice(start, length) for start, length in _pieces(file, spans))
        columns = {name: table.column(name) for name in names}
    kept = sum(span.num_rows for span in spans)
    for item in fields:
        if item not in held:
            constant = pa.table({item.name: _repeat_key(file.origin.keys, item, kept)})
            with _name_file_in_errors(file, groups):
                columns[item.name] = host_table(constant, [item]).column(item.name)
    return pa.table({item.name: columns[item.name] for item in fields})


def holds(file: TableFile, name: str) -> bool:
    """Return whether a column is in the file itself."""
    return bool(file.schema.get_field_index(name) >= 0)


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
    return [item for item in fields if holds(file, item.name)], groups, sum(file.group_rows[group] for group in groups)


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


def _repeat_key(keys: Keys, item: Field, num_rows: int) -> pa.Array:
    """Build a column of one value: a key's, or missing throughout."""
    if item.name not in keys:
        return pa.nulls(num_rows)
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), num_rows), pa.array([keys[item.name]]))


def _check(file: TableFile, groups: Sequence[int], found: int, expected: int | None) -> None:
    if expected is None:
        return
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
