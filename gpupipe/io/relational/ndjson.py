"""JSON lines as Polars plans, with checks of the bytes for values that the plan would lose."""

from __future__ import annotations

import io
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe.backend.arrow import arrow_type, dtype_from_arrow, is_list
from gpupipe.backend.byte_masks import BLOCK, count_bits, fill_quoted, find_byte, shift_mask
from gpupipe.backend.columns import Array
from gpupipe.backend.compiled import compile_loop, inline
from gpupipe.cluster.executor import Executor
from gpupipe.errors import BadFile, SchemaMismatch
from gpupipe.expressions.translate import POLARS_TYPES
from gpupipe.io.relational.text_file import (
    BLOCK_BYTES,
    MOST_FLOAT32,
    Column,
    TextFile,
    cut_lines,
    infer,
    infer_text,
    parse,
    read_lines,
)
from gpupipe.io.relational.time_formats import NAIVE, TimeFormats
from gpupipe.io.stores import one_line, refuse_packed
from gpupipe.schema import FLOATS, INTEGERS, get_element_dtype, to_list_dtype

_QUOTE, _COLON, _N, _U, _SPACE, _BACKSLASH = b'":nu \\'
_LOOKED_AT = 50_000
_ORDERED = 32
_ROW = "⟨row⟩"
_SOURCE = "as asked for or as the first values show"
_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]")
_CONSTANTS = ("NaN", "Infinity", "-Infinity")  # which Python's json writes
_WORDS = {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}
_log = logging.getLogger("gpupipe")
Objects: TypeAlias = Callable[[], Iterator[dict[str, Any]]]
"""Gives the objects of JSON at some place in the rows, from the first row on at each call."""


