"""Categories of steps: the accepted types, given, learned or infrequent ones, and the lookup of values in them."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, dictionaries, select
from gpupipe.backend.dictionaries import Dictionary
from gpupipe.backend.kernels import KeyIndex, hash_column, hash_strings, splitmix64
from gpupipe.backend.value_counts import integers
from gpupipe.errors import BadConfig, BadData, ColumnNotFound, SchemaMismatch
from gpupipe.preprocessing.learned_state import require_state
from gpupipe.preprocessing.learned_step import Columns, LearnedStep, gather, row_blocks
from gpupipe.preprocessing.summaries import CategoryCounts, encode_values
from gpupipe.schema import INTEGERS, Field, Kind
from gpupipe.support.text import format_count
from gpupipe.support.text_kinds import MISSING_MARKS
from gpupipe.support.validation import check_integer, check_number, is_integer, is_one_of, is_sequence, refuse_argument

_log = logging.getLogger("gpupipe")
Lists = Mapping[str, Sequence[Any]]

MISSING, UNKNOWN, FIRST = 0, 1, 2

_OF_RESERVED, _OF_VALUES, _OF_PLACES = 0, 1, 2  # seeds of keys: a bucket is no value
MOST_BUCKETS = 2**31 - 1 - FIRST  # an id is an int32
_MARKED_ROWS, _MARKED_SHARE = 5, 0.01  # of rows with a mark of a missing value, from which on it is told
_FREQUENT_ROWS, _FREQUENT_SHARE = 20, 0.05  # of rows with another text
_MOST_TEXTS, _MOST_COUNTED = 1_000, 100  # distinct ones that are looked up, and unknown ones whose rows are counted
_MOST_ROWS = 100_000  # in which they are
_MARKS = dictionaries.strings(MISSING_MARKS)
_RESIDENT = 1 << 16  # beyond this many strings the vocabulary is not hashed again for every partition


def check_limits(owner: object, min_frequency: float | None, max_categories: int | None) -> None:
    """Raise `BadConfig` unless they are positive integers, a fraction of the rows between 0 and 1, or None."""
    check_integer(owner, "[1, inf)", None, max_categories=max_categories)
    if not is_integer(min_frequency, 1):
        check_number(owner, "(0, 1)", None, min_frequency=min_frequency)


def rare(counts: Any, num_rows: int, min_frequency: float | None, max_categories: int | None) -> Any:
    """Return K booleans, True for rare categories, which make one of `max_categories`; of equal counts the first."""
    least = min_frequency or 0
    mask = counts < (least * num_rows if least < 1 else least)
    if max_categories is not None and max_categories < len(counts) - mask.sum() + 1:
        mask[np.argsort(counts, kind="stable")[: len(counts) - (max_categories - 1)]] = True
    return mask


def group_rare(is_rare: Any) -> tuple[Any, int]:
    """Return the group of each category, frequent ones in order and then all rare ones, and the number of groups."""
    frequent = int((~is_rare).sum())
    return np.where(is_rare, frequent, np.cumsum(~is_rare) - 1), frequent + int(is_rare.any())


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the ids of a column stand for: the same key in two fits is the same value, whatever its id is there.

    Of `["LGA", "JFK"]` in one fit and `["JFK", "EWR", "LGA"]` in the next the ids 2, 3 became 4, 2.

    Args:
        values: in the order of ids from 2 on; None where ids stand for positions alone.
        num_places: ids behind the values, of buckets, bins or clusters.
        seed: what the meaning of these depends on beside their position.
    """

    values: Dictionary | None = None
    num_places: int = 0
    seed: int = 0

    @property
    def num_ids(self) -> int:
        """How many ids there are, missing and unknown included."""
        return FIRST + (0 if self.values is None else len(self.values)) + self.num_places

    def keys(self) -> Any:
        """Return a 64-bit key for each id, missing and unknown first; never 0."""
        value_bits = np.zeros(0, np.uint64) if self.values is None else dictionaries.get_bits(self.values)
        places = splitmix64(self.seed, np.arange(self.num_places))
        parts = {_OF_RESERVED: np.arange(FIRST), _OF_VALUES: value_bits, _OF_PLACES: places}
        return np.maximum(np.concatenate([splitmix64(seed, bits) for seed, bits in parts.items()]), np.uint64(1))


