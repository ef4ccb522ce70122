"""Base class of text files: opened for Polars, types inferred, rows written to Parquet by a plan."""

from __future__ import annotations

import codecs
import csv
import errno
import io
import lzma
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
import pyarrow as pa

from gpupipe.backend.arrow import arrow_type
from gpupipe.backend.byte_masks import BLOCK
from gpupipe.backend.columns import Array
from gpupipe.errors import BadFile, GpupipeError, PlanFailed
from gpupipe.expressions.translate import POLARS_TYPES
from gpupipe.files import writing_scratch
from gpupipe.io.relational.engine import sink
from gpupipe.io.relational.time_formats import (
    NANOSECONDS,
    UTC,
    TimeFormats,
    has_leap,
    invalidate,
    is_missing,
    parse_times,
)
from gpupipe.io.stores import Input, is_packed, is_remote, one_line, open_decompressed, peek, refuse_packed

BLOCK_BYTES = 8 << 20  # types that are not given are inferred from so much text at the beginning of the first file
_ISO = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}.*)?$"
_OFFSET_OF_UTC = r"(Z|[+-]00(:?00)?)$"
_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]
MOST_FLOAT32 = 3.4028235677973366e38  # what rounds to infinity from here on
_EXACT = 2**53
_ISO_ALONE = TimeFormats()

BEYOND_64_BITS = "has integers that no type of 64 bits holds, read as string"
LEADING_ZEROS = "has integers with leading zeros, read as string"
OFFSETS = "written with offsets from UTC, read as the same times in UTC"
MIXED = "times with an offset from UTC and times without, read as text"
LEAP = "times with a leap second, 23:59:60, which no type here holds, read as text"


@dataclass(frozen=True)
class Column:
    """Type and time formats that a text column is parsed with."""

    kind: pa.DataType  # null where no value has shown it
    format: str | None = None  # of times, the one that all of the first rows have, if any; of numbers like times
    formats: tuple[str, ...] = ()  # of times, all that are tried in turn
    own_formats: tuple[str, ...] = ()  # those of them that the caller named
    is_asked: bool = False  # the caller named the type
    change: str = ""  # what becomes of the values, for a note
    adapted: str = ""  # why numbers are text, for the log


def infer(texts: pl.Series, numbers: pl.Series, dtype: str | None, formats: TimeFormats) -> Column:
    """Infer the type of a text column from all texts of some rows, null where a value is missing.

    `numbers` are the same with a decimal point and without separators of thousands.
    """
    if dtype is not None and dtype != "timestamp":
        return Column(arrow_type(dtype), is_asked=True)
    present, numbers = texts.drop_nulls().unique(), numbers.drop_nulls().unique().str.strip_chars()
    if dtype is not None:
        # A column has times with an offset, or times without.
        naive, zoned = formats.by_kind()
        kind, own_formats, tried = zoned if zoned[1] and not naive[1] else naive
        return replace(infer_time(present, formats) or Column(kind, None, tried, own_formats), is_asked=True)
    if present.is_empty():
        return Column(pa.null())
    # Without its dots 11.02.2024 would be a number, where they separate thousands.
    if (
        formats.own_formats
        and not _fits(present.str.strip_chars(), pl.Float64)
        and (column := infer_time(present, formats))
    ):
        return column
    is_integer = _all_match(numbers, r"^[-+]?[0-9]+$")
    if is_integer or _fits(numbers, pl.Float64):
        column = _infer_integer(numbers) if is_integer else Column(pa.float64())
        like_times = infer_time(present, replace(formats, with_iso=False)) if formats.own_formats else None
        return replace(column, format=like_times.format or like_times.formats[0]) if like_times else column
    if numbers.is_in([*_TRUE, *_FALSE]).all():
        return Column(pa.bool_())
    return infer_text(present, formats)


