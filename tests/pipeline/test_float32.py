"""What float32 cannot hold is said, and values in units of their own are not put through it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre

ROWS = 300
EPOCH = 1_700_000_000 + np.arange(ROWS)
X = np.linspace(-1, 1, ROWS)


def notes_of(made: gp.Pipeline, word: str) -> list[str]:
    assert made.fit_report is not None
    return [note for note in made.fit_report.notes if word in note]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [[], [pre.SimpleImputer()]])
@pytest.mark.parametrize(
    "values",
    [EPOCH, EPOCH.astype("float64"), EPOCH * 1e9, 2**62 + 10_000 * np.arange(ROWS), -EPOCH, 1e6 + np.arange(ROWS) / 10],
)
def test_features_that_collapse_are_named_once(values: Any, steps: Any, caplog: pytest.LogCaptureFixture) -> None:
    frame = pd.DataFrame({"e": values, "small": np.arange(ROWS), "y": np.arange(ROWS) % 2})
    group = (["e", "small"], steps) if steps else ["e", "small"]
    made = gp.Pipeline([], gp.Features(group, target="y")).fit(gp.from_frame(frame, num_partitions=3))
    (note,) = notes_of(made, "float32")
    assert "'e'" in note and "small" not in note and "StandardScaler" in note
    assert [record.levelname for record in caplog.records if record.getMessage() == note] == ["WARNING"]
    scaled = gp.Pipeline([], gp.Features((["e", "small"], [*steps, pre.StandardScaler()]), target="y")).fit(frame)
    assert not notes_of(scaled, "float32")
    assert len(set(scaled.loader(frame).arrays()["numeric"][:, 0].tolist())) > ROWS / 3


@pytest.mark.parametrize(
    "values",
    [
        np.arange(ROWS),
        EPOCH.astype("float32"),
        np.full(ROWS, 1.7e9),
        2**24 - np.arange(ROWS),
        X,
        np.where(X < 0, np.nan, 40.7 + X / 10),
        np.where(X < 0, 2**40, 0),
        np.full(ROWS, np.nan),
    ],
)
def test_features_that_keep_their_digits_are_not_spoken_of(values: Any) -> None:
    frame = pd.DataFrame({"e": values, "y": np.arange(ROWS) % 2})
    made = gp.Pipeline([], gp.Features(["e"], target="y")).fit(frame)
    assert not notes_of(made, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("values", [EPOCH, 2**24 + 1 + np.arange(ROWS)])
def test_targets_in_their_own_units_keep_their_digits(values: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": X, "y": values})
    made = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), target="y")).fit(frame)
    assert not notes_of(made, "float32")
    assert made.transform(frame)["y"].dtype == "float64" and made.schema["y"].dtype == "float32"
    np.testing.assert_allclose(made.transform(frame)["y"], values, rtol=0, atol=1e-3)
    assert made.transform(gp.from_frame(frame)).schema["y"].dtype == "float64"
    loader = made.loader(frame)
    np.testing.assert_allclose(loader.arrays()["target"], values, rtol=0, atol=1e-3)
    model = gp.models.Linear.from_schema(made.schema, seed=0)
    trainer = gp.Trainer(model, max_epochs=30, lr=0.05, progress=False, device="cpu")
    trainer.fit(loader, loader)
    found = trainer.evaluate(loader)
    assert found["rmse"] == pytest.approx(found["loss"] ** 0.5 * values.std(), rel=1e-5)
    gp.save(tmp_path / "run", made, model)
    predicted = gp.load(tmp_path / "run").predict(frame)["prediction"]
    assert predicted.dtype == "float64"
    assert np.sqrt(np.mean((predicted - values) ** 2)) == pytest.approx(found["rmse"], rel=1e-4)
    assert gp.compare(loader, loader, ["linear", trainer])["linear"]["rmse"] < values.std() / 100


def test_a_raw_target_that_collapses_is_named() -> None:
    frame = pd.DataFrame({"x": X, "y": EPOCH})
    made = gp.Pipeline([], gp.Features(["x"], target="y", target_transform=None)).fit(frame)
    (note,) = notes_of(made, "float32")
    assert "'y'" in note and "target_transform=pre.StandardScaler()" in note
    fine = gp.Pipeline([], gp.Features(["x"], target="y", target_transform=None)).fit(frame.assign(y=X))
    assert not notes_of(fine, "float32")


def test_a_target_beyond_float32_is_one_error() -> None:
    frame = pd.DataFrame({"x": X, "y": X * 1e40})
    made = gp.Pipeline([], gp.Features(["x"], target="y", target_transform=None, weight="abs(y)")).fit(frame)
    with pytest.raises(errors.BadData):
        made.loader(frame)
    made = gp.Pipeline([], gp.Features(["x"], target="y", target_transform=None)).fit(frame)
    with pytest.raises(errors.BadData):
        made.loader(frame)


def test_the_column_named_is_the_one_that_does_not_fit() -> None:
    frame = pd.DataFrame({"large": [0.0, 1e37], "small": [0.0, 1.0]})
    step = pre.StandardScaler().fit(pd.DataFrame({"large": [0.0, 1e37], "small": [0.0, 1e-45]}))
    with pytest.raises(errors.BadData) as caught:
        step.transform(frame)
    assert "'small'" in caught.value.where and caught.value.got == 1.0


def test_ranges_near_the_ends_of_integers_are_those_of_the_outputs() -> None:
    large = {
        "h": np.array([2**64 - 1 - i * 10**15 for i in range(ROWS)], dtype="uint64"),
        "g": [2**63 - 1 - i * 10**15 for i in range(ROWS)],
        "low": [-(2**63) + i * 10**15 for i in range(ROWS)],
    }
    made = gp.Pipeline([], gp.Features((list(large), pre.MinMaxScaler()))).fit(pd.DataFrame(large))
    assert all(made.schema.ranges[name] == (0.0, 1.0) for name in large)
