"""Streamed table: one window of it is in memory while the next one is read."""

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
from gpupipe.tensors.feature_table import FeatureTable, RowSource, gather
from gpupipe.tensors.order import Ranges, Windowed
from gpupipe.tensors.tables import prefetch

Columns = Mapping[str, Column]
_log = logging.getLogger("gpupipe")


class Parts(Protocol):
    """Table in parts, each of which can be read any number of times, with the same rows."""

    schema: Schema
    dtype: str
    backend: Backend
    rows: Sequence[int]
    """Of each part."""
    names: Sequence[str]
    """Of each part, for messages."""

    def read(self, parts: Sequence[int]) -> Generator[Iterable[Columns]]:
        """Yield the columns of these parts, in order, of each in one or more pieces."""


def open_windows(
    parts: Parts, order: Windowed, position: int, dictionaries: dict[str, Dictionary]
) -> Generator[RowSource]:
    """Yield one source of the rows of an epoch from `position` on, while its windows are read in a thread.

    Args:
        parts: the table.
        order: of the epoch.
        position: the first that is asked for.
        dictionaries: of the kept columns; grow with the strings that are seen.

    Memory: two windows, a part, and what reading it takes.
    """
    with closing(prefetch(_windows(parts, order, order.window_of(position), dictionaries))) as windows:
        source = _Windows(order, windows)
        try:
            yield source
        finally:
            source.leave()


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
    """Window of rows of a table, in memory.

    Args:
        number: which of the epoch's windows.
        table: its rows.
        written: after all of it was written, on a GPU; rows are read on another stream.
    """

    number: int
    table: FeatureTable
    written: torch.cuda.Event | None


class _Windows:
    """Row source over the windows of an epoch; its GPU code has not yet run on one."""

    def __init__(self, order: Windowed, windows: Iterator[_Window]) -> None:
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


def _windows(parts: Parts, order: Windowed, first: int, dictionaries: dict[str, Dictionary]) -> Generator[_Window]:
    starts = _starts(parts)
    number = first
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
                raise BadData(
                    parts.names[number],
                    "it has another number of rows than when the loader was made",
                    got=row - starts[number],
                    expected=f"{parts.rows[number]} rows",
                    remedy="files that do not change during training, or a new loader",
                )


def _write(table: FeatureTable, columns: Columns, first: int, num_rows: int, ranges: Ranges, backend: Backend) -> None:
    """Write the rows of the ranges, each where its range belongs in the table."""
    at = 0
    for start, stop in ranges:
        begin, end = max(start, first), min(stop, first + num_rows)
        if begin < end:
            cut = {name: column.take(slice(begin - first, end - first)) for name, column in columns.items()}
            table.write(at + begin - start, cut, backend)
        at += stop - start


def _starts(parts: Parts) -> list[int]:
    return list(accumulate(parts.rows, initial=0))


def _find_needed_parts(starts: list[int], ranges: Ranges) -> list[int]:
    """Return the parts that hold a row of the ranges, ascending."""
    found: dict[int, None] = {}
    for start, stop in ranges:
        part = bisect_right(starts, start) - 1
        while part < len(starts) - 1 and starts[part] < stop:
            if starts[part + 1] > start:
                found[part] = None
            part += 1
    return list(found)
