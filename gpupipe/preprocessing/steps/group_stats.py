"""Group-by statistics joined back to each row (NVTabular: JoinGroupby)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame, select
from gpupipe.backend.columns import require_comparable
from gpupipe.backend.groups import FUNCTIONS, State, compute_result
from gpupipe.errors import BadConfig, BadData
from gpupipe.preprocessing.categories import FIRST, MISSING, find_lookup
from gpupipe.preprocessing.learned_step import Columns, LearnedStep
from gpupipe.preprocessing.numeric import check_numeric
from gpupipe.preprocessing.summaries import groups as grouped
from gpupipe.schema import Field
from gpupipe.support.validation import as_list, check_bool, check_choice, check_names

_OF_NUMBERS = ("sum", "mean", "std", "var", "min", "max")
_COUNTS = ("size", "count", "nunique")
_STATS = (*_COUNTS, *_OF_NUMBERS)
_ABOUT_ROWS = "size"


class GroupStats(LearnedStep):
    """Group-by statistics of `fit` joined back to each row as new columns; NVTabular's JoinGroupby.

    The statistics are of all columns but those of `by`, and are called `dep_delay_mean_by_carrier`, or with two keys
    `dep_delay_mean_by_carrier_origin`; those of whole groups `size_by_carrier`. Only they come out. `transform` reads
    the columns of `by` alone. Missing values are left out, as in pandas: the sum of no value is 0. Counts are int64,
    all else is float64.

    Args:
        by: the column or columns of groups: strings, integers or booleans.
        stats: of `"size"` (rows), `"count"` (values), `"nunique"`, `"sum"`, `"mean"`, `"std"` and `"var"` (with n - 1),
            `"min"`, `"max"`.
        dropna: whether a row with a missing key is of no group; else a missing key is one like any other.
        handle_unknown: what a row gets where its group has no such statistic, or was not there in `fit`: that of all
            rows (`"overall"`), or a missing value (`"missing"`), as a left join gives; 0 for a count or a sum.

    Attributes:
        categories_: for each key its values, ascending, as an Arrow array on the host.
        groups_: N x K int64: of each group the place of its keys in these, counted from 2; 0 is a missing one.
        key_dtypes_: the types of the keys in `fit`.
        size_, count_, nunique_, sum_, mean_, std_, var_, min_, max_: those asked for, C x (N + 1): for each column the
            statistic of each group, and last that of a row of no group.

    Raises:
        BadConfig: nothing to take a statistic of.
        ColumnNotFound: a key is not among the columns.
        SchemaMismatch: a key that makes no groups, statistics of what is no number, or `"nunique"` of lists.
        BadData: an infinity, a value beyond 1e145; or with `"overall"` too few values for a statistic of all rows.

    Memory: fitting keeps a row per group, for `"nunique"` per group and value, on the host; transform the outputs.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"origin": ["JFK", "JFK", "LGA"], "temp": [10.0, 14.0, 20.0]})
        >>> GroupStats("origin", "mean").fit_transform(frame)["temp_mean_by_origin"].tolist()
        [12.0, 12.0, 20.0]
    """

    def __init__(
        self,
        by: str | Sequence[str],
        stats: str | Sequence[str] = ("mean",),
        *,
        dropna: bool = True,
        handle_unknown: str = "overall",
    ) -> None:
        check_names(self, empty=False, by=by, stats=stats)
        for stat in as_list(stats):
            check_choice(self, _STATS, stats=stat)
        check_bool(self, dropna=dropna)
        check_choice(self, ("overall", "missing"), handle_unknown=handle_unknown)
        self.by, self.stats, self.dropna, self.handle_unknown = by, stats, dropna, handle_unknown

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        where, by, stats = "GroupStats", as_list(self.by), as_list(self.stats)
        for name in by:
            grouped.key_field(fields, name, where)
        values = [item for item in fields if item.name not in by]
        if not self._wanted([item.name for item in fields]):
            got = {"by": by, "stats": stats, "columns": [item.name for item in values]}
            expected = "keys, statistics, and columns to take them of"
            remedy = "(['carrier', 'dep_delay'], GroupStats('carrier', ['mean']))"
            raise BadConfig(where, "there is nothing to tell of a group", got=got, expected=expected, remedy=remedy)
        if "nunique" in stats:
            require_comparable(values, where)
        if set(stats) & set(_OF_NUMBERS):
            check_numeric(values, where)
        keys = [item for item in fields if item.name in by]
        known = {item.name: item for item in fields}
        made = []
        for name, (column, stat) in zip(self.output_names(list(known)), self._wanted(list(known)), strict=True):
            reads = keys if stat == _ABOUT_ROWS else [known[column], *keys]
            item = Field.derived(name, "int64" if stat in _COUNTS else "float64", reads, where)
            if self.handle_unknown == "overall" or stat in (*_COUNTS, "sum"):
                item = Field(name, item.dtype, nullable=False, lineage=item.lineage, role=item.role, step=item.step)
            made.append(item)
        return made

    def output_names(self, names: Sequence[str]) -> list[str]:
        keys = "_".join(as_list(self.by))
        return [f"{stat if stat == _ABOUT_ROWS else f'{name}_{stat}'}_by_{keys}" for name, stat in self._wanted(names)]

    def looks_at(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in as_list(self.by)]

    def _wanted(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Return the pairs of column and statistic in output order; a size is that of the first key."""
        by, stats = as_list(self.by), as_list(self.stats)
        sizes = [(by[0], _ABOUT_ROWS)] if by and _ABOUT_ROWS in stats else []
        return sizes + [(name, stat) for name in names if name not in by for stat in stats if stat != _ABOUT_ROWS]

    def summarize(self, columns: Columns, backend: Backend) -> grouped.GroupTables:
        by, wanted = as_list(self.by), self._wanted(list(columns))
        numbers = {name: columns[name] for name, stat in wanted if stat in _OF_NUMBERS}
        grouped.check_sizes(numbers, backend, "GroupStats")
        states = dict.fromkeys(State(part, name) for name, stat in wanted for part in FUNCTIONS.get(stat, ()))
        table = grouped.GroupTable.of(columns, by, list(states), backend)
        pairs = [grouped.GroupTable.of_pairs(columns, by, name, backend) for name, stat in wanted if stat == "nunique"]
        return grouped.GroupTables(tuple(columns), tuple(columns[name].dtype for name in by), (table, *pairs))

    def finalize(self, summary: grouped.GroupTables) -> Self:
        cpu, by, wanted = select("cpu"), as_list(self.by), self._wanted(summary.names)
        table, *pairs = summary.tables
        groups = table.merged()
        overall = table.overall(groups)
        keys = [grouped.learn_ids(cpu.column(groups, name)) for name in by]
        ids = np.stack([ids for ids, _ in keys], axis=1)
        kept = (ids != MISSING).all(axis=1) if self.dropna else np.ones(len(ids), dtype=bool)
        self.categories_ = [values for _, values in keys]
        self.key_dtypes_ = list(summary.key_dtypes)
        self.groups_ = ids[kept]
        distinct = iter(pairs)
        rows: dict[str, list[Any]] = {}
        for name, stat in wanted:
            if stat == "nunique":
                found = next(distinct).merged()
                places = self._places({key: cpu.column(found, key) for key in by}, cpu)
                row = np.append(np.bincount(places, minlength=len(self.groups_) + 1)[:-1], 0)
            else:
                row = np.append(compute_result(stat, groups, name)[kept], self._of_no_group(stat, overall, name))
            row = row.astype(np.int64) if stat in _COUNTS else np.where(np.isnan(row), row[-1], row)
            rows.setdefault(stat, []).append(row)
        for stat in _STATS:
            vars(self).pop(f"{stat}_", None)  # of another fit
        for stat, found in rows.items():
            setattr(self, f"{stat}_", np.stack(found))
        self.names_in_ = list(summary.names)
        return self

    def _of_no_group(self, stat: str, overall: Frame, name: str) -> float:
        if stat in (*_COUNTS, "sum"):
            return 0.0
        found = compute_result(stat, overall, name)
        if self.handle_unknown == "missing":
            return float("nan")
        if not len(found) or np.isnan(found[0]):
            where, problem = f"GroupStats, column {name!r}", f"it has too few values to take the {stat} of"
            expected = "one value at least, for a deviation two"
            remedy = "GroupStats(handle_unknown='missing'), or leave the column out"
            raise BadData(where, problem, expected=expected, remedy=remedy)
        return float(found[0])

    def _places(self, columns: Columns, backend: Backend) -> Array:
        """Return the group of each row, the number of groups where it has none."""
        ids = [
            find_lookup(self, name, columns[name], values, dtype).ids(columns[name], backend)
            for name, values, dtype in zip(as_list(self.by), self.categories_, self.key_dtypes_, strict=True)
        ]
        known = self.__dict__.get("_keys")
        if known is None or known[0] is not self.groups_:
            keys = grouped.GroupKeys(self.groups_, [len(values) + FIRST for values in self.categories_])
            known = self._keys = self.groups_, keys
        return known[1].places(ids, backend)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        wanted, places, seen = self._wanted(self.names_in_), self._places(columns, backend), dict.fromkeys(_STATS, 0)
        made = {}
        for out, (_, stat) in zip(self.output_names(self.names_in_), wanted, strict=True):
            values = getattr(self, f"{stat}_")[seen[stat]]
            seen[stat] += 1
            made[out] = Column("int64" if stat in _COUNTS else "float64", backend.to_device(values)[places])
        return made
