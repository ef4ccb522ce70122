"""An iteration that is taken up again gives exactly the batches that were still to come."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe.tensors import Loader
from tests.raising import raises
from tests.tensors.tables import block_of, rows_of

KINDS: list[dict[str, Any]] = [
    {},
    {"shuffle": "rows"},
    {"shuffle": "blocks", "block_rows": 7, "window": 3},
    {"shuffle": "blocks", "block_rows": 7, "window": 3, "residency": "host"},
    {"shuffle": "rows", "residency": "host"},
    {"sampler": torch.arange(100.0)},
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_rest_from_each_position(kind: dict[str, Any]) -> None:
    whole = [rows_of([batch]) for batch in Loader(block_of(100), batch_size=9, seed=3, **kind)]
    for position in range(len(whole) + 1):
        stopped, taken_up = (Loader(block_of(100), batch_size=9, seed=3, **kind) for _ in range(2))
        batches = iter(stopped)
        for _ in islice(batches, position):
            pass
        state = json.loads(json.dumps(stopped.state_dict()))
        assert (state["epoch"], state["batch"]) == (0, position)
        batches.close()  # type: ignore[attr-defined]
        taken_up.load_state_dict(state)
        taken_up.set_epoch(0)
        assert [rows_of([batch]) for batch in taken_up] == whole[position:]
        assert len(taken_up) == len(whole)
        second = Loader(block_of(100), batch_size=9, seed=3, **kind)
        second.set_epoch(1)
        assert rows_of(taken_up) == rows_of(second), "the epoch after it is whole"


def test_the_state_moves_with_the_batches() -> None:
    loader = Loader(block_of(10), batch_size=4, shuffle=True)
    seen = [loader.state_dict()["batch"]]
    seen.extend(loader.state_dict()["batch"] for _ in loader)
    assert seen == [0, 1, 2, 3]
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 0)
    loader.set_epoch(5)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (5, 0)


def test_another_epoch_begins_at_its_beginning() -> None:
    loader = Loader(block_of(10), batch_size=4)
    loader.load_state_dict(loader.state_dict() | {"epoch": 2, "batch": 1})
    loader.set_epoch(3)
    assert rows_of(loader) == list(range(10))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch_size": 5}, "batch_size"),
        ({"seed": 4}, "seed"),
        ({"shuffle": "blocks"}, "shuffle"),
        ({"drop_last": True}, "drop_last"),
    ],
)
def test_the_middle_of_another_order_is_refused(change: dict[str, Any], said: str) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": "rows"}
    loader = Loader(block_of(10), **options)
    next(iter(loader))
    other = Loader(block_of(10), **(options | change))
    with pytest.raises(errors.BadConfig, match=f"another {said}"):
        other.load_state_dict(loader.state_dict())
    with raises(errors.BadConfig, where="Loader.load_state_dict", got={"num_rows": 10}):
        Loader(block_of(11), **options).load_state_dict(loader.state_dict())
    for _ in loader:
        pass
    other.load_state_dict(loader.state_dict())
    assert other.state_dict()["epoch"] == 2
    with raises(errors.BadConfig, where="Loader.load_state_dict", got={}):
        loader.load_state_dict({})


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(0, 60), batch=st.integers(1, 20), ranks=st.integers(1, 4), later=st.integers(1, 4))
def test_the_number_of_ranks_may_change(rows: int, batch: int, ranks: int, later: int) -> None:
    before = Loader(block_of(rows), batch_size=batch, shuffle=True, rank=0, world_size=ranks)
    for _ in before:
        pass
    found = []
    for rank in range(later):
        loader = Loader(block_of(rows), batch_size=batch, shuffle=True, rank=rank, world_size=later)
        loader.load_state_dict(before.state_dict())
        found += rows_of(loader)
    assert sorted(found) == list(range(rows))
