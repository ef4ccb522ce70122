"""Steps of single columns of numbers: missing values filled, scaled, binned, or stored in smaller types."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist
from types import ModuleType
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Matrix
from gpupipe.backend.cast import cast_column
from gpupipe.backend.columns import floats
from gpupipe.backend.dictionaries import Dictionary, find_positions, strings, unite_dictionaries
from gpupipe.backend.kernels import ElementwiseProgram, Scale, fill_into, scale_each, scale_into
from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.preprocessing import learned_step as base
from gpupipe.preprocessing.categories import FIRST, MISSING, get_given, make_id_field, make_number_field
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.summaries import MAX_BINS, CategoryCounts, Extremes, Histogram, Moments, Quantiles
from gpupipe.schema import FLOATS, INTEGERS, LISTS, Field
from gpupipe.support.validation import (
    check_bool,
    check_choice,
    check_pair,
    is_bool,
    is_integer,
    is_number,
    is_sequence,
    refuse_argument,
)


class SimpleImputer(base.LearnedStep):
    """Imputation by the column's mean, median or most frequent (then smallest) value, or by a constant.

    Mean and median are for numbers and booleans and give float64 (float32 stays); the others keep the type and work on
    strings too. The median is exact up to 65,536 distinct values of a column, with `exact` always, and else within the
    error `RobustScaler` states. `statistics_` are the values filled in, by column name.

    Args:
        strategy: `"mean"`, `"median"`, `"most_frequent"` or `"constant"`.
        fill_value: the constant; by default 0 (False) for numbers and `"missing_value"` for strings.
        add_indicator: add a boolean column `<name>_missing` for each column, true where a value was missing.
        exact: for the median, keep every distinct value while fitting, at 16 bytes each.

    Raises: BadConfig for a constant that a column's type cannot hold; BadData for an infinity, or no value to learn
    from.
    Memory: transform allocates the output on the device; complete columns that keep their type are shared.

    Example:
        >>> import pandas as pd
        >>> SimpleImputer().fit_transform(pd.DataFrame({"temp": [10.0, None, 20.0]}))["temp"].tolist()
        [10.0, 15.0, 20.0]
    """

    keeps_units = True
    monotone = True
    learned_by_name = ("statistics_",)

    def __init__(
        self, strategy: str = "mean", *, fill_value: Any = None, add_indicator: bool = False, exact: bool = False
    ) -> None:
        check_choice(self, ("mean", "median", "most_frequent", "constant"), strategy=strategy)
        check_bool(self, add_indicator=add_indicator, exact=exact)
        if not (fill_value is None or isinstance(fill_value, str) or is_bool(fill_value) or is_number(fill_value)):
            raise refuse_argument(self, "fill_value", fill_value, "a number, a boolean, text or None")
        self.strategy, self.fill_value, self.add_indicator, self.exact = strategy, fill_value, add_indicator, exact

    @property
    def _averages(self) -> bool:
        return self.strategy in ("mean", "median")

    @property
    def allocates(self) -> bool:  # type: ignore[override]
        return self._averages  # other columns are shared where nothing is missing

    @property
    def summary_key(self) -> Hashable:  # type: ignore[override]
        return {"mean": "moments", "median": ("quantiles", self.exact)}.get(self.strategy)

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        checked = [item for item in fields if self._averages or item.dtype in ("timestamp", *LISTS)]
        remedy = "SimpleImputer('most_frequent') for strings; Categorify() needs none, and has an id for missing ones"
        base.check_numeric(checked, f"SimpleImputer({self.strategy!r})", remedy)
        for item in fields if self.strategy == "constant" else ():
            self._constant(item.name, item.dtype)
        made = [replace(item, dtype=self._filled_dtype(item.dtype), nullable=False) for item in fields]
        flags = fields if self.add_indicator else ()
        return made + [make_number_field(item, f"{item.name}_missing", "bool") for item in flags]

    def _filled_dtype(self, dtype: str) -> str:
        return "float64" if self._averages and dtype not in FLOATS else dtype

    def output_names(self, names: Sequence[str]) -> list[str]:
        return [*names, *(f"{name}_missing" for name in names if self.add_indicator)]

    def summarize(self, columns: Columns, backend: Backend) -> Moments | Quantiles | CategoryCounts | base.Types:
        where = f"SimpleImputer({self.strategy!r})"
        if self.strategy == "mean":
            return Moments.of(columns, backend, where)
        if self.strategy == "median":
            return Quantiles.of(columns, backend, where, exact=self.exact)
        if self.strategy == "most_frequent":
            return CategoryCounts.of(columns, backend, where)
        return base.Types({name: column.dtype for name, column in columns.items()})

    def finalize(self, summary: Moments | Quantiles | CategoryCounts | base.Types) -> Self:
        if isinstance(summary, base.Types):
            learned = {name: self._constant(name, dtype) for name, dtype in summary.items()}
        elif isinstance(summary, Moments):
            numbers = zip(summary.names, summary.mean.tolist(), summary.count, strict=True)
            learned = {name: mean if count else None for name, mean, count in numbers}
        elif isinstance(summary, Quantiles):
            pairs = zip(summary.names, summary.columns, strict=True)
            learned = {name: float(item.quantiles(0.5)) if item.total else None for name, item in pairs}
        else:
            learned = {name: item.most_frequent() for name, item in zip(summary.names, summary.columns, strict=True)}
        for name in (name for name, value in learned.items() if value is None):
            problem = f"it has no value to take the {self.strategy.replace('_', ' ')} of"
            base.refuse_empty(name, "SimpleImputer", problem, "strategy='constant', or leave the column out")
        self.statistics_, self.names_in_ = learned, list(learned)
        return self

    def transform_columns(self, columns: Columns, backend: Backend) -> Columns:
        infinite: list[Array] = []
        fills = self._fills(columns)
        if isinstance(columns, Matrix) and not self.add_indicator:
            out, instead = np.empty(columns.data.shape, dtype=columns.dtype), np.array([*fills.values()])
            for rows, places in base.matrix_pieces(columns, backend):
                infinite.append(fill_into(out[places, rows], columns.data[places, rows], instead[places], np))
            if any(infinite):
                base.refuse(columns, backend, "SimpleImputer")
            return Matrix(columns.names, out)
        made = {name: self._filled(column, fills[name], backend, infinite) for name, column in columns.items()}
        if base.any_true(infinite, backend):
            numbers = {name: item for name, item in columns.items() if item.dtype in FLOATS}
            base.refuse(numbers, backend, "SimpleImputer")
        if self.add_indicator:
            for name, column in columns.items():
                missing = column.missing(backend.xp)
                data = backend.xp.zeros(len(column), dtype=bool) if missing is None else missing
                made[f"{name}_missing"] = Column("bool", data)
        return made

    def pointwise(self, name: str, dtype: str) -> ElementwiseProgram | None:
        value = self.statistics_[name]
        if self.add_indicator or isinstance(value, str):
            return None
        fill = float(np.float32(value) if dtype == "float32" else value)
        return ElementwiseProgram(fill=fill, dtype=self._filled_dtype(dtype))

    def _fills(self, columns: Columns) -> dict[str, Any]:
        """Return the fill values; a constant is known before `fit` has read the rows."""
        if self.strategy == "constant":
            return {name: self._constant(name, column.dtype) for name, column in columns.items()}
        return {name: self.statistics_[name] for name in columns}

    def _filled(self, column: Column, value: Any, backend: Backend, infinite: list[Array]) -> Column:
        """Fill the column with `value`; whether a block holds an infinity is added to `infinite`."""
        xp = backend.xp
        if column.dictionary is not None:
            return _fill_strings(column, column.dictionary, value, backend)
        if column.dtype in FLOATS:
            out = xp.empty_like(column.data)
            infinite += [
                xp.asarray(fill_into(out[rows], column.data[rows], value, xp))
                for rows in base.row_blocks(len(column), backend, looped=True)
            ]
            return Column(column.dtype, out)
        data = column.data.astype(xp.float64) if self._averages else column.data
        filled = data if column.valid is None else xp.where(column.valid, data, data.dtype.type(value))
        return Column(self._filled_dtype(column.dtype), filled)

    def _constant(self, name: str, dtype: str) -> Any:
        """Return the constant as a value of a column's type."""
        value = self.fill_value
        if value is None:
            return "missing_value" if dtype == "string" else np.dtype(dtype).type(0).item()
        is_number = isinstance(value, bool | int | float | np.number | np.bool_)
        if not (isinstance(value, str) if dtype == "string" else is_number and base.fits(dtype, value)):
            where, problem = f"SimpleImputer, column {name!r}", f"fill_value does not fit {dtype}"
            remedy = f"another fill_value, or Cast({{{name!r}: ...}}) before it"
            raise BadConfig(where, problem, got=value, expected=f"a value {dtype} can hold", remedy=remedy)
        kinds: dict[str, type] = {"string": str, "bool": bool, "float32": float, "float64": float}
        return kinds.get(dtype, int)(value)


