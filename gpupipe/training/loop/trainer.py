"""Training loop, top to bottom; and a model's metrics or outputs over a loader.

An epoch is updates (`train_step.py`) over the train loader, metrics over the validation loader, and a row of history.
The host reads results once per `log_every` batches and at the end of an epoch, and waits for the device nowhere else.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from gpupipe.errors import BadConfig, BadData
from gpupipe.training.callbacks.callback import Callbacks
from gpupipe.training.callbacks.history import History
from gpupipe.training.checkpointing import checkpoint_callback
from gpupipe.training.loop import build
from gpupipe.training.loop.batches import full_precision, move, move_batches, num_rows
from gpupipe.training.loop.cuda_graph import CapturedUpdate
from gpupipe.training.loop.device import choose_device, fork_rng, make_forward, session
from gpupipe.training.loop.losses import Loss, LossMean, compute_mean_loss
from gpupipe.training.loop.metrics import Metric
from gpupipe.training.loop.rank_group import RankGroup, rank_group
from gpupipe.training.loop.train_state import TrainState, check_loss
from gpupipe.training.loop.train_step import Update
from gpupipe.training.optim.schedules import get_plateau_factor

logger = logging.getLogger(__name__)


class Batches(Protocol):
    """Protocol of a loader: batches, how many, and again from the start each epoch."""

    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...


@runtime_checkable
class RemoteRows(Protocol):
    """Loader whose rows are in other processes, those of `executor`."""

    executor: Any

    def fit_on_workers(self, trainer: build.TrainerSettings, valid: Any, resume: Any) -> History:
        """Fit in the processes that hold the rows; the trainer's model has the weights afterwards."""


