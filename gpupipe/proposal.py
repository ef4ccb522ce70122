"""A sensible first set of features for a table, by the types of its columns."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from typing import Any

from gpupipe.backend import backend_of
from gpupipe.io import Dataset, from_frame
from gpupipe.preprocessing import Categorify, DatetimeEncoder, FoldStep, SimpleImputer, StandardScaler
from gpupipe.schema import FLOATS, INTEGERS, Kind, Schema, element_of

__all__ = ["proposed", "schema_and_ids"]

_LOOKED_AT = 10_000  # rows
_FEW = 32  # distinct integers


def schema_and_ids(data: Any) -> tuple[Schema, set[str]]:
    """The schema of a Dataset or frame, and its integer columns of few distinct values in the first 10,000 rows.

    A schema alone tells of no values.
    """
    if isinstance(data, Schema):
        return data, set()
    dataset = data if isinstance(data, Dataset) else from_frame(data)
    names = [item.name for item in dataset.schema if item.dtype in INTEGERS]
    if not names:
        return dataset.schema, set()
    first = dataset.select(names).head(_LOOKED_AT)
    backend = backend_of(first)
    coded = backend.encode(first)
    columns = {name: backend.column(coded, name) for name in names}
    there = {name: c.data if c.valid is None else c.data[c.valid] for name, c in columns.items()}
    return dataset.schema, {name for name, data in there.items() if len(backend.xp.unique(data)) <= _FEW}


def proposed(
    schema: Schema, ids: AbstractSet[str], taken: Collection[str], min_frequency: int
) -> list[tuple[list[str], list[FoldStep]]]:
    """Groups of columns and steps; columns that are `taken` are left out.

    Args:
        schema: the columns.
        ids: integers that are names of things, not amounts.
        taken: labels and kept columns.
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
