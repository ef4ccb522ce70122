"""Imputation of missing values by one value for each column."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Matrix
from gpupipe.backend.dictionaries import Dictionary, find_positions, strings, unite_dictionaries
from gpupipe.backend.kernels import ElementwiseProgram, fill_into
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.preprocessing.categories import make_number_field
from gpupipe.preprocessing.learned_step import (
    Columns,
    LearnedStep,
    Types,
    any_true,
    check_numeric,
    fill_matrix,
    fits,
    refuse,
    refuse_empty,
    row_blocks,
)
from gpupipe.preprocessing.summaries import CategoryCounts, Moments, Quantiles, ValueCounts
from gpupipe.schema import FLOATS, LISTS, Field
from gpupipe.support.validation import check_bool, check_choice, is_bool, is_number, refuse_argument


class SimpleImputer(LearnedStep):
    """Imputation by the column's mean, median or most frequent (then smallest) value, or by a constant.

    Mean and median are for numbers and booleans and give float64 (float32 stays); the others keep the type and work on
    strings too. The median is exact up to 65,536 distinct values of a column, with `exact` always, and else within the
    error `RobustScaler` states. `statistics_` are the values filled in, by column name.

    Args:
        strategy: `"mean"`, `"median"`, `"most_frequent"` or `"constant"`.
        fill_value: the constant; by default 0 (False) for numbers and `"missing_value"` for strings.
        add_indicator: add a boolean column `<name>_missing` for each column, true where a value was missing.
        exact: for the median, keep every distinct value while fitting, at 16 bytes each.

    Raises:
        BadConfig: a constant that a column's type cannot hold.
        BadData: an infinity, or no value to take a statistic of.

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
    def allocates(self) -> bool:  # type: ignore[override]
        """Whether columns are copied: numbers are where averaged; others are shared where nothing is missing."""
        return self.strategy in ("mean", "median")

    @property
    def summary_key(self) -> Hashable:  # type: ignore[override]
        """The key of the moments or the quantiles it learns from."""
        return {"mean": "moments", "median": ("quantiles", self.exact)}.get(self.strategy)

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        averaged = self.strategy in ("mean", "median")
        check_numeric(
            [item for item in fields if averaged or item.dtype in ("timestamp", *LISTS)],
            f"SimpleImputer({self.strategy!r})",
            "SimpleImputer('most_frequent') for strings; Categorify() needs none, and has an id for missing ones",
        )
        filled = []
        for item in fields:
            if self.strategy == "constant":
                self._constant(item.name, item.dtype)
            dtype = "float64" if averaged and item.dtype not in FLOATS else item.dtype
            filled.append(replace(item, dtype=dtype, nullable=False))
        if not self.add_indicator:
            return filled
        return filled + [make_number_field(item, _flag_name(item.name), "bool") for item in fields]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return [*names, *map(_flag_name, names)] if self.add_indicator else list(names)

    def summarize(self, columns: Columns, backend: Backend) -> Moments | Quantiles | CategoryCounts | Types:
        where = f"SimpleImputer({self.strategy!r})"
        if self.strategy == "mean":
            return Moments.of(columns, backend, where)
        if self.strategy == "median":
            return Quantiles.of(columns, backend, where, exact=self.exact)
        if self.strategy == "most_frequent":
            return CategoryCounts.of(columns, backend, where)
        return Types({name: column.dtype for name, column in columns.items()})

    def finalize(self, summary: Moments | Quantiles | CategoryCounts | Types) -> Self:
        if isinstance(summary, Types):
            learned = {name: self._constant(name, dtype) for name, dtype in summary.items()}
        elif isinstance(summary, Moments):
            numbers = zip(summary.names, summary.mean.tolist(), summary.count, strict=True)
            learned = {name: mean if count else None for name, mean, count in numbers}
        elif isinstance(summary, Quantiles):
            pairs = zip(summary.names, summary.columns, strict=True)
            learned = {name: float(item.quantiles(0.5)) if item.total else None for name, item in pairs}
        else:
            learned = {name: _most_frequent(item) for name, item in zip(summary.names, summary.columns, strict=True)}
        for name in (name for name, value in learned.items() if value is None):
            problem = f"it has no value to take the {self.strategy.replace('_', ' ')} of"
            refuse_empty(name, "SimpleImputer", problem, "strategy='constant', or leave the column out")
        self.statistics_, self.names_in_ = learned, list(learned)
        return self

    def transform_columns(self, columns: Columns, backend: Backend) -> Columns:
        if isinstance(columns, Matrix) and not self.add_indicator:
            return fill_matrix(columns, np.array([*self._fills(columns).values()]), backend, "SimpleImputer")
        infinite: list[Array] = []
        fills = self._fills(columns)
        made = {name: self._filled(column, fills[name], backend, infinite) for name, column in columns.items()}
        if any_true(infinite, backend):
            refuse({name: item for name, item in columns.items() if item.dtype in FLOATS}, backend, "SimpleImputer")
        if self.add_indicator:
            for name, column in columns.items():
                missing = column.missing(backend.xp)
                data = backend.xp.zeros(len(column), dtype=bool) if missing is None else missing
                made[_flag_name(name)] = Column("bool", data)
        return made

    def pointwise(self, name: str, dtype: str) -> ElementwiseProgram | None:
        value = self.statistics_[name]
        if self.add_indicator or isinstance(value, str):
            return None
        averaged = self.strategy in ("mean", "median") and dtype not in FLOATS
        fill = float(np.float32(value) if dtype == "float32" else value)
        return ElementwiseProgram(fill=fill, dtype="float64" if averaged else dtype)

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
                for rows in row_blocks(len(column), backend, looped=True)
            ]
            return Column(column.dtype, out)
        if self.strategy in ("mean", "median"):
            data = column.data.astype(xp.float64)
            return Column("float64", data if column.valid is None else xp.where(column.valid, data, value))
        if column.valid is None:
            return Column(column.dtype, column.data)
        return Column(column.dtype, xp.where(column.valid, column.data, column.data.dtype.type(value)))

    def _constant(self, name: str, dtype: str) -> Any:
        """Return the constant as a value of a column's type."""
        value = self.fill_value
        if value is None:
            return "missing_value" if dtype == "string" else np.dtype(dtype).type(0).item()
        is_number = isinstance(value, bool | int | float | np.number | np.bool_)
        if not (isinstance(value, str) if dtype == "string" else is_number and fits(dtype, value)):
            where, problem = f"SimpleImputer, column {name!r}", f"fill_value does not fit {dtype}"
            remedy = f"another fill_value, or Cast({{{name!r}: ...}}) before it"
            raise BadConfig(where, problem, got=value, expected=f"a value {dtype} can hold", remedy=remedy)
        kinds: dict[str, type] = {"string": str, "bool": bool, "float32": float, "float64": float}
        return kinds.get(dtype, int)(value)


def _flag_name(name: str) -> str:
    return f"{name}_missing"


def _most_frequent(counts: ValueCounts) -> Any:
    """Return the first value by rank; None where there is no value."""
    values, _ = counts.ranked()
    if not len(values):
        return None
    return bool(values[0].as_py()) if counts.dtype == "bool" else values[0].as_py()


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
