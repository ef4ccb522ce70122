"""Transforms towards a uniform or normal distribution: by quantiles, and by powers (Yeo-Johnson and Box-Cox)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import ModuleType
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.kernels import find_bounds
from gpupipe.errors import BadData
from gpupipe.preprocessing.learned_step import Columns, FloatStep, check_finite, check_values, map_columns, tabulate
from gpupipe.preprocessing.summaries import Quantiles
from gpupipe.support.validation import check_bool, check_choice, check_integer

CLIP = 1e-7  # probabilities nearer to 0 or 1 are clipped: beyond is only noise

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


class QuantileTransformer(FloatStep):
    """Quantile transform: each value as the fraction of values below it, or as the normal quantile of that.

    Parameters and attributes are scikit-learn's, `exact` and `relative_error_` `RobustScaler`'s. Ranks between
    neighbouring quantiles are interpolated; values outside those of `fit` get 0 or 1 (-5.2 or 5.2). Missing stays
    missing. Quantiles are of all rows (scikit-learn's of a sample of 10,000).
    Raises: BadData for an infinity, or a column without a value.
    Memory: transform allocates n float32 per column on the device; fitting sorts a column at a time there.

    Example:
        >>> import pandas as pd
        >>> QuantileTransformer(n_quantiles=3).fit_transform(pd.DataFrame({"x": [1, 1000, 10]}))["x"].tolist()
        [0.0, 1.0, 0.5]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {
        "n_quantiles_": "count",
        "references_": "finite[n_quantiles_]",
        "quantiles_": "finite[n_quantiles_, C]",
        "relative_error_": "finite[C]",
    }

    def __init__(self, *, n_quantiles: int = 1000, output_distribution: str = "uniform", exact: bool = False) -> None:
        check_integer(self, "[1, inf)", n_quantiles=n_quantiles)
        check_choice(self, ("uniform", "normal"), output_distribution=output_distribution)
        check_bool(self, exact=exact)
        self.n_quantiles, self.output_distribution, self.exact = n_quantiles, output_distribution, exact

    def summarize(self, columns: Columns, backend: Backend) -> Quantiles:
        return Quantiles.of(columns, backend, "QuantileTransformer", exact=self.exact)

    def finalize(self, summary: Quantiles) -> Self:
        check_values(summary.names, summary.totals, "QuantileTransformer")
        rows = summary.columns[0].total + summary.columns[0].missing
        self.n_quantiles_ = min(self.n_quantiles, rows)
        self.references_ = np.linspace(0, 1, self.n_quantiles_)
        # By way of percent, as scikit-learn: on the last digit depends which quantiles are equal.
        shares = self.references_ * 100 / 100
        quantiles = [np.maximum.accumulate(item.quantiles(shares)) for item in summary.columns]
        self.quantiles_ = np.stack(quantiles, axis=1)
        with np.errstate(over="ignore"):
            check_finite(summary.names, self.quantiles_[-1] - self.quantiles_[0], "QuantileTransformer")
        self.relative_error_ = summary.relative_errors
        return super().finalize(summary)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, normal = backend.xp, self.output_distribution == "normal"
        shares, quantiles = backend.to_device(self.references_), self._load_quantiles(backend)
        # What is as good as the smallest or largest value of fit is taken for it.
        ends = dict(zip(self.names_in_, self.quantiles_[[0, -1]].T.tolist(), strict=True))

        def ranked(name: str, block: Array) -> Array:
            low, high = ends[name]
            near = CLIP * min(1.0, high - low) if normal else 0.0
            share = _share(xp.clip(block, low, high), quantiles[name], shares, xp)
            share = xp.where(block >= high - near, 1.0, share)
            share = xp.where(block <= low + near, 0.0, share)
            share = xp.where(xp.isnan(block), xp.nan, share)
            return normal_quantile(share, xp) if normal else share

        return map_columns(columns, ranked, backend, "QuantileTransformer")

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, normal, last = backend.xp, self.output_distribution == "normal", self.n_quantiles_ - 1
        quantiles = self._load_quantiles(backend)

        def restored(name: str, block: Array) -> Array:
            if normal:
                block = normal_share(block, xp)
                block = xp.where(block < CLIP * 1.0001, 0.0, xp.where(block > 1 - CLIP * 1.0001, 1.0, block))
            position = xp.clip(block, 0.0, 1.0) * last
            missing = xp.isnan(position)
            lower = xp.where(missing, 0.0, xp.floor(position)).astype("int64")
            below, above = quantiles[name][lower], quantiles[name][xp.minimum(lower + 1, last)]
            return below + (above - below) * (position - lower)

        return map_columns(columns, restored, backend, "QuantileTransformer.inverse_transform", "float64")

    def _load_quantiles(self, backend: Backend) -> dict[str, Any]:
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


_LARGEST, _LARGEST_RESULT = 700.0, 88.0  # e^700 is a float64, e^88 a float32: no value is bent beyond
_MAX_STEPS = 100


class PowerTransformer(FloatStep):
    """Power transform of each column, by the likeliest power for a normal distribution, to mean 0 and variance 1.

    Parameters and `lambdas_` are scikit-learn's, and `exact` is `RobustScaler`'s. The power is found from the counts of
    distinct values, in one pass: exactly up to 65,536 of them, and with `exact`; beyond, values are rounded by half the
    error `RobustScaler` states at most (of 150,000 lognormal numbers no output is off by 1e-4). Powers that would leave
    the range of floats are not tried. A constant column is not bent. Columns of one sign are bent in the unit of their
    mean logarithm, where numbers that differ little keep their digits.
    Attributes: C float64, `centres_`, the mean logarithm that is the unit, negative for negative numbers, 0 for columns
    of both signs; and of the bent columns in that unit `mean_` and `scale_`. Without `standardize` they are 0, 0 and 1.
    Raises: BadData for an infinity, a column without a value, or for `"box-cox"` one that is not positive.
    Memory: transform allocates n float32 per column on the device; fitting sorts a column at a time there.
    Sources: Yeo, Johnson, "A new family of power transformations to improve normality or symmetry", Biometrika 87
    (2000); Box, Cox, "An analysis of transformations", Journal of the Royal Statistical Society B 26 (1964).

    Example:
        >>> import pandas as pd
        >>> PowerTransformer().fit(pd.DataFrame({"x": [1.0, 2, 3, 5, 9, 40]})).lambdas_.round(3).tolist()
        [-0.485]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("lambdas_", "centres_", "mean_"), "finite[C]"),
        "scale_": "positive[C]",
    }

    def __init__(self, method: str = "yeo-johnson", *, standardize: bool = True, exact: bool = False) -> None:
        check_choice(self, ("yeo-johnson", "box-cox"), method=method)
        check_bool(self, standardize=standardize, exact=exact)
        self.method, self.standardize, self.exact = method, standardize, exact

    def summarize(self, columns: Columns, backend: Backend) -> Quantiles:
        return Quantiles.of(columns, backend, "PowerTransformer", exact=self.exact)

    def finalize(self, summary: Quantiles) -> Self:
        check_values(summary.names, summary.totals, "PowerTransformer")
        learned = []
        for name, histogram in zip(summary.names, summary.columns, strict=True):
            values = histogram.values
            if self.method == "box-cox" and values[0] <= 0:
                _refuse(name, float(values[0]))
            centre = self._centre(values, histogram.counts) if self.standardize else 0.0
            power = 1.0
            if len(values) > 1:
                power = find_likeliest_power(values, histogram.counts, self.method, in_unit=self.standardize)
            mean, deviation = Bent.of(values, power, self.method, centre).moments(histogram.counts)
            scale = deviation if deviation > np.finfo(np.float64).eps * abs(mean) else 1.0
            learned.append((power, centre, mean, scale))
        self.lambdas_, self.centres_, self.mean_, self.scale_ = np.array(learned).T.copy()
        if not self.standardize:
            self.mean_, self.scale_ = np.zeros_like(self.mean_), np.ones_like(self.scale_)
        return super().finalize(summary)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, learned = backend.xp, self._learned()
        if self.method == "box-cox":
            lowest = tabulate(columns, find_bounds, 3, backend)[..., 1].min(axis=0, initial=np.inf)
            for name, value in zip(columns, lowest.tolist(), strict=True):
                if value <= 0:
                    _refuse(name, value)

        def bent(name: str, block: Array) -> Array:
            power, centre, mean, scale = learned[name]
            if self.method == "box-cox":
                result = _raise_to_power(xp.log(block) - centre, power, xp)
            else:
                sign, near, far = _sides(power, centre)
                size = xp.log1p(xp.abs(block))
                beyond = _raise_to_power(size, far, xp) * np.exp(-near * abs(centre))
                beyond -= _raise_to_power(-abs(centre), near, np)
                result = xp.where(sign * block < 0, -beyond, _raise_to_power(size - abs(centre), near, xp)) * sign
            return (result - mean) / scale

        return map_columns(columns, bent, backend, "PowerTransformer")

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """Return the values before the transform; missing where no value has this result."""
        xp, learned = backend.xp, self._learned()

        def straight(name: str, block: Array) -> Array:
            power, centre, mean, scale = learned[name]
            block = block * scale + mean
            if self.method == "box-cox":
                return xp.exp(_invert_power(block, power, xp) + centre)
            sign, near, far = _sides(power, centre)
            block = block * sign
            beyond = _raise_to_power(-abs(centre), near, np) - block
            below = -xp.expm1(_invert_power(beyond * np.exp(near * abs(centre)), far, xp))
            above = xp.expm1(_invert_power(block, near, xp) + abs(centre))
            return xp.where(beyond > 0, below, above) * sign

        return map_columns(columns, straight, backend, "PowerTransformer.inverse_transform", "float64")

    def _centre(self, values: Array, counts: Array) -> float:
        """Return the mean logarithm of values in ascending order, with their sign; 0 where they have both."""
        if self.method == "box-cox":
            return float(np.average(np.log(values), weights=counts))
        logs = np.sign(values) * np.log1p(np.abs(values))
        return 0.0 if values[0] < 0 <= values[-1] else float(np.average(logs, weights=counts))

    def _learned(self) -> dict[str, tuple[float, ...]]:
        columns = (array.tolist() for array in (self.lambdas_, self.centres_, self.mean_, self.scale_))
        return dict(zip(self.names_in_, zip(*columns, strict=True), strict=True))


def _sides(power: float, centre: float) -> tuple[int, float, float]:
    """Return the sign of most numbers, the power for them, and the one for the others."""
    return (-1, 2 - power, power) if centre < 0 else (1, power, 2 - power)


def _raise_to_power(logarithm: Any, power: float, xp: ModuleType) -> Any:
    """Compute (e^(power x logarithm) - 1) / power, without losing digits where the power is small."""
    return logarithm if power == 0 else xp.expm1(power * logarithm) / power


def _invert_power(bent: Array, power: float, xp: ModuleType) -> Array:
    """Return the logarithm that `_raise_to_power` computed this from."""
    if power == 0:
        return bent
    product = power * bent
    return xp.log1p(xp.where(product > -1, product, xp.nan)) / power


def _refuse(name: str, value: float) -> NoReturn:
    where, problem = f"PowerTransformer('box-cox'), column {name!r}", "a value is not positive"
    raise BadData(where, problem, got=value, expected="numbers above 0", remedy="method='yeo-johnson'")


@dataclass(frozen=True)
class Bent:
    """Values transformed by a power, and their slopes by the power; both are too small by the factor e^shift.

    The `jacobian` is the logarithm of the derivative of each bent value by the value it was, per unit of power.
    """

    values: Any
    slopes: Any
    jacobian: Any
    shift: float

    @classmethod
    def of(cls, values: Any, power: float, method: str, centre: float = 0.0) -> Self:
        """Transform values in the unit with the logarithm `centre`, which has their sign; 0 where they have both."""
        if method == "box-cox":
            return cls.by_powers(np.log(values) - centre, power, 1.0)
        negative = values < 0
        logs = np.log1p(np.abs(values)) - abs(centre)
        return cls.by_powers(logs, np.where(negative, 2 - power, power), np.where(negative, -1.0, 1.0))

    @classmethod
    def by_powers(cls, logs: Any, powers: Any, signs: Any) -> Self:
        """Transform the values with these logarithms, each by its power; `signs` are the directions."""
        exponent = powers * logs
        shift = max(0.0, float(exponent.max()))
        with np.errstate(over="ignore", invalid="ignore"):
            near = np.abs(exponent) < 1e-2
            safe = np.where(near, 1.0, exponent)
            grown = np.exp(safe - shift)
            less = np.where(safe > 50, grown, np.expm1(np.minimum(safe, 50)) * np.exp(-shift))
            first = np.where(near, np.polyval(_FIRST, exponent) * np.exp(-shift), less / safe)
            second = np.where(near, np.polyval(_SECOND, exponent) * np.exp(-shift), (grown - less / safe) / safe)
        return cls(signs * logs * first, np.square(logs) * second, signs * logs, shift)

    def moments(self, counts: Any) -> tuple[float, float]:
        """Compute mean and standard deviation of the transformed values."""
        mean = np.average(self.values, weights=counts)
        deviation = np.sqrt(np.average(np.square(self.values - mean), weights=counts))
        return float(mean * np.exp(self.shift)), float(deviation * np.exp(self.shift))

    def score(self, counts: Any) -> float:
        """Compute the derivative of the mean log-likelihood by the power; NaN where the results do not differ."""
        deviation = self.values - np.average(self.values, weights=counts)
        variance = np.average(np.square(deviation), weights=counts)
        if not variance > 0:
            return float("nan")
        slope = np.average(deviation * self.slopes, weights=counts) / variance
        return float(np.average(self.jacobian, weights=counts) - slope)


# (e^t - 1) / t and (t e^t - e^t + 1) / t², around 0.
_FIRST = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0)
_SECOND = (1 / 840, 1 / 144, 1 / 30, 1 / 8, 1 / 3, 1 / 2)


def find_likeliest_power(values: Any, counts: Any, method: str, *, in_unit: bool = True) -> float:
    """Find the power of maximum likelihood by the sign of its derivative: the likelihood has one peak.

    That it has is proved in Kouider, Chen, "Concavity of Box-Cox log-likelihood function" (1995), and for Yeo-Johnson
    in Marchand et al., "SecureFedYJ: a safe feature Gaussianization protocol for federated learning" (2022). The values
    are ascending and distinct, at least two, each with its count. No power is tried by which one of them leaves the
    range of floats: `in_unit`, where they are standardized, those of one sign in the unit of their mean logarithm.
    """
    logs = np.log(values) if method == "box-cox" else np.log1p(np.abs(values))
    largest = _LARGEST if in_unit else _LARGEST_RESULT
    if method == "yeo-johnson" and values[0] < 0 <= values[-1]:
        highest = largest / logs[-1] if logs[-1] else np.inf
        return _zero(lambda power: Bent.of(values, power, method).score(counts), 2 - largest / logs[0], highest)
    # All of one sign: a unit in which the mean logarithm is 0 has the same likeliest power, and all digits.
    centred = logs - np.average(logs, weights=counts)
    exponents = centred if in_unit else logs
    lowest = largest / exponents.min() if exponents.min() < 0 else -np.inf
    highest = largest / exponents.max() if exponents.max() > 0 else np.inf
    power = _zero(lambda power: Bent.by_powers(centred, power, 1.0).score(counts), lowest, highest)
    return 2 - power if method == "yeo-johnson" and values[-1] < 0 else power


def _zero(score: Callable[[float], float], lowest: float, highest: float) -> float:
    """Find the zero of a falling function; without one, the end of the range, or of where it is a number."""
    start = min(max(1.0, lowest), highest)
    near, far, at_near = start, start, score(start)
    at_far, step = at_near, 1.0 if at_near > 0 else -1.0
    while at_far * step > 0 and lowest < far < highest:
        near, at_near = far, at_far
        far, step = min(max(far + step, lowest), highest), step * 2
        at_far = score(far)
    if np.isnan(at_far):
        return near
    return far if at_far * step > 0 else _between(score, (near, at_near), (far, at_far))


def _between(score: Callable[[float], float], first: tuple[float, float], second: tuple[float, float]) -> float:
    """Find where the score is 0, between two positions with different signs.

    Source: Dowell, Jarratt, "A modified regula falsi method for computing the root of an equation", BIT 11 (1971).
    """
    (a, at_a), (b, at_b) = first, second
    for _ in range(_MAX_STEPS):
        if at_b == 0 or abs(b - a) <= 1e-13 * (1 + abs(b)):
            break
        c = b - at_b * (b - a) / (at_b - at_a)
        at_c = score(c)
        if at_c * at_b <= 0:
            a, at_a = b, at_b
        else:
            at_a /= 2
        b, at_b = c, at_c
    return float(b)
