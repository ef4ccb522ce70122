"""Pauses of Python's collector of cyclic garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_collector() -> Iterator[None]:
    """Pause the collector for milliseconds in which each of many columns gets some objects, none of them in a cycle.

    New objects start it, and it may go through all objects of the process: with 1,500 columns it took longer than the
    rest of a fit. Where it is off already it stays off.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
