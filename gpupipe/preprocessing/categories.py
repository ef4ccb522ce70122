"""Categories of steps: the accepted types, given, learned or infrequent ones, and the lookup of values in them."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.dictionaries import (
    Dictionary,
    find_positions,
    find_positions_by_hash,
    index_hashes,
    parse_values,
    sort_values,
    value_type,
)
from gpupipe.backend.hashing import KeyIndex, hash_column, hash_strings, splitmix64
from gpupipe.errors import BadConfig, BadData, ColumnNotFound, SchemaMismatch
from gpupipe.preprocessing.learned_step import Columns, LearnedStep
from gpupipe.preprocessing.numeric import row_blocks
from gpupipe.preprocessing.summaries.counts import CategoryCounts, ValueCounts, integers
from gpupipe.schema import INTEGERS, Field, Kind
from gpupipe.support.text import format_count
from gpupipe.support.validation import check_integer, check_number, is_integer, is_one_of, is_sequence, refuse_argument


def check_limits(owner: object, min_frequency: float | None, max_categories: int | None) -> None:
    """Raise `BadConfig` unless they are positive integers, a fraction of the rows between 0 and 1, or None."""
    check_integer(owner, "[1, inf)", None, max_categories=max_categories)
    if not is_integer(min_frequency, 1):
        check_number(owner, "(0, 1)", None, min_frequency=min_frequency)


def rare(counts: Any, num_rows: int, min_frequency: float | None, max_categories: int | None) -> Any:
    """Return K booleans, True for the categories that are in the one group of infrequent ones.

    Args:
        counts: K int64, how often each category was there.
        num_rows: what a share is of.
        min_frequency: a category of fewer rows, or of a smaller fraction of them, is rare.
        max_categories: how many groups there may be, that of the rare ones included. Of equally frequent categories
            the first ones become rare.

    Example:
        >>> rare(np.array([5, 1, 9, 5]), 20, None, 3).tolist()
        [True, True, False, False]
    """
    least = min_frequency or 0
    found = counts < (least * num_rows if least < 1 else least)
    if max_categories is not None and max_categories < len(counts) - found.sum() + 1:
        found[np.argsort(counts, kind="stable")[: len(counts) - (max_categories - 1)]] = True
    return found


def group_rare(is_rare: Any) -> tuple[Any, int]:
    """Return the group of each category, frequent ones in order and then all rare ones, and the number of groups.

    Example:
        >>> group_rare(np.array([False, True, False]))
        (array([0, 2, 1]), 3)
    """
    frequent = int((~is_rare).sum())
    return np.where(is_rare, frequent, np.cumsum(~is_rare) - 1), frequent + int(is_rare.any())


MISSING, UNKNOWN, FIRST = 0, 1, 2

# An id is an int32.
MOST_BUCKETS = 2**31 - 1 - FIRST

# Beyond this many strings the vocabulary is not hashed again for every partition.
_RESIDENT = 1 << 16


class Lookup(Protocol):
    """Base class of lookups in one prepared vocabulary."""

    vocabulary: Dictionary

    def ids(self, column: Column, backend: Backend, num_buckets: int = 0) -> Array:
        """Return n int32: 0 missing, 1 not in the vocabulary, 2 and up by the position in it.

        With buckets, what is not in the vocabulary has one of the `num_buckets` ids behind it, by its hash.
        """

    def gathered(self, column: Column, table: Any, backend: Backend) -> Array:
        """Return `table[ids]` for a table on the host, of the table's type."""


def make_lookup(vocabulary: Dictionary, *, text: bool) -> Lookup:
    """Prepare a vocabulary.

    Memory: for numbers 12 bytes per value or 4 per value of a dense range; for more than 65,536 strings 16 each.
    """
    return _TextLookup(vocabulary) if text else _NumberLookup(vocabulary)


class Lookups:
    """Cache of a step's lookups by column name; every process, and every copy, prepares its own."""

    def __init__(self) -> None:
        self._prepared: dict[str, Lookup] = {}

    def of(self, name: str, column: Column, vocabulary: Dictionary, dtype: str, where: str) -> Lookup:
        """Return the lookup in a vocabulary learned from a column of type `dtype`, prepared once.

        Raises:
            SchemaMismatch: the column holds text where numbers were learned, or the other way round.
        """
        if value_type(column.dtype) != value_type(dtype):
            raise SchemaMismatch(
                f"{where}, column {name!r}",
                "another type than in fit",
                got=column.dtype,
                expected=dtype,
                remedy=f"Cast({{{name!r}: {dtype!r}}})",
            )
        found = self._prepared.get(name)
        if found is None or found.vocabulary is not vocabulary:
            same = [item for item in list(self._prepared.values()) if item.vocabulary is vocabulary]
            found = self._prepared[name] = same[0] if same else make_lookup(vocabulary, text=dtype == "string")
        return found

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


