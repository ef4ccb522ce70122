"""Times in text: which formats a column may have, and the expressions of Polars that parse them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from itertools import pairwise

import polars as pl
import pyarrow as pa

UTC = pa.timestamp("us", "UTC")
_NO_ZONE = pa.timestamp("us")
_CLOCKS = ("%H:%M:%S", "%H:%M:%S%.f", "%H:%M")
NAIVE = ("%Y-%m-%d", *(f"%Y-%m-%d{gap}{clock}" for clock in _CLOCKS for gap in (" ", "T")))
_ZULU = tuple(f"%Y-%m-%d{gap}%H:%M:%S{fraction}Z" for fraction in ("", "%.f") for gap in ("T", " "))
_ZONED = tuple(f"%Y-%m-%d{gap}{clock}%#z" for clock in ("%H:%M:%S%.f", "%H:%M") for gap in ("T", " "))
ISO_FORMATS = {*NAIVE, *_ZULU, *_ZONED}
_ISO_TEXTS = [
    f"2001-02-03{clock}{zone}"
    for clock in ("", *(f"{gap}04:05{seconds}" for gap in " T" for seconds in ("", ":06", ":06.5")))
    for zone in ("", "Z", "+01:30")
]
# Polars knows no hours without minutes, and no months without days.
_PARTS = (
    (("%H", "%I", "%k", "%l"), ("%M", "%T", "%R", "%X", "%c", "%r"), "%M", "00"),
    (("%m", "%b", "%B", "%h"), ("%d", "%e", "%D", "%F", "%x", "%c"), "%d", "01"),
)
NANOSECONDS = r"[.][0-9]{7}"
_ISO_LEAP = "[ T][0-9]+:[0-9]+:60"
DIRECTIVE = r"%(?:[-_0]?[YCymbBhdeaAwuUWGgVjDxFvHkIlPpMSfRTXrcstn+]|[.]?[369]f|[.]f|:{0,3}z|#z|%)"
"""What Polars parses; a %Z it would leave out."""
_DIRECTIVE_OR_CHARACTER = re.compile(f"{DIRECTIVE}|.", re.DOTALL)
_YEARS = {"%Y", "%y", "%C", "%G", "%g", "%s", "%+"}
_NUMBER = "%(?:[YmdHIMSyekl]|[369]?f)"
_PATTERNS = {
    "%Y": "[0-9]{4}",
    "%y": "[0-9]{2}",
    "%f": "[0-9]{1,6}",
    **{f"%{width}f": f"[0-9]{{{width}}}" for width in "369"},
    **dict.fromkeys(("%.f", "%.3f", "%.6f", "%.9f"), "(?:[.][0-9]{1,6})?"),
    **dict.fromkeys(("%z", "%#z", "%:z", "%::z", "%:::z"), "[^0-9].*"),
    **dict.fromkeys(("%C", "%G", "%g", "%V", "%U", "%W", "%j", "%u", "%w", "%s"), "-?[0-9]+"),
    **dict.fromkeys(("%n", "%t"), r"\s*"),
    "%+": ".*",
    "%%": "%",
}
_SHORT = {
    "%T": "%H:%M:%S",
    "%X": "%H:%M:%S",
    "%R": "%H:%M",
    "%r": "%I:%M:%S %p",
    "%c": "%a %b %e %H:%M:%S %Y",
    "%F": "%Y-%m-%d",
    "%D": "%m/%d/%y",
    "%x": "%m/%d/%y",
    "%v": "%e-%b-%Y",
}
_CENTURY = timedelta(days=36_525)


@dataclass(frozen=True)
class TimeFormats:
    """Formats that the times of a column may have: the caller's own, and beside them those of ISO 8601."""

    own_formats: tuple[str, ...] = ()
    with_iso: bool = True

    def by_kind(self) -> list[tuple[pa.DataType, tuple[str, ...], tuple[str, ...]]]:
        """List the own formats and all formats of times without an offset from UTC, and of those with one."""
        kinds = []
        for kind, iso in ((_NO_ZONE, NAIVE), (UTC, (*_ZULU, *_ZONED))):
            own_formats = tuple(form for form in self.own_formats if _has_offset(form) == (kind == UTC))
            has_iso = self.with_iso and not any(map(_contradicts_iso, own_formats))
            kinds.append((kind, own_formats, (*own_formats, *iso) if has_iso else own_formats))
        return kinds


@cache
def _contradicts_iso(form: str) -> bool:
    """Return whether a format parses a text in ISO 8601 as another time."""
    kind, formats = (UTC, (*_ZULU, *_ZONED)) if _has_offset(form) else (_NO_ZONE, NAIVE)
    time, iso_time = _parse_time(pl.col(""), form, kind), _parse_any(pl.col(""), formats, formats, kind)
    return bool(pl.DataFrame({"": _ISO_TEXTS}).select((time != iso_time).any()).item())


