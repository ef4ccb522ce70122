"""Forged calibrations: numbers of other shapes, order or range are refused when an artifact is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe.errors import ArtifactError, BadConfig
from gpupipe.saving.artifact import write_manifest
from gpupipe.saving.calibrator import Calibrator, Conformal, Curve, Group, Probabilities
from tests.raising import raises


def frame_of(num_rows: int = 60) -> pd.DataFrame:
    x = np.random.default_rng(0).normal(size=num_rows)
    kind = np.array(["a", "b", "c"])[np.arange(num_rows) % 3]
    return pd.DataFrame({"x": x, "kind": kind, "late": x > 0, "y": x * 2, "z": -2 * x})


def scorer_of(target: Any, calibrator: Calibrator | None = None) -> gp.Scorer:
    pipeline = gp.Pipeline([], gp.Features(["x"], target=target)).fit(frame_of())
    return gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema), calibrator=calibrator)


CURVE = Curve([0.1, 0.5, 0.9], [0.0, 0.5, 0.75])
GROUPS = [Group("a", 3, 20, [1.0]), Group("b", 5, 2, None)]
CALIBRATORS = {
    "late": Calibrator(Probabilities("isotonic", curves=[CURVE]), Conformal(0.9, 50, [0.25], "kind", GROUPS)),
    "kind": Calibrator(Probabilities("temperature", [1.5]), Conformal(0.9, 50, [0.25])),
    "y": Calibrator(None, Conformal(0.9, 50, [2.0], "kind", GROUPS)),
}
LATE, KIND, Y = CALIBRATORS


def put(*path: Any) -> Callable[[Any], None]:
    """What puts the last of the path at the place that the others lead to."""
    *places, last, value = path

    def change(content: Any) -> None:
        for place in places:
            content = content[place]
        content[last] = value

    return change


CURVES = ("probabilities", "curves")
FORGED: list[tuple[str, Callable[[Any], None]]] = [
    (LATE, put(*CURVES, 0, "shares", [0.5, 0.25, 0.75])),
    (LATE, put(*CURVES, 0, "shares", [0.0, 0.5])),
    (LATE, put(*CURVES, 0, "shares", [-0.1, 0.5, 0.75])),
    (LATE, put(*CURVES, 0, "shares", [0.0, 0.5, 1.5])),
    (LATE, put(*CURVES, 0, "shares", [0.0, float("nan"), 0.75])),
    (LATE, put(*CURVES, 0, "shares", ["0", 0.5, 0.75])),
    (LATE, put(*CURVES, 0, "probabilities", [0.1, 0.1, 0.9])),
    (LATE, put(*CURVES, 0, {"probabilities": [], "shares": []})),
    (LATE, put(*CURVES, [])),
    (LATE, put("probabilities", "method", "platt")),
    (LATE, put("probabilities", "method", "temperature")),
    (LATE, put("probabilities", "temperatures", [1.0])),
    (LATE, put("probabilities", 5)),
    (KIND, put("probabilities", "temperatures", [0.0])),
    (KIND, put("probabilities", "temperatures", [-1.0])),
    (KIND, put("probabilities", "temperatures", [1.0, 1.0])),
    (KIND, put("probabilities", "temperatures", [float("inf")])),
    (KIND, put("conformal", "limits", [0.25, 0.25])),
    (Y, put("conformal", "limits", [])),
    (Y, put("conformal", "limits", [1e999])),
    (Y, put("conformal", "limits", None)),
    (Y, put("conformal", "coverage", 1.5)),
    (Y, put("conformal", "coverage", "0.9")),
    (Y, put("conformal", "by", None)),
    (Y, put("conformal", "by", "kimd")),
    (Y, put("conformal", "by", "x")),
    (Y, put("conformal", "groups", [])),
    (Y, put("conformal", "groups", 0, "hash", 5)),
    (Y, put("conformal", "groups", 0, "hash", -1)),
    (Y, put("conformal", "groups", 1, "hash", 1 << 64)),
    (Y, put("conformal", "groups", 0, "limits", [1.0, 2.0])),
    (Y, put("conformal", "groups", 0, "limits", ["1"])),
    (Y, put("conformal", "groups", 0, "name", 5)),
    (Y, put("conformal", "extra", 5)),
    (Y, put("probabilities", {"method": "temperature", "temperatures": [1.0], "curves": []})),
]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(FORGED)))
def test_forged_numbers_are_refused(number: int, tmp_path: Path) -> None:
    target, change = FORGED[number]
    gp.save(tmp_path / "run", scorer_of(target, CALIBRATORS[target]))
    file = tmp_path / "run" / "model.json"
    content = json.loads(file.read_text())
    change(content["calibrator"])
    file.write_text(json.dumps(content))
    (tmp_path / "run" / "manifest.json").unlink()
    write_manifest(tmp_path / "run")
    with raises(ArtifactError, where="model.json"):
        gp.load(tmp_path / "run")


@pytest.mark.parametrize("target", CALIBRATORS)
def test_numbers_come_back_as_they_were(target: str, tmp_path: Path) -> None:
    gp.save(tmp_path / "run", scorer_of(target, CALIBRATORS[target]))
    found = gp.load(tmp_path / "run").calibrator
    assert found is not None and json.dumps(found.to_json()) == json.dumps(CALIBRATORS[target].to_json())
    gp.save(tmp_path / "run", scorer_of(target), overwrite=True)
    assert gp.load(tmp_path / "run").calibrator is None


def test_a_calibrator_of_another_target_is_refused() -> None:
    for target in (["y", "z"], "late", ["late", "z > 1"]):
        with raises(BadConfig, where="Calibrator"):
            scorer_of(target, Calibrator(None, Conformal(0.9, 50, [2.0, 3.0, 4.0])))
    with raises(BadConfig, where="Calibrator", got="multilabel"):
        scorer_of(["late", "z > 1"], Calibrator(None, Conformal(0.9, 50, [2.0])))
    with raises(BadConfig, where="Calibrator"):
        scorer_of("kind", CALIBRATORS["late"])


def test_it_shows_what_it_holds() -> None:
    assert repr(Calibrator()) == "not calibrated"
    assert repr(CALIBRATORS["late"]) == (
        "probabilities: isotonic, 3 points; coverage 0.9 by 50 rows, by kind\n"
        "kind  count   limit\n"
        "all      50    0.25\n"
        "a        20       1\n"
        "b         2  as all"
    )
    assert "<td" in CALIBRATORS["y"]._repr_html_()


def test_a_scorer_in_the_models_place_is_told_how_its_calibration_is_kept(tmp_path: Path) -> None:
    scorer = scorer_of("late", CALIBRATORS["late"])
    with raises(BadConfig, where="save(model=)") as caught:
        gp.save(tmp_path / "run", scorer.pipeline, scorer)  # type: ignore[arg-type]
    assert caught.value.remedy == "gp.save(path, scorer), which keeps its threshold and calibration"
