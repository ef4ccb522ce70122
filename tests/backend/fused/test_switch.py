"""The kernel that writes whole rows is believed after its first block of a kind was compared with the steps' own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.backend import Column, RawColumn
from gpupipe.backend.cpu import CpuBackend
from gpupipe.backend.fused import switch
from gpupipe.backend.kernels import DeferredColumn, ElementwiseProgram, Scale
from tests.kernels.reference import block_of, results_of, values_of


class Kernel:
    """Writes what it should, or in a column something else; `looked_at` counts the late columns the steps made."""

    def __init__(self) -> None:
        self.spoils: int | None = None
        self.by = 1.0
        self.looked_at = 0

    def find_obstacle(self, xp: Any) -> str:
        return ""

    def write_rows(self, words: Any, columns: Sequence[Column], ids: Sequence[bool], xp: Any, halves: int) -> bool:
        words[:] = block_of(columns, ids, words.shape[1], halves)
        if self.spoils is not None and self.spoils < halves:
            words.view(np.int16)[-1, self.spoils] += 64
        elif self.spoils is not None and ids[self.spoils]:
            words[-1, self.spoils] += 1
        elif self.spoils is not None:
            words.view(np.float32)[-1, self.spoils - halves + -(-halves // 2)] *= 1 + self.by
        return True

    def late(self, data: Any, program: ElementwiseProgram) -> DeferredColumn:
        def steps() -> Column:
            self.looked_at += 1
            return Column("float32", results_of(values_of(RawColumn(data)), program).astype("float32"))

        return DeferredColumn(RawColumn(data), program, steps)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(switch, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(switch, "import_module", lambda name: made)
    return made


SCALE = ElementwiseProgram(fill=0.0, scale=Scale(1.0, 2.0))
LOG = ElementwiseProgram(log=True, scale=Scale(1.0, 1e-3))


def write(
    rows: switch.FusedRows, kernel: Kernel, program: ElementwiseProgram, num_rows: int = 300, halves: int = 0
) -> bool:
    numbers = np.random.default_rng(0).gamma(2, 5, num_rows)
    columns = [
        kernel.late(numbers, program),
        Column("float64", numbers),
        Column("int32", np.arange(num_rows, dtype="i4")),
    ]
    return rows.write(np.zeros((num_rows, 8), np.int32), columns, [False, False, True], halves)


def test_each_kind_of_columns_is_compared_once(kernel: Kernel) -> None:
    rows = switch.FusedRows(np, 0)
    for program, num_rows, halves, looked_at in [
        (SCALE, 300, 0, 1),
        (SCALE, 400, 0, 1),
        (SCALE, 300, 2, 2),
        (LOG, 300, 0, 3),
        (LOG, 30, 0, 4),
        (LOG, 300, 0, 4),
    ]:
        assert write(rows, kernel, program, num_rows, halves)
        assert kernel.looked_at == looked_at


@pytest.mark.parametrize(("spoils", "halves"), [(0, 0), (1, 0), (2, 0), (0, 2), (1, 2)])
def test_after_a_difference_it_is_not_used_again(
    kernel: Kernel, caplog: pytest.LogCaptureFixture, spoils: int, halves: int
) -> None:
    rows, kernel.spoils = switch.FusedRows(np, 0), spoils
    with caplog.at_level(logging.WARNING, "gpupipe"):
        assert rows.works() and not write(rows, kernel, SCALE, halves=halves)
        assert not rows.works() and not write(rows, kernel, SCALE, halves=halves)
    (record,) = caplog.records
    assert "column by column" in record.getMessage() and "1 of its numbers" in record.getMessage()


def test_the_last_bit_of_a_logarithm_is_no_difference(kernel: Kernel) -> None:
    kernel.spoils, kernel.by = 0, 1e-5
    assert write(switch.FusedRows(np, 0), kernel, LOG)


def test_a_block_that_was_written_wrong_is_written_again(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame({"x": [1.0, None, 3.0], "n": [3, 1, 2], "y": [0.0, 1.0, 2.0]})
    features = gp.Features((["x", "n"], [pre.SimpleImputer(), pre.StandardScaler()]), target="y")
    pipeline = gp.Pipeline([], features, backend="cpu").fit(frame)
    wanted, rows = pipeline.loader(frame).table, switch.FusedRows(np, 0)
    monkeypatch.setattr(CpuBackend, "fuses", lambda _: rows.works())
    monkeypatch.setattr(CpuBackend, "write_rows", lambda _, words, *given: rows.write(words, *given))
    assert pipeline.loader(frame).table.numeric.tolist() == wanted.numeric.tolist()
    assert rows.works()
    rows, kernel.spoils = switch.FusedRows(np, 0), 0
    assert pipeline.loader(frame).table.numeric.tolist() == wanted.numeric.tolist()
    assert not rows.works()
