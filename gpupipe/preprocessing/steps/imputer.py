"""Imputation of missing values by a statistic of the column, or by a constant."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Matrix
from gpupipe.backend.dictionaries import Dictionary, find_positions, strings, unite_dictionaries
from gpupipe.backend.kernels import ElementwiseProgram, fill_into
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.preprocessing import learned_step as base
from gpupipe.preprocessing.categories import make_number_field
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.summaries import CategoryCounts, Moments, Quantiles
from gpupipe.schema import FLOATS, LISTS, Field
from gpupipe.support.validation import check_bool, check_choice, is_bool, is_number, refuse_argument


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
        for item in fields if self.is_fitted and self.strategy != "constant" else ():
            self._check_statistic(item.name, item.dtype)
        filled = [item.replace(dtype=self._filled_dtype(item.dtype), nullable=False) for item in fields]
        flags = fields if self.add_indicator else ()
        return filled + [make_number_field(item, f"{item.name}_missing", "bool") for item in flags]

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
        outputs = {name: self._filled(column, fills[name], backend, infinite) for name, column in columns.items()}
        if base.any_true(infinite, backend):
            numbers = {name: item for name, item in columns.items() if item.dtype in FLOATS}
            base.refuse(numbers, backend, "SimpleImputer")
        if self.add_indicator:
            for name, column in columns.items():
                missing = column.missing(backend.xp)
                data = backend.xp.zeros(len(column), dtype=bool) if missing is None else missing
                outputs[f"{name}_missing"] = Column("bool", data)
        return outputs

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
                for rows in base.loop_blocks(column, backend)
            ]
            return Column(column.dtype, out)
        data = column.data.astype(xp.float64) if self._averages else column.data
        filled = data if column.valid is None else xp.where(column.valid, data, data.dtype.type(value))
        return Column(self._filled_dtype(column.dtype), filled)

    def _check_statistic(self, name: str, dtype: str) -> None:
        """Raise `SchemaMismatch` for what is no value of a column of this type, as where a file is forged."""
        value = self.statistics_.get(name)
        filled, is_text = self._filled_dtype(dtype), isinstance(value, str)
        is_value = is_text if dtype == "string" else (is_number(value) or is_bool(value)) and base.fits(filled, value)
        if not is_value:
            where, problem = f"SimpleImputer, column {name!r}", "what it was fitted on is no value of the column's type"
            expected, remedy = f"a value {filled} can hold", "fit again"
            raise SchemaMismatch(where, problem, got=value, expected=expected, remedy=remedy)

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
