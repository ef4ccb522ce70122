"""One-hot columns against scikit-learn, and where its rule for missing values is another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing as peers
from hypothesis import assume, given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from tests.examples import examples
from tests.raising import raises

WORDS = st.sampled_from(["", "a", "b", "Z", "ß", "日本", "\U0001f6eb", "\uffff"])


def frame_of(texts: list[str | None], numbers: list[int]) -> pd.DataFrame:
    return pd.DataFrame({"s": pd.array(texts, dtype="str"), "n": np.array(numbers, dtype="int64")})


@st.composite
def frames(draw: st.DrawFn, missing: bool = True, min_rows: int = 1) -> pd.DataFrame:
    rows = draw(st.integers(min_rows, 25))
    text = WORDS | st.none() if missing else WORDS
    texts = draw(st.lists(text, min_size=rows, max_size=rows))
    return frame_of(texts, draw(st.lists(st.integers(-3, 3), min_size=rows, max_size=rows)))


OPTIONS = st.fixed_dictionaries(
    {
        "min_frequency": st.sampled_from([None, 1, 2, 3, 0.1, 0.3]),
        "max_categories": st.sampled_from([None, 1, 2, 3, 5]),
        "drop": st.sampled_from([None, "first", "if_binary"]),
        "handle_unknown": st.sampled_from(["ignore", "infrequent_if_exist"]),
    }
)


@pytest.mark.slow
@examples(150)
@given(train=frames(), later=frames(), options=OPTIONS)
@pytest.mark.filterwarnings("ignore:Found unknown categories")
def test_columns_are_scikit_learns(train: pd.DataFrame, later: pd.DataFrame, options: dict[str, Any]) -> None:
    if not train["s"].isna().any():  # scikit-learn has such missing values unknown
        later = later.fillna({"s": "unknown"})
    peer = peers.OneHotEncoder(sparse_output=False, **options).fit(train)
    step = pre.OneHotEncoder(**options).fit(train)
    assert step.get_feature_names_out() == peer.get_feature_names_out().tolist()
    for frame in (train, later):
        found = step.transform(frame)
        assert found.columns.tolist() == peer.get_feature_names_out().tolist()
        assert (found.dtypes == "uint8").all()
        np.testing.assert_array_equal(found.to_numpy().reshape(len(frame), -1), peer.transform(frame))


@examples(80)
@given(train=frames(), later=frames(), drop=st.sampled_from([None, "first", "if_binary"]))
@pytest.mark.filterwarnings("ignore:Found unknown categories")
def test_the_way_back_is_scikit_learns(train: pd.DataFrame, later: pd.DataFrame, drop: str | None) -> None:
    peer = peers.OneHotEncoder(sparse_output=False, handle_unknown="ignore", drop=drop).fit(train)
    step = pre.OneHotEncoder(handle_unknown="ignore", drop=drop).fit(train)
    if not train["s"].isna().any():
        later = later.fillna({"s": "unknown"})
    assume(len(peer.get_feature_names_out()))
    wanted = peer.inverse_transform(peer.transform(later))
    found = step.inverse_transform(step.transform(later))
    for place, name in enumerate(found):
        mine = [None if pd.isna(value) else value for value in found[name]]
        assert mine == [None if pd.isna(value) else value for value in wanted[:, place]]


@examples(60)
@given(frames(missing=False), st.permutations(["", "a", "b", "Z", "ß", "日本", "\U0001f6eb", "\uffff", "new"]))
def test_categories_given(train: pd.DataFrame, order: list[str]) -> None:
    lists = [order, list(range(-3, 4))]
    peer = peers.OneHotEncoder(categories=lists, sparse_output=False, max_categories=4).fit(train)
    for given_as in (lists, dict(zip("sn", lists, strict=True))):
        step = pre.OneHotEncoder(categories=given_as, max_categories=4).fit(train)
        assert step.get_feature_names_out() == peer.get_feature_names_out().tolist()
        np.testing.assert_array_equal(step.transform(train).to_numpy(), peer.transform(train))


def test_a_category_left_out() -> None:
    train = frame_of(["a", "b", None, "c", "c", "b"], [1, 2, 3, 3, 2, 3])
    for drop in (["b", 3], [None, 1]):
        peer = peers.OneHotEncoder(drop=[np.nan if v is None else v for v in drop], sparse_output=False).fit(train)
        step = pre.OneHotEncoder(drop=drop, dtype="float32").fit(train)
        assert step.get_feature_names_out() == peer.get_feature_names_out().tolist()
        np.testing.assert_array_equal(step.transform(train).to_numpy(), peer.transform(train))
        back = step.inverse_transform(step.transform(train))
        assert back["n"].tolist() == train["n"].tolist()
        assert back["s"].fillna("?").tolist() == train["s"].fillna("?").tolist()
    assert len(pre.OneHotEncoder(drop={"s": "b"}).fit(train).get_feature_names_out()) == 6
    with raises(errors.BadConfig, where="OneHotEncoder(drop=), column 's'", got="zz"):
        pre.OneHotEncoder(drop=["zz", 1]).fit(train)
    with raises(errors.BadConfig, where="OneHotEncoder(drop=), column 's'", got="a"):
        pre.OneHotEncoder(drop=["a", 3], min_frequency=2).fit(train)


def test_booleans_are_named_as_they_are_written() -> None:
    train = pd.DataFrame({"late": [True, False]})
    assert pre.OneHotEncoder().fit(train).get_feature_names_out() == ["late_False", "late_True"]


@pytest.mark.parametrize("handle_unknown", ["error", "ignore", "infrequent_if_exist"])
def test_a_missing_value_that_fit_did_not_see_is_nothing(handle_unknown: str) -> None:
    step = pre.OneHotEncoder(handle_unknown=handle_unknown, min_frequency=2).fit(pd.DataFrame({"x": ["a", "a", "b"]}))
    found = step.transform(pd.DataFrame({"x": pd.array([None, "a"], dtype="str")}))
    assert found.to_dict("list") == {"x_a": [0, 1], "x_infrequent_sklearn": [0, 0]}
    assert step.inverse_transform(found)["x"].fillna("?").tolist() == ["?", "a"]


def test_an_unknown_value_is_named() -> None:
    step = pre.OneHotEncoder().fit(pd.DataFrame({"n": [1, 2], "s": ["a", "b"]}))
    later = pd.DataFrame({"n": [1, 2, 2], "s": ["a", "zz", "zz"]})
    with raises(errors.BadData, where="OneHotEncoder, column 's'", got="zz", match="2 values of no known"):
        step.transform(later)
    with raises(errors.BadData, where="OneHotEncoder, column 'n'", got=7):
        step.transform(pd.DataFrame({"n": [1, 7], "s": ["a", "b"]}))
    assert step.transform(later.iloc[:1]).to_numpy().tolist() == [[1, 0, 1, 0]]
    with raises(errors.BadData, where="OneHotEncoder, column 's'", got="b"):
        pre.OneHotEncoder(categories={"s": ["a"]}).fit(pd.DataFrame({"s": ["a", "b"]}))


def test_values_no_row_has_are_not_unknown() -> None:
    """A partition's dictionary may hold more than its rows do."""
    step = pre.OneHotEncoder().fit(pd.DataFrame({"s": ["a", "b"]}))
    later = pd.DataFrame({"s": pd.Categorical(["a", None], categories=["a", "zz"])})
    assert step.transform(later).to_numpy().tolist() == [[1, 0], [0, 0]]


