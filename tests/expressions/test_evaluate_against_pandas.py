"""Random expressions over random columns: pandas' nullable types say what is right."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupipe.backend import Backend, Column
from gpupipe.expressions.operands import truth
from tests.examples import examples
from tests.expressions.evaluated import COMPARE, column, plain, result_of, run

IN_PANDAS = {"dayofweek": "day_of_week", "dayofyear": "day_of_year"}


@dataclass(frozen=True)
class Term:
    """An expression's text and the same computation on a frame of nullable pandas columns."""

    text: str
    compute: Callable[[pd.DataFrame], pd.Series]


def known(series: pd.Series) -> pd.Series:
    """NaN as missing, as our floats have it."""
    if series.dtype != "Float64":
        return series
    return series.mask(pd.Series(np.isnan(series.to_numpy("float64", na_value=np.nan)), index=series.index))


def constant(value: Any, dtype: str) -> Term:
    return Term(f"({value!r})", lambda frame: pd.Series([value] * len(frame), index=frame.index, dtype=dtype))


def name(column_name: str, dtype: str | None = None) -> Term:
    return Term(column_name, lambda frame: frame[column_name] if dtype is None else frame[column_name].astype(dtype))


def arithmetic(sign: str, left: Term, right: Term) -> Term:
    def compute(frame: pd.DataFrame) -> pd.Series:
        a, b = left.compute(frame), right.compute(frame)
        if sign in ("//", "%"):
            b = b.mask(b == 0)
        if sign == "/" or "Float64" in (str(a.dtype), str(b.dtype)):
            a, b = a.astype("Float64"), b.astype("Float64")
        return known({"+": a.add, "-": a.sub, "*": a.mul, "/": a.truediv, "//": a.floordiv, "%": a.mod}[sign](b))

    return Term(f"({left.text} {sign} {right.text})", compute)


def comparison(sign: str, left: Term, right: Term) -> Term:
    def compute(frame: pd.DataFrame) -> pd.Series:
        return COMPARE[sign](left.compute(frame), right.compute(frame)).astype("boolean")

    return Term(f"({left.text} {sign} {right.text})", compute)


def chained(first: str, second: str, a: Term, b: Term, c: Term) -> Term:
    both = logic("and", comparison(first, a, b), comparison(second, b, c))
    return Term(f"({a.text} {first} {b.text} {second} {c.text})", both.compute)


def logic(word: str, left: Term, right: Term) -> Term:
    joined = operator.and_ if word == "and" else operator.or_
    return Term(f"({left.text} {word} {right.text})", lambda frame: joined(left.compute(frame), right.compute(frame)))


def negated(inner: Term) -> Term:
    return Term(f"(not {inner.text})", lambda frame: ~inner.compute(frame))


def is_null(inner: Term, word: str) -> Term:
    return Term(f"{word}({inner.text})", lambda frame: getattr(inner.compute(frame), word)().astype("boolean"))


def where(condition: Term, left: Term, right: Term) -> Term:
    def compute(frame: pd.DataFrame) -> pd.Series:
        chosen, a, b = condition.compute(frame), left.compute(frame), right.compute(frame)
        if str(a.dtype) != str(b.dtype):
            a, b = a.astype("Float64"), b.astype("Float64")
        return a.where(chosen.fillna(False), b).mask(chosen.isna())

    return Term(f"where({condition.text}, {left.text}, {right.text})", compute)


def filled(left: Term, right: Term) -> Term:
    def compute(frame: pd.DataFrame) -> pd.Series:
        a, b = left.compute(frame), right.compute(frame)
        if str(a.dtype) != str(b.dtype):
            a, b = a.astype("Float64"), b.astype("Float64")
        return a.where(a.notna(), b)

    return Term(f"coalesce({left.text}, {right.text})", compute)


def is_in(inner: Term, among: list[Any], word: str) -> Term:
    def compute(frame: pd.DataFrame) -> pd.Series:
        series = inner.compute(frame)
        found = series.isin(among).astype("boolean").mask(series.isna())
        return found if word == "in" else ~found

    return Term(f"({inner.text} {word} {among!r})", compute)


def rewritten(inner: Term, word: str) -> Term:
    return Term(f"{word}({inner.text})", lambda frame: getattr(inner.compute(frame).str, word)())


def joined(left: Term, right: Term) -> Term:
    return Term(f"({left.text} + {right.text})", lambda frame: left.compute(frame) + right.compute(frame))


def searched(inner: Term, word: str, part: str) -> Term:
    def compute(frame: pd.DataFrame) -> pd.Series:
        texts = inner.compute(frame)
        found = texts.str.contains(part, regex=False) if word == "contains" else getattr(texts.str, word)(part)
        return found.astype("boolean").mask(texts.isna())

    return Term(f"{word}({inner.text}, {part!r})", compute)


def date_part(part: str) -> Term:
    return Term(f"{part}(t)", lambda frame: getattr(frame["t"].dt, IN_PANDAS.get(part, part)).astype("Int64"))


