"""Encoders of categories: ids, positions, one-hot columns and counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.columns import floats, whole_numbers
from gpupipe.backend.dictionaries import Dictionary, find_positions
from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.preprocessing import categories as cats
from gpupipe.preprocessing.categories import CategoryStep, check_categories, make_number_field
from gpupipe.preprocessing.learned_step import Columns, Invertible, by_element, num_rows, row_blocks
from gpupipe.preprocessing.summaries import CategoryCounts, ValueCounts
from gpupipe.schema import FLOATS, Field
from gpupipe.support.validation import check_bool, check_choice, check_integer, is_number, is_sequence, refuse_argument

_NOWHERE, _REFUSED = -1, -2


class OneHotEncoder(cats.CategoryStep, Invertible):
    """One-hot encoding of strings, integers and booleans; scikit-learn's, always dense.

    The columns are named as scikit-learn names them: `<name>_<category>`, categories in ascending order, then
    `<name>_nan` where a missing value was there in `fit`, then `<name>_infrequent_sklearn` for all that are too rare. A
    missing value is never unknown: where `fit` saw none it is 0 in all columns (scikit-learn treats it as unknown).

    Args:
        categories: `"auto"`, or those there are, as a list per column or by column name; None among them is missing.
        drop: leave a column out: None, `"first"`, `"if_binary"` (of two), or a category per column (or by name).
        dtype: `"uint8"` or `"float32"`.
        handle_unknown: a value that is no category is an `"error"`, is 0 in all columns (`"ignore"`), or is one of
            the rare ones (`"infrequent_if_exist"`; 0 in all columns where there are none).
        min_frequency: categories of fewer rows, or of a smaller fraction of them, are rare.
        max_categories: at most this many columns for each column, that of the rare ones included.

    Attributes:
        categories_: for each column, by name, its categories without missing, as an Arrow array on the host.
        infrequent_: for each column, by name, which of them are rare, and last whether missing is (if it is there).
        drop_idx_: for each column, by name, the place among its outputs that is left out, or -1.

    Raises:
        BadConfig, ColumnNotFound: categories that do not go with the columns, or one to drop that has no column.
        BadData: an unknown value, where that is an error; two outputs of one name.
        SchemaMismatch: a column holds text where numbers were learned, or the other way round.

    Memory: distinct values and counts go to the host; transform allocates n bytes (n float32) per output on the device.

    Example:
        >>> import pandas as pd
        >>> step = OneHotEncoder(handle_unknown="ignore").fit(pd.DataFrame({"origin": ["JFK", "LGA", "JFK"]}))
        >>> step.transform(pd.DataFrame({"origin": ["LGA", "EWR"]})).to_dict("list")
        {'origin_JFK': [0, 0], 'origin_LGA': [1, 0]}
    """

    infrequent_: dict[str, Any]
    drop_idx_: dict[str, int]

    learned_by_name = (*cats.CategoryStep.learned_by_name, "infrequent_", "drop_idx_")

    def __init__(
        self,
        *,
        categories: str | Mapping[str, Sequence[Any]] | Sequence[Sequence[Any]] = "auto",
        drop: str | Mapping[str, Any] | Sequence[Any] | None = None,
        dtype: str = "uint8",
        handle_unknown: str = "error",
        min_frequency: float | None = None,
        max_categories: int | None = None,
    ) -> None:
        cats.check_listed(self, "auto", categories=categories)
        if isinstance(drop, str):
            check_choice(self, ("first", "if_binary"), None, drop=drop)
        elif not (drop is None or isinstance(drop, Mapping) or is_sequence(drop)):
            raise refuse_argument(self, "drop", drop, "'first', 'if_binary', None, or a category per column")
        check_choice(self, ("uint8", "float32"), dtype=dtype)
        check_choice(self, ("error", "ignore", "infrequent_if_exist"), handle_unknown=handle_unknown)
        cats.check_limits(self, min_frequency, max_categories)
        self.categories, self.drop, self.dtype = categories, drop, dtype
        self.handle_unknown = handle_unknown
        self.min_frequency, self.max_categories = min_frequency, max_categories

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        """Return the output fields; before `fit` one field per column stands for all its outputs."""
        cats.check_categories(fields, self.class_name)
        dtypes = {item.name: item.dtype for item in fields}
        if not self.is_fitted:
            cats.resolve_categories(self, dtypes)
            self._dropped(dtypes)
        return [cats.make_number_field(item, name, self.dtype) for item in fields for name in self._outputs(item.name)]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return [output for name in names for output in self._outputs(name)]

    def _outputs(self, name: str) -> list[str]:
        if not self.is_fitted or name not in self.infrequent_:
            return [name]
        is_rare, values = self.infrequent_[name], self.categories_[name].to_pylist()
        labels = [bool(value) if self.dtypes_in_[name] == "bool" else value for value in values]
        labels += ["nan"] * (len(is_rare) - len(labels))
        kept = [str(label) for label, gone in zip(labels, is_rare, strict=True) if not gone]
        kept += ["infrequent_sklearn"] * bool(is_rare.any())
        if self.drop_idx_[name] >= 0:
            del kept[self.drop_idx_[name]]
        return [f"{name}_{label}" for label in kept]

    def _dropped(self, dtypes: Mapping[str, str]) -> dict[str, tuple[Dictionary, bool]]:
        """Return the category to leave out, by column name: a value, or missing."""
        if self.drop is None or isinstance(self.drop, str):
            return {}
        where = f"{self.class_name}(drop=)"
        single = cats.match_lists(self.drop, list(dtypes), where)
        return cats.resolve_lists({name: [value] for name, value in single.items()}, dtypes, where)

    def finalize(self, summary: CategoryCounts) -> Self:
        super().finalize(summary)
        names = self.get_feature_names_out()
        del self.names_in_  # not fitted where that is refused
        cats.check_distinct(names, self.class_name)
        self.names_in_ = list(summary.names)
        return self

    def _learn(self, name: str, counts: Any, num_rows: int, *, has_missing: bool) -> None:
        counts = counts if has_missing else counts[:-1]
        is_rare = cats.rare(counts, num_rows, self.min_frequency, self.max_categories)
        groups, num_groups = cats.group_rare(is_rare)
        place = -1
        if self.drop == "first" or (self.drop == "if_binary" and num_groups == 2):
            place = 0 if num_groups else -1
        elif name in (unwanted := self._dropped(self.dtypes_in_)):
            values, is_missing = unwanted[name]
            known = self.categories_[name]
            entry = len(known) if is_missing else int(find_positions(values, known)[0])
            if not 0 <= entry < len(groups) or is_rare[entry]:
                where, got = f"{self.class_name}(drop=), column {name!r}", None if is_missing else values[0].as_py()
                problem = "it is too rare to have a column" if 0 <= entry < len(groups) else "it is no category"
                expected = "a category that has a column of its own"
                raise BadConfig(where, problem, got=got, expected=expected, remedy="drop='first'")
            place = int(groups[entry])
        self.infrequent_[name], self.drop_idx_[name] = is_rare, place

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp = backend.xp
        made: dict[str, Column] = {}
        refused: dict[str, Array] = {}
        for name, column in columns.items():
            outputs = [xp.empty(len(column), dtype=self.dtype) for _ in self._outputs(name)]
            places = self._lookup(name, column).gathered(column, self._table(name), backend)
            for rows in row_blocks(len(column), backend):
                for place, out in enumerate(outputs):
                    out[rows] = places[rows] == place
            made |= {n: Column(self.dtype, out) for n, out in zip(self._outputs(name), outputs, strict=True)}
            if self.handle_unknown == "error":
                refused[name] = (places == _REFUSED).any()
        self._refuse_flagged(refused, columns, backend)
        return made

    def _table(self, name: str) -> Any:
        """Return the output that is 1 for missing, unknown and each category; none for some."""
        is_rare, dropped = self.infrequent_[name], self.drop_idx_[name]
        groups, num_groups = cats.group_rare(is_rare)
        unknown = _REFUSED if self.handle_unknown == "error" else _NOWHERE
        size = len(self.categories_[name])
        missing = groups[size] if len(groups) > size else _NOWHERE
        if self.handle_unknown == "infrequent_if_exist" and is_rare.any():
            unknown = num_groups - 1
        table = np.array([missing, unknown, *groups[:size]])
        if dropped >= 0:
            table = np.where(table == dropped, _NOWHERE, table - (table > dropped))
        return table.astype(np.promote_types(np.min_scalar_type(-num_groups - 2), np.int8))

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """Return the category with the largest column; missing for a rare one, and for all 0 without `drop`."""
        xp, made = backend.xp, {}
        size = num_rows(columns) if columns else 0
        for name in self.names_in_:
            outputs, dropped = self._outputs(name), self.drop_idx_[name]
            entries = np.flatnonzero(~self.infrequent_[name])
            back = np.append(entries, [-1] * bool(self.infrequent_[name].any())).astype(np.int32)
            none = back[dropped] if dropped >= 0 else -1
            table = backend.to_device(np.append(np.delete(back, dropped) if dropped >= 0 else back, none))
            places = xp.full(size, len(outputs), dtype="int32")
            for rows in row_blocks(size, backend, len(outputs) or 1):
                if outputs:
                    flags = xp.stack([columns[output].data[rows] for output in outputs])
                    places[rows] = xp.where(flags.max(axis=0) > 0, flags.argmax(axis=0), len(outputs))
            made[name] = cats.take_values(table[places], self.categories_[name], self.dtypes_in_[name], backend)
        return made


class OrdinalEncoder(cats.CategoryStep, Invertible):
    """Ordinal encoding: strings, integers and booleans as their position in an order from 0; scikit-learn's.

    They are numbers, whose size means something; ids for an embedding are `Categorify`'s. A missing value is never
    unknown: it becomes `encoded_missing_value`, whether `fit` saw one or not (scikit-learn: only if it did).

    Args:
        categories: `"auto"` for ascending order, or the values in their order, as a list per column or by column name.
        dtype: `"float32"`, or `"float64"` for more than 16.7 million categories.
        handle_unknown: a value that is no category is an `"error"`, or becomes `unknown_value`
            (`"use_encoded_value"`).
        unknown_value, encoded_missing_value: numbers that no category has, or NaN.
        min_frequency: categories of fewer rows, or of a smaller fraction of them, have the number behind the others.
        max_categories: at most this many numbers, that of the rare ones included.

    Attributes:
        categories_, infrequent_: by column name its categories in order, as an Arrow array on the host, and which of
            them are rare.

    Raises:
        BadConfig, ColumnNotFound: categories that do not go with the columns, or a number that a category has.
        BadData: an unknown value, where that is an error; too many categories for float32.
        SchemaMismatch: a column holds text where numbers were learned, or the other way round.

    Memory: distinct values and counts go to the host; transform allocates n floats per column on the device.

    Example:
        >>> import pandas as pd
        >>> step = OrdinalEncoder(categories={"size": ["small", "medium", "large"]})
        >>> step.fit_transform(pd.DataFrame({"size": ["medium", None, "small"]}))["size"].tolist()
        [1.0, nan, 0.0]
    """

    infrequent_: dict[str, Any]

    learned_by_name = (*cats.CategoryStep.learned_by_name, "infrequent_")

    def __init__(
        self,
        *,
        categories: str | Mapping[str, Sequence[Any]] | Sequence[Sequence[Any]] = "auto",
        dtype: str = "float32",
        handle_unknown: str = "error",
        unknown_value: float | None = None,
        encoded_missing_value: float = np.nan,
        min_frequency: float | None = None,
        max_categories: int | None = None,
    ) -> None:
        cats.check_listed(self, "auto", categories=categories)
        check_choice(self, FLOATS, dtype=dtype)
        check_choice(self, ("error", "use_encoded_value"), handle_unknown=handle_unknown)
        cats.check_limits(self, min_frequency, max_categories)
        self.categories, self.dtype, self.handle_unknown = categories, dtype, handle_unknown
        self.unknown_value, self.encoded_missing_value = unknown_value, encoded_missing_value
        self.min_frequency, self.max_categories = min_frequency, max_categories
        if handle_unknown == "error" and unknown_value is not None:
            where, remedy = f"{self.class_name}(unknown_value=)", "handle_unknown='use_encoded_value'"
            expected = f"{remedy}, or no unknown_value"
            raise BadConfig(where, "unknown values are an error", got=unknown_value, expected=expected, remedy=remedy)
        for name, number in self._numbers.items():
            if not is_number(number) or abs(number) > float(np.finfo(dtype).max):
                raise refuse_argument(self, name, number, f"a number that {dtype} holds, or NaN", f"{name}=-1")

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        cats.check_categories(fields, self.class_name)
        if not self.is_fitted:
            cats.resolve_categories(self, {item.name: item.dtype for item in fields})
        nullable = any(math.isnan(number) for number in self._numbers.values())
        return [cats.make_number_field(item, item.name, self.dtype, nullable=nullable) for item in fields]

    @property
    def _numbers(self) -> dict[str, Any]:
        """The numbers outside the categories."""
        unknown = {} if self.handle_unknown == "error" else {"unknown_value": self.unknown_value}
        return {"encoded_missing_value": self.encoded_missing_value, **unknown}

    def _learn(self, name: str, counts: Any, num_rows: int, *, has_missing: bool) -> None:
        is_rare = cats.rare(counts[:-1], num_rows, self.min_frequency, self.max_categories)
        _, num_groups = cats.group_rare(is_rare)
        for parameter, number in self._numbers.items():
            if 0 <= number < num_groups and number == int(number):
                where = f"{self.class_name}({parameter}=), column {name!r}"
                expected = f"NaN, or a number that is not among 0 to {num_groups - 1}"
                problem, remedy = "it is a category's number", f"{parameter}=-1"
                raise BadConfig(where, problem, got=number, expected=expected, remedy=remedy)
        if self.dtype == "float32" and num_groups > 1 << 24:
            where, problem = f"{self.class_name}, column {name!r}", "it has more categories than float32 has integers"
            raise BadData(where, problem, got=num_groups, expected=f"at most {1 << 24:,}", remedy="dtype='float64'")
        self.infrequent_[name] = is_rare

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, made = backend.xp, {}
        # An unknown value that is an error is infinite until it is found.
        unknown = self._numbers.get("unknown_value", np.inf)
        for name, column in columns.items():
            groups, _ = cats.group_rare(self.infrequent_[name])
            table = np.concatenate([[self.encoded_missing_value, unknown], groups]).astype(self.dtype)
            made[name] = Column(self.dtype, self._lookup(name, column).gathered(column, table, backend))
        if self.handle_unknown == "error":
            self._refuse_flagged({name: xp.isinf(item.data).any() for name, item in made.items()}, columns, backend)
        return made

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """Return the category of each number; missing for a rare one's, and for numbers without a category."""
        xp, made = backend.xp, {}
        for name, column in columns.items():
            frequent = backend.to_device(np.append(np.flatnonzero(~self.infrequent_[name]), -1))
            last, numbers = len(frequent) - 1, floats(column, xp)
            known = (numbers >= 0) & (numbers < last) & (numbers == xp.floor(numbers))
            places = frequent[xp.where(known, numbers, last).astype("int64")]
            made[name] = cats.take_values(places, self.categories_[name], self.dtypes_in_[name], backend)
        return made