class Lookup:
    """Lookup of values in a prepared vocabulary: of distinct strings on the host, of numbers in blocks of rows."""

    def __init__(self, vocabulary: Dictionary, *, text: bool) -> None:
        self.vocabulary = vocabulary
        self.reports = dict[str, object]()  # by column, of texts that are warned of
        self._index = None if text else KeyIndex(vocabulary.to_numpy())
        if text and len(vocabulary) > _RESIDENT:
            self._index = dictionaries.index_hashes(vocabulary)

    def ids(self, column: Column, backend: Backend, num_buckets: int = 0, table: Any = None) -> Array:
        """Return n int32: 0 missing, 1 not in the vocabulary, 2 and up by the position in it.

        With buckets, what is not in the vocabulary has one of the `num_buckets` ids behind it, by its hash. With a
        `table` on the host, and without buckets, it is `table[ids]`, of the table's type.
        """
        xp, behind = backend.xp, len(self.vocabulary) + FIRST
        if column.dictionary is not None:
            ids = self._string_ids(column.dictionary)
            if num_buckets:
                unknown = np.flatnonzero(ids == UNKNOWN)
                bits = splitmix64(0, hash_strings(column.dictionary.take(unknown)))
                ids[unknown] = assign_buckets(bits, num_buckets) + behind
            return gather(ids if table is None else table[ids], column.data, backend)
        assert self._index is not None
        device_table = None if table is None else backend.to_device(table)
        out = xp.empty(len(column), dtype="int32" if table is None else table.dtype)
        for rows in row_blocks(len(column), backend):
            places = self._index.positions(integers(column.data[rows], column.dtype), backend)
            block_ids = places + np.int32(FIRST)  # of one that is not there, at -1, UNKNOWN
            if column.valid is not None:
                block_ids[~column.valid[rows]] = MISSING
            if num_buckets:
                bucket = assign_buckets(hash_column(column.take(rows), 0, backend), num_buckets)
                block_ids = xp.where(block_ids == UNKNOWN, bucket + behind, block_ids)
            out[rows] = block_ids if device_table is None else device_table[block_ids]
        return out

    def _string_ids(self, dictionary: Dictionary) -> Any:
        """Return the id of each distinct string, and of a missing one."""
        if self._index is None:
            places = dictionaries.find_positions(dictionary, self.vocabulary)
        else:
            places = dictionaries.find_positions_by_hash(dictionary, self.vocabulary, self._index)
        return np.append(np.where(places < 0, UNKNOWN, places + FIRST), MISSING).astype(np.int32)


class _Lookups(dict[str, Lookup]):
    """A step's lookups by column name; every process, and every copy, prepares its own."""

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


def find_lookup(step: LearnedStep, name: str, column: Column, vocabulary: Dictionary, dtype: str) -> Lookup:
    """Return a step's lookup in a vocabulary learned from a column of type `dtype`, prepared once; refuses others."""
    if dictionaries.value_type(column.dtype) != dictionaries.value_type(dtype):
        where, remedy = f"{step.class_name}, column {name!r}", f"Cast({{{name!r}: {dtype!r}}})"
        raise SchemaMismatch(where, "another type than in fit", got=column.dtype, expected=dtype, remedy=remedy)
    lookups: _Lookups = vars(step).setdefault("_lookups", _Lookups())
    lookup = lookups.get(name)
    if lookup is None or lookup.vocabulary is not vocabulary:
        same = [item for item in list(lookups.values()) if item.vocabulary is vocabulary]
        lookup = lookups[name] = same[0] if same else Lookup(vocabulary, text=dtype == "string")
    _warn_of_unknown(step, name, column, lookup)
    return lookup


