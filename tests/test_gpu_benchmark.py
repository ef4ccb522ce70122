"""What `make bench-gpu` runs, dry: every part on the CPU, a few rows, and the result file well formed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from tests.benchmark_scripts import BENCHMARKS, benchmark_script

FOLDER = BENCHMARKS / "gpu"
HOPS = 6
EVERY = ["ceilings", "handover", "features", "estimators", "operators", "decode", "trainer", "whole", "large"]
# What is no operator, does what a function of the user's does, or moves no values.
WITHOUT_WORK = {
    *("Columns", "CrossFittedStep", "FoldStep", "Invertible", "StatelessStep", "Summary", "WholeFrame"),
    *("WholeFrameStep", "Transform", "WholeTableTransform", "Map", "Select", "Drop", "Rename", "ListSlice"),
}


# `measure.py` is watched at these, each in a process of its own; the rest share one, for to start costs most.
APART = ["ceilings", "decode"]
TOGETHER = """
import sys, time
from importlib import import_module
from pathlib import Path
from stage import Stage

scratch, *names = sys.argv[1:]
for name in names:
    before = {"ceilings": {"copy": {"gb_per_s": 1.0}}}
    out = Path(scratch) / f"{name}.jsonl"
    import_module(f"parts.{name}").measure(Stage(False, time.time() + 900, Path(scratch), out, before))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a dry run."""
    out = tmp_path_factory.mktemp("bench") / "gpu.json"
    ended(str(FOLDER / "measure.py"), str(out), "--dry", "--only", *APART)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, report: dict[str, Any]) -> dict[str, Any]:
    """What each part finds, dry."""
    scratch, names = tmp_path_factory.mktemp("parts"), [name for name in EVERY if name not in APART]
    ended("-c", TOGETHER, str(scratch), *names)
    lines = {name: map(json.loads, (scratch / f"{name}.jsonl").read_text().splitlines()) for name in names}
    told = {name: {line["name"]: line["found"] for line in some if "found" in line} for name, some in lines.items()}
    return told | {name: part["found"] for name, part in report["parts"].items()}


def ended(*arguments: str) -> None:
    """Run Python with what lies in the folder, to a good end."""
    path = os.pathsep.join(map(str, (FOLDER, FOLDER.parent, FOLDER.parents[1])))
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_is_told_part_by_part(report: dict[str, Any]) -> None:
    assert report["dry"] and not report["bars"] and report["machine"]["commit"]
    assert list(report["parts"]) == APART
    for name, part in report["parts"].items():
        assert part["found"] and "failed" not in part and part["clocks"] is not None and part["seconds"] > 0, name
    assert report["gpu"] == {} or report["gpu"]["driver"]


def test_what_the_parts_find(found: dict[str, Any]) -> None:
    assert found.keys() == set(EVERY) and all(found.values()) and '"failed"' not in json.dumps(found)
    assert set(found["ceilings"]) == {"copy", "matmul", "host_link"}
    assert len(found["handover"]) == HOPS and all(hop["same_memory"] for hop in found["handover"].values())
    assert {*pre.__all__, *T.__all__} <= {name.partition(",")[0] for name in found["operators"]} | WITHOUT_WORK
    assert all(job["share_of_copy"] > 0 for job in found["operators"].values())
    assert len(found["features"]) == 5 and not any("fused" in case for case in found["features"].values())
    assert {"gpupipe", "library", "scikit-learn"} <= set(found["estimators"]["PCA"])
    assert any(name.startswith("zstd, ") for name in found["decode"])
    contenders = {name: one for name, one in found["whole"].items() if isinstance(one, dict)}
    assert len(contenders) == 5 and set(found["large"]) < set(contenders)
    for name, contender in [*contenders.items(), *found["large"].items()]:
        assert [run["cold"] for run in contender["runs"]] == [True, False], name
        assert contender["warm_s"] > 0 and "scaled_from_rows" not in contender, name


def test_bars_that_nothing_was_found_for_are_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = benchmark_script("gpu/bars.py", monkeypatch)
    assert {bar["met"] for bar in bars.bars_of({}, EVERY)} == {False}
    assert {bar["part"] for bar in bars.bars_of({}, ["ceilings", "large"])} == {"large"}
    hop = {"bytes_copied": 0, "same_memory": True}
    parts = {
        "whole": {"gpupipe": {"warm_s": 2.0}, "cuDF, slices": {"warm_s": 3.0}, "gpupipe on the CPU": {"warm_s": 16.0}},
        "large": {"gpupipe": {"warm_s": 2.0}, "gpupipe on the CPU": {"warm_s": 29.0}},
        "handover": {"one": hop, "other": dict(hop)},
        "features": {"float32": {"fused": {"share_of_copy": 0.7}, "times_unfused": 4.0}},
        "trainer": {"bars": [{"what": "w", "found": 1.0, "bar": 2.0, "met": False}]},
    }
    assert [bar["met"] for bar in bars.bars_of(parts, EVERY)] == [True, False, True, False, True, False, False]
    parts["handover"]["other"]["same_memory"] = False
    assert [bar["met"] for bar in bars.bars_of(parts, EVERY)][2] is False


def test_cold_and_warm_are_apart_and_what_is_scaled_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = benchmark_script("gpu/parts/whole.py", monkeypatch)
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
    measure = benchmark_script("gpu/measure.py", monkeypatch)
    lines = [{"name": "a", "found": 1}, {"dropped": "b"}, {"failed": "why"}]
    assert measure.collected(map(json.dumps, lines)) == {"found": {"a": 1}, "dropped": ["b"], "failed": "why"}
    assert sum(measure.PARTS.values()) / 60 <= measure.MINUTES < 9.9
    assert list(measure.PARTS | measure.ALONE) == EVERY
