"""Prefetching in a thread, a bounded number of items, with no way to wait for ever."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import closing
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import TypeVar

from gpupipe.errors import PartitionFailed

__all__ = ["prefetch"]

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
