"""LAMB and the row-wise optimiser against the papers' formulas; which parameters get which rate and decay."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpupipe.errors import BadConfig
from gpupipe.models import MLP, FTTransformer, Periodic
from gpupipe.tensors.batch import Batch
from gpupipe.training.optim.optimizers import (
    OPTIMIZERS,
    Lamb,
    RowWise,
    compact,
    make_optimizer,
    make_parameter_groups,
    use_sparse_gradients,
)
from tests.raising import raises

RATES = (0.1, 0.03, 0.2, 0.05)


def draws(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


def test_it_is_lamb() -> None:
    shapes = [(4, 3), (3,), (2, 2)]
    weights = draws(*shapes)
    weights[1].zero_()  # as biases start: no length to follow
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    lr = torch.zeros((), dtype=torch.float64)
    optimizer = Lamb([{"params": parameters, "weight_decay": 0.1}], lr=lr)
    m = [torch.zeros_like(weight) for weight in weights]
    v = [torch.zeros_like(weight) for weight in weights]
    for t, rate in enumerate(RATES, start=1):
        gradients = draws(*shapes, seed=t)
        for i, g in enumerate(gradients):
            parameters[i].grad = g.clone()
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g * g
            r = (m[i] / (1 - 0.9**t)) / ((v[i] / (1 - 0.999**t)).sqrt() + 1e-6) + 0.1 * weights[i]
            length, step = math.sqrt((weights[i] ** 2).sum()), math.sqrt((r**2).sum())
            weights[i] = weights[i] - rate * (length / step if length > 0 and step > 0 else 1.0) * r
        lr.fill_(rate)
        optimizer.step()
        for mine, expected in zip(parameters, weights, strict=True):
            torch.testing.assert_close(mine.detach(), expected)


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 2)
        self.head = nn.Linear(2, 1)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(ids))
        return out


def test_torchs_word_about_sparse_checks_is_no_error() -> None:
    """torch 2.11 warns once a process, although `check_invariants=False` says it."""
    warnings.warn("Sparse invariant checks are implicitly disabled. Memory errors (e.g. SEGFAULT)", stacklevel=1)


def rowwise_of(model: nn.Module, lr: Tensor) -> RowWise:
    made = make_optimizer("rowwise", make_parameter_groups(model, lr, highest=1.0, weight_decay=0.1, tables=True), lr)
    assert isinstance(made, RowWise)
    return made


def test_it_is_row_wise_adagrad_and_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.training.optim.optimizers.TABLE", 12)
    torch.manual_seed(0)
    model, theirs = Looked(), Looked()
    theirs.load_state_dict(model.state_dict())
    lr = torch.zeros(())
    optimizer = rowwise_of(model, lr)
    groups = [{"params": [theirs.head.weight], "weight_decay": 0.1}, {"params": [theirs.head.bias], "weight_decay": 0}]
    adamw = torch.optim.AdamW(groups)
    squares, table = [0.0] * 6, theirs.table.weight
    batches = [torch.tensor([1, 1, 4, 1]), torch.tensor([0, 4, 4, 4]), torch.tensor([1, 5, 0, 2])]
    for rate, ids in zip(RATES, batches, strict=False):
        optimizer.zero_grad()
        with use_sparse_gradients(model):
            (model(ids) ** 2).sum().backward()
        assert model.table.weight.grad.is_sparse
        model.table.weight.grad = compact(model.table.weight.grad)
        lr.fill_(rate)
        optimizer.step()

        theirs.zero_grad()
        (theirs(ids) ** 2).sum().backward()
        for group in adamw.param_groups:
            group["lr"] = rate
        adamw.step()
        for row in range(6):
            g = table.grad[row]
            squares[row] += float((g**2).mean())
            if row in ids.tolist():
                table.data[row] -= rate * g / (math.sqrt(squares[row]) + 1e-8)
        for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other)
    assert torch.equal(model.table.weight[3], theirs.table.weight[3])  # never looked up
    assert model.table.sparse is False


def test_a_compact_gradient_is_the_same_in_as_many_entries() -> None:
    rows, values = torch.tensor([[3, 0, 3, 5, 0, 3]]), draws((6, 2))[0]
    gradient = torch.sparse_coo_tensor(rows, values, (7, 2), check_invariants=True)
    small = compact(gradient)
    assert small._values().shape == (6, 2)
    torch.testing.assert_close(small.to_dense(), gradient.to_dense())
    torch.testing.assert_close(small._values().norm(), gradient.to_dense().norm())  # at most one entry a row


def test_lambs_count_of_steps_is_loaded_to_where_the_weights_are() -> None:
    """It comes from the host; there a captured step would take it for a constant."""
    weight = nn.Parameter(torch.empty(2, 2, device="meta"))
    optimizer = Lamb([weight], lr=torch.zeros((), device="meta"))
    saved = {"step": torch.ones(()), "exp_avg": torch.ones(2, 2), "exp_avg_sq": torch.ones(2, 2)}
    optimizer.load_state_dict({"state": {0: saved}, "param_groups": optimizer.state_dict()["param_groups"]})
    assert {value.device.type for value in optimizer.state[weight].values()} == {"meta"}


def test_a_gradient_of_no_rows_is_compact() -> None:
    """As of a batch whose lists are all empty."""
    bag = nn.EmbeddingBag(7, 2, sparse=True)
    bag(torch.empty(0, dtype=torch.int64), torch.tensor([0, 0])).sum().backward()
    small = compact(bag.weight.grad)
    assert small._values().shape == (0, 2) and not small.to_dense().any()


def test_only_large_embeddings_are_tables() -> None:
    model = nn.ModuleList([nn.Embedding(1 << 17, 8), nn.Embedding(100, 8), nn.Linear(1024, 1024)])
    groups = make_parameter_groups(model, torch.zeros(()), highest=1.0, weight_decay=0.1, tables=True)
    tables = [parameter for group in groups if group["table"] for parameter in group["params"]]
    assert [id(parameter) for parameter in tables] == [id(model[0].weight)]
    with use_sparse_gradients(model):
        assert [module.sparse for module in model[:2]] == [True, False]
    assert model[0].sparse is False


def test_weights_decay_and_nothing_else() -> None:
    model = nn.Sequential(MLP(3, [5, 5], hidden=(8,)), nn.LayerNorm(2))
    groups = make_parameter_groups(model, torch.zeros(()), highest=1.0, weight_decay=0.1)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decays = {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}
    assert {name for name, decay in decays.items() if decay} == {"0.layers.0.weight", "0.layers.2.weight"}
    assert set(decays) == set(names.values())


@pytest.mark.parametrize(
    ("model", "decays"),
    [
        (MLP(3, [5, 5], hidden=(8,), numbers=Periodic()), {"layers.0.weight", "layers.2.weight"}),
        (FTTransformer(3, [5, 5], blocks=1, dim=8, heads=2), {"last.weight"}),
    ],
    ids=["numbers", "tokens"],
)
def test_what_numbers_become_does_not_decay(model: nn.Module, decays: set[str]) -> None:
    groups = make_parameter_groups(model, torch.zeros(()), highest=1.0, weight_decay=0.1)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed = {names[id(p)] for group in groups for p in group["params"] if group["weight_decay"]}
    assert {name for name in decayed if not name.startswith("blocks.")} == decays


def test_groups_have_rates_and_decays_of_their_own() -> None:
    model, lr = MLP(3, [5, 5], hidden=(8,)), torch.zeros(())
    wanted = {"embedding.*": {"lr": 0.001}, "*.bias": {"weight_decay": 0.5}}
    groups = make_parameter_groups(model, lr, highest=0.01, weight_decay=0.1, groups=wanted)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {names[id(p)]: group for group in groups for p in group["params"]}
    assert found["embedding.table"]["lr_factor"] == pytest.approx(0.1)
    assert found["embedding.table"]["lr"] is not lr and found["layers.0.weight"]["lr"] is lr
    assert found["layers.0.bias"]["weight_decay"] == 0.5


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"embeding.*": {"lr": 0.1}}, "no such choice, got 'embeding"),
        ({"embedding.*": {"rate": 0.1}}, "no such choice, got 'rate'"),
        ({"embedding.*": {"lr": -1.0}}, "lr makes no sense"),
    ],
)
def test_groups_that_make_no_sense_are_refused(groups: Any, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        make_parameter_groups(MLP(3, [5]), torch.zeros(()), highest=0.01, weight_decay=0.1, groups=groups)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("adam", "no such choice, got 'adam'"),
        (lambda parameters, lr: torch.optim.SGD(parameters, lr=0.1), "a learning rate of its own"),
        (torch.optim.LBFGS, "(?s)torch does not make it|its step asks for the loss"),
        (lambda parameters, lr: torch.optim.LBFGS(parameters, lr=lr), "its step asks for the loss several times"),
        (torch.optim.SparseAdam, "torch does not make it"),
    ],
)
def test_an_optimiser_that_would_not_follow_the_schedule_is_refused(optimizer: Any, message: str) -> None:
    lr = torch.zeros(())
    with pytest.raises(BadConfig, match=message):
        make_optimizer(optimizer, make_parameter_groups(MLP(3, [5, 5]), lr, highest=1.0, weight_decay=0.0), lr)


def test_a_model_without_parameters_is_refused() -> None:
    with raises(BadConfig, where="Trainer", got="no parameter with requires_grad"):
        make_parameter_groups(nn.ReLU(), torch.zeros(()), highest=1.0, weight_decay=0.0)


@pytest.mark.parametrize(
    ("groups", "got", "remedy"),
    [
        ({"wieght": {"lr": 0.1}}, "wieght", "param_groups={'weight': {'lr': 0.1}}"),
        ({"*": {"rl": 0.1}}, "rl", "param_groups={'*': {'lr': 0.1}}"),
    ],
)
def test_a_misspelt_group_is_refused_and_the_remedy_is_one(groups: Any, got: str, remedy: str) -> None:
    with raises(BadConfig, where="Trainer(param_groups=)", got=got, remedy=remedy):
        make_parameter_groups(nn.Linear(2, 1), torch.zeros(()), highest=1.0, weight_decay=0.0, groups=groups)


def test_an_l2_penalty_is_part_of_the_loss() -> None:
    """A step of AdamW whose loss has penalty / 2 x sum(weight^2), written by hand."""
    torch.manual_seed(0)
    model, lr = MLP(numeric=2, cardinalities=[5], hidden=(4,), seed=1), torch.tensor(0.01)
    other = MLP(numeric=2, cardinalities=[5], hidden=(4,), seed=1)
    batch = Batch(torch.randn(6, 2), torch.tensor([[0], [1], [2], [2], [3], [4]], dtype=torch.int32))
    groups = make_parameter_groups(model, lr, highest=0.01, weight_decay=0.0, l2=model.compute_l2(600))
    optimizer = OPTIMIZERS["adamw"](groups, lr)
    by_hand = torch.optim.Adam(other.parameters(), lr=0.01)
    for _ in range(3):
        for each, network in ((optimizer, model), (by_hand, other)):
            each.zero_grad()
            loss = network(batch).square().mean()
            if network is other:
                loss = loss + 300 / 600 / 2 * other.embedding.table.square().sum()
            loss.backward()
            each.step()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


def test_a_users_own_decay_replaces_the_penalty() -> None:
    model, lr = MLP(numeric=1, cardinalities=[5], seed=1), torch.tensor(0.01)
    patterns = {"embedding.*": {"weight_decay": 0.5}}
    groups = make_parameter_groups(
        model, lr, highest=0.01, weight_decay=0.1, l2={"embedding.table": 3.0}, groups=patterns
    )
    own = next(group for group in groups if any(each is model.embedding.table for each in group["params"]))
    assert own["weight_decay"] == 0.5 and "decoupled_weight_decay" not in own
    assert model.compute_l2(None) == {"embedding.table": 0.0}
    assert MLP(numeric=1).compute_l2(10) == {}
