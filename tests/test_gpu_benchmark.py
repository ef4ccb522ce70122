"""What `make bench-gpu` runs, dry: every part on the CPU, a few rows, and the result file well formed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "gpu"
HOPS = 6


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of one dry run of everything."""
    out = tmp_path_factory.mktemp("bench") / "gpu.json"
    path = os.pathsep.join(map(str, (FOLDER.parents[1], FOLDER.parent)))
    done = subprocess.run(
        [sys.executable, str(FOLDER / "measure.py"), str(out), "--dry"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A file of the folder, under a name of its own: others are called alike."""
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"gpu_benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_part_finds_something(report: dict[str, Any]) -> None:
    assert report["dry"] and not report["bars"] and report["machine"]["commit"]
    assert list(report["parts"]) == [
        *("ceilings", "handover", "features", "estimators", "operators", "decode", "trainer", "whole")
    ]
    for name, part in report["parts"].items():
        assert part["found"] and "failed" not in part, name
        assert "failed" not in json.dumps(part["found"]), name
    assert report["gpu"] == {} or report["gpu"]["driver"]


def test_what_the_parts_find(report: dict[str, Any]) -> None:
    found = {name: part["found"] for name, part in report["parts"].items()}
    assert set(found["ceilings"]) == {"copy", "matmul", "host_link"}
    assert len(found["handover"]) == HOPS and all(hop["same_memory"] for hop in found["handover"].values())
    assert len(found["operators"]) > 20 and all(job["share_of_copy"] > 0 for job in found["operators"].values())
    assert len(report["parts"]["features"]["dropped"]) == len(found["features"])  # the kernel is for a GPU
    assert {"gpupipe", "library", "scikit-learn"} <= set(found["estimators"]["PCA"])
    assert any(name.startswith("zstd, ") for name in found["decode"])
    contenders = {name: one for name, one in found["whole"].items() if isinstance(one, dict)}
    assert len(contenders) == 5
    for name, contender in contenders.items():
        assert [run["cold"] for run in contender["runs"]] == [True, False], name
        assert contender["warm_s"] > 0 and "scaled_from_rows" not in contender, name


def test_bars_that_nothing_was_found_for_are_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = script("bars", monkeypatch)
    assert {bar["met"] for bar in bars.bars_of({})} == {False}
    hop = {"bytes_copied": 0, "same_memory": True}
    parts = {
        "whole": {"gpupipe": {"warm_s": 2.0}, "cuDF, slices": {"warm_s": 3.0}, "gpupipe on the CPU": {"warm_s": 16.0}},
        "handover": {"one": hop, "other": dict(hop)},
        "features": {"float32": {"fused": {"share_of_copy": 0.7}, "times_unfused": 4.0}},
        "trainer": {"bars": [{"what": "w", "found": 1.0, "bar": 2.0, "met": False}]},
    }
    assert [bar["met"] for bar in bars.bars_of(parts)] == [True, False, True, False, True, False]
    parts["handover"]["other"]["same_memory"] = False
    assert [bar["met"] for bar in bars.bars_of(parts)][2] is False


def test_cold_and_warm_are_apart_and_what_is_scaled_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = script("parts/whole", monkeypatch)
    cold = {"rows": 100, "cold": True, "seconds": 9.0}
    assert whole.summary([cold, {"rows": 50, "dropped": "2 s were not left"}], 100) == {"rows": 100, "cold_s": 9.0}
    warm = {"rows": 50, "cold": False, "seconds": 2.0}
    told = {"rows": 100, "cold_s": 9.0, "warm_s": 4.0, "scaled_from_rows": 50}
    assert whole.summary([cold, warm], 100) == told
    assert whole.warm([cold, warm]) == {50: 2.0}
    assert whole.crossover({10: 1.0, 1000: 100.0}, {10: 10.0, 1000: 10.0}) == pytest.approx(100)
    assert whole.crossover({10: 5.0, 99: 50.0}, {10: 1.0}) == 10
    assert whole.crossover({10: 1.0}, {10: 2.0}) is None


def test_a_part_that_is_stopped_keeps_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = script("measure", monkeypatch)
    lines = [{"name": "a", "found": 1}, {"dropped": "b"}, {"failed": "why"}]
    assert measure.collected(map(json.dumps, lines)) == {"found": {"a": 1}, "dropped": ["b"], "failed": "why"}
    assert sum(measure.PARTS.values()) / 60 <= measure.MINUTES < 9.9
