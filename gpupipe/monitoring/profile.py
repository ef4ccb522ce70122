"""Profiles of columns, from a sample of a dataset's rows that is the same under any partitioning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np

from gpupipe.backend import Backend, Frame
from gpupipe.backend.columns import floats
from gpupipe.backend.dictionaries import find_known
from gpupipe.io import Partition
from gpupipe.monitoring.reports import Profile
from gpupipe.preprocessing.summaries import ValueCounts

SAMPLE_ROWS = 1 << 15
"""The approximate size of the sample that is profiled; all rows of a smaller dataset, fewer of a wide one."""

_SAMPLE_NUMBERS, _FEWEST_ROWS = 1 << 24, 1 << 12  # 128 MiB, but where there are more than 4,096 columns
_SEED = 0x5EED
_DECILES = np.arange(1, 10) / 10


def draw_rows(frame: Frame, partition: Partition, total: int, num_columns: int, backend: Backend) -> Frame:
    """Draw a partition's part of the sample of at most `total` rows, by their ids: the same under any partitioning."""
    wanted = min(SAMPLE_ROWS, max(_SAMPLE_NUMBERS // max(num_columns, 1), _FEWEST_ROWS))
    if total <= wanted:
        return frame
    return backend.take(frame, partition.draw(frame, _SEED, int(wanted / total * 2.0**64), backend))


@dataclass(frozen=True)
class Sample:
    """Sample of rows from some partitions: a mergeable summary.

    `numbers` are of each part the values of the columns `names`, C x rows float64 on the host, NaN where there is none,
    or no finite one; `categories` count by the name of a column that becomes ids how often each value occurs.
    """

    num_rows: int = 0
    names: tuple[str, ...] = ()
    numbers: tuple[Any, ...] = ()
    categories: Mapping[str, ValueCounts] = field(default_factory=dict)

    @classmethod
    def of(cls, frame: Frame, numbers: Sequence[str], categories: Sequence[str], backend: Backend) -> Self:
        """Copy the sampled rows of one partition."""
        counts = {name: ValueCounts.of(backend.column(frame, name), backend) for name in categories}
        if not numbers:
            return cls(len(frame), categories=counts)
        matrix, xp = backend.matrix(frame, numbers), backend.xp
        if matrix is not None:
            values = xp.array(matrix.data, dtype="float64", order="C")  # rows that sort fast, and ours
        else:
            values = xp.stack([floats(backend.column(frame, name), xp) for name in numbers])
        xp.copyto(values, xp.nan, where=xp.isinf(values))
        return cls(len(frame), tuple(numbers), (backend.to_host(values),), counts)

    def __add__(self, other: Self) -> Self:
        categories = {name: item + other.categories[name] for name, item in self.categories.items()}
        num_rows, numbers = self.num_rows + other.num_rows, self.numbers + other.numbers
        return replace(self, num_rows=num_rows, numbers=numbers, categories=categories)

    @cached_property
    def sorted_values(self) -> dict[str, Any]:
        """The finite values of each column of numbers, ascending, float64."""
        if not self.names:
            return {}
        # Only which values a column has counts, so those of a single part are sorted in place.
        table = self.numbers[0] if len(self.numbers) == 1 else np.concatenate(self.numbers, axis=1)
        table.sort(axis=1)  # NaN last
        totals = table.shape[1] - np.count_nonzero(np.isnan(table), axis=1)
        return {name: row[:total] for name, row, total in zip(self.names, table, totals.tolist(), strict=True)}

    def profiles(self, vocabularies: Mapping[str, Any], missing: Mapping[str, float]) -> dict[str, Profile]:
        """Return the profile of each column that has a share of `missing` values; `vocabularies` are of ids' values."""
        found = {name: Profile(share) for name, share in missing.items()}
        columns = {name: values for name, values in self.sorted_values.items() if len(values)}
        deciles = _compute_deciles([*columns.values()]).tolist()
        found |= {
            name: _profile_numbers(values, edges, missing[name])
            for (name, values), edges in zip(columns.items(), deciles, strict=True)
        }
        for name, counts in self.categories.items():
            values, numbers = counts.ranked()
            total = int(numbers.sum()) + counts.missing
            is_known = find_known(values, vocabularies[name]) if len(values) else np.zeros(0, dtype=bool)
            share = int(numbers[~is_known].sum()) / total if total else 0.0
            found[name] = replace(found[name], unknown=share)
        return found


def _profile_numbers(values: Any, deciles: Sequence[float], missing: float) -> Profile:
    """Compute the profile of finite numbers in ascending order, so that sums do not depend on partitions."""
    edges = [*(low for low, high in pairwise(deciles) if low != high), deciles[-1]]
    # Each value once, by its share: the mean of equal ones is what they are, to the last digit.
    weight: Any = 1 / len(values)
    distinct, is_last = values, values[1:] != values[:-1]
    if not is_last.all():
        last = np.append(is_last, True).nonzero()[0]
        distinct, weight = values[last], np.diff(last, prepend=-1) / len(values)
    unit = max(abs(float(values[0])), abs(float(values[-1])), 1.0)  # whose squares are floats
    mean = float((distinct * weight).sum())
    std = unit * float(np.sqrt((np.square(distinct / unit - mean / unit) * weight).sum()))
    ends = [0, *values.searchsorted(edges, side="right").tolist(), len(values)]
    shares = [(end - start) / len(values) for start, end in pairwise(ends)]
    return Profile(missing, mean, std, tuple(edges), tuple(shares))


def _compute_deciles(columns: Sequence[Any]) -> Any:
    """Compute the deciles of columns of ascending values, as `Histogram.quantiles` does, C x 9; zeros have no sign."""
    last = np.array([len(values) - 1 for values in columns], dtype=np.int64)[:, None]
    rank = _DECILES * last
    lower = rank.astype(np.int64)
    ranks = np.stack([lower, np.minimum(lower + 1, last)], axis=1)
    ends = np.array([values[each] for values, each in zip(columns, ranks, strict=True)]).reshape(-1, 2, len(_DECILES))
    part, below, above = rank - lower, ends[:, 0], ends[:, 1]
    with np.errstate(over="ignore"):
        gap = above - below
        return np.where(part < 0.5, below + gap * part, above - gap * (1 - part)) + 0.0
