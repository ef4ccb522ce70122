"""Encoders of categories, hashed or not, of times and of text: ids, numbers, and columns of 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, ClassVar, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.columns import floats, whole_numbers
from gpupipe.backend.dates import (
    CYCLES,
    DATE_FLAGS,
    DATE_PARTS,
    check_zone,
    compute_phase,
    date_parts,
    local_time,
)
from gpupipe.backend.dictionaries import Dictionary, find_positions, strings, unite_dictionaries
from gpupipe.backend.estimators import make_analyzer
from gpupipe.backend.kernels import hash_column, hash_strings, splitmix64
from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.preprocessing import categories as cats
from gpupipe.preprocessing import learned_step as base
from gpupipe.preprocessing.learned_state import require_state
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.summaries import CategoryCounts, ValueCounts
from gpupipe.schema import FLOATS, Field, Kind, suggest_times
from gpupipe.support.validation import (
    as_list,
    check_bool,
    check_choice,
    check_integer,
    check_names,
    check_seed,
    is_integer,
    is_number,
    is_sequence,
    refuse_argument,
)

_NOWHERE, _REFUSED = -1, -2


def hash_seeds(seed: int, num_buckets: int) -> int:
    """Return what the meaning of a bucket's number depends on."""
    return int(splitmix64(seed, np.array([num_buckets]))[0])


