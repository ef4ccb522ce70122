"""The parts of the networks against their papers' formulas, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

from gpupipe.models import MLP, DCNv2, FTTransformer, Linear, MultiTask, ResNet
from gpupipe.models.dcn import Cross
from gpupipe.models.ft_transformer import Attention
from gpupipe.models.resnet import BatchNorm
from gpupipe.tensors.batch import Batch


def draw(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# linear ---------------------------------------------------------------------------------------------------------------
def test_linear_is_a_weight_per_number_and_per_one_hot_column(rows: Any) -> None:
    model, batch = Linear(3, [7, 4], 2), rows(25)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=draw())
    assert model.embedding is not None
    one_hot = torch.cat([torch.nn.functional.one_hot(batch.codes[:, i].long(), n) for i, n in ((0, 7), (1, 4))], 1)
    wanted = batch.numeric @ model.weight + one_hot.float() @ model.embedding.table + model.bias
    torch.testing.assert_close(model(batch), wanted)


def test_linear_learns_what_least_squares_does(rows: Any) -> None:
    batch = rows(400, 3, ())
    target = batch.numeric @ torch.tensor([1.0, -2.0, 0.5]) + 3 + 0.1 * torch.randn(400, generator=draw())
    model = Linear(3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=50)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = ((model(batch) - target) ** 2).mean()
        value.backward()
        return value

    optimizer.step(loss)
    oracle = Ridge(alpha=0.0).fit(batch.numeric.numpy(), target.numpy())
    assert model.weight.detach().numpy()[:, 0] == pytest.approx(oracle.coef_, abs=1e-3)
    assert model.bias.item() == pytest.approx(oracle.intercept_, abs=1e-3)


# DCNv2 ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rank", [None, 2])
def test_a_cross_layer_is_equation_1_value_by_value(rank: int | None) -> None:
    cross = Cross(4, rank, draw())
    torch.nn.init.normal_(cross.widen.bias, generator=draw())
    first, values = torch.randn(3, 4, generator=draw(2)), torch.randn(3, 4, generator=draw(3))
    weight = cross.widen.weight if cross.narrow is None else cross.widen.weight @ cross.narrow.weight
    w, b, x0, x = (t.detach().double().numpy() for t in (weight, cross.widen.bias, first, values))
    wanted = [
        [x0[r, i] * (sum(w[i, j] * x[r, j] for j in range(4)) + b[i]) + x[r, i] for i in range(4)] for r in range(3)
    ]
    np.testing.assert_allclose(cross(first, values).detach().numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("structure", ["parallel", "stacked"])
def test_dcn_is_crosses_and_layers(structure: Any, rows: Any) -> None:
    model, batch = DCNv2(3, [7, 4], 2, hidden=(8,), structure=structure, seed=3), rows(10)
    first = model.inputs(batch)
    crossed = first
    for cross in model.crosses:
        crossed = first * (crossed @ cross.widen.weight.T + cross.widen.bias) + crossed

    def deep(values: Tensor) -> Tensor:
        return (values @ model.layers[0].weight.T + model.layers[0].bias).relu()

    both = torch.cat([crossed, deep(first)], 1) if structure == "parallel" else deep(crossed)
    torch.testing.assert_close(model(batch), both @ model.last.weight.T + model.last.bias)


# ResNet ---------------------------------------------------------------------------------------------------------------
def test_resnet_is_the_papers(rows: Any) -> None:
    model, batch = ResNet(3, [7, 4], blocks=2, width=6, hidden_factor=1.5, dropout=0.0, seed=3), rows(40)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=draw())

    def norm(layer: Any, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt() * layer.weight + layer.bias

    def line(layer: Any, x: Tensor) -> Tensor:
        return x @ layer.weight.T + layer.bias

    x = line(model.first, model.inputs(batch))
    for block in model.blocks:
        x = x + line(block.leave, line(block.enter, norm(block.norm, x)).relu())
    wanted = line(model.last, norm(model.norm, x).relu())[:, 0]
    torch.testing.assert_close(model(batch), wanted, rtol=1e-4, atol=1e-4)


def test_a_batch_of_one_row_trains_and_leaves_the_running_figures() -> None:
    norm, plain = BatchNorm(3), torch.nn.BatchNorm1d(3)
    many, one = torch.randn(20, 3, generator=draw()), torch.randn(1, 3, generator=draw(2))
    torch.testing.assert_close(norm(many), plain(many))
    before = norm.running_mean.clone()
    output = norm(one)
    assert torch.equal(norm.running_mean, before)
    torch.testing.assert_close(output, norm.eval()(one))


# FT-Transformer -------------------------------------------------------------------------------------------------------
def softmax_attention(attention: Attention, asking: Tensor, tokens: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V, head by head, in loops."""
    query, key, value = attention.query(asking), attention.key(tokens), attention.value(tokens)
    width = query.shape[-1] // attention.heads
    heads = []
    for start in range(0, query.shape[-1], width):
        q, k, v = (each[..., start : start + width] for each in (query, key, value))
        scores = q @ k.transpose(1, 2) / width**0.5
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        heads.append(weights @ v)
    return attention.out(torch.cat(heads, -1))