def infer_text(present: pl.Series, formats: TimeFormats = _ISO_ALONE) -> Column:
    """Infer a column of times, or of text for texts that are not all times; note leap seconds and mixed offsets."""
    if column := infer_time(present, formats):
        return column
    frame = pl.DataFrame({"": present})
    no_iso = not formats.own_formats and not _all_match(present.head(1), _ISO)  # to try all formats on it takes 20 ms
    if no_iso:
        return Column(arrow_type("string"))
    is_leap = has_leap(present, formats.own_formats)
    remainder = present.filter(~is_leap)
    first = pl.DataFrame({"": remainder.head(1)})
    if len(first) and all(is_missing(first, tried, kind).all() for kind, _, tried in formats.by_kind()):
        return Column(arrow_type("string"))
    if is_leap.any() and (remainder.is_empty() or infer_time(remainder, formats) is not None):
        return Column(arrow_type("string"), change=LEAP)
    without, with_offset = (~is_missing(frame, tried, kind) for kind, _, tried in formats.by_kind())
    is_mixed = without.any() and with_offset.any() and (without | with_offset).all()
    return Column(arrow_type("string"), change=MIXED if is_mixed else "")


def _infer_integer(numbers: pl.Series) -> Column:
    if numbers.str.contains("^[-+]?0[0-9]").any():
        return Column(arrow_type("string"), adapted=LEADING_ZEROS)
    if not numbers.str.starts_with("+").any():
        for kind, polars_kind in ((pa.int64(), pl.Int64), (pa.uint64(), pl.UInt64)):
            if _fits(numbers, polars_kind):
                return Column(kind)
    elif _fits(numbers, pl.Int64) and numbers.cast(pl.Int64).is_between(-_EXACT, _EXACT).all():
        return Column(pa.float64())
    return Column(arrow_type("string"), adapted=BEYOND_64_BITS)


def infer_time(present: pl.Series, formats: TimeFormats = _ISO_ALONE) -> Column | None:
    """Infer the formats of texts that are all times, all with an offset from UTC or all without; else return None."""
    if (
        present.is_empty()
        or has_leap(present, formats.own_formats).any()
        or not (formats.own_formats or _all_match(present, _ISO))
    ):
        return None
    frame = pl.DataFrame({"": present})
    for kind, own_formats, tried in formats.by_kind():
        fitting = [form for form in tried if not is_missing(frame.head(1), (form,), kind).item()]
        if not fitting:
            continue
        whole = next((form for form in fitting if not is_missing(frame, (form,), kind).any()), None)
        if whole is not None or not is_missing(frame, tried, kind).any():
            unit = "ns" if present.str.contains(NANOSECONDS).any() else "us"
            change = "" if kind.tz is None or _all_match(present, _OFFSET_OF_UTC) else OFFSETS
            return Column(pa.timestamp(unit, kind.tz), whole, tried, own_formats, change=change)
    return None


def parse(text: pl.Expr, column: Column, *, careful: bool = True, strict: bool = True, on_gpu: bool = False) -> pl.Expr:
    """Build the expression that parses a column of text as `column` says.

    Where it is not `careful`, times are in the one format of the first rows; where it is not `strict`, a text that does
    not fit becomes missing; where it is `on_gpu`, cudf-polars runs the plan.
    """
    kind = column.kind
    if pa.types.is_large_string(kind):
        return text
    if pa.types.is_timestamp(kind):
        formats = sorted(column.formats, key=lambda form: form != column.format)
        formats = formats if careful or column.format is None else formats[:1]
        return parse_times(text, formats, column.own_formats, kind, strict=strict, on_gpu=on_gpu)
    if pa.types.is_null(kind):
        return invalidate(text, text.is_not_null()).cast(pl.Float64, strict=strict)
    text = text.str.strip_chars()
    if pa.types.is_boolean(kind):
        is_true, is_false = text.is_in([*_TRUE, "1"]), text.is_in([*_FALSE, "0"])
        digit = pl.when(is_true).then(pl.lit("1")).when(is_false).then(pl.lit("0")).otherwise(pl.lit("no ") + text)
        return digit.cast(pl.Int8, strict=strict).cast(pl.Boolean)
    if pa.types.is_float32(kind):
        wide = text.cast(pl.Float64, strict=False)
        text = invalidate(text, wide.is_finite() & (wide.abs() >= MOST_FLOAT32))
        return text.cast(pl.Float64, strict=strict).cast(pl.Float32)
    if pa.types.is_integer(kind):
        if not column.is_asked:
            text = invalidate(text, text.str.contains("^([+]|-?0[0-9])"))
        return text.cast(POLARS_TYPES[str(kind)], strict=strict)
    return text.cast(pl.Float64, strict=strict)


