"""Inverse target transform: convert stored values and predictions of a regression to the target's own units."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from gpupipe.backend import Column, select
from gpupipe.errors import SchemaMismatch
from gpupipe.pipeline.targets import TargetSet


class TargetInverse:
    """Inverse of a `target_transform`.

    Args:
        targets: fitted.

    Attributes:
        by_default: whether nobody asked for that transform.
    """

    def __init__(self, targets: TargetSet) -> None:
        self._targets = targets
        self.by_default = targets.auto

    def __call__(self, values: Tensor) -> Tensor:
        """Convert B values, or B x T, to the targets' units; float64 on the same device.

        Raises:
            BadData: a value is beyond float64 there.
            SchemaMismatch: not one value per target.

        Memory: a copy of the values, and the result.
        """
        backend = select("gpu" if values.is_cuda else "cpu")
        wide, names = values if values.ndim == 2 else values[:, None], [item.text for item in self._targets.each]
        if wide.ndim != 2 or wide.shape[1] != len(names):
            raise SchemaMismatch(
                "target_transform",
                "the model's outputs are not one value per target, so they have no units of its own",
                got=tuple(values.shape),
                expected=f"a value a row for each of {names}",
                remedy="Features(target_transform=None)",
            )
        parts = wide.detach().double().unbind(1)
        columns = [Column("float64", backend.xp.from_dlpack(part.contiguous())) for part in parts]
        made: list[Any] = [from_dlpack(item.data) for item in self._targets.inverse(columns, backend)]
        return torch.stack(made, 1).reshape(values.shape)
