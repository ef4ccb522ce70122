"""The loop as a whole: it learns, twice the same, stops at its best, says what is wrong, and leaves no trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.models import MLP, FTTransformer, Linear
from gpupipe.tensors.batch import Batch
from gpupipe.training import EarlyStopping, Trainer
from tests.raising import raises
from tests.training import resumed

Problem = Callable[..., Any]


def model_for(loader: Any, **arguments: Any) -> MLP:
    return MLP.from_schema(loader.schema, **{"hidden": (32, 16), "seed": 1, **arguments})


def trainer_for(model: nn.Module, **arguments: Any) -> Trainer:
    return Trainer(model, **{"max_epochs": 3, "device": "cpu", "lr": 0.01, **arguments})


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "figure", "at_least"),
    [("binary", "valid_auc", 0.98), ("multiclass", "valid_accuracy", 0.90), ("regression", "valid_r2", 0.97)],
)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_it_learns(problem: Problem, task: str, figure: str, at_least: float, precision: str) -> None:
    train, valid = problem(task, 3000), problem(task, 1000, seed=9)
    history = trainer_for(model_for(train), max_epochs=8, precision=precision).fit(train, valid)
    assert history.rows[-1][figure] > at_least
    assert history.rows[-1]["train_loss"] < history.rows[0]["train_loss"] / 2


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["constant", "cosine", "one-cycle"])
def test_every_schedule_learns_and_shows_its_rate(problem: Problem, schedule: str) -> None:
    train = problem("binary", 2000)
    history = trainer_for(model_for(train), schedule=schedule).fit(train, problem("binary", 500, seed=9))
    assert history.rows[-1]["valid_auc"] > 0.9
    last = {"constant": 0.01, "cosine": 0.0, "one-cycle": 0.0}[schedule]
    assert history.rows[-1]["lr"] == pytest.approx(last, abs=1e-4)


def test_two_runs_are_bit_identical_and_the_seed_matters(problem: Problem) -> None:
    runs = []
    for seed, noise in ((3, 0), (3, 1), (4, 0)):
        torch.manual_seed(noise)  # must not matter
        train = problem("binary", 500, weighted=True)
        model = model_for(train, dropout=0.2)
        history = trainer_for(model, seed=seed).fit(train, problem("binary", 100, seed=9))
        figures = [{k: v for k, v in row.items() if not k.startswith(("seconds", "rows"))} for row in history]
        runs.append((weights(model), figures))
    assert torch.equal(runs[0][0], runs[1][0]) and runs[0][1] == runs[1][1]
    assert not torch.equal(runs[0][0], runs[2][0])


def test_deterministic_changes_nothing_on_the_cpu_and_is_undone(problem: Problem) -> None:
    train = problem("binary", 300)
    models = [model_for(train), model_for(train)]
    for model, deterministic in zip(models, (False, True), strict=True):
        trainer_for(model, deterministic=deterministic, max_grad_norm=1.0).fit(train)
    assert torch.equal(weights(models[0]), weights(models[1]))
    assert not torch.are_deterministic_algorithms_enabled()


def test_torchs_generator_is_left_as_it_was(problem: Problem) -> None:
    train = problem("binary", 200)
    shuffled = DataLoader(
        TensorDataset(torch.zeros(50, 3)), shuffle=True, batch_size=10
    )  # draws from the global generator
    before = torch.get_rng_state()
    trainer = trainer_for(model_for(train, dropout=0.5))
    trainer.fit(train, train)
    trainer.evaluate(train)
    trainer.predict(train)
    trainer_for(OnFirst(), loss=lambda output, batch: output**2).fit(shuffled, shuffled)
    assert torch.equal(torch.get_rng_state(), before)


def test_validation_does_not_change_training(problem: Problem) -> None:
    drawing = DataLoader(TensorDataset(torch.zeros(50, 3)), shuffle=True, batch_size=10)
    after = []
    for valid in (None, drawing):
        model = nn.Sequential(OnFirst(), nn.Dropout(0.5))
        trainer_for(model, loss=lambda output, batch: (output - 1) ** 2).fit(drawing, valid)
        after.append(weights(model))
    assert torch.equal(*after)


class OnFirst(nn.Module):
    """A line through the first tensor of a tuple or the "x" of a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, batch: Any) -> Tensor:
        x: Tensor = batch["x"] if isinstance(batch, dict) else batch[0]
        return x @ self.weight + self.bias


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tuple", "mapping"])
@pytest.mark.parametrize("scalar", [False, True])
def test_any_module_any_tree_and_a_loss_of_ones_own(form: str, scalar: bool) -> None:
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([1.0, -2.0, 3.0]) + 0.5

    def loss(output: Tensor, batch: Any) -> Tensor:
        error = (output - (batch["y"] if isinstance(batch, dict) else batch[1])) ** 2
        return error.mean() if scalar else error

    tuples = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)
    loader: Any = tuples if form == "tuple" else [{"x": a, "y": b} for a, b in tuples]
    model = OnFirst()
    history = trainer_for(model, loss=loss, lr=0.2, max_epochs=20, weight_decay=0.0).fit(loader, loader)
    torch.testing.assert_close(model.weight.detach(), torch.tensor([1.0, -2.0, 3.0]), atol=0.02, rtol=0)
    assert set(history.rows[0]) == {"epoch", "train_loss", "valid_loss", "lr", "seconds", "rows_per_second"}


