"""Executor protocol, and the executor in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from gpupipe.cluster.local import LocalThreads
from gpupipe.errors import BadConfig

__all__ = ["Executor", "get_executor", "use_executor"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class Executor(Protocol):
    """Protocol of executors, which run functions over items."""

    @property
    def num_workers(self) -> int:
        """The number of items processed at once."""

    in_process: bool
    """Whether functions run in this process and may share its memory; else they and their items are pickled."""

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], *, at_once: int | None = None
    ) -> Iterator[Result]:
        """Yield the results of `function` over `items`, in order, a bounded number computed ahead."""

    def call(self, function: Callable[[Item], Result], item: Item) -> Result:
        """Run `function` on one item, in the same place as `map`."""

    def resolve(self, backend: str = "auto") -> str:
        """Return the name of the backend, `"cpu"` or `"gpu"`, of `backend` where items are processed."""


_open: list[Executor] = []


def get_executor() -> Executor:
    """Return the innermost open cluster, or else the threads of this process.

    Example:
        >>> get_executor().in_process
        True
    """
    return _open[-1] if _open else LocalThreads()


@contextmanager
def use_executor(executor: Executor | None) -> Iterator[Executor]:
    """Set the active executor inside `with`; None changes nothing.

    Raises:
        BadConfig: it is not an executor.

    Example:
        >>> with use_executor(LocalThreads(1)):
        ...     get_executor().num_workers
        1
    """
    if executor is None:
        yield get_executor()
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
