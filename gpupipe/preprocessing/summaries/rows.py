"""Covariance of several columns, with few rows kept, and samples of rows; merged over partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, select
from gpupipe.backend.kernels import splitmix64
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.numeric import any_true, check_squares, num_rows, refuse, row_blocks, stack_rows


class _HeldRows:
    """Base class of summaries whose rows live on a device: they travel on the host, as a driver does not use GPUs."""

    backend: Backend

    @property
    def holds_rows(self) -> bool:
        """Whether the fit belongs on the backend's device rather than where summaries are merged."""
        return True

    def on(self, backend: Backend) -> Self:
        """Return the same summary on that backend's device."""
        moved = copy(self)
        vars(moved).update(self._moved(backend.to_device), backend=backend)
        return moved

    def _moved(self, move: Callable[[Array], Array]) -> dict[str, Any]:
        """Return the attributes that hold rows, with `move` applied to their arrays."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **self._moved(self.backend.to_host), "backend": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, backend=select("cpu"))


@dataclass(frozen=True)
class Covariance(_HeldRows):
    """Covariance of F columns: rows, means and co-moments (F x F); at most `max_bytes` of columns are kept as well."""

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

    @property
    def holds_rows(self) -> bool:
        return self.kept is not None

    def _moved(self, move: Callable[[Array], Array]) -> dict[str, Any]:
        parts = [{name: column.move(move) for name, column in part.items()} for part in self.kept or ()]
        return {"kept": None if self.kept is None else tuple(parts)}

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


@dataclass(frozen=True)
class GatheredRows(_HeldRows):
    """Row sample of some columns, kept on the device.

    As long as there are at most `max_rows` all are kept. Beyond that a row is kept if the first `halvings` bits of
    splitmix64(seed, its number) are zero, with as few halvings as do: about half of `max_rows` or more stay, and which
    ones depends on the rows' numbers alone, not on partitions or their order. The parts are blocks of n x F float64,
    NaN where missing, and the numbers of their rows in the dataset.
    """

    names: tuple[str, ...]
    parts: tuple[tuple[Array, Array], ...]
    num_rows: int
    max_rows: int
    seed: int
    backend: Backend
    halvings: int = 0

    @classmethod
    def of(
        cls, columns: Columns, backend: Backend, where: str, *, row_numbers: Array | None, max_rows: int, seed: int
    ) -> Self:
        """Sample the rows of one partition, numbered from 0 without `row_numbers`; refuses infinities."""
        xp = backend.xp
        block = xp.ascontiguousarray(stack_rows(columns, slice(None), xp).T)
        if any_true([xp.isinf(block).any()], backend):
            refuse(columns, backend, where)
        numbers = xp.arange(len(block)) if row_numbers is None else row_numbers
        return cls(tuple(columns), ((block, numbers),), len(block), max_rows, seed, backend).within_limit()

    def __add__(self, other: Self) -> Self:
        halvings = max(self.halvings, other.halvings)
        mine, theirs = self.thinned(halvings), other.thinned(halvings)
        num_rows = self.num_rows + other.num_rows
        return replace(mine, parts=(*mine.parts, *theirs.parts), num_rows=num_rows).within_limit()

    def _moved(self, move: Callable[[Array], Array]) -> dict[str, Any]:
        return {"parts": tuple((move(block), move(numbers)) for block, numbers in self.parts)}

    def within_limit(self) -> Self:
        """Halve the sample until at most `max_rows` are left."""
        rows = self
        while rows.num_kept > self.max_rows:
            rows = rows.thinned(rows.halvings + 1)
        return rows

    def thinned(self, halvings: int) -> Self:
        """Return only the rows that so many halvings leave."""
        if halvings == self.halvings:
            return self
        bits = np.uint64(64 - halvings)
        keep = [splitmix64(self.seed, numbers) >> bits == 0 for _, numbers in self.parts]
        pairs = zip(self.parts, keep, strict=True)
        parts = tuple((block[mask], numbers[mask]) for (block, numbers), mask in pairs)
        return replace(self, parts=parts, halvings=halvings)

    @property
    def num_kept(self) -> int:
        """The number of rows kept."""
        return sum(len(numbers) for _, numbers in self.parts)

    def filled(self, values: Mapping[str, Any]) -> Self:
        """Return the sample with each missing value replaced by `values[name]`."""
        xp = self.backend.xp
        fill = self.backend.to_device(np.array([float(values[name]) for name in self.names]))
        parts = ((xp.where(xp.isnan(block), fill, block), numbers) for block, numbers in self.parts)
        return replace(self, parts=tuple(parts))

    def _joined(self) -> tuple[Array, Array]:
        blocks, numbers = zip(*self.parts, strict=True)
        return self.backend.xp.concatenate(blocks), self.backend.xp.concatenate(numbers)

    def block(self) -> Array:
        """Return all kept rows by number: m x F float64, private to the caller."""
        block, numbers = self._joined()
        return block[self.backend.xp.argsort(numbers)]

    def subsample(self, size: int) -> Any:
        """Return the kept rows whose seeded numbers are smallest, `size` at most, on the host."""
        block, numbers = self._joined()
        return self.backend.to_host(block[self.backend.xp.argsort(splitmix64(self.seed, numbers))[:size]])
