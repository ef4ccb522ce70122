"""Trainer: its settings and their checks, the parts of a run, the loop; a model's metrics or outputs over a loader.

An epoch is updates (`train_step.py`) over the train loader, metrics over the validation loader, and a row of history.
The host reads results once per `log_every` batches and at the end of an epoch, and waits for the device nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, fields
from fnmatch import fnmatchcase
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gpupipe.errors import BadConfig, BadData
from gpupipe.schema import Schema
from gpupipe.support import validation
from gpupipe.support.calls import answer_calls
from gpupipe.support.text import arguments, format_count
from gpupipe.support.validation import as_list, is_number, is_one_of, is_sequence, refuse_argument, to_python
from gpupipe.training.callbacks.callback import Callback, Callbacks, GpuStats, Profiling, ProgressBar
from gpupipe.training.callbacks.history import BestWeights, EarlyStopping, History, format_settings
from gpupipe.training.checkpointing.checkpoints import CheckpointCallback, Checkpoints, resume_run
from gpupipe.training.loop import losses
from gpupipe.training.loop.batches import full_precision, move, move_batches, num_batches, num_rows
from gpupipe.training.loop.device import (
    PRECISIONS,
    check_device,
    choose_device,
    find_device,
    fork_rng,
    make_forward,
    session,
)
from gpupipe.training.loop.evaluation import choose_readers, eval_mode, evaluate_model
from gpupipe.training.loop.loader_fit import FitsLoaders, fit_loaders, refuse_settings
from gpupipe.training.loop.losses import ClassWeight, Loss, compute_mean_loss
from gpupipe.training.loop.metrics import InUnits, Metric, check_task, choose_metrics
from gpupipe.training.loop.quantiles import get_quantiles
from gpupipe.training.loop.rank_group import RankGroup, rank_group
from gpupipe.training.loop.report import Report
from gpupipe.training.loop.report_rows import ReportRows
from gpupipe.training.loop.scored_rows import DECIDED_TASKS, Threshold
from gpupipe.training.loop.train_state import TrainState, check_loss
from gpupipe.training.loop.train_step import CapturedUpdate, CursorBatches, Update, explain_no_capture
from gpupipe.training.loop.yes_watch import YesWatch
from gpupipe.training.optim import optimizers
from gpupipe.training.optim.optimizers import EMA, Groups, LossScale, MakeOptimizer, Schedule, compute_learning_rates

LEARNING_RATE = 3e-3  # of a model that has none of its own
UPDATES = 1200  # of max_epochs="auto" for a model that says no number of its own
FEWEST_EPOCHS, MOST_EPOCHS = 2, 40  # of max_epochs="auto"
FEW_UPDATES = 20  # with fewer a schedule cannot rise and fall

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
@dataclass(eq=False, repr=False)
class Trainer:
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

    model: nn.Module
    _: KW_ONLY
    max_epochs: int | str = "auto"
    loss: str | Loss = "auto"
    optimizer: str | MakeOptimizer = "adamw"
    lr: float | None = None
    schedule: Schedule = "one-cycle"
    warmup: float | None = None
    weight_decay: float = 0.01
    param_groups: Groups | None = None
    max_grad_norm: float | None = None
    accumulate: int = 1
    ema_decay: float | None = None
    label_smoothing: float = 0.0
    precision: str = "auto"
    activation_checkpointing: bool | Sequence[str] = False
    compile: bool = False
    cuda_graph: bool | str = "auto"
    class_weight: ClassWeight | None = None
    metrics: str | Sequence[str | Metric] = "auto"
    early_stopping: EarlyStopping | str | None = "auto"
    seed: int = 0
    deterministic: bool = False
    device: str | torch.device = "auto"
    progress: str | bool = "auto"
    log_every: int = 100
    callbacks: Sequence[Callback] = ()
    checkpoints: Checkpoints | str | Path | None = None
    profile: str | Path | None = None
    gpu_stats: bool = False
    timeout: float = 600.0

    def __post_init__(self) -> None:
        _check(self)
        vars(self).update({name: to_python(value) for name, value in vars(self).items()})
        given = self.checkpoints
        self.saves = Checkpoints(given) if isinstance(given, str | PathLike) else given
        self.history: History | None = None  # of the last fit

    def __repr__(self) -> str:
        weights = [item for item in self.model.parameters() if not isinstance(item, nn.UninitializedParameter)]
        model = f"{type(self.model).__name__} of {format_count(sum(item.numel() for item in weights), 'parameter')}"
        if isinstance(self.model, FitsLoaders):
            model = f"{type(self.model).__name__}({self.model.extra_repr()})"
        values = {item.name: (getattr(self, item.name), item.default) for item in fields(self)[1:]}
        changed = arguments({name: value for name, (value, default) in values.items() if value != default})
        return f"Trainer({', '.join(filter(None, [model, changed]))})"

    @property
    def learning_rate(self) -> float:
        """The highest learning rate of a run."""
        if self.lr is not None:
            return self.lr
        of_model = getattr(self.model, "learning_rate", None)
        return float(of_model) if isinstance(of_model, int | float) else LEARNING_RATE

    def choose_epochs(self, batches: int) -> int:
        """Return `max_epochs`, or with "auto" how many passes over a loader of so many batches make enough updates.

        Enough are the model's own `updates`, or 1,200: with fewer a network is not done on a table of some thousand
        rows, with more it gains nothing. From 2 to 40 passes.

        Example:
            >>> trainer = Trainer(nn.Linear(1, 1))
            >>> [trainer.choose_epochs(batches) for batches in (5, 64, 244, 100_000)]
            [40, 19, 5, 2]
        """
        if not isinstance(self.max_epochs, str):
            return self.max_epochs
        of_model = getattr(self.model, "updates", None)
        updates = of_model if isinstance(of_model, int) else UPDATES
        return min(max(round(updates * self.accumulate / max(batches, 1)), FEWEST_EPOCHS), MOST_EPOCHS)

    def choose_stopping(self, *, validated: bool) -> EarlyStopping | None:
        """Return `early_stopping`, or with "auto" one that keeps the best weights and never stops, if `validated`."""
        if isinstance(self.early_stopping, str):
            return EarlyStopping(patience=None) if validated else None
        return self.early_stopping

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
        history, watches = _make_history(stopping, metrics, validated=valid is not None), _make_watches(self, train)
        device = choose_device(self.device, train)
        with rank_group(train, self.timeout) as ranks, self._session(device, ranks.rank), prepare_model(self):
            learner, run = _start_run(self, loss, train, history, device, ranks, stopping)
            update, best = run.update, run.best
            resumed = resume is not None and resume_run(run, resume, self.saves)
            callbacks = _make_callbacks(self, ranks, resumed=resumed)
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
        (_, metrics), watches = choose_loss_and_metrics(self, train), _make_watches(self, train)
        history = _make_history(self.choose_stopping(validated=valid is not None), metrics, validated=valid is not None)
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
            task, readers = _get_task(self, loader), choose_readers(loader, ranks)
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


def _check(trainer: Trainer) -> None:
    """Refuse invalid settings before anything is read."""
    _check_objects(trainer)
    validation.check_integer(trainer, "[1, inf)", accumulate=trainer.accumulate, log_every=trainer.log_every)
    if not is_one_of(trainer.max_epochs, ["auto"]):
        validation.check_integer(trainer, "[1, inf)", max_epochs=trainer.max_epochs)
    validation.check_number(trainer, "(0, inf)", None, lr=trainer.lr, max_grad_norm=trainer.max_grad_norm)
    validation.check_number(trainer, "(0, inf)", timeout=trainer.timeout)
    validation.check_number(trainer, "[0, inf)", weight_decay=trainer.weight_decay)
    validation.check_number(trainer, "(0, 1)", None, ema_decay=trainer.ema_decay)
    validation.check_number(trainer, "[0, 1)", None, warmup=trainer.warmup)
    validation.check_number(trainer, "[0, 1)", label_smoothing=trainer.label_smoothing)
    validation.check_seed(trainer, seed=trainer.seed)
    flags = {"compile": trainer.compile, "deterministic": trainer.deterministic, "gpu_stats": trainer.gpu_stats}
    validation.check_bool(trainer, **flags)
    validation.check_choice(trainer, ("auto", True, False), cuda_graph=trainer.cuda_graph, progress=trainer.progress)
    validation.check_choice(trainer, PRECISIONS, precision=trainer.precision)
    check_device(trainer.device)
    optimizers.check_optimizer(trainer.optimizer)
    compute_learning_rates(trainer.schedule, lr=trainer.learning_rate, steps=1, warmup=trainer.warmup)
    quantiles = get_quantiles(trainer.model)
    choose_metrics(trainer.metrics, trainer.loss, None, quantiles)
    if not is_one_of(trainer.loss, ["auto"]):
        losses.choose_loss(trainer.loss, None, quantiles)


def _check_objects(trainer: Trainer) -> None:
    check, folder = validation.check_instance, trainer.profile
    model, remedy = cast(Any, trainer.model), "gp.models.MLP.from_schema(schema)"
    if hasattr(model, "fit") and hasattr(model, "predict") and not isinstance(model, type):
        model, remedy = type(model), f"gp.compare(train, valid, [{type(model).__name__}()]), or gp.models.XGB for trees"
    check(trainer, nn.Module, "a torch.nn.Module", remedy=remedy, model=model)
    remedy = "early_stopping=gp.EarlyStopping(patience=3)"
    if not is_one_of(trainer.early_stopping, ["auto"]):
        check(trainer, EarlyStopping, "an EarlyStopping", None, remedy=remedy, early_stopping=trainer.early_stopping)
    kinds, remedy = (Checkpoints, str, PathLike), "checkpoints='runs/flights'"
    check(trainer, kinds, "a folder, a Checkpoints", None, remedy=remedy, checkpoints=trainer.checkpoints)
    groups: Any = trainer.param_groups
    blocks: Any = trainer.activation_checkpointing
    weights, callbacks = trainer.class_weight, trainer.callbacks
    if isinstance(weights, str) and weights != "balanced":
        also = "a mapping from classes to weights, or None"
        raise validation.refuse_choice("Trainer", "class_weight", weights, ["balanced"], also)
    by_name = isinstance(groups, Mapping) and all(
        isinstance(pattern, str) and isinstance(options, Mapping) and all(map(is_number, options.values()))
        for pattern, options in groups.items()
    )
    by_class = isinstance(weights, Mapping) and all(map(is_number, weights.values()))
    patterns = is_sequence(blocks) and all(isinstance(pattern, str) for pattern in blocks)
    hooks = is_sequence(callbacks) and all(isinstance(one, Callback) for one in callbacks)
    by_class, patterns = by_class or is_one_of(weights, (None, "balanced")), patterns or isinstance(blocks, bool | str)
    listed = "a list of objects of classes made from gpupipe.training.Callback"
    for name, good, expected, example in (
        ("param_groups", groups is None or by_name, "mappings by patterns of names", "{'embedding.*': {'lr': 1e-4}}"),
        ("activation_checkpointing", patterns, "True, or patterns", "['layers.*']"),
        ("class_weight", by_class, "'balanced', a mapping from classes to weights, or None", "'balanced'"),
        ("profile", folder is None or validation.is_path(folder), "a folder, or None", "'runs/flights/trace'"),
        ("callbacks", hooks, listed, "[gp.training.CSVLogger('runs/flights/log.csv')]"),
    ):
        if not good:
            raise refuse_argument(trainer, name, getattr(trainer, name), expected, f"{name}={example}")


def check_batches(where: str, **given: object) -> None:
    """Refuse a table, an array, a path, a pipeline or nothing at all where batches are needed."""
    for name, loader in given.items():
        rows = hasattr(loader, "columns") or hasattr(loader, "shape") or isinstance(loader, str | bytes | PathLike)
        call = where.replace("Trainer", "trainer")
        if rows or isinstance(loader, Mapping) or not isinstance(loader, Iterable):
            remedy = f"{call}(pipeline.loader({name if rows and name != 'loader' else 'data'}))"
            expected = "a loader: gp.Pipeline's, a DataLoader, or a list of batches"
            raise refuse_argument(where, name, type(loader), expected, remedy, problem="not batches")
        if isinstance(loader, list | tuple) and not loader and name != "train":  # whose rows are counted
            remedy = f"{call}(pipeline.loader({name}))"
            raise refuse_argument(where, name, loader, "one batch at least", remedy, problem="no batches")


def get_schema(loader: object) -> Schema | None:
    """Return the schema of a gpupipe loader, or None."""
    schema = getattr(loader, "schema", None)
    return schema if isinstance(schema, Schema) else None


def choose_loss_and_metrics(trainer: Trainer, loader: object) -> tuple[Loss, list[Metric]]:
    """Choose the loss to minimise and the metrics to report."""
    schema, units = get_schema(loader), getattr(loader, "target_units", None)
    first: nn.Module = trainer.model
    while isinstance(first, nn.Sequential) and len(first):
        first = first[0]
    if schema is not None and type(first).__module__.startswith("torch.nn.modules"):
        problem = "its first layer takes a tensor, and the loader gives Batches"
        expected = "a module whose forward takes a gpupipe.Batch"
        remedy = "a module of yours: def forward(self, batch): return self.net(batch.numeric).squeeze(1)"
        raise refuse_argument("Trainer", "model", type(first), expected, remedy, problem=problem)
    quantiles = get_quantiles(trainer.model)
    loss = losses.choose_loss(trainer.loss, schema, quantiles)
    metrics = choose_metrics(trainer.metrics, loss, losses.choose_task(loss, schema), quantiles)
    losses.check_units(loss, units)
    if schema is not None:
        losses.check_loss_task(loss, schema)
        if check_ids := getattr(trainer.model, "check_ids", None):
            check_ids(schema)
        if trainer.metrics != "auto":  # those that go with a loss are defined where it is
            check_task(metrics, schema)
    if units is not None:
        metrics = [InUnits(metric, units) for metric in metrics]
    return losses.get_loss(loss, quantiles, schema), metrics


def _make_history(stopping: EarlyStopping | None, metrics: Sequence[Metric], *, validated: bool) -> History:
    """Make an empty history; refuse to monitor a figure that there will not be."""
    directions = {"train_loss": False}
    if validated:
        directions |= {"valid_loss": False} | {f"valid_{m.name}": m.higher_is_better for m in metrics}
    monitor = "valid_loss" if validated else "train_loss"
    if stopping is not None:
        monitor = stopping.monitor
        validation.check_choice("EarlyStopping", directions, monitor=monitor)
    return History(monitor, directions[monitor])


def _make_watches(trainer: Trainer, loader: object) -> list[YesWatch]:
    """Make what watches whether a model of true and false says yes to a row; nothing for another task."""
    if _get_task(trainer, loader) not in DECIDED_TASKS:
        return []
    schema = get_schema(loader)
    return [YesWatch([] if schema is None else [item.name for item in schema.targets])]


def _get_task(trainer: Trainer, loader: object) -> str | None:
    """Return what the outputs are read as."""
    schema = get_schema(loader)
    return losses.choose_task(losses.choose_loss(trainer.loss, schema, get_quantiles(trainer.model)), schema)


def _make_callbacks(trainer: Trainer, ranks: RankGroup, *, resumed: bool) -> Callbacks:
    """Make the callbacks, the trainer's own around the user's; checkpoints last, after all others saw an epoch."""
    before: list[Callback] = [ProgressBar(trainer.progress)]
    before += [] if trainer.profile is None else [Profiling(trainer.profile)]
    before += [GpuStats()] if trainer.gpu_stats else []
    after = [] if trainer.saves is None else [CheckpointCallback(trainer.saves, resumed=resumed)]
    return Callbacks([*before, *trainer.callbacks, *after], first=ranks.is_main)


@contextmanager
def prepare_model(trainer: Trainer) -> Iterator[None]:
    """Set the model's switches as the settings ask, and restore them afterwards."""
    with ExitStack() as stack:
        if trainer.optimizer == "rowwise":
            stack.enter_context(optimizers.use_sparse_gradients(trainer.model))
        if trainer.activation_checkpointing:
            stack.enter_context(checkpoint_activations(trainer.model, trainer.activation_checkpointing))
        yield


