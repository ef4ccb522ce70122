"""Cross-fitting: steps that learn from the target, so that a training row must not be encoded with its own."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.kernels import splitmix64
from gpupipe.errors import BadConfig, BadData
from gpupipe.preprocessing.learned_step import Columns, SeededStep, to_columns, to_frame


class CrossFittedStep(SeededStep):
    """Base class of steps that learn from the target; a training row is encoded from the other folds' targets.

    The rows of a fit are drawn into `cv` folds by splitmix64(random_state_, row identity): the same ones for any
    partitioning. `cross_fitted_columns` gives each row what the other folds taught; `transform_columns` what all did.
    What the single folds taught stays in the process: it is not saved.
    """

    needs_target = True
    """`summarize` wants `target`, a column per target by name without missing values, and `row_numbers`."""

    cv: int

    @abstractmethod
    def summarize(
        self, columns: Columns, backend: Backend, target: Columns | None = None, row_numbers: Array | None = None
    ) -> Any:
        """Return one partition's summary. Without `row_numbers` the rows are numbered from 0."""

    @abstractmethod
    def cross_fitted_columns(self, columns: Columns, backend: Backend, row_numbers: Array) -> dict[str, Column]:
        """Return the output for training rows, each from the folds without it.

        Raises:
            NotFitted, BadData: it was loaded from a file, or there is no other fold.
        """

    def folds(self, row_numbers: Array, xp: Any) -> Array:
        """Return the fold of each row, 0 to `cv` - 1, as n int64."""
        bits = splitmix64(self.random_state_, row_numbers) >> np.uint64(32)
        return ((bits * np.uint64(self.cv)) >> np.uint64(32)).astype("int64")

    def fit(self, frame: Frame, y: Any = None) -> Self:
        """Learn from a user's frame, all columns, and its target: as many values, or a frame of several targets.

        Raises:
            BadConfig, BadData: there is no target, it has another number of rows, or a value is missing.
        """
        where = type(self).__name__
        columns, backend = self._columns_to_fit(frame)
        target, _, _ = to_columns(_as_frame(y, frame, where), None, where)
        for name, column in target.items():
            missing = column.missing(backend.xp)
            if missing is not None and bool(missing.any()):
                problem = f"{int(missing.sum()):,} of {len(column):,} values are missing"
                expected, remedy = "a value in every row", "frame[y.notna()], y[y.notna()]"
                raise BadData(f"{where}, target {name!r}", problem, expected=expected, remedy=remedy)
        numbers = backend.xp.arange(len(frame))
        return self.finalize(self.summarize(columns, backend, target=target, row_numbers=numbers))

    def fit_transform(self, frame: Frame, y: Any = None) -> Frame:
        """Fit, and encode each row from the folds without it; `fit(...).transform(...)` gives something else."""
        self.fit(frame, y)
        columns, _, backend = to_columns(frame, self.names_in_, type(self).__name__)
        return to_frame(self.cross_fitted_columns(columns, backend, backend.xp.arange(len(frame))), frame, backend)


def _as_frame(y: Any, frame: Frame, where: str) -> Frame:
    """Return the target as a frame of the same library, whatever its type."""
    remedy = f"{where}().fit(frame, y)"
    if y is None or len(y) != len(frame):
        problem, got = "the target has another number of rows", None if y is None else len(y)
        if y is None:
            problem = "it learns from the target, and there is none"
        raise BadConfig(where, problem, got=got, expected=f"{len(frame)} values", remedy=remedy)
    if hasattr(y, "columns"):
        return y
    if getattr(y, "ndim", 1) > 1:
        expected = "one value in each row, or a frame with a named column for each target"
        remedy = f"{where}().fit(frame, pd.DataFrame(y, columns=[...]))"
        problem = "the target has more than one value in each row"
        raise BadConfig(where, problem, got=y.shape, expected=expected, remedy=remedy)
    if hasattr(y, "to_frame"):
        return y.to_frame(name="y" if y.name is None else y.name)
    return type(frame)({"y": y})
