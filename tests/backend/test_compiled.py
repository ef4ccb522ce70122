"""Loops are compiled once, kept where they can be, and said nothing of."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from gpupipe.backend import compiled


@pytest.mark.slow
def test_a_loop_is_compiled_once_and_then_runs_without_numba(tmp_path: Path) -> None:
    code = """
        import sys
        import numpy as np
        from gpupipe.backend.kernels import find_bounds
        print(find_bounds(np.ones(3), np), "numba" in sys.modules)
    """
    folder = tmp_path / "kept"
    assert _in_a_process(code, folder) == "(0, 1.0, 1.0) True"
    (kept,) = folder.iterdir()
    assert kept.name.startswith("kernels._sum_blocks-")
    assert _in_a_process(code, folder) == "(0, 1.0, 1.0) False"
    kept.write_bytes(kept.read_bytes()[:-1000])
    assert _in_a_process(code, folder) == "(0, 1.0, 1.0) True"
    assert _in_a_process(code, kept) == "(0, 1.0, 1.0) True"  # nothing can be kept in a file


@compiled.compile_loop()
def _copy(out: Any, values: Any, factor: Any) -> Any:
    for row in range(out.size):
        out[row] = values[row] * factor
    return out.size


@compiled.compile_loop()
def _allocate(values: Any) -> int:
    return len(np.flatnonzero(values))


@compiled.compile_loop()
def _refuse(values: Any) -> int:
    if values[0] > 0:
        raise ValueError
    return 0


@pytest.mark.slow
@pytest.mark.parametrize("factor", [3, -2, True, 2.5, np.float64(0.5), np.uint64(2**63), np.int64(-1)])
def test_numbers_and_arrays_arrive_as_they_are(factor: Any) -> None:
    values = np.arange(4.0)
    out = np.empty(4)
    assert _copy(out, values, factor) == 4
    np.testing.assert_array_equal(out, values * float(factor))


@pytest.mark.slow
@pytest.mark.parametrize("loop", [_allocate, _refuse])
def test_a_loop_that_needs_numba_at_run_time_is_refused(loop: compiled.Loop) -> None:
    with pytest.raises(TypeError, match=f"{loop.__name__} allocates, raises"):
        loop(np.ones(3))


def test_an_array_with_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="C-contiguous"):
        _copy(np.empty(3), np.ones(6)[::2], 1)


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

    def load_slowly(function: Any, *_: Any) -> Any:
        time.sleep(0.02)
        functions.append(function)
        return len

    monkeypatch.setattr(compiled, "_load", load_slowly)
    loop = compiled.compile_loop()(abs)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(loop, [-1, -2, -3, -4])) == [8] * 4  # the bytes of a number
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
