"""Scalers: `(x - offset) / divisor` of each column, learned in one pass; logarithms; and rows of one norm."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.columns import floats
from gpupipe.backend.kernels import ElementwiseProgram, Scale
from gpupipe.errors import BadData
from gpupipe.preprocessing.learned_step import (
    Columns,
    Invertible,
    StatelessStep,
    Types,
    any_true,
    check_finite,
    check_values,
    float32_fields,
    float32_rows,
    map_columns,
    scale_columns,
)
from gpupipe.preprocessing.summaries import Extremes, Moments, Quantiles
from gpupipe.schema import Field
from gpupipe.support.validation import check_bool, check_choice, check_pair


class _Scaler(Invertible):
    """Base class of the scalers: numbers in, float32 out, missing stays missing."""

    fills_late = True
    monotone = True
    allocates = True

    @abstractmethod
    def _affine(self) -> tuple[Any, Any]:
        """Return offsets and divisors of the columns."""

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        return float32_fields(fields, type(self).__name__)

    def transform_columns(self, columns: Columns, backend: Backend) -> Columns:
        offsets, divisors = self._by_column()
        return scale_columns(columns, offsets, divisors, self._scale(0.0, 1.0), backend, type(self).__name__)

    def pointwise(self, name: str, dtype: str) -> ElementwiseProgram | None:
        offsets, divisors = self._affine()
        place = self.names_in_.index(name)
        return ElementwiseProgram(scale=self._scale(float(offsets[place]), float(divisors[place])))

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        offsets, divisors = self._by_column()

        def restored(name: str, block: Array) -> Array:
            return self._unranged(block) * divisors[name] + offsets[name]

        return map_columns(columns, restored, backend, f"{type(self).__name__}.inverse_transform", "float64")

    def _by_column(self) -> tuple[dict[str, float], dict[str, float]]:
        offsets, divisors = (dict(zip(self.names_in_, found.tolist(), strict=True)) for found in self._affine())
        return offsets, divisors

    def _scale(self, offset: float, divisor: float) -> Scale:
        return Scale(offset, divisor)

    def _unranged(self, block: Array) -> Array:
        return block


class StandardScaler(_Scaler):
    """Standardization: each column less its mean, divided by its standard deviation (the population's, divisor n).

    Args:
        with_mean, with_std: whether to subtract and to divide; a constant column is only centred.

    Attributes:
        mean_, var_, scale_, n_samples_seen_: C float64, the last int64; without `with_std` all of `scale_` is 1.

    Raises:
        BadData: an infinity, a column without a value, or a value beyond 1e145, whose square could not be summed.

    Memory: transform allocates n float32 per column on the device.

    Example:
        >>> import pandas as pd
        >>> StandardScaler().fit_transform(pd.DataFrame({"x": [1e9, 1e9 + 2, None]}))["x"].tolist()
        [-1.0, 1.0, nan]
    """

    summary_key = "moments"

    def __init__(self, *, with_mean: bool = True, with_std: bool = True) -> None:
        check_bool(self, with_mean=with_mean, with_std=with_std)
        self.with_mean, self.with_std = with_mean, with_std

    def summarize(self, columns: Columns, backend: Backend) -> Moments:
        return Moments.of(columns, backend, "StandardScaler")

    def finalize(self, summary: Moments) -> Self:
        check_values(summary.names, summary.count, "StandardScaler")
        self.names_in_ = list(summary.names)
        self.mean_, self.var_, self.n_samples_seen_ = summary.mean, summary.variance, summary.count
        deviation = np.sqrt(self.var_)
        self.scale_ = np.where((deviation > 0) & self.with_std, deviation, 1.0)
        return self

    def _affine(self) -> tuple[Any, Any]:
        return self.mean_ if self.with_mean else np.zeros_like(self.mean_), self.scale_


class MaxAbsScaler(_Scaler):
    """Scaling by the largest absolute value of each column, kept as `max_abs_` (C float64): zeros stay zeros.

    Raises:
        BadData: an infinity, or a column without a value.

    Memory: transform allocates n float32 per column on the device.

    Example:
        >>> import pandas as pd
        >>> MaxAbsScaler().fit_transform(pd.DataFrame({"x": [2, None, -4], "zero": [0, 0, 0]})).values.tolist()
        [[0.5, 0.0], [nan, 0.0], [-1.0, 0.0]]
    """

    def summarize(self, columns: Columns, backend: Backend) -> Extremes:
        return Extremes.of(columns, backend, "MaxAbsScaler")

    def finalize(self, summary: Extremes) -> Self:
        check_values(summary.names, summary.low <= summary.high, "MaxAbsScaler")
        self.names_in_ = list(summary.names)
        self.max_abs_ = np.maximum(-summary.low, summary.high)
        self.scale_ = np.where(self.max_abs_ > 0, self.max_abs_, 1.0)
        return self

    def _affine(self) -> tuple[Any, Any]:
        return np.zeros_like(self.scale_), self.scale_


class MinMaxScaler(_Scaler):
    """Scaling of each column from its fitted range, `data_min_` to `data_max_` (C float64); a constant to the low end.

    Args:
        feature_range, clip: the range, low before high, and whether values outside the fitted ones are held to it.

    Raises:
        BadData: an infinity, a range that is one, or a column without a value.

    Memory: transform allocates n float32 per column on the device.

    Example:
        >>> import pandas as pd
        >>> MinMaxScaler().fit_transform(pd.DataFrame({"x": [2, 4, 3], "same": [7, 7, 7]})).values.tolist()
        [[0.0, 0.0], [1.0, 0.0], [0.5, 0.0]]
    """

    def __init__(self, feature_range: tuple[float, float] = (0, 1), *, clip: bool = False) -> None:
        check_pair(self, "(-inf, inf)", feature_range=feature_range)
        check_bool(self, clip=clip)
        self.feature_range, self.clip = feature_range, clip

    def summarize(self, columns: Columns, backend: Backend) -> Extremes:
        return Extremes.of(columns, backend, "MinMaxScaler")

    def finalize(self, summary: Extremes) -> Self:
        check_values(summary.names, summary.low <= summary.high, "MinMaxScaler")
        with np.errstate(over="ignore"):
            check_finite(summary.names, summary.high - summary.low, "MinMaxScaler")
        self.names_in_ = list(summary.names)
        self.data_min_, self.data_max_ = summary.low, summary.high
        return self

    def _affine(self) -> tuple[Any, Any]:
        width = self.data_max_ - self.data_min_
        return self.data_min_, np.where(width > 0, width, 1.0)

    def _scale(self, offset: float, divisor: float) -> Scale:
        low, high = self.feature_range
        held = (low, high) if self.clip else (-np.inf, np.inf)
        return Scale(offset, divisor, high - low, low, *held)

    def _unranged(self, block: Array) -> Array:
        low, high = self.feature_range
        return (block - low) / (high - low)


class RobustScaler(_Scaler):
    """Robust scaling: each column less its median, divided by the distance of two quantiles, unless they are equal.

    Quantiles are exact up to 65,536 distinct values of a column, and with `exact`; else their error is in
    `relative_error_`.

    Args:
        with_centering, with_scaling: whether to subtract and to divide.
        quantile_range: the two quantiles, in percent.
        unit_variance: scale so that a normal distribution would get variance 1.
        exact: keep all distinct values while fitting, 16 bytes each on the host.

    Attributes:
        center_, scale_: C float64.
        relative_error_: how far a quantile may be off, relative to its value, C float64; 0 where exact.

    Raises:
        BadData: an infinity, a range that is one, or a column without a value.

    Memory: transform allocates n float32 per column on the device; fitting sorts a column at a time there.

    Example:
        >>> import pandas as pd
        >>> RobustScaler().fit_transform(pd.DataFrame({"x": [1, 2, 3, 4, 1000]}))["x"].tolist()
        [-1.0, -0.5, 0.0, 0.5, 498.5]
    """

    def __init__(
        self,
        *,
        with_centering: bool = True,
        with_scaling: bool = True,
        quantile_range: tuple[float, float] = (25.0, 75.0),
        unit_variance: bool = False,
        exact: bool = False,
    ) -> None:
        check_bool(self, with_centering=with_centering, with_scaling=with_scaling)
        check_bool(self, unit_variance=unit_variance, exact=exact)
        # A normal distribution has no value at its ends.
        check_pair(self, "[1e-9, 99.999999999]" if unit_variance else "[0, 100]", quantile_range=quantile_range)
        self.with_centering, self.with_scaling, self.quantile_range = with_centering, with_scaling, quantile_range
        self.unit_variance, self.exact = unit_variance, exact

    @property
    def summary_key(self) -> Hashable:  # type: ignore[override]
        """The key of the quantiles it learns from."""
        return "quantiles", self.exact

    def summarize(self, columns: Columns, backend: Backend) -> Quantiles:
        return Quantiles.of(columns, backend, "RobustScaler", exact=self.exact)

    def finalize(self, summary: Quantiles) -> Self:
        check_values(summary.names, summary.totals, "RobustScaler")
        shares = np.array([self.quantile_range[0], 50.0, self.quantile_range[1]]) / 100
        lower, middle, upper = np.array([item.quantiles(shares) for item in summary.columns]).T
        with np.errstate(over="ignore"):
            width = upper - lower
        check_finite(summary.names, width, "RobustScaler")
        if self.unit_variance:
            normal = NormalDist()
            width = width / (normal.inv_cdf(shares[2]) - normal.inv_cdf(shares[0]))
        self.names_in_ = list(summary.names)
        self.center_ = middle if self.with_centering else np.zeros_like(middle)
        self.scale_ = np.where((width > 0) & self.with_scaling, width, 1.0)
        self.relative_error_ = summary.relative_errors
        return self

    def _affine(self) -> tuple[Any, Any]:
        return self.center_, self.scale_


class Log1p(StatelessStep, Invertible):
    """Logarithm of 1 + each value; exact for small ones, inverted by `inverse_transform`.

    Raises:
        BadData: a value of -1 or below, which has no logarithm; in the inverse, an infinite result.

    Memory: transform allocates n float32 per column on the device.

    Example:
        >>> import pandas as pd
        >>> Log1p().fit_transform(pd.DataFrame({"x": [0.0, None, 1.0]}))["x"].astype("float64").round(4).tolist()
        [0.0, nan, 0.6931]
    """

    monotone = True

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        return float32_fields(fields, "Log1p")

    def summarize(self, columns: Columns, backend: Backend) -> Types:
        _check(columns, backend)
        return super().summarize(columns, backend)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        _check(columns, backend)
        return map_columns(columns, lambda _, block: backend.xp.log1p(block), backend, "Log1p")

    def pointwise(self, name: str, dtype: str) -> ElementwiseProgram | None:
        return ElementwiseProgram(log=True)

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        where = "Log1p.inverse_transform"
        return map_columns(columns, lambda _, block: backend.xp.expm1(block), backend, where, "float64")


def _check(columns: Columns, backend: Backend) -> None:
    """Raise `BadData` for the first column with a value that has no logarithm."""
    for name, column in columns.items():
        values = floats(column, backend.xp)
        low = values <= -1.0
        if any_true([low.any()], backend):
            where, problem = f"Log1p, column {name!r}", f"{int(low.sum()):,} values of -1 or below have no logarithm"
            got, expected = float(backend.to_host(values[low][:1])[0]), "numbers above -1"
            remedy = "Derive with 'clip(...)' before it, or PowerTransformer(), which takes any number"
            raise BadData(where, problem, got=got, expected=expected, remedy=remedy)


class Normalizer(StatelessStep):
    """Normalization: each row, over the columns of the step, divided by its norm; a row of zeros does not change.

    Unlike scikit-learn's, it is right for rows whose squares are no floats, and for norms below 2e-15.

    Args:
        norm: `"l2"` (the root of the sum of squares), `"l1"` (the sum of absolute values) or `"max"` (the largest).

    Raises:
        BadData: a missing value or an infinity, in `transform`.

    Memory: transform allocates n float32 per column on the device, and a float64 block (on a GPU: all columns).

    Example:
        >>> import pandas as pd
        >>> Normalizer().fit_transform(pd.DataFrame({"x": [3.0, 0.0], "y": [4.0, 0.0]})).round(4).values.tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """

    def __init__(self, norm: str = "l2") -> None:
        check_choice(self, ("l2", "l1", "max"), norm=norm)
        self.norm = norm

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        lineage: frozenset[str] = frozenset().union(*(item.lineage for item in fields))
        return [replace(item, nullable=False, lineage=lineage) for item in float32_fields(fields, "Normalizer")]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp = backend.xp

        def normalised(block: Array) -> Array:
            largest = xp.abs(block).max(axis=0)
            block /= xp.where(largest == 0, 1.0, largest)  # a missing value stays NaN, and is refused
            if self.norm == "max":
                return block
            size = xp.abs(block).sum(axis=0) if self.norm == "l1" else xp.sqrt(xp.square(block).sum(axis=0))
            block /= xp.where(size == 0, 1.0, size)
            return block

        return float32_rows(columns, list(columns), normalised, backend, "Normalizer")
