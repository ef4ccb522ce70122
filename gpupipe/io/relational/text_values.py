"""Types of values in text: inference, and the expressions that parse them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa

from gpupipe.backend.arrow_types import arrow_type

BLOCK_BYTES = 8 << 20
"""Types that are not given are inferred from so much text at the beginning of the first file."""
_UTC = pa.timestamp("us", "UTC")
_CLOCKS = ("%H:%M:%S", "%H:%M:%S%.f", "%H:%M")
NAIVE = ("%Y-%m-%d", *(f"%Y-%m-%d{gap}{clock}" for clock in _CLOCKS for gap in (" ", "T")))
_ZULU = tuple(f"%Y-%m-%d{gap}%H:%M:%S{fraction}Z" for fraction in ("", "%.f") for gap in ("T", " "))
_ZONED = tuple(f"%Y-%m-%d{gap}{clock}%#z" for clock in ("%H:%M:%S%.f", "%H:%M") for gap in ("T", " "))
# Polars knows no hours without minutes, and no months without days.
_PARTS = (
    (("%H", "%I", "%k", "%l"), ("%M", "%T", "%R", "%X", "%c", "%r"), "%M", "00"),
    (("%m", "%b", "%B", "%h"), ("%d", "%e", "%D", "%F", "%x", "%c"), "%d", "01"),
)
_ISO_FORMATS = (*NAIVE, *_ZULU, *_ZONED)
_ISO = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}.*)?$"
_OFFSET_OF_UTC = r"(Z|[+-]00(:?00)?)$"
_NANOSECONDS = r"[.][0-9]{7}"
_ISO_LEAP = "[ T][0-9]+:[0-9]+:60"
DIRECTIVE = r"%(?:[-_0]?[YCymbBhdeaAwuUWGgVjDxFvHkIlPpMSfRTXrcstn+]|[.]?[369]f|[.]f|:{0,3}z|#z|%)"
"""What Polars parses; a %Z it would leave out."""
_DIGITS = "YmdHIMSyekl"
_SHORT = {"%T": "%H:%M:%S", "%X": "%H:%M:%S", "%r": "%I:%M:%S %p", "%c": "%a %b %e %H:%M:%S %Y"}
_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]
MOST_FLOAT32 = 3.4028235677973366e38
"""What rounds to infinity from here on."""
_EXACT = 2**53

BEYOND_64_BITS = "has integers that no type of 64 bits holds, read as string"
LEADING_ZEROS = "has integers with leading zeros, read as string"
OFFSETS = "written with offsets from UTC, read as the same times in UTC"
MIXED = "times with an offset from UTC and times without, read as text"
LEAP = "times with a leap second, 23:59:60, which no type here holds, read as text"


@dataclass(frozen=True)
class Column:
    """Type and time formats that a text column is parsed with.

    Args:
        kind: the type; null where no value has shown it.
        format: of times, the one that all of the first rows have, if there is one.
        formats: of times, all that are tried in turn.
        is_asked: whether the caller named the type.
        change: what becomes of the values, for a note.
        adapted: why numbers are text, for the log.
    """

    kind: pa.DataType
    format: str | None = None
    formats: tuple[str, ...] = ()
    is_asked: bool = False
    change: str = ""
    adapted: str = ""

    def may_change(self, *, careful: bool) -> bool:
        """Return whether its times may have offsets that no note tells of: not where each was parsed with a Z."""
        return self.kind == _UTC and not self.change and (careful or not (self.format or "").endswith("Z"))


def infer(texts: pl.Series, numbers: pl.Series, asked: str | None, formats: Sequence[str]) -> Column:
    """Infer the type of a text column from all texts of some rows.

    Args:
        texts: the column; null where a value is missing.
        numbers: the same, with a decimal point and without separators of thousands.
        asked: the type that the caller named.
        formats: of times, tried before those of ISO 8601.

    Example:
        >>> [infer(s, s, None, ()).kind for s in (pl.Series(["1", "-2"]), pl.Series(["1", "2.5"]), pl.Series(["007"]))]
        [DataType(int64), DataType(double), DataType(large_string)]
    """
    if asked is not None and asked != "timestamp":
        return Column(arrow_type(asked), is_asked=True)
    present, numbers = texts.drop_nulls().unique(), numbers.drop_nulls().unique().str.strip_chars()
    if asked is not None:
        return require_time(present, formats)
    if present.is_empty():
        return Column(pa.null())
    if _all_match(numbers, r"^[-+]?[0-9]+$"):
        return _infer_integer(numbers)
    if _fits(numbers, pl.Float64):
        return Column(pa.float64())
    if numbers.is_in([*_TRUE, *_FALSE]).all():
        return Column(pa.bool_())
    return infer_time(present, formats) or infer_text(present, formats)


def infer_text(present: pl.Series, formats: Sequence[str] = ()) -> Column:
    """Return a text column for texts that are not all numbers or times; note leap seconds and mixed offsets."""
    frame = pl.DataFrame({"": present})
    if all(_is_missing(frame.head(1), tried, kind).all() for kind, tried in _list_formats(formats)):
        return Column(arrow_type("string"))
    leaps = present.filter(_has_leap(present, formats))
    rest = present.filter(~_has_leap(present, formats))
    if len(leaps) and (rest.is_empty() or infer_time(rest, formats) is not None):
        return Column(arrow_type("string"), change=LEAP)
    without, with_offset = (~_is_missing(frame, tried, kind) for kind, tried in _list_formats(formats))
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


def require_time(present: pl.Series, formats: Sequence[str] = ()) -> Column:
    """Infer the formats of texts that the caller declares to be times."""
    own = tuple(one for one in formats if "z" not in one)  # one column is of times with an offset, or of times without
    otherwise = (_UTC, tuple(formats)) if formats and not own else (pa.timestamp("us"), (*own, *NAIVE))
    found = infer_time(present, formats) or Column(otherwise[0], None, otherwise[1])
    return replace(found, is_asked=True)


def infer_time(present: pl.Series, formats: Sequence[str] = ()) -> Column | None:
    """Infer the formats of texts that are all times, all with an offset from UTC or all without; else return None."""
    if present.is_empty() or _has_leap(present, formats).any() or not (formats or _all_match(present, _ISO)):
        return None
    frame = pl.DataFrame({"": present})
    for kind, tried in _list_formats(formats):
        fitting = [one for one in tried if not _is_missing(frame.head(1), (one,), kind).item()]
        if not fitting:
            continue
        whole = next((one for one in fitting if not _is_missing(frame, (one,), kind).any()), None)
        if whole is not None or not _is_missing(frame, tried, kind).any():
            unit = "ns" if present.str.contains(_NANOSECONDS).any() else "us"
            change = "" if kind.tz is None or _all_match(present, _OFFSET_OF_UTC) else OFFSETS
            return Column(pa.timestamp(unit, kind.tz), whole, tried, change=change)
    return None


def _list_formats(formats: Sequence[str]) -> list[tuple[pa.DataType, tuple[str, ...]]]:
    """List the formats of times without an offset from UTC and of those with one, the caller's own first."""
    naive = (*(one for one in formats if "z" not in one), *NAIVE)
    return [(pa.timestamp("us"), naive), (_UTC, (*(one for one in formats if "z" in one), *_ZULU, *_ZONED))]


