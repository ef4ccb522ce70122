"""Numbers from numbers: Python's and NumPy's answers, and what is missing."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.backend import Backend
from gpupipe.errors import BadData
from tests.expressions.evaluated import column, result_of, run


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["//", "%"]), st.floats(width=64), st.floats(width=64))
def test_whole_parts_and_rests_are_pythons(backend: Backend, sign: str, a: float, b: float) -> None:
    compute = operator.floordiv if sign == "//" else operator.mod
    wanted = math.nan if b == 0 or a != a or b != b else compute(a, b)
    (found,) = run(backend, f"a {sign} b", a=column("float64", [a]), b=column("float64", [b])).data.tolist()
    assert found == wanted or (found != found and wanted != wanted)


def test_division(backend: Backend) -> None:
    x, y = column("int32", [7, -7, 7, None, 0]), column("int64", [2, 2, 0, 1, 0])
    assert result_of(backend, "x // y", x=x, y=y) == [3, -4, None, None, None]
    assert result_of(backend, "x % y", x=x, y=y) == [1, 1, None, None, None]
    assert result_of(backend, "x / y", x=x, y=y) == [3.5, -3.5, math.inf, None, None]
    assert result_of(backend, "x // 0", x=x) == [None] * 5
    assert result_of(backend, "x % 2.5", x=x) == [2.0, 0.5, 2.0, None, 0.0]
    f = column("float64", [1.0, -1.0, 0.0, None, math.inf])
    assert result_of(backend, "f / 0", f=f) == [math.inf, -math.inf, None, None, math.inf]
    assert result_of(backend, "f // 0", f=f) == [None] * 5
    assert result_of(backend, "1.0 // 0.1", 1) == [9.0]
    assert result_of(backend, "-9400242.545366336 // -0.3", 1) == [31334141.0]  # the quotient rounds below it


def test_integers_are_exact_in_int64(backend: Backend) -> None:
    x = column("int64", [2**63 - 2, -(2**63), 3, None])
    assert result_of(backend, "x + 1", x=x) == [2**63 - 1, -(2**63) + 1, 4, None]
    assert result_of(backend, "x // -1", x=column("int64", [2**63 - 1, 3])) == [-(2**63) + 1, -3]
    assert result_of(backend, "x + 1", x=column("int8", [127, None])) == [128, None]
    assert result_of(backend, "x * x", x=column("int64", [3_037_000_499, -3_037_000_499])) == [3_037_000_499**2] * 2
    u = column("uint64", [2**64 - 1, 7, None])
    assert result_of(backend, "u % 10", u=u) == [5, 7, None]
    assert result_of(backend, "u // 2", u=u) == [2**63 - 1, 3, None]
    assert result_of(backend, "u % u", u=u) == [0, 0, None]
    with pytest.raises(BadData):
        result_of(backend, "int(u)", u=u)


@pytest.mark.parametrize(
    ("text", "dtype", "values"),
    [
        ("x + 1", "int64", [5, None, 2**63 - 1]),
        ("x - 2", "int64", [5, None, 1 - 2**63]),
        ("x * 2", "int64", [5, None, 2**62]),
        ("x * x", "int64", [5, None, 3_037_000_500]),
        ("x * 3", "int64", [5, None, 2**63 - 1]),
        ("x ** 2", "int64", [5, None, 2**32]),
        ("x // -1", "int64", [5, None, -(2**63)]),
        ("-x", "int64", [5, None, -(2**63)]),
        ("abs(x)", "int64", [5, None, -(2**63)]),
        ("x + 1", "uint64", [5, None, 2**64 - 1]),
        ("x // 1", "uint64", [5, None, 2**63]),
        ("x % -7", "uint64", [5, None, 2**63]),
        ("where(x > 1, x, -1)", "uint64", [5, None, 2**63]),
        ("coalesce(x, -1)", "uint64", [5, None, 2**63]),
        ("x * x", "uint32", [5, None, 2**32 - 1]),
    ],
)
def test_what_does_not_fit_int64_is_an_error(backend: Backend, text: str, dtype: str, values: list[Any]) -> None:
    with pytest.raises(BadData) as caught:
        run(backend, text, x=column(dtype, values))
    got = caught.value.got if isinstance(caught.value.got, tuple) else (caught.value.got,)
    assert caught.value.row == 2 and values[2] in got
    assert "float(x)" in caught.value.remedy
    run(backend, text.replace("x", "float(x)"), x=column(dtype, values))


def test_constants_that_wrap_are_an_error(backend: Backend) -> None:
    for text in ("9223372036854775807 + 1", "9 ** 9 ** 9", "9 ** 9223372036854775807"):
        with pytest.raises(BadData):
            run(backend, text, 1)


def test_powers(backend: Backend) -> None:
    x = column("int64", [2, -3, 0, None])
    assert result_of(backend, "x ** 2", x=x) == [4, 9, 0, None]
    assert result_of(backend, "x ** -1", x=x) == [0.5, pytest.approx(-1 / 3), math.inf, None]
    assert result_of(backend, "2 ** x", x=x) == [4, None, 1, None]
    assert result_of(backend, "x ** 0.5", x=x) == [pytest.approx(2**0.5), None, 0.0, None]
    f = column("float64", [None, 2.0])
    assert result_of(backend, "f ** 0", f=f) == [None, 1.0]
    assert result_of(backend, "1 ** f", f=f) == [None, 1.0]


def test_booleans_count_and_floats_keep_their_width(backend: Backend) -> None:
    flag, narrow = column("bool", [True, False, None]), column("float32", [0.5, None, 2.0])
    assert result_of(backend, "flag + flag * 2", flag=flag) == [3, 0, None]
    assert result_of(backend, "-flag", flag=flag) == [-1, 0, None]
    tenth = np.float32(0.1)
    assert result_of(backend, "narrow * 0.1", narrow=narrow) == [(tenth / 2).item(), None, (tenth * 2).item()]
    assert result_of(backend, "narrow + flag", narrow=narrow, flag=flag) == [1.5, None, None]
    assert run(backend, "narrow ** 2 // 3 % 2", narrow=narrow).data.dtype == "float32"


@pytest.mark.parametrize("function", ["log1p", "log", "exp", "sqrt", "sin", "cos", "floor", "ceil", "round", "abs"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int16"])
def test_functions_of_a_number(backend: Backend, function: str, dtype: str) -> None:
    own = [2, None, 0, 9] if dtype == "int16" else [2.5, None, 0.0, -1.5, 3.5, math.inf]
    stored = np.array(own, "float32" if dtype == "float32" else "float64")  # None becomes NaN
    with np.errstate(all="ignore"):
        wanted = getattr(np, {"abs": "absolute", "round": "rint"}.get(function, function))(stored)
    found = [
        math.nan if value is None else value for value in result_of(backend, f"{function}(x)", x=column(dtype, own))
    ]
    assert found == pytest.approx(wanted, rel=1e-6 if dtype == "float32" else 1e-14, nan_ok=True)


def test_minimum_maximum_clip(backend: Backend) -> None:
    x, y = column("int16", [1, 5, None, 9]), column("float64", [2.5, None, 0.0, 2.5])
    assert result_of(backend, "minimum(x, y)", x=x, y=y) == [1.0, None, None, 2.5]
    assert result_of(backend, "maximum(x, 4)", x=x) == [4, 5, None, 9]
    assert result_of(backend, "clip(x, 2, 6)", x=x) == [2, 5, None, 6]
    assert result_of(backend, "clip(y, x, 8)", x=x, y=y) == [2.5, None, None, 8.0]
    assert result_of(backend, "clip(3, 4, x)", x=x) == [1, 4, None, 4]
    assert result_of(backend, "maximum(b, False)", b=column("bool", [True, None, False])) == [True, None, False]


def test_casts(backend: Backend) -> None:
    f = column("float64", [2.9, -2.9, None, -(2.0**63)])
    assert result_of(backend, "int(f)", f=f) == [2, -2, None, -(2**63)]
    for dtype, value in (("float64", 2.0**63), ("float32", -(2.0**100)), ("float64", math.inf), ("uint64", 2**63)):
        with pytest.raises(BadData) as caught:
            result_of(backend, "1 + int(f)", f=column(dtype, [1, None, value]))
        assert caught.value.row == 2 and caught.value.got == value
        assert "float(f) in place of int(f)" in str(caught.value.remedy)
    assert result_of(backend, "int(b)", b=column("bool", [True, None])) == [1, None]
    assert result_of(backend, "float(x)", x=column("int8", [1, None])) == [1.0, None]
    assert result_of(backend, "string(x)", x=column("int64", [10, None, -7, 10])) == ["10", None, "-7", "10"]
    assert result_of(backend, "string(b) == 'True'", b=column("bool", [True, None, False])) == [True, None, False]
    assert result_of(backend, "string(s)", s=column("string", ["a", None])) == ["a", None]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_quotient_of_zero_has_pythons_sign(backend: Backend, dtype: str) -> None:
    pairs = [
        (0.0, -1.0),
        (-0.0, 1.0),
        (0.0, 1.0),
        (-0.0, -1.0),
        (1.0, -0.5),
        (0.25, 2.0),
        (-0.25, -2.0),
        (1.0, math.inf),
    ]
    x, y = (column(dtype, list(values)) for values in zip(*pairs, strict=True))
    wanted = [math.copysign(1.0, a // b) for a, b in pairs]
    assert [math.copysign(1.0, value) for value in result_of(backend, "x // y", x=x, y=y)] == wanted
    assert result_of(backend, "1 / (x // -1)", x=column(dtype, [0.0, -0.0])) == [-math.inf, math.inf]
