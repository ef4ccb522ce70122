"""Power of a Box-Cox or Yeo-Johnson transform, by maximum likelihood from counted values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

# e^700 is a float: no value is bent beyond.
_LARGEST = 700.0
_MAX_STEPS = 60


@dataclass(frozen=True)
class Bent:
    """Values transformed by a power, and their derivative; both are too small by the factor e^shift.

    Args:
        values: B float64.
        slopes: their derivatives by the power, B float64.
        jacobian: the logarithm of the derivative of each bent value by the value it was, per unit of power, B float64.
        shift: at most 700.
    """

    values: Any
    slopes: Any
    jacobian: Any
    shift: float

    @classmethod
    def of(cls, values: Any, power: float, method: str, centre: float = 0.0) -> Self:
        """Transform `values` (B float64) by `"yeo-johnson"` or `"box-cox"`, in the unit with this logarithm.

        The centre has the sign of the values; it is 0 where they have both.
        """
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
            first = np.where(near, _series(exponent, _FIRST) * np.exp(-shift), less / safe)
            second = np.where(near, _series(exponent, _SECOND) * np.exp(-shift), (grown - less / safe) / safe)
        return cls(signs * logs * first, np.square(logs) * second, signs * logs, shift)

    def moments(self, counts: Any) -> tuple[float, float]:
        """Compute mean and standard deviation of the transformed values."""
        mean = _mean(self.values, counts)
        deviation = np.sqrt(_mean(np.square(self.values - mean), counts))
        return float(mean * np.exp(self.shift)), float(deviation * np.exp(self.shift))

    def score(self, counts: Any) -> float:
        """Compute the derivative of the mean log-likelihood by the power; NaN where the results do not differ."""
        deviation = self.values - _mean(self.values, counts)
        variance = _mean(np.square(deviation), counts)
        if not variance > 0:
            return float("nan")
        return float(_mean(self.jacobian, counts) - _mean(deviation * self.slopes, counts) / variance)


# (e^t - 1) / t and (t e^t - e^t + 1) / t², around 0.
_FIRST = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0)
_SECOND = (1 / 840, 1 / 144, 1 / 30, 1 / 8, 1 / 3, 1 / 2)


def find_likeliest_power(values: Any, counts: Any, method: str) -> float:
    """Find the power of maximum likelihood by the sign of its derivative: the likelihood has one peak.

    That it has is proved in Kouider, Chen, "Concavity of Box-Cox log-likelihood function" (1995), and for Yeo-Johnson
    in Marchand et al., "SecureFedYJ: a safe feature Gaussianization protocol for federated learning" (2022).

    Args:
        values: B float64, ascending and distinct, at least two; positive for `"box-cox"`.
        counts: how often each occurs, B int64.
        method: `"yeo-johnson"` or `"box-cox"`.

    Example:
        >>> logs = np.linspace(-3, 3, 101)
        >>> bell = np.exp(-np.square(logs) / 2)
        >>> abs(round(find_likeliest_power(np.exp(logs), bell, "box-cox"), 6))
        0.0
    """
    logs = np.log(values) if method == "box-cox" else np.log1p(np.abs(values))
    if method == "yeo-johnson" and values[0] < 0 <= values[-1]:
        lowest, highest = 2 - _LARGEST / logs[0], _LARGEST / logs[-1] if logs[-1] else np.inf

        def score(power: float) -> float:
            return Bent.of(values, power, method).score(counts)

        return _zero(score, lowest, highest)
    # All of one sign: a unit in which the mean logarithm is 0 has the same likeliest power, and all digits.
    centred = logs - _mean(logs, counts)

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

    Source: Ridders, "A new algorithm for computing a single root of a real continuous function", IEEE Transactions on
    Circuits and Systems 26 (1979).
    """
    (a, at_a), (b, at_b) = one, two
    best = b if abs(at_b) < abs(at_a) else a
    for _ in range(_MAX_STEPS):
        c = (a + b) / 2
        at_c = score(c)
        root = np.sqrt(at_c * at_c - at_a * at_b)
        if root == 0:
            return float(c if at_a else a)
        d = c + (c - a) * np.sign(at_a - at_b) * at_c / root
        if abs(d - best) <= 1e-13 * (1 + abs(d)):
            break
        best, at_d = d, score(d)
        if at_d * at_c < 0:
            (a, at_a), (b, at_b) = sorted([(c, at_c), (d, at_d)])
        elif at_d * at_a < 0:
            b, at_b = d, at_d
        else:
            a, at_a = d, at_d
    return float(best)


def _mean(values: Any, counts: Any) -> Any:
    return (values * counts).sum() / counts.sum()


def _series(t: Any, coefficients: tuple[float, ...]) -> Any:
    value = 0.0
    for coefficient in coefficients:
        value = value * t + coefficient
    return value
