"""Build of a run: a trainer's settings, their checks, and the update they make on the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass
from fnmatch import fnmatchcase
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gpupipe.errors import BadConfig
from gpupipe.schema import Schema
from gpupipe.support import validation
from gpupipe.support.validation import (
    as_list,
    is_number,
    is_one_of,
    is_sequence,
    refuse_argument,
    refuse_choice,
    to_python,
)
from gpupipe.training.callbacks.callback import Agreement, Callback, Callbacks, GpuStats, Profiling, ProgressBar
from gpupipe.training.callbacks.history import BestWeights, EarlyStopping, History
from gpupipe.training.checkpointing.checkpoint_callback import CheckpointCallback
from gpupipe.training.checkpointing.checkpoints import Checkpoints
from gpupipe.training.loop import losses
from gpupipe.training.loop.batches import num_batches
from gpupipe.training.loop.cuda_graph import CapturedUpdate, CursorBatches, explain_no_capture
from gpupipe.training.loop.device import PRECISIONS, check_device, make_forward
from gpupipe.training.loop.losses import LOSSES, ClassWeight, Loss
from gpupipe.training.loop.metrics import InUnits, Metric, check_task, choose_metrics
from gpupipe.training.loop.rank_group import RankGroup
from gpupipe.training.loop.train_state import TrainState
from gpupipe.training.loop.train_step import Update
from gpupipe.training.optim import optimizers
from gpupipe.training.optim.optimizers import EMA, Groups, LossScale, MakeOptimizer
from gpupipe.training.optim.schedules import Schedule, compute_learning_rates

LEARNING_RATE = 3e-3  # of a model that has none of its own
FEW_UPDATES = 20  # with fewer a schedule cannot rise and fall

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class TrainerSettings:
    """Settings of a trainer: the model and how it is trained; see `Trainer`."""

    model: nn.Module
    _: KW_ONLY
    max_epochs: int
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
    early_stopping: EarlyStopping | None = None
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

    @property
    def learning_rate(self) -> float:
        """The highest learning rate of a run."""
        if self.lr is not None:
            return self.lr
        own = getattr(self.model, "learning_rate", None)
        return float(own) if isinstance(own, int | float) else LEARNING_RATE


def _check(trainer: TrainerSettings) -> None:
    """Refuse invalid settings before anything is read."""
    _check_objects(trainer)
    counts = {"max_epochs": trainer.max_epochs, "accumulate": trainer.accumulate, "log_every": trainer.log_every}
    validation.check_integer(trainer, "[1, inf)", **counts)
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
    choose_metrics(trainer.metrics, trainer.loss)
    if not validation.is_one_of(trainer.loss, ["auto"]):
        losses.choose_loss(trainer.loss, None)


def _check_objects(trainer: TrainerSettings) -> None:
    model, stopping, saving = trainer.model, trainer.early_stopping, trainer.checkpoints
    groups: Any = trainer.param_groups
    blocks: Any = trainer.activation_checkpointing
    weights, callbacks, profile = trainer.class_weight, trainer.callbacks, trainer.profile
    if isinstance(weights, str) and weights != "balanced":
        also = "a mapping from classes to weights, or None"
        raise refuse_choice("Trainer", "class_weight", weights, ["balanced"], also)
    by_name = isinstance(groups, Mapping) and all(
        isinstance(pattern, str) and isinstance(options, Mapping) and all(map(is_number, options.values()))
        for pattern, options in groups.items()
    )
    by_class = is_one_of(weights, (None, "balanced")) or (
        isinstance(weights, Mapping) and all(map(is_number, weights.values()))
    )
    patterns = is_sequence(blocks) and all(isinstance(pattern, str) for pattern in blocks)
    hooks = is_sequence(callbacks) and all(isinstance(one, Callback) for one in callbacks)
    good_and_expected = {
        "model": (isinstance(model, nn.Module), "a torch.nn.Module"),
        "param_groups": (groups is None or by_name, "mappings by patterns of names"),
        "activation_checkpointing": (isinstance(blocks, bool | str) or patterns, "True, or patterns"),
        "class_weight": (by_class, "'balanced', a mapping from classes to weights, or None"),
        "early_stopping": (isinstance(stopping, EarlyStopping | None), "an EarlyStopping, or None"),
        "callbacks": (hooks, "a list of objects of classes made from gpupipe.training.Callback"),
        "checkpoints": (isinstance(saving, Checkpoints | str | PathLike | None), "a folder, a Checkpoints, or None"),
        "profile": (profile is None or validation.is_path(profile), "a folder, or None"),
    }
    remedies = {
        "model": "gp.models.MLP.from_schema(schema)",
        "param_groups": "param_groups={'embedding.*': {'lr': 1e-4}}",
        "activation_checkpointing": "activation_checkpointing=['layers.*']",
        "class_weight": "class_weight='balanced'",
        "early_stopping": "early_stopping=gp.EarlyStopping(patience=3)",
        "callbacks": "callbacks=[gp.training.CSVLogger('runs/flights/log.csv')]",
        "checkpoints": "checkpoints='runs/flights'",
        "profile": "profile='runs/flights/trace'",
    }
    for name, (good, expected) in good_and_expected.items():
        if not good:
            raise refuse_argument(trainer, name, getattr(trainer, name), expected, remedies[name])


def check_batches(where: str, **given: object) -> None:
    """Refuse a table, an array, a path, a pipeline or nothing at all where batches are needed."""
    for name, loader in given.items():
        rows = hasattr(loader, "columns") or hasattr(loader, "shape") or isinstance(loader, str | bytes | PathLike)
        if rows or isinstance(loader, Mapping) or not isinstance(loader, Iterable):
            data = name if rows and name != "loader" else "data"
            expected = "a loader: gp.Pipeline's, a DataLoader, or a list of batches"
            remedy = f"{where.replace('Trainer', 'trainer')}(pipeline.loader({data}))"
            raise BadConfig(f"{where}({name}=)", "not batches", got=type(loader), expected=expected, remedy=remedy)
        if isinstance(loader, list | tuple) and not loader and name != "train":  # whose rows are counted
            expected, remedy = "one batch at least", f"{where.replace('Trainer', 'trainer')}(pipeline.loader({name}))"
            raise BadConfig(f"{where}({name}=)", "no batches", got=loader, expected=expected, remedy=remedy)


def get_schema(loader: object) -> Schema | None:
    """Return the schema of a gpupipe loader, or None."""
    schema = getattr(loader, "schema", None)
    return schema if isinstance(schema, Schema) else None


def choose_loss_and_metrics(trainer: TrainerSettings, loader: object) -> tuple[Loss, list[Metric]]:
    """Choose the loss to minimise and the metrics to report."""
    schema, units = get_schema(loader), getattr(loader, "target_units", None)
    first: nn.Module = trainer.model
    while isinstance(first, nn.Sequential) and len(first):
        first = first[0]
    if schema is not None and type(first).__module__.startswith("torch.nn.modules"):
        problem = "its first layer takes a tensor, and the loader gives Batches"
        expected = "a module whose forward takes a gpupipe.Batch"
        remedy = "a module of yours: def forward(self, batch): return self.net(batch.numeric).squeeze(1)"
        raise BadConfig("Trainer(model=)", problem, got=type(first), expected=expected, remedy=remedy)
    loss = losses.choose_loss(trainer.loss, schema)
    metrics = choose_metrics(trainer.metrics, loss)
    losses.check_units(loss, units)
    if schema is not None:
        losses.check_loss_task(loss, schema)
        if trainer.metrics != "auto":  # those that go with a loss are defined where it is
            check_task(metrics, schema)
    if units is not None:
        metrics = [InUnits(metric, units) for metric in metrics]
    return LOSSES[loss] if isinstance(loss, str) else loss, metrics


def make_history(trainer: TrainerSettings, metrics: Sequence[Metric], *, validated: bool) -> History:
    """Make an empty history; refuse to monitor a figure that there will not be."""
    directions = {"train_loss": False}
    if validated:
        directions |= {"valid_loss": False} | {f"valid_{m.name}": m.higher_is_better for m in metrics}
    if trainer.early_stopping is None:
        return History("valid_loss" if validated else "train_loss")
    monitor = trainer.early_stopping.monitor
    if monitor not in directions:
        raise refuse_choice("EarlyStopping", "monitor", monitor, directions)
    return History(monitor, directions[monitor])


def make_callbacks(trainer: TrainerSettings, ranks: RankGroup, *, resumed: bool) -> Callbacks:
    """Make the callbacks, the trainer's own around the user's; checkpoints last, after all others saw an epoch."""
    before: list[Callback] = [ProgressBar(trainer.progress)]
    before += [] if trainer.profile is None else [Profiling(trainer.profile)]
    before += [GpuStats()] if trainer.gpu_stats else []
    after = [] if trainer.saves is None else [CheckpointCallback(trainer.saves, resumed=resumed)]
    return Callbacks([*before, *trainer.callbacks, Agreement(), *after], first=ranks.is_main)


@contextmanager
def prepare_model(trainer: TrainerSettings) -> Iterator[None]:
    """Set the model's switches as the settings ask, and restore them afterwards."""
    with ExitStack() as stack:
        if trainer.optimizer == "rowwise":
            stack.enter_context(optimizers.use_sparse_gradients(trainer.model))
        if trainer.activation_checkpointing:
            stack.enter_context(checkpoint_activations(trainer.model, trainer.activation_checkpointing))
        yield


