"""As-of join: each row of the left table with the last right row at or before its time, or with the next one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import polars as pl

from gpupipe.backend.columns import key_dtype, require_comparable_times
from gpupipe.backend.time_distance import Distance, convert_distance, order_dtype
from gpupipe.cluster import get_executor
from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.io.planning.table import AnyTable, Table
from gpupipe.io.relational.join import cast_key, name_right_columns
from gpupipe.io.relational.scan import Scan, scan
from gpupipe.io.relational.side_columns import Attach, collect_columns
from gpupipe.io.relational.sort import ensure_unique_row_ids
from gpupipe.schema import FLOATS, INTEGERS, ROW, Field, Schema
from gpupipe.support.validation import check_bool, check_choice, check_name

_ON, _THEIRS, _RIGHT, _SIDE, _PLACE = "⟨on⟩", "⟨right on⟩", "⟨right row⟩", "⟨side⟩", "⟨place⟩"


@dataclass(frozen=True)
class AsOfSpec:
    """Specification of an as-of join: its keys, its times and its columns."""

    on: tuple[Field, Field]
    dtype: str
    left_by: tuple[Field, ...]
    right_by: tuple[Field, ...]
    left_columns: tuple[Field, ...]
    right_columns: tuple[tuple[Field, str], ...]
    direction: str
    tolerance: Distance | None
    exact: bool

    @classmethod
    def of(
        cls,
        left: Schema,
        right: Schema,
        on: tuple[str, str],
        by: tuple[Sequence[str], Sequence[str]],
        columns: Sequence[str] | None,
        direction: str,
        tolerance: Any,
        exact: bool,
        suffix: str,
    ) -> Self:
        """Check the arguments of `Dataset.join_asof` and build the specification."""
        check_choice("join_asof", ("backward", "forward", "nearest"), direction=direction)
        check_bool("join_asof", allow_exact_matches=exact)
        check_name("join_asof", suffix=suffix)
        if len(by[0]) != len(by[1]):
            raise BadConfig(
                "join_asof",
                "not as many keys on the right as on the left",
                got={"left_by": list(by[0]), "right_by": list(by[1])},
                expected="pairs of columns",
                remedy="by=, or left_by= and right_by=",
            )
        order = left[on[0]], right[on[1]]
        dtype = order_dtype(*order, "join_asof")
        keys = tuple(left[name] for name in by[0]), tuple(right[name] for name in by[1])
        for ours, theirs in zip(*keys, strict=True):
            require_comparable_times(ours, theirs, "join_asof, left and right")
            if ours.dtype != theirs.dtype and not {ours.dtype, theirs.dtype} <= {*INTEGERS, *FLOATS}:
                raise SchemaMismatch(
                    "join_asof",
                    f"key {ours.name!r} is {ours.dtype} on the left and {theirs.name!r} {theirs.dtype} on the right",
                    expected="the same type on both sides, or two types of numbers",
                    remedy=f"T.Cast({{{theirs.name!r}: {ours.dtype!r}}}) on the right before it",
                )
        chosen = [name for name in right.names if name not in (on[1], *by[1])] if columns is None else columns
        names = name_right_columns(chosen, left, suffix, "join_asof")
        distance = convert_distance(tolerance, dtype, "join_asof(tolerance=)")
        pairs = tuple((right[name], out) for name, out in names.items())
        return cls(order, dtype, *keys, tuple(left), pairs, direction, distance, exact)

    @property
    def made(self) -> list[Field]:
        """The added columns."""
        return [replace(item, name=out, nullable=True).as_source() for item, out in self.right_columns]

    @property
    def keys(self) -> list[str]:
        """The columns that hold the keys in the type they are compared in."""
        return [f"⟨key⟩ {number}" for number in range(len(self.left_by))]

    def scan_side(self, rows: Scan, side: int) -> Scan:
        """Scan the keys and times of the left (0) or the right (1), and the columns that the right adds."""
        return replace(rows, frame=self.select_side(rows.frame, side))

    def select_side(self, frame: pl.LazyFrame, side: int) -> pl.LazyFrame:
        """Select the columns of `scan_side` from a frame."""
        kinds = [key_dtype({one.dtype, other.dtype}) for one, other in zip(self.left_by, self.right_by, strict=True)]
        pairs = zip((self.left_by, self.right_by)[side], kinds, strict=True)
        made = {key: cast_key(*pair) for key, pair in zip(self.keys, pairs, strict=True)}
        added = {out: pl.col(item.name) for item, out in self.right_columns} if side else {}
        order = _cast_order_key(pl.col(self.on[side].name), self.dtype)
        return frame.select(ROW, order.alias(_ON), **made, **added)

    def plan(self, left: pl.LazyFrame, right: pl.LazyFrame, *, backend: str) -> pl.LazyFrame:
        """Plan the search for the right row of each left row; the result has the added columns and `ROW`, sorted."""
        known = pl.all_horizontal(pl.col(name).is_not_null() for name in [_ON, *self.keys])
        lacking, left = left.filter(~known).select(ROW), left.filter(known)
        right = right.filter(known).rename({ROW: _RIGHT}).with_columns(pl.col(_ON).alias(_THEIRS))
        directions = ["backward", "forward"] if self.direction == "nearest" else [self.direction]
        for direction in directions:
            left = self._add_nearest(left, right, direction, backend)
        distances = [self._distance(direction) for direction in directions]
        chosen = dict(zip(directions, distances, strict=True))
        made = {}
        for _, out in self.right_columns:
            values = [
                value if self.tolerance is None else pl.when(chosen[direction] <= self._limit).then(value)
                for direction in directions
                for value in [pl.col(f"{direction} {out}")]
            ]
            if len(values) == 2:
                is_earlier = distances[1].is_null() | (distances[0] <= distances[1])
                values = [pl.when(is_earlier).then(values[0]).otherwise(values[1])]
            made[out] = values[0]
        return pl.concat([left.select(ROW, **made), lacking], how="diagonal").sort(ROW)

    @property
    def _limit(self) -> pl.Expr:
        return pl.lit(self.tolerance, pl.Float64 if self.dtype == "float64" else pl.UInt64)

    def _distance(self, direction: str) -> pl.Expr:
        ours, theirs = pl.col(_ON), pl.col(f"{direction} {_THEIRS}")
        return ours - theirs if direction == "backward" else theirs - ours

    def _add_nearest(self, left: pl.LazyFrame, right: pl.LazyFrame, direction: Any, backend: str) -> pl.LazyFrame:
        """Add the columns of the nearest right row in a direction: of equal times the last row, or the first."""
        names = [_THEIRS, *(out for _, out in self.right_columns)]
        added = {f"{direction} {name}": pl.col(name) for name in names}
        if backend == "cpu":
            return left.sort(_ON).join_asof(
                right.sort(_ON, maintain_order=True).select(_ON, *self.keys, **added),
                on=_ON,
                by=self.keys or None,
                strategy=direction,
                allow_exact_matches=self.exact,
                check_sortedness=False,
            )
        # cudf-polars knows no as-of join: both sides in one order, and the last or next right row for each left one.
        right_first = (direction == "backward") == self.exact
        ours = left.with_columns(pl.col(ROW).alias(_PLACE), pl.lit(int(right_first), pl.Int8).alias(_SIDE))
        theirs = right.select(
            _ON, _RIGHT, *self.keys, pl.col(_RIGHT).alias(_PLACE), pl.lit(int(not right_first), pl.Int8).alias(_SIDE)
        )
        order = [_ON, _SIDE, _PLACE]
        both = pl.concat([ours, theirs], how="diagonal")
        row = pl.col(_RIGHT)
        filled = row.forward_fill() if direction == "backward" else row.backward_fill()
        if self.keys:
            both = both.with_columns(filled.over(self.keys, order_by=order))
        else:
            both = both.sort(order).with_columns(filled)
        both = both.filter(pl.col(ROW).is_not_null()).join(right.select(_RIGHT, **added), on=_RIGHT, how="left")
        return both.drop(_RIGHT, _SIDE, _PLACE)


def join_asof(left: AnyTable, right: Table, asof: AsOfSpec) -> AnyTable:
    """Run `Dataset.join_asof`: the left rows keep their partitions, and the added columns are looked up by row id."""
    left, backend = ensure_unique_row_ids(left), get_executor().resolve(left.backend)
    ours = scan(left, [item.name for item in dict.fromkeys([asof.on[0], *asof.left_by])], "join_asof")
    items = dict.fromkeys([asof.on[1], *asof.right_by, *(item for item, _ in asof.right_columns)])
    theirs = scan(right, [item.name for item in items], "join_asof, right table")
    if not theirs.num_rows:
        raise BadData(
            "join_asof, right table",
            "it has no rows",
            expected="rows to match",
            remedy="rows in its files, or another filter",
        )
    scans = [asof.scan_side(ours, 0), asof.scan_side(theirs, 1)]
    plan = partial(asof.plan, backend=backend)
    side = collect_columns(plan, scans, asof.keys, asof.made, left, "join_asof")
    added = tuple(item.name for item in asof.made)
    attach = Attach(((side, added),), (*left.columns, *added))

    def identity() -> str | None:
        job, inputs = right.job_id(), right.source.inputs()
        if job is None or inputs is None:  # rows in memory have no stamp
            return None
        return f"join_asof {hashlib.sha256(repr((job, sorted(inputs.items()), asof)).encode()).hexdigest()}"

    schema = Schema([*left.schema, *asof.made])
    return left.map_frames(
        attach, schema, left.columns, keeps_rows=True, backend=left.backend, identity=identity, draws_rows=True
    )


def _cast_order_key(value: pl.Expr, dtype: str) -> pl.Expr:
    """Cast a time key to a type whose differences are exact: integers to uint64, the smallest one to 0."""
    if dtype == "float64":
        return value.cast(pl.Float64) + 0.0  # -0.0 is 0.0
    if dtype == "uint64":
        return value.cast(pl.UInt64)
    number, least = value.cast(pl.Int64), np.iinfo(np.int64).min
    above = number.cast(pl.UInt64, strict=False) + pl.lit(-least, pl.UInt64)
    return pl.when(number < 0).then((number - least).cast(pl.UInt64, strict=False)).otherwise(above)
