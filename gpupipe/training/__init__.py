"""Training: from batches and a model to a trained model and its history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpupipe.support.attributes import answer_names
from gpupipe.training.batch_size_finder import BatchSizes, tune_batch_size
from gpupipe.training.callbacks.callback import Callback, CSVLogger, JSONLinesLogger, TensorBoardLogger
from gpupipe.training.callbacks.history import EarlyStopping, History
from gpupipe.training.checkpointing.checkpoints import Checkpoints
from gpupipe.training.loop.losses import PairwiseRanking, PerTarget
from gpupipe.training.loop.metrics import Metric
from gpupipe.training.loop.report import Report
from gpupipe.training.loop.train_state import TrainState
from gpupipe.training.loop.trainer import Trainer
from gpupipe.training.optim.finetune import LoadReport, freeze, load_weights, unfreeze
from gpupipe.training.optim.optimizers import Plateau, scaled_rate

__all__ = ["BatchSizes", "CSVLogger", "Callback", "Checkpoints", "EarlyStopping", "History", "JSONLinesLogger"]
__all__ += ["LoadReport", "Metric", "PairwiseRanking", "PerTarget", "Plateau", "Report", "TensorBoardLogger"]
__all__ += ["TrainState", "Trainer", "freeze", "load_weights", "scaled_rate", "tune_batch_size", "unfreeze"]

if not TYPE_CHECKING:  # for which any name would be one
    __getattr__ = answer_names(__name__, __all__)