def _is_missing(frame: pl.DataFrame, formats: Sequence[str], kind: pa.DataType) -> pl.Series:
    return frame.select(_parse_times(pl.col(""), formats, kind, strict=False).is_null()).to_series()


def find_offset_changes(texts: pl.LazyFrame) -> dict[str, str]:
    """Find the columns of times in which some offsets are not those of UTC."""
    found = texts.select((~pl.all().str.contains(_OFFSET_OF_UTC)).any()).collect(engine="streaming")
    return {name: OFFSETS for name in found.columns if found[name].item()}


def parse(text: pl.Expr, column: Column, *, careful: bool = True, strict: bool = True, on_gpu: bool = False) -> pl.Expr:
    """Build the expression that parses a column of text.

    Args:
        text: the column, of Polars' type String.
        column: what it is parsed as.
        careful: whether times may be in any of the formats.
        strict: whether a text that does not fit is an error of the plan; else it becomes missing.
        on_gpu: whether cudf-polars runs the plan, whose formats of times have no fractions and no offsets.
    """
    kind = column.kind
    if pa.types.is_large_string(kind):
        return text
    if pa.types.is_timestamp(kind):
        formats = column.formats if careful or column.format is None else (column.format,)
        text = invalidate(text, _has_leap(text, formats))
        if on_gpu:
            own = [_parse_time(text, one, kind) for one in formats if one not in _ISO_FORMATS]
            rest = pl.when(pl.all_horizontal(one.is_null() for one in own)).then(text) if own else text
            return pl.coalesce(*own, _parse_iso(rest, kind, strict=strict))
        if kind.unit == "us" and any("%.f" in one for one in formats):
            text = invalidate(text, text.str.contains(_NANOSECONDS))
        return _parse_times(text, formats, kind, strict=strict)
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
        return text.cast(INTEGERS[str(kind)], strict=strict)
    return text.cast(pl.Float64, strict=strict)


