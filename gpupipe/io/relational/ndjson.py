"""JSON lines as plans of Polars, and what their bytes and lines tell where a plan does not."""

from __future__ import annotations

import io
import json
import logging
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe.backend.arrow_types import arrow_type, dtype_of, is_list
from gpupipe.errors import BadFile, SchemaMismatch
from gpupipe.io.relational.engine import sink
from gpupipe.io.relational.text_values import (
    BLOCK_BYTES,
    INTEGERS,
    MOST_FLOAT32,
    NAIVE,
    Column,
    as_text,
    asked_time,
    infer_time,
    parse,
    zoned_change,
)
from gpupipe.io.stores.file_errors import one_line
from gpupipe.io.stores.find_files import Input, decompressed, is_packed, peek, refuse_packed
from gpupipe.io.stores.remote_file import is_remote
from gpupipe.scratch import writing_scratch

__all__ = ["JsonFile", "open_json"]

_MARK = b"\xef\xbb\xbf"  # some editors begin a file with it
_CHUNK, _COPIED = 1 << 17, 1 << 20
_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]")
_UNREADABLE = (OSError, EOFError, UnicodeError, zlib.error)
_WORDS = {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}
_log = logging.getLogger("gpupipe")
Objects: TypeAlias = Callable[[], Iterator[dict[str, Any]]]
"""Gives the objects of JSON at some place in the rows, from the first row on at each call."""


@contextmanager
def open_json(one: Input, folder: Path, backend: str, *, is_whole: bool) -> Iterator[JsonFile]:
    """Open a file; one that is packed, in a store, or begins with a byte-order mark is copied to `folder` first.

    Args:
        one: the file.
        folder: for temporary files.
        backend: whose engine parses it.
        is_whole: whether all columns are wanted, so that a new one is an error.

    Raises:
        BadFile: it is empty, or cannot be read.
    """
    text, copy = Path(one.path), folder / "text"
    try:
        with decompressed(one) as file:
            head = file.read(len(_MARK))
            if is_remote(one.path) or is_packed(one.path) or head == _MARK:
                text = copy
                with writing_scratch(folder), copy.open("wb") as out:
                    out.write(head.removeprefix(_MARK))
                    while some := file.read(_COPIED):
                        out.write(some)
        yield JsonFile(one.path, text, backend, is_whole=is_whole)
    except BadFile:
        raise
    except (*_UNREADABLE, pl.exceptions.PolarsError) as cause:
        refuse_packed(one.path, peek(one)[1])
        raise BadFile(
            one.path,
            f"cannot be read as JSON ({one_line(cause)})",
            expected="text in UTF-8, an object in braces per line",
            remedy="write it as UTF-8, or the right path",
        ) from cause
    finally:
        copy.unlink(missing_ok=True)


