"""Functions of lists, by Python and Polars."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupipe.backend import Backend
from gpupipe.errors import BadData, ExpressionError
from gpupipe.expressions import parse
from gpupipe.schema import Field, Schema
from tests.examples import examples
from tests.expressions.evaluated import column, result_of, run

ELEMENTS: dict[str, Any] = {
    "int8": st.integers(-128, 127),
    "int64": st.integers(-(2**40), 2**40) | st.sampled_from([-(2**61), 2**61]),
    "uint64": st.integers(0, 2**53 + 1),
    "float32": st.sampled_from([-1.5, 0.0, 0.25, 2.0**20, float("inf")]),
    "float64": st.sampled_from([-1.5, 0.0, 0.25, 1e300, float("inf")]),
    "bool": st.booleans(),
}
TYPES = {
    "int8": pl.Int8,
    "int64": pl.Int64,
    "uint64": pl.UInt64,
    "float32": pl.Float32,
    "float64": pl.Float64,
    "bool": pl.Boolean,
}


def lists(elements: Any) -> Any:
    return st.lists(st.none() | st.lists(st.none() | elements, max_size=5), max_size=6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ELEMENTS)
@examples(60)
@given(st.data())
def test_functions_of_lists_are_polars(backend: Backend, dtype: str, data: st.DataObject) -> None:
    values = data.draw(lists(ELEMENTS[dtype]))
    x, series = column(f"list<{dtype}>", values), pl.Series(values, dtype=pl.List(TYPES[dtype]))
    wide = series.cast(pl.List(pl.Int64)) if dtype not in ("float32", "float64") else series
    assert result_of(backend, "len(x)", len(values), x=x) == series.list.len().to_list()
    assert result_of(backend, "min(x)", len(values), x=x) == series.list.min().to_list()
    assert result_of(backend, "max(x)", len(values), x=x) == series.list.max().to_list()
    if dtype != "int64":
        assert result_of(backend, "sum(x)", len(values), x=x) == wide.list.sum().to_list()
    wanted = wide.cast(pl.List(pl.Float64)).list.mean().to_list()
    found = result_of(backend, "mean(x)", len(values), x=x)
    assert [one is None for one in found] == [one is None for one in wanted]
    pairs = [pair for pair in zip(found, wanted, strict=True) if None not in pair]
    assert [one for one, _ in pairs] == pytest.approx([one for _, one in pairs], rel=1e-6)


@examples(100)
@given(lists(ELEMENTS["int64"]))
def test_sums_are_exact_beyond_the_floats(backend: Backend, values: list[list[int | None] | None]) -> None:
    wanted = [None if value is None else sum(item or 0 for item in value) for value in values]
    if all(-(2**63) <= (total or 0) < 2**63 for total in wanted):
        assert result_of(backend, "sum(x)", len(values), x=column("list<int64>", values)) == wanted


def test_a_sum_beyond_int64_is_an_error_with_its_row(backend: Backend) -> None:
    x = column("list<int64>", [[1], None, [2**62, 2**62], [5]])
    with pytest.raises(BadData, match=r"row 2: `sum\(x\)` does not fit int64, got \[4611686018427387904, 46") as caught:
        run(backend, "sum(x)", x=x)
    assert caught.value.row == 2 and "T.Cast({'x': 'list<float64>'})" in str(caught.value)
    with pytest.raises(BadData, match="row 1"):
        run(backend, "sum(x)", x=column("list<uint64>", [[1], [3, 2**64 - 1]]))
    # A running sum that wraps within other lists does not matter.
    assert result_of(backend, "sum(x)", x=column("list<int64>", [[2**62], [2**62], [2**62], [1, 2]]))[3] == 3


@examples(100)
@given(lists(st.integers(-2, 2)), st.integers(-3, 3))
def test_contains_is_polars(backend: Backend, values: list[Any], value: int) -> None:
    x, series = column("list<int16>", values), pl.Series(values, dtype=pl.List(pl.Int16))
    assert result_of(backend, f"contains(x, {value})", len(values), x=x) == series.list.contains(value).to_list()
    rows = [value if place % 2 else None for place in range(len(values))]
    wanted = [None if row is None else found for row, found in zip(rows, series.list.contains(value), strict=True)]
    assert result_of(backend, "contains(x, y)", len(values), x=x, y=column("int64", rows)) == wanted


def test_contains_text_times_and_floats(backend: Backend) -> None:
    words = column("list<string>", [["pay", "cart"], ["home", None], [], None])
    assert result_of(backend, "contains(words, 'pay')", words=words) == [True, False, False, None]
    assert result_of(backend, "contains(words, 'nowhere')", words=words) == [False, False, False, None]
    page = column("string", ["cart", None, "home", "home"])
    assert result_of(backend, "contains(words, page)", words=words, page=page) == [True, None, False, None]
    at = column("list<timestamp>", [["2013-10-01"], [None], None])
    assert result_of(backend, "contains(at, '2013-10-01')", at=at) == [True, False, None]
    assert result_of(backend, "max(at) >= '2013-10-01'", at=at) == [True, None, None]
    assert result_of(backend, "contains(x, 0.5)", x=column("list<float32>", [[0.5, None], [0.25]])) == [True, False]
    assert result_of(backend, "contains(split(s, ';'), 'B01')", s=column("string", ["A12;B01", "A12", None])) == [
        True,
        False,
        None,
    ]


@pytest.mark.parametrize("dtype", ["int64", "float64", "string", "timestamp"])
def test_no_lists_and_lists_without_an_element(backend: Backend, dtype: str) -> None:
    for values in ([], [None, None], [[], None, []]):
        x = column(f"list<{dtype}>", values)
        present = [None if value is None else 0 for value in values]
        assert result_of(backend, "len(x)", len(values), x=x) == present
        value = {"string": "'a'", "timestamp": "'2013-10-01'"}.get(dtype, "1")
        assert result_of(backend, f"contains(x, {value})", len(values), x=x) == [
            None if one is None else False for one in present
        ]
        if dtype != "string":
            assert result_of(backend, "max(x)", len(values), x=x) == [None] * len(values)
        if dtype in ("int64", "float64"):
            assert result_of(backend, "sum(x)", len(values), x=x) == present
            assert result_of(backend, "mean(x)", len(values), x=x) == [None] * len(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("contains(words, 5)", r"compared with 5 \(int64\)"),
        ("contains(counts, 'a')", r"compared with 'a' \(string\)"),
        ("contains(n, 5)", r"`contains` is given column 'n' \(int64\)[\s\S]*Expected text or a list"),
        ("contains(words, None)", "None is compared|is given None"),
        ("sum(words)", r"`sum` is given column 'words' \(list<string>\)[\s\S]*Expected a list of numbers"),
        ("max(words)", "Expected a list of numbers or times"),
        ("max(n)", r"`max` is given column 'n'[\s\S]*maximum\(x, y\)"),
        ("max(n, 5)", r"max is called with 2 arguments[\s\S]*maximum\(n, 5\)"),
        ("mean(s)", r"split\(s, ','\)"),
        ("'pay' in words", r"contains\(words, 'pay'\)"),
        ("words + words", r"`\+` is given column 'words'"),
    ],
)
def test_what_is_no_call_of_a_list(text: str, message: str) -> None:
    fields = [Field("words", "list<string>"), Field("counts", "list<int32>"), Field("n", "int64"), Field("s", "string")]
    with pytest.raises(ExpressionError, match=message):
        parse(text).check(Schema(fields))
