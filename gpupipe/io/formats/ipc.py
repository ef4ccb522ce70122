"""Arrow IPC files, also known as Feather, read by record batch; IPC streams, read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import ClassVar

import pyarrow as pa

from gpupipe.backend.arrow import iter_valid, map_schema, read_index
from gpupipe.errors import BadFile, SchemaMismatch
from gpupipe.io.dataset import Dataset
from gpupipe.io.formats.file_source import (
    BadFilePolicy,
    FileSource,
    Readings,
    TableFile,
    narrowest,
    open_all,
    require_unique,
)
from gpupipe.io.formats.spill import TempParquet
from gpupipe.io.planning.partitions import partition_limit
from gpupipe.io.stores import Input, PathLike, StorageOptions, find_files, one_line, open_file, peek, unreadable
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import as_list, check_names

_IPC_FILE, _IPC_STREAM = b"ARROW1", b"\xff\xff\xff\xff"


@answer_calls
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
    """Open Arrow IPC files, also known as Feather, as one lazy table; for the arguments and errors see `read_parquet`.

    A folder stands for all `*.arrow`, `*.arrows`, `*.feather` and `*.ipc` below it. Record batches are decoded by
    pyarrow on the host, for both backends, and only the columns that are asked for; a partition is one at least. A file
    in the streaming form can be read from its beginning only: it is written to a temporary Parquet file now, which is
    removed with the dataset.

    Memory: here one column of one record batch, to count its rows; later a partition, decoded on the host. Of streams
        a row group of up to 32 MiB, and all their columns on disk.

    Example:
        >>> import pathlib, tempfile, polars as pl, gpupipe as gp
        >>> file = pathlib.Path(tempfile.mkdtemp(), "flights.arrow")
        >>> pl.DataFrame({"origin": ["JFK", "LGA"], "delay": [4.5, None]}).write_ipc(file)
        >>> gp.read_ipc(file, columns="delay").compute()["delay"].tolist()
        [4.5, nan]
    """
    check_names("read_ipc", None, columns=columns)
    policy, limit = BadFilePolicy(on_mismatch, on_bad), partition_limit(partition_bytes, backend)
    spool, one_at_a_time = TempParquet(limit), Lock()

    def opener(input_file: Input) -> tuple[TableFile, Readings]:
        try:
            if not peek(input_file)[1].startswith(_IPC_STREAM):
                return _open_ipc(input_file), {}
        except BadFile:
            raise
        except (OSError, pa.ArrowException) as cause:
            raise unreadable(input_file, cause, "an Arrow file", _IPC_FILE) from cause
        with one_at_a_time:
            return _open_stream(input_file, spool)

    def finish(opened: tuple[TableFile, Readings]) -> TableFile:
        file, read = opened
        names = read if columns is None else as_list(columns)
        policy.convert(file.origin.path, {name: read[name] for name in names if name in read})
        return file

    inputs = find_files(path, [".arrow", ".arrows", ".feather", ".ipc"], storage_options)
    files = open_all(inputs, opener, policy, finish=finish)
    source = FileSource(files, columns=columns, limit=limit, policy=policy, spool=spool)
    dataset = Dataset(source, source.schema, backend)
    return dataset if columns is None else dataset.select(columns)


@dataclass(frozen=True)
class _IpcFile(TableFile):
    """Arrow IPC file, whose footer contains the offsets of its record batches."""

    unit: ClassVar[str] = "record batch"

    def table(self, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
        with _open_batches(self.origin, [self.schema.get_field_index(name) for name in names]) as file:
            return pa.Table.from_batches(list(iter_valid(map(file.get_batch, groups))))


def _open_ipc(input_file: Input) -> _IpcFile:
    with _open_batches(input_file) as file:
        schema, num_batches = file.schema, file.num_record_batches
    with _open_batches(input_file, [schema.names.index(narrowest(schema))] if len(schema) else None) as file:
        rows = tuple(file.get_batch(number).num_rows for number in range(num_batches))
    return _IpcFile(input_file, schema, rows, peek(input_file)[0])


@contextmanager
def _open_batches(input_file: Input, columns: Sequence[int] | None = None) -> Iterator[pa.RecordBatchFileReader]:
    """Open a file to fetch only these columns; not memory-mapped, as truncation would then end the process."""
    options = pa.ipc.IpcReadOptions(included_fields=columns or [])
    with open_file(input_file) as source, pa.ipc.open_file(source, options=options) as file:
        yield file


def _open_stream(input_file: Input, spool: TempParquet) -> tuple[TableFile, Readings]:
    try:
        with open_file(input_file) as source, pa.ipc.open_stream(source) as stream:
            require_unique(stream.schema.names, input_file.path, "write the file again")
            fields, read = map_schema(stream.schema)
            return spool.write(iter_valid(stream), list(fields), input_file), read | read_index(stream.schema)
    except (BadFile, SchemaMismatch):
        raise
    except (OSError, pa.ArrowException) as cause:
        problem, expected = f"damaged or cut off: {one_line(cause)}", "an Arrow stream with its end"
        raise BadFile(input_file.path, problem, expected=expected, remedy="copy or write the file again") from cause
