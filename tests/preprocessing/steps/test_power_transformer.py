"""Powers against scikit-learn's; what is constant, far away, or has no logarithm."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import sklearn.preprocessing
from hypothesis import given
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe.preprocessing import PowerTransformer
from gpupipe.preprocessing.steps.distributions import Bent, find_likeliest_power
from tests.examples import examples
from tests.raising import raises

METHODS = ["yeo-johnson", "box-cox"]


def frame(seed: int, method: str, rows: int = 3000) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "exponential": rng.exponential(3, rows) + 1e-3,
            "lognormal": rng.lognormal(2, 1.5, rows),
            "large": rng.normal(1e6, 1e5, rows),
            "year": rng.normal(2000, 20, rows),
            "whole": rng.integers(1, 9, rows).astype(float),
        }
    )
    flag = table["whole"] < 3
    if method == "yeo-johnson":
        table = table.assign(normal=rng.normal(size=rows), negative=-rng.exponential(3, rows))
    table = table.mask(rng.random(table.shape) < 0.05)
    return table.assign(flag=flag) if method == "yeo-johnson" else table


@pytest.mark.slow
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_as_scikit_learn(method: str, standardize: bool) -> None:
    train, later = frame(0, method), frame(1, method)
    if not standardize:  # x^5 of large numbers differs in all but the first seven digits of its own
        train, later = train.drop(columns=["large", "year"]), later.drop(columns=["large", "year"])
    ours = PowerTransformer(method, standardize=standardize).fit(train)
    dense = [item.astype("float64").to_numpy() for item in (train, later)]
    theirs = sklearn.preprocessing.PowerTransformer(method, standardize=standardize).fit(dense[0])
    np.testing.assert_allclose(ours.lambdas_, theirs.lambdas_, rtol=1e-5, atol=1e-6)
    found = ours.transform(later)
    assert set(found.dtypes.astype(str)) == {"float32"}
    np.testing.assert_allclose(found.to_numpy(), theirs.transform(dense[1]), rtol=1e-6, atol=1e-6)
    back = ours.inverse_transform(found)
    np.testing.assert_allclose(back.to_numpy(), dense[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@examples(80)
@given(st.lists(st.floats(0.0078125, 1e4, width=32), min_size=3, max_size=30, unique=True))
def test_no_other_power_is_likelier(method: str, values: list[float]) -> None:
    data = np.sort(np.array(values))
    data = data if method == "box-cox" else data - np.median(data)
    power = find_likeliest_power(data, np.ones(len(data)), method)
    likelihood = scipy.stats.boxcox_llf if method == "box-cox" else scipy.stats.yeojohnson_llf
    best = likelihood(power, data)
    _, theirs = (scipy.stats.boxcox if method == "box-cox" else scipy.stats.yeojohnson)(data)
    for other in (theirs, power - 0.01 * (1 + abs(power)), power + 0.01 * (1 + abs(power))):
        assert best >= likelihood(other, data) - 1e-9 * (1 + abs(best))


def test_counts_stand_for_rows() -> None:
    rng = np.random.default_rng(0)
    values, counts = np.sort(rng.normal(size=50)), rng.integers(1, 9, 50)
    rows = np.repeat(values, counts)
    wanted = find_likeliest_power(rows, np.ones(len(rows)), "yeo-johnson")
    assert find_likeliest_power(values, counts, "yeo-johnson") == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_the_score_is_the_likelihoods_slope(method: str) -> None:
    data = np.random.default_rng(0).lognormal(0, 1, 200)
    likelihood = scipy.stats.boxcox_llf if method == "box-cox" else scipy.stats.yeojohnson_llf
    for power in (-1.5, -1e-9, 0.0, 1e-4, 1.0, 2.0, 3.0, 60.0):
        slope = (likelihood(power + 1e-5, data) - likelihood(power - 1e-5, data)) / 2e-5
        assert Bent.of(data, power, method).score(np.ones(200)) * 200 == pytest.approx(slope, rel=1e-4, abs=1e-3)


def test_many_distinct_values_are_rounded_unless_exact() -> None:
    values = np.random.default_rng(0).lognormal(2, 1, 150_000)
    table = pd.DataFrame({"x": values})
    theirs = sklearn.preprocessing.PowerTransformer().fit(values[:, None])
    wanted = theirs.transform(values[:, None])[:, 0]
    exact, rough = PowerTransformer(exact=True).fit(table), PowerTransformer().fit(table)
    np.testing.assert_allclose(exact.transform(table)["x"], wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(rough.transform(table)["x"], wanted, rtol=1e-4, atol=1e-4)
    assert rough.lambdas_ != exact.lambdas_


@pytest.mark.parametrize("method", METHODS)
def test_a_constant_column_gives_zeros(method: str) -> None:
    table = pd.DataFrame({"x": [7.0, 7.0, None], "large": [1e300] * 3})
    found = PowerTransformer(method).fit_transform(table)
    assert found["x"].tolist()[:2] == [0.0, 0.0] and np.isnan(found["x"][2]) and found["large"].eq(0).all()


def test_powers_that_leave_the_floats_are_not_looked_at() -> None:
    # Years ask for a power of 40 and more: squared, their powers are no floats, and scikit-learn has been stuck there.
    table = pd.DataFrame({"x": [2003.0, 1950.0, 1997.0, 2000.0, 2009.0], "far": [-1e300, 0.0, 1.0, 2.0, 1e300]})
    found = PowerTransformer().fit_transform(table)
    assert np.isfinite(found.to_numpy()).all()
    assert found["x"].std(ddof=0) == pytest.approx(1, rel=1e-5) and found["x"].idxmin() == 1


def test_the_power_does_not_depend_on_the_unit() -> None:
    years = np.array([1953.0, 1990, 1994, 1997, 1998, 1999, 2000, 2001, 2002, 2003])
    power, other = (find_likeliest_power(values, np.ones(10), "box-cox") for values in (years, years / 1000))
    assert power == pytest.approx(other, rel=1e-6) and power > 700 / np.log(2003)  # 2003 to that power is no float
    step = PowerTransformer("box-cox", standardize=False).fit(pd.DataFrame({"x": years}))
    assert np.isfinite(step.transform(pd.DataFrame({"x": years}))["x"]).all()


def test_what_is_refused() -> None:
    table = pd.DataFrame({"x": [1.0, 2.0, 0.0]})
    said = r"PowerTransformer\('box-cox'\), column 'x': a value is not positive, got 0\.0(.|\n)*yeo-johnson"
    with pytest.raises(errors.BadData, match=said):
        PowerTransformer("box-cox").fit(table)
    step = PowerTransformer("box-cox").fit(table[:2])
    with pytest.raises(errors.BadData, match=said):
        step.transform(table)
    assert len(step.transform(table[:0])) == 0
    with raises(errors.BadConfig, where="PowerTransformer(method=)", got="log"):
        PowerTransformer("log").fit(table)
    with raises(errors.BadData, where="PowerTransformer, column 'x'", got=np.inf):
        PowerTransformer().fit(table.assign(x=[1.0, np.inf, 2.0]))
    with raises(
        errors.BadData, where="PowerTransformer, column 'x'", expected="at least one value that is not missing"
    ):
        PowerTransformer().fit(table.assign(x=np.nan))


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-6])
def test_a_column_that_hardly_varies_is_bent_and_brought_back(spread: float) -> None:
    table = pd.DataFrame({"x": -1e6 + spread * np.random.default_rng(0).normal(size=200)})
    step = PowerTransformer().fit(table)
    made = step.transform(table)["x"].to_numpy()
    assert abs(made.mean()) < 1e-2 and 0.9 < made.std() < 1.1
    restored = step.inverse_transform(pd.DataFrame({"x": made}))["x"].to_numpy()
    np.testing.assert_allclose(restored, table["x"], rtol=1e-7)
    with suppress(errors.BadData):  # numbers of the other sign may be too far away for float32
        assert np.isfinite(step.transform(pd.DataFrame({"x": [5.0, 1e6]}))["x"]).all()
