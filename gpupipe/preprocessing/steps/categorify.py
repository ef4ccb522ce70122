"""Categorical ids: 0 missing, 1 unknown or rare, 2.. the vocabulary, then optional hash buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Self

import numpy as np

from gpupipe.backend import Backend, Column
from gpupipe.backend.columns import whole_numbers
from gpupipe.backend.dictionaries import Dictionary
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.preprocessing import categories as cats
from gpupipe.preprocessing.learned_step import Columns, Invertible, by_element
from gpupipe.preprocessing.summaries.counts import CategoryCounts
from gpupipe.schema import Field
from gpupipe.support.validation import check_bool, check_integer


@dataclass(frozen=True)
class _Seen:
    """Summary of the types of all columns, and the counts of those whose vocabulary is learned."""

    dtypes: dict[str, str]
    counts: CategoryCounts

    def __add__(self, other: Self) -> Self:
        return type(self)(self.dtypes, self.counts + other.counts)

    def filled(self, values: Mapping[str, Any]) -> Self:
        """Return the summary with each missing value replaced by `values[name]`."""
        return type(self)(self.dtypes, self.counts.filled(values))


@by_element
class Categorify(Invertible):
    """Categorical ids of strings, integers and booleans as int32, with a vocabulary per column or one for all.

    Id 0 is a missing value, 1 one that was not there in `fit` or was too rare, 2 and up the vocabulary by count
    descending, then value ascending (strings by their UTF-8 bytes). With `num_buckets`, what would be 1 is spread by
    its hash, the same on every backend, over that many ids behind the vocabulary, whose own ids stay the same.

    Args:
        min_frequency: values that occur less often share id 1; by default every value that occurs is kept.
        max_categories: at most this many values are kept, the most frequent ones; by default all.
        num_buckets: over how many ids unknown and rare values are spread; by default they share id 1.
        joint: one vocabulary for all columns, which have one type: the same value has the same id in each, and counts
            are of all of them together.
        vocabulary: the values in the order of their ids, a list or an array for every column, or by column name for
            some. Limits hold for the columns whose vocabulary is learned.

    Attributes:
        vocabularies_: for each column, by name, the kept values in the order of their ids, as an Arrow array.
        dtypes_in_: for each column, by name, its type in `fit`.

    Raises:
        ColumnNotFound: a vocabulary for a column that is not there.
        BadConfig: a vocabulary that is not of its column's type, names a value twice, or names missing.
        SchemaMismatch: a column holds text where numbers were learned, or the other way round.

    Memory: distinct values and their counts go to the host once a partition, and on to temporary files where a column
        has more than 32 MB of them. Transform allocates n int32 per column on the device, and one lookup table.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"origin": ["JFK", "LGA", None, "LGA"]})
        >>> Categorify().fit(frame).transform(pd.DataFrame({"origin": ["LGA", "JFK", None, "ZZZ"]}))["origin"].tolist()
        [2, 3, 0, 1]
        >>> Categorify(vocabulary=["EWR", "JFK"], num_buckets=10).fit_transform(frame)["origin"].tolist()
        [3, 12, 0, 12]
    """

    fills_late = True
    learned_by_name = ("vocabularies_", "dtypes_in_")

    def __init__(
        self,
        *,
        min_frequency: int | None = None,
        max_categories: int | None = None,
        num_buckets: int | None = None,
        joint: bool = False,
        vocabulary: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        sizes = {"min_frequency": min_frequency, "max_categories": max_categories, "num_buckets": num_buckets}
        check_integer(self, f"[1, {cats.MOST_BUCKETS}]", None, **sizes)
        check_bool(self, joint=joint)
        cats.check_listed(self, None, vocabulary=vocabulary)
        self.min_frequency, self.max_categories, self.num_buckets = min_frequency, max_categories, num_buckets
        self.joint, self.vocabulary = joint, vocabulary

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        cats.check_categories(fields, "Categorify")
        self._check_joint(fields)
        if not self.is_fitted:
            self._given({item.name: item.dtype for item in fields})
        sizes = {name: len(values) for name, values in self.vocabularies_.items()} if self.is_fitted else {}
        behind = cats.FIRST + (self.num_buckets or 0)
        return [cats.make_id_field(item, sizes[item.name] + behind if item.name in sizes else None) for item in fields]

    def _check_joint(self, fields: Sequence[Field]) -> None:
        if not self.joint:
            return
        if isinstance(self.vocabulary, Mapping):
            problem, expected = "vocabularies by column are not joint", "one list for all columns"
            got, remedy = sorted(self.vocabulary), "joint=False"
            raise BadConfig("Categorify(joint=True)", problem, got=got, expected=expected, remedy=remedy)
        for item in fields[1:]:
            if item.dtype != fields[0].dtype:
                where, expected = f"Categorify(joint=True), column {item.name!r}", fields[0].dtype
                problem, remedy = f"another type than {fields[0].name!r}", f"Cast({{{item.name!r}: {expected!r}}})"
                raise SchemaMismatch(where, problem, got=item.dtype, expected=expected, remedy=remedy)

    def _given(self, dtypes: Mapping[str, str]) -> dict[str, Dictionary]:
        """Return the given vocabularies by column name."""
        if self.vocabulary is None:
            return {}
        where = "Categorify(vocabulary=)"
        if isinstance(self.vocabulary, Mapping):
            lists = cats.match_lists(self.vocabulary, list(dtypes), where)
        else:
            lists = dict.fromkeys(dtypes, self.vocabulary)
        if not isinstance(self.vocabulary, Mapping) and (self.min_frequency or self.max_categories):
            problem, expected = "nothing is counted, so there is nothing to limit", "a vocabulary, or limits"
            got = {"min_frequency": self.min_frequency, "max_categories": self.max_categories}
            remedy = "leave min_frequency and max_categories out"
            raise BadConfig(where, problem, got=got, expected=expected, remedy=remedy)
        found = cats.resolve_lists(lists, dtypes, where)
        for name, (_, has_missing) in found.items():
            if has_missing:
                column, problem = f"{where}, column {name!r}", "missing is no value of a vocabulary: it always has id 0"
                raise BadConfig(column, problem, got=None, expected="values", remedy="leave it out")
        return {name: values for name, (values, _) in found.items()}

    def summarize(self, columns: Columns, backend: Backend) -> _Seen:
        given = self.vocabulary if isinstance(self.vocabulary, Mapping) or self.vocabulary is None else columns
        learned = {name: column for name, column in columns.items() if name not in (given or ())}
        dtypes = {name: column.dtype for name, column in columns.items()}
        return _Seen(dtypes, CategoryCounts.of(learned, backend, "Categorify"))

    def finalize(self, summary: _Seen) -> Self:
        names, counts = list(summary.dtypes), summary.counts
        found = self._given(summary.dtypes)
        if self.joint and self.vocabulary is not None:
            found = dict.fromkeys(names, found[names[0]])
        if counts.names:
            several = [reduce(add, counts.columns)] if self.joint else counts.columns
            ranked = [item.ranked(self.min_frequency or 1)[0][: self.max_categories] for item in several]
            found |= dict.fromkeys(names, ranked[0]) if self.joint else dict(zip(counts.names, ranked, strict=True))
        self.vocabularies_ = {name: found[name] for name in names}
        self.dtypes_in_ = dict(summary.dtypes)
        self.names_in_ = names
        return self

    def get_state(self) -> dict[str, Any]:
        """Return the learned vocabularies, a joint one once."""
        state = super().get_state()
        for place in range(1, len(self.names_in_)) if self.joint else ():
            del state[f"vocabularies_{place}"]
        return state

    def set_state(self, state: Mapping[str, Any]) -> Self:
        places = range(len(state["names_in_"])) if self.joint else ()
        return super().set_state({**state, **{f"vocabularies_{place}": state["vocabularies_0"] for place in places}})

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        made = {}
        for name, column in columns.items():
            lookup = cats.find_lookup(self, name, column, self.vocabularies_[name], self.dtypes_in_[name])
            made[name] = Column("int32", lookup.ids(column, backend, self.num_buckets or 0))
        return made

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """Return the values of ids; missing where the id is 0, 1, a bucket's or outside the vocabulary."""
        made = {}
        for name, column in columns.items():
            ids, there = whole_numbers(column, np.dtype("int64"), backend.xp)
            places = backend.xp.where(there, ids, cats.MISSING) - cats.FIRST
            made[name] = cats.take_values(places, self.vocabularies_[name], self.dtypes_in_[name], backend)
        return made