def explain_format(form: str) -> str | None:
    """Say what a format is that parses no text as a time; None for one that does."""
    if _YEARS.isdisjoint(_split(form)):
        return "a format without a year"
    try:
        pl.select(_parse_time(pl.lit(""), form, UTC))
    except pl.exceptions.PolarsError as cause:
        return f"a format that Polars does not parse ({str(cause).partition(chr(10))[0]})"
    return None


def is_missing(frame: pl.DataFrame, formats: Sequence[str], kind: pa.DataType) -> pl.Series:
    """Return where the texts of a frame's only column, named '', are in none of the formats."""
    any_fraction = pa.timestamp("ns", kind.tz)
    return frame.select(_parse_any(pl.col(""), formats, formats, any_fraction).is_null()).to_series()


def choose_formats(texts: pl.Series, formats: Sequence[str], kind: pa.DataType) -> list[str]:
    """Choose as few formats as parse all of the texts that can be parsed: first the one that parses most."""
    fitting: list[str] = []
    remainder = pl.DataFrame({"": texts.drop_nulls().unique()})
    while len(remainder):
        missing = {form: is_missing(remainder, [form], kind) for form in formats}
        best = min(formats, key=lambda form: int(missing[form].sum()))
        if missing[best].all():
            break
        fitting.append(best)
        remainder = remainder.filter(missing[best])
    return fitting


def list_times(text: str, formats: Sequence[str], kind: pa.DataType) -> dict[str, datetime]:
    """List the times that a text is by the formats that parse it."""
    frame = pl.DataFrame({"": [text]})
    times = {form: frame.select(_parse_time(pl.col(""), form, kind)).item() for form in formats}
    return {form: time for form, time in times.items() if time is not None}


def parse_times(
    text: pl.Expr, formats: Sequence[str], own_formats: Sequence[str], kind: pa.DataType, *, strict: bool, on_gpu: bool
) -> pl.Expr:
    """Parse times in any of the formats; what two of the caller's own read as different times is as invalid as others.

    Where it is `on_gpu`, cudf-polars runs the plan, whose formats have no fractions but %f and no offsets.
    """
    if len(formats) == 1 and len(own_formats) < 2 and not on_gpu:
        return _parse_time(text, formats[0], kind, strict=strict)
    time = _parse_any(text, formats, own_formats if on_gpu else formats, kind, on_gpu=on_gpu)
    if len(own_formats) > 1:
        times = [_parse_time(text, form, kind, on_gpu=on_gpu) for form in own_formats]
        is_clear = (pl.min_horizontal(times) == pl.max_horizontal(times)).fill_null(True)
        time = pl.when(is_clear).then(time)
    if not strict:
        return time
    refused = pl.when(time.is_null()).then(pl.lit("no ") + text)
    failing = refused.str.strptime(pl.Datetime("us"), "%Y-%m-%d", strict=True, cache=False)
    return pl.coalesce(time, failing if kind.tz is None else failing.dt.replace_time_zone(kind.tz))


def _parse_any(
    text: pl.Expr, formats: Sequence[str], by_format: Sequence[str], kind: pa.DataType, *, on_gpu: bool = False
) -> pl.Expr:
    """Parse times in any of the formats, by arithmetic where they are of ISO 8601 and not to be parsed `by_format`."""
    parsers: list[Callable[[pl.Expr], pl.Expr]] = [
        partial(_parse_time, form=form, kind=kind, on_gpu=on_gpu) for form in formats if form in by_format
    ]
    if len(parsers) < len(formats):
        parsers.append(partial(_parse_iso, kind=kind))
    # What most texts have comes first. Nested any deeper, expressions would double with each format.
    first, *further = parsers
    time = first(text)
    remainder = pl.when(time.is_null()).then(text)
    return pl.coalesce(time, *(parse(remainder) for parse in further))


