"""Settings of a trainer: the arguments of `Trainer`, for the modules below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from pathlib import Path

import torch
from torch import nn

from gpupipe.training.callbacks.callback import Callback
from gpupipe.training.callbacks.early_stopping import EarlyStopping
from gpupipe.training.checkpointing.checkpoints import Checkpoints
from gpupipe.training.loop.class_weights import ClassWeight
from gpupipe.training.loop.losses import Loss
from gpupipe.training.loop.metrics import Metric
from gpupipe.training.optim.optimizers import Groups, MakeOptimizer
from gpupipe.training.optim.schedules import Schedule

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