class JsonFile(TextFile):
    """JSON Lines file: an object per line; if `is_whole`, all columns are wanted, so that a new one is an error."""

    def __init__(self, path: str, text: Path, backend: str, *, is_whole: bool, is_first: bool) -> None:
        super().__init__(path, text, backend, "a JSON object per line")
        self._is_whole, self._is_first = is_whole, is_first
        self.new: dict[str, int] = {}  # columns that the first lines of the first file do not have, and their rows
        self.left_out: AbstractSet[str] = set()  # columns that are known, and not wanted

    def infer(self, dtypes: Mapping[str, str]) -> dict[str, Column]:
        """Infer the columns and their types from the first `BLOCK_BYTES`; requested types take precedence."""
        head = self._block()
        try:
            return self._infer_columns(head, dtypes)
        except pl.exceptions.PolarsError:
            columns = {name: Column(arrow_type(dtype)) for name, dtype in dtypes.items()}
            self._check_lines(head.splitlines(keepends=True), columns, is_first=True)
            raise

    def _infer_columns(self, block: bytes, dtypes: Mapping[str, str]) -> dict[str, Column]:
        frame, columns = pl.read_ndjson(io.BytesIO(block), infer_schema_length=None), {}

        def rows() -> Iterator[dict[str, Any]]:
            return (self._object(line, row) for row, line in enumerate(block.splitlines(), 1) if line.strip())

        for name in dict.fromkeys([*_order_keys(frame.columns, rows()), *dtypes]):
            dtype = frame.schema.get(name)
            texts = frame[name].drop_nulls().unique() if dtype == pl.String else pl.Series(dtype=pl.String)
            if name in dtypes:
                columns[name] = infer(texts, texts, dtypes[name], TimeFormats())
            elif dtype == pl.String:
                columns[name] = infer_text(texts)
            elif dtype == pl.List(pl.String):
                # Polars reads lists of large integers and floats as text, too.
                lists = (record.get(name) or () for record in rows())
                types = {type(leaf) for values in lists for leaf in values if leaf is not None}
                number = pa.float64() if float in types else pa.uint64()
                columns[name] = Column(pa.large_list(number if types <= {int, float} else pa.large_string()))
            else:
                columns[name] = Column(_infer_type(dtype, partial(_iter_objects_at, rows, name)))
        return columns

    def _block(self, row: int = 0) -> bytes:
        """Read whole lines of about `BLOCK_BYTES`, from a row on."""
        with self._text.open("rb") as file:
            first = next(islice(filter(bytes.strip, file), row, None)) if row else b""
            head = first + file.read(BLOCK_BYTES)
            remainder = file.readline()
        return head[: head.rfind(b"\n") + 1] or head + remainder if remainder else head

    def _plan(self, columns: Mapping[str, Column], *, careful: bool) -> tuple[pl.LazyFrame, str]:
        engine = self._backend
        if engine == "gpu" and any(pa.types.is_nested(column.kind) for column in columns.values()):
            _log.info("%s: has lists or objects in it, which cudf-polars does not read; the CPU parses it", self._path)
            engine = "cpu"
        # A GPU's parser makes a value that does not fit a missing one; of its casts it is an error.
        on_gpu = engine == "gpu"
        schema = {name: pl.String if on_gpu else _get_scan_type(column.kind) for name, column in columns.items()}
        values = (
            _build_value(pl.col(n), column, careful=careful, on_gpu=on_gpu).alias(n) for n, column in columns.items()
        )
        return pl.scan_ndjson(self._text, schema=schema).select(values), engine

    def _texts(self, names: Sequence[str]) -> pl.LazyFrame:
        return pl.scan_ndjson(self._text, schema=dict.fromkeys(names, pl.String))

    def _infer_from_first_value(self, name: str, names: Sequence[str]) -> dict[str, Column]:
        first = self._texts([name]).with_row_index(_ROW).drop_nulls(name).head(1).collect(engine="streaming")
        columns = self._infer_columns(self._block(first[_ROW].item()), {}) if len(first) else {}
        return {
            each: columns[each]
            for each in names
            if each in columns and dtype_from_arrow(columns[each].kind) is not None
        }

    def _repair(self, columns: Mapping[str, Column]) -> bool:
        with self._text.open("rb") as file:
            self._check_lines(file, columns)
        return False

    def _is_complete(self, target: Path, columns: Mapping[str, Column]) -> bool:
        """Compare the counts of values and of texts in the written file with those in the bytes.

        Polars makes text of a number where it expects text, and leaves out keys that the schema does not have.
        """
        return self._has_counts(_count_written(target, columns)) or not self._repair(columns)

    def _has_counts(self, parquet_counts: Mapping[str, tuple[int, int]]) -> bool:
        if self._is_whole:
            sums = tuple(map(sum, zip(*parquet_counts.values(), strict=True)))
            return count_values(self._text, None) == [sums]
        # A CPU's parser refuses numbers that do not fit.
        doubtful = {name: of for name, of in parquet_counts.items() if of[1] or self._backend == "gpu"}
        if not doubtful:
            return True
        counts = count_values(self._text, [json.dumps(name, ensure_ascii=False) for name in doubtful])
        return counts is not None and all(
            keys == values and (strings == texts or not texts)
            for (keys, strings), (values, texts) in zip(counts, doubtful.values(), strict=True)
        )

    def _check_lines(self, lines: Iterable[bytes], columns: Mapping[str, Column], *, is_first: bool = False) -> None:
        """Raise for the first line that is not an object, or has a value that does not fit its column.

        With `is_first` there may be other columns, whose first values show what they are.
        """
        first: dict[str, str] = {}
        times = {name: column for name, column in columns.items() if pa.types.is_timestamp(column.kind)}
        texts: dict[str, dict[int, str]] = {name: {} for name in times}
        for row, line in enumerate(lines, 1):
            for name, value in self._object(line, row).items() if line.strip() else ():
                column = columns.get(name)
                if column is None and not is_first:
                    if self._is_whole and name not in self.left_out:
                        self.new.setdefault(name, row)
                elif name in times and isinstance(value, str):
                    texts[name][row] = value
                elif column is None or (
                    pa.types.is_large_string(column.kind) and not column.is_asked and self._is_first
                ):  # Polars makes text of values of several types
                    for path, leaf in _iter_values(value, name):
                        word = first.setdefault(path, _WORDS[type(leaf)])
                        if word != _WORDS[type(leaf)]:
                            raise self._unfit(row, name, leaf, f"{word}, as in the rows before", column)
                else:
                    for path, leaf, kind in _find_misfits(value, column.kind, name):
                        if kind is not None:
                            expected = f"{dtype_from_arrow(kind)}; types are {_SOURCE}"
                            raise self._unfit(row, name, leaf, expected, column)
                        self.new.setdefault(path, row)
            if row % _LOOKED_AT == 0:
                self._check_times(texts, times)
        self._check_times(texts, times)

    def _check_times(self, texts: Mapping[str, dict[int, str]], times: Mapping[str, Column]) -> None:
        for name, column in times.items():
            frame = pl.DataFrame({"": [*texts[name].values()]}, schema={"": pl.String})
            unfit = frame.select(parse(pl.col(""), column, strict=False).is_null()).to_series().arg_true()
            if len(unfit):
                row = [*texts[name]][unfit[0]]
                raise self._unfit(row, name, texts[name][row], f"timestamp; types are {_SOURCE}", column)
            texts[name].clear()

    def _object(self, line: bytes, row: int) -> dict[str, Any]:
        text = line.strip()
        try:
            return _parse_object(text)
        except (ValueError, RecursionError) as cause:
            refuse_packed(self._path, text)
            problem, expected = f"row {row} is no JSON object ({one_line(cause)})", "an object in braces per line"
            remedy = "the file written again, one object per line"
            if isinstance(cause, _NoNumber):
                expected, remedy = "numbers that float64 holds, and null", "null in its place"
                if cause.word in _CONSTANTS:
                    remedy += ", as frame.to_json(path, orient='records', lines=True) writes it; "
                    remedy += "json.dumps(..., allow_nan=False) refuses it"
            if row == 1 and text.startswith(b"["):
                remedy = f"gp.from_frame(pandas.read_json({self._path!r})), for an array of objects"
            start = max(0, _locate(text, cause) - 40)
            raise BadFile(
                self._path, problem, got=text[start : start + 80], expected=expected, remedy=remedy
            ) from cause

    def _unfit(self, row: int, name: str, value: object, expected: str, column: Column | None) -> SchemaMismatch:
        problem, remedy = f"row {row}, column {name!r} does not fit", f"columns=[...] without {name!r}"
        dtype = None if column is None else dtype_from_arrow(column.kind)
        element = dtype and get_element_dtype(dtype)
        if isinstance(value, str):
            remedy = "on_mismatch='cast' where all values of this file are in quotes, "
            remedy += f"T.Cast({{{name!r}: ...}}) where all are"
        elif type(value) in (int, float) and (element or dtype) in (*INTEGERS, *FLOATS):
            wider_dtype = to_list_dtype("float64") if element else "float64"
            remedy = f"dtypes={{{name!r}: {wider_dtype!r}}}" + (", which rounds" if type(value) is int else "")
        remedy += "; or the file written again with values of one type"
        error = SchemaMismatch(self._path, problem, got=value, expected=expected, remedy=remedy)
        error.column = name
        return error


