"""Comparisons: exact, as Python compares its own numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.backend import Backend
from gpupipe.expressions.comparisons import compare
from gpupipe.expressions.tree import Constant, Span
from tests.expressions.evaluated import COMPARE, column, result_of, to_device

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
EDGES = sorted(
    {sign * 2**bits + step for bits in (0, 7, 8, 24, 31, 53, 63, 64) for step in (-1, 0, 1) for sign in (1, -1)}
)
CONSTANTS = st.one_of(
    st.sampled_from([edge for edge in EDGES if -(2**63) <= edge < 2**63]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.1, 0.5, -0.5, 1e300, -1e300, 3.4028235e38, 2.0**53, 2.0**63, 2.0**64, 16777217.0, True]),
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.data(),
    st.sampled_from([*INTEGERS, "float32", "float64", "bool"]),
    CONSTANTS,
    st.sampled_from(list(COMPARE)),
    st.booleans(),
)
def test_a_constant_is_compared_as_a_real_number(
    backend: Backend, data: st.DataObject, dtype: str, value: Any, sign: str, flipped: bool
) -> None:
    if dtype == "bool":
        own: list[Any] = [True, False, None]
    elif dtype in INTEGERS:
        info = np.iinfo(dtype)
        edges = st.sampled_from([edge for edge in EDGES if info.min <= edge <= info.max])
        own = data.draw(st.lists(st.one_of(edges, st.none()), min_size=1, max_size=6))
    else:
        floats = st.floats(width=int(dtype[5:])).map(lambda x: None if math.isnan(x) else x)
        near = np.dtype(dtype).type(np.clip(float(value), -3e38, 3e38)).item()
        own = [near, *data.draw(st.lists(floats, max_size=5))]
    x = column(dtype, own)
    text = f"{value!r} {sign} x" if flipped else f"x {sign} {value!r}"
    held = (lambda one: COMPARE[sign](value, one)) if flipped else (lambda one: COMPARE[sign](one, value))
    assert result_of(backend, text, x=x) == [None if one is None else held(one) for one in own]
    found = [None if one is None else one in (value, 1) for one in own]
    assert result_of(backend, f"x in [{value!r}, 1]", x=x) == found
    assert result_of(backend, f"x not in [{value!r}, 1]", x=x) == [None if one is None else not one for one in found]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.data(),
    st.sampled_from([*INTEGERS, "bool"]),
    st.sampled_from([*INTEGERS, "bool"]),
    st.sampled_from(list(COMPARE)),
)
def test_integer_columns_are_compared_as_integers(
    backend: Backend, data: st.DataObject, left: str, right: str, sign: str
) -> None:
    def drawn(dtype: str) -> list[Any]:
        low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        chosen = st.sampled_from([edge for edge in EDGES if low <= edge <= high])
        return data.draw(st.lists(st.one_of(chosen, st.none()), min_size=4, max_size=4))

    a, b = drawn(left), drawn(right)
    wanted = [None if x is None or y is None else COMPARE[sign](x, y) for x, y in zip(a, b, strict=True)]
    assert result_of(backend, f"a {sign} b", a=column(left, a), b=column(right, b)) == wanted


def test_unsigned_against_negative(backend: Backend) -> None:
    """As bits they are the same."""
    big, low = column("uint64", [2**64 - 1, 1, None]), column("int64", [-1, -1, 1])
    for sign, compared in COMPARE.items():
        held, flipped = compared(1, -1), compared(-1, 1)
        assert result_of(backend, f"big {sign} low", big=big, low=low) == [held, held, None]
        assert result_of(backend, f"low {sign} big", big=big, low=low) == [flipped, flipped, None]


def test_constants_beyond_int64(backend: Backend) -> None:
    u, i = column("uint64", [2**64 - 1, 2**64 - 2, 0, None]), column("int64", [2**63 - 1, -1, 0, None])
    for sign, compared in COMPARE.items():
        text = f"x {sign} {2**64 - 2}"
        for x in (u, i):
            wanted = [compared(value, 2**64 - 2) for value in x.data[:3].tolist()]
            assert result_of(backend, text, x=x) == [*wanted, None]
    assert result_of(backend, f"x in [{2**64 - 2}]", x=u) == [False, True, False, None]
    assert result_of(backend, f"x in [{2**64 - 2}]", x=i) == [False, False, False, None]
    assert result_of(backend, f"coalesce(x, {2**64 - 2})", x=u) == [2**64 - 1, 2**64 - 2, 0, 2**64 - 2]
    assert result_of(backend, f"x > {2**64 - 2}", x=column("float64", [2.0**64, 2.0**63, None])) == [True, False, None]


def test_a_bound_beyond_the_type(backend: Backend) -> None:
    x = to_device(column("float32", [1.0, 3e38]), backend)
    below = compare("<", x, Constant(1e300, "float64", Span(0, 0)), backend)
    assert backend.to_host(below.true).tolist() == [True, True]


def test_beyond_2_to_the_53(backend: Backend) -> None:
    big = column("int64", [2**53, 2**53 + 1, None])
    assert result_of(backend, "x == 9007199254740993", x=big) == [False, True, None]
    assert result_of(backend, "x > 9007199254740992.0", x=big) == [False, True, None]
    assert result_of(backend, "x + 1 == 9007199254740994", x=big) == [False, True, None]
    assert result_of(backend, "where(x > 0, x, 0)", x=big) == [2**53, 2**53 + 1, None]
