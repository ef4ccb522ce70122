"""Group summaries, merged over partitions: a row for each group of keys; and the group of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame, select
from gpupipe.backend.columns import floats
from gpupipe.backend.dictionaries import Dictionary, find_positions, make_dictionary, sort_values, unite_dictionaries
from gpupipe.backend.groups import Groups, GroupSums, State, aggregate_rows, group_by_keys, merge_states
from gpupipe.backend.kernels import KeyIndex
from gpupipe.errors import BadConfig, BadData, ColumnNotFound
from gpupipe.preprocessing.categories import FIRST, MISSING, check_categories
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.numeric import LARGEST_SQUARED, any_true, num_rows, refuse
from gpupipe.preprocessing.summaries.counts import DIRECT_RANGE, integers
from gpupipe.schema import FLOATS, INTEGERS, Field
from gpupipe.support.text import derive

# Parts wait to be merged until together they have this many categories: merging a thousand small ones one by one would
# go through the large one they make a thousand times.
_WAITING = 1 << 18


@dataclass(frozen=True)
class MeanStats:
    """Target moments, as in `Moments`: K folds x N categories (and a last one, missing) x T targets."""

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
        """Summarize one partition; `kind` is `"auto"` (strings and booleans are classes), `"continuous"`, else classes.

        Refuses a target that is not of that kind, and numbers that are infinite or beyond 1e145.
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


def _are_many(sizes: Sequence[int]) -> bool:
    """Return whether parts of so many groups or categories have waited long enough to be merged."""
    return sum(sizes) + 64 * len(sizes) > max(_WAITING, 2 * (max(sizes) + 64))


def _waiting(parts: _Parts) -> _Parts:
    return (_one(parts),) if _are_many([len(part.categories) for part in parts]) else parts


def _one(parts: _Parts) -> Any:
    return parts[0] if len(parts) == 1 else type(parts[0]).merged(parts)


def _check_values(values: Array, name: str, where: str, backend: Backend) -> Array:
    xp = backend.xp
    bad = int(backend.to_host((~(xp.abs(values) <= LARGEST_SQUARED)).sum()[None])[0])
    if bad:
        problem = f"{bad:,} values are missing, infinite or beyond {LARGEST_SQUARED:g}"
        remedy = "a Filter before, or another unit"
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


def key_field(fields: Sequence[Field], name: str, where: str) -> Field:
    """Return the field of that name; `ColumnNotFound` or `SchemaMismatch` where it cannot be a group key."""
    found = [item for item in fields if item.name == name]
    if not found:
        raise ColumnNotFound.among(f"{where}(by=...)", name, [item.name for item in fields])
    of_lists = f"T.{derive(name, 'len({})', f'{name}_length')} and by={f'{name}_length'!r}"
    check_categories(found, where, "groups", of_lists)
    return found[0]


class GroupKeys:
    """Group index by the ids of the keys (N x K integers from 0, below `sizes`), no two rows alike.

    The first key's id is a code; its place among the codes there are, with the next key's id, makes another one, and so
    on: no number is ever larger than the groups times the ids of one key.
    """

    def __init__(self, ids: Any, sizes: Sequence[int]) -> None:
        self._sizes, self._levels = sizes, list[KeyIndex]()
        place = np.zeros(len(ids), dtype=np.int64)
        for number, size in enumerate(sizes):
            codes, place = np.unique(place * size + ids[:, number], return_inverse=True)
            self._levels.append(KeyIndex(codes))
        self._groups = np.full(len(ids) + 1, len(ids), dtype=np.int64)
        self._groups[place] = np.arange(len(ids))  # the groups keep the order they were given in

    def places(self, ids: Sequence[Array], backend: Backend) -> Array:
        """Return the group of each row, the number of groups where it has none."""
        place: Any = 0
        for column, size, level in zip(ids, self._sizes, self._levels, strict=True):
            # After a code that is not there (-1) the next one is below 0, and is not there either.
            place = level.positions((place * size + column).astype("int64"), backend).astype("int64")
        return backend.to_device(self._groups)[place]


