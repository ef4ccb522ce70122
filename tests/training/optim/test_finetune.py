"""Weights taken over, refused and told of; parts left as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.models import MLP
from gpupipe.training import Trainer
from gpupipe.training.optim.finetune import freeze, load_weights, unfreeze
from tests.raising import raises


@pytest.mark.parametrize("form", ["mapping", "safetensors", "torch.save"])
def test_all_weights_are_taken_over(form: str, tmp_path: Path) -> None:
    theirs, mine = MLP(3, [5], hidden=(8,), seed=1), MLP(3, [5], hidden=(8,), seed=2)
    state: Any = {f"module.{name}": value for name, value in theirs.state_dict().items()}
    if form == "safetensors":
        save_file(state, tmp_path / "w.safetensors")
        state = tmp_path / "w.safetensors"
    elif form == "torch.save":
        torch.save(state, tmp_path / "w.pt")
        state = str(tmp_path / "w.pt")
    report = load_weights(mine, state, prefix="module.")
    assert len(report.loaded) == 5 and str(report) == "5 loaded"
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))


def test_those_that_fit_are_taken_over_and_the_others_told() -> None:
    theirs, mine = MLP(3, [5], hidden=(8,), seed=1), MLP(3, [7], 4, hidden=(8,), embedding_dim=4, seed=2)
    state = theirs.state_dict() | {"extra": torch.zeros(1)}
    del state["layers.0.bias"]
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    with pytest.raises(SchemaMismatch, match=r"missing: layers\.0\.bias; unexpected: extra; other shape: embedding"):
        load_weights(mine, state)
    assert all(torch.equal(before[name], value) for name, value in mine.state_dict().items())
    report = load_weights(mine, state, strict=False)
    assert (report.loaded, report.missing, report.unexpected) == (["layers.0.weight"], ["layers.0.bias"], ["extra"])
    assert report.other_shape["layers.2.weight"] == ((4, 8), (1, 8))
    assert torch.equal(mine.layers[0].weight, theirs.layers[0].weight)


def test_nothing_that_fits_is_an_error() -> None:
    with raises(BadConfig, where="load_weights", got=["module.layers.0.weight"]):
        load_weights(MLP(3), {"module.layers.0.weight": torch.zeros(1)}, strict=False)


def test_what_is_frozen_stays_and_what_is_unfrozen_moves(problem: Any) -> None:
    train = problem("binary", 200)
    model = MLP.from_schema(train.schema, hidden=(8,))
    assert freeze(model, "embedding.*", "layers.0.*") == ["embedding.table", "layers.0.weight", "layers.0.bias"]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Trainer(model, max_epochs=1, device="cpu").fit(train)
    assert {n for n, v in model.state_dict().items() if not torch.equal(v, before[n])} == {
        "layers.2.weight",
        "layers.2.bias",
    }
    unfreeze(model, "*")
    Trainer(model, max_epochs=1, device="cpu").fit(train)
    assert not any(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_pattern_that_fits_nothing_is_an_error() -> None:
    with raises(BadConfig, where="freeze(patterns=)", got="embeding.*"):
        freeze(MLP(3, [5]), "embeding.*")
