"""Trainer: the loop over epochs and batches, and a model's metrics or outputs over a loader.

An epoch is updates (`train_step.py`) over the train loader, metrics over the validation loader, and a row of history.
The host reads results once per `log_every` batches and at the end of an epoch, and waits for the device nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpupipe.errors import BadConfig, BadData
from gpupipe.support.attributes import Answering
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import refuse_argument
from gpupipe.training.callbacks.callback import Callbacks
from gpupipe.training.callbacks.history import BestWeights, History
from gpupipe.training.checkpointing.checkpoints import resume_run
from gpupipe.training.loop import losses
from gpupipe.training.loop.batches import full_precision, move, move_batches, num_rows
from gpupipe.training.loop.device import choose_device, find_device, fork_rng, session
from gpupipe.training.loop.evaluation import choose_readers, eval_mode, evaluate_model
from gpupipe.training.loop.loader_fit import FitsLoaders, fit_loaders, refuse_settings
from gpupipe.training.loop.losses import Loss
from gpupipe.training.loop.metrics import Metric
from gpupipe.training.loop.rank_group import RankGroup, rank_group
from gpupipe.training.loop.report import Report
from gpupipe.training.loop.report_rows import ReportRows
from gpupipe.training.loop.run_start import (
    choose_loss_and_metrics,
    get_schema,
    get_task,
    make_callbacks,
    make_history,
    make_watches,
    prepare_model,
    start_run,
)
from gpupipe.training.loop.scored_rows import Threshold
from gpupipe.training.loop.settings import TrainerSettings, check_batches, warn_of_shared_rows
from gpupipe.training.loop.train_state import TrainState, check_loss
from gpupipe.training.loop.train_step import CapturedUpdate, Update
from gpupipe.training.optim import optimizers

logger = logging.getLogger(__name__)


class Batches(Protocol):
    """Protocol of a loader: batches, how many, and again from the start each epoch."""

    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...


@runtime_checkable
class RemoteRows(Protocol):
    """Loader whose rows are in other processes, those of `executor`."""

    executor: Any

    def fit_on_workers(self, trainer: Trainer, valid: Any, resume: Any) -> History:
        """Fit in the processes that hold the rows; the trainer's model has the weights afterwards."""


