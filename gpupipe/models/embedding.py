"""Embedding of ids: a single table for all categorical columns, and for all lists of ids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpupipe.tensors.batch import Batch, Ragged

BAGS = ("mean", "sum", "max")
RESERVED = 2  # ids 0 (missing) and 1 (unknown), in every column
MAX_AUTO_DIM = 32


class SharedEmbedding(nn.Module):
    """Embedding table of width D for all C columns: a batch needs one lookup whatever C is.

    `dim="auto"` is the width fast.ai's rule gives for the largest cardinality n (fastai.tabular.model.emb_sz_rule),
    1.6 n^0.56, but at most 32 and a multiple of 4. The rows of missing (0) and unknown (1) start at zero, so what was
    never met in training adds nothing. An id the column has no row for is read as unknown, on the device: the host
    checks no values.

    The rows of L columns of lists follow them: of each list the rows of its elements are put together into one.

    Args:
        cardinalities: C numbers of ids, missing and unknown included.
        dim: D, or "auto".
        generator: draws the other rows' start, on the CPU.
        lists: L numbers of ids, of the columns of lists by name.
        bag: how the rows of a list's elements become one: their `"mean"`, `"sum"` or `"max"`; zeros without any.

    Memory:
        sum(cardinalities) x D float32; with AdamW four times that (a dense gradient and two moments).

    Example:
        >>> embedding = SharedEmbedding([12, 5], 8, torch.Generator())
        >>> embedding(torch.tensor([[3, 4], [11, 0], [12, -1]], dtype=torch.int32)).shape
        torch.Size([3, 2, 8])
        >>> embedding = SharedEmbedding([], 8, torch.Generator(), lists={"tags": 12})
        >>> embedding.bag("tags", Ragged(torch.tensor([3, 4, 3]), torch.tensor([0, 2, 2, 3]))).shape
        torch.Size([3, 8])
    """

    cardinalities: Tensor
    starts: Tensor

    def __init__(
        self,
        cardinalities: Sequence[int],
        dim: int | str,
        generator: torch.Generator,
        lists: Mapping[str, int] | None = None,
        bag: str = "mean",
    ) -> None:
        super().__init__()
        lists = lists or {}
        self.mode, self._num_codes = bag, len(cardinalities)
        self._places = {name: place for place, name in enumerate(lists, len(cardinalities))}
        cardinalities = [*cardinalities, *lists.values()]
        self.num_columns = len(cardinalities)
        ends = list(itertools.accumulate(cardinalities))
        starts = [end - n for end, n in zip(ends, cardinalities, strict=True)]
        self.dim = dim if isinstance(dim, int) else _auto_dim(max(cardinalities))
        self.sparse = False  # as nn.Embedding's: whether the table's gradient is of the rows looked up only
        table = torch.empty(ends[-1], self.dim, device="cpu").normal_(std=self.dim**-0.5, generator=generator)
        for start in starts:
            table[start : start + RESERVED] = 0
        self.table = nn.Parameter(table)
        dtype = torch.int32 if ends[-1] < 2**31 else torch.int64
        for name, values in (("cardinalities", cardinalities), ("starts", starts)):
            self.register_buffer(name, torch.tensor(values, dtype=dtype, device="cpu"), persistent=False)

    def of(self, batch: Batch) -> Tensor:
        """Embed the batch's ids and its lists of ids: B x (C + L) x D."""
        codes: Tensor = self(batch.codes)
        if not self._places:
            return codes
        bags = [self.bag(name, batch.lists[name]).unsqueeze(1) for name in self._places]
        return torch.cat([codes, *bags], 1)

    def forward(self, codes: Tensor) -> Tensor:
        """Embed B x C ids to B x C x D."""
        return F.embedding(self._rows(codes, slice(self._num_codes)), self.table, sparse=self.sparse)

    def bag(self, name: str, lists: Ragged) -> Tensor:
        """Embed B lists of ids of that column of lists to B x D."""
        # torch asks for rows and offsets of one type, and knows no sparse gradient of a maximum.
        rows, sparse = self._rows(lists.values, self._places[name]).long(), self.sparse and self.mode != "max"
        return F.embedding_bag(rows, self.table, lists.offsets, mode=self.mode, include_last_offset=True, sparse=sparse)

    def _rows(self, ids: Tensor, columns: slice | int) -> Tensor:
        """Return the table's rows of ids of these columns; unknown for those the column has no row for."""
        known = (ids >= 0) & (ids < self.cardinalities[columns])
        return torch.where(known, ids, 1) + self.starts[columns]


def _auto_dim(cardinality: int) -> int:
    return math.ceil(min(MAX_AUTO_DIM, 1.6 * math.pow(cardinality, 0.56)) / 4) * 4
