"""Stateless steps: they learn nothing but the names of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gpupipe.backend import Backend
from gpupipe.preprocessing.learned_step import Columns, LearnedStep

__all__ = ["Names", "StatelessStep"]


@dataclass(frozen=True)
class Names:
    """Summary of a step that reads no value."""

    names: tuple[str, ...]

    def __add__(self, other: Self) -> Self:
        return self

    def filled(self, values: Mapping[str, Any]) -> Self:
        """Return the same summary: it holds no value."""
        return self


class StatelessStep(LearnedStep):
    """Base class of steps of rows or values alone: `fit` keeps the columns' names, and does not read the data."""

    fills_late = True

    def summarize(self, columns: Columns, backend: Backend) -> Names:
        return Names(tuple(columns))

    def finalize(self, summary: Names) -> Self:
        self.names_in_ = list(summary.names)
        return self
