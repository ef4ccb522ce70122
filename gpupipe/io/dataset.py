"""Dataset: a lazy table made of partitions, opened from Parquet files or made of tables in memory."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.dataset as pads

from gpupipe.backend import Backend, Frame, frame_remedy, infer_backend, is_frame, select
from gpupipe.backend.arrow import INDEX, Reading, map_schema, open_stream, read_index
from gpupipe.backend.columns import require_comparable
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import AttributeNotFound, BadConfig, BadFile, SchemaMismatch
from gpupipe.expressions import parse
from gpupipe.expressions.derivation import Derivation
from gpupipe.expressions.evaluate import require_date_format
from gpupipe.io.description.describe import describe
from gpupipe.io.description.report import Description
from gpupipe.io.formats.arrow_dataset import list_fragments
from gpupipe.io.formats.file_source import BadFilePolicy, FileSource, open_all, require_unique
from gpupipe.io.formats.parquet import fetch_end, parse_end
from gpupipe.io.formats.spill import FrameSource, TempParquet
from gpupipe.io.frame_names import refuse_attribute
from gpupipe.io.jobs.part_writer import ParquetOptions, write_dataset
from gpupipe.io.planning.folds import Folds, check_folds, cut_forward, describe_range
from gpupipe.io.planning.partitions import ReadCounter, partition_limit, row_bytes
from gpupipe.io.planning.query import Assigned
from gpupipe.io.planning.row_filters import Selection, Where
from gpupipe.io.planning.run_partitions import run_partitions
from gpupipe.io.planning.splits import check_call, cut_ranges, draw_parts, get_fractions, refuse_expressions
from gpupipe.io.planning.table import Table
from gpupipe.io.relational.group_by import GroupBy
from gpupipe.io.relational.join import AsOfSpec, JoinSpec, join, join_asof
from gpupipe.io.relational.scan import LazyFrame, lazy
from gpupipe.io.relational.sort import deduplicate, draw, shuffle, sort
from gpupipe.io.stores import FileNote, Input, Manifest, PathLike, StorageOptions, find_files, one_line
from gpupipe.schema import Kind, Schema
from gpupipe.support.calls import answer_calls
from gpupipe.support.origins import Origins, name_memory
from gpupipe.support.text import arguments, escape_line, format_count
from gpupipe.support.validation import (
    as_list,
    check_bool,
    check_choice,
    check_integer,
    check_name,
    check_names,
    check_seed,
    get_sides,
    is_bool,
    is_integer,
    is_number,
    is_path,
    is_sequence,
    refuse_argument,
    to_python,
)

Names: TypeAlias = str | Sequence[str]


def _answer_assignments(dataset_class: type[Dataset]) -> type[Dataset]:
    """Answer `data.columns = [...]` and the like in our words; the class is frozen, and would answer in Python's."""

    def refuse(_: object, name: str, __: object) -> NoReturn:
        steps = {"columns": "data = gp.Pipeline([T.Rename({'x': 'y'})]).fit(data).transform(data)"}
        remedy = steps.get(name, f"data = data.assign({arguments({name: 'an expression'})})")
        problem, expected = "a lazy table does not change", "a method, which returns another one"
        raise AttributeNotFound(f"Dataset.{name} = ...", problem, expected=expected, remedy=remedy)

    type.__setattr__(dataset_class, "__setattr__", refuse)
    return dataset_class


