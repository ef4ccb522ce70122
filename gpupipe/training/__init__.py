"""The last room: in batches and a model, out a trained model and the history of how it went."""

from __future__ import annotations

from gpupipe.training.callbacks import Callback
from gpupipe.training.checkpoints import Checkpoints
from gpupipe.training.finetune import LoadReport, freeze, load_weights, unfreeze
from gpupipe.training.history import History
from gpupipe.training.loggers import CSVLogger, JSONLinesLogger, TensorBoardLogger
from gpupipe.training.metrics import Metric
from gpupipe.training.per_target import PerTarget
from gpupipe.training.ranking import PairwiseRanking
from gpupipe.training.run import Run
from gpupipe.training.schedules import Plateau, scaled_rate
from gpupipe.training.stopping import EarlyStopping
from gpupipe.training.trainer import Trainer
from gpupipe.training.tuning import BatchSizes, tune_batch_size

__all__ = [
    "BatchSizes",
    "CSVLogger",
    "Callback",
    "Checkpoints",
    "EarlyStopping",
    "History",
    "JSONLinesLogger",
    "LoadReport",
    "Metric",
    "PairwiseRanking",
    "PerTarget",
    "Plateau",
    "Run",
    "TensorBoardLogger",
    "Trainer",
    "freeze",
    "load_weights",
    "scaled_rate",
    "tune_batch_size",
    "unfreeze",
]
