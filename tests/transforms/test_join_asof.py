"""The step that joins what was known at a row's time: against pandas and the verb, saved and loaded, without leaks."""

from __future__ import annotations

import re
from datetime import time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.errors import ArtifactError, BadConfig, BadData, ColumnNotFound, GpupipeError, LeakageError, SchemaMismatch
from tests.io.meeting import PARTITIONS
from tests.io.relational.test_asof import DAY, MANY, ROWS, matches, table_of
from tests.raising import raises

DATA = Path(__file__).parents[2] / "data"


@MANY
@given(
    left=ROWS,
    right=ROWS,
    by=st.sampled_from([None, "k", ["k", "n"]]),
    kind=st.sampled_from(["integer", "float", "time"]),
    tolerance=st.sampled_from([None, 0, 1, 3]),
    lag=st.sampled_from([None, 0, 2]),
    exact=st.booleans(),
    parts=st.sampled_from([None, *PARTITIONS]),
)
def test_rows_match_as_in_pandas(
    left: Any, right: Any, by: Any, kind: str, tolerance: Any, lag: Any, exact: bool, parts: int | None
) -> None:
    frames = table_of(left, kind), table_of(right, kind)
    lengths: list[Any] = [tolerance, lag]
    if kind == "time":
        lengths = [None if length is None else timedelta(days=length) for length in lengths]
    options = {"tolerance": lengths[0], "lag": lengths[1], "allow_exact_matches": exact}
    step = T.JoinAsOf(frames[1], on="on", by=by, columns="row", **options)
    if parts is None:
        found = step.transform(frames[0])
    else:
        pipeline = gp.Pipeline([step], backend="cpu").fit(frames[0])
        found = pipeline.transform(gp.from_frame(frames[0], num_partitions=parts)).compute()
    keys = [] if by is None else [by] if isinstance(by, str) else by
    known = frames[1].assign(on=frames[1]["on"] + (lengths[1] or type(lengths[1] or 0)(0)) if lag else frames[1]["on"])
    wanted = matches(frames[0], known, keys, allow_exact_matches=exact)
    if tolerance is not None:  # by the right row's own time
        own = frames[1]["on"].reindex(wanted).reset_index(drop=True)
        wanted[~(frames[0]["on"] - own <= lengths[0]).fillna(value=False).to_numpy(dtype=bool)] = np.nan
    np.testing.assert_array_equal(found["row_right"].astype("Float64").to_numpy(float, na_value=np.nan), wanted)
    assert found["row"].tolist() == list(range(len(left)))


@pytest.mark.slow
def test_flights_find_what_the_verb_finds() -> None:
    flights = gp.read_parquet(DATA / "flights.parquet", partition_bytes=1 << 22, backend="cpu")
    weather = gp.read_parquet(DATA / "weather.parquet", backend="cpu").shuffle(2)
    options: dict[str, Any] = {"on": "time_hour", "by": "origin", "tolerance": "2h", "columns": ["temp", "visib"]}
    pipeline = gp.Pipeline([T.JoinAsOf(weather, **options)], backend="cpu").fit(flights)
    found = pipeline.transform(flights).compute()
    pd.testing.assert_frame_equal(found, flights.join_asof(weather, **options).compute())
    assert pipeline.steps[0].name == "time_hour_origin"


def test_the_time_of_the_right_row_comes_where_it_is_named_or_copied() -> None:
    """As the docstrings of the step and of the verb say."""
    left = gp.from_frame(pd.DataFrame({"at": [5, 9]}))
    right = gp.from_frame(pd.DataFrame({"since": [1, 8], "kind": ["a", "b"]}))
    keys: dict[str, Any] = {"left_on": "at", "right_on": "since"}
    for table, more, column in ((right, {"columns": ["since"]}, "since"), (right.assign(copy="since"), {}, "copy")):
        step = gp.Pipeline([T.JoinAsOf(table, **keys, **more), T.Derive(age=f"at - {column}")])
        verb = left.join_asof(table, **keys, **more).assign(age=f"at - {column}")
        assert step.fit(left).transform(left).compute()["age"].tolist() == verb.compute()["age"].tolist() == [4, 1]
    assert left.join_asof(right, **keys).columns == ["at", "kind"]
    assert left.join_asof(left, on="at", columns=["at"]).columns == ["at", "at_right"]


