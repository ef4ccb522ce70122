"""Row filters: predicates, ranges of one column, and seeded random splits."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeAlias

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.expressions.evaluate import compare, evaluate, truth
from gpupipe.backend.hashing import hash_column, splitmix64
from gpupipe.expressions import Constant, Span, parse
from gpupipe.io.stores import fetch, get_stat, is_remote, make_lost_file_error
from gpupipe.schema import FLOATS, INTEGERS
from gpupipe.scratch import writing_scratch

Condition: TypeAlias = tuple[str, str, Any]
"""A column, a comparison and a constant, such as `("month", ">=", 10)`."""


class Selection(Protocol):
    """Row filter that depends on each row alone."""

    @property
    def reads(self) -> AbstractSet[str]:
        """The columns it reads."""

    @property
    def conditions(self) -> Sequence[Condition]:
        """What every row it keeps satisfies."""

    def keep(self, frame: Frame, backend: Backend) -> Array:
        """Compute a boolean per row of a coded frame that holds `reads`."""


@dataclass(frozen=True)
class Where:
    """Filter for the rows where an expression is true; a missing result drops the row."""

    text: str

    @property
    def reads(self) -> AbstractSet[str]:
        return frozenset(parse(self.text, "filter").reads)

    @property
    def conditions(self) -> Sequence[Condition]:
        return list(parse(self.text, "filter").conjuncts())

    def keep(self, frame: Frame, backend: Backend) -> Array:
        expression = parse(self.text, "filter")
        columns = {name: backend.column(frame, name) for name in expression.reads}
        return truth(evaluate(expression, columns, backend, len(frame)), backend.xp)


@dataclass(frozen=True)
class Between:
    """Range filter: `low <= column < high`; a bound that is None is open."""

    column: str
    low: Any
    high: Any

    @property
    def reads(self) -> AbstractSet[str]:
        return frozenset({self.column})

    @property
    def conditions(self) -> Sequence[Condition]:
        bounds = ((">=", self.low), ("<", self.high))
        return [(self.column, sign, bound) for sign, bound in bounds if bound is not None]

    def keep(self, frame: Frame, backend: Backend) -> Array:
        column, found = backend.column(frame, self.column), None
        for _, sign, bound in self.conditions:
            dtype = column.dtype
            if dtype in (*INTEGERS, *FLOATS):  # a fraction stays one even where the column has integers
                dtype = "float64" if isinstance(bound, float) else "int64"
            kept = compare(sign, column, Constant(bound, dtype, Span(0, 0)), backend).true
            found = kept if found is None else found & kept
        return found


@dataclass(frozen=True)
class RandomSplit:
    """Random split: the rows whose 64 random bits, drawn by `seed` and the row's identity, are in `low <= bits < high`.

    `high` is None for 2^64. The value of a column `by` takes the place of the row's identity. `outside` keeps all rows
    but those.
    """

    seed: int
    low: int
    high: int | None
    by: str | None = None
    outside: bool = False

    @property
    def reads(self) -> AbstractSet[str]:
        return frozenset() if self.by is None else frozenset({self.by})

    @property
    def conditions(self) -> Sequence[Condition]:
        return []

    def keep(self, frame: Frame, backend: Backend) -> Array:
        return self._inside(hash_column(backend.column(frame, self.by or ""), self.seed, backend))

    def keep_rows(self, row_ids: Array, backend: Backend) -> Array:
        """Compute a boolean per row, given the row ids."""
        return self._inside(splitmix64(self.seed, row_ids))

    def _inside(self, bits: Array) -> Array:
        inside = bits >= np.uint64(self.low)
        inside = inside if self.high is None else inside & (bits < np.uint64(self.high))
        return ~inside if self.outside else inside


@dataclass(frozen=True)
class StratifiedSplit(RandomSplit):
    """Stratified random split: rows whose bits, drawn by row id, are between the bounds of their class in column `by`.

    `low` and `high` are for a class that is not listed. All bounds are of the upper 63 bits; `classes` are ascending.
    """

    classes: tuple[int, ...] = ()
    bounds: tuple[tuple[int, int], ...] = ()

    def keep_drawn(self, frame: Frame, row_ids: Array, backend: Backend) -> Array:
        """Compute a boolean per row of a coded frame, given the row ids that its index counts."""
        xp = backend.xp
        of_class, bits = draw_in_class(backend.column(frame, self.by or ""), self.seed, row_ids, frame, backend)
        known = backend.to_device(np.array([*self.classes, 0], dtype=np.uint64))
        plain = self.low, 1 << 63 if self.high is None else self.high
        bounds = backend.to_device(np.array([*self.bounds, plain], dtype=np.uint64))
        place = xp.searchsorted(known[:-1], of_class)
        place = xp.where(known[place] == of_class, place, len(self.classes))
        inside = (bits >= bounds[place, 0]) & (bits < bounds[place, 1])
        return ~inside if self.outside else inside


def draw_in_class(column: Column, seed: int, row_ids: Array, frame: Frame, backend: Backend) -> tuple[Array, Array]:
    """Draw for each row of a frame 64 bits of its class, and 63 bits of its row id."""
    bits = splitmix64(seed, row_ids[backend.positions(frame)]) >> np.uint64(1)
    return hash_column(column, 0, backend), bits


@dataclass(frozen=True)
class RowIdFilter:
    """Filter for the rows whose id is listed in a file: ascending uint64 (`.npy`), `made_by` as in `Source.made_by`.

    Only what a partition needs is read, or all of it from a store. `owner` is kept alive: the folder the file lies in.
    """

    file: str = field(repr=False)
    made_by: str | None
    owner: object = field(repr=False, compare=False)

    @classmethod
    def of(cls, spool: Any, ids: Iterable[Any], num_rows: int, made_by: str | None) -> Self:
        """Write `num_rows` identities, which come in arrays, ascending, to a folder such as `TempParquet`."""
        path = spool.folder / "rows.npy"
        with writing_scratch(spool.folder), path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<u8", "fortran_order": False, "shape": (num_rows,)})
            for some in ids:
                file.write(np.ascontiguousarray(some, dtype="<u8").data)
        return cls(spool.keep(path), made_by, spool)

    def keep_rows(self, row_ids: Array, backend: Backend) -> Array:
        """Compute a boolean per row, given the row ids."""
        xp = backend.xp
        if not len(row_ids):
            return xp.ones(0, dtype=bool)
        ends = backend.to_host(xp.stack([row_ids.min(), row_ids.max()]))
        listed, first = _between(self.file, *ends), ends[0]
        if ends[1] - first == len(row_ids) - 1:  # all identities in between
            keep = xp.zeros(len(row_ids), dtype=bool)
            keep[backend.to_device((listed - first).astype(np.int64))] = True
            return keep[(row_ids - first).astype(np.int64)]
        listed = backend.to_device(np.append(listed, ends[1] + np.uint64(1)))  # one at least, and one behind all
        return listed[xp.searchsorted(listed, row_ids)] == row_ids


def _between(file: str, first: np.uint64, last: np.uint64) -> Any:
    """Return the part of an ascending array on disk between two values, both included."""
    try:
        if is_remote(file):
            (whole,) = fetch(file, [(0, get_stat(file).size)])
            listed = np.load(io.BytesIO(whole))
        else:
            listed = np.load(file, mmap_mode="r")
    except (OSError, ValueError) as cause:
        raise make_lost_file_error(file, cause) from cause
    return np.array(listed[np.searchsorted(listed, first) : np.searchsorted(listed, last, side="right")])