SIGNS = st.sampled_from(["+", "-", "*", "/", "//", "%"])
COMPARISONS = st.sampled_from(list(COMPARE))
PARTS = st.sampled_from(["year", "month", "day", "hour", "minute", "second", "dayofweek", "dayofyear"])
TEXTS = st.sampled_from(["JFK", "jfk", "LGA", "EWR ", "é", ""])
numbers = st.recursive(
    st.one_of(
        st.sampled_from([name("i"), name("j", "Int64"), name("f")]),
        st.integers(-5, 5).map(lambda value: constant(value, "Int64")),
        st.sampled_from([0.0, 0.5, -2.0, 3.0]).map(lambda value: constant(value, "Float64")),
        PARTS.map(date_part),
    ),
    lambda inner: st.one_of(st.builds(arithmetic, SIGNS, inner, inner), st.builds(filled, inner, inner)),
    max_leaves=5,
)
texts = st.recursive(
    st.one_of(st.sampled_from([name("s"), name("s2")]), TEXTS.map(lambda value: constant(value, "string"))),
    lambda inner: st.one_of(
        st.builds(filled, inner, inner),
        st.builds(joined, inner, inner),
        st.builds(rewritten, inner, st.sampled_from(["lower", "upper", "strip"])),
    ),
    max_leaves=3,
)
conditions = st.recursive(
    st.one_of(
        st.just(name("b")),
        st.booleans().map(lambda value: constant(value, "boolean")),
        st.builds(comparison, COMPARISONS, numbers, numbers),
        st.builds(comparison, COMPARISONS, texts, texts),
        st.builds(chained, COMPARISONS, COMPARISONS, numbers, numbers, numbers),
        st.builds(is_null, st.one_of(numbers, texts), st.sampled_from(["isnull", "notnull"])),
        st.builds(
            is_in, st.just(name("i")), st.lists(st.integers(-3, 3), max_size=3), st.sampled_from(["in", "not in"])
        ),
        st.builds(is_in, texts, st.lists(TEXTS, max_size=3), st.sampled_from(["in", "not in"])),
        st.builds(
            searched, texts, st.sampled_from(["contains", "startswith", "endswith"]), st.sampled_from(["J", "", "A"])
        ),
    ),
    lambda inner: st.one_of(
        st.builds(logic, st.sampled_from(["and", "or"]), inner, inner),
        inner.map(negated),
        st.builds(where, inner, inner, inner),
    ),
    max_leaves=4,
)
anything = st.one_of(
    numbers,
    texts,
    conditions,
    st.builds(where, conditions, numbers, numbers),
    st.builds(where, conditions, texts, texts),
)
FLOATS = st.sampled_from([None, 0.0, -0.0, 0.5, 1.0, -2.0, 3.25, 1e300, math.inf, -math.inf])
TIMES = st.sampled_from(
    [
        None,
        "1969-12-31 23:59:59.999999",
        "1970-01-01",
        "2000-02-29 12:00",
        "2013-10-01 05:30",
        "1900-03-01",
        "2100-12-31 23:59:59",
    ]
)
DTYPES = {"i": "int64", "j": "int8", "f": "float64", "b": "bool", "s": "string", "s2": "string", "t": "timestamp"}
PANDAS = {
    "int64": "Int64",
    "int8": "Int8",
    "float64": "Float64",
    "bool": "boolean",
    "string": "string",
    "timestamp": "datetime64[us]",
}


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Small columns of the types in `DTYPES`; some all missing, some without rows."""
    num_rows = draw(st.integers(0, 8))
    small = st.one_of(st.none(), st.integers(-4, 4))
    kinds = {"i": small, "j": small, "f": FLOATS, "b": st.sampled_from([None, True, False])}
    kinds |= {"s": st.one_of(st.none(), TEXTS), "s2": st.one_of(st.none(), TEXTS), "t": TIMES}
    all_missing = draw(st.sets(st.sampled_from(list(kinds)), max_size=2))
    return {key: [None if key in all_missing else draw(kind) for _ in range(num_rows)] for key, kind in kinds.items()}


def as_columns(table: dict[str, list[Any]]) -> dict[str, Column]:
    return {key: column(DTYPES[key], values) for key, values in table.items()}


def as_pandas(table: dict[str, list[Any]]) -> pd.DataFrame:
    return pd.DataFrame({key: pd.array(values, dtype=PANDAS[DTYPES[key]]) for key, values in table.items()})


@pytest.mark.parametrize(("a", "b"), [(-2.0, 1.0), (2.0, -1.0), (0.0, -3.0), (-0.0, 3.0)])
def test_a_remainder_of_zero_has_the_divisors_sign(backend: Backend, a: float, b: float) -> None:
    (found,) = result_of(backend, "a % b", a=column("float64", [a]), b=column("float64", [b]))
    assert math.copysign(1, found) == math.copysign(1, a % b)


@pytest.mark.slow
@examples(400)
@given(anything, tables())
def test_random_expressions_agree_with_pandas(backend: Backend, term: Term, table: dict[str, list[Any]]) -> None:
    with np.errstate(all="ignore"):
        wanted = known(term.compute(as_pandas(table)))
    found = result_of(backend, term.text, **as_columns(table))
    assert found == [None if value is pd.NA else value for value in wanted], term.text


@examples(150)
@given(anything, tables(), st.lists(st.integers(0, 8), max_size=3))
def test_the_parts_of_a_table_give_the_parts_of_the_result(
    backend: Backend, term: Term, table: dict[str, list[Any]], cuts: list[int]
) -> None:
    """Each part codes its strings on its own: some lack a value, some are empty or all missing."""
    whole = result_of(backend, term.text, **as_columns(table))
    bounds = [0, *sorted(cuts), 8]
    found: list[Any] = []
    for start, stop in pairwise(bounds):
        found += result_of(backend, term.text, **as_columns({key: values[start:stop] for key, values in table.items()}))
    assert found == whole, term.text


@examples(100)
@given(conditions, tables())
def test_truth_is_what_is_there_and_true(backend: Backend, term: Term, table: dict[str, list[Any]]) -> None:
    result = run(backend, term.text, **as_columns(table))
    assert truth(result, np).tolist() == [value is True for value in plain(result)]
