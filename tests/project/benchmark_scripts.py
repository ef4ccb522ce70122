"""The benchmarks' files as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def benchmark_script(path: str, patch: pytest.MonkeyPatch) -> ModuleType:
    """The file at a path below `benchmarks`, which finds those beside it and above; no other module is called as it."""
    file = BENCHMARKS / path
    for folder in reversed([above for above in file.parents if above.is_relative_to(BENCHMARKS)]):
        patch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.removesuffix('.py').replace('/', '_')}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
