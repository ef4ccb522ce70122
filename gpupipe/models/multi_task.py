"""Multi-task network: several targets from shared layers, each with layers of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gpupipe.models.mlp import make_relu_layers
from gpupipe.models.numeric_embeddings import Numbers
from gpupipe.models.tabular import Tabular, make_generator, select_arguments
from gpupipe.tensors.batch import Batch


class MultiTask(Tabular):
    """Multi-task network: an `MLP`'s layers for all targets, then a head for each (Caruana 1997).

    The heads are computed together, one batched product a layer however many there are. What each output means is
    the loss' business: `gp.Trainer(loss=gp.training.PerTarget(...))` takes one loss a target.

    Args:
        numeric: F, how many numeric features a batch has.
        cardinalities: C numbers of ids, missing and unknown included (at least 2 each).
        outputs: T, one a target; T = 1 gives B values, else B x T.
        hidden: the shared layers' widths, first to last.
        head: the widths of each head's own layers; empty for one linear layer a head.
        dropout: fraction of the shared hidden values zeroed in training.
        embedding_dim: D, or "auto".
        numbers: how numbers are embedded: `Periodic` or `PiecewiseLinear`; None leaves them unchanged.
        seed: rules the weights.
        lists: for each feature that is a list of ids, by name, their number, missing and unknown included.
        bag: how the embedded ids of a list become one vector: their `"mean"`, `"sum"` or `"max"`; zeros for an empty
            list.

    Raises:
        BadConfig: no input at all, or a size that makes no sense.

    Memory:
        As `MLP`, and the heads' layers T times.

    Example:
        >>> model = MultiTask(numeric=3, outputs=2, hidden=(16,), head=(8,), seed=7)
        >>> model(Batch(torch.zeros(4, 3), torch.zeros(4, 0, dtype=torch.int32))).shape
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
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        config = select_arguments(locals())
        generator = make_generator(self, seed)
        super().__init__(config, generator)
        layers, width = make_relu_layers(self.num_inputs, self._config["hidden"], dropout, generator)
        self.layers = nn.Sequential(*layers)
        widths = [width, *self._config["head"], 1]
        self.heads = nn.ModuleList(
            _Heads(outputs, before, after, generator) for before, after in itertools.pairwise(widths)
        )

    def forward(self, batch: Batch) -> Tensor:
        """Compute B values or logits with one output, else B x T.

        Raises:
            SchemaMismatch: the batch has another number of columns than the model was made for, or other lists.
        """
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
