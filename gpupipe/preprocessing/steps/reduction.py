"""Dimensionality reduction: feature selection by variance or correlation, PCA, truncated SVD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.preprocessing import learned_step as base
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.summaries import Covariance, Moments
from gpupipe.schema import Field
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import (
    check_bool,
    check_choice,
    check_integer,
    check_number,
    is_integer,
    is_number,
    refuse_argument,
)


class _Selector(base.LearnedStep):
    """Base class of the selectors: the selected columns keep their memory and type."""

    keeps_units = True
    monotone = True
    names_out_: list[str]
    _limits: str  # the allowed range of `threshold`

    def __init__(self, threshold: float) -> None:
        check_number(self, self._limits, threshold=threshold)
        self.threshold = threshold

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        """Return the output fields; before `fit` all columns, as the data decide which ones are selected."""
        base.check_numeric(fields, type(self).__name__)
        names = {*self.output_names([item.name for item in fields])}
        return [item for item in fields if item.name in names]

    def output_names(self, names: Sequence[str]) -> list[str]:
        selected = {*self.names_out_} if self.is_fitted else {*names}
        return [name for name in names if name in selected]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        return {name: columns[name] for name in self.output_names(list(columns))}

    @answer_calls
    def get_support(self, indices: bool = False) -> Any:
        """Return which columns are selected, as C booleans or as positions; `NotFitted` before `fit`."""
        self.check_fitted()
        mask = np.array([name in self.names_out_ for name in self.names_in_])
        return np.flatnonzero(mask) if indices else mask


class VarianceThreshold(_Selector):
    """Feature selection by variance: columns at or under `threshold`, by default constant ones, are left out.

    `variances_` have the divisor n, missing values apart: C float64, exactly 0 for a constant column; `names_out_` are
    the names of the columns that stay.
    Raises: BadData for an infinity, a column without a value, or if no column is left.
    Memory: transform shares.

    Example:
        >>> import pandas as pd
        >>> list(VarianceThreshold().fit_transform(pd.DataFrame({"same": [0.1, 0.1], "x": [1, 2]})))
        ['x']
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {"variances_": "float64[C]", "names_out_": "text[K]"}
    fills_late = True
    summary_key = "moments"
    _limits = "[0, inf)"

    def __init__(self, threshold: float = 0.0) -> None:
        super().__init__(threshold)

    def summarize(self, columns: Columns, backend: Backend) -> Moments:
        return Moments.of(columns, backend, "VarianceThreshold")

    def finalize(self, summary: Moments) -> Self:
        base.check_values(summary.names, summary.count, "VarianceThreshold")
        self.variances_ = summary.variance
        names = [name for name, value in zip(summary.names, self.variances_, strict=True) if value > self.threshold]
        if not names:
            expected, remedy = f"a variance of more than {self.threshold}", "a lower threshold, or leave the step out"
            largest = float(self.variances_.max())
            raise BadData("VarianceThreshold", "no column is left", got=largest, expected=expected, remedy=remedy)
        self.names_out_ = names
        return super().finalize(summary)


