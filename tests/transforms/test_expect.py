"""`T.Expect`: counted against pandas, the same in any partitions, in one pass, named by file."""

from __future__ import annotations

import datetime as dt
import logging
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend import Backend, select
from gpupipe.transforms.expect import Findings
from tests.raising import raises

ROWS = 400


def table() -> pd.DataFrame:
    generator = np.random.default_rng(4)
    frame = pd.DataFrame(
        {
            "distance": generator.normal(1000, 800, ROWS),
            "seats": generator.integers(-5, 300, ROWS).astype("int16"),
            "carrier": generator.choice(["UA", "AA", "ZZ"], ROWS),
            "day": pd.Timestamp("2013-01-01") + pd.to_timedelta(generator.integers(0, 60, ROWS), unit="D"),
            "flight": np.arange(ROWS),
            "late": generator.random(ROWS),
        }
    )
    frame.loc[::7, "distance"] = np.nan
    frame.loc[::5, "carrier"] = None
    frame.loc[[3, 250], "flight"] = 17
    return frame


EXPECT = [
    T.Expect("distance", min=0, max=2500.5, nullable=False),
    T.Expect("seats", min=0, max=1e9, values=list(range(250))),
    T.Expect(["carrier"], values=["UA", "AA"], nullable=False),
    T.Expect("day", min="2013-01-05", max="2013-02-10"),
    T.Expect("flight", unique=True),
]


def by_pandas(frame: pd.DataFrame) -> dict[tuple[str, str], int]:
    distance, carrier, seats, day = (frame[name] for name in ("distance", "carrier", "seats", "day"))
    counts = {
        ("distance", "min"): (distance < 0).sum(),
        ("distance", "max"): (distance > 2500.5).sum(),
        ("distance", "nullable"): distance.isna().sum(),
        ("seats", "min"): (seats < 0).sum(),
        ("seats", "values"): (~seats.isin(range(250))).sum(),
        ("carrier", "values"): (carrier.notna() & ~carrier.isin(["UA", "AA"])).sum(),
        ("carrier", "nullable"): carrier.isna().sum(),
        ("day", "min"): (day < "2013-01-05").sum(),
        ("day", "max"): (day > "2013-02-10").sum(),
        ("flight", "unique"): len(frame) - frame["flight"].nunique(),
    }
    return {key: int(count) for key, count in counts.items() if count}


def pipeline(*steps: T.Transform) -> gp.Pipeline:
    return gp.Pipeline(steps, gp.Features((["distance"], [pre.SimpleImputer(), pre.StandardScaler()])))


def found(report: Any) -> dict[tuple[str, str], int]:
    return {(item.column, item.rule): item.num_rows for item in report.violations}


@pytest.mark.slow
@pytest.mark.parametrize("num_partitions", [1, 2, 7, 16])
def test_counts_are_those_of_pandas_in_any_partitions(num_partitions: int) -> None:
    frame, made = table(), pipeline(*EXPECT)
    data = gp.from_frame(frame, num_partitions=num_partitions)
    made.fit(data)
    assert made.fit_report is not None
    assert found(made.fit_report.checks) == by_pandas(frame)
    assert found(made.check(data)) == found(made.check(frame)) == by_pandas(frame)
    pd.testing.assert_frame_equal(made.transform(frame), pipeline().fit(frame).transform(frame))


@pytest.mark.parametrize("num_partitions", [1, 3])
def test_a_window_column_that_no_feature_needs_is_checked_over_the_whole_table(num_partitions: int) -> None:
    frame = pd.DataFrame({"k": [1, 1, 2, 2, 1, 2] * 3, "t": range(18), "x": np.arange(18.0), "distance": 1.0})
    made = pipeline(T.Lag("x", by="k", order_by="t"), T.Expect("x_lag_1_by_k", nullable=False))
    made.fit(data := gp.from_frame(frame, num_partitions=num_partitions))
    assert made.fit_report is not None
    first_of_each = {("x_lag_1_by_k", "nullable"): 2}
    assert found(made.fit_report.checks) == found(made.check(data)) == first_of_each


def test_arrays_of_a_backend(backend: Backend) -> None:
    frame = table()
    coded = backend.from_arrow(*_arrow(frame))
    findings = [step.look(coded, backend.schema_of(coded), backend) for step in EXPECT]
    assert {key: total for each in findings for key, total in each.totals.items()} == by_pandas(frame)
    assert findings[2].example("carrier", "values") == "ZZ"


