"""ORC files, read by stripe; Arrow IPC files, also known as Feather, by record batch; IPC streams, read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.dataset as pads
from pyarrow import orc

from gpupipe.backend import Backend, Frame
from gpupipe.backend.arrow_types import dtype_from_arrow, map_schema
from gpupipe.errors import BadFile
from gpupipe.io.dataset import Dataset
from gpupipe.io.formats.file_source import BadFilePolicy, FileSource, TableFile, narrowest, open_all
from gpupipe.io.formats.parquet import convert_bounds
from gpupipe.io.formats.spill import TempParquet
from gpupipe.io.planning.partitions import Bounds, exactly, partition_limit
from gpupipe.io.stores.file_errors import one_line, unreadable
from gpupipe.io.stores.find_files import Input, PathLike, find_files, open_file, peek
from gpupipe.io.stores.remote_file import StorageOptions, is_remote
from gpupipe.schema import Field, is_passenger
from gpupipe.support.text import as_list
from gpupipe.support.validation import check_names


@dataclass(frozen=True)
class _Place(Input):
    """File location; pyarrow's own file system reports changes."""

    fragment: Any = None

    def stamped(self) -> _Place:
        return replace(self, stamp=self._look())

    def change(self) -> str | None:
        now = self._look()
        return None if now == self.stamp else f"it was {self.stamp} at first, and is {now} now"

    def _look(self) -> str | None:
        info = self.fragment.filesystem.get_file_info(self.fragment.path)
        return f"{info.size} {info.mtime_ns}" if info.is_file else None


