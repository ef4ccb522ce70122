"""Quantiles: exact for few values, within the stated error for many, the same for any order."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.backend import Column, select
from gpupipe.backend.histogram import MAX_BINS, Histogram
from gpupipe.preprocessing.summaries import Quantiles

CPU = select("cpu")
SHARES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.999, 1.0)


def histogram(values: object, limit: int = MAX_BINS) -> Histogram:
    return Histogram.of(Column("float64", np.asarray(values, dtype="float64")), CPU, limit)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(allow_infinity=False, max_value=1e300, min_value=-1e300), min_size=1, max_size=40))
def test_few_values_are_exact(values: list[float]) -> None:
    present = [v for v in values if not np.isnan(v)]
    found = histogram(values)
    assert found.total == len(present) and found.missing == len(values) - len(present)
    assert found.relative_error == 0.0
    if present:
        for share in SHARES:
            assert found.quantiles(share) == pytest.approx(np.quantile(present, share), rel=1e-12, abs=1e-300)


def test_the_median_of_an_even_number_is_their_middle() -> None:
    assert histogram([1.0, 2.0, 10.0, 30.0]).quantiles(0.5) == 6.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal", "offset", "lognormal", "uniform", "integers", "both signs"])
def test_many_values_stay_within_the_stated_error(name: str) -> None:
    rng = np.random.default_rng(1)
    size = 300_000
    values = {
        "normal": rng.normal(size=size),
        "offset": 1e9 + rng.normal(size=size),
        "lognormal": rng.lognormal(0, 5, size),
        "uniform": rng.uniform(3, 4, size),
        "integers": rng.integers(-(2**40), 2**40, size).astype(float),
        "both signs": np.concatenate([-rng.lognormal(0, 2, size // 2), rng.lognormal(0, 2, size // 2)]),
    }[name]
    found = histogram(values)
    assert 0 < found.relative_error <= 2.0**-9
    assert len(found.keys) <= MAX_BINS
    for share in SHARES:
        wanted = np.quantile(values, share, method="inverted_cdf")
        # Between neighbours the interpolated value may lie on either side of the one wanted.
        near = sorted(np.quantile(values, [share], method=m)[0] for m in ("lower", "higher"))
        room = found.relative_error * max(abs(wanted), *map(abs, near))
        assert near[0] - room <= found.quantiles(share) <= near[1] + room


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), parts=st.integers(1, 6), data=st.data())
def test_any_order_gives_the_same_bins(seed: int, parts: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    values = np.round(rng.normal(0, 10 ** float(rng.integers(0, 6)), 60), int(rng.integers(0, 5)))
    whole = histogram(values, 8)
    found = [histogram(part, 8) for part in np.array_split(values, parts)]
    total = reduce(add, [found[i] for i in data.draw(st.permutations(range(parts)))])
    assert total.shift == whole.shift
    np.testing.assert_array_equal(total.keys, whole.keys)
    np.testing.assert_array_equal(total.counts, whole.counts)
    assert len(whole.keys) <= 8 and whole.total == 60


def test_bins_are_as_fine_as_the_limit_allows() -> None:
    values = np.arange(1.0, MAX_BINS + 1)
    assert histogram(values).shift == 0
    more = histogram(np.append(values, 0.5))
    assert more.shift > 0
    finer = np.unique(np.append(values, 0.5).view(np.int64) >> (more.shift - 1))
    assert len(finer) > MAX_BINS


def test_filling_counts_the_missing() -> None:
    found = histogram([1.0, np.nan, 3.0, np.nan]).filled(2.0)
    assert (found.total, found.missing, found.quantiles(0.5)) == (4, 0, 2.0)


def test_exact_keeps_every_value() -> None:
    values = np.random.default_rng(0).normal(size=MAX_BINS + 5_000)
    column = {"x": Column("float64", values)}
    found = Quantiles.of(column, CPU, "here", exact=True).columns[0]
    assert found.relative_error == 0.0
    halves = [histogram(part, found.limit) for part in np.array_split(values, 2)]
    for share in SHARES:
        wanted = np.quantile(values, share)
        assert found.quantiles(share) == pytest.approx(wanted, rel=1e-14)
        assert (halves[0] + halves[1]).quantiles(share) == found.quantiles(share)
        assert histogram(values).quantiles(share) == pytest.approx(wanted, rel=histogram(values).relative_error)
    np.testing.assert_array_equal(found.values, np.sort(values))


@settings(deadline=None, max_examples=60)
@given(values=st.lists(st.integers(-5, 5), min_size=1, max_size=30), parts=st.integers(1, 12))
def test_between_two_values_as_numpy_has_it(values: list[int], parts: int) -> None:
    shares = np.linspace(0, 100, parts + 1) / 100
    for method in ("linear", "averaged_inverted_cdf"):
        found = histogram(values).quantiles(shares, method)
        np.testing.assert_allclose(found, np.quantile(np.array(values, float), shares, method=method), atol=1e-12)