def _warn_of_unknown(step: LearnedStep, name: str, column: Column, lookup: Lookup) -> None:
    """Warn once of a frequent text that the fit read as a missing value, or did not have: "?", or any other."""
    if column.dictionary is None or not len(lookup.vocabulary) or name in lookup.reports:
        return
    data, marks = column.data[:_MOST_ROWS], np.flatnonzero(dictionaries.find_known(column.dictionary, _MARKS))
    num_rows = len(data)
    least = dict.fromkeys(marks.tolist(), max(min(_MARKED_ROWS, num_rows), _MARKED_SHARE * num_rows))
    frequency = getattr(step, "min_frequency", None) or 1
    keeps_frequent = getattr(step, "max_categories", None) is None and 1 <= frequency <= _FREQUENT_ROWS
    if keeps_frequent and num_rows >= _FREQUENT_ROWS and len(column.dictionary) <= _MOST_TEXTS:
        limits = dict.fromkeys(range(len(column.dictionary)), max(_FREQUENT_ROWS, _FREQUENT_SHARE * num_rows))
        least = {**least, **limits, **least}  # marks come first
    if not least:
        return
    codes = np.asarray([*least], dtype=np.int64)
    places = dictionaries.find_positions(column.dictionary.take(codes), lookup.vocabulary)
    for code in codes[places < 0][:_MOST_COUNTED].tolist():
        if (count := int((data == code).sum())) < least[code]:
            continue
        report = object()
        if lookup.reports.setdefault(name, report) is report:  # threads transform several partitions
            text = column.dictionary[code].as_py()
            _log.warning(
                "%s: column %r has %r in %d of %s, which is none of the fit's categories; where it marks a missing "
                "value, gp.Pipeline([T.Replace({%r: {%r: None}})]).fit(data).transform(data) makes it one, of CSV "
                "--null-value %r of the command, too",
                step.class_name,
                name,
                text,
                count,
                f"{'the first ' if num_rows < len(column) else ''}{format_count(num_rows, 'row')}",
                name,
                text,
                f"{name}={text}",
            )


def check_vocabulary(where: str, vocabulary: Any, dtype: str) -> None:
    """Raise `ArtifactError` for what a file says is the vocabulary of a column of this type, and is not."""
    kind = dictionaries.value_type(dtype)
    require_state(vocabulary.type == kind, where, "its vocabulary", vocabulary.type, f"values of type {kind}")
    distinct = len(dictionaries.sort_values(vocabulary))
    require_state(distinct == len(vocabulary), where, "its vocabulary", f"{distinct} distinct", f"{len(vocabulary)}")


def assign_buckets(bits: Array, num_buckets: int) -> Array:
    """Return the bucket of each 64 well mixed bits, int32 from 0 up."""
    return (bits % np.uint64(num_buckets)).astype("int32")


def take_values(places: Array, vocabulary: Dictionary, dtype: str, backend: Backend) -> Column:
    """Return the vocabulary's values at these positions (integers), missing where a position is outside it."""
    valid = (places >= 0) & (places < len(vocabulary))
    places = backend.xp.where(valid, places, -1).astype("int32")
    if dtype == "string":
        return Column(dtype, places, None, vocabulary)
    values = vocabulary.to_numpy()
    values = np.append(values, values.dtype.type(0)).astype(dtype)
    return Column(dtype, backend.to_device(values)[places], valid)


def check_categories(
    fields: Sequence[Field], where: str, noun: str = "categories", of_lists: str = "Categorify(), which takes lists"
) -> None:
    """Raise `SchemaMismatch` for the first field that is no text, integer or boolean; for lists with that remedy."""
    for item in fields:
        if item.dtype not in ("string", "bool", *INTEGERS):
            column, problem = f"{where}, column {item.name!r}", f"its values are no {noun}"
            numbers = f"Cast({{{item.name!r}: 'int64'}}) for whole numbers, KBinsDiscretizer(), T.DateParts for times"
            remedy, expected = of_lists if item.kind == Kind.LIST else numbers, "strings, integers or booleans"
            raise SchemaMismatch(column, problem, got=item.dtype, expected=expected, remedy=remedy)


def make_number_field(item: Field, name: str, dtype: str = "float32", *, nullable: bool = False) -> Field:
    """Return the field of numbers computed from a column row by row."""
    output = replace(item, name=name, dtype=dtype, kind=Kind.CONTINUOUS, nullable=nullable)
    return replace(output, cardinality=None, classes=None, vocabulary=None)