def test_a_row_of_weight_two_is_a_row_given_twice(problem: Problem) -> None:
    once = problem("regression", 60, batch_size=1000, shuffle=False)
    doubled = torch.cat([torch.arange(60), torch.arange(20)])
    twice = problem("regression", 60, batch_size=1000, shuffle=False)
    table = twice.table
    twice.table = Batch(table.numeric[doubled], table.codes[doubled], table.target[doubled])
    once.table.weight = torch.cat([torch.full((20,), 2.0), torch.ones(40)])
    models = [model_for(once), model_for(once)]
    histories = [
        trainer_for(m, max_epochs=20).fit(loader, loader) for m, loader in zip(models, (once, twice), strict=True)
    ]
    torch.testing.assert_close(weights(models[0]), weights(models[1]), rtol=1e-3, atol=1e-4)
    for figure in ("train_loss", "valid_loss", "valid_rmse", "valid_mae", "valid_r2"):
        assert histories[0].rows[-1][figure] == pytest.approx(histories[1].rows[-1][figure], rel=1e-3)


def test_rows_of_weight_zero_are_not_there(problem: Problem) -> None:
    train = problem("binary", 64, batch_size=32, shuffle=False)
    padded = problem("binary", 64, batch_size=32, shuffle=False)
    nothing = torch.full((32,), 0.0)
    table = padded.table
    padded.table = Batch(
        torch.cat([table.numeric, torch.full((32, 3), 9.0)]),
        torch.cat([table.codes, table.codes[:32]]),
        torch.cat([table.target, nothing]),
        torch.cat([torch.ones(64), nothing]),
    )
    trainer = trainer_for(model_for(train))
    assert trainer.evaluate(padded) == pytest.approx(trainer.evaluate(train), rel=1e-5)


def test_evaluate_is_scikit_learns_and_the_last_row_of_fit(problem: Problem) -> None:
    train, valid = problem("binary", 500), problem("binary", 333, shuffle=False, weighted=True, seed=9)
    model = model_for(train)
    trainer = trainer_for(model, metrics=["auc", "log_loss", "brier"])
    last = trainer.fit(train, valid).rows[-1]
    figures = trainer.evaluate(valid)
    chosen = {name: value for name, value in last.items() if "valid" in name}
    assert {name: figures[name.removeprefix("valid_")] for name in chosen} == chosen
    assert figures["loss"] == pytest.approx(figures["log_loss"], rel=1e-6)
    logits = trainer.predict(valid)
    assert logits.shape == (333,) and logits.dtype == torch.float32
    table = valid.table
    assert figures["auc"] == pytest.approx(sk.roc_auc_score(table.target, logits, sample_weight=table.weight))


