"""Columns chosen by what they are: among them never a label, and settled anew at each fit."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import selectors as sel
from gpupipe import transforms as T
from gpupipe.schema import Field, Schema
from tests.raising import raises

ROOT = Path(__file__).parents[1]
SCHEMA = Schema(
    [
        Field("dep_delay", "float64"),
        Field("arr_delay", "float32"),
        Field("day", "int8"),
        Field("carrier", "string"),
        Field("at", "timestamp"),
        Field("open", "bool"),
    ]
)
FRAME = pd.DataFrame(
    {
        "dep_delay": [1.0, 2.0, np.nan, 4.0] * 5,
        "arr_delay": np.array([3, 20, 30, 4] * 5, "float32"),
        "day": np.array([1, 2, 3, 4] * 5, "int8"),
        "carrier": ["UA", "AA", None, "UA"] * 5,
        "at": pd.date_range("2013-01-01", periods=20, freq="h"),
        "open": [True, False] * 10,
    }
)
SCALED = [pre.SimpleImputer(), pre.StandardScaler()]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (sel.everything(), SCHEMA.names),
        (sel.numeric(), ["dep_delay", "arr_delay", "day"]),
        (sel.integer() | sel.boolean(), ["day", "open"]),
        (sel.floating() & sel.glob("dep*"), ["dep_delay"]),
        (sel.numeric() - sel.by_name("day"), ["dep_delay", "arr_delay"]),
        (~sel.numeric(), ["carrier", "at", "open"]),
        (~(sel.string() | sel.temporal()), ["dep_delay", "arr_delay", "day", "open"]),
        (sel.matches("^(dep|arr)_"), ["dep_delay", "arr_delay"]),
        (sel.glob("a*", "DAY"), ["arr_delay", "at"]),
        (sel.by_dtype("int8", "bool"), ["day", "open"]),
        (sel.by_kind("text", "time"), ["carrier", "at"]),
        (sel.by_kind("categorical"), []),
        (sel.by_kind("boolean"), ["open"]),
        (sel.exclude("day", sel.glob("*_delay")), ["carrier", "at", "open"]),
        (sel.by_name("open", "day"), ["day", "open"]),
    ],
    ids=repr,
)
def test_what_is_chosen(selector: sel.Selector, names: list[str]) -> None:
    assert selector.names(SCHEMA) == names
    again = eval(repr(selector), vars(sel))
    assert repr(again) == repr(selector) and again.names(SCHEMA) == names
    assert pickle.loads(pickle.dumps(selector)).names(SCHEMA) == names


def test_what_is_no_choice() -> None:
    with raises(errors.ColumnNotFound, where="by_name('dayy')", column="dayy"):
        (~sel.by_name("dayy")).names(SCHEMA)
    for call in (
        lambda: sel.by_dtype("int"),
        lambda: sel.by_kind("number"),
        lambda: sel.matches("("),
        lambda: sel.numeric() - "day",
    ):
        with pytest.raises(errors.BadConfig):
            call()


def fitted(*groups: object, steps: tuple[T.Transform, ...] = (), **options: object) -> gp.Pipeline:
    return gp.Pipeline(list(steps), gp.Features(*groups, **options)).fit(FRAME)


def test_a_group_of_a_selector_is_one_of_names() -> None:
    chosen = fitted((sel.numeric(), SCALED), (sel.string(), pre.Categorify()))
    named = fitted(
        (["dep_delay", "arr_delay", "day"], [pre.SimpleImputer(), pre.StandardScaler()]), ("carrier", pre.Categorify())
    )
    pd.testing.assert_frame_equal(chosen.transform(FRAME), named.transform(FRAME))


def test_labels_weights_and_kept_columns_are_not_chosen() -> None:
    options = {"target": "arr_delay > 15", "weight": "day", "keep": "carrier"}
    assert fitted(sel.exclude(sel.temporal()), **options).features.inputs == {"dep_delay", "open"}


def test_a_selector_never_chooses_the_target_itself() -> None:
    steps = (T.Derive(twice="arr_delay * 2"),)
    allowed = fitted(sel.numeric(), steps=steps, target="arr_delay", allow_leak="twice")
    assert allowed.features.inputs == {"dep_delay", "twice", "day"}
    assert fitted(sel.numeric(), (["arr_delay"], [], "n"), target="arr_delay", allow_leak="arr_delay").schema.names[
        -2:
    ] == ["n_arr_delay", "arr_delay"]


def test_what_a_selector_leaves_out_is_said(caplog: pytest.LogCaptureFixture) -> None:
    steps = [T.Lag("arr_delay", [1, -1], by="carrier", order_by="at"), T.Derive(early="dep_delay - 1")]
    made = gp.Pipeline(steps, gp.Features((sel.numeric(), SCALED), target="arr_delay", task="regression"))
    lead = "computed from arr_delay, as the target or weight is; "
    lead += "Features(allow_leak=['arr_delay_lead_1_by_carrier']) takes them"
    wanted = [
        "numeric() leaves out arr_delay: the target or weight",
        f"numeric() leaves out arr_delay_lead_1_by_carrier: {lead}",
    ]
    explained = made.explain(FRAME)
    assert all(line in explained.splitlines() for line in wanted)
    assert "arr_delay_lag_1_by_carrier" in made.fit(FRAME).features.inputs
    with caplog.at_level("INFO", logger="gpupipe"):
        made.fit(FRAME)
    assert all(line in caplog.messages for line in wanted)
    assert made.fit_report is not None and made.fit_report.notes[:2] == wanted
    assert wanted[1] in repr(made.fit_report)
    with pytest.raises(errors.BadConfig) as caught:
        fitted(sel.glob("*_lead_*"), steps=tuple(steps), target="arr_delay")
    assert caught.value.remedy == "allow_leak=['arr_delay_lead_1_by_carrier'] if that is meant"
    every = fitted(sel.numeric() | sel.boolean())
    assert every.fit_report is not None and every.fit_report.notes == []


def test_what_is_computed_from_a_label_is_not_chosen() -> None:
    steps = (T.Derive(late="arr_delay * 2", early="dep_delay - 1"),)
    assert fitted(sel.floating(), steps=steps, target="arr_delay").features.inputs == {"dep_delay", "early"}


def test_columns_of_functions_are_chosen_too() -> None:
    steps = (T.Map(pd.DataFrame.cumsum, reads="day", adds="day"), T.Map(with_speed, reads="day", adds="speed"))
    assert fitted(sel.glob("sp*") | sel.integer(), steps=steps, target="arr_delay").features.inputs == {"day", "speed"}
    assert fitted(sel.numeric(), steps=(T.Map(with_speed),), target="arr_delay").features.inputs == {
        "dep_delay",
        "day",
        "speed",
    }


def with_speed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(speed=frame["day"] * 2.0)


def test_choosing_is_done_at_each_fit_and_shown_before() -> None:
    pipeline = gp.Pipeline([], gp.Features((sel.numeric(), SCALED)))
    assert "SimpleImputer + StandardScaler of numeric()" in pipeline.explain()
    assert "of dep_delay, arr_delay, day" in pipeline.explain(FRAME)
    assert "numeric()" in pipeline.explain(), "looking settles nothing"
    assert pipeline.fit(FRAME).features.inputs == {"dep_delay", "arr_delay", "day"}
    assert pipeline.fit(FRAME.drop(columns="day")).features.inputs == {"dep_delay", "arr_delay"}


def test_a_choice_of_nothing_is_an_error() -> None:
    with raises(errors.BadConfig, where="Features(glob('x*'))", got=[]):
        fitted(sel.glob("x*"))
    with raises(errors.BadConfig, where="Features(by_name('arr_delay'))", got=["arr_delay"]):
        fitted(sel.by_name("arr_delay"), target="arr_delay")
    with raises(errors.ColumnNotFound, where="by_name('dap')", column="dap"):
        fitted(sel.by_name("dap"))


def test_a_saved_pipeline_has_the_names(tmp_path: Path) -> None:
    pipeline = fitted((sel.numeric(), SCALED), target="arr_delay")
    gp.save(tmp_path / "p", pipeline)
    loaded = gp.load(tmp_path / "p").pipeline
    assert loaded.features.inputs == {"dep_delay", "day"}
    wide = FRAME.assign(more=1.0).drop(columns="arr_delay")
    pd.testing.assert_frame_equal(loaded.transform(wide), pipeline.transform(wide))


# Features.auto ------------------------------------------------------------------------------------------------------
def test_auto_proposes_by_type_and_trains() -> None:
    features = gp.Features.auto(FRAME, target="arr_delay > 15", keep="at", min_frequency=2)
    assert [(group.columns, [type(s).__name__ for s in group.steps]) for group in features.groups] == [
        (["dep_delay"], ["SimpleImputer", "StandardScaler"]),
        (["day"], ["SimpleImputer", "StandardScaler"]),
        (["open"], ["SimpleImputer"]),
        (["day", "carrier"], ["Categorify"]),
    ]
    pipeline = gp.Pipeline([], features).fit(FRAME)
    batch = next(iter(pipeline.loader(FRAME, batch_size=20)))
    assert batch.numeric.shape == (20, 4) and batch.codes.shape == (20, 2)
    assert pipeline.schema.numeric[1].name == "dep_delay_missing"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["number", "time", "flag", "text"])
@pytest.mark.parametrize("model", [gp.models.Linear, gp.models.MLP])
def test_auto_tells_a_model_what_is_missing(name: str, model: Any) -> None:
    """The target is whether a value is missing, and its values say nothing."""
    draw = np.random.default_rng(0)
    late = draw.random(1200) > 0.5
    columns = {
        "number": pd.Series(draw.integers(0, 4, 1200), dtype="float64"),
        "time": pd.Series(pd.to_datetime("2024-01-01") + pd.to_timedelta(draw.integers(0, 60, 1200), unit="D")),
        "flag": pd.Series(draw.random(1200) > 0.5, dtype="boolean"),
        "text": pd.Series(draw.choice(["a", "b"], 1200)),
    }
    frame = pd.DataFrame({name: columns[name].mask(pd.Series(late)), "other": draw.normal(size=1200), "late": late})
    assert gp.fit(frame[:900], target="late", model=model).evaluate(frame[900:])["auc"] > 0.99


def test_a_column_that_says_already_what_is_missing_is_no_hindrance() -> None:
    frame = pd.DataFrame({"x": [1.0, None] * 20, "x_missing": [False, True] * 20, "y": [0.5, 1.5] * 20})
    schema = gp.Pipeline([], gp.Features.auto(frame, target="y")).fit(frame).schema
    assert [item.name for item in schema.numeric] == ["x", "x_missing"]


@pytest.mark.parametrize("first", [9_999, 10_000])
def test_auto_reads_on_in_a_column_that_begins_later(first: int) -> None:
    values = {"late one": np.append(np.full(first, np.nan), [1.5, 2.5] * 5), "y": np.arange(first + 10) % 7 / 2}
    data = gp.from_frame(pd.DataFrame(values).assign(never=np.nan), num_partitions=3)
    features = gp.Features.auto(data, target="y")
    assert [group.columns for group in features.groups] == [["late one"]] and features.omitted == ["never (no value)"]
    assert gp.Pipeline([], features).fit(data).schema.numeric[1].name == "late one_missing"


def test_auto_of_a_schema_knows_no_values() -> None:
    features = gp.Features.auto(SCHEMA, target="arr_delay", weight="open")
    assert [group.columns for group in features.groups] == [["dep_delay", "day"], ["carrier"], ["at"]]


def test_auto_takes_rows_without_any_value() -> None:
    known = pd.DataFrame({"x": [1.0, 2.0, 4.0], "b": [True, True, False], "at": pd.date_range("2020", periods=3)})
    learned = gp.Pipeline([], gp.Features.auto(known)).fit(known)
    for name in known.columns:
        assert not learned.transform(known.head(1).astype({"b": object}).assign(**{name: None})).isna().any(axis=None)


def test_auto_leaves_out_what_has_no_value() -> None:
    empty = FRAME.assign(gone=np.nan, never=pd.NaT, none=pd.array([None] * len(FRAME), dtype="Int64"))
    empty = empty.assign(flag=pd.array([None] * len(FRAME), dtype="boolean"), text=pd.array([None] * len(FRAME), "str"))
    features = gp.Features.auto(empty, target="arr_delay > 15", min_frequency=2)
    assert repr(features.groups) == repr(gp.Features.auto(FRAME, target="arr_delay > 15", min_frequency=2).groups)
    names = ("gone", "never", "none", "flag", "text")
    assert all(name in line for name in names for line in [repr(features), *features.left_out])
    learned = gp.Pipeline([], features).fit(empty)
    assert learned.fit_report.notes[0] == learned.features.left_out[0]
    assert gp.Features.auto(FRAME.iloc[:0], target="arr_delay").inputs == set(FRAME) - {"arr_delay"}


def test_auto_says_what_it_leaves_out(caplog: pytest.LogCaptureFixture) -> None:
    types = {"amount": pd.array([1, 2] * 4, pd.ArrowDtype(pa.decimal128(9, 2))), "wait": pd.to_timedelta(range(8), "s")}
    frame = pd.DataFrame({"x": range(8), "y": [0.5, 1.5] * 4, "": range(8), "__index_level_0__": range(8)} | types)
    caplog.set_level("INFO", "gpupipe")
    features = gp.Features.auto(frame, target="y")
    learned = gp.Pipeline([], features).fit(frame)
    for text in (repr(features), caplog.text, "".join(learned.fit_report.notes)):
        assert all(name in text for name in ("''", "__index_level_0__", "amount (decimal128(9, 2))", "wait (duration["))
    assert learned.features.inputs == {"x"}


def test_auto_names_the_columns_of_the_target_that_are_not_there(caplog: pytest.LogCaptureFixture) -> None:
    gp.Features.auto(pd.DataFrame({"x": range(8), "y": [0.5] * 8}), target="Y > 2")
    assert "'Y'" in caplog.text


def test_auto_keeps_the_categories_of_a_small_table() -> None:
    frame = pd.DataFrame({"word": ["a", "b", "c", "d"], "few": [1, 2, 1, 2], "y": [0.5, 1.5, 2.5, 3.5]})
    learned = gp.Pipeline([], gp.Features.auto(frame, target="y")).fit(frame)
    assert {item.name: item.cardinality for item in learned.schema if item.cardinality} == {"word": 6, "few": 4}
    large = pd.concat([frame] * 250, ignore_index=True)
    assert "Categorify(min_frequency=5)" in repr(gp.Features.auto(large, target="y"))


def test_auto_takes_integers_of_few_values_as_numbers_and_ids() -> None:
    rows = 8000
    frame = pd.DataFrame({"hour": range(rows), "shop": range(rows), "parcel": range(rows), "y": 0.5})
    frame = frame.assign(hour=frame["hour"] % 24, shop=frame["shop"] % 200, parcel=frame["parcel"] % 250)
    groups = {
        group.name: group.columns
        for group in gp.Features.auto(frame, target="y").groups
        if "parcel" not in group.columns
    }
    assert groups == {"number": ["hour", "shop"], None: ["hour", "shop"]}, "a parcel has 32 rows, a shop 40"
    assert "Categorify(min_frequency=3)" in repr(gp.Features.auto(frame, target="y", min_frequency=3))


def test_a_fit_says_what_is_the_same_in_every_row(caplog: pytest.LogCaptureFixture) -> None:
    huge = [2**60 + number for number in range(4)]
    frame = pd.DataFrame({"rare": list("abcd"), "one": ["a"] * 4, "two": [5.0] * 4, "x": range(4), "huge": huge})
    numbers = ["two", "x", "huge"], pre.StandardScaler()
    features = gp.Features((["rare"], pre.Categorify(min_frequency=3)), (["one"], pre.Categorify()), numbers)
    notes = gp.Pipeline([], features).fit(frame).fit_report.notes
    assert [note.partition(":")[0] for note in notes] == ["Categorify of rare", "one", "two"]
    assert all(note in caplog.text for note in notes)


def test_the_proposal_is_code() -> None:
    features = gp.Features.auto(FRAME, target="arr_delay > 15", keep=["at", "day"])
    again = eval(repr(features), {**vars(pre), "Features": gp.Features})
    assert repr(again) == repr(features)
    named = gp.Features((sel.numeric(), [], "n"), "open", target="late", weight="day", allow_leak=["day"])
    assert repr(eval(repr(named), {**vars(sel), "Features": gp.Features})) == repr(named)


def test_auto_on_the_flights() -> None:
    flights = gp.read_parquet(ROOT / "data" / "flights.parquet")
    features = gp.Features.auto(flights, target="arr_delay > 15")
    assert "arr_delay" not in features.inputs and features.inputs == set(flights.columns) - {"arr_delay"}
    pipeline = gp.Pipeline([], features).fit(flights)
    made = pipeline.transform(flights.head(500))
    assert np.isfinite(made[[item.name for item in pipeline.schema.numeric]].to_numpy("float64")).all()
    assert {"time_hour_hour_sin", "time_hour_year"} <= set(made)


def test_auto_with_nothing_left() -> None:
    data = gp.from_frame(pd.DataFrame({"y": [0, 1] * 3, "id": range(6), "e": [None] * 6})).assign(b="y * 2", w="1.0")
    leak = "b (computed from y, as the target is)"
    offered = "gp.Pipeline(steps, gp.Features(['b'], target='y', allow_leak=['b']))"
    offered_beside_id = offered.replace("allow", "keep='id', allow")
    for columns, options, listing, remedy in (
        (["y", "id"], {"target": "y", "keep": ["id"]}, "y (the target), id (kept)", "keep=[]"),
        (["y", "id"], {"keep": ["id", "y"]}, "y (kept), id (kept)", "keep='y'"),
        (["y", "e"], {"target": "y"}, "y (the target), e (no value)", "a table of more columns"),
        (["y", "w"], {"target": "y", "weight": "w"}, "y (the target), w (the weight)", "a table of more columns"),
        (["e"], {}, "e (no value)", "a table of more columns"),
        (["y", "b"], {"target": "y"}, f"y (the target), {leak}", offered),
        (["y", "id", "b"], {"target": "y", "keep": ["id"]}, f"y (the target), id (kept), {leak}", offered_beside_id),
    ):
        chosen: dict[str, Any] = options
        with raises(errors.BadConfig, where="Features.auto", match=re.escape(f"to be a feature: {listing}.")) as caught:
            gp.Features.auto(data.select(columns), **chosen)
        assert caught.value.remedy.removesuffix(" if they are known before the target") == remedy
