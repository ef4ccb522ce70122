"""Dataset: a lazy table made of partitions."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal, NoReturn, TypeAlias

from gpupipe.backend import Backend, Frame, select
from gpupipe.backend.columns import require_comparable
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import BadConfig
from gpupipe.expressions import parse
from gpupipe.io.jobs.destination import Manifest
from gpupipe.io.jobs.part_writer import ParquetOptions, write_dataset
from gpupipe.io.planning.partitions import FileNote, ReadCounter
from gpupipe.io.planning.row_filters import Selection, Where
from gpupipe.io.planning.splits import (
    check_call,
    cut_ranges,
    draw_parts,
    get_fractions,
)
from gpupipe.io.planning.table import Table, run_partitions
from gpupipe.io.relational.group_by import GroupBy
from gpupipe.io.relational.join import AsOfSpec, JoinSpec, join, join_asof
from gpupipe.io.relational.scan import LazyFrame, lazy
from gpupipe.io.relational.sort import deduplicate, draw, shuffle, sort
from gpupipe.io.stores.remote_file import StorageOptions
from gpupipe.schema import Schema
from gpupipe.support.text import as_list, format_count
from gpupipe.support.validation import (
    check_bool,
    check_choice,
    check_integer,
    check_name,
    check_names,
    check_seed,
    is_bool,
    is_integer,
    is_number,
    is_path,
    is_sequence,
    refuse_argument,
    to_python,
)

Names: TypeAlias = str | Sequence[str]


@dataclass(frozen=True, repr=False, eq=False)
class Dataset(Table):
    """Lazy, immutable table in partitions; created by `gp.read_parquet` and the other readers and by `gp.from_frame`.

    Nothing is read before rows are asked for, and then only the columns and row groups that are needed. A row's
    identity is its file and its number in that file; what comes out, row by row, never depends on partitions, workers
    or backend.

    Sorting, shuffling, joining and grouping are plans, which run when rows are first asked for; the rows stay as long
    as the new dataset is there, a small result in memory, another one in temporary files. On the CPU rows that are only
    written are not kept. `deduplicate` and `sample(n=)` choose rows, and `join_asof` finds what it adds, when they are
    called. Every method raises BadFile where a file cannot be read, and PlanFailed where memory or disk do not suffice.

    Memory: one partition at a time, except for `compute`, `to_pandas` and what looks at more than a partition.

    Example:
        >>> import pandas as pd, gpupipe as gp
        >>> flights = gp.from_frame(pd.DataFrame({"origin": ["JFK", "LGA", "JFK"], "distance": [100, 200, 300]}))
        >>> len(flights.filter("origin == 'JFK'")), flights.select(["distance"]).columns
        (2, ['distance'])
    """

    # looking ---------------------------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows, counted as `len` does, and columns."""
        return len(self), len(self.columns)

    @property
    def reads(self) -> ReadCounter:
        """What this process has read of the files so far, by any dataset made from the same reader call."""
        return self.source.reads

    @property
    def rejected(self) -> tuple[FileNote, ...]:
        """The files that are skipped, and why; see `on_mismatch` and `on_bad` of the readers."""
        return tuple(note for note in self.source.notes if note.action in ("skipped", "quarantined"))

    @property
    def conversions(self) -> tuple[FileNote, ...]:
        """The columns that do not come out as they went in: of another type, or left out; docs/guide-files.md has all.

        Example:
            >>> import pyarrow as pa, gpupipe as gp
            >>> gp.from_frame(pa.table({"x": pa.array([1, 2], pa.float16())})).conversions
            (FileNote(file='frame', action='converted', reason='halffloat: read as float32', column='x'),)
        """
        return tuple(note for note in self.source.notes if note.column is not None)

    def __len__(self) -> int:
        """Count the rows: from the footers, or else by one pass over the columns a predicate reads."""
        if "_num_rows" not in vars(self):
            if self.query.keeps_rows:
                found = sum(partition.num_rows for partition in self.partitions)
            else:
                backend = get_executor().resolve(self.backend)
                found = sum(run_partitions(partial(_count_rows, backend), self, backend, "count"))
            vars(self)["_num_rows"] = found
        return int(vars(self)["_num_rows"])

    def __getitem__(self, key: object) -> NoReturn:
        """Raise BadConfig with the method that selects columns or rows: a lazy table has no indexing."""
        if isinstance(key, str) or (isinstance(key, list) and all(isinstance(name, str) for name in key)):
            remedy = f"data.select({key!r}), or data.compute()[{key!r}] for the values"
        elif is_sequence(key) or hasattr(key, "dtype"):
            remedy = "data.filter('x > 0'), an expression over columns"
        else:
            remedy = "data.head(), or data.compute().iloc[...]"
        raise BadConfig("Dataset[...]", "a lazy table has no items", got=key, expected="a method", remedy=remedy)

    def head(self, n: int = 5) -> Frame:
        """Return the first `n` rows as a frame; read no more row groups than needed.

        Raises:
            BadConfig: `n` is no number of rows.

        Memory: one row group.
        """
        check_integer(Dataset.head, "[0, inf)", n=n)
        backend, frames, missing = select(self.backend), [], n
        for partition in self.partitions:
            for part in [partition.keep([span]) for span in partition.spans] or [partition]:
                frame = self.read(part, None, backend)
                frames.append(backend.take(frame, backend.xp.arange(min(missing, len(frame)))))
                missing -= len(frames[-1])
                if missing <= 0:
                    return _plain(backend.concat(frames), backend, self.schema)
        return _plain(backend.concat(frames), backend, self.schema)

    def compute(self) -> Frame:
        """Compute all rows as one frame, strings plain, the index a range.

        Memory: the whole result, twice while the parts are put together.
        """
        backend = select(self.backend)
        frames = [self.read(partition, None, backend) for partition in self.partitions]
        return _plain(backend.concat(frames), backend, self.schema)

    def to_pandas(self) -> Any:
        """Compute all rows as one pandas frame on the host, as `compute` does on the CPU: for plots and libraries.

        Memory: on a GPU each partition is copied to the host; the whole result there, twice while it is put together.
        """
        if (backend := select(self.backend)).name == "cpu":
            return self.compute()
        host, fields = select("cpu"), list(self.schema)
        frames = (self.read(partition, None, backend) for partition in self.partitions)
        whole = host.concat([host.from_arrow(backend.to_arrow(frame), fields) for frame in frames])
        return _plain(whole, host, self.schema)

    def __iter__(self) -> Iterator[Frame]:
        """Yield the partitions as frames, strings plain."""
        backend = select(self.backend)
        for partition in self.partitions:
            yield _plain(self.read(partition, None, backend), backend, self.schema, self.query.own)

    # narrowing -------------------------------------------------------------------------------------------------------
    def select(self, columns: str | Sequence[str]) -> Dataset:
        """Return these columns only, in this order.

        Raises:
            ColumnNotFound: one of them is not there; offers the closest name.
            SchemaMismatch: one of them has a type that was left out.
            BadConfig: these are no names, or one is there twice.
        """
        self.require(columns, "select")
        names = as_list(columns)
        if len({*names}) < len(names):
            problem, remedy = "two columns have the same name", f"select({list(dict.fromkeys(names))})"
            raise BadConfig("select", problem, got=names, expected="each column once", remedy=remedy)
        return replace(self, schema=self.schema.select(columns))

    def with_units(self, units: Mapping[str, str]) -> Dataset:
        """Return the table with a unit for the numbers of each of these columns, by column name.

        Units in the metadata of Parquet fields (`units`) are known already, and are written with `write_parquet`.

        Raises:
            ColumnNotFound: one of them is not there.
            BadConfig: not text by column name.
        """
        given: Any = units
        if not isinstance(given, Mapping) or not all(isinstance(unit, str) for unit in given.values()):
            expected, remedy = "text by the names of columns", "with_units({'distance': 'miles'})"
            raise BadConfig("with_units", "makes no sense", got=given, expected=expected, remedy=remedy)
        self.require(list(units), "with_units")
        return replace(self, schema=self.schema.with_units(units))

    def filter(self, expr: str) -> Dataset:
        """Return the rows for which an expression is true; rows for which it is missing are dropped.

        Row groups whose statistics show that they hold no such row are not read.

        Raises:
            ExpressionError, ColumnNotFound: the expression is no condition over these columns.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> gp.from_frame(pd.DataFrame({"x": [1.0, None, 3.0]})).filter("x < 2").compute()
                 x
            0  1.0
        """
        parse(expr, "filter").check_condition(self.schema)
        return replace(self, query=self.query.then(Where(expr)))

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        files: int | None = None,
        rows_per_group: int | None = None,
        partition_by: str | Sequence[str] = (),
        compression: str = "snappy",
        shuffle: Literal[False, "partition", "full"] = False,
        seed: int = 0,
        layout: Literal["default", "gpu"] = "default",
        overwrite: bool = False,
        storage_options: StorageOptions | None = None,
    ) -> Manifest:
        """Write all rows, a partition at a time; what is at `path` is whole at any moment.

        A folder gets a part per partition, and a manifest. Called again after a crash, it goes on with the parts that
        are missing; called again on a folder it has finished, it writes what comes from new input files.

        Args:
            path: a file where it ends in `.parquet`; else a folder. A URL that fsspec knows is one in a store.
            files: how many parts a folder gets; one per partition by default, one per row group in the layout for GPUs.
            rows_per_group: rows of a row group; a million by default, or what the layout has.
            partition_by: columns whose values become folders, as in `month=3/`.
            compression: `"snappy"`, `"zstd"`, `"lz4"`, `"gzip"`, `"brotli"` or `"none"`.
            shuffle: `"full"` puts the rows in a random order, as `shuffle` does, before they are cut into parts;
                `"partition"` those of each part that is read, for less.
            seed: an integer of at most 64 bits: the same one, the same order.
            layout: `"gpu"` for files that a GPU decodes fast: row groups of 10 million rows, or of 128 MB of the widest
                column; a hundred pages in a column chunk; a dictionary where it halves the column.
            overwrite: replace the file, or what a job wrote to the folder; other files in it stay.
            storage_options: for the file system of a URL; see `read_parquet`.

        Returns:
            What was written: parts, row groups, rows in and out.

        Raises:
            BadFile: something else is there and `overwrite` is False, or no job wrote it; input files have changed
                since a part was written; another process is writing there; or the parent folder is missing.
            BadConfig: an argument makes no sense, a single file cannot have it, or `partition_by` leaves no column.
            BadData: a text of a column of `partition_by` has a NUL, or is Hive's name of a missing value.

        Memory: one partition per worker; of a file as much as makes a row group. On a GPU cuDF writes from the device
            what it can (docs/guide-files.md, not yet run on a GPU); else the partition is copied to the host. A full
            shuffle needs what `shuffle` does.
        """
        check_integer(Dataset.write_parquet, "[1, inf)", None, files=files)
        check_bool(Dataset.write_parquet, overwrite=overwrite)
        if not is_path(path):
            remedy = "write_parquet('out/')"
            raise BadConfig("write_parquet(path=)", "not a path", got=path, expected="a path or a URL", remedy=remedy)
        self.require(partition_by, "write_parquet(partition_by=)")
        keys = tuple(dict.fromkeys(as_list(partition_by)))
        check_seed(Dataset.write_parquet, seed=seed)
        seed, files = 0 if shuffle is False else int(seed), to_python(files)
        options = ParquetOptions(rows_per_group, compression, keys, shuffle, seed, layout)
        require_comparable(self.schema.select(keys), "write_parquet(partition_by=)")
        if not set(self.columns) - set(keys):
            where, remedy = "write_parquet(partition_by=)", f"partition_by={list(keys[:-1])}"
            raise BadConfig(where, "no column is left for the files", got=keys, expected="fewer columns", remedy=remedy)
        return write_dataset(self, path, options, files=files, overwrite=overwrite, storage_options=storage_options)

    # splitting -------------------------------------------------------------------------------------------------------
    def split(
        self,
        fraction: float | Sequence[float] | None = None,
        *,
        by: str | None = None,
        at: Any = None,
        seed: int = 0,
        stratify: str | None = None,
        gap: Any = None,
    ) -> tuple[Dataset, ...]:
        """Split into parts that together have every row once: cut at values of a column, or drawn at random.

        Args:
            fraction: the share of the first of two parts, or the share of each part. Every row is drawn by `seed` and
                its identity alone (or by the value of `by`), so the parts do not depend on partitioning or backend.
            by: the column that is cut; with `fraction`, the column whose equal values stay together (missing ones too).
            at: the value where the second part begins (left `<`, right `>=`), or an ascending list for more parts.
                Times are text in ISO format, dates or datetimes; those without an offset are in UTC, also where the
                column has a time zone.
            seed: an integer of at most 64 bits; only for `fraction`.
            stratify: a column of each of whose values (missing is one; 10,000 at most) each part has its share, to a
                row.
            gap: with `at`, how wide a stretch before each cut belongs to no part, such as what a feature looks ahead: a
                number, or for times a timedelta or text such as `"7 days"`.

        Raises:
            BadData: `by` is missing in some rows; says in how many.
            BadConfig: not one of `at` and `fraction`, or values that make no sense.
            ColumnNotFound: no such column.

        Memory: none; where the files do not tell that `by` is never missing, one pass over that column. `stratify`
            takes two passes over its column, and 32 KiB per value.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> flights = gp.from_frame(pd.DataFrame({"month": [1, 9, 10, 12], "late": [True, False, True, False]}))
            >>> [part.compute()["month"].tolist() for part in flights.split(by="month", at=12, gap=3)]
            [[1], [12]]
            >>> [part.compute()["late"].tolist() for part in flights.split(fraction=0.5, stratify="late")]
            [[False, True], [True, False]]
        """
        check_call(self, "split", by, at, fraction, stratify, gap)
        check_seed("split", seed=seed)
        parts: Sequence[Selection]
        if fraction is None:
            parts = cut_ranges(self, by or "", at, gap)
        else:
            parts = draw_parts(self, get_fractions(fraction), seed, by, stratify)
        return tuple(replace(self, query=self.query.then(part)) for part in parts)

    def kfold(
        self, n_splits: int = 5, *, by: str | None = None, seed: int = 0, stratify: str | None = None
    ) -> list[tuple[Dataset, Dataset]]:
        """Return `n_splits` pairs of a dataset to train on and one to validate on; each row is in one of the latter.

        Rows are drawn as by `split`, so that sizes are nearly equal; see there for the arguments.

        Raises:
            BadConfig: fewer than two folds, or both `by` and `stratify`.
            ColumnNotFound: no such column.

        Memory: none; two passes over the column for `stratify`.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> flights = gp.from_frame(pd.DataFrame({"flight": range(6), "tail": [1, 2, 3, 1, 2, 3]}))
            >>> [sorted(set(valid.compute()["tail"])) for train, valid in flights.kfold(2, by="tail", seed=1)]
            [[2, 3], [1]]
        """
        check_integer("kfold", "[2, 1000]", n_splits=n_splits)
        shares = [1 / n_splits] * int(n_splits)
        check_call(self, "kfold", by, None, shares, stratify, None)
        check_seed("kfold", seed=seed)
        return [
            (
                replace(self, query=self.query.then(replace(part, outside=True))),
                replace(self, query=self.query.then(part)),
            )
            for part in draw_parts(self, shares, seed, by, stratify)
        ]

    # whole tables ----------------------------------------------------------------------------------------------------
    def sort(self, by: str | Sequence[str], *, ascending: bool | Sequence[bool] = True) -> Dataset:
        """Sort all rows by these columns; ties keep their order, missing values come last.

        Args:
            by: the columns, the one that matters most first.
            ascending: for all, or for each.

        Raises:
            ColumnNotFound: no such column.
            BadConfig: no column, or not as many directions.

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
        names = _columns(self, by, "sort")
        given: Any = ascending
        upward: list[Any] = [given] * len(names) if is_bool(given) else list(given) if is_sequence(given) else [None]
        if not all(map(is_bool, upward)):
            raise refuse_argument("sort", "ascending", given, "True or False, or a list of them", "ascending=False")
        if len(upward) != len(names):
            problem, remedy = "not a direction for each column", "ascending=True, which is for all"
            raise BadConfig("sort", problem, got=upward, expected=format_count(len(names), "direction"), remedy=remedy)
        return sort(self, names, upward)

    def shuffle(self, seed: int = 0) -> Dataset:
        """Shuffle all rows into a random order, across partitions, by the seed and the rows' identities alone.

        Args:
            seed: an integer of at most 64 bits: the same one, the same order.

        Raises:
            BadConfig: no seed.

        Memory: as `sort`.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> gp.from_frame(pd.DataFrame({"x": range(6)}), num_partitions=3).shuffle(1).compute()["x"].tolist()
            [0, 5, 1, 4, 2, 3]
        """
        check_seed("shuffle", seed=seed)
        return shuffle(self, seed)

    def deduplicate(
        self, on: str | Sequence[str] | None = None, *, keep: Literal["first", "last"] = "first"
    ) -> Dataset:
        """Return one row of each set of duplicates, at its position; two missing values are equal.

        Only the compared columns are read; the rows keep their order.

        Args:
            on: the columns in which rows are alike; all by default.
            keep: `"first"` or `"last"`.

        Raises:
            ColumnNotFound: no such column.
            BadConfig: another `keep`.

        Memory: as `sort`, of these columns. On disk 8 bytes for each row that stays, as long as the result is there.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> gp.from_frame(pd.DataFrame({"x": [2, 1, 2], "y": [0, 1, 2]})).deduplicate("x").compute()
               x  y
            0  2  0
            1  1  1
        """
        check_choice("deduplicate", ("first", "last"), keep=keep)
        return deduplicate(self, _columns(self, self.columns if on is None else on, "deduplicate"), keep)

    def group_by(self, keys: str | Sequence[str], *, dropna: bool = True) -> GroupBy[Dataset]:
        """Group rows with equal keys, for aggregation by `agg`.

        Args:
            keys: the key columns.
            dropna: whether rows with a missing key are left out; else a missing key is one like any other.

        Raises:
            ColumnNotFound: no such column.
            BadConfig: no column, or `dropna` is neither True nor False.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> flights = gp.from_frame(pd.DataFrame({"origin": ["JFK", "LGA", "JFK"], "delay": [4.0, 1.0, None]}))
            >>> flights.group_by("origin").agg(flights=("delay", "size"), delay=("delay", "mean")).compute()
              origin  flights  delay
            0    JFK        2    4.0
            1    LGA        1    1.0
        """
        check_bool("group_by", dropna=dropna)
        return GroupBy(self, _columns(self, keys, "group_by"), dropna)

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
        """Join the columns of another table to these rows, where keys are equal; either may exceed memory.

        For a right table that fits in memory, the step `Join` does it in the same pass as everything else. Rows come in
        the order of the left, those of one left row in the order of the right; then right rows that match nothing.

        Args:
            right: the other table.
            on: the key columns, named alike on both sides.
            left_on: those of the left, where they are named otherwise; the result has these names.
            right_on: those of the right, in the same order.
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
            BadConfig: an argument makes no sense, or a column would have another's name.

        Memory: three times both tables, up to half of what is free or of `memory_limit`; beyond that both and twice the
            result on disk, of that half as long as it is there. All rows of one key have to fit. A left join of unique
            keys on the CPU holds of the left the keys and one row group, and writes no other column of it to disk.

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
        right = _dataset(right, "join")
        check_bool("join", many=many)
        left_keys, right_keys = _sides(on, left_on, right_on, "join", "on")
        check_names("join", None, columns=columns)
        check_name("join", suffix=suffix)
        ours, theirs = _columns(self, left_keys, "join"), _columns(right, right_keys, "join, right table")
        added = None if columns is None else as_list(columns)
        right.require(added or (), "join, right table")
        return join(self, right, JoinSpec.of(self.schema, right.schema, (ours, theirs), added, how, suffix, many))

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
        """Join to each row the last row of another table before it, or the next; either may exceed memory.

        As pandas' `merge_asof`, of tables in any order: every row of the left comes out once, in the order of the left.
        Of several right rows alike in `by` and `on` the last one matches backwards, the first one forwards. Of two that
        are equally near, the earlier one is the nearest. Missing values of `on` and `by` match nothing. For features,
        the step `JoinAsOf` does it in the same pass as everything else, and is saved with the pipeline.

        Args:
            right: the other table.
            on: the column of times or numbers, named alike on both sides; else `left_on` and `right_on`.
            left_on: that of the left.
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
            BadConfig: an argument makes no sense, or a column would have another's name.
            BadData: the right table has no rows.

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
        other = _dataset(right, "join_asof")
        ours, theirs = _sides(on, left_on, right_on, "join_asof", "on")
        check_names("join_asof", None, columns=columns, by=by, left_by=left_by, right_by=right_by)
        none = by is None and left_by is None and right_by is None
        left_keys, right_keys = ([], []) if none else _sides(by, left_by, right_by, "join_asof", "by")
        keys = as_list(left_keys), as_list(right_keys)
        order = _columns(self, ours, "join_asof"), _columns(other, theirs, "join_asof, right table")
        if len(order[0]) != 1 or len(order[1]) != 1:
            raise BadConfig("join_asof(on=)", "not one column", got=on, expected="one column", remedy="on='time'")
        for side, names, where in ((self, keys[0], "join_asof"), (other, keys[1], "join_asof, right table")):
            side.require(names, where)
            require_comparable(side.schema.select(names), where)
        added = None if columns is None else as_list(columns)
        other.require(added or (), "join_asof, right table")
        pair, exact = (order[0][0], order[1][0]), allow_exact_matches
        asof = AsOfSpec.of(self.schema, other.schema, pair, keys, added, direction, tolerance, exact, suffix)
        return join_asof(self, other, asof)

    def sample(self, fraction: float | None = None, *, n: int | None = None, seed: int = 0) -> Dataset:
        """Return rows drawn at random without replacement, in their original order.

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
            given, expected = {"fraction": fraction, "n": n}, "fraction= or n="
            raise BadConfig("sample", "not one way to say how many", got=given, expected=expected, remedy="n=1000")
        check_seed("sample", seed=seed)
        if n is not None:
            check_integer("sample", "[0, inf)", n=n)
            return draw(self, n, seed)
        if not (is_number(fraction) and 0 < (fraction or 0) <= 1):
            remedy = f"n={fraction}" if is_integer(fraction, 2) else "fraction=0.1"
            raise refuse_argument("sample", "fraction", fraction, "a number in (0, 1]", remedy)
        return self.split(fraction=fraction, seed=seed)[0] if fraction != 1 else self

    def to_polars(self) -> LazyFrame:
        """Return the table as a lazy frame of Polars, dates as dates and times with their zones.

        Local Parquet files that Polars reads alike are scanned by it, lazily, as are filters that only compare. The
        rows of anything else (transformed tables, filters that compute, text, stores) are read now, into memory. A time
        of day in a column of dates is an error of Polars when the plan is run.

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
        return lazy(self)

    # shown -----------------------------------------------------------------------------------------------------------
    def _size(self) -> str:
        sizes = sum(partition.num_rows for partition in self.partitions), len(self.columns), self.num_partitions
        shown = ", ".join(map(format_count, sizes, ("row", "column", "partition")))
        return shown if self.query.keeps_rows else f"at most {shown}"

    def __repr__(self) -> str:
        return f"Dataset of {self._size()}\n{self.schema!r}"

    def _repr_html_(self) -> str:
        return f"<p>Dataset of {self._size()}</p>{self.schema._repr_html_()}{self.head()._repr_html_() or ''}"


def _count_rows(backend: str, part: Dataset) -> int:
    return len(part.read(part.partitions[0], [], select(backend)))


def _plain(frame: Frame, backend: Backend, schema: Schema, own: Container[str] = ()) -> Frame:
    """Convert to a user's frame: strings plain, rows counted from 0; see `Backend.decode`."""
    return backend.decode(frame, own, schema).reset_index(drop=True)


