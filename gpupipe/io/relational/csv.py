"""CSV files as Polars plans, rewritten first where Polars and pandas would parse them differently."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from pathlib import Path
from time import strptime
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe.backend.arrow import dtype_from_arrow
from gpupipe.backend.byte_masks import BLOCK, count_bits, fill_quoted, find_byte, shift_mask
from gpupipe.backend.columns import Array
from gpupipe.backend.compiled import compile_loop
from gpupipe.cluster.executor import Executor
from gpupipe.errors import BadFile, SchemaMismatch
from gpupipe.files import writing_scratch
from gpupipe.io.relational.text_file import (
    BLOCK_BYTES,
    REWRITTEN,
    Column,
    TextFile,
    cut_lines,
    infer,
    parse,
    read_lines,
)
from gpupipe.io.relational.time_formats import ISO_FORMATS, TimeFormats, choose_formats, invalidate, list_times
from gpupipe.support.text import format_count
from gpupipe.support.text_dates import ISO_TIME, find_formats
from gpupipe.support.times import has_offset

NULL_VALUES = ("NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "<NA>", "#N/A", "#NA")

_COPIED = 1 << 20
_NEWLINE, _RETURN, _QUOTE, _ZERO, _PLUS = b'\n\r"0+'
_ROW = "⟨row⟩"
_CONTENT = "a header row, or rows and names="
_NUMBER = re.compile(r"(?![12]\d{3}$)[-+]?\d*[.,]?\d+")  # no year, which may be a name
_TELLING = 1_000  # rows that show whether the first one is a header
_SUGGESTING = 1_000_000  # rows that show which formats a column has
_SETTLING = 50_000  # values further down that show a type which the first rows do not


@dataclass(frozen=True)
class CsvForm:
    """Dialect of CSV files; `names` where they have no header row."""

    delimiter: str = ","
    names: Sequence[str] | None = None
    null_values: Sequence[str] = ("", *NULL_VALUES)
    column_nulls: Mapping[str, Sequence[str]] = field(default_factory=dict)  # beside them, of single columns
    timestamp_formats: TimeFormats = field(default_factory=TimeFormats)  # of columns that have none of their own
    column_formats: Mapping[str, TimeFormats] = field(default_factory=dict)
    encoding: str = "utf-8"
    comment: str | None = None
    skip_rows: int = 0
    decimal: str = "."
    thousands: str | None = None

    def number(self, text: pl.Expr) -> pl.Expr:
        """Rewrite numbers with a decimal point and without thousands separators."""
        if self.thousands:
            mark, text = re.escape(self.thousands), text.str.strip_chars()
            misplaced = text.str.contains(f"^[-+]?{mark}|{re.escape(self.decimal)}.*{mark}")
            text = invalidate(text, misplaced).str.replace_all(self.thousands, "", literal=True)
        if self.decimal != ".":
            text = text.str.replace_all(".", "_", literal=True).str.replace_all(self.decimal, ".", literal=True)
        return text


def _suggest_time_formats(
    name: str, formats: Sequence[str], own_formats: Sequence[str], *, by_column: bool, has_zone: bool
) -> str:
    """Suggest the formats that read a column whose values are in these, and in those that the first values have."""
    if has_zone:
        choices = " or ".join(f"{{{name!r}: {['%Y-%m-%dT%H:%M:%SZ', form]}}}" for form in formats)
        return f"timestamp_formats={choices} where all times in ISO format end in Z; or dtypes={{{name!r}: 'string'}}"
    lists = [[*own_formats, form] for form in formats]
    choices = " or ".join(str({name: each} if by_column else each) for each in lists)
    return f"timestamp_formats={choices}, as the times are written"


def _reads_in_python(text: str, form: str) -> bool:
    """Return whether Python reads a time by a format; it takes any day of the week."""
    try:
        return bool(strptime(text, form))
    except ValueError:
        return False


class CsvFile(TextFile):
    """CSV file whose rows have the same number of values, copied to `folder` where Polars would read it otherwise."""

    def __init__(self, path: str, text: Path, form: CsvForm, folder: Path, backend: str) -> None:
        super().__init__(path, text, backend, _CONTENT)
        self._form, self._copy = form, folder / REWRITTEN
        self._is_rewritten, self._num_heads = False, 0 if form.names else 1
        with text.open(encoding="utf-8-sig", newline="") as file:
            self.names = list(form.names or next((row for row in self._rows(file) if row), []))
        if not self.names:  # all lines are comments
            raise self._empty(_CONTENT)
        if len(set(self.names)) != len(self.names):
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            remedy = f"names=[...] with skip_rows={form.skip_rows + 1}, or another header row"
            if self._starts_with_values():
                remedy = "names=[...], since the first row seems to hold values and no names"
            raise SchemaMismatch(path, "columns share a name", got=twice, expected="unique names", remedy=remedy)
        self._survey = survey_rows(text, form.delimiter, len(self.names))
        if form.comment or not self._survey.is_regular:
            self._rewrite()

    def _starts_with_values(self) -> bool:
        """Tell a first row of values from a header: it has a number but a year, or a text that comes again below."""
        with self._text.open(encoding="utf-8-sig", newline="") as file:
            rows = list(islice(filter(None, self._rows(file)), _TELLING))
        columns = zip_longest(*rows, fillvalue="")
        return any(_NUMBER.fullmatch(name) or (name and name in below) for name, *below in columns)

    def infer(self, dtypes: Mapping[str, str], names: Sequence[str]) -> dict[str, Column]:
        """Infer the types of columns from the first `BLOCK_BYTES`; requested types take precedence."""
        with self._text.open("rb") as file:
            head = file.read(BLOCK_BYTES)
            if file.read(1):
                file.seek(len(head))
                array = np.frombuffer(head, np.uint8)
                ends = np.flatnonzero((array == _NEWLINE) & ~np.logical_xor.accumulate(array == _QUOTE))
                head = head[: int(ends[-1]) + 1] if len(ends) else head + file.read()  # whole rows
        try:
            texts = self._scan_texts(io.BytesIO(head), names).collect()
        except pl.exceptions.PolarsError:
            if self._is_rewritten:
                raise
            self._rewrite()
            return self.infer(dtypes, names)
        return self._infer_columns(texts, dtypes)

    def _infer_columns(self, texts: pl.DataFrame, dtypes: Mapping[str, str]) -> dict[str, Column]:
        numbers = texts.select(self._form.number(pl.col(name)).alias(name) for name in texts.columns)
        formats = {name: self._form.column_formats.get(name, self._form.timestamp_formats) for name in texts.columns}
        return {name: infer(texts[name], numbers[name], dtypes.get(name), formats[name]) for name in texts.columns}

    def _infer_from_first_value(self, name: str, names: Sequence[str]) -> dict[str, Column]:
        return self._infer_columns(self._texts([name]).drop_nulls().head(_SETTLING).collect(engine="streaming"), {})

    def _is_careful(self, columns: Mapping[str, Column]) -> bool:
        # A GPU's parser makes a value that is no number a missing one; of its casts it is an error.
        if self._backend == "gpu" or (self._form.decimal, self._form.thousands) != (".", None):
            return True
        if not columns.keys().isdisjoint(self._form.column_nulls):
            return True
        whole = any(pa.types.is_integer(column.kind) and not column.is_asked for column in columns.values())
        return whole and (self._survey.has_signs or self._is_rewritten)

    def _is_complete(self, target: Path, columns: Mapping[str, Column]) -> bool:
        if self._is_rewritten or pq.read_metadata(target).num_rows == self._survey.num_rows - self._num_heads:
            return True
        self._rewrite()
        return False

    def _repair(self, columns: Mapping[str, Column]) -> bool:
        self._refuse_value(columns)
        if self._is_rewritten:
            return False
        self._rewrite()
        return True

    def _plan(self, columns: Mapping[str, Column], *, careful: bool) -> tuple[pl.LazyFrame, str]:
        if careful:
            parsed = [self._parse_column(name, column) for name, column in columns.items()]
            return self._texts(self.names).select(parsed), self._backend
        schema = {name: _SCANNED.get(str(column.kind), pl.String) for name, column in columns.items()}
        markers = self._markers()
        later = [text for text in self._form.null_values if text not in markers]
        parsed = []
        for name, column in columns.items():
            text = pl.col(name)
            if schema[name] == pl.String:
                text = pl.when(text.is_in(later)).then(pl.lit(None, pl.String)).otherwise(text) if later else text
                text = parse(text, column, careful=False)
            parsed.append(text.alias(name))
        return self._scan(self._text, schema, markers).select(parsed), self._backend

    def _markers(self) -> list[str]:
        """List the markers of missing values that the scan compares with; the plan handles the others as text.

        Each costs 3 % of the time, so of the usual ones only those are taken that the first rows hold.
        """
        with self._text.open("rb") as file:
            head = file.read(_COPIED)
        usual = [text for text in self._form.null_values if text in NULL_VALUES]
        around = f'[{re.escape(self._form.delimiter)}"\r\n]'.encode()
        words = b"|".join(re.escape(text.encode()) for text in usual) or b"(?!)"
        met = {word.decode() for word in re.findall(around + b"(" + words + b")(?=" + around + b")", head)}
        return [text for text in self._form.null_values if text in met or text not in ("", *NULL_VALUES)]

    def _parse_column(self, name: str, column: Column, *, strict: bool = True) -> pl.Expr:
        text = pl.col(name)
        if not (pa.types.is_large_string(column.kind) or pa.types.is_timestamp(column.kind)):
            text = self._form.number(text)
        return parse(text, column, strict=strict, on_gpu=strict and self._backend == "gpu").alias(name)

    def _texts(self, names: Sequence[str]) -> pl.LazyFrame:
        return self._scan_texts(self._text, names)

    def _scan_texts(self, source: Any, names: Sequence[str]) -> pl.LazyFrame:
        marks = {name: list(texts) for name, texts in self._form.column_nulls.items() if name in names}
        texts = self._scan(source, {}, self._form.null_values).select(names)
        return texts.with_columns(
            pl.when(pl.col(name).is_in(each)).then(pl.lit(None, pl.String)).otherwise(pl.col(name)).alias(name)
            for name, each in marks.items()
        )

    def _scan(self, source: Any, kinds: Mapping[str, Any], null_values: Sequence[str]) -> pl.LazyFrame:
        """Scan a file or its first bytes, as text where `kinds` does not name another type."""
        # Polars has each quotation mark within a header's name twice, as it is written.
        is_quoted = self._num_heads > 0 and any('"' in name for name in self.names)
        return pl.scan_csv(
            source,
            schema={name: kinds.get(name, pl.String) for name in self.names},
            separator=self._form.delimiter,
            has_header=self._num_heads > 0 and not is_quoted,
            skip_rows=int(is_quoted),
            null_values=list(null_values),
            glob=False,
        )

    def _refuse_value(self, columns: Mapping[str, Column]) -> None:
        """Raise for the first value that does not fit its column; return if there is none."""
        texts = self._texts(self.names).with_row_index(_ROW)
        unfit = [
            pl.col(_ROW)
            .filter(pl.col(name).is_not_null() & self._parse_column(name, column, strict=False).is_null())
            .min()
            for name, column in columns.items()
        ]
        try:
            frame = texts.select(row.alias(str(index)) for index, row in enumerate(unfit)).collect(engine="streaming")
            rows = {name: row for name, row in zip(columns, frame.row(0), strict=True) if row is not None}
            if not rows:
                return
            name = min(rows, key=lambda name: rows[name])
            value = texts.select(name).slice(rows[name], 1).collect().item()
        except pl.exceptions.PolarsError:
            return
        where = f"row {rows[name] + self._num_heads + 1}, column {name!r}"
        kind, own_formats = columns[name].kind, columns[name].own_formats
        times = list_times(value, own_formats, kind) if pa.types.is_timestamp(kind) else {}
        if len({*times.values()}) > 1:
            expected = f"one time, not {' and '.join(f'{time} by {form!r}' for form, time in times.items())}"
            remedy = self._suggest_formats(columns, name)
            problem = f"{where}: two times in one text"
            raise SchemaMismatch(self._path, problem, got=value, expected=expected, remedy=remedy)
        remedy, as_text = "timestamp_formats=['%d/%m/%Y'], as the times are written", f"dtypes={{{name!r}: 'string'}}"
        if name in self._form.column_formats:
            as_text = f"{as_text} in place of {', '.join(own_formats)}"
            remedy = f"its format beside {', '.join(own_formats)}, or {as_text}"
        if pa.types.is_timestamp(kind) and has_offset(value) != (kind.tz is not None):
            remedy = f"{as_text}: times with and without an offset are of two kinds"
        if pa.types.is_timestamp(kind) and (formats := find_formats([value])) and not re.fullmatch(ISO_TIME, value):
            by_column, has_zone = name in self._form.column_formats, kind.tz is not None
            remedy = _suggest_time_formats(name, formats, own_formats, by_column=by_column, has_zone=has_zone)
        if any(re.search("%[aA]", form) and _reads_in_python(value, form) for form in own_formats):
            remedy = f"{as_text}: the day of the week is another than the date's"
        if pa.types.is_timestamp(kind) and value[:1].isspace() and list_times(value.strip(), own_formats, kind):
            remedy = (
                f"timestamp_formats={{{name!r}: {' ' + own_formats[0]!r}}}, which begins with a space as the values do"
            )
        if not pa.types.is_timestamp(kind):
            suggested = "float64" if re.fullmatch("[-+0-9.eE]*[.eE][-+0-9.eE]*", value) else "string"
            if re.fullmatch("-?(0|[1-9][0-9]*)", value) and -(2**63) <= int(value) < 2**64:
                suggested = "int64" if int(value) < 2**63 else "uint64"
            remedy = f"dtypes={{{name!r}: {suggested!r}}}"
            if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", value) and not self._form.thousands:
                remedy = f"thousands=',', or {remedy}"
        expected = f"{dtype_from_arrow(kind)}, as asked for or as the first values show"
        error = SchemaMismatch(self._path, f"{where}: invalid value", got=value, expected=expected, remedy=remedy)
        error.column = name
        raise error

    def refuse_padded(self, name: str) -> None:
        """Raise for the first text of a column that begins with zeros, which a cast to an integer would lose."""
        texts = self._texts([name]).with_row_index(_ROW).filter(pl.col(name).str.contains(r"^\s*[-+]?0[0-9]"))
        padded = texts.head(1).collect(engine="streaming")
        if len(padded):
            problem = f"row {padded[_ROW].item() + self._num_heads + 1}, column {name!r}: invalid value"
            expected, remedy = "an integer without leading zeros, which would be lost", f"dtypes={{{name!r}: 'string'}}"
            error = SchemaMismatch(self._path, problem, got=padded[name].item(), expected=expected, remedy=remedy)
            error.column = name
            raise error

    def _suggest_formats(self, columns: Mapping[str, Column], name: str) -> str:
        """Suggest formats by column for all whose rows need the caller's; text for a column that needs two at odds."""
        columns = {each: column for each, column in columns.items() if column.own_formats}
        texts = self._texts([*columns]).head(_SUGGESTING).collect(engine="streaming")
        formats = {each: choose_formats(texts[each], column.formats, column.kind) for each, column in columns.items()}
        fitting = tuple(formats[name])
        times = parse(pl.col(name), replace(columns[name], formats=fitting, own_formats=fitting), strict=False)
        if texts.select((pl.col(name).is_not_null() & times.is_null()).any()).item():
            return f"dtypes={{{name!r}: 'string'}} in place of its formats, as its rows are not in one of them"
        needed = [
            each for each in columns if each in self._form.column_formats or not set(formats[each]) <= ISO_FORMATS
        ]
        mapping = {each: formats[each][0] if len(formats[each]) == 1 else formats[each] for each in needed}
        return f"timestamp_formats={mapping}, as the times of each column are written"

    def _rows(self, file: io.TextIOBase) -> Iterator[list[str]]:
        """Yield the rows without comments; a blank line is an empty row."""
        is_new = True

        def lines() -> Iterator[str]:
            nonlocal is_new
            for line in file:
                if not (is_new and self._form.comment and line.startswith(self._form.comment)):
                    is_new = False
                    yield line
            if not is_new:
                problem = "a quotation mark is not closed"
                remedy = "the file written again, quotation marks within values doubled"
                raise BadFile(self._path, problem, expected="quotation marks in pairs around a value", remedy=remedy)

        limit = csv.field_size_limit(sys.maxsize)
        try:
            for row in csv.reader(lines(), delimiter=self._form.delimiter):
                is_new = True
                yield row
        finally:
            csv.field_size_limit(limit)

    def _rewrite(self) -> None:
        """Copy the rows with Python's csv reader, which is slower than Polars and accepts more dialects.

        A row with too few or too many values is a BadFile.
        """
        num_rows = 0
        with (
            writing_scratch(self._copy.parent),
            self._text.open(encoding="utf-8-sig", newline="") as file,
            self._copy.open("w", encoding="utf-8", newline="") as out,
        ):
            writer = csv.writer(out, delimiter=self._form.delimiter, lineterminator="\r\n")
            for row in self._rows(file):
                if not row:
                    continue
                num_rows += 1
                if len(row) != len(self.names):
                    source, remedy = "the first row", self._suggest_dialect()
                    if self._form.names:
                        source = "names="
                        remedy = f"names= with {len(row)} names; or {remedy}" if num_rows == 1 else remedy
                    where, problem = self._path, f"row {num_rows} has {format_count(len(row), 'value')}"
                    expected = f"{format_count(len(self.names), 'value')}, as in {source}"
                    raise BadFile(where, problem, got=self._form.delimiter.join(row), expected=expected, remedy=remedy)
                writer.writerow(row)
        self._text, self._is_rewritten = self._copy, True

    def find_other_separator(self) -> str | None:
        """Find what may separate values in the name of the only column; None where there are several."""
        marks = (mark for mark in ";\t|," if mark in self.names[0] and mark != self._form.delimiter)
        return next(marks, None) if len(self.names) == 1 else None

    def _suggest_dialect(self) -> str:
        """Suggest an argument by which all rows may have the same number of values."""
        head, form = self.names[0], self._form
        if not form.names and not form.comment and head.startswith("#"):
            return "comment='#', or skip_rows=1"
        if not form.names and (sep := self.find_other_separator()):
            return f"sep={sep!r}" + (", decimal=',' if numbers have it" if form.delimiter == "," else "")
        return "quotes around values that hold the separator, or sep="


