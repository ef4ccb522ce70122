"""Batches of a block, in order or shuffled: one gather of whole rows each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from gpupipe.backend.dictionaries import Dictionary
from gpupipe.errors import BadConfig
from gpupipe.schema import Schema
from gpupipe.tensors.batch import Batch
from gpupipe.tensors.block import Block
from gpupipe.tensors.permutation import Permutation
from gpupipe.tensors.ragged import Ragged

__all__ = ["Loader"]


class Loader:
    """An iterable of `Batch`es over a block that lies on one device.

    Whatever is done to a batch in place, the block stays as it is.

    Args:
        block: the table.
        batch_size: rows per batch.
        shuffle: `"rows"` (or True) for another permutation of all rows each epoch, False for the order of the table.
        seed: of the permutation; the order depends on it, the epoch and the number of rows alone.
        drop_last: leave out a last batch that is not full.
        reuse_buffers: each batch overwrites the one before (kept columns do not): right where a batch is used up before
            the next one is asked for. Without it every batch is new memory.
        target_units: brings stored targets, or outputs for them, into the target's own units, for metrics; None where
            they are in those.

    Raises:
        BadConfig: an unknown `shuffle`, or a batch size below 1.

    Memory: 8 bytes per row for a shuffled epoch's order, on the block's device. A batch is a copy of its rows there,
        `block.row_bytes` each; its tensors are views of that copy. Lists are
        copied too, their elements one list after the other.

    Example:
        >>> from gpupipe.schema import Field, Role
        >>> loader = Loader(Block.allocate(Schema([Field("x", "float32", role=Role.FEATURE)]), 10, "cpu"), batch_size=4)
        >>> [len(batch) for batch in loader]
        [4, 4, 2]
    """

    def __init__(
        self,
        block: Block,
        *,
        batch_size: int = 4096,
        shuffle: bool | str = False,
        seed: int = 0,
        drop_last: bool = False,
        reuse_buffers: bool = False,
        target_units: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if batch_size < 1:
            raise BadConfig(
                "loader", "batch_size is too small", got=batch_size, expected="1 or more", remedy="batch_size=4096"
            )
        if shuffle not in (False, True, "rows"):
            raise BadConfig(
                "loader", "unknown shuffle", got=shuffle, expected="'rows', True or False", remedy="shuffle='rows'"
            )
        self.block = block
        self.batch_size = batch_size
        self.shuffle = bool(shuffle)
        self.seed = seed
        self.drop_last = drop_last
        self.reuse_buffers = reuse_buffers
        self.target_units = target_units
        self._epoch = 0

    def __len__(self) -> int:
        """Batches per epoch."""
        return self.num_rows // self.batch_size if self.drop_last else -(-self.num_rows // self.batch_size)

    @property
    def schema(self) -> Schema:
        """The schema of the block."""
        return self.block.schema

    @property
    def num_rows(self) -> int:
        """Rows of the block."""
        return len(self.block)

    @property
    def device(self) -> torch.device:
        """Where the batches lie."""
        return self.block.device

    @property
    def dictionaries(self) -> Mapping[str, Dictionary]:
        """The strings that the codes of kept columns stand for, by column; on the host."""
        return self.block.dictionaries

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is, from 0; each iteration goes on to the next by itself."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._batches(epoch)

    def _batches(self, epoch: int) -> Iterator[Batch]:
        block = self.block
        order = Permutation(self.num_rows, seed=self.seed, epoch=epoch).order(self.device) if self.shuffle else None
        size = min(self.batch_size, self.num_rows)
        chosen = {name: _Lists(lists, order, self.batch_size) for name, lists in block.lists.items()}
        buffer = block.words.new_empty((size, block.words.shape[1])) if self.reuse_buffers else None
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            rows = slice(start, min(start + self.batch_size, self.num_rows))
            index = None if order is None else order[rows]
            out = None if buffer is None else buffer[: rows.stop - start]
            batch = block.batch_of(_taken(block.words, rows, index, out))
            for name, values in block.keep.items():
                batch.keep[name] = _taken(values, rows, index, None)
            for name, lists in chosen.items():
                batch.lists[name] = lists.of(rows, index)
            yield batch


class _Lists:
    """An epoch's lists of one feature.

    Where each batch's elements begin and end is asked of the device once an epoch: a batch waits for no answer.
    """

    def __init__(self, lists: Ragged, order: Tensor | None, batch_size: int) -> None:
        self._lists = lists
        offsets = lists.offsets if order is None else F.pad(lists.lengths[order].cumsum(0), (1, 0))
        cuts = [*range(0, len(lists), batch_size), len(lists)]
        self._at = dict(zip(cuts, offsets[torch.tensor(cuts, device=offsets.device)].tolist(), strict=True))

    def of(self, rows: slice, index: Tensor | None) -> Ragged:
        first, last = self._at[rows.start], self._at[rows.stop]
        if index is not None:
            return self._lists.take(index, last - first)
        return Ragged(self._lists.values[first:last].clone(), self._lists.offsets[rows.start : rows.stop + 1] - first)


def _taken(table: Tensor, rows: slice, index: Tensor | None, out: Tensor | None) -> Tensor:
    """Copy the rows, in the order `index` gives if there is one, into `out` if there is one."""
    if index is not None:
        return torch.index_select(table, 0, index, out=out)
    return table[rows].clone() if out is None else out.copy_(table[rows])
