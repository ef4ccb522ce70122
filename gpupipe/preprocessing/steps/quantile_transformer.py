"""Quantile transform: numbers as their rank among those of `fit`, uniform or normal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.preprocessing.learned_step import Columns, Invertible
from gpupipe.preprocessing.numeric import (
    CLIP,
    check_finite,
    check_values,
    float32_columns,
    float32_fields,
    float64_columns,
    normal_quantile,
    normal_share,
)
from gpupipe.preprocessing.summaries.quantiles import Quantiles
from gpupipe.schema import Field
from gpupipe.support.validation import check_bool, check_choice, check_integer

_DISTRIBUTIONS = ("uniform", "normal")


class QuantileTransformer(Invertible):
    """Quantile transform: each value as the fraction of values below it, or as the normal quantile of that.

    Ranks between neighbouring quantiles are interpolated; values outside those of `fit` get 0 or 1 (-5.2 or 5.2).
    Missing stays missing. Quantiles are of all rows (scikit-learn's of a sample of 10,000): exact up to 65,536 distinct
    values of a column, and with `exact`; else their error is in `relative_error_`, and a share is wrong by at most
    that of the values within this distance.

    Args:
        n_quantiles: how many are kept; at most as many as there are rows.
        output_distribution: `"uniform"` or `"normal"`.
        exact: keep all distinct values while fitting, 16 bytes each on the host.

    Attributes:
        n_quantiles_: those kept, Q.
        references_: Q float64, the shares.
        quantiles_: Q x C float64.
        relative_error_: how far a quantile may be off, relative to its value, C float64; 0 where exact.

    Raises:
        BadConfig: an unknown distribution, or an invalid number of quantiles.
        BadData: an infinity, or a column without a value.

    Memory: transform allocates n float32 per column on the device, and a float64 block at a time; fitting sorts a
        column at a time there.

    Example:
        >>> import pandas as pd
        >>> QuantileTransformer(n_quantiles=3).fit_transform(pd.DataFrame({"x": [1, 1000, 10]}))["x"].tolist()
        [0.0, 1.0, 0.5]
    """

    fills_late = True
    monotone = True

    def __init__(self, *, n_quantiles: int = 1000, output_distribution: str = "uniform", exact: bool = False) -> None:
        check_integer(self, "[1, inf)", n_quantiles=n_quantiles)
        check_choice(self, _DISTRIBUTIONS, output_distribution=output_distribution)
        check_bool(self, exact=exact)
        self.n_quantiles, self.output_distribution, self.exact = n_quantiles, output_distribution, exact

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        return float32_fields(fields, "QuantileTransformer")

    def summarize(self, columns: Columns, backend: Backend) -> Quantiles:
        return Quantiles.of(columns, backend, "QuantileTransformer", exact=self.exact)

    def finalize(self, summary: Quantiles) -> Self:
        check_values(summary.names, summary.totals, "QuantileTransformer")
        rows = summary.histograms[0].total + summary.histograms[0].missing
        self.n_quantiles_ = min(self.n_quantiles, rows)
        self.references_ = np.linspace(0, 1, self.n_quantiles_)
        # By way of percent, as scikit-learn: on the last digit depends which quantiles are equal.
        shares = self.references_ * 100 / 100
        found = [np.maximum.accumulate(item.quantiles(shares)) for item in summary.histograms]
        self.quantiles_ = np.stack(found, axis=1)
        with np.errstate(over="ignore"):
            check_finite(summary.names, self.quantiles_[-1] - self.quantiles_[0], "QuantileTransformer")
        self.relative_error_ = np.array([item.relative_error for item in summary.histograms])
        self.names_in_ = list(summary.names)
        return self

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, normal = backend.xp, self.output_distribution == "normal"
        shares, known = backend.to_device(self.references_), self._known(backend)
        # What is as good as the smallest or largest value of fit is taken for it.
        ends = dict(zip(self.names_in_, self.quantiles_[[0, -1]].T.tolist(), strict=True))

        def ranked(name: str, block: Array) -> Array:
            low, high = ends[name]
            near = CLIP * min(1.0, high - low) if normal else 0.0
            made = _share(xp.clip(block, low, high), known[name], shares, xp)
            made = xp.where(block >= high - near, 1.0, made)
            made = xp.where(block <= low + near, 0.0, made)
            made = xp.where(xp.isnan(block), xp.nan, made)
            return normal_quantile(made, xp) if normal else made

        return float32_columns(columns, ranked, backend, "QuantileTransformer")

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, normal, last = backend.xp, self.output_distribution == "normal", self.n_quantiles_ - 1
        known = self._known(backend)

        def restored(name: str, block: Array) -> Array:
            if normal:
                block = normal_share(block, xp)
                block = xp.where(block < CLIP * 1.0001, 0.0, xp.where(block > 1 - CLIP * 1.0001, 1.0, block))
            place = xp.clip(block, 0.0, 1.0) * last
            missing = xp.isnan(place)
            lower = xp.where(missing, 0.0, xp.floor(place)).astype("int64")
            below, above = known[name][lower], known[name][xp.minimum(lower + 1, last)]
            return below + (above - below) * (place - lower)

        return float64_columns(columns, restored, backend, "QuantileTransformer.inverse_transform")

    def _known(self, backend: Backend) -> dict[str, Any]:
        return {name: backend.to_device(self.quantiles_[:, j].copy()) for j, name in enumerate(self.names_in_)}


def _share(values: Array, quantiles: Array, shares: Array, xp: Any) -> Array:
    """Return the rank of values within the quantiles: of several equal quantiles the middle of first and last."""
    last = len(quantiles) - 1
    first = xp.searchsorted(quantiles, values, side="left")
    after = xp.searchsorted(quantiles, values, side="right")
    lower, upper = xp.clip(first - 1, 0, last), xp.minimum(first, last)
    width = quantiles[upper] - quantiles[lower]
    part = (values - quantiles[lower]) / xp.where(width > 0, width, 1.0)
    between = shares[lower] + (shares[upper] - shares[lower]) * part
    return xp.where(after > first, (shares[upper] + shares[xp.clip(after - 1, 0, last)]) / 2, between)
