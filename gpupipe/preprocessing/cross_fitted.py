"""Cross-fitting: steps that learn from the target, so that a training row must not be encoded with its own."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.hashing import splitmix64
from gpupipe.errors import BadConfig, BadData
from gpupipe.preprocessing.learned_step import Columns, SeededStep, to_columns, to_frame


class CrossFittedStep(SeededStep):
    """Base class of steps that learn from the target; a training row is encoded from the other folds' targets.

    The rows of a fit are drawn into `cv` folds by splitmix64(random_state_, row identity): the same ones for any
    partitioning. The base class draws `random_state_` where `random_state` is None. `cross_fitted_columns` gives each
    row what the other folds taught; `transform_columns` what all did. What the single folds taught stays in the
    process: it is not saved.
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
        """Return the output for training rows, each from the folds without it; inputs are not modified.

        Raises:
            NotFitted: it was loaded from a file.
            BadData: there is no other fold.
        """

    def folds(self, row_numbers: Array, xp: Any) -> Array:
        """Return the fold of each row, 0 to `cv` - 1, as n int64."""
        bits = splitmix64(self.random_state_, row_numbers) >> np.uint64(32)
        return ((bits * np.uint64(self.cv)) >> np.uint64(32)).astype("int64")

    # scikit-learn's protocol ------------------------------------------------------------------------------------------
    def fit(self, frame: Frame, y: Any = None) -> Self:
        """Learn from a user's frame, all columns, and its target: as many values, or a frame of several targets.

        Raises:
            BadConfig: there is no target, or it has another number of rows.
            BadData: a value of the target is missing.
        """
        where = type(self).__name__
        columns, fields, backend = to_columns(frame, None, where)
        self.output_fields(fields)
        self._dtypes_seen = {item.name: item.dtype for item in fields}
        target, _, _ = to_columns(_as_frame(y, frame, where), None, where)
        for name, column in target.items():
            missing = column.missing(backend.xp)
            if missing is not None and bool(missing.any()):
                raise BadData(
                    f"{where}, target {name!r}",
                    f"{int(missing.sum()):,} of {len(column):,} values are missing",
                    expected="a value in every row",
                    remedy="frame[y.notna()], y[y.notna()]",
                )
        numbers = backend.xp.arange(len(frame))
        return self.finalize(self.summarize(columns, backend, target=target, row_numbers=numbers))

    def fit_transform(self, frame: Frame, y: Any = None) -> Frame:
        """Fit, and encode each row from the folds without it; `fit(...).transform(...)` gives something else."""
        self.fit(frame, y)
        columns, _, backend = to_columns(frame, self.names_in_, type(self).__name__)
        return to_frame(self.cross_fitted_columns(columns, backend, backend.xp.arange(len(frame))), frame, backend)


def _as_frame(y: Any, frame: Frame, where: str) -> Frame:
    """Return the target as a frame of the same library, whatever its type."""
    if y is None or len(y) != len(frame):
        raise BadConfig(
            where,
            "it learns from the target, and there is none" if y is None else "the target has another number of rows",
            got=None if y is None else len(y),
            expected=f"{len(frame)} values",
            remedy=f"{where}().fit(frame, y)",
        )
    if hasattr(y, "columns"):
        return y
    if getattr(y, "ndim", 1) > 1:
        raise BadConfig(
            where,
            "the target has more than one value in each row",
            got=y.shape,
            expected="one value in each row, or a frame with a named column for each target",
            remedy=f"{where}().fit(frame, pd.DataFrame(y, columns=[...]))",
        )
    if hasattr(y, "to_frame"):
        return y.to_frame(name="y" if y.name is None else y.name)
    return type(frame)({"y": y})
