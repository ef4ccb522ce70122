"""Covariance: means and co-moments of several columns, merged over partitions; few rows are kept too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, select
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.numeric import check_squares, num_rows, row_blocks, stack_rows


@dataclass(frozen=True)
class Covariance:
    """Covariance of F columns: number of rows, means (F float64) and co-moments (F x F).

    The columns of all partitions are `kept` on the backend while they are at most `max_bytes` as float64; else None.
    """

    names: tuple[str, ...]
    count: int
    mean: Any
    m2: Any
    kept: tuple[Columns, ...] | None
    max_bytes: int
    backend: Backend

    @classmethod
    def of(cls, columns: Columns, backend: Backend, where: str, *, max_bytes: int) -> Self:
        """Compute the co-moments of one partition; refuses missing values, infinities and values beyond 1e145."""
        xp, width = backend.xp, len(columns)
        total = cls(tuple(columns), 0, np.zeros(width), np.zeros((width, width)), (), max_bytes, backend)
        parts, sizes = [], []
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in row_blocks(num_rows(columns), backend, len(columns)):
                deviation = stack_rows(columns, rows, xp)
                mean = deviation.mean(axis=1, keepdims=True)
                deviation -= mean
                rest = deviation.mean(axis=1, keepdims=True)
                deviation -= rest
                parts.append(xp.concatenate([(mean + rest).T, deviation @ deviation.T]))
                sizes.append(rows.stop - rows.start)
        if parts:
            for size, part in zip(sizes, backend.to_host(xp.stack(parts)), strict=True):
                total = total + replace(total, count=size, mean=part[0], m2=part[1:])
            check_squares(columns, total.mean, np.diag(total.m2), backend, where)
        return replace(total, kept=(columns,) if num_rows(columns) * width * 8 <= max_bytes else None)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state on the host: it is sent from a worker to the driver, which does not use GPUs."""
        state = {name: value for name, value in vars(self).items() if name != "backend"}
        return state | {"kept": self._moved(self.backend.to_host)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, backend=select("cpu"))

    @property
    def holds_rows(self) -> bool:
        """Whether the fit belongs on the backend's device rather than where summaries are merged."""
        return self.kept is not None

    def on(self, backend: Backend) -> Self:
        """Return the same summary on that backend's device."""
        return replace(self, backend=backend, kept=self._moved(backend.to_device))

    def _moved(self, move: Callable[[Array], Array]) -> tuple[Columns, ...] | None:
        return self.kept and tuple({n: column.move(move) for n, column in part.items()} for part in self.kept)

    def __add__(self, other: Self) -> Self:
        if not self.count or not other.count:
            return other if other.count else self
        count = self.count + other.count
        share = other.count / count
        with np.errstate(over="ignore", invalid="ignore"):
            shift = other.mean - self.mean
            m2 = self.m2 + other.m2 + np.outer(shift, shift) * (self.count * share)
        kept = None
        if self.kept is not None and other.kept is not None and count * len(self.names) * 8 <= self.max_bytes:
            kept = (*self.kept, *other.kept)
        return replace(self, count=count, mean=self.mean + shift * share, m2=m2, kept=kept)

    def deviations(self) -> Array:
        """Return all rows kept, less the means: n x F float64, private to the caller."""
        xp = self.backend.xp
        rows = xp.concatenate([stack_rows(columns, slice(None), xp) for columns in self.kept or ()], axis=1)
        rows -= self.backend.to_device(self.mean[:, None])
        return xp.ascontiguousarray(rows.T)
