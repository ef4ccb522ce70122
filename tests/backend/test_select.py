"""A backend is made once in a process, however many threads ask for it at the same moment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import sleep
from types import SimpleNamespace

import pytest

from gpupipe import backend


class Slow:
    """A backend that takes a while to make, as one that sets up a device's memory does."""

    def __init__(self) -> None:
        sleep(0.05)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "slow_backend", SimpleNamespace(Slow=Slow))
    monkeypatch.setitem(backend._CLASSES, "cpu", ("slow_backend", "Slow"))
    backend._make_backend.cache_clear()
    yield
    backend._make_backend.cache_clear()


def test_threads_that_ask_together_get_one(slow: None) -> None:
    together = Barrier(8)

    def ask(_: int) -> backend.Backend:
        together.wait()
        return backend.select("cpu")

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert len({id(item) for item in found}) == 1
