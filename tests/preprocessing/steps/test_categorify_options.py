"""Buckets for what is unknown, one vocabulary for several columns, a vocabulary given."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupipe import errors, schema
from gpupipe import preprocessing as pre
from gpupipe.preprocessing import Categorify
from tests.examples import examples
from tests.raising import raises

WORDS = ["", "a", "b", "Z", "ß", "\U0001f6eb", "日本", "x", "y"]
TEXT = st.lists(st.none() | st.sampled_from(WORDS), min_size=1, max_size=30)
NUMBERS = st.lists(st.none() | st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30)


def bucket(value: Any, num_buckets: int) -> int:
    """Where a value that stands alone falls: the id `HashBucket` gives it, less missing and unknown."""
    dtype = "str" if isinstance(value, str) else "int64"
    frame = pd.DataFrame({"x": pd.array([value], dtype=dtype)})
    return int(pre.HashBucket(num_buckets).fit_transform(frame)["x"][0]) - 2


@examples(80)
@given(data=st.data(), dtype=st.sampled_from(["str", "Int64"]), least=st.integers(1, 3), num_buckets=st.integers(1, 50))
def test_unknown_and_rare_values_fall_into_buckets_behind_the_vocabulary(
    data: st.DataObject, dtype: str, least: int, num_buckets: int
) -> None:
    train, later = (data.draw(TEXT if dtype == "str" else NUMBERS) for _ in range(2))
    train, later = (pd.DataFrame({"x": pd.array(values, dtype=dtype)}) for values in (train, later))
    plain = Categorify(min_frequency=least).fit(train)
    step = Categorify(min_frequency=least, num_buckets=num_buckets).fit(train)
    size = len(plain.vocabularies_["x"])
    (item,) = step.output_fields([schema.Field("x", "string" if dtype == "str" else "int64")])
    assert item.cardinality == 2 + size + num_buckets
    for value, without, found in zip(later["x"], plain.transform(later)["x"], step.transform(later)["x"], strict=True):
        assert found == (2 + size + bucket(value, num_buckets) if without == 1 else without)
    back = step.inverse_transform(step.transform(later))["x"]
    kept = plain.vocabularies_["x"].to_pylist()
    assert [None if pd.isna(v) else v for v in back] == [None if pd.isna(v) or v not in kept else v for v in later["x"]]


def test_buckets_with_any_other_option_keep_the_ids_of_the_vocabulary() -> None:
    train = pd.DataFrame({"a": ["x", "y", "x", "z"], "b": ["y", "y", "w", None]})
    later = pd.DataFrame({"a": ["x", "q", None, "zz"], "b": ["w", "q", "y", "x"]})
    for joint, vocabulary in product([False, True], [None, ["y", "z", "x"]]):
        options: dict[str, Any] = {"joint": joint, "vocabulary": vocabulary}
        plain = Categorify(**options).fit_transform(train)
        step = Categorify(**options, num_buckets=5).fit(train)
        pd.testing.assert_frame_equal(
            step.transform(train).where(plain != 1), plain.where(plain != 1), check_dtype=False
        )
        sizes = [2 + len(step.vocabularies_[name]) for name in "ab"]
        unknown = step.transform(later).to_numpy()[1]
        assert all(size <= found < size + 5 for size, found in zip(sizes, unknown, strict=True))


@examples(60)
@given(st.data())
def test_a_joint_vocabulary_counts_all_columns_together(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 20))
    column = st.lists(st.none() | st.sampled_from(WORDS), min_size=rows, max_size=rows)
    train = pd.DataFrame({name: pd.array(data.draw(column), dtype="str") for name in ("origin", "dest", "via")})
    step = Categorify(joint=True, min_frequency=2).fit(train)
    stacked = pd.DataFrame({"x": pd.concat([train[name] for name in train], ignore_index=True)})
    alone = Categorify(min_frequency=2).fit(stacked)
    for name in train:
        assert step.vocabularies_[name].equals(alone.vocabularies_["x"])
    found = pd.concat([step.transform(train)[name] for name in train], ignore_index=True)
    assert found.tolist() == alone.transform(stacked)["x"].tolist()
    again = Categorify(joint=True).set_state(step.get_state())
    pd.testing.assert_frame_equal(again.transform(train), step.transform(train))
    assert sum(isinstance(value, pa.Array) for value in step.get_state().values()) == 1


def test_a_joint_vocabulary_is_that_of_polars() -> None:
    rng = np.random.default_rng(0)
    train = pd.DataFrame({name: rng.integers(0, 500, 5000) * 10**9 for name in "ab"})
    counted = pl.concat([pl.Series("x", train[name]) for name in "ab"]).value_counts()
    counted = counted.sort(["count", "x"], descending=[True, False])
    assert Categorify(joint=True).fit(train).vocabularies_["b"].to_pylist() == counted["x"].to_list()


@pytest.mark.parametrize("make", [list, tuple, np.array, pa.array, pd.Series])
def test_a_vocabulary_given_has_its_own_order(make: Any) -> None:
    step = Categorify(vocabulary=make(["b", "a"])).fit(pd.DataFrame({"x": ["c", "c", "a"], "y": ["b", "c", "c"]}))
    assert step.transform(pd.DataFrame({"x": ["a", "b", "c"], "y": ["b", "a", None]})).to_numpy().tolist() == [
        [3, 2],
        [2, 3],
        [1, 0],
    ]


def test_the_largest_integers_in_a_vocabulary() -> None:
    train = pd.DataFrame({"n": np.array([2**64 - 1, 5], dtype="uint64")})
    assert Categorify(vocabulary=[5, 2**64 - 1]).fit_transform(train)["n"].tolist() == [3, 2]


def test_vocabularies_for_some_columns() -> None:
    train = pd.DataFrame({"x": ["c", "c", "a"], "n": [7, 7, 8]})
    step = Categorify(vocabulary={"n": np.array([8, 7], dtype="int8")}, min_frequency=2).fit(train)
    assert step.transform(train).to_numpy().tolist() == [[2, 3], [2, 3], [1, 2]]


def test_text_does_not_match_a_vocabulary_of_numbers() -> None:
    """ "1" is not 1, neither in a vocabulary given nor in a column that comes later."""
    with raises(errors.BadConfig, where="Categorify(vocabulary=), column 'x'", got=["1"]):
        Categorify(vocabulary=["1"]).fit(pd.DataFrame({"x": [1, 2]}))
    with raises(errors.BadConfig, where="Categorify(vocabulary=), column 'x'", got=[1.5]):
        Categorify(vocabulary=[1.5]).fit(pd.DataFrame({"x": [1, 2]}))
    step = Categorify(vocabulary=[1, 2]).fit(pd.DataFrame({"x": [1, 2]}))
    with raises(errors.SchemaMismatch, where="Categorify, column 'x'", got="string"):
        step.transform(pd.DataFrame({"x": ["1"]}))


def test_none_and_nan_are_one_missing_value_and_an_empty_string_is_a_value() -> None:
    train = pd.DataFrame({"x": pd.array(["x", None, "new", "z", ""], dtype=object)})
    train.loc[2, "x"] = np.nan
    assert Categorify(vocabulary=["x", "", "z"]).fit_transform(train)["x"].tolist() == [2, 0, 0, 4, 3]


def test_two_steps_on_columns_of_one_name_do_not_share_state() -> None:
    first = Categorify().fit(pd.DataFrame({"x": [1, 2, 3, 4, 5]}))
    before = first.transform(pd.DataFrame({"x": [3, 4, 5]}))["x"].tolist()
    Categorify().fit(pd.DataFrame({"x": [100, 200]}))
    assert first.transform(pd.DataFrame({"x": [3, 4, 5]}))["x"].tolist() == before == [4, 5, 6]


def test_what_is_refused() -> None:
    frame = pd.DataFrame({"x": ["a"], "y": ["b"], "n": [1]})
    with raises(errors.BadConfig, where="Categorify(vocabulary=), column 'x'", got="3 values, 2 distinct"):
        Categorify(vocabulary=["a", "b", "a"]).fit(frame[["x"]])
    with raises(errors.BadConfig, where="Categorify(vocabulary=), column 'x'", got=None):
        Categorify(vocabulary=["a", None]).fit(frame[["x"]])
    with raises(errors.BadConfig, where="Categorify(vocabulary=)", got={"min_frequency": 2, "max_categories": None}):
        Categorify(vocabulary=["a"], min_frequency=2).fit(frame[["x"]])
    with raises(errors.BadConfig, where="Categorify(joint=True)", got=["x"]):
        Categorify(vocabulary={"x": ["a"]}, joint=True).fit(frame[["x", "y"]])
    with raises(errors.SchemaMismatch, where="Categorify(joint=True), column 'n'", got="int64"):
        Categorify(joint=True).fit(frame[["x", "n"]])
    with raises(errors.BadConfig, where="Categorify(num_buckets=)", got=0):
        Categorify(num_buckets=0).fit(frame[["x"]])
    with raises(errors.BadConfig, where="Categorify(num_buckets=)", got=2147483648):
        Categorify(num_buckets=2**31).fit(frame[["x"]])
    for no_list in ("ab", {"a", "b"}, (value for value in "ab"), 5):  # ids follow from an order, at every look
        with raises(errors.BadConfig, where="Categorify(vocabulary=)", remedy="vocabulary=None"):
            Categorify(vocabulary=no_list).fit(frame[["x"]])
    with raises(errors.ColumnNotFound, where="Categorify(vocabulary=)", column="xx"):
        Categorify(vocabulary={"xx": ["a"]}).fit(frame[["x"]])


def test_numbers_come_from_numpy_too() -> None:
    frame = pd.DataFrame({"x": ["a", "b", "a"]})
    limits = {"min_frequency": np.int64(2), "max_categories": np.int32(1), "num_buckets": np.uint8(1)}
    assert Categorify(**limits).fit_transform(frame)["x"].tolist() == [2, 3, 2]
    assert pre.OneHotEncoder(min_frequency=np.int64(2)).fit(frame).get_feature_names_out()[-1] == "x_infrequent_sklearn"


def test_a_vocabulary_may_be_the_categories_of_a_column() -> None:
    frame = pd.DataFrame({"x": ["a", "b", None]})
    assert Categorify(vocabulary=pd.Categorical(["b", "a"])).fit_transform(frame)["x"].tolist() == [3, 2, 0]


def test_an_extended_vocabulary_keeps_its_ids_and_appends_by_count() -> None:
    frame = pd.DataFrame({"x": ["c", "c", "a", "d", None], "y": ["a", "b", "d", "d", "d"]})
    options = {"vocabulary": ["b", "a"], "extend": True}
    step = Categorify(**options).fit(frame)
    assert {name: values.to_pylist() for name, values in step.vocabularies_.items()} == {
        "x": ["b", "a", "c", "d"],
        "y": ["b", "a", "d"],
    }
    assert Categorify(**options, joint=True).fit(frame).vocabularies_["x"].to_pylist() == ["b", "a", "d", "c"]
    for limit in ({"min_frequency": 2}, {"max_categories": 3}):
        assert Categorify(**options, **limit).fit(frame).vocabularies_["x"].to_pylist() == ["b", "a", "c"]
    with raises(errors.BadConfig, where="Categorify(extend=True)"):
        Categorify(extend=True)
