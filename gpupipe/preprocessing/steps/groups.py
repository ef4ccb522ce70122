"""Steps that learn by group: statistics joined back to each row, and imputation."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, select
from gpupipe.backend.columns import floats, require_comparable
from gpupipe.backend.dictionaries import Dictionary
from gpupipe.backend.groups import FUNCTIONS, State, compute_result
from gpupipe.backend.kernels import KeyIndex
from gpupipe.errors import BadConfig, BadData, ColumnNotFound
from gpupipe.preprocessing import categories as cats
from gpupipe.preprocessing import learned_step as base
from gpupipe.preprocessing.learned_state import check_value, require_state
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.summaries import ColumnSummaries, GroupTable
from gpupipe.schema import FLOATS, Field
from gpupipe.support.origins import ANY_ROW, shift
from gpupipe.support.text import derive
from gpupipe.support.validation import as_list, check_bool, check_choice, check_name, check_names

_COUNTS = ("size", "count", "nunique")
_STATS = (*_COUNTS, "sum", "mean", "std", "var", "min", "max")
_OF_PAIRS = ("nunique", "median", "most_frequent")  # computed from how often each value occurs in each group
_ABOUT_ROWS = "size"


def _find_key(fields: Sequence[Field], name: str, where: str) -> Field:
    """Return the field of that name; `ColumnNotFound` or `SchemaMismatch` where it cannot be a group key."""
    matches = [item for item in fields if item.name == name]
    if not matches:
        raise ColumnNotFound.among(f"{where}(by=...)", name, [item.name for item in fields])
    of_lists = f"T.{derive(name, 'len({})', f'{name}_length')} and by={f'{name}_length'!r}"
    cats.check_categories(matches, where, "groups", of_lists)
    return matches[0]


class _GroupKeys:
    """Group index by the ids of the keys (N x K integers from 0, below `sizes`), no two rows alike.

    The first key's id is a code; its place among the codes there are, with the next key's id, makes another one, and so
    on: no number is ever larger than the groups times the ids of one key.
    """

    def __init__(self, ids: Any, sizes: Sequence[int]) -> None:
        self.ids, self._sizes, self._levels = ids, sizes, list[KeyIndex]()
        positions = np.zeros(len(ids), dtype=np.int64)
        for number, size in enumerate(sizes):
            codes, positions = np.unique(positions * size + ids[:, number], return_inverse=True)
            self._levels.append(KeyIndex(codes))
        self._groups = np.full(len(ids) + 1, len(ids), dtype=np.int64)
        self._groups[positions] = np.arange(len(ids))  # the groups keep the order they were given in

    def places(self, ids: Sequence[Array], backend: Backend) -> Array:
        """Return the group of each row, the number of groups where it has none."""
        positions: Any = 0
        for column, size, level in zip(ids, self._sizes, self._levels, strict=True):
            # After a code that is not there (-1) the next one is below 0, and is not there either.
            positions = level.positions((positions * size + column).astype("int64"), backend).astype("int64")
        return backend.to_device(self._groups)[positions]


class _GroupStep(base.LearnedStep):
    """Base class of steps that learn statistics of groups."""

    by: Any

    @abstractmethod
    def _list_pairs(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Return the pairs of column and statistic that are learned."""

    def summarize(self, columns: Columns, backend: Backend) -> ColumnSummaries[GroupTable]:
        by, statistics = as_list(self.by), self._list_pairs(list(columns))
        numbers = {name: columns[name] for name, stat in statistics if stat not in _COUNTS}
        blocks = (floats(column, backend.xp) for column in numbers.values())
        if base.any_true([(backend.xp.abs(values) > base.LARGEST_SQUARED).any() for values in blocks], backend):
            base.refuse(numbers, backend, type(self).__name__, too_large="a value is too large to be squared")
        states = dict.fromkeys(State(part, name) for name, stat in statistics for part in FUNCTIONS.get(stat, ()))
        table = GroupTable.of(columns, by, list(states), backend)
        pairs = [GroupTable.of_pairs(columns, by, name, backend) for name, stat in statistics if stat in _OF_PAIRS]
        return ColumnSummaries(tuple(columns), (table, *pairs))

    def _learn(self, summary: ColumnSummaries[GroupTable]) -> tuple[list[Dictionary], Any, list[tuple[Any, float]]]:
        """Return each key's values, N x K ids of the groups, and each statistic: that of each group, and of all rows.

        A statistic of no value is NaN; how many values differ is known of groups alone.
        """
        cpu, by = select("cpu"), as_list(self.by)
        table, *pairs = summary.columns
        groups, distinct = table.merged(), iter(pairs)
        overall = table.overall(groups)
        keys = [cats.learn_ids(cpu.column(groups, name)) for name in by]
        categories, ids = [values for _, values in keys], np.stack([ids for ids, _ in keys], axis=1)
        index = _GroupKeys(ids, [len(values) + cats.FIRST for values in categories])
        learned: list[tuple[Any, float]] = []
        for name, stat in self._list_pairs(summary.names):
            if stat not in _OF_PAIRS:
                whole = compute_result(stat, overall, name)
                learned.append((compute_result(stat, groups, name), whole[0] if len(whole) else np.nan))
                continue
            frame = next(distinct).merged()
            pairs_of_keys = zip(categories, (cpu.column(frame, key) for key in by), strict=True)
            codes = index.places([cats.Lookup(k, text=c.dtype == "string").ids(c, cpu) for k, c in pairs_of_keys], cpu)
            if stat == "nunique":
                learned.append((np.bincount(codes, minlength=len(ids)), np.nan))
                continue
            values, counts = floats(cpu.column(frame, name), np), cpu.column(frame, State("size", by[0]).name).data
            each, position = np.unique(values, return_inverse=True)
            total = np.bincount(position, weights=counts).astype(np.int64)
            pick = _pick_median if stat == "median" else _pick_most_frequent
            whole = pick(np.zeros(len(each), np.int64), each, total, 1)
            learned.append((pick(codes, values, counts, len(ids)), whole[0]))
        return categories, ids, learned


