"""Misspelt names of modules, steps, pipelines and scorers: the name that was meant; probes stay Python's own."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import models, preprocessing, selectors, transforms
from gpupipe.errors import AttributeNotFound
from gpupipe.evaluation.comparison import Comparison
from tests.raising import raises

DESCRIPTION = gp.from_frame(pd.DataFrame({"x": [1.0]})).describe()


@pytest.mark.parametrize(
    ("module", "name", "remedy"),
    [
        (preprocessing, "StandartScaler", "gp.preprocessing.StandardScaler"),
        (transforms, "Lags", "gp.transforms.Lag"),
        (transforms, "StandardScaler", "gp.preprocessing.StandardScaler"),
        (models, "Xgb", "gp.models.XGB"),
        (selectors, "numerics", "gp.selectors.numeric"),
        (gp.training, "EarlyStoping", "gp.training.EarlyStopping"),
        (gp.tensors, "Loaders", "gp.tensors.Loader"),
        (gp.io, "read_parket", "gp.io.read_parquet"),
        (preprocessing, "zzz", "help(gp.preprocessing)"),
    ],
)
def test_a_name_of_a_module(module: Any, name: str, remedy: str) -> None:
    with raises(AttributeNotFound, where=f"{module.__name__}.{name}", remedy=remedy):
        getattr(module, name)
    assert not hasattr(module, name)


@pytest.mark.parametrize(
    ("thing", "name", "remedy"),
    [
        (gp.Pipeline([]), "transfrom", "'transform' (the closest name)"),
        (gp.Pipeline([]), "predict", "gp.Scorer(pipeline, trainer.model).predict(data)"),
        (gp.Pipeline([]), "zzz", "help(Pipeline)"),
        (object.__new__(gp.Scorer), "predict_probas", "'predict_proba' (the closest name)"),
        (preprocessing.StandardScaler(), "fitt", "'fit' (the closest name)"),
        (transforms.Cast({"x": "int8"}), "dtype", "'dtypes' (the closest name)"),
        (gp.Pipeline([]).fit(pd.DataFrame({"x": [1]})).schema, "columns", "schema.names"),
        (object.__new__(gp.Trainer), "predict_proba", "gp.Scorer(pipeline, trainer.model).predict_proba(data)"),
        (object.__new__(gp.Report), "auc", "report['auc']"),
        (gp.History(), "loss", "[row['train_loss'] for row in history]"),
        (DESCRIPTION, "loc", "to_frame(), a frame of pandas"),
        (DESCRIPTION, "to_csv", "to_frame(), a frame of pandas"),
        (DESCRIPTION, "num_row", "'num_rows' (the closest name)"),
        (DESCRIPTION["x"], "avg", "'mean'"),
        (DESCRIPTION["x"], "notess", "'notes' (the closest name)"),
        (Comparison([], "auc", higher_is_better=True), "table", "to_frame(), a frame of pandas"),
        (gp.Pipeline([]).fit(pd.DataFrame({"x": [1]})).fit_report, "note", "'notes' (the closest name)"),
    ],
)
def test_a_name_of_an_object(thing: Any, name: str, remedy: str) -> None:
    with raises(AttributeNotFound, where=f"{type(thing).__name__}.{name}", remedy=remedy):
        getattr(thing, name)
    assert not hasattr(thing, name)


@pytest.mark.parametrize("thing", [preprocessing, gp.Pipeline([]), preprocessing.StandardScaler()])
def test_probes_are_answered_by_python_itself(thing: Any) -> None:
    for name in ("_repr_html_x", "__wrapped__", "_x"):
        with pytest.raises(AttributeError) as caught:
            getattr(thing, name)
        assert type(caught.value) is AttributeError


def test_state_that_is_not_there_and_copies_are_pythons_own() -> None:
    step = preprocessing.StandardScaler()
    with pytest.raises(AttributeError, match="has no attribute 'mean_'"):
        step.mean_  # noqa: B018
    for twin in (copy.copy(step), copy.deepcopy(step), pickle.loads(pickle.dumps(step))):
        assert repr(twin) == repr(step)
    with pytest.raises(gp.errors.NotFitted):
        gp.Pipeline([]).schema  # noqa: B018
