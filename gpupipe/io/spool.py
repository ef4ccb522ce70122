"""Tables that can be read only once, or only slowly, written once to temporary Parquet files and read from there."""

from __future__ import annotations

import shutil
import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe.backend import arrow
from gpupipe.backend.arrow_types import written_type
from gpupipe.errors import BadData, BadFile, SchemaMismatch
from gpupipe.io.hostfile import host_table
from gpupipe.io.parquet import ParquetFile, open_footer
from gpupipe.io.paths import Input
from gpupipe.io.source import row_bytes
from gpupipe.schema import Field, element_of
from gpupipe.scratch import ScratchFolder

__all__ = ["Spool", "without_values"]

GROUP_BYTES = 32 << 20
"""Decoded bytes that are gathered before a row group is written."""


class Spool:
    """Temporary files, removed with the object.

    Args:
        limit: decoded bytes of a row group; `GROUP_BYTES` at most.
    """

    def __init__(self, limit: int) -> None:
        self._scratch, self._limit = ScratchFolder(), min(limit, GROUP_BYTES)

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self._scratch.path

    def remove(self) -> None:
        """Remove the files now."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def check(self) -> None:
        """Make sure that this process sees the folder, before it works for files that are there or will be.

        Raises:
            BadFile: it does not; a worker elsewhere, or the folder was tidied up.
        """
        if not self.folder.is_dir():
            raise BadFile(
                str(self.folder),
                f"this folder for temporary files is not there on {socket.gethostname()}",
                expected="one folder for temporary files that the program and all its workers share",
                remedy="TMPDIR=/a/shared/folder in the environment of the program, or of all workers a mount of that "
                "name; nobody may tidy it up meanwhile",
            )

    def write(
        self, batches: Iterable[pa.RecordBatch], fields: Sequence[Field], origin: Input, first_row: int = 1
    ) -> ParquetFile:
        """Write these columns of `batches` to a file of their own, made of what `origin` names.

        Args:
            batches: the rows, in types that are those of the fields or can be cast to them.
            fields: the columns.
            origin: the file that was named.
            first_row: the number of its first row there, for messages.

        Raises:
            SchemaMismatch: a value does not fit the type of its field.

        Memory: one row group on the host.
        """
        path = self.folder / f"{uuid.uuid4().hex}.parquet"
        group_rows = max(1, self._limit // max(1, row_bytes(fields)))
        strings = [arrow.parquet_path(item) for item in fields if item.dtype in ("string", "list<string>")]
        schema = pa.schema([(item.name, _stored_type(item)) for item in fields])
        try:
            options: dict[str, Any] = {"use_dictionary": strings, "dictionary_pagesize_limit": GROUP_BYTES}
            with pq.ParquetWriter(path, schema, **options) as writer:
                gathered: list[pa.RecordBatch] = []
                rows = 0
                for batch in batches:
                    gathered.append(batch)
                    rows += batch.num_rows
                    if rows >= group_rows:
                        writer.write_table(
                            _typed(gathered, fields, origin, first_row, schema), row_group_size=group_rows
                        )
                        first_row += rows
                        gathered, rows = [], 0
                if rows:
                    writer.write_table(_typed(gathered, fields, origin, first_row, schema), row_group_size=group_rows)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return open_footer(origin, str(path))


def without_values(file: ParquetFile, types: Mapping[str, pa.DataType]) -> ParquetFile:
    """The same file, whose columns of type null are told as such: they fit what another file tells of their type."""
    schema = [item.with_type(pa.null()) if pa.types.is_null(types[item.name]) else item for item in file.schema]
    return replace(file, schema=pa.schema(schema))


def _stored_type(item: Field) -> pa.DataType:
    """What `arrow.conform` gives, times with their zone."""
    element = element_of(item.dtype)
    if element is not None:
        return pa.large_list(_stored_type(Field("", element)))
    return pa.dictionary(pa.int32(), pa.large_string()) if item.dtype == "string" else written_type(item)


def _typed(
    batches: Sequence[pa.RecordBatch], fields: Sequence[Field], origin: Input, first_row: int, schema: pa.Schema
) -> pa.Table:
    try:
        return host_table(pa.Table.from_batches(batches), fields, exact=False).cast(schema)
    except BadData as cause:
        raise SchemaMismatch(
            origin.path,
            f"row {first_row + (cause.row or 0)}, {cause.where.removeprefix('Cast of ')}: a value does not fit",
            got=cause.got,
            expected=cause.expected,
            remedy="dtypes={...: 'float64'} for this column",
        ) from cause
