"""Texts that stand for something else: numbers, percentages, money, dates."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import filterfalse
from time import strptime

from gpupipe.support.text import derive, format_count

_MARK = re.compile(r"\D*|0000\D00\D00.*|00\D00\D0000.*")  # text without a digit, or a date of zeros
_FEW_TEXTS = 20  # distinct ones, of which rows tell more than texts
_NUM_STRAYS = 3  # that are named
_FEW_DATES = 100  # of a column, that tell whether a date is like them
_NUM_DATES = 2_000  # whose format is looked for: 20 µs each
_NUMBER = r"[+-]?(?!0\d|\d{16})(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"  # 007 is a code; floats hold 15 digits
_GROUPED = r"[+-]?\d{1,3}(,\d{3})*(\.\d+)?|[+-]?\d+(\.\d+)?"
_MONEY = rf"[+-]?\s*[$€£¥₹]\s*({_GROUPED})|({_GROUPED})\s*([$€£¥₹]|USD|EUR|GBP)"
_WITH_COMMA = r"[+-]?(?!0\d|\d{16})(\d+|\d{1,3}(\.\d{3})+)(,\d+)?([eE][+-]?\d+)?"  # the comma is the decimal point
_MONEY_WITH_COMMA = rf"[+-]?\s*[$€£¥₹]\s*({_WITH_COMMA})|({_WITH_COMMA})\s*([$€£¥₹]|USD|EUR|GBP)"
_WEEKDAY = "(Mon|Tue|Wed|Thu|Fri|Sat|Sun)([a-z]{3,6})?(,?) "
_MONTH = (
    "(?i:jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?|nov(ember)?|"
    "dec(ember)?)"
)
_DATE = (
    rf"\d{{4}}[ -]{_MONTH}|{_MONTH}([ -]\d{{4}}|-\d{{2}})|(19|20)\d{{2}}[/-](0[1-9]|1[0-2])|"
    r"(0?[1-9]|1[0-2])[./-](19|20)\d{2}|"
    r"\d{1,2}(?P<mark>[./-])\d{1,2}(?P=mark)(\d{4}|\d{2})|\d{4}(?P<sign>[./-])\d{1,2}(?P=sign)\d{1,2}|"
    rf"\d{{1,2}}[ -]([A-Z][a-z]{{2,8}}|{_MONTH})[ -]\d{{2,4}}|([A-Z][a-z]{{2,8}}|{_MONTH}) \d{{1,2}}, \d{{4}}"
)
_CLOCK = r" \d{1,2}:\d{2}(:\d{2})?( [AaPp][Mm])?"
_TIME_OF_DAY = r"\d{1,2}:\d{2}(:\d{2})?"
_KINDS = {
    "numbers": _NUMBER,
    "percentages": rf"({_NUMBER})\s*%",
    "numbers with commas": r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?|" + _NUMBER,
    "amounts of money": _MONEY,
    "amounts of money, negative in parentheses": rf"\(({_MONEY})\)|{_MONEY}",
    "times in ISO format": r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?",
    "dates": rf"({_WEEKDAY})?({_DATE})({_CLOCK})?",
    "numbers like 1.234,5": _WITH_COMMA,
    "percentages like 1.234,5 %": rf"({_WITH_COMMA})\s*%",
    "amounts of money like 1.234,5": _MONEY_WITH_COMMA,
}
_TIMES = ("dates", "times in ISO format")
_IN_ORDER = r"\d{4}(?P<sign>[./-])\d{2}((?P=sign)\d{2})?([ T]\d{2}:\d{2}.*)?"  # the largest unit first, all padded
_OFFSET = r"(Z|[+-]\d{2}:?\d{2})$"
_DATE_FORMATS = [
    *(
        f"{day}{sep}{month}{sep}{year}"
        for sep in "/.-"
        for year in ("%Y", "%y")
        for day, month in (("%d", "%m"), ("%m", "%d"))
    ),
    *("%Y/%m/%d", "%Y.%m.%d", "%Y-%m-%d"),
    *(f"%d{sep}{month}{sep}{year}" for sep in " -" for month in ("%b", "%B") for year in ("%Y", "%y")),
    *("%b %d, %Y", "%B %d, %Y", "%Y-%m", "%Y/%m", "%m/%Y", "%m-%Y", "%m.%Y", "%b-%y", "%B-%y"),
    *(
        f"{first}{sep}{second}"
        for sep in " -"
        for month in ("%b", "%B")
        for first, second in (("%Y", month), (month, "%Y"))
    ),
]
_NUMBERS = {
    "percentages": r"sub({}, '\\s*%', '')",
    "numbers with commas": "sub({}, ',', '')",
    "amounts of money": "sub({}, '[^0-9.+-]', '')",
    "amounts of money, negative in parentheses": "sub(replace({}, '(', '-'), '[^0-9.+-]', '')",
    "numbers like 1.234,5": "replace(replace({}, '.', ''), ',', '.')",
    "percentages like 1.234,5 %": "replace(sub({}, '[^0-9,eE+-]', ''), ',', '.')",
    "amounts of money like 1.234,5": "replace(sub({}, '[^0-9,+-]', ''), ',', '.')",
}
_DECIMAL_COMMA = "replace({}, ',', '.')"


def explain_texts(name: str, counts: Mapping[str, int]) -> str:
    """Say what nearly all texts of a column stand for, by the rows that each is in, and the steps that parse them.

    Texts without a digit, such as marks of a missing value, and dates of zeros may be a tenth of the texts, or of the
    rows of few texts; any other one, as 12b among numbers, makes it text, of which nothing is said.

    Example:
        >>> explain_texts("rooms", {"3": 50, "4": 70, "?": 1})
        "numbers, but for '?' (1 row), which becomes missing: T.Cast({'rooms': 'float64'}, errors='coerce')"
    """
    filled = [text for text in counts if text.strip()]
    strays = list(filter(_MARK.fullmatch, filled))
    are_rare = 10 * len(strays) <= len(filled)
    if not are_rare and len(filled) <= _FEW_TEXTS and 2 * len(strays) < len(filled):
        are_rare = 10 * sum(map(counts.__getitem__, strays)) <= sum(map(counts.__getitem__, filled))
    kind = recognise_texts(filterfalse(_MARK.fullmatch, filled)) if are_rare else None
    if kind is None:
        return ""
    strays.sort(key=lambda text: (-counts[text], text))
    named = ", ".join(f"{text!r} ({format_count(counts[text], 'row')})" for text in strays[:_NUM_STRAYS])
    more = f" and {len(strays) - _NUM_STRAYS:,} more" if len(strays) > _NUM_STRAYS else ""
    but = f", but for {named}{more}, which become{'s' if len(strays) == 1 else ''} missing" if strays else ""
    return f"{kind}{but}: {suggest_parsing(name, kind, counts)}"


def recognise_texts(texts: Iterable[str]) -> str | None:
    """Return what all texts but empty ones stand for: a plural such as `"dates"`; None for text, or none at all.

    Example:
        >>> recognise_texts(["12 %", "7.5%"]), recognise_texts(["$1,234.50", "$7"]), recognise_texts(["007"])
        ('percentages', 'amounts of money', None)
    """
    filled = [text.strip() for text in texts if text.strip()]
    kinds = (kind for kind, pattern in _KINDS.items() if all(re.fullmatch(pattern, text) for text in filled))
    return next(kinds, None) if filled else None


def find_misordered_dates(texts: Iterable[str]) -> list[str]:
    """Find the dates among texts, if nearly all are dates, and the order of their letters is not that of time.

    Example:
        >>> find_misordered_dates(["02.01.2024", "01.02.2024", ""]), find_misordered_dates(["2024-01-02", "2024-02-01"])
        (['02.01.2024', '01.02.2024'], [])
    """
    dates = _find_dates(texts)
    if all(re.fullmatch(_IN_ORDER, text) for text in dates):
        return dates if len(_list_offsets(dates)) > 1 else []
    return dates if find_formats(dates) else []


def find_contrary_dates(texts: Sequence[str], constant: str, operator: str) -> list[str]:
    """Find the dates among texts, if nearly all are dates, whose letters tell nothing of them beside a date.

    Example:
        >>> find_contrary_dates(["02/01/2024", "01/02/2024"], "2024-01-20", ">=")
        ['02/01/2024', '01/02/2024']
        >>> find_contrary_dates(["2024-02-01"], "2024-01-20", ">="), find_contrary_dates(["1.2.2024"], "2.2.2024", "==")
        ([], [])
    """
    dates, is_equality = _find_dates(texts[:_FEW_DATES]) if is_date(constant) else [], operator in ("==", "!=", "in")
    if all(re.fullmatch(_IN_ORDER, text) for text in (constant, *dates)):
        shape, shapes = re.sub(r"\d", "0", constant), {re.sub(r"\d", "0", date) for date in dates}
        is_like = any(each.startswith(shape) or shape.startswith(each) for each in shapes)
        is_like &= is_equality or len(_list_offsets([constant, *dates])) < 2
        return [] if is_like else _find_dates(texts)
    formats = find_formats(dates)
    is_like = is_equality and (constant in dates or not {*formats}.isdisjoint(find_formats([constant])))
    return [] if is_like or not (formats or recognise_texts(dates) == "times in ISO format") else _find_dates(texts)


def find_unpadded_times(texts: Iterable[str]) -> list[str]:
    """Find the times of day that lack the zero before their hour, if nearly all texts are such times, and some have it.

    Example:
        >>> find_unpadded_times(["10:00", "6:30"]), find_unpadded_times(["10:00", "06:30"])
        (['6:30'], [])
    """
    filled = [text for text in texts if text.strip()]
    times = [text for text in filled if re.fullmatch(_TIME_OF_DAY, text)]
    unpadded = [text for text in times if text[1] == ":"]
    return unpadded if 10 * len(times) >= 9 * len(filled) and len(unpadded) < len(times) else []


def is_date(text: str) -> bool:
    """Return whether a text is a date or a time, in ISO format or another one."""
    return any(re.fullmatch(_KINDS[kind], text.strip()) for kind in _TIMES)


def _find_dates(texts: Iterable[str]) -> list[str]:
    """Find the dates among texts, if nearly all are dates."""
    filled = [text.strip() for text in texts if text.strip()]
    dates = list(filter(is_date, filled))
    return dates if 10 * len(dates) >= 9 * len(filled) else []


def _list_offsets(dates: Iterable[str]) -> set[str]:
    """List the offsets from UTC of times as text, each once."""
    return {offset[1] for text in dates if (offset := re.search(_OFFSET, text))}


def parse_amounts(texts: Sequence[str]) -> list[float] | None:
    """Parse texts of numbers, percentages or money, NaN where one has no digit; None where some are anything else.

    Example:
        >>> parse_amounts(["$1,234.50", "-$7", "?"]), parse_amounts(["7,5 %", "1.000,25 %"]), parse_amounts(["12b"])
        ([1234.5, -7.0, nan], [7.5, 1000.25], None)
    """
    kind = recognise_texts(filterfalse(_MARK.fullmatch, texts))
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
    values = list(filterfalse(_MARK.fullmatch, texts))
    strays = [text for text in filter(_MARK.fullmatch, texts) if text.strip()]
    if kind == "dates":
        formats = list(map(repr, find_formats(values[:_NUM_DATES])))
        of_files = " or ".join(f"{{{name!r}: {form}}}" for form in formats or ["[...]"])
        missing = f", null_values={['', 'NA', *strays]}" if strays else ""
        read = f"gp.read_csv(..., timestamp_formats={of_files}{missing}), or " if len(strays) <= _NUM_STRAYS else ""
        coerce = ", errors='coerce'" if strays else ""
        return f"{read}pd.to_datetime(frame[{name!r}], format={' or '.join(formats) or '...'}{coerce})"
    if kind == "times in ISO format" and _list_offsets(values):  # which a cast does not read
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


def find_formats(texts: Iterable[str]) -> list[str]:
    """List the formats that all texts may have: two where no day is beyond the 12th of its month."""
    filled = [text.strip() for text in texts if text.strip()]
    weekday = re.match(_WEEKDAY, filled[0]) if filled else None
    clock = re.search(f"{_CLOCK}$", filled[0]) if filled else None
    start, end = f"{'%A' if weekday[2] else '%a'}{weekday[3]} " if weekday else "", ""
    if clock:
        end = f" {'%I' if clock[2] else '%H'}:%M{':%S' if clock[1] else ''}{' %p' if clock[2] else ''}"

    def fits(form: str) -> bool:
        try:
            return all(strptime(text, form) for text in filled)
        except ValueError:
            return False

    formats = [start + form + end for form in _DATE_FORMATS]
    return [form for form in formats if filled and fits(form)]
