"""Elementwise programs: learned steps as a few numbers per column, computed in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from gpupipe.backend.protocol import Array, Column, RawColumn

_ORDER = ("fill", "clip", "log", "scale")


@dataclass(frozen=True, slots=True)
class Scale:
    """Affine scaling: `(x - offset) / divisor * multiplier + shift`, clipped to `low` and `high`."""

    offset: float
    divisor: float
    multiplier: float = 1.0
    shift: float = 0.0
    low: float = -inf
    high: float = inf

    @property
    def moves(self) -> bool:
        """Whether the scale does more than subtract and divide."""
        return (self.multiplier, self.shift, self.low, self.high) != (1.0, 0.0, -inf, inf)


@dataclass(frozen=True, slots=True)
class ElementwiseProgram:
    """Elementwise program: fill, clip, log1p, scale, in this order; each part may be absent.

    It is computed in float64 and gives the bits that the steps give one after the other: where a step in the middle
    rounds to float32, so does its part.

    Args:
        fill: what a missing value becomes; None leaves it missing.
        clip: the least and the largest value.
        log: whether it becomes the logarithm of 1 + itself, rounded to float32.
        scale: an affine map into a range.
        dtype: what the steps store the result as.

    Example:
        >>> scale = ElementwiseProgram(scale=Scale(offset=1.0, divisor=2.0))
        >>> ElementwiseProgram(fill=2.0, dtype="float64").then(scale).parts
        ['fill', 'scale']
    """

    fill: float | None = None
    clip: tuple[float, float] | None = None
    log: bool = False
    scale: Scale | None = None
    dtype: str = "float32"

    @property
    def parts(self) -> list[str]:
        """The names of the present parts, in order."""
        there = {"fill": self.fill is not None, "clip": self.clip is not None, "log": self.log}
        return [name for name in _ORDER if there.get(name, self.scale is not None)]

    def then(self, after: ElementwiseProgram) -> ElementwiseProgram | None:
        """Combine both programs into one; None if that is not the order of the parts.

        Example:
            >>> ElementwiseProgram(log=True).then(ElementwiseProgram(fill=0.0)) is None
            True
        """
        mine, theirs = self.parts, after.parts
        if mine and theirs and _ORDER.index(mine[-1]) >= _ORDER.index(theirs[0]):
            return None
        return replace(self, dtype=after.dtype, **{name: getattr(after, name) for name in theirs})


class DeferredColumn(Column):
    """Deferred column: its numbers are computed on first access; to any reader a column like others.

    The fused kernel uses `source` and `program` instead, and never computes the column.

    Args:
        source: the column's input.
        program: applied to each number; it fills missing values, or returns floats.
        made: computes the column by the steps.

    Memory: keeps `source`; the numbers too after the first access.

    Example:
        >>> import numpy as np
        >>> source = RawColumn(np.array([1, 3]))
        >>> column = DeferredColumn(source, ElementwiseProgram(), lambda: Column("float32", np.ones(2)))
        >>> len(column), column.dtype, column.data
        (2, 'float32', array([1., 1.]))
    """

    __slots__ = ("_column", "_made", "program", "source")
    source: RawColumn
    program: ElementwiseProgram
    _made: Callable[[], Column]
    _column: Column | None

    def __init__(self, source: RawColumn, program: ElementwiseProgram, made: Callable[[], Column]) -> None:
        given = {"dtype": program.dtype, "valid": None, "dictionary": None, "elements": None}
        own = {"source": source, "program": program, "_made": made, "_column": None}
        for name, value in (given | own).items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.source.data)

    def __reduce__(self) -> tuple[type[Column], tuple[str, Array]]:
        """Pickle the numbers only: the source and the program are larger."""
        return Column, (self.dtype, self.data)

    def __repr__(self) -> str:
        return f"DeferredColumn({self.source!r}, {self.program!r})"

    @property
    def data(self) -> Array:
        """n values, as `Column` has them."""
        if self._column is None:
            object.__setattr__(self, "_column", self._made())
        assert self._column is not None
        return self._column.data
