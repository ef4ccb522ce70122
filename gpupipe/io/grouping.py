"""Rows with equal keys made into one: each partition is reduced first, then what is left of a group meets.

A median, a number of distinct values or a list cannot be put together of parts: for them all rows of a group meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from gpupipe.backend import Backend, Frame
from gpupipe.backend.ordering import Groups, grouped
from gpupipe.backend.reduction import FUNCTIONS, State, of_rows, outcome, reduced, whole_outcome
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.io.buckets import Ranges
from gpupipe.io.exchange import Origin, Reading, Rows, exchange, origin_of, settle
from gpupipe.io.rearranging import widest
from gpupipe.schema import FLOATS, LISTS, Field, Schema, is_passenger, list_of, made_usable

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["GroupBy"]

_WHOLE = ("median", "nunique", "list")
_OF_LISTS = ("size", "count", "first", "last")
_OF_NUMBERS = ("sum", "mean", "var", "std", "median")


@dataclass(frozen=True)
class GroupBy:
    """A table that is about to be grouped; made by `Dataset.group_by`."""

    table: Dataset
    keys: Sequence[str]
    dropna: bool

    def agg(self, *unnamed: object, **named: tuple[str, str]) -> Dataset:
        """One row for each distinct key, in the order of the keys, a missing one last.

        Missing values are left out, as in pandas: `sum` of none is 0, and all but the counts give a missing value. But
        a list has an element for each row, in the order of the rows, so that `sort("time").group_by("user")` gives each
        user's values by their time.

        Args:
            unnamed: none; pandas' `agg({"x": "mean"})` is `agg(x_mean=("x", "mean"))`.
            named: for each new column the column it is made of and a function: `"size"` (rows), `"count"` (values),
                `"sum"`, `"mean"`, `"var"` and `"std"` (with n - 1), `"min"`, `"max"`, `"first"`, `"last"`, `"median"`,
                `"nunique"` or `"list"`.

        Raises:
            BadConfig: nothing is asked for, a column without a name, no such function, or a name that a key has.
            ColumnNotFound: no such column.
            SchemaMismatch: a sum, a mean and the like of what is no number; any but a count, the first or the last of
                lists.

        Memory: per worker a partition and a few numbers for each of its groups. For a median, a number of distinct
            values or a list, and only then, all rows of the largest group.

        Example:
            >>> import gpupipe as gp
            >>> flights = gp.read_parquet("data/flights.parquet")
            >>> flights.group_by("origin").agg(flights=("origin", "size"), longest=("distance", "max")).compute()
              origin  flights  longest
            0    EWR   120835   4963.0
            1    JFK   111279   4983.0
            2    LGA   104662   1620.0
        """
        if unnamed:
            asked, expected = unnamed[0], "name=(column, function) for each new column"
            remedy = _named(asked, self.table)
            raise BadConfig("agg", "new columns need names", got=asked, expected=expected, remedy=remedy)
        for name, pair in cast(dict[str, Any], named).items():
            if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
                expected, remedy = "a column and a function, as (column, function)", f"agg({name}=('delay', 'mean'))"
                raise BadConfig(f"agg({name}=)", "makes no sense", got=pair, expected=expected, remedy=remedy)
        wanted = [_Wanted(name, *pair) for name, pair in named.items()]
        self._check(wanted)
        table, keys = self.table, self.keys
        work = _Reduction(tuple(keys), tuple(wanted), table.schema, self.dropna)
        rows: Rows = work.before
        if not work.meets:
            table = settle(table, rows, work.between, Origin(None, None), widest(table), "group", whole=False)
            rows = Reading(work.between.names)
        if work.meets or table.num_partitions > 1:
            ranges = Ranges.of_sample(table, keys, [True] * len(keys), table.num_partitions, divide=False)
            table = exchange(table, rows, work.between, ranges, table.num_partitions, "group")
        origin = origin_of("group", [self.table], keys, self.dropna, wanted)
        return settle(table, work.after, work.schema, origin, widest(self.table), "group")

    def _check(self, wanted: Sequence[_Wanted]) -> None:
        if not wanted:
            raise BadConfig(
                "agg", "nothing is asked for", expected="a name for each column", remedy="agg(rows=('x', 'size'))"
            )
        for one in wanted:
            where = f"agg({one.name}=)"
            if one.function not in (*FUNCTIONS, *_WHOLE):
                known = ", ".join([*FUNCTIONS, *_WHOLE])
                raise BadConfig(where, "no such function", got=one.function, expected=known, remedy="'mean'")
            if one.name in self.keys:
                raise BadConfig(where, "a key has that name", expected="another", remedy=f"agg({one.name}_=...)")
            self.table.require([one.column], where)
            dtype = self.table.schema[one.column].dtype
            if (dtype in LISTS or is_passenger(dtype)) and one.function not in _OF_LISTS:
                length = f"T.Derive({one.column}_length='len({one.column})') before it"
                raise SchemaMismatch(
                    where,
                    f"column {one.column!r} holds {'lists' if dtype in LISTS else dtype}",
                    got=one.function,
                    expected=", ".join(_OF_LISTS),
                    remedy=length if dtype in LISTS else made_usable(one.column, dtype),
                )
            if one.function in _OF_NUMBERS and dtype in ("string", "timestamp"):
                raise SchemaMismatch(
                    where,
                    f"column {one.column!r} holds no numbers",
                    got=dtype,
                    expected=f"numbers or booleans for {one.function!r}",
                    remedy="'min', 'max', 'first', 'last', 'count' or 'nunique'",
                )


def _named(asked: Any, table: Dataset) -> str:
    """The call that was meant by functions without names, as pandas takes them."""
    by_column = asked if isinstance(asked, Mapping) else dict.fromkeys(table.columns[:1], asked)
    pairs = [
        (f"{column}_{function}", (column, function))
        for column, functions in by_column.items()
        for function in (functions if isinstance(functions, list | tuple) else [functions])
    ]
    plain = [f"{name}={pair!r}" for name, pair in pairs if name.isidentifier()]
    other = {name: pair for name, pair in pairs if not name.isidentifier()}
    return f"agg({', '.join(plain + ([f'**{other!r}'] if other else []))})"


@dataclass(frozen=True)
class _Wanted:
    name: str
    column: str
    function: str

    def field(self, item: Field) -> Field:
        """Of the result, typed as pandas does."""
        if self.function in ("size", "count", "nunique"):
            return Field(self.name, "int64", nullable=False).as_source()
        if self.function == "list":
            return Field(self.name, list_of(item.dtype), nullable=False).as_source()
        if self.function == "sum":
            dtype = item.dtype if item.dtype in FLOATS else State("sum", item.name).field(item).dtype
            return Field(self.name, dtype, nullable=False).as_source()
        if self.function in _OF_NUMBERS:
            alike = item.dtype == "float32" and self.function != "mean"
            return Field(self.name, "float32" if alike else "float64").as_source()
        return Field(self.name, item.dtype, nullable=item.nullable, written_as=item.written_as).as_source()


@dataclass(frozen=True)
class _Reduction:
    """What is done to the rows of a partition, and to those of a bucket."""

    keys: Sequence[str]
    wanted: Sequence[_Wanted]
    source: Schema
    dropna: bool

    @property
    def meets(self) -> bool:
        """Whether all rows of a group have to meet."""
        return any(one.function in _WHOLE for one in self.wanted)

    @property
    def columns(self) -> list[str]:
        """What is read."""
        return list(dict.fromkeys([*self.keys, *(one.column for one in self.wanted)]))

    @property
    def states(self) -> list[State]:
        """What the results follow from."""
        found = (State(name, one.column) for one in self.wanted for name in FUNCTIONS.get(one.function, ()))
        return list(dict.fromkeys(found))

    @property
    def between(self) -> Schema:
        """What goes from partitions to buckets."""
        if self.meets:
            return self.source.select(self.columns)
        states = (state.field(self.source[state.column]) for state in self.states)
        return Schema([*self.source.select(self.keys), *states])

    @property
    def schema(self) -> Schema:
        """Of the result."""
        keys = (replace(item, nullable=item.nullable and not self.dropna) for item in self.source.select(self.keys))
        return Schema([*keys, *(one.field(self.source[one.column]) for one in self.wanted)])

    def before(self, part: Dataset, backend: Backend) -> Frame:
        """A partition's rows, or the states of its groups."""
        frame = part.read(part.partitions[0], self.columns, backend)
        for key in self.keys if self.dropna else ():
            missing = backend.column(frame, key).missing(backend.xp)
            frame = frame if missing is None else backend.filter(frame, ~missing)
        return frame if self.meets else of_rows(frame, self._groups(frame, backend), self.keys, self.states, backend)

    def after(self, part: Dataset, backend: Backend) -> Frame:
        """The result of a bucket."""
        frame = part.read(part.partitions[0], None, backend)
        groups = self._groups(frame, backend)
        found = (of_rows if self.meets else reduced)(frame, groups, self.keys, self.states, backend)
        made = {}
        for one in self.wanted:
            item = self.source[one.column]
            if one.function in _WHOLE:
                made[one.name] = whole_outcome(one.function, frame, groups, item, backend)
            else:
                made[one.name] = outcome(one.function, found, item, backend)
        return backend.assign(backend.select(found, self.keys), made)

    def _groups(self, frame: Frame, backend: Backend) -> Groups:
        return grouped([backend.column(frame, key) for key in self.keys], backend)
