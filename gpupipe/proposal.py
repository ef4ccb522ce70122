"""A sensible first set of features for a table, by the types of its columns."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from types import ModuleType
from typing import Any

from gpupipe.backend import Array, Column, backend_of
from gpupipe.io import as_dataset
from gpupipe.preprocessing import Categorify, DatetimeEncoder, FoldStep, SimpleImputer, StandardScaler
from gpupipe.schema import FLOATS, INTEGERS, Kind, Schema, element_of

__all__ = ["looked_at", "proposed"]

_LOOKED_AT = 10_000  # rows
_FEW = 32  # distinct integers


def looked_at(data: Any) -> tuple[Schema, set[str], set[str]]:
    """The schema of a Dataset or frame, its integers of few distinct values, and its numbers and times without any.

    The values are those of the first 10,000 rows. A schema alone tells of none.
    """
    if isinstance(data, Schema):
        return data, set(), set()
    dataset = as_dataset(data)
    names = [item.name for item in dataset.schema if item.dtype in (*INTEGERS, *FLOATS, "timestamp")]
    first = dataset.select(names).head(_LOOKED_AT) if names else ()
    if not len(first):
        return dataset.schema, set(), set()
    backend = backend_of(first)
    xp, coded = backend.xp, backend.encode(first)
    columns = {name: backend.column(coded, name) for name in names}
    there = {name: _values(column, xp) for name, column in columns.items()}
    empty = {name for name, data in there.items() if not len(data)}
    whole = [name for name in names if columns[name].dtype in INTEGERS and name not in empty]
    return dataset.schema, {name for name in whole if len(xp.unique(there[name])) <= _FEW}, empty


def _values(column: Column, xp: ModuleType) -> Array:
    """Those that are not missing."""
    missing = column.missing(xp)
    return column.data if missing is None else column.data[~missing]


def proposed(
    schema: Schema, ids: AbstractSet[str], taken: Collection[str], min_frequency: int
) -> list[tuple[list[str], list[FoldStep]]]:
    """Groups of columns and steps; columns that are `taken` are left out.

    Args:
        schema: the columns.
        ids: integers that are names of things, not amounts.
        taken: labels, kept columns, and those that tell nothing.
        min_frequency: for categories.
    """
    free = [item for item in schema if item.name not in taken]
    words = [i.name for i in free if i.dtype == "string" or i.kind == Kind.CATEGORICAL or i.name in ids]
    amounts = [i.name for i in free if i.dtype in (*FLOATS, *INTEGERS) and i.name not in words]
    whole = [i.name for i in free if i.dtype == "bool" and not i.nullable]
    gaps = [i.name for i in free if i.dtype == "bool" and i.nullable]
    times = [i.name for i in free if i.dtype == "timestamp"]
    several = [i.name for i in free if element_of(i.dtype) in ("string", *INTEGERS)]
    scaled = [SimpleImputer(strategy="median"), StandardScaler()]
    groups: list[tuple[list[str], list[FoldStep]]] = [
        (amounts, scaled),
        (whole, []),
        (gaps, [SimpleImputer(strategy="most_frequent")]),
        (words, [Categorify(min_frequency=min_frequency)]),
        (several, [Categorify(min_frequency=min_frequency)]),
        (times, [DatetimeEncoder(), SimpleImputer(strategy="median"), StandardScaler()]),
    ]
    return [(names, steps) for names, steps in groups if names]
