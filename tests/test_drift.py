"""Rows compared with those of the fit: what is remembered agrees with pandas, what has moved is found, noise is not."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.drift import DriftReport, stability
from gpupipe.profiles import SAMPLE_ROWS

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


def pipeline(**options: Any) -> gp.Pipeline:
    features = gp.Features(
        (["distance", "seats"], [pre.SimpleImputer(), pre.StandardScaler()]),
        (["storm"], pre.SimpleImputer(strategy="most_frequent")),
        (["carrier"], pre.Categorify(min_frequency=100)),
        (["origin"], pre.OneHotEncoder()),
        target="late",
    )
    return gp.Pipeline([], features, **options)


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


@pytest.mark.parametrize("rows", [ROWS, 3 * SAMPLE_ROWS])
def test_it_is_the_same_in_any_partitions(rows: int) -> None:
    frame = table(rows)
    known = [pipeline().fit(gp.from_frame(frame, num_partitions=parts)) for parts in (1, 2, 7, 16)]
    assert all(item.profiles == known[0].profiles for item in known)
    reports = []
    for parts in (1, 2, 7, 16):
        known[0].transform(gp.from_frame(table(rows, 9), num_partitions=parts)).compute()
        reports.append(known[0].drift_report())
    assert abs(reports[0].num_rows - min(rows, SAMPLE_ROWS)) < 1000
    for report in reports[1:]:
        assert report.num_rows == reports[0].num_rows
        for mine, first in zip(report.columns, reports[0].columns, strict=True):
            assert mine.name == first.name and mine.moved == first.moved == ()
            assert mine.mean == pytest.approx(first.mean, abs=1e-9) and mine.psi == first.psi


def test_measures_agree_with_pandas(fitted: gp.Pipeline) -> None:
    old, new = table(), table(2000, 5).assign(distance=lambda frame: frame["distance"] * 1.5 + 100)
    new.loc[:500, "carrier"] = "new"
    fitted.transform(new)
    report = {item.name: item for item in fitted.drift_report().columns}
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
    assert moved(fitted.drift_report())["distance"] == ("mean", "psi")
    assert moved(fitted.drift_report())["carrier"] == ("unknown",)


@pytest.mark.parametrize("seed", range(20, 40))
def test_a_resample_has_not_moved(fitted: gp.Pipeline, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    fitted.transform(table(1000, seed))
    assert fitted.drift_report().moved == () and fitted.drift_report().num_rows == 1000
    assert not caplog.messages


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


@pytest.mark.parametrize("name", INJECTED)
@pytest.mark.parametrize("num_partitions", [None, 3])
def test_what_has_moved_is_found(
    fitted: gp.Pipeline, name: str, num_partitions: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    inject, column, measure = INJECTED[name]
    new: Any = inject(table(3000, 7))  # type: ignore[operator]
    if num_partitions is None:
        fitted.transform(new)
    else:
        fitted.transform(gp.from_frame(new, num_partitions=num_partitions)).compute()
    assert moved(fitted.drift_report()).keys() == {column}
    assert measure in moved(fitted.drift_report())[str(column)]
    with caplog.at_level(logging.WARNING, "gpupipe"):
        fitted.loader(gp.from_frame(new, num_partitions=num_partitions or 1))
    assert len([line for line in caplog.messages if line.startswith("drift since the fit")]) >= 1
    assert moved(fitted.drift_report()).keys() == {column}


def test_an_error_when_asked() -> None:
    strict = pipeline(drift=gp.Drift(on_drift="raise")).fit(table())
    strict.transform(table(seed=2))
    far = table(seed=2).assign(distance=1e6)
    with pytest.raises(errors.BadData, match=r"drift, column 'distance': 1 column moved"):
        strict.transform(far)
    with pytest.raises(errors.BadData, match="'distance'"):
        strict.loader(gp.from_frame(far, num_partitions=4))


def test_of_few_rows_nothing_is_said(fitted: gp.Pipeline) -> None:
    fitted.transform(table(50).assign(distance=1e6))
    assert repr(fitted.drift_report()) == "0 rows compared: too few to tell (min_rows=1,000)"
    lazy = fitted.transform(gp.from_frame(table(3000), num_partitions=3))
    lazy.read(lazy.partitions[0])
    assert not fitted.drift_report().is_complete
    assert "1,000 rows compared, not all partitions seen yet" in repr(fitted.drift_report())


def test_it_can_be_left_out() -> None:
    without = pipeline(drift=None).fit(table())
    without.transform(table().assign(distance=1e6))
    assert without.profiles == {} and without.drift_report().columns == ()


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
    made.transform(frame)
    assert [item.name for item in made.drift_report().columns] == ["x"] and not made.drift_report().moved
    made.transform(frame.assign(x=1e300))
    (item,) = made.drift_report().moved
    assert item.mean is None or np.isfinite(item.mean)
    assert ("missing" in item.moved) == bool(np.isnan(values).any())


def test_a_loaded_pipeline_compares_too(fitted: gp.Pipeline, tmp_path: Path) -> None:
    gp.save(tmp_path / "run", fitted)
    again = gp.load(tmp_path / "run").pipeline
    assert again.profiles == fitted.profiles and again.drift == fitted.drift
    new = table(3000, 7).assign(seats=4)
    again.transform(new)
    fitted.transform(new)
    assert again.drift_report() == fitted.drift_report() and moved(again.drift_report()) == {"seats": ("psi",)}
    off = pipeline(drift=None).fit(table())
    gp.save(tmp_path / "off", off)
    assert gp.load(tmp_path / "off").pipeline.drift is None


@pytest.mark.parametrize("options", [{"mean": 0}, {"psi": "much"}, {"min_rows": -1}, {"on_drift": "cry"}])
def test_thresholds_that_make_no_sense(options: Any) -> None:
    with pytest.raises(errors.BadConfig):
        gp.Drift(**options)


def test_the_report_shows_itself(fitted: gp.Pipeline) -> None:
    fitted.transform(table(2000, 3).assign(distance=1e6))
    report = fitted.drift_report()
    lines = repr(report).splitlines()
    assert lines[0] == "2,000 rows compared: 1 of 5 columns moved" and lines[3].split()[0] == "distance"
    assert report._repr_html_().startswith("<p>2,000 rows compared: 1 of 5 columns moved</p><table>")


def test_stability_of_the_same_is_nothing() -> None:
    assert stability(np.array([0.25, 0.75]), np.array([25.0, 75.0])) == 0
    assert stability(np.array([1.0, 0.0]), np.array([90.0, 10.0])) > 0.2


# warnings, once of the same data --------------------------------------------------------------------------------------
def warned(caplog: pytest.LogCaptureFixture) -> int:
    number = len([line for line in caplog.messages if line.startswith(("drift since the fit", "expect:"))])
    caplog.clear()
    return number


def test_of_the_same_data_a_warning_is_given_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    made, far = pipeline().fit(table()), table(2000, 3).assign(seats=4)
    far["distance"] = far["distance"].fillna(0)
    made.transform(far)
    assert warned(caplog) == 1
    made.loader(far)
    made.transform(far)
    assert warned(caplog) == 0
    made.transform(far.copy())  # other rows, for all that anybody knows
    assert warned(caplog) == 1
    far["seats"] = 5  # the same frame, with another result
    made.transform(far)
    assert warned(caplog) == 1
    gp.from_frame(far).write_parquet(tmp_path / "far")
    for _ in range(3):
        made.transform(gp.read_parquet(tmp_path / "far")).compute()
    assert warned(caplog) == 1
    data = gp.read_parquet(tmp_path / "far")
    made.loader(data)
    assert warned(caplog) == 0
    left, right = gp.from_frame(pd.concat([far] * 3), num_partitions=4).split(fraction=0.5)
    made.loader(left)
    made.loader(right)
    assert warned(caplog) == 2
    made.loader(left)
    assert warned(caplog) == 0


def test_another_fit_warns_anew(caplog: pytest.LogCaptureFixture) -> None:
    made, far = pipeline().fit(table()), table(2000, 3).assign(seats=4)
    for _ in range(2):
        made.transform(far)
        made.fit(table(seed=2))
        made.transform(far)
        assert warned(caplog) == 2
        made.fit(table())


def test_a_fit_and_the_loader_of_its_rows_warn_once_of_what_is_not_expected(caplog: pytest.LogCaptureFixture) -> None:
    frame = table()
    made = pipeline(expect={"seats": gp.Expect(min=3)}, drift=None).fit(frame)
    made.loader(frame)
    made.transform(frame)
    assert warned(caplog) == 1
