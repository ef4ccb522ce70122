"""A model that fits itself: what of a trainer counts for it, and the history it leaves."""

from __future__ import annotations

import logging
from typing import Any

import pandas as pd
import pytest
import torch

import gpupipe as gp
from gpupipe.errors import BadConfig
from gpupipe.tensors import Batch
from gpupipe.training import Callback
from tests.raising import raises

FRAME = pd.DataFrame({"x": range(300), "y": [v // 100 % 2 for v in range(300)]})


@pytest.fixture(scope="module")
def pipeline() -> gp.Pipeline:
    return gp.Pipeline([], gp.Features(["x"], target="y == 1"), backend="cpu").fit(FRAME)


def trainer(pipeline: gp.Pipeline, **more: Any) -> gp.Trainer:
    model = gp.models.XGB.from_schema(pipeline.schema, n_estimators=20)
    return gp.Trainer(model, device="cpu", progress=False, **more)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_epochs", 5),
        ("lr", 0.1),
        ("loss", "mse"),
        ("loss", torch.nn.BCEWithLogitsLoss()),
        ("optimizer", "sgd"),
        ("schedule", "cosine"),
        ("weight_decay", 0.1),
        ("ema_decay", 0.9),
        ("accumulate", 2),
        ("label_smoothing", 0.1),
        ("precision", "32-true"),
        ("compile", True),
        ("cuda_graph", False),
        ("early_stopping", gp.EarlyStopping()),
        ("callbacks", [Callback()]),
        ("checkpoints", "runs/trees"),
        ("log_every", 10),
    ],
)
def test_a_setting_that_means_nothing_to_trees_is_named(pipeline: gp.Pipeline, setting: str, value: Any) -> None:
    with raises(BadConfig, where=f"Trainer({setting}=)", got=value, match="it means nothing to XGB"):
        trainer(pipeline, **{setting: value}).fit(pipeline.loader(FRAME))


def test_a_fit_cannot_go_on(pipeline: gp.Pipeline) -> None:
    with raises(BadConfig, where="Trainer.fit(resume=)", got="latest"):
        trainer(pipeline).fit(pipeline.loader(FRAME), resume="latest")


def test_settings_that_count(pipeline: gp.Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpupipe")
    loader = pipeline.loader(FRAME)
    chosen = trainer(pipeline, metrics=["f1", "brier"], loss="bce", seed=3, class_weight="balanced", deterministic=True)
    history = chosen.fit(loader, loader)
    assert list(history.rows[-1]) == ["epoch", "train_loss", "valid_loss", "valid_f1", "valid_brier", "seconds"]
    assert "XGB learned 20 rounds, 20 are kept" in caplog.text
    assert not chosen.model.training
    figures = chosen.evaluate(loader)
    assert figures["brier"] == pytest.approx(history.best["valid_brier"])


def test_any_batches_will_do(pipeline: gp.Pipeline) -> None:
    whole = pipeline.loader(FRAME).table
    batches = [whole.batch_of(whole.words)]
    with raises(BadConfig, where="Trainer(loss='auto')"):
        trainer(pipeline).fit(batches)
    history = trainer(pipeline, loss="bce").fit([Batch(b.numeric, b.codes, b.target) for b in batches], batches)
    assert history.best["valid_auc"] > 0.99


def test_the_bar_says_rounds(pipeline: gp.Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = trainer(pipeline)
    chosen.progress = True
    chosen.fit(pipeline.loader(FRAME))
    shown = capsys.readouterr().err
    assert "20 rounds" in shown and "train_loss=" in shown
