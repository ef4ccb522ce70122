"""Count encoding of categories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpupipe.backend import Backend, Column
from gpupipe.preprocessing.categories import CategoryStep, Learned, check_categories, make_number_field
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.schema import Field
from gpupipe.support.validation import check_bool


class CountEncoder(CategoryStep):
    """Count encoding: strings, integers and booleans as the number of rows of `fit` with that value, else 0.

    A missing value becomes the number of rows in which the value was missing.

    Args:
        normalize: the fraction of all rows instead of their number, as in `pandas.Series.value_counts`.

    Attributes:
        categories_: for each column, by name, its values in ascending order, as an Arrow array on the host.
        counts_: for each column, by name, how often each was there, and a missing value last, int64.

    Raises:
        SchemaMismatch: a column holds text where numbers were learned, or the other way round.

    Memory: distinct values and counts go to the host; transform allocates n float32 per column on the device.

    Example:
        >>> import pandas as pd
        >>> step = CountEncoder().fit(pd.DataFrame({"origin": ["JFK", "LGA", None, "LGA"]}))
        >>> step.transform(pd.DataFrame({"origin": ["LGA", "JFK", None, "EWR"]}))["origin"].tolist()
        [2.0, 1.0, 1.0, 0.0]
    """

    learned_by_name = (*CategoryStep.learned_by_name, "counts_")
    counts_: dict[str, Any]

    def __init__(self, *, normalize: bool = False) -> None:
        check_bool(self, normalize=normalize)
        self.normalize = normalize

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        check_categories(fields, "CountEncoder")
        return [make_number_field(item, item.name) for item in fields]

    def _learn(self, name: str, found: Learned) -> None:
        self.counts_[name] = found.counts

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        made = {}
        for name, column in columns.items():
            counts = self.counts_[name]
            table = np.concatenate([[counts[-1], 0], counts[:-1]]).astype(np.float64)
            table /= max(counts.sum(), 1) if self.normalize else 1
            values = self._lookup(name, column).gathered(column, table.astype(np.float32), backend)
            made[name] = Column("float32", values)
        return made
