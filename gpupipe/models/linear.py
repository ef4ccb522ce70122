"""Linear and logistic regression: a weight per number, a weight per id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from gpupipe.models.tabular import Tabular, make_generator, select_arguments
from gpupipe.tensors.batch import Batch


class Linear(Tabular):
    """Linear or logistic regression; an id's weight is that of its one-hot column, which is never built.

    All weights start at zero, so the seed of the order of rows is the only chance in it. Missing and unknown have a
    weight each, as every id.

    Args:
        numeric: F, how many numeric features a batch has.
        cardinalities: C numbers of ids, missing and unknown included (at least 2 each).
        outputs: 1 for a regression and a binary target (B values come out), else K classes or targets (B x K).
        seed: is there as in the other models; nothing is drawn.
        lists: for each feature that is a list of ids, by name, their number, missing and unknown included.
        bag: what a list adds: the `"mean"`, `"sum"` or `"max"` of its ids' weights.

    Raises:
        BadConfig: no input at all, or a size that makes no sense.

    Memory:
        (F + sum(cardinalities) + 1) x K float32; training with AdamW four times that.

    Example:
        >>> model = Linear(numeric=3, cardinalities=[12, 5])
        >>> model(Batch(torch.zeros(4, 3), torch.ones(4, 2, dtype=torch.int32)))
        tensor([0., 0., 0., 0.], grad_fn=<SqueezeBackward1>)
    """

    learning_rate: ClassVar[float] = 3e-2  # few weights, and from zero: they have far to go

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        outputs: int = 1,
        *,
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        config = select_arguments(locals())
        super().__init__(config | {"embedding_dim": outputs}, make_generator(self, seed))
        del self._config["embedding_dim"]
        self.weight = nn.Parameter(torch.zeros(numeric, outputs, device="cpu"))
        self.bias = nn.Parameter(torch.zeros(outputs, device="cpu"))
        if self.embedding is not None:
            nn.init.zeros_(self.embedding.table)

    def forward(self, batch: Batch) -> Tensor:
        """Compute B logits or values with one output, else B x K logits.

        Raises:
            SchemaMismatch: the batch has another number of columns than the model was made for, or other lists.
        """
        self.check(batch)
        output = torch.addmm(self.bias, batch.numeric, self.weight)
        if self.embedding is not None:
            output = output + self.embedding.of(batch).sum(1)
        return self.shaped(output)
