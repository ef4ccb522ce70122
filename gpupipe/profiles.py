"""What the columns of the fit look like, from a sample of their rows, and how often other rows look so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.dictionaries import positions_in
from gpupipe.backend.hashing import splitmix64
from gpupipe.preprocessing.blocks import floats
from gpupipe.preprocessing.counts import ValueCounts
from gpupipe.preprocessing.quantiles import Histogram
from gpupipe.schema import FLOATS

__all__ = ["SAMPLE_ROWS", "Likeness", "Profile", "Sample", "drawn_rows"]

SAMPLE_ROWS = 1 << 15
"""About so many rows of a dataset are looked at, all of a smaller one."""

_SEED = 0x5EED
_DECILES = np.arange(1, 10) / 10
_FARTHEST = 1e9
"""A value is no more standard deviations than this from the mean, so that no sum of distances is infinite."""


def drawn_rows(row_ids: Array, total: int, backend: Backend) -> Array | slice:
    """Which rows are in the sample: by their identities (n uint64) alone, so the same in any partitions.

    Args:
        row_ids: the identity of each row.
        total: rows of the whole dataset, at most.
        backend: where they are.

    Memory: three arrays of n uint64, where rows are drawn.
    """
    if total <= SAMPLE_ROWS:
        return slice(0, len(row_ids))
    return backend.xp.flatnonzero(splitmix64(_SEED, row_ids) < np.uint64(SAMPLE_ROWS / total * 2.0**64))


@dataclass(frozen=True)
class Sample:
    """The values of the rows drawn in a fit, counted; an addition of parts is the sample of their rows.

    Args:
        numbers: by the name of a column of numbers, how often each value occurs.
        categories: by the name of a column that becomes ids, the same.
    """

    numbers: Mapping[str, Histogram] = field(default_factory=dict)
    categories: Mapping[str, ValueCounts] = field(default_factory=dict)

    @classmethod
    def of(
        cls, frame: Frame, rows: Array | slice, numbers: Sequence[str], categories: Sequence[str], backend: Backend
    ) -> Self:
        """The sample of one partition.

        Memory: 16 bytes per distinct value of a column go to the host.
        """
        columns = {name: backend.column(frame, name).take(rows) for name in (*numbers, *categories)}
        return cls(
            {name: Histogram.of(_finite(columns[name], backend), backend) for name in numbers},
            {name: ValueCounts.of(columns[name], backend) for name in categories},
        )

    def __add__(self, other: Self) -> Self:
        numbers = {name: item + other.numbers[name] for name, item in self.numbers.items()}
        categories = {name: item + other.categories[name] for name, item in self.categories.items()}
        return replace(self, numbers=numbers, categories=categories)

    def profiles(self, vocabularies: Mapping[str, Any], missing: Mapping[str, float]) -> dict[str, Profile]:
        """What to compare other rows with.

        Args:
            vocabularies: the values that became ids of their own, by column.
            missing: the share of missing values of all columns, of which some may be neither numbers nor become ids.
        """
        found = {name: Profile(share) for name, share in missing.items()}
        found |= {name: _of_numbers(item, missing[name]) for name, item in self.numbers.items() if item.total}
        for name, counts in self.categories.items():
            values, numbers = counts.ranked()
            total = int(numbers.sum()) + counts.missing
            known = positions_in(values, vocabularies[name]) >= 0 if len(values) else np.zeros(0, dtype=bool)
            share = int(numbers[~known].sum()) / total if total else 0.0
            found[name] = replace(found[name], unknown=share)
        return found


@dataclass(frozen=True)
class Profile:
    """One column of the fit.

    Args:
        missing: the share of rows without a value.
        mean, std: of the finite values.
        edges: the deciles that differ, of numbers.
        shares: of values up to each edge, above the one before, and of those above the last.
        unknown: the share of rows whose value became no id of its own; None where none becomes one.
    """

    missing: float
    mean: float = 0.0
    std: float = 0.0
    edges: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    unknown: float | None = None

    @property
    def scale(self) -> float:
        """What a shift of the mean is measured in: the standard deviation, where there is one."""
        return self.std or abs(self.mean) or 1.0

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, for a file."""
        return vars(self) | {"edges": list(self.edges), "shares": list(self.shares)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """What `to_json` wrote."""
        return cls(**{**content, "edges": tuple(content["edges"]), "shares": tuple(content["shares"])})


@dataclass(frozen=True)
class Likeness:
    """How often the rows drawn from some partitions look as those of the fit did.

    Args:
        num_rows: how many rows.
        tallies: by column, one after the other: rows without a value; rows of an unknown one; finite values; the sum
            of their distances from the mean of the fit, in its standard deviations, none more than a billion; and
            finite values between the edges of its deciles.
    """

    num_rows: int = 0
    tallies: Mapping[str, Any] = field(default_factory=dict)

    def __add__(self, other: Likeness) -> Likeness:
        if not (self.tallies and other.tallies):
            return self if self.tallies else other
        tallies = {name: numbers + other.tallies[name] for name, numbers in self.tallies.items()}
        return Likeness(self.num_rows + other.num_rows, tallies)

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Column],
        profiles: Mapping[str, Profile],
        unknown: Mapping[str, Array],
        backend: Backend,
    ) -> Likeness:
        """Those of one partition.

        Args:
            columns: of the rows drawn, as the features see them.
            profiles: what they are compared with, by column.
            unknown: a boolean per row drawn, true where a value became no id of its own, by column.
            backend: where they are.

        Memory: some arrays of 8 bytes per row drawn; some 15 numbers per column go to the host, at once.
        """
        xp = backend.xp
        parts = [_tally(columns[name], profile, unknown.get(name), backend) for name, profile in profiles.items()]
        if not parts:
            return cls()
        numbers = backend.to_host(xp.concatenate(parts))
        ends = np.cumsum([len(part) for part in parts])[:-1]
        num_rows = len(next(iter(columns.values())))
        return cls(num_rows, dict(zip(profiles, np.split(numbers, ends), strict=True)))