def test_predict_keeps_order_shape_mode_and_needs_no_target(problem: Problem) -> None:
    loader = problem("multiclass", 130, shuffle=False)
    model = model_for(loader, dropout=0.5)
    loader.table.target = None
    trainer = trainer_for(model)
    output = trainer.predict(loader)
    assert model.training and not output.requires_grad
    assert torch.equal(output, torch.cat([model.eval()(batch) for batch in loader]))
    assert trainer.predict(loader).shape == (130, 3)
    assert not model.training
    output.sum().requires_grad_().backward()  # an ordinary tensor


def test_predict_copies_what_a_model_passes_through() -> None:
    buffer = torch.zeros(2, 1)

    def reused() -> Iterator[tuple[Tensor]]:
        for value in (1.0, 2.0):
            buffer.fill_(value)
            yield (buffer,)

    class First(nn.Module):
        def forward(self, batch: Any) -> Tensor:
            return batch[0][:, 0]

    assert trainer_for(First()).predict(reused()).tolist() == [1, 1, 2, 2]


def test_fit_goes_on_from_the_weights_and_leaves_evaluation_mode_and_no_gradients(problem: Problem) -> None:
    train = problem("binary", 500)
    model = model_for(train)
    trainer = trainer_for(model)
    first, second = trainer.fit(train), trainer.fit(train)
    assert second.rows[0]["train_loss"] < first.rows[0]["train_loss"] / 2
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_fit_takes_all_of_a_loader_that_was_put_in_the_middle_of_an_epoch() -> None:
    (fresh, _), (moved, _) = resumed.loaders(), resumed.loaders()
    iterator = iter(moved)
    next(iterator)
    next(iterator)
    moved.load_state_dict(moved.state_dict())
    assert len(list(moved)) == len(moved) - 2
    moved.load_state_dict(moved.state_dict() | {"epoch": 0, "batch": 2})
    histories = [trainer_for(resumed.model()).fit(loader) for loader in (fresh, moved)]
    losses = [[row["train_loss"] for row in history] for history in histories]
    assert losses[0] == losses[1]


def test_without_a_rate_the_models_own_is_taken(problem: Problem) -> None:
    train = problem("binary", 100)
    made = {cls: Trainer(cls.from_schema(train.schema), max_epochs=1) for cls in (Linear, MLP, FTTransformer)}
    assert [trainer.learning_rate for trainer in made.values()] == [cls.learning_rate for cls in made]
    assert Trainer(nn.Linear(3, 1), max_epochs=1).learning_rate == 3e-3
    assert Trainer(Linear.from_schema(train.schema), max_epochs=1, lr=0.5).learning_rate == 0.5
    trainer = Trainer(Linear.from_schema(train.schema), max_epochs=1, schedule="constant", device="cpu")
    assert trainer.fit(train).rows[0]["lr"] == pytest.approx(Linear.learning_rate)


def test_the_loader_hears_of_each_epoch(problem: Problem) -> None:
    train, valid = problem("binary", 100), problem("binary", 100)
    trainer_for(model_for(train), max_epochs=3).fit(train, valid)
    assert (train.epochs_set, valid.epochs_set) == ([0, 1, 2], [])
    sampler = DistributedSampler(list(train), num_replicas=2, rank=0)
    dealt = DataLoader(list(train), batch_size=None, sampler=sampler)
    trainer_for(model_for(train), loss="bce", max_epochs=3).fit(dealt)
    assert sampler.epoch == 2, "else each epoch has the same order"


