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
    rounds to float32, as a logarithm does, so does its part. `dtype` is what the steps store the result as.
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
        """Combine both programs into one; None if that is not the order of the parts."""
        mine, theirs = self.parts, after.parts
        if mine and theirs and _ORDER.index(mine[-1]) >= _ORDER.index(theirs[0]):
            return None
        return replace(self, dtype=after.dtype, **{name: getattr(after, name) for name in theirs})


class DeferredColumn(Column):
    """Deferred column: its numbers are computed by the steps on first access; to any reader a column like others.

    The fused kernel uses `source` and `program` instead, and never computes the column. The program fills missing
    values, or returns floats.
    """

    __slots__ = ("_column", "_made", "program", "source")
    source: RawColumn
    program: ElementwiseProgram
    _made: Callable[[], Column]
    _column: Column | None

    def __init__(self, source: RawColumn, program: ElementwiseProgram, made: Callable[[], Column]) -> None:
        given = {"dtype": program.dtype, "source": source, "program": program, "_made": made}
        for name, value in (given | dict.fromkeys(("valid", "dictionary", "elements", "_column"))).items():
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
        if self._column is None:
            object.__setattr__(self, "_column", self._made())
        assert self._column is not None
        return self._column.data
