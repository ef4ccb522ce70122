"""Tables on another device than their batches, or read in windows: a thread reads and copies while the model computes.

Its GPU code has not yet run on one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import torch

from gpupipe.backend import Backend, Column
from gpupipe.backend.dictionaries import Dictionary
from gpupipe.errors import BadData, GpupipeError
from gpupipe.schema import Schema
from gpupipe.tensors.batch import Batch
from gpupipe.tensors.feature_table import FeatureTable, RowSource, fill, gather, group_steps, split_batches
from gpupipe.tensors.order import InOrder, Ranges, Sharding, Step

Columns: TypeAlias = Mapping[str, Column]
Dictionaries: TypeAlias = dict[str, Dictionary]
Item = TypeVar("Item")
SLAB_BYTES = 8 << 20  # at least: smaller copies do not fill the way to the GPU
_WAITING = 1  # slabs that are ready
_RING = _WAITING + 2  # and one that is filled, and one whose batches are used
_PATIENCE = 60.0  # seconds for the thread to end
_log = logging.getLogger("gpupipe")


def prefetch(items: Generator[Item], depth: int = 1) -> Generator[Item]:
    """Yield the items of a generator, computed in a thread: `depth` wait, one is in progress, and one is in use.

    Whoever may stop before the end closes it (`contextlib.closing`): the generator is then closed too, in its thread.
    An error of the generator is raised at the place of its item.
    """
    thread = ThreadPoolExecutor(1, "gpupipe-prefetch")
    ahead: deque[Future[Item | None]] = deque()
    try:
        while True:
            while len(ahead) < depth + 2:
                ahead.append(thread.submit(next, items, None))
            found = ahead.popleft().result()
            if found is None:
                return
            yield found
            del found  # its memory is the thread's again
    finally:
        for future in ahead:
            future.cancel()
        ahead.clear()
        try:
            closed = thread.submit(items.close)
        except RuntimeError:  # the interpreter ends, and has waited for the thread
            items.close()
        else:
            if not wait([closed], _PATIENCE).done:
                _log.warning("a prefetch thread is still at work %d s after the stop request", _PATIENCE)
            elif error := closed.exception():
                _log.warning("a prefetch thread failed after the stop request: %r", error)
            thread.shutdown(wait=closed.done())


class _Slab(NamedTuple):
    """Slab of the rows of some steps; on a GPU with an event after the copy and one to record after the last use."""

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
    """Yield the batches on `device` from number `first` on, copied there in slabs of new memory, or three in turn.

    `like` has the columns, and is on the device of the one source that `open_source` yields. Memory: three slabs of
    `SLAB_BYTES` or a batch on the device; for a GPU two pinned ones on the host.
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
            if slab.arrived is not None:  # the current stream waits for it, and the allocator hears who uses it
                stream = torch.cuda.current_stream(slab.rows.device)
                stream.wait_event(slab.arrived)
                for tensor in slab.rows.tensors:
                    tensor.record_stream(stream)
            yield from split_batches(slab.rows, slab.steps, pads=ranks.pads, unweighted=unweighted)
            if slab.used is not None:
                slab.used.record()


class _Slabs:
    """Maker of slabs of at most `num_rows` rows."""

    def __init__(self, like: FeatureTable, num_rows: int, device: torch.device, *, reuse: bool) -> None:
        self._like, self._device, self._made = like, device, 0
        self._stream: torch.cuda.Stream | None = None
        self._used: list[torch.cuda.Event | None] = [None] * _RING
        self._pinned = list[FeatureTable]()
        self._ring = [like.empty_like(num_rows, device).words for _ in range(_RING)] if reuse else []
        if device.type != "cuda":
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
        turn, half, num_rows = self._made % _RING, self._made % 2, sum(step.size for step in steps)
        self._made += 1
        words, used = (self._ring[turn], self._used[turn]) if self._ring else (None, None)
        if self._stream is None:
            slab = self._like.empty_like(num_rows, self._device, words=words)
            fill(slab, steps, source)
            return _Slab(slab, steps)
        if self._pinned:
            self._sent[half].synchronize()  # the thread alone waits, and for its own memory
            staged = self._pinned[half].first(num_rows)
            fill(staged, steps, source)
        with torch.cuda.stream(self._stream):
            if used is not None:
                self._stream.wait_event(used)
            slab = self._like.empty_like(num_rows, self._device, words=words)
            if self._pinned:
                slab.copy_rows(staged)
            else:
                fill(slab, steps, source)
            arrived = self._stream.record_event()
        if self._pinned:
            self._sent[half] = arrived
        return _Slab(slab, steps, arrived, used)


class Parts(Protocol):
    """Table in parts, each of which can be read any number of times, with the same rows."""

    schema: Schema
    dtype: str
    backend: Backend
    rows: Sequence[int]  # of each part
    names: Sequence[str]  # of each part, for messages

    def read(self, parts: Sequence[int]) -> Generator[Iterable[Columns]]:
        """Yield the columns of these parts, in order, of each in one or more pieces."""


