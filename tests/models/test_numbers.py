"""Embedded numbers against the paper's formulas, written out value by value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.errors import BadConfig
from gpupipe.models import MLP, Periodic, PiecewiseLinear
from gpupipe.models.embeddings import parse_numbers
from gpupipe.schema import Field, Role, Schema
from gpupipe.tensors import FeatureTable, Loader
from tests.raising import raises


def by_hand(x: float, edges: list[float]) -> list[float]:
    """Equation 1 of the paper: e_t of T bins b_0 .. b_T."""
    bins = len(edges) - 1
    values = []
    for t in range(1, bins + 1):
        low, high = edges[t - 1], edges[t]
        if x < low and t > 1:
            values.append(0.0)
        elif x >= high and t < bins:
            values.append(1.0)
        else:
            values.append((x - low) / (high - low))
    return values


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(st.integers(-50, 50), max_size=6, unique=True).map(lambda e: [v / 8 for v in sorted(e)]),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.integers(-80, 80), min_size=1, max_size=6),
)
def test_piecewise_linear_is_the_formula(edges: list[list[float]], values: list[int]) -> None:
    layer = PiecewiseLinear(edges, dim=2).build(len(edges), torch.Generator())
    numbers = torch.tensor([[value / 8] * len(edges) for value in values])
    found = layer.encode(numbers)
    for row, value in enumerate(values):
        for column, each in enumerate(edges):
            wanted = by_hand(value / 8, each) if len(each) > 1 else []
            wanted += [0.0] * (found.shape[2] - len(wanted))
            assert found[row, column].tolist() == pytest.approx(wanted, abs=1e-5)


def test_periodic_is_the_formula() -> None:
    layer = Periodic(dim=3, frequencies=4, sigma=0.3).build(2, torch.Generator().manual_seed(2))
    numbers = torch.tensor([[0.5, -2.0], [0.0, 1.0]])
    found = layer.encode(numbers)
    for row in range(2):
        for column in range(2):
            waves = [2 * math.pi * c * float(numbers[row, column]) for c in layer.frequencies[column].tolist()]
            wanted = [math.cos(v) for v in waves] + [math.sin(v) for v in waves]
            assert found[row, column].tolist() == pytest.approx(wanted, abs=1e-5)


def test_each_number_has_a_layer_of_its_own() -> None:
    layer = Periodic(dim=3, frequencies=4).build(2, torch.Generator().manual_seed(2))
    numbers = torch.randn(5, 2)
    encoded = layer.encode(numbers)
    for column in range(2):
        alone = (encoded[:, column] @ layer.weight[column] + layer.bias[column]).relu()
        torch.testing.assert_close(layer(numbers)[:, column], alone)


def loader_of(values: np.ndarray) -> Loader:
    schema = Schema([Field(f"x{place}", "float32", role=Role.FEATURE) for place in range(values.shape[1])])
    block = FeatureTable.allocate(schema, len(values), "cpu")
    block.numeric.copy_(torch.from_numpy(values))
    return Loader(block)


def test_edges_are_numpys_quantiles_without_repetitions() -> None:
    draw = np.random.default_rng(3)
    values = np.stack([draw.normal(size=500), draw.integers(0, 3, 500), np.full(500, 7.0)], 1).astype("float32")
    edges = PiecewiseLinear.fit(loader_of(values), bins=10).edges
    assert edges[0] == pytest.approx(np.quantile(values[:, 0], np.linspace(0, 1, 11), method="lower"))
    assert list(edges[1]) == [0.0, 1.0, 2.0]
    assert list(edges[2]) == [7.0]


def test_of_many_rows_a_sample_tells_the_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.models.embeddings.SAMPLE_ROWS", 2000)
    values = np.linspace(0, 1, 50_000, dtype="float32")[:, None]
    edges = PiecewiseLinear.fit(loader_of(values), bins=4).edges[0]
    assert edges == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=0.05)
    assert edges == PiecewiseLinear.fit(loader_of(values), bins=4).edges[0]


def test_no_rows_and_one_number_tell_nothing() -> None:
    assert PiecewiseLinear.fit(loader_of(np.zeros((0, 2), "float32"))).edges == [[], []]
    model = MLP(2, hidden=(4,), numbers=PiecewiseLinear([[], [3.0]]))
    assert model.numbers is not None
    assert not model.numbers.encode(torch.randn(4, 2)).any()


def test_settings_go_through_json() -> None:
    for numbers in (Periodic(dim=5, sigma=0.2), PiecewiseLinear([[0.0, 1.0], []], dim=4)):
        assert parse_numbers(numbers.to_json()) == numbers


def test_what_makes_no_sense_is_refused() -> None:
    with raises(BadConfig, where="PiecewiseLinear(edges=)", got=1):
        MLP(3, numbers=PiecewiseLinear([[0.0, 1.0]]))
    with raises(BadConfig, where="PiecewiseLinear(edges=)", got=[[1.0, 0.0]]):
        PiecewiseLinear([[1.0, 0.0]])
    with raises(BadConfig, where="Periodic(sigma=)", got=0.0):
        Periodic(sigma=0.0)
    with raises(BadConfig, where="PiecewiseLinear.fit", got=0):
        PiecewiseLinear.fit(loader_of(np.zeros((3, 1), "float32")), bins=0)
    with raises(BadConfig, where="PiecewiseLinear.fit", got="list"):
        PiecewiseLinear.fit([])
    with raises(BadConfig, where="model(numbers=)", got={"kind": "wavelets"}):
        MLP(1, numbers={"kind": "wavelets"})