def make_id_field(item: Field, vocabulary: Vocabulary | None) -> Field:
    """Return the field of int32 ids computed from a column row by row; of unknown many before a fit."""
    output = replace(item, dtype="int32", kind=Kind.CATEGORICAL, nullable=False, classes=None, vocabulary=vocabulary)
    return replace(output, cardinality=None if vocabulary is None else vocabulary.num_ids)


def check_distinct(names: Sequence[str], where: str) -> None:
    """Raise `BadData` where two outputs, named after values, have the same name."""
    for output, count in Counter(names).items():
        if count > 1:
            remedy, expected = "Rename or Replace before it", "categories that differ when they are written out"
            raise BadData(where, "two outputs have the same name", got=output, expected=expected, remedy=remedy)


def check_listed(owner: object, /, *also: Any, **arguments: Any) -> None:
    """Raise `BadConfig` for an argument that is neither a list nor a mapping of lists, nor one of `also`."""
    for name, value in arguments.items():
        listed = value.values() if isinstance(value, Mapping) else [value]
        if not (all(map(is_sequence, listed)) or is_one_of(value, also)):
            raise refuse_argument(owner, name, value, "a list of values, or a mapping from columns to such")


def get_entry(argument: Any, name: str, where: str) -> Any:
    """Return what is given for a column, by name or for all."""
    if isinstance(argument, Mapping) and name not in argument:
        raise ColumnNotFound.among(where, name, argument)
    return argument[name] if isinstance(argument, Mapping) else argument


def match_lists(argument: Any, names: Sequence[str], where: str) -> Lists:
    """Return lists by column name, given by name (for some columns) or in the columns' order (for all); checks both."""
    if isinstance(argument, Mapping):
        for name in argument:
            if name not in names:
                raise ColumnNotFound.among(where, name, names)
        return dict(argument)
    is_list = hasattr(argument, "__len__") and not isinstance(argument, str)
    if not is_list or len(argument) != len(names):
        got = format_count(len(argument), "item") if is_list else argument
        expected, remedy = f"one for each of {list(names)}, or a mapping from some of them", f"{{{names[0]!r}: ...}}"
        raise BadConfig(where, "it does not go with the columns", got=got, expected=expected, remedy=remedy)
    return dict(zip(names, argument, strict=True))


def resolve_lists(lists: Lists, dtypes: Mapping[str, str], where: str) -> dict[str, tuple[Dictionary, bool]]:
    """Return the values listed for each listed column, and whether missing is one; refuses other types and repeats."""
    vocabularies = {}
    for name in (name for name in dtypes if name in lists):
        column, entries, dtype = f"{where}, column {name!r}", lists[name], dtypes[name]
        try:
            values, has_missing = dictionaries.parse_values(entries, dtype)
        except (TypeError, ValueError, OverflowError) as cause:
            problem, got = "its values are not of the column's type, or no list", entries
            got, remedy = got[:3] if hasattr(got, "__getitem__") else got, "the values of the column, in their order"
            raise BadConfig(column, problem, got=got, expected=f"a list of {dtype}", remedy=remedy) from cause
        distinct = len(dictionaries.sort_values(values))
        if distinct < len(values):
            problem, got = "a value stands there more than once", f"{len(values):,} values, {distinct:,} distinct"
            raise BadConfig(column, problem, got=got, expected="each value once", remedy="list(dict.fromkeys(values))")
        vocabularies[name] = (values, has_missing)
    return vocabularies


def resolve_categories(step: Any, dtypes: Mapping[str, str]) -> dict[str, tuple[Dictionary, bool]]:
    """Return the categories a step is given, and whether missing is one, by column name; none with `"auto"`."""
    if isinstance(step.categories, str):
        return {}
    where = f"{step.class_name}(categories=)"
    return resolve_lists(match_lists(step.categories, list(dtypes), where), dtypes, where)


def learn_ids(column: Column) -> tuple[Any, Dictionary]:
    """Return the id of each value of a column on the host, and the distinct values in order."""
    codes, values = encode_values(column, select("cpu"))
    used = np.bincount(codes, minlength=len(values) + 1)[:-1] > 0
    vocabulary = dictionaries.sort_values(values.take(np.flatnonzero(used)))
    return np.append(dictionaries.find_positions(values, vocabulary) + FIRST, MISSING)[codes], vocabulary


