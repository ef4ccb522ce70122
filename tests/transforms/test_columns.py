"""Choosing, naming and retyping columns; rows and derived columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.schema import Field, Schema
from gpupipe.support.text import derive
from tests.examples import examples
from tests.raising import raises


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "x": [1.0, np.nan, 3.0],
            "n": pd.array([1, None, 300], dtype="Int64"),
            "s": ["1", None, "17"],
            "t": pd.to_datetime(["2013-01-01 05:00", None, "2013-01-02 00:00"]).astype("datetime64[us]"),
        },
        index=[7, 7, 9],
    )


def test_select_drop_rename(frame: pd.DataFrame) -> None:
    assert list(T.Select(["s", "x"]).transform(frame)) == ["s", "x"]
    assert list(T.Drop(["s", "x"]).transform(frame)) == ["n", "t"]
    assert list(T.Rename({"x": "y"}).transform(frame)) == ["y", "n", "s", "t"]


@pytest.mark.parametrize("step", [T.Select(["y"]), T.Drop(["y"]), T.Rename({"y": "z"}), T.Cast({"y": "int8"})])
def test_a_missing_column_is_named(frame: pd.DataFrame, step: T.Transform) -> None:
    with pytest.raises(errors.ColumnNotFound, match="column 'y' not found"):
        step.transform(frame)


def test_renaming_into_a_name_that_is_there(frame: pd.DataFrame) -> None:
    with raises(errors.BadConfig, where="Rename", got="n"):
        T.Rename({"x": "n"}).transform(frame)


def test_casts_keep_what_is_missing(frame: pd.DataFrame) -> None:
    cast = T.Cast({"x": "int16", "n": "float64", "s": "int64", "t": "string"}).transform(frame)
    assert cast["x"].tolist() == [1, pd.NA, 3] and str(cast["x"].dtype) == "Int16"
    assert cast["n"].fillna(-1).tolist() == [1.0, -1.0, 300.0]
    assert cast["s"].tolist() == [1, pd.NA, 17]
    assert cast["t"].fillna("-").tolist() == ["2013-01-01 05:00:00.000000", "-", "2013-01-02 00:00:00.000000"]


@pytest.mark.parametrize(
    ("name", "values", "warns"),
    [
        ("day", [20240131, 20240201], True),
        ("month", [202401, 202402, None], True),
        ("seconds", [1706659200, 0], True),
        ("milliseconds", [1706659200000], True),
        ("microseconds", [1706659200000000], False),
        ("some", [5, 1706659200000000], False),
        ("none", [None, None], False),
        ("zero", [0, 0], False),
    ],
)
def test_integers_that_are_no_microseconds_are_told(
    name: str, values: list[int | None], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = gp.from_frame(pd.DataFrame({name: pd.array(values, "Int64")}), num_partitions=len(values) if warns else 1)
    gp.Pipeline([T.Cast({name: "timestamp"})]).fit(data).transform(data).compute()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == warns
    if warns:
        assert f"the integers of column '{name}' are times of 1970; T.Derive(" in warnings[0]
        assert f"timestamp_formats={{'{name}': '%Y%m%d'}}" in warnings[0]


def test_strings_become_times_and_numbers() -> None:
    frame = pd.DataFrame({"t": ["2013-01-01", None], "f": [" 1.5", None]})
    cast = T.Cast({"t": "timestamp", "f": "float32"}).transform(frame)
    assert cast["t"].tolist()[0] == pd.Timestamp("2013-01-01") and pd.isna(cast["t"][1])
    assert cast["f"].tolist()[0] == 1.5 and np.isnan(cast["f"][1])


@pytest.mark.parametrize(
    ("column", "dtype", "value", "shown"),
    [
        ("x", "int8", 1.5, "got 1.5"),
        ("x", "int8", 200.0, "got 200.0"),
        ("x", "int64", np.inf, "got inf"),
        ("x", "bool", 2.0, "got 2.0"),
        ("s", "int64", "abc", "got 'abc'"),
        ("s", "timestamp", "yesterday", "got 'yesterday'"),
        ("n", "int8", 300, "got 300"),
    ],
)
def test_a_value_that_does_not_fit_is_named(column: str, dtype: str, value: object, shown: str) -> None:
    with pytest.raises(errors.BadData, match=f"Cast of column '{column}'.*{shown}"):
        T.Cast({column: dtype}).transform(pd.DataFrame({column: [value]}))


def test_a_cast_keeps_the_time_zone_and_text_has_the_offset() -> None:
    at = pd.to_datetime(["2020-10-25 00:00Z", "2020-10-25 01:00Z", None]).tz_convert("Europe/Oslo")
    frame = pd.DataFrame({"at": at, "day": pd.to_datetime(["2020-10-25", None, "2020-10-26"])})
    for data in (frame, gp.from_frame(frame)):
        made = gp.Pipeline([T.Cast({"at": "timestamp"})]).fit(data)
        found = made.transform(data)
        assert made.schema["at"].zone == "Europe/Oslo"
        pd.testing.assert_series_equal(
            (found if data is frame else found.compute())["at"], frame["at"].dt.as_unit("us")
        )
        texts = gp.Pipeline([T.Cast({"at": "string", "day": "string"})]).fit(data).transform(data)
        texts = texts if data is frame else texts.compute()
        assert texts["at"].tolist()[:2] == ["2020-10-25 02:00:00.000000+0200", "2020-10-25 02:00:00.000000+0100"]
        assert texts["day"].tolist()[0] == "2020-10-25 00:00:00.000000" and texts["at"].isna().tolist() == [
            False,
            False,
            True,
        ]
    whole = gp.Pipeline([T.Cast({"at": "int64"})]).fit(frame).transform(frame)
    assert whole["at"].tolist()[:2] == [1603584000000000, 1603587600000000]


def test_a_time_beyond_what_text_holds_is_named_with_a_zone_too() -> None:
    far = pa.table({"at": pa.array([2**62], pa.int64()).cast(pa.timestamp("us", "Europe/Oslo"))})
    with pytest.raises(errors.BadData) as caught:
        gp.Pipeline([T.Cast({"at": "string"})]).fit(gp.from_frame(far)).transform(
            gp.from_frame(far)
        ).to_polars().collect()
    assert caught.value.got == 2**62


def test_an_unused_string_does_not_have_to_fit() -> None:
    text = pd.Categorical(["1", "x"], categories=["1", "x"])
    assert T.Cast({"s": "int64"}).transform(pd.DataFrame({"s": text[:1]}))["s"].tolist() == [1]


def test_large_integers_keep_every_bit() -> None:
    big = pd.DataFrame({"n": pd.array([2**62 + 1, None], dtype="Int64")})
    assert T.Cast({"n": "string"}).transform(big)["n"][0] == str(2**62 + 1)
    assert T.Derive(m="n + 1").transform(big)["m"][0] == 2**62 + 2


def test_filter_drops_false_and_missing(frame: pd.DataFrame) -> None:
    assert T.Filter("x < 3").transform(frame)["x"].tolist() == [1.0]


def test_filter_wants_a_condition(frame: pd.DataFrame) -> None:
    with raises(errors.ExpressionError, where="Filter('x + 1')"):
        T.Filter("x + 1").transform(frame)


def test_derive_chains_and_prunes(frame: pd.DataFrame) -> None:
    derive = T.Derive(a="x * 2", b="a + 1", c="n + 1")
    assert derive.transform(frame)["b"].fillna(-1).tolist() == [3.0, -1.0, 7.0]
    schema = Schema([Field("x", "float64"), Field("n", "int64")])
    assert derive.needs({"b"}, schema) == {"x"}
    assert derive.output_schema(schema)["b"].lineage == frozenset()


def test_steps_do_not_change_their_input(frame: pd.DataFrame) -> None:
    before = frame.copy(deep=True)
    steps = [
        T.Filter("x > 0"),
        T.Derive(x="x * 2"),
        T.Cast({"x": "string"}),
        T.Join(pd.DataFrame({"s": ["1"], "v": [1]}), on="s"),
        T.Map(lambda f: f.assign(x=0.0), reads=["x"], adds=["x"]),
    ]
    for step in steps:
        step.transform(frame)
        pd.testing.assert_frame_equal(frame, before)


def test_parameters_are_scikit_learns() -> None:
    step = T.Filter("x > 0", when="always")
    assert step.get_params() == {"expr": "x > 0", "when": "always"}
    assert repr(step) == "Filter(expr='x > 0', when='always')"
    with raises(errors.BadConfig, where="Filter", got="wen"):
        step.set_params(wen="train")


def test_derived_columns_are_parameters_by_their_own_names(frame: pd.DataFrame) -> None:
    step = T.Derive(self="x + 1", named="x + 2")
    again = T.Derive(**step.get_params()).set_params(self="x * 2")
    assert again.transform(frame)["self"].fillna(0).tolist() == [2.0, 0.0, 6.0]
    assert (repr(step), repr(again)) == ("Derive(self='x + 1', named='x + 2')", "Derive(self='x * 2', named='x + 2')")


def test_a_transform_that_leaves_something_open_is_none() -> None:
    class Half(T.Transform):
        """Says nothing of what it needs."""

    with pytest.raises(TypeError, match=r"abstract.*apply.*needs.*output_schema"):
        Half()


@pytest.mark.parametrize("name", ["x", "class", "a b", "it's", "1960", 'say "x"'])
def test_names_that_python_does_not_take_are_written_such_that_it_does(name: str) -> None:
    step = T.Derive(**{name: f"col({name!r}) * 2" if '"' not in name else f"col('{name}') * 2"})
    assert eval(f"T.{step!r}").named == step.named
    text = derive(name, "{} / 2")
    data = pd.DataFrame({name: [3.0]})
    assert eval(f"T.{text}").transform(data)[name].tolist() == [1.5]


def test_columns_of_one_name_are_told_by_what_makes_them(frame: pd.DataFrame) -> None:
    for make, where, remedy in (
        (lambda: gp.from_frame(frame).select(["x", "n", "x"]), "select", "['x', 'n']"),
        (lambda: T.Rename({"x": "n"}).transform(frame), "Rename", "Drop(['n'])"),
        (lambda: gp.Pipeline([T.Rename({"x": "n"})]).fit(frame), "Rename", "another name than 'n'"),
    ):
        with pytest.raises(errors.BadConfig, match="two columns have the same name") as caught:
            make()
        assert caught.value.where == where and remedy in caught.value.remedy
        assert "group" not in str(caught.value)


TEXTS = ["40", " 7 ", "n/a", "", None, "1e3", "-0.5", "12,5", "abc", "1e20", "nan"]


def test_coerced_numbers_are_those_of_pandas() -> None:
    frame = pd.DataFrame({"x": pd.array(TEXTS, "string")})
    made = T.Cast({"x": "float64"}, errors="coerce").transform(frame)["x"]
    wanted = pd.to_numeric(frame["x"], errors="coerce").astype("float64")
    assert made.tolist() == pytest.approx(wanted.tolist(), nan_ok=True)
    whole = T.Cast({"x": "int8"}, errors="coerce").transform(frame)["x"]
    assert whole.tolist() == [40, 7, *[pd.NA] * 9] and str(whole.dtype) == "Int8"


def test_coerced_times_are_those_of_pandas() -> None:
    texts = ["2013-10-01", "2013-10-01 05:30:00", "2013-02-30", "yesterday", None]
    made = T.Cast({"t": "timestamp"}, errors="coerce").transform(pd.DataFrame({"t": texts}))["t"]
    assert made.tolist() == pd.to_datetime(pd.Series(texts), errors="coerce", format="ISO8601").tolist()


@pytest.mark.parametrize(
    ("values", "dtype", "wanted"),
    [
        ([1.0, 2.5, None, 1e300], "int16", [1, pd.NA, pd.NA, pd.NA]),
        ([1.0, 1e300], "float32", [1.0, np.nan]),
        ([100, 300, -1], "uint8", [100, pd.NA, pd.NA]),
        ([2**53, 2**53 + 1], "float64", [float(2**53), np.nan]),
        ([0, 1, 2], "bool", [False, True, pd.NA]),
        (["true", "maybe"], "bool", [True, pd.NA]),
    ],
)
def test_what_does_not_fit_is_coerced(values: list[Any], dtype: str, wanted: list[Any]) -> None:
    frame = pd.DataFrame({"x": values})
    with pytest.raises(errors.BadData, match="not fit"):
        T.Cast({"x": dtype}).transform(frame)
    made = T.Cast({"x": dtype}, errors="coerce").transform(frame)["x"].tolist()
    assert [None if pd.isna(one) else one for one in made] == [None if pd.isna(one) else one for one in wanted]


def test_elements_of_lists_are_coerced() -> None:
    made = T.Cast({"x": "list<int64>"}, errors="coerce").transform(pd.DataFrame({"x": [["1", "x"], [], None, ["y"]]}))
    assert pa.Table.from_pandas(made)["x"].to_pylist() == [[1, None], [], None, [None]]


@examples(30)
@given(st.lists(st.sampled_from(["1", "2.5", "x", "y", "", "3"]) | st.none(), max_size=12))
def test_a_coerced_column_does_not_depend_on_partitions(texts: list[str | None]) -> None:
    data = gp.from_frame(pa.table({"x": pa.array(texts, pa.string())}), num_partitions=3)
    made = gp.Pipeline([T.Cast({"x": "float32"}, errors="coerce")]).fit(data).transform(data).to_polars().collect()["x"]
    assert made.to_list() == [float(text) if text in ("1", "2.5", "3") else None for text in texts]


def test_a_fit_counts_what_it_coerced() -> None:
    frame = pd.DataFrame({"x": ["1", "n/a", None, "?"] * 10, "y": ["1", "2", "3", "4"] * 10, "z": range(40)})
    features = gp.Features((["x", "y"], [pre.SimpleImputer(), pre.StandardScaler()]), target="z > 20")
    pipeline = gp.Pipeline([T.Cast({"x": "float64", "y": "int64"}, errors="coerce")], features)
    report = pipeline.fit(gp.from_frame(frame, num_partitions=3)).fit_report
    assert report is not None and report.coerced == {"x": 20}
    assert "20 values of 'x' made missing by Cast" in str(report)
    strict = gp.Pipeline([T.Cast({"y": "int64"})], gp.Features(["y"])).fit(frame).fit_report
    assert strict is not None and strict.coerced == {} and "Cast" not in str(strict)


def test_what_cannot_be_coerced_is_told() -> None:
    with pytest.raises(errors.BadConfig, match=r"errors.*got 'ignore'[\s\S]*coerce"):
        T.Cast({"x": "int64"}, errors="ignore")
    decimals = gp.from_frame(pa.table({"d": pa.array([1], pa.decimal128(5, 2))}))
    with pytest.raises(
        errors.SchemaMismatch, match=r"column 'd' cannot be coerced[\s\S]*Cast\(\{'d': 'int64'\}\), which raises"
    ):
        gp.Pipeline([T.Cast({"d": "int64"}, errors="coerce")]).fit(decimals)