@dataclass(frozen=True)
class _Fragment(TableFile):
    """File of a pyarrow dataset: `schema` is the dataset's, and pyarrow fills in columns that the file lacks.

    Columns of other types than the dataset's come as the file has them: pyarrow would round what it casts.
    """

    fragment: Any = None
    unit: ClassVar[str] = "row group"

    def table(self, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
        whole = len(groups) == len(self.group_rows)
        fragment = self.fragment if whole else self.fragment.subset(row_group_ids=list(groups))
        held, schema = {item.name: item for item in self.fragment.physical_schema}, []
        for item in self.schema:
            own = held.get(item.name, item)
            is_carried = None not in (dtype_from_arrow(own.type), dtype_from_arrow(item.type))
            schema.append(own if is_carried and own.type != item.type else item)
        return fragment.to_table(schema=pa.schema(schema), columns=list(names))

    def bounds(self, group: int, name: str) -> Bounds | None:
        """Return the bounds from the fragment's partition, or from the statistics of a Parquet row group."""
        keys = pads.get_partition_keys(self.fragment.partition_expression)
        if name in keys:
            return exactly(keys[name])
        held = self.fragment.physical_schema
        if not isinstance(self.fragment, pads.ParquetFileFragment) or held.get_field_index(name) < 0:
            return None
        kind = held.field(name).type
        found = self.fragment.row_groups[group].statistics
        if not found or name not in found or dtype_from_arrow(kind) != self.dtype(name):
            return None
        try:
            return convert_bounds(found[name]["min"], found[name]["max"], kind)
        except (ValueError, OverflowError):  # a time Python's datetime cannot say
            return None


def list_fragments(dataset: pads.Dataset) -> dict[int, _Fragment] | None:
    """Return the dataset's files; None where it is filtered, so that row counts differ, or has no files."""
    try:
        fragments = list(dataset.get_fragments())
    except ValueError:  # filtered
        return None
    if not fragments or not all(isinstance(fragment, pads.FileFragment) for fragment in fragments):
        return None

    def opener(place: Any) -> _Fragment:
        fragment = place.fragment
        try:
            if isinstance(fragment, pads.ParquetFileFragment):
                groups = fragment.row_groups
                rows = tuple(group.num_rows for group in groups)
                num_bytes = sum(group.total_byte_size for group in groups)
            else:  # one group
                rows = (fragment.count_rows(),)
                num_bytes = fragment.filesystem.get_file_info(fragment.path).size
        except (OSError, pa.ArrowException) as cause:
            raise BadFile(
                fragment.path,
                f"cannot be opened ({one_line(cause)})",
                expected="a file of the dataset",
                remedy="the dataset made anew; or the file written again",
            ) from cause
        return _Fragment(place, dataset.schema, rows, num_bytes, fragment=fragment)

    return open_all([_Place(fragment.path, fragment=fragment) for fragment in fragments], opener, BadFilePolicy())


_IPC_FILE, _IPC_STREAM = b"ARROW1", b"\xff\xff\xff\xff"


def read_orc(
    path: PathLike | Sequence[PathLike],
    *,
    columns: str | Sequence[str] | None = None,
    on_mismatch: str = "raise",
    on_bad: str = "raise",
    storage_options: StorageOptions | None = None,
    partition_bytes: int | None = None,
    backend: str = "auto",
) -> Dataset:
    """Open ORC files as one lazy table; for what is not said here see `read_parquet`.

    Only the stripes and columns that are asked for are decoded: on a CPU by pyarrow, on a GPU by cuDF (not yet run on a
    GPU). There pyarrow decodes, on the host, times with a zone, columns that are only carried (decimals, structs, maps,
    binary), columns that are cast, and files in a store. Statistics are not used: a filter reads its column of every
    stripe.

    Args:
        path: a file, a list of files, a pattern, a folder (all `*.orc` below it), or a URL that fsspec knows.
        columns: the columns to have; all by default but those left out. The files need to share no others.
        on_mismatch: what is done about a file with other columns or types than the first.
        on_bad: what is done about a file that cannot be opened.
        storage_options: for the file system of a URL.
        partition_bytes: decoded bytes of a partition, which is one stripe at least.
        backend: `"auto"`, `"cpu"` or `"gpu"`: who decodes, and whose frames the dataset gives.

    Raises:
        BadFile: a file is missing, empty, cut off or no ORC file.
        SchemaMismatch: files differ; names file and column.
        ColumnNotFound, BadConfig: a column is not there, or an argument makes no sense.

    Memory: here one column of one stripe, to count its rows; later a partition.

    Example:
        >>> import pathlib, tempfile, pyarrow as pa, gpupipe as gp
        >>> from pyarrow import orc
        >>> file = pathlib.Path(tempfile.mkdtemp(), "flights.orc")
        >>> orc.write_table(pa.table({"origin": ["JFK", "LGA"], "delay": [4.5, None]}), file)
        >>> gp.read_orc(file, columns="origin").compute()
          origin
        0    JFK
        1    LGA
    """
    check_names("read_orc", None, columns=columns)
    policy, limit = BadFilePolicy(on_mismatch, on_bad), partition_limit(partition_bytes, backend)
    files = open_all(find_files(path, [".orc"], storage_options), _open_orc, policy)
    chosen = None if columns is None else as_list(columns)
    source = FileSource(files, columns=chosen, limit=limit, policy=policy)
    dataset = Dataset(source, source.schema, backend)
    return dataset if chosen is None else dataset.select(chosen)


def read_ipc(
    path: PathLike | Sequence[PathLike],
    *,
    columns: str | Sequence[str] | None = None,
    on_mismatch: str = "raise",
    on_bad: str = "raise",
    storage_options: StorageOptions | None = None,
    partition_bytes: int | None = None,
    backend: str = "auto",
) -> Dataset:
    """Open Arrow IPC files, also known as Feather, as one lazy table; for what is not said here see `read_parquet`.

    Record batches are decoded by pyarrow on the host, for both backends, and only the columns that are asked for. A
    file in the streaming form can be read from its beginning only: it is written to a temporary Parquet file now,
    which is removed with the dataset.

    Args:
        path: a file, a list of files, a pattern, a folder (all `*.arrow`, `*.arrows`, `*.feather` and `*.ipc` below
            it), or a URL that fsspec knows.
        columns: the columns to have; all by default but those left out. The files need to share no others.
        on_mismatch: what is done about a file with other columns or types than the first.
        on_bad: what is done about a file that cannot be opened.
        storage_options: for the file system of a URL.
        partition_bytes: decoded bytes of a partition, which is one record batch at least.
        backend: `"auto"`, `"cpu"` or `"gpu"`: whose frames the dataset gives.

    Raises:
        BadFile: a file is missing, empty, cut off or no Arrow file.
        SchemaMismatch: files differ; names file and column.
        ColumnNotFound, BadConfig: a column is not there, or an argument makes no sense.

    Memory: here one column of one record batch, to count its rows; later a partition, decoded on the host. Of streams
        a row group of up to 32 MiB, and all their columns on disk.

    Example:
        >>> import pathlib, tempfile, polars as pl, gpupipe as gp
        >>> file = pathlib.Path(tempfile.mkdtemp(), "flights.arrow")
        >>> pl.DataFrame({"origin": ["JFK", "LGA"], "delay": [4.5, None]}).write_ipc(file)
        >>> gp.read_ipc(file, columns="delay").compute()
           delay
        0    4.5
        1    NaN
    """
    check_names("read_ipc", None, columns=columns)
    policy, limit = BadFilePolicy(on_mismatch, on_bad), partition_limit(partition_bytes, backend)
    spool, one_at_a_time = TempParquet(limit), Lock()

    def opener(one: Input) -> TableFile:
        try:
            if not peek(one)[1].startswith(_IPC_STREAM):
                return _open_ipc(one)
        except BadFile:
            raise
        except (OSError, pa.ArrowException) as cause:
            raise unreadable(one, cause, "an Arrow file", _IPC_FILE) from cause
        with one_at_a_time:
            return _open_stream(one, spool, policy)

    files = open_all(find_files(path, [".arrow", ".arrows", ".feather", ".ipc"], storage_options), opener, policy)
    chosen = None if columns is None else as_list(columns)
    source = FileSource(files, columns=chosen, limit=limit, policy=policy, spool=spool)
    dataset = Dataset(source, source.schema, backend)
    return dataset if chosen is None else dataset.select(chosen)


@dataclass(frozen=True)
class _OrcFile(TableFile):
    """An ORC file."""

    unit: ClassVar[str] = "stripe"

    def read(self, groups: Sequence[int], fields: Sequence[Field], backend: Backend) -> Frame:
        """Decode by the backend where pyarrow and cuDF give the same: BadFile for times beyond their nanoseconds."""
        zoned = [item.name for item in self.schema if pa.types.is_timestamp(item.type) and item.type.tz is not None]
        is_plain = all(
            self.dtype(item.name) == item.dtype and item.name not in zoned and not is_passenger(item.dtype)
            for item in fields
        )
        try:
            if is_plain and not is_remote(self.origin.path):
                return backend.read_orc(self.origin.path, groups, fields)
            return super().read(groups, fields, backend)
        except (OSError, pa.ArrowException) as cause:
            if "nanosecond" not in str(cause):
                raise
            times = [item.name for item in fields if item.dtype == "timestamp"]
            raise _beyond_nanoseconds(self.origin, times, cause) from cause

    def table(self, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
        with open_file(self.origin) as source:
            file = orc.ORCFile(source)
            return pa.Table.from_batches([file.read_stripe(group, columns=list(names)) for group in groups])


def _beyond_nanoseconds(one: Input, times: Sequence[str], cause: Exception) -> BadFile:
    return BadFile(
        one.path,
        f"a time is outside the years 1677 to 2262, which the reader's nanoseconds hold ({one_line(cause)})",
        got=times,
        expected="times of those years",
        remedy=f"columns= without {', '.join(map(repr, times))}, or the file written as Parquet",
    )


def _open_orc(one: Input) -> _OrcFile:
    try:
        with open_file(one) as source:
            file = orc.ORCFile(source)
            schema = file.schema
            # Times are the last choice: those of other years than 1677 to 2262 cannot be read.
            others = [item for item in schema if not pa.types.is_timestamp(item.type)]
            name = [narrowest(pa.schema(others or schema))]
            stripes = range(file.nstripes)
            # Nothing tells the rows of a stripe but its columns.
            rows = [file.read_stripe(n, columns=name).num_rows for n in stripes] if len(stripes) > 1 else [file.nrows]
            return _OrcFile(one, schema, tuple(rows), file.file_length)
    except BadFile:
        raise
    except (OSError, pa.ArrowException) as cause:
        if "nanosecond" in str(cause):  # all columns are times
            raise _beyond_nanoseconds(one, schema.names, cause) from cause
        raise unreadable(one, cause, "an ORC file", b"ORC") from cause


@dataclass(frozen=True)
class _IpcFile(TableFile):
    """Arrow IPC file, whose footer contains the offsets of its record batches."""

    unit: ClassVar[str] = "record batch"

    def table(self, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
        with _open_batches(self.origin, [self.schema.get_field_index(name) for name in names]) as file:
            return pa.Table.from_batches([file.get_batch(group) for group in groups])


def _open_ipc(one: Input) -> _IpcFile:
    with _open_batches(one) as file:
        schema, num_batches = file.schema, file.num_record_batches
    with _open_batches(one, [schema.names.index(narrowest(schema))] if len(schema) else None) as file:
        rows = tuple(file.get_batch(number).num_rows for number in range(num_batches))
    return _IpcFile(one, schema, rows, peek(one)[0])


@contextmanager
def _open_batches(one: Input, columns: Sequence[int] | None = None) -> Iterator[pa.RecordBatchFileReader]:
    """Open a file to fetch only these columns; not memory-mapped, as truncation would then end the process."""
    options = pa.ipc.IpcReadOptions(included_fields=columns or [])
    with open_file(one) as source, pa.ipc.open_file(_to_native(source), options=options) as file:
        yield file


def _open_stream(one: Input, spool: TempParquet, policy: BadFilePolicy) -> TableFile:
    try:
        with open_file(one) as source, pa.ipc.open_stream(_to_native(source)) as stream:
            fields, read = map_schema(stream.schema)
            policy.convert(one.path, read)
            return spool.write(stream, list(fields), one)
    except BadFile:
        raise
    except (OSError, pa.ArrowException) as cause:
        raise BadFile(
            one.path,
            f"damaged or cut off: {one_line(cause)}",
            expected="an Arrow stream with its end",
            remedy="copy or write the file again",
        ) from cause


def _to_native(source: Any) -> Any:
    return pa.OSFile(source) if isinstance(source, str) else source