class JsonFile:
    """A file whose rows a plan writes to Parquet.

    Attributes:
        new: columns that the first lines of the first file do not have, and where they begin.
        left_out: columns that are known, and not wanted.

    Raises:
        BadFile: it is empty.
    """

    def __init__(self, path: str, text: Path, backend: str, *, is_whole: bool) -> None:
        self._path, self._text, self._backend, self._is_whole = path, text, backend, is_whole
        self.new: dict[str, int] = {}
        self.left_out: AbstractSet[str] = set()

    def infer(self, asked: Mapping[str, str]) -> dict[str, Column]:
        """Find the columns and their types in the first `BLOCK_BYTES`, but for the types that are asked for."""
        head = self._head()
        kinds = {name: arrow_type(dtype) for name, dtype in asked.items()}
        try:
            frame = pl.read_ndjson(io.BytesIO(head), infer_schema_length=None)
        except pl.exceptions.PolarsError:
            self._look(head.splitlines(keepends=True), {name: Column(kind) for name, kind in kinds.items()}, set())
            raise
        rows, found = partial(self._rows, head), {}
        for name in dict.fromkeys([*_in_order(frame.columns, rows()), *asked]):
            dtype = frame.schema.get(name)
            texts = frame[name].drop_nulls().unique() if dtype == pl.String else pl.Series(dtype=pl.String)
            if name in asked:
                found[name] = asked_time(texts) if asked[name] == "timestamp" else Column(kinds[name], is_asked=True)
            elif dtype == pl.String:
                found[name] = infer_time(texts) or as_text(texts)
            elif dtype == pl.List(pl.String):
                found[name] = Column(pa.large_list(self._element(head, name)))
            else:
                found[name] = Column(_kind(dtype, partial(_below, rows, name)))
        return found

    def _head(self) -> bytes:
        with self._text.open("rb") as file:
            head = file.read(BLOCK_BYTES)
            rest = file.readline()
        if rest:
            head = head[: head.rfind(b"\n") + 1] or head + rest
        if not head.strip():
            raise BadFile(self._path, "the file is empty", expected="a JSON object per line", remedy="write it again")
        return head

    def _element(self, head: bytes, name: str) -> pa.DataType:
        """The type of what is in lists that Polars takes for text: large integers and fractions may be among it."""
        lists = (one.get(name) or () for one in self._rows(head))
        types = {type(leaf) for values in lists for leaf in values if leaf is not None}
        if types <= {int, float}:
            return pa.float64() if float in types else pa.uint64()
        return arrow_type("string")

    def write(self, columns: Mapping[str, Column], target: Path, group_rows: int) -> dict[str, str]:
        """Write these columns to a Parquet file; gives what becomes of values that the first lines did not show.

        Raises:
            BadFile: a line is no JSON object.
            SchemaMismatch: a value does not fit its column.
        """
        self._head()
        backend, careful = self._backend, False
        if backend == "gpu" and any(pa.types.is_nested(column.kind) for column in columns.values()):
            _log.info("%s: has lists or objects in it, which cudf-polars does not read; the CPU parses it", self._path)
            backend = "cpu"
        while True:
            try:
                sink(self._plan(columns, backend, careful=careful), self._text, target, backend, group_rows)
                break
            except pl.exceptions.PolarsError:
                if careful or not any(column.format for column in columns.values()):
                    self._look_over(columns)
                    raise
                careful = True
        if not self._is_as_counted(columns, target):
            self._look_over(columns)
        zoned = [name for name, column in columns.items() if column.kind == pa.timestamp("us", "UTC")]
        zoned = [name for name in zoned if careful and not columns[name].change]
        return zoned_change(pl.scan_ndjson(self._text, schema=dict.fromkeys(zoned, pl.String))) if zoned else {}

    def _plan(self, columns: Mapping[str, Column], backend: str, *, careful: bool) -> pl.LazyFrame:
        # A GPU's parser makes a value that does not fit a missing one; of its casts it is an error.
        schema = {name: pl.String if backend == "gpu" else _scanned(column.kind) for name, column in columns.items()}
        frame = pl.scan_ndjson(self._text, schema=schema)
        return frame.select(
            _value(pl.col(name), column, careful=careful, on_gpu=backend == "gpu").alias(name)
            for name, column in columns.items()
        )

    def _is_as_counted(self, columns: Mapping[str, Column], target: Path) -> bool:
        """Tell whether the values that were written are as many, and as many of them text, as the bytes say.

        Polars makes text of a number where it expects text, and leaves out keys that the schema does not have.
        """
        names: dict[str | None, str] = {None: '"'}
        written = _written(target, columns)
        if not self._is_whole:  # a CPU's parser refuses numbers that do not fit
            doubtful = [name for name in columns if written[name][1] or self._backend == "gpu"]
            names = {name: json.dumps(name, ensure_ascii=False) for name in doubtful}
        found = _count(self._text, [*names.values()])
        if found is None:
            return False
        for name, (keys, strings) in zip(names, found, strict=True):
            of_name = [each for column, each in written.items() if name in (None, column)]
            if keys != sum(each[0] for each in of_name):
                return False
            texts = sum(each[1] for each in of_name)
            if strings != texts and (name is None or texts):
                return False
        return True

    def _look_over(self, columns: Mapping[str, Column]) -> None:
        with self._text.open("rb") as file:
            self._look(file, columns, set(columns))

    def _look(self, lines: Iterable[bytes], columns: Mapping[str, Column], known: AbstractSet[str]) -> None:
        """Raise for the first line that is no object, or has a value that does not fit its column.

        Args:
            lines: the lines.
            columns: the columns.
            known: the columns that may be there; all where there is none, whose first values show what they are.
        """
        first: dict[str, str] = {}
        times = {name: column for name, column in columns.items() if pa.types.is_timestamp(column.kind)}
        texts: dict[str, dict[int, str]] = {name: {} for name in times}
        for row, line in enumerate(lines, 1):
            for name, value in self._object(line, row).items() if line.strip() else ():
                column = columns.get(name)
                if column is None and known:
                    if self._is_whole and name not in self.left_out:
                        self.new.setdefault(name, row)
                elif value is not None:
                    if column is None or (pa.types.is_large_string(column.kind) and not column.is_asked):
                        self._check_word(value, first.setdefault(name, _WORDS[type(value)]), name, row)
                    elif name in times and isinstance(value, str):
                        texts[name][row] = value
                    else:
                        self._check_value(value, column.kind, name, row)
            if row % _LOOKED_AT == 0:
                self._check_times(texts, times)
        self._check_times(texts, times)

    def _check_word(self, value: object, first: str, name: str, row: int) -> None:
        if _WORDS[type(value)] != first:
            raise self._unfit(row, name, value, f"{first}, as in the rows before")

    def _check_value(self, value: object, kind: pa.DataType, name: str, row: int) -> None:
        for path, leaf, wanted in _misfits(value, kind, name):
            if wanted is not None:
                raise self._unfit(row, name, leaf, f"{dtype_of(wanted)}; types are {_SOURCE}")
            self.new.setdefault(path, row)

    def _check_times(self, texts: Mapping[str, dict[int, str]], times: Mapping[str, Column]) -> None:
        for name, column in times.items():
            frame = pl.DataFrame({"": [*texts[name].values()]}, schema={"": pl.String})
            unfit = frame.select(parse(pl.col(""), column, strict=False).is_null()).to_series().arg_true()
            if len(unfit):
                row = [*texts[name]][unfit[0]]
                raise self._unfit(row, name, texts[name][row], f"timestamp; types are {_SOURCE}")
            texts[name].clear()

    def _rows(self, head: bytes) -> Iterator[dict[str, Any]]:
        return (self._object(line, row) for row, line in enumerate(head.splitlines(), 1) if line.strip())

    def _object(self, line: bytes, row: int) -> dict[str, Any]:
        text = line.strip()
        try:
            return _parsed(text)
        except (ValueError, RecursionError) as cause:
            refuse_packed(self._path, text)
            raise BadFile(
                self._path,
                f"row {row} is no JSON object ({one_line(cause)})",
                got=text[:80],
                expected="an object in braces per line",
                remedy="the file written again, one object per line",
            ) from cause

    def _unfit(self, row: int, name: str, value: object, expected: str) -> SchemaMismatch:
        as_text = isinstance(value, str)
        rounds = type(value) is int and expected.startswith(("int", "uint", "number"))
        remedy = (
            f"T.Cast({{{name!r}: ...}}) of text, where all values are in quotes"
            if as_text
            else f"dtypes={{{name!r}: 'float64'}}, which rounds"
            if rounds
            else f"columns=[...] without {name!r}"
        )
        return SchemaMismatch(
            self._path,
            f"row {row}, column {name!r} does not fit",
            got=value,
            expected=expected,
            remedy=f"{remedy}; or the file written again with values of one type",
        )