class OneHotEncoder(cats.CategoryStep, base.Invertible):
    """One-hot encoding of strings, integers and booleans; scikit-learn's, always dense.

    Columns are named as there: `<name>_<category>`, ascending, then `<name>_nan` where `fit` saw a missing value, then
    `<name>_infrequent_sklearn` for all rare ones. A missing value that `fit` did not see is 0 in all columns
    (scikit-learn treats it as unknown).

    Args:
        categories: `"auto"`, or a list per column or by column name; None among them is missing.
        drop: leave a column out: None, `"first"`, `"if_binary"` (of two), or a category per column (or by name).
        dtype: `"uint8"` or `"float32"`.
        handle_unknown: a value that is no category is an `"error"`, is 0 in all columns (`"ignore"`), or one of the
            rare ones (`"infrequent_if_exist"`; else 0).
        min_frequency: categories of fewer rows, or of a smaller fraction of them, are rare.
        max_categories: at most this many columns for each column, that of the rare ones included.

    Attributes: by column name, `categories_` without missing (Arrow, on the host), `infrequent_`, which of them are
    rare, missing last if it is one, and `drop_idx_`, the output left out, or -1.
    Raises: BadConfig, ColumnNotFound for categories that do not go with the columns, or one to drop that has no column;
    BadData for unknown values, or two outputs of one name; SchemaMismatch for text instead of numbers, or the reverse.
    Memory: distinct values and counts go to the host; transform allocates n bytes (n float32) per output on the device.

    Example:
        >>> import pandas as pd
        >>> step = OneHotEncoder(handle_unknown="ignore").fit(pd.DataFrame({"origin": ["JFK", "LGA", "JFK"]}))
        >>> step.transform(pd.DataFrame({"origin": ["LGA", "EWR"]})).to_dict("list")
        {'origin_JFK': [0, 0], 'origin_LGA': [1, 0]}
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {
        **cats.CategoryStep.learned_shapes,
        "infrequent_": "bool[I]",
        "drop_idx_": "integer",
    }
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
        self._check_fields(fields)
        if not self.is_fitted:
            self._dropped({item.name: item.dtype for item in fields})
            return [cats.make_number_field(item, item.name, self.dtype) for item in fields]
        return [cats.make_number_field(item, name, self.dtype) for item in fields for name in self._outputs(item.name)]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return [output for name in names for output in self._outputs(name)]

    def _outputs(self, name: str) -> list[str]:
        if name not in getattr(self, "infrequent_", ()):
            return [name]
        is_rare, values = self.infrequent_[name], self.categories_[name].to_pylist()
        labels = [bool(value) if self.dtypes_in_[name] == "bool" else value for value in values]
        labels += ["nan"] * (len(is_rare) - len(labels))
        suffixes = [str(label) for label, flag in zip(labels, is_rare, strict=True) if not flag]
        suffixes += ["infrequent_sklearn"] * bool(is_rare.any())
        if self.drop_idx_[name] >= 0:
            del suffixes[self.drop_idx_[name]]
        return [f"{name}_{label}" for label in suffixes]

    def _dropped(self, dtypes: Mapping[str, str]) -> dict[str, tuple[Dictionary, bool]]:
        """Return the category to leave out, by column name: a value, or missing."""
        if self.drop is None or isinstance(self.drop, str):
            return {}
        where = f"{self.class_name}(drop=)"
        single = cats.match_lists(self.drop, list(dtypes), where)
        return cats.resolve_lists({name: [value] for name, value in single.items()}, dtypes, where)

    def _learn(self, name: str, counts: Any, num_rows: int, *, has_missing: bool) -> None:
        counts = counts if has_missing else counts[:-1]
        is_rare = cats.rare(counts, num_rows, self.min_frequency, self.max_categories)
        groups, num_groups = cats.group_rare(is_rare)
        drop_index = -1
        if self.drop == "first" or (self.drop == "if_binary" and num_groups == 2):
            drop_index = 0 if num_groups else -1
        elif name in (unwanted := self._dropped(self.dtypes_in_)):
            values, is_missing = unwanted[name]
            categories = self.categories_[name]
            entry = len(categories) if is_missing else int(find_positions(values, categories)[0])
            if not 0 <= entry < len(groups) or is_rare[entry]:
                where, got = f"{self.class_name}(drop=), column {name!r}", None if is_missing else values[0].as_py()
                problem = "it is too rare to have a column" if 0 <= entry < len(groups) else "it is no category"
                expected = "a category that has a column of its own"
                raise BadConfig(where, problem, got=got, expected=expected, remedy="drop='first'")
            drop_index = int(groups[entry])
        self.infrequent_[name], self.drop_idx_[name] = is_rare, drop_index

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp = backend.xp
        results: dict[str, Column] = {}
        refused: dict[str, Array] = {}
        for name, column in columns.items():
            outputs = [xp.empty(len(column), dtype=self.dtype) for _ in self._outputs(name)]
            places = self._lookup(name, column).ids(column, backend, table=self._table(name))
            for rows in base.row_blocks(len(column), backend):
                for index, out in enumerate(outputs):
                    out[rows] = places[rows] == index
            results |= {n: Column(self.dtype, out) for n, out in zip(self._outputs(name), outputs, strict=True)}
            if self.handle_unknown == "error":
                refused[name] = (places == _REFUSED).any()
        self._refuse_flagged(refused, columns, backend)
        return results

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

    def _check_state(self) -> None:
        super()._check_state()
        for name in self.names_in_:
            is_rare, dropped, size = self.infrequent_[name], self.drop_idx_[name], len(self.categories_[name])
            expected = f"{size} categories, and missing where it is one"
            require_state(len(is_rare) - size in (0, 1), self.class_name, "infrequent_", is_rare, expected)
            _, num_groups = cats.group_rare(is_rare)
            require_state(-1 <= dropped < num_groups, self.class_name, "drop_idx_", dropped, f"-1 to {num_groups - 1}")

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """Return the category with the largest column; missing for a rare one, and for all 0 without `drop`."""
        xp, results = backend.xp, {}
        size = base.num_rows(columns) if columns else 0
        for name in self.names_in_:
            outputs, dropped = self._outputs(name), self.drop_idx_[name]
            entries = np.flatnonzero(~self.infrequent_[name])
            back = np.append(entries, [-1] * bool(self.infrequent_[name].any())).astype(np.int32)
            none = back[dropped] if dropped >= 0 else -1
            table = backend.to_device(np.append(np.delete(back, dropped) if dropped >= 0 else back, none))
            places = xp.full(size, len(outputs), dtype="int32")
            for rows in base.row_blocks(size, backend, len(outputs) or 1):
                if outputs:
                    flags = xp.stack([columns[output].data[rows] for output in outputs])
                    places[rows] = xp.where(flags.max(axis=0) > 0, flags.argmax(axis=0), len(outputs))
            results[name] = cats.take_values(table[places], self.categories_[name], self.dtypes_in_[name], backend)
        return results


class OrdinalEncoder(cats.CategoryStep, base.Invertible):
    """Ordinal encoding: strings, integers and booleans as their position in an order from 0; scikit-learn's.

    They are numbers, whose size means something; ids for an embedding are `Categorify`'s. A missing value becomes
    `encoded_missing_value`, whether `fit` saw one or not (scikit-learn: only if it did).

    Args:
        categories: `"auto"` for ascending order, or the values in their order, as a list per column or by column name.
        dtype: `"float32"`, or `"float64"` for more than 16.7 million categories.
        handle_unknown: a value that is no category is an `"error"`, or `unknown_value` (`"use_encoded_value"`).
        unknown_value, encoded_missing_value: numbers that no category has, or NaN.
        min_frequency: categories of fewer rows, or of a smaller fraction of them, have the number behind the others.
        max_categories: at most this many numbers, that of the rare ones included.

    Attributes: by column name, `categories_` in order (Arrow, on the host), and `infrequent_`, which of them are rare.
    Raises: BadConfig, ColumnNotFound for categories that do not go with the columns, or a number that a category has;
    BadData for unknown values, or too many categories for float32; SchemaMismatch for text instead of numbers, or the
    reverse.
    Memory: distinct values and counts go to the host; transform allocates n floats per column on the device.

    Example:
        >>> import pandas as pd
        >>> step = OrdinalEncoder(categories={"size": ["small", "medium", "large"]})
        >>> step.fit_transform(pd.DataFrame({"size": ["medium", None, "small"]}))["size"].tolist()
        [1.0, nan, 0.0]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {**cats.CategoryStep.learned_shapes, "infrequent_": "bool[V]"}
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
        self._check_fields(fields)
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
                where, problem = f"{self.class_name}({parameter}=), column {name!r}", "it is a category's number"
                expected, remedy = f"NaN, or a number that is not among 0 to {num_groups - 1}", f"{parameter}=-1"
                raise BadConfig(where, problem, got=number, expected=expected, remedy=remedy)
        if self.dtype == "float32" and num_groups > 1 << 24:
            where, problem = f"{self.class_name}, column {name!r}", "it has more categories than float32 has integers"
            raise BadData(where, problem, got=num_groups, expected=f"at most {1 << 24:,}", remedy="dtype='float64'")
        self.infrequent_[name] = is_rare

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, outputs = backend.xp, {}
        # An unknown value that is an error is infinite until it is found.
        unknown = self._numbers.get("unknown_value", np.inf)
        for name, column in columns.items():
            groups, _ = cats.group_rare(self.infrequent_[name])
            table = np.concatenate([[self.encoded_missing_value, unknown], groups]).astype(self.dtype)
            outputs[name] = Column(self.dtype, self._lookup(name, column).ids(column, backend, table=table))
        if self.handle_unknown == "error":
            self._refuse_flagged({name: xp.isinf(item.data).any() for name, item in outputs.items()}, columns, backend)
        return outputs

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """Return the category of each number; missing for a rare one's, and for numbers without a category."""
        xp, outputs = backend.xp, {}
        for name, column in columns.items():
            frequent = backend.to_device(np.append(np.flatnonzero(~self.infrequent_[name]), -1))
            last, numbers = len(frequent) - 1, floats(column, xp)
            valid = (numbers >= 0) & (numbers < last) & (numbers == xp.floor(numbers))
            places = frequent[xp.where(valid, numbers, last).astype("int64")]
            outputs[name] = cats.take_values(places, self.categories_[name], self.dtypes_in_[name], backend)
        return outputs


