"""Small problems to learn, and loaders over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from gpupipe.schema import Field, Kind, Role, Schema
from gpupipe.tensors.batch import Batch
from tests.training import host_waits

TARGETS = {
    "binary": Field("late", "bool", role=Role.TARGET, classes=(False, True)),
    "multiclass": Field("size", "string", role=Role.TARGET, classes=("S", "M", "L")),
    "regression": Field("delay", "float32", role=Role.TARGET),
}


class Rows:
    """A loader over tensors in memory: shuffled by its own generator, seeded by the epoch."""

    def __init__(self, table: Batch, task: str, batch_size: int, *, shuffle: bool) -> None:
        self.table, self.batch_size, self.shuffle, self.epoch = table, batch_size, shuffle, 0
        features = [Field(f"x{i}", "float32", role=Role.FEATURE) for i in range(table.numeric.shape[1])]
        codes = [
            Field(f"c{i}", "int32", Kind.CATEGORICAL, cardinality=6, role=Role.FEATURE)
            for i in range(table.codes.shape[1])
        ]
        self.schema = Schema([*features, *codes, TARGETS[task]])
        self.device = table.numeric.device
        self.epochs_set: list[int] = []

    def __len__(self) -> int:
        return math.ceil(len(self.table) / self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.epochs_set.append(epoch)

    def __iter__(self) -> Iterator[Batch]:
        order = torch.arange(len(self.table))
        if self.shuffle:
            order = torch.randperm(len(self.table), generator=torch.Generator().manual_seed(self.epoch))
        for rows in order.split(self.batch_size) if len(order) else ():
            yield take(self.table, rows)


def take(table: Batch, rows: Tensor) -> Batch:
    target = None if table.target is None else table.target[rows]
    weight = None if table.weight is None else table.weight[rows]
    return Batch(table.numeric[rows], table.codes[rows], target, weight)


def make(
    task: str, count: int, *, batch_size: int = 64, shuffle: bool = True, weighted: bool = False, seed: int = 0
) -> Rows:
    """`count` rows whose target follows from two numbers and one category, and depends on a third number not at all."""
    draw = torch.Generator().manual_seed(seed)
    numeric = torch.randn(count, 3, generator=draw)
    codes = torch.randint(2, 6, (count, 1), generator=draw, dtype=torch.int32)
    signal = 2 * numeric[:, 0] - numeric[:, 1] ** 2 + codes[:, 0] - 2.5
    target = {
        "binary": (signal > 0).float(),
        "multiclass": torch.bucketize(signal, torch.tensor([-1.0, 1.0])).to(torch.int32),
        "regression": signal,
    }[task]
    weight = torch.rand(count, generator=draw) + 0.1 if weighted else None
    return Rows(Batch(numeric, codes, target, weight), task, batch_size, shuffle=shuffle)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small only lose by a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def problem() -> Callable[..., Rows]:
    return make


@pytest.fixture
def no_host_wait() -> Callable[[], AbstractContextManager[None]]:
    """A context in which what would make the host wait is an error."""
    return host_waits.no_host_wait
