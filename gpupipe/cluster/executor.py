"""What runs a plain function over items, and which one is in force."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from gpupipe.cluster.local import LocalThreads
from gpupipe.errors import BadConfig

__all__ = ["Executor", "active", "in_force"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class Executor(Protocol):
    """Somewhere to run functions."""

    @property
    def num_workers(self) -> int:
        """How many items are worked on at once."""

    in_process: bool
    """Whether functions run in this process and may share its memory; else they and their items travel."""

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], *, at_once: int | None = None
    ) -> Iterator[Result]:
        """The results of `function` over `items`, in order, a bounded number worked out ahead."""


_open: list[Executor] = []


def active() -> Executor:
    """The cluster opened last that is still open, or else the threads of this process.

    Example:
        >>> active().in_process
        True
    """
    return _open[-1] if _open else LocalThreads()


@contextmanager
def in_force(executor: Executor | None) -> Iterator[Executor]:
    """Inside, `active()` is `executor`; None changes nothing.

    Raises:
        BadConfig: it runs no functions.

    Example:
        >>> with in_force(LocalThreads(1)):
        ...     active().num_workers
        1
    """
    if executor is None:
        yield active()
        return
    if not all(hasattr(executor, name) for name in ("map", "in_process")):
        raise BadConfig(
            "executor", "no cluster", got=executor, expected="a gp.Cluster, or None", remedy="with gp.Cluster(): ..."
        )
    _open.append(executor)
    try:
        yield executor
    finally:
        _open.remove(executor)
