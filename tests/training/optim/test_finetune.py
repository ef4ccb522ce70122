"""Weights taken over, refused and told of; parts left as they are."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import gpupipe as gp
from gpupipe import preprocessing as pre
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
    with raises(BadConfig, where="load_weights(weights=)", match="no weights, got <class '.*MLP'>"):
        load_weights(MLP(3), MLP(3))  # type: ignore[arg-type]


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
    assert not any(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_a_pattern_that_fits_nothing_is_an_error() -> None:
    with raises(BadConfig, where="freeze(patterns=)", got="embeding.*"):
        freeze(MLP(3, [5]), "embeding.*")


def fit_branches(branches: str, **options: Any) -> gp.Pipeline:
    """Fit ids of `branch`; the letters are its rows."""
    frame = pd.DataFrame({"x": 1.0, "branch": list(branches), "y": [0, 1] * (len(branches) // 2)})
    ids = pre.Categorify(**options)
    return gp.Pipeline([], gp.Features(["x"], (["branch"], ids), target="y", target_transform=None)).fit(frame)


def make_network(pipeline: gp.Pipeline, seed: int) -> MLP:
    return MLP.from_schema(pipeline.schema, hidden=(4,), embedding_dim=4, numbers=None, seed=seed)


def test_rows_of_an_embedding_go_with_their_values() -> None:
    old, new = fit_branches("aaabbc"), fit_branches("cccddbbbbb")  # a, b, c; then b, c, d
    theirs, mine = make_network(old, 1), make_network(new, 2)
    fresh = mine.embedding.table[4].clone()
    report = load_weights(mine, theirs.state_dict())
    assert str(report) == "5 loaded; new ids: 1 of 'branch'" and report.new_ids == {"branch": 1}
    table, rows = mine.embedding.table, theirs.embedding.table
    assert torch.equal(table[:4], rows[[0, 1, 3, 4]]) and torch.equal(table[4], fresh)
    frame = pd.DataFrame({"x": 1.0, "branch": ["b", "c", None]})
    scores = [gp.Scorer(pipe, net).predict_proba(frame) for pipe, net in ((old, theirs), (new, mine))]
    pd.testing.assert_frame_equal(*scores)


def test_sizes_that_follow_from_the_rows_are_named() -> None:
    frame = pd.DataFrame({"x": range(200), "k": [str(number % 40) for number in range(200)], "y": [0.0, 1.0] * 100})
    features = gp.Features((["k"], pre.Categorify()), ["x"], target="y > 0")
    old, new = gp.Pipeline([], features).fit(frame[:30]), gp.Pipeline([], features).fit(frame)
    first, second = MLP.from_schema(old.schema), MLP.from_schema(new.schema)
    with raises(SchemaMismatch, where="load_weights", match="embedding_dim=16, numbers=gp.models.PiecewiseLinear"):
        load_weights(second, first.state_dict())
    sizes = {"embedding_dim": 16, "numbers": gp.models.PiecewiseLinear.from_schema(old.schema)}
    first, second = (MLP.from_schema(pipeline.schema, **sizes) for pipeline in (old, new))
    assert load_weights(second, first.state_dict()).new_ids == {"k": 10}


def test_ids_that_nobody_knows_are_refused() -> None:
    old, new = make_network(fit_branches("aaabbc"), 1), make_network(fit_branches("bbbaac"), 2)
    before = new.embedding.table.clone()
    foreign = {name: value for name, value in old.state_dict().items() if name != "id_keys"}
    with raises(SchemaMismatch, where="load_weights", got=["branch"]):
        load_weights(new, foreign)
    assert load_weights(new, foreign, strict=False).missing == ["embedding.table"]
    assert torch.equal(new.embedding.table, before)


def test_a_model_is_used_with_its_own_vocabulary_alone(tmp_path: Path) -> None:
    old, new = fit_branches("aaabbc"), fit_branches("bbbaac")
    model, rows = make_network(old, 1), pd.DataFrame({"x": 1.0, "branch": list("ab"), "y": [0, 1]})
    for use in (
        lambda: gp.save(tmp_path / "m", new, model),
        lambda: Trainer(model, max_epochs=1).fit(new.loader(rows)),
    ):
        with raises(SchemaMismatch, where="MLP, column 'branch'"):
            use()
    gp.save(tmp_path / "m", old, model)
    scorer = gp.load(tmp_path / "m")
    assert scorer.schema.vocabularies["branch"].to_pylist() == ["a", "b", "c"]
    known = fit_branches("ccccddddbb", vocabulary=scorer.schema.vocabularies, extend=True)
    assert known.schema.vocabularies["branch"].to_pylist() == ["a", "b", "c", "d"]
    assert str(load_weights(make_network(known, 2), tmp_path / "m")) == "5 loaded; new ids: 1 of 'branch'"


def test_a_checkpoint_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    for place, letters in enumerate(("aaabbc", "bbbaac")):
        pipeline = fit_branches(letters)
        rows = pd.DataFrame({"x": 1.0, "branch": list(letters), "y": [0, 1] * 3})
        trainer = Trainer(make_network(pipeline, 1), max_epochs=1, checkpoints=tmp_path / "c", progress=False)
        if not place:
            trainer.fit(pipeline.loader(rows))
            continue
        with raises(SchemaMismatch, where="c/step-0000000001", match="another data set: vocabularies"):
            trainer.fit(pipeline.loader(rows), resume="latest")


@pytest.mark.parametrize(
    "step", [pre.KMeans(2), pre.KBinsDiscretizer(2), pre.HashBucket(3)], ids=lambda step: type(step).__name__
)
def test_ids_without_values_are_known_by_what_made_them(step: Any) -> None:
    models = []
    for shift in (0.0, 5.0):
        frame = pd.DataFrame({"x": [1.0 + shift, 2.0, 8.0, 9.0], "n": [1, 2, 3, 4], "y": [0, 1, 0, 1]})
        columns = ["n"] if isinstance(step, pre.HashBucket) else ["x"]
        models.append(make_network(gp.Pipeline([], gp.Features((columns, copy(step)), target="y")).fit(frame), 1))
    if isinstance(step, pre.KMeans):  # other centres are other clusters
        assert load_weights(*models[:1], models[1].state_dict(), strict=False).new_ids == {"kmeans": 2}
    else:
        assert load_weights(models[0], models[1].state_dict()).new_ids == {}


def test_trees_are_used_with_their_own_vocabulary_alone(tmp_path: Path) -> None:
    old, new = fit_branches("aaabbc"), fit_branches("bbbaac")
    frame = pd.DataFrame({"x": [1.0, 2.0] * 3, "branch": list("aaabbc"), "y": [0, 1] * 3})
    model = gp.models.XGB.from_schema(old.schema, n_estimators=1)
    Trainer(model).fit(old.loader(frame))
    gp.save(tmp_path / "m", old, model)
    with raises(SchemaMismatch, where="XGB, column 'branch'"):
        gp.Scorer(new, gp.load(tmp_path / "m").model)
