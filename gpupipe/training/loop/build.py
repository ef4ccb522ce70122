"""Build of a run: checks a trainer's settings and makes the update on the device."""

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
from gpupipe.support.text import as_list
from gpupipe.support.validation import (
    check_bool,
    check_choice,
    check_integer,
    check_number,
    check_seed,
    is_number,
    is_one_of,
    is_path,
    is_sequence,
    refuse_argument,
    refuse_choice,
)
from gpupipe.training.callbacks.callback import Agreement, Callback, Callbacks, GpuStats, Profiling, ProgressBar
from gpupipe.training.callbacks.history import BestWeights, EarlyStopping, History
from gpupipe.training.checkpointing.checkpoint_callback import CheckpointCallback
from gpupipe.training.checkpointing.checkpoints import Checkpoints
from gpupipe.training.loop.cuda_graph import CapturedUpdate, CursorBatches, explain_no_capture
from gpupipe.training.loop.device import PRECISIONS, check_device, make_forward
from gpupipe.training.loop.losses import (
    LOSSES,
    ClassWeight,
    Loss,
    check_class_weight,
    check_loss_task,
    check_units,
    choose_loss,
    compute_class_weights,
    compute_mean_loss,
    smooth_labels,
    weight_by_class,
)
from gpupipe.training.loop.metrics import InUnits, Metric, check_task, choose_metrics
from gpupipe.training.loop.rank_group import RankGroup
from gpupipe.training.loop.train_state import TrainState
from gpupipe.training.loop.train_step import Update
from gpupipe.training.optim.optimizers import (
    EMA,
    Groups,
    LossScale,
    MakeOptimizer,
    check_optimizer,
    find_dense_tables,
    make_optimizer,
    make_parameter_groups,
    use_sparse_gradients,
)
from gpupipe.training.optim.schedules import Schedule, compute_learning_rates

LEARNING_RATE = 3e-3
"""Of a model that has none of its own."""


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
        given = self.checkpoints
        self.saves = Checkpoints(given) if isinstance(given, str | PathLike) else given

    @property
    def learning_rate(self) -> float:
        """The highest learning rate of a run."""
        if self.lr is not None:
            return self.lr
        own = getattr(self.model, "learning_rate", None)
        return float(own) if isinstance(own, int | float) else LEARNING_RATE


@contextmanager
def checkpoint_activations(model: nn.Module, blocks: bool | Sequence[str]) -> Iterator[None]:
    """Recompute the activations of some of the model's blocks inside (Chen et al., arXiv:1604.06174).

    What a block draws (dropout) is drawn the same again.

    Args:
        model: whose blocks.
        blocks: patterns of modules' names, or True for the members of all `nn.ModuleList`s.

    Raises:
        BadConfig: no module that fits.

    Memory: of each block its inputs instead of all its values, for about a third more time.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> with checkpoint_activations(model, ["0"]):
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> model[0].weight.grad is not None
        True
    """
    names = dict(model.named_modules())
    if blocks is True:
        lists = [module for module in names.values() if isinstance(module, nn.ModuleList)]
        chosen: list[Any] = [member for members in lists for member in members]
    else:
        patterns = as_list(blocks or [])
        chosen = [m for name, m in names.items() if name and any(fnmatchcase(name, p) for p in patterns)]
    if not chosen:
        raise BadConfig(
            "Trainer(activation_checkpointing=)",
            "the model has no such blocks",
            got=blocks,
            expected="members of an nn.ModuleList" if blocks is True else f"patterns of {[n for n in names if n]}",
            remedy="activation_checkpointing=False, or activation_checkpointing=['layers.*']",
        )
    for module in chosen:
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    try:
        yield
    finally:
        for module in chosen:
            del module.forward  # the class's own comes to light again


logger = logging.getLogger(__name__)

FEW_UPDATES = 20
"""With fewer a schedule cannot rise and fall."""


