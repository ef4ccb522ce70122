"""A thread that works ahead: in order, bounded, faults come through, and it ends whatever happens."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import closing

import pytest

from gpupipe.tensors.loader import prefetch

THREAD = "gpupipe-prefetch_0"


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gpupipe-prefetch")]


class Source:
    """Numbers up to `stop`; says which it has begun, in which thread, and whether it was closed."""

    def __init__(self, stop: int, fault: int | None = None) -> None:
        self.stop, self.fault = stop, fault
        self.begun: list[int] = []
        self.closed_in = ""

    def items(self) -> Generator[int]:
        try:
            for number in range(self.stop):
                self.begun.append(number)
                if number == self.fault:
                    raise ZeroDivisionError("planted")
                yield number
        finally:
            self.closed_in = threading.current_thread().name


def test_all_items_in_order_from_another_thread() -> None:
    source = Source(100)
    assert list(prefetch(source.items())) == list(range(100))
    assert source.closed_in == THREAD and threads() == []
    assert list(prefetch(Source(0).items())) == []


def test_a_fault_comes_at_the_place_of_its_item() -> None:
    seen: list[int] = []
    with pytest.raises(ZeroDivisionError, match="planted"):
        seen.extend(prefetch(Source(9, fault=5).items(), depth=2))
    assert seen == [0, 1, 2, 3, 4] and threads() == []


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("taken", [0, 1, 5])
def test_an_early_end_closes_the_source_and_ends_the_thread(taken: int, depth: int) -> None:
    source = Source(10**9)
    items = prefetch(source.items(), depth)
    for _ in range(taken):
        next(items)
    items.close()
    assert threads() == []
    assert len(source.begun) <= taken + depth + 1, "no more is worked out than may wait"
    assert source.closed_in == (THREAD if taken else "")


def test_one_inside_another() -> None:
    inner = Source(10**9)

    def doubled() -> Generator[int]:
        with closing(prefetch(inner.items())) as items:
            for item in items:
                yield 2 * item

    with closing(prefetch(doubled())) as items:
        assert [next(items) for _ in range(4)] == [0, 2, 4, 6]
    assert threads() == [] and inner.closed_in == THREAD


def test_a_fault_while_it_is_closed_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Generator[int]:
        try:
            yield 1
            yield 2
        finally:
            raise ZeroDivisionError("at the end")

    with pytest.raises(ZeroDivisionError, match="at the end"):
        list(prefetch(broken()))
    items = prefetch(broken())
    next(items)
    items.close()
    assert threads() == [] and "at the end" in caplog.text


@pytest.mark.slow
def test_a_program_may_end_with_an_open_iterator() -> None:
    """A notebook's last cell, or a script that takes one batch: nothing on stderr, and the source is closed."""
    program = """
from gpupipe.tensors.loader import prefetch
def items():
    try:
        yield from range(1, 100)
    finally:
        print("closed")
kept = prefetch(items())
print(next(kept))
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["1", "closed"], "")
