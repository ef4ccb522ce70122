"""Power transforms: Yeo-Johnson and Box-Cox, towards a normal distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.kernels import find_bounds
from gpupipe.errors import BadData
from gpupipe.preprocessing.learned_step import Columns, Invertible
from gpupipe.preprocessing.numeric import check_values, float32_fields, map_columns, tabulate
from gpupipe.preprocessing.summaries.counts import Quantiles
from gpupipe.schema import Field
from gpupipe.support.validation import check_bool, check_choice

# e^700 is a float: no value is bent beyond.
_LARGEST = 700.0
_MAX_STEPS = 100


class PowerTransformer(Invertible):
    """Power transform of each column, by the likeliest power for a normal distribution, to mean 0 and variance 1.

    The power is found from the counts of distinct values, in one pass: exactly up to 65,536 of them, and with `exact`;
    beyond, values are rounded by half the error `RobustScaler` states at most (of 150,000 lognormal numbers no output
    is off by 1e-4). Powers that would leave the range of floats are not tried. A constant column is not bent. Columns
    of one sign are bent in the unit of their mean logarithm, where numbers that differ little keep their digits.

    Args:
        method: `"yeo-johnson"` takes any number, `"box-cox"` positive ones.
        standardize: scale to mean 0 and variance 1.
        exact: keep all distinct values while fitting, 16 bytes each on the host.

    Attributes:
        lambdas_: the powers, C float64.
        centres_: the mean logarithm that is the unit of each column, negative for one of negative numbers, C float64;
            0 for columns of both signs, and without `standardize`.
        mean_, scale_: of the bent columns in that unit, C float64; 0 and 1 without `standardize`.

    Raises:
        BadData: an infinity, a column without a value, or one that is not positive for `"box-cox"`.

    Memory: transform allocates n float32 per column on the device; fitting sorts a column at a time there.

    Sources: Yeo, Johnson, "A new family of power transformations to improve normality or symmetry", Biometrika 87
    (2000); Box, Cox, "An analysis of transformations", Journal of the Royal Statistical Society B 26 (1964).

    Example:
        >>> import pandas as pd
        >>> PowerTransformer().fit(pd.DataFrame({"x": [1.0, 2, 3, 5, 9, 40]})).lambdas_.round(3).tolist()
        [-0.485]
    """

    fills_late = True
    monotone = True

    def __init__(self, method: str = "yeo-johnson", *, standardize: bool = True, exact: bool = False) -> None:
        check_choice(self, ("yeo-johnson", "box-cox"), method=method)
        check_bool(self, standardize=standardize, exact=exact)
        self.method, self.standardize, self.exact = method, standardize, exact

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        return float32_fields(fields, "PowerTransformer")

    def summarize(self, columns: Columns, backend: Backend) -> Quantiles:
        return Quantiles.of(columns, backend, "PowerTransformer", exact=self.exact)

    def finalize(self, summary: Quantiles) -> Self:
        check_values(summary.names, summary.totals, "PowerTransformer")
        learned = []
        for name, histogram in zip(summary.names, summary.columns, strict=True):
            values = histogram.values
            if self.method == "box-cox" and values[0] <= 0:
                _refuse(name, float(values[0]))
            power = find_likeliest_power(values, histogram.counts, self.method) if len(values) > 1 else 1.0
            centre = self._centre(values, histogram.counts) if self.standardize else 0.0
            mean, deviation = Bent.of(values, power, self.method, centre).moments(histogram.counts)
            scale = deviation if deviation > np.finfo(np.float64).eps * abs(mean) else 1.0
            learned.append((power, centre, mean, scale))
        self.lambdas_, self.centres_, self.mean_, self.scale_ = np.array(learned).T.copy()
        if not self.standardize:
            self.mean_, self.scale_ = np.zeros_like(self.mean_), np.ones_like(self.scale_)
        self.names_in_ = list(summary.names)
        return self

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


def find_likeliest_power(values: Any, counts: Any, method: str) -> float:
    """Find the power of maximum likelihood by the sign of its derivative: the likelihood has one peak.

    That it has is proved in Kouider, Chen, "Concavity of Box-Cox log-likelihood function" (1995), and for Yeo-Johnson
    in Marchand et al., "SecureFedYJ: a safe feature Gaussianization protocol for federated learning" (2022). The values
    are ascending and distinct, at least two, each with its count.
    """
    logs = np.log(values) if method == "box-cox" else np.log1p(np.abs(values))
    if method == "yeo-johnson" and values[0] < 0 <= values[-1]:
        lowest, highest = 2 - _LARGEST / logs[0], _LARGEST / logs[-1] if logs[-1] else np.inf

        def score(power: float) -> float:
            return Bent.of(values, power, method).score(counts)

        return _zero(score, lowest, highest)
    # All of one sign: a unit in which the mean logarithm is 0 has the same likeliest power, and all digits.
    centred = logs - np.average(logs, weights=counts)

    def centred_score(power: float) -> float:
        return Bent.by_powers(centred, power, 1.0).score(counts)

    lowest = _LARGEST / logs.min() if logs.min() < 0 else -np.inf
    highest = _LARGEST / logs.max() if logs.max() > 0 else np.inf
    power = _zero(centred_score, lowest, highest)
    return 2 - power if method == "yeo-johnson" and values[-1] < 0 else power


def _zero(score: Callable[[float], float], lowest: float, highest: float) -> float:
    """Find the zero of a falling function; without one, the end of the range, or of where it is a number."""
    start = min(max(1.0, lowest), highest)
    near, far, found = start, start, score(start)
    there, step = found, 1.0 if found > 0 else -1.0
    while there * step > 0 and lowest < far < highest:
        near, found = far, there
        far, step = min(max(far + step, lowest), highest), step * 2
        there = score(far)
    return near if np.isnan(there) or there * step > 0 else _between(score, (near, found), (far, there))


def _between(score: Callable[[float], float], one: tuple[float, float], two: tuple[float, float]) -> float:
    """Find where the score is 0, between two positions with different signs.

    Source: Dowell, Jarratt, "A modified regula falsi method for computing the root of an equation", BIT 11 (1971).
    """
    (a, at_a), (b, at_b) = one, two
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