def test_what_is_refused() -> None:
    train = pd.DataFrame({"s": ["a", "b"], "t": ["a", "b"]})
    with raises(errors.BadData, where="OneHotEncoder", got="s_a_b"):
        pre.OneHotEncoder().fit(pd.DataFrame({"s": ["a_b"], "s_a": ["b"]}))
    with raises(errors.BadConfig, where="OneHotEncoder(min_frequency=)", got=1.5):
        pre.OneHotEncoder(min_frequency=1.5).fit(train)
    with raises(errors.BadConfig, where="OneHotEncoder(min_frequency=)", remedy="min_frequency=None"):
        pre.OneHotEncoder(min_frequency=float("nan")).fit(train)
    with raises(errors.BadConfig, where="OneHotEncoder(categories=)", got=None):
        pre.OneHotEncoder(categories=None).fit(train)
    with raises(errors.BadConfig, where="OneHotEncoder(categories=)", got="1 item"):
        pre.OneHotEncoder(categories=[["a"]]).fit(train)
    with raises(errors.BadConfig, where="OneHotEncoder(categories=), column 's'", got=[1]):
        pre.OneHotEncoder(categories={"s": [1]}).fit(train)
    with raises(errors.BadConfig, where="OneHotEncoder(categories=), column 's'", got="3 values, 2 distinct"):
        pre.OneHotEncoder(categories={"s": ["a", "b", "a"]}).fit(train)
    with raises(errors.SchemaMismatch, where="OneHotEncoder, column 'x'", got="float64"):
        pre.OneHotEncoder().fit(pd.DataFrame({"x": [0.5]}))


def test_a_second_fit_forgets_the_first() -> None:
    step = pre.OneHotEncoder().fit(pd.DataFrame({"s": ["a"]}))
    assert step.fit(pd.DataFrame({"t": ["b", "c"]})).get_feature_names_out() == ["t_b", "t_c"]


def test_a_refused_fit_leaves_no_names() -> None:
    step, frame = pre.OneHotEncoder(), pd.DataFrame({"s": ["a_b"], "s_a": ["b"]})
    with raises(errors.BadData, where="OneHotEncoder", got="s_a_b"):
        step.fit(frame)
    gp.Pipeline([], gp.Features((["s", "s_a"], step))).fit(frame.assign(s="c"))


def test_without_an_output_there_is_no_way_back() -> None:
    step = pre.OneHotEncoder(drop="first").fit(pd.DataFrame({"s": ["a", "a"]}))
    with raises(errors.BadConfig, where="OneHotEncoder.inverse_transform", got=["s"]):
        step.inverse_transform(step.transform(pd.DataFrame({"s": ["a", "a"]})))
