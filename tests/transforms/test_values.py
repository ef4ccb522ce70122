"""Values in the place of others: clipped, on a logarithmic scale, replaced; pandas and NumPy are the oracles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import errors
from gpupipe import transforms as T
from tests.raising import raises

NUMBERS = st.sampled_from(["float64", "float32", "Int64", "Int8", "UInt16"])


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(NUMBERS, st.lists(st.none() | st.integers(0, 100), max_size=8), st.integers(0, 60), st.integers(0, 60))
def test_clip_is_pandas(dtype: str, values: list[Any], low: int, more: int) -> None:
    frame = pd.DataFrame({"x": pd.array(values, dtype=dtype)})
    for ends in ((low, low + more), (low, None), (None, low)):
        made = T.Clip("x", *ends).transform(frame)["x"]
        wanted = frame["x"].clip(*ends)
        assert made.isna().tolist() == wanted.isna().tolist()
        assert made.dropna().tolist() == wanted.dropna().tolist()
        assert made.dtype.name.lower() == dtype.lower()


def test_clip_of_infinities_and_times() -> None:
    frame = pd.DataFrame({"x": [np.inf, -np.inf, np.nan], "t": pd.to_datetime(["1960-01-01", "2050-01-01", None])})
    made = T.Clip("x", -1, 2.5).transform(T.Clip("t", "2000-01-01", "2001-01-01T00:00").transform(frame))
    assert made["x"].tolist()[:2] == [2.5, -1.0] and np.isnan(made["x"][2])
    assert made["t"].astype(str).tolist()[:2] == ["2000-01-01", "2001-01-01"] and pd.isna(made["t"][2])


def test_an_end_beyond_a_type_is_none() -> None:
    """One range serves columns of several types; a fraction is no end of integers."""
    frame = pd.DataFrame({"a": np.array([-128, 127], "int8"), "b": [-1e6, 1e6]})
    made = T.Clip(["a", "b"], -1000, 1000).transform(frame)
    assert made["a"].tolist() == [-128, 127] and made["b"].tolist() == [-1000.0, 1000.0]
    with raises(errors.BadConfig, where="Clip of column 'a'", got=0.5):
        T.Clip("a", 0.5).transform(frame)
    for ends in ((1, 0), (np.nan, 1), ("a", "b"), (200, None)):
        with pytest.raises(errors.BadConfig):
            T.Clip("a", *ends).transform(frame)
    with pytest.raises(errors.BadConfig, match="no range"):
        T.Clip("a")
    with raises(errors.SchemaMismatch, where="Clip of column 's'", got="string"):
        T.Clip("s", 0).transform(pd.DataFrame({"s": ["a"]}))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["float64", "float32"]), st.lists(st.floats(-0.75, 2.0**99, width=32), max_size=8))
def test_log1p_is_numpys(dtype: str, values: list[float]) -> None:
    frame = pd.DataFrame({"x": np.array([*values, np.nan], dtype=dtype), "n": range(len(values) + 1)})
    made = T.Log1p(["x", "n"]).transform(frame)
    for name in ("x", "n"):
        wanted = np.log1p(frame[name].to_numpy("float64"))
        np.testing.assert_allclose(made[name], wanted, rtol=1e-6, atol=1e-30)
    assert made["x"].dtype == dtype and made["n"].dtype == "float64"


@pytest.mark.parametrize("value", [-1.0, -2.5, -np.inf])
def test_log1p_names_what_has_no_logarithm(value: float) -> None:
    """Not NaN or -inf, as NVTabular's LogOp gives without a word."""
    frame = pd.DataFrame({"ok": [1.0, 2.0, 3.0], "delay": [np.nan, value, value]})
    with pytest.raises(errors.BadData, match=f"Log1p of column 'delay': 2 values of -1 or less, got {value}"):
        T.Log1p(["ok", "delay"]).transform(frame)
    with pytest.raises(errors.BadData) as caught:
        T.Log1p("a.b").transform(frame.rename(columns={"delay": "a.b"}))
    for step in caught.value.remedy.removesuffix(" before it").split(" or "):
        kept = gp.Pipeline([eval(f"T.{step}"), T.Log1p("a.b")]).fit_transform(frame.rename(columns={"delay": "a.b"}))
        assert not np.isneginf(kept["a.b"]).any()
    masked = pd.DataFrame({"n": pd.array([None, 3], dtype="Int64")})  # what lies below the mask means nothing
    assert T.Log1p("n").transform(masked)["n"].isna().tolist() == [True, False]