def test_neighbours_beyond_two_to_the_53_are_told_apart() -> None:
    low, high = -(2**63), 2**63 - 1
    right = pd.DataFrame({"n": [high - 1, low, high], "x": [0, 1, 2]})
    left = pd.DataFrame({"n": [low, high, high - 1, 0]})
    assert T.JoinAsOf(right, on="n").transform(left)["x"].tolist() == [1, 2, 0, 1]
    assert T.JoinAsOf(right, on="n", tolerance=2**63 - 1).transform(left)["x"].fillna(-1).tolist() == [1, 2, 0, -1]
    assert T.JoinAsOf(right, on="n", lag=1).transform(left)["x"].fillna(-1).tolist() == [-1, 0, 1, 1]
    unsigned = [frame.assign(n=frame["n"].to_numpy().view("uint64") ^ np.uint64(1 << 63)) for frame in (right, left)]
    assert T.JoinAsOf(unsigned[0], on="n", lag=1).transform(unsigned[1])["x"].fillna(-1).tolist() == [-1, 0, 1, 1]


def fitted(right: Any, **options: Any) -> gp.Pipeline:
    features = gp.Features((["temp"], [pre.SimpleImputer(), pre.StandardScaler()]), target="late")
    steps = [T.JoinAsOf(right, on="at", by="origin", name="weather", **options)]
    return gp.Pipeline(steps, features, backend="cpu").fit(FLIGHTS)


FLIGHTS = pd.DataFrame(
    {
        "at": DAY + pd.to_timedelta(np.arange(40) % 13, "h"),
        "origin": np.array(["JFK", "LGA"])[np.arange(40) % 2],
        "late": np.arange(40) % 3 == 0,
        "delay": np.arange(40.0),
    }
)
WEATHER = pd.DataFrame(
    {"at": DAY + pd.to_timedelta([3, 0, 9, 5], "h"), "origin": ["JFK", "JFK", "JFK", "LGA"], "temp": [1.0, 2, 3, 4]}
)


@pytest.mark.parametrize("options", [{}, {"tolerance": timedelta(hours=4), "lag": "30min"}])
def test_it_is_saved_with_its_table_or_given_another(options: dict[str, Any], tmp_path: Path) -> None:
    pipeline = fitted(WEATHER, **options)
    assert pipeline.fit_report is not None and 0 < pipeline.fit_report.unmatched["weather"] < 1
    model = gp.models.Linear.from_schema(pipeline.schema, seed=1)
    gp.save(tmp_path / "run", pipeline, model)
    new = FLIGHTS.drop(columns="late")
    wanted = pipeline.transform(new)
    loaded = gp.load(tmp_path / "run", backend="cpu")
    pd.testing.assert_frame_equal(loaded.pipeline.transform(new), wanted)
    for parts in PARTITIONS:
        found = loaded.predict_proba(gp.from_frame(new, num_partitions=parts)).compute()
        pd.testing.assert_frame_equal(found, loaded.predict_proba(new), rtol=1e-6)
    later = WEATHER.assign(temp=WEATHER["temp"] * 10)
    other = gp.load(tmp_path / "run", tables={"weather": later}, backend="cpu").pipeline.transform(new)
    assert not other.equals(wanted)
    with pytest.raises(ArtifactError):
        gp.load(tmp_path / "run", tables={"winter": later}, backend="cpu")
    with pytest.raises(GpupipeError):
        gp.load(tmp_path / "run", tables={"weather": later.drop(columns="temp")}, backend="cpu")