@dataclass(eq=False, repr=False)
class Trainer(build.TrainerSettings):
    """Trainer of a module on batches.

    The model takes what the loader yields: a `Batch`, or any tree of tensors (then with a callable loss). `fit` starts
    from the model's present weights with a fresh optimiser, and moves the model to the device for good.

    Args:
        model: its output is B values or logits, or B x K logits.
        max_epochs: passes over the train loader.
        loss: "auto" by the schema's target ("bce", "cross-entropy" or "mse"), a name ("huber" too), or a function of
            output and batch that gives B values (weighted by `batch.weight`) or their mean. One whose second parameter
            is called `target`, as torch's own, gets `batch.target` instead; where rows have weights, it needs
            `reduction="none"`. But for "mse" and "huber" a regression's standardised targets have to be said, by
            `Features(target_transform=)`.
        optimizer: "adamw", "sgd", "lamb", "rowwise" (AdamW, and row-wise Adagrad for large embeddings), a class of
            torch.optim, or a function of the parameters and the learning rate (a tensor to pass on) that makes one.
        lr: the highest learning rate; None for the model's own `learning_rate`, else 3e-3. See `scaled_rate`.
        schedule: "one-cycle", "cosine", "linear", "constant", "plateau" or a `Plateau`, or a function of the fraction
            of updates done, see `compute_learning_rates`. Fewer than 20 updates raise a warning.
        warmup: fraction of the updates that rises to `lr`; None for the schedule's own.
        weight_decay: of weights; biases, scales of normalisations and embeddings have none.
        param_groups: other rates and decays by patterns of parameters' names: `{"embedding.*": {"lr": 1e-4}}`.
        max_grad_norm: the largest norm of all gradients together.
        accumulate: batches an update is made of: the same as batches that many times larger.
        ema_decay: decay of an average of the weights, which is what is evaluated and kept (`EMA`).
        label_smoothing: fraction of each label given to all classes alike; in training only.
        precision: "auto" (bf16-mixed on GPUs of compute capability 8.0 and up, else 32-true), "32-true", "tf32",
            "bf16-mixed", or "fp16-mixed" with a loss scale. Weights, losses and metrics are float32 in each.
        activation_checkpointing: blocks whose activations are recomputed in the backward pass, to save memory:
            patterns of modules' names, or True for the members of all `nn.ModuleList`s.
        compile: whether forward pass and loss go through torch.compile.
        cuda_graph: whether the whole step is replayed as a CUDA graph; "auto" where it can be.
        class_weight: "balanced" (n / (number of classes * rows of the class), counted in the train loader), or a
            mapping from classes to weights. Times `batch.weight`, in training only.
        metrics: "auto" (those that go with a named loss), or a list of names and `Metric`s, computed on validation.
        early_stopping: when to stop before `max_epochs`, with the best weights restored. Without it the last are kept.
        seed: rules dropout and whatever else the model draws; torch's global generators are left as they were.
        deterministic: on a GPU, the same bits in every run or an error; the CPU gives them anyway.
        device: "auto" (where the loader's data is, else a GPU if torch sees one), "cpu", "cuda:1", a device.
        progress: "auto" (a bar on a terminal or in a notebook), True or False.
        log_every: batches between two reads of the loss.
        callbacks: `Callback`s of the user's, and loggers.
        checkpoints: where and how often to save the fit's state; a path for a folder and every epoch.
        profile: a folder for a trace of some updates, which Perfetto opens.
        gpu_stats: sample the GPU once a second, for `history.gpu`.
        timeout: seconds that a rank waits for the others, where several train together.

    Raises:
        BadConfig: a value that makes no sense; the closest choice is offered.

    Example:
        >>> from gpupipe.models import MLP
        >>> from gpupipe.tensors.batch import Batch
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> loader = [Batch(x, torch.zeros(64, 0, dtype=torch.int32), target=(x[:, 0] > 0).float())]
        >>> trainer = Trainer(MLP(numeric=1, hidden=(8,)), loss="bce", max_epochs=50, lr=0.05, device="cpu")
        >>> trainer.fit(loader, loader).best["valid_accuracy"]
        1.0
    """

    def fit(
        self,
        train: Batches | RemoteRows,
        valid: Batches | RemoteRows | None = None,
        *,
        resume: str | Path | None = None,
        executor: object = None,
    ) -> History:
        """Train the model, leave it in evaluation mode, and return the history.

        Args:
            train: iterated once an epoch, after `set_epoch(epoch)` where it has that; epochs count from 0 there.
            valid: evaluated after each epoch.
            resume: go on from a checkpoint of the same model and data: its path, a folder of some (the last one), or
                "latest" for the last one of `checkpoints`; with none there yet the fit starts from the beginning.
            executor: the cluster whose workers hold the loaders' rows (`ClusterLoader`); the loaders know it.

        Returns:
            One row per epoch: epoch (from 1), train_loss (the mean while the weights moved), valid_loss and
            valid_<metric> (where defined), lr (the epoch's last), seconds and rows_per_second (of training).

        Raises:
            BadData: no rows, no weight, a loss that is not finite (epoch, update and rows are named).
            BadConfig: no loader, one without a length, or with more batches than that; a figure to monitor that is not
                there.
            ArtifactError: no checkpoint to go on from, or a damaged one.
            SchemaMismatch: it is of another model or other data.
            SystemExit: with `checkpoints`, after SIGTERM and one more checkpoint; exit code 143.
            ClusterLost: of several ranks another one failed, is gone or hangs; it is named.

        Memory:
            Batches on other devices are copied to the device. Weights, gradients and two moments; with
            `early_stopping` one more copy of the weights.
        """
        if executor is not None or isinstance(train, RemoteRows) or isinstance(valid, RemoteRows):
            return _fit_on_workers(self, train, valid, resume, executor)
        build.check_batches("Trainer.fit", train=train, **({} if valid is None else {"valid": valid}))
        if not isinstance(resume, str | PathLike | None):
            raise BadConfig(
                "Trainer.fit(resume=)", "not a checkpoint", got=resume, expected="a path", remedy="resume='latest'"
            )
        loss, metrics = build.choose_loss_and_metrics(self, train)
        history = build.make_history(self, metrics, validated=valid is not None)
        device = choose_device(self.device, train)
        with rank_group(train, self.timeout) as ranks, self._session(device, ranks.rank), build.prepare_model(self):
            learner, run = build.start_run(self, loss, train, history, device, ranks)
            update, best = run.update, run.best
            resumed = resume is not None and checkpoint_callback.resume(run, resume, self.saves)
            callbacks = build.make_callbacks(self, ranks, resumed=resumed)
            with callbacks.around(run):
                for epoch in run.epochs():
                    callbacks.on_epoch_start(run)
                    row = {"epoch": epoch, "train_loss": self._train_epoch(run, learner, callbacks)}
                    speed = {"lr": run.lr, "seconds": run.seconds, "rows_per_second": run.rows / run.seconds}
                    if valid is not None:
                        # What the validation loader draws must not change what training draws.
                        with fork_rng(device), update.use_ema(), run.validation():
                            figures = self._evaluate(valid, loss, metrics, device, ranks)
                        if not figures and ranks.is_main and not len(history):
                            why = "drop_last=True leaves them all out" if _drops_all(valid) else "none that counts"
                            logger.warning("the valid loader has no rows (%s): no figures of validation", why)
                        row |= {f"valid_{name}": value for name, value in figures.items()}
                    history.append(row | speed)
                    with update.use_ema():
                        run.stop = run.stop or (best is not None and best.update(history.monitored))
                    if (factor := get_plateau_factor(self.schedule, history)) is not None:
                        run.scale_rates(factor)
                    callbacks.on_epoch_end(run)
                if (best is None or not best.restore()) and update.average is not None:
                    update.average.swap()
                self.model.eval().zero_grad()  # gives the gradients' memory back
        return history

    def _train_epoch(self, run: TrainState, learner: Update | CapturedUpdate, callbacks: Callbacks) -> float:
        """Train on each batch left of the epoch, and return the mean loss."""
        checked = run.step_in_epoch
        self.model.train()
        if not run.step_in_epoch:
            run.update.losses.reset()
        for batch in run.batches():
            run.step_in_epoch += 1
            if run.step_in_epoch > run.steps_per_epoch:
                problem = "the train loader gives more batches than its len()"
                got = f"more than {run.steps_per_epoch}"
                expected = "len(loader) batches each epoch, which the schedule is made for"
                remedy = "a loader whose __len__ counts the batches of one epoch, not rows"
                raise BadConfig("Trainer.fit", problem, got=got, expected=expected, remedy=remedy)
            if size := num_rows(batch):
                learner.learn(move(batch, run.device))
                run.rows += size * run.ranks.size
            if run.completes_update:
                learner.step()
            if run.step_in_epoch % self.log_every == 0:
                callbacks.on_log(run, check_loss(run, checked))
                checked = run.step_in_epoch
            for call in callbacks.on_step_end if run.completes_update else ():
                call(run)
        loss = check_loss(run, checked)
        if loss is None:
            problem = "the weights of the train loader's rows sum to 0" if run.rows else "the train loader has no rows"
            got, remedy = f"{run.rows} rows", "check the filters, the split and the weights: len(dataset)"
            if not run.rows and _drops_all(run.train):
                problem = f"the train loader has no full batch of {run.train.batch_size} rows, and drop_last=True"
                remedy = "drop_last=False, or a smaller batch_size"
            raise BadData("Trainer.fit", problem, got=got, expected="at least one row that counts", remedy=remedy)
        if checked < run.step_in_epoch:
            callbacks.on_log(run, loss)
        return loss

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """Compute the mean loss and the metrics over a loader, by name, without those undefined for its rows.

        Raises:
            BadData: no target, or a loss that is not finite.
            BadConfig: no loader, or "auto" loss without a schema.

        Memory:
            Copies some bytes to the host per metric. AUC keeps 9 bytes a row on the device meanwhile.
        """
        build.check_batches("Trainer.evaluate", loader=loader)
        loss, metrics = build.choose_loss_and_metrics(self, loader)
        device = choose_device(self.device, loader)
        with rank_group(loader, self.timeout, alone=True) as ranks, self._session(device):
            return self._evaluate(loader, loss, metrics, device, ranks)

    def _evaluate(
        self, loader: Iterable[Any], loss: Loss, metrics: Sequence[Metric], device: torch.device, ranks: RankGroup
    ) -> dict[str, float]:
        """Compute the mean loss and the metrics by name, without those that are undefined for the loader's rows.

        If the loader shards its rows over the ranks, each evaluates its part, and the metrics get the outputs of all.
        """
        readers = ranks if getattr(loader, "world_size", 1) == ranks.size else RankGroup()
        losses = LossMean(device, readers)
        for metric in metrics:
            metric.reset()
        with _eval_mode(self.model, device, self.precision) as forward:
            for batch in move_batches(loader, device):
                output = forward(batch)
                losses.add(*compute_mean_loss(loss(output, batch), batch))
                for metric in metrics:
                    metric.update(*_gather_ranks(output, batch, readers))
        figures = {"loss": losses.read("evaluation")} | {metric.name: metric.compute() for metric in metrics}
        defined = {name: float(value) for name, value in figures.items() if value is not None and math.isfinite(value)}
        return ranks.broadcast_object(lambda: defined)  # all decide by the same, to the last bit

    def predict(self, loader: Iterable[Any]) -> Tensor:
        """Return the model's outputs in the loader's row order: logits, or a regression's values in its own units.

        Args:
            loader: batches; needs no target. Of a shuffled one the order is the shuffled one.

        Returns:
            N or N x K values on the device, float32 (float64 of a float64 model, and in the own units of a target that
            goes through steps); shape (0,) of a loader without rows.

        Raises:
            BadData: the model's output is no tensor.
            BadConfig: no loader.

        Memory:
            The outputs, twice for a moment.
        """
        build.check_batches("Trainer.predict", loader=loader)
        device, outputs = choose_device(self.device, loader), []
        with self._session(device), _eval_mode(self.model, device, self.precision) as forward:
            for batch in move_batches(loader, device):
                output = forward(batch)
                if not isinstance(output, Tensor):
                    where, problem = "Trainer.predict", "the model's output is no tensor"
                    expected = "one tensor whose first dimension is the row"
                    remedy = "model(batch) yourself, batch by batch"
                    raise BadData(where, problem, got=type(output).__name__, expected=expected, remedy=remedy)
                outputs.append(full_precision(output).clone())  # an output may be a view of a batch that is used again
            if not outputs:
                return torch.empty(0, device=device)
            units = getattr(loader, "target_units", None)
            return torch.cat(outputs) if units is None else units(torch.cat(outputs))

    def _session(self, device: torch.device, rank: int = 0) -> AbstractContextManager[None]:
        return session(device, seed=self.seed + rank, deterministic=self.deterministic, precision=self.precision)