def test_train_loss_is_the_weighted_mean_over_the_epoch(problem: Problem) -> None:
    train = problem("regression", 150, weighted=True, shuffle=False)
    model = model_for(train)
    history = trainer_for(model, lr=1e-12, schedule="constant", max_epochs=1).fit(train)
    errors = (model(train.table) - train.table.target) ** 2
    expected = (errors @ train.table.weight / train.table.weight.sum()).item()
    assert history.rows[0]["train_loss"] == pytest.approx(expected, rel=1e-5)
    assert history.monitor == "train_loss"


class Scripted(nn.Module):
    """Has one number, which training moves by one each epoch; evaluation gives the scripted figure for it."""

    def __init__(self, figures: list[float]) -> None:
        super().__init__()
        self.epoch = nn.Parameter(torch.zeros(()))
        self.figures = torch.tensor(figures)

    def forward(self, batch: Any) -> Tensor:
        return -self.epoch if self.training else self.figures[self.epoch.round().long() - 1]


def scripted(figures: list[float], **arguments: Any) -> tuple[Scripted, Any]:
    model, loader = Scripted(figures).eval(), [torch.zeros(1, 1)]
    trainer = trainer_for(
        model,
        loss=lambda output, batch: output,
        optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
        **{"lr": 1.0, "schedule": "constant", "max_epochs": len(figures), **arguments},
    )
    return model, trainer.fit(loader, loader)


def test_early_stopping_restores_the_best_weights() -> None:
    model, history = scripted([5, 3, 4, 4, 1], early_stopping=EarlyStopping(patience=2))
    assert [row["valid_loss"] for row in history] == [5, 3, 4, 4]
    assert model.epoch.item() == 2 == history.best["epoch"]


def test_the_best_weights_are_restored_when_the_epochs_run_out_too() -> None:
    model, history = scripted([5, 3, 4, 4], early_stopping=EarlyStopping(patience=9))
    assert (len(history), model.epoch.item()) == (4, 2)


def test_by_default_the_best_weights_are_kept_and_all_epochs_run() -> None:
    model, history = scripted([5, 3, 4, 4])
    assert (len(history), model.epoch.item(), history.best["epoch"]) == (4, 2, 2)


def test_without_early_stopping_the_last_weights_are_kept() -> None:
    model, history = scripted([5, 3, 4, 4], early_stopping=None)
    assert (model.epoch.item(), history.best["epoch"]) == (4, 2)
    assert [row["train_loss"] for row in history] == [0, -1, -2, -3]  # each epoch's own


def test_a_metric_where_more_is_better_can_be_monitored(problem: Problem) -> None:
    train, valid = problem("binary", 200), problem("binary", 200, seed=9)
    stopping = EarlyStopping(patience=2, monitor="valid_auc")
    trainer = trainer_for(model_for(train), early_stopping=stopping, max_epochs=40, schedule="constant")
    history = trainer.fit(train, valid)
    assert history.best["valid_auc"] == max(row["valid_auc"] for row in history)
    assert trainer.evaluate(valid)["auc"] == history.best["valid_auc"]
    assert len(history) == min(40, history.best["epoch"] + 2)


@pytest.mark.parametrize(("monitor", "valid"), [("valid_auk", True), ("valid_loss", False)])
def test_a_monitor_that_will_not_be_there_is_refused_before_training(
    problem: Problem, monitor: str, valid: bool
) -> None:
    train = problem("binary", 100)
    model = model_for(train)
    before = weights(model)
    with pytest.raises(BadConfig, match=rf"EarlyStopping\(monitor=\): no such choice, got '{monitor}'"):
        trainer_for(model, early_stopping=EarlyStopping(monitor=monitor)).fit(train, train if valid else None)
    assert torch.equal(weights(model), before)


