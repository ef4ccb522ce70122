"""Imputation by group: missing values become the statistic of the row's group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Backend, Column, Frame, select
from gpupipe.backend.columns import floats
from gpupipe.backend.dictionaries import find_positions, sort_values, unite_dictionaries
from gpupipe.backend.groups import FUNCTIONS, State, compute_result
from gpupipe.errors import BadConfig
from gpupipe.preprocessing.categories import FIRST, find_lookup
from gpupipe.preprocessing.learned_step import Columns, LearnedStep
from gpupipe.preprocessing.numeric import any_true, check_numeric, refuse, refuse_empty
from gpupipe.preprocessing.summaries import groups as grouped
from gpupipe.schema import FLOATS, Field
from gpupipe.support.validation import check_choice, check_name


class GroupImputer(LearnedStep):
    """Imputation of numbers by the mean, median or most frequent value of the rows of the same group.

    Rows whose group is missing, was not there in `fit`, or had no value in the column get the statistic of all rows.
    The column of groups does not come out. Outputs are float64 (float32 stays). Of several most frequent values the
    smallest is taken.

    Args:
        by: the column of groups: strings, integers, booleans or ids.
        strategy: `"mean"`, `"median"` or `"most_frequent"`.

    Attributes:
        groups_: the groups, ascending, as an Arrow array on the host.
        statistics_: C x (N + 1) float64: for each column the value of each group, and last that of all rows.
        key_dtype_: the type of `by` in `fit`.

    Raises:
        BadConfig: there is no other column.
        ColumnNotFound: `by` is not among the columns.
        SchemaMismatch: the groups are text where numbers were learned, or the other way round.
        BadData: an infinity, a value beyond 1e145, or a column without a value.

    Memory: fitting keeps a row per group, for other than means per group and value, on the host; transform the outputs.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"origin": ["JFK", "JFK", "LGA", "EWR"], "temp": [10.0, None, 20.0, None]})
        >>> GroupImputer("origin").fit_transform(frame)["temp"].tolist()
        [10.0, 10.0, 20.0, 15.0]
    """

    keeps_units = True

    def __init__(self, by: str, strategy: str = "mean") -> None:
        check_name(self, by=by)
        check_choice(self, ("mean", "median", "most_frequent"), strategy=strategy)
        self.by, self.strategy = by, strategy

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        values = [item for item in fields if item.name != self.by]
        key = grouped.key_field(fields, self.by, "GroupImputer")
        check_numeric(values, "GroupImputer", "SimpleImputer('most_frequent') for strings")
        if not values:
            problem, expected = "there is no column besides the group keys", "columns of numbers to fill"
            remedy = f"([{self.by!r}, 'temp'], GroupImputer({self.by!r}))"
            raise BadConfig("GroupImputer", problem, got=[self.by], expected=expected, remedy=remedy)
        lineages = [item.lineage | key.lineage for item in values]
        return [
            replace(item, dtype=_float_dtype(item.dtype), nullable=False, lineage=lineage)
            for item, lineage in zip(values, lineages, strict=True)
        ]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name != self.by]

    def summarize(self, columns: Columns, backend: Backend) -> grouped.GroupTables:
        names = self.output_names(list(columns))
        grouped.check_sizes({name: columns[name] for name in names}, backend, "GroupImputer")
        if self.strategy == "mean":
            states = [State(part, name) for name in names for part in FUNCTIONS["mean"]]
            tables = [grouped.GroupTable.of(columns, [self.by], states, backend)]
        else:
            tables = [grouped.GroupTable.of_pairs(columns, [self.by], name, backend) for name in names]
        return grouped.GroupTables(tuple(columns), (columns[self.by].dtype,), tuple(tables))

    def finalize(self, summary: grouped.GroupTables) -> Self:
        cpu, names = select("cpu"), self.output_names(summary.names)
        merged = [table.merged() for table in summary.tables]
        keys = [grouped.learn_ids(cpu.column(table, self.by)) for table in merged]
        self.groups_ = sort_values(unite_dictionaries([values for _, values in keys]))
        self.statistics_ = np.empty((len(names), len(self.groups_) + 1))
        for number, name in enumerate(names):
            place = 0 if self.strategy == "mean" else number
            ids, groups = keys[place]
            found, overall = self._statistics(summary.tables[place], merged[place], name, ids, len(groups) + FIRST)
            if np.isnan(overall):
                problem = f"it has no value to take the {self.strategy.replace('_', ' ')} of"
                remedy = "SimpleImputer(strategy='constant'), or leave the column out"
                refuse_empty(name, "GroupImputer", problem, remedy)
            self.statistics_[number] = overall
            known = ~np.isnan(found)
            known[:FIRST] = False
            self.statistics_[number, find_positions(groups, self.groups_)[known[FIRST:]]] = found[known]
        (self.key_dtype_,) = summary.key_dtypes
        self.names_in_ = list(summary.names)
        return self

    def _statistics(
        self, table: grouped.GroupTable, merged: Frame, name: str, ids: Any, size: int
    ) -> tuple[Any, float]:
        """Return the statistic of each id's rows, NaN without a value, and that of all rows."""
        found, cpu = np.full(size, np.nan), select("cpu")
        if self.strategy == "mean":
            found[ids] = compute_result("mean", merged, name)
            overall = compute_result("mean", table.overall(merged), name)
            return found, overall[0] if len(overall) else np.nan
        values, counts = floats(cpu.column(merged, name), np), cpu.column(merged, State("size", self.by).name).data
        pick = _pick_median if self.strategy == "median" else _pick_most_frequent
        distinct, places = np.unique(values, return_inverse=True)
        total = np.bincount(places, weights=counts).astype(np.int64)
        return pick(ids, values, counts, size), pick(np.zeros(len(total), np.int64), distinct, total, 1)[0]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, key = backend.xp, columns[self.by]
        ids = find_lookup(self, self.by, key, self.groups_, self.key_dtype_).ids(key, backend)
        made, infinite = {}, []
        for name, known in zip(self.output_names(self.names_in_), self.statistics_, strict=True):
            column, values = columns[name], floats(columns[name], xp)
            infinite.append(xp.isinf(values).any())
            fills = backend.to_device(np.concatenate([np.full(FIRST, known[-1]), known[:-1]]))
            dtype = _float_dtype(column.dtype)
            made[name] = Column(dtype, xp.where(xp.isnan(values), fills[ids], values).astype(dtype))
        if any_true(infinite, backend):
            refuse({name: columns[name] for name in made}, backend, "GroupImputer")
        return made


def _float_dtype(dtype: str) -> str:
    return dtype if dtype in FLOATS else "float64"


def _pick_most_frequent(ids: Any, values: Any, counts: Any, size: int) -> Any:
    """Return the least most frequent value of each id from 0 to `size`, of distinct pairs of id and value."""
    made, order = np.full(size, np.nan), np.lexsort([values, -counts, ids])
    groups, first = np.unique(ids[order], return_index=True)
    made[groups] = values[order][first]
    return made


def _pick_median(ids: Any, values: Any, counts: Any, size: int) -> Any:
    """Return the median of the values of each id from 0 to `size`, each of which occurs so often."""
    made, order = np.full(size, np.nan), np.lexsort([values, ids])
    total = np.bincount(ids, weights=counts, minlength=size).astype(np.int64)
    start, ends, there = np.cumsum(total) - total, np.cumsum(counts[order]), total > 0
    ranks = [(start + (total - 1) // 2)[there], (start + total // 2)[there]]
    below, above = (values[order][np.searchsorted(ends, rank, side="right")] for rank in ranks)
    made[there] = below + (above - below) / 2
    return made
