"""Steps that learn nothing but the names of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gpupipe.backend import Backend
from gpupipe.preprocessing.learned_step import Columns, FoldStep

__all__ = ["Names", "StatelessStep"]


@dataclass(frozen=True)
class Names:
    """The summary of a step that looks at no value."""

    names: tuple[str, ...]

    def __add__(self, other: Self) -> Self:
        return self

    def filled(self, values: Mapping[str, Any]) -> Self:
        """The same: no value was looked at."""
        return self


class StatelessStep(FoldStep):
    """A step of rows or values alone: `fit` keeps the columns' names, and costs no look at the data."""

    fills_late = True

    def summarise(self, columns: Columns, backend: Backend) -> Names:
        return Names(tuple(columns))

    def finish(self, summary: Names) -> Self:
        self.names_in_ = list(summary.names)
        return self