def _all_match(texts: pl.Series, pattern: str) -> bool:
    return bool(texts.str.contains(pattern).all())


def _fits(texts: pl.Series, kind: type[pl.DataType]) -> bool:
    return bool(texts.cast(kind, strict=False).null_count() == 0)


_READERS = {
    b"PAR1": "gp.read_parquet({!r})",
    b"ARROW1": "gp.read_ipc({!r})",
    **dict.fromkeys((b"PK\x03\x04", b"\xd0\xcf\x11\xe0"), "gp.from_frame(pandas.read_excel({!r}))"),
}
"""What reads files of other formats, by their first bytes."""
_MARK = b"\xef\xbb\xbf"  # some editors begin a file with it
_COPIED = 1 << 20
_PART_BYTES = 4 << 20  # that one thread scans at a time
# The last is zipfile's, of a method of compression that it does not know.
_DAMAGED_PACKING = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError)
_DAMAGE = (OSError, UnicodeError, csv.Error, *_DAMAGED_PACKING)
REWRITTEN = "rewritten"


@contextmanager
def open_text(file: Input, folder: Path, kind: str, encoding: str = "utf-8", skip_rows: int = 0) -> Iterator[Path]:
    """Yield the path of a file's text; a compressed, remote or encoded file is copied to `folder` first.

    `kind` is what the file should be, for messages; `skip_rows` lines are left out at its beginning. A file that cannot
    be read is a BadFile, a failure of the engine a PlanFailed.
    """
    text = Path(file.path)
    try:
        if is_remote(file.path) or is_packed(file.path) or skip_rows or encoding != "utf-8" or _is_marked(text, kind):
            text = folder / "text"
            with writing_scratch(folder), open_decompressed(file) as packed, text.open("wb") as out:
                plain = encoding == "utf-8"
                source: IO[Any] = packed if plain else io.TextIOWrapper(packed, encoding, newline="")
                for _ in range(skip_rows):
                    source.readline()
                while block := source.read(_COPIED):
                    block = block if plain else block.encode()
                    out.write(block if out.tell() else block.removeprefix(_MARK))
        yield text
    except GpupipeError:  # some of which are an OSError too
        raise
    except _DAMAGE as cause:
        if isinstance(cause, OSError) and cause.errno == errno.ENOMEM:
            raise
        head = b""
        with suppress(OSError):
            head = peek(file)[1]
        refuse_packed(file.path, head)
        raise _unreadable(file, kind, encoding, cause, head) from cause
    except pl.exceptions.PolarsError as cause:
        problem = f"the engine could not parse it ({type(cause).__name__}: {one_line(cause)}); its rows are in order"
        remedy = "backend='cpu', or dtypes={...: 'string'} for columns of odd values"
        raise PlanFailed(file.path, problem, expected="text that the engine parses", remedy=remedy) from cause
    finally:
        for name in ("text", REWRITTEN):
            (folder / name).unlink(missing_ok=True)


def _is_marked(path: Path, kind: str) -> bool:
    with path.open("rb") as file:
        return kind == "JSON" and file.read(len(_MARK)) == _MARK  # of CSV Polars leaves it out itself