def _tally(column: Column, profile: Profile, unknown: Array | None, backend: Backend) -> Array:
    """The numbers of one column; see `Likeness`."""
    xp = backend.xp
    missing = column.missing(xp)
    gaps = 0 if missing is None else xp.count_nonzero(missing)
    head = [gaps, 0 if unknown is None else xp.count_nonzero(unknown)]
    if not profile.edges:
        return xp.stack([xp.asarray(number, dtype="float64") for number in head])
    values = floats(column, xp)
    finite = xp.isfinite(values)
    mean, reach = profile.mean, _FARTHEST * profile.scale
    near = xp.clip(xp.where(finite, values, mean), mean - reach, mean + reach)
    distance = (near / 2 - mean / 2) / profile.scale * 2  # in halves, whose difference is a float whatever they are
    head += [xp.count_nonzero(finite), distance.sum()]
    places = xp.searchsorted(backend.to_device(np.array(profile.edges)), values, side="left")
    places = xp.where(finite, places, len(profile.edges) + 1)
    bins = xp.bincount(places, minlength=len(profile.edges) + 2)[:-1]
    return xp.concatenate([xp.stack([xp.asarray(number, dtype="float64") for number in head]), bins.astype("float64")])


def _finite(column: Column, backend: Backend) -> Column:
    """Without the rows that hold an infinity, which no measure can take in."""
    return column if column.dtype not in FLOATS else column.take(~backend.xp.isinf(column.data))


def _of_numbers(found: Histogram, missing: float) -> Profile:
    """The profile of finite numbers that were counted; the histogram of a sample holds every value."""
    values, counts, total = found.values, found.counts, found.total
    edges = np.unique(found.quantiles(_DECILES))
    weight = counts / total
    unit = max(float(np.abs(values).max()), 1.0)  # whose squares are floats
    mean = float((values * weight).sum())
    std = unit * float(np.sqrt((np.square(values / unit - mean / unit) * weight).sum()))
    bins = np.bincount(np.searchsorted(edges, values, side="left"), weights=counts, minlength=len(edges) + 1)
    return Profile(
        missing=missing,
        mean=mean,
        std=std,
        edges=tuple(edges.tolist()),
        shares=tuple((bins / total).tolist()),
    )