@contextmanager
def checkpoint_activations(model: nn.Module, blocks: bool | Sequence[str]) -> Iterator[None]:
    """Recompute in the backward pass, with the same draws, what blocks computed (Chen et al., arXiv:1604.06174)."""
    names = dict(model.named_modules())
    if blocks is True:
        lists = [module for module in names.values() if isinstance(module, nn.ModuleList)]
        chosen: list[Any] = [member for members in lists for member in members]
    else:
        patterns = as_list(blocks or [])
        chosen = [m for name, m in names.items() if name and any(fnmatchcase(name, p) for p in patterns)]
    if not chosen:
        expected = "members of an nn.ModuleList" if blocks is True else f"patterns of {[n for n in names if n]}"
        remedy = "activation_checkpointing=False, or activation_checkpointing=['layers.*']"
        problem = "the model has no such blocks"
        raise refuse_argument("Trainer", "activation_checkpointing", blocks, expected, remedy, problem=problem)
    for module in chosen:
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    try:
        yield
    finally:
        for module in chosen:
            del module.forward  # the class's own comes to light again


def _start_run(
    trainer: Trainer,
    loss: Loss,
    train: Any,
    history: History,
    device: torch.device,
    ranks: RankGroup,
    stopping: EarlyStopping | None,
) -> tuple[Update | CapturedUpdate, TrainState]:
    """Move the model to the device, and make the update and the initial state of a run."""
    steps = num_batches(train)
    model, best = trainer.model.to(device), None
    tables = {} if trainer.optimizer == "rowwise" else optimizers.find_dense_tables(model)
    for name, table in tables.items():
        what = f"{name} ({' x '.join(f'{size:,}' for size in table.shape)})"
        logger.warning("%s is moved as a whole in each step; optimizer='rowwise' moves its batch's rows", what)
    ranks.broadcast_model(model)
    epochs = trainer.choose_epochs(steps)
    updates = -(-steps // trainer.accumulate) * epochs
    rates = compute_learning_rates(trainer.schedule, lr=trainer.learning_rate, steps=updates, warmup=trainer.warmup)
    if trainer.schedule == "one-cycle" and 0 < updates < FEW_UPDATES:
        is_in_order = getattr(train, "shuffle", None) is False
        remedy = (
            "pipeline.loader(train, shuffle=True), which chooses batch_size" if is_in_order else "smaller batch_size"
        )
        text = "'one-cycle' has few updates, %d (the last rate is %.1g): %s, or more epochs"
        logger.warning(text, updates, rates[-1], remedy)
    history.settings = {"max_epochs": epochs, "updates": updates, "lr": trainer.learning_rate}
    size = getattr(train, "batch_size", None)
    history.settings |= {"batch_size": size} if isinstance(size, int) else {}
    if isinstance(trainer.max_epochs, str) and ranks.is_main:
        logger.info("max_epochs='auto': %s", format_settings(history.settings))
    update = build_update(trainer, loss, rates, device, train, ranks)
    learner, batches = capture_update(trainer, update, train, device)
    if stopping is not None:
        best = BestWeights(model, stopping, higher_is_better=history.higher_is_better)
    return learner, TrainState(model, update, batches, history, steps, epochs, rates, device, best, ranks)


def build_update(
    trainer: Trainer, loss: Loss, rates: Tensor, device: torch.device, train: Any, ranks: RankGroup
) -> Update:
    """Build the update of a run: optimiser, loss scale, average and all."""
    lr, schema, by_rows = torch.zeros((), device=device), get_schema(train), trainer.optimizer == "rowwise"
    if trainer.label_smoothing:
        quantiles = get_quantiles(trainer.model)
        smoothed = losses.smooth_labels(losses.choose_loss(trainer.loss, schema, quantiles), trainer.label_smoothing)
        loss = losses.get_loss(smoothed, quantiles, schema)
    if isinstance(members := getattr(trainer.model, "members", None), int):
        loss = losses.average_members(loss, members)
    highest, decay, own = trainer.learning_rate, trainer.weight_decay, trainer.param_groups
    compute_l2 = getattr(trainer.model, "compute_l2", None)
    l2 = compute_l2(_count_rows(train, ranks)) if callable(compute_l2) else {}
    groups = optimizers.make_parameter_groups(
        trainer.model, lr, highest=highest, weight_decay=decay, groups=own, tables=by_rows, l2=l2
    )
    optimizer = optimizers.make_optimizer(trainer.optimizer, groups, lr)
    weights = None
    if trainer.class_weight is not None:
        weights = losses.compute_class_weights(trainer.class_weight, train, schema, ranks).to(device)
    objective = make_objective(make_forward(trainer.precision, trainer.model, device), loss, weights)
    return Update(
        torch.compile(objective, dynamic=False) if trainer.compile else objective,
        optimizer,
        rates=rates.to(device),
        max_grad_norm=None if trainer.max_grad_norm is None else float(trainer.max_grad_norm),
        accumulate=trainer.accumulate,
        unit=float(getattr(train, "batch_size", None) or 1),
        scale=LossScale(optimizer, device) if trainer.precision == "fp16-mixed" else None,
        average=None if trainer.ema_decay is None else EMA(trainer.model, trainer.ema_decay),
        ranks=ranks,
    )


def _count_rows(loader: Any, ranks: RankGroup) -> int | None:
    """Return the number of rows of all ranks; of a PyTorch loader, which deals rows out itself, by its batches."""
    total, size = getattr(loader, "total_rows", None), getattr(loader, "batch_size", None)
    if total is None and isinstance(size, int):
        total = num_batches(loader) * size * ranks.size
    return total


def make_objective(
    forward: Callable[[Any], Any], loss: Loss, weights: Tensor | None = None
) -> Callable[[Any], tuple[Tensor, Tensor | int]]:
    """Make the function to differentiate, compiled if asked: a batch's mean loss and its weight."""

    def objective(batch: Any) -> tuple[Tensor, Tensor | int]:
        if weights is not None:
            batch = losses.weight_by_class(batch, weights)
        return compute_mean_loss(loss(forward(batch), batch), batch)

    return objective


def capture_update(
    trainer: Trainer, update: Update, train: Any, device: torch.device
) -> tuple[Update | CapturedUpdate, Any]:
    """Return the update and its batches, captured as one CUDA graph if possible."""
    wanted, each, blocks = trainer.cuda_graph, trainer.accumulate, trainer.activation_checkpointing
    reason = explain_no_capture(wanted, train, device, each, activation_checkpointing=blocks)
    if reason is not None:
        slower = device.type == "cuda" and trainer.cuda_graph is not False  # which nobody has asked for
        logger.log(logging.WARNING if slower else logging.INFO, "the step runs eagerly: %s", reason)
        return update, train
    batches = CursorBatches(train)
    return CapturedUpdate(update, batches), batches


def _fit_on_workers(trainer: Trainer, train: Any, valid: Any, resume: Any, executor: Any) -> History:
    """Fit in the processes that hold the rows, all of them the executor's."""
    for loader in filter(lambda given: given is not None, (train, valid)):
        place = loader.executor if isinstance(loader, RemoteRows) else None
        if place is None or place is not (executor or getattr(train, "executor", None)):
            here, elsewhere = "the rows of a loader lie in this process", "a loader's rows lie on other workers"
            problem, got = here if place is None else elsewhere, type(loader).__name__
            expected = "all loaders' rows on the executor's workers"
            remedy = "gp.ClusterLoader(cluster, pipeline, data)"
            raise BadConfig("Trainer.fit", problem, got=got, expected=expected, remedy=remedy)
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