def _build_value(source: pl.Expr, column: Column, *, careful: bool, on_gpu: bool) -> pl.Expr:
    """Build the expression of a column's values as they are written to Parquet."""
    kind = column.kind
    if on_gpu or pa.types.is_timestamp(kind) or pa.types.is_null(kind):
        return parse(source, column, careful=careful, on_gpu=on_gpu)
    if pa.types.is_float32(kind):
        beyond = source.is_finite() & (source.abs() >= MOST_FLOAT32)
        refused = pl.when(beyond).then(pl.lit("beyond float32")).cast(pl.Float32)
        return pl.when(beyond).then(refused).otherwise(source.cast(pl.Float32))
    if pa.types.is_integer(kind):
        return source.cast(POLARS_TYPES[str(kind)])
    if is_list(kind) and column.is_asked:
        element = replace(column, kind=kind.value_type, formats=NAIVE)
        return source.list.eval(_build_value(pl.element(), element, careful=True, on_gpu=False))
    return source


def _get_scan_type(kind: pa.DataType) -> Any:
    """Return the Polars type that a column is scanned as; its reader supports few."""
    if pa.types.is_struct(kind):
        return pl.Struct({item.name: _get_scan_type(item.type) for item in kind.fields})
    if is_list(kind):
        return pl.List(_get_scan_type(kind.value_type))
    if pa.types.is_floating(kind):
        return pl.Float64
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return pl.Int64
    return {"bool": pl.Boolean, "uint64": pl.UInt64}.get(str(kind), pl.String)


