"""Group-by aggregation with mergeable statistics (count, sum, squares, min, ...): array code for both backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.columns import floats, with_missing_row
from gpupipe.backend.float_kernels import GroupedFloats
from gpupipe.backend.sorting import Groups, sort_order
from gpupipe.schema import FLOATS, Field

FUNCTIONS: Mapping[str, Sequence[str]] = {
    "size": ["size"],
    "count": ["count"],
    "sum": ["sum"],
    "mean": ["count", "total"],
    "var": ["count", "total", "squares"],
    "std": ["count", "total", "squares"],
    "min": ["min"],
    "max": ["max"],
    "first": ["first"],
    "last": ["last"],
}
"""The statistics that a function's result follows from."""

_DTYPES = {"size": "int64", "count": "int64", "total": "float64", "squares": "float64"}


@dataclass(frozen=True)
class State:
    """One statistic of the values of one column.

    Args:
        statistic: how many rows (`size`) or values (`count`); their sum, exactly for integers (`sum`) or as a float
            (`total`); the squared deviations from their mean (`squares`); or one of them.
        column: which.
    """

    statistic: str
    column: str

    @property
    def name(self) -> str:
        """The name of the column that holds the statistic."""
        return f"⟨{self.statistic}⟩ {self.column}"

    def field(self, item: Field) -> Field:
        """Return the field of the column that holds the statistic, given the field of the values' column."""
        dtype = _DTYPES.get(self.statistic, item.dtype)
        if self.statistic == "sum":
            dtype = _sum_dtype(item.dtype)
        return Field(self.name, dtype, nullable=self.statistic in ("min", "max", "first", "last"))


def aggregate_rows(
    frame: Frame, groups: Groups, keys: Sequence[str], states: Sequence[State], backend: Backend
) -> Frame:
    """Compute the statistics of each group of rows, with its keys."""
    columns = {key: backend.column(frame, key).take(groups.examples) for key in keys}
    values = {name: backend.column(frame, name) for name in dict.fromkeys(state.column for state in states)}
    wanted = {name: [state.statistic for state in states if state.column == name] for name in values}
    known = _aggregate_floats(values, wanted, groups, backend)
    for name, column in values.items():
        if name in known:
            found = _to_columns(known[name], column, groups)
        else:
            found = _aggregate_values(column, wanted[name], groups, backend)
        columns |= {State(statistic, name).name: found[statistic] for statistic in wanted[name]}
    return backend.frame(columns, len(groups))