@_answer_assignments
@answer_calls
@dataclass(frozen=True, repr=False, eq=False)
class Dataset(Table):
    """Lazy, immutable table in partitions; created by `gp.read_parquet` and the other readers and by `gp.from_frame`.

    Nothing is read before rows are asked for, and then only the columns and row groups that are needed. A row's
    identity is its file and number there; what comes out, row by row, never depends on partitions, workers or backend.

    Sorting, shuffling, joining and grouping are plans, which run when rows are first asked for; the rows stay as long
    as the new dataset is there, in memory or in temporary files; on the CPU rows that are only written are not kept.
    `deduplicate`, `sample(n=)` and `join_asof` look at the rows when they are called. Every method raises BadFile where
    a file cannot be read, PlanFailed where memory or disk do not suffice, and ColumnNotFound (with the closest name) or
    BadConfig for a column that is not there and an argument that makes no sense.

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
            if self.keeps_rows:
                num_rows = sum(partition.num_rows for partition in self.partitions)
            else:
                backend = get_executor().resolve(self.backend)
                num_rows = sum(run_partitions(partial(_count_rows, backend), self, backend, "count"))
            vars(self)["_num_rows"] = num_rows
        return int(vars(self)["_num_rows"])

    def __contains__(self, name: object) -> bool:
        """Return whether it has a column of that name, as a frame of pandas does."""
        return name in self.schema

    def __getitem__(self, key: object) -> NoReturn:
        """Raise BadConfig with the method that selects columns or rows: a lazy table has no indexing."""
        if isinstance(key, str) or (isinstance(key, list) and all(isinstance(name, str) for name in key)):
            remedy = f"data.select({key!r}), or data.compute()[{key!r}] for the values"
        elif is_sequence(key) or hasattr(key, "dtype"):
            remedy = "data.filter('x > 0'), an expression over columns"
        else:
            remedy = "data.head(), or data.compute().iloc[...]"
        raise BadConfig("Dataset[...]", "a lazy table has no items", got=key, expected="a method", remedy=remedy)

    def __setitem__(self, key: object, value: object) -> NoReturn:
        """Raise BadConfig with the method that adds columns."""
        expected, remedy = "a method", f"data = data.assign({arguments({str(key): 'an expression'})})"
        raise BadConfig("Dataset[...] = ...", "a lazy table has no items", got=key, expected=expected, remedy=remedy)

    def __delitem__(self, key: object) -> NoReturn:
        """Raise BadConfig with the step that leaves columns out."""
        remedy = f"data = gp.Pipeline([T.Drop({key!r})]).fit(data).transform(data)"
        raise BadConfig("del Dataset[...]", "a lazy table has no items", got=key, expected="a step", remedy=remedy)

    def __array__(self, *_: Any, **options: Any) -> NoReturn:
        """Raise BadConfig: `pd.DataFrame(data)` and NumPy's functions would take its partitions for rows."""
        expected, remedy = "a frame or an array of its rows", "data.to_pandas(), or data.to_pandas().to_numpy()"
        raise BadConfig("Dataset", "a lazy table is no array", expected=expected, remedy=remedy)

    def __dir__(self) -> list[str]:
        """List what a notebook completes after a dot: what users call, without the parts that plans are made of."""
        return ["columns", "schema", "num_partitions", *vars(type(self))]

    if not TYPE_CHECKING:  # for which any name would be one

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeNotFound with what a Dataset has for a name of pandas' or Polars' frames."""
            if name.startswith("_") or hasattr(type(self), name):  # a property that has failed fails again
                return object.__getattribute__(self, name)
            raise refuse_attribute(name, dir(self))

    def head(self, n: int = 5) -> Frame:
        """Return the first `n` rows as a frame; read no more row groups than needed.

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
            yield _plain(self.read(partition, None, backend), backend, self.schema, self.query.owned_columns)

    def describe(self, target: str | None = None) -> Description:
        """Describe every column in one pass: what is missing, how many values differ, their spread and distribution.

        The report shows itself as text and in a notebook; `to_html(path)` writes one file to send, `to_frame()` gives
        the figures. Counts, means and extremes are exact; so are different values, quartiles and frequent values while
        a column has at most 65,536 (fewer of more than 64 columns), and beyond that estimates, marked as such.

        Args:
            target: a column, or an expression such as `"arr_delay > 15"`: how much each column says about it is shown
                as Cramér's V, for numbers (cut at tenths) and categories alike, over a sample of up to 65,536 rows.

        Raises `ColumnNotFound`, `ExpressionError`, `BadConfig`: the target is no column, or not one that compares.

        Memory: one partition per worker, and of each column at most 65,536 values, hashes and bins: 168 MB for any
            table, long texts apart. On a GPU only these reach the host.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> flights = gp.from_frame(pd.DataFrame({"origin": ["JFK", "LGA", "JFK"], "delay": [4.0, 1.0, None]}))
            >>> flights.describe()
            3 rows, 2 columns
            <BLANKLINE>
            numbers    dtype  missing  distinct  mean      std  min   25%  50%   75%  max
            delay    float64    33.3%         2   2.5  2.12132    1  1.75  2.5  3.25    4  ██
            <BLANKLINE>
            others   dtype  missing  distinct
            origin  string       0%         2  █▄  JFK 66.7%
        """
        return describe(self, target)

    # narrowing -------------------------------------------------------------------------------------------------------
    def select(self, columns: str | Sequence[str]) -> Dataset:
        """Return these columns only, in this order; one that was left out raises SchemaMismatch."""
        self.require(columns, "select")
        names = as_list(columns)
        if len({*names}) < len(names):
            problem, remedy = "two columns have the same name", f"select({list(dict.fromkeys(names))})"
            raise BadConfig("select", problem, got=names, expected="each column once", remedy=remedy)
        return replace(self, schema=self.schema.select(columns))

    def with_units(self, units: Mapping[str, str]) -> Dataset:
        """Return the table with a unit for the numbers of each of these columns, by column name.

        Units in the metadata of Parquet fields (`units`) are known already, and are written with `write_parquet`.
        """
        argument: Any = units
        if not isinstance(argument, Mapping) or not all(isinstance(unit, str) for unit in argument.values()):
            name = next((item.name for item in self.schema if item.kind == Kind.CONTINUOUS), "x")
            expected, remedy = "text by the names of columns", f"with_units({{{name!r}: 'miles'}})"
            raise BadConfig("with_units", "makes no sense", got=argument, expected=expected, remedy=remedy)
        self.require(list(units), "with_units")
        return replace(self, schema=self.schema.with_units(units))

    def filter(self, expr: str) -> Dataset:
        """Return the rows for which an expression is true; rows for which it is missing are dropped.

        Row groups whose statistics show that they hold no such row are not read. An expression that is no condition
        over these columns raises ExpressionError, and so does a date in quotation marks beside a text column whose
        dates, of which a first partition is read, are in another format.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> gp.from_frame(pd.DataFrame({"x": [1.0, None, 3.0]})).filter("x < 2").compute()["x"].tolist()
            [1.0]
        """
        expression = parse(expr, "filter")
        expression.check_condition(self.schema)
        dates = {name for name, _, _ in expression.date_tests if self.schema[name].dtype == "string"}
        if dates:  # of which statistics, and the engine of plans, compare the letters
            backend = select(self.backend)
            frame = self.read(self.partitions[0], list(dates), backend)
            require_date_format(expression, {name: backend.column(frame, name) for name in dates})
        return self._then(Where(expr))

    def assign(self, /, *arguments: Any, **named: str) -> Dataset:
        """Return the table with columns computed row by row from expressions, added or replaced; see `T.Derive`.

        A later one may use an earlier one. Only those that something uses are computed, and only what they read is
        read. What is assigned to a table is not saved with a pipeline that is fitted on it: steps are. Raises
        ExpressionError with the column and the position.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> flights = gp.from_frame(pd.DataFrame({"hour": [5, 12], "delay": [3, 40]}))
            >>> flights.assign(night="hour < 6", minutes="where(night, 0, delay)").compute()["minutes"].tolist()
            [0, 40]
        """
        derivation = Derivation("assign", named)
        derivation.check(arguments)
        stage = Assigned(derivation, frozenset(), keeps_rows=True, identity=partial(repr, derivation))
        return replace(self, schema=derivation.derive_schema(self.schema), query=self.query.then(stage))

    def _then(self, stage: Selection) -> Dataset:
        return replace(self, schema=self.schema.with_choice(stage.compares), query=self.query.then(stage))

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

        A folder gets a part per partition, and the manifest that is returned: parts, row groups, rows in and out. After
        a crash the same call writes the parts that are missing; on a finished folder, those of new input files.

        Args:
            path: a file where it ends in `.parquet`; else a folder. A URL that fsspec knows is one in a store.
            files: how many parts a folder gets; one per partition by default, one per row group in the layout for GPUs.
            rows_per_group: rows of a row group; a million by default, or what the layout has.
            partition_by: columns whose values become folders, as in `month=3/`.
            compression: `"snappy"`, `"zstd"`, `"lz4"`, `"gzip"`, `"brotli"` or `"none"`.
            shuffle: `"full"` puts all rows in a random order, as `shuffle` does; `"partition"` those of each part.
            seed: an integer of at most 64 bits: the same one, the same order.
            layout: `"gpu"` for files that a GPU decodes fast; docs/guide-files.md has its sizes.
            overwrite: replace the file, or what a job wrote to the folder; other files in it stay.
            storage_options: for the file system of a URL; see `read_parquet`.

        Raises:
            BadFile: something else is there and `overwrite` is False, or no job wrote it; the folder or pattern that is
                read would include it; input files have changed since a part was written; another process is writing
                there; or the parent folder is missing.
            BadConfig: a single file cannot have an argument, or `partition_by` leaves no column.
            BadData: a text of a column of `partition_by` has a NUL, or is Hive's name of a missing value.

        Memory: one partition per worker; of a file as much as makes a row group. On a GPU cuDF writes from the device
            what it can (docs/guide-files.md, not yet run on a GPU); else the partition is copied to the host.
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
        if not self.columns:
            expected, remedy = "one column at least", "a table with columns"
            raise BadConfig("write_parquet", "the table has no columns", expected=expected, remedy=remedy)
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
            fraction: the share of the first of two parts, or of each part. A row is drawn by `seed` and its identity
                alone (or by the value of `by`), whatever the partitioning and backend.
            by: the column that is cut; with `fraction`, the column whose equal values stay together (missing ones too).
            at: the value where the second part begins (left `<`, right `>=`), or an ascending list for more parts.
                Times are ISO text, dates or datetimes, in UTC without an offset, also where the column has a zone.
            seed: an integer of at most 64 bits; only for `fraction`.
            stratify: a column of whose every value (missing is one; 10,000 at most) each part has its share, to a row;
                with `by` as nearly as its groups allow.
            gap: with `at`, how wide a stretch before each cut belongs to no part: a number, or for times a timedelta or
                text such as `"7 days"`.

        A cut raises BadData where `by` is missing in some rows, with their number.

        Memory: none; where the files do not tell that `by` is never missing, one pass over that column. `stratify`
            takes two passes over its column, and 32 KiB per value; with `by` see `kfold`.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> flights = gp.from_frame(pd.DataFrame({"month": [1, 9, 10, 12]}))
            >>> [part.compute()["month"].tolist() for part in flights.split(by="month", at=12, gap=3)]
            [[1], [12]]
        """
        check_call(self, "split", by, at, fraction, stratify, gap)
        check_seed("split", seed=seed)
        if fraction is None:
            return tuple(map(self._then, cut_ranges(self, by or "", at, gap)))
        return tuple(map(self._then, draw_parts(self, get_fractions(fraction), seed, by, stratify)))

    def kfold(
        self,
        n_splits: int = 5,
        *,
        by: str | None = None,
        seed: int = 0,
        stratify: str | None = None,
        forward: bool = False,
        gap: Any = None,
    ) -> Folds[Dataset]:
        """Return `n_splits` pairs of a dataset to train on and one to validate on, for `gp.cross_validate` or a loop.

        Rows are drawn as by `split`, each for one of the parts to validate; see there for `by`, `seed` and `stratify`.
        The values of `by`, up to 65,536, are shared out by their rows, so that folds are as even as the values allow
        and none is empty (scikit-learn's GroupKFold); fewer values than folds are `BadConfig`.

        With `forward` nothing is drawn: each fold trains on all rows before a cut of the column `by`, such as a time,
        and validates the rows up to the next cut (scikit-learn's TimeSeriesSplit). The parts to validate have equally
        many rows, but that rows of one value stay together; the first stretch is trained on alone. `gap` is how wide a
        stretch before each cut is left out, as in `split`. Drawn folds by a time are refused: they would train on rows
        later than those they validate.

        Memory: none; two passes over the column for `stratify`. With `by` one pass over that column, or both, 40 bytes
            per value and class on the host, 8 per value as long as the folds are there, and with `stratify` some 10
            seconds per million values. `forward` sorts the column, as `sort`.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> flights = gp.from_frame(pd.DataFrame({"tail": [1, 2, 3, 1, 2, 3], "day": [1, 2, 3, 4, 5, 6]}))
            >>> [sorted(set(valid.compute()["tail"])) for train, valid in flights.kfold(2, by="tail", seed=1)]
            [[2, 3], [1]]
            >>> flights.kfold(2, by="day", forward=True, gap=1)
            2 folds forward by day, gap 1
            fold  train     valid
            1     before 2  3 to before 5
            2     before 4  from 5
        """
        check_integer("kfold", "[2, 1000]", n_splits=n_splits)
        check_bool("kfold", forward=forward)
        n_splits = int(n_splits)
        shares = [1 / n_splits] * n_splits
        check_call(self, "kfold", by, None, shares, stratify, None)
        check_folds(self, n_splits, by, stratify, gap, forward=forward)
        check_seed("kfold", seed=seed)
        if forward and by is not None:
            ranges = cut_forward(self, self.select([by]).sort(by), n_splits, by, gap)
            cells = [(describe_range(a, self.schema[by]), describe_range(b, self.schema[by])) for a, b in ranges]
            title = f"{n_splits} folds forward by {by}" + ("" if gap is None else f", gap {gap}")
            return Folds([(self._then(before), self._then(after)) for before, after in ranges], title, cells)
        parts = draw_parts(self, shares, seed, by, stratify, "kfold")
        sizes = [getattr(part, "share", share) for part, share in zip(parts, shares, strict=True)]
        criteria = [f"by {by}"] * (by is not None) + [f"stratified by {stratify}"] * (stratify is not None)
        title = ", ".join([f"{n_splits} folds", *(criteria or ["by rows"]), f"seed {seed}"])
        pairs = [(self._then(replace(part, outside=True)), self._then(part)) for part in parts]
        return Folds(pairs, title, [(f"{1 - size:.1%}", f"{size:.1%}") for size in sizes])

    # whole tables ----------------------------------------------------------------------------------------------------
    def sort(self, by: str | Sequence[str], *, ascending: bool | Sequence[bool] = True) -> Dataset:
        """Sort rows by columns, `ascending` or not (all, or each); ties keep their order, missing values come last.

        Raises `BadData` for dates as text whose letters are in another order, such as 31.12.2023.
        Memory: three times the table, up to half of what is free or of `memory_limit`; beyond that the table on disk
            while the plan runs, and the result as long as the new dataset is there, unless it is only written.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> gp.from_frame(pd.DataFrame({"x": [2, 3, 1]})).sort("x", ascending=False).compute()["x"].tolist()
            [3, 2, 1]
        """
        names = _columns(self, by, "sort")
        value: Any = ascending
        upward: list[Any] = [value] * len(names) if is_bool(value) else list(value) if is_sequence(value) else [None]
        if not all(map(is_bool, upward)):
            raise refuse_argument("sort", "ascending", value, "True or False, or a list of them", "ascending=False")
        if len(upward) != len(names):
            problem, remedy = "not a direction for each column", "ascending=True, which is for all"
            raise BadConfig("sort", problem, got=upward, expected=format_count(len(names), "direction"), remedy=remedy)
        return sort(self, names, upward)

    def shuffle(self, seed: int = 0) -> Dataset:
        """Shuffle all rows into a random order by the seed, of at most 64 bits, and the rows' identities alone.

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
        """Return the first or last row of each set of rows alike in the columns `on` (all by default), in their order.

        Two missing values are equal. Only the compared columns are read. `keep` is `"first"` or `"last"`.

        Memory: as `sort`, of these columns. On disk 8 bytes for each row that stays, its id, as long as the result is
            there; a partition reads the part between its first and its last row.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> gp.from_frame(pd.DataFrame({"x": [2, 1, 2], "y": [0, 1, 2]})).deduplicate("x").compute()["y"].tolist()
            [0, 1]
        """
        check_choice("deduplicate", ("first", "last"), keep=keep)
        return deduplicate(self, _columns(self, self.columns if on is None else on, "deduplicate"), keep)

    def group_by(self, keys: str | Sequence[str], *, dropna: bool = True) -> GroupBy[Dataset]:
        """Group rows with equal keys, for aggregation by `agg`; without `dropna` a missing key is one like any other.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> flights = gp.from_frame(pd.DataFrame({"origin": ["JFK", "LGA", "JFK"], "delay": [4.0, 1.0, None]}))
            >>> flights.group_by("origin").agg(n=("delay", "size"), delay=("delay", "mean")).compute().values.tolist()
            [['JFK', 2, 4.0], ['LGA', 1, 1.0]]
        """
        check_bool("group_by", dropna=dropna)
        refuse_expressions(self, keys, "group_by")
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

        The keys are `on`, or `left_on` here (whose names the result has) and `right_on` there, in the same order. Rows
        come in the order of the left, those of one left row in the order of the right; then right rows that match
        nothing. A missing key matches nothing; numbers match by value, whatever their types. For a right table that
        fits in memory, the step `Join` does it in the same pass as everything else.

        `how="left"` keeps every row of the left, `"right"` of the right, `"outer"` of both, `"inner"` of neither those
        that match nothing. `columns` are the right columns to add, all but the keys by default; `suffix` is put behind
        the name of one that the left has too. With `many` a key may stand in several right rows; a left row then comes
        out for each.

        Raises:
            BadData: a key repeats on the right and `many` is False; names one, when rows are first asked for.
            SchemaMismatch: keys of types that cannot be compared, or, where right rows are kept, of other types.

        Memory: three times both tables, up to half of what is free or of `memory_limit`; beyond that both and twice the
            result on disk, of that half as long as it is there. All rows of one key have to fit. A left join of unique
            keys on the CPU holds of the left the keys and one row group, and writes no other column of it to disk.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> flights = gp.from_frame(pd.DataFrame({"origin": ["LGA", None, "JFK"]}))
            >>> weather = gp.from_frame(pd.DataFrame({"origin": ["JFK", "LGA"], "temp": [39.0, 41.0]}))
            >>> flights.join(weather, on="origin").compute()["temp"].tolist()
            [41.0, nan, 39.0]
        """
        right = _dataset(right, "join")
        check_bool("join", many=many)
        left_keys, right_keys = get_sides(on, left_on, right_on, "join", "on")
        check_names("join", None, columns=columns)
        check_name("join", suffix=suffix)
        keys = _columns(self, left_keys, "join"), _columns(right, right_keys, "join, right table")
        added = None if columns is None else as_list(columns)
        right.require(added or (), "join, right table")
        joining = JoinSpec.of(self.locate_origins(), right.locate_origins(), keys, added, how, suffix, many)
        return join(self, right, joining)

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
        Times or numbers are in the column `on`, keys that have to be equal in `by`, or in the `left_` and `right_`
        columns of either side; missing values match nothing. For features, the step `JoinAsOf` does it in the same pass
        as everything else, and is saved with the pipeline.

        `direction="backward"` takes the last right row at or before the left one's time, the last of several alike;
        `"forward"` the first at or after it, the first of several alike; `"nearest"` the nearer of both, the earlier of
        two equally near. `tolerance` is how far a right row may be, at most: a number, or of times a timedelta or text
        such as `"2h"`. Without `allow_exact_matches` a right row of the same time does not match. For `columns` and
        `suffix` see `join`; the right row's time is left out, as its keys are, unless `columns` names it: to count the
        hours since then, name it there, or copy it before, `right.assign(at="time")`. A right table without rows raises
        BadData, and `on` of text, of types that no one type holds, and keys that cannot be compared SchemaMismatch.

        Memory: three times the columns concerned (of the left `on` and `by`), up to half of what is free or of
            `memory_limit`; beyond that they go to disk by their keys, and all rows of one key have to fit, without `by`
            all rows. What is added stays in memory up to a sixteenth of it, else on disk, while the result is there.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> trades = gp.from_frame(pd.DataFrame({"second": [7, 3, 5]}))
            >>> quotes = gp.from_frame(pd.DataFrame({"second": [1, 4, 6], "price": [10.0, 11.0, 12.0]}))
            >>> trades.join_asof(quotes, on="second", tolerance=1).compute()["price"].tolist()
            [12.0, nan, 11.0]
        """
        other = _dataset(right, "join_asof")
        left_column, right_column = get_sides(on, left_on, right_on, "join_asof", "on")
        check_names("join_asof", None, columns=columns, by=by, left_by=left_by, right_by=right_by)
        none = by is None and left_by is None and right_by is None
        left_keys, right_keys = ([], []) if none else get_sides(by, left_by, right_by, "join_asof", "by")
        keys = as_list(left_keys), as_list(right_keys)
        order = _columns(self, left_column, "join_asof"), _columns(other, right_column, "join_asof, right table")
        if len(order[0]) != 1 or len(order[1]) != 1:
            raise BadConfig("join_asof(on=)", "not one column", got=on, expected="one column", remedy="on='time'")
        for side, names, where in ((self, keys[0], "join_asof"), (other, keys[1], "join_asof, right table")):
            side.require(names, where)
            require_comparable(side.schema.select(names), where)
        added = None if columns is None else as_list(columns)
        other.require(added or (), "join_asof, right table")
        pair, exact = (order[0][0], order[1][0]), allow_exact_matches
        asof = AsOfSpec.of(self.schema, other.locate_origins(), pair, keys, added, direction, tolerance, exact, suffix)
        return join_asof(self, other, asof)

    def sample(self, fraction: float | None = None, *, n: int | None = None, seed: int = 0) -> Dataset:
        """Return rows drawn at random without replacement, in their original order.

        Of a `fraction` each row is drawn by the seed, of at most 64 bits, and its identity alone; nothing is read for
        that. Exactly `n` rows take a pass over what tells the rows apart; more than there are raise BadConfig.

        Memory: for `n` 8 bytes for each row that is drawn; of what Polars cannot scan 8 bytes for each row.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> numbers = gp.from_frame(pd.DataFrame({"x": range(1000)}))
            >>> len(numbers.sample(n=10)), len(numbers.sample(0.5))
            (10, 509)
        """
        if (fraction is None) == (n is None):
            got, expected = {"fraction": fraction, "n": n}, "fraction= or n="
            raise BadConfig("sample", "not one way to say how many", got=got, expected=expected, remedy="n=1000")
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
        of day in a column of dates is an error when the plan runs, decimals beyond 38 digits a SchemaMismatch.

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
        size = ", ".join(map(format_count, sizes, ("row", "column", "partition")))
        return f"{'some rows of' if self.adds_rows else 'at most'} {size}" if not self.keeps_rows else size

    def __repr__(self) -> str:
        return f"Dataset of {self._size()}\n{self.schema!r}"

    def _repr_html_(self) -> str:
        return f"<p>Dataset of {self._size()}</p>{self.schema._repr_html_()}{self._show_head()}"

    def _show_head(self) -> str:
        frame = self.head()
        frame = frame.to_pandas() if hasattr(frame, "to_pandas") else frame
        for item in self.schema:
            if item.kind == Kind.TEXT:  # what is within lists is printable
                frame[item.name] = frame[item.name].map(escape_line, na_action="ignore")
        return frame.rename(columns=escape_line)._repr_html_() or ""


def _count_rows(backend: str, part: Dataset) -> int:
    return len(part.read(part.partitions[0], [], select(backend)))


def _plain(frame: Frame, backend: Backend, schema: Schema, owned_columns: Container[str] = ()) -> Frame:
    """Convert to a user's frame: strings plain, rows counted from 0; see `Backend.decode`."""
    return backend.decode(frame, owned_columns, schema).reset_index(drop=True)


def _dataset(right: Dataset, where: str) -> Dataset:
    """Check the other table of a join, which has to be one."""
    argument: object = right
    if not isinstance(argument, Dataset):
        got, problem = type(right).__name__, "the right table is no Dataset"
        raise BadConfig(where, problem, got=got, expected="a Dataset", remedy="gp.from_frame(right)")
    return right


def _columns(table: Dataset, names: str | Sequence[str] | None, where: str) -> list[str]:
    """List names of existing columns, one at least."""
    names = () if names is None else names
    table.require(names, where)
    columns = list(dict.fromkeys(as_list(names)))
    require_comparable(table.schema.select(columns), where)
    if not columns:
        raise BadConfig(where, "no column is named", expected="one at least", remedy="the name of a column")
    return columns


_READERS = {
    **dict.fromkeys(("csv", "tsv", "txt"), "read_csv"),
    **dict.fromkeys(("json", "jsonl", "ndjson"), "read_json"),
    **dict.fromkeys(("arrow", "feather", "ipc"), "read_ipc"),
    "orc": "read_orc",
}

_UNSENT = ("Object", "Int128", "UInt128")  # types of Polars that Arrow has not: of objects it gives their addresses


@answer_calls
def read_parquet(
    path: PathLike | Sequence[PathLike],
    *,
    columns: str | Sequence[str] | None = None,
    filters: str | None = None,
    on_mismatch: str = "raise",
    on_bad: str = "raise",
    storage_options: StorageOptions | None = None,
    partition_bytes: int | None = None,
    backend: str = "auto",
) -> Dataset:
    """Open Parquet files as one lazy table; only the footers are read, several at a time.

    Small files share a partition. A row group that is larger than `partition_bytes` is a partition of its own, whose
    description says so; where it does not fit into memory, it is worked on in halves. docs/guide-files.md has all.

    Args:
        path: a file, a list of files, a pattern, a folder (all `*.parquet` below it, or those that the manifest of
            `Dataset.write_parquet` lists), or a URL that fsspec knows. Folders named `key=value` give columns, integers
            where all values are whole numbers and else strings; a filter on them leaves out whole files. Rows are in
            the order of the sorted names, so `month=10` comes before `month=2`.
        columns: the columns to have; all by default but those left out. The files need to share no others.
        filters: an expression, as for `Dataset.filter`; it may use columns that are not in `columns`.
        on_mismatch: for a file that lacks a column of the first, or has another type: `"raise"`, `"cast"`, `"skip"` or
            `"quarantine"`. A cast file is decoded on the host; integers and floats take the widest type they have in
            any file, and each value has to fit the new type exactly, or it is an error when it is read; a column that
            is not there is missing throughout. Columns that the first file does not have are left out and noted,
            whatever is chosen. The columns' order is free.
        on_bad: for a file that cannot be opened: `"raise"`, `"skip"` or `"quarantine"`, which skips it too, and
            `write_parquet` writes a JSON line about it next to its output. What is skipped or cast is logged, listed in
            `Dataset.rejected`, counted in `Pipeline.fit_report`, shown by `gpupipe.io.inspect` and told by the manifest
            of what is written. A file that turns out damaged later is always an error.
        storage_options: for the file system of a URL, such as `{"key": ..., "secret": ...}` for S3; see
            docs/guide-stores.md. They go to workers with the dataset, and into no message, manifest or saved pipeline.
        partition_bytes: decoded bytes of a partition, one row group at least; by default 64 MiB on CPU, 1 GiB on GPU.
        backend: `"auto"`, `"cpu"` or `"gpu"`: whose frames the dataset gives.

    Raises:
        BadFile: a file is missing, empty, cut off or no Parquet file.
        SchemaMismatch: files differ, with file and column; or a column of `columns` is of a type that is left out.
        ColumnNotFound, BadConfig: a column is not there, or an argument makes no sense.

    Memory: the footers, about 4 KB for a file with 20 columns and one row group. On a GPU what a partition needs of a
        file elsewhere passes through the local temporary folder.

    Example:
        >>> import gpupipe as gp
        >>> flights = gp.read_parquet("data/flights.parquet", columns=["origin", "distance"], filters="month == 2")
        >>> len(flights), flights.columns
        (24951, ['origin', 'distance'])
    """
    check_names("read_parquet", None, columns=columns)
    policy = BadFilePolicy(on_mismatch, on_bad)
    files = open_all(find_files(path, [".parquet"], storage_options), fetch_end, policy, finish=parse_end)
    needed = None if columns is None else [*as_list(columns), *(parse(filters, "filters").reads if filters else ())]
    source = FileSource(files, columns=needed, limit=partition_limit(partition_bytes, backend), policy=policy)
    dataset = Dataset(source, source.schema, backend)
    if filters is not None:
        dataset = dataset.filter(filters)
    return dataset if columns is None else dataset.select(columns)


@answer_calls
def from_frame(
    obj: Any, *, partition_bytes: int | None = None, num_partitions: int | None = None, backend: str = "auto"
) -> Dataset:
    """Make a lazy table of what is in memory: a pandas or cuDF frame, or anything with the Arrow C stream protocol.

    The files of a `pyarrow.dataset.Dataset` are read lazily instead, by pyarrow on the host: only the columns that are
    asked for, and no files and (of Parquet) row groups whose partition or statistics show that a filter keeps nothing
    of them. So a Delta table is read: `gp.from_frame(DeltaTable(path).to_pyarrow_dataset())`. Filtered, it is a stream.

    A stream that can be read only once (anything without a length, such as a RecordBatchReader) is written to a
    temporary Parquet file now, a part at a time; the file is removed with the dataset. So an Iceberg table is read:
    `gp.from_frame(table.scan(row_filter=..., selected_fields=...).to_arrow_batch_reader())`.

    `obj` must not be changed while the dataset is in use. `num_partitions` cuts what is in memory into as many
    partitions of equal size; see `read_parquet` for `partition_bytes` and `backend`. Raises SchemaMismatch for no table
    or names that repeat, BadConfig, and BadFile for a file that cannot be opened or a stream that breaks off.

    Memory: shares numbers and times of a pandas or cuDF frame, and Arrow numbers in one chunk without missing values;
        copies the rest, strings as codes. Of a pyarrow dataset the footers, about 40 KB per Parquet file; of a stream a
        row group of up to 32 MiB, and all of it on disk.

    Example:
        >>> import pyarrow as pa, gpupipe as gp
        >>> table = pa.table({"origin": ["JFK", "LGA", None], "flight": [1, 2, 3]})
        >>> gp.from_frame(table, num_partitions=2).num_partitions
        2
    """
    if isinstance(obj, Dataset):
        expected, remedy = "a table in memory", "the dataset itself"
        raise SchemaMismatch("from_frame", "a Dataset already", got=Dataset, expected=expected, remedy=remedy)
    limit = partition_limit(partition_bytes, backend)
    check_integer(from_frame, "[1, inf)", None, num_partitions=num_partitions)
    files = list_fragments(obj) if isinstance(obj, pads.Dataset) else None
    if num_partitions is not None and (files or not hasattr(obj, "__len__")):
        problem, remedy = "a stream has no length to divide", "partition_bytes=32 << 20"
        raise BadConfig("from_frame", problem, got=num_partitions, expected="partition_bytes=", remedy=remedy)
    if files:
        source = FileSource(files, limit=limit)
        return Dataset(source, source.schema, backend)
    if isinstance(obj, pads.Dataset):
        require_unique(obj.schema.names, "from_frame", "rename one")
        obj = obj.scanner().to_reader()
    if not is_frame(obj) and not _streams(obj):
        raise _no_table(obj)
    if is_frame(obj):
        owner = infer_backend(obj)
        require_unique(list(map(str, obj.columns)), "from_frame", "rename one")
        read = owner.classify(obj).items()
        readings = {name: (dtype, reading) for (name, reading), dtype in zip(read, obj.dtypes, strict=True)}
        frame = owner.encode(owner.select(obj, [name for name, (_, reading) in readings.items() if reading.dtype]))
        readings, stated = _read_index(obj.index) | readings, {}
    else:
        schema, readings, batches = _open(obj)
        if not hasattr(obj, "__len__"):
            spool = TempParquet(limit)
            policy = BadFilePolicy()
            policy.convert("stream", readings)
            file = spool.write(_read(batches), list(schema), Input("stream"))
            source = FileSource({0: file}, limit=limit, policy=policy, spool=spool)
            return Dataset(source, source.schema.with_origins(name_memory(), _list_origins(schema)), backend)
        owner, stated = select("cpu"), _list_origins(schema)
        frame = owner.from_arrow(batches.read_all(), list(schema))
    schema = owner.schema_of(frame, {name: reading for name, (_, reading) in readings.items()})
    schema = schema.with_origins(owner.name_table(frame), stated)
    parts = max(1, num_partitions or -(-len(frame) * row_bytes(schema) // limit))
    edges = [len(frame) * part // parts for part in range(parts + 1)]
    cuts = [(start, stop - start) for start, stop in pairwise(edges)]
    return Dataset(FrameSource(frame, schema, cuts, readings), schema, backend)


def _list_origins(schema: Schema) -> dict[str, Origins]:
    return {item.name: item.origins for item in schema}


def as_dataset(data: Any) -> Dataset:
    """Return a Dataset unchanged, and convert any other table as `from_frame` does.

    Memory: as `from_frame`.

    Example:
        >>> import pyarrow as pa
        >>> as_dataset(pa.table({"flight": [1, 2]})).columns
        ['flight']
    """
    return data if isinstance(data, Dataset) else from_frame(data)


def as_rows(data: Any, backend: str = "auto") -> Any:
    """Return a Dataset or a frame unchanged, a table in memory as a frame of the backend, a stream as a Dataset.

    What is no table raises SchemaMismatch.

    Memory: shares Arrow numbers in one chunk without missing values; copies the rest of a table, strings as codes.

    Example:
        >>> import pyarrow as pa
        >>> as_rows(pa.table({"flight": [1, 2]}), "cpu")["flight"].tolist()
        [1, 2]
    """
    if isinstance(data, Dataset) or is_frame(data):
        return data
    if isinstance(data, pads.Dataset) or not (_streams(data) and hasattr(data, "__len__")):
        return from_frame(data)
    (schema, _, batches), owner = _open(data), select(backend)
    rows = owner.from_arrow(batches.read_all(), list(schema))
    zoned = [item.name for item in schema if item.zone]
    if not zoned:
        return rows
    times = owner.decode(owner.select(rows, zoned), (), schema)
    return rows.assign(**{name: times[name] for name in zoned})


def _streams(obj: Any) -> bool:
    return hasattr(obj, "__arrow_c_stream__") and not inspect.isclass(obj)


def _no_table(obj: Any) -> SchemaMismatch:
    """Build the error for an object that is no table, with a way to convert it."""
    if isinstance(obj, str | os.PathLike):
        kind = re.sub(r"[.](gz|bz2|zst|xz)$", "", str(obj)).rpartition(".")[2]
        remedy = f"gp.{_READERS.get(kind, 'read_parquet')}({str(obj)!r})"
    else:
        remedy = frame_remedy(obj) or "gp.read_parquet(path), or a frame"
        if hasattr(obj, "set_epoch"):
            remedy = "the Dataset or frame of which the loader was made"
    got = obj if obj is None or isinstance(obj, str | os.PathLike) else type(obj)
    expected = "a Dataset, a pandas, cuDF or Polars DataFrame, or what has the Arrow C stream protocol"
    return SchemaMismatch("data", "not a table", got=got, expected=expected, remedy=remedy)


def _read_index(index: Any) -> dict[str, tuple[object, Reading]]:
    """Return the index of a frame as a column; none where it is unnamed and counts or selects rows."""
    names = [name for name in index.names if name is not None]
    if not names and getattr(index.dtype, "kind", "O") in "iu":
        return {}
    change = f"{INDEX}, data.reset_index() makes it one"
    return {", ".join(map(str, names)) or "index": (index.dtype, Reading(None, change=change))}


def _open(obj: Any) -> tuple[Schema, dict[str, tuple[object, Reading]], pa.RecordBatchReader]:
    is_polars = type(obj).__module__.startswith("polars.") and hasattr(obj, "schema")
    unsent = {name: kind for name, kind in obj.schema.items() if str(kind) in _UNSENT} if is_polars else {}
    obj = obj.drop(list(unsent)) if unsent else obj
    try:
        batches = open_stream(obj)
    except TypeError as cause:
        raise _no_table(obj) from cause
    require_unique(batches.schema.names, "from_frame", "rename one")
    fields, readings = map_schema(batches.schema)
    left_out = {name: (kind, Reading(None, change="nothing here carries such values")) for name, kind in unsent.items()}
    return fields, left_out | read_index(batches.schema) | readings, batches


def _read(batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield a stream's batches; an error in its source reports the number of rows that preceded it."""
    rows = 0
    while True:
        try:
            batch = batches.read_next_batch()
        except StopIteration:
            return
        except (OSError, pa.ArrowException) as cause:
            problem = f"the stream broke off after {format_count(rows, 'row')} ({one_line(cause)})"
            remedy = "what feeds it; and a new stream, as this one cannot be read again"
            raise BadFile("from_frame", problem, expected="a stream with its end", remedy=remedy) from cause
        rows += batch.num_rows
        yield batch
