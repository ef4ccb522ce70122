"""Normalization of rows to the same norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpupipe.backend import Array, Backend, Column
from gpupipe.preprocessing.learned_step import Columns, StatelessStep
from gpupipe.preprocessing.numeric import float32_fields, float32_rows
from gpupipe.schema import Field
from gpupipe.support.validation import check_choice


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