def _value(source: pl.Expr, column: Column, *, careful: bool, on_gpu: bool) -> pl.Expr:
    """A column as it is written."""
    kind = column.kind
    if on_gpu or pa.types.is_timestamp(kind) or pa.types.is_null(kind):
        return parse(source, column, careful=careful, on_gpu=on_gpu)
    if pa.types.is_float32(kind):
        beyond = source.is_finite() & (source.abs() >= MOST_FLOAT32)
        refused = pl.when(beyond).then(pl.lit("beyond float32")).cast(pl.Float32)
        return pl.when(beyond).then(refused).otherwise(source.cast(pl.Float32))
    if pa.types.is_integer(kind):
        return source.cast(INTEGERS[str(kind)])
    if is_list(kind) and column.is_asked:
        element = replace(column, kind=kind.value_type, formats=NAIVE)
        return source.list.eval(_value(pl.element(), element, careful=True, on_gpu=False))
    return source


def _scanned(kind: pa.DataType) -> Any:
    """The type of Polars that a column is scanned as; its reader knows few."""
    if pa.types.is_struct(kind):
        return pl.Struct({item.name: _scanned(item.type) for item in kind.fields})
    if is_list(kind):
        return pl.List(_scanned(kind.value_type))
    if pa.types.is_boolean(kind):
        return pl.Boolean
    if pa.types.is_floating(kind):
        return pl.Float64
    if pa.types.is_integer(kind):
        return pl.UInt64 if kind == pa.uint64() else pl.Int64
    return pl.String


