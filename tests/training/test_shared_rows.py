"""Rows that judge a model and are among those that it learns from are noticed, wherever both are of one table."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.errors import LeakageError
from tests.raising import raises

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"number": range(400), "x": RNG.normal(size=400), "k": 0}).assign(late=lambda f: f.x > 0.8)
FRAME["day"] = pd.date_range("2024-01-01", periods=400)
DATA = gp.from_frame(FRAME)
LINES = gp.from_frame(pd.DataFrame({"k": [0, 0, 0], "price": [1.0, 2.0, 3.0]}))
AGAIN = gp.concat([DATA, DATA.filter("late")])
PAIRS = DATA.join(LINES, on="k", many=True)
TRAIN, VALID = DATA.split(0.8)

SHARED = {
    "all and a part": (DATA, VALID),
    "the same": (TRAIN, TRAIN),
    "parts of two draws": (TRAIN, DATA.split(0.8, seed=1)[1]),
    "rows of a class again": AGAIN.split(0.8),
    "rows again, sorted and filtered": AGAIN.sort("x").filter("x > -5").split(0.8),
    "pairs": PAIRS.split(0.8),
    "a part by a time, and later rows with some of it": (
        DATA.filter("day < '2024-10-02'"),
        DATA.split(by="day", at="2024-10-01")[1],
    ),
    "pairs by a column of the other table": PAIRS.split(by="price", at=2.0),
}
APART = {
    "parts": (TRAIN, VALID),
    "parts by a column": DATA.split(by="number", at=300),
    "parts by a column, filtered and split": (DATA.filter("number < 300"), DATA.split(by="number", at=300)[1]),
    "parts by a time, filtered and split": (
        DATA.filter("day < '2024-10-01'"),
        DATA.split(by="day", at="2024-10-01")[1],
    ),
    "parts put together": gp.concat([TRAIN, VALID]).split(0.8),
    "two tables put together": gp.concat([DATA, gp.from_frame(FRAME.assign(x=FRAME.x + 1))]).split(0.8),
    "rows of a class again, by their number": AGAIN.split(0.8, by="number"),
    "rows of a class again, at a number": AGAIN.split(by="number", at=300),
    "rows of a class again in one part": (gp.concat([TRAIN, TRAIN.filter("late")]), VALID),
    "pairs by their number": PAIRS.split(0.8, by="number"),
    "frames": (FRAME[:300], FRAME[300:]),
}


def fit(train: gp.Dataset, valid: gp.Dataset) -> gp.Scorer:
    pipeline = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), target="late")).fit(train)
    trainer = gp.Trainer(gp.models.Linear.from_schema(pipeline.schema), max_epochs=1, progress=False)
    trainer.fit(pipeline.loader(train, shuffle=True), pipeline.loader(valid))
    return gp.Scorer(pipeline, trainer.model)


@pytest.mark.parametrize("parts", [*SHARED, *APART])
def test_a_fit_warns_of_rows_that_are_in_both(parts: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="gpupipe"):
        fit(*{**SHARED, **APART}[parts])
    assert ("rows of valid may be among those of train" in caplog.text) == (parts in SHARED)


def test_a_comparison_warns_too(caplog: pytest.LogCaptureFixture) -> None:
    gp.compare(DATA, VALID, ["linear"], target="late")
    assert "compare: rows of valid may be among those of train" in caplog.text


def test_folds_of_rows_that_are_there_twice_are_refused() -> None:
    with raises(LeakageError, where="cross_validate, fold 1", match="rows that judge it may be among those of train"):
        gp.cross_validate(fit, AGAIN.kfold(2))
    assert len(gp.cross_validate(fit, AGAIN.kfold(2, by="number")).predictions) == len(AGAIN.compute())


def test_what_is_computed_of_a_part_leaks_to_copies_of_its_rows_in_the_other() -> None:
    train, valid = PAIRS.split(0.8)
    rates = train.group_by("number").agg(rate=("x", "mean"))
    apart = train.group_by("price").agg(rate=("x", "mean"))
    features = gp.Features(["rate"], target="x > 0")
    with pytest.raises(LeakageError, match="rate"):
        gp.Pipeline([], features).fit(valid.join(rates, on="number"))
    with pytest.raises(LeakageError, match="rate"):
        gp.Pipeline([], gp.Features(["rate"], target="x > 0")).fit(valid.join(apart, on="price"))
    of_prices = train.group_by("number").agg(rate=("price", "mean"))
    assert gp.Pipeline([], gp.Features(["rate"], target="price > 1")).fit(valid.join(of_prices, on="number"))


def test_rows_of_the_fit_are_no_judges(caplog: pytest.LogCaptureFixture) -> None:
    scorer = fit(TRAIN, VALID)
    caplog.clear()
    scorer.evaluate(VALID)
    assert "was fitted on" not in caplog.text
    scorer.evaluate(DATA)
    assert "evaluate: rows that the pipeline was fitted on are among these" in caplog.text
