"""Equality and as-of joins of two large tables.

Keys are compared as the `Join` step does: by value whatever the types of numbers, and a missing key matches nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from gpupipe.backend.arrow import arrow_from_polars, get_arrow_types
from gpupipe.backend.columns import (
    Distance,
    convert_distance,
    key_dtype,
    one_key_type,
    order_dtype,
    require_comparable_times,
    shared_key_type,
)
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.io.planning.table import AnyTable, Table, map_frames
from gpupipe.io.relational.engine import PlannedRun, ZippedRuns, assign_hashes, collect, count_buckets, hash_keys, run
from gpupipe.io.relational.gathering import count_batch_rows, cut_on_failure, identify_plan, plan_rows
from gpupipe.io.relational.scan import Scan, scan
from gpupipe.io.relational.side_columns import Attach, SideColumns, collect_columns
from gpupipe.io.relational.sort import ensure_unique_row_ids, sort_by_row
from gpupipe.schema import FLOATS, ID, INTEGERS, ROW, Field, Schema
from gpupipe.support.origins import (
    ANY_ROW,
    Origin,
    Origins,
    When,
    forget_order,
    is_in_other_order,
    is_known,
    is_of_row,
    keep_related,
    keep_shared,
    leave_groups,
    list_choices,
    look_up,
    name_table,
    pick,
    reveal_choice,
    shift,
)
from gpupipe.support.validation import check_bool, check_choice, check_name

_KEPT = {"left": (True, False), "inner": (False, False), "right": (False, True), "outer": (True, True)}
"""Whether the rows of the left and those of the right stay that match nothing."""
_ADDED = 1 << 63  # above all row ids of the left: the row ids of right rows without a match start here
_RIGHT = "⟨right row⟩"
_Pair: TypeAlias = tuple[Sequence[str], Sequence[str]]  # names of keys on the left and on the right
_HASH = "⟨hash⟩"


@dataclass(frozen=True)
class _Sides:
    """Keys and columns of the two sides of a join; each right column has the name that it gets."""

    left_keys: tuple[Field, ...]
    right_keys: tuple[Field, ...]
    left_columns: tuple[Field, ...]
    right_columns: tuple[tuple[Field, str], ...]

    @property
    def keys(self) -> list[str]:
        """The columns that hold the keys in the type they are compared in."""
        return [f"⟨key⟩ {number}" for number in range(len(self.left_keys))]

    def _add_keys(self, columns: Iterable[Field], *whens: When) -> list[Field]:
        """Return the right columns as new ones, found by the keys of the left, in right rows of these times."""
        keys = shift(frozenset().union(*(item.origins for item, _ in self._pairs)), When.KEY)
        times: list[Origins] = [frozenset().union(*(both[side].origins for both in self._times)) for side in (0, 1)]
        keys |= shift(times[0], When.TIME)
        left: Origins = frozenset().union(*(item.origins for item in self.left_columns))
        by_own_key = any(left_key.is_column_of(right_key) for left_key, right_key in self._ordering)
        right: Origins = frozenset().union(*(item.origins for _, item in self._pairs))
        is_earlier = by_own_key and whens == (When.BEFORE,) and all(map(is_known, right))
        if not is_earlier and any(left_key.is_key_apart(right_key) for left_key, right_key in self._pairs):
            whens = ANY_ROW

        def find(origins: Origins) -> Origins:
            item_whens = ANY_ROW if self._times and is_in_other_order(origins, times[1]) else whens or (When.NOW,)
            return leave_groups(shift(origins, *item_whens), by_own_key=by_own_key)

        keys |= shift(find(keep_related(right, left)), When.KEY)
        return [replace(i.as_source(), origins=find(reveal_choice(i.origins, left)) | keys) for i in columns]

    @property
    def _pairs(self) -> list[tuple[Field, Field]]:
        """The columns of both sides by which right rows are found."""
        return list(zip(self.left_keys, self.right_keys, strict=True))

    @property
    def _times(self) -> list[tuple[Field, Field]]:
        """Those by whose order right rows are found; none where equal keys find them."""
        return []

    @property
    def _ordering(self) -> list[tuple[Field, Field]]:
        """Those of which the keys of groups may say which groups are earlier."""
        return self._times or self._pairs

    def cast_keys(self, side: int) -> dict[str, pl.Expr]:
        """Cast the keys of the left (0) or the right (1) to the type they are compared in, by the names in `keys`."""
        pairs = zip(self.keys, self.left_keys, self.right_keys, strict=True)
        return {key: _cast_key(both[side], key_dtype({item.dtype for item in both})) for key, *both in pairs}

    def cut(self, num_buckets: int) -> list[pl.Expr]:
        """Assign the rows of both sides to buckets by their keys."""
        return [assign_hashes(self.keys, num_buckets)] * 2


def _match_keys(
    left: Schema, right: Schema, on: _Pair, where: str, same_for: str | None
) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """Return the keys of both sides, which are of equal types, or numbers unless `same_for` says what these are not."""
    keys = tuple(left[name] for name in on[0]), tuple(right[name] for name in on[1])
    for left_key, right_key in zip(*keys, strict=True):
        are_numbers = {left_key.dtype, right_key.dtype} <= {*INTEGERS, *FLOATS}
        if left_key.dtype != right_key.dtype and (same_for is not None or not are_numbers):
            problem = f"key {left_key.name!r} is {left_key.dtype} on the left"
            problem += f" and {right_key.name!r} {right_key.dtype} on the right"
            expected = f"the same type on both sides{same_for or ', or two types of numbers'}"
            remedy = _suggest_casts(left_key, right_key)
            raise SchemaMismatch(where, problem, expected=expected, remedy=remedy)
        require_comparable_times(left_key, right_key, f"{where}, left and right")
    return keys


def _name_columns(
    left: Schema, right: Schema, columns: Sequence[str], suffix: str, where: str
) -> tuple[tuple[Field, str], ...]:
    """Name the columns that the right adds: those that the left has too get the suffix."""
    named, names = [], {*left.names}
    for name in columns:
        out = name + suffix if name in left else name
        if out in names:
            problem = f"the right column {name!r} would be called {out!r} like another"
            remedy = f"another suffix than {suffix!r}, or one of the two renamed before the join"
            raise BadConfig(where, problem, expected="a name of its own for each column", remedy=remedy)
        names.add(out)
        named.append((right[name], out))
    return tuple(named)


@dataclass(frozen=True)
class JoinSpec(_Sides):
    """Specification of a join: its keys, its columns and its kind."""

    how: str
    many: bool

    @classmethod
    def of(
        cls, left: Schema, right: Schema, on: _Pair, columns: Sequence[str] | None, how: str, suffix: str, many: bool
    ) -> Self:
        """Check the arguments of `Dataset.join` and build the specification."""
        check_choice("join", _KEPT, how=how)
        if len(on[0]) != len(on[1]) or not on[0]:
            problem, remedy = "not as many keys on the right as on the left, or none", "on=, or left_on= and right_on="
            got = {"left_on": [*on[0]], "right_on": [*on[1]]}
            raise BadConfig("join", problem, got=got, expected="pairs of columns", remedy=remedy)
        same_for = f" for how={how!r}" if _KEPT[how][1] else None
        keys = _match_keys(left, right, on, "join", same_for)
        names = [name for name in (right.names if columns is None else columns) if name not in on[1]]
        return cls(*keys, tuple(left), _name_columns(left, right, names, suffix, "join"), how, many)

    @property
    def schema(self) -> Schema:
        (keeps_left, keeps_right), left = _KEPT[self.how], list(self.left_columns)
        if keeps_right or self.many:  # the rows are those of the right
            left = [replace(item, origins=leave_groups(item.origins)) for item in left]
        if keeps_right:
            pairs = zip(self.left_keys, self.right_keys, strict=True)
            # The key of a right row without a match is the right's own; its other left values are missing.
            keys = {
                left_key.name: replace(
                    left_key,
                    nullable=left_key.nullable or right_key.nullable,
                    origins=left_key.origins | right_key.origins,
                )
                for left_key, right_key in pairs
            }
            by = shift(frozenset().union(*(item.origins for item in self.right_keys)), When.KEY)
            left = [keys.get(item.name, replace(item, nullable=True, origins=item.origins | by)) for item in left]
        by_keys = [key.origins for key in self.right_keys]
        key_origins: Origins = frozenset().union(*by_keys)
        left_origins: Origins = frozenset().union(*(item.origins for item in self.left_columns))
        # The rows of a left row stand in the order of the right, where there can be several.
        sorts = self.left_keys + (self.right_keys if keeps_right or self.many else ())
        order: Origins = frozenset().union(*(key.origins - forget_order(key.origins) for key in sorts))
        named = (
            replace(
                item,
                name=name,
                nullable=item.nullable or keeps_left,
                origins=look_up(forget_order(keep_shared(item.origins, key_origins)), by_keys, left_origins),
            )
            for item, name in self.right_columns
        )
        columns = [*left, *self._add_keys(named)]
        # Left rows that find none are dropped: which stay is what the right rows were kept by.
        marks = frozenset[Origin]() if keeps_left else list_choices(key.origins for key in self.right_keys)
        return Schema(item.replace(origins=item.origins | order | marks) for item in columns)

    def in_row_order(self, left: pl.LazyFrame, right: pl.LazyFrame) -> pl.LazyFrame:
        """Plan the rows of the result in order, each with its row id as `ROW`.

        An engine that keeps the order while it joins takes twice as long as one that sorts afterwards.
        """
        return self.plan(left, right).sort(ROW, _RIGHT)

    def plan(self, left: pl.LazyFrame, right: pl.LazyFrame) -> pl.LazyFrame:
        """Plan the rows of the result in any order, each with its row ids as `ROW` and `_RIGHT`."""
        keeps_left, keeps_right = _KEPT[self.how]
        right_keys = {f"⟨right⟩ {item.name}": pl.col(item.name) for item in self.right_keys} if keeps_right else {}
        added = {out: pl.col(item.name) for item, out in self.right_columns}
        right = right.select(*self.keys, pl.col(ROW).alias(_RIGHT), **right_keys, **added)
        how: Literal["full", "left", "inner"] = "full" if keeps_right else "left" if keeps_left else "inner"
        both = left.join(right, on=self.keys, how=how, coalesce=False)
        if not keeps_right:
            return both
        if not keeps_left:
            both = both.filter(pl.col(_RIGHT).is_not_null())
        is_alone = pl.col(ROW).is_null()
        names = zip(self.left_keys, right_keys, strict=True)
        of_either = [pl.when(is_alone).then(name).otherwise(item.name).alias(item.name) for item, name in names]
        row_id = pl.coalesce(ROW, pl.col(_RIGHT) + pl.lit(_ADDED, pl.UInt64)).alias(ROW)
        return both.with_columns(*of_either, row_id)


def join(left: AnyTable, right: Table, joining: JoinSpec) -> AnyTable:
    """Run `Dataset.join`."""
    backend, schema = get_executor().resolve(left.backend), joining.schema

    def rows() -> PlannedRun | ZippedRuns:
        items = dict.fromkeys([*joining.right_keys, *(item for item, _ in joining.right_columns)])
        left_scan = scan(left, [item.name for item in joining.left_columns], "join")
        right_scan = scan(right, [item.name for item in items], "join, right table")
        left_scan, right_scan = (
            replace(table_scan, frame=table_scan.frame.with_columns(**joining.cast_keys(side)))
            for side, table_scan in enumerate((left_scan, right_scan))
        )
        if not joining.many:
            _check_unique(right_scan, joining, backend)
        if backend == "cpu" and joining.how == "left" and not joining.many:
            return _plan_left_join(left_scan, right_scan, joining)
        if count_buckets([left_scan, right_scan], backend) == 1:
            return PlannedRun(joining.in_row_order, [left_scan, right_scan], list(schema), backend, "join", None)
        plan = joining.in_row_order if joining.many else joining.plan
        result = run(plan, [left_scan, right_scan], [*schema, ID], backend, "join", joining.cut)
        return sort_by_row(result, schema, backend, "join")

    joined = plan_rows(left, schema, "join", joining, rows, right)
    if joining.many:  # a row of the left comes out for each that it matches
        origins = (origin for item in joining.left_columns for origin in item.origins)
        joined.source.repeated |= {name_table(origin) for origin in origins if is_of_row(origin)}
    return joined


def _plan_left_join(left: Scan, right: Scan, joining: JoinSpec) -> PlannedRun | ZippedRuns:
    """Plan a left join on unique keys on a CPU: the left rows are streamed, not moved or held."""
    rows = PlannedRun(lambda frame: frame, [left], joining.left_columns, "cpu", "join", None, is_rowwise=True)
    added = list(joining.schema)[len(joining.left_columns) :]
    if not added:
        return rows
    keys = replace(left, fields=joining.left_keys, frame=left.frame.select(*joining.keys, ROW))
    if count_buckets([keys, right], "cpu") == 1:
        return ZippedRuns(rows, lambda: _join_row_numbers(keys, right, joining, added), list(joining.schema))

    def in_order() -> Generator[pa.Table]:
        result = run(joining.plan, [keys, right], [*added, ID], "cpu", "join", joining.cut)
        return sort_by_row(result, added, "cpu", "join").batches()

    return ZippedRuns(rows, in_order, list(joining.schema))


def _join_row_numbers(left: Scan, right: Scan, joining: JoinSpec, added: Sequence[Field]) -> Generator[pa.Table]:
    """Yield the columns that the right adds, in the order of the left; only row numbers are joined."""

    def plan(left_rows: pl.LazyFrame, right_rows: pl.LazyFrame) -> pl.LazyFrame:
        left_rows, right_rows = (
            rows.select(joining.keys).with_row_index(name) for rows, name in ((left_rows, ROW), (right_rows, _RIGHT))
        )
        return left_rows.join(right_rows, on=joining.keys)

    numbers = [Field(name, "uint32", nullable=False) for name in (ROW, _RIGHT)]
    positions = np.full(left.num_rows, right.num_rows, dtype=np.uint32)  # no row of the right
    for table in PlannedRun(plan, [left, right], numbers, "cpu", "join", None).batches():
        left_numbers, right_numbers = (column.to_numpy() for column in table.columns)
        positions[left_numbers] = right_numbers
    columns = [pl.col(item.name).alias(out) for item, out in joining.right_columns]
    values = collect(right.frame.select(columns), [right], "join")
    types, step = get_arrow_types(added), count_batch_rows(added)
    for start in range(0, len(positions), step):
        part = pl.Series(positions[start : start + step])
        yield arrow_from_polars(values.select(pl.all().gather(part, null_on_oob=True)), types)


def _check_unique(rows: Scan, joining: JoinSpec, backend: str) -> None:
    names = list(dict.fromkeys(item.name for item in joining.right_keys))
    if backend == "cpu" and count_buckets([rows], backend) == 1:  # hashes that differ, as nearly always, say enough
        hashes = rows.frame.drop_nulls(joining.keys).select(hash_keys(joining.keys).sort().alias(_HASH))
        if not collect(hashes.select((pl.col(_HASH) == pl.col(_HASH).shift()).any()), [rows], "join").item():
            return

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        groups = frame.drop_nulls(joining.keys).group_by(joining.keys)
        counts = groups.agg(pl.len().alias("⟨rows⟩"), pl.col(ROW).min(), pl.col(names).first())
        return counts.filter(pl.col("⟨rows⟩") > 1).bottom_k(1, by=ROW)

    fields = [*dict.fromkeys(joining.right_keys), ID]
    keys = replace(rows, fields=fields, frame=rows.frame.select(*joining.keys, *names, ROW))
    repeats = run(plan, [keys], fields, backend, "join", lambda number: joining.cut(number)[:1])
    if repeats.num_rows:
        key = repeats.lazy().sort(ROW).select(names).collect().row(0, named=True)
        problem = f"rows of the right table repeat a key, for instance {key}"
        remedy = f"many=True for every pair, or right.deduplicate({list(key)})"
        raise BadData("join", problem, expected="unique keys on the right", remedy=remedy)


def _cast_key(item: Field, kind: str) -> pl.Expr:
    """Cast a key to the type it is compared in; a value outside that type becomes missing and matches nothing."""
    key = pl.col(item.name)
    if kind in FLOATS:
        return key.cast(pl.Float32 if kind == "float32" else pl.Float64)
    if item.dtype == kind:
        return key
    cast = key.cast(pl.UInt64 if kind == "uint64" else pl.Int64, strict=False)
    return pl.when(cast.cast(pl.Float64) == key.cast(pl.Float64)).then(cast) if item.dtype in FLOATS else cast


def _suggest_casts(left: Field, right: Field) -> str:
    """Suggest lossless casts of two keys to one type: of numbers the narrowest that holds both, or else text."""
    dtype: str | None = shared_key_type(left, right)
    if {left.dtype, right.dtype} <= {*INTEGERS, *FLOATS}:
        both = np.promote_types(left.dtype, right.dtype).name
        dtype = both if both in INTEGERS or not {left.dtype, right.dtype} <= {*INTEGERS} else "string"
    casts = [
        f"{side} = gp.Pipeline([T.Cast({{{item.name!r}: {dtype!r}}})]).fit({side}).transform({side})"
        for side, item in (("left", left), ("right", right))
        if item.dtype != dtype
    ]
    if "string" in (left.dtype, right.dtype) and dtype in INTEGERS:
        casts[-1] += (
            f"  # where texts are not all numbers, 'string' of the {'left' if right.dtype == 'string' else 'right'}"
        )
    return "; ".join(casts) if dtype else one_key_type(left, right)


_ON, _THEIRS, _MATCH, _SIDE, _PLACE = "⟨on⟩", "⟨right on⟩", "⟨match⟩", "⟨side⟩", "⟨place⟩"


@dataclass(frozen=True)
class AsOfSpec(_Sides):
    """Specification of an as-of join: its keys, its columns, and how times are compared."""

    on: tuple[Field, Field]
    dtype: str
    direction: str
    tolerance: Distance | None
    exact: bool

    @classmethod
    def of(
        cls,
        left: Schema,
        right: Schema,
        on: tuple[str, str],
        by: _Pair,
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
            problem, got = "not as many keys on the right as on the left", {"left_by": [*by[0]], "right_by": [*by[1]]}
            remedy = "by=, or left_by= and right_by="
            raise BadConfig("join_asof", problem, got=got, expected="pairs of columns", remedy=remedy)
        order = left[on[0]], right[on[1]]
        dtype = order_dtype(*order, "join_asof")
        keys = _match_keys(left, right, by, "join_asof", None)
        names = [name for name in right.names if name not in (on[1], *by[1])] if columns is None else columns
        named = _name_columns(left, right, names, suffix, "join_asof")
        distance = convert_distance(tolerance, dtype, "join_asof(tolerance=)")
        return cls(*keys, tuple(left), named, order, dtype, direction, distance, exact)

    @property
    def added_fields(self) -> list[Field]:
        keys: Origins = frozenset().union(*(key.origins for key in self.right_keys))
        named = (
            replace(item, name=out, nullable=True, origins=pick(keep_shared(item.origins, keys)))
            for item, out in self.right_columns
        )
        backward = (When.NOW,) if self.exact else (When.BEFORE,)  # the latest that may be found
        whens = {"backward": backward, "forward": (When.NOW, When.AFTER)}.get(self.direction, ANY_ROW)
        return self._add_keys(named, *whens)

    @property
    def _pairs(self) -> list[tuple[Field, Field]]:
        return [self.on, *super()._pairs]

    @property
    def _times(self) -> list[tuple[Field, Field]]:
        return [self.on]

    def select_side(self, frame: pl.LazyFrame, side: int) -> pl.LazyFrame:
        """Select the keys and times of the left (0) or the right (1), and the columns that the right adds."""
        added = {out: pl.col(item.name) for item, out in self.right_columns} if side else {}
        order = _cast_order_key(pl.col(self.on[side].name), self.dtype)
        return frame.select(ROW, order.alias(_ON), **self.cast_keys(side), **added)

    def plan(self, left: pl.LazyFrame, right: pl.LazyFrame, *, backend: str) -> pl.LazyFrame:
        """Plan the search for the right row of each left row; the result has the added columns and `ROW`, sorted."""
        is_complete = pl.all_horizontal(pl.col(name).is_not_null() for name in [_ON, *self.keys])
        lacking, left = left.filter(~is_complete).select(ROW), left.filter(is_complete)
        right = right.filter(is_complete).rename({ROW: _MATCH}).with_columns(pl.col(_ON).alias(_THEIRS))
        directions = ["backward", "forward"] if self.direction == "nearest" else [self.direction]
        for direction in directions:
            left = self._add_nearest(left, right, direction, backend)
        times = {direction: pl.col(f"{direction} {_THEIRS}") for direction in directions}
        distances = [pl.col(_ON) - time if name == "backward" else time - pl.col(_ON) for name, time in times.items()]
        limit = pl.lit(self.tolerance, pl.Float64 if self.dtype == "float64" else pl.UInt64)
        columns = {}
        for _, out in self.right_columns:
            values: list[Any] = [pl.col(f"{direction} {out}") for direction in directions]
            if self.tolerance is not None:
                pairs = zip(distances, values, strict=True)
                values = [pl.when(distance <= limit).then(value) for distance, value in pairs]
            if len(values) == 2:
                is_earlier = distances[1].is_null() | (distances[0] <= distances[1])
                values = [pl.when(is_earlier).then(values[0]).otherwise(values[1])]
            columns[out] = values[0]
        return pl.concat([left.select(ROW, **columns), lacking], how="diagonal").sort(ROW)

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
        left_side = left.with_columns(pl.col(ROW).alias(_PLACE), pl.lit(int(right_first), pl.Int8).alias(_SIDE))
        right_side = right.select(
            _ON, _MATCH, *self.keys, pl.col(_MATCH).alias(_PLACE), pl.lit(int(not right_first), pl.Int8).alias(_SIDE)
        )
        order = [_ON, _SIDE, _PLACE]
        both = pl.concat([left_side, right_side], how="diagonal")
        row = pl.col(_MATCH)
        filled = row.forward_fill() if direction == "backward" else row.backward_fill()
        if self.keys:
            both = both.with_columns(filled.over(self.keys, order_by=order))
        else:
            both = both.sort(order).with_columns(filled)
        both = both.filter(pl.col(ROW).is_not_null()).join(right.select(_MATCH, **added), on=_MATCH, how="left")
        return both.drop(_MATCH, _SIDE, _PLACE)


def join_asof(left: AnyTable, right: Table, asof: AsOfSpec) -> AnyTable:
    """Run `Dataset.join_asof`: the left rows keep their partitions, and the added columns are looked up by row id."""
    left = ensure_unique_row_ids(left)
    side = cut_on_failure(lambda: _find_nearest(left, right, asof))
    added = tuple(item.name for item in asof.added_fields)
    attach = Attach(((side, added),), (*left.columns, *added))

    def identity() -> str | None:
        inputs = right.source.inputs()  # rows in memory have no stamp
        return None if inputs is None else identify_plan("join_asof", [right], (sorted(inputs.items()), asof))

    schema = Schema([*left.schema, *asof.added_fields])
    return map_frames(
        left,
        attach,
        schema,
        left.columns,
        keeps_rows=True,
        identity=identity,
        draws_rows=True,
        listings=right.listings,
    )


def _find_nearest(left: Table, right: Table, asof: AsOfSpec) -> SideColumns:
    """Find the columns of each left row's nearest right row."""
    left_scan = scan(left, [item.name for item in dict.fromkeys([asof.on[0], *asof.left_keys])], "join_asof")
    items = dict.fromkeys([asof.on[1], *asof.right_keys, *(item for item, _ in asof.right_columns)])
    right_scan = scan(right, [item.name for item in items], "join_asof, right table")
    has_rows = right_scan.num_rows > 0
    if has_rows and not right.keeps_rows:  # a filter that is done as the plan runs may leave none
        has_rows = len(collect(right_scan.frame.head(1), [right_scan], "join_asof, right table")) > 0
    if not has_rows:
        remedy = "rows in its files, or another filter"
        raise BadData("join_asof, right table", "it has no rows", expected="rows to match", remedy=remedy)
    scans = [
        replace(rows, frame=asof.select_side(rows.frame, side)) for side, rows in enumerate((left_scan, right_scan))
    ]
    plan = partial(asof.plan, backend=get_executor().resolve(left.backend))
    return collect_columns(plan, scans, asof.keys, asof.added_fields, left, "join_asof")


def _cast_order_key(value: pl.Expr, dtype: str) -> pl.Expr:
    """Cast a time key to a type whose differences are exact: integers to uint64, the smallest one to 0."""
    if dtype == "float64":
        return value.cast(pl.Float64) + 0.0  # -0.0 is 0.0
    if dtype == "uint64":
        return value.cast(pl.UInt64)
    number, least = value.cast(pl.Int64), np.iinfo(np.int64).min
    above = number.cast(pl.UInt64, strict=False) + pl.lit(-least, pl.UInt64)
    return pl.when(number < 0).then((number - least).cast(pl.UInt64, strict=False)).otherwise(above)
