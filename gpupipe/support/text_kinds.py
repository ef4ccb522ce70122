"""Texts that stand for something else: numbers, percentages, money, dates."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import filterfalse, islice, product

from gpupipe.support.text import derive, format_count
from gpupipe.support.text_dates import DATE, ISO_TIME, UNREAD, find_formats, is_date, list_kinds, list_offsets

MISSING_MARKS = (
    "",
    "-",
    "--",
    ".",
    "?",
    "na",
    "n.a.",
    "NA",
    "N/A",
    "n/a",
    "NaN",
    "nan",
    "NULL",
    "null",
    "None",
    "none",
)
"""Texts that mostly stand for a missing value, where they are none of a column's categories."""
_MARK = re.compile(r"\D*([a-z]\^?[23])?|0000\D00\D00.*|00\D00\D0000.*")  # no digit, a unit like m2, or a date of zeros
_LEAST_VALUED = 2  # distinct texts beside marks of missing values
_FEW_TEXTS = 20  # distinct ones, of which rows tell more than texts
_NUM_STRAYS = 3  # that are named
_NUM_DATES = 2_000  # whose format is looked for
_NUMBER = r"[+-]?(?!0\d|\d{16})(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"  # 007 is a code; floats hold 15 digits
_GROUPED = r"[+-]?\d{1,3}(,\d{3})*(\.\d+)?|[+-]?\d+(\.\d+)?"
_MONEY = rf"[+-]?\s*[$€£¥₹]\s*({_GROUPED})|({_GROUPED})\s*([$€£¥₹]|USD|EUR|GBP)"
_WITH_COMMA = r"[+-]?(?!0\d|\d{16})(\d+|\d{1,3}(\.\d{3})+)(,\d+)?([eE][+-]?\d+)?"  # the comma is the decimal point
_MONEY_WITH_COMMA = rf"[+-]?\s*[$€£¥₹]\s*({_WITH_COMMA})|({_WITH_COMMA})\s*([$€£¥₹]|USD|EUR|GBP)"
_KINDS = {
    "numbers": _NUMBER,
    "percentages": rf"({_NUMBER})\s*%",
    "numbers with commas": r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?|" + _NUMBER,
    "amounts of money": _MONEY,
    "amounts of money, negative in parentheses": rf"\(({_MONEY})\)|{_MONEY}",
    "times in ISO format": ISO_TIME,
    "dates": DATE,
    "numbers like 1.234,5": _WITH_COMMA,
    "percentages like 1.234,5 %": rf"({_WITH_COMMA})\s*%",
    "amounts of money like 1.234,5": _MONEY_WITH_COMMA,
}
_NUMBERS = {
    "percentages": r"sub({}, '\\s*%', '')",
    "numbers with commas": "sub({}, ',', '')",
    "amounts of money": "sub({}, '[^0-9.+-]', '')",
    "amounts of money, negative in parentheses": "sub(replace({}, '(', '-'), '[^0-9.+-]', '')",
    "numbers like 1.234,5": "replace(replace({}, '.', ''), ',', '.')",
    "percentages like 1.234,5 %": "replace(sub({}, '[^0-9,eE+-]', ''), ',', '.')",
    "amounts of money like 1.234,5": "replace(sub({}, '[^0-9,+-]', ''), ',', '.')",
}
_PADDED_HOUR = "where(search({0}, '^[0-9]:'), '0' + {0}, {0})"
_PADDED_MONTH = r"sub(strip({}), '([/-])([1-9])$', '\\10\\2')"
_YEAR_AND_QUARTER = r"sub(strip({}), '^Q?([1-4])Q?[ /-]?([0-9]+)$', '\\2-Q\\1')"
_DECIMAL_COMMA = "replace({}, ',', '.')"


def explain_texts(name: str, counts: Mapping[str, int]) -> str:
    """Say what nearly all texts of a column stand for, by the rows that each is in, and the steps that parse them.

    Texts without a digit, units such as m2, and dates of zeros, may be a tenth of the texts, or of the rows of few
    texts, and known marks of a missing value more; any other one, as 12b among numbers, makes it text, of which nothing
    is said.

    Example:
        >>> explain_texts("rooms", {"3": 50, "4": 70, "?": 1})
        "numbers, but for '?' (1 row), which becomes missing: T.Cast({'rooms': 'float64'}, errors='coerce')"
    """
    filled = [text for text in counts if text.strip()]
    strays = list(filter(_MARK.fullmatch, filled))
    are_rare = 10 * len(strays) <= len(filled)
    if strays and all(text.strip() in MISSING_MARKS for text in strays):  # however many rows have them
        are_rare = len(filled) >= len(strays) + _LEAST_VALUED
    if not are_rare and len(filled) <= _FEW_TEXTS and 2 * len(strays) < len(filled):
        are_rare = 10 * sum(map(counts.__getitem__, strays)) <= sum(map(counts.__getitem__, filled))
    kind = recognise_texts(drop_marks(filled)) if are_rare else None
    if kind is None:
        return ""
    strays.sort(key=lambda text: (-counts[text], text))
    named = ", ".join(f"{text!r} ({format_count(counts[text], 'row')})" for text in strays[:_NUM_STRAYS])
    more = f" and {len(strays) - _NUM_STRAYS:,} more" if len(strays) > _NUM_STRAYS else ""
    but = f", but for {named}{more}, which become{'s' if len(strays) == 1 else ''} missing" if strays else ""
    return f"{kind}{but}: {suggest_parsing(name, kind, counts)}"


