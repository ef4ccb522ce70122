"""Start of a run: loss and metrics, history, callbacks, the update, eager or captured, and the initial state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gpupipe.schema import Schema
from gpupipe.support import validation
from gpupipe.support.validation import refuse_argument
from gpupipe.training.callbacks.callback import Callback, Callbacks, GpuStats, Profiling, ProgressBar
from gpupipe.training.callbacks.history import BestWeights, EarlyStopping, History, format_settings
from gpupipe.training.checkpointing.checkpoints import CheckpointCallback
from gpupipe.training.loop import losses
from gpupipe.training.loop.activation_checkpointing import checkpoint_activations
from gpupipe.training.loop.batches import num_batches
from gpupipe.training.loop.device import make_forward
from gpupipe.training.loop.losses import Loss, compute_mean_loss
from gpupipe.training.loop.metrics import InUnits, Metric, check_task, choose_metrics
from gpupipe.training.loop.quantiles import get_quantiles
from gpupipe.training.loop.rank_group import RankGroup
from gpupipe.training.loop.scored_rows import DECIDED_TASKS
from gpupipe.training.loop.settings import FEW_UPDATES, TrainerSettings
from gpupipe.training.loop.train_state import TrainState
from gpupipe.training.loop.train_step import CapturedUpdate, CursorBatches, Update, explain_no_capture
from gpupipe.training.loop.yes_watch import YesWatch
from gpupipe.training.optim import optimizers
from gpupipe.training.optim.optimizers import EMA, LossScale, compute_learning_rates

logger = logging.getLogger(__name__)


def get_schema(loader: object) -> Schema | None:
    """Return the schema of a gpupipe loader, or None."""
    schema = getattr(loader, "schema", None)
    return schema if isinstance(schema, Schema) else None


def choose_loss_and_metrics(settings: TrainerSettings, loader: object) -> tuple[Loss, list[Metric]]:
    """Choose the loss to minimise and the metrics to report."""
    schema, units = get_schema(loader), getattr(loader, "target_units", None)
    first: nn.Module = settings.model
    while isinstance(first, nn.Sequential) and len(first):
        first = first[0]
    if schema is not None and type(first).__module__.startswith("torch.nn.modules"):
        problem = "its first layer takes a tensor, and the loader gives Batches"
        expected = "a module whose forward takes a gpupipe.Batch"
        remedy = "a module of yours: def forward(self, batch): return self.net(batch.numeric).squeeze(1)"
        raise refuse_argument("Trainer", "model", type(first), expected, remedy, problem=problem)
    quantiles = get_quantiles(settings.model)
    loss = losses.choose_loss(settings.loss, schema, quantiles)
    metrics = choose_metrics(settings.metrics, loss, losses.choose_task(loss, schema), quantiles)
    losses.check_units(loss, units)
    if schema is not None:
        losses.check_loss_task(loss, schema)
        if check_columns := getattr(settings.model, "check_columns", None):
            check_columns(schema)
        if settings.metrics != "auto":  # those that go with a loss are defined where it is
            check_task(metrics, schema)
    if units is not None:
        metrics = [InUnits(metric, units) for metric in metrics]
    return losses.get_loss(loss, quantiles, schema), metrics


def make_history(stopping: EarlyStopping | None, metrics: Sequence[Metric], *, validated: bool) -> History:
    """Make an empty history; refuse to monitor a figure that there will not be."""
    directions = {"train_loss": False}
    if validated:
        directions |= {"valid_loss": False} | {f"valid_{m.name}": m.higher_is_better for m in metrics}
    monitor = "valid_loss" if validated else "train_loss"
    if stopping is not None:
        monitor = stopping.monitor
        validation.check_choice("EarlyStopping", directions, monitor=monitor)
    return History(monitor, directions[monitor])


def make_watches(settings: TrainerSettings, loader: object) -> list[YesWatch]:
    """Make what watches whether a model of true and false says yes to a row; nothing for another task."""
    if get_task(settings, loader) not in DECIDED_TASKS:
        return []
    schema = get_schema(loader)
    return [YesWatch([] if schema is None else [item.name for item in schema.targets])]


def get_task(settings: TrainerSettings, loader: object) -> str | None:
    """Return what the outputs are read as."""
    schema = get_schema(loader)
    return losses.choose_task(losses.choose_loss(settings.loss, schema, get_quantiles(settings.model)), schema)


def make_callbacks(settings: TrainerSettings, ranks: RankGroup, *, resumed: bool) -> Callbacks:
    """Make the callbacks, the trainer's own around the user's; checkpoints last, after all others saw an epoch."""
    before: list[Callback] = [ProgressBar(settings.progress)]
    before += [] if settings.profile is None else [Profiling(settings.profile)]
    before += [GpuStats()] if settings.gpu_stats else []
    after = [] if settings.saves is None else [CheckpointCallback(settings.saves, resumed=resumed)]
    return Callbacks([*before, *settings.callbacks, *after], first=ranks.is_main)


@contextmanager
def prepare_model(settings: TrainerSettings) -> Iterator[None]:
    """Set the model's switches as the settings ask, and restore them afterwards."""
    with ExitStack() as stack:
        if settings.optimizer == "rowwise":
            stack.enter_context(optimizers.use_sparse_gradients(settings.model))
        if settings.activation_checkpointing:
            stack.enter_context(checkpoint_activations(settings.model, settings.activation_checkpointing))
        yield


