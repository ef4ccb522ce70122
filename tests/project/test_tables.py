"""The benchmark of real tables runs each model once, keeps who failed, and its page shows it; tables are made up."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss

from tests.project.benchmark_scripts import benchmark_script

MODELS = ["linear", "HistGradientBoosting", "default"]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark with one table of 900 rows in each group, in a folder of the test."""
    module = benchmark_script("tables.py", monkeypatch)
    public = module.sys.modules["public_tables"]
    random = np.random.default_rng(0)
    rows = pd.DataFrame({"x": random.normal(size=900), "c": random.choice(["a", "b", "d"], 900)})
    rows["day"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(random.integers(0, 300, 900), "D")
    rows["y"] = 3 * rows["x"] + (rows["c"] == "a") + random.normal(size=900)
    rows["z"] = np.where(rows["y"] > 2, "high", np.where(rows["y"] < -2, "low", "middle"))
    rows.loc[::9, "x"] = np.nan
    definitions = {
        "numbers": public.PublicTable("none", "", "y", "regression"),
        "classes": public.PublicTable("none", "", "z", "multiclass"),
    }
    for name, table in definitions.items():
        rows.drop(columns={"y", "z"} - {table.target}).to_parquet(tmp_path / f"{name}.parquet")
    for place in (module, public):
        monkeypatch.setattr(place, "TUNE", {"numbers": definitions["numbers"]})
        monkeypatch.setattr(place, "JUDGE", {"classes": definitions["classes"]})
        monkeypatch.setattr(place, "TABLES", tmp_path)
    monkeypatch.setattr(module, "GROUPS", {"tune": ["numbers"], "judge": ["classes"]})
    monkeypatch.setattr(module, "RUNS", tmp_path / "runs.jsonl")
    monkeypatch.setitem(module.NETWORKS, "default", module.partial(_predict_nothing))
    return module


def _predict_nothing(_data: object, target: str, _seed: int) -> np.ndarray:
    if target == "z":
        raise ValueError("classes are not for this model")
    return np.zeros(180)


def test_each_run_is_computed_once_and_a_failure_is_a_loss(tables: ModuleType, tmp_path: Path) -> None:
    runs = tables.measure(["numbers", "classes"], MODELS, [0, 1], 1)
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == runs and len(runs) == 2 * 3 * 2
    assert tables.measure(["numbers", "classes"], MODELS, [0, 1], 1) == runs
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == len(lines)
    figures = tables.summarise(runs)
    assert figures["numbers"]["linear"]["error"]["median"] < 1.5 < figures["numbers"]["default"]["error"]["median"]
    assert figures["classes"]["default"] == {"failed": "ValueError: classes are not for this model"}
    ranks = tables.rank_models(figures)
    assert ranks["default"]["failed"] == 1 and ranks["default"]["worst"] == math.inf
    assert ranks["default"]["mean_rank"] == 3 and ranks["default"]["behind_linear"] == 2
    assert (ranks["linear"]["seeds"], ranks["default"]["seeds"]) == (2, 0)
    assert not any(bar["met"] for bar in tables.bars(figures))


def test_runs_can_be_recalled_and_what_is_not_measured_misses_its_bar(
    tables: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ["numbers", "classes"]
    runs = tables.measure(both, MODELS, [0], 1)
    assert tables.recall(both, MODELS, [0, 1]) == runs
    tables.measure(["numbers"], ["random forest"], [0], 1)
    recalled = tables.summarise(tables.recall(both, [*MODELS, "random forest"], [0]))
    assert "random forest" in tables.rank_models({"numbers": recalled["numbers"]})
    assert list(tables.rank_models(recalled)) == list(tables.rank_models(tables.summarise(runs)))
    tables.RUNS.write_text("".join(json.dumps(run) + "\n" for run in runs if run["table"] == "numbers"))
    some = tables.recall(both, MODELS, [0])
    assert some == [run for run in runs if run["table"] == "numbers"]
    monkeypatch.setattr(tables, "GROUPS", {"tune": both})
    result = tables.assemble(tables.summarise([{**run, "error": 1.0} for run in some]), [0], 1)
    assert result["not_measured"] == {"tune": ["classes"]} and result["groups"] == {"tune": ["numbers"]}
    assert [bar["met"] for bar in result["bars"]] == [False] * 3
    sections = benchmark_script("sections.py", monkeypatch)
    shown = sections.markdown("tables", result | {"machine": json.loads(json.dumps(_machine()))})
    assert "not measured: classes" in shown and "**missed**" in shown


def test_its_section_has_every_table(tables: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = tables.summarise(tables.measure(["numbers", "classes"], MODELS, [0], 1))
    result = tables.assemble(figures, [0], 1) | {"machine": json.loads(json.dumps(_machine()))}
    sections = benchmark_script("sections.py", monkeypatch)
    shown = sections.markdown("tables", json.loads(json.dumps(result)))
    assert "| numbers | 900 | regression |" in shown and "| classes | 900 | multiclass |" in shown
    assert "failed" in shown and "**missed**" in shown
    assert sections.pictures("tables", result)["tables"].startswith("<svg")


def _machine() -> dict[str, object]:
    from environment import environment

    return environment()


def test_errors_are_scikit_learns(tables: ModuleType) -> None:
    split = tables.split_table("classes", seed=3)
    scores = np.random.default_rng(1).normal(size=(len(split.test), 3))
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = log_loss(split.test["z"], chances, labels=["high", "low", "middle"])
    assert tables.compute_error(split, scores) == pytest.approx(expected)


def test_a_split_has_each_row_once_and_is_the_same_again(tables: ModuleType) -> None:
    first, again, other = (tables.split_table("numbers", seed) for seed in (0, 0, 1))
    assert [len(part) for part in first.parts] == [540, 180, 180]
    assert sorted(pd.concat(first.parts)["y"]) == sorted(pd.concat(other.parts)["y"])
    assert first.test["y"].tolist() == again.test["y"].tolist() != other.test["y"].tolist()