class GroupStats(_GroupStep):
    """Group-by statistics of `fit` joined back to each row as new columns; NVTabular's JoinGroupby.

    They are called `dep_delay_mean_by_carrier`, or with two keys `dep_delay_mean_by_carrier_origin`; those of whole
    groups `size_by_carrier`. Only they come out. `transform` reads the columns of `by` alone. Missing values are left
    out, as in pandas: the sum of no value is 0. Counts are int64, all else is float64.

    Args:
        by: the column or columns of groups: strings, integers or booleans; the statistics are of all others.
        stats: of `"size"` (rows), `"count"` (values), `"nunique"`, `"sum"`, `"mean"`, `"std"` and `"var"` (with n - 1),
            `"min"`, `"max"`.
        dropna: whether a row with a missing key is of no group; else a missing key is one like any other.
        handle_unknown: what a row gets whose group has no such statistic, or was not there in `fit`: that of all rows
            (`"overall"`), or a missing value (`"missing"`), as a left join gives; 0 for a count or a sum.

    Attributes:
        categories_: for each key its values, ascending (Arrow, on the host); `key_dtypes_` are their types.
        groups_: N x K int64: of each group the place of its keys in these, counted from 2; 0 is a missing one.
        size_, count_, nunique_, sum_, mean_, std_, var_, min_, max_: those asked for, C x (N + 1): for each column the
            statistic of each group, and last that of a row of no group.

    Raises: BadConfig, ColumnNotFound for nothing to take a statistic of, or a key that is no column; SchemaMismatch for
    a key that makes no groups, statistics of what is no number, or `"nunique"` of lists; BadData for an infinity, a
    value beyond 1e145, or with `"overall"` too few values for a statistic of all rows.
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
        keys = [_find_key(fields, name, where) for name in by]
        values = [item for item in fields if item.name not in by]
        if not self._list_pairs([item.name for item in fields]):
            got = {"by": by, "stats": stats, "columns": [item.name for item in values]}
            expected = "keys, statistics, and columns to take them of"
            remedy = f"({[*by, 'x']!r}, GroupStats({self.by!r}, {self.stats!r})), where x is a column of numbers"
            raise BadConfig(where, "there is no statistic to compute", got=got, expected=expected, remedy=remedy)
        if "nunique" in stats:
            require_comparable(values, where)
        if set(stats) - set(_COUNTS):
            base.check_numeric(values, where)
        by_name = {item.name: item for item in fields}
        outputs = []
        for name, (column, stat) in zip(self.output_names(list(by_name)), self._list_pairs(list(by_name)), strict=True):
            reads = keys if stat == _ABOUT_ROWS else [by_name[column], *keys]
            item = Field.derived(name, "int64" if stat in _COUNTS else "float64", reads, where)
            item = replace(item, origins=shift(item.origins, *ANY_ROW))
            known_always = self.handle_unknown == "overall" or stat in (*_COUNTS, "sum")
            outputs.append(replace(item, nullable=not known_always and item.nullable))
        return outputs

    def output_names(self, names: Sequence[str]) -> list[str]:
        keys = "_".join(as_list(self.by))
        return [
            f"{stat if stat == _ABOUT_ROWS else f'{name}_{stat}'}_by_{keys}" for name, stat in self._list_pairs(names)
        ]

    def looks_at(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in as_list(self.by)]

    def _list_pairs(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Return the pairs of column and statistic in output order; a size is that of the first key."""
        by, stats = as_list(self.by), as_list(self.stats)
        sizes = [(by[0], _ABOUT_ROWS)] if by and _ABOUT_ROWS in stats else []
        return sizes + [(name, stat) for name in names if name not in by for stat in stats if stat != _ABOUT_ROWS]

    def finalize(self, summary: ColumnSummaries[GroupTable]) -> Self:
        self.categories_, ids, learned = self._learn(summary)
        mask = (ids != cats.MISSING).all(axis=1) if self.dropna else np.ones(len(ids), dtype=bool)
        self.key_dtypes_, self.groups_ = [item.dtype for item in summary.columns[0].keys], ids[mask]
        rows: dict[str, list[Any]] = {}
        for (name, stat), (values, whole) in zip(self._list_pairs(summary.names), learned, strict=True):
            row = np.append(values[mask], self._of_no_group(name, stat, whole))
            row = row.astype(np.int64) if stat in _COUNTS else np.where(np.isnan(row), row[-1], row)
            rows.setdefault(stat, []).append(row)
        for stat in _STATS:
            vars(self).pop(f"{stat}_", None)  # of another fit
        vars(self).update({f"{stat}_": np.stack(of_columns) for stat, of_columns in rows.items()})
        return super().finalize(summary)

    def _of_no_group(self, name: str, stat: str, whole: float) -> float:
        if stat in (*_COUNTS, "sum"):
            return 0.0
        if self.handle_unknown == "missing":
            return float("nan")
        if np.isnan(whole):
            where, expected = f"GroupStats, column {name!r}", "one value at least, for a deviation two"
            remedy = "GroupStats(handle_unknown='missing'), or leave the column out"
            raise BadData(where, f"it has too few values to take the {stat} of", expected=expected, remedy=remedy)
        return whole

    def _check_state(self) -> None:
        by, where = as_list(self.by), self.class_name
        require_state(set(by) <= set(self.names_in_), where, "names_in_", self.names_in_, f"{by} among them")
        check_value(where, "key_dtypes_", self.key_dtypes_, "dtype[K]", {"K": len(by)})
        super()._check_state()
        check_value(where, "groups_", self.groups_, "counts[G, K]", {"K": len(by)})
        sizes = Counter(stat for _, stat in self._list_pairs(self.names_in_))
        for stat, size in sizes.items():
            kind, lengths = "counts" if stat in _COUNTS else "float64", {"S": size, "G": len(self.groups_)}
            check_value(where, f"{stat}_", getattr(self, f"{stat}_"), f"{kind}[S, G+1]", lengths)
        require_state(len(self.categories_) == len(by), where, "categories_", len(self.categories_), f"{len(by)}")
        for index, (vocabulary, dtype) in enumerate(zip(self.categories_, self.key_dtypes_, strict=True)):
            check_value(where, "categories_", vocabulary, "values[V]", {})
            cats.check_vocabulary(where, vocabulary, dtype)
            valid = self.groups_[:, index] < len(vocabulary) + cats.FIRST
            require_state(bool(valid.all()), where, "groups_", self.groups_, f"ids of {len(vocabulary)} values")

    def _places(self, columns: Columns, backend: Backend) -> Array:
        """Return the group of each row, the number of groups where it has none."""
        ids = [
            cats.find_lookup(self, name, columns[name], values, dtype).ids(columns[name], backend)
            for name, values, dtype in zip(as_list(self.by), self.categories_, self.key_dtypes_, strict=True)
        ]
        if self._keys is None or self._keys.ids is not self.groups_:
            self._keys = _GroupKeys(self.groups_, [len(values) + cats.FIRST for values in self.categories_])
        return self._keys.places(ids, backend)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        statistics, places = self._list_pairs(self.names_in_), self._places(columns, backend)
        rows = {stat: iter(getattr(self, f"{stat}_")) for _, stat in statistics}
        values = [next(rows[stat]) for _, stat in statistics]
        outputs = [Column(str(row.dtype), backend.to_device(row)[places]) for row in values]
        return dict(zip(self.output_names(self.names_in_), outputs, strict=True))


