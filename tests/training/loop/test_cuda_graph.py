"""The step a CUDA graph would hold, run uncaptured: the same numbers as the plain loop, and no host waiting."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gpupipe.backend import Column, select
from gpupipe.errors import BadConfig
from gpupipe.models import MLP
from gpupipe.schema import Field, Kind, Role, Schema
from gpupipe.tensors import FeatureTable, Loader
from gpupipe.tensors.batch import Batch
from gpupipe.training import Trainer
from gpupipe.training.callbacks.history import History
from gpupipe.training.loop.device import session
from gpupipe.training.loop.losses import LOSSES
from gpupipe.training.loop.run_start import make_objective
from gpupipe.training.loop.train_state import TrainState
from gpupipe.training.loop.train_step import (
    CapturedUpdate,
    CursorBatches,
    Update,
    explain_no_capture,
    explain_not_resident,
)
from gpupipe.training.optim.optimizers import make_optimizer, make_parameter_groups
from tests.raising import raises

CPU = torch.device("cpu")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
GPU = pytest.param("cuda", marks=[on_gpu, pytest.mark.gpu])


def loader_of(rows: int = 330, device: str = "cpu", **arguments: Any) -> Loader:
    draw = np.random.default_rng(0)
    schema = Schema(
        [
            Field("x", "float32", role=Role.FEATURE),
            Field("z", "float32", role=Role.FEATURE),
            Field("c", "int32", Kind.CATEGORICAL, cardinality=9, role=Role.FEATURE),
            Field("y", "bool", role=Role.TARGET, classes=(False, True)),
            Field("number", "int64", role=Role.KEEP),
        ]
    )
    block = FeatureTable.allocate(schema, rows, "cpu")
    x = draw.standard_normal(rows).astype(np.float32)
    columns = {"x": x, "z": draw.standard_normal(rows).astype(np.float32)}
    written = {name: Column("float32", values) for name, values in columns.items()}
    written |= {"c": Column("int64", draw.integers(0, 9, rows)), "y": Column("bool", x > 0)}
    written |= {"number": Column("int64", np.arange(rows))}
    block.write(0, written, select("cpu"))
    block.words, block.keep = block.words.to(device), {"number": block.keep["number"].to(device)}
    return Loader(block, **{"batch_size": 64, "shuffle": "rows", "seed": 3, **arguments})


def update_of(model: nn.Module, device: torch.device = CPU, optimizer_name: str = "adamw") -> Update:
    lr = torch.zeros((), device=device)
    optimizer = make_optimizer(optimizer_name, make_parameter_groups(model, lr, highest=1.0, weight_decay=0.01), lr)
    rates = torch.linspace(0.01, 0.02, 40, device=device)
    return Update(make_objective(model, LOSSES["bce"]), optimizer, rates=rates, max_grad_norm=1.0)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"shuffle": False},
        {"shuffle": "blocks", "block_rows": 16, "window": 3},
        {"sharded": True, "rank": 0, "world_size": 1},  # as of a cluster's only worker
    ],
)
@pytest.mark.parametrize("rows", [330, 320])
def test_it_trains_as_the_plain_loop_does(arguments: dict[str, Any], rows: int, device: str) -> None:
    models = [MLP(2, [9], hidden=(8,), seed=1).to(device) for _ in range(2)]
    plain, update = (update_of(model, torch.device(device)) for model in models)
    loader = loader_of(rows, device, **arguments)
    batches = CursorBatches(loader_of(rows, device, **arguments))
    captured = CapturedUpdate(update, batches)
    with session(torch.device(device), seed=0, precision="32-true"):  # a stream of its own, as in a fit
        for epoch in range(2):
            loader.set_epoch(epoch)
            batches.set_epoch(epoch)
            for batch in loader:
                plain(batch)
            for batch in batches:
                captured.learn(batch)
                captured.step()
    assert (captured.graph is not None) == (device == "cuda")
    assert int(update.count) == int(plain.count) == 2 * len(loader)
    torch.testing.assert_close(weights(models[0]), weights(models[1]), atol=0 if device == "cpu" else 1e-5, rtol=0)
    assert update.losses.read() == pytest.approx(plain.losses.read())


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lamb", "rowwise"])
def test_each_optimizer_does(optimizer: str, device: str) -> None:
    models = [MLP(2, [9], hidden=(8,), seed=1).to(device) for _ in range(2)]
    plain, update = (update_of(model, torch.device(device), optimizer) for model in models)
    batches = CursorBatches(loader_of(64 * 12, device))
    captured = CapturedUpdate(update, batches)
    with session(torch.device(device), seed=0, precision="32-true"):
        for batch in loader_of(64 * 12, device):
            plain(batch)
        for batch in batches:
            captured.learn(batch)
            captured.step()
    assert (captured.graph is not None) == (device == "cuda")
    torch.testing.assert_close(weights(models[0]), weights(models[1]), atol=0 if device == "cpu" else 1e-5, rtol=0)


def test_kept_columns_come_along() -> None:
    batches, seen = CursorBatches(loader_of()), []
    for batch in batches:
        full = batch is batches.full
        gathered = batches.gather() if full else batch
        seen.append(gathered.keep["number"].tolist())
        assert (gathered.keep["number"].data_ptr() == batches.full.keep["number"].data_ptr()) == full
    assert seen == [batch.keep["number"].tolist() for batch in loader_of()]


@pytest.mark.falls_back
def test_what_cannot_be_captured_runs_eagerly_and_nothing_of_the_attempt_stays(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt is broken off after the backward pass, whose gradients no device has computed."""
    models = [MLP(2, [9], hidden=(8,), seed=1) for _ in range(2)]
    plain, update = (update_of(model) for model in models)
    batches, loader = CursorBatches(loader_of()), loader_of()
    captured = CapturedUpdate(update, batches)

    def broken() -> None:
        assert not update.splits
        update.learn(Batch(torch.ones(64, 2), torch.ones(64, 1, dtype=torch.int32), torch.ones(64)))
        update.losses.reset()  # a graph that is only recorded adds nothing
        try:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        finally:
            raise RuntimeError("the capture was broken off before")  # as torch does at its end

    captured._eager = 2  # then it tries
    monkeypatch.setattr(torch.cuda, "CUDAGraph", broken)
    for number, (ours, theirs) in enumerate(zip(batches, loader, strict=True)):
        if number == 2:
            update.losses.reset()
            plain.losses.reset()
        captured.learn(ours)
        captured.step()
        plain(theirs)
    assert "not captured and runs eagerly: operation not permitted when stream is capturing" in caplog.text
    assert update.splits and captured.graph is None
    assert torch.equal(weights(models[0]), weights(models[1]))
    assert int(update.count) == int(plain.count) == 6