def build_update(
    trainer: TrainerSettings,
    loss: Loss,
    rates: Tensor,
    device: torch.device,
    train: Any,
    ranks: RankGroup,
) -> Update:
    """Build the update of a run: optimiser, loss scale, average and all.

    Raises:
        BadConfig: settings that do not go together, or nothing to train.
    """
    lr = torch.zeros((), device=device)
    if trainer.label_smoothing:
        loss = smooth_labels(choose_loss(trainer.loss, get_schema(train)), trainer.label_smoothing)
    groups = make_parameter_groups(
        trainer.model,
        lr,
        highest=trainer.learning_rate,
        weight_decay=trainer.weight_decay,
        groups=trainer.param_groups,
        tables=trainer.optimizer == "rowwise",
    )
    optimizer = make_optimizer(trainer.optimizer, groups, lr)
    weights = None
    if trainer.class_weight is not None:
        weights = compute_class_weights(trainer.class_weight, train, get_schema(train), ranks).to(device)
    objective = make_objective(make_forward(trainer.precision, trainer.model, device), loss, weights)
    return Update(
        torch.compile(objective, dynamic=False) if trainer.compile else objective,
        optimizer,
        rates=rates.to(device),
        max_grad_norm=trainer.max_grad_norm,
        accumulate=trainer.accumulate,
        unit=float(getattr(train, "batch_size", None) or 1),
        scale=LossScale(optimizer, device) if trainer.precision == "fp16-mixed" else None,
        average=None if trainer.ema_decay is None else EMA(trainer.model, trainer.ema_decay),
        ranks=ranks,
    )


def warn_large_tables(trainer: TrainerSettings) -> None:
    """Warn of large embeddings that each step updates as a whole."""
    for name, table in find_dense_tables(trainer.model) if trainer.optimizer != "rowwise" else ():
        shape = " x ".join(f"{size:,}" for size in table.shape)
        logger.warning(
            "%s (%s) is moved as a whole in each step; optimizer='rowwise' moves its batch's rows", name, shape
        )