def test_the_target_of_the_rows_learned_from_needs_a_lag() -> None:
    data = gp.from_frame(FLIGHTS, num_partitions=2)
    for right in (data, data.filter("delay > 3")):
        features = gp.Features((["late_right"], pre.SimpleImputer(strategy="most_frequent")), target="late")
        with pytest.raises(LeakageError) as caught:
            gp.Pipeline([T.JoinAsOf(right, on="at", by="origin", columns="late")], features).fit(data)
        assert caught.value.where == "feature 'late_right'"
    lagged = T.JoinAsOf(data, on="at", by="origin", columns="late", lag="6h")
    assert gp.Pipeline([lagged], features, backend="cpu").fit(data).fit_report is not None
    earlier = T.JoinAsOf(data, on="at", by="origin", columns="late", allow_exact_matches=False)
    gp.Pipeline([earlier], features, backend="cpu").fit(data)
    named = gp.Features((["late_right"], pre.SimpleImputer("most_frequent")), target="late", allow_leak="late_right")
    gp.Pipeline([T.JoinAsOf(data, on="at", by="origin", columns="late")], named).fit(data)


def test_a_time_that_the_target_is_made_of_is_a_leak() -> None:
    frame = FLIGHTS.assign(arrived=FLIGHTS["at"] + pd.Timedelta("1h"))
    right = WEATHER.rename(columns={"at": "arrived"})
    features = gp.Features((["temp"], pre.SimpleImputer()), target="hour(arrived) > 5")
    with pytest.raises(LeakageError):
        gp.Pipeline([T.JoinAsOf(right, on="arrived", by="origin")], features).fit(frame)


BAD: list[tuple[dict[str, Any], type[GpupipeError]]] = [
    ({"on": "missing"}, ColumnNotFound),
    ({"on": "at", "by": "missing"}, ColumnNotFound),
    ({"on": "at", "columns": "missing"}, ColumnNotFound),
    ({"on": "origin"}, SchemaMismatch),
    ({"on": "delay", "by": "mixed"}, SchemaMismatch),
    ({"on": "mixed"}, SchemaMismatch),
    ({"on": "at", "tolerance": 3}, BadConfig),
    ({"on": "at", "lag": 3}, BadConfig),
    ({"on": "delay", "lag": "3h"}, BadConfig),
    ({"on": "at", "suffix": "", "columns": "delay"}, BadConfig),
]


@pytest.mark.parametrize(("options", "error"), BAD)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], error: type[GpupipeError]) -> None:
    left, right = FLIGHTS.assign(mixed="a"), FLIGHTS.assign(mixed=1)
    with pytest.raises(error) as caught:
        T.JoinAsOf(right, **options).transform(left)
    assert "JoinAsOf" in caught.value.where and caught.value.remedy


def test_what_makes_no_sense_is_refused_when_it_is_made() -> None:
    for options in (
        {"on": "at", "lag": -1},
        {"on": "at", "lag": timedelta(-1)},
        {"on": "at", "tolerance": "2 moons"},
        {"on": "at", "tolerance": float("nan")},
        {"on": ["at"]},
        {"on": "at", "by": {"origin"}},
        {"on": "at", "allow_exact_matches": "yes"},
    ):
        with pytest.raises(BadConfig) as caught:
            T.JoinAsOf(WEATHER, **options)  # type: ignore[arg-type]
        assert caught.value.where.startswith("JoinAsOf(")
    with pytest.raises(BadConfig):
        T.JoinAsOf([1], on="at")
    with pytest.raises(BadData) as empty:
        T.JoinAsOf(WEATHER[:0], on="at").transform(FLIGHTS)
    assert empty.value.where == "JoinAsOf('at')"


