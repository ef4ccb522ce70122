"""Categories as ids: 0 missing, 1 unknown or rare, 2.. the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.dictionaries import Dictionary, positions_in, value_type
from gpupipe.errors import SchemaMismatch
from gpupipe.preprocessing.blocks import check_count, row_blocks
from gpupipe.preprocessing.counts import CategoryCounts, integers
from gpupipe.preprocessing.fold import Columns, Invertible
from gpupipe.schema import INTEGERS, Field, Kind

__all__ = ["Categorify"]

_MISSING, _UNKNOWN, _FIRST = 0, 1, 2

# Integers are looked up by direct address where the vocabulary spans at most this many values (4 bytes each).
_DIRECT_SPAN = 1 << 22


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

    Memory: distinct values and their counts go to the host once a partition; transform allocates n int32 per column on
    the device, and one lookup table.

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
        sizes = {name: len(values) + _FIRST for name, values in self.vocabularies_.items()} if self.is_fitted else {}
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
            values, counts = column.ranked()
            kept = int(np.searchsorted(-counts, -(self.min_frequency or 1), side="right"))
            self.vocabularies_[name] = values[: min(kept, self.max_categories or kept)]
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
            look_up = _codes_to_ids if column.dictionary is not None else _numbers_to_ids
            made[name] = Column("int32", look_up(column, vocabulary, backend))
        return made

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """The values of ids; missing where the id is 0, 1 or none of the vocabulary."""
        xp, made = backend.xp, {}
        for name, column in columns.items():
            vocabulary, dtype = self.vocabularies_[name], self.dtypes_in_[name]
            place = column.data.astype("int32") - _FIRST
            known = (place >= 0) & (place < len(vocabulary))
            place = xp.where(known, place, -1)
            if dtype == "string":
                made[name] = Column(dtype, place, None, vocabulary)
            else:
                values = np.append(vocabulary.to_numpy(), vocabulary.to_numpy().dtype.type(0)).astype(dtype)
                made[name] = Column(dtype, backend.to_device(values)[place], known)
        return made


def _codes_to_ids(column: Column, vocabulary: Dictionary, backend: Backend) -> Array:
    """One lookup per distinct string, on the host, and one gather."""
    places = positions_in(column.dictionary, vocabulary)
    ids = np.append(np.where(places < 0, _UNKNOWN, places + _FIRST), _MISSING)
    table = backend.to_device(ids.astype(np.int32))
    out = backend.xp.empty(len(column), dtype="int32")
    for rows in row_blocks(len(column), backend):
        out[rows] = table[column.data[rows]]
    return out


def _numbers_to_ids(column: Column, vocabulary: Dictionary, backend: Backend) -> Array:
    """A gather from a table of direct addresses; a search among the sorted values where they lie too far apart."""
    xp = backend.xp
    values = vocabulary.to_numpy()
    order = np.argsort(values)
    ordered = values[order]
    low, span = (int(ordered[0]), int(ordered[-1]) - int(ordered[0]) + 1) if len(values) else (0, 0)
    ids = (order + _FIRST).astype(np.int32)
    direct = span <= _DIRECT_SPAN
    if direct:
        table = np.full(span + 1, _UNKNOWN, dtype=np.int32)
        table[(ordered - ordered.dtype.type(low)).astype(np.int64)] = ids
        ids = table
    ids, ordered = backend.to_device(ids), backend.to_device(ordered)
    out = xp.empty(len(column), dtype="int32")
    for rows in row_blocks(len(column), backend):
        block = integers(column.data[rows], column.dtype)
        if direct:
            # As unsigned numbers values below `low` are large, like those beyond the span: all those land on the last
            # entry.
            offset = xp.minimum((block - block.dtype.type(low)).view("uint64"), np.uint64(span))
            out[rows] = ids[offset.view("int64")]
        else:
            place = xp.minimum(xp.searchsorted(ordered, block), len(ordered) - 1)
            out[rows] = xp.where(ordered[place] == block, ids[place], np.int32(_UNKNOWN))
        if column.valid is not None:
            out[rows][~column.valid[rows]] = _MISSING
    return out
