"""Batches: each row once per epoch, in an order that seed and epoch fix, in memory of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gpupipe as gp
from gpupipe import errors
from gpupipe.backend import Backend, Column, select
from gpupipe.schema import Field, Kind, Role, Schema
from gpupipe.tensors import Batch, FeatureTable, Loader, Permutation
from tests.raising import raises

SCHEMA = Schema(
    [
        Field("x", "float32", role=Role.FEATURE),
        Field("c", "int32", Kind.CATEGORICAL, cardinality=10_000, role=Role.FEATURE),
        Field("y", "float32", role=Role.TARGET),
        Field("w", "float32", role=Role.WEIGHT),
        Field("k", "int64", role=Role.KEEP),
        Field("f", "float64", role=Role.KEEP),
    ]
)


def block_of(rows: int, backend: Backend) -> FeatureTable:
    """Row i holds i, 2i, 3i ... in its columns."""
    values = np.arange(rows)
    block = FeatureTable.allocate(SCHEMA, rows, backend.device)
    columns = {"x": ("float64", 2), "c": ("int32", 1), "y": ("float32", 3), "w": ("float32", 4), "k": ("int64", 5)}
    made = {
        name: Column(dtype, backend.to_device((values * times).astype(dtype)))
        for name, (dtype, times) in {**columns, "f": ("float64", 6)}.items()
    }
    block.write(0, made, backend)
    return block


def order(loader: Loader) -> list[int]:
    return [row for batch in loader for row in batch.codes[:, 0].tolist()]


def tensors(batch: Batch) -> Iterator[Tensor]:
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        yield from value.values() if isinstance(value, dict) else [value]


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("shuffle", [False, "rows", True])
@pytest.mark.parametrize("rows", [0, 1, 7, 1000])
def test_every_row_once_with_what_belongs_to_it(backend: Backend, rows: int, shuffle: bool | str, reuse: bool) -> None:
    loader = Loader(block_of(rows, backend), batch_size=64, shuffle=shuffle, reuse_buffers=reuse)
    seen, sizes = [], []
    for batch in loader:
        row = batch.codes[:, 0]
        for times, values in ((2, batch.numeric[:, 0]), (3, batch.target), (4, batch.weight)):
            assert values is not None and torch.equal(values, row * float(times))
        assert torch.equal(batch.keep["k"], row.long() * 5) and torch.equal(batch.keep["f"], row.double() * 6)
        assert {str(values.device) for values in tensors(batch)} == {backend.device}
        seen += row.tolist()
        sizes.append(len(batch))
    assert sorted(seen) == list(range(rows))
    assert sizes == [64] * (rows // 64) + [rows % 64] * bool(rows % 64)
    assert len(loader) == len(sizes) and loader.num_rows == rows and str(loader.device) == backend.device
    if rows == 1000:
        assert (seen == list(range(rows))) == (not shuffle)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(0, 300),
    batch_size=st.integers(1, 400),
    drop_last=st.booleans(),
    reuse=st.booleans(),
    seed=st.integers(-(2**63), 2**64 - 1),
    epoch=st.integers(0, 5),
)
def test_the_order_is_the_permutations(
    rows: int, batch_size: int, drop_last: bool, reuse: bool, seed: int, epoch: int
) -> None:
    loader = Loader(
        block_of(rows, select("cpu")),
        batch_size=batch_size,
        shuffle="rows",
        seed=seed,
        drop_last=drop_last,
        reuse_buffers=reuse,
    )
    loader.set_epoch(epoch)
    whole = Permutation(rows, seed=seed, epoch=epoch).order("cpu").tolist()
    assert order(loader) == (whole[: rows // batch_size * batch_size] if drop_last else whole)


def test_epochs_differ_and_come_again(backend: Backend) -> None:
    loader = Loader(block_of(100, backend), batch_size=32, shuffle="rows", seed=4)
    first, second = order(loader), order(loader)
    assert first != second
    loader.set_epoch(0)
    assert order(loader) == first
    assert order(loader) == second
    assert order(Loader(block_of(100, backend), batch_size=7, shuffle=True, seed=4)) == first
    assert order(Loader(block_of(100, backend), batch_size=32, shuffle=True, seed=5)) != first


def test_an_epoch_begins_where_it_is_asked_for() -> None:
    loader = Loader(block_of(50, select("cpu")), batch_size=10, shuffle=True)
    one, two = iter(loader), iter(loader)
    loader.set_epoch(0)
    wanted = [order(loader), order(loader)]
    found: list[list[int]] = [[], []]
    for pair in zip(one, two, strict=True):  # both at work at once
        for seen, batch in zip(found, pair, strict=True):
            seen.extend(batch.codes[:, 0].tolist())
    assert found == wanted


@pytest.mark.parametrize(("drop_last", "sizes"), [(True, [4, 4]), (False, [4, 4, 2])])
def test_the_last_batch_can_be_dropped(backend: Backend, drop_last: bool, sizes: list[int]) -> None:
    loader = Loader(block_of(10, backend), batch_size=4, drop_last=drop_last)
    assert [len(batch) for batch in loader] == sizes and len(loader) == len(sizes)
    assert list(Loader(block_of(3, backend), batch_size=4, drop_last=True)) == []


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("reuse", [False, True])
def test_what_is_done_to_a_batch_never_reaches_the_block(backend: Backend, shuffle: bool, reuse: bool) -> None:
    block = block_of(8, backend)
    words, keep = block.words.clone(), {name: values.clone() for name, values in block.keep.items()}
    for batch in Loader(block, batch_size=8, shuffle=shuffle, reuse_buffers=reuse):
        for values in tensors(batch):
            values.fill_(99)
    assert torch.equal(block.words, words)
    assert all(torch.equal(block.keep[name], values) for name, values in keep.items())


@pytest.mark.parametrize("shuffle", [False, True])
def test_what_is_done_to_a_batch_never_reaches_the_users_frame(shuffle: bool) -> None:
    frame = pd.DataFrame(
        {n: np.arange(6.0, dtype=d) for n, d in {"x": "float32", "k": "int64", "y": "float64"}.items()}
    )
    before = frame.copy()
    pipeline = gp.Pipeline([], gp.Features(["x"], target="y", keep=["k"]), backend="cpu").fit(frame)
    for batch in pipeline.loader(frame, batch_size=3, shuffle=shuffle):
        for values in tensors(batch):
            if values is not None:
                values.fill_(99)
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_fresh_memory(backend: Backend, shuffle: bool) -> None:
    batches = list(Loader(block_of(12, backend), batch_size=4, shuffle=shuffle))
    assert len({batch.numeric.data_ptr() for batch in batches}) == 3
    assert sorted(row for batch in batches for row in batch.codes[:, 0].tolist()) == list(range(12))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_reused_buffer_is_overwritten(backend: Backend, shuffle: bool) -> None:
    block = block_of(10, backend)
    loader = Loader(block, batch_size=4, shuffle=shuffle, reuse_buffers=True)
    batches = list(loader)
    assert len({batch.numeric.data_ptr() for batch in batches}) == 1
    assert batches[0].numeric.data_ptr() != block.words.data_ptr()
    assert torch.equal(batches[0].codes[:2], batches[2].codes)
    assert [len(batch.keep["k"]) for batch in batches] == [4, 4, 2]
    assert len({batch.keep["k"].data_ptr() for batch in batches}) == 3, "what is kept may be collected"


def test_dictionaries_of_kept_strings() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "s": ["a", None, "b"]})
    loader = gp.Pipeline([], gp.Features(["x"], keep=["s"]), backend="cpu").fit(frame).loader(frame, shuffle="rows")
    (batch,) = loader
    words = [*loader.dictionaries["s"].to_pylist(), None]
    found = dict(zip(batch.numeric[:, 0].tolist(), [words[code] for code in batch.keep["s"].tolist()], strict=True))
    assert found == {1.0: "a", 2.0: None, 3.0: "b"}


def test_bad_parameters() -> None:
    block = block_of(1, select("cpu"))
    for shuffle in ("block", "row", None, 2):
        with pytest.raises(errors.BadConfig, match=rf"\(shuffle=\): no such choice, got {shuffle!r}"):
            Loader(block, shuffle=shuffle)  # type: ignore[arg-type]
    with raises(errors.BadConfig, where="loader(batch_size=)", got=0):
        Loader(block, batch_size=0)
