"""Host table: batches of a table on another device than theirs, in slabs filled and copied by a thread.

On a GPU a slab is filled in pinned memory and copied on a stream of its own, while the batches of the one before are
used; events say when a slab has arrived and when it may be overwritten. A source whose rows are on the GPU lets the
stream wait for them. On the CPU there is nothing to copy: the slab
that the thread fills is the one the batches are views of.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor

from gpupipe.tensors.batch import Batch
from gpupipe.tensors.feature_table import FeatureTable
from gpupipe.tensors.gather import RowSource, fill, group_steps, split_batches
from gpupipe.tensors.prefetch import prefetch
from gpupipe.tensors.sharding import Sharding, Step

__all__ = ["iterate_slabs"]

SLAB_BYTES = 8 << 20  # at least: smaller copies do not fill the way to the GPU
_WAITING = 1  # slabs that are ready
_RING = _WAITING + 2  # and one that is filled, and one whose batches are used


@dataclass(slots=True)
class _Slab:
    """Slab of the rows of some steps.

    Args:
        rows: where the batches are wanted.
        steps: whose they are.
        arrived: after the copy; None where there was none.
        used: is recorded when all batches have been given and the next is asked for.
    """

    rows: FeatureTable
    steps: list[Step]
    arrived: torch.cuda.Event | None = None
    used: torch.cuda.Event | None = None


def iterate_slabs(
    like: FeatureTable,
    open_source: Callable[[], Generator[RowSource]],
    ranks: Sharding,
    first: int,
    device: torch.device,
    *,
    reuse: bool,
    unweighted: bool,
) -> Generator[Batch]:
    """Yield the batches from number `first` on.

    Args:
        like: a table with the same columns, on the device of the source's rows.
        open_source: gives one source, whose positions are asked for in ascending order, and is closed after the last.
        ranks: deals the rows.
        first: a step.
        device: where the batches are wanted.
        reuse: whether three slabs serve in turn; else each is new memory.
        unweighted: see `split_batches`.

    Memory: two pinned slabs on the host where the device is a GPU; three slabs on the device, each of `SLAB_BYTES` or a
        batch.
    """
    many = max(1, -(-SLAB_BYTES // max(ranks.largest * like.row_bytes, 1)))
    maker = _Slabs(like, ranks.largest * min(many, len(ranks)), device, reuse=reuse)

    def slabs() -> Generator[_Slab]:
        with closing(open_source()) as opened:
            source = next(opened)
            for steps in group_steps(ranks, first, many):
                yield maker.make(steps, source)

    with closing(prefetch(slabs(), _WAITING)) as ready:
        for slab in ready:
            if slab.arrived is not None:
                _receive(slab)
            yield from split_batches(slab.rows, slab.steps, pads=ranks.pads, unweighted=unweighted)
            if slab.used is not None:
                slab.used.record()


class _Slabs:
    """Maker of slabs; its GPU code has not yet run on one.

    Args:
        like: a table with the same columns, on its device.
        num_rows: of the largest slab.
        device: where slabs are wanted.
        reuse: whether they serve in turn.
    """

    def __init__(self, like: FeatureTable, num_rows: int, device: torch.device, *, reuse: bool) -> None:
        self._like, self._device, self._made = like, device, 0
        self._on_gpu, self._pinned = device.type == "cuda", list[FeatureTable]()
        self._ring = [like.empty_like(num_rows, device).words for _ in range(_RING)] if reuse else []
        self._used: list[torch.cuda.Event | None] = [None] * _RING
        if not self._on_gpu:
            return
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # What the new memory was used for before may still be at work, on the stream it was asked for on.
        self._used = [torch.cuda.current_stream(device).record_event() for _ in self._ring]
        for words in self._ring:
            words.record_stream(self._stream)
        if like.device.type == "cpu":
            self._pinned = [like.empty_like(num_rows, pinned=True) for _ in range(2)]
            self._sent = [torch.cuda.Event() for _ in self._pinned]  # type: ignore[no-untyped-call]

    def make(self, steps: list[Step], source: RowSource) -> _Slab:
        """Return the slab of these steps, whose copy has begun."""
        turn = self._made % _RING
        words, used = (self._ring[turn], self._used[turn]) if self._ring else (None, None)
        num_rows = sum(step.size for step in steps)
        if self._on_gpu:
            slab = self._on_its_way(num_rows, words, used, steps, source)
        else:
            slab = _Slab(self._like.empty_like(num_rows, self._device, words=words), steps)
            fill(slab.rows, steps, source)
        self._made += 1
        return slab

    def _on_its_way(
        self, num_rows: int, words: Tensor | None, used: torch.cuda.Event | None, steps: list[Step], source: RowSource
    ) -> _Slab:
        staged = None
        if self._pinned:
            turn = self._made % len(self._pinned)
            self._sent[turn].synchronize()  # the thread alone waits, and for its own memory
            staged = self._pinned[turn].first(num_rows)
            fill(staged, steps, source)
        with torch.cuda.stream(self._stream):
            if used is not None:
                self._stream.wait_event(used)
            slab = self._like.empty_like(num_rows, self._device, words=words)
            if staged is None:
                fill(slab, steps, source)
            else:
                slab.words.copy_(staged.words, non_blocking=True)
                for name, values in slab.keep.items():
                    values.copy_(staged.keep[name], non_blocking=True)
                slab.copy_lists(staged)
            arrived = self._stream.record_event()
        if staged is not None:
            self._sent[turn] = arrived
        return _Slab(slab, steps, arrived, used)


def _receive(slab: _Slab) -> None:
    """Make the current stream wait for the slab, and the allocator know that this stream uses it."""
    stream = torch.cuda.current_stream(slab.rows.device)
    assert slab.arrived is not None
    stream.wait_event(slab.arrived)
    for tensor in slab.rows.tensors:
        tensor.record_stream(stream)
