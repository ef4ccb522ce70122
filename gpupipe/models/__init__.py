"""The tabular networks: in a `Batch`, out B values or B x K logits."""

from __future__ import annotations

from gpupipe.models.mlp import MLP

__all__ = ["MLP"]