def _arrow(frame: pd.DataFrame) -> Any:
    dataset = gp.from_frame(frame)
    host = gp.Pipeline([])  # of the CPU, where the table is made
    return select(host.backend).to_arrow(dataset.read(dataset.partitions[0])), list(dataset.schema)


def test_nothing_more_is_read_but_the_columns_that_are_looked_at() -> None:
    data = gp.from_frame(table(), num_partitions=4)
    made = pipeline(T.Expect("seats", min=0)).fit(data)
    assert data.reads.passes == 1
    assert set(data.reads.columns) == {"distance", "seats"}
    data.reads.reset()
    made.transform(data).compute()
    assert set(data.reads.columns) == {"distance"}, "what only counts is not read again"
    made.check(data)
    assert set(data.reads.columns) == {"distance", "seats"}


def test_one_bad_file_among_many_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(12):
        frame = pd.DataFrame({"distance": np.arange(100.0), "x": np.arange(100.0)})
        if number == 8:
            frame.loc[[10, 11, 90], "distance"] = -4.0
        frame.to_parquet(tmp_path / f"day{number:02d}.parquet")
    data = gp.read_parquet(tmp_path, partition_bytes=1)
    assert data.num_partitions == 12
    made = pipeline(T.Expect("distance", min=0))
    with caplog.at_level(logging.WARNING, "gpupipe"):
        made.fit(data)
    assert made.fit_report is not None
    (item,) = made.fit_report.checks.violations
    ((place, count),) = item.places
    assert "day08.parquet" in place and count == item.num_rows == 3 and item.example == -4.0
    assert [line for line in caplog.messages if line.startswith("Expect:")] == [
        "Expect: 'distance' should be at least 0, and is not in 3 rows"
    ]
    assert made.check(data) == made.fit_report.checks
    strict = T.Expect("distance", min=0, on_violation="raise")
    with pytest.raises(errors.BadData) as caught:
        pipeline(strict).fit(data)
    assert caught.value.got == -4.0 and caught.value.expected == "at least 0" and "'distance'" in caught.value.where
    assert any("day08.parquet" in note for note in caught.value.__notes__)
    good = pipeline(strict).fit(data.filter("distance >= 0"))
    with pytest.raises(errors.BadData):
        good.transform(data).compute()
    for use in (good.loader, good.check):
        with pytest.raises(errors.BadData) as caught:
            use(data)
        assert any("day08.parquet" in note for note in caught.value.__notes__)


def test_what_is_there_twice_in_different_partitions_is_an_error_when_asked() -> None:
    data = gp.from_frame(pd.DataFrame({"distance": np.arange(10.0), "key": [*range(9), 0]}), num_partitions=5)
    strict = pipeline(T.Expect("key", unique=True, on_violation="raise"))
    with raises(errors.BadData, where="Expect, column 'key'", got=None, match="1 row of 10"):
        strict.fit(data)
    strict.fit(gp.from_frame(pd.DataFrame({"distance": np.arange(10.0), "key": range(10)}), num_partitions=5))
    with raises(errors.BadData, where="Expect, column 'key'", got=None, match="there once only"):
        strict.check(data)
    strict.transform(data).compute()  # each partition by itself


def test_rows_are_checked_where_the_step_stands() -> None:
    rule: dict[str, Any] = {"min": 0, "nullable": False}
    steps = [
        T.Expect("distance", **rule),
        T.Filter("distance > 0"),
        T.Derive(far="distance * 2"),
        T.Expect("far", **rule),
    ]
    made = gp.Pipeline(steps, gp.Features((["distance"], pre.SimpleImputer()))).fit(table())
    assert made.fit_report is not None
    expected = {key: count for key, count in by_pandas(table()).items() if key[0] == "distance" and key[1] != "max"}
    assert found(made.fit_report.checks) == found(made.check(table())) == expected
    assert made.fit_report.checks.num_rows == ROWS


def test_labels_that_are_not_there_are_not_checked() -> None:
    features = gp.Features((["distance"], pre.SimpleImputer()), target="late")
    steps = [T.Expect("late", max=0.5), T.Expect("late", max=2, on_violation="raise"), T.Derive(twice="late * 2")]
    made = gp.Pipeline([*steps, T.Expect("twice", max=1)], features).fit(table())
    assert made._source["late"].role == "label"
    unlabelled = table().drop(columns="late")
    assert made.check(unlabelled).passed and len(made.transform(unlabelled)) == ROWS
    assert made.check(table()).violations[0].num_rows == made.check(table()).violations[1].num_rows > 0
    with pytest.raises(errors.BadData):
        made.transform(table().assign(late=3.0))


