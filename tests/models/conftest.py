"""Batches for networks, and one thread: nets this small only lose by a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from gpupipe.tensors.batch import Batch

MakeRows = Callable[..., Batch]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def rows() -> MakeRows:
    """`rows(count, numeric, cardinalities)`: random features, the same for the same arguments."""

    def make(count: int, numeric: int = 3, cardinalities: tuple[int, ...] = (7, 4)) -> Batch:
        draw = torch.Generator().manual_seed(count)
        codes = [torch.randint(0, n, (count, 1), dtype=torch.int32, generator=draw) for n in cardinalities]
        empty = torch.zeros(count, 0, dtype=torch.int32)
        return Batch(torch.randn(count, numeric, generator=draw), torch.cat([empty, *codes], 1))

    return make
