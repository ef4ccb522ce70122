"""The kernel compiled for chips that are not here: as wide as its loads and stores should be, and nothing spilled."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpupipe.backend import Column, RawColumn
from gpupipe.backend.kernels import DeferredColumn, ElementwiseProgram, Scale

triton = pytest.importorskip("triton", reason="Triton is not installed here: make test-rapids")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime import driver  # noqa: E402

from gpupipe.backend.fused import launch  # noqa: E402

SIMPLE = ElementwiseProgram(fill=0.0, scale=Scale(1.0, 2.0))
FULL = ElementwiseProgram(1.0, (0.0, 9.0), log=True, scale=Scale(1.0, 2.0, 3.0, 4.0, 0.0, 1.0))
MIXED = ["float32", "float64", "int64", "int32", "int8", "bool"]
TILE = 256  # rows


class Chip:
    """What Triton asks of a device to compile for it."""

    def __init__(self, capability: int) -> None:
        self.get_current_target = lambda: GPUTarget("cuda", capability, 32)
        self.get_current_device = lambda: capability  # a number of its own: Triton keeps kernels by device
        self.get_current_stream = lambda device: 0


@pytest.fixture
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    """What `write_rows` would launch on that chip, in order, as (arguments, compiled kernel)."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, launched = launch.write_tile, []

    def compile_for(grid: tuple[int], *args: Any, **kwargs: Any) -> None:
        made = kernel.warmup(*args, grid=grid, **kwargs)
        launched.append((kwargs, made.result() if hasattr(made, "result") else made))
        assert launched[-1][1].metadata.target.arch == request.param

    class Compiling:
        def __getitem__(self, grid: tuple[int]) -> Any:
            return lambda *args, **kwargs: compile_for(grid, *args, **kwargs)

    monkeypatch.setattr(launch, "write_tile", Compiling())
    driver.set_active(Chip(request.param))
    yield launched
    with suppress(RuntimeError):  # there may be no other
        driver.reset_active()


def nobody() -> Column:
    """What a late column is made by: the kernel needs none."""
    raise AssertionError


def write(dtypes: list[str], program: ElementwiseProgram, num_rows: int, halves: int = 0) -> None:
    columns: list[Column] = []
    for dtype in dtypes:
        memory = np.ones(num_rows + 16, dtype)
        start = -memory.ctypes.data % 16 // memory.itemsize
        data = memory[start : start + num_rows]
        mask = None if dtype.startswith("float") else np.full(num_rows // 8 + 1, 255, np.uint8)
        columns.append(DeferredColumn(RawColumn(data, mask, 3, 8), program, nobody))
    columns.append(Column("int32", np.ones(num_rows, np.int32)))
    width = -(-(len(columns) - halves + -(-halves // 2)) // 8) * 8
    ids = [False] * len(dtypes) + [True]
    assert launch.write_rows(np.zeros((num_rows, width), np.int32), columns, ids, np, halves)


def report(made: Any, tmp_path: Path) -> SimpleNamespace:
    """What the compiler made: the loads and stores of PTX and of the chip's own code, and the memory of a thread."""
    (tmp_path / "cubin").write_bytes(made.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"

    def dumped(what: str) -> str:
        asked = [str(tool), what, str(tmp_path / "cubin")]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout

    ptx = set(re.findall(r"\b(?:ld|st)\.(?:global|local)[\w.:]*", made.asm["ptx"]))
    sass = set(re.findall(r"\b(?:LDG|STG|LDL|STL)[\w.]*", dumped("--dump-sass")))
    used = dict(re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", dumped("--dump-resource-usage")))
    return SimpleNamespace(ptx=ptx, sass=sass, spilled=int(used["STACK"]) + int(used["LOCAL"]), registers=used["REG"])


def widest(found: set[str], operation: str) -> bool:
    """Whether there are loads or stores of 16 bytes at once."""
    return any(name.startswith(operation) and re.search(r"\.v4\.b32|\.v2\.b64|\.128", name) for name in found)


CASES = {"float32": (["float32"] * 40, SIMPLE, 0), "mixed": (MIXED * 7, FULL, 0), "bfloat16": (MIXED * 3, SIMPLE, 18)}


# A kernel takes seconds to compile: the other chips have the one that takes the most registers.
@pytest.mark.parametrize(
    ("compiled", "dtypes", "program", "halves"),
    [
        pytest.param(chip, *CASES[case], id=f"sm_{chip}-{case}")
        for chip, case in [(80, "mixed"), *((90, case) for case in CASES), (100, "mixed")]
    ],
    indirect=["compiled"],
)
def test_loads_and_stores_are_wide_and_nothing_spills(
    compiled: list[Any], tmp_path: Path, dtypes: list[str], program: ElementwiseProgram, halves: int
) -> None:
    write(dtypes, program, TILE + 5, halves)
    assert len(compiled) == (4 if halves else 2)
    for arguments, made in compiled:
        found = report(made, tmp_path)
        assert found.spilled == 0
        assert not any(name.startswith(("LDL", "STL")) for name in found.sass)
        assert made.metadata.shared <= 48 << 10
        if arguments["WHOLE"]:
            assert widest(found.ptx, "ld.global") and widest(found.sass, "LDG")
        if arguments["WHOLE"] and not arguments["FIRST"]:
            assert widest(found.ptx, "st.global") and widest(found.sass, "STG")


@pytest.mark.parametrize("compiled", [90], indirect=True)
def test_columns_at_odd_addresses_are_read_one_value_at_a_time(compiled: list[Any], tmp_path: Path) -> None:
    data = np.ones(TILE + 1, np.float32)
    at = 1 if data.ctypes.data % 16 == 0 else 0
    late = DeferredColumn(RawColumn(data[at : at + TILE]), SIMPLE, nobody)
    assert launch.write_rows(np.zeros((TILE, 8), np.int32), [late], [False], np)
    ((arguments, made),) = compiled
    assert not arguments["WHOLE"]
    assert not widest({name for name in report(made, tmp_path).ptx if ".b32" in name}, "ld.global")