def double(frame: pd.DataFrame) -> pd.DataFrame:
    return frame * 2


def test_a_function_behind_a_check_leaves_the_error_to_the_check(tmp_path: Path) -> None:
    gp.from_frame(table()).write_parquet(tmp_path / "rows")
    steps = [T.Expect("seats", min=0, on_violation="raise"), T.Map(double, reads=["distance"], adds=["distance"])]
    with pytest.raises(errors.BadData) as caught:
        pipeline(*steps).fit(gp.read_parquet(tmp_path / "rows"))
    assert any("part-" in note for note in caught.value.__notes__)


def test_a_step_that_looks_at_other_rows_needs_no_column_that_is_only_checked() -> None:
    check = T.Expect("late", max=2, on_violation="raise")
    steps = [check, T.Lag("distance", by="carrier", order_by="flight")]
    made = gp.Pipeline(steps, gp.Features((["distance_lag_1_by_carrier"], pre.SimpleImputer()), target="late"))
    made.fit(table())
    assert len(made.transform(gp.from_frame(table().drop(columns="late"), num_partitions=3)).compute()) == ROWS
    with pytest.raises(errors.BadData):
        made.transform(gp.from_frame(table().assign(late=3.0))).compute()


def test_what_is_expected_is_saved(tmp_path: Path) -> None:
    made = pipeline(*EXPECT).fit(table())
    gp.save(tmp_path / "run", made)
    again = gp.load(tmp_path / "run").pipeline
    assert [repr(step) for step in again.steps] == [repr(step) for step in made.steps]
    assert found(again.check(table())) == by_pandas(table())
    assert again._fingerprint() == made._fingerprint() != pipeline().fit(table())._fingerprint()


def test_without_features_an_explicit_pass_checks() -> None:
    data = gp.from_frame(table(), num_partitions=3)
    made = gp.Pipeline(EXPECT).fit(data)
    assert data.reads.passes == 0 and found(made.check(data)) == by_pandas(table())
    with pytest.raises(errors.NotFitted):
        gp.Pipeline(EXPECT).check(data)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (T.Expect("distnce", min=0), errors.ColumnNotFound),
        (T.Expect("carrier", min=0), errors.BadConfig),
        (T.Expect("carrier", values=[1]), errors.BadConfig),
        (T.Expect("seats", values=["a"]), errors.BadConfig),
        (T.Expect("seats", min=40_000), errors.BadConfig),
        (T.Expect("day", min="soon"), errors.BadConfig),
        (T.Expect("day", min=pd.NaT), errors.BadConfig),
        (T.Expect("day", max=np.datetime64("NaT", "us")), errors.BadConfig),
        (T.Expect("day", min=20130101), errors.BadConfig),
        (T.Expect("day", min="2013-02-01", max="2013-01-01"), errors.BadConfig),
        (T.Expect("distance", min=2, max=1), errors.BadConfig),
        (T.Expect("seats", min=1.2, max=1.8), errors.BadConfig),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_read(step: Any, error: type[Exception]) -> None:
    data = gp.from_frame(table())
    with pytest.raises(error):
        pipeline(step).fit(data)
    assert data.reads.passes == 0


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("columns", 3, "columns=['...']"),
        ("min", [1], "min=0"),
        ("min", np.nan, "min=0"),
        ("max", True, "max=0"),
        ("nullable", "no", "nullable=True"),
        ("values", "ab", "values=['...']"),
        ("values", [], "values=['...']"),
        ("on_violation", "ignore", "one of the choices above"),
    ],
)
def test_arguments_that_make_no_sense(name: str, value: Any, remedy: str) -> None:
    with pytest.raises(errors.BadConfig) as caught:
        T.Expect(**{"columns": "x", name: value})
    assert (caught.value.where, caught.value.got) == (f"Expect({name}=)", value)
    assert caught.value.remedy == remedy


@pytest.mark.parametrize("given", [{}, {"min": None, "values": None}, {"nullable": True, "on_violation": "raise"}])
def test_an_expectation_without_a_rule_is_refused_with_those_there_are(given: Any) -> None:
    with pytest.raises(errors.BadConfig) as caught:
        T.Expect("x", **given)
    assert caught.value.where == "Expect"
    assert all(f"{rule}=" in caught.value.expected for rule in ("min", "max", "nullable", "values", "unique"))
    assert caught.value.remedy == "Expect('x', nullable=False)"