class CountEncoder(CategoryStep):
    """Count encoding: strings, integers and booleans as the number of rows of `fit` with that value, else 0.

    A missing value becomes the number of rows in which the value was missing.

    Args:
        normalize: the fraction of all rows instead of their number, as in `pandas.Series.value_counts`.

    Attributes:
        categories_, counts_: for each column, by name, its values in ascending order, as an Arrow array on the host,
            and how often each was there, and a missing value last, int64.

    Raises:
        SchemaMismatch: a column holds text where numbers were learned, or the other way round.

    Memory: distinct values and counts go to the host; transform allocates n float32 per column on the device.

    Example:
        >>> import pandas as pd
        >>> step = CountEncoder().fit(pd.DataFrame({"origin": ["JFK", "LGA", None, "LGA"]}))
        >>> step.transform(pd.DataFrame({"origin": ["LGA", "JFK", None, "EWR"]}))["origin"].tolist()
        [2.0, 1.0, 1.0, 0.0]
    """

    learned_by_name = (*CategoryStep.learned_by_name, "counts_")
    counts_: dict[str, Any]

    def __init__(self, *, normalize: bool = False) -> None:
        check_bool(self, normalize=normalize)
        self.normalize = normalize

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        check_categories(fields, "CountEncoder")
        return [make_number_field(item, item.name) for item in fields]

    def _learn(self, name: str, counts: Any, num_rows: int, *, has_missing: bool) -> None:
        self.counts_[name] = counts

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        made = {}
        for name, column in columns.items():
            counts = self.counts_[name]
            table = np.concatenate([[counts[-1], 0], counts[:-1]]).astype(np.float64)
            table /= max(counts.sum(), 1) if self.normalize else 1
            values = self._lookup(name, column).gathered(column, table.astype(np.float32), backend)
            made[name] = Column("float32", values)
        return made


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
        vocabularies_, dtypes_in_: by column name the values in the order of their ids, as an Arrow array, and the type.

    Raises:
        BadConfig, ColumnNotFound: a vocabulary that is not of its column's type, names a value twice or missing, or is
            for a column that is not there.
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

    def summarize(self, columns: Columns, backend: Backend) -> CategoryCounts:
        given = self.vocabulary if isinstance(self.vocabulary, Mapping) or self.vocabulary is None else columns
        return CategoryCounts.of(columns, backend, "Categorify", uncounted=given or ())

    def finalize(self, summary: CategoryCounts) -> Self:
        names, counts = list(summary.names), summary.columns
        dtypes = {name: item.dtype for name, item in zip(names, counts, strict=True)}
        found = self._given(dtypes)
        if self.joint and names:  # either all vocabularies are given, or none
            counts = (reduce(add, counts),) * len(names)
            found = dict.fromkeys(names, found[names[0]] if found else self._rank(counts[0]))
        self.vocabularies_ = {
            name: found[name] if name in found else self._rank(item) for name, item in zip(names, counts, strict=True)
        }
        self.dtypes_in_, self.names_in_ = dtypes, names
        return self

    def _rank(self, counts: ValueCounts) -> Dictionary:
        values, _ = counts.ranked(self.min_frequency or 1)
        return values[: self.max_categories]

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