@pytest.mark.parametrize("keys", [{"on": "at"}, {"on": "n", "by": "at"}])
def test_times_with_a_zone_are_not_joined_with_times_without(keys: dict[str, Any]) -> None:
    naive = pd.DataFrame({"at": pd.to_datetime(["2024-01-01"]), "n": [1], "x": [1.0]})
    zoned = naive.assign(at=naive["at"].dt.tz_localize("Europe/Oslo"))
    with raises(SchemaMismatch, where="join_asof, left and right", got="'at' without a zone, 'at' Europe/Oslo"):
        gp.from_frame(naive).join_asof(gp.from_frame(zoned), **keys)
    with pytest.raises(SchemaMismatch, match="have a time zone"):
        gp.Pipeline([T.JoinAsOf(zoned, **keys)]).fit(naive).transform(naive)
    assert gp.from_frame(zoned).join_asof(gp.from_frame(zoned), **keys).compute()["x_right"].tolist() == [1.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        [True, False],
        [Decimal("1.5"), Decimal("2.5")],
        [timedelta(hours=1), timedelta(hours=2)],
        [time(1), time(2)],
        ["2020-01-01", "2020-01-02"],
    ],
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_an_order_without_distances_has_a_remedy_that_works(values: list[Any], side: str) -> None:
    tables = {"left": pa.table({"o": values}), "right": pa.table({"o": values, "v": [1, 2]})}
    if side == "right":  # which of both is refused first is that on the left
        tables["left"] = pa.table({"o": [1, 2]})

    def joined(left: Any, right: Any) -> None:
        gp.Pipeline([T.JoinAsOf(right, on="o")]).fit(gp.from_frame(left))
        gp.from_frame(left).join_asof(gp.from_frame(right), on="o")

    with pytest.raises(SchemaMismatch) as caught:
        joined(**tables)
    cast = re.match(r"T\.Cast\(.*?\)", caught.value.remedy)
    assert cast is not None
    step = eval(cast[0])
    made = {name: gp.Pipeline([step]).fit(t).transform(gp.from_frame(t)).compute() for name, t in tables.items()}
    left = gp.from_frame(made["left"] if side == "left" else made["right"])
    assert left.join_asof(gp.from_frame(made["right"]), on="o").compute()["v"].tolist() == [1, 2]
    assert T.JoinAsOf(made["right"], on="o").transform(left.select("o").compute())["v"].tolist() == [1, 2]


def test_keys_with_fractions_have_a_remedy_that_works() -> None:
    left = pd.DataFrame({"o": [1.0, 2.0], "k": [1.5, 2.0]})
    right = left.assign(v=[1, 2])
    with pytest.raises(BadConfig) as caught:
        T.JoinAsOf(right, on="o", by="k").transform(left)
    assert caught.value.remedy.startswith("Dataset.join_asof(...)")
    assert gp.from_frame(left).join_asof(gp.from_frame(right), on="o", by="k").compute()["v"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "right", [lambda frame: frame, pa.Table.from_pandas, gp.from_frame], ids=["frame", "Arrow", "Dataset"]
)
@pytest.mark.parametrize("step", [T.Join, T.JoinAsOf])
def test_a_column_to_add_that_is_not_there_is_offered_all_that_are(step: Any, right: Any) -> None:
    table = pd.DataFrame({"o": [1, 2], "k": [3, 4], "value": [5, 6]})
    for options in ({"on": "o", "columns": "valeu"}, {"on": "o", "columns": ["k", "valeu"]}):
        with pytest.raises(ColumnNotFound) as caught:
            gp.Pipeline([step(right(table), **options)]).fit(table)
        assert caught.value.got == ["o", "k", "value"] and caught.value.remedy.startswith("'value'")


def test_columns_of_other_names_are_those_of_pandas() -> None:
    left = pd.DataFrame({"t": [5, 1, 9, 3], "a": ["x", "x", "y", None], "known": [1, 2, 3, 4]})
    right = pd.DataFrame({"known": [1, 4, 8, 2], "b": ["x", "x", "y", "y"], "v": [10.0, 40.0, 80.0, 20.0]})
    step = T.JoinAsOf(right, left_on="t", right_on="known", left_by="a", right_by="b", tolerance=3)
    found = step.transform(left)
    wanted = pd.merge_asof(
        left.sort_values("t"),
        right.sort_values("known"),
        left_on="t",
        right_on="known",
        left_by="a",
        right_by="b",
        tolerance=3,
    ).set_index("t")["v"]
    assert list(found) == ["t", "a", "known", "v"] and step.name == "t_a"
    assert found["v"].fillna(-1).tolist() == wanted.loc[left["t"]].fillna(-1).tolist() == [40.0, 10.0, 80.0, -1.0]
    with raises(BadConfig, where="JoinAsOf", match="not one way to say the keys"):
        T.JoinAsOf(right, left_on="t", right_on="known", left_by="a")
    with pytest.raises(ColumnNotFound):
        T.JoinAsOf(right, left_on="t", right_on="time").transform(left)
