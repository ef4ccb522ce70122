"""The benchmark of what a user waits for measures all it names, and its page shows it; no time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.project.benchmark_scripts import benchmark_script


def test_all_is_measured_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    latency, sections = (benchmark_script(name, monkeypatch) for name in ("latency.py", "sections.py"))
    sizes = latency.Sizes(wide=(60, 80), low=(50, 70), short=(20, 90), components=2, flights=300, calls=1)
    result = latency.measure(sizes, rounds=1)
    assert len(result["figures"]) == 15 and len(result["bars"]) == 7
    for found in result["figures"].values():
        assert found["wall_s"]["min"] > 0 and found["cpu_s"]["min"] >= 0
    file = latency.write_result("latency_cpu", result, tmp_path)
    shown = sections.markdown("latency", json.loads(file.read_text()))
    assert shown.count("\n|") > 15 and "80 x 60, fit: scikit-learn" in shown
    assert sections.pictures("latency", result)["latency"].startswith("<svg")