def explain_likeness(name: str, texts: Iterable[str]) -> str:
    """Say which two texts differ in spaces or in case alone, if any do, and the step that makes one of them.

    Example:
        >>> explain_likeness("paid", ["yes", "no", "Yes "])
        "'yes' and 'Yes ' differ in spaces or case alone: T.Derive(paid='lower(strip(paid))') makes one of them"
    """
    firsts = dict[str, str]()
    for text in texts:
        if (first := firsts.setdefault(text.strip().lower(), text)) != text:
            step = f"T.{derive(name, 'lower(strip({}))')}"
            return f"{first!r} and {text!r} differ in spaces or case alone: {step} makes one of them"
    return ""


def recognise_texts(texts: Iterable[str]) -> str | None:
    """Return what all texts but empty ones stand for: a plural such as `"dates"`; None for text, or none at all.

    Example:
        >>> recognise_texts(["12 %", "7.5%"]), recognise_texts(["$1,234.50", "$7"]), recognise_texts(["007"])
        ('percentages', 'amounts of money', None)
    """
    filled = [text.strip() for text in texts if text.strip()]
    kinds = (kind for kind, pattern in _KINDS.items() if all(re.fullmatch(pattern, text) for text in filled))
    return next(kinds, None) if filled else None


def drop_marks(texts: Iterable[str]) -> list[str]:
    """Return the texts without those that hold no digit, such as marks of a missing value, and dates of zeros."""
    return list(filterfalse(_MARK.fullmatch, texts))


def parse_amounts(texts: Sequence[str]) -> list[float] | None:
    """Parse texts of numbers, percentages or money, NaN where one has no digit; None where some are anything else.

    Example:
        >>> parse_amounts(["$1,234.50", "-$7", "?"]), parse_amounts(["7,5 %", "1.000,25 %"]), parse_amounts(["12b"])
        ([1234.5, -7.0, nan], [7.5, 1000.25], None)
    """
    kind = recognise_texts(drop_marks(texts))
    if kind is None or kind not in {"numbers", *_NUMBERS}:
        return None

    def parse(text: str) -> float:
        text = text.replace(".", "").replace(",", ".") if " like " in kind else text.replace(",", "")
        if kind.startswith("amounts"):
            text = ("-" if re.search("[(-]", text) else "") + re.sub("[^0-9.]", "", text)
        return float(text.strip(" %"))

    return [math.nan if _MARK.fullmatch(text) else parse(text) for text in texts]


def suggest_parsing(name: str, kind: str, texts: Collection[str] = ()) -> str:
    """Suggest the steps that parse a column whose texts stand for `kind`, or the calls that read dates like `texts`.

    Texts without a digit, as empty ones, and dates of zeros become missing.

    Example:
        >>> suggest_parsing("price", "numbers"), suggest_parsing("age", "numbers", ["40", ""])
        ("T.Cast({'price': 'float64'})", "T.Cast({'age': 'float64'}, errors='coerce')")
        >>> suggest_parsing("day", "dates", ["27/01/2024", "03/02/2024"])
        "gp.read_csv(..., timestamp_formats={'day': '%d/%m/%Y'}), or pd.to_datetime(frame['day'], format='%d/%m/%Y')"
    """
    values = drop_marks(texts)
    strays = [text for text in filter(_MARK.fullmatch, texts) if text.strip()]
    if kind == "dates":
        dates = list(filter(is_date, values))
        has_others = len(dates) < len(values)  # such as two dates, which no format reads
        missing = f", null_values={{{name!r}: {strays}}}" if strays else ""  # another column may have it as a category
        of_files, of_frames = _suggest_reading(name, dates[:_NUM_DATES], coerces=bool(strays or has_others))
        read = f"gp.read_csv(..., {of_files}{missing}), or "
        read = "" if has_others or len(strays) > _NUM_STRAYS or ".str." in of_frames else read
        return f"{read}{of_frames}"
    if kind == "times in ISO format" and list_offsets(values):  # which a cast does not read
        coerce = "" if len(values) == len(texts) else ", errors='coerce'"
        return f"pd.to_datetime(frame[{name!r}], format='ISO8601', utc=True{coerce})"
    dtype = "timestamp" if kind == "times in ISO format" else "float64"
    errors = "" if len(values) == len(texts) else ", errors='coerce'"
    cast = f"T.Cast({{{name!r}: {dtype!r}}}{errors})"
    if kind not in _NUMBERS:
        return cast
    first, *alternatives = (f"T.{derive(name, number)}" for number in _list_readings(kind, values))
    if kind == "numbers like 1.234,5" and not strays:
        thousands = ", thousands='.'" if any("." in text for text in values) else ""
        cast += f"; or gp.read_csv(..., decimal=','{thousands})"
    marks = "dots" if kind.startswith("amounts") else "commas"
    return f"{first}, then {cast}" + "".join(f"; {step} instead where its {marks} are decimal" for step in alternatives)


