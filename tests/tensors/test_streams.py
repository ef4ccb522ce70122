"""What a streamed table asks of a GPU's streams, in order: fakes of torch's streams and events write it down.

A copy that starts before its rows are written, or memory that is used again while a copy of it waits, gives wrong
batches and no error. Where no GPU is, what is looked at is the order of the calls.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import SimpleNamespace
from typing import Any
from weakref import finalize

import numpy as np
import pytest
import torch

from gpupipe.backend import Column, select
from gpupipe.schema import Field, Role, Schema
from gpupipe.tensors import FeatureTable, Loader, loader
from gpupipe.tensors.order import Sharding

GPU = torch.device("cuda:0")
ROWS, WINDOW = 12, 4


class Cuda:
    """`torch.cuda`'s streams, and what was asked of them."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.default, self._current, self._made = Stream(self, "default"), {}, 0

    def event(self, on: str) -> str:
        self._made += 1
        self.done.append(("record", on, f"event {self._made}"))
        return f"event {self._made}"

    def current_stream(self, device: Any = None) -> Stream:
        return self._current.get(get_ident(), self.default)

    @contextmanager
    def stream(self, made: Stream) -> Iterator[None]:
        before = self.current_stream()
        self._current[get_ident()] = made
        yield
        self._current[get_ident()] = before

    def at(self, *what: Any) -> int:
        return self.done.index(what)


class Stream:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def record_event(self) -> str:
        return self.cuda.event(self.name)

    def wait_event(self, event: str) -> None:
        self.cuda.done.append(("wait", self.name, event))

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(made, "slabs"))
    monkeypatch.setattr(torch.cuda, "current_stream", made.current_stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: made.default)
    monkeypatch.setattr(torch.cuda, "stream", made.stream)
    return made


class Window:
    """A block on the GPU, as far as is asked of one."""

    device, row_bytes, keep = GPU, loader.SLAB_BYTES, dict[str, Any]()

    def __init__(self, cuda: Cuda, number: int, lists: list[str]) -> None:
        self.list_fields, self.number, self._cuda = lists, number, cuda
        self.tensors = [SimpleNamespace(record_stream=lambda on: cuda.done.append(("hold", number, on.name)))]

    def write(self, at: int, columns: Any, backend: Any) -> int:
        self._cuda.done.append(("write", self.number))
        return len(columns["x"])

    def join_lists(self) -> None:
        self._cuda.done.append(("write", self.number))


class InOrder:
    """Windows of consecutive rows."""

    def window_of(self, position: int) -> int:
        return position // WINDOW

    def starts_at(self, number: int) -> int:
        return min(number * WINDOW, ROWS)

    def ranges(self, number: int) -> list[tuple[int, int]]:
        return [(number * WINDOW, (number + 1) * WINDOW)]

    def inside(self, number: int, start: int, end: int, device: Any) -> slice:
        return slice(start - number * WINDOW, end - number * WINDOW)


class Parts:
    schema, dtype, backend = None, "float32", SimpleNamespace(device="cuda:0")
    rows, names = [ROWS], ["part"]

    def read(self, parts: Any) -> Generator[Iterable[dict[str, Column]]]:
        yield [{"x": Column("float64", np.zeros(ROWS))}]


def run(cuda: Cuda, monkeypatch: pytest.MonkeyPatch, lists: list[str], *, steps: int) -> None:
    """Ask for batches of two rows of three windows; a batch is used on the default stream."""
    made = 0

    def allocate(*_: Any, **__: Any) -> Window:
        nonlocal made
        made += 1
        window = Window(cuda, made, lists)
        finalize(window, cuda.done.append, ("free", made))
        return window

    def gather(table: Window, rows: Any, out: Any, at: int) -> None:
        cuda.done.append(("gather", table.number, cuda.current_stream().name))

    def fill(slab: Any, steps: Any, source: Any) -> None:
        source(steps[0].start, steps[-1].stop, slab, 0)

    monkeypatch.setattr(loader, "FeatureTable", SimpleNamespace(allocate=allocate))
    monkeypatch.setattr(loader, "gather", gather)
    monkeypatch.setattr(loader, "fill", fill)
    monkeypatch.setattr(loader, "split_batches", lambda rows, steps, **_: iter(steps))
    slab = SimpleNamespace(device=GPU, tensors=[], words=None)
    like = SimpleNamespace(device=GPU, row_bytes=loader.SLAB_BYTES, empty_like=lambda *_, **__: slab)
    opened = loader.iterate_slabs(
        like,  # type: ignore[arg-type]
        lambda: loader.open_windows(Parts(), InOrder(), 0, {}),  # type: ignore[arg-type]
        Sharding(ROWS, 2, drop_last=False),
        0,
        GPU,
        reuse=False,
        unweighted=False,
    )
    for _ in range(steps):
        next(opened)
    opened.close()


