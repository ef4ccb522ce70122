"""What a dataset can do only with all its rows: they are brought together on disk, a partition's worth at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from gpupipe.backend.columns import require_comparable
from gpupipe.errors import BadConfig
from gpupipe.io.relational.asof import AsOf, join_asof
from gpupipe.io.relational.deduplicate import deduplicate
from gpupipe.io.relational.group_by import GroupBy
from gpupipe.io.relational.join import Joining, join
from gpupipe.io.relational.sample import draw
from gpupipe.io.relational.scan import LazyFrame, lazy
from gpupipe.io.relational.sort import shuffle, sort
from gpupipe.support.text import as_list, counted
from gpupipe.support.validation import (
    check_choice,
    check_integer,
    check_name,
    check_names,
    check_seed,
    is_bool,
    is_integer,
    is_number,
    is_sequence,
    refuse_argument,
)

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["Verbs"]

Names: TypeAlias = str | Sequence[str]


class Verbs:
    """The methods of a `Dataset` that look at more than a partition.

    What sorts, shuffles, joins or groups is a plan, which runs when rows are first asked for. Rows that are read stay
    as long as the new dataset is there: a small result in memory, another one in temporary files. On the CPU rows that
    are only written are not kept: the plan runs while they are written. `deduplicate` and `sample(n=)` choose rows,
    and `join_asof` finds what it adds, when they are called. What comes out, row by row, never depends on partitions,
    workers or backend.
    """

    def sort(self, by: str | Sequence[str], *, ascending: bool | Sequence[bool] = True) -> Dataset:
        """All rows in the order of these columns; rows alike in them stay as they stand, missing values come last.

        Args:
            by: the columns, the one that matters most first.
            ascending: for all, or for each.

        Raises:
            ColumnNotFound: no such column.
            BadConfig: no column, or not as many directions.
            BadFile: a file cannot be read.
            PlanFailed: memory or disk do not suffice.

        Memory: three times the table, up to half of what is free or of `memory_limit`; beyond that the table on disk
            while the plan runs, and the result as long as the new dataset is there, unless it is only written.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> gp.from_frame(pd.DataFrame({"x": [2, 3, 1]}), num_partitions=2).sort("x", ascending=False).compute()
               x
            0  3
            1  2
            2  1
        """
        table, names = self._table, _columns(self._table, by, "sort")
        given: Any = ascending
        upward: list[Any] = [given] * len(names) if is_bool(given) else list(given) if is_sequence(given) else [None]
        if not all(map(is_bool, upward)):
            expected = "True or False, or a list of them"
            raise refuse_argument("sort", "ascending", given, expected, "ascending=False")
        if len(upward) != len(names):
            raise BadConfig(
                "sort",
                "not a direction for each column",
                got=upward,
                expected=counted(len(names), "direction"),
                remedy="ascending=True, which is for all",
            )
        return sort(table, names, upward)

    def shuffle(self, seed: int = 0) -> Dataset:
        """All rows in a random order, in which any two may stand side by side.

        The order follows from the seed and the rows' identities alone.

        Args:
            seed: an integer of at most 64 bits: the same one, the same order.

        Raises:
            BadConfig: no seed.
            BadFile: a file cannot be read.
            PlanFailed: memory or disk do not suffice.

        Memory: as `sort`.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> gp.from_frame(pd.DataFrame({"x": range(6)}), num_partitions=3).shuffle(1).compute()["x"].tolist()
            [0, 5, 1, 4, 2, 3]
        """
        check_seed("shuffle", seed=seed)
        return shuffle(self._table, seed)

    def deduplicate(
        self, on: str | Sequence[str] | None = None, *, keep: Literal["first", "last"] = "first"
    ) -> Dataset:
        """One row of those that are alike, at its place; two missing values are alike.

        Only the columns looked at are read; the rows stay where they are.

        Args:
            on: the columns in which rows are alike; all by default.
            keep: `"first"` or `"last"`.

        Raises:
            ColumnNotFound: no such column.
            BadConfig: another `keep`.
            BadFile: a file cannot be read.
            PlanFailed: memory or disk do not suffice.

        Memory: as `sort`, of these columns. On disk 8 bytes for each row that stays, as long as the result is there.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> gp.from_frame(pd.DataFrame({"x": [2, 1, 2], "y": [0, 1, 2]})).deduplicate("x").compute()
               x  y
            0  2  0
            1  1  1
        """
        table = self._table
        check_choice("deduplicate", ("first", "last"), keep=keep)
        return deduplicate(table, _columns(table, table.columns if on is None else on, "deduplicate"), keep)

    def group_by(self, keys: str | Sequence[str], *, dropna: bool = True) -> GroupBy:
        """Rows with equal keys, to be made into one by `agg`.

        Args:
            keys: the key columns.
            dropna: whether rows with a missing key are left out; else a missing key is one like any other.

        Raises:
            ColumnNotFound: no such column.
            BadConfig: no column.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> flights = gp.from_frame(pd.DataFrame({"origin": ["JFK", "LGA", "JFK"], "delay": [4.0, 1.0, None]}))
            >>> flights.group_by("origin").agg(flights=("delay", "size"), delay=("delay", "mean")).compute()
              origin  flights  delay
            0    JFK        2    4.0
            1    LGA        1    1.0
        """
        return GroupBy(self._table, _columns(self._table, keys, "group_by"), dropna)

    def join(
        self,
        right: Dataset,
        on: str | Sequence[str] | None = None,
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        how: Literal["left", "inner", "right", "outer"] = "left",
        columns: str | Sequence[str] | None = None,
        suffix: str = "_right",
        many: bool = False,
    ) -> Dataset:
        """The rows of this table with the columns of another one, where keys are equal; either may exceed memory.

        For a right table that fits in memory, the step `Join` does it in the same pass as everything else. Rows come in
        the order of the left, those of one left row in the order of the right; then right rows that match nothing.

        Args:
            right: the other table.
            on: the key columns, named alike on both sides.
            left_on: those of the left, where they are named otherwise.
            right_on: those of the right, in the same order. The result has the left's names.
            how: `"left"` keeps every row of the left, `"right"` of the right, `"outer"` of both, `"inner"` of neither
                those that match nothing. A missing key matches nothing; numbers match by value, whatever their types.
            columns: the right columns to add; all but the keys by default.
            suffix: put behind the name of a right column that the left has too.
            many: whether a key may stand in several right rows; a row of the left then comes out once per match.

        Raises:
            BadData: a key repeats on the right and `many` is False; names one, when rows are first asked for.
            ColumnNotFound: no such column.
            SchemaMismatch: keys of types that cannot be compared (times with a zone and without too); or, where right
                rows are kept, of other types.
            BadConfig: `right` is no dataset; no keys, or not as many on both sides; another `how`; or a column would
                have another's name.
            BadFile: a file cannot be read.
            PlanFailed: memory or disk do not suffice.

        Memory: three times both tables, up to half of what is free or of `memory_limit`; beyond that both and twice the
            result on disk, of that half as long as it is there. All rows of one key have to fit.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> flights = gp.from_frame(pd.DataFrame({"origin": ["LGA", None, "JFK"]}))
            >>> weather = gp.from_frame(pd.DataFrame({"origin": ["JFK", "LGA"], "temp": [39.0, 41.0]}))
            >>> flights.join(weather, on="origin").compute()
              origin  temp
            0    LGA  41.0
            1    NaN   NaN
            2    JFK  39.0
        """
        table = self._table
        right = _dataset(right, "join")
        left_keys, right_keys = _sides(on, left_on, right_on, "join", "on")
        check_names("join", None, columns=columns)
        check_name("join", suffix=suffix)
        ours, theirs = _columns(table, left_keys, "join"), _columns(right, right_keys, "join, right table")
        added = None if columns is None else as_list(columns)
        right.require(added or (), "join, right table")
        return join(table, right, Joining.of(table.schema, right.schema, ours, theirs, added, how, suffix, many))

    def join_asof(
        self,
        right: Dataset,
        on: str | None = None,
        *,
        left_on: str | None = None,
        right_on: str | None = None,
        by: str | Sequence[str] | None = None,
        left_by: str | Sequence[str] | None = None,
        right_by: str | Sequence[str] | None = None,
        direction: Literal["backward", "forward", "nearest"] = "backward",
        tolerance: float | str | timedelta | None = None,
        allow_exact_matches: bool = True,
        columns: str | Sequence[str] | None = None,
        suffix: str = "_right",
    ) -> Dataset:
        """Each row of this table with the last row of another one before it, or the next; either may exceed memory.

        As pandas' `merge_asof`, of tables in any order: every row of the left comes out once, in the order of the left.
        Of several right rows alike in `by` and `on` the last one matches backwards, the first one forwards. Of two that
        are equally near, the earlier one is the nearest. Missing values of `on` and `by` match nothing.

        For features, the step `JoinAsOf` does it in the same pass as everything else, and is saved with the pipeline.

        Args:
            right: the other table.
            on: the column of times or numbers, named alike on both sides.
            left_on: that of the left, where it is named otherwise.
            right_on: that of the right.
            by: key columns that have to be equal, named alike on both sides; numbers match by value.
            left_by: those of the left, where they are named otherwise.
            right_by: those of the right, in the same order.
            direction: `"backward"` for the last right row at or before the left one's time, `"forward"` for the first
                at or after it, `"nearest"` for the nearer of both.
            tolerance: how far a right row may be, at most: a number, or of times a timedelta or text such as `"2h"`.
            allow_exact_matches: whether a right row of the same time matches.
            columns: the right columns to add; all but `on` and `by` by default.
            suffix: put behind the name of a right column that the left has too.

        Raises:
            ColumnNotFound: no such column.
            SchemaMismatch: `on` holds text and the like, or types that no one type holds; keys of types that cannot be
                compared.
            BadConfig: `right` is no dataset; not one way to say `on` or `by`; a tolerance below 0 or of another kind
                than `on`; another `direction`; or a column would have another's name.
            BadData: the right table has no rows.
            BadFile: a file cannot be read.
            PlanFailed: memory or disk do not suffice.

        Memory: three times the columns concerned (of the left `on` and `by`), up to half of what is free or of
            `memory_limit`; beyond that they go to disk by their keys, and all rows of one key have to fit, without `by`
            all rows. What is added stays in memory up to a sixteenth of it, else on disk, while the result is there.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> trades = gp.from_frame(pd.DataFrame({"second": [7, 3, 5], "amount": [1, 2, 3]}))
            >>> quotes = gp.from_frame(pd.DataFrame({"second": [1, 4, 6], "price": [10.0, 11.0, 12.0]}))
            >>> trades.join_asof(quotes, on="second", tolerance=1).compute()
               second  amount  price
            0       7       1   12.0
            1       3       2    NaN
            2       5       3   11.0
        """
        table, other = self._table, _dataset(right, "join_asof")
        ours, theirs = _sides(on, left_on, right_on, "join_asof", "on")
        if by is None and left_by is None and right_by is None:
            by = []
        check_names("join_asof", None, columns=columns, by=by, left_by=left_by, right_by=right_by)
        left_keys, right_keys = _sides(by, left_by, right_by, "join_asof", "by")
        keys = as_list(left_keys), as_list(right_keys)
        order = _columns(table, ours, "join_asof"), _columns(other, theirs, "join_asof, right table")
        if len(order[0]) != 1 or len(order[1]) != 1:
            raise BadConfig("join_asof(on=)", "not one column", got=on, expected="one column", remedy="on='time'")
        for side, names, where in ((table, keys[0], "join_asof"), (other, keys[1], "join_asof, right table")):
            side.require(names, where)
            require_comparable(side.schema.select(names), where)
        added = None if columns is None else as_list(columns)
        other.require(added or (), "join_asof, right table")
        pair = order[0][0], order[1][0]
        asof = AsOf.of(table.schema, other.schema, pair, keys, added, direction, tolerance, allow_exact_matches, suffix)
        return join_asof(table, other, asof)

    def sample(self, fraction: float | None = None, *, n: int | None = None, seed: int = 0) -> Dataset:
        """Rows drawn at random, none twice, in the order in which they stand.

        Args:
            fraction: the share of rows: each is drawn by the seed and its identity alone, and nothing is read for that.
            n: exactly so many rows; takes a pass over what tells the rows apart.
            seed: an integer of at most 64 bits: the same one, the same rows.

        Raises:
            BadConfig: not one of `fraction` and `n`, a fraction that is none, or more rows than there are.

        Memory: for `n` 8 bytes for each row that is drawn; of what Polars cannot scan 8 bytes for each row.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> numbers = gp.from_frame(pd.DataFrame({"x": range(1000)}))
            >>> len(numbers.sample(n=10)), len(numbers.sample(0.5))
            (10, 509)
        """
        if (fraction is None) == (n is None):
            raise BadConfig(
                "sample",
                "not one way to say how many",
                got={"fraction": fraction, "n": n},
                expected="fraction= or n=",
                remedy="n=1000",
            )
        check_seed("sample", seed=seed)
        if n is not None:
            check_integer("sample", "[0, inf)", n=n)
            return draw(self._table, n, seed)
        if not (is_number(fraction) and 0 < (fraction or 0) <= 1):
            remedy = f"n={fraction}" if is_integer(fraction, 2) else "fraction=0.1"
            raise refuse_argument("sample", "fraction", fraction, "a number in (0, 1]", remedy)
        return self._table.split(fraction=fraction, seed=seed)[0] if fraction != 1 else self._table

    def to_polars(self) -> LazyFrame:
        """Give the table as a lazy frame of Polars, dates as dates and times with their zones.

        Local Parquet files that Polars reads alike are scanned by it, lazily, as are filters that only compare. The
        rows of anything else (transformed tables, filters that compute, text, stores) are read now, into memory.

        Raises:
            SchemaMismatch: a column holds decimals of more than 38 digits.
            BadFile: a file cannot be read, or is not what it was.

        Memory: nothing where files are scanned; else all rows on the host.

        Example:
            >>> import polars as pl, gpupipe as gp
            >>> flights = gp.read_parquet("data/flights.parquet").to_polars()
            >>> flights.group_by("origin").agg(pl.col("distance").max()).sort("origin").collect().rows()
            [('EWR', 4963.0), ('JFK', 4983.0), ('LGA', 1620.0)]
        """
        return lazy(self._table)

    @property
    def _table(self) -> Dataset:
        return cast("Dataset", self)


def _dataset(right: Dataset, where: str) -> Dataset:
    """Check the other table of a join, which has to be one."""
    given: object = right
    if not isinstance(given, Verbs):
        raise BadConfig(
            where,
            "the right table is no Dataset",
            got=type(right).__name__,
            remedy="gp.from_frame(right)",
            expected="a Dataset",
        )
    return right


def _sides(both: Names | None, left: Names | None, right: Names | None, where: str, name: str) -> tuple[Names, Names]:
    """Tell what is named for the left and for the right, at once or apart."""
    if both is not None and left is None and right is None:
        return both, both
    if both is not None or left is None or right is None:
        raise BadConfig(
            where,
            "not one way to say the keys",
            got={name: both, f"left_{name}": left, f"right_{name}": right},
            expected=f"{name}=, or left_{name}= and right_{name}=",
            remedy=f"{name}='key'",
        )
    return left, right


def _columns(table: Dataset, names: str | Sequence[str] | None, where: str) -> list[str]:
    """Names of columns that are there, one at least."""
    table.require(() if names is None else names, where)
    found = list(dict.fromkeys(as_list(() if names is None else names)))
    require_comparable(table.schema.select(found), where)
    if not found:
        raise BadConfig(where, "no column is named", expected="one at least", remedy="the name of a column")
    return found
