"""Batches of a block, in order or shuffled: one gather of whole rows each."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gpupipe.errors import BadConfig
from gpupipe.schema import Schema
from gpupipe.tensors.batch import Batch
from gpupipe.tensors.block import Block
from gpupipe.tensors.permutation import Permutation

__all__ = ["Loader"]


class Loader:
    """An iterable of `Batch`es over a block that lies on one device.

    Args:
        block: the table.
        batch_size: rows per batch.
        shuffle: `"rows"` (or True) for another permutation of all rows each epoch, False for the order of the table.
        seed: of the permutation; the order depends on it, the epoch and the number of rows alone.
        drop_last: leave out a last batch that is not full.
        reuse_buffers: each batch may overwrite the one before, or be a view of the block that must not be written to.
            Without it every batch is new memory.

    Raises:
        BadConfig: an unknown `shuffle`, or a batch size below 1.

    Memory: 8 bytes per row for a shuffled epoch's order, on the block's device; one batch.

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
    ) -> None:
        if batch_size < 1:
            problem = "batch_size is too small"
            raise BadConfig("loader", problem, got=batch_size, expected="1 or more", remedy="batch_size=4096")
        if shuffle not in (False, True, "rows"):
            expected = "'rows', True or False"
            raise BadConfig("loader", "unknown shuffle", got=shuffle, expected=expected, remedy="shuffle='rows'")
        self.block = block
        self.batch_size = batch_size
        self.shuffle = bool(shuffle)
        self.seed = seed
        self.drop_last = drop_last
        self.reuse_buffers = reuse_buffers
        self._epoch = 0

    def __len__(self) -> int:
        """Batches per epoch."""
        rows = len(self.block)
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

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

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is, from 0; each iteration goes on to the next by itself."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._shuffled(epoch) if self.shuffle else self._in_order()

    def _spans(self) -> Iterator[tuple[int, int]]:
        rows = len(self.block)
        for number in range(len(self)):
            start = number * self.batch_size
            yield start, min(start + self.batch_size, rows)

    def _shuffled(self, epoch: int) -> Iterator[Batch]:
        words, keep = self.block.words, self.block.keep
        order = Permutation(len(self.block), seed=self.seed, epoch=epoch).order(self.device)
        most = min(self.batch_size, len(self.block))
        buffer = words.new_empty((most, words.shape[1])) if self.reuse_buffers else None
        for start, stop in self._spans():
            rows = order[start:stop]
            if buffer is None:
                taken = words.index_select(0, rows)
            else:
                taken = torch.index_select(words, 0, rows, out=buffer[: stop - start])
            yield self._batch(taken, {name: values.index_select(0, rows) for name, values in keep.items()})

    def _in_order(self) -> Iterator[Batch]:
        words, keep = self.block.words, self.block.keep
        for start, stop in self._spans():
            kept = {name: values[start:stop] for name, values in keep.items()}
            if self.reuse_buffers:
                yield self._batch(words[start:stop], kept)
            else:
                yield self._batch(words[start:stop].clone(), {name: values.clone() for name, values in kept.items()})

    def _batch(self, words: Tensor, keep: dict[str, Tensor]) -> Batch:
        batch = self.block.batch_of(words)
        batch.keep = keep
        return batch
