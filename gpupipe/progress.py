"""Progress of long work: a bar on a terminal and in a notebook, and in a job's log a line a minute."""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any

from tqdm import tqdm

LOG_EVERY_S = 60.0
_log = logging.getLogger("gpupipe")


class Progress(tqdm):  # type: ignore[misc] # tqdm ships no types
    """Bar of tqdm that logs a line a minute where it is hidden, unless it was hidden on purpose: how much is done.

    `count_rows` gives the rows of an item, for their number a second. Lines come while nothing is done yet, too: a sort
    gives its first batch when it is nearly at its end.
    """

    def __init__(
        self,
        items: Iterable[Any] | None = None,
        title: str | None = None,
        *,
        count_rows: Callable[[Any], int] | None = None,
        **options: Any,
    ) -> None:
        self._ended = threading.Event()
        self._writes_log = options.setdefault("disable", None) is None
        if self._writes_log:
            in_notebook = "ipykernel.kernelapp" in sys.modules  # its error stream is no terminal
            is_off = os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
            options["disable"] = is_off or (False if in_notebook else None)
        super().__init__(items, title, **options)
        self._count_rows, self._rows, self._unit = count_rows, 0, options.get("unit", "it").strip()
        self._began = self._logged = monotonic()
        self._first = self.n
        if self.disable:  # the attributes of a bar that is shown, which the line is made of
            self.desc, self.postfix = title, ""
        self._writes_log = self._writes_log and bool(self.disable) and _log.isEnabledFor(logging.INFO)
        if self._writes_log:
            watched = weakref.ref(self), self._ended
            watch = threading.Thread(target=_watch, args=watched, name="gpupipe-progress", daemon=True)
            with suppress(RuntimeError):  # the system starts no thread: lines come with what is done alone
                watch.start()

    def __iter__(self) -> Iterator[Any]:
        if not self.disable:
            yield from super().__iter__()
            return
        try:
            for item in self.iterable or ():
                yield item
                self._rows += self._count_rows(item) if self._count_rows else 0
                self.update()
        finally:
            self.close()

    def close(self) -> None:
        """End the bar and its lines."""
        self._ended.set()
        super().close()

    def update(self, n: float = 1) -> None:
        """Add to what is done; log a line if a minute has passed since the last one."""
        if not self.disable:
            super().update(n)
            return
        self.n += n
        self.log()

    def log(self) -> float:
        """Log a line if a minute has passed since the last one; return the seconds until the next is due."""
        now = monotonic()
        if self._writes_log and now - self._logged >= LOG_EVERY_S:
            self._logged = now
            _log.info("%s", self._format_line(now - self._began))
        return self._logged + LOG_EVERY_S - now

    def _format_line(self, seconds: float) -> str:
        """Format what is done, how fast, and how long the rest takes at that speed."""
        total = f" of {self.total:,} {self._unit}, {self.n / self.total:.0%}" if self.total else f" {self._unit}"
        parts = [f"{(self.desc or 'progress').removesuffix(': ')}: {self.n:,}{total}"]
        parts += [f"{self._rows / seconds:,.0f} rows/s"] if self._rows else []
        parts += [self.postfix] if self.postfix else []
        done = self.n - self._first
        if self.total and done:
            parts.append(f"{_format_time(seconds / done * (self.total - self.n))} left")
        else:
            parts.append(f"{_format_time(seconds)} so far")
        return ", ".join(parts)


def _watch(bar: weakref.ref[Progress], ended: threading.Event) -> None:
    """Log a bar's lines while nothing is done, until it ends."""
    pause = LOG_EVERY_S
    while not ended.wait(pause) and (progress := bar()) is not None:
        pause = max(progress.log(), 0)
        del progress


def _format_time(seconds: float) -> str:
    """Format a length of time in its largest units.

    Example:
        >>> _format_time(59.6), _format_time(754), _format_time(10_000)
        ('1 min', '13 min', '2 h 47 min')
    """
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
