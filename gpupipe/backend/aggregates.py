"""Group-by statistics that merge (counts, sums, squares, least and greatest): array code for both backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame, select
from gpupipe.backend.float_kernels import aggregate_floats
from gpupipe.backend.sorting import Groups
from gpupipe.schema import Field

# The statistics that a function's result follows from.
FUNCTIONS: Mapping[str, Sequence[str]] = {
    "size": ["size"],
    "count": ["count"],
    "sum": ["total"],
    "mean": ["count", "total"],
    "var": ["count", "total", "squares"],
    "std": ["count", "total", "squares"],
    "min": ["min"],
    "max": ["max"],
}


@dataclass(frozen=True)
class State:
    """One statistic of the values of one column.

    Args:
        statistic: how many rows (`size`) or values (`count`); of floats their sum (`total`), the squared deviations
            from their mean (`squares`), or the `min` or `max` of them.
        column: which.
    """

    statistic: str
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
    frame: Frame, groups: Groups, keys: Sequence[str], states: Sequence[State], backend: Backend
) -> Frame:
    """Compute the statistics of each group of rows, with its keys; all but counts are of float64 columns."""
    columns = {key: backend.column(frame, key).take(groups.examples) for key in keys}
    for name in dict.fromkeys(state.column for state in states):
        wanted = {state.statistic for state in states if state.column == name}
        found = _aggregate_column(backend.column(frame, name), wanted, groups)
        for state in (State(statistic, name) for statistic in wanted):
            columns[state.name] = Column(state.field.dtype, found[state.statistic])
    return backend.frame(columns, len(groups))


def _aggregate_column(column: Column, wanted: AbstractSet[str], groups: Groups) -> dict[str, Array]:
    """Compute these statistics of the values of each group: on a CPU, all of floats in one compiled loop."""
    xp, ids, size = groups.xp, groups.ids, len(groups)
    more = wanted - {"size", "count"}
    if xp is np and more:
        count, total, squares, low, high = aggregate_floats(column.data, ids, size)
        ends = {name: np.where(count > 0, end, np.nan) for name, end in (("min", low), ("max", high))}
        return {"size": groups.sizes, "count": count, "total": total, "squares": squares} | ends
    missing = column.missing(xp)
    count = groups.sizes if missing is None else groups.sizes - xp.bincount(ids[missing], minlength=size)
    found = {"size": groups.sizes, "count": count}
    if "total" in more:
        found["total"] = groups.sums.compute(xp.where(missing, 0.0, column.data))
    if "squares" in more:
        with np.errstate(all="ignore"):
            rest = xp.where(missing, 0.0, column.data - (found["total"] / xp.maximum(count, 1))[ids])
            found["squares"] = groups.sums.compute(rest * rest)
    return found | {end: _find_extreme(column.data, groups, end) for end in ("min", "max") if end in more}


def merge_states(frame: Frame, groups: Groups, keys: Sequence[str], states: Sequence[State]) -> Frame:
    """Merge partial statistics into those of each group, with its keys, on the host; each row is one part.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    cpu = select("cpu")
    columns = {key: cpu.column(frame, key).take(groups.examples) for key in keys}
    for state in states:
        data = cpu.column(frame, state.name).data
        if state.statistic in ("min", "max"):
            made = _find_extreme(data, groups, state.statistic)
        else:
            made = groups.sums.compute(data)
        if state.statistic == "squares":  # and the parts' squared deviations, weighted by their counts
            count, total = (cpu.column(frame, State(part, state.column).name).data for part in ("count", "total"))
            with np.errstate(all="ignore"):
                means = groups.sums.compute(total) / np.maximum(groups.sums.compute(count), 1)
                deviation = total / np.maximum(count, 1) - means[groups.ids]
                made = made + groups.sums.compute(np.where(count > 0, count * deviation * deviation, 0.0))
        dtype = state.field.dtype
        columns[state.name] = Column(dtype, made.astype(dtype))  # counts are exact: they are below 2**53
    return cpu.frame(columns, len(groups))


def compute_result(function: str, frame: Frame, name: str) -> Array:
    """Compute the result of a function of one column from the statistics of each group, on the host, as float64."""
    columns = [select("cpu").column(frame, State(part, name).name) for part in FUNCTIONS[function]]
    found = [column.data.astype("float64") for column in columns]
    if function == "mean":
        count, total = found
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)
    if function in ("var", "std"):
        count, _, squares = found
        variance = np.where(count > 1, squares / np.maximum(count - 1, 1), np.nan)
        return np.sqrt(variance) if function == "std" else variance
    return found[0]


def _find_extreme(values: Array, groups: Groups, end: str) -> Array:
    """Compute the min or max float of each group without a sort; NaN of a group without one."""
    xp, missing = groups.xp, groups.xp.isnan(values)
    none, choose = (xp.inf, xp.minimum) if end == "min" else (-xp.inf, xp.maximum)
    ends = xp.full(len(groups), none)
    choose.at(ends, groups.ids, xp.where(missing, none, values) + 0.0)  # of both zeros a GPU takes either
    there = xp.bincount(groups.ids[missing], minlength=len(groups)) < groups.sizes
    return xp.where(there, ends, xp.nan)
