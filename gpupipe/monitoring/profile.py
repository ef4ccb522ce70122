"""Profiles of columns, from a sample of a dataset's rows that is the same under any partitioning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from threading import Lock
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
_KEPT_NUMBERS = 1 << 23  # of a sample whose profiles nobody has read
_DECILES = np.arange(1, 10) / 10


def draw_rows(frame: Frame, partition: Partition, total: int, num_columns: int, backend: Backend) -> Frame:
    """Draw a partition's part of the sample of at most `total` rows, by their ids: the same under any partitioning."""
    size = min(SAMPLE_ROWS, max(_SAMPLE_NUMBERS // max(num_columns, 1), _FEWEST_ROWS))
    if total <= size:
        return frame
    return backend.take(frame, partition.draw(frame, _SEED, int(size / total * 2.0**64), backend))


@dataclass(frozen=True)
class Sample:
    """Sample of rows from some partitions: a mergeable summary.

    `numbers` are of each part the values of the columns `names`, C x rows float64 on the host, NaN where there is none,
    or no finite one.
    """

    num_rows: int = 0
    names: tuple[str, ...] = ()
    numbers: tuple[Any, ...] = ()

    @classmethod
    def of(cls, frame: Frame, names: Sequence[str], backend: Backend) -> Self:
        """Copy the numbers of one partition's sampled rows."""
        if not names:
            return cls(len(frame))
        matrix, xp = backend.matrix(frame, names), backend.xp
        if matrix is not None:
            values = xp.array(matrix.data, dtype="float64", order="C")  # rows that sort fast, and ours
        else:
            values = xp.stack([floats(backend.column(frame, name), xp) for name in names])
        xp.copyto(values, xp.nan, where=xp.isinf(values))
        return cls(len(frame), tuple(names), (backend.to_host(values),))

    def __add__(self, other: Self) -> Self:
        return replace(self, num_rows=self.num_rows + other.num_rows, numbers=self.numbers + other.numbers)

    def read(self, name: str) -> Any:
        """Copy the values of a column in the order of the rows, which is lost once they are sorted."""
        row = self.names.index(name)
        return np.concatenate([part[row] for part in self.numbers])

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


def compute_unknown_share(counts: ValueCounts, vocabulary: Any) -> float:
    """Compute the share of sampled rows whose value is not in the vocabulary."""
    values, numbers = counts.ranked()
    total = int(numbers.sum()) + counts.missing
    is_known = find_known(values, vocabulary) if len(values) else np.zeros(0, dtype=bool)
    return int(numbers[~is_known].sum()) / total if total else 0.0


class Profiles(Mapping[str, Profile]):
    """Profiles of columns by name, computed when the first is read: most fits are neither saved nor compared.

    Until then the sample stays in memory, unless it has more than 64 MiB of numbers.

    Args:
        missing: of each column the share of rows without a value.
        unknown: of each column that becomes ids the share of rows whose value has none of its own, in the sample.
    """

    def __init__(self, sample: Sample, missing: Mapping[str, float], unknown: Mapping[str, float]) -> None:
        self.missing, self.unknown, self._lock = missing, unknown, Lock()
        self._sample: Sample | None = sample
        if sum(part.size for part in sample.numbers) > _KEPT_NUMBERS:
            self._compute()

    def __getitem__(self, name: str) -> Profile:
        return self._compute()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.missing)

    def __len__(self) -> int:
        return len(self.missing)

    def __reduce__(self) -> tuple[type[dict[str, Profile]], tuple[dict[str, Profile]]]:
        return dict, (self._compute(),)

    def _compute(self) -> dict[str, Profile]:
        with self._lock:
            if self._sample is not None:
                columns = {name: values for name, values in self._sample.sorted_values.items() if len(values)}
                deciles = dict(zip(columns, _compute_deciles([*columns.values()]).tolist(), strict=True))
                self._profiles = {
                    name: _profile_numbers(columns[name], deciles[name], missing, self.unknown.get(name))
                    if name in columns
                    else Profile(missing, unknown=self.unknown.get(name))
                    for name, missing in self.missing.items()
                }
                self._sample = None
        return self._profiles


def _profile_numbers(values: Any, deciles: Sequence[float], missing: float, unknown: float | None) -> Profile:
    """Compute the profile of finite numbers in ascending order, so that sums do not depend on partitions."""
    edges = tuple(dict.fromkeys(deciles))
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
    shares = tuple([(end - start) / len(values) for start, end in pairwise(ends)])
    return Profile(missing, mean, std, edges, shares, unknown)


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
