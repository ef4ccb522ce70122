"""Fits that take up the step of an earlier one: the figures of fits that do not, and one capture for all."""

from __future__ import annotations

import gc
import logging
import pickle
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpupipe.errors import BadConfig
from gpupipe.models import MLP, DCNv2, FTTransformer, ResNet
from gpupipe.tensors import Loader
from gpupipe.training import Callback, EarlyStopping, History, StepCache, Trainer, freeze
from gpupipe.training.alike import NotPlain, likeness
from gpupipe.training.step_cache import key_of
from gpupipe.training.together import Together
from tests.training.recorded import Graph, pretend
from tests.training.test_capture import GPU, loader_of

TRIALS: list[dict[str, Any]] = [
    {"lr": 0.01},
    {"lr": 0.05, "schedule": "linear", "seed": 3},
    {"lr": 0.02, "max_epochs": 4, "warmup": 0.5},
    {"lr": 0.03, "max_epochs": 1, "early_stopping": EarlyStopping(patience=1)},
]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> type[Graph]:
    return pretend(monkeypatch)


def trial(loader: Loader, model: nn.Module, **settings: Any) -> tuple[nn.Module, list[dict[str, float]]]:
    """The model after a fit, and its history without what a clock says."""
    device = str(loader.device)
    history = Trainer(model, **{"max_epochs": 2, "progress": False, "device": device, **settings}).fit(loader, loader)
    return model, figures(history)


def figures(history: History) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if "second" not in name} for row in history]


def over(loader: Loader, **arguments: Any) -> Loader:
    """Another loader over the same table."""
    return Loader(loader.block, **{"batch_size": 64, "shuffle": "rows", "seed": 3, **arguments})


def losses_of(rows: list[dict[str, float]]) -> list[float]:
    return [row["train_loss"] for row in rows]


