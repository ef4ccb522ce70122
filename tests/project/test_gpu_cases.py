"""A suite whose GPU cases were skipped does not pass for one that ran them, and one that was ended can go on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpupipe.backend import Backend, resolve
from tests.conftest import GPU_CASES, GpuCases

ROOT = Path(__file__).parents[2]


def run(*options: str) -> tuple[int, str]:
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/expressions/test_times.py"]
    done = subprocess.run(
        [*call, *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_too_few_cases_on_a_gpu_fail_the_run_and_what_passed_is_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "new" / "passed.txt"
    some = ["-k", "no_rows or keeps or against", "--resume", str(file)]  # those that take no time
    status, output = run(*some, "--gpu-cases", "100000")
    assert status == 1, output
    assert "cases passed on a GPU, at least 100000 are asked for" in output
    assert " passed" in output and " failed" not in output
    code, *passed = file.read_text().splitlines()
    assert len(passed) > 2 and all(case.startswith("tests/expressions/test_times.py::") for case in passed)

    file.write_text("\n".join([code, *passed[1:]]) + "\n")
    status, output = run(*some)
    assert status == 0, output
    assert "1 passed" in output
    assert not file.exists(), "all have passed: the next run is a new one"

    file.write_text("\n".join(["of other code", *passed]) + "\n")
    assert GpuCases(0, file).done == set()


def test_what_passed_is_not_run_again_by_several_processes(tmp_path: Path) -> None:
    file = tmp_path / "passed.txt"
    GpuCases(0, file)  # begins it
    with file.open("a") as lines:
        lines.write("gpu tests/expressions/test_times.py::test_floor_keeps_the_zone_apart\n")
    two = ["-k", "keeps", "--resume", str(file), "-n", "2"]
    status, output = run(*two, "--gpu-cases", "2")
    assert status == 1 and "1 passed" in output, output
    assert "1 cases passed on a GPU, at least 2 are asked for" in output
    assert len(file.read_text().splitlines()) == 3
    status, output = run(*two[:-2], "--gpu-cases", "1")
    assert status == 0 and "passed on a GPU" in output and not file.exists(), output


def test_where_a_gpu_is_required_its_cases_come_first() -> None:
    status, output = run("--require-gpu", "--collect-only")
    assert status == 0, output
    cases = [line for line in output.splitlines() if "::" in line]
    for_a_gpu = ["[gpu" in case for case in cases]
    assert for_a_gpu == sorted(for_a_gpu, reverse=True) and len(set(for_a_gpu)) == 2


def test_a_run_on_a_gpu_asks_for_no_more_cases_than_there_are(pytestconfig: pytest.Config) -> None:
    """It counts what this run has collected anyway, which takes minutes."""
    (least,) = re.findall(r"^GPU_CASES := (\d+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f"fewer than {least} cases" in (ROOT / "CONTRIBUTING.md").read_text()
    if ROOT / "tests" not in [
        (pytestconfig.invocation_params.dir / argument).resolve() for argument in pytestconfig.args
    ]:
        pytest.skip("not the whole suite")
    assert 0 < int(least) <= pytestconfig.stash[GPU_CASES]


def test_what_a_test_leaves_open_is_done_by_its_backend(backend: Backend) -> None:
    assert resolve() == backend.name


def test_and_on_the_cpu_where_it_has_none() -> None:
    assert resolve() == "cpu"
