"""What holds for every network: shapes, seeds, configs, precision, refusals, compiled and without waiting, learning."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import gpupipe as gp
from gpupipe import models
from gpupipe import preprocessing as pre
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.models import (
    MLP,
    XGB,
    DCNv2,
    FTTransformer,
    Linear,
    MultiTask,
    Periodic,
    PiecewiseLinear,
    ResNet,
    TabM,
)
from gpupipe.models.tabular import Tabular
from gpupipe.tensors.batch import Batch
from tests.raising import raises
from tests.training.host_waits import no_host_wait

NUMERIC, CARDINALITIES = 3, (7, 4)
EDGES = [[-1.0, 0.0, 1.0], [0.0, 2.0], []]
Make = Callable[..., Tabular]

SMALL: dict[str, tuple[type[Tabular], dict[str, Any]]] = {
    "linear": (Linear, {}),
    "mlp": (MLP, {"hidden": (8, 6)}),
    "mlp, periodic": (MLP, {"hidden": (8,), "numbers": Periodic(dim=3, frequencies=4)}),
    "mlp, piecewise linear": (MLP, {"hidden": (8,), "numbers": PiecewiseLinear(EDGES, dim=3)}),
    "resnet": (ResNet, {"blocks": 2, "width": 8}),
    "dcn": (DCNv2, {"hidden": (8,)}),
    "dcn, stacked, low rank": (DCNv2, {"hidden": (8,), "structure": "stacked", "rank": 2}),
    "ft-transformer": (FTTransformer, {"dim": 8, "heads": 2}),
    "multi-task": (MultiTask, {"hidden": (8,), "head": (4,)}),
    "tabm": (TabM, {"hidden": (8, 6), "members": 3}),
    "tabm, piecewise linear": (TabM, {"hidden": (8,), "members": 3, "numbers": PiecewiseLinear(EDGES, dim=3)}),
}


@pytest.fixture(params=SMALL)
def make(request: pytest.FixtureRequest) -> Make:
    cls, options = SMALL[request.param]

    def made(
        numeric: int = NUMERIC, cardinalities: tuple[int, ...] = CARDINALITIES, outputs: int = 1, **more: Any
    ) -> Any:
        given = dict(options)
        if isinstance(given.get("numbers"), PiecewiseLinear):
            given["numbers"] = PiecewiseLinear(EDGES[:numeric], dim=3)
        return cls(numeric, cardinalities, outputs, **given, **more)

    return made


def test_every_network_is_here() -> None:
    items = [getattr(models, name) for name in models.__all__]
    networks = {item for item in items if isinstance(item, type) and issubclass(item, torch.nn.Module)}
    assert {cls for cls, _ in SMALL.values()} == networks - {XGB}, "trees have no gradients; see test_xgb.py"


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize(("numeric", "cardinalities"), [(3, (7, 4)), (0, (7,)), (2, ())])
@pytest.mark.parametrize("outputs", [1, 4])
def test_shapes(make: Make, rows: Any, count: int, numeric: int, cardinalities: tuple[int, ...], outputs: int) -> None:
    model = make(numeric, cardinalities, outputs)
    members = (model.members,) if isinstance(model, TabM) else ()
    for training, between in ((True, members), (False, ())):
        output = model.train(training)(rows(count, numeric, cardinalities))
        assert output.shape == (count, *between, *([] if outputs == 1 else [outputs]))
        assert output.dtype == torch.float32
        output.sum().backward()


def test_the_seed_rules_the_weights_and_the_global_generator_is_left_alone(make: Make) -> None:
    before = torch.get_rng_state()
    one, same, other = (make(seed=seed).state_dict() for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], same[name]) for name in one)
    drawn = any(not torch.equal(one[name], other[name]) for name in one)
    assert drawn == (not isinstance(make(), Linear))


def test_the_config_rebuilds_the_model(make: Make, rows: Any) -> None:
    model = make(outputs=2, seed=11).eval()
    again = type(model)(**json.loads(json.dumps(model.get_config()))).eval()
    assert again.get_config() == model.get_config()
    assert torch.equal(again(rows(9)), model(rows(9)))


def test_a_copy_is_a_model_of_its_own(make: Make, rows: Any) -> None:
    model = make().eval()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(rows(9)), model(rows(9)))
    assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in model.parameters()}


def test_float64_is_the_same_function(make: Make, rows: Any) -> None:
    batch, model = rows(30), make().eval()
    single = model(batch)
    double = model.double()(Batch(batch.numeric.double(), batch.codes))
    assert double.dtype == torch.float64
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5)


def test_what_was_never_met_is_read_as_unknown(make: Make, rows: Any) -> None:
    model, batch = make().eval(), rows(4)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    strange = Batch(batch.numeric, batch.codes.clone())
    batch.codes[:, 0] = 1
    strange.codes[:, 0] = torch.tensor([-1, 7, 2**31 - 1, 1])
    assert torch.equal(model(strange), model(batch))


def test_every_weight_gets_a_gradient(make: Make) -> None:
    torch.manual_seed(0)
    model = make(outputs=2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    codes = torch.stack([torch.arange(400) % 7, torch.arange(400) % 4], 1).int()
    (model(Batch(torch.randn(400, 3), codes)) ** 2).sum().backward()
    silent = [name for name, parameter in model.named_parameters() if not parameter.grad.any()]
    assert not silent


def test_rows_do_not_depend_on_each_other(make: Make, rows: Any) -> None:
    model, batch = make().eval(), rows(12)
    some = Batch(batch.numeric[3:7], batch.codes[3:7])
    torch.testing.assert_close(model(some), model(batch)[3:7])


def test_nothing_makes_the_host_wait(make: Make, rows: Any) -> None:
    model, batch = make(), rows(16)
    with no_host_wait():
        model(batch).sum().backward()
    with pytest.raises(RuntimeError, match=r"the host waits at torch\.Tensor\.item"), no_host_wait():
        model(batch).sum().item()


@pytest.mark.parametrize("mode", ["train", pytest.param("eval", marks=pytest.mark.slow)])
def test_it_is_one_graph(make: Make, rows: Any, mode: str) -> None:
    model, batch = make(), rows(16)
    getattr(model, mode)()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    twin = copy.deepcopy(model)
    torch.manual_seed(1)
    found = compiled(batch)
    torch.manual_seed(1)
    torch.testing.assert_close(found, twin(batch))


def test_other_features_are_refused(make: Make, rows: Any) -> None:
    with pytest.raises(SchemaMismatch, match="2 numeric and 2 categorical columns") as caught:
        make()(rows(5, numeric=2))
    assert "3 numeric and 2 categorical" in caught.value.expected


@pytest.mark.parametrize(
    ("cls", "options", "name"),
    [
        (ResNet, {"blocks": -1}, "blocks"),
        (ResNet, {"width": 2, "hidden_factor": 0.1}, "hidden_factor"),
        (ResNet, {"dropout": 1.0}, "dropout"),
        (DCNv2, {"rank": 0}, "rank"),
        (DCNv2, {"structure": "wide"}, "structure"),
        (DCNv2, {"hidden": (0,)}, "hidden"),
        (FTTransformer, {"dim": 10, "heads": 4}, "heads"),
        (FTTransformer, {"blocks": 0}, "blocks"),
        (MultiTask, {"head": (0,)}, "head"),
        (TabM, {"members": 0}, "members"),
        (TabM, {"hidden": ()}, "hidden"),
        (TabM, {"task": "ranking"}, "task"),
        (TabM, {"task": "multiclass"}, "outputs"),
        (Linear, {"outputs": 0}, "outputs"),
    ],
)
def test_a_size_that_makes_no_sense_is_named(cls: type[Tabular], options: dict[str, Any], name: str) -> None:
    made: Any = cls
    with pytest.raises(BadConfig, match=rf"{cls.__name__}\({name}=\)") as caught:
        made(3, (4,), **options)
    assert caught.value.remedy


def table() -> pd.DataFrame:
    """Rows whose class is told by two numbers and one of four names, but not by a straight line through them."""
    draw = torch.Generator().manual_seed(4)
    numbers = torch.randn(2000, 2, generator=draw).double()
    names = torch.randint(0, 4, (2000,), generator=draw)
    good = (numbers[:, 0] * numbers[:, 1] + 1.5 * (names == 2) - 0.5) > 0
    texts = [["red", "green", "blue", "black"][name] for name in names.tolist()]
    return pd.DataFrame({"a": numbers[:, 0].numpy(), "b": numbers[:, 1].numpy(), "c": texts, "good": good.numpy()})


@pytest.fixture(scope="module")
def fitted() -> tuple[gp.Pipeline, pd.DataFrame]:
    frame = table()
    features = gp.Features((["a", "b"], pre.StandardScaler()), (["c"], pre.Categorify()), target="good")
    return gp.Pipeline([], features, backend="cpu").fit(frame), frame


LEARNING: dict[str, tuple[type[Tabular], dict[str, Any], float]] = {
    "linear": (Linear, {}, 0.65),
    "mlp": (MLP, {"hidden": (32,)}, 0.97),
    "mlp, periodic": (MLP, {"hidden": (32,), "numbers": Periodic(dim=8, frequencies=8, sigma=0.1)}, 0.97),
    "resnet": (ResNet, {"blocks": 1, "width": 32}, 0.97),
    "dcn": (DCNv2, {"hidden": (32,)}, 0.97),
    "ft-transformer": (FTTransformer, {"dim": 16, "heads": 2}, 0.97),
    "multi-task": (MultiTask, {"hidden": (32,), "head": (8,)}, 0.97),
    "tabm": (TabM, {"hidden": (32,), "members": 4}, 0.97),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n != "mlp" else ()) for n in LEARNING])
def test_it_learns_is_saved_and_loaded(name: str, fitted: tuple[gp.Pipeline, pd.DataFrame], tmp_path: Path) -> None:
    cls, options, least = LEARNING[name]
    pipeline, frame = fitted
    train, valid = pipeline.loader(frame[:1600], batch_size=64, shuffle="rows"), pipeline.loader(frame[1600:])
    model = cls.from_schema(pipeline.schema, seed=1, **options)
    trainer = gp.Trainer(model, max_epochs=15, lr=1e-2, device="cpu", progress=False)
    history = trainer.fit(train, valid)
    assert history.rows[-1]["valid_auc"] > least
    gp.save(tmp_path / "run", pipeline, model)
    scored = gp.load(tmp_path / "run", backend="cpu").predict_proba(frame[1600:].drop(columns="good"))
    found = torch.tensor(scored["probability"].to_numpy(copy=True))
    torch.testing.assert_close(found, trainer.predict(valid).sigmoid(), rtol=1e-5, atol=1e-6)


def test_piecewise_linear_bins_are_saved_with_the_model(
    fitted: tuple[gp.Pipeline, pd.DataFrame], tmp_path: Path, rows: Any
) -> None:
    pipeline, _ = fitted
    numbers = PiecewiseLinear.from_schema(pipeline.schema, dim=5)
    model = MLP.from_schema(pipeline.schema, hidden=(8,), numbers=numbers).eval()
    gp.save(tmp_path / "run", pipeline, model)
    again = gp.load(tmp_path / "run", backend="cpu").model
    cardinality = pipeline.schema.categorical[0].cardinality or 0
    batch: Batch = rows(20, 2, (cardinality,))
    found: Tensor = again(batch) if again is not None else torch.empty(0)
    assert torch.equal(found, model(batch))


@pytest.mark.parametrize("model", [MLP, DCNv2, MultiTask, TabM])
def test_one_width_is_one_layer(model: Any) -> None:
    one, several = model(numeric=3, hidden=16, seed=1), model(numeric=3, hidden=(16,), seed=1)
    assert one.get_config() == several.get_config() and one.get_config()["hidden"] == [16]


@pytest.mark.parametrize("made_by_hand", [False, True])
def test_numbers_in_another_order_are_not_those_that_were_learned(
    made_by_hand: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": [5.0, 1.0, 2.0, 0.0], "y": [0.5, 1.5, 2.5, 3.0]})
    pipeline, turned = (
        gp.Pipeline([], gp.Features((names, pre.StandardScaler()), target="y")).fit(frame)
        for names in (["a", "b"], ["b", "a"])
    )
    model = Linear(2) if made_by_hand else Linear.from_schema(pipeline.schema)
    trainer = gp.Trainer(model, max_epochs=1)
    trainer.fit(pipeline.loader(frame))
    gp.save(tmp_path / "a", pipeline, model)
    for network in (model, gp.load(tmp_path / "a").model):
        assert network is not None
        for call in (
            partial(gp.Scorer, turned, network),
            partial(gp.save, tmp_path / "b", turned, network),
            partial(gp.Trainer(network, max_epochs=1).fit, turned.loader(frame)),
            partial(gp.Trainer(network).evaluate, turned.loader(frame)),
        ):
            with raises(SchemaMismatch, where="Linear, numbers", got="b", match="another order"):
                call()
    caplog.clear()
    pipeline.fit(frame * 10)
    assert [message for message in caplog.messages if "fitted anew" in message]
    caplog.clear()
    pipeline.fit(frame)
    assert not [message for message in caplog.messages if "fitted anew" in message]