def suggest_ordering(name: str, units: Sequence[str]) -> str:
    """Suggest the step that gives texts of times of day, months or quarters the order of time, or calls that read them.

    Example:
        >>> suggest_ordering("month", ["09/23", "01/24"])
        "gp.read_csv(..., timestamp_formats={'month': '%m/%y'}), or pd.to_datetime(frame['month'], format='%m/%y')"
    """
    if ":" in units[0]:
        return f"T.{derive(name, _PADDED_HOUR)}"
    formats = find_formats(units)
    if not formats:
        return f"T.{derive(name, _YEAR_AND_QUARTER)}"
    step = f"T.{derive(name, _PADDED_MONTH)}; or " if formats[0].startswith("%Y") else ""
    of_files, of_frames = _suggest_reading(name, units, coerces=False)
    return f"{step}gp.read_csv(..., {of_files}), or {of_frames}"


def _suggest_reading(name: str, dates: Sequence[str], *, coerces: bool) -> tuple[str, str]:
    """Suggest the arguments of `read_csv`, and the calls of pandas, that read dates in one format or several."""
    replacement, readable = "", [re.sub(UNREAD, "", text) for text in dates]
    if readable != list(dates) and not find_formats(dates):  # 5th January 2024, or Sept 5, 2024 among others
        dates, replacement = readable, f".str.replace(r'{UNREAD}', '', regex=True)"

    def read(form: str, *, coerces: bool) -> str:
        options = f"{', errors=' + repr('coerce') if coerces else ''}{', utc=True' if '%z' in form else ''}"
        return f"pd.to_datetime(frame[{name!r}]{replacement}, format={form}{options})"

    formats = list(map(repr, find_formats(dates)))
    kinds = [] if formats else list_kinds(dates)
    other_kinds = [kind for kind in kinds if not all(re.fullmatch(ISO_TIME, date) for date in kind)]
    choices = (
        [list(dict.fromkeys(each)) for each in islice(product(*map(find_formats, other_kinds)), 2)] if kinds else []
    )
    if not choices or not other_kinds:
        of_files = " or ".join(f"{{{name!r}: {form}}}" for form in formats or ["[...]"])
        return f"timestamp_formats={of_files}", read(" or ".join(formats) or "...", coerces=coerces)
    calls = []
    for choice in choices:  # pandas' own "mixed" takes 01.02.2024 for a day of January
        every = [*map(repr, choice), *(["'ISO8601'"] if len(other_kinds) < len(kinds) else [])]
        first, *more_calls = (read(form, coerces=coerces or len(every) > 1) for form in every)
        calls.append(first + "".join(f".fillna({call})" for call in more_calls))
    return f"timestamp_formats={' or '.join(map(repr, choices))}, dtypes={{{name!r}: 'timestamp'}}", " or ".join(calls)


def _list_readings(kind: str, texts: Iterable[str]) -> list[str]:
    """List the expressions that take away all but a number: two where its commas or dots may stand for either mark.

    Those before three digits each separate thousands, or decimals; a group of thousands does not begin with 0.
    """
    number, is_money = _NUMBERS[kind], kind.startswith("amounts")
    if " like " in kind:
        return [number]
    marked = [digits for text in texts if re.search("[.,]", digits := re.sub("[^0-9.,]", "", text))]
    decimal = _DECIMAL_COMMA if kind == "numbers with commas" else number.replace("{}", _DECIMAL_COMMA)
    if is_money and marked and all(re.fullmatch(r"[1-9]\d{0,2}\.\d{3}", digits) for digits in marked):
        return [number.replace("0-9.", "0-9"), number]
    if not all(re.fullmatch(r"\d{1,3},\d{3}", digits) for digits in marked):
        return [number]
    if any(digits.startswith("0") for digits in marked):
        return [decimal]
    return [number] if is_money or not marked else [number, decimal]
