"""The recipe of docs/guide-models.md: a search over networks that reads the data once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from tests.training.recorded import pretend

optuna = pytest.importorskip("optuna", reason="optuna is not installed here: run `make setup`")


def problem() -> tuple[gp.Pipeline, Any, Any]:
    """Whether two numbers have the same sign: the pipeline, and loaders to learn from and to measure on."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(2000, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "good": x[:, 0] * x[:, 1] > 0})
    pipeline = gp.Pipeline([], gp.Features((["a", "b"], pre.StandardScaler()), target="good"), backend="cpu")
    pipeline.fit(frame[:1500])
    return pipeline, pipeline.loader(frame[:1500], batch_size=256, shuffle="rows"), pipeline.loader(frame[1500:])


@pytest.mark.slow
def test_many_trials_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, train, valid = problem()
    block = train.table.words.clone()

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
    assert bool((train.table.words == block).all())
    # A trial is what its parameters and its number say, whatever trials went before.
    again = study.best_trial
    assert objective(optuna.trial.FixedTrial(again.params, number=again.number)) == again.value  # type: ignore[arg-type]


@pytest.mark.slow
def test_each_trial_captures_its_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a recording in a graph's place: every trial has the value it would have alone."""
    pipeline, train, valid = problem()

    class Prune(gp.training.Callback):
        def __init__(self, trial: optuna.Trial) -> None:
            self.trial = trial

        def on_epoch_end(self, run: Any) -> None:
            self.trial.report(run.history.rows[-1]["valid_auc"], run.epoch)
            if self.trial.should_prune():
                raise optuna.TrialPruned

    def objective(trial: optuna.Trial) -> float:
        width = trial.suggest_categorical("width", [16, 32])
        model = gp.models.MLP.from_schema(pipeline.schema, hidden=(width,), seed=trial.number)
        trainer = gp.Trainer(
            model,
            max_epochs=trial.suggest_int("epochs", 2, 5),
            lr=trial.suggest_float("lr", 1e-4, 1e-1, log=True),
            max_grad_norm=trial.suggest_float("max_grad_norm", 0.01, 10.0, log=True),
            seed=trial.number,
            device="cpu",
            progress=False,
            callbacks=[Prune(trial)],
        )
        return trainer.fit(train, valid).best["valid_auc"]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1), pruner=pruner)
    with monkeypatch.context() as patch:
        graphs = pretend(patch)
        study.optimize(objective, n_trials=16)
        assert graphs.made == 16
    ended = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.PRUNED]
    assert ended and len(ended) < 16
    for trial in study.trials:
        if trial not in ended:
            alone = optuna.trial.FixedTrial(trial.params, number=trial.number)
            assert objective(alone) == trial.value  # type: ignore[arg-type]
