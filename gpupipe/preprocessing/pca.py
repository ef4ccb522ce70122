"""Principal components, learned by the library or from a folded covariance; the projection is our own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.errors import BadConfig, BadData
from gpupipe.preprocessing.blocks import check_count, check_numeric, num_rows, refuse, row_blocks, stacked
from gpupipe.preprocessing.covariance import Covariance
from gpupipe.preprocessing.fold import Columns, Invertible
from gpupipe.schema import Field
from gpupipe.words import counted

__all__ = ["PCA"]

LIBRARY_BYTES = 64 << 20
"""With `solver="auto"`, columns of at most this many bytes as float64 are given to the library."""

_MAX_BYTES = {"auto": LIBRARY_BYTES, "library": 1 << 62, "fold": 0}


class PCA(Invertible):
    """Columns rotated to the directions in which they vary most, as `pca0`, `pca1`, ...

    Args:
        n_components: how many directions are kept; by default all.
        whiten: scale each output to variance 1.
        solver: `"library"` gathers all rows and gives them to scikit-learn or cuML; `"fold"` takes the eigenvectors of
            the covariance, which is summed over partitions in float64; `"auto"` is the library up to 64 MiB. They
            agree to 1e-5, components with (nearly) equal variance apart.

    Attributes:
        mean_: F float64.
        components_: K x F float64; in each the loading of largest absolute value is positive.
        explained_variance_, explained_variance_ratio_: K float64, descending; divisor n - 1.
        n_samples_: rows seen.

    Raises:
        BadConfig: an unknown solver, or more components than columns.

    Memory: transform allocates K x n float32 on the device, and a float64 block at a time (on a GPU: all columns at
        once).

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [2.0, 4.0, 6.0]})
        >>> PCA(n_components=1).fit(frame).explained_variance_ratio_.round(6).tolist()
        [1.0]
    """

    def __init__(self, n_components: int | None = None, *, whiten: bool = False, solver: str = "auto") -> None:
        self.n_components, self.whiten, self.solver = n_components, whiten, solver

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        if self.solver not in _MAX_BYTES:
            raise BadConfig(
                "PCA",
                "unknown solver",
                got=self.solver,
                expected=f"one of {', '.join(_MAX_BYTES)}",
                remedy="solver='auto'",
            )
        if self.n_components is not None:
            check_count(self.n_components, "n_components", "PCA", len(fields))
        check_numeric(fields, "PCA")
        names = self.output_names([item.name for item in fields])
        return [replace(Field.derived(name, "float32", fields, "PCA"), nullable=False) for name in names]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return [f"pca{position}" for position in range(self.n_components or len(names))]

    def summarise(self, columns: Columns, backend: Backend) -> Covariance:
        return Covariance.of(columns, backend, "PCA", max_bytes=_MAX_BYTES[self.solver])

    def finish(self, summary: Covariance) -> Self:
        if summary.count < 2:
            raise BadData(
                "PCA",
                f"it was given {counted(summary.count, 'row')}",
                expected="at least two",
                remedy="fit on more rows, or leave the step out",
            )
        kept = self.n_components or len(summary.names)
        covariance = summary.m2 / (summary.count - 1)
        total = float(np.trace(covariance))
        if summary.kept is not None and summary.count >= kept and total > 0:
            # Centred beforehand, columns far from zero keep their digits, whatever the library does.
            learned = summary.backend.pca(summary.deviations(), kept)
            components, variance = learned.components, learned.explained_variance
        else:
            variance, vectors = np.linalg.eigh(covariance)
            components, variance = vectors.T[::-1][:kept], variance[::-1][:kept]
        self.mean_, self.components_ = summary.mean, _signed(components)
        self.explained_variance_ = np.maximum(variance, 0.0)
        self.explained_variance_ratio_ = self.explained_variance_ / total if total > 0 else np.zeros(kept)
        self.n_samples_ = summary.count
        self.names_in_ = list(summary.names)
        return self

    def _scale(self) -> Any:
        """What each output is divided by: K float64; a direction without variance is left as it is."""
        variance = self.explained_variance_
        varies = variance > np.finfo(np.float64).eps * variance.max(initial=0.0)
        return np.sqrt(np.where(varies & self.whiten, variance, 1.0))

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        matrix = self.components_ / self._scale()[:, None]
        parts = self._mapped(columns, -self.mean_, matrix, np.zeros(len(matrix)), backend)
        return dict(zip(self.output_names(list(columns)), parts, strict=True))

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        matrix = (self.components_ * self._scale()[:, None]).T
        parts = self._mapped(columns, np.zeros(matrix.shape[1]), matrix, self.mean_, backend)
        return dict(zip(self.names_in_, parts, strict=True))

    def _mapped(self, columns: Columns, before: Any, matrix: Any, after: Any, backend: Backend) -> list[Column]:
        """`matrix @ (column + before) + after` for each row, as float32 columns; refuses what is not finite."""
        xp, size = backend.xp, num_rows(columns)
        before, matrix, after = (backend.to_device(part) for part in (before[:, None], matrix, after[:, None]))
        outputs: list[Array] = [xp.empty(size, dtype=xp.float32) for _ in range(len(matrix))]
        finite = []
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in row_blocks(size, backend, len(columns)):
                block = stacked(columns, rows, xp)
                block += before
                result = matrix @ block
                result += after
                for out, values in zip(outputs, result, strict=True):
                    out[rows] = values
                    finite.append(xp.isfinite(out[rows]).all())
        if finite and not backend.to_host(xp.stack(finite)).all():
            refuse(columns, backend, "PCA", too_large="a result does not fit float32", missing=True)
        return [Column("float32", out) for out in outputs]


def _signed(components: Any) -> Any:
    """Each row with the sign that makes its largest loading positive; among equal ones (to 1e-6) the first decides."""
    size = np.abs(components)
    first = (size >= size.max(axis=1, keepdims=True) * (1 - 1e-6)).argmax(axis=1)
    signs = np.sign(components[np.arange(len(components)), first])
    return components * signs[:, None]
