"""What must not pass from one trial to the next by way of a kept step, and what a step must not have built in."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpupipe.models import MLP
from gpupipe.tensors import Loader
from gpupipe.training import Callback, StepCache, Trainer, step_cache
from tests.training.recorded import Graph, pretend
from tests.training.test_capture import loader_of
from tests.training.test_step_cache import over, same, trial


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> type[Graph]:
    return pretend(monkeypatch)


def network(loader: Loader, seed: int = 1, kind: type[MLP] = MLP, **options: Any) -> MLP:
    return kind.from_schema(loader.schema, hidden=(8,), seed=seed, **options)


ORDERS: list[dict[str, Any]] = [
    {},
    {"shuffle": False},
    {"shuffle": "blocks", "block_rows": 50},
    {"drop_last": True, "shuffle": False},
]


@pytest.mark.parametrize("first", ORDERS, ids=str)
@pytest.mark.parametrize("second", ORDERS, ids=str)
def test_each_loader_over_a_table_has_its_own_order(
    first: dict[str, Any], second: dict[str, Any], graphs: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, loader = StepCache(), loader_of()
    trial(over(loader, **first), network(loader), step_cache=cache)
    model, rows = trial(over(loader, **second), network(loader, 2), step_cache=cache)
    assert graphs.made == 1
    monkeypatch.undo()
    alone, expected = trial(over(loader_of(), **second), network(loader, 2))
    assert rows == expected and same(model, alone)


class Freezes(Callback):
    def on_epoch_end(self, run: Any) -> None:
        run.model.layers[0].weight.requires_grad_(False)


class Decays(Callback):
    def on_epoch_start(self, run: Any) -> None:
        for group in run.update.optimizer.param_groups:
            group["weight_decay"] = 5.0


class DropsMore(Callback):
    def on_epoch_end(self, run: Any) -> None:
        for module in run.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.9


class Rates(Callback):
    def on_epoch_start(self, run: Any) -> None:
        for group in run.update.optimizer.param_groups:
            group["lr"] = torch.tensor(0.5)


class Hooks(Callback):
    def on_fit_start(self, run: Any) -> None:
        run.update.optimizer.register_step_post_hook(lambda *_: None)


class Objects(Callback):
    def on_fit_start(self, run: Any) -> None:
        before = run.update.objective
        run.update.objective = lambda batch: (before(batch)[0] * 2, before(batch)[1])


@pytest.mark.parametrize(
    "change", [Freezes, Decays, DropsMore, Rates, Hooks, Objects], ids=lambda change: change.__name__
)
@pytest.mark.parametrize("captured", [False, True])
def test_what_a_callback_changes_ends_with_its_fit(
    change: type[Callback], captured: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Uncaptured it has its effect on the fit itself, as without a cache."""
    if captured:
        pretend(monkeypatch)
    cache, loader = StepCache(), loader_of()
    changed, first = trial(loader, network(loader, dropout=0.1), step_cache=cache, callbacks=[change()])
    assert len(cache) == 0 and "was changed meanwhile" in caplog.text
    model, rows = trial(loader, network(loader, 2, dropout=0.1), step_cache=cache)
    monkeypatch.undo()
    if not captured:
        alone, expected = trial(loader_of(), network(loader, dropout=0.1), callbacks=[change()])
        assert first == expected and same(changed, alone)
        requires = [[p.requires_grad for p in each.parameters()] for each in (changed, alone)]
        assert requires[0] == requires[1]
    alone, expected = trial(loader_of(), network(loader, 2, dropout=0.1))
    assert rows == expected and same(model, alone)


class HooksForAWhile(Callback):
    def on_fit_start(self, run: Any) -> None:
        self.hook = run.model.register_forward_hook(lambda module, inputs, output: output * 2)

    def on_fit_end(self, run: Any) -> None:
        self.hook.remove()


class DropsLessForAWhile(Callback):
    def on_fit_start(self, run: Any) -> None:
        run.model.layers[2].p = 0.0

    def on_fit_end(self, run: Any) -> None:
        run.model.layers[2].p = 0.1


