"""Multi-layer perceptron: embedded ids and numbers, then fully connected layers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gpupipe.models.numeric_embeddings import Numbers
from gpupipe.models.tabular import Tabular, make_generator, make_linear, select_arguments
from gpupipe.tensors.batch import Batch


class MLP(Tabular):
    """Multi-layer perceptron: ReLU layers over the numbers and one embedding table for all ids.

    How ids are embedded says `SharedEmbedding`. Weights start as in He et al. 2015 (arXiv:1502.01852), biases at zero,
    drawn on the CPU from the model's own generator: the same on every device, and torch's global one is left as it was.

    Args:
        numeric: F, how many numeric features a batch has.
        cardinalities: C numbers of ids, missing and unknown included (at least 2 each).
        outputs: 1 for a regression and a binary target (B values come out), else K classes or targets (B x K).
        hidden: the hidden layers' widths, first to last; one number for one layer, empty for a linear model.
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
        sum(cardinalities) x D float32 for the embedding, and the layers' weights; training with AdamW four times that
        (a gradient and two moments, all dense).

    Example:
        >>> model = MLP(numeric=3, cardinalities=[12, 5], hidden=(16,), seed=7)
        >>> model(Batch(torch.zeros(4, 3), torch.ones(4, 2, dtype=torch.int32))).shape
        torch.Size([4])
    """

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
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        config = select_arguments(locals())
        generator = make_generator(self, seed)
        super().__init__(config, generator)
        layers, width = make_relu_layers(self.num_inputs, self._config["hidden"], dropout, generator)
        self.layers = nn.Sequential(*layers, make_linear(width, outputs, generator))

    def forward(self, batch: Batch) -> Tensor:
        """Compute B logits or values with one output, else B x K logits.

        Raises:
            SchemaMismatch: the batch has another number of columns than the model was made for, or other lists.
        """
        return self.shaped(self.layers(self.inputs(batch)))


def make_relu_layers(
    inputs: int, hidden: Sequence[int], dropout: float, generator: torch.Generator
) -> tuple[list[nn.Module], int]:
    """Return Linear, ReLU and dropout for each hidden width, and the width at their end."""
    layers: list[nn.Module] = []
    for width, following in itertools.pairwise([inputs, *hidden]):
        layers += [make_linear(width, following, generator), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return layers, [inputs, *hidden][-1]
