"""Logarithms of counts, amounts and times, as an invertible step."""

from __future__ import annotations

from collections.abc import Sequence

from gpupipe.backend import Backend, Column
from gpupipe.backend.columns import floats
from gpupipe.backend.fused.program import ElementwiseProgram
from gpupipe.errors import BadData
from gpupipe.preprocessing.learned_step import Columns, Invertible, Names, StatelessStep
from gpupipe.preprocessing.numeric import float32_columns, float32_fields, float64_columns
from gpupipe.schema import Field


class Log1p(StatelessStep, Invertible):
    """Logarithm of 1 + each value; exact for small ones, inverted by `inverse_transform`.

    Learns nothing: it is a step rather than a transform, so that it can follow others in `Features`, or in
    `target_transform`.

    Raises:
        BadData: a value of -1 or below, which has no logarithm; in the inverse, a result beyond float32.

    Memory: transform allocates n float32 per column on the device.

    Example:
        >>> import pandas as pd
        >>> step, frame = Log1p(), pd.DataFrame({"x": [0.0, None, 1.0]})
        >>> step.fit_transform(frame)["x"].astype("float64").round(4).tolist()
        [0.0, nan, 0.6931]
        >>> step.inverse_transform(step.transform(frame))["x"].round(6).tolist()
        [0.0, nan, 1.0]
    """

    monotone = True

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        return float32_fields(fields, "Log1p")

    def summarize(self, columns: Columns, backend: Backend) -> Names:
        _check(columns, backend)
        return super().summarize(columns, backend)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        _check(columns, backend)
        return float32_columns(columns, lambda _, block: backend.xp.log1p(block), backend, "Log1p")

    def pointwise(self, name: str, dtype: str) -> ElementwiseProgram | None:
        return ElementwiseProgram(log=True)

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        return float64_columns(columns, lambda _, block: backend.xp.expm1(block), backend, "Log1p.inverse_transform")


def _check(columns: Columns, backend: Backend) -> None:
    """Raise `BadData` for the first column with a value that has no logarithm."""
    for name, column in columns.items():
        values = floats(column, backend.xp)
        low = values <= -1.0
        if backend.to_host(low.any()[None])[0]:
            raise BadData(
                f"Log1p, column {name!r}",
                f"{int(low.sum()):,} values of -1 or below have no logarithm",
                got=float(backend.to_host(values[low][:1])[0]),
                expected="numbers above -1",
                remedy="Derive with 'clip(...)' before it, or PowerTransformer(), which takes any number",
            )