def _kind(dtype: Any, objects: Objects, *, is_inside: bool = False) -> pa.DataType:
    """The type of what Polars has found; integers that it says have 128 bits are taken for those of 64 without sign.

    Args:
        dtype: of Polars.
        objects: those among the values.
        is_inside: whether the values are those of a key or a list within a column.
    """
    if isinstance(dtype, pl.Struct):
        below = {item.name: partial(_below, objects, item.name) for item in dtype.fields}
        kinds = {item.name: _kind(item.dtype, below[item.name], is_inside=True) for item in dtype.fields}
        return pa.struct([(name, kinds[name]) for name in _in_order([*kinds], objects())])
    if isinstance(dtype, pl.List):
        return pa.large_list(_kind(dtype.inner, objects, is_inside=True))
    if dtype == pl.Int128:
        return pa.uint64()
    if dtype == pl.Null:
        return pa.float64() if is_inside else pa.null()
    plain = {"Int64": pa.int64(), "Float64": pa.float64(), "Boolean": pa.bool_()}
    return plain.get(str(dtype), pa.large_string())


def _misfits(value: Any, kind: pa.DataType, path: str) -> Iterator[tuple[str, Any, pa.DataType | None]]:
    """What of a value does not fit a type: where, the value and its type; no type for a key that the type has not."""
    if value is None:
        return
    if pa.types.is_struct(kind) and isinstance(value, dict):
        for name, inner in value.items():
            place = kind.get_field_index(name)
            if place < 0:
                yield f"{path}.{name}", inner, None
            else:
                yield from _misfits(inner, kind.field(place).type, f"{path}.{name}")
    elif is_list(kind) and isinstance(value, list):
        for inner in value:
            yield from _misfits(inner, kind.value_type, path)
    elif not _fits(value, kind):
        yield path, value, kind


def _fits(value: Any, kind: pa.DataType) -> bool:
    if _is_text(kind):
        return isinstance(value, str)
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if pa.types.is_integer(kind):
        bits, signed = kind.bit_width, pa.types.is_signed_integer(kind)
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
        return isinstance(value, int) and low <= value < high
    return bool(pa.types.is_floating(kind)) and (not pa.types.is_float32(kind) or abs(value) < MOST_FLOAT32)


def _parsed(text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise ValueError("does not begin with {")
    found: dict[str, Any] = json.loads(text, object_pairs_hook=_distinct, parse_float=_finite, parse_constant=_finite)
    if _LONE_SURROGATE.search(text):
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} is there twice")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"no finite number: {text}")
    return value


