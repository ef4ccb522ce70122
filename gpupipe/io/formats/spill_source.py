"""Source of spilled rows: temporary Parquet files whose row groups make up partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Self

import pyarrow as pa

from gpupipe.backend import Backend, Frame, select
from gpupipe.backend.arrow import arrow_type
from gpupipe.errors import BadConfig
from gpupipe.io.formats.parquet import open_footer
from gpupipe.io.formats.temp_parquet import TempParquet
from gpupipe.io.planning.partitions import FileNote, Partition, ReadCounter, RowRange
from gpupipe.io.planning.statistics import Bounds
from gpupipe.io.stores.file_errors import make_lost_file_error
from gpupipe.io.stores.find_files import Input
from gpupipe.io.stores.remote_file import is_remote
from gpupipe.schema import Field, Schema

__all__ = ["DerivedSource", "SpillFile", "SpillSource", "make_subset_error"]


@dataclass(frozen=True)
class SpillFile:
    """Temporary Parquet file. Its footer is not cached: with a row group for each bucket it may be large.

    Args:
        path: a path, or a URL.
        num_bytes: the file's size.
        groups: of each row group its bucket and its rows.
    """

    path: str
    num_bytes: int
    groups: tuple[tuple[int, int], ...]

    @property
    def group_rows(self) -> list[int]:
        """The number of rows of each row group."""
        return [num_rows for _, num_rows in self.groups]

    @cached_property
    def num_rows(self) -> int:
        """The number of rows of all row groups."""
        return sum(self.group_rows)

    @property
    def first_rows(self) -> list[int]:
        """The number of each row group's first row in the file."""
        return list(accumulate(self.group_rows, initial=0))[:-1]


def make_subset_error() -> BadConfig:
    """Return the error for a request for rows of some input files only."""
    return BadConfig(
        "write_parquet",
        "rows that were sorted, shuffled, joined or grouped come from all input files together",
        expected="the input files of the earlier job, and no new ones",
        remedy="overwrite=True, which writes everything again",
    )


class DerivedSource:
    """Base class of sources whose rows are computed from all input files together.

    Args:
        schema: the columns.
        made_by: see `Source`.
        inputs: what the rows are made of; see `Source.inputs`.
    """

    def __init__(self, schema: Schema, made_by: str | None, inputs: dict[str, str] | None) -> None:
        self.schema, self.made_by, self._inputs = schema, made_by, inputs
        self.left_out: Mapping[str, str] = {}
        self.notes: Sequence[FileNote] = ()
        self.reads = ReadCounter()

    def inputs(self) -> dict[str, str] | None:
        """Return the input files of the rows; see `Source.inputs`."""
        return self._inputs

    def of_files(self, names: AbstractSet[str]) -> Self:
        """Raise: the rows are computed from all input files together."""
        raise make_subset_error()

    def files_of(self, partition: Partition) -> list[str]:
        """Return no files: a partition has none in particular."""
        return []

    def bounds(self, span: RowRange, name: str) -> Bounds | None:
        """Return None: bounds are unknown before reading."""
        return None

    def null_count(self, name: str) -> int | None:
        """Return 0 if the field has no missing values; else None, unknown before reading."""
        return None if self.schema[name].nullable else 0


class SpillSource(DerivedSource):
    """Source of rows in temporary files.

    Args:
        files: the files, all of the same columns, by number.
        partitions: of their row groups.
        schema: the columns.
        made_by: see `Source`.
        inputs: what the rows were made of; see `Source.inputs`.
        spool: the folder of the files, kept alive as long as the source.
    """

    def __init__(
        self,
        files: Mapping[int, SpillFile],
        partitions: Sequence[Partition],
        schema: Schema,
        made_by: str | None,
        inputs: dict[str, str] | None,
        spool: TempParquet,
    ) -> None:
        super().__init__(schema, made_by, inputs)
        self.partitions, self._files, self._spool = partitions, files, spool

    def read(self, partition: Partition, fields: Sequence[Field], backend: Backend) -> Frame:
        """Read columns of a partition; see `Source.read`.

        Raises:
            BadFile: a temporary file is gone or damaged, or this process does not see its folder.
        """
        self._spool.check()
        names = [item.name for item in fields]
        by_file = [(self._files[number], list(own)) for number, own in groupby(partition.spans, attrgetter("file"))]
        self.reads.add(partition.spans, names, self._stored_bytes(partition, len(names)))
        if not names:
            return backend.frame({}, partition.num_rows)
        if not by_file:
            empty = pa.schema([(item.name, arrow_type(item.dtype)) for item in fields]).empty_table()
            return backend.from_arrow(empty, fields)
        frames = [_rows(file, spans, fields, backend) for file, spans in by_file]
        return frames[0] if len(frames) == 1 else backend.concat(frames)

    def table(self, partition: Partition, fields: Sequence[Field]) -> pa.Table:
        """Read columns of a partition on the host; see `Source.table`."""
        cpu = select("cpu")
        return cpu.to_arrow(self.read(partition, fields, cpu))

    def only(self, partitions: Sequence[Partition]) -> Self:
        """Return a source of these partitions and their files; see `Source.only`."""
        part = copy(self)
        numbers = {span.file for partition in partitions for span in partition.spans}
        vars(part).update(_files={number: self._files[number] for number in numbers}, partitions=list(partitions))
        return part

    def _stored_bytes(self, partition: Partition, num_columns: int) -> int:
        """Estimate the bytes read: each file's size in proportion to the rows and columns."""
        total = 0.0
        for span in partition.spans:
            file = self._files[span.file]
            total += file.num_bytes * span.num_rows / file.num_rows
        return int(total) * num_columns // max(1, len(self.schema))


def _rows(file: SpillFile, spans: Sequence[RowRange], fields: Sequence[Field], backend: Backend) -> Frame:
    groups = [span.group for span in spans]
    try:
        if is_remote(file.path):
            frame = open_footer(Input(file.path)).read(groups, fields, backend)
        else:
            frame = backend.read_parquet(file.path, groups, fields)
    except (OSError, pa.ArrowException) as cause:
        raise make_lost_file_error(file.path, cause) from cause
    group_rows, first_rows, xp = file.group_rows, file.first_rows, backend.xp
    sizes = [group_rows[group] for group in groups]
    if sizes == [span.num_rows for span in spans]:
        return frame
    starts = [
        before + span.first_row - first_rows[span.group]
        for before, span in zip(accumulate(sizes, initial=0), spans, strict=False)
    ]
    rows = [xp.arange(start, start + span.num_rows) for start, span in zip(starts, spans, strict=True)]
    return backend.concat([backend.take(frame, xp.concatenate(rows))])