@contextmanager
def checkpoint_activations(model: nn.Module, blocks: bool | Sequence[str]) -> Iterator[None]:
    """Recompute inside, in the backward pass, what blocks of the model computed (Chen et al., arXiv:1604.06174).

    What a block draws (dropout) is drawn the same again. `blocks` are patterns of modules' names, or True for the
    members of all `nn.ModuleList`s; of each its inputs are kept instead of all its values, for a third more time.
    """
    names = dict(model.named_modules())
    if blocks is True:
        lists = [module for module in names.values() if isinstance(module, nn.ModuleList)]
        chosen: list[Any] = [member for members in lists for member in members]
    else:
        patterns = as_list(blocks or [])
        chosen = [m for name, m in names.items() if name and any(fnmatchcase(name, p) for p in patterns)]
    if not chosen:
        where = "Trainer(activation_checkpointing=)"
        expected = "members of an nn.ModuleList" if blocks is True else f"patterns of {[n for n in names if n]}"
        remedy = "activation_checkpointing=False, or activation_checkpointing=['layers.*']"
        raise BadConfig(where, "the model has no such blocks", got=blocks, expected=expected, remedy=remedy)
    for module in chosen:
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    try:
        yield
    finally:
        for module in chosen:
            del module.forward  # the class's own comes to light again


