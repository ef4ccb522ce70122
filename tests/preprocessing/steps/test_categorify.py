"""Ids of categories: their order, what is rare or unknown, and the way back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupipe import errors, schema
from gpupipe.backend import Column, select
from gpupipe.preprocessing import Categorify
from tests.examples import examples
from tests.raising import raises

WORDS = ["", "a", "b", "Z", "ß", "\U0001f6eb", "\uffff", "日本"]
TEXT = st.lists(st.none() | st.sampled_from(WORDS), min_size=1, max_size=30)


def by_hand(values: list[Any], min_frequency: int = 1, max_categories: int | None = None) -> list[Any]:
    """The vocabulary as the rule says: by count descending, then value ascending, strings by UTF-8."""
    counts: dict[Any, int] = {}
    for value in values:
        if value is not None:
            counts[value] = counts.get(value, 0) + 1
    key = lambda value: value.encode() if isinstance(value, str) else value  # noqa: E731
    ranked = sorted(counts, key=lambda value: (-counts[value], key(value)))
    return [value for value in ranked if counts[value] >= min_frequency][:max_categories]


@examples(80)
@given(train=TEXT, later=TEXT, least=st.integers(1, 3), most=st.none() | st.integers(1, 4))
def test_strings(train: list[str | None], later: list[str | None], least: int, most: int | None) -> None:
    step = Categorify(min_frequency=least, max_categories=most).fit(pd.DataFrame({"x": pd.array(train, dtype="str")}))
    vocabulary = by_hand(train, least, most)
    assert step.vocabularies_["x"].to_pylist() == vocabulary
    found = step.transform(pd.DataFrame({"x": pd.array(later, dtype="str")}))["x"]
    assert str(found.dtype) == "int32"
    wanted = [0 if v is None else vocabulary.index(v) + 2 if v in vocabulary else 1 for v in later]
    assert found.tolist() == wanted
    back = step.inverse_transform(pd.DataFrame({"x": found}))["x"]
    assert [None if pd.isna(v) else v for v in back] == [v if v in vocabulary else None for v in later]


NUMBERS = {
    "int8": st.integers(-128, 127),
    "Int64": st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 2**63 - 1])),
    "uint64": st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1), st.sampled_from([0, 2**64 - 1])),
    "UInt16": st.integers(0, 2**16 - 1),
    "boolean": st.booleans(),
    "bool": st.booleans(),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(NUMBERS))
@examples(50)
@given(data=st.data())
def test_numbers(dtype: str, data: st.DataObject) -> None:
    masked = dtype in ("Int64", "UInt16", "boolean")
    some = st.none() | NUMBERS[dtype] if masked else NUMBERS[dtype]
    train, later = (data.draw(st.lists(some, min_size=1, max_size=20)) for _ in range(2))
    array = pd.array if masked else np.array
    step = Categorify().fit(pd.DataFrame({"x": array(train, dtype=dtype)}))
    vocabulary = by_hand(train)
    assert step.vocabularies_["x"].to_pylist() == vocabulary
    found = step.transform(pd.DataFrame({"x": array(later, dtype=dtype)}))["x"]
    assert found.tolist() == [0 if v is None else vocabulary.index(v) + 2 if v in vocabulary else 1 for v in later]
    back = step.inverse_transform(pd.DataFrame({"x": found}))["x"]
    assert [None if pd.isna(v) else v for v in back] == [v if v in vocabulary else None for v in later]
    assert str(back.dtype).lower().removesuffix("ean") == dtype.lower().removesuffix("ean")


@pytest.mark.parametrize("spread", [10, 2**21, 2**40])
def test_many_rows_by_every_way_of_looking_up(spread: int) -> None:
    rng = np.random.default_rng(0)
    train, later = (rng.integers(-5, 95, 100_000) * spread for _ in range(2))
    counted = pl.Series("x", train).value_counts().sort(["count", "x"], descending=[True, False])
    ids = dict(zip(counted["x"], range(2, 200), strict=False))
    later[:3] = [10**15, -(10**15), 95 * spread]
    found = Categorify().fit(pd.DataFrame({"x": train})).transform(pd.DataFrame({"x": later}))["x"]
    assert found.tolist() == [ids.get(value, 1) for value in later.tolist()]


def test_codes_mean_nothing_without_their_dictionary() -> None:
    cpu = select("cpu")
    parts = [["a", "b", "b"], ["b", "c", None], [None], [], ["c", "c", "c"]]
    frames = [cpu.encode(pd.DataFrame({"x": pd.array(part, dtype="str")})) for part in parts]
    columns = [{"x": cpu.column(frame, "x")} for frame in frames]
    step = Categorify()
    total = step.summarize(columns[0], cpu)
    for column in columns[1:]:
        total += step.summarize(column, cpu)
    step.finalize(total)
    assert step.vocabularies_["x"].to_pylist() == ["c", "b", "a"]
    ids = [step.transform_columns(column, cpu)["x"].data.tolist() for column in columns]
    assert ids == [[4, 3, 3], [3, 2, 0], [0], [], [2, 2, 2]]


def test_values_no_code_refers_to_are_not_counted() -> None:
    cpu = select("cpu")
    full = cpu.column(cpu.encode(pd.DataFrame({"x": ["a", "b", "c"]})), "x")
    column = Column("string", np.array([1, 1, -1], "int8"), None, full.dictionary)
    step = Categorify()
    assert step.finalize(step.summarize({"x": column}, cpu)).vocabularies_["x"].to_pylist() == ["b"]


def test_each_column_has_its_own_vocabulary_and_field() -> None:
    table = pd.DataFrame({"a": ["x", "y", "x"], "b": ["x", "x", "z"], "n": [7, 7, 9]})
    step = Categorify().fit(table)
    fields = step.output_fields([schema.Field("a", "string"), schema.Field("b", "string"), schema.Field("n", "int64")])
    assert {item.kind for item in fields} == {schema.Kind.CATEGORICAL}
    assert [(item.dtype, item.nullable, item.cardinality) for item in fields] == [("int32", False, 4)] * 3
    assert step.transform(table)["b"].tolist() == [2, 2, 3]


def test_an_all_missing_column_has_an_empty_vocabulary() -> None:
    table = pd.DataFrame({"s": pd.array([None, None], dtype="str"), "n": pd.array([None, None], dtype="Int64")})
    step = Categorify().fit(table)
    assert step.transform(table).to_numpy().tolist() == [[0, 0], [0, 0]]
    assert step.transform(pd.DataFrame({"s": ["x"], "n": [5]})).to_numpy().tolist() == [[1, 1]]
    assert step.inverse_transform(step.transform(table)).isna().all(axis=None)


def test_what_is_refused() -> None:
    with raises(errors.SchemaMismatch, where="Categorify, column 'x'", got="float64"):
        Categorify().fit(pd.DataFrame({"x": [0.5]}))
    step = Categorify().fit(pd.DataFrame({"x": ["a"]}))
    with raises(errors.SchemaMismatch, where="Categorify, column 'x'", got="int64"):
        step.transform(pd.DataFrame({"x": [1]}))
    with raises(errors.BadConfig, where="Categorify(min_frequency=)", got=0):
        Categorify(min_frequency=0).fit(pd.DataFrame({"x": ["a"]}))