INTEGERS = {
    **{f"int{bits}": getattr(pl, f"Int{bits}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": getattr(pl, f"UInt{bits}") for bits in (8, 16, 32, 64)},
}


def _parse_times(text: pl.Expr, formats: Sequence[str], kind: pa.DataType, *, strict: bool) -> pl.Expr:
    """Parse times in one of the formats; those in none of them fail in the last one."""
    found, rest = [], text
    for one in formats[:-1]:
        found.append(_parse_time(rest, one, kind))
        rest = pl.when(found[-1].is_null()).then(rest)
    return pl.coalesce(*found, _parse_time(rest, formats[-1], kind, strict=strict))


def _parse_time(text: pl.Expr, form: str, kind: pa.DataType, *, strict: bool = False) -> pl.Expr:
    # The formats that are written with a Z say no zone to Polars, whose %z takes neither a Z nor hours alone.
    zone = kind.tz if "z" in form else None
    form = re.sub("%:{0,3}z", "%#z", form)
    for part, needed, rest, first in _PARTS:
        if any(one in form for one in part) and not any(one in form for one in needed):
            text, form = text + pl.lit(f" {first}"), f"{form} {rest}"
    parsed = text.str.strptime(pl.Datetime("us", zone), form, strict=strict, cache=False)
    return parsed if zone == kind.tz else parsed.dt.replace_time_zone(kind.tz)


def _parse_iso(text: pl.Expr, kind: pa.DataType, *, strict: bool) -> pl.Expr:
    """Parse times in any of the formats of ISO 8601, by arithmetic."""
    digits = "9" if kind.unit == "ns" else "6"
    clock = f"[ T]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]{{1,{digits}}})?)?"
    rest = f"{clock}(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)" if kind.tz else f"({clock})?"
    text = invalidate(text, ~text.str.contains(f"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}{rest}$"))
    day = text.str.slice(0, 10).str.strptime(pl.Datetime("us"), "%Y-%m-%d", strict=strict, cache=False)
    minutes = _parse_number(text.str.slice(11, 2)) * 60 + _parse_number(text.str.slice(14, 2))
    seconds = _parse_number(text.str.extract("^.{16}:([0-9]{2})", 1))
    micros = _parse_number(text.str.extract("[.]([0-9]+)", 1).str.pad_end(6, "0").str.slice(0, 6))
    if kind.tz:
        end = "([+-])([0-9]{2}):?([0-9]{2})?$"
        offset = _parse_number(text.str.extract(end, 2)) * 60 + _parse_number(text.str.extract(end, 3))
        minutes += pl.when(text.str.extract(end, 1) == "-").then(offset).otherwise(-offset)
    time = (day.cast(pl.Int64) + (minutes * 60 + seconds) * 1_000_000 + micros).cast(pl.Datetime("us"))
    return time.dt.replace_time_zone(kind.tz) if kind.tz else time


def _has_leap(texts: Any, formats: Sequence[str]) -> Any:
    """Return where a time has the second 60, which Polars parses as second 0 of the next minute."""
    own = {_build_leap_pattern(one) for one in formats if one not in _ISO_FORMATS and re.search("%[STXrc]", one)}
    return texts.str.contains("|".join([_ISO_LEAP, *sorted(own)]))


def _build_leap_pattern(form: str) -> str:
    """Build a pattern of the texts in this format whose second is 60.

    Example:
        >>> bool(re.search(_build_leap_pattern("%d.%m.%Y %T"), "31.12.2016 23:59:60"))
        True
    """
    for short, long in _SHORT.items():
        form = form.replace(short, long)
    parts = re.findall(r"%[-_0#:.]*[0-9]?.|.", form, re.DOTALL)
    found = []
    for part, following in pairwise([*parts, ""]):
        most = 4 if part == "%Y" else 2
        is_cut = following[:1] != "%" or following[-1] not in _DIGITS  # else only its width ends a number
        digits = f"[0-9 ]{{1,{most}}}" if is_cut else f"[0-9]{{{most}}}"
        own = {"%S": "60", " ": r"\s*"}.get(part, digits if part[-1] in _DIGITS else ".*?")
        found.append(own if part[0] == "%" or part == " " else re.escape(part))
    return f"^{''.join(found)}"


def _parse_number(digits: pl.Expr) -> pl.Expr:
    return digits.cast(pl.Int64, strict=False).fill_null(0)


def invalidate(text: pl.Expr, where: pl.Expr) -> pl.Expr:
    """Prefix some texts so that they parse as neither numbers nor times."""
    return pl.when(where).then(pl.lit("no ") + text).otherwise(text)


def _all_match(texts: pl.Series, pattern: str) -> bool:
    return bool(texts.str.contains(pattern).all())


def _fits(texts: pl.Series, kind: type[pl.DataType]) -> bool:
    return bool(texts.cast(kind, strict=False).null_count() == 0)
