"""ORC files, read by stripe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyarrow import orc

from gpupipe.backend import Backend, Frame
from gpupipe.errors import BadFile
from gpupipe.io.dataset import Dataset
from gpupipe.io.formats.file_source import BadFilePolicy, FileSource, TableFile, narrowest, open_all
from gpupipe.io.planning.partitions import partition_limit
from gpupipe.io.stores import Input, PathLike, StorageOptions, find_files, is_remote, one_line, open_file, unreadable
from gpupipe.schema import Field, is_passenger
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import check_names


@answer_calls
def read_orc(
    path: PathLike | Sequence[PathLike],
    *,
    columns: str | Sequence[str] | None = None,
    on_mismatch: str = "raise",
    on_bad: str = "raise",
    storage_options: StorageOptions | None = None,
    partition_bytes: int | None = None,
    backend: str = "auto",
) -> Dataset:
    """Open ORC files as one lazy table; for the arguments and errors see `read_parquet`.

    A folder stands for all `*.orc` below it. Only the stripes and columns that are asked for are decoded: on a CPU by
    pyarrow, on a GPU by cuDF (not yet run on a GPU). There pyarrow decodes, on the host, times with a zone, columns
    that are only carried (decimals, structs, maps, binary), columns that are cast, and files in a store. Statistics are
    not used: a filter reads its column of every stripe. A partition is one stripe at least.

    Memory: here one column of one stripe, to count its rows; later a partition.

    Example:
        >>> import pathlib, tempfile, pyarrow as pa, pyarrow.orc, gpupipe as gp
        >>> file = pathlib.Path(tempfile.mkdtemp(), "flights.orc")
        >>> pa.orc.write_table(pa.table({"origin": ["JFK", "LGA"], "delay": [4.5, None]}), file)
        >>> gp.read_orc(file, columns="origin").compute()["origin"].tolist()
        ['JFK', 'LGA']
    """
    check_names("read_orc", None, columns=columns)
    policy, limit = BadFilePolicy(on_mismatch, on_bad), partition_limit(partition_bytes, backend)
    files = open_all(find_files(path, [".orc"], storage_options), _open_orc, policy)
    source = FileSource(files, columns=columns, limit=limit, policy=policy)
    dataset = Dataset(source, source.schema, backend)
    return dataset if columns is None else dataset.select(columns)


@dataclass(frozen=True)
class _OrcFile(TableFile):
    unit: ClassVar[str] = "stripe"

    def read(self, groups: Sequence[int], fields: Sequence[Field], backend: Backend) -> Frame:
        """Decode by the backend where pyarrow and cuDF give the same: BadFile for times beyond their nanoseconds."""
        zoned = [item.name for item in self.schema if pa.types.is_timestamp(item.type) and item.type.tz is not None]
        apart = (item.name in zoned or is_passenger(item.dtype) for item in fields)
        is_plain = all(self.dtype(item.name) == item.dtype for item in fields) and not any(apart)
        try:
            if is_plain and not is_remote(self.origin.path):
                return backend.read_orc(self.origin.path, groups, fields)
            return super().read(groups, fields, backend)
        except (OSError, pa.ArrowException) as cause:
            if "nanosecond" not in str(cause):
                raise
            times = [item.name for item in fields if item.dtype == "timestamp"]
            raise _beyond_nanoseconds(self.origin, times, cause) from cause

    def table(self, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
        with open_file(self.origin) as source:
            file = orc.ORCFile(source)
            return pa.Table.from_batches([file.read_stripe(group, columns=list(names)) for group in groups])


def _beyond_nanoseconds(input_file: Input, times: Sequence[str], cause: Exception) -> BadFile:
    problem = f"a time is outside the years 1677 to 2262, which the reader's nanoseconds hold ({one_line(cause)})"
    remedy = f"columns= without {', '.join(map(repr, times))}, or the file written as Parquet"
    return BadFile(input_file.path, problem, got=times, expected="times of those years", remedy=remedy)


def _open_orc(input_file: Input) -> _OrcFile:
    try:
        with open_file(input_file) as source:
            schema = (file := orc.ORCFile(source)).schema
            names = schema.names
            # Times are the last choice: those of other years than 1677 to 2262 cannot be read.
            candidates = [item for item in schema if not pa.types.is_timestamp(item.type)]
            name = [narrowest(pa.schema(candidates or schema))]
            stripes = range(file.nstripes)
            # Nothing tells the rows of a stripe but its columns.
            rows = [file.read_stripe(n, columns=name).num_rows for n in stripes] if len(stripes) > 1 else [file.nrows]
            return _OrcFile(input_file, schema, tuple(rows), file.file_length)
    except BadFile:
        raise
    except (OSError, pa.ArrowException) as cause:
        if "nanosecond" in str(cause):  # all columns are times
            raise _beyond_nanoseconds(input_file, names, cause) from cause
        raise unreadable(input_file, cause, "an ORC file", b"ORC") from cause
