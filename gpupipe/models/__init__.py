"""Networks for tables: each takes a `Batch` and returns B values, or B x K logits."""

from __future__ import annotations

from gpupipe.models.networks import MLP, DCNv2, FTTransformer, Linear, MultiTask, Periodic, PiecewiseLinear, ResNet

__all__ = ["MLP", "DCNv2", "FTTransformer", "Linear", "MultiTask", "Periodic", "PiecewiseLinear", "ResNet"]