def plain(series: pd.Series) -> list[Any]:
    return [None if pd.isna(value) else value for value in series.tolist()]


COLUMNS: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "s": ("str", st.sampled_from(["a", "b", "", "ß", "日本"])),
    "x": ("float64", st.sampled_from([0.5, -0.5, 0.0, 3.0, np.inf])),
    "f": ("float32", st.sampled_from([0.5, 7.0])),
    "n": ("Int64", st.sampled_from([0, 1, 2**60 + 1, -(2**60)])),
    "b": ("boolean", st.booleans()),
}


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_replacing_is_a_dictionary_look_up(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(COLUMNS)))
    dtype, value = COLUMNS[name]
    values = data.draw(st.lists(st.none() | value, max_size=8))
    pairs = data.draw(st.dictionaries(st.none() | value, st.none() | value, max_size=4))
    frame = pd.DataFrame({name: pd.array(values, dtype=dtype)})
    made = T.Replace({name: pairs}).transform(frame)[name]
    assert plain(made) == [pairs.get(item, item) for item in values]
    assert made.dtype.name.lower().removesuffix("ean") == dtype.lower().removesuffix("ean")


def test_replacing_is_pandas() -> None:
    frame = pd.DataFrame({"s": ["a", "b", None, "c"], "x": [1.0, 2.0, np.nan, 4.0]})
    pairs: dict[str, dict[Any, Any]] = {"s": {"a": "b", "b": "a"}, "x": {1: 2, 4: -1.5}}
    pd.testing.assert_frame_equal(T.Replace(pairs).transform(frame), frame.replace(pairs))


def test_what_a_type_cannot_hold_is_refused() -> None:
    frame = pd.DataFrame({"n": np.array([1], "int8"), "s": ["a"], "b": [True], "t": pd.to_datetime(["2013-01-01"])})
    frame = frame.assign(f=np.array([1.0], "float32"), l=[[1]])
    for column, pairs in (
        ("n", {1: 300}),
        ("n", {1: 0.5}),
        ("n", {"1": 2}),
        ("n", {1: True}),
        ("s", {"a": 1}),
        ("b", {True: 2}),
        ("t", {"yesterday": None}),
        ("f", {1.0: 1e39}),
        ("n", 5),
    ):
        with pytest.raises(errors.BadConfig, match=f"Replace of column '{column}'"):
            T.Replace({column: pairs}).transform(frame)
    with raises(errors.SchemaMismatch, where="Replace, column 'l'", got="list<int64>"):
        T.Replace({"l": {1: 2}}).transform(frame)
    assert T.Replace({"f": {1.0: np.inf}}).transform(frame)["f"].tolist() == [np.inf]
    assert T.Clip("f", -1e39, 10**400).transform(frame)["f"].tolist() == [1.0]


def test_replacements_are_saved_with_keys_that_are_no_text(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": pd.array([1, 2, None], dtype="Int64"), "s": ["a", None, "c"]})
    step = T.Replace({"n": {1: 7, None: 0}, "s": {None: "?", "$a": "b"}})
    gp.save(tmp_path / "p", gp.Pipeline([step]).fit(frame))
    loaded = gp.load(tmp_path / "p").pipeline
    assert repr(loaded.steps[0]) == repr(step)
    pd.testing.assert_frame_equal(loaded.transform(frame), step.transform(frame))


@pytest.mark.parametrize("end", [[1], True, np.nan])
def test_an_end_that_makes_no_sense_has_a_remedy_that_works(end: Any) -> None:
    with pytest.raises(errors.BadConfig) as caught:
        T.Clip("x", low=end)
    assert (caught.value.where, caught.value.remedy) == ("Clip(low=)", "low=0")


def test_words_become_numbers_in_two_steps() -> None:
    frame = pd.DataFrame({"grade": ["low", "high", "low"]})
    with raises(errors.BadConfig, where="Replace of column 'grade'", got=1) as caught:
        T.Replace({"grade": {"low": 1, "high": 2}}).transform(frame)
    assert caught.value.remedy == "'1', and T.Cast({'grade': 'int64'}) behind it where all become numbers"
    steps = [T.Replace({"grade": {"low": "1", "high": "2"}}), T.Cast({"grade": "int64"})]
    assert gp.Pipeline(steps).fit(frame).transform(frame)["grade"].tolist() == [1, 2, 1]