class CorrelationThreshold(_Selector):
    """Feature selection by correlation: of columns (nearly) linear in each other, only the first is selected.

    In their order, each is left out that is correlated with a kept one more than `threshold`, from 0 to 1, in absolute
    value. `correlations_` are C x C float64, 1 on the diagonal, 0 for constant columns; `names_out_` are the
    names of the columns that stay.
    Raises: BadData for a missing value, an infinity, or fewer than two rows.
    Memory: transform shares; fitting takes a block of rows at a time.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"miles": [1.0, 2.0, 4.0], "km": [1.6, 3.2, 6.4], "hour": [5.0, 1.0, 9.0]})
        >>> list(CorrelationThreshold().fit_transform(frame))
        ['miles', 'hour']
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {"correlations_": "finite[C, C]", "names_out_": "text[K]"}
    _limits = "[0, 1]"

    def __init__(self, threshold: float = 0.95) -> None:
        super().__init__(threshold)

    def summarize(self, columns: Columns, backend: Backend) -> Covariance:
        return Covariance.of(columns, backend, "CorrelationThreshold", max_bytes=0)

    def finalize(self, summary: Covariance) -> Self:
        base.check_rows(summary.count, "CorrelationThreshold", least=2)
        deviation = np.sqrt(np.maximum(np.diag(summary.m2), 0.0) / summary.count)
        # Below the resolution of the mean there is no variance.
        varies = deviation > np.finfo(np.float64).eps * np.abs(summary.mean)
        unit = np.where(varies, 1 / np.where(varies, deviation, 1.0), 0.0)
        correlations = np.clip(summary.m2 / summary.count * unit[:, None] * unit, -1.0, 1.0)
        np.fill_diagonal(correlations, 1.0)
        positions: list[int] = []
        for position, row in enumerate(np.abs(correlations)):
            if not (row[positions] > self.threshold).any():
                positions.append(position)
        self.correlations_, self.names_out_ = correlations, [summary.names[position] for position in positions]
        return super().finalize(summary)


_MAX_BYTES = {"auto": 64 << 20, "library": 1 << 62, "covariance": 0}  # of columns for the library, as float64


class Projection(base.Invertible):
    """Base class of steps that project columns on directions, `pca0`, `pca1`, ... by the name of the class."""

    n_components: int | float | None
    components_: Any

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        """Return the output fields; before `fit` one per column where a share of the variance decides how many."""
        if is_integer(self.n_components):
            check_integer(self, f"[1, {len(fields)}]", n_components=self.n_components)
        base.check_numeric(fields, self.class_name)
        names = self.output_names([item.name for item in fields])
        return [replace(Field.derived(name, "float32", fields, self.class_name), nullable=False) for name in names]

    def output_names(self, names: Sequence[str]) -> list[str]:
        number = self.n_components if isinstance(self.n_components, int) else len(names)
        if isinstance(self.n_components, float) and self.is_fitted:
            number = len(self.components_)
        return [f"{self.class_name.lower()}{position}" for position in range(number)]

    def _mapped(
        self, columns: Columns, names: list[str], matrix: Any, backend: Backend, before: Any = None, after: Any = None
    ) -> dict[str, Column]:
        """Compute `matrix @ (column + before) + after` for each row as float32 columns; refuses infinite results."""
        device_matrix = backend.to_device(np.ascontiguousarray(matrix))
        first, last = (None if shift is None else backend.to_device(shift[:, None]) for shift in (before, after))

        def mapped(block: Array) -> Array:
            if first is not None:
                block += first
            result = device_matrix @ block
            if last is not None:
                result += last
            return result

        return base.float32_rows(columns, names, mapped, backend, self.class_name)


class PCA(Projection):
    """Principal component analysis: columns projected on the directions of largest variance, `pca0`, `pca1`, ...

    `n_components`, a number (by default all) or a share of the variance in (0, 1) that the components explain together,
    and `whiten` are scikit-learn's. `solver="library"` gathers all rows and gives them to scikit-learn or cuML;
    `"covariance"` takes the eigenvectors of the matrix of that name, summed over partitions in float64; `"auto"` is the
    library up to 64 MiB. They agree to 1e-5, components with (nearly) equal variance apart. Of scikit-learn's
    attributes there are `mean_`, `components_`, in each of which the loading of largest absolute value is positive,
    `n_samples_`, and `explained_variance_` and `explained_variance_ratio_` (divisor n - 1).
    Raises: BadConfig for more components than columns; BadData for a missing value, an infinity, a value beyond 1e145,
    or fewer than two rows.
    Memory: transform allocates K x n float32 on the device, and a float64 block (on a GPU: all columns) at a time.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [2.0, 4.0, 6.0]})
        >>> PCA(n_components=1).fit(frame).explained_variance_ratio_.round(6).tolist()
        [1.0]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {
        "components_": "finite[O, C]",
        "mean_": "finite[C]",
        **dict.fromkeys(("explained_variance_", "explained_variance_ratio_"), "finite[O]"),
        "n_samples_": "count",
    }

    def __init__(self, n_components: float | None = None, *, whiten: bool = False, solver: str = "auto") -> None:
        if not (is_integer(n_components, 1) or n_components is None or _is_share(n_components)):
            expected = "an integer in [1, inf), a share of the variance in (0, 1), or None"
            raise refuse_argument(self, "n_components", n_components, expected)
        check_bool(self, whiten=whiten)
        check_choice(self, _MAX_BYTES, solver=solver)
        self.n_components, self.whiten, self.solver = n_components, whiten, solver

    def summarize(self, columns: Columns, backend: Backend) -> Covariance:
        return Covariance.of(columns, backend, type(self).__name__, max_bytes=_MAX_BYTES[self.solver])

    def finalize(self, summary: Covariance) -> Self:
        base.check_rows(summary.count, type(self).__name__, least=2)
        width = self.n_components if isinstance(self.n_components, int) else len(summary.names)
        covariance = summary.m2 / (summary.count - 1)
        total = float(np.trace(covariance))
        if summary.parts is not None and summary.count >= width and total > 0:
            # Centred beforehand, columns far from zero keep their digits, whatever the library does.
            learned = summary.backend.pca(summary.deviations(), width)
            components, variance = learned.components, learned.explained_variance
        else:
            variance, vectors = np.linalg.eigh(covariance)
            components, variance = vectors.T[::-1][:width], variance[::-1][:width]
        variance = np.maximum(variance, 0.0)
        ratio = variance / total if total > 0 else np.zeros(width)
        if isinstance(self.n_components, float):  # as scikit-learn: the first components that explain more than it
            width = min(int(np.searchsorted(ratio.cumsum(), self.n_components, side="right")) + 1, width)
        self.mean_, self.components_ = summary.mean, fix_signs(components[:width])
        self.explained_variance_, self.explained_variance_ratio_ = variance[:width], ratio[:width]
        self.n_samples_ = summary.count
        return super().finalize(summary)

    def _scale(self) -> Any:
        """Return the divisor of each output: K float64; a direction without variance is not scaled."""
        variance = self.explained_variance_
        varies = variance > np.finfo(np.float64).eps * variance.max(initial=0.0)
        return np.sqrt(np.where(varies & self.whiten, variance, 1.0))

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        matrix, names = self.components_ / self._scale()[:, None], self.output_names(list(columns))
        return self._mapped(columns, names, matrix, backend, before=-self.mean_)

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        matrix = (self.components_ * self._scale()[:, None]).T
        return self._mapped(columns, self.names_in_, matrix, backend, after=self.mean_)


