"""The choice of a network by the rows of a fit."""

from __future__ import annotations

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe.models.auto import MAX_ENSEMBLE_ROWS
from gpupipe.schema import Field, Role, Schema
from gpupipe.tensors.loader import choose_batch_size
from tests.raising import raises

FIELDS = [Field("x", "float32", role=Role.FEATURE), Field("y", "float32", role=Role.TARGET)]


@pytest.mark.parametrize(
    ("num_rows", "network"),
    [
        (1, gp.models.TabM),
        (MAX_ENSEMBLE_ROWS, gp.models.TabM),
        (MAX_ENSEMBLE_ROWS + 1, gp.models.MLP),
        (None, gp.models.MLP),
    ],
)
def test_many_rows_have_an_mlp(num_rows: int | None, network: type[gp.models.MLP]) -> None:
    model = gp.models.auto(Schema(FIELDS, num_rows=num_rows), seed=3, hidden=(8,))
    assert type(model) is network
    assert model.get_config()["seed"] == 3 and model.get_config()["hidden"] == [8]
    assert model.get_config()["dropout"] == 0.1
    assert gp.models.auto(Schema(FIELDS, num_rows=num_rows), dropout=0.5).get_config()["dropout"] == 0.5


@pytest.mark.parametrize(
    ("num_rows", "batch_size", "epochs"),
    [(70_000, 512, 13), (150_000, 512, 6), (300_000, 512, 3), (1_000_000, 2048, 4), (10_000_000, 4096, 2)],
)
def test_many_rows_are_passed_over_few_times(num_rows: int, batch_size: int, epochs: int) -> None:
    assert choose_batch_size(num_rows) == batch_size
    trainer = gp.Trainer(gp.models.auto(Schema(FIELDS, num_rows=num_rows)))
    assert trainer.choose_epochs(-(-num_rows // batch_size)) == epochs


@pytest.mark.parametrize(
    ("num_rows", "batch_size"), [(1, 16), (60, 16), (108, 32), (200, 64), (400, 128), (8_000, 128), (16_000, 256)]
)
def test_few_rows_make_updates_enough(num_rows: int, batch_size: int) -> None:
    """Of 108 rows one batch an epoch had made 40 updates, after which a network had hardly begun to learn."""
    assert choose_batch_size(num_rows) == batch_size


@pytest.mark.slow
def test_the_default_run_needs_no_argument_and_is_right() -> None:
    frame = pd.DataFrame({"x": [number / 500 for number in range(1000)]}).assign(
        y=lambda rows: rows["x"].round() % 2 == 1
    )
    train, valid = gp.from_frame(frame).split(fraction=0.8)
    pipeline = gp.Pipeline([], gp.Features.auto(train, target="y")).fit(train)
    trainer = gp.Trainer(gp.models.auto(pipeline.schema))
    history = trainer.fit(pipeline.loader(train, shuffle="rows"), pipeline.loader(valid))
    assert history.settings["batch_size"] == 128 and history.settings["max_epochs"] == 40
    assert history.best["valid_auc"] > 0.95


def test_what_is_no_schema_is_refused() -> None:
    with raises(gp.errors.BadConfig, where="MLP.from_schema"):
        gp.models.auto("flights")  # type: ignore[arg-type]
