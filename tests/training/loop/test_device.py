"""Where a run happens, and that the process is afterwards as it was."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpupipe.errors import BackendMissing, BadConfig
from gpupipe.models import MLP
from gpupipe.training import Trainer
from gpupipe.training.loop import device as room
from gpupipe.training.loop.device import choose_device, fork_rng, make_forward, session
from gpupipe.training.loop.losses import LOSSES
from tests.raising import raises

CPU = torch.device("cpu")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.mark.parametrize("requested", ["cpu", "cpu:0"])
def test_the_cpu_has_one_name(requested: str) -> None:
    assert choose_device(requested, []) == CPU


def test_auto_goes_where_the_data_lies() -> None:
    assert choose_device("auto", SimpleNamespace(device=CPU)) == CPU
    assert choose_device("auto", SimpleNamespace(device="cpu")) == CPU


@no_gpu
def test_auto_without_a_gpu_is_the_cpu_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "gpupipe"):
        assert choose_device("auto", []) == CPU
    assert caplog.messages == ["the trainer runs on cpu: torch sees no GPU"]


@no_gpu
@pytest.mark.parametrize("requested", ["cuda", "cuda:3"])
def test_a_gpu_where_there_is_none_is_an_error_with_the_install_line(requested: str) -> None:
    with pytest.raises(BackendMissing, match=f"sees 0 GPUs, got '{requested}'") as caught:
        choose_device(requested, [])
    assert "pytorch.org" in caught.value.remedy


@pytest.mark.parametrize("requested", ["gpu", "tpu:0", "meta", ""])
def test_an_unknown_device_is_an_error(requested: str) -> None:
    with raises(BadConfig, where="Trainer(device=)", remedy="device='auto'"):
        choose_device(requested, [])


@pytest.mark.parametrize(
    ("precision", "dtype"), [("auto", torch.float32), ("32-true", torch.float32), ("bf16-mixed", torch.bfloat16)]
)
def test_precision_on_the_cpu(precision: str, dtype: torch.dtype) -> None:
    model = torch.nn.Linear(2, 2)
    forward = make_forward(precision, model, CPU)
    assert forward(torch.zeros(1, 2)).dtype == forward(torch.zeros(1, 2)).dtype == dtype
    assert model.weight.dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")


on_gpu = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]
)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", on_gpu])
@pytest.mark.parametrize("precision", ["32-true", "tf32", "bf16-mixed", "fp16-mixed"])
def test_every_precision_trains_alike(precision: str, device: str, problem: Callable[..., Any]) -> None:
    """Each is the float32 run of a CPU but for what it rounds away; weights stay float32."""
    losses = {}
    for name, place in (("32-true", "cpu"), (precision, device)):
        train = problem("regression", 2000, shuffle=False)
        model = MLP.from_schema(train.schema, hidden=(32, 16), seed=1)
        trainer = Trainer(model, max_epochs=3, lr=0.01, device=place, precision=name, progress=False)
        losses[name] = [row["train_loss"] for row in trainer.fit(train)]
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert losses[precision] == pytest.approx(losses["32-true"], rel=0.1)
    assert losses[precision][-1] < losses[precision][0] / 2


def test_a_session_draws_by_its_seed_and_leaves_the_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    drawn = []
    for seed in (1, 1, 2):
        with session(CPU, seed=seed):
            drawn.append(torch.rand(3))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    with pytest.raises(KeyError), session(CPU, seed=1):
        raise KeyError(torch.rand(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_a_fork_draws_is_not_missed() -> None:
    with session(CPU, seed=1):
        plain = torch.rand(6)
    with session(CPU, seed=1):
        first = torch.rand(3)
        with fork_rng(CPU):
            torch.rand(5)
        assert torch.equal(torch.cat([first, torch.rand(3)]), plain)


@pytest.mark.parametrize("before", [False, True])
def test_deterministic_algorithms_are_asked_for_inside_only(before: bool) -> None:
    torch.use_deterministic_algorithms(before)
    try:
        with pytest.raises(KeyError, match="True"), session(CPU, seed=0, deterministic=True):
            raise KeyError(torch.are_deterministic_algorithms_enabled())
        assert torch.are_deterministic_algorithms_enabled() == before
    finally:
        torch.use_deterministic_algorithms(False)


def test_deterministic_on_a_gpu_needs_the_workspace_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with (
        raises(BadConfig, where="Trainer(deterministic=True)", got="CUBLAS_WORKSPACE_CONFIG=None") as caught,
        room._deterministic(torch.device("cuda", 0)),
    ):
        pass
    assert caught.value.remedy.startswith("CUBLAS_WORKSPACE_CONFIG=:4096:8")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with room._deterministic(torch.device("cuda", 0)):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (torch.cuda.Stream.__new__, {"cls": None, "device": CPU}),
        (torch.cuda.Stream.wait_event, {"self": None, "event": None}),
        (torch.cuda.Stream.record_event, {"self": None}),
        (torch.cuda.default_stream, {"device": CPU}),
        (torch.cuda.current_stream, {"device": CPU}),
        (torch.cuda.stream, {"stream": None}),
        (torch.cuda.device, {"device": CPU}),
        (torch.cuda.manual_seed, {"seed": 0}),
        (torch.cuda.get_device_capability, {"device": CPU}),
    ],
)
def test_the_calls_of_the_gpu_path_fit_torchs_signatures(function: Any, arguments: dict[str, Any]) -> None:
    inspect.signature(function).bind(**arguments)


def test_deterministic_fits_give_the_same_bits_and_refuse_what_cannot(problem: Any) -> None:
    def fitted(loss: Any) -> list[torch.Tensor]:
        train = problem("binary", 256)
        model = MLP.from_schema(train.schema, hidden=(8,), dropout=0.5, seed=1)
        Trainer(model, max_epochs=2, loss=loss, deterministic=True, metrics=[], device="cpu").fit(train)
        return list(model.parameters())

    assert all(map(torch.equal, fitted("bce"), fitted("bce")))

    def without_a_form(output: torch.Tensor, batch: Any) -> torch.Tensor:
        torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2))  # which of the two stays is left to chance
        return LOSSES["bce"](output, batch)

    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        fitted(without_a_form)