# Parts wait to be merged until together they have this many groups.


@dataclass(frozen=True)
class GroupTable:
    """Group-by table: groups by keys, where missing values are alike, and their statistics, in Arrow tables."""

    keys: tuple[Field, ...]
    states: tuple[State, ...]
    parts: tuple[Any, ...]

    @classmethod
    def of(cls, columns: Columns, by: Sequence[str], states: Sequence[State], backend: Backend) -> Self:
        """Group the rows of one partition."""
        values = {state.column: _numbers(columns[state.column], backend) for state in states}
        keys = {name: columns[name] for name in by}
        frame = backend.frame(values | keys, len(columns[by[0]]))
        found = aggregate_rows(frame, group_by_keys(list(keys.values()), backend), by, states, backend)
        fields = tuple(Field(name, columns[name].dtype) for name in by)
        return cls(fields, tuple(states), (backend.to_arrow(found),))

    @classmethod
    def of_pairs(cls, columns: Columns, by: Sequence[str], name: str, backend: Backend) -> Self:
        """Count the rows of one partition by group and value of a column, missing ones apart."""
        missing = columns[name].missing(backend.xp)
        there = {key: columns[key] if missing is None else columns[key].take(~missing) for key in (*by, name)}
        return cls.of(there, [*by, name], [State("size", by[0])], backend)

    def __add__(self, other: Self) -> Self:
        parts = (*self.parts, *other.parts)
        both = replace(self, parts=parts)
        if not _are_many([part.num_rows for part in parts]):
            return both
        return replace(self, parts=(select("cpu").to_arrow(both.merged()),))

    def merged(self) -> Frame:
        """Return a row for each group, on the host."""
        cpu, fields = select("cpu"), [*self.keys, *(state.field for state in self.states)]
        frame = cpu.concat([cpu.from_arrow(part, fields) for part in self.parts])
        names = [item.name for item in self.keys]
        groups = group_by_keys([cpu.column(frame, name) for name in names], cpu)
        return merge_states(frame, groups, names, self.states)

    def overall(self, merged: Frame) -> Frame:
        """Return one row for all groups together, or none where there is none."""
        size = len(merged)
        everything = Groups(np.zeros(size, dtype=np.int64), np.full(min(size, 1), size), np)
        return merge_states(merged, everything, [], self.states)


def _numbers(column: Column, backend: Backend) -> Column:
    """Return columns to sum as float64; text and times, which can only be counted, unchanged."""
    is_number = column.dtype in (*FLOATS, *INTEGERS, "bool")
    return Column("float64", floats(column, backend.xp)) if is_number else column


@dataclass(frozen=True)
class GroupTables:
    """Summary of groups by the same keys, in several tables."""

    names: tuple[str, ...]
    key_dtypes: tuple[str, ...]
    tables: tuple[GroupTable, ...]

    def __add__(self, other: Self) -> Self:
        return replace(self, tables=tuple(a + b for a, b in zip(self.tables, other.tables, strict=True)))


def learn_ids(column: Column) -> tuple[Any, Dictionary]:
    """Return the id of each value of a column on the host (see `categories`), and the distinct values in order."""
    codes, values = encode_values(column, select("cpu"))
    vocabulary = sort_values(values.take(np.unique(codes[codes < len(values)])))
    return np.append(find_positions(values, vocabulary) + FIRST, MISSING)[codes], vocabulary


def check_sizes(columns: Columns, backend: Backend, where: str) -> None:
    """Raise `BadData` for an infinity, or a value beyond 1e145."""
    blocks = (floats(column, backend.xp) for column in columns.values())
    if any_true([(backend.xp.abs(values) > LARGEST_SQUARED).any() for values in blocks], backend):
        refuse(columns, backend, where, too_large="a value is too large to be squared")
