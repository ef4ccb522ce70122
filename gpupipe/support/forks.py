"""Forked processes: in one whose parent has run Polars, a plan of Polars would wait for threads that are not there."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from gpupipe.errors import PlanFailed

_TASKS = Path("/proc/self/task")
_THREAD = re.compile("polars-[0-9]")  # of the pool that runs plans; others are there as soon as Polars is imported


class _Process:
    """This process: whether it may run Polars."""

    has_pool = False
    """Whether Polars' threads run here; looked up before a fork."""
    has_lost_pool = False
    """Whether it is a fork of a process in which they ran: it has their locks, and none of the threads."""


def _look_for_pool() -> None:
    names = []
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():  # nothing forks by itself but Linux
        with suppress(OSError):  # a thread that has just ended
            names.append((task / "comm").read_text())
    _Process.has_pool = any(map(_THREAD.match, names))


def _note_loss() -> None:
    _Process.has_lost_pool = _Process.has_lost_pool or _Process.has_pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_look_for_pool, after_in_child=_note_loss)


def require_threads(where: str) -> None:
    """Raise `PlanFailed` in a process where Polars would wait for ever: a fork of one that has run it."""
    if _Process.has_lost_pool:
        problem = "this process was forked from one that had run Polars, whose threads do not live on in a fork"
        expected = "a process of its own start, or a fork from before the first plan or text file"
        remedy = "multiprocessing.get_context('spawn'); DataLoader(..., multiprocessing_context='spawn')"
        raise PlanFailed(where, problem, expected=expected, remedy=remedy)
