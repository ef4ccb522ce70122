"""Feature selection: constant and correlated columns are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from gpupipe.backend import Backend, Column
from gpupipe.errors import BadData
from gpupipe.preprocessing.learned_step import Columns, LearnedStep, check_numeric, check_values
from gpupipe.preprocessing.summaries import Covariance, Moments
from gpupipe.schema import Field
from gpupipe.support.validation import check_number


class _Selector(LearnedStep):
    """Base class of the selectors: the selected columns keep their memory and type."""

    keeps_units = True
    monotone = True

    kept_: list[str]

    _limits: str
    """The allowed range of `threshold`."""

    def __init__(self, threshold: float) -> None:
        check_number(self, self._limits, threshold=threshold)
        self.threshold = threshold

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        """Return the output fields; before `fit` all columns, as the data decide which ones are selected."""
        check_numeric(fields, type(self).__name__)
        return [item for item in fields if not self.is_fitted or item.name in self.kept_]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if not self.is_fitted or name in self.kept_]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        return {name: columns[name] for name in self.output_names(list(columns))}

    def get_support(self, indices: bool = False) -> Any:
        """Return which columns are selected, as C booleans or as positions; `NotFitted` before `fit`."""
        self.check_fitted()
        mask = np.array([name in self.kept_ for name in self.names_in_])
        return np.flatnonzero(mask) if indices else mask


class VarianceThreshold(_Selector):
    """Feature selection by variance: columns at or under `threshold`, by default constant ones, are left out.

    Args:
        threshold: columns with more variance (divisor n, missing values apart) are kept.

    Attributes:
        variances_, kept_: C float64, exactly 0 for a constant column; and the names of the columns that are kept.

    Raises:
        BadData: an infinity, a column without a value, or no column is left.

    Memory: transform shares.

    Example:
        >>> import pandas as pd
        >>> list(VarianceThreshold().fit_transform(pd.DataFrame({"same": [0.1, 0.1], "x": [1, 2]})))
        ['x']
    """

    fills_late = True
    summary_key = "moments"
    _limits = "[0, inf)"

    def __init__(self, threshold: float = 0.0) -> None:
        super().__init__(threshold)

    def summarize(self, columns: Columns, backend: Backend) -> Moments:
        return Moments.of(columns, backend, "VarianceThreshold")

    def finalize(self, summary: Moments) -> Self:
        check_values(summary.names, summary.count, "VarianceThreshold")
        self.variances_ = summary.variance
        kept = [name for name, value in zip(summary.names, self.variances_, strict=True) if value > self.threshold]
        if not kept:
            expected, remedy = f"a variance of more than {self.threshold}", "a lower threshold, or leave the step out"
            largest = float(self.variances_.max())
            raise BadData("VarianceThreshold", "no column is left", got=largest, expected=expected, remedy=remedy)
        self.names_in_, self.kept_ = list(summary.names), kept
        return self


class CorrelationThreshold(_Selector):
    """Feature selection by correlation: of columns (nearly) linear in each other, only the first is selected.

    Columns are compared in their order. A constant column is correlated with none.

    Args:
        threshold: from 0 to 1; what is correlated with a kept column more than this, in absolute value, is left out.

    Attributes:
        correlations_, kept_: C x C float64, 1 on the diagonal, 0 for constant columns; and the names that are kept.

    Raises:
        BadData: a missing value, an infinity, or fewer than two rows.

    Memory: transform shares; fitting takes a block of rows at a time.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"miles": [1.0, 2.0, 4.0], "km": [1.6, 3.2, 6.4], "hour": [5.0, 1.0, 9.0]})
        >>> list(CorrelationThreshold().fit_transform(frame))
        ['miles', 'hour']
    """

    _limits = "[0, 1]"

    def __init__(self, threshold: float = 0.95) -> None:
        super().__init__(threshold)

    def summarize(self, columns: Columns, backend: Backend) -> Covariance:
        return Covariance.of(columns, backend, "CorrelationThreshold", max_bytes=0)

    def finalize(self, summary: Covariance) -> Self:
        if summary.count < 2:
            where, problem = "CorrelationThreshold", "there is no correlation of fewer than two rows"
            remedy = "fit on more rows, or leave the step out"
            raise BadData(where, problem, got=summary.count, expected="at least two", remedy=remedy)
        deviation = np.sqrt(np.maximum(np.diag(summary.m2), 0.0) / summary.count)
        # Below the resolution of the mean there is no variance.
        varies = deviation > np.finfo(np.float64).eps * np.abs(summary.mean)
        unit = np.where(varies, 1 / np.where(varies, deviation, 1.0), 0.0)
        found = np.clip(summary.m2 / summary.count * unit[:, None] * unit, -1.0, 1.0)
        np.fill_diagonal(found, 1.0)
        kept: list[int] = []
        for place, row in enumerate(np.abs(found)):
            if not (row[kept] > self.threshold).any():
                kept.append(place)
        self.correlations_, self.names_in_ = found, list(summary.names)
        self.kept_ = [self.names_in_[place] for place in kept]
        return self