def _unreadable(file: Input, kind: str, encoding: str, cause: Exception, head: bytes) -> BadFile:
    problem, expected = f"cannot be read as {kind} ({one_line(cause)})", f"text in {encoding.upper()}"
    remedy = "the file written again in UTF-8, or the right path"
    if isinstance(cause, OSError) and (cause.errno or "os error" in str(cause)):
        problem, expected = f"cannot be read ({one_line(cause)})", "a file that stays, and that this process may read"
        remedy = "its permissions" if isinstance(cause, PermissionError) else "the disk it is on"
    elif is_packed(file.path) and not isinstance(cause, (UnicodeError, csv.Error)):
        problem, expected = f"cannot be unpacked ({one_line(cause)})", "a whole packed file"
        remedy = "the file copied or packed again"
    elif not is_packed(file.path) and (
        reader := next((reader for magic, reader in _READERS.items() if head.startswith(magic)), None)
    ):
        remedy = f"{reader.format(file.path)}, by the file's first bytes"
    elif kind == "CSV":
        is_utf_16 = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        remedy = "encoding='utf-16'" if is_utf_16 else "encoding=, as the file is written, or the right path"
    return BadFile(file.path, problem, expected=expected, remedy=remedy)


def cut_lines(path: Path) -> Iterator[tuple[int, int]]:
    """Cut a file into parts of whole lines, of some MiB: yield the offsets of the first byte, and behind the last."""
    size, start = path.stat().st_size, 0
    with path.open("rb") as file:
        while start < size:
            file.seek(start + _PART_BYTES - 1)
            file.readline()
            stop = min(file.tell(), size)
            yield start, stop
            start = stop


def read_lines(path: Path, start: int, stop: int) -> Array:
    """Read a part of a file as uint8, with zeros behind it up to a multiple of `BLOCK`, and a `BLOCK` more.

    A last line without a line end gets one, but not after a carriage return, which is no line end by itself.
    """
    text: Array = np.empty((-(-(stop - start) // BLOCK) + 1) * BLOCK, np.uint8)
    with path.open("rb") as file:
        file.seek(start)
        size = file.readinto(text[: stop - start])
    text[size:] = 0
    if text[size - 1] not in b"\n\r":
        text[size] = ord("\n")
    return text


class TextFile(ABC):
    """Base class of text files, `path` to the caller, whose rows a plan writes to Parquet.

    `backend` says whose engine parses `text`, and `expected` what an empty file lacks.
    """

    def __init__(self, path: str, text: Path, backend: str, expected: str) -> None:
        self._path, self._text, self._backend = path, text, backend
        with text.open("rb") as file:
            if not any(block.strip() for block in iter(partial(file.read, _COPIED), b"")):
                raise self._empty(expected)

    def _empty(self, expected: str) -> BadFile:
        return BadFile(self._path, "the file is empty", expected=expected, remedy="write it again")

    def write(self, columns: Mapping[str, Column], target: Path, group_rows: int) -> dict[str, Column]:
        """Write columns to a Parquet file; return their final types, which later rows may have settled."""
        columns, careful = dict(columns), self._is_careful(columns)
        while True:
            try:
                plan, engine = self._plan(columns, careful=careful)
                sink(plan, self._path, self._text, target, engine, group_rows)
                if self._is_complete(target, columns):
                    break
            except pl.exceptions.PolarsError:
                empty = [name for name, column in columns.items() if pa.types.is_null(column.kind)]
                if late := self._infer_late_columns(empty):
                    columns |= late
                    careful = careful or self._is_careful(columns)
                elif not careful:
                    careful = True
                elif not self._repair(columns):
                    raise
        times = {name: column for name, column in columns.items() if column.kind == UTC and not column.change}
        # A format that ends in Z parses no other offset.
        zoned = [name for name, column in times.items() if careful or not (column.format or "").endswith("Z")]
        if zoned:
            has_offsets = (~pl.all().str.contains(_OFFSET_OF_UTC)).any()
            flags = self._texts(zoned).select(has_offsets).collect(engine="streaming")
            columns |= {name: replace(columns[name], change=OFFSETS) for name in zoned if flags[name].item()}
        return columns

    def _infer_late_columns(self, names: Sequence[str]) -> dict[str, Column]:
        """Infer the types of columns without a value in the first rows, from the rows in which their values begin."""
        columns: dict[str, Column] = {}
        for name in names:
            with suppress(pl.exceptions.PolarsError):
                columns |= {} if name in columns else self._infer_from_first_value(name, names)
        return {name: column for name, column in columns.items() if not pa.types.is_null(column.kind)}

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
