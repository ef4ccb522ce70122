"""The plain network: its arithmetic, its start, its shapes at the edges, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.models import MLP
from gpupipe.schema import Field, Kind, Role, Schema
from gpupipe.tensors.batch import Batch
from tests.raising import raises


def rows(count: int, numeric: int = 3, cardinalities: tuple[int, ...] = (7, 4)) -> Batch:
    generator = torch.Generator().manual_seed(count)
    codes = [torch.randint(0, n, (count, 1), dtype=torch.int32, generator=generator) for n in cardinalities]
    empty = torch.zeros(count, 0, dtype=torch.int32)
    return Batch(torch.randn(count, numeric, generator=generator), torch.cat([empty, *codes], 1))


def schema(*, target: Field | None = None, cardinality: int | None = 9) -> Schema:
    fields = [
        Field("temp", "float32", role=Role.FEATURE),
        Field("carrier", "int32", Kind.CATEGORICAL, cardinality=cardinality, role=Role.FEATURE),
        Field("night", "bool", role=Role.FEATURE),
        Field("flight", "int64", role=Role.KEEP),
    ]
    return Schema(fields if target is None else [*fields, target])


BINARY = Field("late", "bool", role=Role.TARGET, classes=(False, True))
THREE = Field("size", "string", role=Role.TARGET, classes=("S", "M", "L"))
DELAY = Field("delay", "float32", role=Role.TARGET)


def test_the_output_is_the_formula() -> None:
    model = MLP(3, [7, 4], hidden=(5,), seed=1)
    batch = rows(20)
    first, last = model.layers[0], model.layers[2]
    inputs = torch.cat([batch.numeric, *model.embedding(batch.codes).unbind(1)], 1)
    by_hand = (inputs @ first.weight.T + first.bias).relu() @ last.weight[0] + last.bias
    torch.testing.assert_close(model(batch), by_hand)


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize(("numeric", "cardinalities"), [(3, (7, 4)), (0, (7,)), (2, ())])
@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("hidden", [(), (8, 6)])
def test_shapes(
    count: int, numeric: int, cardinalities: tuple[int, ...], outputs: int, hidden: tuple[int, ...]
) -> None:
    model = MLP(numeric, cardinalities, outputs, hidden=hidden)
    output = model(rows(count, numeric, cardinalities))
    assert output.shape == ((count,) if outputs == 1 else (count, outputs))
    output.sum().backward()


def test_every_weight_gets_a_gradient() -> None:
    model = MLP(3, [7, 4], 2, hidden=(16,))
    F.cross_entropy(model(rows(64)), torch.arange(64) % 2).backward()
    assert all(parameter.grad.any() for parameter in model.parameters())


def test_dropout_acts_in_training_only() -> None:
    model, batch = MLP(3, [7, 4], dropout=0.5), rows(50)
    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))


def test_the_seed_rules_the_weights_and_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = (MLP(3, [7], seed=seed).state_dict() for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_the_config_rebuilds_the_model() -> None:
    model = MLP(3, (7, 4), 2, hidden=(16, 8), dropout=0.1, embedding_dim=5, seed=11)
    again = MLP(**json.loads(json.dumps(model.get_config())))
    assert again.get_config() == model.get_config()
    assert {name: t.shape for name, t in again.state_dict().items()} == {
        n: t.shape for n, t in model.state_dict().items()
    }
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.eval()(rows(9)), model.eval()(rows(9)))


@pytest.mark.parametrize(("target", "outputs"), [(BINARY, 1), (THREE, 3), (DELAY, 1)])
def test_from_schema_fits_features_and_target(target: Field, outputs: int) -> None:
    config = MLP.from_schema(schema(target=target), hidden=(8,), seed=7).get_config()
    assert (config["numeric"], config["cardinalities"], config["outputs"]) == (2, [9], outputs)
    assert (config["hidden"], config["seed"]) == ([8], 7)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (schema(), "the schema has no target"),
        (
            schema(target=Field("late", "string", role=Role.TARGET, classes=("x",))),
            "target 'late': there is nothing to tell apart",
        ),
        (
            schema(target=BINARY, cardinality=None),
            "column 'carrier': a categorical feature whose number of ids is not known",
        ),
    ],
)
def test_from_schema_refuses(given: Schema, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        MLP.from_schema(given)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"numeric": -1, "cardinalities": [3]}, "numeric"),
        ({"numeric": 0}, "numeric"),
        ({"numeric": 1, "cardinalities": [3, 1]}, "cardinalities"),
        ({"numeric": 1, "outputs": 0}, "outputs"),
        ({"numeric": 1, "hidden": (8, 0)}, "hidden"),
        ({"numeric": 1, "dropout": 1.0}, "dropout"),
        ({"numeric": 1, "cardinalities": [3], "embedding_dim": "wide"}, "embedding_dim"),
    ],
)
def test_a_size_that_makes_no_sense_is_named(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(BadConfig, match=rf"MLP\({name}=\): makes no sense") as caught:
        MLP(**arguments)
    assert caught.value.remedy


def test_a_batch_of_other_features_is_refused() -> None:
    with raises(SchemaMismatch, where="MLP", got="2 numeric and 2 categorical columns") as caught:
        MLP(3, [7, 4])(rows(5, numeric=2))
    assert "3 numeric and 2 categorical" in caught.value.expected
