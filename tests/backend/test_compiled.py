"""Loops are compiled once, kept where they can be, and said nothing of."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from gpupipe.backend import compiled


@pytest.mark.slow
def test_where_nothing_can_be_kept_it_compiles_all_the_same(tmp_path: Path) -> None:
    code = """
        import numpy as np
        from numba.core.caching import CacheImpl
        CacheImpl._locator_classes = []  # as if no folder could be written to, which root cannot be told
        from gpupipe.backend.kernels import find_bounds
        print(find_bounds(np.ones(3), np))
    """
    assert _in_a_process(code, tmp_path) == "(0, 1.0, 1.0)"


@pytest.mark.slow
def test_where_the_disk_is_full_it_runs_all_the_same(tmp_path: Path) -> None:
    code = """
        import resource
        import numpy as np
        from gpupipe.backend.kernels import find_bounds, compute_moments
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
        print(find_bounds(np.ones(3), np), compute_moments(np.ones(3), np, 1.0))
    """
    found = _in_a_process(code, tmp_path)
    assert found == "(0, 1.0, 1.0) (0, 1.0, 1.0, 0.0, 0.0)"


def test_threads_that_meet_at_a_loop_compile_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    functions: list[Any] = []

    def compile_slowly(function: Any) -> Any:
        time.sleep(0.02)
        functions.append(function)
        return function

    monkeypatch.setattr(compiled, "_import_numba", lambda: SimpleNamespace(njit=lambda **_: compile_slowly))
    loop = compiled.compile_loop()(abs)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(loop, [-1, -2, -3, -4])) == [1, 2, 3, 4]
    assert functions == [abs]


@pytest.mark.slow
@pytest.mark.parametrize(("said", "told"), [("", False), ("logging.getLogger('numba').setLevel('DEBUG')", True)])
def test_what_the_compiler_does_is_logged_if_somebody_asks_for_it(said: str, told: bool, tmp_path: Path) -> None:
    code = f"""
        import logging
        import sys
        import numpy as np
        from gpupipe.backend.kernels import find_bounds
        {said}
        logging.basicConfig(level="DEBUG", stream=sys.stdout)
        print(find_bounds(np.ones(3), np))
    """
    assert ("numba" in _in_a_process(code, tmp_path)) == told


def _in_a_process(code: str, cache: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()
