"""Deep and cross network, version 2 (Wang et al. 2021, arXiv:2008.13535)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gpupipe.models.mlp import make_relu_layers
from gpupipe.models.numeric_embeddings import Numbers
from gpupipe.models.tabular import Tabular, make_generator, make_linear, select_arguments
from gpupipe.support.validation import check_choice, check_integer
from gpupipe.tensors.batch import Batch


class DCNv2(Tabular):
    """Deep and cross network: layers that multiply features with each other, and the layers of an `MLP`.

    "parallel" puts both over the inputs and predicts from their outputs side by side; "stacked" puts the second over
    the first. Which is better depends on the data, says the paper (section 3).

    Args:
        numeric: F, how many numeric features a batch has.
        cardinalities: C numbers of ids, missing and unknown included (at least 2 each).
        outputs: 1 for a regression and a binary target (B values come out), else K classes or targets (B x K).
        crosses: how many cross layers; the n-th knows products of n + 1 features.
        rank: of the cross layers' matrices; None for full matrices.
        hidden: the widths of the fully connected layers; empty for cross layers alone.
        structure: "parallel" or "stacked".
        dropout: fraction of hidden values zeroed in training.
        embedding_dim: D, or "auto".
        numbers: how numbers are embedded: `Periodic` or `PiecewiseLinear`; None leaves them unchanged.
        seed: rules the weights.
        lists: for each feature that is a list of ids, by name, their number, missing and unknown included.
        bag: how the embedded ids of a list become one vector: their `"mean"`, `"sum"` or `"max"`; zeros for an empty
            list.

    Raises:
        BadConfig: no input at all, or a size that makes no sense.

    Memory:
        As `MLP`, and for inputs of width d: `crosses` x d^2 float32, or 2 x `crosses` x d x `rank`.

    Example:
        >>> model = DCNv2(numeric=3, cardinalities=[12, 5], hidden=(16,), seed=7)
        >>> model(Batch(torch.zeros(4, 3), torch.ones(4, 2, dtype=torch.int32))).shape
        torch.Size([4])
    """

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        outputs: int = 1,
        *,
        crosses: int = 2,
        rank: int | None = None,
        hidden: int | Sequence[int] = (256, 128),
        structure: Literal["parallel", "stacked"] = "parallel",
        dropout: float = 0.0,
        embedding_dim: int | Literal["auto"] = "auto",
        numbers: Numbers | Mapping[str, Any] | None = None,
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        config = select_arguments(locals())
        check_integer(self, "[0, inf)", crosses=crosses)
        check_integer(self, "[1, inf)", None, rank=rank)
        check_choice(self, ("parallel", "stacked"), structure=structure)
        generator = make_generator(self, seed)
        super().__init__(config, generator)
        self.parallel = structure == "parallel"
        self.crosses = nn.ModuleList(Cross(self.num_inputs, rank, generator) for _ in range(crosses))
        layers, width = make_relu_layers(self.num_inputs, self._config["hidden"], dropout, generator)
        self.layers = nn.Sequential(*layers)
        self.last = make_linear(width + self.num_inputs if self.parallel else width, outputs, generator, "glorot")

    def forward(self, batch: Batch) -> Tensor:
        """Compute B logits or values with one output, else B x K logits.

        Raises:
            SchemaMismatch: the batch has another number of columns than the model was made for, or other lists.
        """
        first = self.inputs(batch)
        crossed = first
        for cross in self.crosses:
            crossed = cross(first, crossed)
        if self.parallel:
            return self.shaped(self.last(torch.cat([crossed, self.layers(first)], 1)))
        return self.shaped(self.last(self.layers(crossed)))


class Cross(nn.Module):
    """Cross layer x0 * (W x + b) + x, elementwise: equation 1 of the paper, W = U V^T with a rank (equation 2).

    Args:
        width: d, of x0 and x.
        rank: of W; None for a full matrix.
        generator: draws the start.

    Example:
        >>> cross = Cross(3, None, torch.Generator())
        >>> cross(torch.zeros(2, 3), torch.ones(2, 3))
        tensor([[1., 1., 1.],
                [1., 1., 1.]], grad_fn=<AddcmulBackward0>)
    """

    def __init__(self, width: int, rank: int | None, generator: torch.Generator) -> None:
        super().__init__()
        self.narrow: nn.Linear | None = None
        if rank is not None:
            self.narrow = make_linear(width, rank, generator, "glorot")
            self.narrow.bias = None  # type: ignore[assignment]  # V has none
        self.widen = make_linear(width if rank is None else rank, width, generator, "glorot")

    def forward(self, first: Tensor, values: Tensor) -> Tensor:
        """Compute B x d from two B x d."""
        narrow = values if self.narrow is None else self.narrow(values)
        crossed: Tensor = torch.addcmul(values, first, self.widen(narrow))
        return crossed
