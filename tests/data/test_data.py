"""The shipped tables are what their card says, and what the figures in tests and documents were measured on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

DATA = Path(__file__).parents[2] / "data"
ROWS = {"airlines": 16, "airports": 1_458, "flights": 336_776, "planes": 3_322, "weather": 26_115}
DIGESTS = {
    "airlines": "8c693112ef0e39d0dbc3cceb69e1d3d3d4b7c7fc35ad2de1a5b374e1a0def696",
    "airports": "a2d7b5e91aa33b08a9dda2c64c09e7d2869c4aca3b3f5aff87efaf8c770da2f8",
    "flights": "0b284467eb132773f5d917312f61b3b097d47790e39719e72f42e3ff83502658",
    "planes": "a88e6e0d86391241bf3870b26c6b34602e3acc423b0cf4ae51cfe838aa4c515e",
    "weather": "a126739a9af794091283bd31aa8247e8f7d7514e0d4e29b1b77e3207dc62070d",
}
KEYS = {"airlines": ["carrier"], "airports": ["faa"], "planes": ["tailnum"], "weather": ["origin", "time_hour"]}


def digest(table: pa.Table) -> str:
    """A hash of names, types, missing places and values, however they are stored."""
    sha = hashlib.sha256()
    for field, column in zip(table.schema, table.columns, strict=True):
        sha.update(f"{field.name}:{field.type}\n".encode())
        sha.update(np.packbits(column.is_null().to_numpy()).tobytes())
        if pa.types.is_large_string(field.type):
            sha.update("\n".join(pc.fill_null(column, "").to_pylist()).encode())
        else:
            values = column.cast(pa.int64()) if pa.types.is_timestamp(field.type) else column
            sha.update(pc.fill_null(values, pa.scalar(0, values.type)).to_numpy().tobytes())
    return sha.hexdigest()


def card() -> dict[str, list[tuple[str, str, str]]]:
    """Column, type and share of missing values of each table, as the card states them."""
    tables: dict[str, list[tuple[str, str, str]]] = {}
    name = ""
    for line in (DATA / "README.md").read_text().splitlines():
        if line.startswith("## "):
            name = line.removeprefix("## ").removesuffix(".parquet")
            tables[name] = []
        elif name and line.startswith("| ") and not line.startswith("| column"):
            column, kind, _, _, missing, _ = (cell.strip() for cell in line.strip("|").split("|"))
            tables[name].append((column, kind, missing))
    return tables


def stated(table: pa.Table) -> list[tuple[str, str, str]]:
    """The same for the table itself."""
    kinds = {"large_string": "string", "double": "float64"}
    rows = []
    for field, column in zip(table.schema, table.columns, strict=True):
        share = column.null_count / table.num_rows
        missing = "0" if not share else "<0.01%" if share < 1e-4 else f"{share:.2%}"
        rows.append((field.name, kinds.get(str(field.type), str(field.type)), missing))
    return rows


@pytest.fixture(scope="module", params=sorted(ROWS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_content_is_what_was_published(name: str) -> None:
    table = pq.read_table(DATA / f"{name}.parquet")
    assert table.num_rows == ROWS[name]
    assert digest(table) == DIGESTS[name]


def test_card_tells_columns_types_and_missing_shares(name: str) -> None:
    table = pq.read_table(DATA / f"{name}.parquet")
    assert card()[name] == stated(table)
    assert f"{table.num_rows:,} " in (DATA / "README.md").read_text()


@pytest.mark.parametrize("name", sorted(KEYS))
def test_lookup_keys_are_unique(name: str) -> None:
    keys = pq.read_table(DATA / f"{name}.parquet", columns=KEYS[name])
    assert keys.group_by(KEYS[name]).aggregate([]).num_rows == keys.num_rows


def test_flights_have_six_row_groups_of_whole_columns() -> None:
    file = pq.ParquetFile(DATA / "flights.parquet").metadata
    assert [file.row_group(group).num_rows for group in range(file.num_row_groups)] == [65_536] * 5 + [9_096]


def test_all_files_stay_below_ten_megabytes() -> None:
    assert sum(path.stat().st_size for path in DATA.glob("*.parquet")) < 10_000_000


def test_digest_sees_one_changed_value_and_one_more_null() -> None:
    table = pa.table({"a": pa.array([1, 2, None], pa.int16())})
    assert digest(table) != digest(pa.table({"a": pa.array([1, 3, None], pa.int16())}))
    assert digest(table) != digest(pa.table({"a": pa.array([1, 2, 0], pa.int16())}))
    assert digest(table) == digest(
        pa.table({"a": pa.chunked_array([pa.array([1], pa.int16()), pa.array([2, None], pa.int16())])})
    )