def _count(path: Path, names: Sequence[str]) -> list[tuple[int, int]] | None:
    """For each beginning of a key how many values it has, and how many of them are text; None where that is not sure.

    A quotation mark and a colon are the end of a key wherever they stand, and null is all that begins with an n.

    Args:
        path: the file.
        names: the keys as they are written, or a quotation mark for all.

    Memory: an eighth of a MiB or a line, and some arrays as long.
    """
    found = np.zeros((len(names), 2), np.int64)
    with path.open("rb") as file:
        while some := file.read(_CHUNK):
            some += file.readline()
            if b"\\" in some:
                if b"\\u" in some and _LONE_SURROGATE.search(some):
                    return None
                some = some.replace(b"\\\\", b"").replace(b'\\"', b"")
            if names == ['"']:
                text = np.frombuffer(some, np.uint8)
                quotes = text == _QUOTE
                ends = quotes[:-3] & (text[1:-2] == _COLON)
                keys = np.count_nonzero(ends)
                missing = int(np.count_nonzero(ends & (text[2:-1] == _N)))
                spaced = ends & (text[2:-1] == _SPACE)
                if spaced.any():
                    missing += int(np.count_nonzero(spaced & (text[3:] == _N)))
                found[0] += keys - missing, np.count_nonzero(quotes) // 2 - keys
            else:
                for place, name in enumerate(names):
                    key = f"{name}:".encode()
                    nulls = some.count(key + b"null") + some.count(key + b" null")
                    strings = some.count(key + b'"') + some.count(key + b' "')
                    found[place] += some.count(key) - nulls, strings
    return [(int(keys), int(strings)) for keys, strings in found]


def _written(path: Path, columns: Mapping[str, Column]) -> dict[str, tuple[int, ...]]:
    """Of each column of a Parquet file how many values it has, those of fields within it too, and how many are text."""
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    nested = [name for name, column in columns.items() if pa.types.is_nested(column.kind)]
    found: dict[str, tuple[int, ...]] = {}
    for group in groups:
        for place in range(group.num_columns):
            chunk = group.column(place)
            name = chunk.path_in_schema
            if name in columns and name not in nested:
                values = chunk.num_values - chunk.statistics.null_count
                keys, strings = found.get(name, (0, 0))
                found[name] = keys + values, strings + (values if _is_text(columns[name].kind) else 0)
    frame = pl.scan_parquet(path, glob=False)
    for name in nested:
        leaves = [*_leaves(pl.col(name), columns[name].kind)]
        of_keys = [each.count() for each, _, is_key in leaves if is_key]
        of_texts = [each.count() for each, kind, _ in leaves if _is_text(kind)]
        sums = [pl.sum_horizontal(pl.lit(0), *each) for each in (of_keys, of_texts)]
        found[name] = tuple(frame.select(one).collect(engine="streaming").item() for one in sums)
    return {name: found.get(name, (0, 0)) for name in columns}


def _in_order(names: Sequence[str], objects: Iterable[dict[str, Any]]) -> list[str]:
    """The keys of objects in the order of their first appearance; Polars keeps it for up to 32."""
    found: dict[str, None] = {}
    for one in objects if len(names) > _ORDERED else ():
        found |= dict.fromkeys(one)
        if len(found) >= len(names):
            break
    return list(dict.fromkeys([*found, *names]))


def _below(objects: Objects, name: str) -> Iterator[dict[str, Any]]:
    """The objects that objects have at a key, those in lists too."""
    return _objects(one.get(name) for one in objects())


def _objects(values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for value in values:
        if isinstance(value, list):
            yield from _objects(value)
        elif isinstance(value, dict):
            yield value


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_timestamp(kind))


def _leaves(source: pl.Expr, kind: pa.DataType, *, is_key: bool = True) -> Iterator[tuple[pl.Expr, pa.DataType, bool]]:
    """A column and all that is within it: the values, their type, and whether each has a key."""
    yield source, kind, is_key
    if pa.types.is_struct(kind):
        for item in kind.fields:
            yield from _leaves(source.struct.field(item.name), item.type)
    elif is_list(kind):
        yield from _leaves(source.explode(empty_as_null=False), kind.value_type, is_key=False)


_QUOTE, _COLON, _N, _SPACE = b'":n '
_LOOKED_AT = 50_000
_ORDERED = 32
_SOURCE = f"as asked for or as in the first {BLOCK_BYTES >> 20} MiB"
