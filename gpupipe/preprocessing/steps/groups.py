"""Steps that learn by group: statistics joined back to each row, and imputation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame, select
from gpupipe.backend.columns import floats, require_comparable
from gpupipe.backend.dictionaries import find_positions, sort_values, unite_dictionaries
from gpupipe.backend.groups import FUNCTIONS, State, compute_result
from gpupipe.backend.kernels import KeyIndex
from gpupipe.errors import BadConfig, BadData, ColumnNotFound
from gpupipe.preprocessing.categories import FIRST, MISSING, check_categories, find_lookup, learn_ids
from gpupipe.preprocessing.learned_step import (
    LARGEST_SQUARED,
    Columns,
    LearnedStep,
    any_true,
    check_numeric,
    refuse,
    refuse_empty,
)
from gpupipe.preprocessing.summaries import ColumnSummaries, GroupTable
from gpupipe.schema import FLOATS, Field
from gpupipe.support.text import derive
from gpupipe.support.validation import as_list, check_bool, check_choice, check_name, check_names

_OF_NUMBERS = ("sum", "mean", "std", "var", "min", "max")
_COUNTS = ("size", "count", "nunique")
_STATS = (*_COUNTS, *_OF_NUMBERS)
_ABOUT_ROWS = "size"


def _find_key(fields: Sequence[Field], name: str, where: str) -> Field:
    """Return the field of that name; `ColumnNotFound` or `SchemaMismatch` where it cannot be a group key."""
    found = [item for item in fields if item.name == name]
    if not found:
        raise ColumnNotFound.among(f"{where}(by=...)", name, [item.name for item in fields])
    of_lists = f"T.{derive(name, 'len({})', f'{name}_length')} and by={f'{name}_length'!r}"
    check_categories(found, where, "groups", of_lists)
    return found[0]


class _GroupKeys:
    """Group index by the ids of the keys (N x K integers from 0, below `sizes`), no two rows alike.

    The first key's id is a code; its place among the codes there are, with the next key's id, makes another one, and so
    on: no number is ever larger than the groups times the ids of one key.
    """

    def __init__(self, ids: Any, sizes: Sequence[int]) -> None:
        self.ids, self._sizes, self._levels = ids, sizes, list[KeyIndex]()
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


def _check_sizes(columns: Columns, backend: Backend, where: str) -> None:
    """Raise `BadData` for an infinity, or a value beyond 1e145."""
    blocks = (floats(column, backend.xp) for column in columns.values())
    if any_true([(backend.xp.abs(values) > LARGEST_SQUARED).any() for values in blocks], backend):
        refuse(columns, backend, where, too_large="a value is too large to be squared")


class GroupStats(LearnedStep):
    """Group-by statistics of `fit` joined back to each row as new columns; NVTabular's JoinGroupby.

    They are called `dep_delay_mean_by_carrier`, or with two keys `dep_delay_mean_by_carrier_origin`; those of whole
    groups `size_by_carrier`. Only they come out. `transform` reads the columns of `by` alone. Missing values are left
    out, as in pandas: the sum of no value is 0. Counts are int64, all else is float64.

    Args:
        by: the column or columns of groups: strings, integers or booleans; the statistics are of all others.
        stats: of `"size"` (rows), `"count"` (values), `"nunique"`, `"sum"`, `"mean"`, `"std"` and `"var"` (with n - 1),
            `"min"`, `"max"`.
        dropna: whether a row with a missing key is of no group; else a missing key is one like any other.
        handle_unknown: what a row gets where its group has no such statistic, or was not there in `fit`: that of all
            rows (`"overall"`), or a missing value (`"missing"`), as a left join gives; 0 for a count or a sum.

    Attributes:
        categories_: for each key its values, ascending, as an Arrow array on the host; `key_dtypes_` are their types.
        groups_: N x K int64: of each group the place of its keys in these, counted from 2; 0 is a missing one.
        size_, count_, nunique_, sum_, mean_, std_, var_, min_, max_: those asked for, C x (N + 1): for each column the
            statistic of each group, and last that of a row of no group.

    Raises:
        BadConfig, ColumnNotFound: nothing to take a statistic of, or a key that is not among the columns.
        SchemaMismatch: a key that makes no groups, statistics of what is no number, or `"nunique"` of lists.
        BadData: an infinity, a value beyond 1e145; or with `"overall"` too few values for a statistic of all rows.

    Memory: fitting keeps a row per group, for `"nunique"` per group and value, on the host; transform the outputs.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"origin": ["JFK", "JFK", "LGA"], "temp": [10.0, 14.0, 20.0]})
        >>> GroupStats("origin", "mean").fit_transform(frame)["temp_mean_by_origin"].tolist()
        [12.0, 12.0, 20.0]
    """

    _keys: _GroupKeys | None = None

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
            _find_key(fields, name, where)
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
            known_always = self.handle_unknown == "overall" or stat in (*_COUNTS, "sum")
            made.append(replace(item, nullable=not known_always and item.nullable))
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

    def summarize(self, columns: Columns, backend: Backend) -> ColumnSummaries[GroupTable]:
        by, wanted = as_list(self.by), self._wanted(list(columns))
        numbers = {name: columns[name] for name, stat in wanted if stat in _OF_NUMBERS}
        _check_sizes(numbers, backend, "GroupStats")
        states = dict.fromkeys(State(part, name) for name, stat in wanted for part in FUNCTIONS.get(stat, ()))
        table = GroupTable.of(columns, by, list(states), backend)
        pairs = [GroupTable.of_pairs(columns, by, name, backend) for name, stat in wanted if stat == "nunique"]
        return ColumnSummaries(tuple(columns), (table, *pairs))

    def finalize(self, summary: ColumnSummaries[GroupTable]) -> Self:
        cpu, by, wanted = select("cpu"), as_list(self.by), self._wanted(summary.names)
        table, *pairs = summary.columns
        groups = table.merged()
        overall = table.overall(groups)
        keys = [learn_ids(cpu.column(groups, name)) for name in by]
        ids = np.stack([ids for ids, _ in keys], axis=1)
        kept = (ids != MISSING).all(axis=1) if self.dropna else np.ones(len(ids), dtype=bool)
        self.categories_, self.key_dtypes_ = [values for _, values in keys], [item.dtype for item in table.keys]
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
        if self._keys is None or self._keys.ids is not self.groups_:
            self._keys = _GroupKeys(self.groups_, [len(values) + FIRST for values in self.categories_])
        return self._keys.places(ids, backend)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        wanted, places, seen = self._wanted(self.names_in_), self._places(columns, backend), dict.fromkeys(_STATS, 0)
        made = {}
        for out, (_, stat) in zip(self.output_names(self.names_in_), wanted, strict=True):
            values = getattr(self, f"{stat}_")[seen[stat]]
            seen[stat] += 1
            made[out] = Column("int64" if stat in _COUNTS else "float64", backend.to_device(values)[places])
        return made


class GroupImputer(LearnedStep):
    """Imputation of numbers by the mean, median or most frequent (then smallest) value of the rows of the same group.

    Rows whose group is missing, was not there in `fit`, or had no value in the column get the statistic of all rows.
    Outputs are float64 (float32 stays).

    Args:
        by: the column of groups, which does not come out: strings, integers, booleans or ids.
        strategy: `"mean"`, `"median"` or `"most_frequent"`.

    Attributes:
        groups_: the groups, ascending, as an Arrow array on the host; `key_dtype_` is their column's type.
        statistics_: C x (N + 1) float64: for each column the value of each group, and last that of all rows.

    Raises:
        BadConfig, ColumnNotFound: there is no other column, or `by` is not among them.
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
        key = _find_key(fields, self.by, "GroupImputer")
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

    def summarize(self, columns: Columns, backend: Backend) -> ColumnSummaries[GroupTable]:
        names = self.output_names(list(columns))
        _check_sizes({name: columns[name] for name in names}, backend, "GroupImputer")
        if self.strategy == "mean":
            states = [State(part, name) for name in names for part in FUNCTIONS["mean"]]
            tables = [GroupTable.of(columns, [self.by], states, backend)]
        else:
            tables = [GroupTable.of_pairs(columns, [self.by], name, backend) for name in names]
        return ColumnSummaries(tuple(columns), tuple(tables))

    def finalize(self, summary: ColumnSummaries[GroupTable]) -> Self:
        cpu, names = select("cpu"), self.output_names(summary.names)
        merged = [table.merged() for table in summary.columns]
        keys = [learn_ids(cpu.column(table, self.by)) for table in merged]
        self.groups_ = sort_values(unite_dictionaries([values for _, values in keys]))
        self.statistics_ = np.empty((len(names), len(self.groups_) + 1))
        for number, name in enumerate(names):
            place = 0 if self.strategy == "mean" else number
            ids, groups = keys[place]
            found, overall = self._statistics(summary.columns[place], merged[place], name, ids, len(groups) + FIRST)
            if np.isnan(overall):
                problem = f"it has no value to take the {self.strategy.replace('_', ' ')} of"
                remedy = "SimpleImputer(strategy='constant'), or leave the column out"
                refuse_empty(name, "GroupImputer", problem, remedy)
            self.statistics_[number] = overall
            known = ~np.isnan(found)
            known[:FIRST] = False
            self.statistics_[number, find_positions(groups, self.groups_)[known[FIRST:]]] = found[known]
        self.key_dtype_ = summary.columns[0].keys[0].dtype
        self.names_in_ = list(summary.names)
        return self

    def _statistics(self, table: GroupTable, merged: Frame, name: str, ids: Any, size: int) -> tuple[Any, float]:
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
