"""Lists of ids in the model: torch's own embedding bag is the oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gpupipe import errors
from gpupipe.models import MLP, DCNv2, FTTransformer, Linear, MultiTask, ResNet, TabM
from gpupipe.models.embeddings import SharedEmbedding
from gpupipe.models.tabular import Tabular
from gpupipe.schema import Field, Role, Schema
from gpupipe.tensors import Batch, Ragged
from tests.raising import raises

LISTS = Ragged(torch.tensor([2, 3, 4, 3], dtype=torch.int32), torch.tensor([0, 3, 3, 4]))


@pytest.mark.parametrize("bag", ["mean", "sum", "max"])
def test_a_bag_is_torchs(bag: str) -> None:
    embedding = SharedEmbedding([4], 8, torch.Generator().manual_seed(3), {"bought": 6, "seen": 5}, bag)
    twin = nn.EmbeddingBag(5, 8, mode=bag, include_last_offset=True, _weight=embedding.table.detach()[10:15].clone())
    ours, theirs = embedding.bag("seen", LISTS), twin(LISTS.values.long(), LISTS.offsets)
    torch.testing.assert_close(ours, theirs)
    assert not ours[1].any()
    ours.sum().backward()
    theirs.sum().backward()
    assert twin.weight.grad is not None and embedding.table.grad is not None
    torch.testing.assert_close(embedding.table.grad[10:15], twin.weight.grad)
    assert not embedding.table.grad[:10].any()


def test_an_id_without_a_row_is_unknown() -> None:
    embedding = SharedEmbedding([], 4, torch.Generator(), {"seen": 5})
    with torch.no_grad():
        embedding.table[1] = 1.0
    strange = Ragged(torch.tensor([5, -1, 1], dtype=torch.int32), torch.tensor([0, 1, 2, 3]))
    assert (embedding.bag("seen", strange) == 1).all()


def batch(**lists: Ragged) -> Batch:
    return Batch(torch.randn(3, 1), torch.zeros(3, 0, dtype=torch.int32), lists=lists)


@pytest.mark.parametrize("kind", [Linear, MLP, ResNet, DCNv2, FTTransformer, MultiTask, TabM])
def test_every_network_takes_lists(kind: type[Tabular]) -> None:
    fields = [
        Field("x", "float32", role=Role.FEATURE),
        Field("seen", "list<int32>", cardinality=5, role=Role.FEATURE),
        Field("target", "float32", role=Role.TARGET),
    ]
    model = kind.from_schema(Schema(fields), seed=2, bag="sum").eval()
    assert model.get_config()["lists"] == {"seen": 5} and model.get_config()["bag"] == "sum"
    twin = kind(**model.get_config()).eval()
    given = batch(seen=LISTS)
    assert torch.equal(model(given), twin(given)) and model(given).shape == (3,)
    model(given).sum().backward()
    assert model.embedding is not None and model.embedding.table.grad is not None
    assert model.embedding.table.grad[2:5].any()
    alone = kind(0, lists={"seen": 5}).eval()
    assert alone(Batch(torch.zeros(3, 0), torch.zeros(3, 0, dtype=torch.int32), lists={"seen": LISTS})).shape == (3,)


@pytest.mark.parametrize("lists", [{}, {"other": LISTS}, {"seen": LISTS, "other": LISTS}])
def test_a_batch_with_other_lists_is_refused(lists: dict[str, Any]) -> None:
    with pytest.raises(errors.SchemaMismatch, match=r"other lists than the model(.|\n)*'seen'"):
        MLP(1, lists={"seen": 5})(batch(**lists))


def test_lists_of_numbers_have_no_rows() -> None:
    fields = [Field("prices", "list<float32>", role=Role.FEATURE), Field("target", "float32", role=Role.TARGET)]
    with raises(errors.BadConfig, where="MLP.from_schema, column 'prices'", got="list<float32>"):
        MLP.from_schema(Schema(fields))


@pytest.mark.parametrize("wrong", [{"bag": "median"}, {"lists": {"seen": 1}}])
def test_what_makes_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.BadConfig, match="MLP"):
        MLP(1, **wrong)
