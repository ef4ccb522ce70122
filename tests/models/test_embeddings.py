"""One table for all categorical columns: the same as a table each."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpupipe.models.embeddings import RESERVED, SharedEmbedding

CARDINALITIES = [5, 2, 40]


@pytest.fixture
def embedding() -> SharedEmbedding:
    return SharedEmbedding(CARDINALITIES, 6, torch.Generator().manual_seed(3))


def test_it_equals_a_table_per_column(embedding: SharedEmbedding) -> None:
    tables = embedding.table.detach().split(CARDINALITIES)
    codes = torch.stack([torch.randint(0, n, (100,), dtype=torch.int32) for n in CARDINALITIES], 1)
    alone = torch.stack([nn.Embedding.from_pretrained(t)(codes[:, i]) for i, t in enumerate(tables)], 1)
    assert torch.equal(embedding(codes), alone)
    assert torch.equal(embedding(codes.long()), alone)


def test_gradients_reach_only_the_rows_looked_up(embedding: SharedEmbedding) -> None:
    embedding(torch.tensor([[4, 1, 0]], dtype=torch.int32)).sum().backward()
    touched = embedding.table.grad.abs().sum(1).nonzero().flatten().tolist()
    assert touched == [4, 5 + 1, 5 + 2 + 0]


@pytest.mark.parametrize("code", [-1, 5, 6, 2**31 - 1])
def test_an_id_without_a_row_is_read_as_unknown(embedding: SharedEmbedding, code: int) -> None:
    nn.init.normal_(embedding.table)
    found = embedding(torch.tensor([[code, 0, 0], [1, 0, 0]], dtype=torch.int32))
    assert torch.equal(found[0], found[1])


def test_missing_and_unknown_start_at_zero_and_nothing_else_does(embedding: SharedEmbedding) -> None:
    for table in embedding.table.detach().split(CARDINALITIES):
        assert not table[:RESERVED].any()
        assert table[RESERVED:].all()


@pytest.mark.parametrize(("largest", "width"), [(2, 4), (12, 8), (97, 24), (1000, 32)])
def test_the_automatic_width_goes_by_the_largest_column(largest: int, width: int) -> None:
    rule = 1.6 * largest**0.56
    assert width == 32 < rule or rule <= width < rule + 4
    assert SharedEmbedding([2, largest], "auto", torch.Generator()).dim == width


def test_state_holds_the_table_alone(embedding: SharedEmbedding) -> None:
    assert list(embedding.state_dict()) == ["table"]
