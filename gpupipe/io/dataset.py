"""A lazy table made of partitions."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NoReturn

from gpupipe.backend import Backend, Frame, select
from gpupipe.backend.columns import require_comparable
from gpupipe.cluster import active
from gpupipe.errors import BadConfig, ColumnNotFound, SchemaMismatch
from gpupipe.io.manifest import Manifest
from gpupipe.io.planning.partitions import FileNote, Partition, Reads, Source, Span
from gpupipe.io.planning.query import EVERYTHING, FrameFunction, Mapped, Query
from gpupipe.io.planning.row_filters import Where
from gpupipe.io.planning.statistics import Condition, excludes
from gpupipe.io.run import over_partitions
from gpupipe.io.splitting import Splitting
from gpupipe.io.stores.remote_file import StorageOptions
from gpupipe.io.target import write_to
from gpupipe.io.verbs import Verbs
from gpupipe.io.writer import ParquetOptions
from gpupipe.schema import Schema
from gpupipe.support.text import as_list, counted
from gpupipe.support.validation import check_integer, check_seed, is_sequence

__all__ = ["Dataset"]


@dataclass(frozen=True, repr=False, eq=False)
class Dataset(Splitting, Verbs):
    """A lazy, immutable table in partitions; made by `gp.read_parquet` and its like and by `gp.from_frame`.

    Nothing is read before rows are asked for, and then only the columns and row groups that are needed. A row's
    identity is its file and its number in that file.

    Memory: one partition at a time, except for `compute` and `to_pandas`.

    Example:
        >>> import pandas as pd, gpupipe as gp
        >>> flights = gp.from_frame(pd.DataFrame({"origin": ["JFK", "LGA", "JFK"], "distance": [100, 200, 300]}))
        >>> len(flights.filter("origin == 'JFK'")), flights.select(["distance"]).columns
        (2, ['distance'])
    """

    source: Source
    schema: Schema
    backend: str = "auto"
    query: Query = EVERYTHING

    # looking ---------------------------------------------------------------------------------------------------------
    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return self.schema.names

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows, counted as `len` does, and columns."""
        return len(self), len(self.columns)

    @property
    def partitions(self) -> list[Partition]:
        """The parts it is read in, at least one; row groups that cannot hold a row of it are left out."""
        # Not a cached_property, whose one lock for all datasets would be held while a pass or a plan runs.
        if "_partitions" not in vars(self):
            found, conditions = list(self.source.partitions), self.query.conditions
            if conditions:
                kept = [p.keep(s for s in p.spans if self._may_hold(s, conditions)) for p in found]
                found = [partition for partition in kept if partition.spans] or kept[:1]
            vars(self)["_partitions"] = found
        return list(vars(self)["_partitions"])

    @property
    def num_partitions(self) -> int:
        """How many partitions there are."""
        return len(self.partitions)

    @property
    def reads(self) -> Reads:
        """What this process has read of the files so far, by any dataset made from the same reader call."""
        return self.source.reads

    @property
    def rejected(self) -> tuple[FileNote, ...]:
        """The files that were found but are not read, and why; see `on_mismatch` and `on_bad` of the readers."""
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
        """The number of rows: from the footers, or else by one pass over the columns a predicate reads."""
        if "_num_rows" not in vars(self):
            if self.query.keeps_rows:
                found = sum(partition.num_rows for partition in self.partitions)
            else:
                backend = active().resolve(self.backend)
                found = sum(over_partitions(partial(_rows_of, backend), self, backend, "count"))
            vars(self)["_num_rows"] = found
        return int(vars(self)["_num_rows"])

    def __getitem__(self, key: object) -> NoReturn:
        """Say which method gives columns or rows: a table that is not read yet has none to take out.

        Raises:
            BadConfig: always.
        """
        if isinstance(key, str) or (isinstance(key, list) and all(isinstance(name, str) for name in key)):
            remedy = f"data.select({key!r}), or data.compute()[{key!r}] for the values"
        elif is_sequence(key) or hasattr(key, "dtype"):
            remedy = "data.filter('x > 0'), an expression over columns"
        else:
            remedy = "data.head(), or data.compute().iloc[...]"
        raise BadConfig("Dataset[...]", "a lazy table has no items", got=key, expected="a method", remedy=remedy)

    def head(self, n: int = 5) -> Frame:
        """The first `n` rows as a frame; reads no more row groups than that takes.

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
        """All rows as one frame, strings plain, the index a range.

        Memory: the whole result, twice while the parts are put together.
        """
        backend = select(self.backend)
        frames = [self.read(partition, None, backend) for partition in self.partitions]
        return _plain(backend.concat(frames), backend, self.schema)

    def to_pandas(self) -> Any:
        """All rows as one pandas frame on the host, as `compute` gives them on the CPU: for plots and other libraries.

        Memory: on a GPU each partition is copied to the host; the whole result there, twice while it is put together.
        """
        if (backend := select(self.backend)).name == "cpu":
            return self.compute()
        host, fields = select("cpu"), list(self.schema)
        frames = (self.read(partition, None, backend) for partition in self.partitions)
        whole = host.concat([host.from_arrow(backend.to_arrow(frame), fields) for frame in frames])
        return _plain(whole, host, self.schema)

    def __iter__(self) -> Iterator[Frame]:
        """The partitions as frames, strings plain."""
        backend = select(self.backend)
        for partition in self.partitions:
            yield _plain(self.read(partition, None, backend), backend, self.schema, self.query.own)

    def read(self, partition: Partition, columns: Sequence[str] | None = None, backend: Backend | None = None) -> Frame:
        """One partition as a coded frame of these columns (all by default), in this order.

        The index says which of the partition's rows they are. Of the files, only these columns and those that
        predicates look at are read.

        Raises:
            ColumnNotFound: one of `columns` is not there.
            BadFile: the partition cannot be read.
        """
        names = self.columns if columns is None else as_list(columns)
        self.require(names, "read")
        backend = backend or select(self.backend)
        wanted = self.query.reads(names)
        fields = [item for item in self.source.schema if item.name in wanted]
        return self.query.run(self.source.read(partition, fields, backend), partition, names, backend)

    def parts(self) -> Iterator[Dataset]:
        """A dataset for each partition, which holds no more of the source than that takes."""
        for partition in self.partitions:
            yield self.of_partitions([partition])

    def of_partitions(self, partitions: Sequence[Partition]) -> Dataset:
        """The rows of these partitions only, which are this dataset's own or pieces of them."""
        return replace(self, source=self.source.only(partitions))

    def of_files(self, names: AbstractSet[str]) -> Dataset:
        """The rows of these files only."""
        return replace(self, source=self.source.of_files(names))

    def job_id(self, *options: object) -> str | None:
        """What tells this table, its files apart, from any other computation; None where a function has no name."""
        query, made_by = self.query.identity(), self.source.made_by
        if query is None or made_by is None:
            return None
        facts = repr((made_by, query, self.schema.to_json(), [item.dtype for item in self.source.schema], options))
        return hashlib.sha256(facts.encode()).hexdigest()

    # narrowing -------------------------------------------------------------------------------------------------------
    def select(self, columns: str | Sequence[str]) -> Dataset:
        """These columns only, in this order.

        Raises:
            ColumnNotFound: one of them is not there; offers the closest name.
            SchemaMismatch: one of them has a type that was left out.
            BadConfig: these are no names.
        """
        self.require(columns, "select")
        return replace(self, schema=self.schema.select(columns))

    def with_units(self, units: Mapping[str, str]) -> Dataset:
        """The same table, in which the numbers of these columns are known to count this, by column name.

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
        """The rows for which an expression is true; rows for which it is missing go.

        Row groups whose statistics show that they hold no such row are not read.

        Raises:
            ExpressionError, ColumnNotFound: the expression is no condition over these columns.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> gp.from_frame(pd.DataFrame({"x": [1.0, None, 3.0]})).filter("x < 2").compute()
                 x
            0  1.0
        """
        where = Where(expr)
        where.check(self.schema)
        return replace(self, query=self.query.then(where))

    def map_frames(
        self,
        function: FrameFunction,
        schema: Schema,
        reads: str | Sequence[str],
        *,
        keeps_rows: bool = False,
        backend: str | None = None,
        identity: Callable[[], str | None] = lambda: None,
        draws_rows: bool = False,
        own: Iterable[str] = (),
    ) -> Dataset:
        """A dataset whose partitions are `function(frame, backend)` of this one's.

        Args:
            function: from a coded frame to a coded frame with the columns of `schema`; a pure map over rows.
            schema: the new dataset's columns.
            reads: the columns the function is given.
            keeps_rows: whether as many rows come out as go in, so that they need not be counted.
            backend: the new dataset's own; this one's by default.
            identity: gives what tells the function apart from any other, so that a job can be resumed.
            draws_rows: whether it has a third argument, the identities (uint64) of the rows that the index counts.
            own: the columns that come out in memory nobody else holds, which need no copy for a user.
        """
        self.require(reads, "map_frames")
        query = self.query.then(Mapped(function, frozenset(reads), keeps_rows, identity, draws_rows, frozenset(own)))
        return replace(self, schema=schema, query=query, backend=backend or self.backend)

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
                column; a hundred pages in a column chunk; a dictionary where it halves the column. See
                docs/guide-files.md.
            overwrite: replace the file, or what a job wrote to the folder; other files in it stay.
            storage_options: for the file system of a URL; see `read_parquet`.

        Returns:
            What was written: parts, row groups, rows in and out.

        Raises:
            BadFile: something else is there and `overwrite` is False, or no job wrote it; input files have changed
                since a part was written; another process is writing there; or the parent folder is missing.
            BadConfig: no path, no such codec, shuffle or layout, options that a single file cannot have, or
                `partition_by` leaves no column for the files.
            BadData: a text of a column of `partition_by` has a NUL, or is Hive's name of a missing value.

        Memory: one partition per worker; of a file as much as makes a row group. On a GPU cuDF writes from the device
            what it can (docs/guide-files.md, not yet run on a GPU); else the partition is copied to the host. A full
            shuffle needs what `shuffle` does.
        """
        check_integer(Dataset.write_parquet, "[1, inf)", None, files=files)
        place: Any = path
        if not isinstance(place, str | os.PathLike) or not os.fspath(place):
            remedy = "write_parquet('out/')"
            raise BadConfig("write_parquet(path=)", "not a path", got=place, expected="a path or a URL", remedy=remedy)
        self.require(partition_by, "write_parquet(partition_by=)")
        keys = tuple(dict.fromkeys(as_list(partition_by)))
        check_seed(Dataset.write_parquet, seed=seed)
        options = ParquetOptions(rows_per_group, compression, keys, shuffle, seed if shuffle else 0, layout)
        require_comparable(self.schema.select(keys), "write_parquet(partition_by=)")
        if not set(self.columns) - set(keys):
            where, remedy = "write_parquet(partition_by=)", f"partition_by={list(keys[:-1])}"
            raise BadConfig(where, "no column is left for the files", got=keys, expected="fewer columns", remedy=remedy)
        return write_to(path, self, options, files=files, overwrite=overwrite, storage_options=storage_options)

    # inside ----------------------------------------------------------------------------------------------------------
    def require(self, names: str | Sequence[str], where: str) -> None:
        """Raise an error that names `where` unless all of `names` are columns; see `select`."""
        given: Any = names
        if not isinstance(given, Iterable) or getattr(given, "shape", None) == ():
            expected, remedy = "a column's name, or a list of them", f"{self.columns[:1]}"
            raise BadConfig(where, "not names of columns", got=given, expected=expected, remedy=remedy)
        for name in as_list(given):
            if not isinstance(name, str):
                raise ColumnNotFound.among(where, name, self.columns)
        for name in (name for name in as_list(names) if name not in self.schema):
            if name in self.source.left_out and self.query.keeps_columns:
                raise SchemaMismatch(
                    f"column {name!r}",
                    "it was left out, as no column here can hold such values",
                    got=self.source.left_out[name],
                    expected="a type of the table in docs/guide-files.md",
                    remedy="a column of another type made from it before",
                )
            raise ColumnNotFound.among(where, name, self.columns)

    def _may_hold(self, span: Span, conditions: Sequence[Condition]) -> bool:
        for condition in conditions:
            bounds = self.source.bounds(span, condition[0])
            if bounds is not None and excludes(condition, bounds, self.source.schema[condition[0]]):
                return False
        return True

    def _size(self) -> str:
        sizes = sum(partition.num_rows for partition in self.partitions), len(self.columns), self.num_partitions
        shown = ", ".join(map(counted, sizes, ("row", "column", "partition")))
        return shown if self.query.keeps_rows else f"at most {shown}"

    def __repr__(self) -> str:
        return f"Dataset of {self._size()}\n{self.schema!r}"

    def _repr_html_(self) -> str:
        return f"<p>Dataset of {self._size()}</p>{self.schema._repr_html_()}{self.head()._repr_html_() or ''}"


def _rows_of(backend: str, part: Dataset) -> int:
    return len(part.read(part.partitions[0], [], select(backend)))


def _plain(frame: Frame, backend: Backend, schema: Schema, own: Container[str] = ()) -> Frame:
    """As a user expects it: strings plain, rows counted from 0; see `Backend.decode`."""
    return backend.decode(frame, own, schema).reset_index(drop=True)
