"""Rows by key, and those of each key in order: where a row's neighbours are, without a loop over rows or keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.ordering import grouped, sort_order

__all__ = ["Segments"]


@dataclass(frozen=True)
class Segments:
    """The n rows of a frame, put in order; those of one key are a segment.

    Args:
        order: the row at each place, n int64.
        start: the place where the segment of each place begins, n int64.
        stop: the place behind it.
        known: whether the row at each place has a key; None where all have.
        backend: whose arrays they are.
    """

    order: Array
    start: Array
    stop: Array
    known: Array | None
    backend: Backend

    @classmethod
    def of(cls, frame: Frame, by: Sequence[str], order_by: Sequence[str], backend: Backend) -> Self:
        """By equal values of `by`, in the order of `order_by`; rows alike in it stay as they stand.

        Memory: eight arrays of n int64 at a time.
        """
        xp, size = backend.xp, len(frame)
        keys = [backend.column(frame, name) for name in by]
        if keys:
            groups = grouped(keys, backend)
            ids, sizes, starts = groups.ids, groups.sizes, groups.starts
        else:
            ids, sizes, starts = xp.zeros(size, dtype="int64"), xp.full(1, size), xp.zeros(1, dtype="int64")
        order = sort_order([Column("int64", ids), *(backend.column(frame, name) for name in order_by)], backend)
        found = [missing for missing in (key.missing(xp) for key in keys) if missing is not None]
        known = None
        for missing in found:
            known = ~missing if known is None else known & ~missing
        if known is not None and backend.to_host(known.all()[None])[0]:
            known = None
        ids = ids[order]
        return cls(order, starts[ids], starts[ids] + sizes[ids], None if known is None else known[order], backend)

    def __len__(self) -> int:
        return int(self.order.shape[0])

    @property
    def places(self) -> Array:
        """0, 1 and so on."""
        return self.backend.xp.arange(len(self))

    def put_back(self, values: Array) -> Array:
        """Values by place as values by row."""
        made = self.backend.xp.empty_like(values)
        made[self.order] = values
        return made

    def column(self, values: Array, dtype: str, there: Array | None = None) -> Column:
        """Values by place, int64 or float64, as a column of the frame; missing without a key, or where not `there`."""
        known = self.known if there is None else there if self.known is None else self.known & there
        if known is not None and dtype == "float64":
            values, known = self.backend.xp.where(known, values, self.backend.xp.nan), None
        return Column(dtype, self.put_back(values), None if known is None else self.put_back(known))

    def earlier(self, periods: int) -> Array:
        """For each row of the frame the row so many places before it in its segment, -1 where there is none.

        Memory: four arrays of n int64 at a time.
        """
        xp, there = self.backend.xp, self.places - periods
        inside = (there >= self.start) & (there < self.stop)
        if self.known is not None:
            inside &= self.known
        return self.put_back(xp.where(inside, self.order[xp.clip(there, 0, max(len(self) - 1, 0))], -1))
