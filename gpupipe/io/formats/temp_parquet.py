"""Temporary Parquet files, for tables that can be read only once or only slowly."""

from __future__ import annotations

import os
import shutil
import socket
import uuid
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe.backend import arrow
from gpupipe.backend.arrow_types import get_file_type
from gpupipe.config import settings
from gpupipe.errors import BadData, BadFile, SchemaMismatch
from gpupipe.io.formats.arrow_file import host_table
from gpupipe.io.formats.parquet import ParquetFile, open_footer
from gpupipe.io.planning.partitions import row_bytes
from gpupipe.io.stores.find_files import Input
from gpupipe.io.stores.remote_file import is_remote, locate
from gpupipe.io.stores.retry import call_with_retries
from gpupipe.schema import Field, get_element_dtype
from gpupipe.scratch import ScratchFolder, writing_scratch

__all__ = ["TempParquet"]

GROUP_BYTES = 32 << 20
"""Decoded bytes that are gathered before a row group is written."""


class TempParquet:
    """Folder of temporary Parquet files, removed with the object.

    Args:
        limit: decoded bytes of a row group; `GROUP_BYTES` at most.
    """

    def __init__(self, limit: int) -> None:
        self._scratch, self._limit = ScratchFolder(), min(limit, GROUP_BYTES)
        place = settings().scratch or ""
        self._url = f"{place.rstrip('/')}/gpupipe-{uuid.uuid4().hex}" if is_remote(place) else None
        if self._url is not None:
            weakref.finalize(self, _remove, self._url, os.getpid())

    @property
    def folder(self) -> Path:
        """The local folder that files are written to."""
        if self._url is not None and not self._scratch.path.is_dir():  # a worker's own, on another machine
            self._scratch = ScratchFolder()
        return self._scratch.path

    def keep(self, file: Path) -> str:
        """Return the name by which all workers read a written file: its path, or the URL it is moved to.

        Raises:
            BadFile: the store does not take it.
        """
        if self._url is None:
            return str(file)
        url = f"{self._url}/{file.name}"
        fs, inner = locate(url)

        def put() -> None:
            fs.makedirs(inner.rpartition("/")[0], exist_ok=True)
            fs.put_file(str(file), inner)

        try:
            call_with_retries(put, url, "written")
        finally:
            file.unlink(missing_ok=True)
        return url

    def remove(self) -> None:
        """Remove the files now."""
        shutil.rmtree(self._scratch.path, ignore_errors=True)
        if self._url is not None:
            _remove(self._url, os.getpid())

    def check(self) -> None:
        """Check that this process can access the folder, before it works on its files.

        Raises:
            BadFile: it does not; a worker elsewhere, or the folder was removed.
        """
        if self._url is None and not self.folder.is_dir():
            raise BadFile(
                str(self.folder),
                f"this folder for temporary files is not there on {socket.gethostname()}",
                expected="one folder for temporary files that the program and all its workers share",
                remedy="gp.configure(scratch=...) with a URL or a shared folder, or TMPDIR=/a/shared/folder in the "
                "environment; no other program may remove it meanwhile",
            )

    def group_rows(self, fields: Iterable[Field]) -> int:
        """Compute how many rows a row group has."""
        return max(1, self._limit // max(1, row_bytes(fields)))

    def write(
        self, batches: Iterable[pa.RecordBatch], fields: Sequence[Field], origin: Input, first_row: int = 1
    ) -> ParquetFile:
        """Write these columns of `batches` to a file of their own, parsed from the input `origin`.

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
        group_rows = self.group_rows(fields)
        strings = [arrow.parquet_path(item) for item in fields if item.dtype in ("string", "list<string>")]
        schema = pa.schema([(item.name, _get_stored_type(item)) for item in fields])
        try:
            options: dict[str, Any] = {"use_dictionary": strings, "dictionary_pagesize_limit": GROUP_BYTES}
            with writing_scratch(path.parent), pq.ParquetWriter(path, schema, **options) as writer:
                gathered: list[pa.RecordBatch] = []
                rows = 0
                for batch in batches:
                    gathered.append(batch)
                    rows += batch.num_rows
                    if rows >= group_rows:
                        writer.write_table(
                            _cast_rows(gathered, fields, origin, first_row, schema), row_group_size=group_rows
                        )
                        first_row += rows
                        gathered, rows = [], 0
                if rows:
                    writer.write_table(
                        _cast_rows(gathered, fields, origin, first_row, schema), row_group_size=group_rows
                    )
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return open_footer(origin, self.keep(path))


def _remove(url: str, owner: int) -> None:
    if os.getpid() == owner:
        fs, inner = locate(url)
        with suppress(OSError):
            fs.rm(inner, recursive=True)


def _get_stored_type(item: Field) -> pa.DataType:
    """Return the type that `arrow.conform` returns, times with their zone."""
    element = get_element_dtype(item.dtype)
    if element is not None:
        return pa.large_list(_get_stored_type(Field("", element)))
    return pa.dictionary(pa.int32(), pa.large_string()) if item.dtype == "string" else get_file_type(item)


def _cast_rows(
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