def _is_share(value: Any) -> bool:
    """Return whether it is a float strictly between 0 and 1."""
    return is_number(value) and not is_integer(value) and 0 < value < 1


class IncrementalPCA(PCA):
    """Principal component analysis fitted frame by frame: `PCA(solver="covariance")` whose state is that of all rows.

    The whole covariance is kept, so that no batch size and no component left out changes the result (scikit-learn's
    forgets what is outside the components). Outputs are `incrementalpca0`, ...; arguments and attributes are `PCA`'s.
    Memory: as `PCA`; F² float64 are kept for `partial_fit`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": [2.0, 4.0, 6.0, 9.0]})
        >>> IncrementalPCA().partial_fit(frame[:2]).partial_fit(frame[2:]).n_samples_
        4
    """

    _covariance: Covariance | None = None

    def __init__(self, n_components: float | None = None, *, whiten: bool = False) -> None:
        super().__init__(n_components, whiten=whiten, solver="covariance")

    def finalize(self, summary: Covariance) -> Self:
        super().finalize(summary)
        self._covariance = summary
        return self

    @answer_calls
    def partial_fit(self, frame: Frame, y: object = None) -> Self:
        """Learn from one more frame (not `y`); BadConfig if the step was loaded, SchemaMismatch for other columns."""
        names = list(frame.columns)
        if not self.is_fitted:
            return self.fit(frame)
        if self._covariance is None:
            problem = "it cannot go on: only its components were saved, not all that it had seen"
            expected = "a step that was fitted in this process"
            raise BadConfig(type(self).__name__, problem, expected=expected, remedy="fit on all rows")
        if names != self.names_in_:
            expected, remedy, where = str(self.names_in_), f"partial_fit(frame[{self.names_in_}])", type(self).__name__
            raise SchemaMismatch(where, "other columns than before", got=names, expected=expected, remedy=remedy)
        return self.finalize(self._covariance + self.summarize(*self._columns_to_fit(frame)))


def fix_signs(components: Any) -> Any:
    """Flip each row so that its largest loading is positive; among equal ones (to 1e-6) the first decides."""
    size = np.abs(components)
    first = (size >= size.max(axis=1, keepdims=True) * (1 - 1e-6)).argmax(axis=1)
    signs = np.sign(components[np.arange(len(components)), first])
    return components * signs[:, None]


class TruncatedSVD(Projection):
    """Truncated SVD: columns projected on `truncatedsvd0`, ..., the directions of largest size; PCA without centring.

    Attributes are scikit-learn's, signs those of `PCA`. The directions are the eigenvectors of the Gram matrix, summed
    over partitions in float64: they agree with scikit-learn's `algorithm="arpack"` to 1e-5, components with (nearly)
    equal singular values apart, and those below 1e-7 of the largest, which a Gram matrix cannot distinguish from 0.
    Raises: BadConfig for more components than columns; BadData for what `PCA` refuses, or no row.
    Memory: as `PCA`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [2.0, 4.0, 6.0]})
        >>> TruncatedSVD(n_components=1).fit(frame).singular_values_.round(6).tolist()
        [8.3666]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {
        "components_": "finite[O, C]",
        **dict.fromkeys(("singular_values_", "explained_variance_", "explained_variance_ratio_"), "finite[O]"),
        "n_samples_": "count",
    }

    def __init__(self, n_components: int = 2) -> None:
        check_integer(self, "[1, inf)", n_components=n_components)
        self.n_components = n_components

    def summarize(self, columns: Columns, backend: Backend) -> Covariance:
        return Covariance.of(columns, backend, "TruncatedSVD", max_bytes=0)

    def finalize(self, summary: Covariance) -> Self:
        base.check_rows(summary.count, "TruncatedSVD")
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
        return super().finalize(summary)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        return self._mapped(columns, self.output_names(list(columns)), self.components_, backend)

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        return self._mapped(columns, self.names_in_, self.components_.T, backend)
