"""Parquet files as cudf-polars' sink leaves them: each time is in UTC, and no Arrow schema says otherwise."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def rewrite(path: Path) -> None:
    """Write a file, or those of a folder, again with libcudf's defaults, in the same row groups."""
    for file in [path] if path.is_file() else path.rglob("*.parquet"):
        rows, metadata = pq.read_table(file), pq.read_metadata(file)
        types = [item.with_type(_in_utc(item.type)) for item in rows.schema]
        groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        pq.write_table(rows.cast(pa.schema(types)), file, row_group_size=max([1, *groups]), store_schema=False)


def _in_utc(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) else kind