def test_a_monitor_that_is_not_defined_for_the_data_is_an_error(problem: Problem) -> None:
    train, valid = problem("binary", 100), problem("binary", 0)
    with raises(
        BadData,
        where="the monitored figure 'valid_loss'",
        got=["epoch", "train_loss", "lr", "seconds", "rows_per_second"],
    ):
        trainer_for(model_for(train), early_stopping=EarlyStopping()).fit(train, valid)


def test_a_loss_that_is_not_finite_names_epoch_and_updates(problem: Problem) -> None:
    train = problem("regression", 640)
    train.table.numeric[-1, 0] = math.inf
    train.shuffle = False
    with pytest.raises(
        BadData, match=r"epoch 1, update 10: the loss is not finite: .*column 'x0'.*the rows 63.*got nan"
    ) as caught:
        trainer_for(model_for(train), log_every=4).fit(train)
    assert "lr=" in caught.value.remedy


def test_a_validation_loss_that_is_not_finite_is_an_error(problem: Problem) -> None:
    train, valid = problem("regression", 100), problem("regression", 100)
    valid.table.target[3] = math.nan
    with pytest.raises(BadData, match="evaluation: the loss is not finite"):
        trainer_for(model_for(train)).fit(train, valid)


def test_no_rows_to_train_on_is_an_error(problem: Problem) -> None:
    some, none = problem("binary", 10), problem("binary", 0)
    trainer = trainer_for(model_for(some), loss="bce")
    hollow = [Batch(torch.zeros(0, 3), torch.zeros(0, 1).int(), torch.zeros(0))]
    for empty in (none, [], hollow):
        with raises(BadData, where="Trainer.fit", got="0 rows", match="no rows"):
            trainer.fit(empty)
    some.table.weight = torch.zeros(10)
    with raises(BadData, where="Trainer.fit", got="10 rows"):
        trainer.fit(some)


def small_table(rows: int) -> tuple[gp.Pipeline, pd.DataFrame]:
    frame = pd.DataFrame({"x": np.arange(float(rows)), "y": np.arange(rows) % 2})
    return gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), target="y")).fit(frame), frame


def test_fewer_rows_than_a_batch_and_drop_last_are_named(caplog: pytest.LogCaptureFixture) -> None:
    made, frame = small_table(60)
    trainer = trainer_for(model_for(made))
    pairs = TensorDataset(torch.zeros(60, 1), torch.zeros(60))
    for loader in (made.loader(frame, drop_last=True), DataLoader(pairs, batch_size=64, drop_last=True)):
        with pytest.raises(BadData) as caught:
            trainer_for(trainer.model, loss="bce").fit(loader)
        assert "drop_last" in caught.value.problem and "drop_last=False" in caught.value.remedy
    trainer.fit(made.loader(frame), made.loader(frame))
    assert not [record for record in caplog.records if "valid loader" in record.message]
    for valid, reason in ((made.loader(frame, drop_last=True), "drop_last=True"), (made.loader(frame[:0]), "no rows")):
        caplog.clear()
        trainer.fit(made.loader(frame), valid)
        told = [record.message for record in caplog.records if "valid loader" in record.message]
        assert len(told) == 1 and reason in told[0]


def test_rows_without_the_target_are_named_as_such() -> None:
    made, frame = small_table(60)
    with pytest.raises(BadConfig) as caught:
        trainer_for(model_for(made)).fit(made.loader(frame[["x"]]))
    assert "no target" in caught.value.problem and "pipeline.loader" in caught.value.remedy


def test_no_rows_to_validate_on_leaves_the_figures_out(problem: Problem) -> None:
    train, none = problem("binary", 100), problem("binary", 0)
    trainer = trainer_for(model_for(train))
    history = trainer.fit(train, none)
    assert not [name for row in history for name in row if name.startswith("valid")]
    assert trainer.evaluate(none) == {}
    assert trainer.predict(none).shape == (0,)
    assert str(history)