class CountEncoder(cats.CategoryStep):
    """Count encoding: strings, integers and booleans as the number of rows of `fit` with that value, else 0.

    Missing is counted as a value. With `normalize` it is the fraction of all rows, as in `pandas.Series.value_counts`.
    Attributes: by column name, `categories_`, ascending (Arrow, on the host), and `counts_`, missing last, int64.
    Raises: SchemaMismatch for text instead of numbers, or the reverse.
    Memory: distinct values and counts go to the host; transform allocates n float32 per column on the device.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"origin": ["JFK", "LGA", None, "LGA"]})
        >>> CountEncoder().fit_transform(frame)["origin"].tolist()
        [1.0, 2.0, 1.0, 2.0]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {**cats.CategoryStep.learned_shapes, "counts_": "counts[V+1]"}
    learned_by_name = (*cats.CategoryStep.learned_by_name, "counts_")
    counts_: dict[str, Any]

    def __init__(self, *, normalize: bool = False) -> None:
        check_bool(self, normalize=normalize)
        self.normalize = normalize

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        self._check_fields(fields)
        return [cats.make_number_field(item, item.name) for item in fields]

    def _learn(self, name: str, counts: Any, num_rows: int, *, has_missing: bool) -> None:
        self.counts_[name] = counts

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        outputs = {}
        for name, column in columns.items():
            counts = self.counts_[name].astype(np.float64)
            counts /= max(counts.sum(), 1) if self.normalize else 1
            table = np.concatenate([[counts[-1], 0], counts[:-1]]).astype(np.float32)
            outputs[name] = Column("float32", self._lookup(name, column).ids(column, backend, table=table))
        return outputs


@base.by_element
class Categorify(base.Invertible):
    """Categorical ids of strings, integers and booleans as int32, with a vocabulary per column or one for all.

    Id 0 is a missing value, 1 one that was not there in `fit` or was too rare, 2 and up the vocabulary by count
    descending, then value ascending (strings by their UTF-8 bytes).

    Args:
        min_frequency: values that occur less often share id 1; by default every value that occurs is kept.
        max_categories: at most this many values are kept, the most frequent ones; by default all.
        num_buckets: unknown and rare values are spread by their hash, the same on every backend, over this many ids
            behind the vocabulary, whose ids stay; by default they share id 1.
        joint: one vocabulary, with common counts, for all columns, which have one type.
        vocabulary: the values in the order of their ids, a list or an array for every column, or by column name for
            some. Limits hold for the columns whose vocabulary is learned.
        extend: values that `fit` finds beside the given ones get the ids behind them, by count, within the limits: what
            an earlier fit has learned keeps its ids, `gp.load(path).schema.vocabularies`.

    Attributes: by column name, `vocabularies_` in the order of ids, Arrow arrays, and the types `dtypes_in_`.
    Raises: BadConfig, ColumnNotFound for a vocabulary not of its column's type, with a value twice or a missing one, or
    for a column that is not there; SchemaMismatch for text instead of numbers, or the reverse.
    Memory: distinct values and their counts go to the host once a partition, and on to temporary files where a column
    has more than 32 MB of them. Transform allocates n int32 per column on the device, and one lookup table.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"origin": ["JFK", "LGA", None, "LGA"]})
        >>> Categorify().fit(frame).transform(pd.DataFrame({"origin": ["LGA", "JFK", None, "ZZZ"]}))["origin"].tolist()
        [2, 3, 0, 1]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {"dtypes_in_": "dtype", "vocabularies_": "values[V]"}
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
        extend: bool = False,
    ) -> None:
        sizes = {"min_frequency": min_frequency, "max_categories": max_categories, "num_buckets": num_buckets}
        check_integer(self, f"[1, {cats.MOST_BUCKETS}]", None, **sizes)
        check_bool(self, joint=joint, extend=extend)
        cats.check_listed(self, None, vocabulary=vocabulary)
        if extend and vocabulary is None:
            where, expected = "Categorify(extend=True)", "the vocabulary that is extended"
            remedy = "vocabulary=gp.load('runs/yesterday').schema.vocabularies"
            raise BadConfig(where, "there is no vocabulary", expected=expected, remedy=remedy)
        self.min_frequency, self.max_categories, self.num_buckets = min_frequency, max_categories, num_buckets
        self.joint, self.vocabulary, self.extend = joint, vocabulary, extend

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        cats.check_categories(fields, "Categorify")
        self._check_joint(fields)
        if not self.is_fitted:
            self._parse_vocabularies({item.name: item.dtype for item in fields})
        vocabularies, buckets = self.vocabularies_ if self.is_fitted else {}, self.num_buckets or 0
        ids = {name: cats.Vocabulary(values, buckets, seed=buckets) for name, values in vocabularies.items()}
        return [cats.make_id_field(item, ids.get(item.name)) for item in fields]

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

    def _parse_vocabularies(self, dtypes: Mapping[str, str]) -> dict[str, Dictionary]:
        """Return the given vocabularies by column name."""
        if self.vocabulary is None:
            return {}
        where = "Categorify(vocabulary=)"
        if isinstance(self.vocabulary, Mapping):
            lists = cats.match_lists(self.vocabulary, list(dtypes), where)
        else:
            lists = dict.fromkeys(dtypes, self.vocabulary)
        if not isinstance(self.vocabulary, Mapping) and not self.extend and (self.min_frequency or self.max_categories):
            problem, expected = "nothing is counted, so there is nothing to limit", "a vocabulary, or limits"
            got = {"min_frequency": self.min_frequency, "max_categories": self.max_categories}
            remedy = "leave min_frequency and max_categories out"
            raise BadConfig(where, problem, got=got, expected=expected, remedy=remedy)
        vocabularies = cats.resolve_lists(lists, dtypes, where)
        for name, (_, has_missing) in vocabularies.items():
            if has_missing:
                column, problem = f"{where}, column {name!r}", "missing is no value of a vocabulary: it always has id 0"
                raise BadConfig(column, problem, got=None, expected="values", remedy="leave it out")
        return {name: values for name, (values, _) in vocabularies.items()}

    def summarize(self, columns: Columns, backend: Backend) -> CategoryCounts:
        names = self.vocabulary if isinstance(self.vocabulary, Mapping) or self.vocabulary is None else columns
        return CategoryCounts.of(columns, backend, "Categorify", uncounted=() if self.extend else names or ())

    def finalize(self, summary: CategoryCounts) -> Self:
        names, counts = list(summary.names), summary.columns
        dtypes = {name: item.dtype for name, item in zip(names, counts, strict=True)}
        vocabularies = self._parse_vocabularies(dtypes)
        if self.joint and names:  # either all vocabularies are given, or none
            learned = self._learn(reduce(add, counts), vocabularies.get(names[0]))
            self.vocabularies_ = dict.fromkeys(names, learned)
        else:
            pairs = zip(names, counts, strict=True)
            self.vocabularies_ = {name: self._learn(item, vocabularies.get(name)) for name, item in pairs}
        self.dtypes_in_ = dtypes
        return super().finalize(summary)

    def _learn(self, counts: ValueCounts, vocabulary: Dictionary | None) -> Dictionary:
        """Return a column's vocabulary: the given one, with `extend` and the values beside it, or the values alone.

        ["LGA", "JFK"] is given and a fit counts JFK 9, EWR 4, LGA 2: LGA, JFK, EWR.
        """
        if vocabulary is not None and not self.extend:
            return vocabulary
        values, _ = counts.ranked(self.min_frequency or 1)
        if vocabulary is None:
            return values[: self.max_categories]
        united = unite_dictionaries([vocabulary, values.cast(vocabulary.type)])
        return united[: None if self.max_categories is None else max(self.max_categories, len(vocabulary))]

    def get_state(self) -> dict[str, Any]:
        """Return the learned vocabularies, a joint one once."""
        state = super().get_state()
        for index in range(1, len(self.names_in_)) if self.joint else ():
            del state[f"vocabularies_{index}"]
        return state

    def set_state(self, state: Mapping[str, Any]) -> Self:
        places = range(len(state["names_in_"])) if self.joint else ()
        return super().set_state({**state, **{f"vocabularies_{index}": state["vocabularies_0"] for index in places}})

    def _check_state(self) -> None:
        super()._check_state()
        for vocabulary, dtype in {id(v): (v, self.dtypes_in_[name]) for name, v in self.vocabularies_.items()}.values():
            cats.check_vocabulary(self.class_name, vocabulary, dtype)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        outputs = {}
        for name, column in columns.items():
            lookup = cats.find_lookup(self, name, column, self.vocabularies_[name], self.dtypes_in_[name])
            outputs[name] = Column("int32", lookup.ids(column, backend, self.num_buckets or 0))
        return outputs

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """Return the values of ids; missing where the id is 0, 1, a bucket's or outside the vocabulary."""
        outputs = {}
        for name, column in columns.items():
            ids, valid = whole_numbers(column, np.dtype("int64"), backend.xp)
            places = backend.xp.where(valid, ids, cats.MISSING) - cats.FIRST
            outputs[name] = cats.take_values(places, self.vocabularies_[name], self.dtypes_in_[name], backend)
        return outputs


