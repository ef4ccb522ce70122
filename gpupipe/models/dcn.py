"""Deep & Cross Network, version 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gpupipe.models.embeddings import Numbers
from gpupipe.models.tabular import Tabular, make_linear, make_relu_layers
from gpupipe.support import validation
from gpupipe.support.validation import check_integer
from gpupipe.tensors.batch import Batch


class DCNv2(Tabular):
    """Deep and cross network: layers that multiply features with each other, and the layers of an `MLP`.

    Version 2, of Wang et al. 2021 (arXiv:2008.13535). "parallel" puts both over the inputs and predicts from both
    outputs; "stacked" puts the second over the first. The other arguments, and the errors, are those of `MLP`.

    Args:
        crosses: how many cross layers; the n-th knows products of n + 1 features.
        rank: of the cross layers' matrices; None for full matrices.
        hidden: the widths of the other layers; empty for cross layers alone.

    Memory: as `MLP`, and for inputs of width d: `crosses` x d^2 float32, or 2 x `crosses` x d x `rank`.

    Example:
        >>> DCNv2(numeric=3, hidden=(16,), seed=7)(Batch(torch.zeros(4, 3), torch.ones(4, 0).int())).shape
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
        quantiles: Sequence[float] | None = None,
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        check_integer(self, "[0, inf)", crosses=crosses)
        check_integer(self, "[1, inf)", None, rank=rank)
        validation.check_choice(self, ("parallel", "stacked"), structure=structure)
        generator = self.start(locals())
        self.parallel = structure == "parallel"
        self.crosses = nn.ModuleList(Cross(self.num_inputs, rank, generator) for _ in range(crosses))
        self.layers, width = make_relu_layers(self.num_inputs, self._config["hidden"], dropout, generator)
        self.last = make_linear(width + self.num_inputs if self.parallel else width, self.outputs, generator, "glorot")

    def forward(self, batch: Batch) -> Tensor:
        first = crossed = self.inputs(batch)
        for cross in self.crosses:
            crossed = cross(first, crossed)
        deep = self.layers(first if self.parallel else crossed)
        return self.shaped(self.last(torch.cat([crossed, deep], 1) if self.parallel else deep))


class Cross(nn.Module):
    """Cross layer x0 * (W x + b) + x, elementwise: equation 1 of the paper, W = U V^T with a rank (equation 2)."""

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