def same(model: nn.Module, other: nn.Module) -> bool:
    mine, its = model.state_dict(), other.state_dict()
    return all(torch.equal(value, its[name]) for name, value in mine.items())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lamb", "rowwise"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"gradient_clip": 0.5, "average": 0.9}, {"precision": "fp16-mixed"}, {"class_weight": "balanced"}],
    ids=str,
)
def test_every_trial_is_a_fit_of_its_own_and_one_step_is_captured(
    optimizer: str, settings: dict[str, Any], graphs: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, loader, ours = StepCache(), loader_of(), []
    for number, each in enumerate(TRIALS):
        model = MLP.from_schema(loader.schema, hidden=(8,), dropout=0.2, seed=number)
        ours.append(trial(loader, model, optimizer=optimizer, step_cache=cache, **settings, **each))
    assert graphs.made == len(cache) == 1
    monkeypatch.undo()
    for number, (each, (model, rows)) in enumerate(zip(TRIALS, ours, strict=True)):
        alone = MLP.from_schema(loader.schema, hidden=(8,), dropout=0.2, seed=number)
        alone, expected = trial(loader_of(), alone, optimizer=optimizer, **settings, **each)
        assert rows == expected and same(model, alone)


@pytest.mark.parametrize("network", [ResNet, DCNv2, FTTransformer], ids=lambda network: network.__name__)
@pytest.mark.parametrize("captured", [False, True])
def test_buffers_blocks_and_attention_come_along(network: Any, captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = pretend(monkeypatch) if captured else Graph
    cache, loader = StepCache(), loader_of(reuse_buffers=True)
    trials = [(network.from_schema(loader.schema, seed=seed), lr) for seed, lr in ((1, 0.01), (2, 0.003))]
    ours = [trial(loader, model, lr=lr, step_cache=cache) for model, lr in trials]
    assert len(cache) == 1 and graphs.made == int(captured)
    monkeypatch.undo()
    for (model, rows), (seed, lr) in zip(ours, ((1, 0.01), (2, 0.003)), strict=True):
        alone, expected = trial(loader_of(), network.from_schema(loader.schema, seed=seed), lr=lr)
        assert rows == expected and same(model, alone)


def test_clipping_and_averaging_follow_the_trial(graphs: type[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(loader: Loader, **settings: Any) -> tuple[nn.Module, list[dict[str, float]]]:
        return trial(loader, MLP.from_schema(loader.schema, seed=1), optimizer="sgd", **settings)

    cache, loader = StepCache(), loader_of()
    values: list[dict[str, Any]] = [{"gradient_clip": 1e-3, "average": 0.99}, {"gradient_clip": 0.3, "average": 0.5}]
    ours = [fit(loader, step_cache=cache, **each) for each in values]
    assert graphs.made == 1
    monkeypatch.undo()
    for (model, rows), each in zip(ours, values, strict=True):
        alone, expected = fit(loader_of(), **each)
        assert rows == expected and same(model, alone)


def test_a_group_with_a_rate_of_its_own_keeps_it(graphs: type[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept as a share of the highest one, so another highest one makes another step."""
    settings: dict[str, Any] = {"groups": {"layers.*": {"lr": 0.001}}}
    cache, loader = StepCache(), loader_of()
    models = [MLP.from_schema(loader.schema, seed=1) for _ in range(2)]
    rates = (0.01, 0.02)
    ours = [trial(loader, m, lr=lr, step_cache=cache, **settings) for m, lr in zip(models, rates, strict=True)]
    assert graphs.made == 2
    monkeypatch.undo()
    for (model, rows), lr in zip(ours, rates, strict=True):
        alone, expected = trial(loader_of(), MLP.from_schema(loader.schema, seed=1), lr=lr, **settings)
        assert rows == expected and same(model, alone)


OTHERS: list[dict[str, Any]] = [
    {"weight_decay": 0.5},
    {"label_smoothing": 0.1},
    {"optimizer": "sgd"},
    {"precision": "bf16-mixed"},
    {"gradient_clip": 1.0},
    {"class_weight": {False: 1.0, True: 2.0}},
    {"groups": {"layers.*": {"weight_decay": 0.5}}},
    {"model": {"hidden": (9,)}},
    {"model": {"dropout": 0.3}},
    {"loader": {"batch_size": 32}},
    {"loader": {"sampler": "balanced", "shuffle": False}},
    {"table": 400},
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_what_is_built_in_makes_another_step(
    other: dict[str, Any], graphs: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(cache: StepCache | None, loader: Loader) -> tuple[nn.Module, list[dict[str, float]]]:
        settings = {name: value for name, value in other.items() if name not in ("model", "loader", "table")}
        model = MLP.from_schema(loader.schema, **{"hidden": (8,), "dropout": 0.2, "seed": 1, **other.get("model", {})})
        return trial(loader, model, step_cache=cache, **settings)

    cache, loader = StepCache(), loader_of()
    trial(loader, MLP.from_schema(loader.schema, hidden=(8,), dropout=0.2, seed=1), step_cache=cache)
    model, rows = fit(cache, loader_of(400) if "table" in other else over(loader, **other.get("loader", {})))
    assert len(cache) == 2 and graphs.made == (1 if "sampler" in other.get("loader", {}) else 2)
    monkeypatch.undo()
    alone, expected = fit(None, loader_of(400) if "table" in other else over(loader, **other.get("loader", {})))
    assert rows == expected and same(model, alone)


def test_weights_that_are_frozen_or_shared_make_another_step() -> None:
    loader, cache = loader_of(), StepCache()
    for patterns in ([], ["layers.0.*"], ["layers.0.*"]):
        model = MLP.from_schema(loader.schema, hidden=(8,), seed=1)
        before = model.layers[0].weight.clone()
        if patterns:
            freeze(model, *patterns)
        trial(loader, model, step_cache=cache)
        assert torch.equal(before, model.layers[0].weight) == bool(patterns)
    assert len(cache) == 2
    tied, free = (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2))
    assert likeness(tied) == likeness(free)
    tied[1].weight = tied[0].weight
    assert likeness(tied) != likeness(free)


def test_another_loader_over_the_same_table_gives_its_own_order(
    graphs: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, loader = StepCache(), loader_of()
    trial(loader, MLP.from_schema(loader.schema, seed=1), step_cache=cache)
    model, rows = trial(over(loader, seed=99), MLP.from_schema(loader.schema, seed=1), step_cache=cache)
    assert graphs.made == 1
    monkeypatch.undo()
    alone, expected = trial(loader_of(seed=99), MLP.from_schema(loader.schema, seed=1))
    assert rows == expected and same(model, alone)


def test_a_model_keeps_its_own_memory_and_what_it_learned() -> None:
    cache, loader = StepCache(), loader_of()
    first, second = (MLP.from_schema(loader.schema, seed=seed) for seed in (1, 2))
    parameters, places = list(first.parameters()), [parameter.data_ptr() for parameter in first.parameters()]
    trial(loader, first, step_cache=cache)
    learned = {name: value.clone() for name, value in first.state_dict().items()}
    trial(loader, second, step_cache=cache)
    assert all(a is b for a, b in zip(first.parameters(), parameters, strict=True))
    assert [parameter.data_ptr() for parameter in first.parameters()] == places
    assert all(torch.equal(value, learned[name]) for name, value in first.state_dict().items())
    assert not torch.equal(first.layers[0].weight, second.layers[0].weight)


class Prunes(Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_epoch_end(self, run: Any) -> None:
        raise self.error


def test_a_trial_that_is_broken_off_leaves_the_step_and_a_device_that_failed_takes_it(graphs: type[Graph]) -> None:
    cache, loader = StepCache(), loader_of()
    reference, expected = trial(loader, MLP.from_schema(loader.schema, seed=5))
    for error, kept in ((KeyError("pruned"), 1), (RuntimeError("CUDA error: an illegal address"), 0)):
        model = MLP.from_schema(loader.schema, seed=1)
        start = model.layers[0].weight.clone()
        with pytest.raises(type(error)):
            trial(loader, model, step_cache=cache, callbacks=[Prunes(error)])
        assert len(cache) == kept
        assert not torch.equal(start, model.layers[0].weight)  # it has learned what it has
        again, rows = trial(loader, MLP.from_schema(loader.schema, seed=5), step_cache=cache)
        assert rows == expected and same(again, reference)
    assert graphs.made == 3  # of the reference, of the first trial and of the one after the failure


def test_a_loss_scale_that_has_moved_begins_again(graphs: type[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    class Overflows(Callback):
        def on_epoch_end(self, run: Any) -> None:
            run.update.scale.value.fill_(2.0**-20)

    cache, loader = StepCache(), loader_of()
    for callbacks in ([Overflows()], []):
        model = MLP.from_schema(loader.schema, seed=1)
        ours = trial(loader, model, precision="fp16-mixed", step_cache=cache, callbacks=callbacks)
    assert graphs.made == 1
    monkeypatch.undo()
    alone, expected = trial(loader_of(), MLP.from_schema(loader.schema, seed=1), precision="fp16-mixed")
    assert ours[1] == expected and same(ours[0], alone)


def test_a_state_that_was_loaded_meanwhile_ends_the_step(graphs: type[Graph]) -> None:
    """Loading replaces the optimiser's moments, and the graph would go on with those that were."""

    class Loads(Callback):
        def on_epoch_end(self, run: Any) -> None:
            run.update.load_state_dict({name: value.clone() for name, value in run.update.state_dict().items()})

    cache, loader = StepCache(), loader_of()
    trial(loader, MLP.from_schema(loader.schema, seed=1), max_epochs=1, step_cache=cache, callbacks=[Loads()])
    assert graphs.made == 1 and len(cache) == 0


def test_compiled_functions_are_kept_where_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    real, compiled = torch.compile, []

    def compile_(function: Any, **options: Any) -> Any:
        compiled.append(function)
        return real(function, backend="aot_eager", fullgraph=True, **options)

    monkeypatch.setattr(torch, "compile", compile_)
    cache, loader = StepCache(), loader_of(320)
    for seed in range(4):
        _, rows = trial(loader, MLP.from_schema(loader.schema, seed=seed), compile=True, step_cache=cache)
        _, expected = trial(loader, MLP.from_schema(loader.schema, seed=seed))
        assert losses_of(rows) == pytest.approx(losses_of(expected))
    assert len(compiled) == 1


class Odd(MLP):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.scale = torch.ones(1)


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("not one by name", {"optimizer": torch.optim.AdamW}),
        ("Odd.scale: a Tensor", {"network": Odd}),
        ("the model has forward hooks", {"hook": True}),
        ("not those of a Loader", {"plain": True}),
        ("resume= is given", {"resume": True}),
        ("recompute= is given", {"recompute": True}),
    ],
    ids=str,
)
def test_what_is_not_kept_says_why_and_is_fitted(
    reason: str, change: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache, loader = StepCache(), loader_of()
    settings: dict[str, Any] = {"optimizer": change["optimizer"]} if "optimizer" in change else {}
    settings |= {"recompute": ["layers.*"]} if "recompute" in change else {}
    model = change.get("network", MLP).from_schema(loader.schema, seed=1)
    if "hook" in change:
        model.register_forward_hook(lambda *_: None)
    batches: Any = list(loader) if "plain" in change else loader
    settings |= {"loss": "bce"} if "plain" in change else {}
    trainer = Trainer(
        model, max_epochs=1, device="cpu", progress=False, checkpoints=tmp_path, step_cache=cache, **settings
    )
    if "resume" in change:
        trainer.fit(batches)
        cache.clear()
        trainer.max_epochs = 2
    assert len(trainer.fit(batches, resume="latest" if "resume" in change else None)) == 1 + ("resume" in change)
    assert reason in caplog.text and len(cache) == 0


def test_several_processes_have_steps_of_their_own() -> None:
    loader = loader_of()
    trainer = Trainer(MLP.from_schema(loader.schema), max_epochs=1)
    cpu = torch.device("cpu")
    with pytest.raises(NotPlain, match="several processes"):
        key_of(trainer, nn.functional.mse_loss, loader, cpu, Together(0, 2), torch.ones(3), fresh=True)


def test_the_step_unused_for_longest_goes() -> None:
    cache, loader = StepCache(size=2), loader_of()
    logged = []
    for width in (4, 5, 4, 6, 5):
        before = len(cache)
        trial(loader, MLP.from_schema(loader.schema, hidden=(width,)), max_epochs=1, step_cache=cache)
        logged.append((before, len(cache)))
    assert logged == [(0, 1), (1, 2), (2, 2), (2, 2), (2, 2)]
    cache.clear()
    assert len(cache) == 0
    with pytest.raises(BadConfig, match="size"):
        StepCache(size=0)


def test_a_step_serves_one_fit_at_a_time() -> None:
    cache, loader, inner = StepCache(), loader_of(), []

    class Nested(Callback):
        def on_epoch_end(self, run: Any) -> None:
            inner.append(trial(over(loader), MLP.from_schema(loader.schema, seed=2), step_cache=cache))

    outer, rows = trial(loader, MLP.from_schema(loader.schema, seed=1), step_cache=cache, callbacks=[Nested()])
    for (model, found), seed in (((outer, rows), 1), (inner[0], 2), (inner[1], 2)):
        alone, expected = trial(loader_of(), MLP.from_schema(loader.schema, seed=seed))
        assert found == expected and same(model, alone)


def test_it_is_sent_and_copied_empty() -> None:
    cache, loader = StepCache(size=3), loader_of()
    trial(loader, MLP.from_schema(loader.schema), step_cache=cache)
    for copy in (pickle.loads(pickle.dumps(cache)), deepcopy(cache)):
        assert copy.size == 3 and len(copy) == 0
    assert len(cache) == 1


def test_the_longest_schedule_so_far_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.training.step_cache.RATES", 8)
    cache, loader = StepCache(), loader_of()  # six batches an epoch
    for epochs, kept in ((1, 1), (2, 2), (1, 2)):
        model, rows = trial(loader, MLP.from_schema(loader.schema, seed=1), max_epochs=epochs, step_cache=cache)
        alone, expected = trial(loader, MLP.from_schema(loader.schema, seed=1), max_epochs=epochs)
        assert rows == expected and same(model, alone) and len(cache) == kept


@pytest.mark.parametrize("device", [GPU])
def test_on_a_gpu_one_graph_serves_all_trials(
    device: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs of other fits end in between, and torch looks whether what the kept one reads still lives."""
    monkeypatch.setattr(torch.cuda, "graph", partial(torch.cuda.graph, check_input_liveness=True))
    cache, loader = StepCache(), loader_of(64 * 12, device)
    settings: dict[str, Any] = {"precision": "32-true", "capture": True, "gradient_clip": 0.5, "average": 0.9}
    for number, each in enumerate(TRIALS):
        caplog.clear()
        model = MLP.from_schema(loader.schema, hidden=(256, 256), seed=number)
        with caplog.at_level(logging.INFO):
            model, rows = trial(loader, model, step_cache=cache, **settings, **each)
        assert caplog.text.count("captured as a CUDA graph") == (number == 0)
        alone = MLP.from_schema(loader.schema, hidden=(256, 256), seed=number)
        alone, expected = trial(loader, alone, **settings, **each)
        assert losses_of(rows) == pytest.approx(losses_of(expected), rel=1e-3)
        close(model, alone)
        gc.collect()


@pytest.mark.parametrize("device", [GPU])
def test_on_a_gpu_a_replay_draws_by_the_seed_of_its_fit(device: str) -> None:
    cache, loader = StepCache(), loader_of(64 * 12, device)
    fits = []
    for seed in (9, 1, 1, 2):
        model = MLP.from_schema(loader.schema, hidden=(32,), dropout=0.5, seed=1)
        fits.append(trial(loader, model, precision="32-true", seed=seed, step_cache=cache)[0])
    assert len(cache) == 1
    close(fits[1], fits[2])
    with pytest.raises(AssertionError):
        close(fits[2], fits[3])


def close(model: nn.Module, other: nn.Module) -> None:
    its: dict[str, Tensor] = other.state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, its[name], atol=1e-4, rtol=1e-3)
