"""Quantile transform: numbers as their rank among those of `fit`, uniform or normal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from types import ModuleType
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.preprocessing.learned_step import Columns, Invertible
from gpupipe.preprocessing.numeric import check_finite, check_values, float32_fields, map_columns
from gpupipe.preprocessing.summaries.counts import Quantiles
from gpupipe.schema import Field
from gpupipe.support.validation import check_bool, check_choice, check_integer

# Probabilities nearer to 0 or 1 than this are clipped: beyond is only noise.
CLIP = 1e-7

# Wichura's coefficients of the quantile near 1/2 and far from it, and Cody's of erf and erfc; highest power first.
_NEAR = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
_FAR = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
_ERF = (
    (0.185777706184603153, 3.16112374387056560, 113.864154151050156, 377.485237685302021, 3209.37758913846947),
    (1.0, 23.6012909523441209, 244.024637934444173, 1282.61652607737228, 2844.23683343917062),
)
_ERFC = (
    (2.15311535474403846e-8, 0.564188496988670089, 8.88314979438837594, 66.1191906371416295, 298.635138197400131,
     881.95222124176909, 1712.04761263407058, 2051.07837782607147, 1230.33935479799725),
    (1.0, 15.7449261107098347, 117.693950891312499, 537.181101862009858, 1621.38957456669019,
     3290.79923573345963, 4362.61909014324716, 3439.36767414372164, 1230.33935480374942),
)  # fmt: skip


class QuantileTransformer(Invertible):
    """Quantile transform: each value as the fraction of values below it, or as the normal quantile of that.

    Ranks between neighbouring quantiles are interpolated; values outside those of `fit` get 0 or 1 (-5.2 or 5.2).
    Missing stays missing. Quantiles are of all rows (scikit-learn's of a sample of 10,000): exact up to 65,536 distinct
    values of a column, and with `exact`; else their error is in `relative_error_`.

    Args:
        n_quantiles: how many are kept; at most as many as there are rows.
        output_distribution: `"uniform"` or `"normal"`.
        exact: keep all distinct values while fitting, 16 bytes each on the host.

    Attributes:
        n_quantiles_: those kept, Q.
        references_, quantiles_: the shares, Q float64, and their quantiles, Q x C.
        relative_error_: how far a quantile may be off, relative to its value, C float64; 0 where exact.

    Raises:
        BadData: an infinity, or a column without a value.

    Memory: transform allocates n float32 per column on the device; fitting sorts a column at a time there.

    Example:
        >>> import pandas as pd
        >>> QuantileTransformer(n_quantiles=3).fit_transform(pd.DataFrame({"x": [1, 1000, 10]}))["x"].tolist()
        [0.0, 1.0, 0.5]
    """

    fills_late = True
    monotone = True

    def __init__(self, *, n_quantiles: int = 1000, output_distribution: str = "uniform", exact: bool = False) -> None:
        check_integer(self, "[1, inf)", n_quantiles=n_quantiles)
        check_choice(self, ("uniform", "normal"), output_distribution=output_distribution)
        check_bool(self, exact=exact)
        self.n_quantiles, self.output_distribution, self.exact = n_quantiles, output_distribution, exact

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        return float32_fields(fields, "QuantileTransformer")

    def summarize(self, columns: Columns, backend: Backend) -> Quantiles:
        return Quantiles.of(columns, backend, "QuantileTransformer", exact=self.exact)

    def finalize(self, summary: Quantiles) -> Self:
        check_values(summary.names, summary.totals, "QuantileTransformer")
        rows = summary.columns[0].total + summary.columns[0].missing
        self.n_quantiles_ = min(self.n_quantiles, rows)
        self.references_ = np.linspace(0, 1, self.n_quantiles_)
        # By way of percent, as scikit-learn: on the last digit depends which quantiles are equal.
        shares = self.references_ * 100 / 100
        found = [np.maximum.accumulate(item.quantiles(shares)) for item in summary.columns]
        self.quantiles_ = np.stack(found, axis=1)
        with np.errstate(over="ignore"):
            check_finite(summary.names, self.quantiles_[-1] - self.quantiles_[0], "QuantileTransformer")
        self.relative_error_ = summary.relative_errors
        self.names_in_ = list(summary.names)
        return self

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, normal = backend.xp, self.output_distribution == "normal"
        shares, known = backend.to_device(self.references_), self._known(backend)
        # What is as good as the smallest or largest value of fit is taken for it.
        ends = dict(zip(self.names_in_, self.quantiles_[[0, -1]].T.tolist(), strict=True))

        def ranked(name: str, block: Array) -> Array:
            low, high = ends[name]
            near = CLIP * min(1.0, high - low) if normal else 0.0
            made = _share(xp.clip(block, low, high), known[name], shares, xp)
            made = xp.where(block >= high - near, 1.0, made)
            made = xp.where(block <= low + near, 0.0, made)
            made = xp.where(xp.isnan(block), xp.nan, made)
            return normal_quantile(made, xp) if normal else made

        return map_columns(columns, ranked, backend, "QuantileTransformer")

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, normal, last = backend.xp, self.output_distribution == "normal", self.n_quantiles_ - 1
        known = self._known(backend)

        def restored(name: str, block: Array) -> Array:
            if normal:
                block = normal_share(block, xp)
                block = xp.where(block < CLIP * 1.0001, 0.0, xp.where(block > 1 - CLIP * 1.0001, 1.0, block))
            place = xp.clip(block, 0.0, 1.0) * last
            missing = xp.isnan(place)
            lower = xp.where(missing, 0.0, xp.floor(place)).astype("int64")
            below, above = known[name][lower], known[name][xp.minimum(lower + 1, last)]
            return below + (above - below) * (place - lower)

        return map_columns(columns, restored, backend, "QuantileTransformer.inverse_transform", "float64")

    def _known(self, backend: Backend) -> dict[str, Any]:
        return {name: backend.to_device(self.quantiles_[:, j].copy()) for j, name in enumerate(self.names_in_)}


def _share(values: Array, quantiles: Array, shares: Array, xp: Any) -> Array:
    """Return the rank of values within the quantiles: of several equal quantiles the middle of first and last."""
    last = len(quantiles) - 1
    first = xp.searchsorted(quantiles, values, side="left")
    after = xp.searchsorted(quantiles, values, side="right")
    lower, upper = xp.clip(first - 1, 0, last), xp.minimum(first, last)
    width = quantiles[upper] - quantiles[lower]
    part = (values - quantiles[lower]) / xp.where(width > 0, width, 1.0)
    between = shares[lower] + (shares[upper] - shares[lower]) * part
    return xp.where(after > first, (shares[upper] + shares[xp.clip(after - 1, 0, last)]) / 2, between)


def normal_quantile(shares: Array, xp: ModuleType) -> Array:
    """Return the quantile of the standard normal distribution; probabilities are clipped to [CLIP, 1 - CLIP].

    Relative error below 1e-15. Source: M. J. Wichura, "Algorithm AS 241: the percentage points of the normal
    distribution", Applied Statistics 37 (1988).
    """
    shares = xp.clip(shares, CLIP, 1 - CLIP)
    centred = shares - 0.5
    middle = centred * _ratio(_NEAR, 0.180625 - centred * centred)
    tail = _ratio(_FAR, xp.sqrt(-xp.log(xp.minimum(shares, 1 - shares))) - 1.6)
    return xp.where(xp.abs(centred) <= 0.425, middle, xp.where(centred < 0, -tail, tail))


def normal_share(values: Array, xp: ModuleType) -> Array:
    """Return the cumulative probability of the standard normal distribution; values are clipped to [-5.6, 5.6].

    Error below 1e-15. Source: W. J. Cody, "Rational Chebyshev approximations for the error function", Mathematics of
    Computation 23 (1969).
    """
    root = xp.clip(values, -5.6, 5.6) * np.sqrt(0.5)
    size = xp.abs(root)
    middle = 0.5 + 0.5 * root * _ratio(_ERF, xp.minimum(size * size, 0.25))
    tail = 0.5 * xp.exp(-size * size) * _ratio(_ERFC, size)
    return xp.where(size <= 0.46875, middle, xp.where(root < 0, tail, 1 - tail))


def _ratio(coefficients: tuple[Sequence[float], Sequence[float]], x: Array) -> Array:
    """Divide one polynomial by another, each evaluated by Horner's rule."""
    above, below = (reduce(lambda value, term: value * x + term, terms) for terms in coefficients)
    return above / below
