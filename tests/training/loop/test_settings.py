"""The trainer's settings, from the constructor to what they do to a fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpupipe.errors import BadConfig, BadData
from gpupipe.models import MLP
from gpupipe.tensors.batch import Batch
from gpupipe.training import Trainer
from gpupipe.training.loop.activation_checkpointing import checkpoint_activations
from gpupipe.training.loop.device import session
from gpupipe.training.loop.losses import smooth_labels
from gpupipe.training.optim.optimizers import Plateau, compute_learning_rates, get_plateau_factor, scaled_rate
from tests.raising import raises

CPU = torch.device("cpu")


def fitted(problem: Any, **arguments: Any) -> tuple[MLP, Any]:
    train = problem("binary", 900)
    model = MLP.from_schema(train.schema, hidden=(16,), seed=1)
    history = Trainer(model, **{"max_epochs": 4, "lr": 0.01, "device": "cpu", **arguments}).fit(
        train, problem("binary", 300, seed=9)
    )
    return model, history


def _shown(arguments: dict[str, Any]) -> str:
    """Without addresses, which differ from process to process."""
    return ", ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in arguments.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"optimizer": "sgd", "lr": 0.1},
        {"optimizer": "lamb"},
        {"optimizer": "rowwise", "lr": 0.05},
        {"optimizer": torch.optim.RMSprop},
        {"schedule": "linear"},
        {"schedule": "plateau"},
        {"schedule": lambda t: 1 - t},
        {"accumulate": 4, "lr": 0.03},
        {"ema_decay": 0.9},
        {"label_smoothing": 0.1},
        {"precision": "tf32"},
        {"precision": "fp16-mixed"},
        {"param_groups": {"embedding.*": {"lr": 0.1}}},
        {"activation_checkpointing": ["layers.0"]},
    ],
    ids=_shown,
)
def test_every_setting_learns(problem: Any, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.training.optim.optimizers.TABLE", 1)
    _, history = fitted(problem, **arguments)
    assert history.rows[-1]["valid_auc"] > 0.85


def test_a_large_table_that_is_moved_as_a_whole_is_told(
    problem: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = "embedding.table (6 x 8) is moved as a whole in each step; optimizer='rowwise'"
    fitted(problem)
    assert text not in caplog.text
    monkeypatch.setattr("gpupipe.training.optim.optimizers.TABLE", 48)
    fitted(problem, optimizer="rowwise")
    assert text not in caplog.text
    fitted(problem)
    assert text in caplog.text


def test_the_average_is_what_is_evaluated_and_kept(problem: Any) -> None:
    train = problem("binary", 900)
    model, history = fitted(problem, ema_decay=0.99)
    plain, _ = fitted(problem)
    assert not torch.equal(model.layers[0].weight, plain.layers[0].weight)
    found = Trainer(model, max_epochs=1, device="cpu").evaluate(problem("binary", 300, seed=9))
    assert found["auc"] == pytest.approx(history.rows[-1]["valid_auc"])
    assert not any(parameter.isnan().any() for parameter in model.parameters()) and len(train)


def test_a_plateau_falls_and_the_history_shows_it(problem: Any) -> None:
    _, history = fitted(problem, schedule=Plateau(patience=1, factor=0.5), lr=0.5, max_epochs=8)
    shares = [row["lr"] / 0.5 for row in history]
    assert shares[0] == pytest.approx(1) and shares[-1] < 1
    best, expected, share = float("inf"), [], 1.0
    for row in history:
        expected.append(share)
        share = share if row["valid_loss"] < best else max(share / 2, 1e-4)
        best = min(best, row["valid_loss"])
    assert shares == pytest.approx(expected)
    assert get_plateau_factor(Plateau(patience=1, factor=0.5), history) == pytest.approx(share)
    assert get_plateau_factor("cosine", history) is None


def test_a_plateau_says_so_where_there_is_no_figure_to_go_by(problem: Any) -> None:
    trainer = Trainer(MLP(3, [6]), max_epochs=1, schedule="plateau", device="cpu")
    with raises(
        BadData,
        where="the monitored figure 'valid_loss'",
        got=["epoch", "train_loss", "lr", "seconds", "rows_per_second"],
    ):
        trainer.fit(problem("binary", 9), problem("binary", 0))


def test_linear_and_own_schedules() -> None:
    torch.testing.assert_close(compute_learning_rates("linear", lr=1.0, steps=4), torch.tensor([1.0, 0.75, 0.5, 0.25]))
    found = compute_learning_rates(lambda t: (1 - t) ** 2, lr=2.0, steps=2)
    torch.testing.assert_close(found, torch.tensor([2.0, 0.5]))
    assert compute_learning_rates(Plateau(), lr=0.5, steps=2).tolist() == [0.5, 0.5]


def test_large_batches_have_larger_rates() -> None:
    assert scaled_rate(0.1, batch_size=1024, rule="linear") == pytest.approx(0.4)
    assert scaled_rate(0.1, batch_size=1024, rule="sqrt") == pytest.approx(0.2)
    with raises(BadConfig, where="scaled_rate(rule=)", got="cubic"):
        scaled_rate(0.1, batch_size=1, rule="cubic")


def test_label_smoothing_is_torchs() -> None:
    logits = torch.randn(6, 3)
    target = torch.tensor([0, 1, 2, 2, 1, 0], dtype=torch.int32)
    batch = Batch(torch.zeros(6, 0), torch.zeros(6, 0), target)
    expected = F.cross_entropy(logits, target.long(), label_smoothing=0.2, reduction="none")
    torch.testing.assert_close(smooth_labels("cross-entropy", 0.2)(logits, batch), expected)
    two = torch.stack([torch.zeros(6), logits[:, 0]], 1)  # binary cross-entropy is that of two classes
    binary = Batch(torch.zeros(6, 0), torch.zeros(6, 0), (target > 0).float())
    expected = F.cross_entropy(two, (target > 0).long(), label_smoothing=0.2, reduction="none")
    torch.testing.assert_close(smooth_labels("bce", 0.2)(logits[:, 0], binary), expected)
    with raises(BadConfig, where="Trainer(label_smoothing=)", got="mse"):
        smooth_labels("mse", 0.1)


def test_recomputed_blocks_have_the_same_gradients_and_keep_less() -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh()) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    torch.manual_seed(0)
    model, gradients, kept = Blocks(), [], []
    for blocks in (False, True):
        count = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal count
            count += 1
            return tensor

        torch.manual_seed(1)
        model.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            if blocks:
                with checkpoint_activations(model, True):
                    loss = model(torch.ones(2, 4)).sum()
                    kept.append(count)
                    loss.backward()
            else:
                loss = model(torch.ones(2, 4)).sum()
                kept.append(count)
                loss.backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert torch.equal(*gradients) and kept[1] < kept[0]
    assert "forward" not in vars(model.blocks[0])
    with (
        raises(BadConfig, where="Trainer(activation_checkpointing=)", got=True),
        checkpoint_activations(nn.Linear(1, 1), True),
    ):
        pass


@pytest.mark.parametrize(("precision", "inside"), [("tf32", "high"), ("32-true", "highest"), ("auto", "medium")])
def test_tf32_is_set_for_the_run_and_put_back(precision: str, inside: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with session(CPU, seed=0, precision=precision):
            assert torch.get_float32_matmul_precision() == inside
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.slow
def test_compiled_it_learns_the_same(problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real, used = torch.compile, []

    def compile_(function: Any, **options: Any) -> Any:
        used.append(options)
        return real(function, backend="aot_eager", fullgraph=True, **options)  # no C++ compiler is needed for this one

    plain, _ = fitted(problem, class_weight="balanced", max_epochs=1)
    monkeypatch.setattr(torch, "compile", compile_)
    compiled, _ = fitted(problem, class_weight="balanced", max_epochs=1, compile=True)
    assert used
    torch.testing.assert_close(plain.layers[0].weight, compiled.layers[0].weight)


@pytest.mark.parametrize(
    "arguments",
    [
        {"accumulate": 0},
        {"ema_decay": 1.0},
        {"label_smoothing": 1.0},
        {"cuda_graph": "always"},
        {"schedule": "exponential"},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(BadConfig, match=f"Trainer\\({next(iter(arguments))}="):
        Trainer(nn.Linear(1, 1), max_epochs=1, **arguments)
