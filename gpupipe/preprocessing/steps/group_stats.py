"""Group-by statistics joined back to each row (NVTabular: JoinGroupby)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame, select
from gpupipe.backend.columns import floats, require_comparable
from gpupipe.backend.dictionaries import find_positions, sort_values
from gpupipe.backend.groups import FUNCTIONS, State, compute_result
from gpupipe.errors import BadConfig, BadData
from gpupipe.preprocessing.categories import FIRST, MISSING, Lookups
from gpupipe.preprocessing.learned_step import Columns, LearnedStep
from gpupipe.preprocessing.numeric import LARGEST_SQUARED, check_numeric, refuse
from gpupipe.preprocessing.summaries.groups import GroupKeys, GroupTable, key_field
from gpupipe.preprocessing.summaries.target_stats import encode_values
from gpupipe.schema import Field
from gpupipe.support.text import as_list
from gpupipe.support.validation import check_bool, check_choice, check_names

_OF_NUMBERS = ("sum", "mean", "std", "var", "min", "max")
_COUNTS = ("size", "count", "nunique")
_UNKNOWN = ("overall", "missing")
_STATS = (*_COUNTS, *_OF_NUMBERS)
_ABOUT_ROWS = "size"


@dataclass(frozen=True)
class _Groups:
    """Summary of the groups and their values; of some columns also the groups' distinct values."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    table: GroupTable
    pairs: tuple[GroupTable, ...]

    def __add__(self, other: Self) -> Self:
        pairs = tuple(mine + theirs for mine, theirs in zip(self.pairs, other.pairs, strict=True))
        return type(self)(self.names, self.dtypes, self.table + other.table, pairs)


