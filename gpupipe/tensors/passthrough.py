"""Passthrough columns: carried with the features, and their form in a feature table."""

from __future__ import annotations

import torch

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.dictionaries import Dictionary, find_positions, unite_dictionaries
from gpupipe.errors import BadData, SchemaMismatch
from gpupipe.schema import FLOATS, Field, Kind, Role, Schema

__all__ = ["MISSING_TIME", "encode_kept", "get_kept_dtype", "get_stored_fields"]

MISSING_TIME = -(1 << 63)
"""What a missing time, integer or boolean of a kept column is stored as."""


def get_stored_fields(schema: Schema) -> list[Field]:
    """Return the kept columns that a feature table stores: all but those that no tensor can hold.

    Example:
        >>> schema = Schema([Field("id", "int64", role=Role.KEEP), Field("blob", "binary", role=Role.KEEP)])
        >>> [item.name for item in get_stored_fields(schema)]
        ['id']
    """
    return [item for item in schema.with_role(Role.KEEP) if item.kind != Kind.PASSENGER]


def encode_kept(item: Field, column: Column, dictionaries: dict[str, Dictionary], backend: Backend) -> Array:
    """Return n values of a kept column as they are stored; the dictionaries grow with new strings."""
    xp = backend.xp
    if column.dictionary is not None:
        known = dictionaries.get(item.name)
        dictionaries[item.name] = column.dictionary if known is None else unite_dictionaries([known, column.dictionary])
        places = find_positions(column.dictionary, dictionaries[item.name])
        return xp.append(backend.to_device(places), -1)[column.data]
    if column.dtype in FLOATS:
        return column.data
    data = column.data if column.valid is None else xp.where(column.valid, column.data, 0)
    if column.dtype == "uint64" and len(data) and int(data.max()) >= -MISSING_TIME:
        raise BadData(
            f"column {item.name!r}",
            "a kept column holds a value beyond 64 signed bits",
            got=int(data.max()),
            expected=f"at most {-MISSING_TIME - 1}",
            remedy=f"T.Cast({{{item.name!r}: 'float64'}}), or leave it out of keep=",
        )
    data = data.astype("int64")
    return data if column.valid is None else xp.where(column.valid, data, MISSING_TIME)


def get_kept_dtype(item: Field) -> torch.dtype:
    """Return the dtype of a kept column's tensor.

    Raises:
        SchemaMismatch: lists.
    """
    if item.kind == Kind.LIST:
        raise SchemaMismatch(
            f"column {item.name!r}",
            "a loader keeps no lists with the features",
            got=item.dtype,
            expected="one value in each row",
            remedy=f"leave {item.name!r} out of keep=; as a feature it is in batch.lists",
        )
    if item.dtype == "float32":
        return torch.float32
    return torch.float64 if item.dtype == "float64" else torch.int64
