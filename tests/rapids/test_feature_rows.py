"""`GpuBackend.stored` and `write_rows` on stand-ins: masks as cuDF keeps them, rows by Triton's interpreter."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from copy import copy
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import pylibcudf
import rmm

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.backend.columns import Backend
from gpupipe.backend.fused import switch
from gpupipe.schema import Field

from .oracle import CPU, host

KERNEL = ("gpupipe.backend.fused.kernel", "gpupipe.backend.fused.launch")
TABLE = pa.table(
    {
        "whole": pa.array([1, None, 3, 4, None], pa.int32()),
        "byte": pa.array([None, 2, -3, 4, 5], pa.int8()),
        "flag": pa.array([True, None, False, True, True]),
        "price": pa.array([0.5, None, 2.5, 1.0, 8.0]),
        "full": pa.array([5, 4, 3, 2, 1], pa.int64()),
        "name": pa.array(["a", "b", None, "a", "c"]),
    }
)
FIELDS = [
    Field(item.name, dtype, nullable=True)
    for item, dtype in zip(TABLE.schema, ["int32", "int8", "bool", "float64", "int64", "string"], strict=True)
]


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel as NumPy runs it."""
    pytest.importorskip("triton", reason="Triton is not installed here: make test-rapids")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for name in KERNEL:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import_module(KERNEL[1])
    yield
    for name in KERNEL:
        sys.modules.pop(name)


@pytest.mark.parametrize("name", TABLE.column_names)
def test_stored_values_and_mask_are_those_of_the_column(rehearsed_backend: Backend, name: str) -> None:
    frame = rehearsed_backend.from_arrow(TABLE, FIELDS)
    stored, column = rehearsed_backend.stored(frame, name), CPU.column(CPU.from_arrow(TABLE, FIELDS), name)
    if name == "name":
        assert stored is None
        return
    assert stored is not None
    there = np.ones(5, bool)
    if stored.mask is not None:
        bits = np.unpackbits(host(stored.mask), bitorder="little")
        there = bits[stored.first : stored.first + 5].astype(bool)
    assert there.tolist() == (there if column.valid is None else column.valid).tolist()
    np.testing.assert_array_equal(host(stored.data)[there], column.data[there])
    assert host(stored.data).dtype == column.data.dtype


def test_a_pipeline_writes_its_block_in_one_pass(
    rehearsed_backend: Any, interpreted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, said = switch.FusedRows(rehearsed_backend.xp, 0), []
    write = rows.write
    monkeypatch.setattr(rows, "write", lambda *args: said.append(write(*args)) or said[-1])
    monkeypatch.setattr(rehearsed_backend, "_rows", rows)
    features = gp.Features(
        (["whole", "byte", "flag", "price"], [pre.SimpleImputer(), pre.StandardScaler()]),
        (["name"], pre.Categorify()),
        target="full",
    )
    table = TABLE.set_column(5, "name", pa.array(["a", "b", "b", "a", "c"]))
    pipeline = gp.Pipeline([], features).fit(gp.from_frame(table))
    assert rehearsed_backend.fuses()
    block = pipeline.loader(gp.from_frame(table), device="cpu").table
    assert said == [True]
    expected = (
        gp.Pipeline([], copy(features), backend="cpu").fit(gp.from_frame(table)).loader(gp.from_frame(table)).table
    )
    assert block.numeric.tolist() == expected.numeric.tolist()
    assert block.codes.tolist() == expected.codes.tolist()
    assert block.target.tolist() == expected.target.tolist()


def test_without_triton_columns_are_written_one_by_one_and_that_is_said_once(
    rehearsed_backend: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(switch, "find_spec", lambda name: None)
    rows = switch.FusedRows(rehearsed_backend.xp, 0)
    with caplog.at_level(logging.WARNING, "gpupipe"):
        assert not rows.works()
        assert not rows.write(None, [], [], 0)
    assert [record.getMessage() for record in caplog.records] == [
        "feature block: written column by column, not in one pass (Triton is not installed)"
    ]


def test_buffers_of_cudf_are_arrays_to_cupy() -> None:
    """What `pylibcudf.Column.data()` gives, which is whatever cuDF allocated."""
    for kind in (rmm.DeviceBuffer, pylibcudf.gpumemoryview):
        assert hasattr(kind, "__cuda_array_interface__"), kind
    for verb in ("data", "null_mask", "offset"):
        assert callable(getattr(pylibcudf.Column, verb))


def test_what_triton_lacks_is_said(rehearsed_backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Without an interpreter the kernel needs a GPU, which is not here."""
    pytest.importorskip("triton", reason="Triton is not installed here: make test-rapids")
    rows = switch.FusedRows(rehearsed_backend.xp, 0)
    with caplog.at_level(logging.WARNING, "gpupipe"):
        assert not rows.works()
    assert "one pass (Triton: " in caplog.text
