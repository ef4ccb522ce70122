"""A stand-in for a CUDA graph on a CPU: a step's operations are recorded once, and done again on the same memory.

As with a graph, nothing that Python did beside is done again: numbers that it passed are built in, memory too. Unlike
a graph's, a recording does what it records, so the first replay is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpupipe.training.loop import losses, run_start
from gpupipe.training.loop.train_step import WARM_UP, CapturedUpdate, explain_not_resident


class Graph:
    """The operations of a step, in order."""

    made: int = 0

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self._done = True

    def replay(self) -> None:
        if self._done:
            self._done = False
            return
        with torch.no_grad():
            for function, args, kwargs, outputs in self.calls:
                for old, new in zip(tree_leaves(outputs), tree_leaves(function(*args, **kwargs)), strict=True):
                    if isinstance(old, Tensor) and old is not new and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class _Recording(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        self._graph.calls.append((func, args, kwargs or {}, outputs))
        return outputs


@contextmanager
def _record(graph: Graph, **_: Any) -> Iterator[None]:
    with _Recording(graph):
        yield
    Graph.made += 1


def pretend(monkeypatch: pytest.MonkeyPatch) -> type[Graph]:
    """From now on steps are recorded and replayed as on a GPU; `made` counts recordings."""
    real = CapturedUpdate.__init__

    def init(self: CapturedUpdate, *args: Any) -> None:
        real(self, *args)
        self._eager = WARM_UP

    monkeypatch.setattr(CapturedUpdate, "__init__", init)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", _record)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: None)
    monkeypatch.setattr(
        run_start, "explain_no_capture", lambda _, loader, device, *__, **___: explain_not_resident(loader, device)
    )
    monkeypatch.setattr(losses, "_TOGETHER", 1)  # losses are summed at once, as on a device
    monkeypatch.setattr(Graph, "made", 0)
    return Graph
