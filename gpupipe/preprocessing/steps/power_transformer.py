"""Power transforms: Yeo-Johnson and Box-Cox, towards a normal distribution."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.columns import floats
from gpupipe.errors import BadData
from gpupipe.preprocessing.learned_step import Columns, Invertible
from gpupipe.preprocessing.numeric import check_values, float32_columns, float32_fields, float64_columns, row_blocks
from gpupipe.preprocessing.summaries.power_lambda import Bent, find_likeliest_power
from gpupipe.preprocessing.summaries.quantiles import Quantiles
from gpupipe.schema import Field
from gpupipe.support.validation import check_bool, check_choice

_METHODS = ("yeo-johnson", "box-cox")


class PowerTransformer(Invertible):
    """Power transform of each column, by the likeliest power for a normal distribution, to mean 0 and variance 1.

    The power is found from the counts of distinct values, in one pass: exactly up to 65,536 of them, and with `exact`.
    Beyond, values are rounded to the middles of bins, by half the error `RobustScaler` states at most: of 150,000
    lognormal numbers no output is off by 1e-4. Powers that would leave the range of floats are not tried. A
    constant column is not bent. What is standardized may be bent in any unit: columns of one sign are in that of their
    mean logarithm, where numbers that differ little, such as pressures around 1000, keep their digits.

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
        BadConfig: an unknown method.
        BadData: an infinity, a column without a value, or one that is not positive for `"box-cox"`.

    Memory: transform allocates n float32 per column on the device, and a float64 block at a time; fitting sorts a
        column at a time there.

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
        check_choice(self, _METHODS, method=method)
        check_bool(self, standardize=standardize, exact=exact)
        self.method, self.standardize, self.exact = method, standardize, exact

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        return float32_fields(fields, "PowerTransformer")

    def summarize(self, columns: Columns, backend: Backend) -> Quantiles:
        return Quantiles.of(columns, backend, "PowerTransformer", exact=self.exact)

    def finalize(self, summary: Quantiles) -> Self:
        check_values(summary.names, summary.totals, "PowerTransformer")
        learned = []
        for name, histogram in zip(summary.names, summary.histograms, strict=True):
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
            _check_positive(columns, backend)

        def bent(name: str, block: Array) -> Array:
            power, centre, mean, scale = learned[name]
            if self.method == "box-cox":
                result = _raise_to_power(xp.log(block) - centre, power, xp)
            else:
                sign, near, far = _sides(power, centre)
                size = xp.log1p(xp.abs(block))
                beyond = _raise_to_power(size, far, xp) * np.exp(-near * abs(centre)) - _raise_to_power(
                    -abs(centre), near, np
                )
                result = xp.where(sign * block < 0, -beyond, _raise_to_power(size - abs(centre), near, xp)) * sign
            return (result - mean) / scale

        return float32_columns(columns, bent, backend, "PowerTransformer")

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
            size = xp.where(
                beyond > 0,
                -xp.expm1(_invert_power(beyond * np.exp(near * abs(centre)), far, xp)),
                xp.expm1(_invert_power(block, near, xp) + abs(centre)),
            )
            return size * sign

        return float64_columns(columns, straight, backend, "PowerTransformer.inverse_transform")

    def _centre(self, values: Array, counts: Array) -> float:
        """Return the mean logarithm of values in ascending order, with their sign; 0 where they have both."""
        if self.method == "box-cox":
            return float(np.average(np.log(values), weights=counts))
        if values[0] < 0 <= values[-1]:
            return 0.0
        return float(np.average(np.sign(values) * np.log1p(np.abs(values)), weights=counts))

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


def _check_positive(columns: Columns, backend: Backend) -> None:
    xp = backend.xp
    lowest = []
    for column in columns.values():
        blocks = (floats(column.take(rows), xp) for rows in row_blocks(len(column), backend))
        found = [xp.where(xp.isnan(block), xp.inf, block).min() for block in blocks]
        lowest.append(xp.stack([xp.asarray(xp.inf), *found]).min())
    for name, value in zip(columns, backend.to_host(xp.stack(lowest)).tolist(), strict=True):
        if value <= 0:
            _refuse(name, value)


def _refuse(name: str, value: float) -> NoReturn:
    raise BadData(
        f"PowerTransformer('box-cox'), column {name!r}",
        "a value is not positive",
        got=value,
        expected="numbers above 0",
        remedy="method='yeo-johnson'",
    )
