"""Tabular networks: in a `Batch`, out B values or B x K logits."""

from __future__ import annotations

from gpupipe.models.dcn import DCNv2
from gpupipe.models.ft_transformer import FTTransformer
from gpupipe.models.linear import Linear
from gpupipe.models.mlp import MLP
from gpupipe.models.multi_task import MultiTask
from gpupipe.models.numeric_embeddings import Periodic, PiecewiseLinear
from gpupipe.models.resnet import ResNet

__all__ = ["MLP", "DCNv2", "FTTransformer", "Linear", "MultiTask", "Periodic", "PiecewiseLinear", "ResNet"]