def assign_buckets(bits: Array, num_buckets: int) -> Array:
    """Return the bucket of each 64 well mixed bits, int32 from 0 up."""
    return (bits % np.uint64(num_buckets)).astype("int32")


def take_values(places: Array, vocabulary: Dictionary, dtype: str, backend: Backend) -> Column:
    """Return the vocabulary's values at these positions (integers), missing where a position is outside it."""
    known = (places >= 0) & (places < len(vocabulary))
    places = backend.xp.where(known, places, -1).astype("int32")
    if dtype == "string":
        return Column(dtype, places, None, vocabulary)
    values = vocabulary.to_numpy()
    values = np.append(values, values.dtype.type(0)).astype(dtype)
    return Column(dtype, backend.to_device(values)[places], known)


class _TextLookup:
    """Lookup of text: one search per distinct string of a partition, on the host, and one gather."""

    def __init__(self, vocabulary: Dictionary) -> None:
        self.vocabulary = vocabulary
        self._index = index_hashes(vocabulary) if len(vocabulary) > _RESIDENT else None

    def ids(self, column: Column, backend: Backend, num_buckets: int = 0) -> Array:
        assert column.dictionary is not None
        ids = self._ids_of(column.dictionary)
        if num_buckets:
            unknown = np.flatnonzero(ids == UNKNOWN)
            bits = splitmix64(0, hash_strings(column.dictionary.take(unknown)))
            ids[unknown] = assign_buckets(bits, num_buckets) + (len(self.vocabulary) + FIRST)
        return _by_code(column, ids, backend)

    def gathered(self, column: Column, table: Any, backend: Backend) -> Array:
        assert column.dictionary is not None
        return _by_code(column, table[self._ids_of(column.dictionary)], backend)

    def _ids_of(self, dictionary: Dictionary) -> Any:
        """Return the id of each distinct string, and of a missing one."""
        if self._index is None:
            places = find_positions(dictionary, self.vocabulary)
        else:
            places = find_positions_by_hash(dictionary, self.vocabulary, self._index)
        return np.append(np.where(places < 0, UNKNOWN, places + FIRST), MISSING).astype(np.int32)


def _by_code(column: Column, values: Any, backend: Backend) -> Array:
    """Return, for each row, the value of its entry of the dictionary, or that of a missing string."""
    table = backend.to_device(values)
    out = backend.xp.empty(len(column), dtype=values.dtype)
    for rows in row_blocks(len(column), backend):
        out[rows] = table[column.data[rows]]
    return out


class _NumberLookup:
    """Lookup of numbers: a search for each number of a partition."""

    def __init__(self, vocabulary: Dictionary) -> None:
        self.vocabulary = vocabulary
        self._index = KeyIndex(vocabulary.to_numpy())

    def ids(self, column: Column, backend: Backend, num_buckets: int = 0) -> Array:
        xp = backend.xp
        out = xp.empty(len(column), dtype="int32")
        for rows, found in self._blocks(column, backend):
            out[rows] = found
            if num_buckets:
                bucket = assign_buckets(hash_column(column.take(rows), 0, backend), num_buckets)
                out[rows] = xp.where(found == UNKNOWN, bucket + (len(self.vocabulary) + FIRST), found)
        return out

    def gathered(self, column: Column, table: Any, backend: Backend) -> Array:
        device = backend.to_device(table)
        out = backend.xp.empty(len(column), dtype=table.dtype)
        for rows, found in self._blocks(column, backend):
            out[rows] = device[found]
        return out

    def _blocks(self, column: Column, backend: Backend) -> Iterator[tuple[slice, Array]]:
        """Yield blocks of rows and their ids."""
        for rows in row_blocks(len(column), backend):
            places = self._index.positions(integers(column.data[rows], column.dtype), backend)
            found = places + np.int32(FIRST)  # of one that is not there, at -1, UNKNOWN
            if column.valid is not None:
                found[~column.valid[rows]] = MISSING
            yield rows, found


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
