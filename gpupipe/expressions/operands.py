"""Operands of an operation: columns, constants and truth values, with missing values as in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TypeAlias

import numpy as np

from gpupipe.backend.columns import Array, Backend, Column
from gpupipe.backend.dictionaries import strings
from gpupipe.expressions.tree import Constant, Null, value_as
from gpupipe.schema import FLOATS


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """Truth value of a condition per row: booleans where it is known to hold, and where not (None: everywhere else).

    With two arrays each of and, or, not is a single pass over each; an array and a mask would need three.
    """

    true: Array
    false: Array | None = None

    dtype = "bool"

    @classmethod
    def from_valid(cls, true: Array, valid: Array | None) -> Truth:
        """Build from booleans and a validity mask; missing where not `valid`."""
        if valid is None:
            return cls(true)
        true = true & valid
        return cls(true, true ^ valid)

    def column(self) -> Column:
        """Convert to a boolean column."""
        return Column("bool", self.true, None if self.false is None else self.true | self.false)

    def __and__(self, other: Truth) -> Truth:
        if self.false is None and other.false is None:
            return Truth(self.true & other.true)
        return Truth(self.true & other.true, self._not_true() | other._not_true())

    def __or__(self, other: Truth) -> Truth:
        if self.false is None and other.false is None:
            return Truth(self.true | other.true)
        return Truth(self.true | other.true, self._not_true() & other._not_true())

    def __invert__(self) -> Truth:
        return Truth(self._not_true(), None if self.false is None else self.true)

    def _not_true(self) -> Array:
        return ~self.true if self.false is None else self.false


Operand: TypeAlias = Column | Constant | Null
AnyValue: TypeAlias = Operand | Truth


@dataclass(frozen=True, slots=True)
class Call:
    """Call of an operation on values, at least one of them a column, with the type of its result."""

    name: str
    values: Sequence[Operand]
    dtype: str
    backend: Backend
    num_rows: int

    @property
    def xp(self) -> ModuleType:
        """NumPy or CuPy."""
        return self.backend.xp

    @property
    def first(self) -> Column:
        """The first value as a column."""
        return self.column(self.values[0])

    @property
    def constants(self) -> list[Constant]:
        """Those behind the first value."""
        return [value for value in self.values[1:] if isinstance(value, Constant)]

    def column(self, value: AnyValue, dtype: str | None = None) -> Column:
        """Convert a value to a column; `dtype` is the type for a constant, by default its own."""
        return to_column(value, dtype or value.dtype, self.num_rows, self.xp)

    def truth(self, value: AnyValue) -> Truth:
        """Convert a condition's value to `Truth`."""
        if isinstance(value, Truth):
            return value
        column = self.column(value)
        return Truth.from_valid(column.data, column.valid)


def to_column(value: AnyValue, dtype: str, num_rows: int, xp: ModuleType) -> Column:
    """Convert a value to a column; a constant is repeated as `dtype`."""
    if isinstance(value, Truth):
        return value.column()
    if isinstance(value, Column):
        return value
    if dtype == "string":
        texts, code = ([str(value.value)], 0) if isinstance(value, Constant) else ([], -1)
        return Column(dtype, xp.full(num_rows, code, dtype="int32"), None, strings(texts))
    scalar, valid = as_numbers(value, dtype, xp)
    data = xp.full(num_rows, scalar, dtype=scalar.dtype)
    return Column(dtype, data, None if valid is None else xp.zeros(num_rows, dtype=bool))


def as_numbers(operand: Operand, dtype: str, xp: ModuleType) -> tuple[Array, Array | None]:
    """Convert to values of `dtype` (a scalar for a constant) and their validity; a missing float is NaN, no mask."""
    stored = "int64" if dtype == "timestamp" else dtype
    if isinstance(operand, Null):
        return (np.dtype(stored).type(np.nan), None) if dtype in FLOATS else (np.dtype(stored).type(0), np.False_)
    if isinstance(operand, Constant):
        return np.dtype(stored).type(value_as(operand, dtype)), None
    if stored == "int64" and operand.dtype == "uint64":
        refuse_rows(operand.data > np.uint64(2**63 - 1), operand.valid, xp)
    data = operand.data.astype(stored, copy=False)
    if dtype in FLOATS and operand.valid is not None:
        return xp.where(operand.valid, data, data.dtype.type(np.nan)), None
    return data, operand.valid


def both_valid(left: Array | None, right: Array | None) -> Array | None:
    """Combine two validity masks by and; None means that all are valid."""
    if left is None or right is None:
        return right if left is None else left
    return left & right


def refuse_rows(bad: Array, valid: Array | None, xp: ModuleType) -> None:
    """Raise OverflowError with the first row that is bad and valid."""
    bad = xp.atleast_1d(bad if valid is None else bad & valid)
    if bool(bad.any()):
        raise OverflowError(int(bad.argmax()))


def truth(column: Column, xp: ModuleType) -> Array:
    """Return n booleans, True where a condition is true, and False where it is false or missing."""
    return column.data if column.valid is None else xp.logical_and(column.data, column.valid)
