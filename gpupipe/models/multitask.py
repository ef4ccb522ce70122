"""Multi-task network: shared layers, then a head for each target."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gpupipe.models.embeddings import Numbers
from gpupipe.models.tabular import Tabular, make_relu_layers
from gpupipe.tensors.batch import Batch


class MultiTask(Tabular):
    """Multi-task network: an `MLP`'s layers for all targets, then a head for each (Caruana 1997).

    What each output means is the loss' business: `gp.Trainer(loss=gp.training.PerTarget(...))` takes one loss a
    target. The other arguments, and the errors, are those of `MLP`.

    Args:
        outputs: T, one a target; T = 1 gives B values, else B x T.
        hidden: the shared layers' widths, first to last.
        head: the widths of each head's own layers; empty for one linear layer a head.

    Memory: as `MLP`, and the heads' layers T times.

    Example:
        >>> MultiTask(numeric=3, outputs=2, head=(8,), seed=7)(Batch(torch.zeros(4, 3), torch.zeros(4, 0).int())).shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        outputs: int = 1,
        *,
        hidden: int | Sequence[int] = (256, 128),
        head: int | Sequence[int] = (64,),
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
        widths = itertools.pairwise([width, *self._config["head"], 1])
        self.heads = nn.ModuleList(_Heads(self.outputs, before, after, generator) for before, after in widths)

    def forward(self, batch: Batch) -> Tensor:
        shared = self.layers(self.inputs(batch))
        values: Tensor = self.heads[0](shared.expand(self.outputs, -1, -1))
        for layer in list(self.heads)[1:]:
            values = layer(values.relu())
        return self.shaped(values.squeeze(2).T)


class _Heads(nn.Module):
    """Linear layers of T heads at once: T x B x I to T x B x O."""

    def __init__(self, heads: int, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = math.sqrt(6 / inputs)  # He et al. 2015, as in the shared layers
        start = torch.empty(heads, inputs, outputs, device="cpu").uniform_(-bound, bound, generator=generator)
        self.weight = nn.Parameter(start)
        self.bias = nn.Parameter(torch.zeros(heads, 1, outputs, device="cpu"))

    def forward(self, values: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, values, self.weight)
