"""A call that Python refuses is answered in the family's words, whatever is called."""

from __future__ import annotations

import importlib
import inspect
import pickle
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.errors import BadCall, BadConfig, ExpressionError, GpupipeError
from gpupipe.evaluation.row_table import FigureTable
from gpupipe.io.description.report import Description
from gpupipe.support.calls import answer_calls
from gpupipe.training.loop.scored_rows import ScoredRows
from tests.raising import raises

MODULES = ["", ".preprocessing", ".transforms", ".selectors", ".models", ".training"]
WHOLE = [gp.Cluster, gp.ClusterLoader, gp.Dataset, gp.Features, gp.History, gp.Pipeline, gp.Report, gp.Scorer]
WHOLE += [gp.Trainer, gp.CrossValidation, ScoredRows, FigureTable, Description]
STEPS = [pre.StandardScaler(), pre.TargetEncoder(), pre.IncrementalPCA(1), pre.VarianceThreshold(), T.Drop("x")]
OF_STEPS = ["fit", "transform", "fit_transform", "partial_fit", "inverse_transform", "get_feature_names_out"]
OF_STEPS += ["get_support", "get_params", "set_params", "set_output"]
# What results are, and protocols; nobody makes them by hand.
MADE_HERE = {"BatchSizes", "Columns", "Comparison", "CrossValidation", "Importance", "LoadReport", "Summary"}
MADE_HERE |= {"Metric", "Selector", "TrainState"}


def list_public() -> dict[str, Callable[..., Any]]:
    public = {}
    for place in MODULES:
        module = importlib.import_module(f"gpupipe{place}")
        for name in module.__all__:
            thing = getattr(module, name)
            is_made = isinstance(thing, type) and (inspect.isabstract(thing) or issubclass(thing, BaseException | Enum))
            if callable(thing) and name not in MADE_HERE and not is_made:
                public[f"gp{place}.{name}"] = thing
    return public


def list_methods() -> dict[str, Callable[..., Any]]:
    methods = {}
    for cls in WHOLE:
        for name, member in vars(cls).items():
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, classmethod)):
                bound = partial(member, None) if inspect.isfunction(member) else getattr(cls, name)
                methods[f"{cls.__name__}.{name}"] = bound
    of_steps = [(step, name) for step in STEPS for name in OF_STEPS if hasattr(step, name)]
    return methods | {f"{type(step).__name__}.{name}": getattr(step, name) for step, name in of_steps}


THINGS = list_public() | list_methods()


@pytest.mark.slow
@pytest.mark.parametrize("called", THINGS)
def test_everything_public_answers_an_unknown_argument(called: str) -> None:
    with pytest.raises(GpupipeError) as caught:
        THINGS[called](no_such_argument=1)
    # Some take any name, and say what they take.
    assert isinstance(caught.value, BadCall | BadConfig | ExpressionError)
    assert not isinstance(caught.value, BadCall) or caught.traceback[-1].path.name == "calls.py"


MLP = gp.models.MLP(1)
FRAME = pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1]})


