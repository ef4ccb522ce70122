"""The choice between values: `where`, with a missing constant too, and `coalesce`, by pandas."""

from __future__ import annotations

import pandas as pd
import pytest

from gpupipe.backend import Backend
from tests.expressions.evaluated import column, result_of, run

VALUES = {
    "int16": [1, None, 3, 2],
    "uint64": [2**64 - 1, None, 3, 2],
    "float32": [1.5, None, 3.0, 2.0],
    "bool": [True, None, False, True],
    "string": ["a", None, "c", "a"],
    "timestamp": ["2013-10-01", None, "2013-10-02", "2013-10-03"],
}


@pytest.mark.parametrize("dtype", VALUES)
def test_a_missing_constant_is_chosen(backend: Backend, dtype: str) -> None:
    x, keep = column(dtype, VALUES[dtype]), column("bool", [True, True, False, None])
    same = result_of(backend, "x", x=x)
    assert result_of(backend, "where(keep, x, None)", x=x, keep=keep) == [same[0], None, None, None]
    assert result_of(backend, "where(keep, None, x)", x=x, keep=keep) == [None, None, same[2], None]
    empty = {"x": column(dtype, []), "keep": column("bool", [])}
    assert run(backend, "where(keep, x, None)", 0, **empty).dtype == dtype


def test_a_missing_constant_beside_constants(backend: Backend) -> None:
    keep = column("bool", [True, False, None])
    assert result_of(backend, "where(keep, 5, None)", keep=keep) == [5, None, None]
    assert result_of(backend, "where(keep, None, 'x')", keep=keep) == [None, "x", None]
    assert result_of(backend, "where(True, None, 2.5)", keep=keep) == [None, None, None]
    assert result_of(backend, "isnull(where(keep, None, 1))", keep=keep) == [True, False, True]
    assert result_of(backend, "where(keep, where(keep, None, 1), 2)", keep=keep) == [None, 2, None]


@pytest.mark.parametrize("dtype", VALUES)
def test_coalesce_is_the_first_that_is_there(backend: Backend, dtype: str) -> None:
    a = column(dtype, [None, VALUES[dtype][0], None, None])
    b = column(dtype, [None, VALUES[dtype][2], VALUES[dtype][2], None])
    c = column(dtype, [VALUES[dtype][3], None, None, None])
    plain = {
        name: pd.Series(result_of(backend, name, **{name: item}), dtype=object)
        for name, item in zip("abc", (a, b, c), strict=True)
    }
    expected = plain["a"].combine_first(plain["b"]).combine_first(plain["c"])
    result = result_of(backend, "coalesce(a, b, c)", a=a, b=b, c=c)
    assert result == [None if pd.isna(value) else value for value in expected]
    assert result_of(backend, "coalesce(a, b)", a=a, b=b) == result_of(backend, "where(isnull(a), b, a)", a=a, b=b)


def test_coalesce_with_constants_and_types_that_widen(backend: Backend) -> None:
    small, wide = column("int8", [None, 1]), column("int64", [2**40, None])
    result = run(backend, "coalesce(small, wide, 7)", small=small, wide=wide)
    assert (result.dtype, result.data.tolist(), result.valid) == ("int64", [2**40, 1], None)
    assert result_of(backend, "coalesce(small, 0.5)", small=small) == [0.5, 1.0]
    assert result_of(
        backend, "coalesce(s, s2, 'none')", s=column("string", [None, None]), s2=column("string", ["x", None])
    ) == ["x", "none"]
    assert run(backend, "coalesce(s, 'none')", 0, s=column("string", [])).dtype == "string"