def _parse_time(text: pl.Expr, form: str, kind: pa.DataType, *, strict: bool = False, on_gpu: bool = False) -> pl.Expr:
    """Parse times in one format as Python's strptime does, but for a second of 60, which is invalid."""
    parts = _split(form)
    # The formats that are written with a Z say no zone to Polars, whose %z takes neither a Z nor hours alone.
    zone = kind.tz if _has_offset(form) else None
    is_1969: pl.Expr | None = None
    micros: pl.Expr | None = None
    fits = text.str.contains(_build_pattern(form, {} if kind.unit == "us" else {"%.f": "(?:[.][0-9]+)?"}))
    text = invalidate(text, ~fits) if strict else pl.when(fits).then(text)
    if on_gpu:  # cuDF knows no %#z, and of %y and %f what strptime does
        form = form.replace("%f", "%6f")
    else:
        if "%y" in parts and "%C" not in parts:
            is_1969 = text.str.contains(_build_pattern(form, {"%y": "69"}))  # to Polars it is 2069
        if "%f" in parts:
            pattern = _build_pattern(form, {"%f": ")([0-9]{1,6})("})
            micros = text.str.extract(pattern, 2).str.pad_end(6, "0").cast(pl.Int64)
            text = text.str.replace(pattern, "${1}${3}")
        form = re.sub("%:{0,3}z", "%#z", "".join(part for part in parts if part != "%f"))
    for directives, needed, suffix, first in _PARTS:
        if any(directive in form for directive in directives) and not any(directive in form for directive in needed):
            text, form = text + pl.lit(f" {first}"), f"{form} {suffix}"
    parsed = text.str.strptime(pl.Datetime("us", zone), form, strict=strict, cache=False)
    if is_1969 is not None:
        parsed = pl.when(is_1969).then(parsed - _CENTURY).otherwise(parsed)
    if micros is not None:
        parsed = parsed + micros.cast(pl.Duration("us"))
    return parsed if zone == kind.tz else parsed.dt.replace_time_zone(kind.tz)


def _parse_iso(text: pl.Expr, kind: pa.DataType) -> pl.Expr:
    """Parse times in any of the formats of ISO 8601, by arithmetic."""
    digits = "9" if kind.unit == "ns" else "6"
    clock = f"[ T]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]{{1,{digits}}})?)?"
    time_pattern = f"{clock}(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)" if kind.tz else f"({clock})?"
    text = invalidate(text, ~text.str.contains(f"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}{time_pattern}$"))
    day = text.str.slice(0, 10).str.strptime(pl.Datetime("us"), "%Y-%m-%d", strict=False, cache=False)
    minutes = _parse_number(text.str.slice(11, 2)) * 60 + _parse_number(text.str.slice(14, 2))
    seconds = _parse_number(text.str.extract("^.{16}:([0-9]{2})", 1))
    micros = _parse_number(text.str.extract("[.]([0-9]+)", 1).str.pad_end(6, "0").str.slice(0, 6))
    if kind.tz:
        end = "([+-])([0-9]{2}):?([0-9]{2})?$"
        offset = _parse_number(text.str.extract(end, 2)) * 60 + _parse_number(text.str.extract(end, 3))
        minutes += pl.when(text.str.extract(end, 1) == "-").then(offset).otherwise(-offset)
    time = (day.cast(pl.Int64) + (minutes * 60 + seconds) * 1_000_000 + micros).cast(pl.Datetime("us"))
    return time.dt.replace_time_zone(kind.tz) if kind.tz else time


def has_leap(texts: pl.Series, formats: Sequence[str]) -> pl.Series:
    """Return where a time in ISO 8601 or in one of these formats has the second 60."""
    patterns = {_build_pattern(form, {"%S": "60"}) for form in formats if "%S" in _split(form)}
    return texts.str.contains("|".join([_ISO_LEAP, *sorted(patterns)]))


def _has_offset(form: str) -> bool:
    return any(part[0] == "%" and part[-1] in "z+" for part in _split(form))


def _split(form: str) -> list[str]:
    """Split a format into single characters and directives, without their padding and with short forms written out."""
    parts = (re.sub("^%[-_0]", "%", part) for part in _DIRECTIVE_OR_CHARACTER.findall(form))
    return [piece for part in parts for piece in _DIRECTIVE_OR_CHARACTER.findall(_SHORT.get(part, part))]


def _build_pattern(form: str, exceptions: Mapping[str, str] | None = None) -> str:
    """Build a pattern of texts in a format, of their numbers' digits above all, with other patterns of directives."""
    fixed, patterns = _PATTERNS | dict(exceptions or {}), []
    for part, following in pairwise([*_split(form), ""]):
        tens = "[0-5 ]" if part == "%S" else "[0-9 ]"
        is_cut = not re.fullmatch(_NUMBER, following)  # else only its width ends a number
        number = f"{tens}{'?' if is_cut else ''}[0-9]"
        other = number if re.fullmatch(_NUMBER, part) else "[^0-9]*" if part[0] == "%" else re.escape(part)
        patterns.append(r"\s+" if part.isspace() else fixed.get(part, other))
    return f"^({''.join(patterns)})$"


def _parse_number(digits: pl.Expr) -> pl.Expr:
    return digits.cast(pl.Int64, strict=False).fill_null(0)


def invalidate(text: pl.Expr, where: pl.Expr) -> pl.Expr:
    """Prefix some texts so that they parse as neither numbers nor times."""
    return pl.when(where).then(pl.lit("no ") + text).otherwise(text)
