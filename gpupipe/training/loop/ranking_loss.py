"""Ranking loss: pairwise logistic loss (RankNet)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpupipe.errors import ColumnNotFound, SchemaMismatch
from gpupipe.training.loop.batches import full_precision, get_weight, matching_target

__all__ = ["PairwiseRanking"]

TINY = torch.finfo(torch.float32).tiny


class PairwiseRanking:
    """Mean of log(1 + exp(-(s_i - s_j))) over the pairs of a batch's rows where row i should rank before row j.

    RankNet (Burges et al. 2005, equation 3): i before j where its target is larger. A pair counts the product of its
    rows' weights, so rows of weight 0 count nothing; a batch without such pairs has the loss 0.

    Args:
        group: a kept column (`gp.Features(keep=...)`), within whose values rows are ordered, such as a query; None for
            all rows of a batch. Pairs are those of a batch: rows of a group in different batches are paired only
            when the shuffle brings them together.

    Memory:
        Some 16 bytes per pair of rows of a batch on the device: 0.3 GB at 4096 rows, four times that at 8192.

    Example:
        >>> from gpupipe.tensors.batch import Batch
        >>> batch = Batch(torch.zeros(3, 0), torch.zeros(3, 0), target=torch.tensor([2.0, 1.0, 1.0]))
        >>> PairwiseRanking()(torch.tensor([9.0, 0.0, 0.0]), batch) < 1e-3
        tensor(True)
    """

    def __init__(self, group: str | None = None) -> None:
        self.group = group

    def __call__(self, output: Tensor, batch: Any) -> Tensor:
        """Compute the mean over the pairs, a scalar.

        Raises:
            ColumnNotFound: the batch has no such kept column.
            SchemaMismatch: more than one output a row.
        """
        output = full_precision(output)
        target = matching_target(output, batch, "loss PairwiseRanking")
        if output.ndim != 1:
            raise SchemaMismatch(
                "loss PairwiseRanking",
                "more than one output a row",
                got=tuple(output.shape),
                expected="B values",
                remedy="one target",
            )
        pairs = (target[:, None] > target).to(output.dtype)
        if self.group is not None:
            kept = getattr(batch, "keep", {})
            if self.group not in kept:
                raise ColumnNotFound.among("PairwiseRanking(group=)", self.group, kept)
            pairs = pairs * (kept[self.group][:, None] == kept[self.group])
        weight = get_weight(batch)
        if weight is not None:
            pairs = pairs * weight[:, None] * weight
        losses = F.softplus(output - output[:, None])  # -(s_i - s_j), i along the rows
        return (pairs * losses).sum() / pairs.sum().clamp_min(TINY)