class EvaluatesDropout(Callback):
    def on_step_end(self, run: Any) -> None:
        run.model.layers[2].eval()


@pytest.mark.parametrize(
    "change", [HooksForAWhile, DropsLessForAWhile, EvaluatesDropout], ids=lambda change: change.__name__
)
def test_what_a_callback_undoes_is_in_no_kept_graph(
    change: type[Callback], graphs: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, loader = StepCache(), loader_of()
    model = network(loader, dropout=0.1)
    assert isinstance(model.layers[2], nn.Dropout)
    trial(loader, model, step_cache=cache, callbacks=[change()])
    model, rows = trial(loader, network(loader, 2, dropout=0.1), step_cache=cache)
    assert graphs.made == 2
    monkeypatch.undo()
    alone, expected = trial(loader_of(), network(loader, 2, dropout=0.1))
    assert rows == expected and same(model, alone)


def test_a_capture_that_fails_is_tried_again_by_the_next_trial(
    graphs: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tried = torch.cuda.graph, []

    @contextmanager
    def at_second(graph: Any, **options: Any) -> Iterator[None]:
        tried.append(graph)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("out of memory")
        with real(graph, **options):
            yield

    monkeypatch.setattr(torch.cuda, "graph", at_second)
    cache, loader = StepCache(), loader_of()
    kept = [trial(loader, network(loader, seed), step_cache=cache) and len(cache) for seed in range(3)]
    assert kept == [0, 1, 1] and len(tried) == 2


@dataclass
class Power:
    gamma: float

    def __call__(self, output: Tensor, batch: Any) -> Tensor:
        return (output - batch.target).abs() ** self.gamma


def powered(output: Tensor, batch: Any, gamma: float) -> Tensor:
    return Power(gamma)(output, batch)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        Power,
        lambda gamma: lambda output, batch: powered(output, batch, gamma),
        lambda gamma: lambda output, batch, gamma=gamma: powered(output, batch, gamma),
        lambda gamma: partial(powered, gamma=gamma),
    ],
    ids=["dataclass", "closure", "default", "partial"],
)
def test_losses_of_the_users_are_alike_by_what_they_see(
    make: Any, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if captured:
        pretend(monkeypatch)
    cache, loader = StepCache(), loader_of()
    ours = [trial(loader, network(loader), loss=make(gamma), step_cache=cache) for gamma in (2.0, 1.0, 2.0)]
    assert len(cache) == 2
    monkeypatch.undo()
    for (model, rows), gamma in zip(ours, (2.0, 1.0, 2.0), strict=True):
        alone, expected = trial(loader_of(), network(loader), loss=make(gamma))
        assert rows == expected and same(model, alone)


@pytest.mark.parametrize("captured", [False, True])
def test_a_loss_that_changes_between_fits_is_another(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if captured:
        pretend(monkeypatch)
    cache, loader, shared = StepCache(), loader_of(), [2.0]
    changing, ours = Power(2.0), []

    def closed(output: Tensor, batch: Any) -> Tensor:
        return powered(output, batch, shared[0])

    for gamma in (2.0, 1.0, 2.0):
        changing.gamma = shared[0] = gamma
        ours += [trial(loader, network(loader), loss=loss, step_cache=cache)[1] for loss in (changing, closed)]
    changing.gamma = shared[0] = 1.0
    ours.append(trial(loader, network(loader), loss=Power(2.0), step_cache=cache)[1])  # not what the first one is now
    monkeypatch.undo()
    for rows, gamma in zip(ours, (2.0, 2.0, 1.0, 1.0, 2.0, 2.0, 2.0), strict=True):
        assert rows == trial(loader_of(), network(loader), loss=Power(gamma))[1]


def test_torchs_own_settings_are_compared(graphs: type[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    cache, loader = StepCache(), loader_of()
    trial(loader, network(loader), step_cache=cache, precision="32-true")
    with torch.autocast("cpu", torch.bfloat16):
        _, rows = trial(loader, network(loader, 2), step_cache=cache, precision="32-true")
    assert graphs.made == 2
    monkeypatch.undo()
    with torch.autocast("cpu", torch.bfloat16):
        _, expected = trial(loader_of(), network(loader, 2), precision="32-true")
    assert rows == expected
    products = torch.backends.cuda.matmul
    before, products.fp32_precision = products.fp32_precision, "tf32"  # after which the older question is an error
    try:
        trial(loader, network(loader), step_cache=cache)
    finally:
        products.fp32_precision = before
    assert len(cache) == 3


class Settings(Trainer):
    def __init__(self, model: nn.Module, cache: StepCache) -> None:
        super().__init__(model, max_epochs=1, progress=False, device="cpu", step_cache=cache)


def test_a_trainer_with_a_constructor_of_its_own_takes_part() -> None:
    cache, loader = StepCache(), loader_of()
    Settings(network(loader), cache).fit(loader)
    assert len(cache) == 1


class Breaks(Callback):
    """As on a device that has failed: nothing can be copied back."""

    def on_epoch_end(self, run: Any) -> None:
        run.model.layers[0].weight.data = torch.zeros(1, 1, 3)
        raise RuntimeError("CUDA error")


def test_a_model_has_its_own_tensors_back_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, loader = StepCache(), loader_of()
    model = network(loader)
    own = list(model.parameters())
    with pytest.raises(RuntimeError):
        trial(loader, model, step_cache=cache, callbacks=[Breaks()])
    assert all(a is b for a, b in zip(own, model.parameters(), strict=True))
    real, copies = Tensor.copy_, []

    def copy_(self: Tensor, *arguments: Any) -> Tensor:
        copies.append(self)
        if len(copies) == 2:
            raise RuntimeError("out of memory")
        return real(self, *arguments)

    monkeypatch.setattr(Tensor, "copy_", copy_)
    with pytest.raises(RuntimeError, match="out of memory"):
        trial(loader, model, step_cache=cache)
    assert all(a is b for a, b in zip(own, model.parameters(), strict=True))


def test_no_more_steps_than_the_size_live_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    real = step_cache._Kept.__init__

    def init(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        alive.add(self)

    class Looks(Callback):
        def on_epoch_end(self, run: Any) -> None:
            most.append(len(alive))

    monkeypatch.setattr(step_cache._Kept, "__init__", init)
    cache, loader, most = StepCache(size=2), loader_of(), list[int]()
    for width in range(4, 8):
        model = MLP.from_schema(loader.schema, hidden=(width,))
        trial(loader, model, step_cache=cache, callbacks=[Looks()], max_epochs=1)
    assert max(most) == 2


def test_a_fit_that_ends_inside_another_leaves_no_more_either() -> None:
    class Inside(Callback):
        def on_epoch_end(self, run: Any) -> None:
            trial(over(loader), MLP.from_schema(loader.schema, hidden=(5,)), step_cache=cache, max_epochs=1)

    cache, loader = StepCache(size=1), loader_of()
    trial(loader, network(loader), step_cache=cache, callbacks=[Inside()], max_epochs=1)
    assert len(cache) == 1


class Ends(Callback):
    def on_step_end(self, run: Any) -> None:
        raise KeyError("pruned")


@pytest.mark.parametrize("captured", [False, True])
def test_between_fits_a_step_holds_no_model_and_no_gradients(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if captured:
        pretend(monkeypatch)
    cache, loader = StepCache(), loader_of()
    model = network(loader)
    with pytest.raises(KeyError):
        trial(loader, model, step_cache=cache, callbacks=[Ends()])
    trial(loader, model, step_cache=cache)
    (kept,) = cache._kept.values()
    assert all(tensor.grad is None for tensor in kept.stage)
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


def test_the_log_says_whether_a_step_was_made_or_taken_up(caplog: pytest.LogCaptureFixture) -> None:
    cache, loader = StepCache(), loader_of()
    with caplog.at_level(logging.INFO):
        for seed in range(3):
            trial(loader, network(loader, seed), step_cache=cache, max_epochs=1)
    assert caplog.text.count("a step is made") == 1 and caplog.text.count("is taken up") == 2
