"""The recipe of docs/guide-models.md: a search over networks that reads the data once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre

optuna = pytest.importorskip("optuna", reason="optuna is not installed here: run `make setup`")


def test_many_trials_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(1)
    x = draw.normal(size=(2000, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "good": x[:, 0] * x[:, 1] > 0})
    pipeline = gp.Pipeline([], gp.Features((["a", "b"], pre.StandardScaler()), target="good"), backend="cpu")
    pipeline.fit(frame[:1500])
    train = pipeline.loader(frame[:1500], batch_size=256, shuffle="rows")
    valid = pipeline.loader(frame[1500:])
    block = train.block.words.clone()

    def no_reading(*_: Any, **__: Any) -> None:
        raise AssertionError("a trial read the data again")

    monkeypatch.setattr(gp.Pipeline, "loader", no_reading)
    monkeypatch.setattr(gp.Pipeline, "transform", no_reading)

    def objective(trial: optuna.Trial) -> float:
        width = trial.suggest_int("width", 2, 64, log=True)
        model = gp.models.MLP.from_schema(pipeline.schema, hidden=(width,), seed=trial.number)
        lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
        trainer = gp.Trainer(model, max_epochs=4, lr=lr, device="cpu", progress=False)
        return trainer.fit(train, valid).best["valid_auc"]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1))
    study.optimize(objective, n_trials=12)
    values = [trial.value or 0.0 for trial in study.trials]
    assert study.best_value > 0.95 > min(values)
    assert bool((train.block.words == block).all())
    # A trial is what its parameters and its number say, whatever trials went before.
    again = study.best_trial
    assert objective(optuna.trial.FixedTrial(again.params, number=again.number)) == again.value  # type: ignore[arg-type]
