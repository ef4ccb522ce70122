"""Validation of columns before they are written: checks that the written values do not allow any more."""

from __future__ import annotations

from gpupipe.backend import Column
from gpupipe.errors import BadData, SchemaMismatch
from gpupipe.schema import FLOATS, Field, Kind, Role
from gpupipe.support.text import derive

__all__ = ["check_column", "infinite_values", "is_index", "missing_values"]


def is_index(item: Field) -> bool:
    """Return whether its word is an int32: an id, or the index of a class."""
    return item.kind == Kind.CATEGORICAL if item.role == Role.FEATURE else item.dtype == "int32"


def check_column(item: Field, column: Column) -> None:
    """Raise for a column whose type or missing values a table cannot hold: text, times, fractions, missing integers."""
    name, index = item.name, is_index(item)
    if column.dtype in ("string", "timestamp") or (index and column.dtype in FLOATS):
        hour = f"T.{derive(name, 'hour({})', f'{name}_hour')}"
        remedies = {"string": "pre.Categorify() on this column", "timestamp": hour}
        raise SchemaMismatch(
            f"column {name!r}",
            f"{column.dtype} values cannot be fed to a network{' as ids' if index else ''}",
            expected="integers" if index else "numbers or ids",
            remedy=remedies.get(column.dtype, f"T.Cast({{{name!r}: 'int32'}})"),
        )
    missing = 0 if column.valid is None else int((~column.valid).sum())
    if missing:
        raise missing_values(item, missing)


def missing_values(item: Field, count: int) -> BadData:
    """Return the error for so many missing values."""
    return BadData(
        f"column {item.name!r}",
        f"{count} missing value{'s' if count > 1 else ''} would reach the model",
        expected="a value in every row",
        remedy="pre.SimpleImputer() on this column"
        if item.role == Role.FEATURE
        else f"an expression for {item.role} that gives a value in every row",
    )


def infinite_values(item: Field, count: int) -> BadData:
    """Return the error for so many values that float32 cannot hold."""
    return BadData(
        f"column {item.name!r}",
        f"{count} infinite value{'s' if count > 1 else ''} would reach the model",
        expected="finite values, in float32 at most 3.4e38",
        remedy=f"T.{derive(item.name, 'clip({}, low, high)')} before it"
        if item.role == Role.FEATURE
        else f"an expression for {item.role} within that range, such as one divided by 1e6",
    )
