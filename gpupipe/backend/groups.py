"""Groups of rows with equal keys (as missing ones, and 0.0 and -0.0, are), and their statistics, which merge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.compute as pc

from gpupipe.backend import Array, Backend, Column, Frame, select
from gpupipe.backend.columns import gather
from gpupipe.backend.kernels import aggregate_floats
from gpupipe.schema import FLOATS, Field

_FEW = 1 << 16  # so many possible values are counted, however few rows there are


def sort_order(columns: Sequence[Column], backend: Backend) -> Array:
    """Return the n row positions sorted by the first column, then the second and so on; the sort is stable."""
    xp = backend.xp
    order = xp.arange(len(columns[0]))
    for column in reversed(columns):
        for key in _make_sort_keys(column, backend):
            order = order[xp.argsort(key[order], kind="stable")]
    return order


class GroupSums:
    """Deterministic group sums: values are added in an order that depends on the rows alone.

    CuPy's weighted `bincount` adds by atomics, in the order in which threads happen to come. Instead rows are sorted by
    group, and sums of neighbours are added to each other until one sum is left of each group.
    """

    def __init__(self, ids: Array, num_groups: int, xp: ModuleType) -> None:
        self._ids, self._num_groups, self._xp = ids, num_groups, xp
        if xp is not np:
            self._order = xp.argsort(ids, kind="stable")
            self._ids = ids[self._order]
            self._sizes = xp.bincount(ids, minlength=num_groups)

    def compute(self, values: Array) -> Array:
        """Sum the values of each group, as float64."""
        xp, ids = self._xp, self._ids
        if xp is np:
            return np.bincount(ids, weights=values, minlength=self._num_groups).astype("float64")  # of no rows int64
        sums, step = values[self._order].astype("float64", copy=False), 1
        longest = int(self._sizes.max()) if self._num_groups else 0
        while step < longest:
            sums[:-step] += xp.where(ids[step:] == ids[:-step], sums[step:], 0.0)
            step *= 2
        totals, is_filled = xp.zeros(self._num_groups), self._sizes > 0
        totals[is_filled] = sums[(xp.cumsum(self._sizes) - self._sizes)[is_filled]]
        return totals


@dataclass(frozen=True)
class Groups:
    """Groups of rows with equal keys, numbered in the order of the keys."""

    ids: Array  # n int64, the number of each row's group
    sizes: Array  # the rows of each group; none is empty
    xp: ModuleType
    sorted_by: Array | None = None  # the row positions by group, in the original order within it, where they are known

    def __len__(self) -> int:
        return int(self.sizes.shape[0])

    @cached_property
    def sums(self) -> GroupSums:
        """The group sums of floats."""
        return GroupSums(self.ids, len(self), self.xp)

    @property
    def examples(self) -> Array:
        """The position of any one row of each group; the first, unless all rows of a group have the same keys' bits."""
        xp = self.xp
        if self.sorted_by is not None:
            return self.sorted_by[xp.cumsum(self.sizes) - self.sizes]
        rows, ids = xp.full(len(self), -1, dtype="int64"), self.ids[:_FEW]
        rows[ids] = xp.arange(len(ids))  # of several any one
        if xp is not np or (rows < 0).any():  # whether some of the rows will do is not worth waiting for a GPU
            rows[self.ids] = xp.arange(len(self.ids))
        return rows


def group_by_keys(columns: Sequence[Column], backend: Backend) -> Groups:
    """Group n rows by equal values in all columns: by counting if few values are possible, else by sorting."""
    groups = _group_by_counting(columns, backend)
    if groups is not None:
        return groups
    xp = backend.xp
    order = sort_order(columns, backend)
    begins = xp.zeros(len(order), dtype=bool)
    begins[:1] = True
    for column in columns:
        begins[1:] |= differs(column.take(order), xp)
    ids = xp.zeros(len(order), dtype="int64")
    ids[order] = xp.cumsum(begins) - 1
    return Groups(ids, xp.bincount(ids), xp, order)


