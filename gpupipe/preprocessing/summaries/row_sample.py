"""Row sample: rows gathered from all partitions, all of them or a seeded sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, select
from gpupipe.backend.hashing import splitmix64
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.numeric import any_true, refuse, stack_rows


@dataclass(frozen=True)
class GatheredRows:
    """Row sample of some columns, kept on the device.

    As long as there are at most `max_rows` all are kept. Beyond that a row is kept if the first `halvings` bits of
    splitmix64(seed, its number) are zero, with as few halvings as do: about half of `max_rows` or more stay, and which
    ones depends on the rows' numbers alone, not on partitions or their order. `blocks` are n x F float64, NaN where
    missing, `numbers` those of their rows in the dataset.
    """

    names: tuple[str, ...]
    blocks: tuple[Array, ...]
    numbers: tuple[Array, ...]
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
        return cls(tuple(columns), (block,), (numbers,), len(block), max_rows, seed, backend).within_limit()

    def __add__(self, other: Self) -> Self:
        halvings = max(self.halvings, other.halvings)
        mine, theirs = self.thinned(halvings), other.thinned(halvings)
        blocks, numbers = (*mine.blocks, *theirs.blocks), (*mine.numbers, *theirs.numbers)
        return replace(mine, blocks=blocks, numbers=numbers, num_rows=self.num_rows + other.num_rows).within_limit()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with rows on the host: it is sent from a worker to the driver, which does not use GPUs."""
        host = self.backend.to_host
        moved = {"blocks": tuple(map(host, self.blocks)), "numbers": tuple(map(host, self.numbers))}
        return {name: value for name, value in vars(self).items() if name != "backend"} | moved

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, backend=select("cpu"))

    @property
    def holds_rows(self) -> bool:
        """Whether the fit belongs on the backend's device rather than where summaries are merged."""
        return True

    def on(self, backend: Backend) -> Self:
        """Return the same rows on that backend's device."""
        blocks, numbers = (tuple(map(backend.to_device, arrays)) for arrays in (self.blocks, self.numbers))
        return replace(self, backend=backend, blocks=blocks, numbers=numbers)

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
        keep = [splitmix64(self.seed, numbers) >> np.uint64(64 - halvings) == 0 for numbers in self.numbers]
        blocks = tuple(block[mask] for block, mask in zip(self.blocks, keep, strict=True))
        numbers = tuple(number[mask] for number, mask in zip(self.numbers, keep, strict=True))
        return replace(self, blocks=blocks, numbers=numbers, halvings=halvings)

    @property
    def num_kept(self) -> int:
        """The number of rows kept."""
        return sum(map(len, self.blocks))

    def filled(self, values: Mapping[str, Any]) -> Self:
        """Return the sample with each missing value replaced by `values[name]`."""
        xp = self.backend.xp
        fill = self.backend.to_device(np.array([float(values[name]) for name in self.names]))
        return replace(self, blocks=tuple(xp.where(xp.isnan(block), fill, block) for block in self.blocks))

    def block(self) -> Array:
        """Return all kept rows by number: m x F float64, private to the caller."""
        xp = self.backend.xp
        return xp.concatenate(self.blocks)[xp.argsort(xp.concatenate(self.numbers))]

    def subsample(self, size: int) -> Any:
        """Return the kept rows whose seeded numbers are smallest, `size` at most, on the host."""
        xp = self.backend.xp
        chosen = xp.argsort(splitmix64(self.seed, xp.concatenate(self.numbers)))[:size]
        return self.backend.to_host(xp.concatenate(self.blocks)[chosen])
