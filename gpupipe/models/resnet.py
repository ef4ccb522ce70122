"""ResNet for tables (Gorishniy et al. 2021, arXiv:2106.11959, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpupipe.models.numeric_embeddings import Numbers
from gpupipe.models.tabular import Tabular, make_generator, make_linear, select_arguments
from gpupipe.support.validation import check_integer, check_number
from gpupipe.tensors.batch import Batch


class ResNet(Tabular):
    """ResNet for tables: a linear layer, residual blocks, and a prediction from their sum.

    block(x) = x + linear(dropout(relu(linear(norm(x))))), prediction(x) = linear(relu(norm(x))), norm being
    batch normalisation. The widths are those of the authors' package. Rows count in a batch's mean and variance
    whatever their weight, so batches of other sizes train slightly other networks.

    Args:
        numeric: F, how many numeric features a batch has.
        cardinalities: C numbers of ids, missing and unknown included (at least 2 each).
        outputs: 1 for a regression and a binary target (B values come out), else K classes or targets (B x K).
        blocks: how many.
        width: of what the blocks add to.
        hidden_factor: a block's inner layer is so many times as wide.
        dropout: fraction of a block's inner values zeroed in training.
        embedding_dim: D, or "auto".
        numbers: how numbers are embedded: `Periodic` or `PiecewiseLinear`; None leaves them unchanged.
        seed: rules the weights.
        lists: for each feature that is a list of ids, by name, their number, missing and unknown included.
        bag: how the embedded ids of a list become one vector: their `"mean"`, `"sum"` or `"max"`; zeros for an empty
            list.

    Raises:
        BadConfig: no input at all, or a size that makes no sense.

    Memory:
        As `MLP`; 2 x `width`^2 x `hidden_factor` float32 a block.

    Example:
        >>> model = ResNet(numeric=3, cardinalities=[12, 5], blocks=1, width=8, seed=7)
        >>> model(Batch(torch.zeros(4, 3), torch.ones(4, 2, dtype=torch.int32))).shape
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
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        config = select_arguments(locals())
        check_integer(self, "[0, inf)", blocks=blocks)
        check_integer(self, "[1, inf)", width=width)
        check_number(self, f"[{1 / width}, 1024]", hidden_factor=hidden_factor)  # one value in the inner layer at least
        generator = make_generator(self, seed)
        inner = int(width * hidden_factor)
        super().__init__(config, generator)
        self.first = make_linear(self.num_inputs, width, generator, "glorot")
        self.blocks = nn.ModuleList(_Block(width, inner, dropout, generator) for _ in range(blocks))
        self.norm = BatchNorm(width)
        self.last = make_linear(width, outputs, generator, "glorot")

    def forward(self, batch: Batch) -> Tensor:
        """Compute B logits or values with one output, else B x K logits.

        Raises:
            SchemaMismatch: the batch has another number of columns than the model was made for, or other lists.
        """
        values = self.first(self.inputs(batch))
        for block in self.blocks:
            values = values + block(values)
        return self.shaped(self.last(self.norm(values).relu()))


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization (Ioffe & Szegedy 2015, arXiv:1502.03167) that allows for a short last batch.

    A batch of one row has no variance: it is normalised by the running figures, as in evaluation, and leaves them.

    Example:
        >>> BatchNorm(2)(torch.zeros(1, 2)).shape
        torch.Size([1, 2])
    """

    def forward(self, values: Tensor) -> Tensor:
        if self.training and len(values) < 2:
            return F.batch_norm(values, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(values)


class _Block(nn.Module):
    def __init__(self, width: int, inner: int, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = BatchNorm(width)
        self.enter = make_linear(width, inner, generator)
        self.leave = make_linear(inner, width, generator, "glorot")
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        change: Tensor = self.leave(self.dropout(self.enter(self.norm(values)).relu()))
        return change
