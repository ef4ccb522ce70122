"""The benchmark of `describe` measures all it names, and its page shows it; no time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.project.benchmark_scripts import benchmark_script

FLIGHTS = Path(__file__).parents[2] / "data" / "flights.parquet"


def test_all_is_measured_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe, sections = (benchmark_script(name, monkeypatch) for name in ("describe.py", "sections.py"))
    result = describe.measure(FLIGHTS, rounds=1)
    assert set(result["figures"]) == {describe.OURS, describe.TARGET, describe.COLLECTED, describe.LAZY}
    assert len(result["bars"]) == 2 and result["setting"]["rows"] == 336_776
    for found in result["figures"].values():
        assert found["cpu_s"]["min"] > 0 and found["peak_gb"]["min"] > 0
    file = describe.write_result("describe_cpu", result, tmp_path)
    assert "gpupipe, with a target" in sections.markdown("describe", json.loads(file.read_text()))
    assert sections.pictures("describe", result)["describe"].startswith("<svg")
