"""Batch: the input of a network's `forward`, some rows as tensors on one device."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from gpupipe.tensors.ragged import Ragged

__all__ = ["Batch"]


@dataclass(slots=True)
class Batch:
    """Batch of B rows of features with targets, weights, kept columns and lists, all on one device.

    Args:
        numeric: B x F float32, in the order of `schema.numeric`.
        codes: B x C int32 ids, in the order of `schema.categorical`; 0 missing, 1 unknown.
        target: B values, float32 (regression, binary 0/1) or int32 class indices; B x T float32 for several targets;
            None where there is none.
        weight: B float32 sample weights; None where there are none.
        keep: columns carried with the features: timestamps as int64 microseconds, strings as int64 codes.
        lists: the lists among the features, by name; ids int32, numbers float32. A missing list is an empty one.

    Example:
        >>> import torch
        >>> len(Batch(torch.zeros(5, 3), torch.zeros(5, 0, dtype=torch.int32)))
        5
    """

    numeric: Tensor
    codes: Tensor
    target: Tensor | None = None
    weight: Tensor | None = None
    keep: dict[str, Tensor] = field(default_factory=dict)
    lists: dict[str, Ragged] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.numeric.shape[0]
