"""The normal distribution against SciPy's."""

from __future__ import annotations

import numpy as np
import scipy.stats

from gpupipe.preprocessing.steps.distributions import CLIP, normal_quantile, normal_share


def test_as_scipy() -> None:
    tails = np.logspace(np.log10(CLIP), -0.3, 5001)
    shares = np.concatenate([tails, 1 - tails, [0.5]])
    np.testing.assert_allclose(normal_quantile(shares, np), scipy.stats.norm.ppf(shares), rtol=1e-13, atol=1e-15)
    values = np.linspace(-5.6, 5.6, 5001)
    np.testing.assert_allclose(normal_share(values, np), scipy.stats.norm.cdf(values), rtol=1e-13)
    np.testing.assert_allclose(normal_share(normal_quantile(shares, np), np), shares, rtol=1e-12)


def test_outside_and_missing() -> None:
    ends = normal_quantile(np.array([0.0, 1.0, np.nan]), np)
    assert abs(ends[0] + ends[1]) < 1e-9 and 5.19 < ends[1] < 5.2 and np.isnan(ends[2])
    np.testing.assert_allclose(normal_share(np.array([-1e9, 1e9, np.nan]), np), [0, 1, np.nan], atol=2e-8)