@answer_calls
class Trainer(TrainerSettings, Answering):
    """Trainer of a module on batches.

    The model takes what the loader yields: a `Batch`, or any tree of tensors (then with a callable loss). `fit` starts
    from the model's present weights with a fresh optimiser, and moves the model to the device for good.

    Args:
        model: its output is B values or logits, or B x K logits. For one that learns by itself, as trees do, only
            `class_weight`, `metrics`, `device`, `progress` and `timeout` count; other settings are errors.
        max_epochs: passes over the train loader; "auto" for as many as make about the model's own number of `updates`,
            or 1,200, from 2 to 40 (see `choose_epochs`).
        loss: "auto" by the schema's target ("bce", "cross-entropy" or "mse"; "pinball" of a model that has quantiles),
            a name ("huber" too), or a function of output and batch that gives B values (weighted by `batch.weight`) or
            their mean. One whose second parameter is called `target`, as torch's own, gets `batch.target`; where rows
            have weights it needs `reduction="none"`. But for "mse", "huber" and "pinball" a regression's
            `Features(target_transform=)` has to be given.
        optimizer: "adamw", "sgd", "lamb", "rowwise" (AdamW, and row-wise Adagrad for large embeddings), a class of
            torch.optim, or a function of the parameters and the learning rate (a tensor) that makes one.
        lr: the highest learning rate; None for the model's own `learning_rate`, else 3e-3. See `scaled_rate`.
        schedule: "one-cycle", "cosine", "linear", "constant", "plateau" or a `Plateau`, or a function of the fraction
            of updates done (see `compute_learning_rates`). Fewer than 20 updates raise a warning.
        warmup: fraction of the updates that rises to `lr`; None for the schedule's own.
        weight_decay: of weights; biases, scales of normalisations and embeddings have none. A model of `gp.models` has
            an L2 penalty of its embedded ids, `embedding_l2` / rows.
        param_groups: other rates and decays by patterns of parameters' names: `{"embedding.*": {"lr": 1e-4}}`.
        max_grad_norm: the largest norm of all gradients together.
        accumulate: batches an update is made of: the same as batches that many times larger.
        ema_decay: decay of an average of the weights, which is what is evaluated and kept (`EMA`).
        label_smoothing: fraction of each label given to all classes alike; in training only.
        precision: "auto" (bf16-mixed on GPUs of compute capability 8.0 and up, else 32-true), "32-true", "tf32",
            "bf16-mixed", or "fp16-mixed" with a loss scale. Weights, losses and metrics are float32 in each.
        activation_checkpointing: blocks whose activations are recomputed in the backward pass, to save memory: patterns
            of modules' names, or True for the members of all `nn.ModuleList`s.
        compile: whether forward pass and loss go through torch.compile.
        cuda_graph: whether the whole step is replayed as a CUDA graph; "auto" where it can be.
        class_weight: "balanced" (n / (number of classes * rows of the class), counted in the train loader), or a
            mapping from classes to weights. Times `batch.weight`, in training only.
        metrics: "auto" (those that go with a named loss), or a list of names, `Metric`s and objects with
            `update(preds, target)`, `compute` and `reset` (torchmetrics), computed on validation.
        early_stopping: when to stop before `max_epochs`, with the best weights restored; "auto" never stops, and keeps
            the weights of the epoch whose `valid_loss` is least where there is a valid loader. None keeps the last.
        seed: rules dropout and whatever else the model draws; torch's global generators are left as they were.
        deterministic: on a GPU, the same bits in every run or an error; the CPU gives them anyway.
        device: "auto" (where the loader's data is, else a GPU if torch sees one), "cpu", "cuda:1", a device.
        progress: "auto" (a bar on a terminal or in a notebook), True or False.
        log_every: batches between two reads of the loss.
        callbacks: `Callback`s and loggers, called in this order.
        checkpoints: where and how often to save the fit's state; a path for a folder and every epoch.
        profile: a folder for a trace of some updates, which Perfetto opens.
        gpu_stats: sample the GPU once a second, for `history.gpu`.
        timeout: seconds that a rank waits for the others, where several train together.

    Example:
        >>> from gpupipe.models import MLP
        >>> from gpupipe.tensors.batch import Batch
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> loader = [Batch(x, torch.zeros(64, 0, dtype=torch.int32), target=(x[:, 0] > 0).float())]
        >>> trainer = Trainer(MLP(numeric=1, hidden=(8,)), loss="bce", max_epochs=50, lr=0.05, device="cpu")
        >>> trainer.fit(loader, loader).best["valid_accuracy"]
        1.0
    """

    _ELSEWHERE: ClassVar = {
        "history": "history = trainer.fit(train, valid)",
        "save": "gp.save('runs/flights', pipeline, trainer.model)",
        **dict.fromkeys(("test", "validate", "score"), "trainer.evaluate(loader)"),
        "predict_proba": "gp.Scorer(pipeline, trainer.model).predict_proba(data)",
        "train": "trainer.fit(train, valid)",
    }

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
            train: iterated once an epoch, after `set_epoch(epoch)`, from 0, where it, its dataset or sampler has that.
            valid: evaluated after each epoch.
            resume: go on from a checkpoint of the same model and data: its path, a folder of some (the last one), or
                "latest" for the last one of `checkpoints`; with none there yet the fit starts from the beginning.
            executor: the cluster whose workers hold the loaders' rows (`ClusterLoader`); the loaders know it.

        Returns:
            One row per epoch: epoch (from 1), train_loss (the mean while the weights moved), valid_loss and
            valid_<metric> (where defined), lr (the epoch's last), seconds and rows_per_second (of training).

        Raises:
            BadData: no rows, no weight, a loss that is not finite (epoch, update and rows are named).
            BadConfig: no loader, one without a length or with more batches than that; no such figure to monitor.
            ArtifactError: no checkpoint to go on from, or a damaged one.
            SchemaMismatch: it is of another model or other data.
            SystemExit: with `checkpoints`, after SIGTERM and one more checkpoint; exit code 143.
            ClusterLost: of several ranks another one failed, is gone or hangs; it is named.

        Memory: weights, gradients and two moments; with `early_stopping` the weights again. Batches on other devices
            are copied.
        """
        try:
            self.history = self._fit(train, valid, resume, executor)
        except KeyboardInterrupt as interrupt:
            if self.saves is None:
                how = "Trainer(..., checkpoints='runs/flights') keeps some, and fit(..., resume='latest') goes on"
                interrupt.add_note(f"no checkpoint: {how} from the last one")
            raise interrupt.with_traceback(
                None
            ) from None  # the batch it came in is of no use to whoever pressed Ctrl-C
        return self.history

    def _fit(
        self,
        train: Batches | RemoteRows,
        valid: Batches | RemoteRows | None,
        resume: str | Path | None,
        executor: object,
    ) -> History:
        warn_of_shared_rows("Trainer.fit", train, valid)
        if executor is not None or isinstance(train, RemoteRows) or isinstance(valid, RemoteRows):
            return _fit_on_workers(self, train, valid, resume, executor)
        check_batches("Trainer.fit", train=train, **({} if valid is None else {"valid": valid}))
        if not isinstance(resume, str | PathLike | None):
            raise refuse_argument(
                "Trainer.fit", "resume", resume, "a path", "resume='latest'", problem="not a checkpoint"
            )
        if isinstance(self.model, FitsLoaders):
            return self._fit_loaders(train, valid, resume)
        loss, metrics = choose_loss_and_metrics(self, train)
        stopping = self.choose_stopping(validated=valid is not None)
        history, watches = make_history(stopping, metrics, validated=valid is not None), make_watches(self, train)
        device = choose_device(self.device, train)
        with rank_group(train, self.timeout) as ranks, self._session(device, ranks.rank), prepare_model(self):
            learner, run = start_run(self, loss, train, history, device, ranks, stopping)
            update, best = run.update, run.best
            resumed = resume is not None and resume_run(run, resume, self.saves)
            callbacks = make_callbacks(self, ranks, resumed=resumed)
            with callbacks.around(run):
                for epoch in run.epochs():
                    callbacks.call("on_epoch_start", run)
                    row = {"epoch": epoch, "train_loss": self._train_epoch(run, learner, callbacks)}
                    speed = {"lr": run.lr, "seconds": run.seconds, "rows_per_second": run.rows / run.seconds}
                    if valid is not None:
                        # What the validation loader draws must not change what training draws.
                        with fork_rng(device), update.use_ema():
                            run.validating = True
                            try:
                                figures = self._evaluate(valid, loss, [*metrics, *watches], device, ranks)
                            finally:
                                run.validating = False
                        if not figures and ranks.is_main and not len(history):
                            why = "drop_last=True leaves them all out" if _drops_all(valid) else "none that counts"
                            logger.warning("the valid loader has no rows (%s): no figures of validation", why)
                        row |= {f"valid_{name}": value for name, value in figures.items()}
                    history.append(row | speed)
                    with update.use_ema():
                        run.stop = run.stop or (best is not None and self._keeps_best(run, best))
                    if (factor := optimizers.get_plateau_factor(self.schedule, history)) is not None:
                        run.scale_rates(factor)
                    callbacks.call("on_epoch_end", run)
                    run.stop = ranks.any(run.stop)  # where a callback of one rank ends the fit, all ranks end it
                is_best = best is not None and best.restore()
                if not is_best and update.average is not None:
                    update.average.swap()
                for watch in watches if ranks.is_main else ():
                    watch.warn(len(history) - int(history.best["epoch"]) if is_best else 0)
                self.model.eval().zero_grad()  # gives the gradients' memory back
        return history

    def _keeps_best(self, run: TrainState, best: BestWeights) -> bool:
        """Keep an epoch's weights if they are the best so far, and return whether to stop.

        Patience begins where the rate is highest, with "one-cycle" after 30 % of the updates: while it rises, the loss
        is not expected to fall steadily.
        """
        history = run.history
        if self.early_stopping == "auto" and history.monitor not in history.rows[-1]:
            return False  # validation without rows that count
        top = int(run.rates.argmax()) * self.accumulate
        return best.update(history.monitored, counts=run.epoch * run.steps_per_epoch > top)

    def _fit_loaders(self, train: Batches, valid: Batches | None, resume: str | Path | None) -> History:
        """Fit a model that learns from loaders by itself."""
        refuse_settings(self, resume)
        (_, metrics), watches = choose_loss_and_metrics(self, train), make_watches(self, train)
        history = make_history(self.choose_stopping(validated=valid is not None), metrics, validated=valid is not None)
        observers = [*metrics, *watches]
        device, weights = choose_device(self.device, train), None
        with rank_group(train, self.timeout) as ranks, self._session(device, ranks.rank):
            if self.class_weight is not None:
                weights = losses.compute_class_weights(self.class_weight, train, get_schema(train), ranks)
            fit_loaders(self, train, valid, observers, history, device=device, class_weight=weights, ranks=ranks)
            for watch in watches if ranks.is_main else ():
                watch.warn()
        self.history = history
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
                problem, got = "the train loader gives more batches than its len()", f"more than {run.steps_per_epoch}"
                expected = "len(loader) batches each epoch, which the schedule is made for"
                remedy = "a loader whose __len__ counts the batches of one epoch, not rows"
                raise BadConfig("Trainer.fit", problem, got=got, expected=expected, remedy=remedy)
            if size := num_rows(batch):
                learner.learn(move(batch, run.device))
                run.rows += size * run.ranks.size
            if run.completes_update:
                learner.step()
            if run.step_in_epoch % self.log_every == 0:
                run.log_metrics(check_loss(run, checked))
                callbacks.call("on_log", run)
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
            run.log_metrics(loss)
            callbacks.call("on_log", run)
        return loss

    def evaluate(self, loader: Iterable[Any], *, by: str | None = None, threshold: Threshold | None = None) -> Report:
        """Compute the mean loss and every metric of the task over a loader, and report on its rows.

        The report is a mapping from names to values, without those undefined for the rows, and has the confusion
        matrix, curves, calibration, residuals, the choice of a threshold, and metrics by group.

        Args:
            loader: rows with a target.
            by: a kept column, whose values are the groups of `report.by`.
            threshold: the probability from which on a row is taken for positive, 0.5 by default; of several targets
                one by name.

        Raises:
            BadData: no target, a loss that is not finite, or more than 1,000 groups.
            BadConfig: no loader, "auto" loss without a schema, or a threshold that the task does not have.
            ColumnNotFound: `by` is not kept.

        Memory: outputs, targets and weights of all rows stay on the device as long as the report does: 8 to 12 bytes a
            row of one output, 4 more a further class. Metrics of ranks take some 80 bytes a row meanwhile.
        """
        check_batches("Trainer.evaluate", loader=loader)
        loss, metrics = choose_loss_and_metrics(self, loader)
        device = choose_device(self.device, loader)
        with rank_group(loader, self.timeout, alone=True) as ranks, self._session(device):
            task, readers = get_task(self, loader), choose_readers(loader, ranks)
            rows = ReportRows(loader, task, by=by, threshold=threshold, readers=readers)
            rows.align_thresholds(metrics, device)
            return rows.make_report(self._evaluate(loader, loss, [*metrics, rows], device, ranks))

    def _evaluate(
        self, loader: Iterable[Any], loss: Loss, metrics: Sequence[Metric], device: torch.device, ranks: RankGroup
    ) -> dict[str, float]:
        precision = self.precision
        return evaluate_model(self.model, loader, loss, metrics, device=device, precision=precision, ranks=ranks)

    def predict(self, loader: Iterable[Any]) -> Tensor:
        """Return the model's outputs in the loader's order of rows: logits, or a regression's values in its own units.

        These are N or N x K values on the device, float32 (float64 of a float64 model or a target that goes through
        steps); shape (0,) of a loader without rows. It needs no target. Raises `BadData` where the model's output is no
        tensor, and `BadConfig` without a loader.
        Memory: the outputs, twice for a moment.
        """
        check_batches("Trainer.predict", loader=loader)
        device, outputs = choose_device(self.device, loader), []
        with self._session(device), eval_mode(self.model, device, self.precision) as forward:
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
    for loader in (train,) if valid is None else (train, valid):
        owner = loader.executor if isinstance(loader, RemoteRows) else None
        if owner is None or owner is not (executor or getattr(train, "executor", None)):
            raise BadConfig(
                "Trainer.fit",
                "the rows of a loader lie in this process" if owner is None else "a loader's rows lie on other workers",
                got=type(loader).__name__,
                expected="all loaders' rows on the executor's workers",
                remedy="gp.ClusterLoader(cluster, pipeline, data)",
            )
    history: History = train.fit_on_workers(trainer, valid, resume)
    return history


def compute_metrics(trainer: Trainer, loader: Iterable[Any]) -> dict[str, float]:
    """Compute the mean loss and the trainer's metrics over a loader, by name; keeps no rows and logs nothing."""
    loss, metrics = choose_loss_and_metrics(trainer, loader)
    device, _ = find_device(trainer.device, loader)
    precision, seed, deterministic = trainer.precision, trainer.seed, trainer.deterministic
    states = session(device, seed=seed, deterministic=deterministic, precision=precision)
    with rank_group(loader, trainer.timeout, alone=True) as ranks, states:
        return evaluate_model(trainer.model, loader, loss, metrics, device=device, precision=precision, ranks=ranks)


def _drops_all(loader: Any) -> bool:
    """Return whether a gpupipe or PyTorch loader drops its rows because they are fewer than a batch."""
    rows = getattr(loader, "num_rows", None)
    if rows is None and isinstance(getattr(loader, "dataset", None), Sized):
        rows = len(loader.dataset)
    return bool(rows) and getattr(loader, "drop_last", False) is True