def _infer_type(dtype: Any, objects: Objects, *, is_inside: bool = False) -> pa.DataType:
    """Convert a type that Polars inferred to Arrow, given the objects among the values; int128 becomes uint64."""
    if isinstance(dtype, pl.Struct):
        below = {item.name: partial(_iter_objects_at, objects, item.name) for item in dtype.fields}
        kinds = {item.name: _infer_type(item.dtype, below[item.name], is_inside=True) for item in dtype.fields}
        return pa.struct([(name, kinds[name]) for name in _order_keys([*kinds], objects())])
    if isinstance(dtype, pl.List):
        return pa.large_list(_infer_type(dtype.inner, objects, is_inside=True))
    if dtype == pl.Int128:
        return pa.uint64()
    if dtype == pl.Null:
        return pa.float64() if is_inside else pa.null()
    plain = {"Int64": pa.int64(), "Float64": pa.float64(), "Boolean": pa.bool_()}
    return plain.get(str(dtype), pa.large_string())


def _iter_values(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a value and all values nested in it, without missing ones, each with its path."""
    if value is not None:
        yield path, value
        inner: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
        if isinstance(value, list):
            inner = ((None, item) for item in value)
        for name, item in inner:
            yield from _iter_values(item, f"{path}.{name}")


def _find_misfits(value: Any, kind: pa.DataType, path: str) -> Iterator[tuple[str, Any, pa.DataType | None]]:
    """Yield the nested values that do not fit a type: path, value and type; None as the type of an unknown key."""
    if pa.types.is_struct(kind) and isinstance(value, dict):
        for name, inner in value.items():
            if kind.get_field_index(name) < 0:
                yield f"{path}.{name}", inner, None
            else:
                yield from _find_misfits(inner, kind.field(name).type, f"{path}.{name}")
    elif is_list(kind) and isinstance(value, list):
        for inner in value:
            yield from _find_misfits(inner, kind.value_type, path)
    elif value is not None and not _fits(value, kind):
        yield path, value, kind


def _fits(value: Any, kind: pa.DataType) -> bool:
    if _is_text(kind):
        return isinstance(value, str)
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if pa.types.is_integer(kind):
        shift = kind.bit_width - pa.types.is_signed_integer(kind)
        return isinstance(value, int) and (-1 if pa.types.is_signed_integer(kind) else 0) <= value >> shift <= 0
    return bool(pa.types.is_floating(kind)) and (not pa.types.is_float32(kind) or abs(value) < MOST_FLOAT32)


def _parse_object(text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise ValueError("does not begin with {")
    record: dict[str, Any] = json.loads(
        text, object_pairs_hook=_check_distinct, parse_float=_parse_finite, parse_constant=_parse_finite
    )
    if _LONE_SURROGATE.search(text):
        json.dumps(record, ensure_ascii=False).encode()
    return record


def _check_distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record, names = dict(pairs), [name for name, _ in pairs]
    if len(record) < len(pairs):
        raise ValueError(f"the key {max(names, key=names.count)!r} is there twice")
    return record


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NoNumber(text)
    return value


class _NoNumber(ValueError):
    """Number that JSON or float64 does not have, as it is written."""

    def __init__(self, word: str) -> None:
        super().__init__(f"{word} is {'no JSON value' if word in _CONSTANTS else 'beyond float64'}")
        self.word = word


def _locate(text: bytes, cause: Exception) -> int:
    """Return the offset in a line of what is wrong with it; 0 where it is all of it."""
    if isinstance(cause, json.JSONDecodeError):
        return len(cause.doc[: cause.pos].encode(errors="replace"))
    if isinstance(cause, UnicodeDecodeError):
        return cause.start
    if isinstance(cause, _NoNumber):
        outside_texts = rb'"(?:[^"\\]|\\.)*"|(?<![\w.+-])(' + re.escape(cause.word.encode()) + rb")(?![\w.+-])"
        return next((match.start() for match in re.finditer(outside_texts, text) if match[1]), 0)
    return 0


def count_values(path: Path, names: Sequence[str] | None) -> list[tuple[int, int]] | None:
    """Count the values of each key and how many of them are text; None where the count may be wrong.

    The keys are quoted and escaped as in the file; None is for all together, and then texts in lists count, too.
    """
    keys = [name.encode() for name in names or ()]
    ends, joined = np.cumsum([0, *map(len, keys)]), np.frombuffer(b"".join(keys), np.uint8)

    def count(cut: tuple[int, int]) -> Array | None:
        text = read_lines(path, *cut)
        counts = np.zeros((len(ends), 2), np.int64)
        has_escapes = _count_keys(counts, text, joined, ends)
        return None if has_escapes and _LONE_SURROGATE.search(text) else counts

    total = np.zeros((len(keys) + 1, 2), np.int64)
    for counts in Executor().map(count, cut_lines(path)):
        if counts is None:
            return None
        total += counts
    return [(int(values), int(texts)) for values, texts in (total if names is None else total[:-1])]


@inline
def _is_key(text: Array, stop: int, name: Array) -> bool:
    """Return whether the text up to `stop` ends in a quoted name."""
    start, num_same = stop - name.size, 0
    while start >= 0 and num_same < name.size and text[start + num_same] == name[num_same]:
        num_same += 1
    return bool(num_same == name.size)


@compile_loop()
def _count_keys(counts: Array, text: Array, names: Array, ends: Array) -> bool:
    r"""Count the values and texts of each name, and in a last row those of other keys; tell whether a `\u` is there.

    The quoted names stand one behind the other, name i from `ends[i]` up to `ends[i + 1]`. Strings that are no keys are
    texts of the last row, in lists too. For example, with `/` for a line end, two keys, a value and two texts:

        text       { " a " : n u l l } / { " b " : [ " \ " " , " c " ] } /
        quotes     0 1 0 1 0 0 0 0 0 0 0 0 1 0 1 0 0 1 0 0 1 0 1 0 1 0 0 0   without those behind a backslash
        inside     0 1 1 0 0 0 0 0 0 0 0 0 1 1 0 0 0 1 1 1 0 0 1 1 0 0 0 0   from an opening quotation mark on
        keys       0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 0 0   colons behind a closing one
    """
    no_bits, first_bit, last_bit = np.uint64(0), np.uint64(1), np.uint64(1 << 63)
    has_escapes = False
    other, num_strings, num_keys = ends.size - 1, 0, 0
    # The block before, of which the last bit is looked at.
    inside_before, closing_before, slashes_before = no_bits, no_bits, no_bits
    for start in range(0, text.size - BLOCK, BLOCK):
        quotes, slashes = find_byte(text, start, _QUOTE), find_byte(text, start, _BACKSLASH)
        if slashes | (slashes_before & last_bit):
            escaped = shift_mask(no_bits, slashes_before)
            slashes &= ~escaped
            open_slashes = slashes
            while open_slashes:
                slash = open_slashes & ~(open_slashes - first_bit)
                escaped |= slash << first_bit
                slashes &= ~(slash << first_bit)
                open_slashes &= ~(slash | (slash << first_bit))
            quotes &= ~escaped
            has_escapes |= (escaped & find_byte(text, start, _U)) != no_bits
        inside = fill_quoted(quotes)
        if inside_before & last_bit:
            inside = ~inside
        closing = quotes & ~inside
        keys = shift_mask(closing, closing_before) & find_byte(text, start, _COLON)
        inside_before, closing_before, slashes_before = inside, closing, slashes
        num_strings += count_bits(quotes & inside)
        num_keys += count_bits(keys)
        keys &= ~find_byte(text, start + 1, _N)  # those of null, where no space stands before it
        if not other and not keys & find_byte(text, start + 1, _SPACE):
            counts[other, 0] += count_bits(keys)
            continue
        while keys:
            colon = start + count_bits(~keys & (keys - first_bit))
            keys &= keys - first_bit
            position = colon + 1
            while text[position] == _SPACE:
                position += 1
            if text[position] == _N:
                continue
            row = 0
            while row < other and not _is_key(text, colon, names[ends[row] : ends[row + 1]]):
                row += 1
            counts[row, 0] += 1
            counts[row, 1] += text[position] == _QUOTE
    counts[other, 1] = num_strings - num_keys
    return has_escapes


def _count_written(path: Path, columns: Mapping[str, Column]) -> dict[str, tuple[int, int]]:
    """Count for each column of a Parquet file its values, nested fields included, and how many are text."""
    metadata = pq.read_metadata(path)
    values: Counter[str] = Counter()
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            values[chunk.path_in_schema] += chunk.num_values - chunk.statistics.null_count
    pairs = {name: (values[name], values[name] * _is_text(column.kind)) for name, column in columns.items()}
    counts = {}
    for name in [name for name, column in columns.items() if pa.types.is_nested(column.kind)]:
        leaves = [*_iter_leaves(pl.col(name), columns[name].kind)]
        of_keys = [each.count() for each, _, is_key in leaves if is_key]
        of_texts = [each.count() for each, kind, _ in leaves if _is_text(kind)]
        counts[name] = pl.concat_list(pl.sum_horizontal(pl.lit(0), *each) for each in (of_keys, of_texts))
    if counts:
        row = pl.scan_parquet(path, glob=False).select(**counts).collect(engine="streaming").row(0, named=True)
        pairs |= {name: tuple(pair) for name, pair in row.items()}
    return pairs


def _order_keys(names: Sequence[str], objects: Iterable[dict[str, Any]]) -> list[str]:
    """Order the keys of objects by first appearance; Polars keeps that order for up to 32."""
    keys: dict[str, None] = {}
    for record in objects if len(names) > _ORDERED else ():
        keys |= dict.fromkeys(record)
        if len(keys) >= len(names):
            break
    return list(dict.fromkeys([*keys, *names]))


def _iter_objects_at(objects: Objects, name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects at a key of other objects, those in lists too."""
    return _iter_objects(record.get(name) for record in objects())


def _iter_objects(values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for value in values:
        if isinstance(value, list):
            yield from _iter_objects(value)
        elif isinstance(value, dict):
            yield value


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_timestamp(kind))


def _iter_leaves(
    source: pl.Expr, kind: pa.DataType, *, is_key: bool = True
) -> Iterator[tuple[pl.Expr, pa.DataType, bool]]:
    """Yield a column and all nested columns: the values, their type, and whether each has a key."""
    yield source, kind, is_key
    if pa.types.is_struct(kind):
        for item in kind.fields:
            yield from _iter_leaves(source.struct.field(item.name), item.type)
    elif is_list(kind):
        yield from _iter_leaves(source.explode(empty_as_null=False), kind.value_type, is_key=False)
