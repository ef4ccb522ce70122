"""The scripts that time the trainer can be run: small, and on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.benchmark_scripts import BENCHMARKS, benchmark_script


def test_the_gpu_benchmark_runs_dry(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu" / "trainer.py", out, "--dry", "--batches", "16"],
        env=os.environ | {"PYTHONPATH": f"{BENCHMARKS.parent}{os.pathsep}{BENCHMARKS}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["dry"] and set(report["figures"]) == {"16"} and not report["bars"]
    for ways in report["figures"].values():
        assert set(ways) == {
            "eager",
            "compiled",
            "captured",
            "captured, compiled",
            "captured, 8 steps",
            "captured, float32",
        }
        assert all(way["kernels"] > 10 and 0 <= way["idle"] < 1 and way["ms"] > 0 for way in ways.values())
    assert report["gather"]["share"] > 0


def test_what_is_asked_for_is_told_with_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    script = benchmark_script("gpu/trainer.py", monkeypatch)
    assert script.idle([(0, 2), (1, 3), (5, 10)]) == pytest.approx(0.2)
    ways = {name: {"ms": 1.0, "million_rows_per_s": 30.0, "idle": 0.1} for name in script.WAYS}
    ways["eager"]["ms"] = 3.0
    asked = script.bars({8192: ways}, {"rows": 262_144, "share": 0.6})
    met = {bar["what"]: bar["met"] for bar in asked}
    assert met["captured beside eager, batch 8192"] and not met["captured and compiled beside eager, batch 8192"]
    assert met["million rows/s, batch 8192"] and met["idle share inside replays, batch 8192"]
    assert met["gather of 262144 rows, share of a copy"] and len(asked) == 6


def test_the_cpu_benchmark_runs_small(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, BENCHMARKS / "trainer.py", "--rounds", "2", "--steps", "16", "--batches", "64"),
            *("--alone", "--out", tmp_path),
        ],
        env=os.environ | {"PYTHONPATH": str(BENCHMARKS.parent)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "trainer_cpu.json").read_text())
    assert set(result["figures"]["batch 64"]) == {"gpupipe"} and len(result["bars"]) == 2
    assert result["figures"]["batch 64"]["gpupipe"]["cpu"]["by_hand_ms"]["median"] > 0
