"""Target statistics by category and fold: counts, means and variances, merged over partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.columns import floats
from gpupipe.backend.dictionaries import Dictionary, find_positions, make_dictionary, unite_dictionaries
from gpupipe.backend.float_kernels import GroupSums
from gpupipe.errors import BadConfig, BadData
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.numeric import LARGEST_SQUARED, num_rows
from gpupipe.preprocessing.summaries.counts import DIRECT_RANGE, integers
from gpupipe.schema import FLOATS, INTEGERS

# Parts wait to be merged until together they have this many categories: merging a thousand small ones one by one would
# go through the large one they make a thousand times.
_WAITING = 1 << 18


@dataclass(frozen=True)
class MeanStats:
    """Target moments: of T numbers in K folds and N categories (and a last one, missing), as in `Moments`.

    `count` (rows) is K x (N + 1), `mean` and `m2` are K x (N + 1) x T.
    """

    categories: Dictionary
    count: Any
    mean: Any
    m2: Any

    @classmethod
    def of(
        cls, codes: Array, categories: Dictionary, folds: Array, num_folds: int, target: list[Array], backend: Backend
    ) -> Self:
        """Compute the statistics of one partition, for T arrays of numbers without missing ones."""
        xp, width = backend.xp, len(categories) + 1
        cell, size = folds * width + codes, num_folds * width
        count, sums = xp.bincount(cell, minlength=size), GroupSums(cell, size, xp)
        divisor = xp.maximum(count, 1)
        found = [count.astype("float64")]
        for values in target:
            mean = sums.compute(values) / divisor
            deviation = values - mean[cell]
            rest, square = sums.compute(deviation), sums.compute(deviation * deviation)
            found += [mean + rest / divisor, xp.maximum(square - rest * rest / divisor, 0.0)]
        table = backend.to_host(xp.stack(found, axis=-1)).reshape(num_folds, width, -1)
        used = np.append(table[:, :-1, 0].any(axis=0), True)
        table, categories = table[:, used], _take_used(categories, used[:-1])
        return cls(categories, table[..., 0].astype(np.int64), table[..., 1::2], table[..., 2::2])

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """Merge the folds of some parts, by the formula of Chan, Golub and LeVeque (see `Moments`)."""
        categories, places = _unite_categories(parts)
        shape = (*parts[0].count.shape[:1], len(categories) + 1, *parts[0].mean.shape[2:])
        count, centre = np.zeros(shape[:2], np.int64), np.zeros(shape)
        for part, at in zip(parts, places, strict=True):
            count[:, at] += part.count
            centre[:, at] = np.where(part.count[..., None] > 0, part.mean, centre[:, at])
        share, step, m2 = 1 / np.maximum(count, 1), np.zeros(shape), np.zeros(shape)
        for part, at in zip(parts, places, strict=True):
            shift = np.where(part.count[..., None] > 0, part.mean - centre[:, at], 0.0)
            step[:, at] += (part.count * share[:, at])[..., None] * shift
        for part, at in zip(parts, places, strict=True):
            shift = np.where(part.count[..., None] > 0, part.mean - centre[:, at] - step[:, at], 0.0)
            m2[:, at] += part.m2 + part.count[..., None] * np.square(shift)
        return cls(categories, count, centre + step, m2)

    def among(self, categories: Dictionary) -> Self:
        """Return the statistics of these categories, and of missing; those that never occurred have no row."""
        places = find_positions(categories, self.categories)
        missing = self.count.shape[1] - 1

        def taken(values: Any) -> Any:
            padded = np.concatenate([values, np.zeros_like(values[:, :1])], axis=1)  # -1 is the last
            return padded[:, np.append(places, missing)]

        return type(self)(categories, taken(self.count), taken(self.mean), taken(self.m2))


@dataclass(frozen=True)
class ClassCounts:
    """Target class counts: K folds x N categories (and a last one, missing) x C classes, int64."""

    categories: Dictionary
    classes: Dictionary
    counts: Any

    @classmethod
    def of(
        cls, codes: Array, categories: Dictionary, folds: Array, num_folds: int, target: Column, backend: Backend
    ) -> Self:
        """Count the classes of one partition, for a target without missing values."""
        xp = backend.xp
        of_class, classes = encode_values(target, backend)
        width, depth = len(categories) + 1, len(classes) + 1
        cell = (folds * width + codes) * depth + of_class
        table = backend.to_host(xp.bincount(cell, minlength=num_folds * width * depth))
        counts = table.reshape(num_folds, width, depth)[..., :-1].astype(np.int64)
        used = np.append(counts[:, :-1].any(axis=(0, 2)), True)
        there = counts.any(axis=(0, 1))
        return cls(_take_used(categories, used[:-1]), _take_used(classes, there), counts[:, used][..., there])

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """Merge all rows of some parts."""
        categories, places = _unite_categories(parts)
        classes = unite_dictionaries([part.classes for part in parts])
        counts = np.zeros((parts[0].counts.shape[0], len(categories) + 1, len(classes)), np.int64)
        for part, at in zip(parts, places, strict=True):
            counts[:, at[:, None], find_positions(part.classes, classes)] += part.counts
        return cls(categories, classes, counts)

    def numbers(self, classes: Dictionary) -> MeanStats:
        """Return the statistics of each of these classes, as a number that is 1 in its rows and 0 in all others."""
        places = find_positions(classes, self.classes)
        none = np.zeros((*self.counts.shape[:2], 1), np.int64)
        counts = np.concatenate([self.counts, none], axis=-1)[..., places]  # -1 is the last
        total = self.counts.sum(axis=-1)
        mean = counts / np.maximum(total, 1)[..., None]
        return MeanStats(self.categories, total, mean, counts * (1 - mean))


def encode_values(column: Column, backend: Backend) -> tuple[Array, Dictionary]:
    """Return codes in a dictionary of distinct values, its length where a row is missing, and the dictionary."""
    xp = backend.xp
    if column.dictionary is not None:
        codes = column.data.astype("int64")
        return xp.where(codes < 0, len(column.dictionary), codes), column.dictionary
    data = floats(column, xp) + 0.0 if column.dtype in FLOATS else integers(column.data, column.dtype)
    missing = column.missing(xp)
    present = data if missing is None else data[~missing]
    places = None
    if column.dtype not in FLOATS and len(present):
        low, high = backend.to_host(xp.stack([present.min(), present.max()])).tolist()
        if high - low < max(DIRECT_RANGE, len(data)):
            places = (present - present.dtype.type(low)).astype("int64")
            values = np.arange(high - low + 1, dtype=np.uint64).astype(data.dtype) + data.dtype.type(low)
    if places is None:
        found, places = xp.unique(present, return_inverse=True)
        values = backend.to_host(found)
    dictionary = make_dictionary(values, column.dtype)
    if missing is None:
        return places, dictionary
    codes = xp.full(len(data), len(dictionary), dtype="int64")
    codes[~missing] = places
    return codes, dictionary


def _take_used(values: Dictionary, used: Any) -> Dictionary:
    return values if used.all() else values.take(np.flatnonzero(used))


def _unite_categories(parts: Sequence[Any]) -> tuple[Dictionary, list[Any]]:
    """Return the categories of all parts, and for each part the positions of its own, missing last."""
    categories = unite_dictionaries([part.categories for part in parts])
    found = [find_positions(part.categories, categories) for part in parts]
    return categories, [np.append(places, len(categories)).astype(np.int64) for places in found]


_Parts = tuple[Any, ...]  # of MeanStats or of ClassCounts, one kind


@dataclass(frozen=True)
class TargetSummary:
    """Target statistics by category and fold, for some columns.

    `columns` are the parts of each one that wait to be merged, `whole` those of all rows, as the missing ones of a
    column without a category. The target is binary if each value is a boolean, or the integer 0 or 1.
    """

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    targets: tuple[str, ...]
    columns: tuple[_Parts, ...]
    whole: _Parts
    is_binary: bool

    @classmethod
    def of(
        cls, columns: Columns, target: Columns, folds: Array, num_folds: int, kind: str, where: str, backend: Backend
    ) -> Self:
        """Summarize one partition.

        The target has no missing values; `folds` are those of the rows. The kind is `"auto"` (strings and booleans are
        classes), `"continuous"`, or anything else for classes. Refuses a target that is not of that kind, and numbers
        that are infinite or beyond 1e145.
        """
        xp = backend.xp
        dtypes = {item.dtype for item in target.values()}
        if kind == "auto" and len(target) > 1 and dtypes == {"bool"}:
            kind = "continuous"  # the mean of a condition is how often it holds
        none = xp.zeros(num_rows(columns), dtype="int64"), make_dictionary([], "string")
        encoded = [*(encode_values(column, backend) for column in columns.values()), none]
        if (kind == "auto" and dtypes & {"string", "bool"}) or kind not in ("auto", "continuous"):
            if len(target) > 1:
                raise _unfit(where, target, "several targets have to be numbers", "one target, or int(...) of each")
            (labels,) = target.values()
            made: list[Any] = [ClassCounts.of(*codes, folds, num_folds, labels, backend) for codes in encoded]
        else:
            if dtypes & {"string", "timestamp"}:
                raise _unfit(where, target, "it is no number", "target_type='auto' for text, or the time since another")
            values = [_check_values(floats(item, xp), name, where, backend) for name, item in target.items()]
            made = [MeanStats.of(*codes, folds, num_folds, values, backend) for codes in encoded]
        *parts, whole = ((cells,) for cells in made)
        dtypes_in, is_binary = (c.dtype for c in columns.values()), all(_is_binary(c, backend) for c in target.values())
        return cls(tuple(columns), tuple(dtypes_in), tuple(target), tuple(parts), whole, is_binary)

    def __add__(self, other: Self) -> Self:
        pairs = zip((*self.columns, self.whole), (*other.columns, other.whole), strict=True)
        *columns, whole = (_waiting((*mine, *theirs)) for mine, theirs in pairs)
        both = self.is_binary and other.is_binary
        return replace(self, columns=tuple(columns), whole=whole, is_binary=both)

    def merged(self) -> tuple[list[Any], Any]:
        """Return the statistics of each column, and of all rows, as `MeanStats` or `ClassCounts`."""
        *columns, whole = (_one(parts) for parts in (*self.columns, self.whole))
        return columns, whole


def _waiting(parts: _Parts) -> _Parts:
    sizes = [len(part.categories) + 64 for part in parts]
    return parts if sum(sizes) <= max(_WAITING, 2 * max(sizes)) else (_one(parts),)


def _one(parts: _Parts) -> Any:
    return parts[0] if len(parts) == 1 else type(parts[0]).merged(parts)


def _check_values(values: Array, name: str, where: str, backend: Backend) -> Array:
    xp = backend.xp
    bad = int(backend.to_host((~(xp.abs(values) <= LARGEST_SQUARED)).sum()[None])[0])
    if bad:
        problem, remedy = (
            f"{bad:,} values are missing, infinite or beyond {LARGEST_SQUARED:g}",
            "another unit, or Filter",
        )
        raise BadData(f"{where}, target {name!r}", problem, expected="finite numbers", remedy=remedy)
    return values


def _is_binary(column: Column, backend: Backend) -> bool:
    if column.dtype not in INTEGERS:
        return column.dtype == "bool"
    return bool(backend.to_host(((column.data == 0) | (column.data == 1)).all()[None])[0])


def _unfit(where: str, target: Columns, problem: str, remedy: str) -> BadConfig:
    got = {name: column.dtype for name, column in target.items()}
    expected = "a number per row and target, or one target of classes"
    return BadConfig(where, problem, got=got, expected=expected, remedy=remedy)
