"""The GPU benchmark's part about the feature kernel: both ways write the same block, here by Triton's interpreter."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_both_ways_write_the_same(fusing: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.syspath_prepend(str(FOLDER / "gpu"))
    monkeypatch.setattr(importlib.import_module("stage"), "DRY_ROWS", 300)
    stage = importlib.import_module("stage").Stage(False, time.time() + 600, tmp_path, tmp_path / "out.jsonl")
    importlib.import_module("parts.features").measure(stage)
    lines = [json.loads(line) for line in stage.out.read_text().splitlines()]
    found = {line["name"]: line["found"] for line in lines if "name" in line}
    assert len(found) == 5 and fusing and all(fusing)
    for name, case in found.items():
        assert case["largest_difference"] < (0.05 if "bfloat16" in name else 1e-5), name