def open_windows(parts: Parts, order: InOrder, position: int, dictionaries: Dictionaries) -> Generator[RowSource]:
    """Yield one source of the rows of an epoch from `position` on, while its windows are read in a thread.

    The dictionaries of the kept columns grow. Memory: two windows, a part, and what reading it takes.
    """
    with closing(prefetch(_read_windows(parts, order, order.window_of(position), dictionaries))) as windows:
        source = _Windows(order, windows)
        try:
            yield source.copy_rows
        finally:
            source.leave()


def warn_of_rereads(parts: Parts, order: InOrder) -> None:
    """Warn where an epoch reads parts over and over, for a few of their rows each time."""
    starts = list(accumulate(parts.rows, initial=0))
    num_windows = order.window_of(starts[-1] - 1) + 1 if starts[-1] else 0
    needed = [number for window in range(num_windows) for number in _find_needed_parts(starts, order.ranges(window))]
    rows = sum(parts.rows[number] for number in needed)
    if rows > 2 * starts[-1]:
        message = "loader: an epoch reads each row %.1f times, for its parts have up to %s rows: %s"
        _log.warning(message, rows / starts[-1], f"{max(parts.rows):,}", "larger block_rows read less")


class _Window(NamedTuple):
    """Window of rows in memory; on a GPU with an event after it was written, as rows are read on another stream."""

    number: int
    table: FeatureTable
    written: torch.cuda.Event | None


class _Windows:
    """Row source over the windows of an epoch."""

    def __init__(self, order: InOrder, windows: Iterator[_Window]) -> None:
        self._order, self._windows = order, windows
        self._window: _Window | None = None
        self._stream: torch.cuda.Stream | None = None

    def copy_rows(self, start: int, stop: int, out: FeatureTable, at: int) -> None:
        """Copy the rows at these positions into `out` from its row `at` on; positions only ascend."""
        while start < stop:
            while self._window is None or self._order.starts_at(self._window.number + 1) <= start:
                self.leave()  # its memory is needed for one after the next
                self._window = next(self._windows)
                if self._window.written is not None:
                    self._stream = torch.cuda.current_stream(self._window.table.device)
                    self._stream.wait_event(self._window.written)
            number, table = self._window.number, self._window.table
            end = min(stop, self._order.starts_at(number + 1))
            gather(table, self._order.inside(number, start, end, table.device), out, at)
            at, start = at + end - start, end

    def leave(self) -> None:
        """Release the window, of which copies may still wait on their stream."""
        if self._window is not None and self._stream is not None:
            table = self._window.table
            for tensor in table.tensors:
                tensor.record_stream(self._stream)
            if table.schema.lists:  # they are in the backend's own memory, which goes back in the order of its stream
                torch.cuda.default_stream(table.device).wait_stream(self._stream)
        self._window = None


def _read_windows(parts: Parts, order: InOrder, number: int, dictionaries: Dictionaries) -> Generator[_Window]:
    starts = list(accumulate(parts.rows, initial=0))
    while order.starts_at(number) < starts[-1]:
        num_rows = order.starts_at(number + 1) - order.starts_at(number)
        table = FeatureTable.allocate(parts.schema, num_rows, parts.backend.device, dtype=parts.dtype)
        table.dictionaries = dictionaries
        _read_into(table, parts, order.ranges(number), starts)
        table.join_lists()  # here, where they were written: what they are copied from is freed at once
        on_gpu = table.device.type == "cuda"  # frames, arrays and this thread's torch work on the default stream
        window = _Window(number, table, torch.cuda.default_stream(table.device).record_event() if on_gpu else None)
        del table
        yield window
        del window
        number += 1


def _read_into(table: FeatureTable, parts: Parts, ranges: Ranges, starts: list[int]) -> None:
    needed = _find_needed_parts(starts, ranges)
    with closing(parts.read(needed)) as found:
        for number, pieces in zip(needed, found, strict=True):
            row = starts[number]
            for columns in pieces:
                num_rows = len(next(iter(columns.values())))
                try:
                    _write(table, columns, row, num_rows, ranges, parts.backend)
                except GpupipeError as error:
                    error.add_note(f"in {parts.names[number]}")
                    raise
                row += num_rows
            if row != starts[number + 1]:
                where, problem = parts.names[number], "it has another number of rows than when the loader was made"
                got, expected = row - starts[number], f"{parts.rows[number]} rows"
                remedy = "files that do not change during training, or a new loader"
                raise BadData(where, problem, got=got, expected=expected, remedy=remedy)


def _write(table: FeatureTable, columns: Columns, first: int, num_rows: int, ranges: Ranges, backend: Backend) -> None:
    """Write the rows of the ranges, each where its range belongs in the table."""
    at = 0
    for start, stop in ranges:
        begin, end = max(start, first), min(stop, first + num_rows)
        if begin < end:
            cut = {name: column.take(slice(begin - first, end - first)) for name, column in columns.items()}
            table.write(at + begin - start, cut, backend)
        at += stop - start


def _find_needed_parts(starts: list[int], ranges: Ranges) -> list[int]:
    """Return the parts that hold a row of the ranges, ascending: more ranges begin before their end than end so far."""
    begins, ends = np.array(ranges).T
    begun, ended = np.searchsorted(begins, starts[1:]), np.searchsorted(ends, starts[:-1], side="right")
    return [int(part) for part in np.flatnonzero(begun > ended)]
