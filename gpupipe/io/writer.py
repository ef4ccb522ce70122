"""Frames to Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe.backend import Backend, Frame
from gpupipe.backend.arrow import arrow_type
from gpupipe.cluster import ordered_map
from gpupipe.errors import BadConfig
from gpupipe.io.atomic import replacing
from gpupipe.io.source import Partition
from gpupipe.schema import FLOATS, Schema

__all__ = ["ParquetOptions", "write_partitions"]

_CODECS = ("snappy", "zstd", "lz4", "gzip", "brotli", "none")


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """How files are written.

    Args:
        rows_per_group: rows of a row group; smaller tables are gathered.
        compression: Parquet's name of a codec.
        overwrite: whether what is there may be replaced.
    """

    rows_per_group: int = 1_000_000
    compression: str = "snappy"
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.compression not in _CODECS:
            raise BadConfig(
                "write_parquet",
                "no such codec",
                got=self.compression,
                expected=", ".join(_CODECS),
                remedy="compression='zstd'",
            )
        if self.rows_per_group < 1:
            raise BadConfig(
                "write_parquet",
                "rows_per_group is too small",
                got=self.rows_per_group,
                expected="a positive number of rows",
                remedy="rows_per_group=1_000_000",
            )


def write_partitions(
    read: Callable[[Partition], Frame],
    partitions: Sequence[Partition],
    schema: Schema,
    path: Path,
    options: ParquetOptions,
    backend: Backend,
) -> None:
    """Write to one file where `path` ends in `.parquet`, else to a folder with a part per partition; atomically.

    While one is written, the next are made by a few threads; on a GPU in turn, whose kernels use all of it already.

    Raises:
        BadFile: something is at `path`, and `options` do not say that it may be replaced.
    """
    with replacing(path, overwrite=options.overwrite) as draft, closing(_tables(read, partitions, backend)) as tables:
        if path.suffix == ".parquet":
            _write_file(tables, schema, draft, options)
        else:
            draft.mkdir()
            for number, table in enumerate(tables):
                _write_file([table], schema, draft / f"part-{number:05d}.parquet", options)


def _tables(
    read: Callable[[Partition], Frame], partitions: Sequence[Partition], backend: Backend
) -> Generator[pa.Table]:
    """The partitions' tables, in order; what fails is told with the partition it failed on."""

    def made(partition: Partition) -> pa.Table:
        try:
            return backend.to_arrow(read(partition))
        except Exception as error:
            error.add_note(f"in partition {partition.index}: {partition.description}")
            raise

    yield from ordered_map(made, partitions, threads=1 if backend.name == "gpu" else None)


def _write_file(tables: Iterable[pa.Table], schema: Schema, path: Path, options: ParquetOptions) -> None:
    types = pa.schema([(item.name, arrow_type(item.dtype)) for item in schema])
    # A dictionary of floats costs a hash per value and is thrown away when it has grown too large.
    coded = [item.name for item in schema if item.dtype not in FLOATS]
    with pq.ParquetWriter(path, types, compression=options.compression, use_dictionary=coded) as writer:
        typed = (table.select(types.names).cast(types) for table in tables)
        for table in _gathered(typed, options.rows_per_group):
            writer.write_table(table, row_group_size=options.rows_per_group)


def _gathered(tables: Iterable[pa.Table], num_rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of at least `num_rows`, the last apart; at least one table."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(item.num_rows for item in waiting) >= num_rows:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
