"""Two large tables joined on equal keys: rows that may match meet in a bucket, then go back where their left row was.

Keys are compared as the `Join` step does: by value whatever the types of numbers, and a missing key matches nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.columns import as_key, key_dtype, with_missing_row
from gpupipe.backend.ordering import grouped
from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.io.buckets import Hashed, Placed
from gpupipe.io.exchange import ID, ROW, Reading, exchange, origin_of, settle
from gpupipe.io.rearranging import InOrder
from gpupipe.io.relational.ordering import numbered, widest
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["KEPT", "Plan", "joined"]

KEPT = {"left": (True, False), "inner": (False, False), "right": (False, True), "outer": (True, True)}
"""Whether the rows of the left and those of the right stay that match nothing."""
_ADDED = np.uint64(1 << 63)
"""Above all identities of left rows: where right rows that match none come."""


@dataclass(frozen=True)
class Plan:
    """What is joined and what comes out.

    Args:
        left_keys: the left key columns, as fields.
        right_keys: the right ones, in the same order.
        left_columns: the columns of the left.
        right_columns: those the right adds, and what they are called in the result.
        how: a key of `KEPT`.
        many: whether a key may stand in several rows of the right.
    """

    left_keys: tuple[Field, ...]
    right_keys: tuple[Field, ...]
    left_columns: tuple[Field, ...]
    right_columns: tuple[tuple[Field, str], ...]
    how: str
    many: bool

    @classmethod
    def of(
        cls,
        left: Schema,
        right: Schema,
        left_on: Sequence[str],
        right_on: Sequence[str],
        columns: Sequence[str] | None,
        how: str,
        suffix: str,
        many: bool,
    ) -> Self:
        """Checked: see `Dataset.join`.

        Raises:
            BadConfig, SchemaMismatch: see there.
        """
        if how not in KEPT:
            raise BadConfig("join", "unknown how", got=how, expected=", ".join(map(repr, KEPT)), remedy="how='left'")
        if len(left_on) != len(right_on) or not left_on:
            raise BadConfig(
                "join",
                "not as many keys on the right as on the left, or none",
                got={"left_on": list(left_on), "right_on": list(right_on)},
                expected="pairs of columns",
                remedy="on=, or left_on= and right_on=",
            )
        keys = tuple(left[name] for name in left_on), tuple(right[name] for name in right_on)
        for ours, theirs in zip(*keys, strict=True):
            alike = ours.dtype == theirs.dtype
            if not alike and (KEPT[how][1] or not {ours.dtype, theirs.dtype} <= {*INTEGERS, *FLOATS}):
                raise SchemaMismatch(
                    "join",
                    f"key {ours.name!r} is {ours.dtype} on the left and {theirs.name!r} {theirs.dtype} on the right",
                    expected="the same type on both sides" + (f" for how={how!r}" if KEPT[how][1] else ""),
                    remedy=f"Cast({{{ours.name!r}: {theirs.dtype!r}}}) before the join",
                )
        chosen = right.names if columns is None else columns
        names = {name: name + suffix if name in left else name for name in chosen if name not in right_on}
        taken = list(left.names)
        for name, out in names.items():
            if out in taken:
                raise BadConfig(
                    "join",
                    f"the right column {name!r} would be called {out!r} like another",
                    expected="a name of its own for each column",
                    remedy=f"another suffix than {suffix!r}, or one of the two renamed before the join",
                )
            taken.append(out)
        return cls(*keys, tuple(left), tuple((right[name], out) for name, out in names.items()), how, many)

    @property
    def right_fields(self) -> list[Field]:
        """What is read of the right."""
        return list(dict.fromkeys([*self.right_keys, *(item for item, _ in self.right_columns)]))

    @property
    def schema(self) -> Schema:
        """Of the result."""
        keeps_left, keeps_right = KEPT[self.how]
        missing_keys = {
            ours.name: ours.nullable or theirs.nullable
            for ours, theirs in zip(self.left_keys, self.right_keys, strict=True)
        }
        left = (
            replace(item, nullable=missing_keys.get(item.name, True)) if keeps_right else item
            for item in self.left_columns
        )
        right = (
            replace(item, name=name, nullable=item.nullable or keeps_left).as_source()
            for item, name in self.right_columns
        )
        return Schema([*left, *right])

    @property
    def kinds(self) -> list[str]:
        """The type each pair of keys is compared in: values it has not got match nothing on the other side."""
        return [
            key_dtype({ours.dtype, theirs.dtype}) for ours, theirs in zip(self.left_keys, self.right_keys, strict=True)
        ]


def joined(left: Dataset, right: Dataset, plan: Plan) -> Dataset:
    """See `Dataset.join`."""
    origin = origin_of("join", [left, right], plan)
    left, right = numbered(left), numbered(right)
    num_buckets = max(left.num_partitions, right.num_partitions)
    together = [
        exchange(
            table,
            _Keyed(tuple(item.name for item in fields), tuple(item.name for item in keys), tuple(plan.kinds)),
            Schema([*fields, ID]),
            Hashed([_key(number) for number in range(len(keys))], num_buckets, missing_meet=False),
            num_buckets,
            "join",
        )
        for table, fields, keys in (
            (left, plan.left_columns, plan.left_keys),
            (right, plan.right_fields, plan.right_keys),
        )
    ]
    places = Placed.like(left)
    if KEPT[plan.how][1]:
        added = [int(_ADDED) + edge for edge in (0, *Placed.like(right).edges)]
        places = Placed([*places.edges, *added])
    schema = Schema([*plan.schema, ID])
    in_place = exchange(
        together[0], _Matches(together[1], plan), schema, places, places.num_buckets, "join", whole=True
    )
    return settle(in_place, InOrder((ROW,), (True,)), plan.schema, origin, max(widest(left), widest(right)), "join")


@dataclass(frozen=True)
class _Keyed:
    """Rows with their keys as they are compared, in columns of their own."""

    names: Sequence[str]
    keys: Sequence[str]
    kinds: Sequence[str]

    def __call__(self, part: Dataset, backend: Backend) -> Frame:
        frame = Reading(self.names)(part, backend)
        return backend.assign(frame, _compared(frame, self.keys, self.kinds, backend))


@dataclass(frozen=True)
class _Matches:
    """The rows a bucket of the left comes to, with the bucket of the right; in the left's order, then the right's."""

    right: Dataset
    plan: Plan

    def __call__(self, part: Dataset, backend: Backend) -> Frame:
        (partition,) = part.partitions
        left = part.read(partition, None, backend)
        right = self.right.read(self.right.partitions[partition.index], None, backend)
        left_rows, right_rows = self._pairs(left, right, backend)
        xp, plan = backend.xp, self.plan
        columns = {
            item.name: with_missing_row(backend.column(left, item.name), xp).take(left_rows)
            for item in plan.left_columns
        }
        for item, name in plan.right_columns:
            columns[name] = with_missing_row(backend.column(right, item.name), xp).take(right_rows)
        from_either = xp.where(left_rows >= 0, left_rows, len(left) + right_rows)
        if KEPT[plan.how][1]:
            names, theirs = ([item.name for item in keys] for keys in (plan.left_keys, plan.right_keys))
            found = backend.rename(backend.select(right, theirs), dict(zip(theirs, names, strict=True)))
            both = backend.concat([backend.select(left, names), found])
            columns |= {name: backend.column(both, name).take(from_either) for name in names}
        ids = xp.concatenate([backend.column(left, ROW).data, backend.column(right, ROW).data + _ADDED])
        return backend.frame({**columns, ROW: Column("uint64", ids[from_either])}, len(left_rows))

    def _pairs(self, left: Frame, right: Frame, backend: Backend) -> tuple[Array, Array]:
        """For each row that comes out the row of the left and that of the right, -1 for none."""
        xp, plan = backend.xp, self.plan
        frames = [
            backend.frame(_compared(frame, [item.name for item in keys], plan.kinds, backend), len(frame))
            for frame, keys in ((left, plan.left_keys), (right, plan.right_keys))
        ]
        both = backend.concat(frames)
        columns = [backend.column(both, _key(number)) for number in range(len(plan.kinds))]
        groups = grouped(columns, backend)
        known = xp.ones(len(both), dtype=bool)
        for column in columns:
            missing = column.missing(xp)
            known = known if missing is None else known & ~missing
        ids = xp.where(known, groups.ids, len(groups))  # of no group where a key is missing
        left_ids, right_ids = ids[: len(left)], ids[len(left) :]
        in_right = xp.bincount(right_ids, minlength=len(groups) + 1)
        ends = xp.cumsum(in_right)
        in_right[len(groups)] = 0
        if not plan.many:
            self._check_unique(in_right, right_ids, right, backend)
        order = xp.argsort(right_ids, kind="stable")
        counts = in_right[left_ids]
        keeps_left, keeps_right = KEPT[plan.how]
        times = xp.maximum(counts, 1) if keeps_left else counts
        left_rows = xp.repeat(xp.arange(len(left)), times)
        nth = xp.arange(len(left_rows)) - xp.repeat(xp.cumsum(times) - times, times)
        order = xp.concatenate([order, xp.full(1, -1, dtype=order.dtype)])
        places = (ends - in_right)[left_ids][left_rows] + nth
        right_rows = order[xp.where(counts[left_rows] > 0, places, -1)]
        if not keeps_right:
            return left_rows, right_rows
        in_left = xp.bincount(left_ids, minlength=len(groups) + 1)
        in_left[len(groups)] = 0
        alone = xp.flatnonzero(in_left[right_ids] == 0)
        return xp.concatenate([left_rows, xp.full(len(alone), -1)]), xp.concatenate([right_rows, alone])

    def _check_unique(self, in_right: Array, right_ids: Array, right: Frame, backend: Backend) -> None:
        twice = backend.xp.flatnonzero(in_right[right_ids] > 1)
        if len(twice):
            keys = backend.select(backend.take(right, twice[:1]), [item.name for item in self.plan.right_keys])
            key = backend.to_arrow(keys).to_pylist()[0]
            raise BadData(
                "join",
                f"rows of the right table repeat a key, for instance {key}",
                expected="unique keys on the right",
                remedy=f"many=True for every pair, or right.deduplicate({list(key)})",
            )


def _compared(frame: Frame, keys: Sequence[str], kinds: Sequence[str], backend: Backend) -> dict[str, Column]:
    """The keys in the types they are compared in; missing where the type has no such value."""
    found = {}
    for number, (name, kind) in enumerate(zip(keys, kinds, strict=True)):
        found[_key(number)] = as_key(backend.column(frame, name), kind, backend.xp)
    return found


def _key(number: int) -> str:
    return f"⟨key⟩ {number}"
