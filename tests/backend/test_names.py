"""Columns called like an argument, like nothing or like two words go through every verb that takes a frame."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpupipe.backend import Backend, Column
from gpupipe.schema import Field

NAMES = ["self", "index", "names", "inplace", "key", "", "a b", "a.b", "columns", "on", "level_0", "0", "data", "copy"]
VALUES: dict[str, list[Any]] = {
    "string": ["x", None, "y"],
    "int64": [1, None, 3],
    "float64": [0.5, None, 2.0],
    "bool": [True, None, False],
    "timestamp": [datetime(2013, 1, 1), None, datetime(2013, 1, 2)],  # noqa: DTZ001 - naive, as timestamps are here
}
KINDS = [list(VALUES)[position % len(VALUES)] for position in range(len(NAMES))]
FIELDS = [Field(name, kind) for name, kind in zip(NAMES, KINDS, strict=True)]
TABLE = pa.table([pa.array(VALUES[kind]) for kind in KINDS], names=NAMES)


def columns_of(backend: Backend, frame: Any) -> dict[str, Column]:
    return {name: backend.column(frame, name) for name in NAMES}


def away_and_back(backend: Backend, frame: Any) -> Any:
    away = {name: f"{name}!" for name in NAMES}
    return backend.rename(backend.rename(frame, away), {new: name for name, new in away.items()})


SAME: dict[str, Callable[[Backend, Any], Any]] = {
    "from_arrow": lambda b, frame: b.from_arrow(b.to_arrow(frame), list(b.schema_of(frame))),
    "encode": lambda b, frame: b.encode(b.decode(frame)),
    "frame": lambda b, frame: b.frame(columns_of(b, frame), len(frame)),
    "assign": lambda b, frame: b.select(b.assign(b.select(frame, NAMES[::2]), columns_of(b, frame)), NAMES),
    "rename": away_and_back,
    "take": lambda b, frame: b.take(frame, b.to_device(np.arange(3))),
    "filter": lambda b, frame: b.filter(frame, b.to_device(np.ones(3, dtype=bool))),
    "concat": lambda b, frame: b.concat([frame, b.filter(frame, b.to_device(np.zeros(3, dtype=bool)))]),
}
COVERED = {"name_table", "to_arrow", "decode", "schema_of", "dtypes", "column", "matrix", "stored", "select"}
ELSEWHERE = {"classify", "read_parquet", "read_orc", "write_parquet", "merge"}
WITHOUT_NAMES = {
    "is_range",
    "positions",
    "to_device",
    "to_host",
    "fuses",
    "write_rows",
    "trim",
    "make_room",
    "free_bytes",
    "kmeans",
    "pca",
    "scan",
    "run_plan",
}


def test_every_verb_is_tried() -> None:
    verbs = {name for name, _ in inspect.getmembers(Backend, inspect.isfunction) if not name.startswith("_")}
    assert verbs == SAME.keys() | COVERED | ELSEWHERE | WITHOUT_NAMES


@pytest.mark.parametrize("verb", SAME)
def test_a_verb_takes_any_name(backend: Backend, verb: str) -> None:
    found = backend.to_arrow(SAME[verb](backend, backend.from_arrow(TABLE, FIELDS)))
    assert found.column_names == NAMES
    assert found.to_pylist() == TABLE.to_pylist()


def test_parquet_has_any_name(backend: Backend, tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "t.parquet")
    found = backend.to_arrow(backend.read_parquet([str(tmp_path / "t.parquet")], [[0]], FIELDS))
    assert found.to_pylist() == TABLE.to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("key", [name for name, kind in zip(NAMES, KINDS, strict=True) if kind != "bool"])
def test_a_merge_takes_any_name(backend: Backend, key: str) -> None:
    """Of three rows two find themselves; the missing key finds nothing."""
    frame = backend.from_arrow(TABLE, FIELDS)
    found = backend.to_arrow(backend.merge(frame, frame, [key], "left", "_right"))
    added = {f"{name}_right": TABLE[name].to_pylist() for name in NAMES if name != key}
    assert found.to_pydict() == TABLE.to_pydict() | added
