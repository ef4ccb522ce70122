"""Linear model and multilayer perceptron."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gpupipe.models.embeddings import Numbers
from gpupipe.models.tabular import Tabular, make_linear, make_relu_layers
from gpupipe.tensors.batch import Batch


class Linear(Tabular):
    """Linear or logistic regression; an id's weight is that of its one-hot column, which is never built.

    All weights start at zero, so the order of rows is the only chance in it. Missing and unknown have a weight each. Of
    a list the `bag` of its ids' weights is added. The other arguments, and the errors, are those of `MLP`.
    Memory: (F + sum(cardinalities) + 1) x K float32; training with AdamW four times that.

    Example:
        >>> Linear(numeric=3, cardinalities=[12, 5])(Batch(torch.zeros(4, 3), torch.ones(4, 2, dtype=torch.int32)))
        tensor([0., 0., 0., 0.], grad_fn=<SqueezeBackward1>)
    """

    learning_rate: ClassVar[float] = 3e-2  # few weights, and from zero: they have far to go

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        outputs: int = 1,
        *,
        quantiles: Sequence[float] | None = None,
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        self.start(locals(), dim="outputs")
        self.weight = nn.Parameter(torch.zeros(numeric, self.outputs, device="cpu"))
        self.bias = nn.Parameter(torch.zeros(self.outputs, device="cpu"))
        if self.embedding is not None:
            nn.init.zeros_(self.embedding.table)

    def forward(self, batch: Batch) -> Tensor:
        self.check(batch)
        output = torch.addmm(self.bias, batch.numeric, self.weight)
        if self.embedding is not None:
            output = output + self.embedding.of(batch).sum(1)
        return self.shaped(output)


class MLP(Tabular):
    """Multi-layer perceptron: ReLU layers over the numbers and one embedding table for all ids.

    The table's width is that of fast.ai's rule, its rows of missing and unknown ids start at zero, and an id without a
    row is read as unknown. Weights start as in He et al. 2015 (arXiv:1502.01852), biases at zero.

    Args:
        numeric: F, how many numeric features a batch has.
        cardinalities: C numbers of ids, missing and unknown included (at least 2 each).
        outputs: 1 (B values come out) for a regression and a binary target, else K classes or targets (B x K).
        hidden: the hidden layers' widths, first to last; one number for one layer, empty for a linear model.
        dropout: fraction of hidden values zeroed in training.
        embedding_dim: D, or "auto".
        numbers: how numbers are embedded: `Periodic` or `PiecewiseLinear`; None leaves them unchanged.
        quantiles: of one target that is a number, ascending, such as (0.05, 0.5, 0.95): one output each, learned with
            the pinball loss; in evaluation they never cross.
        seed: of the generator that draws the weights.
        lists: for each feature that is a list of ids, by name, their number, missing and unknown included.
        bag: how the embedded ids of a list become one vector: by `"mean"`, `"sum"` or `"max"`; zeros for an empty one.

    Raises `BadConfig`: no input at all, or a size that makes no sense.
    Memory: sum(cardinalities) x D float32, and the layers; training with AdamW four times that (all dense).

    Example:
        >>> model = MLP(numeric=3, cardinalities=[12, 5], hidden=(16,), seed=7)
        >>> model(Batch(torch.zeros(4, 3), torch.ones(4, 2, dtype=torch.int32))).shape
        torch.Size([4])
    """

    updates: ClassVar[int] = 1800  # with the batches of the loader some six passes over 150,000 rows

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        outputs: int = 1,
        *,
        hidden: int | Sequence[int] = (256, 128),
        dropout: float = 0.0,
        embedding_dim: int | Literal["auto"] = "auto",
        numbers: Numbers | Mapping[str, Any] | None = None,
        quantiles: Sequence[float] | None = None,
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        generator = self.start(locals())
        self.layers, width = make_relu_layers(self.num_inputs, self._config["hidden"], dropout, generator)
        self.layers.append(make_linear(width, self.outputs, generator))

    def forward(self, batch: Batch) -> Tensor:
        return self.shaped(self.layers(self.inputs(batch)))