class Survey(NamedTuple):
    """Survey of the bytes of a CSV file, for what parsers read in different ways."""

    num_rows: int  # line ends outside of quotes
    is_regular: bool  # rows have as many delimiters as they need, quotes are around values, lines are not blank
    has_signs: bool  # a value may begin with a plus sign, or with a zero before another digit


def survey_rows(path: Path, delimiter: str, num_columns: int) -> Survey:
    """Survey the bytes of a file, parts of it in threads; of an irregular file no more than its first such part."""

    def survey(cut: tuple[int, int], is_inside: bool = False, num_delimiters: int = 0) -> tuple[Any, ...]:
        text = read_lines(path, *cut)
        counts = np.array([0, num_delimiters, is_inside, False, False], np.int64)
        _survey_lines(counts, text, ord(delimiter), num_columns - 1)
        num_rows, num_delimiters, *flags = counts.tolist()
        return cut, (num_rows, num_delimiters, *map(bool, flags))

    num_rows, num_delimiters, is_inside, has_signs = 0, 0, False, False
    for cut, counts in Executor().map(survey, cut_lines(path)):
        # A part begins behind a line end: outside of quotes, in most files.
        counts_here = survey(cut, is_inside, num_delimiters)[1] if is_inside else counts
        num_rows_here, num_delimiters, is_inside, is_regular, is_signed = counts_here
        num_rows, has_signs = num_rows + num_rows_here, has_signs or is_signed
        if not is_regular:
            break
    return Survey(num_rows, is_regular and not is_inside, has_signs)