class GroupStats(LearnedStep):
    """Group-by statistics of `fit` joined back to each row as new columns; NVTabular's JoinGroupby.

    The statistics are of all columns but those of `by`, and are called `dep_delay_mean_by_carrier`, or with two keys
    `dep_delay_mean_by_carrier_origin`; those of whole groups `size_by_carrier`. Only they come out; name a column in
    another group of `Features` to have it as well. `transform` reads the columns of `by` alone.

    Missing values are left out, as in pandas: `"count"` counts values and `"size"` rows, the sum of no value is 0.
    Counts are int64, all else is float64. A group that was not there in `fit` has a count and a sum of 0.

    Args:
        by: the column or columns of groups: strings, integers or booleans.
        stats: of `"size"`, `"count"`, `"nunique"`, `"sum"`, `"mean"`, `"std"` and `"var"` (with n - 1), `"min"`,
            `"max"`.
        dropna: whether a row with a missing key is of no group; else a missing key is one like any other.
        handle_unknown: what a row gets where its group has no mean, deviation, least or greatest value, or was not
            there in `fit`: that of all rows (`"overall"`), or a missing value (`"missing"`), as a left join in pandas
            gives.

    Attributes:
        categories_: for each key its values, ascending, as an Arrow array on the host.
        groups_: N x K int64: of each group the place of its keys in these, counted from 2; 0 is a missing one.
        key_dtypes_: the types of the keys in `fit`.
        size_, count_, nunique_, sum_, mean_, std_, var_, min_, max_: those asked for, C x (N + 1): for each column the
            statistic of each group, and last that of a row of no group.

    Raises:
        BadConfig: no such statistic, none, one twice, or nothing to take it of.
        ColumnNotFound: a key is not among the columns.
        SchemaMismatch: a key of a type that makes no groups, statistics of what is no number, or `"nunique"` of lists.
        BadData: an infinity, a value beyond 1e145; or with `"overall"` too few values for a statistic of all rows.

    Memory: fitting keeps up to five numbers per group and column on the host, for `"nunique"` each distinct pair of
        group and value; transform allocates the outputs, and one group number a row, on the device.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"origin": ["JFK", "JFK", "LGA"], "temp": [10.0, 14.0, 20.0]})
        >>> GroupStats("origin", ["mean", "count"]).fit_transform(frame)
           temp_mean_by_origin  temp_count_by_origin
        0                 12.0                     2
        1                 12.0                     2
        2                 20.0                     1
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
        check_choice(self, _UNKNOWN, handle_unknown=handle_unknown)
        self.by, self.stats, self.dropna, self.handle_unknown = by, stats, dropna, handle_unknown

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        self._check(fields)
        by = as_list(self.by)
        keys = [item for item in fields if item.name in by]
        known = {item.name: item for item in fields}
        made = []
        for name, (column, stat) in zip(self.output_names(list(known)), self._wanted(list(known)), strict=True):
            reads = keys if stat == _ABOUT_ROWS else [known[column], *keys]
            item = Field.derived(name, "int64" if stat in _COUNTS else "float64", reads, "GroupStats")
            gives_missing = self.handle_unknown == "missing" and stat not in (*_COUNTS, "sum")
            made.append(item if gives_missing else _complete(item))
        return made

    def _check(self, fields: Sequence[Field]) -> None:
        where, by, stats = "GroupStats", as_list(self.by), as_list(self.stats)
        for name in by:
            key_field(fields, name, where)
        values = [item for item in fields if item.name not in by]
        if not self._wanted([item.name for item in fields]):
            raise BadConfig(
                where,
                "there is nothing to tell of a group",
                got={"by": by, "stats": stats, "columns": [item.name for item in values]},
                expected="keys, statistics, and columns to take them of",
                remedy="(['carrier', 'dep_delay'], GroupStats('carrier', ['mean']))",
            )
        if "nunique" in stats:
            require_comparable(values, where)
        if set(stats) & set(_OF_NUMBERS):
            check_numeric(values, where)

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

    def summarize(self, columns: Columns, backend: Backend) -> _Groups:
        by, wanted = as_list(self.by), self._wanted(list(columns))
        numbers = {name: columns[name] for name, stat in wanted if stat in _OF_NUMBERS}
        _check_size(numbers, backend)
        states = dict.fromkeys(State(part, name) for name, stat in wanted for part in FUNCTIONS.get(stat, ()))
        table = GroupTable.of(columns, by, list(states), backend)
        pairs = []
        for name in (name for name, stat in wanted if stat == "nunique"):
            missing = columns[name].missing(backend.xp)
            there = {key: columns[key] if missing is None else columns[key].take(~missing) for key in (*by, name)}
            pairs.append(GroupTable.of(there, [*by, name], [], backend))
        return _Groups(tuple(columns), tuple(columns[name].dtype for name in by), table, tuple(pairs))

    def finalize(self, summary: _Groups) -> Self:
        cpu, by, wanted = select("cpu"), as_list(self.by), self._wanted(summary.names)
        groups = summary.table.merged()
        overall = summary.table.overall(groups)
        keys = [_learn_ids(cpu.column(groups, name), cpu) for name in by]
        ids = np.stack([ids for ids, _ in keys], axis=1)
        kept = (ids != MISSING).all(axis=1) if self.dropna else np.ones(len(ids), dtype=bool)
        self.categories_ = [values for _, values in keys]
        self.key_dtypes_ = list(summary.dtypes)
        self.groups_ = ids[kept]
        distinct = iter(summary.pairs)
        rows: dict[str, list[Any]] = {}
        for name, stat in wanted:
            if stat == "nunique":
                row = self._number_of_pairs(next(distinct).merged())
            else:
                row = np.append(compute_result(stat, groups, name)[kept], self._of_no_group(stat, overall, name))
            rows.setdefault(stat, []).append(self._filled(row, stat))
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
            raise BadData(
                f"GroupStats, column {name!r}",
                f"it has too few values to take the {stat} of",
                expected="one value at least, for a deviation two",
                remedy="GroupStats(handle_unknown='missing'), or leave the column out",
            )
        return float(found[0])

    @staticmethod
    def _filled(row: Any, stat: str) -> Any:
        """Replace the statistic of groups without one by that of a row without a group."""
        return row.astype(np.int64) if stat in _COUNTS else np.where(np.isnan(row), row[-1], row)

    def _number_of_pairs(self, pairs: Frame) -> Any:
        """Count the distinct values of each group."""
        cpu = select("cpu")
        places = self._places({name: cpu.column(pairs, name) for name in as_list(self.by)}, cpu)
        return np.append(np.bincount(places, minlength=len(self.groups_) + 1)[:-1], 0)

    def _places(self, columns: Columns, backend: Backend) -> Array:
        """Return the group of each row, the number of groups where it has none."""
        lookups: Lookups = self.__dict__.setdefault("_lookups", Lookups())
        ids = [
            lookups.of(name, columns[name], values, dtype, "GroupStats").ids(columns[name], backend)
            for name, values, dtype in zip(as_list(self.by), self.categories_, self.key_dtypes_, strict=True)
        ]
        known = self.__dict__.get("_keys")
        if known is None or known[0] is not self.groups_:
            keys = GroupKeys(self.groups_, [len(values) + FIRST for values in self.categories_])
            known = self._keys = self.groups_, keys
        return known[1].places(ids, backend)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """Return the statistics of one partition's rows, from the columns of `by`; inputs are not modified.

        Raises:
            SchemaMismatch: a key is text where numbers were learned, or the other way round.
        """
        wanted, places, seen = self._wanted(self.names_in_), self._places(columns, backend), dict.fromkeys(_STATS, 0)
        made = {}
        for out, (_, stat) in zip(self.output_names(self.names_in_), wanted, strict=True):
            values = getattr(self, f"{stat}_")[seen[stat]]
            seen[stat] += 1
            made[out] = Column("int64" if stat in _COUNTS else "float64", backend.to_device(values)[places])
        return made


def _complete(item: Field) -> Field:
    return Field(item.name, item.dtype, nullable=False, lineage=item.lineage, role=item.role, step=item.step)


def _learn_ids(column: Column, cpu: Backend) -> tuple[Any, Any]:
    """Return the id of each value (see `vocabulary`), and the distinct values in order."""
    codes, values = encode_values(column, cpu)
    present = codes < len(values)
    vocabulary = sort_values(values.take(np.unique(codes[present])))
    ids = np.append(find_positions(values, vocabulary) + FIRST, MISSING)
    return ids[codes], vocabulary


def _check_size(columns: Columns, backend: Backend) -> None:
    xp = backend.xp
    fine = [
        (xp.abs(values) <= LARGEST_SQUARED) | xp.isnan(values) for values in (floats(c, xp) for c in columns.values())
    ]
    if fine and not backend.to_host(xp.stack([one.all() for one in fine])).all():
        refuse(columns, backend, "GroupStats", too_large="a value is too large to be squared")
