"""Imputation by group: missing values become the statistic of the row's group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.columns import floats
from gpupipe.backend.dictionaries import Dictionary, sort_by_count, unite_dictionaries
from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.preprocessing.categories import FIRST, make_lookup
from gpupipe.preprocessing.learned_step import Columns, LearnedStep
from gpupipe.preprocessing.numeric import LARGEST_SQUARED, check_numeric, refuse
from gpupipe.preprocessing.summaries.groups import GroupedValues, key_field
from gpupipe.preprocessing.summaries.target_stats import MeanStats, encode_values
from gpupipe.schema import FLOATS, Field
from gpupipe.support.validation import check_choice, check_name

_STRATEGIES = ("mean", "median", "most_frequent")

# Parts wait to be merged until together they have this many groups or pairs.
_WAITING = 1 << 18


@dataclass(frozen=True)
class _Groups:
    """Summary of each column with values: parts that are merged later."""

    names: tuple[str, ...]
    key_dtype: str
    columns: tuple[tuple[Any, ...], ...]

    def __add__(self, other: Self) -> Self:
        pairs = zip(self.columns, other.columns, strict=True)
        return replace(self, columns=tuple(_waiting((*mine, *theirs)) for mine, theirs in pairs))


class GroupImputer(LearnedStep):
    """Imputation of numbers by the mean, median or most frequent value of the rows of the same group.

    Rows whose group is missing, was not there in `fit`, or had no value in the column get the statistic of all rows.
    The column of groups is read and does not come out; name it in another group of `Features` to have it as a feature.
    Outputs are float64 (float32 stays). Of several most frequent values the smallest is taken.

    Args:
        by: the column of groups: strings, integers, booleans or ids.
        strategy: `"mean"`, `"median"` or `"most_frequent"`.

    Attributes:
        groups_: the groups, ascending, as an Arrow array on the host.
        statistics_: C x (N + 1) float64: for each column the value of each group, and last that of all rows.
        key_dtype_: the type of `by` in `fit`.

    Raises:
        BadConfig: an unknown strategy.
        ColumnNotFound: `by` is not among the columns.
        BadData: an infinity, a value beyond 1e145, or a column without a value.

    Memory: fitting keeps three numbers per group and column on the host, for medians and most frequent values 24 bytes
        per distinct pair of group and value; transform allocates the outputs and n int32 on the device.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"origin": ["JFK", "JFK", "LGA", "EWR"], "temp": [10.0, None, 20.0, None]})
        >>> GroupImputer("origin").fit_transform(frame)["temp"].tolist()
        [10.0, 10.0, 20.0, 15.0]
    """

    keeps_units = True

    def __init__(self, by: str, strategy: str = "mean") -> None:
        check_name(self, by=by)
        check_choice(self, _STRATEGIES, strategy=strategy)
        self.by, self.strategy = by, strategy

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        values = [item for item in fields if item.name != self.by]
        key = key_field(fields, self.by, "GroupImputer")
        check_numeric(values, "GroupImputer", "SimpleImputer('most_frequent') for strings")
        if not values:
            raise BadConfig(
                "GroupImputer",
                "there is no column besides the group keys",
                got=[item.name for item in fields],
                expected="columns of numbers to fill",
                remedy=f"([{self.by!r}, 'temp'], GroupImputer({self.by!r}))",
            )
        return [
            replace(
                item,
                dtype=item.dtype if item.dtype in FLOATS else "float64",
                nullable=False,
                lineage=item.lineage | key.lineage,
            )
            for item in values
        ]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name != self.by]

    def summarize(self, columns: Columns, backend: Backend) -> _Groups:
        xp = backend.xp
        codes, groups = encode_values(columns[self.by], backend)
        made: list[tuple[Any, ...]] = []
        for name in self.output_names(list(columns)):
            values = floats(columns[name], xp)
            there = ~xp.isnan(values)
            group, values = codes[there], values[there]
            if not backend.to_host((xp.abs(values) <= LARGEST_SQUARED).all()[None])[0]:
                refuse({name: columns[name]}, backend, "GroupImputer", too_large="a value is too large to be squared")
            made.append((self._part(group, groups, values, backend),))
        return _Groups(tuple(columns), columns[self.by].dtype, tuple(made))

    def _part(self, codes: Array, groups: Dictionary, values: Array, backend: Backend) -> Any:
        if self.strategy == "mean":
            return MeanStats.of(codes, groups, backend.xp.zeros_like(codes), 1, [values], backend)
        return GroupedValues.of(codes, groups, values, backend)

    def finalize(self, summary: _Groups) -> Self:
        merged = [type(parts[0]).merged(parts) for parts in summary.columns]
        names = self.output_names(summary.names)
        found = {}
        for name, item in zip(names, merged, strict=True):
            each, overall = self._statistics(item)
            if np.isnan(overall):
                raise BadData(
                    f"GroupImputer, column {name!r}",
                    f"it has no value to take the {self.strategy.replace('_', ' ')} of",
                    expected="at least one value that is not missing",
                    remedy="SimpleImputer(strategy='constant'), or leave the column out",
                )
            found[name] = dict(zip(item.categories.to_pylist(), each.tolist(), strict=True)), overall
        groups = unite_dictionaries([item.categories for item in merged])
        self.groups_, _ = sort_by_count(groups, np.zeros(len(groups), dtype=np.int64))
        keys = self.groups_.to_pylist()
        rows = [[*(known.get(key, overall) for key in keys), overall] for known, overall in found.values()]
        table = np.array(rows, dtype=np.float64).reshape(len(names), -1)
        self.statistics_ = np.where(np.isnan(table), table[:, -1:], table)
        self.key_dtype_ = summary.key_dtype
        self.names_in_ = list(summary.names)
        return self

    def _statistics(self, item: Any) -> tuple[Any, float]:
        """Return one number per group, NaN where it has no value, and that of all rows."""
        if isinstance(item, MeanStats):
            count, mean = item.count[0], item.mean[0, :, 0]
            overall = float((mean * (count / max(count.sum(), 1))).sum()) if count.sum() else float("nan")
            return np.where(count > 0, mean, np.nan)[:-1], overall
        whole = item.overall().statistics(self.strategy)
        return item.statistics(self.strategy)[:-1], float(whole[0])

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """Return the filled columns for one partition; inputs are not modified.

        Raises:
            SchemaMismatch: the groups are text where numbers were learned, or the other way round.
            BadData: an infinity.
        """
        xp = backend.xp
        key = columns[self.by]
        if (key.dtype == "string") != (self.key_dtype_ == "string"):
            raise SchemaMismatch(
                f"GroupImputer, column {self.by!r}",
                "another type than in fit",
                got=key.dtype,
                expected=self.key_dtype_,
                remedy=f"Cast({{{self.by!r}: {self.key_dtype_!r}}})",
            )
        ids = make_lookup(self.groups_, text=key.dtype == "string").ids(key, backend)
        made, infinite = {}, []
        for name, known in zip(self.output_names(self.names_in_), self.statistics_, strict=True):
            column, values = columns[name], floats(columns[name], xp)
            infinite.append(xp.isinf(values).any())
            fills = backend.to_device(np.concatenate([np.full(FIRST, known[-1]), known[:-1]]))
            dtype = column.dtype if column.dtype in FLOATS else "float64"
            made[name] = Column(dtype, xp.where(xp.isnan(values), fills[ids], values).astype(dtype))
        if infinite and backend.to_host(xp.stack(infinite)).any():
            refuse({name: columns[name] for name in made}, backend, "GroupImputer")
        return made


def _waiting(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    sizes = [64 + (len(part.categories) if isinstance(part, MeanStats) else len(part.values)) for part in parts]
    return parts if sum(sizes) <= max(_WAITING, 2 * max(sizes)) else (type(parts[0]).merged(parts),)
