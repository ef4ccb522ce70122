"""Rows compared with those of the fit: what is remembered agrees with pandas, what has moved is found, noise is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.monitoring.profile import SAMPLE_ROWS
from gpupipe.monitoring.reports import DriftReport, compute_stability

ROWS = 4000


def table(num_rows: int = ROWS, seed: int = 1) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "distance": generator.gamma(2.0, 500.0, num_rows),
            "seats": generator.integers(1, 9, num_rows),
            "storm": generator.random(num_rows) < 0.1,
            "carrier": generator.choice(["UA", "AA", "DL", "B6"], num_rows, p=[0.5, 0.3, 0.19, 0.01]),
            "origin": generator.choice(["JFK", "LGA"], num_rows),
            "late": generator.random(num_rows),
        }
    )
    frame.loc[generator.random(num_rows) < 0.1, "distance"] = np.nan
    frame.loc[generator.random(num_rows) < 0.2, "carrier"] = None
    return frame


def pipeline() -> gp.Pipeline:
    features = gp.Features(
        (["distance", "seats"], [pre.SimpleImputer(), pre.StandardScaler()]),
        (["storm"], pre.SimpleImputer(strategy="most_frequent")),
        (["carrier"], pre.Categorify(min_frequency=100)),
        (["origin"], pre.OneHotEncoder()),
        target="late",
    )
    return gp.Pipeline([], features)


def moved(report: DriftReport) -> dict[str, tuple[str, ...]]:
    return {item.name: item.moved for item in report.moved}


@pytest.fixture(scope="module")
def fitted() -> gp.Pipeline:
    return pipeline().fit(table())


def test_what_is_remembered_agrees_with_pandas(fitted: gp.Pipeline) -> None:
    frame, profiles = table(), fitted.profiles
    assert profiles.keys() == {"distance", "seats", "storm", "carrier", "origin"}
    for name in ("distance", "seats", "storm"):
        values = frame[name].astype("float64")
        known = profiles[name]
        np.testing.assert_allclose([known.mean, known.std], [values.mean(), values.std(ddof=0)], rtol=1e-12)
        np.testing.assert_allclose(known.missing, values.isna().mean(), rtol=1e-12)
        edges = np.unique(values.quantile(np.arange(1, 10) / 10))
        np.testing.assert_allclose(known.edges, edges, rtol=1e-12)
        cuts = pd.cut(values.dropna(), [-np.inf, *edges, np.inf])
        shares = cuts.value_counts(sort=False, normalize=True)
        np.testing.assert_allclose(known.shares, shares, rtol=1e-12)
    counts = frame["carrier"].value_counts()
    assert profiles["carrier"].unknown == counts[counts < 100].sum() / ROWS > 0
    assert profiles["carrier"].missing == frame["carrier"].isna().mean()
    assert profiles["origin"].unknown is None and profiles["origin"].missing == 0


@pytest.mark.slow
@pytest.mark.parametrize("rows", [ROWS, 3 * SAMPLE_ROWS])
def test_it_is_the_same_in_any_partitions(rows: int) -> None:
    frame = table(rows)
    known = [pipeline().fit(gp.from_frame(frame, num_partitions=parts)) for parts in (1, 2, 7, 16)]
    assert all(item.profiles == known[0].profiles for item in known)
    others = [gp.from_frame(table(rows, 9), num_partitions=parts) for parts in (1, 2, 7, 16)]
    reports = [known[0].drift(data) for data in others]
    assert abs(reports[0].num_rows - min(rows, SAMPLE_ROWS)) < 1000
    for report in reports[1:]:
        assert report.num_rows == reports[0].num_rows
        for mine, first in zip(report.columns, reports[0].columns, strict=True):
            assert mine.name == first.name and mine.moved == first.moved == ()
            assert mine.mean == pytest.approx(first.mean, abs=1e-9) and mine.psi == first.psi


def test_measures_agree_with_pandas(fitted: gp.Pipeline) -> None:
    old, new = table(), table(2000, 5).assign(distance=lambda frame: frame["distance"] * 1.5 + 100)
    new.loc[:500, "carrier"] = "new"
    found = fitted.drift(new)
    report = {item.name: item for item in found.columns}
    shift = (new["distance"].mean() - old["distance"].mean()) / old["distance"].std(ddof=0)
    assert report["distance"].mean == pytest.approx(shift)
    edges = [-np.inf, *old["distance"].quantile(np.arange(1, 10) / 10), np.inf]
    shares = [pd.cut(frame["distance"].dropna(), edges).value_counts(sort=False) for frame in (old, new)]
    first, second = (np.asarray(item / item.sum()) for item in shares)
    assert report["distance"].psi == pytest.approx(((second - first) * np.log(second / first)).sum())
    unknown = [frame["carrier"].notna() & ~frame["carrier"].isin(["UA", "AA", "DL"]) for frame in (old, new)]
    assert report["carrier"].unknown == pytest.approx(unknown[1].mean() - unknown[0].mean())
    missing = new["carrier"].isna().mean() - old["carrier"].isna().mean()
    assert report["carrier"].missing == pytest.approx(missing)
    assert moved(found)["distance"] == ("mean", "psi")
    assert moved(found)["carrier"] == ("unknown",)


@pytest.mark.parametrize("seed", range(20, 40))
def test_a_resample_has_not_moved(fitted: gp.Pipeline, seed: int) -> None:
    report = fitted.drift(table(1000, seed))
    assert report.moved == () and report.num_rows == 1000


INJECTED = {
    "shift": (lambda frame: frame.assign(distance=frame["distance"] + 400), "distance", "mean"),
    "spread": (lambda frame: frame.assign(distance=1000 + 3 * (frame["distance"] - 1000)), "distance", "psi"),
    "unit": (lambda frame: frame.assign(distance=frame["distance"] * 1.609), "distance", "mean"),
    "constant": (lambda frame: frame.assign(seats=4), "seats", "psi"),
    "boolean": (lambda frame: frame.assign(storm=frame.index % 2 == 0), "storm", "psi"),
    "missing": (lambda frame: frame.assign(origin=frame["origin"].where(frame.index % 5 != 0)), "origin", "missing"),
    "filled": (lambda frame: frame.assign(distance=frame["distance"].fillna(1000)), "distance", "missing"),
    "unknown": (lambda frame: frame.assign(carrier=frame["carrier"].replace("UA", "XX")), "carrier", "unknown"),
    "always": (lambda frame: frame.assign(storm=True), "storm", "mean"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", INJECTED)
@pytest.mark.parametrize("num_partitions", [None, 3])
def test_what_has_moved_is_found(fitted: gp.Pipeline, name: str, num_partitions: int | None) -> None:
    inject, column, measure = INJECTED[name]
    new: Any = inject(table(3000, 7))  # type: ignore[operator]
    report = fitted.drift(new if num_partitions is None else gp.from_frame(new, num_partitions=num_partitions))
    assert moved(report).keys() == {column} and measure in moved(report)[str(column)]


def test_of_few_rows_nothing_is_said(fitted: gp.Pipeline) -> None:
    report = fitted.drift(table(50).assign(distance=1e6))
    assert repr(report) == "50 rows compared: too few to tell (min_rows=1,000)"


def test_nothing_of_a_pipeline_changes(fitted: gp.Pipeline) -> None:
    before = fitted._fingerprint(), dict(fitted.profiles), fitted.schema
    fitted.drift(table(2000, 3).assign(seats=4))
    assert before == (fitted._fingerprint(), fitted.profiles, fitted.schema)


def test_rows_without_labels_are_compared_too(fitted: gp.Pipeline) -> None:
    new = table(2000, 3)
    assert fitted.drift(new.drop(columns="late")) == fitted.drift(new)
    half = new.assign(late=new["late"].where(new.index % 2 == 0))
    assert fitted.drift(half).num_rows == 1000, "as in a fit, rows without a target are left out"
    steps = [T.Filter("late > 0.5"), T.Derive(far="distance * 2")]
    made = gp.Pipeline(steps, gp.Features((["far"], pre.StandardScaler()), target="late")).fit(new)
    assert made.drift(new.drop(columns="late")).num_rows == 2000 > made.drift(new).num_rows


def test_columns_of_another_type_are_compared_as_those_of_the_fit(fitted: gp.Pipeline) -> None:
    new = table(2000, 3)
    assert fitted.drift(new.astype({"seats": "float32"})) == fitted.drift(new)
    with pytest.raises(errors.SchemaMismatch):
        fitted.drift(new.astype({"seats": str}))


def test_thresholds_are_given_at_the_call(fitted: gp.Pipeline) -> None:
    new = table(2000, 5).assign(distance=lambda frame: frame["distance"] + 100)
    assert not fitted.drift(new).moved
    assert moved(fitted.drift(new, gp.Drift(mean=0.05))) == {"distance": ("mean",)}
    with pytest.raises(errors.BadConfig):
        fitted.drift(new, 0.1)  # type: ignore[arg-type]
    with pytest.raises(errors.BadConfig):
        gp.Pipeline([]).fit(new).drift(new)
    with pytest.raises(errors.NotFitted):
        pipeline().drift(new)


def test_columns_are_compared_as_the_features_see_them() -> None:
    steps = [T.Filter("seats > 4"), T.Derive(far="distance > 1000")]
    made = gp.Pipeline(steps, gp.Features((["far", "distance"], pre.SimpleImputer("most_frequent")))).fit(table())
    kept = table().query("seats > 4")
    far = (kept["distance"] > 1000).where(kept["distance"].notna()).astype("float64")
    assert made.profiles["far"].mean == pytest.approx(far.mean())
    assert made.profiles["distance"].mean == pytest.approx(kept["distance"].mean())


def test_values_that_are_no_ordinary_numbers() -> None:
    frame = pd.DataFrame({"x": [1e300, -1e300, np.inf, np.nan] * 500, "same": 3.0, "none": [np.nan] * 1999 + [1.0]})
    made = gp.Pipeline([], gp.Features((["x", "same", "none"], pre.SimpleImputer("constant")))).fit(frame)
    assert np.isfinite([made.profiles["x"].mean, made.profiles["x"].std]).all()
    assert made.profiles["same"].edges == (3.0,) and made.profiles["none"].missing == 1999 / 2000


@pytest.mark.parametrize(
    "values",
    [[np.inf, -np.inf, np.nan, 1.0], [1.7e308, -1.7e308, 0.0, 5e-324], [5e-324, 0.0, np.nan, -5e-324], [np.nan]],
)
def test_the_same_rows_have_not_moved_whatever_they_hold(values: list[float]) -> None:
    frame = pd.DataFrame({"x": np.resize(values, ROWS)})
    made = gp.Pipeline([], gp.Features((["x"], pre.Bucketize([0.0])))).fit(frame)
    assert [item.name for item in made.drift(frame).columns] == ["x"] and not made.drift(frame).moved
    (item,) = made.drift(frame.assign(x=1e300)).moved
    assert item.mean is None or np.isfinite(item.mean)
    assert ("missing" in item.moved) == bool(np.isnan(values).any())


def test_a_loaded_pipeline_compares_too(fitted: gp.Pipeline, tmp_path: Path) -> None:
    gp.save(tmp_path / "run", fitted)
    again = gp.load(tmp_path / "run").pipeline
    assert again.profiles == fitted.profiles
    new = table(3000, 7).assign(seats=4)
    assert again.drift(new) == fitted.drift(new) and moved(again.drift(new)) == {"seats": ("psi",)}


@pytest.mark.parametrize("options", [{"mean": 0}, {"psi": "much"}, {"min_rows": -1}])
def test_thresholds_that_make_no_sense(options: Any) -> None:
    with pytest.raises(errors.BadConfig):
        gp.Drift(**options)


def test_the_report_shows_itself(fitted: gp.Pipeline) -> None:
    report = fitted.drift(table(2000, 3).assign(distance=1e6))
    lines = repr(report).splitlines()
    assert lines[0] == "2,000 rows compared: 1 of 5 columns moved" and lines[3].split()[0] == "distance"
    assert report._repr_html_().startswith("<p>2,000 rows compared: 1 of 5 columns moved</p><table>")


def test_stability_of_the_same_is_nothing() -> None:
    assert compute_stability(np.array([0.25, 0.75]), np.array([25.0, 75.0])) == 0
    assert compute_stability(np.array([1.0, 0.0]), np.array([90.0, 10.0])) > 0.2