def start_run(
    settings: TrainerSettings,
    loss: Loss,
    train: Any,
    history: History,
    device: torch.device,
    ranks: RankGroup,
    stopping: EarlyStopping | None,
) -> tuple[Update | CapturedUpdate, TrainState]:
    """Move the model to the device, and make the update and the initial state of a run."""
    steps = num_batches(train)
    model, best = settings.model.to(device), None
    tables = {} if settings.optimizer == "rowwise" else optimizers.find_dense_tables(model)
    for name, table in tables.items():
        what = f"{name} ({' x '.join(f'{size:,}' for size in table.shape)})"
        logger.warning("%s is moved as a whole in each step; optimizer='rowwise' moves its batch's rows", what)
    ranks.broadcast_model(model)
    epochs = settings.choose_epochs(steps)
    updates = -(-steps // settings.accumulate) * epochs
    rates = compute_learning_rates(settings.schedule, lr=settings.learning_rate, steps=updates, warmup=settings.warmup)
    if settings.schedule == "one-cycle" and 0 < updates < FEW_UPDATES:
        is_in_order = getattr(train, "shuffle", None) is False
        remedy = (
            "pipeline.loader(train, shuffle=True), which chooses batch_size" if is_in_order else "smaller batch_size"
        )
        text = "'one-cycle' has few updates, %d (the last rate is %.1g): %s, or more epochs"
        logger.warning(text, updates, rates[-1], remedy)
    history.settings = {"max_epochs": epochs, "updates": updates, "lr": settings.learning_rate}
    size = getattr(train, "batch_size", None)
    history.settings |= {"batch_size": size} if isinstance(size, int) else {}
    if isinstance(settings.max_epochs, str) and ranks.is_main:
        logger.info("max_epochs='auto': %s", format_settings(history.settings))
    update = build_update(settings, loss, rates, device, train, ranks)
    learner, batches = capture_update(settings, update, train, device)
    if stopping is not None:
        best = BestWeights(model, stopping, higher_is_better=history.higher_is_better)
    return learner, TrainState(model, update, batches, history, steps, epochs, rates, device, best, ranks)


def build_update(
    settings: TrainerSettings, loss: Loss, rates: Tensor, device: torch.device, train: Any, ranks: RankGroup
) -> Update:
    """Build the update of a run: optimiser, loss scale, average and all."""
    lr, schema, by_rows = torch.zeros((), device=device), get_schema(train), settings.optimizer == "rowwise"
    if settings.label_smoothing:
        quantiles = get_quantiles(settings.model)
        smoothed = losses.smooth_labels(losses.choose_loss(settings.loss, schema, quantiles), settings.label_smoothing)
        loss = losses.get_loss(smoothed, quantiles, schema)
    if isinstance(members := getattr(settings.model, "members", None), int):
        loss = losses.average_members(loss, members)
    highest, decay, groups_by_name = settings.learning_rate, settings.weight_decay, settings.param_groups
    compute_l2 = getattr(settings.model, "compute_l2", None)
    l2 = compute_l2(_count_rows(train, ranks)) if callable(compute_l2) else {}
    groups = optimizers.make_parameter_groups(
        settings.model, lr, highest=highest, weight_decay=decay, groups=groups_by_name, tables=by_rows, l2=l2
    )
    optimizer = optimizers.make_optimizer(settings.optimizer, groups, lr)
    weights = None
    if settings.class_weight is not None:
        weights = losses.compute_class_weights(settings.class_weight, train, schema, ranks).to(device)
    objective = make_objective(make_forward(settings.precision, settings.model, device), loss, weights)
    return Update(
        torch.compile(objective, dynamic=False) if settings.compile else objective,
        optimizer,
        rates=rates.to(device),
        max_grad_norm=None if settings.max_grad_norm is None else float(settings.max_grad_norm),
        accumulate=settings.accumulate,
        unit=float(getattr(train, "batch_size", None) or 1),
        scale=LossScale(optimizer, device) if settings.precision == "fp16-mixed" else None,
        average=None if settings.ema_decay is None else EMA(settings.model, settings.ema_decay),
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
    settings: TrainerSettings, update: Update, train: Any, device: torch.device
) -> tuple[Update | CapturedUpdate, Any]:
    """Return the update and its batches, captured as one CUDA graph if possible."""
    blocks = settings.activation_checkpointing
    reason = explain_no_capture(
        settings.cuda_graph, train, device, settings.accumulate, activation_checkpointing=blocks
    )
    if reason is not None:
        slower = device.type == "cuda" and settings.cuda_graph is not False  # which nobody has asked for
        logger.log(logging.WARNING if slower else logging.INFO, "the step runs eagerly: %s", reason)
        return update, train
    batches = CursorBatches(train)
    return CapturedUpdate(update, batches), batches