def test_reports_show_themselves_and_escape_what_they_show() -> None:
    frame = pd.DataFrame({"<b>": ["<i>", "ok"], "distance": [1.0, 2.0]})
    made = pipeline(T.Expect("<b>", values=["ok"])).fit(frame)
    assert made.fit_report is not None
    report = made.fit_report.checks
    assert repr(report).splitlines() == [
        "2 rows checked: 1 expectation not met",
        "column  expected     rows  share    example  where",
        "<b>     one of 'ok'  1     50.000%  <i>      rows 0 to 2 of a frame (1)",
    ]
    assert "&lt;i&gt;" in report._repr_html_() and "<i>" not in made.fit_report._repr_html_()
    assert repr(made.check(frame[1:])) == "1 row checked: all as expected"


def test_missing_integers_and_times_are_no_violation_of_an_end() -> None:
    frame = pd.DataFrame(
        {"distance": [1.0] * 3, "n": pd.array([5, None, 7], "Int64"), "at": [None, "2013-01-02", None]}
    )
    frame["at"] = pd.to_datetime(frame["at"])
    steps = T.Expect("n", min=3, max=9, values=[5, 7]), T.Expect("at", min="2013-01-01", max="2013-01-03")
    report = pipeline(*steps).fit(frame).fit_report
    assert report is not None and report.checks.passed


def test_lists_may_be_expected_to_be_there() -> None:
    lists = pd.Series([[1, 2], None, [], [None]], dtype=pd.ArrowDtype(pa.list_(pa.int64())))
    frame = pd.DataFrame({"distance": [1.0] * 4, "seen": lists})
    made = pipeline(T.Expect("seen", nullable=False)).fit(gp.from_frame(frame, num_partitions=2))
    assert made.fit_report is not None and found(made.fit_report.checks) == {("seen", "nullable"): 1}


@pytest.mark.parametrize(
    "end", ["2013-01-01T01:00+01:00", pd.Timestamp("2013-01-01T01:00", tz="Europe/Berlin"), dt.date(2013, 1, 1)]
)
def test_an_end_with_an_offset_is_taken_in_utc(end: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame({"distance": 1.0, "at": pd.date_range("2012-12-31T22:00", periods=5, freq="h", tz="UTC")})
    made = pipeline(T.Expect("at", min=end)).fit(frame)
    assert made.fit_report is not None and found(made.fit_report.checks) == {("at", "min"): 2}
    gp.save(tmp_path / "run", made)
    again = gp.load(tmp_path / "run").pipeline
    assert found(again.check(frame)) == {("at", "min"): 2}


def test_a_table_stays_a_table_whatever_is_in_it() -> None:
    frame = pd.DataFrame({"distance": [1.0], "two\nlines": ["a\n" * 500]})
    made = pipeline(T.Expect("two\nlines", values=["b"])).fit(frame)
    assert made.fit_report is not None
    line = repr(made.fit_report.checks).splitlines()[2]
    assert line.startswith(r"two\nlines  one of 'b'") and len(line) < 250
    assert repr(made.fit_report) == repr(made.fit_report)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=5),
    st.integers(0, 9),
)
def test_findings_add_up(parts: list[list[int]], limit: int) -> None:
    rules, backend = T.Expect("x", max=limit, unique=True), select("auto")
    whole = pd.DataFrame({"x": [number for part in parts for number in part]}, dtype="int64")
    total = Findings()
    for place, part in enumerate(parts):
        coded = backend.encode(pd.DataFrame({"x": part}, dtype="int64"))
        total += rules.look(coded, backend.schema_of(coded), backend, place)
    over, twice = int((whole["x"] > limit).sum()), len(whole) - whole["x"].nunique()
    expected = {("x", "max"): over, ("x", "unique"): twice}
    assert total.totals == {key: count for key, count in expected.items() if count}
    assert total.num_rows == len(whole)


def test_the_guide_runs() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide-checks.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    flights = gp.read_parquet(Path(__file__).parents[2] / "data" / "flights.parquet").head(8000)
    names = {"gp": gp, "pre": pre, "T": T, "train": flights.iloc[:6000], "valid": flights.iloc[6000:]}
    with redirect_stdout(StringIO()) as shown:
        exec(block, names)
    for told in ("pass 1: SimpleImputer + StandardScaler of distance, speed", "all as expected", "rows compared"):
        assert told in shown.getvalue()
