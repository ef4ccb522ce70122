"""Networks for tables: each takes a `Batch` and returns B values, or B x K logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpupipe.models.auto import auto
from gpupipe.models.dcn import DCNv2
from gpupipe.models.embeddings import Periodic, PiecewiseLinear
from gpupipe.models.ft_transformer import FTTransformer
from gpupipe.models.mlp import MLP, Linear
from gpupipe.models.multitask import MultiTask
from gpupipe.models.resnet import ResNet
from gpupipe.models.tabm import TabM
from gpupipe.models.xgb import XGB
from gpupipe.support.attributes import answer_names

__all__ = ["MLP", "XGB", "DCNv2", "FTTransformer", "Linear", "MultiTask", "Periodic", "PiecewiseLinear", "ResNet"]
__all__ += ["TabM", "auto"]

if not TYPE_CHECKING:  # for which any name would be one
    __getattr__ = answer_names(__name__, __all__)
