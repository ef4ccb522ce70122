"""Automatic feature selection: a default set of features for a table, by its columns' dtypes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from gpupipe.backend import Array, Column, infer_backend
from gpupipe.io import as_dataset
from gpupipe.preprocessing import Categorify, DatetimeEncoder, LearnedStep, SimpleImputer, StandardScaler
from gpupipe.schema import FLOATS, INTEGERS, Kind, Schema, get_element_dtype

__all__ = ["TableSummary", "propose_features", "summarize_table"]

_LOOKED_AT = 10_000  # rows
_FEW = 32  # distinct integers
_MIN_FREQUENCY = 10
_ROW_NAMES = re.compile(r"|__index_level_\d+__")
"""What pandas calls row names without a name of their own: nothing in CSV, the second in Parquet."""


@dataclass(frozen=True)
class TableSummary:
    """Summary of a table's columns and first rows, from which features are proposed.

    Args:
        schema: the columns.
        ids: integers that are names of things, not amounts.
        useless: columns that tell nothing, and why.
        is_small: whether the first rows are all there are.
    """

    schema: Schema
    ids: AbstractSet[str] = frozenset()
    useless: Mapping[str, str] = field(default_factory=dict)
    is_small: bool = False


def summarize_table(data: Any) -> TableSummary:
    """Summarize the schema of a Dataset or frame and its first 10,000 rows; a schema alone has no rows."""
    dataset = None if isinstance(data, Schema) else as_dataset(data)
    schema = data if dataset is None else dataset.schema
    useless = {name: "row names, as pandas writes them" for name in schema.names if _ROW_NAMES.fullmatch(name)}
    names = [item.name for item in schema if item.dtype in (*INTEGERS, *FLOATS, "bool", "string", "timestamp")]
    first = () if dataset is None else dataset.select(names or schema.names[:1]).head(_LOOKED_AT)
    is_small = dataset is not None and len(first) < _LOOKED_AT
    if not names or not len(first):
        return TableSummary(schema, set(), useless, is_small)
    backend = infer_backend(first)
    xp, coded = backend.xp, backend.encode(first)
    columns = {name: backend.column(coded, name) for name in names}
    there = {name: _values(column, xp) for name, column in columns.items()}
    empty = {name: f"no value in the first {_LOOKED_AT:,} rows" for name, data in there.items() if not len(data)}
    whole = [name for name in names if columns[name].dtype in INTEGERS and name not in empty]
    ids = {name for name in whole if len(xp.unique(there[name])) <= _FEW}
    return TableSummary(schema, ids, empty | useless, is_small)


def _values(column: Column, xp: ModuleType) -> Array:
    """Return the values that are not missing."""
    missing = column.missing(xp)
    return column.data if missing is None else column.data[~missing]


def propose_features(
    look: TableSummary, taken: Collection[str], min_frequency: int | None
) -> list[tuple[list[str], list[LearnedStep]]]:
    """Propose groups of columns and their steps.

    Args:
        look: at the table.
        taken: labels and kept columns, which are left out.
        min_frequency: for categories; None for 10, and every value of a small table.
    """
    ids, free = look.ids, [item for item in look.schema if item.name not in taken and item.name not in look.useless]
    least = _MIN_FREQUENCY if min_frequency is None and not look.is_small else min_frequency
    words = [i.name for i in free if i.dtype == "string" or i.kind == Kind.CATEGORICAL or i.name in ids]
    amounts = [i.name for i in free if i.dtype in (*FLOATS, *INTEGERS) and i.name not in words]
    flags = [i.name for i in free if i.dtype == "bool"]
    times = [i.name for i in free if i.dtype == "timestamp"]
    several = [i.name for i in free if get_element_dtype(i.dtype) in ("string", *INTEGERS)]
    scaled = [SimpleImputer(strategy="median"), StandardScaler()]
    groups: list[tuple[list[str], list[LearnedStep]]] = [
        (amounts, scaled),
        (flags, [SimpleImputer(strategy="most_frequent")]),
        (words, [Categorify(min_frequency=least)]),
        (several, [Categorify(min_frequency=least)]),
        (times, [DatetimeEncoder(), SimpleImputer(strategy="median"), StandardScaler()]),
    ]
    return [(names, steps) for names, steps in groups if names]