def start_run(
    trainer: TrainerSettings, loss: Loss, train: Any, history: History, device: torch.device, ranks: RankGroup
) -> tuple[Update | CapturedUpdate, TrainState]:
    """Move the model to the device, and make the update and the initial state of a run."""
    steps = num_batches(train)
    model, best = trainer.model.to(device), None
    for name, table in optimizers.find_dense_tables(model) if trainer.optimizer != "rowwise" else ():
        what = f"{name} ({' x '.join(f'{size:,}' for size in table.shape)})"
        logger.warning("%s is moved as a whole in each step; optimizer='rowwise' moves its batch's rows", what)
    ranks.broadcast_model(model)
    updates = -(-steps // trainer.accumulate) * trainer.max_epochs
    rates = compute_learning_rates(trainer.schedule, lr=trainer.learning_rate, steps=updates, warmup=trainer.warmup)
    if trainer.schedule == "one-cycle" and 0 < updates < FEW_UPDATES:
        text = "'one-cycle' has few updates, %d (the last rate is %.1g): smaller batch_size or more epochs"
        logger.warning(text, updates, rates[-1])
    update = build_update(trainer, loss, rates, device, train, ranks)
    learner, batches = capture_update(trainer, update, train, device)
    if trainer.early_stopping is not None:
        best = BestWeights(model, trainer.early_stopping, higher_is_better=history.higher_is_better)
    return learner, TrainState(model, update, batches, history, steps, trainer.max_epochs, rates, device, best, ranks)


def build_update(
    trainer: TrainerSettings, loss: Loss, rates: Tensor, device: torch.device, train: Any, ranks: RankGroup
) -> Update:
    """Build the update of a run: optimiser, loss scale, average and all."""
    lr = torch.zeros((), device=device)
    if trainer.label_smoothing:
        loss = losses.smooth_labels(losses.choose_loss(trainer.loss, get_schema(train)), trainer.label_smoothing)
    groups = optimizers.make_parameter_groups(
        trainer.model,
        lr,
        highest=trainer.learning_rate,
        weight_decay=trainer.weight_decay,
        groups=trainer.param_groups,
        tables=trainer.optimizer == "rowwise",
    )
    optimizer = optimizers.make_optimizer(trainer.optimizer, groups, lr)
    weights = None
    if trainer.class_weight is not None:
        weights = losses.compute_class_weights(trainer.class_weight, train, get_schema(train), ranks).to(device)
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


def make_objective(
    forward: Callable[[Any], Any], loss: Loss, weights: Tensor | None = None
) -> Callable[[Any], tuple[Tensor, Tensor | int]]:
    """Make the function to differentiate, compiled if asked: a batch's mean loss and its weight."""

    def objective(batch: Any) -> tuple[Tensor, Tensor | int]:
        if weights is not None:
            batch = losses.weight_by_class(batch, weights)
        return losses.compute_mean_loss(loss(forward(batch), batch), batch)

    return objective


def capture_update(
    trainer: TrainerSettings, update: Update, train: Any, device: torch.device
) -> tuple[Update | CapturedUpdate, Any]:
    """Return the update and its batches, captured as one CUDA graph if possible."""
    recomputed = bool(trainer.activation_checkpointing)
    reason = explain_no_capture(
        trainer.cuda_graph, train, device, trainer.accumulate, activation_checkpointing=recomputed
    )
    if reason is not None:
        slower = device.type == "cuda" and trainer.cuda_graph is not False  # which nobody has asked for
        logger.log(logging.WARNING if slower else logging.INFO, "the step runs eagerly: %s", reason)
        return update, train
    batches = CursorBatches(train)
    return CapturedUpdate(update, batches), batches