def _group_by_counting(columns: Sequence[Column], backend: Backend) -> Groups | None:
    """Group rows by the rank of their keys among all combinations; None if these are many more than the rows."""
    xp, num_rows = backend.xp, len(columns[0])
    most = max(_FEW, 2 * num_rows)
    if not num_rows:
        none = xp.zeros(0, dtype="int64")
        return Groups(none, none, xp)
    places, num_places = None, 1
    for column in columns:
        ranking = _rank_values(column, most // num_places, backend)
        if ranking is None:
            return None
        places = ranking[0] if places is None else places * ranking[1] + ranking[0]
        num_places *= ranking[1]
    counts = xp.bincount(places, minlength=num_places)
    is_used = counts > 0
    return Groups((xp.cumsum(is_used) - 1).take(places), counts[is_used], xp)


def _rank_values(column: Column, most: int, backend: Backend) -> tuple[Array, int] | None:
    """Rank each value among all that are possible, a missing one last, and return how many these are."""
    if column.dictionary is not None:
        size = len(column.dictionary) + 1
        return (_rank_strings(column, backend, "int64"), size) if size <= most else None
    if column.dtype in FLOATS:
        return None
    xp, data, low, span = backend.xp, column.data, 0, 2
    if column.dtype != "bool":
        present = data if column.valid is None else data[column.valid]
        ends = backend.to_host(xp.stack([present.min(), present.max()])) if len(present) else (0, 0)
        low, span = int(ends[0]), int(ends[1]) - int(ends[0]) + 1
    if span >= most:
        return None
    places = (data - data.dtype.type(low) if data.dtype.itemsize == 8 else data.astype("int64") - low).astype("int64")
    if column.valid is None:
        return places, span
    return xp.where(column.valid, places, span), span + 1


def differs(column: Column, xp: ModuleType) -> Array:
    """Return n - 1 booleans: whether each row has another value than the one before it."""
    data, missing = column.data, column.missing(xp)
    other = data[1:] != data[:-1]
    if missing is None or column.dictionary is not None:
        return other
    return (other & ~(missing[1:] & missing[:-1])) | (missing[1:] != missing[:-1])


def _make_sort_keys(column: Column, backend: Backend) -> list[Array]:
    """Return the sort keys of a column, to be applied one after the other, ascending and stable."""
    if column.dictionary is not None:
        return [_rank_strings(column, backend, "uint16" if len(column.dictionary) < 1 << 16 else "int64")]
    if column.dtype in FLOATS:
        return [column.data + 0.0]  # NaN is the last
    key = column.data.astype("uint8") if column.dtype == "bool" else column.data
    if column.valid is None:
        return [key]
    return [backend.xp.where(column.valid, key, key.dtype.type(0)), (~column.valid).astype("uint8")]


def _rank_strings(column: Column, backend: Backend, dtype: str) -> Array:
    """Rank each string in its dictionary; a missing one has the highest rank."""
    dictionary: Any = column.dictionary
    return gather(column, (pc.rank(dictionary).to_numpy() - 1).astype(dtype), len(dictionary), backend)


# The statistics that a function's result follows from.
_MOMENTS = ["count", "total", "squares"]
FUNCTIONS = {name: [name] for name in ("size", "count", "min", "max")}
FUNCTIONS |= {"sum": ["total"], "mean": _MOMENTS[:2], "var": _MOMENTS, "std": _MOMENTS}


@dataclass(frozen=True)
class State:
    """One statistic of the values of one column."""

    statistic: str  # how many rows (size) or values (count); of floats total, squares (of deviations), min or max
    column: str

    @property
    def name(self) -> str:
        """The name of the column that holds the statistic."""
        return f"⟨{self.statistic}⟩ {self.column}"

    @property
    def field(self) -> Field:
        """The field of that column."""
        return Field(self.name, "int64" if self.statistic in ("size", "count") else "float64")


def aggregate_rows(
    columns: Mapping[str, Column], groups: Groups, keys: Sequence[str], states: Sequence[State], backend: Backend
) -> Frame:
    """Compute the statistics of each group of rows, with its keys; all but counts are of float64 columns."""
    examples = groups.examples
    outputs = {key: columns[key].take(examples) for key in keys}
    for name in dict.fromkeys(state.column for state in states):
        statistics = {state.statistic for state in states if state.column == name}
        results = _aggregate_column(columns[name], statistics, groups)
        for state in (State(statistic, name) for statistic in statistics):
            outputs[state.name] = Column(state.field.dtype, results[state.statistic])
    return backend.frame(outputs, len(groups))


def _aggregate_column(column: Column, statistics: AbstractSet[str], groups: Groups) -> dict[str, Array]:
    """Compute these statistics of the values of each group: on a CPU, all of floats in one compiled loop."""
    xp, ids, size = groups.xp, groups.ids, len(groups)
    more = statistics - {"size", "count"}
    if xp is np and more:
        count, total, squares, low, high = aggregate_floats(column.data, ids, size)
        ends = {name: np.where(count > 0, end, np.nan) for name, end in (("min", low), ("max", high))}
        return {"size": groups.sizes, "count": count, "total": total, "squares": squares} | ends
    missing = column.missing(xp)
    count = groups.sizes if missing is None else groups.sizes - xp.bincount(ids[missing], minlength=size)
    results = {"size": groups.sizes, "count": count}
    if "total" in more:
        results["total"] = groups.sums.compute(xp.where(missing, 0.0, column.data))
    if "squares" in more:
        with np.errstate(all="ignore"):
            deviations = xp.where(missing, 0.0, column.data - (results["total"] / xp.maximum(count, 1))[ids])
            results["squares"] = groups.sums.compute(deviations * deviations)
    return results | {end: _find_extreme(column.data, groups, end) for end in ("min", "max") if end in more}


def merge_states(frame: Frame, groups: Groups, keys: Sequence[str], states: Sequence[State]) -> Frame:
    """Merge partial statistics into those of each group, with its keys, on the host; each row is one part.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    cpu = select("cpu")
    columns = {key: cpu.column(frame, key).take(groups.examples) for key in keys}
    for state in states:
        data = cpu.column(frame, state.name).data
        if state.statistic in ("min", "max"):
            result = _find_extreme(data, groups, state.statistic)
        else:
            result = groups.sums.compute(data)
        if state.statistic == "squares":  # and the parts' squared deviations, weighted by their counts
            count, total = (cpu.column(frame, State(part, state.column).name).data for part in ("count", "total"))
            with np.errstate(all="ignore"):
                means = groups.sums.compute(total) / np.maximum(groups.sums.compute(count), 1)
                deviation = total / np.maximum(count, 1) - means[groups.ids]
                result = result + groups.sums.compute(np.where(count > 0, count * deviation * deviation, 0.0))
        dtype = state.field.dtype
        columns[state.name] = Column(dtype, result.astype(dtype))  # counts are exact: they are below 2**53
    return cpu.frame(columns, len(groups))


def compute_result(function: str, frame: Frame, name: str) -> Array:
    """Compute the result of a function of one column from the statistics of each group, on the host, as float64."""
    columns = [select("cpu").column(frame, State(part, name).name) for part in FUNCTIONS[function]]
    statistics = [column.data.astype("float64") for column in columns]
    if function == "mean":
        count, total = statistics
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)
    if function in ("var", "std"):
        count, _, squares = statistics
        variance = np.where(count > 1, squares / np.maximum(count - 1, 1), np.nan)
        return np.sqrt(variance) if function == "std" else variance
    return statistics[0]


def _find_extreme(values: Array, groups: Groups, end: str) -> Array:
    """Compute the min or max float of each group without a sort; NaN of a group without one."""
    xp, missing = groups.xp, groups.xp.isnan(values)
    none, choose = (xp.inf, xp.minimum) if end == "min" else (-xp.inf, xp.maximum)
    ends = xp.full(len(groups), none)
    choose.at(ends, groups.ids, xp.where(missing, none, values) + 0.0)  # of both zeros a GPU takes either
    has_value = xp.bincount(groups.ids[missing], minlength=len(groups)) < groups.sizes
    return xp.where(has_value, ends, xp.nan)
