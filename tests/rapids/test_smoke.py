"""The questions for the first GPU hour can be asked: on the CPU as a script, and of the GPU twin on stand-ins."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "gpu"


def check_plans(saw: dict[str, Any]) -> None:
    for text in saw["text_files"].values():
        assert text["same_types"] and text["differs"] is None and text["joined_by_time"] == text["rows"]
        assert text["types"] == {"at": ["timestamp", ""], "zoned": ["timestamp", "UTC"], "x": ["float64", ""]}
    assert saw["large_sort"]["differs"] is None and saw["large_sort"]["joined_by_time"] is None
    assert saw["large_sort"]["in_files"]
    saw = saw["whole_tables"]
    ways = [result for name in ("sort", "group", "outer join") for result in saw[name].values()]
    assert len(ways) == 6 and not any(result["differs"] for result in ways)


def test_a_dry_run_asks_every_question(tmp_path: Path) -> None:
    out = tmp_path / "smoke.json"
    run = subprocess.run(
        [sys.executable, str(FOLDER / "smoke.py"), str(out), "--dry"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "benchmarks")))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(out.read_text())
    assert report["dry"] and report["machine"]["libraries"]["torch"]
    assert len(report["checks"]) > 15
    for name, result in report["checks"].items():
        assert result["saw"], name
    saw = {name: result["saw"] for name, result in report["checks"].items()}
    assert all(saw["round_trip"]["equal"].values()) and all(saw["parquet"]["columns_equal"].values())
    assert saw["merging"]["left_order_kept"] and saw["merging"]["nulls_matched"] == 0
    assert saw["files"]["orc_equal"] and saw["files"]["files_equal"]
    assert saw["graph_capture"]["largest_difference"] == 0 and saw["graph_capture"]["updates_counted"] > 4
    assert saw["main_job"]["rows_apart"] == 0
    assert saw["streamed_regression"]["largest_difference"] == 0 and saw["streamed_regression"]["metrics"]["valid_mae"]
    assert "runs eagerly" in saw["captured_program"]["step"][0]
    assert saw["fused_block"]["unfused_ms"] > 0 and saw["fused_block"]["fused_ms"] is None
    check_plans(saw)


def test_a_question_that_fails_is_told_and_the_rest_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (FOLDER.parent, FOLDER):  # where the one is looked for first that is put there last
        monkeypatch.syspath_prepend(str(folder))
    smoke = importlib.import_module("smoke")
    monkeypatch.setitem(smoke.CHECKS, "streams", lambda lab: 1 / 0)
    monkeypatch.setattr(
        sys, "argv", ["smoke.py", str(tmp_path / "out.json"), "--dry", "--only", "streams", "estimators"]
    )
    assert smoke.main() == 1
    checks = json.loads((tmp_path / "out.json").read_text())["checks"]
    assert "ZeroDivisionError" in checks["streams"]["failed"] and checks["estimators"]["saw"]


def test_the_gpu_twin_can_be_asked(rehearsed_backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (FOLDER.parent, FOLDER):  # where the one is looked for first that is put there last
        monkeypatch.syspath_prepend(str(folder))
    smoke = importlib.import_module("smoke")
    lab = smoke.Lab(rehearsed_backend, gpu=False, rows=400, steps=2)
    elsewhere = ("graph_capture", "one_worker_cluster", "main_job", "streamed_regression", "captured_program")
    saw = {name: ask(lab) for name, ask in smoke.CHECKS.items() if name not in elsewhere}
    assert all(saw["round_trip"]["equal"].values()) and all(saw["parquet"]["columns_equal"].values())
    assert saw["files"]["orc_equal"] and saw["files"]["files_equal"]
    for found in saw["files"]["written"].values():
        assert found["schema_equal"] and found["statistics"] and all(found["columns_equal"].values())
        assert found["host_bytes"] == 0
    check_plans(saw)
    hops = saw["hops_of_a_sort"]
    assert hops["plan_to_host"] == 0 and hops["frame_to_host"] > 0.5 * hops["arrow"]
    assert saw["aliasing"]["torch_shares"] and saw["aliasing"]["assigned_column_shares"]
    assert saw["merging"]["types"]["price"] == "double" and saw["merging"]["left_order_kept"]
    assert all(step["rows_apart"] == 0 for step in saw["parity_of_steps"].values()), saw["parity_of_steps"]
