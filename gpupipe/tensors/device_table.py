"""Device table: batches of a table that is on their device already."""

from __future__ import annotations

from collections.abc import Generator

import torch.nn.functional as F
from torch import Tensor

from gpupipe.tensors.batch import Batch
from gpupipe.tensors.feature_table import FeatureTable
from gpupipe.tensors.gather import fill, gather, group_steps, split_batches
from gpupipe.tensors.order import Order, Rows
from gpupipe.tensors.ragged import Ragged
from gpupipe.tensors.sharding import Sharding

__all__ = ["Resident", "iterate_device_table"]

# Positions whose rows are looked up at a time: between copies of rows each call would find the cache emptied.
_HOST_POSITIONS, _DEVICE_POSITIONS = 1 << 20, 1 << 24
_TOGETHER = 256 << 10  # bytes of small batches that one copy makes


class Resident:
    """Row source over a whole table.

    Memory: 8 bytes per position that is looked up ahead, and a few temporary arrays of that length; 8 more on the host
        for each column of lists.
    """

    def __init__(self, table: FeatureTable, order: Order) -> None:
        self._table, self._order = table, order
        self._ahead = _HOST_POSITIONS if table.device.type == "cpu" else _DEVICE_POSITIONS
        self._start = self._stop = 0
        self._rows: Tensor | slice = slice(0)
        self._ends: dict[str, Tensor] = {}

    def copy_rows(self, start: int, stop: int, out: FeatureTable, at: int) -> None:
        """Copy the rows at these positions into `out` from its row `at` on."""
        if start < self._start or stop > self._stop:
            self._start, self._stop = start, max(stop, min(start + self._ahead, len(self._table)))
            self._rows = self._order.at(self._start, self._stop, self._table.device)
            self._ends = {name: _compute_offsets(lists, self._rows) for name, lists in self._table.lists.items()}
        if isinstance(self._rows, slice):
            rows: Tensor | slice = slice(start, stop)
        else:
            rows = self._rows[start - self._start : stop - self._start]
        first, last = start - self._start, stop - self._start
        num_values = {name: int(ends[last] - ends[first]) for name, ends in self._ends.items()}
        gather(self._table, rows, out, at, num_values)


def _compute_offsets(lists: Ragged, rows: Rows) -> Tensor:
    """Return the offsets of the rows' lists on the host: the device is asked once, for many batches."""
    return F.pad(lists.lengths[rows].cumsum(0), (1, 0)).cpu()


def iterate_device_table(
    table: FeatureTable, order: Order, ranks: Sharding, first: int, *, reuse: bool, unweighted: bool
) -> Generator[Batch]:
    """Yield the batches from number `first` on, each copied when it is needed, small ones several at once."""
    source, many, words = Resident(table, order), 1, None
    if reuse:
        words = table.empty_like(ranks.largest).words
    else:
        many = max(1, _TOGETHER // max(ranks.largest * table.row_bytes, 1))
    for steps in group_steps(ranks, first, many):
        slab = table.empty_like(sum(step.size for step in steps), words=words)
        fill(slab, steps, source)
        yield from split_batches(slab, steps, pads=ranks.pads, unweighted=unweighted)
