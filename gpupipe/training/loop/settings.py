"""TrainerSettings: the arguments of a `Trainer`, their checks, and what follows from them without a run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from gpupipe.support import validation
from gpupipe.support.calls import answer_calls
from gpupipe.support.text import arguments, format_count
from gpupipe.support.validation import is_number, is_one_of, is_sequence, refuse_argument, to_python
from gpupipe.training.callbacks.callback import Callback
from gpupipe.training.callbacks.history import EarlyStopping, History
from gpupipe.training.checkpointing.checkpoints import Checkpoints
from gpupipe.training.loop import losses
from gpupipe.training.loop.device import PRECISIONS, check_device
from gpupipe.training.loop.loader_fit import FitsLoaders
from gpupipe.training.loop.losses import ClassWeight, Loss
from gpupipe.training.loop.metrics import Metric, choose_metrics
from gpupipe.training.loop.quantiles import get_quantiles
from gpupipe.training.optim import optimizers
from gpupipe.training.optim.optimizers import Groups, MakeOptimizer, Schedule, compute_learning_rates

LEARNING_RATE = 3e-3  # of a model that has none of its own
UPDATES = 1200  # of max_epochs="auto" for a model that says no number of its own
FEWEST_EPOCHS, MOST_EPOCHS = 2, 40  # of max_epochs="auto"
FEW_UPDATES = 20  # with fewer a schedule cannot rise and fall

logger = logging.getLogger(__name__)


@answer_calls
@dataclass(eq=False, repr=False)
class TrainerSettings:
    """Arguments of a `Trainer`, which documents them, checked before anything is read."""

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
        check_settings(self)
        vars(self).update({name: to_python(value) for name, value in vars(self).items()})
        checkpoints = self.checkpoints
        self.saves = Checkpoints(checkpoints) if isinstance(checkpoints, str | PathLike) else checkpoints
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
        rate = getattr(self.model, "learning_rate", None)
        return float(rate) if isinstance(rate, int | float) else LEARNING_RATE

    def choose_epochs(self, batches: int) -> int:
        """Return `max_epochs`, or with "auto" how many passes over a loader of so many batches make enough updates.

        Enough are the model's own `updates`, or 1,200: with fewer a network is not done on a table of some thousand
        rows, with more it gains nothing. From 2 to 40 passes.

        Example:
            >>> from gpupipe import Trainer
            >>> trainer = Trainer(nn.Linear(1, 1))
            >>> [trainer.choose_epochs(batches) for batches in (5, 64, 244, 100_000)]
            [40, 19, 5, 2]
        """
        if not isinstance(self.max_epochs, str):
            return self.max_epochs
        number = getattr(self.model, "updates", None)
        updates = number if isinstance(number, int) else UPDATES
        return min(max(round(updates * self.accumulate / max(batches, 1)), FEWEST_EPOCHS), MOST_EPOCHS)

    def choose_stopping(self, *, validated: bool) -> EarlyStopping | None:
        """Return `early_stopping`, or with "auto" one that keeps the best weights and never stops, if `validated`."""
        if isinstance(self.early_stopping, str):
            return EarlyStopping(patience=None) if validated else None
        return self.early_stopping


def check_settings(settings: TrainerSettings) -> None:
    """Refuse invalid settings before anything is read."""
    _check_objects(settings)
    validation.check_integer(settings, "[1, inf)", accumulate=settings.accumulate, log_every=settings.log_every)
    if not is_one_of(settings.max_epochs, ["auto"]):
        validation.check_integer(settings, "[1, inf)", max_epochs=settings.max_epochs)
    validation.check_number(settings, "(0, inf)", None, lr=settings.lr, max_grad_norm=settings.max_grad_norm)
    validation.check_number(settings, "(0, inf)", timeout=settings.timeout)
    validation.check_number(settings, "[0, inf)", weight_decay=settings.weight_decay)
    validation.check_number(settings, "(0, 1)", None, ema_decay=settings.ema_decay)
    validation.check_number(settings, "[0, 1)", None, warmup=settings.warmup)
    validation.check_number(settings, "[0, 1)", label_smoothing=settings.label_smoothing)
    validation.check_seed(settings, seed=settings.seed)
    flags = {"compile": settings.compile, "deterministic": settings.deterministic, "gpu_stats": settings.gpu_stats}
    validation.check_bool(settings, **flags)
    validation.check_choice(settings, ("auto", True, False), cuda_graph=settings.cuda_graph, progress=settings.progress)
    validation.check_choice(settings, PRECISIONS, precision=settings.precision)
    check_device(settings.device)
    optimizers.check_optimizer(settings.optimizer)
    compute_learning_rates(settings.schedule, lr=settings.learning_rate, steps=1, warmup=settings.warmup)
    quantiles = get_quantiles(settings.model)
    choose_metrics(settings.metrics, settings.loss, None, quantiles)
    if not is_one_of(settings.loss, ["auto"]):
        losses.choose_loss(settings.loss, None, quantiles)


def _check_objects(settings: TrainerSettings) -> None:
    check, folder = validation.check_instance, settings.profile
    model, remedy = cast(Any, settings.model), "gp.models.MLP.from_schema(schema)"
    if hasattr(model, "fit") and hasattr(model, "predict") and not isinstance(model, type):
        model, remedy = type(model), f"gp.compare(train, valid, [{type(model).__name__}()]), or gp.models.XGB for trees"
    check(settings, nn.Module, "a torch.nn.Module", remedy=remedy, model=model)
    remedy = "early_stopping=gp.EarlyStopping(patience=3)"
    if not is_one_of(settings.early_stopping, ["auto"]):
        check(settings, EarlyStopping, "an EarlyStopping", None, remedy=remedy, early_stopping=settings.early_stopping)
    kinds, remedy = (Checkpoints, str, PathLike), "checkpoints='runs/flights'"
    check(settings, kinds, "a folder, a Checkpoints", None, remedy=remedy, checkpoints=settings.checkpoints)
    groups: Any = settings.param_groups
    blocks: Any = settings.activation_checkpointing
    weights, callbacks = settings.class_weight, settings.callbacks
    if isinstance(weights, str) and weights != "balanced":
        also = "a mapping from classes to weights, or None"
        raise validation.refuse_choice("Trainer", "class_weight", weights, ["balanced"], also)
    by_name = isinstance(groups, Mapping) and all(
        isinstance(pattern, str) and isinstance(options, Mapping) and all(map(is_number, options.values()))
        for pattern, options in groups.items()
    )
    by_class = isinstance(weights, Mapping) and all(map(is_number, weights.values()))
    patterns = is_sequence(blocks) and all(isinstance(pattern, str) for pattern in blocks)
    hooks = is_sequence(callbacks) and all(isinstance(callback, Callback) for callback in callbacks)
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
            raise refuse_argument(settings, name, getattr(settings, name), expected, f"{name}={example}")


def warn_of_shared_rows(where: str, train: object, valid: object) -> None:
    """Warn where rows that judge a model may be among those that it learns from: they are of one table, and not apart.

    So they are where `valid` is a part of `train`, and where copies of one row are in both.
    """
    rows, valid_rows = (getattr(loader, "row_set", None) for loader in (train, valid))
    if rows is not None and rows.may_share(valid_rows):
        logger.warning(
            "%s: rows of valid may be among those of train, so that its figures say little of new rows; train, valid "
            "= data.split(0.8), or data.split(0.8, by=...) by a column that copies of a row share, if it has copies",
            where,
        )


def check_batches(where: str, **loaders: object) -> None:
    """Refuse a table, an array, a path, a pipeline or nothing at all where batches are needed."""
    for name, loader in loaders.items():
        rows = hasattr(loader, "columns") or hasattr(loader, "shape") or isinstance(loader, str | bytes | PathLike)
        call = where.replace("Trainer", "trainer")
        if rows or isinstance(loader, Mapping) or not isinstance(loader, Iterable):
            remedy = f"{call}(pipeline.loader({name if rows and name != 'loader' else 'data'}))"
            expected = "a loader: gp.Pipeline's, a DataLoader, or a list of batches"
            raise refuse_argument(where, name, type(loader), expected, remedy, problem="not batches")
        if isinstance(loader, list | tuple) and not loader and name != "train":  # whose rows are counted
            remedy = f"{call}(pipeline.loader({name}))"
            raise refuse_argument(where, name, loader, "one batch at least", remedy, problem="no batches")