@pytest.mark.parametrize("lists", [[], ["seen"]], ids=["plain", "lists"])
@pytest.mark.parametrize("steps", [1, 6])
def test_rows_are_copied_after_they_are_written(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, lists: list[str], steps: int
) -> None:
    run(cuda, monkeypatch, lists, steps=steps)
    copies = [(number, *what[1:]) for number, what in enumerate(cuda.done) if what[0] == "gather"]
    assert len(copies) >= steps
    for at, window, on in copies:
        assert on == "slabs"
        waited = [what[2] for what in cuda.done[:at] if what[:2] == ("wait", "slabs")]
        written = max(number for number, what in enumerate(cuda.done) if what == ("write", window))
        assert any(cuda.at("record", "default", event) > written for event in waited if event), (
            "the rows may be missing"
        )


@pytest.mark.parametrize("steps", [1, 6])
def test_memory_is_used_again_after_the_copies_of_it(cuda: Cuda, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    run(cuda, monkeypatch, [], steps=steps)
    copied = {what[1] for what in cuda.done if what[0] == "gather"}
    assert copied >= {1}
    for window in copied:
        assert cuda.at("gather", window, "slabs") < cuda.at("hold", window, "slabs") < cuda.at("free", window)


def test_lists_are_used_again_after_the_copies_of_them(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie in the backend's memory, of which torch's allocator knows nothing."""
    run(cuda, monkeypatch, ["seen"], steps=6)
    for window in (1, 2, 3):
        last = max(number for number, what in enumerate(cuda.done) if what == ("gather", window, "slabs"))
        freed = cuda.at("free", window)
        waited = [what[2] for what in cuda.done[last:freed] if what[:2] == ("wait", "default")]
        assert any(cuda.at("record", "slabs", event) > last for event in waited)


def test_copies_do_not_wait_for_the_window_after_theirs(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else reading, on the default stream, and training would take turns."""
    run(cuda, monkeypatch, [], steps=6)
    own = [what[2] for what in cuda.done if what[:2] == ("wait", "slabs")]
    assert len(own) == ROWS // WINDOW, "one event for each window"


on_gpu = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]
)


@pytest.mark.parametrize("device", ["cpu", on_gpu])
@pytest.mark.parametrize("reuse_buffers", [False, True])
def test_rows_of_the_host_arrive_whole(reuse_buffers: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slab is used late, behind a slow kernel, while those after it are copied; torch alone is needed."""
    monkeypatch.setattr(loader, "SLAB_BYTES", 1 << 14)
    table = FeatureTable.allocate(Schema([Field("x", "float32", role=Role.FEATURE)]), 100_000, "cpu")
    table.write(0, {"x": Column("float32", np.arange(100_000, dtype="float32"))}, select("cpu"))
    batches = Loader(table, batch_size=1000, residency="host", device=device, reuse_buffers=reuse_buffers)
    matrix = torch.ones((4096, 4096) if device == "cuda" else (8, 8), device=device)
    sums = []
    for batch in batches:
        for _ in range(2):
            matrix = matrix @ matrix * 1e-4
        sums.append(batch.numeric.double().sum())
    assert torch.stack(sums).cpu().tolist() == [sum(range(at, at + 1000)) for at in range(0, 100_000, 1000)]