def start_run(
    trainer: TrainerSettings,
    loss: Loss,
    train: Any,
    history: History,
    steps: int,
    device: torch.device,
    ranks: RankGroup,
) -> tuple[Update | CapturedUpdate, TrainState]:
    """Move the model to the device, and make the update and the initial state of the run.

    Args:
        trainer: of the run.
        loss: what is to be made small.
        train: the loader.
        history: an empty one.
        steps: batches in an epoch.
        device: where it runs.
        ranks: the ranks that train.

    Raises:
        BadConfig: settings that do not go together, or nothing to train.
    """
    model, best = trainer.model.to(device), None
    ranks.broadcast_model(model)
    updates = -(-steps // trainer.accumulate) * trainer.max_epochs
    rates = compute_learning_rates(trainer.schedule, lr=trainer.learning_rate, steps=updates, warmup=trainer.warmup)
    if trainer.schedule == "one-cycle" and 0 < updates < FEW_UPDATES:
        logger.warning(
            "'one-cycle' has few updates, %d (the last rate is %.1g): smaller batch_size or more epochs",
            updates,
            rates[-1],
        )
    update = build_update(trainer, loss, rates, device, train, ranks)
    learner, batches = capture_update(trainer, update, train, device)
    if trainer.early_stopping is not None:
        best = BestWeights(model, trainer.early_stopping, higher_is_better=history.higher_is_better)
    return learner, TrainState(model, update, batches, history, steps, trainer.max_epochs, rates, device, best, ranks)


def capture_update(
    trainer: TrainerSettings, update: Update, train: Any, device: torch.device
) -> tuple[Update | CapturedUpdate, Any]:
    """Return the update and its batches, captured as one CUDA graph if possible."""
    reason = explain_no_capture(
        trainer.cuda_graph,
        train,
        device,
        trainer.accumulate,
        activation_checkpointing=bool(trainer.activation_checkpointing),
    )
    if reason is not None:
        slower = device.type == "cuda" and trainer.cuda_graph is not False  # which nobody has asked for
        logger.log(logging.WARNING if slower else logging.INFO, "the step runs eagerly: %s", reason)
        return update, train
    batches = CursorBatches(train)
    return CapturedUpdate(update, batches), batches


def make_objective(
    forward: Callable[[Any], Any], loss: Loss, weights: Tensor | None = None
) -> Callable[[Any], tuple[Tensor, Tensor | int]]:
    """Make the function to differentiate, compiled if asked: a batch's mean loss and its weight."""

    def objective(batch: Any) -> tuple[Tensor, Tensor | int]:
        if weights is not None:
            batch = weight_by_class(batch, weights)
        return compute_mean_loss(loss(forward(batch), batch), batch)

    return objective


@contextmanager
def prepare_model(trainer: TrainerSettings) -> Iterator[None]:
    """Set the model's switches as the settings ask, and restore them afterwards."""
    with ExitStack() as stack:
        if trainer.optimizer == "rowwise":
            stack.enter_context(use_sparse_gradients(trainer.model))
        if trainer.activation_checkpointing:
            stack.enter_context(checkpoint_activations(trainer.model, trainer.activation_checkpointing))
        yield


def get_schema(loader: object) -> Schema | None:
    """Return the schema of a gpupipe loader, or None."""
    schema = getattr(loader, "schema", None)
    return schema if isinstance(schema, Schema) else None


def choose_loss_and_metrics(trainer: TrainerSettings, loader: object) -> tuple[Loss, list[Metric]]:
    """Choose the loss to minimise and the metrics to report."""
    schema = get_schema(loader)
    if schema is not None:
        _check_takes_batches(trainer.model)
    loss = choose_loss(trainer.loss, schema)
    metrics, units = choose_metrics(trainer.metrics, loss), getattr(loader, "target_units", None)
    check_units(loss, units)
    if schema is not None:
        check_loss_task(loss, schema)
    if schema is not None and trainer.metrics != "auto":  # those that go with a loss are defined where it is
        check_task(metrics, schema)
    if units is not None:
        metrics = [InUnits(metric, units) for metric in metrics]
    return LOSSES[loss] if isinstance(loss, str) else loss, metrics


def _check_takes_batches(model: nn.Module) -> None:
    """Refuse a model whose first layer is torch's own, which takes a tensor, for a gpupipe loader.

    Raises:
        BadConfig: it is one.
    """
    first: nn.Module = model
    while isinstance(first, nn.Sequential) and len(first):
        first = first[0]
    if type(first).__module__.startswith("torch.nn.modules"):
        raise BadConfig(
            "Trainer(model=)",
            "its first layer takes a tensor, and the loader gives Batches",
            got=type(first),
            expected="a module whose forward takes a gpupipe.Batch",
            remedy="a module of yours: def forward(self, batch): return self.net(batch.numeric).squeeze(1)",
        )


def make_history(trainer: TrainerSettings, metrics: Sequence[Metric], *, validated: bool) -> History:
    """Make an empty history with the monitored metric.

    Raises:
        BadConfig: a figure to monitor that there will not be.
    """
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
    own: list[Callback] = [] if trainer.profile is None else [Profiling(trainer.profile)]
    own += [GpuStats()] if trainer.gpu_stats else []
    saving: list[Callback] = []
    if trainer.saves is not None:
        saving = [CheckpointCallback(trainer.saves, resumed=resumed)]
    all_in_order = [ProgressBar(trainer.progress), *own, *trainer.callbacks, Agreement(), *saving]
    return Callbacks(all_in_order, first=ranks.is_main)


def check(trainer: TrainerSettings) -> None:
    """Refuse invalid settings before anything is read.

    Raises:
        BadConfig: a value that makes no sense; the closest choice is offered.
    """
    _check_objects(trainer)
    check_integer(
        trainer, "[1, inf)", max_epochs=trainer.max_epochs, accumulate=trainer.accumulate, log_every=trainer.log_every
    )
    check_number(trainer, "(0, inf)", None, lr=trainer.lr, max_grad_norm=trainer.max_grad_norm)
    check_number(trainer, "(0, inf)", timeout=trainer.timeout)
    check_number(trainer, "[0, inf)", weight_decay=trainer.weight_decay)
    check_number(trainer, "(0, 1)", None, ema_decay=trainer.ema_decay)
    check_number(trainer, "[0, 1)", None, warmup=trainer.warmup)
    check_number(trainer, "[0, 1)", label_smoothing=trainer.label_smoothing)
    check_seed(trainer, seed=trainer.seed)
    check_bool(trainer, compile=trainer.compile, deterministic=trainer.deterministic, gpu_stats=trainer.gpu_stats)
    check_choice(trainer, ("auto", True, False), cuda_graph=trainer.cuda_graph, progress=trainer.progress)
    check_choice(trainer, PRECISIONS, precision=trainer.precision)
    if isinstance(trainer.class_weight, str):
        check_class_weight(trainer.class_weight)
    check_device(trainer.device)
    check_optimizer(trainer.optimizer)
    compute_learning_rates(trainer.schedule, lr=trainer.learning_rate, steps=1, warmup=trainer.warmup)
    choose_metrics(trainer.metrics, trainer.loss)
    if not is_one_of(trainer.loss, ["auto"]):
        choose_loss(trainer.loss, None)


def _check_objects(trainer: TrainerSettings) -> None:
    groups: Any = trainer.param_groups
    blocks: Any = trainer.activation_checkpointing
    weights, callbacks, places = trainer.class_weight, trainer.callbacks, str | PathLike
    of_names = isinstance(groups, Mapping) and all(
        isinstance(pattern, str) and isinstance(options, Mapping) and all(map(is_number, options.values()))
        for pattern, options in groups.items()
    )
    of_classes = isinstance(weights, Mapping) and all(map(is_number, weights.values()))
    patterns = is_sequence(blocks) and all(isinstance(pattern, str) for pattern in blocks)
    called = is_sequence(callbacks) and all(isinstance(one, Callback) for one in callbacks)
    stopping, saving = trainer.early_stopping, trainer.checkpoints
    for name, good, expected, remedy in (
        ("model", isinstance(trainer.model, nn.Module), "a torch.nn.Module", "gp.models.MLP.from_schema(schema)"),
        (
            "param_groups",
            groups is None or of_names,
            "mappings by patterns of names",
            "param_groups={'embedding.*': {'lr': 1e-4}}",
        ),
        (
            "activation_checkpointing",
            isinstance(blocks, bool | str) or patterns,
            "True, or patterns",
            "activation_checkpointing=['layers.*']",
        ),
        (
            "class_weight",
            isinstance(weights, str | None) or of_classes,
            "'balanced', a mapping from classes to weights, or None",
            "class_weight='balanced'",
        ),
        (
            "early_stopping",
            isinstance(stopping, EarlyStopping | None),
            "an EarlyStopping, or None",
            "early_stopping=gp.EarlyStopping(patience=3)",
        ),
        (
            "callbacks",
            called,
            "a list of objects of classes made from gpupipe.training.Callback",
            "callbacks=[gp.training.CSVLogger('runs/flights/log.csv')]",
        ),
        (
            "checkpoints",
            isinstance(saving, Checkpoints | places | None),
            "a folder, a Checkpoints, or None",
            "checkpoints='runs/flights'",
        ),
        (
            "profile",
            trainer.profile is None or is_path(trainer.profile),
            "a folder, or None",
            "profile='runs/flights/trace'",
        ),
    ):
        if not good:
            raise refuse_argument(trainer, name, getattr(trainer, name), expected, remedy)


def check_batches(where: str, **given: object) -> None:
    """Refuse tables where batches are needed.

    Raises:
        BadConfig: a table, an array, a path, a pipeline or nothing at all; `where` is named, and the argument.
    """
    for name, loader in given.items():
        rows = hasattr(loader, "columns") or hasattr(loader, "shape") or isinstance(loader, str | bytes | PathLike)
        if rows or isinstance(loader, Mapping) or not isinstance(loader, Iterable):
            data = name if rows and name != "loader" else "data"
            raise BadConfig(
                f"{where}({name}=)",
                "not batches",
                got=type(loader),
                expected="a loader: gp.Pipeline's, a DataLoader, or a list of batches",
                remedy=f"{where.replace('Trainer', 'trainer')}(pipeline.loader({data}))",
            )
