"""What becomes of each number of a column by itself, in a few numbers: learned steps that can be done in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from gpupipe.backend.protocol import Array, Column, Stored

__all__ = ["LateColumn", "Pointwise", "Scale"]

_ORDER = ("fill", "clip", "log", "scale")


@dataclass(frozen=True, slots=True)
class Scale:
    """`(x - offset) / divisor * stretch + shift`, then held between `floor` and `ceiling`."""

    offset: float
    divisor: float
    stretch: float = 1.0
    shift: float = 0.0
    floor: float = -inf
    ceiling: float = inf

    @property
    def moves(self) -> bool:
        """Whether more is done than to subtract and divide."""
        return (self.stretch, self.shift, self.floor, self.ceiling) != (1.0, 0.0, -inf, inf)


@dataclass(frozen=True, slots=True)
class Pointwise:
    """What becomes of a number: filled, held to a range, its logarithm, scaled, in this order; each part may be absent.

    It is worked out in float64 and gives the bits that the steps give one after the other: where a step in the middle
    rounds to float32, so does its part.

    Args:
        fill: what a missing value becomes; None leaves it missing.
        clip: the least and the largest value.
        log: whether it becomes the logarithm of 1 + itself, rounded to float32.
        scale: an affine map into a range.
        dtype: what the steps store the result as.

    Example:
        >>> Pointwise(fill=2.0, dtype="float64").then(Pointwise(scale=Scale(offset=1.0, divisor=2.0))).parts
        ['fill', 'scale']
    """

    fill: float | None = None
    clip: tuple[float, float] | None = None
    log: bool = False
    scale: Scale | None = None
    dtype: str = "float32"

    @property
    def parts(self) -> list[str]:
        """The names of the parts there are, in order."""
        there = {"fill": self.fill is not None, "clip": self.clip is not None, "log": self.log}
        return [name for name in _ORDER if there.get(name, self.scale is not None)]

    def then(self, after: Pointwise) -> Pointwise | None:
        """Both, one after the other, as one; None where that is not the order of the parts.

        Example:
            >>> Pointwise(log=True).then(Pointwise(fill=0.0)) is None
            True
        """
        mine, theirs = self.parts, after.parts
        if mine and theirs and _ORDER.index(mine[-1]) >= _ORDER.index(theirs[0]):
            return None
        return replace(self, dtype=after.dtype, **{name: getattr(after, name) for name in theirs})


class LateColumn(Column):
    """A column of numbers that are worked out when somebody looks at them; to any reader a column like others.

    What writes a block looks at `source` and `program` instead, and so does without the column.

    Args:
        source: what it is made of.
        program: what becomes of each number; it fills what is missing, or gives floats.
        made: gives the column that the steps make.

    Memory: keeps `source`; the numbers too once they were looked at.

    Example:
        >>> import numpy as np
        >>> column = LateColumn(Stored(np.array([1, 3])), Pointwise(), lambda: Column("float32", np.ones(2)))
        >>> len(column), column.dtype, column.data
        (2, 'float32', array([1., 1.]))
    """

    __slots__ = ("_column", "_made", "program", "source")
    source: Stored
    program: Pointwise
    _made: Callable[[], Column]
    _column: Column | None

    def __init__(self, source: Stored, program: Pointwise, made: Callable[[], Column]) -> None:
        given = {"dtype": program.dtype, "valid": None, "dictionary": None, "elements": None}
        own = {"source": source, "program": program, "_made": made, "_column": None}
        for name, value in (given | own).items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.source.data)

    def __reduce__(self) -> tuple[type[Column], tuple[str, Array]]:
        """To another process go the numbers: what they are made of is more."""
        return Column, (self.dtype, self.data)

    def __repr__(self) -> str:
        return f"LateColumn({self.source!r}, {self.program!r})"

    @property
    def data(self) -> Array:
        """n values, as `Column` has them."""
        if self._column is None:
            object.__setattr__(self, "_column", self._made())
        assert self._column is not None
        return self._column.data
