"""ResNet for tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpupipe.models.embeddings import Numbers
from gpupipe.models.tabular import Tabular, make_linear
from gpupipe.support import validation
from gpupipe.support.validation import check_integer
from gpupipe.tensors.batch import Batch


class ResNet(Tabular):
    """ResNet for tables: a linear layer, residual blocks, and a prediction from their sum.

    block(x) = x + linear(dropout(relu(linear(norm(x))))), prediction(x) = linear(relu(norm(x))), norm being batch
    normalisation (Gorishniy et al. 2021, arXiv:2106.11959, section 3.2), in which rows count whatever their weight. The
    other arguments, and the errors, are those of `MLP`.

    Args:
        width: of the values that each of the `blocks` adds to.
        hidden_factor: a block's inner layer is so many times as wide.
        dropout: fraction of a block's inner values zeroed in training.

    Memory: as `MLP`; 2 x `width`^2 x `hidden_factor` float32 a block.

    Example:
        >>> ResNet(numeric=3, blocks=1, width=8, seed=7)(Batch(torch.zeros(4, 3), torch.ones(4, 0).int())).shape
        torch.Size([4])
    """

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        outputs: int = 1,
        *,
        blocks: int = 2,
        width: int = 192,
        hidden_factor: float = 2.0,
        dropout: float = 0.1,
        embedding_dim: int | Literal["auto"] = "auto",
        numbers: Numbers | Mapping[str, Any] | None = None,
        quantiles: Sequence[float] | None = None,
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        check_integer(self, "[0, inf)", blocks=blocks)
        check_integer(self, "[1, inf)", width=width)
        validation.check_number(self, f"[{1 / width}, 1024]", hidden_factor=hidden_factor)  # one inner value at least
        generator = self.start(locals())
        inner = int(width * hidden_factor)
        self.first = make_linear(self.num_inputs, width, generator, "glorot")
        self.blocks = nn.ModuleList(_Block(width, inner, dropout, generator) for _ in range(blocks))
        self.norm, self.last = BatchNorm(width), make_linear(width, self.outputs, generator, "glorot")

    def forward(self, batch: Batch) -> Tensor:
        values = self.first(self.inputs(batch))
        for block in self.blocks:
            values = values + block(values)
        return self.shaped(self.last(self.norm(values).relu()))


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization (Ioffe & Szegedy 2015, arXiv:1502.03167); one row is normalised as in evaluation."""

    def forward(self, values: Tensor) -> Tensor:
        if self.training and len(values) < 2:
            return F.batch_norm(values, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(values)


class _Block(nn.Module):
    def __init__(self, width: int, inner: int, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = BatchNorm(width)
        self.enter = make_linear(width, inner, generator)
        self.leave, self.dropout = make_linear(inner, width, generator, "glorot"), nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        change: Tensor = self.leave(self.dropout(self.enter(self.norm(values)).relu()))
        return change
