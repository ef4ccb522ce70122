"""Readers: open a Dataset from Parquet files or from tables in memory."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads

from gpupipe.backend import frame_remedy, infer_backend, is_frame, select
from gpupipe.backend.arrow import open_stream
from gpupipe.backend.arrow_types import Reading, map_schema
from gpupipe.errors import BadConfig, BadFile, SchemaMismatch
from gpupipe.expressions import parse
from gpupipe.io.dataset import Dataset
from gpupipe.io.formats.arrow_dataset import list_fragments
from gpupipe.io.formats.file_source import BadFilePolicy, FileSource, open_all, require_unique
from gpupipe.io.formats.parquet import fetch_end, parse_end
from gpupipe.io.formats.spill import FrameSource, TempParquet
from gpupipe.io.planning.table import partition_limit, row_bytes
from gpupipe.io.stores import Input, PathLike, StorageOptions, find_files, one_line
from gpupipe.schema import Schema
from gpupipe.support.text import as_list, format_count
from gpupipe.support.validation import check_integer, check_names

_READERS = {
    **dict.fromkeys(("csv", "tsv", "txt"), "read_csv"),
    **dict.fromkeys(("json", "jsonl", "ndjson"), "read_json"),
    **dict.fromkeys(("arrow", "feather", "ipc"), "read_ipc"),
    "orc": "read_orc",
}

_UNSENT = ("Object", "Int128", "UInt128")
"""Types of Polars that Arrow has not: of objects it gives their addresses."""


def read_parquet(
    path: PathLike | Sequence[PathLike],
    *,
    columns: str | Sequence[str] | None = None,
    filters: str | None = None,
    on_mismatch: str = "raise",
    on_bad: str = "raise",
    storage_options: StorageOptions | None = None,
    partition_bytes: int | None = None,
    backend: str = "auto",
) -> Dataset:
    """Open Parquet files as one lazy table; only the footers are read, several at a time.

    Small files share a partition. A row group that is larger than `partition_bytes` is a partition of its own, whose
    description says so; where it does not fit into memory, it is worked on in halves. docs/guide-files.md has all.

    Args:
        path: a file, a list of files, a pattern, a folder (all `*.parquet` below it, or those that the manifest of
            `Dataset.write_parquet` lists), or a URL that fsspec knows. Folders named `key=value` give columns, integers
            where all values are whole numbers and else strings; a filter on them leaves out whole files. Rows are in
            the order of the sorted names, so `month=10` comes before `month=2`.
        columns: the columns to have; all by default but those left out. The files need to share no others.
        filters: an expression, as for `Dataset.filter`; it may use columns that are not in `columns`.
        on_mismatch: for a file with other columns or types than the first: `"raise"`, `"cast"`, `"skip"` or
            `"quarantine"`. A cast file is decoded on the host; integers and floats take the widest type they have in
            any file, and each value has to fit the new type exactly, or it is an error when it is read; a column that
            is not there is missing throughout, and one that is new is left out. The order of the columns does not
            matter.
        on_bad: for a file that cannot be opened: `"raise"`, `"skip"` or `"quarantine"`, which skips it too, and
            `write_parquet` writes a JSON line about it next to its output. What is skipped or cast is logged, listed in
            `Dataset.rejected`, counted in `Pipeline.fit_report`, shown by `gpupipe.io.inspect` and told by the manifest
            of what is written. A file that turns out damaged later is always an error.
        storage_options: for the file system of a URL, such as `{"key": ..., "secret": ...}` for S3; see
            docs/guide-stores.md. They go to workers with the dataset, and into no message, manifest or saved pipeline.
        partition_bytes: decoded bytes of a partition, which is one row group at least; 64 MiB on the CPU and 1 GiB on
            the GPU by default.
        backend: `"auto"`, `"cpu"` or `"gpu"`: whose frames the dataset gives.

    Raises:
        BadFile: a file is missing, empty, cut off or no Parquet file.
        SchemaMismatch: files differ; names file and column. Or a column of `columns` is of a type that is left out.
        ColumnNotFound, BadConfig: a column is not there, or an argument makes no sense.

    Memory: the footers, about 4 KB for a file with 20 columns and one row group. On a GPU what a partition needs of a
        file elsewhere passes through the local temporary folder.

    Example:
        >>> import gpupipe as gp
        >>> flights = gp.read_parquet("data/flights.parquet", columns=["origin", "distance"], filters="month == 2")
        >>> len(flights), flights.columns
        (24951, ['origin', 'distance'])
    """
    check_names("read_parquet", None, columns=columns)
    policy = BadFilePolicy(on_mismatch, on_bad)
    files = open_all(find_files(path, [".parquet"], storage_options), fetch_end, policy, finish=parse_end)
    needed = None if columns is None else [*as_list(columns), *(parse(filters, "filters").reads if filters else ())]
    source = FileSource(files, columns=needed, limit=partition_limit(partition_bytes, backend), policy=policy)
    dataset = Dataset(source, source.schema, backend)
    if filters is not None:
        dataset = dataset.filter(filters)
    return dataset if columns is None else dataset.select(columns)


def from_frame(
    obj: Any, *, partition_bytes: int | None = None, num_partitions: int | None = None, backend: str = "auto"
) -> Dataset:
    """Make a lazy table of what is in memory: a pandas or cuDF frame, or anything with the Arrow C stream protocol.

    The files of a `pyarrow.dataset.Dataset` are read lazily instead, by pyarrow on the host: only the columns that are
    asked for, and no files and (of Parquet) row groups whose partition or statistics show that a filter keeps nothing
    of them. So a Delta table is read: `gp.from_frame(DeltaTable(path).to_pyarrow_dataset())`. A dataset that is
    filtered is a stream.

    A stream that can be read only once (anything without a length, such as a RecordBatchReader) is written to a
    temporary Parquet file now, a part at a time; the file is removed with the dataset. So an Iceberg table is read:
    `gp.from_frame(table.scan(row_filter=..., selected_fields=...).to_arrow_batch_reader())`.

    Args:
        obj: the table. It must not be changed while the dataset is in use.
        partition_bytes: decoded bytes of a partition; 64 MiB on the CPU and 1 GiB on the GPU by default.
        num_partitions: cut into as many partitions of equal size instead; only for what is in memory.
        backend: `"auto"`, `"cpu"` or `"gpu"`: whose frames the dataset gives.

    Raises:
        SchemaMismatch, BadConfig: no table, columns share a name, or `num_partitions` makes no sense.
        BadFile: a file of a pyarrow dataset cannot be opened, or a stream breaks off.

    Memory: shares numbers and times of a pandas or cuDF frame, and Arrow numbers in one chunk without missing values;
        copies the rest, strings as codes. Of a pyarrow dataset the footers, about 40 KB per Parquet file; of a stream a
        row group of up to 32 MiB, and all of it on disk.

    Example:
        >>> import pyarrow as pa, gpupipe as gp
        >>> table = pa.table({"origin": ["JFK", "LGA", None], "flight": [1, 2, 3]})
        >>> gp.from_frame(table, num_partitions=2).num_partitions
        2
    """
    if isinstance(obj, Dataset):
        expected, remedy = "a table in memory", "the dataset itself"
        raise SchemaMismatch("from_frame", "a Dataset already", got=Dataset, expected=expected, remedy=remedy)
    limit = partition_limit(partition_bytes, backend)
    check_integer(from_frame, "[1, inf)", None, num_partitions=num_partitions)
    files = list_fragments(obj) if isinstance(obj, pads.Dataset) else None
    if num_partitions is not None and (files or not hasattr(obj, "__len__")):
        problem, remedy = "a stream has no length to divide", "partition_bytes=32 << 20"
        raise BadConfig("from_frame", problem, got=num_partitions, expected="partition_bytes=", remedy=remedy)
    if files:
        found = FileSource(files, limit=limit)
        return Dataset(found, found.schema, backend)
    if isinstance(obj, pads.Dataset):
        require_unique(obj.schema.names, "from_frame", "rename one")
        obj = obj.scanner().to_reader()
    if not is_frame(obj) and not _streams(obj):
        raise _no_table(obj)
    if is_frame(obj):
        owner = infer_backend(obj)
        require_unique(list(map(str, obj.columns)), "from_frame", "rename one")
        read = owner.classify(obj).items()
        readings = {name: (dtype, reading) for (name, reading), dtype in zip(read, obj.dtypes, strict=True)}
        frame = owner.encode(owner.select(obj, [name for name, (_, reading) in readings.items() if reading.dtype]))
        readings = _read_index(obj.index) | readings
    else:
        schema, readings, batches = _open(obj)
        if not hasattr(obj, "__len__"):
            spool = TempParquet(limit)
            policy = BadFilePolicy()
            policy.convert("stream", readings)
            file = spool.write(_read(batches), list(schema), Input("stream"))
            source = FileSource({0: file}, limit=limit, policy=policy, spool=spool)
            return Dataset(source, source.schema, backend)
        owner = select("cpu")
        frame = owner.from_arrow(batches.read_all(), list(schema))
    schema = owner.schema_of(frame, {name: reading for name, (_, reading) in readings.items()})
    parts = max(1, num_partitions or -(-len(frame) * row_bytes(schema) // limit))
    edges = [len(frame) * part // parts for part in range(parts + 1)]
    cuts = [(start, stop - start) for start, stop in pairwise(edges)]
    return Dataset(FrameSource(frame, schema, cuts, readings), schema, backend)


def as_dataset(data: Any) -> Dataset:
    """Return a Dataset unchanged, and convert any other table as `from_frame` does.

    Memory: as `from_frame`.

    Example:
        >>> import pyarrow as pa
        >>> as_dataset(pa.table({"flight": [1, 2]})).columns
        ['flight']
    """
    return data if isinstance(data, Dataset) else from_frame(data)


def as_rows(data: Any, backend: str = "auto") -> Any:
    """Return a Dataset or a frame unchanged, a table in memory as a frame of the backend, a stream as a Dataset.

    Raises:
        SchemaMismatch: no table.

    Memory: shares Arrow numbers in one chunk without missing values; copies the rest of a table, strings as codes.

    Example:
        >>> import pyarrow as pa
        >>> as_rows(pa.table({"flight": [1, 2]}), "cpu")
           flight
        0       1
        1       2
    """
    if isinstance(data, Dataset) or is_frame(data):
        return data
    if isinstance(data, pads.Dataset) or not (_streams(data) and hasattr(data, "__len__")):
        return from_frame(data)
    whole, owner = from_frame(data, num_partitions=1), select(backend)
    rows = whole.read(whole.partitions[0], backend=owner)
    zoned = [item.name for item in whole.schema if item.zone]
    if not zoned:
        return rows
    times = owner.decode(owner.select(rows, zoned), (), whole.schema)
    return rows.assign(**{name: times[name] for name in zoned})


def _streams(obj: Any) -> bool:
    return hasattr(obj, "__arrow_c_stream__") and not inspect.isclass(obj)


def _no_table(obj: Any) -> SchemaMismatch:
    """Build the error for an object that is no table, with a way to convert it."""
    if isinstance(obj, str | os.PathLike):
        kind = re.sub(r"[.](gz|bz2|zst|xz)$", "", str(obj)).rpartition(".")[2]
        remedy = f"gp.{_READERS.get(kind, 'read_parquet')}({str(obj)!r})"
    else:
        remedy = frame_remedy(obj) or "gp.read_parquet(path), or a frame"
    got = obj if obj is None or isinstance(obj, str | os.PathLike) else type(obj)
    expected = "a Dataset, a pandas, cuDF or Polars DataFrame, or what has the Arrow C stream protocol"
    return SchemaMismatch("data", "not a table", got=got, expected=expected, remedy=remedy)


def _read_index(index: Any) -> dict[str, tuple[object, Reading]]:
    """Return the index of a frame as a column; none where it is unnamed and counts or selects rows."""
    names = [name for name in index.names if name is not None]
    if not names and getattr(index.dtype, "kind", "O") in "iu":
        return {}
    change = "the frame's index is no column, data.reset_index() makes it one"
    return {", ".join(map(str, names)) or "index": (index.dtype, Reading(None, change=change))}


def _open(obj: Any) -> tuple[Schema, dict[str, tuple[object, Reading]], pa.RecordBatchReader]:
    is_polars = type(obj).__module__.startswith("polars.") and hasattr(obj, "schema")
    unsent = {name: kind for name, kind in obj.schema.items() if str(kind) in _UNSENT} if is_polars else {}
    obj = obj.drop(list(unsent)) if unsent else obj
    try:
        batches = open_stream(obj)
    except (pa.ArrowException, TypeError) as cause:
        raise _no_table(obj) from cause
    require_unique(batches.schema.names, "from_frame", "rename one")
    fields, readings = map_schema(batches.schema)
    left_out = {name: (kind, Reading(None, change="nothing here carries such values")) for name, kind in unsent.items()}
    return fields, left_out | readings, batches


def _read(batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield a stream's batches; an error in its source reports the number of rows that preceded it."""
    rows = 0
    while True:
        try:
            batch = batches.read_next_batch()
        except StopIteration:
            return
        except (OSError, pa.ArrowException) as cause:
            problem = f"the stream broke off after {format_count(rows, 'row')} ({one_line(cause)})"
            remedy = "what feeds it; and a new stream, as this one cannot be read again"
            raise BadFile("from_frame", problem, expected="a stream with its end", remedy=remedy) from cause
        rows += batch.num_rows
        yield batch
