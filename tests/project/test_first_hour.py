"""The plan of the first half hour on a rented GPU host, and one step of it without one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.project.benchmark_scripts import BENCHMARKS, benchmark_script

ROOT = BENCHMARKS.parent


@pytest.fixture
def hour(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    script = benchmark_script("gpu/offline/first_hour.py", monkeypatch)
    monkeypatch.setattr(script, "RESULTS", tmp_path / "results")
    return script


def manifest_of(parts: int) -> dict[str, Any]:
    """The packages of `wheels.txt` in so many parts."""
    lines = (BENCHMARKS / "gpu" / "offline" / "wheels.txt").read_text().splitlines()
    names = [line.replace("-", "_").replace("==", "-") for line in lines if line and line[0] != "#"]
    names_of = {name: f"part-{at * parts // len(names):02}" for at, name in enumerate(names)}
    return {
        "parts": [{"name": f"part-{number:02}", "bytes": 48 << 20} for number in range(parts)],
        "wheels": [{"name": f"{name}-py3-none-any.tar.xz", "parts": [part]} for name, part in names_of.items()],
    }


def test_the_plan_keeps_the_hosts_limits_and_misses_nothing(hour: ModuleType) -> None:
    manifest = manifest_of(7)
    steps = hour.plan(manifest)
    told = "\n".join(hour.describe(steps, manifest))  # raises where a limit is not kept
    assert [step.name for step in steps] == [*(f"part-0{number}" for number in range(7)), "smoke", "tests", "bench"]
    jobs = [job.name for step in steps for job in step.jobs if job.name != "unpack"]
    expected = ["torch", "training", "cudf", "cudf-polars", "cuml", "dask-cuda", "doctor", "smoke", "tests", "bench"]
    assert sorted(jobs) == sorted(expected)
    assert "carry    build/offline/part-00 build/offline/manifest.json build/offline/unpack.py" in told
    with pytest.raises(AssertionError, match="cut smaller parts"):
        list(hour.describe(steps, manifest | {"parts": [{"name": "part-00", "bytes": 64 << 20}]}))


def test_a_step_ends_in_time_and_is_not_done_twice(
    hour: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hour, "LAST_SECONDS", 4)
    file = tmp_path / "ready"
    waits = f"import pathlib, time; print('begun'); pathlib.Path({str(file)!r}).exists() or time.sleep(600)"
    jobs = [
        hour.Job("quick", "", [sys.executable, "-c", "print('done')"]),
        hour.Job("slow", "", [sys.executable, "-c", waits]),
    ]
    step = hour.Step("part-00", 1, 0.1, jobs, [])
    started = time.monotonic()
    assert hour.run(step, tmp_path / "out") == 1 and time.monotonic() - started < 300
    results = json.loads((tmp_path / "out" / "first-hour.json").read_text())
    assert results["quick"]["status"] == 0 and results["quick"]["last"] == ["done"]
    assert results["slow"]["status"] != 0 and "KeyboardInterrupt" in results["slow"]["last"]
    assert "begun" in (tmp_path / "out" / "first-hour.log").read_text()
    file.touch()
    capsys.readouterr()
    assert hour.run(step, None) == 0
    assert capsys.readouterr().out.startswith("quick: has passed\nslow: passed")
    assert json.loads((tmp_path / "results" / "first-hour.json").read_text())["slow"]["status"] == 0


def test_as_many_cases_need_torch_alone_as_are_asked_for(hour: ModuleType) -> None:
    call = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "gpu", "-p", "no:cacheprovider"]
    done = subprocess.run([*call, *hour.TORCH_TESTS], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    cases = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(cases) == hour.TORCH_CASES and not any("[gpu" in case for case in cases)
