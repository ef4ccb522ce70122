"""What the tests of whole-table verbs share: small tables in which values repeat, and rows to compare."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st

import gpupipe as gp
from tests.examples import examples
from tests.io.tables import plain

several = examples(25, suppress_health_check=[HealthCheck.too_slow])
PARTITIONS = (1, 2, 7)

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "k": (pa.string(), ["JFK", "LGA", "", "é", "日本"]),
    "n": (pa.int64(), [-(2**63), -1, 0, 3, 2**63 - 1]),
    "tiny": (pa.int8(), [-128, 0, 5, 127]),
    "u": (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    "x": (pa.float64(), [0.0, -0.0, 1.5, float("nan"), float("inf"), -2.25]),
    "ok": (pa.bool_(), [False, True]),
    "at": (pa.timestamp("us"), [datetime.fromisoformat(day) for day in ("1900-01-01", "2013-01-01", "2200-01-01")]),
}
"""Of each type few values, the extreme ones among them."""
VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "amount": (pa.int32(), st.integers(-1000, 1000)),
    "weight": (pa.float64(), st.integers(-8, 8).map(lambda n: n / 4)),
}

_MASKED = {
    pa.int8(): pd.Int8Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}


@st.composite
def meetings(draw: st.DrawFn, max_rows: int = 30) -> pa.Table:
    """Tables of `KEYS`, `VALUES` and the row's number, some columns with missing values or nothing else."""
    num_rows = draw(st.integers(0, max_rows))
    arrays = {}
    for name, (kind, found) in [*KEYS.items(), *VALUES.items()]:
        values = st.sampled_from(found) if isinstance(found, list) else found
        item = draw(st.sampled_from([values, st.none() | values, st.none()]))
        arrays[name] = pa.array(draw(st.lists(item, min_size=num_rows, max_size=num_rows)), kind)
    return pa.table({**arrays, "row": pa.array(range(num_rows), pa.int64())})


def pandas_of(table: pa.Table) -> pd.DataFrame:
    """With integers and booleans masked, NaN missing like any other."""
    return table.to_pandas(types_mapper=_MASKED.get)


def rows_of(data: Any) -> list[dict[str, Any]]:
    """The rows of a dataset, or of a frame of pandas, in plain Python."""
    frame = data.compute() if isinstance(data, gp.Dataset) else data.reset_index(drop=True)
    return plain(pa.Table.from_pandas(frame, preserve_index=False) if isinstance(frame, pd.DataFrame) else frame)


def few_bytes(monkeypatch: pytest.MonkeyPatch, num_bytes: int = 10_000) -> None:
    """Let whole tables take so many bytes of memory only: they are cut into buckets, and results go to files."""
    for module in ("gathering", "engine", "scan"):
        monkeypatch.setattr(f"gpupipe.io.relational.{module}.get_memory_limit", lambda: num_bytes)
