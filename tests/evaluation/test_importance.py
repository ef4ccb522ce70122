"""Permutation importance: exactly what the definition gives, and what scikit-learn's gives within its own spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score, roc_auc_score
from torch.utils._python_dispatch import TorchDispatchMode

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.errors import BadConfig
from gpupipe.models import MLP, Linear
from gpupipe.tensors import Permutation
from tests.raising import raises


def frame_of(rows: int = 1000) -> pd.DataFrame:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(rows, 3))
    name = draw.integers(0, 3, rows)
    y = 3 * x[:, 0] - x[:, 1] + 2.0 * (name == 1) + 0.1 * draw.normal(size=rows)
    texts = np.array(["red", "green", "blue"])[name]
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "name": texts, "y": y, "good": y > 0})


@pytest.fixture(scope="module")
def fitted() -> tuple[gp.Pipeline, pd.DataFrame, gp.Trainer]:
    frame = frame_of()
    features = gp.Features(["a", "b", "c"], (["name"], pre.Categorify()), target="y", target_transform=None)
    pipeline = gp.Pipeline([], features, backend="cpu").fit(frame)
    model = Linear.from_schema(pipeline.schema)
    trainer = gp.Trainer(model, max_epochs=30, lr=0.1, weight_decay=0.0, device="cpu", progress=False)
    trainer.fit(pipeline.loader(frame, batch_size=100, shuffle=True))
    return pipeline, frame, trainer


@pytest.mark.slow
def test_it_is_the_definition(fitted: Any, caplog: pytest.LogCaptureFixture) -> None:
    pipeline, frame, trainer = fitted
    loader = pipeline.loader(frame, batch_size=130)
    with caplog.at_level("INFO", "gpupipe"):
        importance = gp.importance(trainer, loader, metric="r2", repeats=3, seed=5)
    assert not caplog.messages  # of the device, one for each permutation
    block = loader.table
    numbers, codes = block.numeric.clone(), block.codes.clone()
    whole = r2_score(block.target, trainer.predict(loader))
    for name, table, place in (("a", numbers, 0), ("c", numbers, 2), ("name", codes, 0)):
        losses = []
        for repeat in range(3):
            order = torch.from_numpy(Permutation(len(block), seed=5, epoch=repeat).at(np.arange(len(block))))
            before = table[:, place].clone()
            table[:, place] = before[order]
            output = trainer.model(gp.Batch(numbers, codes)).detach()
            table[:, place] = before
            losses.append(whole - r2_score(block.target, output))
        assert importance.losses[name] == pytest.approx(losses, abs=1e-5)
        assert importance[name]["mean"] == pytest.approx(np.mean(losses), abs=1e-5)
        assert importance[name]["std"] == pytest.approx(np.std(losses), abs=1e-5)
    assert importance.value == pytest.approx(whole, abs=1e-6)


def test_it_is_scikit_learns_on_a_linear_model() -> None:
    frame = frame_of()
    columns = ["a", "b", "c"]
    oracle = LinearRegression().fit(frame[columns].to_numpy(), frame["y"])
    wanted = permutation_importance(oracle, frame[columns].to_numpy(), frame["y"], n_repeats=30, random_state=0)
    features = gp.Features(columns, target="y", target_transform=None)
    pipeline = gp.Pipeline([], features, backend="cpu").fit(frame)
    model = Linear(3)
    model.weight.data[:, 0] = torch.from_numpy(oracle.coef_).float()
    model.bias.data[:] = float(oracle.intercept_)
    found = gp.importance(model, pipeline.loader(frame), metric="r2", repeats=30)
    for place, name in enumerate(columns):
        error = 4 * wanted.importances_std[place] / 30**0.5 * 2**0.5 + 1e-6
        assert found[name]["mean"] == pytest.approx(wanted.importances_mean[place], abs=error)
        assert found[name]["std"] == pytest.approx(wanted.importances_std[place], rel=0.6, abs=1e-5)
    assert [row["feature"] for row in found.rows] == columns


def test_the_block_is_left_as_it_was(fitted: Any) -> None:
    pipeline, frame, trainer = fitted
    loader = pipeline.loader(frame, batch_size=130)
    before = loader.table.words.clone()
    gp.importance(trainer, loader, repeats=1)
    assert torch.equal(loader.table.words, before)


@pytest.mark.slow
def test_the_result_depends_on_neither_batches_nor_shuffle(fitted: Any) -> None:
    pipeline, frame, trainer = fitted
    one, other = (
        gp.importance(trainer, loader, repeats=2, metric="rmse")
        for loader in (pipeline.loader(frame, batch_size=7), pipeline.loader(frame, batch_size=512, shuffle="rows"))
    )
    for name in one.losses:
        assert one.losses[name] == pytest.approx(other.losses[name], abs=1e-5)


def test_numbers_stored_in_half_the_memory_have_the_same_importances(fitted: Any) -> None:
    pipeline, frame, trainer = fitted
    one, other = (
        gp.importance(trainer, pipeline.loader(frame, **more), repeats=2, metric="r2")
        for more in ({}, {"dtype": "bfloat16"})
    )
    for name in one.losses:
        assert one[name]["mean"] == pytest.approx(other[name]["mean"], abs=0.02)


@pytest.mark.slow
def test_the_host_waits_once_for_each_pass(fitted: Any) -> None:
    pipeline, frame, trainer = fitted
    waits = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket.__name__ in (
                "_local_scalar_dense",
                "nonzero",
                "equal",
                "is_nonzero",
                "masked_select",
            ):
                waits.append(func)
            return func(*args, **(kwargs or {}))

    found = []
    for batch_size in (50, 500):
        loader = pipeline.loader(frame, batch_size=batch_size)
        with Counting():
            gp.importance(trainer, loader, repeats=2)
        found.append(len(waits))
        waits.clear()
    assert found[0] == found[1]


def test_a_scorer_and_a_module_say_what_the_trainer_says(fitted: Any, tmp_path: Path) -> None:
    pipeline, frame, trainer = fitted
    loader = pipeline.loader(frame)
    gp.save(tmp_path / "run", pipeline, trainer.model)
    scorer = gp.load(tmp_path / "run", backend="cpu")
    wanted = gp.importance(trainer, loader, repeats=2)
    assert wanted.metric == "rmse"
    assert wanted["a"]["mean"] > wanted["b"]["mean"] > 0.1
    assert abs(wanted["c"]["mean"]) < 0.01
    for model in (scorer, trainer.model):
        assert gp.importance(model, loader, repeats=2).losses == wanted.losses


def test_classes_weights_and_the_other_direction() -> None:
    frame = frame_of().assign(weight=lambda f: (f["a"] > 0) + 0.5)
    features = gp.Features(["a", "c"], target="good", weight="weight")
    pipeline = gp.Pipeline([], features, backend="cpu").fit(frame)
    model = Linear(2)
    model.weight.data[:, 0] = torch.tensor([1.0, 0.0])
    loader = pipeline.loader(frame)
    found = gp.importance(model, loader, repeats=1, seed=2)
    order = Permutation(1000, seed=2).at(np.arange(1000))
    x, weight = frame["a"].to_numpy("float32"), frame["weight"].to_numpy("float32")
    areas = [roc_auc_score(frame["good"], values, sample_weight=weight) for values in (x, x[order])]
    assert found.metric == "auc"
    assert found["a"]["mean"] == pytest.approx(areas[0] - areas[1], abs=1e-5)
    assert found["c"]["mean"] == 0
    worse = gp.importance(model, loader, repeats=1, seed=2, metric="loss")
    assert worse["a"]["mean"] > 0.1  # a loss that grows is importance too


def test_importance_is_in_the_targets_own_units() -> None:
    frame = frame_of().assign(y=lambda f: 100 * f["y"])
    features = gp.Features(["a", "b"], target="y", target_transform=[pre.StandardScaler()])
    pipeline = gp.Pipeline([], features, backend="cpu").fit(frame)
    model = Linear(2)
    model.weight.data[:, 0] = torch.tensor([0.8, -0.3])
    assert gp.importance(model, pipeline.loader(frame), metric="rmse", repeats=1)["a"]["mean"] > 50


def test_it_reads_well() -> None:
    found = gp.Importance({"a<b": [0.5], "c": [1.0]}, "auc", 0.9)
    assert [row["feature"] for row in found.rows] == ["c", "a<b"]
    assert "auc 0.9, lost without" in repr(found)
    assert ">a&lt;b</td>" in found._repr_html_()


def test_what_makes_no_sense_is_refused(fitted: Any) -> None:
    pipeline, frame, trainer = fitted
    loader = pipeline.loader(frame)
    with raises(BadConfig, where="importance(metric=)", got="rsme") as caught:
        gp.importance(trainer, loader, metric="rsme")
    assert caught.value.remedy == "metric='rmse'"
    with raises(BadConfig, where="importance(repeats=)", got=0):
        gp.importance(trainer, loader, repeats=0)
    with raises(BadConfig, where="importance(loader=)", got="list"):
        gp.importance(trainer, [])
    with pytest.raises(BadConfig, match="there is no model"):
        gp.importance(gp.Scorer(pipeline, None), loader)


def test_an_mlp_over_ids_alone_has_importances_too() -> None:
    frame = frame_of(200)
    features = gp.Features((["name"], pre.Categorify()), target="good")
    pipeline = gp.Pipeline([], features, backend="cpu").fit(frame)
    found = gp.importance(MLP.from_schema(pipeline.schema, hidden=(4,)), pipeline.loader(frame), repeats=1)
    assert list(found.losses) == ["name"]
