"""Every row once, in the same order wherever the table lies and however many take part."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.backend import Backend
from gpupipe.tensors import Loader
from gpupipe.tensors.order import ByBlocks

from .tables import WEIGHTED, block_of, rows_of

SHUFFLES = st.sampled_from([False, "rows", "blocks"])


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(0, 200),
    block_rows=st.integers(1, 70),
    window=st.integers(1, 6),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 3),
    cuts=st.lists(st.integers(0, 200), max_size=4),
)
def test_blocks_are_a_permutation_that_can_be_asked_for_anywhere(
    rows: int, block_rows: int, window: int, seed: int, epoch: int, cuts: list[int]
) -> None:
    order = ByBlocks(rows, block_rows, window, seed=seed, epoch=epoch)
    cpu = torch.device("cpu")

    def at(start: int, stop: int) -> list[int]:
        found = order.at(start, stop, cpu)
        return list(range(rows))[found] if isinstance(found, slice) else found.tolist()

    whole = at(0, rows)
    assert sorted(whole) == list(range(rows))
    ends = sorted({0, rows, *(cut for cut in cuts if cut <= rows)})
    assert [row for a, b in pairwise(ends) for row in at(a, b)] == whole
    for position, row in enumerate(whole):  # a row comes with the window that its block is in
        number = order.window_of(position)
        assert any(first <= row < last for first, last in order.ranges(number))
        assert order.starts_at(number) <= position < order.starts_at(number + 1)
        assert len(order.ranges(number)) <= window


def test_one_window_is_a_shuffle_of_all_rows() -> None:
    found = rows_of(Loader(block_of(5000), batch_size=512, shuffle="blocks", seed=1))
    places = np.argsort(found)
    assert abs(np.corrcoef(np.arange(5000), places)[0, 1]) < 0.05


def test_windows_mix_far_places_and_epochs_differ() -> None:
    loader = Loader(block_of(4000), batch_size=200, shuffle="blocks", block_rows=100, window=8, seed=1)
    batches = [rows_of([batch]) for batch in loader]
    assert min(len({row // 100 for row in batch}) for batch in batches) >= 7, "a batch has rows of all its blocks"
    blocks = [tuple(sorted({row // 100 for row in batch})) for batch in batches]
    again = [tuple(sorted({row // 100 for row in rows_of([batch])})) for batch in loader]
    assert set(blocks) != set(again), "other blocks meet in the next epoch"


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(0, 150),
    batch_size=st.integers(1, 60),
    ranks=st.integers(1, 5),
    shuffle=SHUFFLES,
    host=st.booleans(),
    weighted=st.booleans(),
    drop_last=st.booleans(),
    reuse=st.booleans(),
)
def test_ranks_take_the_slices_of_one(
    rows: int, batch_size: int, ranks: int, shuffle: Any, host: bool, weighted: bool, drop_last: bool, reuse: bool
) -> None:
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "shuffle": shuffle,
        "block_rows": 11,
        "window": 3,
        "drop_last": drop_last,
        "reuse_buffers": reuse,
    }
    schema = {"schema": WEIGHTED} if weighted else {}
    block = block_of(rows, first=1, **schema)  # weights above 0
    alone = [rows_of([batch]) for batch in Loader(block, **options)]
    assert sorted(chain(*alone)) == list(range(1, rows + 1)) or drop_last
    found: list[list[list[int]]] = []
    for rank in range(ranks):
        loader = Loader(block, rank=rank, world_size=ranks, residency="host" if host else "device", **options)
        found.append([])
        sizes, weights = [], set()
        for batch in loader:
            found[-1].append(rows_of([batch]))
            sizes.append(len(batch))
            weights.add(batch.weight is not None)
            if batch.weight is not None and not weighted:
                assert set(batch.weight.tolist()) <= {0.0, 1.0}
        assert len(sizes) == len(loader) == len(alone)
        assert sizes == [-(-len(batch) // ranks) for batch in alone], "all ranks have batches of one size"
        assert len(weights) <= 1, "all batches have the same columns"
    together = [list(chain(*parts)) for parts in zip(*found, strict=True)]
    assert together == alone


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    shards=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    batch_size=st.integers(1, 30),
    shuffle=SHUFFLES,
    host=st.booleans(),
)
def test_shards_of_any_size_take_equally_many_steps(
    shards: list[int], batch_size: int, shuffle: Any, host: bool
) -> None:
    found, sizes, first = [], [], 1
    for rank, rows in enumerate(shards):
        loader = Loader(
            block_of(rows, first=first),
            batch_size=batch_size,
            shuffle=shuffle,
            block_rows=5,
            window=2,
            rank=rank,
            world_size=len(shards),
            sharded=shards,
            residency="host" if host else "device",
        )
        batches = list(loader)
        found += rows_of(batches)
        sizes.append([len(batch) for batch in batches])
        first += rows
    assert sorted(found) == list(range(1, sum(shards) + 1))
    assert all(size == sizes[0] for size in sizes)


@pytest.mark.parametrize("shuffle", [False, "rows", "blocks"])
def test_the_same_order_from_the_device_and_in_slabs(
    backend: Backend, shuffle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupipe.tensors.loader.SLAB_BYTES", 1 << 20)
    options: dict[str, Any] = {"batch_size": 1000, "shuffle": shuffle, "block_rows": 1024, "window": 3, "seed": 2}
    rows = 150_000  # several slabs
    block = block_of(rows, backend)
    here = torch.cat([batch.codes[:, 0] for batch in Loader(block, **options)])
    for reuse in (False, True):
        loader = Loader(block, residency="host", reuse_buffers=reuse, **options)
        parts, places = [], set()
        for batch in loader:
            parts.append(batch.codes[:, 0].clone())
            places.add(batch.numeric.data_ptr())
        assert torch.equal(torch.cat(parts), here)
    assert torch.equal(here.sort().values.cpu(), torch.arange(rows, dtype=torch.int32))


def test_each_window_is_mixed_in_another_way() -> None:
    order, cpu = ByBlocks(400, 25, 4, seed=1, epoch=0), torch.device("cpu")
    inside = [order.inside(number, order.starts_at(number), order.starts_at(number + 1), cpu) for number in range(4)]
    assert len({tuple(rows.tolist()) for rows in inside if isinstance(rows, torch.Tensor)}) == 4
