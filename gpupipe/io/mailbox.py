"""What is noticed beside the work, told to the program wherever the work is done: in its threads, or by a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

__all__ = ["Letter", "Mailbox", "collected", "deliver"]

Letter = tuple[str, Any]

_mailboxes: WeakValueDictionary[str, Mailbox] = WeakValueDictionary()
_outgoing: ContextVar[list[Letter] | None] = ContextVar("outgoing", default=None)


class Mailbox:
    """Where a program hears of something; sent to a worker, it is one that sends back.

    Args:
        receive: called in the program with each message, by the thread that works or by the one that waits for workers.

    Example:
        >>> import pickle
        >>> heard = []
        >>> mailbox = Mailbox(heard.append)
        >>> mailbox.send("here")
        >>> pickle.loads(pickle.dumps(mailbox)).send("from a copy")
        >>> heard
        ['here', 'from a copy']
    """

    def __init__(self, receive: Callable[[Any], None]) -> None:
        self._receive = receive
        self._key = uuid4().hex
        _mailboxes[self._key] = self

    def send(self, message: Any) -> None:
        """Tell the program."""
        self._receive(message)

    def __reduce__(self) -> tuple[type[_Away], tuple[str]]:
        return _Away, (self._key,)


@dataclass(frozen=True)
class _Away:
    """A mailbox of another process, or of this one."""

    key: str

    def send(self, message: Any) -> None:
        """Tell the program, at once where it is this one; else with what the worker gives back."""
        box, letters = _mailboxes.get(self.key), _outgoing.get()
        if box is not None:
            box.send(message)
        elif letters is not None:
            letters.append((self.key, message))


@contextmanager
def collected() -> Iterator[list[Letter]]:
    """Inside, what is sent to other processes gathers in this list.

    Example:
        >>> with collected() as letters:
        ...     _Away("elsewhere").send(1)
        >>> letters
        [('elsewhere', 1)]
    """
    letters: list[Letter] = []
    token = _outgoing.set(letters)
    try:
        yield letters
    finally:
        _outgoing.reset(token)


def deliver(letters: Iterable[Letter]) -> None:
    """Hand each to its mailbox, or on to the process that collects them; what nobody waits for any more is dropped.

    Example:
        >>> deliver([("gone", 1)])
    """
    for key, message in letters:
        _Away(key).send(message)
