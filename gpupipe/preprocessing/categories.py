"""Categorical steps: the types they accept, categories given by the user, categories learned, and their lookups."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Self

import numpy as np

from gpupipe.backend import Backend, Column
from gpupipe.backend.dictionaries import Dictionary, find_positions, parse_values, sort_values
from gpupipe.errors import BadConfig, BadData, ColumnNotFound, SchemaMismatch
from gpupipe.preprocessing.learned_step import Columns, LearnedStep
from gpupipe.preprocessing.summaries.counts import CategoryCounts, ValueCounts
from gpupipe.preprocessing.vocabulary import UNKNOWN, Lookup, Lookups
from gpupipe.schema import INTEGERS, Field, Kind
from gpupipe.support.text import format_count
from gpupipe.support.validation import is_one_of, is_sequence, refuse_argument

__all__ = [
    "CategoryStep",
    "Learned",
    "check_categories",
    "check_distinct",
    "check_listed",
    "make_id_field",
    "make_number_field",
    "match_lists",
    "resolve_lists",
]

Lists = Mapping[str, Sequence[Any]]


def check_categories(fields: Sequence[Field], where: str) -> None:
    """Raise `SchemaMismatch` for the first field that is neither text, nor integer, nor boolean."""
    for item in fields:
        if item.dtype not in ("string", "bool", *INTEGERS):
            raise SchemaMismatch(
                f"{where}, column {item.name!r}",
                "its values are no categories",
                got=item.dtype,
                expected="strings, integers or booleans",
                remedy="Categorify(), which takes lists"
                if item.kind == Kind.LIST
                else f"Cast({{{item.name!r}: 'int64'}}) for whole numbers, KBinsDiscretizer(), T.DateParts for times",
            )


def make_number_field(item: Field, name: str, dtype: str = "float32", *, nullable: bool = False) -> Field:
    """Return the field of numbers computed from a column row by row."""
    return replace(
        item, name=name, dtype=dtype, kind=Kind.CONTINUOUS, nullable=nullable, cardinality=None, classes=None
    )


def check_distinct(names: Sequence[str], where: str) -> None:
    """Raise `BadData` where two outputs, named after values, have the same name."""
    for output, count in Counter(names).items():
        if count > 1:
            raise BadData(
                where,
                "two outputs have the same name",
                got=output,
                expected="categories that differ when they are written out",
                remedy="Rename or Replace before it",
            )


def make_id_field(item: Field, cardinality: int | None) -> Field:
    """Return the field of int32 ids computed from a column row by row."""
    return replace(item, dtype="int32", kind=Kind.CATEGORICAL, nullable=False, cardinality=cardinality, classes=None)


def check_listed(owner: object, /, *also: Any, **given: Any) -> None:
    """Raise `BadConfig` for an argument that is neither a list nor a mapping of lists, nor one of `also`."""
    for name, value in given.items():
        listed = value.values() if isinstance(value, Mapping) else [value]
        if not (all(map(is_sequence, listed)) or is_one_of(value, also)):
            raise refuse_argument(owner, name, value, "a list of values, or a mapping from columns to such")


def match_lists(given: Any, names: Sequence[str], where: str) -> Lists:
    """Return lists by column name, given by name (for some columns) or in the columns' order (for all).

    Raises:
        ColumnNotFound: a name that is no column's.
        BadConfig: not as many as there are columns.
    """
    if isinstance(given, Mapping):
        for name in given:
            if name not in names:
                raise ColumnNotFound.among(where, name, names)
        return dict(given)
    is_list = hasattr(given, "__len__") and not isinstance(given, str)
    if not is_list or len(given) != len(names):
        raise BadConfig(
            where,
            "it does not go with the columns",
            got=format_count(len(given), "item") if is_list else given,
            expected=f"one for each of {list(names)}, or a mapping from some of them",
            remedy=f"{{{names[0]!r}: ...}}",
        )
    return dict(zip(names, given, strict=True))


def resolve_lists(lists: Lists, dtypes: Mapping[str, str], where: str) -> dict[str, tuple[Dictionary, bool]]:
    """Return the values listed for each column in that order, and whether missing is one; by name of listed columns.

    Raises:
        BadConfig: no list, a value of another type than its column, or one that is listed twice.
    """
    found = {}
    for name in (name for name in dtypes if name in lists):
        try:
            values, has_missing = parse_values(lists[name], dtypes[name])
        except (TypeError, ValueError, OverflowError) as cause:
            raise BadConfig(
                f"{where}, column {name!r}",
                "its values are not of the column's type, or no list",
                got=lists[name][:3] if hasattr(lists[name], "__getitem__") else lists[name],
                expected=f"a list of {dtypes[name]}",
                remedy="the values of the column, in their order",
            ) from cause
        distinct = len(sort_values(values))
        if distinct < len(values):
            raise BadConfig(
                f"{where}, column {name!r}",
                "a value stands there more than once",
                got=f"{len(values):,} values, {distinct:,} distinct",
                expected="each value once",
                remedy="list(dict.fromkeys(values))",
            )
        found[name] = (values, has_missing)
    return found


@dataclass(frozen=True)
class Learned:
    """Categories of one column.

    Args:
        dtype: the column's type in `fit`.
        values: the categories, in ascending order or in that given.
        has_missing: whether a missing value was there (or is listed).
        counts: how often each was there, and a missing value last, int64.
        num_rows: rows in `fit`, missing ones too.
    """

    dtype: str
    values: Dictionary
    has_missing: bool
    counts: Any
    num_rows: int


class CategoryStep(LearnedStep):
    """Base class of steps that learn the categories of each column and their counts, or are given the categories.

    Attributes:
        categories_: for each column, by name, its categories as an Arrow array on the host.
        dtypes_in_: for each column, by name, its type in `fit`.
    """

    fills_late = True

    categories_: dict[str, Dictionary]
    dtypes_in_: dict[str, str]

    _by_name: tuple[str, ...] = ()
    """Attributes that hold an array or a number for each column by name, besides the categories."""

    @property
    def _where(self) -> str:
        return type(self).__name__

    def summarize(self, columns: Columns, backend: Backend) -> CategoryCounts:
        return CategoryCounts.of(columns, backend, self._where)

    def finalize(self, summary: CategoryCounts) -> Self:
        dtypes = dict(zip(summary.names, (item.dtype for item in summary.columns), strict=True))
        given = self._given(dtypes)
        self.categories_, self.dtypes_in_ = {}, dtypes
        for name in self._by_name:
            setattr(self, name, {})
        for name, column in zip(summary.names, summary.columns, strict=True):
            found = self._learned(name, column, given.get(name))
            self.categories_[name] = found.values
            self._learn(name, found)
        self.names_in_ = list(summary.names)
        return self

    @abstractmethod
    def _learn(self, name: str, found: Learned) -> None:
        """Learn from one column's categories."""

    def _given(self, dtypes: Mapping[str, str]) -> dict[str, tuple[Dictionary, bool]]:
        """Return the listed categories, and whether missing is one, by column name."""
        return {}

    @property
    def _refuses_unknown(self) -> bool:
        return False

    def _learned(self, name: str, column: ValueCounts, given: tuple[Dictionary, bool] | None) -> Learned:
        seen, counts = column.ranked()
        values, has_missing = (sort_values(seen), column.missing > 0) if given is None else given
        place = find_positions(values, seen)
        known = np.where(place >= 0, counts[place], 0) if len(seen) else np.zeros(len(values), np.int64)
        total = int(counts.sum()) + column.missing
        if self._refuses_unknown and known.sum() < counts.sum():
            unknown = np.flatnonzero(find_positions(seen, values) < 0)
            self._refuse(name, int(counts[unknown].sum()), seen[int(unknown[0])].as_py())
        return Learned(column.dtype, values, has_missing, np.append(known, column.missing), total)

    def get_state(self) -> dict[str, Any]:
        self.check_fitted()
        state: dict[str, Any] = {"names_in_": self.names_in_}
        state["dtypes_in_"] = [self.dtypes_in_[name] for name in self.names_in_]
        for attribute in ("categories_", *self._by_name):
            by_name = getattr(self, attribute)
            state |= {f"{attribute}{place}": by_name[name] for place, name in enumerate(self.names_in_)}
        return state

    def set_state(self, state: Mapping[str, Any]) -> Self:
        self.names_in_ = list(state["names_in_"])
        self.dtypes_in_ = dict(zip(self.names_in_, state["dtypes_in_"], strict=True))
        for attribute in ("categories_", *self._by_name):
            setattr(self, attribute, {name: state[f"{attribute}{i}"] for i, name in enumerate(self.names_in_)})
        return self

    def _lookup(self, name: str, column: Column) -> Lookup:
        lookups: Lookups = self.__dict__.setdefault("_lookups", Lookups())
        return lookups.of(name, column, self.categories_[name], self.dtypes_in_[name], self._where)

    def _refuse_unknown(self, name: str, column: Column, backend: Backend) -> NoReturn:
        """Raise for a column that holds a value outside its categories."""
        unknown = self._lookup(name, column).ids(column, backend) == UNKNOWN
        first = column.take(backend.xp.flatnonzero(unknown)[:1])
        value = backend.to_arrow(backend.frame({name: first}, 1))[name][0].as_py()
        self._refuse(name, int(backend.to_host(unknown.sum()[None])[0]), value)

    def _refuse(self, name: str, count: int, value: Any) -> NoReturn:
        raise BadData(
            f"{self._where}, column {name!r}",
            f"{format_count(count, 'value')} of no known category",
            got=value,
            expected="values that were there in fit, or that categories= lists",
            remedy=f"{self._where}(handle_unknown=...), or fit on more rows",
        )
