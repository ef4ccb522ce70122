"""Mergeable summaries of partitions, which fits add up: counts, histograms, moments, covariances, samples, groups."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame, dictionaries, select
from gpupipe.backend.arrow import concat_tables
from gpupipe.backend.columns import floats
from gpupipe.backend.dictionaries import Dictionary, SpilledCounts, make_dictionary, merge_counts
from gpupipe.backend.groups import Groups, State, aggregate_rows, group_by_keys, merge_states
from gpupipe.backend.histogram import MAX_BINS, Histogram
from gpupipe.backend.kernels import compute_moments, find_bounds, splitmix64
from gpupipe.backend.moments import merge_moments
from gpupipe.backend.value_counts import address_integers, count_numbers, integers
from gpupipe.config import settings
from gpupipe.errors import BadData
from gpupipe.preprocessing.learned_step import (
    LARGEST_SQUARED,
    Columns,
    any_true,
    check_squares,
    num_rows,
    refuse,
    row_blocks,
    stack_rows,
    tabulate,
)
from gpupipe.schema import FLOATS, Field

# Parts wait to be merged until together they have this many values, or groups: merging a thousand small ones one by one
# would go through the large one they make a thousand times.
_WAITING_VALUES, _WAITING_GROUPS = 1 << 20, 1 << 18

# The bytes of distinct values of one column that stay in memory while partitions are read.
_RESIDENT_BYTES = 32 << 20


ColumnSummary = TypeVar("ColumnSummary", bound=Any)


@dataclass(frozen=True)
class ColumnSummaries(Generic[ColumnSummary]):
    """Summary of some columns, each by itself."""

    names: tuple[str, ...]
    columns: tuple[ColumnSummary, ...]

    def __add__(self, other: Self) -> Self:
        return replace(self, columns=tuple(a + b for a, b in zip(self.columns, other.columns, strict=True)))

    def filled(self, values: Mapping[str, Any]) -> Self:
        """Return the summary with each missing value replaced by `values[name]`."""
        pairs = zip(self.names, self.columns, strict=True)
        return replace(self, columns=tuple(column.filled(values[name]) for name, column in pairs))


@dataclass(frozen=True)
class ValueCounts:
    """Value counts of one column: pairs of values and counts, in any of which a value may be; too many are on disk."""

    dtype: str
    parts: tuple[tuple[Dictionary, Any], ...]
    missing: int
    spilled: SpilledCounts = field(default_factory=SpilledCounts)

    @classmethod
    def of(cls, column: Column, backend: Backend) -> Self:
        """Count the values of one partition's column."""
        if column.dictionary is not None:
            codes = column.data.astype("int64") + 1
            table = backend.to_host(backend.xp.bincount(codes, minlength=len(column.dictionary) + 1)).astype(np.int64)
            used, missing = np.flatnonzero(table[1:]), int(table[0])
            values = column.dictionary if len(used) == len(column.dictionary) else column.dictionary.take(used)
            counts = table[1:][used]
        else:
            counted = [backend.to_host(array) for array in count_numbers(column, backend)]
            values, counts = make_dictionary(counted[0], column.dtype), counted[1]
            missing = len(column) - int(counts.sum())
        return cls(column.dtype, ((values, counts),), missing)

    def __add__(self, other: Self) -> Self:
        parts, spilled = (*self.parts, *other.parts), self.spilled + other.spilled
        sizes = [len(values) for values, _ in parts]
        if sum(sizes) > max(_WAITING_VALUES, 2 * max(sizes, default=0)):
            values, counts = merge_counts(parts)
            limit = settings().memory_limit
            fits = values.nbytes <= (_RESIDENT_BYTES if limit is None else min(_RESIDENT_BYTES, limit // 32))
            parts, spilled = (((values, counts),), spilled) if fits else ((), spilled.with_run(values, counts))
        return replace(self, parts=parts, missing=self.missing + other.missing, spilled=spilled)

    def filled(self, value: Any) -> Self:
        """Return the counts with each missing value replaced by `value`."""
        if not self.missing:
            return self
        extra = make_dictionary([value], self.dtype), np.array([self.missing])
        return replace(self, parts=(*self.parts, extra), missing=0)

    def ranked(self, min_count: int = 1) -> tuple[Dictionary, Any]:
        """Return values that occur `min_count` times or more, and counts, by count descending, then value ascending."""
        if self.spilled.runs:
            runs = self.spilled.with_run(*merge_counts(self.parts)) if self.parts else self.spilled
            return dictionaries.sort_by_count(*runs.merge(min_count))
        return dictionaries.sort_by_count(*dictionaries.filter_frequent(*merge_counts(self.parts), min_count))

    def most_frequent(self) -> Any:
        """Return the first value by rank; None where there is no value."""
        values, _ = self.ranked()
        value = values[0].as_py() if len(values) else None
        return bool(value) if self.dtype == "bool" and len(values) else value


class CategoryCounts(ColumnSummaries[ValueCounts]):
    """Value counts of some columns."""

    @classmethod
    def of(cls, columns: Columns, backend: Backend, where: str, uncounted: Container[str] = ()) -> Self:
        """Count the values of one partition; refuses infinities. Of columns that are `uncounted` the type is kept."""
        counted = tuple(
            ValueCounts(column.dtype, (), 0) if name in uncounted else ValueCounts.of(column, backend)
            for name, column in columns.items()
        )
        for item in counted:
            if item.parts and item.dtype in FLOATS and not np.isfinite(item.parts[0][0].to_numpy()).all():
                refuse(columns, backend, where)
        return cls(tuple(columns), counted)


def encode_values(column: Column, backend: Backend) -> tuple[Array, Dictionary]:
    """Return codes in a dictionary of distinct values, its length where a row is missing, and the dictionary."""
    xp = backend.xp
    if column.dictionary is not None:
        codes = column.data.astype("int64")
        return xp.where(codes < 0, len(column.dictionary), codes), column.dictionary
    data = floats(column, xp) + 0.0 if column.dtype in FLOATS else integers(column.data, column.dtype)
    missing = column.missing(xp)
    present = data if missing is None else data[~missing]
    addressed = None if column.dtype in FLOATS else address_integers(present, backend)
    if addressed is None:
        uniques, places = xp.unique(present, return_inverse=True)
        values = backend.to_host(uniques)
    else:
        places, first, size = addressed
        values = np.arange(size).astype(first.dtype) + first
    dictionary = make_dictionary(values, column.dtype)
    if missing is None:
        return places, dictionary
    codes = xp.full(len(data), len(dictionary), dtype="int64")
    codes[~missing] = places
    return codes, dictionary


class Quantiles(ColumnSummaries[Histogram]):
    """Histograms of some columns."""

    @classmethod
    def of(cls, columns: Columns, backend: Backend, where: str, *, exact: bool = False) -> Self:
        """Count the values of one partition; with `exact` each distinct value has a bin. Refuses infinities."""
        limit = sys.maxsize if exact else MAX_BINS
        histograms = tuple(Histogram.of(column, backend, limit) for column in columns.values())
        for item in histograms:
            if len(item.keys) and not np.isfinite(item.ends).all():
                refuse(columns, backend, where)
        return cls(tuple(columns), histograms)

    @property
    def totals(self) -> list[int]:
        """The number of values of each column."""
        return [item.total for item in self.columns]

    @property
    def relative_errors(self) -> Any:
        """The largest errors of quantiles relative to the true ones, C float64; 0 where exact."""
        return np.array([item.relative_error for item in self.columns])


@dataclass(frozen=True)
class Extremes:
    """Minimum and maximum of C columns (float64; +inf and -inf where there is no value), and their missing values."""

    names: tuple[str, ...]
    missing: Any
    low: Any
    high: Any

    @classmethod
    def of(cls, columns: Columns, backend: Backend, where: str) -> Self:
        """Compute the extremes of one partition; refuses infinities."""
        extremes = cls.of_blocks(columns, tabulate(columns, find_bounds, 3, backend))
        if np.isneginf(extremes.low).any() or np.isposinf(extremes.high).any():
            refuse(columns, backend, where)
        return extremes

    @classmethod
    def of_blocks(cls, columns: Columns, table: Any) -> Self:
        """Merge the extremes of one partition's blocks: B x C x 3, as `tabulate` gives them."""
        low, high = table[..., 1].min(axis=0, initial=np.inf), table[..., 2].max(axis=0, initial=-np.inf)
        return cls(tuple(columns), table[..., 0].sum(axis=0).astype(np.int64), low, high)

    def __add__(self, other: Self) -> Self:
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return replace(self, missing=self.missing + other.missing, low=low, high=high)

    def filled(self, values: Mapping[str, Any]) -> Self:
        """Return the extremes with each missing value replaced by `values[name]`."""
        fill = np.array([float(values[name]) for name in self.names])
        low = np.where(self.missing > 0, np.minimum(self.low, fill), self.low)
        high = np.where(self.missing > 0, np.maximum(self.high, fill), self.high)
        return replace(self, missing=np.zeros_like(self.missing), low=low, high=high)


_SAMPLED = 1024


@dataclass(frozen=True)
class Moments(Extremes):
    """Moments of C columns: count, mean and sum of squared deviations, missing values apart, besides the extremes.

    Deviations are taken from a value among a partition's own, and partitions are joined by the formula of Chan, Golub
    and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979): a column near 1e9
    keeps its digits. `mean` is 0 where there is no value, `m2` the sums of squared deviations from it.
    """

    count: Any
    mean: Any
    m2: Any

    @classmethod
    def of(cls, columns: Columns, backend: Backend, where: str) -> Self:
        """Compute the moments of one partition; refuses infinities, and values beyond 1e145, whose squares add up."""
        centres = _centres(columns, backend)
        table = tabulate(columns, compute_moments, 5, backend, centres.tolist())
        extremes = Extremes.of_blocks(columns, table[..., :3])
        if (np.maximum(-extremes.low, extremes.high) > LARGEST_SQUARED).any():
            refuse(columns, backend, where, too_large="a value is too large to be squared")
        count, (total, squares) = num_rows(columns) - extremes.missing, table[..., 3:].sum(axis=0).T
        correction = total / np.maximum(count, 1)
        mean = np.where(count > 0, centres + correction, 0.0)
        return cls(**vars(extremes), count=count, mean=mean, m2=np.maximum(squares - total * correction, 0.0))

    def __add__(self, other: Self) -> Self:
        pairs = (self.count, other.count), (self.mean, other.mean), (self.m2, other.m2)
        count, mean, m2 = merge_moments(*map(np.stack, pairs))
        return replace(super().__add__(other), count=count, mean=mean, m2=m2)

    def filled(self, values: Mapping[str, Any]) -> Self:
        """Return the moments with each missing value replaced by `values[name]`; refuses one beyond 1e145."""
        fill = np.array([float(values[name]) for name in self.names])
        for name, value, gaps in zip(self.names, fill, self.missing, strict=True):
            if gaps and abs(value) > LARGEST_SQUARED:
                problem, remedy = "what missing values are filled with is too large to be squared", "another fill_value"
                expected = f"at most {LARGEST_SQUARED:g}"
                raise BadData(f"column {name!r}", problem, got=float(value), expected=expected, remedy=remedy)
        pairs = (self.count, self.missing), (self.mean, fill), (self.m2, np.zeros_like(fill))
        count, mean, m2 = merge_moments(*map(np.stack, pairs))
        return replace(super().filled(values), count=count, mean=mean, m2=m2)

    @property
    def variance(self) -> Any:
        """The variance, C float64, with divisor n; 0 where it is below the resolution of the mean."""
        variance = self.m2 / np.maximum(self.count, 1)
        return np.where(np.sqrt(variance) <= np.finfo(np.float64).eps * np.abs(self.mean), 0.0, variance)


def _centres(columns: Columns, backend: Backend) -> Any:
    """Return a number amid each column's values, C float64; 0 where there is none.

    The mean of some will do, whichever they are: squares around it exceed those around the mean by so little that the
    difference keeps its digits.
    """
    xp, size = backend.xp, num_rows(columns)
    sample = stack_rows(columns, slice(0, size, size // _SAMPLED + 1), xp)
    missing = xp.isnan(sample)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = xp.where(missing, 0.0, sample).sum(axis=1)
    count, total = backend.to_host(xp.stack([(~missing).sum(axis=1).astype(xp.float64), sums]))
    names = list(columns)
    for index in np.flatnonzero(count == 0):
        values = floats(columns[names[index]], xp)
        present = values[~xp.isnan(values)][:_SAMPLED]
        if len(present):
            count[index], total[index] = len(present), float(backend.to_host(present).sum())
    centres = total / np.maximum(count, 1)
    return np.where(np.isfinite(centres), centres, 0.0)  # else an infinity less another would be taken for missing


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
    parts: tuple[Columns, ...] | None
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
                correction = deviation.mean(axis=1, keepdims=True)
                deviation -= correction
                parts.append(xp.concatenate([(mean + correction).T, deviation @ deviation.T]))
                sizes.append(rows.stop - rows.start)
        if parts:
            for size, part in zip(sizes, backend.to_host(xp.stack(parts)), strict=True):
                total = total + replace(total, count=size, mean=part[0], m2=part[1:])
            check_squares(columns, total.mean, np.diag(total.m2), backend, where)
        return replace(total, parts=(columns,) if num_rows(columns) * width * 8 <= max_bytes else None)

    @property
    def holds_rows(self) -> bool:
        return self.parts is not None

    def _moved(self, move: Callable[[Array], Array]) -> dict[str, Any]:
        parts = [{name: column.move(move) for name, column in part.items()} for part in self.parts or ()]
        return {"parts": None if self.parts is None else tuple(parts)}

    def __add__(self, other: Self) -> Self:
        if not self.count or not other.count:
            return other if other.count else self
        count = self.count + other.count
        share = other.count / count
        with np.errstate(over="ignore", invalid="ignore"):
            shift = other.mean - self.mean
            m2 = self.m2 + other.m2 + np.outer(shift, shift) * (self.count * share)
        parts = None
        if self.parts is not None and other.parts is not None and count * len(self.names) * 8 <= self.max_bytes:
            parts = (*self.parts, *other.parts)
        return replace(self, count=count, mean=self.mean + shift * share, m2=m2, parts=parts)

    def deviations(self) -> Array:
        """Return all rows kept, less the means: n x F float64, private to the caller."""
        xp = self.backend.xp
        rows = xp.concatenate([stack_rows(columns, slice(None), xp) for columns in self.parts or ()], axis=1)
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
        return cls(tuple(columns), ((block, numbers),), len(block), max_rows, seed, backend).thinned(0)

    def __add__(self, other: Self) -> Self:
        halvings = max(self.halvings, other.halvings)
        left, right = self.thinned(halvings), other.thinned(halvings)
        num_rows = self.num_rows + other.num_rows
        return replace(left, parts=(*left.parts, *right.parts), num_rows=num_rows).thinned(halvings)

    def _moved(self, move: Callable[[Array], Array]) -> dict[str, Any]:
        return {"parts": tuple((move(block), move(numbers)) for block, numbers in self.parts)}

    def thinned(self, halvings: int) -> Self:
        """Halve the sample so many times, and further until at most `max_rows` are left."""
        rows = self
        if halvings > self.halvings:
            bits = np.uint64(64 - halvings)
            keep = [splitmix64(self.seed, numbers) >> bits == 0 for _, numbers in self.parts]
            pairs = zip(self.parts, keep, strict=True)
            parts = tuple((block[mask], numbers[mask]) for (block, numbers), mask in pairs)
            rows = replace(self, parts=parts, halvings=halvings)
        return rows if rows.num_kept <= self.max_rows else rows.thinned(halvings + 1)

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


@dataclass(frozen=True)
class GroupTable:
    """Group-by table: groups by keys, where missing values are alike, and their statistics, in Arrow tables."""

    keys: tuple[Field, ...]
    states: tuple[State, ...]
    parts: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        columns: Columns,
        by: Sequence[str],
        states: Sequence[State],
        backend: Backend,
        groups: Groups | None = None,
    ) -> Self:
        """Group the rows of one partition, whose groups may be given."""
        summed = {state.column for state in states if state.statistic not in ("size", "count")}
        numbers = {name: Column("float64", floats(columns[name], backend.xp)) for name in summed}
        groups = group_by_keys([columns[name] for name in by], backend) if groups is None else groups
        frame = aggregate_rows({**columns, **numbers}, groups, by, states, backend)
        fields = tuple(Field(name, columns[name].dtype) for name in by)
        return cls(fields, tuple(states), (backend.to_arrow(frame),))

    @classmethod
    def of_pairs(cls, columns: Columns, by: Sequence[str], name: str, backend: Backend) -> Self:
        """Count the rows of one partition by group and value of a column, missing ones apart."""
        missing = columns[name].missing(backend.xp)
        pairs = {key: columns[key] if missing is None else columns[key].take(~missing) for key in (*by, name)}
        return cls.of(pairs, [*by, name], [State("size", by[0])], backend)

    def __add__(self, other: Self) -> Self:
        both = replace(self, parts=(*self.parts, *other.parts))
        sizes = [part.num_rows + 64 for part in both.parts]
        if sum(sizes) <= max(_WAITING_GROUPS, 2 * max(sizes)):
            return both
        return replace(self, parts=(select("cpu").to_arrow(both.merged()),))

    def merged(self) -> Frame:
        """Return a row for each group, on the host."""
        cpu, fields = select("cpu"), [*self.keys, *(state.field for state in self.states)]
        frame = cpu.from_arrow(concat_tables(self.parts, fields), fields)
        if len(self.parts) == 1:
            return frame
        names = [item.name for item in self.keys]
        groups = group_by_keys([cpu.column(frame, name) for name in names], cpu)
        return merge_states(frame, groups, names, self.states)

    def overall(self, merged: Frame) -> Frame:
        """Return one row for all groups together, or none where there is none."""
        size = len(merged)
        everything = Groups(np.zeros(size, dtype=np.int64), np.full(min(size, 1), size), np)
        return merge_states(merged, everything, [], self.states)
