"""The rows of a partition in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpupipe.backend import Backend, Frame
from gpupipe.backend.ordering import sort_order

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["InOrder"]


@dataclass(frozen=True)
class InOrder:
    """The rows of a partition in the order of some columns.

    Args:
        by: the columns.
        ascending: for each.
    """

    by: Sequence[str]
    ascending: Sequence[bool]

    def __call__(self, part: Dataset, backend: Backend) -> Frame:
        frame = part.read(part.partitions[0], None, backend)
        columns = [backend.column(frame, name) for name in self.by]
        return backend.take(frame, sort_order(columns, backend, self.ascending))