def merge_states(frame: Frame, groups: Groups, keys: Sequence[str], states: Sequence[State], backend: Backend) -> Frame:
    """Merge partial statistics into those of each group, with its keys; each row is one part.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    columns = {key: backend.column(frame, key).take(groups.examples) for key in keys}
    for state in states:
        column = backend.column(frame, state.name)
        if state.statistic in ("min", "max", "first", "last"):
            columns[state.name] = _select_value(column, groups, state.statistic, backend)
        else:
            columns[state.name] = Column(column.dtype, _sum_groups(column.data, groups, backend.xp))
    for state in states:
        if state.statistic == "squares":
            between = _between(frame, columns, state.column, groups, backend)
            columns[state.name] = Column("float64", columns[state.name].data + between)
    return backend.frame(columns, len(groups))


def compute_result(function: str, frame: Frame, item: Field, backend: Backend) -> Column:
    """Compute the result of an aggregate function of one column from the statistics of each group."""
    xp = backend.xp
    found = {name: backend.column(frame, State(name, item.name).name) for name in FUNCTIONS[function]}
    if function not in ("mean", "var", "std"):
        return _restore_float32(found[function], item)
    count = found["count"].data
    if function == "mean":
        return Column("float64", xp.where(count > 0, found["total"].data / xp.maximum(count, 1), xp.nan))
    data = xp.where(count > 1, found["squares"].data / xp.maximum(count - 1, 1), xp.nan)
    return _restore_float32(Column("float64", xp.sqrt(data) if function == "std" else data), item)


def _aggregate_floats(
    columns: Mapping[str, Column], wanted: Mapping[str, Sequence[str]], groups: Groups, backend: Backend
) -> Mapping[str, GroupedFloats]:
    """Aggregate in a compiled loop, on a CPU, float columns that need more than counts and neither first nor last."""
    if backend.name != "cpu":
        return {}
    return {
        name: GroupedFloats.aggregate(floats(column, backend.xp), groups.ids, len(groups))
        for name, column in columns.items()
        if column.dtype in FLOATS and not {"first", "last"} & {*wanted[name]} and {*wanted[name]} - {"size", "count"}
    }


def _to_columns(found: GroupedFloats, column: Column, groups: Groups) -> dict[str, Column]:
    """Convert the statistics to columns."""
    total, dtype = Column("float64", found.total), column.data.dtype
    ends = {"min": found.low, "max": found.high}
    return {
        "size": Column("int64", groups.sizes),
        "count": Column("int64", found.count),
        "sum": total,
        "total": total,
        "squares": Column("float64", found.squares),
    } | {name: Column(column.dtype, np.where(found.count > 0, end, np.nan).astype(dtype)) for name, end in ends.items()}


def _aggregate_values(column: Column, wanted: Sequence[str], groups: Groups, backend: Backend) -> dict[str, Column]:
    """Compute these statistics of the values of each group."""
    xp, data, missing = backend.xp, column.data, column.missing(backend.xp)
    count = groups.sizes if missing is None else groups.sizes - xp.bincount(groups.ids[missing], minlength=len(groups))
    found = {"size": Column("int64", groups.sizes), "count": Column("int64", count)}
    if "sum" in wanted:
        dtype = _sum_dtype(column.dtype)
        found["sum"] = Column(
            dtype, _sum_groups(_fill_missing(data, missing, 0, xp).astype(dtype, copy=False), groups, xp)
        )
    if "total" in wanted:
        values = _fill_missing(data.astype("float64", copy=False), missing, 0, xp)
        found["total"] = Column("float64", _sum_groups(values, groups, xp))
        if "squares" in wanted:
            with np.errstate(all="ignore"):
                values = values - (found["total"].data / xp.maximum(count, 1))[groups.ids]
                if missing is not None:
                    xp.copyto(values, 0.0, where=missing)
                values *= values
                found["squares"] = Column("float64", _sum_groups(values, groups, xp))
    for statistic in ("min", "max", "first", "last"):
        if statistic in wanted:
            found[statistic] = _select_value(column, groups, statistic, backend)
    return {statistic: found[statistic] for statistic in wanted}


def _fill_missing(data: Array, missing: Array | None, instead: float, xp: ModuleType) -> Array:
    """Replace missing values."""
    if missing is None:
        return data
    known = data.copy()
    xp.copyto(known, data.dtype.type(instead), where=missing)
    return known


def _sum_groups(values: Array, groups: Groups, xp: ModuleType) -> Array:
    """Sum the values of each group; integers exactly, modulo 2^64, so that the order does not matter."""
    if values.dtype.kind == "f":
        return groups.sums.compute(values)
    total = xp.zeros(len(groups), dtype="uint64")
    xp.add.at(total, groups.ids, values.view("uint64"))
    return total.view(values.dtype)


def _between(frame: Frame, totals: Mapping[str, Column], column: str, groups: Groups, backend: Backend) -> Array:
    """Compute the between-part sum of squares: squared deviations of the parts' means, weighted by their counts."""
    xp, names = backend.xp, [State(statistic, column).name for statistic in ("count", "total")]
    count, total = (backend.column(frame, name).data for name in names)
    group_count, group_total = (totals[name].data for name in names)
    with np.errstate(all="ignore"):
        means = group_total / xp.maximum(group_count, 1)
        deviation = total / xp.maximum(count, 1) - means[groups.ids]
        return _sum_groups(xp.where(count > 0, count * deviation * deviation, 0.0), groups, xp)


def _select_value(column: Column, groups: Groups, statistic: str, backend: Backend) -> Column:
    """Select the min, max, first or last value of each group; missing if the group has none."""
    xp = backend.xp
    if statistic in ("min", "max") and column.dtype in FLOATS:
        return _find_extreme(column, groups, statistic, xp)
    key = column if statistic in ("min", "max") else Column("bool", ~_present(column, xp))
    order, counts = _sort_by_group(key, column, groups, backend)
    places = groups.starts + (0 if statistic in ("min", "first") else xp.maximum(counts - 1, 0))
    return with_missing_row(column, xp).take(xp.where(counts > 0, order[places], -1))


def _find_extreme(column: Column, groups: Groups, statistic: str, xp: ModuleType) -> Column:
    """Compute the min or max float of each group without a sort."""
    missing = xp.isnan(column.data)
    none, choose = (xp.inf, xp.minimum) if statistic == "min" else (-xp.inf, xp.maximum)
    ends = xp.full(len(groups), none, dtype=column.data.dtype)
    choose.at(ends, groups.ids, _fill_missing(column.data, missing, none, xp) + 0.0)  # of both zeros a GPU takes either
    there = xp.bincount(groups.ids[missing], minlength=len(groups)) < groups.sizes
    return Column(column.dtype, xp.where(there, ends, ends.dtype.type(xp.nan)))


def _sort_by_group(key: Column, column: Column, groups: Groups, backend: Backend) -> tuple[Array, Array]:
    """Sort row positions by group, then by key; also count the values of the column in each group."""
    order = sort_order([Column("int64", groups.ids), key], backend)
    present = groups.ids[_present(column, backend.xp)]
    return order, backend.xp.bincount(present, minlength=len(groups))


def _present(column: Column, xp: ModuleType) -> Array:
    missing = column.missing(xp)
    return xp.ones(len(column), dtype=bool) if missing is None else ~missing


def _restore_float32(column: Column, item: Field) -> Column:
    """Cast sums, deviations and medians of float32 columns back to float32, as in pandas; means stay float64."""
    if item.dtype != "float32" or column.dtype != "float64":
        return column
    with np.errstate(over="ignore"):
        return Column("float32", column.data.astype("float32"))


def _sum_dtype(dtype: str) -> str:
    if dtype in FLOATS:
        return "float64"
    return "uint64" if dtype.startswith("uint") else "int64"
