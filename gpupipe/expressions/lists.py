"""Functions of lists."""

from __future__ import annotations

from gpupipe.backend.columns import Column
from gpupipe.expressions.operands import Call


def count_elements(call: Call) -> Column:
    """Count the elements of each list, missing ones too, int64."""
    column = call.first
    return Column("int64", column.data[1:] - column.data[:-1], column.valid)