def test_a_step_makes_no_host_wait_and_reads_and_writes_the_same_memory(no_host_wait: Any) -> None:
    batches = CursorBatches(loader_of())
    captured = CapturedUpdate(update_of(MLP(2, [9], hidden=(8,), seed=1)), batches)
    places, iterator = set(), iter(batches)
    first = next(iterator)  # for which the epoch's order is made, on a CPU by NumPy
    with no_host_wait():
        for batch in itertools.chain([first], iterator):
            captured.learn(batch)
            captured.step()
            places.add(batch.numeric.data_ptr() if batch is batches.full else None)
    assert len(places) == 2  # one buffer for all full batches, and the last one's own


def test_a_planted_wait_is_caught(no_host_wait: Any) -> None:
    batches, update = CursorBatches(loader_of()), update_of(MLP(2, [9], hidden=(8,), seed=1))
    plain = update.objective

    def objective(batch: Any) -> Any:
        loss, weight = plain(batch)
        loss.item()
        return loss, weight

    update.objective = objective
    with pytest.raises(RuntimeError, match="the host waits"), no_host_wait():
        CapturedUpdate(update, batches).run_full_step()


def test_it_can_be_taken_up_in_the_middle_of_an_epoch() -> None:
    whole, first = CursorBatches(loader_of()), CursorBatches(loader_of())
    second = CursorBatches(loader_of())
    seen = [whole.gather().numeric.clone() for batch in whole if batch is whole.full]
    for number, _ in enumerate(first, start=1):
        first.gather()
        if number == 2:
            break
    assert first.state_dict()["batch"] == 2
    second.load_state_dict(first.state_dict())
    second.set_epoch(0)
    rest = [second.gather().numeric.clone() for batch in second if batch is second.full]
    assert len(rest) == 3 and all(map(torch.equal, rest, seen[2:]))
    assert second.state_dict()["epoch"] == 1 and second.state_dict()["batch"] == 0


def test_a_batch_is_given_again_after_a_fit_was_taken_up_in_the_middle() -> None:
    batches, plain = CursorBatches(loader_of()), list(loader_of())
    batches.load_state_dict(batches.state_dict() | {"epoch": 0, "batch": 2})
    update = update_of(MLP(2, [9], hidden=(8,), seed=1))
    run = TrainState(
        MLP(2, [9]), update, batches, History("valid_loss", higher_is_better=False), 6, 1, update.rates, CPU
    )
    next(run.batches())
    run.train = batches.loader
    for number in (1, 4, 6):
        assert run.batch_at(number).keep["number"].tolist() == plain[number - 1].keep["number"].tolist()


def small(loader: Loader) -> Loader:
    loader.batch_size = 10_000
    return loader


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (list, "not those of"),
        (lambda: loader_of(rank=0, world_size=2), "several processes"),
        (lambda: small(loader_of()), "no full batch"),
    ],
)
def test_what_cannot_be_captured_has_a_reason(loader: Callable[[], Any], reason: str) -> None:
    assert reason in str(explain_not_resident(loader(), CPU))
    assert explain_not_resident(loader_of(), CPU) is None
    assert explain_not_resident(loader_of(sharded=True, rank=0, world_size=1), CPU) is None


def test_a_cpu_runs_eagerly_says_why_and_refuses_when_asked_for_more(caplog: pytest.LogCaptureFixture) -> None:
    loader = loader_of()
    assert explain_no_capture("auto", loader, CPU) == "it runs on a CPU"
    assert "accumulated" in str(explain_no_capture("auto", loader, torch.device("cuda"), 2))
    assert "computed again" in str(
        explain_no_capture("auto", loader, torch.device("cuda"), activation_checkpointing=True)
    )
    with caplog.at_level(logging.INFO):
        Trainer(MLP.from_schema(loader.schema), max_epochs=1, device="cpu").fit(loader)
    assert "the step runs eagerly: it runs on a CPU" in caplog.text
    with raises(BadConfig, where="Trainer(cuda_graph=True)", got="Loader", match="it runs on a CPU"):
        Trainer(MLP.from_schema(loader.schema), max_epochs=1, device="cpu", cuda_graph=True).fit(loader)


@on_gpu
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_replay_makes_no_host_wait() -> None:
    batches = CursorBatches(loader_of(64 * 12, "cuda"))
    captured = CapturedUpdate(update_of(MLP(2, [9], hidden=(8,), seed=1).cuda(), torch.device("cuda")), batches)
    with session(torch.device("cuda"), seed=0, precision="32-true"):
        for number, batch in enumerate(batches):
            torch.cuda.set_sync_debug_mode("error" if number > 4 else "default")
            captured.learn(batch)
            captured.step()
        torch.cuda.set_sync_debug_mode("default")
    assert captured.graph is not None
