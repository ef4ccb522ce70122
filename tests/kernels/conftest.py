"""The feature kernel in Triton's interpreter, on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gpupipe.backend import Column
from gpupipe.backend.cpu import CpuBackend

KERNEL, ROWS = "gpupipe.backend.fused.kernel", "gpupipe.backend.fused.launch"


@pytest.fixture(scope="session")
def feature_rows() -> ModuleType:
    """`gpupipe.backend.fused.launch` with a kernel that NumPy runs; Triton asks for it where the kernel is defined."""
    pytest.importorskip("triton", reason="Triton is not installed here: make test-rapids")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for name in (KERNEL, ROWS):
            patch.delitem(sys.modules, name, raising=False)
        made = import_module(ROWS)
    for name in (KERNEL, ROWS):
        sys.modules.pop(name)
    return made


@pytest.fixture(scope="session")
def write_rows(feature_rows: ModuleType) -> Callable[..., bool]:
    """`write_rows` on NumPy's arrays."""

    def write(words: Any, columns: Any, ids: Any, halves: int = 0) -> bool:
        with np.errstate(all="ignore"):  # a chip has no warnings
            return bool(feature_rows.write_rows(words, columns, ids, np, halves))

    return write


@pytest.fixture
def fusing(write_rows: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The CPU backend with the kernel, as the GPU has it; holds what each `write_rows` said."""
    said: list[bool] = []

    def write(_: CpuBackend, words: Any, columns: list[Column], ids: list[bool], halves: int = 0) -> bool:
        said.append(write_rows(words, columns, ids, halves))
        return said[-1]

    monkeypatch.setattr(CpuBackend, "fuses", lambda _: True)
    monkeypatch.setattr(CpuBackend, "write_rows", write)
    return said
