"""What the trainer reads from a batch, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch

from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.tensors import Batch, Ragged
from gpupipe.training.loop.batches import full_precision, matching_target, move, num_batches, num_rows, split_rows
from tests.raising import raises


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


X, Y = torch.zeros(4, 2), torch.zeros(4)
META = torch.device("meta")


@pytest.mark.parametrize(
    "batch",
    [Batch(X, X.int(), Y), (X, Y), [X, Y], {"x": X, "y": Y}, Pair(X, Y), (torch.tensor(1.0), {"inner": [X]}), X],
    ids=["batch", "tuple", "list", "mapping", "namedtuple", "nested", "tensor"],
)
def test_rows_are_counted_and_moved_in_any_tree(batch: Any) -> None:
    assert num_rows(batch) == 4
    moved = move(batch, META)
    assert type(moved) is type(batch)
    assert num_rows(moved) == 4
    assert all(leaf.device == META for leaf in torch.utils._pytree.tree_leaves(getattr(moved, "numeric", moved)))


def test_a_batch_that_lies_there_is_not_touched() -> None:
    batch = Batch(X, X.int(), Y)
    assert move(batch, torch.device("cpu")) is batch


def test_moving_takes_every_part_of_a_batch_along() -> None:
    moved = move(Batch(X, X.int(), Y, Y, {"when": Y.long()}), META)
    assert {t.device for t in (moved.numeric, moved.codes, moved.target, moved.weight, moved.keep["when"])} == {META}
    assert move(Batch(X, X.int()), META).target is None


def test_what_is_no_tensor_stays() -> None:
    assert move({"x": X, "name": "a"}, META)["name"] == "a"


@pytest.mark.parametrize("batch", [(), {"name": "a"}, torch.tensor(1.0), None])
def test_a_batch_without_rows_to_count_is_an_error(batch: Any) -> None:
    with pytest.raises(BadData, match="a batch without rows to count"):
        num_rows(batch)


def test_a_target_of_another_shape_is_not_broadcast() -> None:
    batch = Batch(X, X.int(), Y)
    with raises(SchemaMismatch, where="loss 'mse'", got="output (4, 1), target (4,)") as caught:
        matching_target(Y[:, None], batch, "loss 'mse'")
    assert "squeeze(1)" in caught.value.remedy
    with raises(SchemaMismatch, where="loss 'cross-entropy'", got="output (4,), target (4,)") as caught:
        matching_target(Y, batch, "loss 'cross-entropy'", classes=True)
    assert caught.value.remedy.startswith("loss='auto'")
    assert matching_target(X, batch, "loss 'cross-entropy'", classes=True) is batch.target


@pytest.mark.parametrize("batch", [Batch(X, X.int()), (X, Y)])
def test_a_batch_without_a_target_is_an_error(batch: Any) -> None:
    with raises(BadData, where="loss 'mse'"):
        matching_target(Y, batch, "loss 'mse'")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_full_precision(given: torch.dtype, expected: torch.dtype) -> None:
    assert full_precision(torch.zeros(2, dtype=given)).dtype == expected


class Endless(torch.utils.data.IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield X


@pytest.mark.parametrize("loader", [iter([X]), torch.utils.data.DataLoader(Endless())])
def test_a_loader_without_a_length_is_an_error(loader: Any) -> None:
    with pytest.raises(BadConfig, match="does not say how many batches"):
        num_batches(loader)


def test_a_loader_with_a_length_tells_it() -> None:
    assert num_batches([X, X]) == 2


def test_lists_are_split_where_the_rows_are() -> None:
    lists = Ragged(torch.arange(5), torch.tensor([0, 2, 2, 5]))
    batch = Batch(torch.zeros(3, 1), torch.zeros(3, 0, dtype=torch.int32), lists={"seen": lists})
    one, two = split_rows(batch, 2)
    assert [part.lists["seen"].values.tolist() for part in (one, two)] == [[0, 1], [2, 3, 4]]
    assert [part.lists["seen"].offsets.tolist() for part in (one, two)] == [[0, 2, 2], [0, 3]]
