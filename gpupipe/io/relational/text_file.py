"""Base class of text files: opened for Polars, types inferred, rows written to Parquet by a plan."""

from __future__ import annotations

import csv
import errno
import io
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import polars as pl
import pyarrow as pa

from gpupipe.errors import BadFile, GpupipeError, PlanFailed
from gpupipe.io.relational.engine import sink
from gpupipe.io.relational.text_values import Column, find_offset_changes
from gpupipe.io.stores.file_errors import one_line
from gpupipe.io.stores.find_files import Input, is_packed, open_decompressed, peek, refuse_packed
from gpupipe.io.stores.remote_file import is_remote
from gpupipe.scratch import writing_scratch

_MARK = b"\xef\xbb\xbf"  # some editors begin a file with it
_COPIED = 1 << 20
_DAMAGE = (OSError, EOFError, UnicodeError, zlib.error, csv.Error)
REWRITTEN = "rewritten"


@contextmanager
def open_text(one: Input, folder: Path, kind: str, encoding: str = "utf-8", skip_rows: int = 0) -> Iterator[Path]:
    """Yield the path of a file's text; a compressed, remote or encoded file is copied first.

    Args:
        one: the file.
        folder: for temporary files; those of this file are removed at the end.
        kind: what the file should be, for messages.
        encoding: that of the file.
        skip_rows: lines that are left out at its beginning.

    Raises:
        BadFile: it cannot be read, or its bytes are no such text.
        PlanFailed: the engine failed, and nothing was found that is wrong with the file.
    """
    text = Path(one.path)
    try:
        if is_remote(one.path) or is_packed(one.path) or skip_rows or encoding != "utf-8" or _is_marked(text, kind):
            text = folder / "text"
            with writing_scratch(folder), open_decompressed(one) as packed, text.open("wb") as out:
                plain = encoding == "utf-8"
                source: IO[Any] = packed if plain else io.TextIOWrapper(packed, encoding, newline="")
                for _ in range(skip_rows):
                    source.readline()
                while some := source.read(_COPIED):
                    some = some if plain else some.encode()
                    out.write(some if out.tell() else some.removeprefix(_MARK))
        yield text
    except GpupipeError:  # some of which are an OSError too
        raise
    except _DAMAGE as cause:
        if isinstance(cause, OSError) and cause.errno == errno.ENOMEM:
            raise
        head = b""
        with suppress(OSError):
            head = peek(one)[1]
        refuse_packed(one.path, head)
        raise _unreadable(one, kind, encoding, cause) from cause
    except pl.exceptions.PolarsError as cause:
        raise PlanFailed(
            one.path,
            f"the engine could not parse it ({type(cause).__name__}: {one_line(cause)}); its rows are in order",
            expected="text that the engine parses",
            remedy="backend='cpu', or dtypes={...: 'string'} for columns of odd values",
        ) from cause
    finally:
        for name in ("text", REWRITTEN):
            (folder / name).unlink(missing_ok=True)


def _is_marked(path: Path, kind: str) -> bool:
    with path.open("rb") as file:
        return kind == "JSON" and file.read(len(_MARK)) == _MARK  # of CSV Polars leaves it out itself


def _unreadable(one: Input, kind: str, encoding: str, cause: Exception) -> BadFile:
    if isinstance(cause, OSError) and (cause.errno or "os error" in str(cause)):
        return BadFile(
            one.path,
            f"cannot be read ({one_line(cause)})",
            expected="a file that stays, and that this process may read",
            remedy="its permissions" if isinstance(cause, PermissionError) else "the disk it is on",
        )
    return BadFile(
        one.path,
        f"cannot be read as {kind} ({one_line(cause)})",
        expected=f"text in {encoding.upper()}",
        remedy="encoding=, as the file is written, or the right path"
        if kind == "CSV"
        else "the file written again in UTF-8, or the right path",
    )


class TextFile(ABC):
    """Base class of text files whose rows a plan writes to Parquet.

    Args:
        path: what the caller named.
        text: its text.
        backend: whose engine parses it.
        expected: what an empty file lacks.

    Raises:
        BadFile: it is empty.
    """

    def __init__(self, path: str, text: Path, backend: str, expected: str) -> None:
        self._path, self._text, self._backend = path, text, backend
        with text.open("rb") as file:
            if not any(some.strip() for some in iter(partial(file.read, _COPIED), b"")):
                raise self._empty(expected)

    def _empty(self, expected: str) -> BadFile:
        return BadFile(self._path, "the file is empty", expected=expected, remedy="write it again")

    def write(self, columns: Mapping[str, Column], target: Path, group_rows: int) -> dict[str, Column]:
        """Write columns to a Parquet file; return their final types, which later rows may have settled.

        Raises:
            BadFile: a row is none.
            SchemaMismatch: a value does not fit its column.
        """
        columns, careful = dict(columns), self._is_careful(columns)
        while True:
            try:
                plan, engine = self._plan(columns, careful=careful)
                sink(plan, self._path, self._text, target, engine, group_rows)
                if self._is_complete(target, columns):
                    break
            except pl.exceptions.PolarsError:
                if late := self._infer_late_columns(
                    [name for name, column in columns.items() if pa.types.is_null(column.kind)]
                ):
                    columns |= late
                    careful = careful or self._is_careful(columns)
                elif not careful:
                    careful = True
                elif not self._repair(columns):
                    raise
        zoned = [name for name, one in columns.items() if one.may_change(careful=careful)]
        changes = find_offset_changes(self._texts(zoned)) if zoned else {}
        return columns | {name: replace(columns[name], change=change) for name, change in changes.items()}

    def _infer_late_columns(self, names: Sequence[str]) -> dict[str, Column]:
        """Infer the types of columns without a value in the first rows, from the rows in which their values begin."""
        found: dict[str, Column] = {}
        for name in names:
            with suppress(pl.exceptions.PolarsError):
                found |= {} if name in found else self._infer_from_first_value(name, names)
        return {name: column for name, column in found.items() if not pa.types.is_null(column.kind)}

    def _is_careful(self, columns: Mapping[str, Column]) -> bool:
        """Return whether values may have forms that only the slower plan reads."""
        return False

    @abstractmethod
    def _plan(self, columns: Mapping[str, Column], *, careful: bool) -> tuple[pl.LazyFrame, str]:
        """Build the plan that parses columns, and choose its engine; a careful one accepts all forms of values."""

    @abstractmethod
    def _texts(self, names: Sequence[str]) -> pl.LazyFrame:
        """Scan columns as text."""

    @abstractmethod
    def _infer_from_first_value(self, name: str, names: Sequence[str]) -> dict[str, Column]:
        """Infer the type of a column from the rows in which its values begin, and of others with values there."""

    @abstractmethod
    def _is_complete(self, target: Path, columns: Mapping[str, Column]) -> bool:
        """Return whether the file has all values; if not, raise for the row, or rewrite the text."""

    @abstractmethod
    def _repair(self, columns: Mapping[str, Column]) -> bool:
        """Raise for the first invalid row; else rewrite the text, or return False if that has been done."""
