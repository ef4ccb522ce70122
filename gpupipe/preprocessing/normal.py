"""Normal distribution: the quantile function and its inverse, in arithmetic that NumPy and CuPy have in common."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from gpupipe.backend import Array

__all__ = ["CLIP", "normal_quantile", "normal_share"]

CLIP = 1e-7
"""Probabilities nearer to 0 or 1 than this are clipped: beyond is only noise."""

_SQRT_HALF = 0.7071067811865476

# Wichura's coefficients, highest power first.
_NEAR_P = (
    2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
    13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608,
)  # fmt: skip
_NEAR_Q = (
    5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
    5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0,
)  # fmt: skip
_FAR_P = (
    7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
    3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734,
)  # fmt: skip
_FAR_Q = (
    1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
    0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0,
)  # fmt: skip

# Cody's coefficients, highest power first.
_ERF_P = (
    0.185777706184603153,
    3.16112374387056560,
    113.864154151050156,
    377.485237685302021,
    3209.37758913846947,
)
_ERF_Q = (1.0, 23.6012909523441209, 244.024637934444173, 1282.61652607737228, 2844.23683343917062)
_ERFC_P = (
    2.15311535474403846e-8, 0.564188496988670089, 8.88314979438837594, 66.1191906371416295, 298.635138197400131,
    881.95222124176909, 1712.04761263407058, 2051.07837782607147, 1230.33935479799725,
)  # fmt: skip
_ERFC_Q = (
    1.0, 15.7449261107098347, 117.693950891312499, 537.181101862009858, 1621.38957456669019,
    3290.79923573345963, 4362.61909014324716, 3439.36767414372164, 1230.33935480374942,
)  # fmt: skip


def normal_quantile(shares: Array, xp: ModuleType) -> Array:
    """Return the quantile of the standard normal distribution; probabilities are clipped to [CLIP, 1 - CLIP].

    Relative error below 1e-15. Source: M. J. Wichura, "Algorithm AS 241: the percentage points of the normal
    distribution", Applied Statistics 37 (1988).

    Args:
        shares: n float64; NaN stays.
        xp: numpy or cupy.

    Memory: some ten arrays of n float64 at a time.

    Example:
        >>> import numpy as np
        >>> normal_quantile(np.array([0.5, 0.975]), np).round(6).tolist()
        [0.0, 1.959964]
    """
    shares = xp.clip(shares, CLIP, 1 - CLIP)
    centred = shares - 0.5
    near = 0.180625 - centred * centred
    middle = centred * _ratio(_NEAR_P, _NEAR_Q, near)
    far = xp.sqrt(-xp.log(xp.minimum(shares, 1 - shares))) - 1.6
    tail = _ratio(_FAR_P, _FAR_Q, far)
    return xp.where(xp.abs(centred) <= 0.425, middle, xp.where(centred < 0, -tail, tail))


def normal_share(values: Array, xp: ModuleType) -> Array:
    """Return the cumulative probability of the standard normal distribution; values are clipped to [-5.6, 5.6].

    Error below 1e-15. Source: W. J. Cody, "Rational Chebyshev approximations for the error function", Mathematics of
    Computation 23 (1969).

    Args:
        values: n float64; NaN stays.
        xp: numpy or cupy.

    Memory: some ten arrays of n float64 at a time.

    Example:
        >>> import numpy as np
        >>> normal_share(np.array([0.0, 1.959964]), np).round(6).tolist()
        [0.5, 0.975]
    """
    root = xp.clip(values, -5.6, 5.6) * _SQRT_HALF
    size = xp.abs(root)
    square = xp.minimum(size * size, 0.25)
    middle = 0.5 + 0.5 * root * _ratio(_ERF_P, _ERF_Q, square)
    tail = 0.5 * xp.exp(-size * size) * _ratio(_ERFC_P, _ERFC_Q, size)
    return xp.where(size <= 0.46875, middle, xp.where(root < 0, tail, 1 - tail))


def _ratio(above: Sequence[float], below: Sequence[float], x: Array) -> Array:
    """Divide one polynomial by another, each evaluated by Horner's rule."""
    return _polynomial(above, x) / _polynomial(below, x)


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    first, *rest = coefficients
    value = first * x + rest[0]
    for coefficient in rest[1:]:
        value = value * x + coefficient
    return value
