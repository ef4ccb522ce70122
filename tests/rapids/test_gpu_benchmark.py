"""What the GPU benchmark asks of the driver's library and of KvikIO exists; parts run on the GPU twin's stand-ins."""

from __future__ import annotations

import ast
import importlib
import json
import re
import time
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pynvml
import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

from .signatures import mismatch

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "gpu"


def test_the_drivers_library_has_what_is_asked_for() -> None:
    tree = ast.parse((FOLDER / "clocks.py").read_text())
    asked = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_nvml(node.value)]
    assert len(asked) > 10
    assert [node.attr for node in asked if not hasattr(pynvml, node.attr)] == []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.func in asked]
    assert len(calls) > 8
    for call in calls:
        assert mismatch(getattr(pynvml, call.func.attr), [None] * len(call.args), []) is None  # type: ignore[attr-defined]


def _is_nvml(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "nvml"


def test_the_libraries_read_the_variables_that_are_set_or_named() -> None:
    libraries = {"KVIKIO_": ("libkvikio-cu13", "libkvikio.so"), "LIBCUDF_": ("libcudf-cu13", "libcudf.so")}
    pages = [
        FOLDER / "parts" / "decode.py",
        ROOT / "docs" / "gpu-host.md",
        *(ROOT / "docs" / "decisions").glob("006-*"),
    ]
    for prefix, (wheel, file_name) in libraries.items():
        library = next(path for path in files(wheel) or [] if path.name == file_name)
        known = Path(str(library.locate())).read_bytes()
        for page in pages:
            names = set(re.findall(rf"\b{prefix}[A-Z_]+", page.read_text()))
            assert len(names) > 1 or prefix == "LIBCUDF_", page
            assert [name for name in names if name.encode() + b"\0" not in known] == [], page


def test_cumls_estimators_take_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    monkeypatch.syspath_prepend(str(FOLDER))
    library = importlib.import_module("parts.estimators").of_library(gpu=True)
    for name, make in library.items():
        estimator = make()
        assert type(estimator).__module__.startswith("cuml"), name
        method = "fit_predict" if name == "KMeans" else "fit_transform"
        assert hasattr(estimator, "fit_predict") == (name == "KMeans")
        assert mismatch(getattr(type(estimator), method), [None], [], method=True) is None, name


@pytest.mark.parametrize("part", ["handover", "features", "estimators", "operators"])
def test_a_part_runs_on_the_gpu_twin(
    part: str, rehearsed_backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(importlib.import_module("stage"), "DRY_ROWS", 300)
    stage = importlib.import_module("stage").Stage(False, time.time() + 600, tmp_path, tmp_path / "out.jsonl")
    stage.__dict__["backend"] = rehearsed_backend
    importlib.import_module(f"parts.{part}").measure(stage)
    lines = [json.loads(line) for line in stage.out.read_text().splitlines()]
    found = {line["name"]: line["found"] for line in lines if "name" in line}
    assert len(found) > 4
    failed = {name: one["failed"] for name, one in found.items() if "failed" in one}
    assert not failed
