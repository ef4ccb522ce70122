"""Ragged features: from a backend's memory into batches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe.backend import Backend, Column
from gpupipe.schema import Field, Role, Schema
from gpupipe.tensors import FeatureTable, Loader, Ragged
from tests.raising import raises

SCHEMA = Schema(
    [
        Field("x", "float32", role=Role.FEATURE),
        Field("seen", "list<int32>", cardinality=100, role=Role.FEATURE),
        Field("prices", "list<float64>", role=Role.FEATURE),
    ]
)
LISTS = st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=12)


def ragged(rows: list[list[int]]) -> Ragged:
    offsets = np.append(0, np.cumsum([len(row) for row in rows], dtype=np.int64))
    values = [value for row in rows for value in row]
    return Ragged(torch.tensor(values, dtype=torch.int32), torch.from_numpy(offsets))


def plain(lists: Ragged) -> list[list[Any]]:
    assert lists.offsets[0] == 0 and lists.offsets[-1] == len(lists.values)
    return [lists.values[start:end].tolist() for start, end in pairwise(lists.offsets.tolist())]


def columns(rows: list[list[int]], backend: Backend) -> dict[str, Column]:
    lists = ragged(rows)
    offsets, data = (backend.to_device(part.numpy()) for part in (lists.offsets, lists.values))
    return {
        "x": Column("float32", backend.xp.arange(len(rows), dtype="float32")),
        "seen": Column("list<int32>", offsets, None, None, Column("int32", data)),
        "prices": Column("list<float64>", offsets, None, None, Column("float64", data / 2)),
    }


@settings(deadline=None)
@given(rows=LISTS, length=st.integers(1, 6), value=st.integers(0, 9))
def test_pad_is_what_a_loop_would_make(rows: list[list[int]], length: int, value: int) -> None:
    lists = ragged(rows)
    assert lists.pad(length, value).tolist() == [(row + [value] * length)[:length] for row in rows]
    assert lists.mask(length).tolist() == [[place < len(row) for place in range(length)] for row in rows]
    assert lists.pad(length, value).dtype == torch.int32
    assert lists.lengths.tolist() == [len(row) for row in rows]


def test_no_length_to_pad_to() -> None:
    with raises(errors.BadConfig, where="Ragged.pad", got=0):
        ragged([[1]]).pad(0)


@settings(deadline=None)
@given(rows=LISTS, data=st.data())
def test_take_gathers_lists(rows: list[list[int]], data: st.DataObject) -> None:
    at = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9) if rows else st.just([]))
    wanted = [rows[place] for place in at]
    for num_values in (None, sum(map(len, wanted))):
        assert plain(ragged(rows).take(torch.tensor(at, dtype=torch.int64), num_values)) == wanted


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("reuse", [False, True])
def test_a_batch_has_the_lists_of_its_rows(backend: Backend, shuffle: bool, reuse: bool) -> None:
    rows = [[number % 90] * (number % 4) for number in range(23)]
    block = FeatureTable.allocate(SCHEMA, len(rows), backend.device)
    for start in (0, 10):  # in parts, as partitions come
        block.write(start, columns(rows[start : start + 10 if start == 0 else None], backend), backend)
    seen = []
    numbers = torch.arange(23.0)
    block.numeric[:, 0] = numbers.to(block.device)
    for batch in Loader(block, batch_size=5, shuffle=shuffle, reuse_buffers=reuse):
        own = batch.numeric[:, 0].long().tolist()
        assert plain(batch.lists["seen"]) == [rows[number] for number in own]
        assert plain(batch.lists["prices"]) == [[value / 2 for value in rows[number]] for number in own]
        assert batch.lists["seen"].values.dtype == torch.int32
        assert batch.lists["prices"].values.dtype == torch.float32
        seen += own
        batch.lists["seen"].values.zero_()  # a copy: the next epoch finds its own
    assert (sorted(seen) == list(range(23))) and (seen != sorted(seen)) == shuffle
    again = next(iter(Loader(block, batch_size=23)))
    assert plain(again.lists["seen"]) == rows


def test_one_write_shares_the_backends_memory(backend: Backend) -> None:
    block = FeatureTable.allocate(SCHEMA, 2, backend.device)
    given = columns([[1, 2], [3]], backend)
    block.write(0, given, backend)
    elements = given["seen"].elements
    assert elements is not None
    assert block.lists["seen"].values.data_ptr() == torch.from_dlpack(elements.data).data_ptr()
    assert block.lists["seen"].offsets.data_ptr() == torch.from_dlpack(given["seen"].data).data_ptr()
    assert block.lists["seen"] is block.lists["seen"]


def test_a_block_without_rows_has_lists() -> None:
    block = FeatureTable.allocate(SCHEMA, 0, "cpu")
    assert plain(block.lists["seen"]) == []
    assert list(Loader(block)) == []


def test_a_missing_list_is_an_empty_one(backend: Backend) -> None:
    xp = backend.xp
    block = FeatureTable.allocate(SCHEMA.select(["seen"]), 2, backend.device)
    elements = Column("int32", xp.zeros(0, "int32"))
    block.write(0, {"seen": Column("list<int32>", xp.zeros(3, "int64"), xp.zeros(2, bool), None, elements)}, backend)
    assert plain(block.lists["seen"]) == [[], []]


@pytest.mark.parametrize(
    ("elements", "problem"),
    [
        (Column("float64", np.array([np.nan])), "1 missing element would reach the model"),
        (Column("float64", np.array([np.inf])), "1 infinite element would reach the model"),
        (Column("int64", np.array([1]), np.array([False])), "1 missing element would reach the model"),
    ],
)
def test_what_must_not_reach_a_model(elements: Column, problem: str) -> None:
    block = FeatureTable.allocate(SCHEMA.select(["prices"]), 1, "cpu")
    column = Column("list<float64>", np.array([0, 1]), None, None, elements)
    with pytest.raises(errors.BadData, match=f"column 'prices': {problem}"):
        block.write(0, {"prices": column}, cpu())


def test_texts_do_not_reach_a_model() -> None:
    words = Column("string", np.zeros(1, np.int8), None, pa.array(["a"], pa.large_string()))
    block = FeatureTable.allocate(SCHEMA.select(["prices"]), 1, "cpu")
    with raises(errors.SchemaMismatch, where="column 'prices'", match="pre.Categorify"):
        block.write(0, {"prices": Column("list<string>", np.array([0, 1]), None, None, words)}, cpu())


def cpu() -> Backend:
    from gpupipe.backend import select

    return select("cpu")
