"""Logarithms of counts, amounts and times, as an invertible step."""

from __future__ import annotations

from collections.abc import Sequence

from gpupipe.backend import Backend, Column
from gpupipe.backend.columns import floats
from gpupipe.backend.kernels import ElementwiseProgram
from gpupipe.errors import BadData
from gpupipe.preprocessing.learned_step import Columns, Invertible, StatelessStep, Types
from gpupipe.preprocessing.numeric import any_true, float32_fields, map_columns
from gpupipe.schema import Field


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
