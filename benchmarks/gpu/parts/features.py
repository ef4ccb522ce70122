"""The kernel that writes a feature block in one pass, beside the same block written column by column with CuPy.

Each value is filled and scaled, with all steps held to a range and its logarithm taken between, and stored in a block
of rows. The share of the copy bandwidth counts each byte that is read and each that is written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from stage import Stage

from gpupipe.backend import Backend, Column, RawColumn
from gpupipe.backend.kernels import DeferredColumn, ElementwiseProgram, Scale

ROWS, COLUMNS = 10_000_000, 40
SCALE = Scale(offset=0.25, divisor=1.5)
FILLED = ElementwiseProgram(fill=0.25, scale=SCALE)
ALL = ElementwiseProgram(fill=0.25, clip=(-0.5, 3.0), log=True, scale=SCALE)


@dataclass(frozen=True)
class Case:
    """A block to write.

    Args:
        types: of the columns, over and over.
        program: what becomes of each value.
        halves: whether numbers are stored as bfloat16.
    """

    types: tuple[str, ...] = ("float32",)
    program: ElementwiseProgram = FILLED
    halves: bool = False

    @property
    def row_bytes(self) -> int:
        """Of a row, read and written."""
        sizes = [torch.empty(0, dtype=getattr(torch, self.types[j % len(self.types)])).itemsize for j in range(COLUMNS)]
        return sum(sizes) + COLUMNS * (2 if self.halves else 4)


CASES = {
    "float32": Case(),
    "float32, all steps": Case(program=ALL),
    "float32 to bfloat16": Case(halves=True),
    "float64 and int64": Case(("float64", "int64")),
    "float32, int32, float64": Case(("float32", "int32", "float64")),
}


def measure(stage: Stage) -> None:
    rows = stage.rows(ROWS)
    for name, case in CASES.items():
        if stage.room(name, 4):
            found = stage.tried(lambda name=name, case=case: of_case(stage, name, case, rows))
            stage.tell(name, {"rows": rows, "columns": COLUMNS} | found)


def of_case(stage: Stage, name: str, case: Case, rows: int) -> dict[str, Any]:
    """Both ways, and how far what they write is apart."""
    backend = stage.backend
    sources = columns_of(backend, case, rows)
    late = [DeferredColumn(RawColumn(values), case.program, partial(Column, "float32", values)) for values in sources]
    width = -(-(COLUMNS // 2 if case.halves else COLUMNS) // 8) * 8
    words = torch.empty((rows, width), dtype=torch.int32, device=stage.device)
    table, halves = backend.xp.from_dlpack(words), COLUMNS if case.halves else 0
    block = torch.empty((rows, COLUMNS), dtype=torch.bfloat16 if case.halves else torch.float32, device=stage.device)
    found: dict[str, Any] = {}
    unfused = stage.seconds(f"{name}, unfused", lambda: by_columns(backend, case, sources, block))
    found["unfused"] = {"share_of_copy": stage.share_of_copy(rows * case.row_bytes, unfused["median"]), "s": unfused}
    if not backend.write_rows(table, late, [False] * COLUMNS, halves):
        stage.drop(f"{name}, fused: there is no kernel here")
        return found
    fused = stage.seconds(f"{name}, fused", lambda: backend.write_rows(table, late, [False] * COLUMNS, halves), 20)
    found["fused"] = {"share_of_copy": stage.share_of_copy(rows * case.row_bytes, fused["median"]), "s": fused}
    written = words.view(block.dtype)[:, :COLUMNS]
    apart = max(float((written[:, j].float() - block[:, j].float()).abs().max()) for j in range(COLUMNS))
    return found | {"times_unfused": unfused["median"] / fused["median"], "largest_difference": apart}


def columns_of(backend: Backend, case: Case, rows: int) -> list[Any]:
    """Columns on the device, all drawn from one; of floats every twentieth value or so is missing."""
    found, drawn = [], backend.to_device(np.random.default_rng(0).uniform(-1.0, 4.0, rows))
    for place in range(COLUMNS):
        dtype = case.types[place % len(case.types)]
        values = drawn * (1.0 + place / 64)
        if dtype.startswith("float"):
            values[:: 20 + place] = float("nan")
        found.append(values.astype(dtype))
    return found


def by_columns(backend: Backend, case: Case, sources: Sequence[Any], block: torch.Tensor) -> None:
    """What one writes by hand: an array after each step, float32 throughout, and a strided write at the end."""
    xp, program = backend.xp, case.program
    halves = block.dtype == torch.bfloat16
    rows = block if halves else xp.from_dlpack(block)
    for place, values in enumerate(sources):
        x = values.astype("float32")
        x = xp.where(xp.isnan(x), xp.float32(program.fill), x)
        if program.clip is not None:
            x = xp.clip(x, *map(xp.float32, program.clip))
        if program.log:
            x = xp.log1p(x)
        x = (x - xp.float32(SCALE.offset)) / xp.float32(SCALE.divisor)
        rows[:, place] = torch.from_dlpack(x) if halves else x