def test_one_row_is_enough(problem: Problem) -> None:
    one = problem("binary", 1)
    trainer = trainer_for(model_for(one))
    history = trainer.fit(one, one)
    assert "valid_auc" not in history.rows[-1]
    assert history.rows[-1]["valid_accuracy"] in (0.0, 1.0)
    assert trainer.predict(one).shape == (1,)


def test_batches_without_rows_are_passed_over(problem: Problem) -> None:
    train = problem("regression", 100, shuffle=False)
    hollow = Batch(torch.zeros(0, 3), torch.zeros(0, 1).int(), torch.zeros(0), torch.zeros(0))
    full = list(train)
    results = [trainer_for(model_for(train), loss="mse", schedule="constant") for _ in range(2)]
    losses = [t.fit(b).rows[-1]["train_loss"] for t, b in zip(results, (full, [hollow, *full, hollow]), strict=True)]
    assert losses[0] == losses[1]


def test_a_loader_longer_than_it_says_is_an_error(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    train = problem("binary", 100)
    monkeypatch.setattr(type(train), "__len__", lambda self: 1)
    with raises(BadConfig, where="Trainer.fit", got="more than 1"):
        trainer_for(model_for(train)).fit(train)


def test_a_target_that_is_missing_or_does_not_fit_is_an_error(problem: Problem) -> None:
    train = problem("binary", 100)
    with raises(SchemaMismatch, where="loss 'bce'", got="output (64, 3), target (64,)"):
        trainer_for(MLP(3, [6], 3)).fit(train)
    train.table.target = None
    with raises(BadData, where="loss 'bce'", got="Batch"):
        trainer_for(model_for(train)).fit(train)


def test_an_output_that_is_no_tensor_cannot_be_predicted(problem: Problem) -> None:
    class Pair(nn.Module):
        def forward(self, batch: Any) -> Any:
            return batch.numeric, batch.codes

    with raises(BadData, where="Trainer.predict", got="tuple"):
        trainer_for(Pair()).predict(problem("binary", 10))


def test_an_error_in_the_middle_leaves_gradients_on_and_the_mode_as_it_was(problem: Problem) -> None:
    loader = problem("binary", 10)
    loader.table.target = None
    model = model_for(loader)
    with pytest.raises(BadData):
        trainer_for(model).evaluate(loader)
    assert torch.is_grad_enabled() and model.training


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_epochs": 0}, r"Trainer\(max_epochs=\)"),
        ({"log_every": 0}, r"Trainer\(log_every=\)"),
        ({"weight_decay": -1.0}, r"Trainer\(weight_decay=\)"),
        ({"max_grad_norm": 0.0}, r"Trainer\(max_grad_norm=\)"),
        ({"progress": "no"}, r"Trainer\(progress=\)"),
        ({"model": "mlp"}, r"Trainer\(model=\)"),
        (
            {"precision": "16-mixed"},
            r"Trainer\(precision=\): no such choice, got '16-mixed'(.|\n)*precision='fp16-mixed'",
        ),
        ({"schedule": "one_cycle"}, r"schedule='one-cycle'"),
        ({"loss": "BCE"}, r"loss='bce'"),
        ({"metrics": ["AUC"]}, r"metrics='auc'"),
        ({"lr": -1.0}, r"Trainer\(lr=\)"),
        ({"warmup": 1.5}, r"Trainer\(warmup=\)"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        Trainer(**{"model": nn.Linear(1, 1), "max_epochs": 1, **arguments})


def test_the_bar_is_quiet_where_nobody_watches(problem: Problem, capfd: pytest.CaptureFixture[str]) -> None:
    train = problem("binary", 300)
    trainer_for(model_for(train)).fit(train, train)
    assert capfd.readouterr() == ("", "")
    trainer_for(model_for(train), progress=True, log_every=2).fit(train, train)
    shown = capfd.readouterr().err
    assert "epoch 3/3" in shown and "15/15" in shown and "loss=" in shown
    trainer_for(model_for(train), progress=False).fit(train)
    assert capfd.readouterr() == ("", "")
