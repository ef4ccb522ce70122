"""Networks for tables: each takes a `Batch` and returns B values, or B x K logits."""

from __future__ import annotations

from gpupipe.models.dcn import DCNv2
from gpupipe.models.embeddings import Periodic, PiecewiseLinear
from gpupipe.models.ft_transformer import FTTransformer
from gpupipe.models.mlp import MLP, Linear
from gpupipe.models.multitask import MultiTask
from gpupipe.models.resnet import ResNet
from gpupipe.models.tabm import TabM

__all__ = ["MLP", "DCNv2", "FTTransformer", "Linear", "MultiTask", "Periodic", "PiecewiseLinear", "ResNet", "TabM"]
