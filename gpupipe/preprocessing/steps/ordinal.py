"""Ordinal encoding of categories."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpupipe.backend import Backend, Column
from gpupipe.backend.columns import floats
from gpupipe.errors import BadConfig, BadData
from gpupipe.preprocessing import categories as cats
from gpupipe.preprocessing.learned_step import Columns, Invertible
from gpupipe.schema import FLOATS, Field
from gpupipe.support.validation import check_choice, is_number, refuse_argument

_WHERE = "OrdinalEncoder"


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
        categories_: for each column, by name, its categories in order, as an Arrow array on the host.
        infrequent_: for each column, by name, which of them are rare.

    Raises:
        ColumnNotFound: categories for a column that is not there.
        BadConfig: categories that do not go with the columns, or a number that a category has.
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
            where, remedy = f"{_WHERE}(unknown_value=)", "handle_unknown='use_encoded_value'"
            expected = f"{remedy}, or no unknown_value"
            raise BadConfig(where, "unknown values are an error", got=unknown_value, expected=expected, remedy=remedy)
        for name, number in self._numbers.items():
            if not is_number(number) or abs(number) > float(np.finfo(dtype).max):
                raise refuse_argument(self, name, number, f"a number that {dtype} holds, or NaN", f"{name}=-1")

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        cats.check_categories(fields, _WHERE)
        if not self.is_fitted:
            cats.resolve_categories(self, {item.name: item.dtype for item in fields})
        nullable = any(math.isnan(number) for number in self._numbers.values())
        return [cats.make_number_field(item, item.name, self.dtype, nullable=nullable) for item in fields]

    @property
    def _numbers(self) -> dict[str, Any]:
        """The numbers outside the categories."""
        unknown = {} if self.handle_unknown == "error" else {"unknown_value": self.unknown_value}
        return {"encoded_missing_value": self.encoded_missing_value, **unknown}

    def _learn(self, name: str, found: cats.Learned) -> None:
        is_rare = cats.rare(found.counts[:-1], found.num_rows, self.min_frequency, self.max_categories)
        _, num_groups = cats.group_rare(is_rare)
        for parameter, number in self._numbers.items():
            if 0 <= number < num_groups and number == int(number):
                where = f"{_WHERE}({parameter}=), column {name!r}"
                expected = f"NaN, or a number that is not among 0 to {num_groups - 1}"
                problem, remedy = "it is a category's number", f"{parameter}=-1"
                raise BadConfig(where, problem, got=number, expected=expected, remedy=remedy)
        if self.dtype == "float32" and num_groups > 1 << 24:
            where, problem = f"{_WHERE}, column {name!r}", "it has more categories than float32 has integers"
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