@pytest.mark.parametrize(
    ("call", "where", "remedy"),
    [
        (lambda: gp.Trainer(None, learning_rate=0.1), "Trainer(learning_rate=)", "lr=0.1"),
        (lambda: gp.read_csv("a.csv", delimiter=";"), "read_csv(delimiter=)", "sep=';'"),
        (
            lambda: gp.read_csv("a.csv", delim_whitespace=True),
            "read_csv(delim_whitespace=)",
            r"gp.from_frame(pandas.read_csv(path, sep=r'\s+'))",
        ),
        (lambda: pre.StandardScaler(with_means=True), "StandardScaler(with_means=)", "with_mean=True"),
        (lambda: gp.Pipeline([]).fit(FRAME).loader(FRAME, batchsize=5), "Pipeline.loader(batchsize=)", "batch_size=5"),
        (
            lambda: gp.from_frame(FRAME).write_parquet("a", over_write=True),
            "Dataset.write_parquet(over_write=)",
            "overwrite=True",
        ),
        (lambda: T.Lag("x", allow_leak=["x"]), "Lag(allow_leak=)", "gp.Features(..., allow_leak=...)"),
        (lambda: gp.Pipeline([], target="x"), "Pipeline(target=)", "gp.Features(..., target=...)"),
        (lambda: gp.from_frame(FRAME).split(test_size=0.2), "Dataset.split(test_size=)", "fraction=0.8"),
        (lambda: gp.from_frame(FRAME).split(train_size=0.8), "Dataset.split(train_size=)", "fraction=0.8"),
        (lambda: gp.from_frame(FRAME).sort("x", descending=True), "Dataset.sort(descending=)", "ascending=False"),
        (lambda: gp.from_frame(FRAME).sort("x", reverse=[False]), "Dataset.sort(reverse=)", "ascending=[True]"),
        (lambda: T.Lag("x", groupby="s"), "Lag(groupby=)", "by='s'"),
        (lambda: gp.from_frame(FRAME).kfold(3, groups="s"), "Dataset.kfold(groups=)", "by='s'"),
        (lambda: T.Lag("x", window=3), "Lag(window=)", "what is meant by it among these, or Lag(...) without it"),
        (lambda: gp.read_csv("a.csv", header=None), "read_csv(header=)", "names=['a', 'b', ...]"),
        (lambda: gp.from_frame(FRAME).deduplicate(subset="x"), "Dataset.deduplicate(subset=)", "on='x'"),
        (lambda: gp.from_frame(FRAME).group_by(by="x"), "Dataset.group_by(by=)", "keys='x'"),
        (lambda: gp.from_frame(FRAME).kfold(3, time="x"), "Dataset.kfold(time=)", "by='x'"),
        (lambda: T.Rolling("x", 3, on="t"), "Rolling(on=)", "order_by='t'"),
        (lambda: T.Lag("x", partition_by="s"), "Lag(partition_by=)", "by='s'"),
        (
            lambda: pre.SimpleImputer(missing_values=-999),
            "SimpleImputer(missing_values=)",
            "T.Replace({'x': {-999: None}}) before it",
        ),
        (
            lambda: T.JoinAsOf(FRAME, on="x", direction="forward"),
            "JoinAsOf(direction=)",
            "Dataset.join_asof(..., direction=...)",
        ),
        (
            lambda: gp.fit(FRAME, target="y", drop=["x"]),
            "fit(drop=)",
            "train.select([...]), of the columns that are meant",
        ),
        (lambda: pre.StandardScaler(True), "StandardScaler", "with_mean=... by name"),
        (lambda: T.Cast(x="int64"), "Cast(x=)", "Cast({'x': 'int64'})"),
        (lambda: T.Cast(x="int64", errors="coerce"), "Cast(x=)", "Cast({'x': 'int64'})"),
        (lambda: gp.fit(FRAME, label="y"), "fit(label=)", "target='y'"),
        (
            lambda: gp.Report({}, task="binary", labels=[0, 1]).threshold(minimize="cost"),
            "Report.threshold(minimize=)",
            "cost=(1, 5), what a false positive costs and a false negative",
        ),
        (lambda: gp.fit(FRAME, class_weight="balanced"), "fit(class_weight=)", "gp.Trainer(..., class_weight=...)"),
        (lambda: gp.models.XGB(lr=0.1), "XGB(lr=)", "learning_rate=0.1"),
        (lambda: gp.concat(FRAME, FRAME), "concat", "gp.concat([first, second]), the datasets in a list"),
        (
            lambda: gp.from_frame(FRAME).split(0.8, 0.2),
            "Dataset.split",
            "split((0.8, 0.2)), the shares of all parts in one tuple",
        ),
        (
            lambda: gp.models.XGB(n_estimators=9),
            "XGB",
            "lambda schema: gp.models.XGB.from_schema(schema, n_estimators=9) in gp.fit, or pipeline.schema",
        ),
        (
            lambda: gp.models.MLP.from_schema(hidden=(4,)),
            "MLP.from_schema",
            "lambda schema: gp.models.MLP.from_schema(schema, hidden=(4,)) in gp.fit, or pipeline.schema",
        ),
        (gp.Trainer, "Trainer", "Trainer(model=...)"),
        (lambda: gp.save("a", "b", path="c"), "save", "save(path=...)"),
        (gp.Features.auto, "Features.auto", "Features.auto(data=...)"),
    ],
)
def test_the_name_that_was_meant_is_offered(call: Callable[[], Any], where: str, remedy: str) -> None:
    with raises(BadCall, where=where, remedy=remedy) as caught:
        call()
    assert isinstance(caught.value, TypeError) and pickle.loads(pickle.dumps(caught.value)).remedy == remedy


def test_signatures_stay_and_errors_from_within_are_left_alone() -> None:
    assert list(inspect.signature(gp.Trainer).parameters)[:2] == ["model", "max_epochs"]
    assert list(inspect.signature(gp.read_csv).parameters)[:2] == ["path", "columns"]

    @answer_calls
    def fail(x: int) -> int:
        return len(x)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len") as caught:
        fail(1)
    assert not isinstance(caught.value, BadCall)


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda: gp.Pipeline([pre.StandardScaler]), "Features((columns, pre.StandardScaler()))"),
        (lambda: gp.Pipeline([T.DropMissing]), "T.DropMissing(...)"),
        (lambda: gp.Features((["x"], [pre.SimpleImputer])), "pre.SimpleImputer()"),
        (lambda: gp.Features(["x"], target="y", target_transform=pre.Log1p), "pre.Log1p()"),
        (lambda: gp.Trainer(gp.models.MLP), "gp.models.MLP.from_schema(schema)"),
        (lambda: gp.Trainer(MLP, checkpoints=gp.Checkpoints), "checkpoints=Checkpoints(...)"),
        (
            lambda: gp.Trainer(gp.models.MLP(1), callbacks=[gp.training.JSONLinesLogger]),
            "callbacks=[JSONLinesLogger(...)]",
        ),
    ],
)
def test_a_class_in_the_place_of_an_object_is_offered_its_parentheses(call: Callable[[], Any], remedy: str) -> None:
    with pytest.raises(BadConfig, match="a class in the place of") as caught:
        call()
    assert caught.value.remedy == remedy
