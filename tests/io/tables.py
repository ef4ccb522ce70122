"""Tables for the tests of this room, and what a frame holds in plain Python."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import gpupipe as gp

DATA = Path(__file__).parents[2] / "data"

_times = st.datetimes(datetime.fromisoformat("1900-01-01"), datetime.fromisoformat("2200-01-01"))
_columns = {
    "größe": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "tiny": (pa.int8(), st.integers(-128, 127)),
    "big": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "x": (pa.float64(), st.floats()),
    "y": (pa.float32(), st.floats(width=32)),
    "ok": (pa.bool_(), st.booleans()),
    "名": (pa.string(), st.sampled_from(["JFK", "LGA", "", "é", "日本", "a b"])),
    "at": (pa.timestamp("us"), _times),
}


def tables(max_rows: int = 30) -> st.SearchStrategy[pa.Table]:
    """Tables of every type, each column with and without missing values."""

    @st.composite
    def build(draw: st.DrawFn) -> pa.Table:
        num_rows = draw(st.integers(0, max_rows))
        arrays = {}
        for name, (kind, values) in _columns.items():
            item = st.none() | values if draw(st.booleans()) else values
            arrays[name] = pa.array(draw(st.lists(item, min_size=num_rows, max_size=num_rows)), kind)
        return pa.table(arrays)

    return build()


def arrow(frame: Any) -> pa.Table:
    """A frame that a user was given, as a table; NaN as null."""
    assert (frame.index.start, frame.index.stop, frame.index.step) == (0, len(frame), 1)
    if isinstance(frame, pd.DataFrame):
        return pa.Table.from_pandas(frame, preserve_index=False)
    return frame.to_arrow(preserve_index=False)


def plain(table: Any) -> list[dict[str, Any]]:
    """The rows of a frame or table as dicts, None for what is missing (NaN too)."""
    rows = (table if isinstance(table, pa.Table) else arrow(table)).to_pylist()
    return [{name: None if value != value else value for name, value in row.items()} for row in rows]


def values(data: Any, name: str) -> list[Any]:
    """One column of a dataset or frame in plain Python."""
    return [row[name] for row in plain(data.compute() if isinstance(data, gp.Dataset) else data)]


def flights() -> pa.Table:
    """The shipped flights."""
    return pq.read_table(DATA / "flights.parquet")


def damage(path: Path, group: int, column: str) -> None:
    """Overwrite the bytes of one column chunk, so that whoever decodes it fails."""
    metadata = pq.read_metadata(path)
    chunk = next(
        metadata.row_group(group).column(i)
        for i in range(metadata.num_columns)
        if metadata.row_group(group).column(i).path_in_schema == column
    )
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)