def _fit_on_workers(trainer: Trainer, train: Any, valid: Any, resume: Any, executor: Any) -> History:
    """Fit in the processes that hold the rows, all of them the executor's."""
    for loader in (train, valid):
        if loader is None:
            continue
        place = loader.executor if isinstance(loader, RemoteRows) else None
        if place is None or place is not (executor or getattr(train, "executor", None)):
            raise BadConfig(
                "Trainer.fit",
                "the rows of a loader lie in this process" if place is None else "a loader's rows lie on other workers",
                got=type(loader).__name__,
                expected="all loaders' rows on the executor's workers",
                remedy="gp.ClusterLoader(cluster, pipeline, data)",
            )
    history: History = train.fit_on_workers(trainer, valid, resume)
    return history


def _gather_ranks(output: Any, batch: Any, ranks: RankGroup) -> tuple[Any, Any]:
    """Gather outputs, targets, weights and kept columns of all ranks' rows; features are not gathered."""
    if ranks.size == 1:
        return output, batch
    given = {"target": batch.target, "weight": batch.weight}
    there = {name: ranks.all_gather_rows(value) for name, value in given.items() if value is not None}
    output = ranks.all_gather_rows(output)
    numeric, codes = batch.numeric.new_empty(len(output), 0), batch.codes.new_empty(len(output), 0)
    kept = {name: ranks.all_gather_rows(value) for name, value in batch.keep.items()}
    return output, replace(batch, numeric=numeric, codes=codes, keep=kept, lists={}, **there)


@contextmanager
def _eval_mode(model: nn.Module, device: torch.device, precision: str) -> Iterator[Callable[[Any], Any]]:
    """Give the model's call on the device, in evaluation mode without gradients, and restore the mode."""
    was_training = model.training
    model.to(device).eval()
    try:
        with torch.no_grad():
            yield make_forward(precision, model, device)
    finally:
        model.train(was_training)


def _drops_all(loader: Any) -> bool:
    """Return whether a gpupipe or PyTorch loader drops its rows because they are fewer than a batch."""
    rows = getattr(loader, "num_rows", None)
    if rows is None and isinstance(getattr(loader, "dataset", None), Sized):
        rows = len(loader.dataset)
    return bool(rows) and getattr(loader, "drop_last", False) is True
