"""Truncated singular value decomposition from the columns' Gram matrix, with gpupipe's projection."""

from __future__ import annotations

from typing import Self

import numpy as np

from gpupipe.backend import Backend, Column
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.numeric import refuse_no_rows
from gpupipe.preprocessing.steps.pca import Projection, fix_signs
from gpupipe.preprocessing.summaries.rows import Covariance
from gpupipe.support.validation import check_integer


class TruncatedSVD(Projection):
    """Truncated SVD: columns projected on `truncatedsvd0`, ..., the directions of largest size; PCA without centring.

    The directions are the eigenvectors of the columns' Gram matrix, which is summed over partitions in float64: they
    agree with scikit-learn's `algorithm="arpack"` to 1e-5, components with (nearly) equal singular values apart, and
    those whose singular value is below 1e-7 of the largest, which a Gram matrix cannot distinguish from 0.

    Args:
        n_components: how many directions are kept, at most as many as there are columns.

    Attributes:
        components_: K x F float64; in each the loading of largest absolute value is positive.
        singular_values_: K float64, descending.
        explained_variance_, explained_variance_ratio_: K float64, of the outputs; divisor n.
        n_samples_: rows seen.

    Raises:
        BadConfig: more components than columns.
        BadData: a missing value, an infinity, a value beyond 1e145, or no row.

    Memory: transform allocates K x n float32 on the device, and a float64 block (on a GPU: all columns) at a time.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [2.0, 4.0, 6.0]})
        >>> TruncatedSVD(n_components=1).fit(frame).singular_values_.round(6).tolist()
        [8.3666]
    """

    def __init__(self, n_components: int = 2) -> None:
        check_integer(self, "[1, inf)", n_components=n_components)
        self.n_components = n_components

    def summarize(self, columns: Columns, backend: Backend) -> Covariance:
        return Covariance.of(columns, backend, "TruncatedSVD", max_bytes=0)

    def finalize(self, summary: Covariance) -> Self:
        if not summary.count:
            refuse_no_rows("TruncatedSVD")
        gram = summary.m2 + summary.count * np.outer(summary.mean, summary.mean)
        squares, vectors = np.linalg.eigh(gram)
        self.components_ = fix_signs(vectors.T[::-1][: self.n_components])
        self.singular_values_ = np.sqrt(np.maximum(squares[::-1][: self.n_components], 0.0))
        covariance = summary.m2 / summary.count
        variance = np.einsum("kf,fg,kg->k", self.components_, covariance, self.components_)
        self.explained_variance_ = np.maximum(variance, 0.0)
        total = float(np.trace(covariance))
        self.explained_variance_ratio_ = self.explained_variance_ / total if total > 0 else np.zeros(len(variance))
        self.n_samples_ = summary.count
        self.names_in_ = list(summary.names)
        return self

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        return self._mapped(columns, self.output_names(list(columns)), self.components_, backend)

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        return self._mapped(columns, self.names_in_, self.components_.T, backend)
