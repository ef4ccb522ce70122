"""Categories as ids: 0 missing, 1 unknown or rare, 2.. the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Backend, Column
from gpupipe.backend.dictionaries import Dictionary, value_type
from gpupipe.errors import SchemaMismatch
from gpupipe.preprocessing.blocks import check_count
from gpupipe.preprocessing.counts import CategoryCounts
from gpupipe.preprocessing.fold import Columns, Invertible
from gpupipe.preprocessing.vocabulary import FIRST, Lookup, lookup_of
from gpupipe.schema import INTEGERS, Field, Kind

__all__ = ["Categorify"]


class Categorify(Invertible):
    """Strings, integers and booleans as int32 ids, each column with its own vocabulary.

    Id 0 is a missing value, 1 one that was not there in `fit` or was too rare, 2 and up the vocabulary by count
    descending, then value ascending (strings by their UTF-8 bytes).

    Args:
        min_frequency: values that occur less often share id 1; by default every value that occurs is kept.
        max_categories: at most this many values are kept, the most frequent ones; by default all.

    Attributes:
        vocabularies_: for each column, by name, the kept values in the order of their ids, as an Arrow array on the
        host.
        dtypes_in_: for each column, by name, its type in `fit`.

    Raises:
        BadConfig: a limit that is no positive integer.

    Memory: distinct values and their counts go to the host once a partition, and on to temporary files where a column
    has more than 32 MB of them; the vocabulary stays on the host. Transform allocates n int32 per column on the device,
    and one lookup table.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"origin": ["JFK", "LGA", None, "LGA"]})
        >>> step = Categorify().fit(frame)
        >>> step.transform(pd.DataFrame({"origin": ["LGA", "JFK", None, "ZZZ"]}))["origin"].tolist()
        [2, 3, 0, 1]
    """

    fills_late = True

    def __init__(self, *, min_frequency: int | None = None, max_categories: int | None = None) -> None:
        self.min_frequency, self.max_categories = min_frequency, max_categories
        self._prepared: dict[str, Lookup] = {}

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        for name, limit in self.get_params().items():
            if limit is not None:
                check_count(limit, name, "Categorify")
        for item in fields:
            if item.dtype not in ("string", "bool", *INTEGERS):
                raise SchemaMismatch(
                    f"Categorify, column {item.name!r}",
                    "its values are no categories",
                    got=item.dtype,
                    expected="strings, integers or booleans",
                    remedy=f"Cast({item.name}='int64') for whole numbers, or 'hour({item.name})' for parts of a time",
                )
        sizes = {name: len(values) + FIRST for name, values in self.vocabularies_.items()} if self.is_fitted else {}
        return [
            replace(
                item,
                dtype="int32",
                kind=Kind.CATEGORICAL,
                nullable=False,
                cardinality=sizes.get(item.name),
                classes=None,
            )
            for item in fields
        ]

    def summarise(self, columns: Columns, backend: Backend) -> CategoryCounts:
        return CategoryCounts.of(columns, backend, "Categorify")

    def finish(self, summary: CategoryCounts) -> Self:
        self.vocabularies_, self.dtypes_in_ = {}, {}
        for name, column in zip(summary.names, summary.columns, strict=True):
            values, _ = column.ranked(self.min_frequency or 1)
            self.vocabularies_[name] = values[: self.max_categories or len(values)]
            self.dtypes_in_[name] = column.dtype
        self.names_in_ = list(summary.names)
        return self

    def get_state(self) -> dict[str, Any]:
        self.check_fitted()
        arrays = {f"vocabulary_{position}": self.vocabularies_[name] for position, name in enumerate(self.names_in_)}
        return {"names_in_": self.names_in_, "dtypes_in_": [self.dtypes_in_[name] for name in self.names_in_], **arrays}

    def set_state(self, state: Mapping[str, Any]) -> Self:
        self.names_in_ = list(state["names_in_"])
        self.dtypes_in_ = dict(zip(self.names_in_, state["dtypes_in_"], strict=True))
        self.vocabularies_ = {name: state[f"vocabulary_{position}"] for position, name in enumerate(self.names_in_)}
        return self

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """The ids for one partition, int32; inputs are not modified.

        Raises:
            SchemaMismatch: a column holds text where numbers were learned, or the other way round.
        """
        made = {}
        for name, column in columns.items():
            vocabulary, fitted = self.vocabularies_[name], self.dtypes_in_[name]
            if value_type(column.dtype) != value_type(fitted):
                raise SchemaMismatch(
                    f"Categorify, column {name!r}",
                    "another type than in fit",
                    got=column.dtype,
                    expected=fitted,
                    remedy=f"Cast({{{name!r}: {fitted!r}}})",
                )
            made[name] = Column("int32", self._lookup(name, vocabulary, fitted).ids(column, backend))
        return made

    def _lookup(self, name: str, vocabulary: Dictionary, dtype: str) -> Lookup:
        """The vocabulary as it was prepared for the partition before, or prepared now."""
        found = self._prepared.get(name)
        if found is None or found.vocabulary is not vocabulary:
            found = self._prepared[name] = lookup_of(vocabulary, text=dtype == "string")
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Without what every process prepares for itself."""
        return self.__dict__ | {"_prepared": {}}

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """The values of ids; missing where the id is 0, 1 or none of the vocabulary."""
        xp, made = backend.xp, {}
        for name, column in columns.items():
            vocabulary, dtype = self.vocabularies_[name], self.dtypes_in_[name]
            place = column.data.astype("int32") - FIRST
            known = (place >= 0) & (place < len(vocabulary))
            place = xp.where(known, place, -1)
            if dtype == "string":
                made[name] = Column(dtype, place, None, vocabulary)
            else:
                values = np.append(vocabulary.to_numpy(), vocabulary.to_numpy().dtype.type(0)).astype(dtype)
                made[name] = Column(dtype, backend.to_device(values)[place], known)
        return made
