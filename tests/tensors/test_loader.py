"""Batches: each row once per epoch, in an order that seed and epoch fix, in memory of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpupipe import errors
from gpupipe.backend import Backend, Column
from gpupipe.schema import Field, Kind, Role, Schema
from gpupipe.tensors import Block, Loader

SCHEMA = Schema(
    [
        Field("x", "float32", role=Role.FEATURE),
        Field("c", "int32", Kind.CATEGORICAL, cardinality=10_000, role=Role.FEATURE),
        Field("y", "float32", role=Role.TARGET),
        Field("w", "float32", role=Role.WEIGHT),
        Field("k", "int64", role=Role.KEEP),
    ]
)


def block_of(rows: int, backend: Backend) -> Block:
    values = np.arange(rows)
    block = Block.allocate(SCHEMA, rows, backend.device)
    columns = {"x": ("float64", 2), "c": ("int32", 1), "y": ("float32", 3), "w": ("float32", 4), "k": ("int64", 5)}
    made = {
        name: Column(dtype, backend.to_device((values * times).astype(dtype)))
        for name, (dtype, times) in columns.items()
    }
    block.write(0, made, backend)
    return block


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("shuffle", [False, "rows", True])
@pytest.mark.parametrize("rows", [0, 1, 7, 1000])
def test_every_row_once_with_what_belongs_to_it(backend: Backend, rows: int, shuffle: bool | str, reuse: bool) -> None:
    loader = Loader(block_of(rows, backend), batch_size=64, shuffle=shuffle, reuse_buffers=reuse)
    seen = []
    for batch in loader:
        assert batch.target is not None and batch.weight is not None
        row = batch.codes[:, 0]
        assert torch.equal(batch.numeric[:, 0], row * 2.0)
        assert torch.equal(batch.target, row * 3.0)
        assert torch.equal(batch.weight, row * 4.0)
        assert torch.equal(batch.keep["k"], row * 5)
        seen += row.tolist()
    assert sorted(seen) == list(range(rows))
    assert len(loader) == -(-rows // 64)
    if rows == 1000:
        assert (seen == list(range(rows))) == (not shuffle)


def test_epochs_differ_and_come_again(backend: Backend) -> None:
    def order(loader: Loader) -> list[int]:
        return [row for batch in loader for row in batch.codes[:, 0].tolist()]

    loader = Loader(block_of(100, backend), batch_size=32, shuffle="rows", seed=4)
    first, second = order(loader), order(loader)
    assert first != second
    loader.set_epoch(0)
    assert order(loader) == first
    assert order(Loader(block_of(100, backend), batch_size=7, shuffle=True, seed=4)) == first
    assert order(Loader(block_of(100, backend), batch_size=32, shuffle=True, seed=5)) != first


def test_the_last_batch_can_be_dropped(backend: Backend) -> None:
    loader = Loader(block_of(10, backend), batch_size=4, drop_last=True)
    assert [len(batch) for batch in loader] == [4, 4] and len(loader) == 2


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_fresh_memory(backend: Backend, shuffle: bool) -> None:
    block = block_of(8, backend)
    before = block.words.clone()
    batches = list(Loader(block, batch_size=4, shuffle=shuffle))
    assert len({batch.numeric.data_ptr() for batch in batches}) == 2
    for batch in batches:
        batch.numeric.fill_(-1.0)
        batch.keep["k"].fill_(0)
    assert torch.equal(block.words, before)


def test_a_reused_buffer_is_overwritten(backend: Backend) -> None:
    loader = Loader(block_of(8, backend), batch_size=4, shuffle=True, reuse_buffers=True)
    pointers = {batch.numeric.data_ptr() for batch in loader}
    assert len(pointers) == 1


def test_bad_parameters(backend: Backend) -> None:
    with pytest.raises(errors.BadConfig, match="unknown shuffle, got 'blocks'"):
        Loader(block_of(1, backend), shuffle="blocks")
    with pytest.raises(errors.BadConfig, match="batch_size is too small, got 0"):
        Loader(block_of(1, backend), batch_size=0)