class GroupImputer(_GroupStep):
    """Imputation of numbers by the mean, median or most frequent (then smallest) value of the rows of the same group.

    Rows whose group is missing, was not there in `fit`, or had no value in the column get the statistic of all rows.
    The groups are column `by` (strings, integers, booleans or ids), which does not come out; `strategy` is `"mean"`,
    `"median"` or `"most_frequent"`. Outputs are float64 (float32 stays).
    Attributes: `groups_`, ascending (Arrow, on the host), of type `key_dtype_`; `statistics_`, C x (N + 1) float64: for
    each column the value of each group, and last that of all rows.
    Raises: BadConfig, ColumnNotFound if there is no other column, or `by` is not among them; SchemaMismatch for text
    where `fit` saw numbers, or the reverse; BadData for an infinity, a value beyond 1e145, or a column without a value.
    Memory: fitting keeps a row per group, for other than means per group and value, on the host; transform the outputs.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"origin": ["JFK", "JFK", "LGA", "EWR"], "temp": [10.0, None, 20.0, None]})
        >>> GroupImputer("origin").fit_transform(frame)["temp"].tolist()
        [10.0, 10.0, 20.0, 15.0]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {
        "key_dtype_": "dtype",
        "groups_": "values[G]",
        "statistics_": "finite[O, G+1]",
    }
    keeps_units = True

    def __init__(self, by: str, strategy: str = "mean") -> None:
        check_name(self, by=by)
        check_choice(self, ("mean", "median", "most_frequent"), strategy=strategy)
        self.by, self.strategy = by, strategy

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        values = [item for item in fields if item.name != self.by]
        key = _find_key(fields, self.by, "GroupImputer")
        base.check_numeric(values, "GroupImputer", "SimpleImputer('most_frequent') for strings")
        if not values:
            problem, expected = "there is no column besides the group keys", "columns of numbers to fill"
            remedy = f"([{self.by!r}, 'temp'], GroupImputer({self.by!r}))"
            raise BadConfig("GroupImputer", problem, got=[self.by], expected=expected, remedy=remedy)
        dtypes = [item.dtype if item.dtype in FLOATS else "float64" for item in values]
        return [
            replace(
                item,
                dtype=dtype,
                nullable=False,
                lineage=item.lineage | key.lineage,
                origins=item.origins | key.origins,
            )
            for item, dtype in zip(values, dtypes, strict=True)
        ]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name != self.by]

    def _list_pairs(self, names: Sequence[str]) -> list[tuple[str, str]]:
        return [(name, self.strategy) for name in self.output_names(names)]

    def finalize(self, summary: ColumnSummaries[GroupTable]) -> Self:
        (self.groups_,), ids, learned = self._learn(summary)
        valid, rows = ids[:, 0] != cats.MISSING, []
        for name, (values, whole) in zip(self.output_names(summary.names), learned, strict=True):
            if np.isnan(whole):
                problem = f"it has no value to take the {self.strategy.replace('_', ' ')} of"
                remedy = "SimpleImputer(strategy='constant'), or leave the column out"
                base.refuse_empty(name, "GroupImputer", problem, remedy)
            row = np.full(len(self.groups_) + 1, whole)
            row[ids[valid, 0] - cats.FIRST] = np.where(np.isnan(values), whole, values)[valid]
            rows.append(row)
        self.statistics_, self.key_dtype_ = np.stack(rows), summary.columns[0].keys[0].dtype
        return super().finalize(summary)

    def _check_state(self) -> None:
        require_state(
            self.by in self.names_in_, self.class_name, "names_in_", self.names_in_, f"{self.by!r} among them"
        )
        super()._check_state()
        cats.check_vocabulary(self.class_name, self.groups_, self.key_dtype_)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, key = backend.xp, columns[self.by]
        ids = cats.find_lookup(self, self.by, key, self.groups_, self.key_dtype_).ids(key, backend)
        outputs, infinite = {}, []
        for name, statistics in zip(self.output_names(self.names_in_), self.statistics_, strict=True):
            column, values = columns[name], floats(columns[name], xp)
            infinite.append(xp.isinf(values).any())
            fills = backend.to_device(np.concatenate([np.full(cats.FIRST, statistics[-1]), statistics[:-1]]))
            dtype = column.dtype if column.dtype in FLOATS else "float64"
            outputs[name] = Column(dtype, xp.where(xp.isnan(values), fills[ids], values).astype(dtype))
        if base.any_true(infinite, backend):
            base.refuse({name: columns[name] for name in outputs}, backend, "GroupImputer")
        return outputs


def _pick_most_frequent(ids: Any, values: Any, counts: Any, size: int) -> Any:
    """Return the smallest most frequent value of each id from 0 to `size`, of distinct pairs of id and value."""
    modes, order = np.full(size, np.nan), np.lexsort([values, -counts, ids])
    groups, first = np.unique(ids[order], return_index=True)
    modes[groups] = values[order][first]
    return modes


def _pick_median(ids: Any, values: Any, counts: Any, size: int) -> Any:
    """Return the median of the values of each id from 0 to `size`, each of which occurs so often."""
    medians, order = np.full(size, np.nan), np.lexsort([values, ids])
    total = np.bincount(ids, weights=counts, minlength=size).astype(np.int64)
    start, ends, present = np.cumsum(total) - total, np.cumsum(counts[order]), total > 0
    ranks = [(start + (total - 1) // 2)[present], (start + total // 2)[present]]
    below, above = (values[order][np.searchsorted(ends, rank, side="right")] for rank in ranks)
    medians[present] = below + (above - below) / 2
    return medians