def test_attention_is_a_softmax() -> None:
    attention = Attention(12, 3, 0.0, draw())
    tokens = torch.randn(5, 7, 12, generator=draw(2))
    torch.testing.assert_close(attention(tokens, tokens), softmax_attention(attention, tokens, tokens))
    asking = tokens[:, :1]
    torch.testing.assert_close(attention(asking, tokens), softmax_attention(attention, asking, tokens))


def test_tokens_are_the_papers(rows: Any) -> None:
    model, batch = FTTransformer(3, [7, 4], dim=4, heads=2), rows(6)
    tokens = model.tokens(batch)
    assert model.embedding is not None
    assert tokens.shape == (6, 1 + 3 + 2, 4)
    assert torch.equal(tokens[:, 0], model.cls.expand(6, -1))
    for j in range(3):
        torch.testing.assert_close(tokens[:, 1 + j], batch.numeric[:, j, None] * model.weight[j] + model.bias[j])
    for j, start in ((0, 0), (1, 7)):
        wanted = model.embedding.table[batch.codes[:, j] + start] + model.bias[3 + j]
        torch.testing.assert_close(tokens[:, 4 + j], wanted)


def test_the_last_block_may_leave_out_what_nobody_reads(rows: Any) -> None:
    model, batch = FTTransformer(3, [7, 4], blocks=3, dim=8, heads=2, seed=2).eval(), rows(10)
    short = model(batch)
    model.blocks[-1].last = False
    torch.testing.assert_close(model(batch), short)


def test_a_block_is_the_papers() -> None:
    block = FTTransformer(2, blocks=2, dim=6, heads=2, seed=5).blocks[1]
    block.last = False
    tokens = torch.randn(4, 3, 6, generator=draw())

    def norm(x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()

    x = tokens + softmax_attention(block.attention, norm(tokens), norm(tokens))
    wide = block.enter(norm(x))
    values, gate = wide[..., : wide.shape[-1] // 2], wide[..., wide.shape[-1] // 2 :]
    torch.testing.assert_close(block(tokens), x + block.leave(values * gate.clamp(min=0)), rtol=1e-4, atol=1e-5)


def test_the_first_attention_is_not_normalised_and_the_others_are() -> None:
    blocks = FTTransformer(2, blocks=2, dim=6, heads=2).blocks
    assert [isinstance(block.before_attention, torch.nn.LayerNorm) for block in blocks] == [False, True]


# multi-task -----------------------------------------------------------------------------------------------------------
def test_heads_are_layers_of_their_own(rows: Any) -> None:
    model, batch = MultiTask(3, [7, 4], 3, hidden=(8,), head=(5, 4), seed=2), rows(12)
    shared = model.layers(model.inputs(batch))
    for task in range(3):
        x = shared
        for depth, layer in enumerate(model.heads):
            x = (x if depth == 0 else x.relu()) @ layer.weight[task] + layer.bias[task, 0]
        torch.testing.assert_close(model(batch)[:, task], x[:, 0])


def test_a_target_moves_its_head_and_the_trunk_alone(rows: Any) -> None:
    model = MultiTask(3, [7, 4], 2, hidden=(8,), head=(5,), seed=2)
    model(rows(30))[:, 1].sum().backward()
    for layer in model.heads:
        assert not layer.weight.grad[0].any()
        assert layer.weight.grad[1].any()
    assert model.layers[0].weight.grad.any()


# numbers in a network -------------------------------------------------------------------------------------------------
def test_an_mlp_reads_embedded_numbers_in_their_place(rows: Any) -> None:
    numbers = {"kind": "periodic", "dim": 3, "frequencies": 2, "sigma": 0.5}
    model, batch = MLP(3, [7, 4], hidden=(), numbers=numbers, embedding_dim=2, seed=1), rows(8)
    assert model.numbers is not None and model.embedding is not None
    inputs = torch.cat([*model.numbers(batch.numeric).unbind(1), *model.embedding(batch.codes).unbind(1)], 1)
    assert inputs.shape == (8, model.num_inputs) == (8, 3 * 3 + 2 * 2)
    torch.testing.assert_close(model(batch), inputs @ model.layers[0].weight[0] + model.layers[0].bias[0])


def test_no_numbers_at_all_leave_nothing_to_embed() -> None:
    model = MLP(0, [4], hidden=(), numbers={"kind": "periodic"})
    assert model.numbers is None
    assert model(Batch(torch.zeros(2, 0), torch.ones(2, 1, dtype=torch.int32))).shape == (2,)
