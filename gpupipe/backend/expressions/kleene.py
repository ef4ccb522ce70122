"""Three-valued logic (Kleene) over arrays: true, false, and missing."""

from __future__ import annotations

from dataclasses import dataclass

from gpupipe.backend.protocol import Array, Column

__all__ = ["Truth"]


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """Truth value of a condition per row: true, false or missing.

    With two arrays each of and, or, not is a single pass over each; an array and a mask would need three.

    Args:
        true: n booleans, where the condition is known to hold.
        false: n booleans, where it is known not to hold; None means everywhere else.

    Example:
        >>> import numpy as np
        >>> hot, wet = Truth(np.array([True, False]), np.array([False, False])), Truth(np.array([False, False]))
        >>> (hot & wet).column()
        Column(dtype='bool', data=array([False, False]), valid=array([ True,  True]), dictionary=None, elements=None)
    """

    true: Array
    false: Array | None = None

    dtype = "bool"

    @classmethod
    def from_column(cls, column: Column) -> Truth:
        """Convert a boolean column. Memory: shares a column without missing values."""
        if column.valid is None:
            return cls(column.data)
        return cls(column.data & column.valid, ~column.data & column.valid)

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
