"""Scalers, logarithm, norms, and smaller types of numbers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from types import ModuleType
from typing import Any, ClassVar, Literal, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Matrix
from gpupipe.backend.cast import cast_column
from gpupipe.backend.kernels import ElementwiseProgram, Scale, scale_each, scale_into
from gpupipe.errors import BadData
from gpupipe.preprocessing import learned_step as base
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.summaries import Extremes, Moments, Quantiles
from gpupipe.schema import FLOATS, INTEGERS, Field
from gpupipe.support.origins import Origins
from gpupipe.support.validation import check_bool, check_choice, check_pair

SMOOTH_LIMIT = 3.0  # what outliers approach, in scales


class _Scaler(base.FloatStep):
    """Base class of the scalers."""

    allocates = True

    @abstractmethod
    def _affine(self) -> tuple[Any, Any]:
        """Return offsets and divisors of the columns."""

    def transform_columns(self, columns: Columns, backend: Backend) -> Columns:
        (offsets, divisors), by, where = self._by_column(), self._scale(0.0, 1.0), type(self).__name__
        if isinstance(columns, Matrix):
            data, infinite = np.empty(columns.data.shape, dtype=np.float32), False
            first, second = (np.array([numbers[name] for name in columns]) for numbers in (offsets, divisors))
            for rows, places in base.matrix_pieces(columns, backend):
                block = columns.data[places, rows].astype(np.float64, copy=False)
                infinite |= scale_each(data[places, rows], block, first[places], second[places], by)
            if infinite:
                base.refuse(columns, backend, where, too_large="a result does not fit float32")
            return Matrix(columns.names, data)

        def write(name: str, out: Array, block: Array) -> Array:
            return scale_into(out, block, replace(by, offset=offsets[name], divisor=divisors[name]), backend.xp)

        return base.write_columns(columns, write, backend, where, "float32", looped=True)

    def pointwise(self, name: str, dtype: str) -> ElementwiseProgram | None:
        offsets, divisors = self._affine()
        index = self.names_in_.index(name)
        return ElementwiseProgram(scale=self._scale(float(offsets[index]), float(divisors[index])))

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        (offsets, divisors), by = self._by_column(), self._scale(0.0, 1.0)

        def restored(name: str, block: Array) -> Array:
            number = (block - by.shift) / by.multiplier if by.moves else block
            return number * divisors[name] + offsets[name]

        return base.map_columns(columns, restored, backend, f"{type(self).__name__}.inverse_transform", "float64")

    def _by_column(self) -> tuple[dict[str, float], dict[str, float]]:
        offsets, divisors = (dict(zip(self.names_in_, numbers.tolist(), strict=True)) for numbers in self._affine())
        return offsets, divisors

    def _scale(self, offset: float, divisor: float) -> Scale:
        return Scale(offset, divisor)


class StandardScaler(_Scaler):
    """Standardization: each column less its mean, divided by its standard deviation (the population's, divisor n).

    Parameters and attributes are scikit-learn's. A constant column is only centred.
    Raises: BadData for an infinity, a column without a value, or a value beyond 1e145, whose square cannot be summed.
    Memory: transform allocates n float32 per column on the device.

    Example:
        >>> import pandas as pd
        >>> StandardScaler().fit_transform(pd.DataFrame({"x": [1e9, 1e9 + 2, None]}))["x"].tolist()
        [-1.0, 1.0, nan]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {
        "mean_": "finite[C]",
        "var_": "finite[C]",
        "scale_": "positive[C]",
        "n_samples_seen_": "counts[C]",
    }
    summary_key = "moments"

    def __init__(self, *, with_mean: bool = True, with_std: bool = True) -> None:
        check_bool(self, with_mean=with_mean, with_std=with_std)
        self.with_mean, self.with_std = with_mean, with_std

    def summarize(self, columns: Columns, backend: Backend) -> Moments:
        return Moments.of(columns, backend, "StandardScaler")

    def finalize(self, summary: Moments) -> Self:
        base.check_values(summary.names, summary.count, "StandardScaler")
        self.mean_, self.var_, self.n_samples_seen_ = summary.mean, summary.variance, summary.count
        deviation = np.sqrt(self.var_)
        self.scale_ = np.where((deviation > 0) & self.with_std, deviation, 1.0)
        return super().finalize(summary)

    def _affine(self) -> tuple[Any, Any]:
        return self.mean_ if self.with_mean else np.zeros_like(self.mean_), self.scale_


class MaxAbsScaler(_Scaler):
    """Scaling by the largest absolute value of each column, kept as `max_abs_` (C float64): zeros stay zeros.

    Raises: BadData for an infinity, or a column without a value.
    Memory: transform allocates n float32 per column on the device.

    Example:
        >>> import pandas as pd
        >>> MaxAbsScaler().fit_transform(pd.DataFrame({"x": [2, None, -4], "zero": [0, 0, 0]})).values.tolist()
        [[0.5, 0.0], [nan, 0.0], [-1.0, 0.0]]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {"max_abs_": "finite[C]", "scale_": "positive[C]"}

    def summarize(self, columns: Columns, backend: Backend) -> Extremes:
        return Extremes.of(columns, backend, "MaxAbsScaler")

    def finalize(self, summary: Extremes) -> Self:
        base.check_values(summary.names, summary.low <= summary.high, "MaxAbsScaler")
        self.max_abs_ = np.maximum(-summary.low, summary.high)
        self.scale_ = np.where(self.max_abs_ > 0, self.max_abs_, 1.0)
        return super().finalize(summary)

    def _affine(self) -> tuple[Any, Any]:
        return np.zeros_like(self.scale_), self.scale_


class MinMaxScaler(_Scaler):
    """Scaling of each column from its fitted range to `feature_range`; `clip` holds values outside to it.

    Parameters, `data_min_` and `data_max_` (C float64) are scikit-learn's. A constant column gets the low end.
    Raises: BadData for an infinity, a range that is one, or a column without a value.
    Memory: transform allocates n float32 per column on the device.

    Example:
        >>> import pandas as pd
        >>> MinMaxScaler().fit_transform(pd.DataFrame({"x": [2, 4, 3], "same": [7, 7, 7]})).values.tolist()
        [[0.0, 0.0], [1.0, 0.0], [0.5, 0.0]]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {"data_min_": "finite[C]", "data_max_": "finite[C]"}

    def __init__(self, feature_range: tuple[float, float] = (0, 1), *, clip: bool = False) -> None:
        check_pair(self, "(-inf, inf)", feature_range=feature_range)
        check_bool(self, clip=clip)
        self.feature_range, self.clip = feature_range, clip

    def summarize(self, columns: Columns, backend: Backend) -> Extremes:
        return Extremes.of(columns, backend, "MinMaxScaler")

    def finalize(self, summary: Extremes) -> Self:
        base.check_values(summary.names, summary.low <= summary.high, "MinMaxScaler")
        with np.errstate(over="ignore"):
            base.check_finite(summary.names, summary.high - summary.low, "MinMaxScaler")
        self.data_min_, self.data_max_ = summary.low, summary.high
        return super().finalize(summary)

    def _affine(self) -> tuple[Any, Any]:
        width = self.data_max_ - self.data_min_
        return self.data_min_, np.where(width > 0, width, 1.0)

    def _scale(self, offset: float, divisor: float) -> Scale:
        low, high = self.feature_range
        bounds = (low, high) if self.clip else (-np.inf, np.inf)
        return Scale(offset, divisor, high - low, low, *bounds)


class RobustScaler(_Scaler):
    """Robust scaling: each column less its median, divided by the distance of two quantiles, unless they are equal.

    Parameters and attributes are scikit-learn's. Quantiles are exact up to 65,536 distinct values of a column, and with
    `exact`, which keeps all while fitting, 16 bytes each on the host; else `relative_error_` says how far one may be
    off, relative to its value, C float64.

    `clip="smooth"` also computes z / sqrt(1 + (z / 3)^2) of each scaled value z (Holzmüller et al. 2024,
    arXiv:2407.04491): near 0 it changes little, and outliers approach -3 and 3. `inverse_transform` restores what
    float32 tells from 3: z up to about 7,500.
    Raises: BadData for an infinity, a range that is one, or a column without a value.
    Memory: transform allocates n float32 per column on the device; fitting sorts a column at a time there.

    Example:
        >>> import pandas as pd
        >>> RobustScaler().fit_transform(pd.DataFrame({"x": [1, 2, 3, 4, 1000]}))["x"].tolist()
        [-1.0, -0.5, 0.0, 0.5, 498.5]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {
        "center_": "finite[C]",
        "scale_": "positive[C]",
        "relative_error_": "finite[C]",
    }

    def __init__(
        self,
        *,
        with_centering: bool = True,
        with_scaling: bool = True,
        quantile_range: tuple[float, float] = (25.0, 75.0),
        unit_variance: bool = False,
        exact: bool = False,
        clip: Literal["smooth"] | None = None,
    ) -> None:
        check_bool(self, with_centering=with_centering, with_scaling=with_scaling)
        check_bool(self, unit_variance=unit_variance, exact=exact)
        check_choice(self, ("smooth", None), clip=clip)
        # A normal distribution has no value at its ends.
        check_pair(self, "[1e-9, 99.999999999]" if unit_variance else "[0, 100]", quantile_range=quantile_range)
        self.with_centering, self.with_scaling, self.quantile_range = with_centering, with_scaling, quantile_range
        self.unit_variance, self.exact, self.clip = unit_variance, exact, clip

    @property
    def summary_key(self) -> Hashable:  # type: ignore[override]
        return "quantiles", self.exact

    def summarize(self, columns: Columns, backend: Backend) -> Quantiles:
        return Quantiles.of(columns, backend, "RobustScaler", exact=self.exact)

    def finalize(self, summary: Quantiles) -> Self:
        base.check_values(summary.names, summary.totals, "RobustScaler")
        shares = np.array([self.quantile_range[0], 50.0, self.quantile_range[1]]) / 100
        lower, middle, upper = np.array([item.quantiles(shares) for item in summary.columns]).T
        with np.errstate(over="ignore"):
            width = upper - lower
        base.check_finite(summary.names, width, "RobustScaler")
        divisor = np.where(width > 0, width, 1.0)
        if self.unit_variance:
            normal = NormalDist()
            divisor = divisor / (normal.inv_cdf(shares[2]) - normal.inv_cdf(shares[0]))
        self.center_ = middle if self.with_centering else np.zeros_like(middle)
        self.scale_ = divisor if self.with_scaling else np.ones_like(divisor)
        self.relative_error_ = summary.relative_errors
        return super().finalize(summary)

    def transform_columns(self, columns: Columns, backend: Backend) -> Columns:
        if self.clip is None:
            return super().transform_columns(columns, backend)
        (offsets, divisors), xp = self._by_column(), backend.xp

        def clipped(name: str, block: Array) -> Array:
            scaled = (block - offsets[name]) / divisors[name]
            # An infinity stays one, and is refused; of it hypot would make a missing value.
            return xp.where(xp.isinf(scaled), scaled, scaled / xp.hypot(1.0, scaled / SMOOTH_LIMIT))

        return base.map_columns(columns, clipped, backend, "RobustScaler")

    def pointwise(self, name: str, dtype: str) -> ElementwiseProgram | None:
        return super().pointwise(name, dtype) if self.clip is None else None

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        if self.clip is None:
            return super().inverse_columns(columns, backend)
        (offsets, divisors), xp = self._by_column(), backend.xp
        largest = float(np.nextafter(np.float32(SMOOTH_LIMIT), np.float32(0)))

        def restored(name: str, block: Array) -> Array:
            clipped = xp.clip(block, -largest, largest)
            return clipped / xp.sqrt(1 - (clipped / SMOOTH_LIMIT) ** 2) * divisors[name] + offsets[name]

        return base.map_columns(columns, restored, backend, "RobustScaler.inverse_transform", "float64")

    def _affine(self) -> tuple[Any, Any]:
        return self.center_, self.scale_


class Log1p(base.FloatStep, base.StatelessStep):
    """Logarithm of 1 + each value; exact for small ones, inverted by `inverse_transform`.

    Raises: BadData for a value of -1 or below, which has no logarithm; in the inverse, for an infinite result.
    Memory: transform allocates n float32 per column on the device.

    Example:
        >>> import pandas as pd
        >>> Log1p().fit_transform(pd.DataFrame({"x": [0.0, None, 1.0]}))["x"].astype("float64").round(4).tolist()
        [0.0, nan, 0.6931]
    """

    def summarize(self, columns: Columns, backend: Backend) -> base.Types:
        _check(columns, backend)
        return super().summarize(columns, backend)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        _check(columns, backend)
        xp = backend.xp

        def logarithm(name: str, block: Array) -> Array:
            # Of an integer 1 + x is exact (beyond 2**53 as exact as x), and log takes two thirds of log1p's time.
            return xp.log1p(block) if columns[name].dtype in FLOATS else xp.log(block + 1.0)

        return base.map_columns(columns, logarithm, backend, "Log1p")

    def pointwise(self, name: str, dtype: str) -> ElementwiseProgram | None:
        return ElementwiseProgram(log=True)

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        where = "Log1p.inverse_transform"
        return base.map_columns(columns, lambda _, block: backend.xp.expm1(block), backend, where, "float64")


def _check(columns: Columns, backend: Backend) -> None:
    """Raise `BadData` for the first column with a value that has no logarithm."""
    for name, column in columns.items():
        low = column.data <= -1.0 if column.dtype in FLOATS else column.data < 0
        if column.valid is not None:
            low &= column.valid
        if base.any_true([low.any()], backend):
            where, problem = f"Log1p, column {name!r}", f"{int(low.sum()):,} values of -1 or below have no logarithm"
            got, expected = float(backend.to_host(column.data[low][:1])[0]), "numbers above -1"
            remedy = "Derive with 'clip(...)' before it, or PowerTransformer(), which takes any number"
            raise BadData(where, problem, got=got, expected=expected, remedy=remedy)


class Normalizer(base.StatelessStep):
    """Normalization: each row, over the columns of the step, divided by its norm; a row of zeros does not change.

    `norm` is `"l2"` (the root of the sum of squares), `"l1"` (the sum of absolute values) or `"max"` (the largest).
    Unlike scikit-learn's, it is right for rows whose squares are no floats, and for norms below 2e-15.
    Raises: BadData for a missing value or an infinity, in `transform`.
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
        origins: Origins = frozenset().union(*(item.origins for item in fields))
        outputs = base.float32_fields(fields, "Normalizer")
        return [replace(item, nullable=False, lineage=lineage, origins=origins) for item in outputs]

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

        return base.float32_rows(columns, list(columns), normalised, backend, "Normalizer")


# By size, signed before unsigned.
_SMALLEST = sorted(INTEGERS, key=lambda dtype: (np.dtype(dtype).itemsize, dtype.startswith("u")))


@dataclass(frozen=True)
class _Ranges:
    """Summary of the values that columns have to represent: their range, and how many values float32 would round."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    low: Any
    high: Any
    rounded: Any

    def __add__(self, other: Self) -> Self:
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return replace(self, low=low, high=high, rounded=self.rounded + other.rounded)


class Downcast(base.LearnedStep):
    """Downcasting of numbers to the smallest type that holds every value of `fit`; values never change.

    An integer column becomes the smallest integer type its range fits (signed, where two are of one size), a float64
    column float32 where that is exact for all values. Booleans, and columns without a value, stay. `dtypes_` are the
    types, one per column.
    Raises: SchemaMismatch for a column without numbers; `transform` BadData for a value that the type cannot hold.
    Memory: one new column per column that changes, and as much while values are checked.

    Example:
        >>> import pandas as pd
        >>> Downcast().fit(pd.DataFrame({"day": [1, 31], "pixel": [0, 255], "half": [0.5, None]})).dtypes_
        ['int8', 'uint8', 'float32']
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {"dtypes_": "dtype[C]"}
    keeps_units = True
    monotone = True

    def summarize(self, columns: Columns, backend: Backend) -> _Ranges:
        table = base.tabulate(columns, _range, 3, backend)
        low, high = table[..., 0].min(axis=0, initial=np.inf), table[..., 1].max(axis=0, initial=-np.inf)
        dtypes = tuple(column.dtype for column in columns.values())
        return _Ranges(tuple(columns), dtypes, low, high, table[..., 2].sum(axis=0))

    def finalize(self, summary: _Ranges) -> Self:
        self.dtypes_ = list(map(_smallest, summary.dtypes, summary.low, summary.high, summary.rounded))
        return super().finalize(summary)

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        """Return the fields with the learned types; before `fit`, with their own."""
        base.check_numeric(fields, "Downcast")
        learned = dict(zip(self.names_in_, self.dtypes_, strict=True)) if self.is_fitted else {}
        return [replace(item, dtype=learned.get(item.name, item.dtype)) for item in fields]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        outputs = {}
        for name, dtype in zip(self.names_in_, self.dtypes_, strict=True):
            try:
                outputs[name] = cast_column(columns[name], dtype, name, backend, exact=True)
            except BadData as error:
                problem = f"a value does not fit {dtype}, which held every value of fit"
                remedy, expected = f"fit on more rows, or leave {name!r} out", "values like those it was fitted on"
                raise BadData(
                    f"Downcast, column {name!r}", problem, got=error.got, expected=expected, remedy=remedy
                ) from None
        return outputs


def _range(block: Array, xp: ModuleType) -> tuple[Any, Any, Any]:
    """Return the least and largest value of a block of one column, and the count of values float32 would round."""
    missing = xp.isnan(block)
    rounded = (block.astype("float32").astype("float64") != block) & ~missing
    return xp.where(missing, xp.inf, block).min(), xp.where(missing, -xp.inf, block).max(), xp.count_nonzero(rounded)


def _smallest(dtype: str, low: float, high: float, rounded: float) -> str:
    if low > high or dtype == "bool":
        return dtype
    if dtype in FLOATS:
        return dtype if rounded else "float32"
    fitting = (name for name in _SMALLEST if np.iinfo(name).min <= low and high <= np.iinfo(name).max)
    smallest = next(fitting, dtype)
    return smallest if np.dtype(smallest).itemsize < np.dtype(dtype).itemsize else dtype