def _fill_strings(column: Column, dictionary: Dictionary, value: Any, backend: Backend) -> Column:
    """Replace missing codes by the value's code, a new one where the dictionary does not have it."""
    xp = backend.xp
    if not isinstance(value, str):
        problem, expected = "a column of strings, fitted on numbers", "the types it was fitted on"
        raise SchemaMismatch("SimpleImputer", problem, got=value, expected=expected, remedy="fit again")
    code = int(find_positions(strings([value]), dictionary)[0])
    if code < 0:
        code, dictionary = len(dictionary), unite_dictionaries([dictionary, strings([value])])
    codes = column.data.astype(np.promote_types(column.data.dtype, np.min_scalar_type(-code - 1)), copy=False)
    return Column("string", xp.where(codes < 0, codes.dtype.type(code), codes), None, dictionary)


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
            first, second = (np.array([known[name] for name in columns]) for known in (offsets, divisors))
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
        place = self.names_in_.index(name)
        return ElementwiseProgram(scale=self._scale(float(offsets[place]), float(divisors[place])))

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        (offsets, divisors), by = self._by_column(), self._scale(0.0, 1.0)

        def restored(name: str, block: Array) -> Array:
            number = (block - by.shift) / by.multiplier if by.moves else block
            return number * divisors[name] + offsets[name]

        return base.map_columns(columns, restored, backend, f"{type(self).__name__}.inverse_transform", "float64")

    def _by_column(self) -> tuple[dict[str, float], dict[str, float]]:
        offsets, divisors = (dict(zip(self.names_in_, found.tolist(), strict=True)) for found in self._affine())
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

    Parameters and attributes are scikit-learn's. A constant column gets the low end.
    Raises: BadData for an infinity, a range that is one, or a column without a value.
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
        held = (low, high) if self.clip else (-np.inf, np.inf)
        return Scale(offset, divisor, high - low, low, *held)