@compile_loop()
def _survey_lines(counts: Array, text: Array, delimiter: int, num_needed: int) -> int:
    """Survey lines by bits, 64 bytes at a time.

    `counts` are the number of rows, the delimiters of the row that goes on behind them, whether it goes on within
    quotes, whether the rows are regular, and whether a value may have a sign; where the lines begin within quotes, the
    second and the third say what was before. For example, with `/` for a line end:

        text         a , " x / y " / 0 7 , b / c /
        quotes       0 0 1 0 0 0 1 0 0 0 0 0 0 0 0
        inside       0 0 1 1 1 1 0 0 0 0 0 0 0 0 0   from an opening quotation mark on
        ends         0 0 0 0 0 0 0 1 0 0 0 0 1 0 1   of three rows
        delimiters   0 1 0 0 0 0 0 0 0 0 1 0 0 0 0   below the first end one, as two columns need; then one, and none
        starts       1 0 1 1 0 0 0 1 1 0 0 1 0 1 0   of values; that of row 2 has a zero before another digit
    """
    no_bits, first_bit, last_bit = np.uint64(0), np.uint64(1), np.uint64(1 << 63)
    odd, signs, num_rows, num_delimiters = no_bits, no_bits, 0, counts[1]
    # The block before, of which the last bit is looked at: as if it were a line end.
    marks_before, returns_before, zeros_before = last_bit, no_bits, no_bits
    inside_before, ends_before = (last_bit, no_bits) if counts[2] else (no_bits, last_bit)
    for start in range(0, text.size, BLOCK):
        quotes = find_byte(text, start, _QUOTE)
        inside = fill_quoted(quotes)
        if inside_before & last_bit:
            inside = ~inside
        ends = find_byte(text, start, _NEWLINE) & ~inside
        returns = find_byte(text, start, _RETURN) & ~inside
        delimiters = find_byte(text, start, delimiter) & ~inside
        marks = quotes | ends | delimiters
        starts = shift_mask(marks, marks_before)
        odd |= quotes & inside & ~starts  # quotes within a value
        odd |= shift_mask(returns, returns_before) & ~ends  # a line end of old Macs
        odd |= shift_mask(ends, ends_before) & (ends | returns)  # a blank line
        zeros, digits = starts & find_byte(text, start, _ZERO), no_bits
        for digit in range(10):
            digits |= find_byte(text, start, _ZERO + digit)
        signs |= (starts & find_byte(text, start, _PLUS)) | (shift_mask(zeros, zeros_before) & digits)
        inside_before, ends_before, marks_before, returns_before, zeros_before = inside, ends, marks, returns, zeros
        while ends:
            below = ~ends & (ends - first_bit)  # bits below the lowest that is set
            num_delimiters += count_bits(delimiters & below)
            if num_delimiters != num_needed:
                odd = first_bit
            num_rows, num_delimiters = num_rows + 1, 0
            delimiters &= ~below
            ends &= ends - first_bit
        num_delimiters += count_bits(delimiters)
    counts[0], counts[1], counts[2] = num_rows, num_delimiters, (inside_before & last_bit) != no_bits
    counts[3], counts[4] = odd == no_bits, signs != no_bits
    return 0


_SCANNED = {"int64": pl.Int64, "uint64": pl.UInt64, "double": pl.Float64, "bool": pl.Boolean}
