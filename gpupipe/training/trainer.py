"""The training loop, top to bottom.

An epoch is updates (`update.py`) over the train loader, metrics over the validation loader, and one row of history. The
host reads results once per `log_every` updates and at the end of an epoch, and waits for the device nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm

from gpupipe.errors import BadConfig, BadData
from gpupipe.schema import Schema
from gpupipe.training.choice import unknown
from gpupipe.training.class_weights import ClassWeight, class_weights, weighted
from gpupipe.training.device import PRECISIONS, choose_device, fork_rng, forward_in, session
from gpupipe.training.evaluation import evaluate, predict
from gpupipe.training.history import History
from gpupipe.training.losses import LOSSES, Loss, choose_loss
from gpupipe.training.metrics import InUnits, Metric, choose_metrics
from gpupipe.training.rows import move, num_batches, num_rows
from gpupipe.training.schedules import learning_rates
from gpupipe.training.stopping import BestWeights, EarlyStopping
from gpupipe.training.update import MakeOptimizer, Update, make_optimizer

__all__ = ["Batches", "Trainer"]


class Batches(Protocol):
    """What is trained on: batches, how many, and again from the start each epoch."""

    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...


class Trainer:
    """Trains a module on batches.

    The model takes what the loader yields: a `Batch`, or any tree of tensors (then with a callable loss). `fit` starts
    from the model's present weights with a fresh optimiser, and moves the model to the device for good.

    Args:
        model: any module; its output is B values or logits, or B x K logits.
        max_epochs: passes over the train loader.
        loss: "auto" by the schema's target ("bce", "cross-entropy" or "mse"), a name ("huber" too), or a function of
            output and batch that gives B values (weighted by `batch.weight`) or their mean.
        optimizer: "adamw", or a function of the parameters and the learning rate (a tensor to pass on) that makes one.
        lr: the highest learning rate.
        schedule: "one-cycle", "cosine" or "constant", see `learning_rates`.
        warmup: share of the updates that rises to `lr`; None for the schedule's own.
        weight_decay: AdamW's.
        gradient_clip: the largest norm of all gradients together; None for no limit.
        precision: "auto", "32-true" or "bf16-mixed" (auto: bf16-mixed on GPUs of compute capability 8.0 and up).
            Weights, losses and metrics are float32 in each.
        class_weight: None, "balanced" (n / (number of classes * rows of the class), counted in the train loader), or a
            mapping from classes to weights. Times `batch.weight`, in training only: metrics and evaluation stay as
            they are.
        metrics: "auto" (those that go with a named loss), or a list of names and `Metric`s, computed on validation.
        early_stopping: when to stop before `max_epochs`, with the best weights restored. Without it the last are kept.
        seed: rules dropout and whatever else the model draws; torch's global generators are left as they were.
        deterministic: on a GPU, the same bits in every run or an error; the CPU gives them anyway.
        device: "auto" (where the loader's data lies, else a GPU if torch sees one), "cpu", "cuda", "cuda:1".
        progress: "auto" (a bar on a terminal or in a notebook), True or False.
        log_every: updates between two looks at the loss.

    Raises:
        BadConfig: a value that makes no sense; the closest choice is offered.

    Example:
        >>> from gpupipe.models import MLP
        >>> from gpupipe.tensors.batch import Batch
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> loader = [Batch(x, torch.zeros(64, 0, dtype=torch.int32), target=(x[:, 0] > 0).float())]
        >>> trainer = Trainer(MLP(numeric=1, hidden=(8,)), loss="bce", max_epochs=50, lr=0.05, device="cpu")
        >>> history = trainer.fit(loader, loader)
        >>> history.best["valid_accuracy"]
        1.0
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        max_epochs: int,
        loss: str | Loss = "auto",
        optimizer: str | MakeOptimizer = "adamw",
        lr: float = 3e-3,
        schedule: str = "one-cycle",
        warmup: float | None = None,
        weight_decay: float = 0.01,
        gradient_clip: float | None = None,
        precision: str = "auto",
        class_weight: ClassWeight | None = None,
        metrics: str | Sequence[str | Metric] = "auto",
        early_stopping: EarlyStopping | None = None,
        seed: int = 0,
        deterministic: bool = False,
        device: str = "auto",
        progress: str | bool = "auto",
        log_every: int = 100,
    ) -> None:
        self.model = model
        self.max_epochs = max_epochs
        self.loss = loss
        self.optimizer = optimizer
        self.lr = lr
        self.schedule = schedule
        self.warmup = warmup
        self.weight_decay = weight_decay
        self.gradient_clip = gradient_clip
        self.precision = precision
        self.class_weight = class_weight
        self.metrics = metrics
        self.early_stopping = early_stopping
        self.seed = seed
        self.deterministic = deterministic
        self.device = device
        self.progress = progress
        self.log_every = log_every
        self._check()

    def fit(self, train: Batches, valid: Batches | None = None) -> History:
        """Train, and say how it went.

        The model is left in evaluation mode. `train_loss` is the mean over the epoch while the weights moved.

        Args:
            train: iterated once an epoch, after `set_epoch(epoch)` where it has that; epochs count from 0 there.
            valid: evaluated after each epoch.

        Returns:
            One row per epoch: epoch (from 1), train_loss, valid_loss and valid_<metric> (where defined), lr (the
            epoch's last), seconds and rows_per_second (of training).

        Raises:
            BadData: no rows, no weight, a loss that is not finite (epoch and updates are named).
            BadConfig: a loader without a length, or with more batches than that; a figure to monitor that is not there.

        Memory:
            Batches that lie elsewhere are copied to the device. Weights, gradients and two moments; with
            `early_stopping` one more copy of the weights.
        """
        loss, metrics = self._loss_and_metrics(train)
        steps = num_batches(train)
        history = self._history(metrics, validated=valid is not None)
        device = choose_device(self.device, train)
        with session(device, seed=self.seed, deterministic=self.deterministic), self._bar(steps) as bar:
            self.model.to(device)
            rates = learning_rates(self.schedule, lr=self.lr, steps=steps * self.max_epochs, warmup=self.warmup)
            update = self._update(loss, rates.to(device), device)
            balance = self._class_weights(train, device)
            best = None
            if self.early_stopping is not None:
                best = BestWeights(self.model, self.early_stopping, higher_is_better=history.higher_is_better)
            for epoch in range(1, self.max_epochs + 1):
                bar.set_description(f"epoch {epoch}/{self.max_epochs}")
                if hasattr(train, "set_epoch"):
                    train.set_epoch(epoch - 1)
                started = time.perf_counter()
                train_loss, rows = self._train_epoch(update, train, steps, epoch, bar, device, balance)
                seconds = time.perf_counter() - started
                row = {"epoch": epoch, "train_loss": train_loss}
                if valid is not None:
                    with fork_rng(device):  # what the validation loader draws must not change what training draws
                        figures = evaluate(self.model, valid, loss, metrics, device, self.precision)
                    row |= {f"valid_{name}": value for name, value in figures.items()}
                row |= {"lr": float(rates[epoch * steps - 1]), "seconds": seconds, "rows_per_second": rows / seconds}
                history.append(row)
                if best is not None and best.see(history.monitored):
                    break
            if best is not None:
                best.restore()
            self.model.eval().zero_grad()  # gives the gradients' memory back
        return history

    def _train_epoch(
        self,
        update: Update,
        train: Batches,
        steps: int,
        epoch: int,
        bar: Any,
        device: torch.device,
        balance: Tensor | None,
    ) -> tuple[float, int]:
        """Update from each batch once; the mean loss and the number of rows."""
        rows, looked_at = 0, 0
        self.model.train()
        update.losses.reset()
        for step, batch in enumerate(train, start=1):
            if step > steps:
                raise _longer_than_it_says(steps)
            if size := num_rows(batch):
                moved = move(batch, device)
                update(moved if balance is None else weighted(moved, balance))
                rows += size
            if step % self.log_every == 0:
                loss = update.losses.read(f"Trainer.fit, epoch {epoch}, updates {looked_at + 1} to {step}")
                bar.set_postfix(loss=loss, refresh=False)
                bar.update(step - looked_at)
                looked_at = step
        loss = update.losses.read(f"Trainer.fit, epoch {epoch}, updates {looked_at + 1} to {steps}")
        bar.update(steps - looked_at)
        if loss is None:
            raise _nothing_to_learn(rows)
        return loss, rows

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """The mean loss and the metrics over a loader, by name; those that are not defined for its rows are left out.

        Args:
            loader: batches with a target; its weights count.

        Raises:
            BadData: no target, or a loss that is not finite.
            BadConfig: "auto" loss without a schema.

        Memory:
            Copies some bytes to the host per metric. AUC keeps 9 bytes a row on the device meanwhile.
        """
        loss, metrics = self._loss_and_metrics(loader)
        device = choose_device(self.device, loader)
        with session(device, seed=self.seed, deterministic=self.deterministic):
            return evaluate(self.model, loader, loss, metrics, device, self.precision)

    def predict(self, loader: Iterable[Any]) -> Tensor:
        """The model's outputs as they are (logits for classification), row after row in the loader's order.

        Args:
            loader: batches; needs no target. Of a shuffled one the order is the shuffled one.

        Returns:
            N or N x K values on the device, float32 (float64 of a float64 model); shape (0,) of a loader without rows.

        Raises:
            BadData: the model's output is no tensor.

        Memory:
            The outputs, twice for a moment.
        """
        device = choose_device(self.device, loader)
        with session(device, seed=self.seed, deterministic=self.deterministic):
            return predict(self.model, loader, device, self.precision)

    def _update(self, loss: Loss, rates: Tensor, device: torch.device) -> Update:
        lr = torch.zeros((), device=device)
        optimizer = make_optimizer(self.optimizer, self.model.parameters(), lr, self.weight_decay)
        forward = forward_in(self.precision, self.model, device)
        return Update(forward, loss, optimizer, lr=lr, rates=rates, gradient_clip=self.gradient_clip)

    def _loss_and_metrics(self, loader: object) -> tuple[Loss, list[Metric]]:
        loss = choose_loss(self.loss, _schema_of(loader))
        metrics, units = choose_metrics(self.metrics, loss), getattr(loader, "target_units", None)
        if units is not None:
            metrics = [InUnits(metric, units) for metric in metrics]
        return LOSSES[loss] if isinstance(loss, str) else loss, metrics

    def _class_weights(self, train: Batches, device: torch.device) -> Tensor | None:
        if self.class_weight is None:
            return None
        return class_weights(self.class_weight, train, _schema_of(train)).to(device)

    def _history(self, metrics: Sequence[Metric], *, validated: bool) -> History:
        directions = {"train_loss": False}
        if validated:
            directions |= {"valid_loss": False} | {f"valid_{m.name}": m.higher_is_better for m in metrics}
        if self.early_stopping is None:
            return History("valid_loss" if validated else "train_loss")
        monitor = self.early_stopping.monitor
        if monitor not in directions:
            raise unknown("EarlyStopping", "monitor", monitor, directions)
        return History(monitor, directions[monitor])

    def _bar(self, steps: int) -> Any:
        hidden = None if self.progress == "auto" else not self.progress  # None: where stderr is no terminal
        return tqdm(total=steps * self.max_epochs, disable=hidden, unit=" updates")

    def _check(self) -> None:
        if self.precision not in PRECISIONS:
            raise unknown("Trainer", "precision", self.precision, PRECISIONS)
        clip = self.gradient_clip
        rules = [
            ("model", isinstance(self.model, nn.Module), "a torch.nn.Module", "gp.models.MLP.from_schema(schema)"),
            ("max_epochs", self.max_epochs >= 1, "at least 1", "max_epochs=3"),
            ("log_every", self.log_every >= 1, "at least 1", "log_every=100"),
            ("weight_decay", self.weight_decay >= 0, "0 or more", "weight_decay=0.01"),
            ("gradient_clip", clip is None or clip > 0, "a norm above 0, or None", "gradient_clip=1.0"),
            ("progress", self.progress in ("auto", True, False), "'auto', True or False", "progress='auto'"),
        ]
        for name, good, expected, remedy in rules:
            if not good:
                where = f"Trainer({name}=)"
                raise BadConfig(where, "makes no sense", got=getattr(self, name), expected=expected, remedy=remedy)
        learning_rates(self.schedule, lr=self.lr, steps=1, warmup=self.warmup)
        choose_metrics(self.metrics, self.loss)
        if self.loss != "auto":
            choose_loss(self.loss, None)


def _schema_of(loader: object) -> Schema | None:
    schema = getattr(loader, "schema", None)
    return schema if isinstance(schema, Schema) else None


def _nothing_to_learn(rows: int) -> BadData:
    return BadData(
        "Trainer.fit",
        "the weights of the train loader's rows sum to 0" if rows else "the train loader has no rows",
        got=f"{rows} rows",
        expected="at least one row that counts",
        remedy="look at the filters, the split and the weights: len(dataset)",
    )


def _longer_than_it_says(steps: int) -> BadConfig:
    return BadConfig(
        "Trainer.fit",
        "the train loader gives more batches than its len()",
        got=f"more than {steps}",
        expected="len(loader) batches each epoch, which the schedule is made for",
        remedy="a loader whose __len__ counts the batches of one epoch, not rows",
    )
