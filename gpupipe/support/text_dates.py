"""Dates and times of day that are text: their formats, and whether the order of their letters is that of time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from time import strptime

_WEEKDAY = "(?i:(mon|tue|wed|thu|fri|sat|sun)([a-z]{3,6})?)(,?) {1,2}"
_MONTH = (
    "(?i:jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?|nov(ember)?|"
    "dec(ember)?)"
)
_DAY = r"(0?[1-9]|[12]\d|3[01])"
_NAMED_DAY = rf"{_DAY}(?i:st|nd|rd|th)?"
_YEAR = r"(1[5-9]|20)\d{2}"
_DATE = (
    rf"\d{{4}}[ -]{_MONTH}|{_MONTH}([ -]\d{{4}}|-\d{{2}})|(19|20)\d{{2}}[/-](0[1-9]|1[0-2])|"
    r"(0?[1-9]|1[0-2])[./-](19|20)\d{2}|"
    r"\d{1,2}(?P<mark>[./-])\d{1,2}(?P=mark)(\d{4}|\d{2})|\d{4}(?P<sign>[./-])\d{1,2}(?P=sign)\d{1,2}|"
    rf"\d{{1,2}}[ -]([A-Z][a-z]{{2,8}}|{_MONTH})[ -]\d{{2,4}}|([A-Z][a-z]{{2,8}}|{_MONTH}) \d{{1,2}}, \d{{4}}|"
    rf"\d{{1,2}}(?P<slash>/?){_MONTH}(?P=slash)(\d{{4}}|\d{{2}})|\d{{4}}(?P<dash>[ -]?){_MONTH}(?P=dash)\d{{1,2}}|"
    rf"{_MONTH}\.? {{1,2}}{_NAMED_DAY},? {_YEAR}|{_NAMED_DAY}\.? {_MONTH}\.?,? {_YEAR}|"
    rf"{_DAY}(?P<gap>[ _]){_DAY}(?P=gap)(19|20)\d{{2}}"
)
_ZONE = r" ?Z| ?[+-]\d{2}:?\d{2}| GMT| UTC"
_CLOCK = rf"(:|,? {{1,2}})\d{{1,2}}:\d{{2}}(:\d{{2}})?( ?[AaPp][Mm])?({_ZONE})?"
_CLOCK_BEFORE_YEAR = rf"{_MONTH} {{1,2}}{_DAY}{_CLOCK} {_YEAR}({_ZONE})?"  # as of ctime, logs and git
_TIME_OF_DAY = r"\d{1,2}:\d{2}(:\d{2})?"
ISO_TIME = r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?"
"""Pattern of a date, or a date and a time, in ISO 8601."""
DATE = rf"({_WEEKDAY})?(({_DATE})({_CLOCK})?|{_CLOCK_BEFORE_YEAR})"
"""Pattern of a date in another format, with or without a time."""
UNREAD = "(?i)(?<=[0-9])(st|nd|rd|th)(?![a-z])|(?<=sep)t(?![a-z])"
"""Pattern of what no format reads of a date: the letters of 5th, and the last one of Sept."""
_IN_ORDER = r"\d{4}(?P<sign>[./-])\d{2}((?P=sign)\d{2})?([ T]\d{2}:\d{2}.*)?"  # the largest unit first, all padded
_HALF_OF_DAY = r"\d ?[AaPp][Mm]\b"  # 12:00 AM comes before 01:00 AM
_SHORT_MONTH = r"(?P<part>0[1-9]|1[0-2])(?P<sign>/)(?P<year>\d{2})"  # 09/23, which may be a day of any year, too
_FULL_YEAR = r"(?P<year>(1[5-9]|20)\d{2})"
_MONTHS = (  # and quarters, whose letters may order them as time does: 2023-09, or Q1 2023 and Q2 2023
    rf"{_FULL_YEAR}(?P<sign>[/-])(?P<part>0?[1-9]|1[0-2])",
    rf"(?P<part>0?[1-9]|1[0-2])(?P<sign>[/-]){_FULL_YEAR}",
    rf"Q(?P<part>[1-4])(?P<sign>[ /-]?){_FULL_YEAR}",
    rf"(?P<part>[1-4])Q(?P<sign>[ /-]?){_FULL_YEAR}",
    _SHORT_MONTH,
)
_MONTHS_APART = 3  # at most, on average, as quarters are, where texts such as 09/23 are months
_OFFSET = r"(Z|[+-]\d{2}:?\d{2})$"
_FEW_DATES = 100  # of a column, that tell whether a date is like them
_DATE_FORMATS = [
    *(
        f"{day}{sep}{month}{sep}{year}"
        for sep in "/.-"
        for year in ("%Y", "%y")
        for day, month in (("%d", "%m"), ("%m", "%d"))
    ),
    *("%Y/%m/%d", "%Y.%m.%d", "%Y-%m-%d"),
    *(f"%d{sep}{month}{sep}{year}" for sep in (" ", "-", "/", "") for month in ("%b", "%B") for year in ("%Y", "%y")),
    *(f"%Y{sep}{month}{sep}%d" for sep in (" ", "-", "") for month in ("%b", "%B")),
    *(
        f"{month}{gap}%d{comma} %Y"
        for month, gap in (("%b", " "), ("%B", " "), ("%b", ". "), ("%B", ". "))
        for comma in (",", "")
    ),
    *(
        f"%d{gap}{month}{end} %Y"
        for gap, end in ((" ", ","), (". ", ""), (" ", "."), (". ", "."), (". ", ","))
        for month in ("%b", "%B")
    ),
    *(f"{first}{sep}{second}{sep}%Y" for sep in " _" for first, second in (("%d", "%m"), ("%m", "%d"))),
    *("%Y-%m", "%Y/%m", "%m/%Y", "%m-%Y", "%m.%Y", "%m/%y", "%b-%y", "%B-%y"),
    *(
        f"{first}{sep}{second}"
        for sep in " -"
        for month in ("%b", "%B")
        for first, second in (("%Y", month), (month, "%Y"))
    ),
]


def find_formats(texts: Iterable[str]) -> list[str]:
    """List the formats that all texts may have: two where no day is beyond the 12th of its month."""
    filled = [text.strip() for text in texts if text.strip()]
    if not filled:
        return []
    weekday = re.match(_WEEKDAY, filled[0])
    start = f"{'%A' if weekday[2] else '%a'}{weekday[3]} " if weekday else ""
    clock = re.search(rf"{_CLOCK}(?P<year> \d{{4}}({_ZONE})?)?$", filled[0])
    end = _find_clock_format(clock) if clock else ""

    def fits(form: str) -> bool:
        try:
            return all(strptime(text, form) for text in filled)
        except ValueError:
            return False

    formats = [f"{start}{form}{end}" for form in _DATE_FORMATS]
    if clock and clock["year"]:
        formats = [f"{start}{month} %d{end} %Y{_find_zone_format(clock['year'][5:])}" for month in ("%b", "%B")]
    return list(filter(fits, formats))


def _find_clock_format(clock: re.Match[str]) -> str:
    """Return the format of a time of day after a date, with the signs between the two."""
    gap, seconds, half, zone = (clock[number] or "" for number in range(1, 5))
    half_format = f"{half[:-2]}%p" if half else ""
    hour = "%I" if half else "%H"
    return f"{gap.replace('  ', ' ')}{hour}:%M{':%S' if seconds else ''}{half_format}{_find_zone_format(zone)}"


def _find_zone_format(zone: str) -> str:
    return re.sub(r"Z|[+-]\d{2}:?\d{2}", "%z", zone)


def list_kinds(dates: Iterable[str]) -> list[list[str]]:
    """Group dates by what they look like, as all that have one format do.

    Example:
        >>> list_kinds(["1/31/2024", "2024-01-08", "12/1/2023"])
        [['1/31/2024', '12/1/2023'], ['2024-01-08']]
    """
    kinds: dict[str, list[str]] = {}
    for text in dates:
        shape = re.sub(r"\d+", lambda digits: "0" if len(digits[0]) < 3 else "0000", text)
        kinds.setdefault(re.sub(r"[A-Za-z]+", "a", shape), []).append(text)
    return list(kinds.values())


def find_misordered_dates(texts: Iterable[str]) -> list[str]:
    """Find the dates among texts, if at least half are, and the order of their letters is not that of time.

    Example:
        >>> find_misordered_dates(["02.01.2024", "01.02.2024", ""]), find_misordered_dates(["2024-01-02", "2024-02-01"])
        (['02.01.2024', '01.02.2024'], [])
    """
    dates = _find_dates(texts)
    if all(re.fullmatch(_IN_ORDER, text) for text in dates):
        has_halves = any(re.search(_HALF_OF_DAY, text) for text in dates)
        is_ordered = not has_halves and max(len(list_offsets(dates)), len({text[4] for text in dates})) < 2
        return [] if is_ordered else dates
    return dates if _are_known(dates) else []


def find_misordered_periods(texts: Iterable[str]) -> list[str]:
    """Find the times of day, months or quarters that all texts are, if the order of their letters is not that of time.

    Times of day may have a few texts beside them; those without the zero before their hour come first.

    Example:
        >>> find_misordered_periods(["2023-9", "2023-10", ""]), find_misordered_periods(["2023-09", "2023-10"])
        (['2023-10', '2023-9'], [])
        >>> find_misordered_periods(["Q1 2024", "Q3 2023"]), find_misordered_periods(["12/22", "01/23"])
        (['Q1 2024', 'Q3 2023'], ['01/23', '12/22'])
        >>> find_misordered_periods(["10:00", "6:30"]), find_misordered_periods(["10:00", "06:30"])
        (['6:30', '10:00'], [])
    """
    units = sorted({text.strip() for text in texts if text.strip()})
    times = [text for text in units if re.fullmatch(_TIME_OF_DAY, text)]
    unpadded = [text for text in times if text[1] == ":"]
    if 10 * len(times) >= 9 * len(units) and 0 < len(unpadded) < len(times):
        return [*unpadded, *(text for text in times if text not in unpadded)]
    numbers = _number_months(units)
    return units if numbers != sorted(numbers) else []


def find_dates_in_other_formats(texts: Sequence[str], constant: str, operator: str) -> list[str]:
    """Find the dates among texts, if at least half are, whose letters tell nothing of them beside a date.

    Example:
        >>> find_dates_in_other_formats(["02/01/2024", "01/02/2024"], "2024-01-20", ">=")
        ['02/01/2024', '01/02/2024']
        >>> find_dates_in_other_formats(["2024-02-01"], "2024-01-20", ">=")
        []
    """
    dates, is_equality = _find_dates(texts[:_FEW_DATES]) if is_date(constant) else [], operator in ("==", "!=", "in")
    if not dates:
        return []
    if all(re.fullmatch(_IN_ORDER, text) for text in (constant, *dates)):
        # Letters tell the order where signs stand in the same places: 2024-01 comes before 2024-01-31, and so do all of
        # 2024-01 before 2024-01-01, which the month begins with.
        shape, shapes = re.sub(r"\d", "0", constant), {re.sub(r"\d", "0", date) for date in dates}
        is_comparable = all(each.startswith(shape) for each in shapes)
        has_halves = " " in constant and any(re.search(_HALF_OF_DAY, text) for text in dates)
        is_comparable &= is_equality or (len(list_offsets([constant, *dates])) < 2 and not has_halves)
    else:  # only equal dates have equal letters, in one format: 01/31/2024 beside 02/29/2024
        formats = {form for kind in list_kinds(dates) for form in find_formats(kind)}
        is_alike = constant in dates or not formats.isdisjoint(find_formats([constant]))
        is_comparable = not _are_known(dates) or (is_equality and is_alike)
    return [] if is_comparable else _find_dates(texts)


def shorten_date(constant: str, date: str) -> str:
    """Cut a constant to the unit of a date in the same format; nothing where it is not longer, or in another one.

    Example:
        >>> shorten_date("2024-01-31", "2023-12"), shorten_date("31.01.2024", "2023-12")
        ('2024-01', '')
    """
    shape, form = (re.sub(r"\d", "0", text) for text in (constant, date))
    return constant[: len(date)] if shape != form and shape.startswith(form) else ""


def is_date(text: str) -> bool:
    """Return whether a text is a date or a time, in ISO format or another one."""
    return any(re.fullmatch(form, text.strip()) for form in (DATE, ISO_TIME))


def is_period(text: str) -> bool:
    """Return whether a text is a time of day, or a month or a quarter of a year in numbers."""
    return any(re.fullmatch(form, text.strip()) for form in (_TIME_OF_DAY, *_MONTHS))


def _are_known(dates: Sequence[str]) -> bool:
    """Return whether dates are such by their numbers, too, as 45-67-2024 is not; in whatever formats they are."""

    def is_known(kind: Sequence[str]) -> bool:
        readable = [re.sub(UNREAD, "", text) for text in kind]
        if find_formats(readable) or all(re.fullmatch(ISO_TIME, text) for text in kind):
            return True
        return all(find_formats([text]) for text in readable[:_FEW_DATES])  # 01/31/2024 beside 31/01/2024

    return bool(dates) and all(map(is_known, list_kinds(dates)))


def _number_months(texts: Sequence[str]) -> list[int]:
    """Return numbers of months, or quarters, in the order of time; none where a text is neither, or a day."""
    form = next((form for form in _MONTHS if all(re.fullmatch(form, text) for text in texts)), "")
    matches = [match for text in texts if (match := re.fullmatch(form, text))]
    if len({match["sign"] for match in matches}) != 1:
        return []
    parts = [(int(match["year"]), int(match["part"])) for match in matches]
    if form != _SHORT_MONTH:
        return [12 * year + part for year, part in parts]
    numbers = [12 * (year + (2000 if year < 69 else 1900)) + part for year, part in parts]  # as %y reads them
    days = [31 * month + day for day, month in parts]
    span, span_as_days = (max(each) - min(each) + 1 for each in (numbers, days))
    are_days = all(0 < day <= 31 for day, _ in parts) and span_as_days <= span
    return [] if are_days or span > _MONTHS_APART * len(texts) else numbers


def _find_dates(texts: Iterable[str]) -> list[str]:
    """Find the dates among texts, if at least half are dates; the others may be two dates, or a word."""
    filled = [text.strip() for text in texts if text.strip()]
    dates = list(filter(is_date, filled))
    return dates if 2 * len(dates) >= len(filled) else []


def list_offsets(dates: Iterable[str]) -> set[str]:
    """List the offsets from UTC of times as text, each once."""
    return {offset[1] for text in dates if (offset := re.search(_OFFSET, text))}
