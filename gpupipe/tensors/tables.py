"""Tables of batches: on their device already, or on another, then copied in slabs while the model computes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gpupipe.errors import PartitionFailed
from gpupipe.tensors.batch import Batch, Ragged
from gpupipe.tensors.feature_table import FeatureTable, RowSource, fill, gather, group_steps, split_batches
from gpupipe.tensors.order import Order, Rows, Sharding, Step

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


Item = TypeVar("Item")
_LOOK, _PATIENCE = 1.0, 60.0  # seconds between checks of the other side, and for the thread to end
_log = logging.getLogger("gpupipe")


class _End:
    """End of a thread's items: what stopped it, if anything did."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


def prefetch(items: Generator[Item], depth: int = 1) -> Generator[Item]:
    """Yield the items of a generator, computed in a thread.

    Whoever may stop before the end closes it (`contextlib.closing`): the generator is then closed too, in its thread.

    Args:
        items: runs in the thread from its first item to its end.
        depth: items that wait; one more is in progress, and one is in use.

    Raises:
        Exception: what the generator raised, at the place of its item.
        PartitionFailed: the thread ended without a word.

    Example:
        >>> list(prefetch(number * 2 for number in range(3)))
        [0, 2, 4]
    """
    queue: Queue[Item | _End] = Queue(depth)
    stop = Event()
    thread = Thread(target=_work, args=(items, queue, stop), name="gpupipe-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            found = _get(queue, thread)
            if isinstance(found, _End):
                if found.error is not None:
                    raise found.error
                return
            yield found
            del found  # its memory is the thread's again
    finally:
        stop.set()
        _drain(queue)  # so that a thread that waits for space sees that it should stop
        thread.join(_PATIENCE)
        if thread.is_alive():
            _log.warning("a prefetch thread is still at work %d s after the stop request", _PATIENCE)


def _work(items: Generator[Item], queue: Queue[Item | _End], stop: Event) -> None:
    error = None
    try:
        with closing(items):
            for item in items:
                _enqueue(queue, item, stop)
                del item
                if stop.is_set():
                    break
    except Exception as caught:  # noqa: BLE001 - raised again where the items are used
        error = caught
        if stop.is_set():
            _log.warning("a prefetch thread failed after the stop request: %r", error)
    _enqueue(queue, _End(error), stop)


def _enqueue(queue: Queue[Item | _End], item: Item | _End, stop: Event) -> None:
    while not stop.is_set():
        try:
            queue.put(item, timeout=_LOOK)
        except Full:
            continue
        return


def _get(queue: Queue[Item | _End], thread: Thread) -> Item | _End:
    while True:
        try:
            return queue.get(timeout=_LOOK)
        except Empty:
            if not thread.is_alive() and queue.empty():
                raise PartitionFailed(
                    "loader",
                    "the prefetch thread has ended without a word",
                    expected="batches to the end of the epoch",
                    remedy="the loader again; see what the process wrote before",
                ) from None


def _drain(queue: Queue[Item | _End]) -> None:
    while True:
        try:
            queue.get_nowait()
        except Empty:
            return


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
