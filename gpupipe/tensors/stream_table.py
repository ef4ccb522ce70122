"""Batches of a table that is read while it is used: a window of it lies in memory, the next one is being read."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch

from gpupipe.backend import Backend, Column
from gpupipe.backend.dictionaries import Dictionary
from gpupipe.errors import BadData, GpupipeError
from gpupipe.schema import Schema
from gpupipe.tensors.feature_table import Block
from gpupipe.tensors.gather import Picker, gather
from gpupipe.tensors.order import Ranges, Windowed
from gpupipe.tensors.prefetch import prefetch

__all__ = ["Parts", "open_windows", "warn_of_rereads"]

Columns = Mapping[str, Column]
_log = logging.getLogger("gpupipe")


class Parts(Protocol):
    """A table in parts, each of which can be read any number of times, with the same rows."""

    schema: Schema
    dtype: str
    backend: Backend
    rows: Sequence[int]
    """Of each part."""
    names: Sequence[str]
    """Of each part, for messages."""

    def read(self, parts: Sequence[int]) -> Generator[Iterable[Columns]]:
        """The columns of these parts, in order, of each in one or more pieces."""


def open_windows(
    parts: Parts, order: Windowed, position: int, dictionaries: dict[str, Dictionary]
) -> Generator[Picker]:
    """One picker of the rows of an epoch from `position` on, while its windows are read in a thread.

    Args:
        parts: the table.
        order: of the epoch.
        position: the first that is asked for.
        dictionaries: of the kept columns; grow with the strings that are seen.

    Memory: two windows, a part, and what reading it takes.
    """
    with closing(prefetch(_windows(parts, order, order.window_of(position), dictionaries))) as windows:
        picker = _Windows(order, windows)
        try:
            yield picker
        finally:
            picker.leave()


def warn_of_rereads(parts: Parts, order: Windowed) -> None:
    """Warn where an epoch reads parts over and over, for a few of their rows each time."""
    starts = _starts(parts)
    num_windows = order.window_of(starts[-1] - 1) + 1 if starts[-1] else 0
    needed = [number for window in range(num_windows) for number in _find_needed_parts(starts, order.ranges(window))]
    rows = sum(parts.rows[number] for number in needed)
    if rows > 2 * starts[-1]:
        _log.warning(
            "loader: an epoch reads each row %.1f times, for its parts have up to %s rows: larger block_rows read less",
            rows / starts[-1],
            f"{max(parts.rows):,}",
        )


@dataclass(frozen=True, slots=True)
class _Window:
    """Rows of a table, in memory.

    Args:
        number: which of the epoch's windows.
        block: its rows.
        written: after all of it was written, on a GPU; rows are read on another stream.
    """

    number: int
    block: Block
    written: torch.cuda.Event | None


class _Windows:
    """Where the rows of an epoch's order are in the windows that come; what it does on a GPU has not yet run on one."""

    def __init__(self, order: Windowed, windows: Iterator[_Window]) -> None:
        self._order, self._windows = order, windows
        self._window: _Window | None = None
        self._stream: torch.cuda.Stream | None = None

    def pick(self, start: int, stop: int, out: Block, at: int) -> None:
        """Copy the rows at these positions into `out` from its row `at` on; positions only ascend."""
        while start < stop:
            while self._window is None or self._order.starts_at(self._window.number + 1) <= start:
                self.leave()  # its memory is needed for one after the next
                self._window = next(self._windows)
                if self._window.written is not None:
                    self._stream = torch.cuda.current_stream(self._window.block.device)
                    self._stream.wait_event(self._window.written)
            number, block = self._window.number, self._window.block
            end = min(stop, self._order.starts_at(number + 1))
            gather(block, self._order.inside(number, start, end, block.device), out, at)
            at, start = at + end - start, end

    def leave(self) -> None:
        """Let go of the window, of which copies may still be waiting on their stream."""
        if self._window is not None and self._stream is not None:
            block = self._window.block
            for tensor in block.tensors:
                tensor.record_stream(self._stream)
            if block.schema.lists:  # they lie in the backend's own memory, which goes back in the order of its stream
                torch.cuda.default_stream(block.device).wait_stream(self._stream)
        self._window = None


def _windows(parts: Parts, order: Windowed, first: int, dictionaries: dict[str, Dictionary]) -> Generator[_Window]:
    starts = _starts(parts)
    number = first
    while order.starts_at(number) < starts[-1]:
        num_rows = order.starts_at(number + 1) - order.starts_at(number)
        block = Block.allocate(parts.schema, num_rows, parts.backend.device, dtype=parts.dtype)
        block.dictionaries = dictionaries
        _read_into(block, parts, order.ranges(number), starts)
        block.join_lists()  # here, where they were written: what they are copied from is freed at once
        on_gpu = block.device.type == "cuda"  # frames, arrays and this thread's torch work on the default stream
        window = _Window(number, block, torch.cuda.default_stream(block.device).record_event() if on_gpu else None)
        del block
        yield window
        del window
        number += 1


def _read_into(block: Block, parts: Parts, ranges: Ranges, starts: list[int]) -> None:
    needed = _find_needed_parts(starts, ranges)
    with closing(parts.read(needed)) as found:
        for number, pieces in zip(needed, found, strict=True):
            row = starts[number]
            for columns in pieces:
                num_rows = len(next(iter(columns.values())))
                try:
                    _write(block, columns, row, num_rows, ranges, parts.backend)
                except GpupipeError as error:
                    error.add_note(f"in {parts.names[number]}")
                    raise
                row += num_rows
            if row != starts[number + 1]:
                raise BadData(
                    parts.names[number],
                    "it has another number of rows than when the loader was made",
                    got=row - starts[number],
                    expected=f"{parts.rows[number]} rows",
                    remedy="files that stay as they are while they are trained on, or a new loader",
                )


def _write(block: Block, columns: Columns, first: int, num_rows: int, ranges: Ranges, backend: Backend) -> None:
    """Write those of the rows that the ranges hold, each where its range lies in the block."""
    at = 0
    for start, stop in ranges:
        begin, end = max(start, first), min(stop, first + num_rows)
        if begin < end:
            cut = {name: column.take(slice(begin - first, end - first)) for name, column in columns.items()}
            block.write(at + begin - start, cut, backend)
        at += stop - start


def _starts(parts: Parts) -> list[int]:
    return list(accumulate(parts.rows, initial=0))


def _find_needed_parts(starts: list[int], ranges: Ranges) -> list[int]:
    """The parts that hold a row of the ranges, ascending."""
    found: dict[int, None] = {}
    for start, stop in ranges:
        part = bisect_right(starts, start) - 1
        while part < len(starts) - 1 and starts[part] < stop:
            if starts[part + 1] > start:
                found[part] = None
            part += 1
    return list(found)