def _dataset(right: Dataset, where: str) -> Dataset:
    """Check the other table of a join, which has to be one."""
    given: object = right
    if not isinstance(given, Dataset):
        got, problem = type(right).__name__, "the right table is no Dataset"
        raise BadConfig(where, problem, got=got, expected="a Dataset", remedy="gp.from_frame(right)")
    return right


def _sides(both: Names | None, left: Names | None, right: Names | None, where: str, name: str) -> tuple[Names, Names]:
    """Return the names for the left and for the right, whether given once or separately."""
    if both is not None and left is None and right is None:
        return both, both
    if both is not None or left is None or right is None:
        got = {name: both, f"left_{name}": left, f"right_{name}": right}
        expected = f"{name}=, or left_{name}= and right_{name}="
        raise BadConfig(where, "not one way to say the keys", got=got, expected=expected, remedy=f"{name}='key'")
    return left, right


def _columns(table: Dataset, names: str | Sequence[str] | None, where: str) -> list[str]:
    """List names of existing columns, one at least."""
    names = () if names is None else names
    table.require(names, where)
    found = list(dict.fromkeys(as_list(names)))
    require_comparable(table.schema.select(found), where)
    if not found:
        raise BadConfig(where, "no column is named", expected="one at least", remedy="the name of a column")
    return found
