"""What opens a Dataset: Parquet files and tables in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from gpupipe.backend import backend_of, select
from gpupipe.backend.arrow import dtype_of
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.expressions import parse
from gpupipe.io.dataset import Dataset
from gpupipe.io.footer import open_footer
from gpupipe.io.frames import FrameSource
from gpupipe.io.parquet import ParquetSource
from gpupipe.io.paths import PathLike, find_files
from gpupipe.io.source import partition_limit, row_bytes
from gpupipe.io.spool import Spool
from gpupipe.schema import Field, Schema
from gpupipe.words import as_list

__all__ = ["from_frame", "read_parquet"]


def read_parquet(
    path: PathLike | Sequence[PathLike],
    *,
    columns: str | Sequence[str] | None = None,
    filters: str | None = None,
    partition_bytes: int | None = None,
    backend: str = "auto",
) -> Dataset:
    """Open Parquet files as one lazy table; only the footers are read.

    Args:
        path: a file, a list of files, a pattern, a folder (all `*.parquet` below it), or a URL that fsspec knows.
        columns: the columns to have; all that can be worked with by default. The files need to share no others.
        filters: an expression, as for `Dataset.filter`; it may use columns that are not in `columns`.
        partition_bytes: decoded bytes of a partition, which is one row group at least; 128 MiB on the CPU and 1 GiB
            on the GPU by default.
        backend: `"auto"`, `"cpu"` or `"gpu"`: whose frames the dataset gives.

    Raises:
        BadFile: a file is missing, empty, cut off or no Parquet file.
        SchemaMismatch: files differ; names file and column. Or a column of `columns` is a list, a struct and the like.
        ColumnNotFound: a column is not there.

    Memory: the footers. On a GPU what a partition needs of a file elsewhere passes through the local temporary folder.

    Example:
        >>> import gpupipe as gp
        >>> flights = gp.read_parquet("data/flights.parquet", columns=["origin", "distance"], filters="month == 2")
        >>> len(flights), flights.columns
        (24951, ['origin', 'distance'])
    """
    files = [open_footer(name) for name in find_files(path, [".parquet"])]
    needed = None if columns is None else [*as_list(columns), *(parse(filters, "filters").reads if filters else ())]
    source = ParquetSource(files, columns=needed, limit=partition_limit(partition_bytes, backend))
    dataset = Dataset(source, source.schema, backend)
    if filters is not None:
        dataset = dataset.filter(filters)
    return dataset if columns is None else dataset.select(columns)


def from_frame(
    obj: Any, *, partition_bytes: int | None = None, num_partitions: int | None = None, backend: str = "auto"
) -> Dataset:
    """Make a lazy table of what is in memory: a pandas or cuDF frame, or anything with the Arrow C stream protocol.

    A stream that can be read only once (anything without a length, such as a RecordBatchReader) is written to a
    temporary Parquet file now, a part at a time; the file is removed with the dataset.

    Args:
        obj: the table. It must not be changed while the dataset is in use.
        partition_bytes: decoded bytes of a partition; 128 MiB on the CPU and 1 GiB on the GPU by default.
        num_partitions: cut into as many partitions of equal size instead; not for streams.
        backend: `"auto"`, `"cpu"` or `"gpu"`: whose frames the dataset gives.

    Raises:
        SchemaMismatch: no table, or a column of a pandas or cuDF frame has a type that is not worked with.
        BadConfig: `num_partitions` makes no sense.

    Memory: shares numbers and times of a pandas or cuDF frame, and Arrow numbers in one chunk without missing values;
        copies the rest, strings as codes.

    Example:
        >>> import pyarrow as pa, gpupipe as gp
        >>> table = pa.table({"origin": ["JFK", "LGA", None], "flight": [1, 2, 3]})
        >>> gp.from_frame(table, num_partitions=2).num_partitions
        2
    """
    limit = partition_limit(partition_bytes, backend)
    if num_partitions is not None and num_partitions < 1:
        raise BadConfig(
            "from_frame", "too few partitions", got=num_partitions, expected="one at least", remedy="num_partitions=1"
        )
    if not hasattr(obj, "__arrow_c_stream__") or type(obj).__module__.partition(".")[0] in ("pandas", "cudf"):
        owner = backend_of(obj)
        frame = owner.encode(obj)
        left_out: dict[str, str] = {}
    else:
        schema, left_out, batches = _opened(obj)
        if not hasattr(obj, "__len__"):
            if num_partitions is not None:
                raise BadConfig(
                    "from_frame",
                    "a stream has no length to divide",
                    got=num_partitions,
                    expected="partition_bytes=",
                    remedy="partition_bytes=32 << 20",
                )
            spool = Spool(limit)
            files = [spool.write(batches, list(schema), "stream")]
            source = ParquetSource(files, limit=limit, owner=spool)
            return Dataset(source, source.schema, backend)
        owner = select("cpu")
        frame = owner.from_arrow(batches.read_all(), list(schema))
    cuts = _cuts(len(frame), num_partitions or -(-len(frame) * row_bytes(owner.schema_of(frame)) // limit))
    memory = FrameSource(frame, owner, cuts, left_out)
    return Dataset(memory, memory.schema, backend)


def _workable(schema: pa.Schema) -> tuple[Schema, dict[str, str]]:
    """The fields of those columns that can be worked with, and the types of the others by name."""
    dtypes = {item.name: dtype_of(item.type) for item in schema}
    fields = Schema(Field(name, dtype) for name, dtype in dtypes.items() if dtype is not None)
    return fields, {item.name: str(item.type) for item in schema if dtypes[item.name] is None}


def _opened(obj: Any) -> tuple[Schema, dict[str, str], pa.RecordBatchReader]:
    try:
        batches = pa.RecordBatchReader.from_stream(obj)
    except (pa.ArrowException, TypeError) as cause:
        raise SchemaMismatch(
            "from_frame",
            f"not a table ({cause})",
            got=type(obj),
            expected="a table with named columns",
            remedy="obj.to_frame()",
        ) from cause
    twice = sorted({name for name in batches.schema.names if batches.schema.names.count(name) > 1})
    if twice:
        raise SchemaMismatch(
            "from_frame", "columns share a name", got=twice, expected="unique names", remedy="rename one"
        )
    return *_workable(batches.schema), batches


def _cuts(num_rows: int, num_partitions: int) -> list[tuple[int, int]]:
    """First row and number of rows of as many parts of nearly equal size, one at least.

    Example:
        >>> _cuts(7, 2)
        [(0, 3), (3, 4)]
    """
    parts = max(1, num_partitions)
    edges = [num_rows * part // parts for part in range(parts + 1)]
    return [(start, stop - start) for start, stop in pairwise(edges)]