class CategoryStep(LearnedStep):
    """Base class of steps that learn the categories of each column and their counts, or are given the categories.

    `categories_` are those of each column by name, Arrow arrays on the host; `dtypes_in_` the columns' types in `fit`.
    """

    fills_late = True
    categories: Any = "auto"
    handle_unknown: str = ""
    learned_by_name: tuple[str, ...] = ("categories_", "dtypes_in_")
    learned_shapes: ClassVar[Mapping[str, str]] = {"dtypes_in_": "dtype", "categories_": "values[V]"}
    categories_: dict[str, Dictionary]
    dtypes_in_: dict[str, str]

    def summarize(self, columns: Columns, backend: Backend) -> CategoryCounts:
        return CategoryCounts.of(columns, backend, self.class_name)

    def _check_fields(self, fields: Sequence[Field]) -> None:
        check_categories(fields, self.class_name)
        if not self.is_fitted:
            resolve_categories(self, {item.name: item.dtype for item in fields})

    def finalize(self, summary: CategoryCounts) -> Self:
        for attribute in self.learned_by_name:
            setattr(self, attribute, {})
        self.dtypes_in_ |= zip(summary.names, (item.dtype for item in summary.columns), strict=True)
        categories = resolve_categories(self, self.dtypes_in_)
        for name, column in zip(summary.names, summary.columns, strict=True):
            ranking, counts = column.ranked()
            values, has_missing = categories.get(name, (dictionaries.sort_values(ranking), column.missing > 0))
            index = dictionaries.find_positions(values, ranking)
            frequency = np.where(index >= 0, counts[index], 0) if len(ranking) else np.zeros(len(values), np.int64)
            if self.handle_unknown == "error" and frequency.sum() < counts.sum():
                unknown = np.flatnonzero(dictionaries.find_positions(ranking, values) < 0)
                self._refuse(name, int(counts[unknown].sum()), ranking[int(unknown[0])].as_py())
            self.categories_[name] = values
            num_rows = int(counts.sum()) + column.missing
            self._learn(name, np.append(frequency, column.missing), num_rows, has_missing=has_missing)
        check_distinct(self.output_names(summary.names), self.class_name)
        return super().finalize(summary)

    def _check_state(self) -> None:
        super()._check_state()
        for name in self.names_in_:
            check_vocabulary(self.class_name, self.categories_[name], self.dtypes_in_[name])

    @abstractmethod
    def _learn(self, name: str, counts: Any, num_rows: int, *, has_missing: bool) -> None:
        """Learn from the rows of each of a column's categories and of missing (int64), and those in all."""

    def _lookup(self, name: str, column: Column) -> Lookup:
        return find_lookup(self, name, column, self.categories_[name], self.dtypes_in_[name])

    def _refuse_flagged(self, flags: Mapping[str, Array], columns: Columns, backend: Backend) -> None:
        """Raise for the first column whose flag says that it holds a value outside its categories."""
        host_flags = backend.to_host(backend.xp.stack(list(flags.values()))) if flags else ()
        for name in (name for name, flag in zip(flags, host_flags, strict=True) if flag):
            unknown = self._lookup(name, columns[name]).ids(columns[name], backend) == UNKNOWN
            first = columns[name].take(backend.xp.flatnonzero(unknown)[:1])
            value = backend.to_arrow(backend.frame({name: first}, 1))[name][0].as_py()
            self._refuse(name, int(backend.to_host(unknown.sum()[None])[0]), value)

    def _refuse(self, name: str, count: int, value: Any) -> NoReturn:
        where, problem = f"{self.class_name}, column {name!r}", f"{format_count(count, 'value')} of no known category"
        expected = "values that were there in fit, or that categories= lists"
        choice = "'use_encoded_value', unknown_value=-1" if hasattr(self, "unknown_value") else "'ignore'"
        remedy = f"{self.class_name}(handle_unknown={choice}), or fit on more rows"
        raise BadData(where, problem, got=value, expected=expected, remedy=remedy)
