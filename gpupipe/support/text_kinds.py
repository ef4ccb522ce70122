"""Texts that stand for something else: numbers, percentages, money, dates."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from time import strptime

from gpupipe.support.text import derive

_NUMBER = r"[+-]?(?!0\d)(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"  # 007 is a code
_GROUPED = r"[+-]?\d{1,3}(,\d{3})*(\.\d+)?|[+-]?\d+(\.\d+)?"
_MONEY = rf"[+-]?\s*[$€£¥₹]\s*({_GROUPED})|({_GROUPED})\s*([$€£¥₹]|USD|EUR|GBP)"
_MONTH = "(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_DATE = (
    rf"\d{{4}}[ -]{_MONTH}|{_MONTH}[ -]\d{{4}}|(19|20)\d{{2}}[/-](0[1-9]|1[0-2])|"
    r"\d{1,2}(?P<mark>[./-])\d{1,2}(?P=mark)(\d{4}|\d{2})|\d{4}(?P<sign>[./-])\d{1,2}(?P=sign)\d{1,2}"
    r"|\d{1,2}[ -][A-Z][a-z]{2,8}[ -]\d{2,4}|[A-Z][a-z]{2,8} \d{1,2}, \d{4}"
)
_CLOCK = r" \d{1,2}:\d{2}(:\d{2})?( [AaPp][Mm])?"
_KINDS = {
    "numbers": _NUMBER,
    "percentages": rf"({_NUMBER})\s*%",
    "numbers with commas": r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?|" + _NUMBER,
    "amounts of money": _MONEY,
    "amounts of money, negative in parentheses": rf"\(({_MONEY})\)|{_MONEY}",
    "times in ISO format": r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?",
    "dates": rf"({_DATE})({_CLOCK})?",
}
_IN_ORDER = r"\d{4}(?P<sign>[./-])\d{2}((?P=sign)\d{2})?([ T]\d{2}:\d{2}.*)?"  # the largest unit first, all padded
_DATE_FORMATS = [
    *(
        f"{day}{sep}{month}{sep}{year}"
        for sep in "/.-"
        for year in ("%Y", "%y")
        for day, month in (("%d", "%m"), ("%m", "%d"))
    ),
    *("%Y/%m/%d", "%Y.%m.%d", "%Y-%m-%d"),
    *(f"%d{sep}{month}{sep}{year}" for sep in " -" for month in ("%b", "%B") for year in ("%Y", "%y")),
    *("%b %d, %Y", "%B %d, %Y", "%Y-%m", "%Y/%m"),
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
}
_DECIMAL_COMMA = "replace({}, ',', '.')"


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
    filled = [text.strip() for text in texts if text.strip()]
    dates = [text for text in filled if recognise_texts([text]) in ("dates", "times in ISO format")]
    is_in_order = all(re.fullmatch(_IN_ORDER, text) for text in dates)
    return [] if is_in_order or 10 * len(dates) < 9 * len(filled) or not find_formats(dates) else dates


def suggest_parsing(name: str, kind: str, texts: Collection[str] = ()) -> str:
    """Suggest the steps that parse a column whose texts stand for `kind`, or the calls that read dates like `texts`.

    Empty texts become missing.

    Example:
        >>> suggest_parsing("price", "numbers"), suggest_parsing("age", "numbers", ["40", ""])
        ("T.Cast({'price': 'float64'})", "T.Cast({'age': 'float64'}, errors='coerce')")
        >>> suggest_parsing("day", "dates", ["27/01/2024", "03/02/2024"])
        "gp.read_csv(..., timestamp_formats={'day': '%d/%m/%Y'}), or pd.to_datetime(frame['day'], format='%d/%m/%Y')"
    """
    if kind == "dates":
        formats = list(map(repr, find_formats(texts)))
        of_files = " or ".join(f"{{{name!r}: {form}}}" for form in formats or ["[...]"])
        read = f"gp.read_csv(..., timestamp_formats={of_files})"
        return f"{read}, or pd.to_datetime(frame[{name!r}], format={' or '.join(formats) or '...'})"
    dtype = "timestamp" if kind == "times in ISO format" else "float64"
    errors = "" if all(map(str.strip, texts)) else ", errors='coerce'"
    cast = f"T.Cast({{{name!r}: {dtype!r}}}{errors})"
    if kind not in _NUMBERS:
        return cast
    first, *alternatives = (f"T.{derive(name, number)}" for number in _list_readings(kind, texts))
    marks = "dots" if kind.startswith("amounts") else "commas"
    return f"{first}, then {cast}" + "".join(f"; {step} instead where its {marks} are decimal" for step in alternatives)


def _list_readings(kind: str, texts: Iterable[str]) -> list[str]:
    """List the expressions that take away all but a number: two where its commas or dots may stand for either mark.

    Those before three digits each separate thousands, or decimals; a group of thousands does not begin with 0.
    """
    number, is_money = _NUMBERS[kind], kind.startswith("amounts")
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
    clock = re.search(f"{_CLOCK}$", filled[0]) if filled else None
    end = ""
    if clock:
        end = f" {'%I' if clock[2] else '%H'}:%M{':%S' if clock[1] else ''}{' %p' if clock[2] else ''}"

    def fits(form: str) -> bool:
        try:
            return all(strptime(text, form) for text in filled)
        except ValueError:
            return False

    return [form + end for form in _DATE_FORMATS if filled and fits(form + end)]
