"""Tables to Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from gpupipe.backend.arrow import parquet_path
from gpupipe.backend.arrow_types import written_type
from gpupipe.backend.protocol import ParquetLayout
from gpupipe.errors import BadConfig
from gpupipe.io.hive import folder_name
from gpupipe.schema import FLOATS, Schema, element_of
from gpupipe.words import is_integer

__all__ = ["ParquetOptions", "file_types", "group_rows", "write_file", "write_hive"]

_CODECS = ("snappy", "zstd", "lz4", "gzip", "brotli", "none")


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """How files are written.

    Args:
        rows_per_group: rows of a row group; smaller tables are gathered.
        compression: Parquet's name of a codec.
        partition_by: columns whose values become folders (`month=3/`) and are left out of the files.
        shuffle: which rows are put in a random order: none (False), those of each partition, or all (`"full"`).
        seed: of that order.
    """

    rows_per_group: int = 1_000_000
    compression: str = "snappy"
    partition_by: tuple[str, ...] = ()
    shuffle: Literal[False, "partition", "full"] = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.compression not in _CODECS:
            raise BadConfig(
                "write_parquet",
                "no such codec",
                got=self.compression,
                expected=", ".join(_CODECS),
                remedy="compression='zstd'",
            )
        if self.shuffle not in (False, "partition", "full"):
            raise BadConfig(
                "write_parquet",
                "no such shuffle",
                got=self.shuffle,
                expected="False, 'partition' or 'full'",
                remedy="shuffle='full'",
            )
        if not is_integer(self.rows_per_group, 1):
            raise BadConfig(
                "write_parquet",
                "rows_per_group is too small",
                got=self.rows_per_group,
                expected="a positive number of rows",
                remedy="rows_per_group=1_000_000",
            )

    def layout(self, schema: Schema) -> ParquetLayout:
        """Lay out a file of these columns."""
        # A dictionary of floats costs a hash per value and is thrown away when it has grown too large.
        coded = (item.name for item in schema if (element_of(item.dtype) or item.dtype) not in FLOATS)
        return ParquetLayout(self.rows_per_group, self.compression, frozenset(coded))


def write_file(tables: Iterable[pa.Table], schema: Schema, path: Path, options: ParquetOptions) -> None:
    """Write all tables to one file.

    Memory: as many tables as make a row group.
    """
    types, layout = file_types(schema), options.layout(schema)
    coded = [parquet_path(item) for item in schema if item.name in layout.dictionary]
    with pq.ParquetWriter(path, types, compression=layout.compression, use_dictionary=coded) as writer:
        typed = (table.select(types.names).cast(types) for table in tables)
        for table in _gathered(typed, layout.rows_per_group):
            writer.write_table(table, row_group_size=layout.rows_per_group)


def group_rows(path: Path) -> list[int]:
    """Read the rows of each row group of a file."""
    # Not collected by the writer: where a disk is full, it would raise for what it cannot collect, and hide why.
    written = pq.read_metadata(path)
    return [written.row_group(group).num_rows for group in range(written.num_row_groups)]


def write_hive(tables: Iterable[pa.Table], schema: Schema, folder: Path, name: str, options: ParquetOptions) -> None:
    """Write to a folder per combination of values of `options.partition_by`, with a file `name` in each.

    Memory: row groups of all the folders that are open.
    """
    types, layout = file_types(schema), options.layout(schema)
    # pyarrow escapes the keys' values, but not their names.
    names = [folder_name(name) if name in options.partition_by else name for name in types.names]
    written = pa.schema([item.with_name(name) for item, name in zip(types, names, strict=True)])
    keys = pa.schema([written.field(folder_name(key)) for key in options.partition_by])
    form = pads.ParquetFileFormat()
    coded = [
        parquet_path(item)
        for item in schema
        if item.name in layout.dictionary and item.name not in options.partition_by
    ]
    typed = (table.select(types.names).cast(types).rename_columns(names) for table in tables)
    batches = (batch for table in typed for batch in table.to_batches())
    pads.write_dataset(
        batches,
        folder,
        schema=written,
        format=form,
        partitioning=pads.partitioning(keys, flavor="hive"),
        basename_template=f"{name}-{{i}}.parquet",
        file_options=form.make_write_options(compression=layout.compression, use_dictionary=coded),
        max_rows_per_group=layout.rows_per_group,
        max_partitions=10_000,
        use_threads=False,
    )


def file_types(schema: Schema) -> pa.Schema:
    """Give the types of the columns in files, with their units as metadata."""
    return pa.schema(
        pa.field(item.name, written_type(item), metadata={"units": item.units} if item.units else None)
        for item in schema
    )


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