class DatetimeEncoder(base.StatelessStep):
    """Datetime encoding: parts of the date and cyclic features, float32 and missing where the time is.

    `parts`, `cyclic` and `tz` are those of `transforms.DateParts`, which adds the same as columns that other steps can
    use. Flags become 0 and 1, each cycle a sine and a cosine.
    Raises: SchemaMismatch for a column without times.
    Memory: n float32 per output, and up to ten int32 per row.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"at": pd.to_datetime(["2013-02-02 06:00"])})
        >>> DatetimeEncoder(["year", "is_weekend"], cyclic="hour").fit_transform(frame).round(3).values.tolist()
        [[2013.0, 1.0, 1.0, 0.0]]
    """

    fills_late = False  # no imputer takes times

    def __init__(
        self,
        parts: str | Sequence[str] = ("year", "is_weekend"),
        *,
        cyclic: str | Sequence[str] = ("dayofyear", "dayofweek", "hour"),
        tz: str | None = None,
    ) -> None:
        check_names(self, parts=parts, cyclic=cyclic)
        for part in as_list(parts):
            check_choice(self, (*DATE_PARTS, *DATE_FLAGS), parts=part)
        for part in as_list(cyclic):
            check_choice(self, CYCLES, cyclic=part)
        if not as_list(parts) and not as_list(cyclic):
            raise refuse_argument(self, "parts", parts, "one part at least, or a cyclic one")
        check_zone(self, tz)
        self.parts, self.cyclic, self.tz = parts, cyclic, tz

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        for item in fields:
            if item.dtype != "timestamp":
                where, remedy = f"DatetimeEncoder, column {item.name!r}", suggest_times(item.name, item.dtype)
                raise SchemaMismatch(where, "no times", got=item.dtype, expected="timestamp", remedy=remedy)
        named = [(name, item) for item in fields for name in self.output_names([item.name])]
        return [Field.derived(name, "float32", [item], "DatetimeEncoder") for name, item in named]

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names of the outputs: for each column its parts, then sine and cosine of its cycles."""
        outputs = []
        for name in names:
            outputs += [f"{name}_{part}" for part in as_list(self.parts)]
            outputs += [f"{name}_{part}_{function}" for part in as_list(self.cyclic) for function in ("sin", "cos")]
        return outputs

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, outputs = backend.xp, {}
        for name, source in columns.items():
            time = local_time(source, self.tz, backend)
            for part, column in date_parts(as_list(self.parts), time).items():
                values = column.data.astype("float32")
                if column.valid is not None:
                    values[~column.valid] = np.nan
                outputs[f"{name}_{part}"] = Column("float32", values)
            for part in as_list(self.cyclic):
                angle = compute_phase(part, time) * (2 * np.pi)
                outputs[f"{name}_{part}_sin"] = Column("float32", xp.sin(angle).astype("float32"))
                outputs[f"{name}_{part}_cos"] = Column("float32", xp.cos(angle).astype("float32"))
        return outputs


@base.by_element
class HashBucket(base.StatelessStep):
    """Feature hashing: strings, integers and booleans as int32 bucket ids, a categorical without a vocabulary.

    Ids are 0 for missing, 1 never, 2 and up the `num_buckets` buckets (for all columns, or by column name; else
    ColumnNotFound). The hash depends on value and `seed` alone: it is the same on every backend, in every process and
    version, for any partitions; an integer has the same in any width.
    Memory: transform allocates n int32 per column on the device; each distinct string is hashed once, on the host.

    Example:
        >>> import pandas as pd
        >>> HashBucket(100).fit_transform(pd.DataFrame({"tailnum": ["N14228", None, "N24211"]}))["tailnum"].tolist()
        [92, 0, 28]
    """

    def __init__(self, num_buckets: int | Mapping[str, int], *, seed: int = 0) -> None:
        for size in num_buckets.values() if isinstance(num_buckets, Mapping) else [num_buckets]:
            check_integer(self, f"[1, {cats.MOST_BUCKETS}]", num_buckets=size)
        check_seed(self, seed=seed)
        self.num_buckets, self.seed = num_buckets, seed

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        cats.check_categories(fields, "HashBucket")
        sizes = [cats.get_entry(self.num_buckets, item.name, "HashBucket(num_buckets=...)") for item in fields]
        ids = [cats.Vocabulary(num_places=size, seed=hash_seeds(self.seed, size)) for size in sizes]
        return [cats.make_id_field(item, each) for item, each in zip(fields, ids, strict=True)]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        outputs = {}
        for name, column in columns.items():
            size = cats.get_entry(self.num_buckets, name, "HashBucket(num_buckets=...)")
            if column.dictionary is not None:
                bits = splitmix64(self.seed, hash_strings(column.dictionary))
                table = np.append(cats.assign_buckets(bits, size) + cats.FIRST, cats.MISSING).astype(np.int32)
                ids = base.gather(table, column.data, backend)
            else:
                ids = backend.xp.empty(len(column), dtype="int32")
                for rows in base.row_blocks(len(column), backend):
                    block = column.take(rows)
                    ids[rows] = cats.assign_buckets(hash_column(block, self.seed, backend), size) + cats.FIRST
                    if block.valid is not None:
                        ids[rows][~block.valid] = cats.MISSING
            outputs[name] = Column("int32", ids)
        return outputs


class HashedCross(base.StatelessStep):
    """Feature cross by hashing: int32 bucket ids of the joint value of categorical columns, two at least (BadConfig).

    The output is called `a_x_b`, after its columns in their order. Order counts: `("JFK", "LGA")` and `("LGA", "JFK")`
    are two routes. Id 0 is a row in which a value is missing; other ids, hash and `seed` are `HashBucket`'s.
    Memory: transform allocates n int32 on the device, and blocks of hashes; distinct strings are hashed on the host.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"origin": ["JFK", "LGA", None], "dest": ["LGA", "JFK", "JFK"]})
        >>> HashedCross(1000).fit_transform(frame)["origin_x_dest"].tolist()
        [645, 863, 0]
    """

    def __init__(self, num_buckets: int, *, seed: int = 0) -> None:
        check_integer(self, f"[1, {cats.MOST_BUCKETS}]", num_buckets=num_buckets)
        check_seed(self, seed=seed)
        self.num_buckets, self.seed = num_buckets, seed

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        cats.check_categories(fields, "HashedCross")
        if len(fields) < 2:
            names, expected, remedy = [item.name for item in fields], "two columns or more", "HashBucket for one column"
            raise BadConfig("HashedCross", "there is nothing to cross", got=names, expected=expected, remedy=remedy)
        output = Field.derived(self.output_names([item.name for item in fields])[0], "int32", fields, "HashedCross")
        seed = hash_seeds(self.seed, self.num_buckets)
        return [cats.make_id_field(output, cats.Vocabulary(num_places=self.num_buckets, seed=seed))]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return ["_x_".join(names)]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, size = backend.xp, base.num_rows(columns)
        # Each place mixes what the places before it left, so that order counts, equal values do not cancel out, and two
        # values of one column that share a bucket with one value of another do not share it with all of them.
        seeds = splitmix64(self.seed, np.arange(len(columns))).tolist()
        texts = [column.dictionary for column in columns.values()]
        bits_of = [None if text is None else splitmix64(0, hash_strings(text)) for text in texts]
        tables = [None if bits is None else backend.to_device(np.append(bits, np.uint64(0))) for bits in bits_of]
        ids = xp.empty(size, dtype="int32")
        for rows in base.row_blocks(size, backend):
            bits, missing = xp.uint64(0), None
            for column, seed, table in zip(columns.values(), seeds, tables, strict=True):
                block = column.take(rows)
                value_bits = hash_column(block, 0, backend) if table is None else table[block.data]
                bits = splitmix64(seed, bits ^ value_bits)
                absent = block.missing(xp)
                missing = absent if missing is None else missing if absent is None else missing | absent
            block_ids = cats.assign_buckets(bits, self.num_buckets) + cats.FIRST
            ids[rows] = block_ids if missing is None else xp.where(missing, cats.MISSING, block_ids)
        return {self.output_names(list(columns))[0]: Column("int32", ids)}


_MOST_FEATURES = 1 << 20  # each is a column
_CHUNK = 1 << 14  # distinct texts taken apart at a time: their n-grams are Python strings while that lasts


class HashedNgrams(base.StatelessStep):
    """Hashed n-grams: text as float32 columns that count its n-grams, each in the column of its hash.

    scikit-learn's `HashingVectorizer` with a dimension small enough to be dense: parameters, n-grams, counts, signs and
    norms are the same, the hash is `HashBucket`'s. Columns are called `<name>_ngram0`, `<name>_ngram1`, ... A missing
    text is 0 in all of them, as an empty one is.

    Args:
        n_features: columns for each column of text.
        ngram_range: the shortest and the longest n-gram, in words or characters.
        analyzer: n-grams of `"word"`s (two or more letters, digits or underscores), of `"char"`acters, or of characters
            within words, which get a blank on both sides (`"char_wb"`).
        lowercase: whether texts are made lower case before.
        alternate_sign: whether the hash also says if an n-gram counts 1 or -1: those that share a column cancel out.
        norm: `"l2"` or `"l1"` for rows of length 1, or None for plain counts.

    Raises: SchemaMismatch for a column that holds no text.
    Memory: n x n_features float32 on the device; on the host 24 bytes per pair of distinct text and n-gram.
    Source: Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009.

    Example:
        >>> import pandas as pd
        >>> step = HashedNgrams(n_features=4, ngram_range=(3, 3), analyzer="char", alternate_sign=False, norm=None)
        >>> step.fit_transform(pd.DataFrame({"tailnum": ["N14228", None]})).to_numpy().tolist()
        [[1.0, 2.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        n_features: int = 32,
        *,
        ngram_range: tuple[int, int] = (1, 1),
        analyzer: str = "word",
        lowercase: bool = True,
        alternate_sign: bool = True,
        norm: str | None = "l2",
    ) -> None:
        check_integer(self, f"[1, {_MOST_FEATURES}]", n_features=n_features)
        sizes = ngram_range if is_sequence(ngram_range) and len(ngram_range) == 2 else (0, 0)
        if not all(is_integer(size, 1) for size in sizes) or sizes[0] > sizes[1]:
            raise refuse_argument(self, "ngram_range", ngram_range, "two integers from 1 up, the second no smaller")
        check_choice(self, ("word", "char", "char_wb"), analyzer=analyzer)
        check_bool(self, lowercase=lowercase, alternate_sign=alternate_sign)
        check_choice(self, ("l1", "l2"), None, norm=norm)
        self.n_features, self.ngram_range, self.analyzer = n_features, ngram_range, analyzer
        self.lowercase, self.alternate_sign, self.norm = lowercase, alternate_sign, norm

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        for item in fields:
            if item.dtype != "string":
                where, expected = f"HashedNgrams, column {item.name!r}", "strings"
                remedy = f"Cast({{{item.name!r}: 'string'}}), or HashBucket for numbers"
                remedy = "Categorify(), which takes lists of texts or integers" if item.kind == Kind.LIST else remedy
                raise SchemaMismatch(where, "not a text", got=item.dtype, expected=expected, remedy=remedy)
        return [cats.make_number_field(item, name) for item in fields for name in self.output_names([item.name])]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return [f"{name}_ngram{index}" for name in names for index in range(self.n_features)]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        outputs = {}
        for name, column in columns.items():
            assert column.dictionary is not None
            texts, places, values = self._counted(column.dictionary)
            ends = np.searchsorted(places, np.arange(self.n_features + 1))
            for index, output in enumerate(self.output_names([name])):
                span = slice(ends[index], ends[index + 1])
                table = np.zeros(len(column.dictionary) + 1, dtype=np.float32)
                table[texts[span]] = values[span]
                outputs[output] = Column("float32", base.gather(table, column.data, backend))
        return outputs

    def _counted(self, dictionary: Any) -> tuple[Any, Any, Any]:
        """Return position of the text, column and value of each pair that is not 0, ordered by column."""
        chunks = [self._chunk(dictionary, start) for start in range(0, len(dictionary), _CHUNK)]
        if not chunks:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        texts, places, values = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
        order = np.argsort(places, kind="stable")
        return texts[order], places[order], values[order]

    def _chunk(self, dictionary: Any, start: int) -> tuple[Any, Any, Any]:
        analyze = make_analyzer(self.analyzer, self.ngram_range, lowercase=self.lowercase)
        grams = [analyze(text) for text in dictionary.slice(start, _CHUNK).to_pylist()]
        texts = np.repeat(np.arange(len(grams)), [len(text_grams) for text_grams in grams])
        encoded = strings([gram for text_grams in grams for gram in text_grams]).dictionary_encode()
        bits = splitmix64(0, hash_strings(encoded.dictionary))[encoded.indices.to_numpy()]
        places = (bits % np.uint64(self.n_features)).astype(np.int64)
        signs = 1.0 - 2.0 * (bits >> np.uint64(63)).astype(np.float64) if self.alternate_sign else np.ones(len(bits))
        cells, cell_of = np.unique(texts * self.n_features + places, return_inverse=True)
        values: Any = np.bincount(cell_of, weights=signs, minlength=len(cells))
        texts, places = np.divmod(cells, self.n_features)
        if self.norm is not None:
            power = 1 if self.norm == "l1" else 2
            lengths = np.bincount(texts, weights=np.abs(values) ** power) ** (1 / power)
            values = values / np.where(lengths == 0, 1.0, lengths)[texts]
        return texts + start, places, values
