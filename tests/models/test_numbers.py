"""Embedded numbers against the paper's formulas, written out value by value."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.errors import BadConfig
from gpupipe.models import MLP, DCNv2, MultiTask, Periodic, PiecewiseLinear, ResNet
from gpupipe.models.embeddings import parse_numbers
from gpupipe.schema import Field, Role, Schema
from gpupipe.tensors import Batch
from tests.raising import raises


def by_hand(x: float, edges: list[float]) -> list[float]:
    """Equation 1 of the paper: e_t of T bins b_0 .. b_T; beyond them all are 0, or 1."""
    bins = len(edges) - 1
    values = []
    for t in range(1, bins + 1):
        low, high = edges[t - 1], edges[t]
        if x < low:
            values.append(0.0)
        elif x >= high:
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


def test_edges_come_from_the_schema() -> None:
    fields = [Field(name, "float32", role=Role.FEATURE) for name in ("x", "constant", "unseen")]
    schema = Schema(fields, edges={"x": (0.0, 1.0, 4.0), "constant": (7.0,)})
    numbers = PiecewiseLinear.from_schema(schema, dim=3)
    assert numbers.edges == [(0.0, 1.0, 4.0), (7.0,), None] and numbers.dim == 3
    encoded = numbers.build(3, torch.Generator()).encode(torch.tensor([[2.5, 7.0, 2.5]]))
    assert encoded[0].tolist() == [[1.0, 0.5], [0.0, 0.0], [2.5, 0.0]]


@pytest.mark.parametrize("network", [MLP, ResNet, DCNv2, MultiTask])
def test_numbers_are_embedded_by_default(network: type[MLP]) -> None:
    target = Field("y", "float32", role=Role.TARGET)
    schema = Schema([Field("x", "float32", role=Role.FEATURE), target], edges={"x": (0.0, 1.0, 4.0)})
    assert network.from_schema(schema).get_config()["numbers"]["edges"] == [[0.0, 1.0, 4.0]]
    assert network.from_schema(schema, numbers=None).numbers is None
    assert isinstance(network.from_schema(schema, numbers=Periodic()).get_config()["numbers"]["sigma"], float)
    fields = [Field(f"x{number}", "float32", role=Role.FEATURE) for number in range(201)]
    wide = Schema([*fields, target], edges={item.name: (0.0, 1.0) for item in fields})
    assert network.from_schema(wide).numbers is None


def test_a_number_beyond_those_of_the_fit_counts_as_the_nearest() -> None:
    """Years after those that were learned from are as the last one: a line would go on at the slope of one bin."""
    fields = [Field("year", "float32", role=Role.FEATURE), Field("y", "float32", role=Role.TARGET)]
    model = MLP.from_schema(Schema(fields, edges={"year": (-1.0, 0.5, 1.0)}), hidden=(8,), seed=3)
    outputs = model(Batch(torch.tensor([[0.5], [1.0], [9.0], [1e6]]), torch.zeros(4, 0, dtype=torch.int32)))
    assert outputs[0] != outputs[1] and torch.equal(outputs[2:], outputs[1:2].expand(2))


def test_a_regression_begins_with_straight_lines() -> None:
    """Of the few rows in the last bin, from 4 to 9000, a bin's own slope would be learned slowly."""
    fields = [Field("x", "float32", role=Role.FEATURE), Field("list", "float32", role=Role.FEATURE)]
    edges = {"x": (0.0, 1.0, 4.0, 9000.0)}
    for classes in (None, ("no", "yes")):
        schema = Schema([*fields, Field("y", "float32", role=Role.TARGET, classes=classes)], edges=edges)
        numbers = PiecewiseLinear.from_schema(schema, dim=3)
        assert numbers.linear == (classes is None)
        layer = numbers.build(2, torch.Generator().manual_seed(1))
        values = torch.tensor([[0.5, 7.0], [5000.0, -7.0], [1e6, 0.0]])
        held = torch.tensor([[0.5, 7.0], [5000.0, -7.0], [9000.0, 0.0]])
        if layer.slopes is not None:
            torch.testing.assert_close(layer(values), held.unsqueeze(2) * layer.slopes + layer.bias)
            layer.weight.data.fill_(1.0)
            torch.testing.assert_close(layer(values)[2, 0], 9000 * layer.slopes[0] + layer.bias[0] + 3)
        else:
            assert bool((layer(values) >= 0).all())


def test_no_rows_and_one_number_tell_nothing() -> None:
    model = MLP(2, hidden=(4,), numbers=PiecewiseLinear([[], [3.0]]))
    assert model.numbers is not None
    assert not model.numbers.encode(torch.randn(4, 2)).any()


def test_settings_go_through_json() -> None:
    for numbers in (Periodic(dim=5, sigma=0.2), PiecewiseLinear([[0.0, 1.0], [], None], dim=4, linear=True)):
        assert parse_numbers(numbers.to_json()) == numbers


def test_what_makes_no_sense_is_refused() -> None:
    with raises(BadConfig, where="PiecewiseLinear(edges=)", got=1):
        MLP(3, numbers=PiecewiseLinear([[0.0, 1.0]]))
    with raises(BadConfig, where="PiecewiseLinear(edges=)", got=[[1.0, 0.0]]):
        PiecewiseLinear([[1.0, 0.0]])
    for edges in (None, 1.0, [1.0], ["01"], [[0.0, None]]):
        with raises(BadConfig, where="PiecewiseLinear(edges=)", got=edges):
            PiecewiseLinear(edges)  # type: ignore[arg-type]
    with raises(BadConfig, where="Periodic(sigma=)", got=0.0):
        Periodic(sigma=0.0)
    with raises(BadConfig, where="model(numbers=)", got={"kind": "wavelets"}):
        MLP(1, numbers={"kind": "wavelets"})