class RobustScaler(_Scaler):
    """Robust scaling: each column less its median, divided by the distance of two quantiles, unless they are equal.

    Parameters and attributes are scikit-learn's. Quantiles are exact up to 65,536 distinct values of a column, and with
    `exact`, which keeps all while fitting, 16 bytes each on the host; else `relative_error_` says how far one may be
    off, relative to its value, C float64.
    Raises: BadData for an infinity, a range that is one, or a column without a value.
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
        if self.unit_variance:
            normal = NormalDist()
            width = width / (normal.inv_cdf(shares[2]) - normal.inv_cdf(shares[0]))
        self.center_ = middle if self.with_centering else np.zeros_like(middle)
        self.scale_ = np.where((width > 0) & self.with_scaling, width, 1.0)
        self.relative_error_ = summary.relative_errors
        return super().finalize(summary)

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
        return base.map_columns(columns, lambda _, block: backend.xp.log1p(block), backend, "Log1p")

    def pointwise(self, name: str, dtype: str) -> ElementwiseProgram | None:
        return ElementwiseProgram(log=True)

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        where = "Log1p.inverse_transform"
        return base.map_columns(columns, lambda _, block: backend.xp.expm1(block), backend, where, "float64")


def _check(columns: Columns, backend: Backend) -> None:
    """Raise `BadData` for the first column with a value that has no logarithm."""
    for name, column in columns.items():
        values = floats(column, backend.xp)
        low = values <= -1.0
        if base.any_true([low.any()], backend):
            where, problem = f"Log1p, column {name!r}", f"{int(low.sum()):,} values of -1 or below have no logarithm"
            got, expected = float(backend.to_host(values[low][:1])[0]), "numbers above -1"
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
        return [replace(item, nullable=False, lineage=lineage) for item in base.float32_fields(fields, "Normalizer")]

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


_NARROWEST = 1e-8  # narrower bins, of quantiles that (nearly) coincide, are left out; as scikit-learn has it


class Bucketize(base.StatelessStep):
    """Binning by given `edges`, rising numbers for all columns or by column name: numbers become categorical bin ids.

    Ids are 0 for missing, 1 never, 2 and up the bins by `numpy.digitize`, with its `right`: k edges make k + 1 bins,
    the outer ones with the infinities. Raises ColumnNotFound for a column without edges.
    Memory: transform allocates n int32 per column on the device, and one float64 block at a time.

    Example:
        >>> import pandas as pd
        >>> Bucketize([0, 10]).fit_transform(pd.DataFrame({"x": [-1, 0, 10, None]}))["x"].tolist()
        [2, 3, 4, 0]
    """

    def __init__(self, edges: Sequence[float] | Mapping[str, Sequence[float]], *, right: bool = False) -> None:
        for given in edges.values() if isinstance(edges, Mapping) else [edges]:
            numbers = list(given) if is_sequence(given) else []
            if not numbers or not all(map(is_number, numbers)) or not all(a < b for a, b in pairwise(numbers)):
                expected = "numbers, each larger than the one before, or a mapping from columns to such"
                raise refuse_argument(self, "edges", edges, expected, "edges=[0, 10, 100]")
        check_bool(self, right=right)
        self.edges, self.right = edges, right

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        base.check_numeric(fields, "Bucketize")
        return [make_id_field(item, len(self._edges_of(item.name)) + 1 + FIRST) for item in fields]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        side = "left" if self.right else "right"
        return {name: _assign_bins(column, self._edges_of(name), backend, side) for name, column in columns.items()}

    def _edges_of(self, name: str) -> Any:
        return np.asarray(get_given(self.edges, name, "Bucketize(edges=...)"), dtype=np.float64)


class KBinsDiscretizer(base.Invertible):
    """Binning by learned edges: of equal width, of equal counts, or around 1-D k-means centres.

    Attributes and other parameters are scikit-learn's; there are no sparse matrices. The outer bins hold all values
    outside; bins of (nearly) no width are left out. Quantiles and centres are of all rows (scikit-learn's of a sample
    of 200,000), `exact` and their error those of `RobustScaler`.

    Args:
        n_bins: at least 2; for all columns, or one number per column.
        encode: `"ordinal"` gives a categorical with ids 0 for missing, 1 never, 2 and up scikit-learn's number of the
            bin; `"onehot-dense"` a float32 column `<name>_<bin>` per bin, all 0 where the value is missing.
        strategy: `"quantile"`, `"uniform"` or `"kmeans"`.
        quantile_method: between two values, as in `numpy.quantile`: `"averaged_inverted_cdf"` or `"linear"`.

    Raises: BadData for an infinity in `fit`, or a column without a value.
    Memory: transform allocates n int32 per column (n float32 per bin) on the device; fitting sorts a column there.

    Example:
        >>> import pandas as pd
        >>> KBinsDiscretizer(2, strategy="uniform").fit_transform(pd.DataFrame({"x": [0, 4, 5, None, 9]}))["x"].tolist()
        [2, 2, 3, 0, 3]
    """

    fills_late = True

    def __init__(
        self,
        n_bins: int | Sequence[int] = 5,
        *,
        encode: str = "ordinal",
        strategy: str = "quantile",
        quantile_method: str = "averaged_inverted_cdf",
        exact: bool = False,
    ) -> None:
        numbers: Any = n_bins if is_sequence(n_bins) else [n_bins]
        for number in numbers:
            if not is_integer(number, 2, MAX_BINS):
                raise refuse_argument(self, "n_bins", n_bins, f"an integer in [2, {MAX_BINS}], or one per column")
        check_choice(self, ("ordinal", "onehot-dense"), encode=encode)
        check_choice(self, ("quantile", "uniform", "kmeans"), strategy=strategy)
        check_choice(self, ("averaged_inverted_cdf", "linear"), quantile_method=quantile_method)
        check_bool(self, exact=exact)
        self.n_bins, self.encode, self.strategy = n_bins, encode, strategy
        self.quantile_method, self.exact = quantile_method, exact

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        base.check_numeric(fields, "KBinsDiscretizer")
        wanted = self._wanted(len(fields))
        if self.encode == "ordinal":
            sizes = (self.n_bins_ + FIRST).tolist() if self.is_fitted else [None] * len(fields)
            return [make_id_field(item, size) for item, size in zip(fields, sizes, strict=True)]
        sizes = self.n_bins_ if self.is_fitted else wanted
        pairs = zip(fields, sizes, strict=True)
        return [make_number_field(item, f"{item.name}_{place}") for item, size in pairs for place in range(size)]

    def output_names(self, names: Sequence[str]) -> list[str]:
        if self.encode == "ordinal":
            return list(names)
        sizes = self.n_bins_ if self.is_fitted else self._wanted(len(names))
        return [f"{name}_{place}" for name, size in zip(names, sizes, strict=True) for place in range(size)]

    def _wanted(self, num_columns: int) -> list[int]:
        given = [self.n_bins] * num_columns if isinstance(self.n_bins, int | np.integer) else list(self.n_bins)
        if len(given) != num_columns:
            raise refuse_argument(self, "n_bins", self.n_bins, f"an integer, or {num_columns} of them, one per column")
        return given

    def summarize(self, columns: Columns, backend: Backend) -> Extremes | Quantiles:
        if self.strategy == "uniform":
            return Extremes.of(columns, backend, "KBinsDiscretizer")
        return Quantiles.of(columns, backend, "KBinsDiscretizer", exact=self.exact)

    def finalize(self, summary: Extremes | Quantiles) -> Self:
        names, wanted = summary.names, self._wanted(len(summary.names))
        if isinstance(summary, Extremes):
            base.check_values(names, summary.low <= summary.high, "KBinsDiscretizer")
            ranges = np.stack([summary.low, summary.high], axis=1)
        else:
            base.check_values(names, summary.totals, "KBinsDiscretizer")
            ranges = np.stack([item.values[[0, -1]] for item in summary.columns])
        with np.errstate(over="ignore"):
            base.check_finite(names, ranges[:, 1] - ranges[:, 0], "KBinsDiscretizer")
        histograms = [None] * len(names) if isinstance(summary, Extremes) else summary.columns
        self.bin_edges_ = [self._edges(*item) for item in zip(ranges, wanted, histograms, strict=True)]
        self.n_bins_ = np.array([len(edges) - 1 for edges in self.bin_edges_])
        return super().finalize(summary)

    def _edges(self, ends: Any, size: int, histogram: Histogram | None) -> Any:
        low, high = ends
        if low == high:
            return np.array([low, high])
        if histogram is None:
            return np.linspace(low, high, size + 1)
        if self.strategy == "quantile":
            edges = histogram.quantiles(np.linspace(0, 100, size + 1) / 100, self.quantile_method)
        else:
            centres = np.sort(cluster_sorted_values(histogram.values, histogram.counts, size))
            edges = np.concatenate([[low], (centres[1:] + centres[:-1]) / 2, [high]])
        return edges[np.diff(edges, prepend=-np.inf) > _NARROWEST * min(1.0, high - low)]

    def get_state(self) -> dict[str, Any]:
        self.check_fitted()
        return {"names_in_": self.names_in_, "n_bins_": self.n_bins_, "edges": np.concatenate(self.bin_edges_)}

    def set_state(self, state: Mapping[str, Any]) -> Self:
        self.names_in_, self.n_bins_ = list(state["names_in_"]), state["n_bins_"]
        self.bin_edges_ = np.split(state["edges"], np.cumsum(self.n_bins_ + 1)[:-1])
        return self

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, edges = backend.xp, dict(zip(self.names_in_, self.bin_edges_, strict=True))
        ids = {name: _assign_bins(column, edges[name][1:-1], backend, "right") for name, column in columns.items()}
        if self.encode == "ordinal":
            return ids
        return {
            f"{name}_{place}": Column("float32", (column.data == place + FIRST).astype(xp.float32))
            for name, column in ids.items()
            for place in range(len(edges[name]) - 1)
        }

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """Return the middle of each value's bin; missing where the id is 0, 1 or not a bin's."""
        xp, made = backend.xp, {}
        for name, edges in zip(self.names_in_, self.bin_edges_, strict=True):
            middles = np.append(edges[1:] / 2 + edges[:-1] / 2, np.nan)
            size = len(edges) - 1
            if self.encode == "ordinal":
                place = columns[name].data.astype("int64") - FIRST
            else:
                flags = xp.stack([columns[f"{name}_{place}"].data for place in range(size)])
                place = xp.where(flags.max(axis=0) > 0, flags.argmax(axis=0), size)
            place = xp.where((place >= 0) & (place < size), place, size)
            made[name] = Column("float32", backend.to_device(middles.astype("float32"))[place])
        return made


def _assign_bins(column: Column, edges: Any, backend: Backend, side: str) -> Column:
    """Return n int32: 0 missing, and the bins from 2 up."""
    xp = backend.xp
    known, out = backend.to_device(edges), xp.empty(len(column), dtype="int32")
    for rows in base.row_blocks(len(column), backend):
        block: Array = floats(column.take(rows), xp)
        out[rows] = xp.where(xp.isnan(block), MISSING, xp.searchsorted(known, block, side=side) + FIRST)
    return Column("int32", out)


def cluster_sorted_values(values: Any, counts: Any, k: int) -> Any:
    """Return the centres where Lloyd's iterations end, started from the middles of k bins of equal width.

    They stop, and a centre that has lost all its values is moved, as in scikit-learn's `KMeans`; ties, which there are
    decided by rounding, are decided for the lower value or centre, and a centre's only value is not taken away. Values
    are ascending and not all equal, each with its count; an iteration takes time that grows with k, not with them.
    """
    low, width = values[0], values[-1] - values[0]
    unit = (values - low) / width
    weights = np.concatenate([[0.0], np.cumsum(counts, dtype=np.float64)])
    sums = np.concatenate([[0.0], np.cumsum(unit * counts)])
    tolerance = 1e-4 * (np.square(unit - sums[-1] / weights[-1]) * counts).sum() / weights[-1]
    centres, seen = (np.arange(k) + 0.5) / k, None
    for _ in range(300):
        order = np.argsort(centres, kind="stable")
        ascending = centres[order]
        borders = np.searchsorted(unit, (ascending[1:] + ascending[:-1]) / 2, side="right")
        if seen is not None and np.array_equal(borders, seen):
            break
        ends = np.concatenate([[0], borders, [len(unit)]])
        weight, total = np.diff(weights[ends]), np.diff(sums[ends])
        empty = np.flatnonzero(weight == 0)
        if len(empty):  # each moves to the row farthest from its own centre
            owner = np.repeat(np.arange(k), np.diff(ends))
            distance = np.where(weight[owner] > 1, np.abs(unit - ascending[owner]).round(12), -1.0)
            farthest = np.argsort(-distance, kind="stable")[: len(empty)]
            rows = np.repeat(farthest, np.minimum(counts[farthest], len(empty)))[: len(empty)]
            for place, row in zip(empty, rows, strict=True):
                weight[owner[row]] -= 1
                total[owner[row]] -= unit[row]
                weight[place], total[place] = 1.0, unit[row]
        moved = centres.copy()
        moved[order] = np.where(weight > 0, total / np.maximum(weight, 1), ascending)
        shift = np.square(moved - centres).sum()
        centres, seen = moved, borders
        if shift <= tolerance:
            break
    return low + width * centres


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
        made = {}
        for name, dtype in zip(self.names_in_, self.dtypes_, strict=True):
            try:
                made[name] = cast_column(columns[name], dtype, name, backend, exact=True)
            except BadData as error:
                where, problem = f"Downcast, column {name!r}", f"a value does not fit {dtype}, which held all of fit"
                remedy, expected = f"fit on more rows, or leave {name!r} out", "values like those it was fitted on"
                raise BadData(where, problem, got=error.got, expected=expected, remedy=remedy) from None
        return made


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
    fitting = (one for one in _SMALLEST if np.iinfo(one).min <= low and high <= np.iinfo(one).max)
    found = next(fitting, dtype)
    return found if np.dtype(found).itemsize < np.dtype(dtype).itemsize else dtype
