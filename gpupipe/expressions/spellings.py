"""Spellings of other languages: signs of SQL and C, functions of pandas and NumPy, and what an expression writes."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from keyword import kwlist

from gpupipe.errors import nearest
from gpupipe.expressions.functions import FUNCTIONS, NAMES, describe_call

MODULES = frozenset(
    {"np", "numpy", "math", "pd", "pandas", "pl", "polars", "cp", "cupy", "cudf", "df", "data", "frame"}
)
"""Names before a dot, of modules and frames, which an expression leaves out."""
ACCESSORS = frozenset({"str", "dt", "list"})
MISSING_WORDS = frozenset({"null", "none", "nan", "nat", "na"})
_LITERAL = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"")
_COMMENT = re.compile(rf"{_LITERAL.pattern}|`[^`]*`|(#)")
_OPERATORS = ("and", "or", "not", "in", "is", "if", "else")  # and in the place of a column: is > 0
_WORDS = [word for word in kwlist if word not in (*_OPERATORS, "None", "True", "False")]
_KEYWORD = re.compile(rf"{_LITERAL.pattern}|\b({'|'.join(_WORDS)}|(?:{'|'.join(_OPERATORS)})(?= *(?:[<>=!*/%)]|$)))\b")
_DIGITS, _BASE = re.compile(r"-?[1-9]|1[0-5]"), re.compile(r"[2-9]|[1-9]\d{1,8}")
_TIME = re.compile(r"(?<!\d)\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?(?!\d)")
_ATOM = r"-?[\w.]+|\w*[(\[][^()\[\]]*[)\]]|\"\d+\""
# The left side of a SQL condition, after which nothing binds tighter; and what may follow its last value.
_LEFT = rf"(?:^|(?<=\()|(?<=\band )|(?<=\bor )|(?<=\bnot ))({_ATOM}) "
_END = r"(?= ?(?:$|\)|and\b|or\b))"
_SIGNS = [
    (r"&&", " and "),
    (r"\|\|", " or "),
    (r"<>|!==", "!="),
    (r"={3}|(?<![<>=!])=(?!=)", "=="),
    (r"!(?!=)", " not "),
]
_SIGNS += [(rf"\b{word.upper()}\b", word) for word in ("and", "or", "not", "in", "is")]
_SIGNS += [(r"\bif ?\(", "where("), (" +", " ")]
_TYPES = dict.fromkeys(("int", "integer", "bigint", "smallint", "int32", "int64"), "int")
_TYPES |= dict.fromkeys(("float", "double", "real", "numeric", "decimal", "float32", "float64"), "float")
_TYPES |= dict.fromkeys(("string", "str", "text", "varchar", "char"), "string")
_TYPE = rf"({'|'.join(_TYPES)})\b(?:\([\d, ]+\))?"
_SIGNS += [(rf"(?i)\bcast ?\((.+?) as {_TYPE} ?\)", r"cast(\1, \2)"), (rf"(?i)({_ATOM})::{_TYPE}", r"cast(\1, \2)")]
_SIGNS += [(r"(?i)\bcase when (.+?) then (.+?) else (.+?) end\b", r"where(\1, \2, \3)")]
_SIGNS += [(r"^(.+?) ?\? ?(.+?) ?: ?([^:?]+)$", r"where(\1, \2, \3)")]
_SIGNS += [(rf"(?i){_LEFT}between ({_ATOM}) and ({_ATOM}){_END}", r"\2 <= \1 <= \3")]
_SIGNS += [(rf"(?i){_LEFT}not between ({_ATOM}) and ({_ATOM}){_END}", r"not (\2 <= \1 <= \3)")]
_LIKE = re.compile(rf"(?i){_LEFT}(not )?(i?)like \"(\d+)\"")

_ELSEWHERE = {"{0} ** {1}": "pow power", "{0} % {1}": "mod fmod", "{1} <= {0} <= {2}": "between", "{0} in {1}": "isin"}
_ELSEWHERE |= {"log({0}) / 2.302585092994046": "log10", "log({0}) / 0.6931471805599453": "log2", "{0} ** 2": "square"}
_ELSEWHERE |= {
    "minimum": "least",
    "maximum": "greatest",
    "coalesce": "fillna ifnull nvl fill_null fill_nan combine_first",
}
_ELSEWHERE |= {"where": "if if_else ifelse iff iif case when", "isnull": "isna isnan is_nan is_null"}
_ELSEWHERE |= {"notnull": "notna is_not_null", "len": "length size char_length", "slice": "substr substring"}
_ELSEWHERE |= {
    "strip": "trim lstrip rstrip",
    "dayofweek": "weekday day_of_week day_name dayname",
    "timestamp": "datetime to_datetime to_timestamp strptime make_date make_datetime make_timestamp datefromparts",
    "month": "month_name monthname",
}
_ELSEWHERE |= {"floor({0}, '1d')": "date normalize", "where({0} > 0, 1, where({0} < 0, -1, {0}))": "sign"}
_ELSEWHERE |= {"{0}": "total_seconds"}
_ELSEWHERE |= {
    "floor": "date_trunc datetrunc truncate_time bucket",
    "mean": "avg average",
    "{0} + {1}": "concat cat concat_ws",
}
_ELSEWHERE |= {"sub": "regex_replace regexp_replace", "int": "trunc truncate astype", "string": "str text to_string"}
_ELSEWHERE |= {"search": "match matches regexp rlike", "log": "ln", "lower": "lowercase", "upper": "uppercase"}
"""What other languages call a function that is here, or what this one writes otherwise, of arguments by number."""
_OF_COLUMNS = {"minimum": "minimum min least min_horizontal", "maximum": "maximum max greatest max_horizontal"}
_OF_COLUMNS |= {"sum": "sum sum_horizontal", "mean": "mean avg average mean_horizontal"}
"""What is written of several columns otherwise than by one call, and its names elsewhere."""
_PERIODS = {"floor({0}, '1d')": "day", "floor({0}, '1h')": "hour", "floor({0}, '1min')": "minute"}
_PERIODS |= {"floor({0}, '1s')": "second", "({0} - timestamp('1970-01-05')) // 604800": "week", "year({0})": "year"}
_PERIODS |= {"year({0}) * 12 + month({0})": "month", "year({0}) * 4 + quarter({0})": "quarter"}
"""What tells which day, week or month a time is in: the time it begins, or its number."""
NOTES = dict.fromkeys(("day_name", "dayname"), ", a number from 0, Monday, to 6, Sunday")
NOTES |= dict.fromkeys(("month_name", "monthname"), ", a number from 1 to 12")
NOTES |= {"total_seconds": ", a difference of times in seconds", "trunc": " of a number; floor({0}, '1d') of a time"}
"""What is said behind the call that is written for another language's, which gives something else."""
AGGREGATES = {name: name for name in ("mean", "sum", "min", "max", "median", "std", "var", "nunique")}
AGGREGATES |= {"avg": "mean", "average": "mean", "stddev": "std", "variance": "var"}
"""Functions of all rows or of a group of them, by the names of pandas."""
_ORDER = "by='key', order_by='time'"
_STEPS = {
    f"T.Lag('x', 1, {_ORDER})": "lag shift",
    f"T.Lag('x', -1, {_ORDER})": "lead",
    f"T.Difference('x', {_ORDER})": "diff difference",
    f"T.Rolling('x', 7, {_ORDER})": "rolling rolling_mean moving_average",
    f"T.Expanding('x', 'sum', {_ORDER})": "cumsum cum_sum expanding",
    "T.CumulativeCount('key', order_by='time')": "cumcount cum_count row_number",
    "data.to_polars().explode('x')": "explode unnest",
}
"""What other languages compute from other rows, which is a step here, or give a row for each element."""
_EXAMPLES = {"{1} <= {0} <= {2}": ("x", "low", "high"), "{0} in {1}": ("x", "[1, 2]")}


def mend_signs(text: str) -> str:
    """Replace the signs of SQL and C by Python's, outside of quotation marks.

    Example:
        >>> mend_signs("city LIKE 'New%' && delay <> 0"), mend_signs("hour NOT BETWEEN 6 AND 22")
        ("startswith(city, 'New') and delay != 0", 'not (6 <= hour <= 22)')
    """
    texts = list[str]()

    def hide(literal: str) -> str:
        texts.append(literal)
        return f'"{len(texts) - 1}"'

    def write_like(match: re.Match[str]) -> str:
        column, negation, ignores_case, number = match.groups()
        column, part = (
            (f"lower({column})", texts[int(number)].lower()) if ignores_case else (column, texts[int(number)])
        )
        part = part[1:-1].replace("''", "'")
        name = {(True, True): "contains", (False, True): "startswith", (True, False): "endswith"}
        call, core = name.get((part.startswith("%"), part.endswith("%"))), part.strip("%")
        if not core or "%" in core or "_" in core:
            call, core = "search", f"^{re.escape(part).replace('%', '.*').replace('_', '.')}$"
        condition = f"{column} == {hide(repr(core))}" if call is None else f"{call}({column}, {hide(repr(core))})"
        return f"not {condition}" if negation else condition

    text = _LITERAL.sub(lambda match: hide(match[0]), text)
    text = _TIME.sub(lambda match: hide(repr(match[0])), text)
    text = re.sub(r"`([^`]+)`|(\w+#\w*|#\w+)", lambda match: f"col({hide(repr(match[1] or match[2]))})", text)
    for sign, replacement in _SIGNS:
        text = re.sub(sign, replacement, text)
    return re.sub(r'"(\d+)"', lambda match: texts[int(match[1])], _LIKE.sub(write_like, text)).strip(" ")


def name_keywords(text: str) -> str:
    """Write words that are Python's own as columns, outside of quotation marks: those that no expression has there.

    Example:
        >>> name_keywords("class == 'suv' and year in [1999]"), name_keywords("sales > is")
        ("col('class') == 'suv' and year in [1999]", "sales > col('is')")
    """
    return _KEYWORD.sub(lambda match: f"col({match[1]!r})" if match[1] else match[0], text)


def find_comment(text: str) -> int | None:
    """Find the first `#` outside of quotation marks, from which on Python reads nothing; None without one.

    Example:
        >>> find_comment("col('ID#') > 2"), find_comment("ID# > 2")
        (None, 2)
    """
    return next((match.start() for match in _COMMENT.finditer(text) if match[1]), None)


def write_call(name: str, arguments: Sequence[str]) -> str | None:
    """Write the call of another language's function, or of one that is misspelt; None where nothing is like it."""
    if name in ("cast", "astype") and len(arguments) == 2:
        name, arguments = _TYPES.get(arguments[1].strip("'\"").lower(), name), arguments[:1]
    call = _write_number_call(name.lower(), arguments)
    if call is not None:
        return call or None
    of_columns = _look_up(name, _OF_COLUMNS)
    if of_columns is not None and len(arguments) > 1:
        return _write_of_columns(of_columns, arguments)
    meant = name if name in NAMES else _find_meant(name) or ""
    if "{" in meant:
        operands = [parenthesize(argument) for argument in arguments]
        return meant.format(*operands) if len(set(re.findall(r"\{.\}", meant))) == len(operands) else None
    if meant == "timestamp":
        text = write_date(name, arguments) or "".join(arguments)
        return f"timestamp({text})" if _LITERAL.fullmatch(text) else None
    fits = any(form.list_kinds(len(arguments)) is not None for form in FUNCTIONS.get(meant, ()))
    return f"{meant}({', '.join(arguments)})" if fits or (meant in NAMES[-2:] and len(arguments) == 1) else None


def _write_number_call(name: str, arguments: Sequence[str]) -> str | None:
    """Write a call whose constant arguments mean something else here: SQL counts characters from 1, and takes a length.

    Nothing where it has no such meaning; None of other calls.

    Example:
        >>> _write_number_call("substr", ["code", "2", "3"]), _write_number_call("round", ["price", "1"])
        ('slice(code, 1, 4)', 'round(price * 10) / 10')
        >>> _write_number_call("date_trunc", ["'day'", "time"])
        "floor(time, '1d')"
    """
    match name, *arguments:
        case "substr" | "substring", text, start, length if start.isdigit() and length.isdigit() and int(start):
            return f"slice({text}, {int(start) - 1}, {int(start) - 1 + int(length)})"
        case "substr" | "substring", *_:
            return ""
        case "round", number, "0":
            return f"round({number})"
        case "round", number, digits if _DIGITS.fullmatch(digits):
            factor, signs = 10 ** abs(int(digits)), "/*" if digits.startswith("-") else "*/"
            return f"round({parenthesize(number)} {signs[0]} {factor}) {signs[1]} {factor}"
        case "log", base, number if _BASE.fullmatch(base) and not _BASE.fullmatch(number):  # as in SQL
            return f"log({number}) / {math.log(int(base))!r}"
        case "log", number, base:
            return f"log({number}) / {math.log(int(base)) if _BASE.fullmatch(base) else f'log({base})'}"
        case "date_trunc" | "datetrunc" | "trunc" | "truncate", first, second:
            unit, time = (first, second) if _LITERAL.fullmatch(first) else (second, first)
            period = _look_up(unit.strip("'\""), _PERIODS)
            length = f"floor({time}, {unit})" if _LITERAL.fullmatch(unit) else ""
            return period.format(parenthesize(time)) if period else length
    return None


def _write_of_columns(name: str, columns: Sequence[str]) -> str:
    """Write the least or the greatest value of several columns in each row, their sum or their mean.

    Example:
        >>> _write_of_columns("minimum", ["a", "b", "c"]), _write_of_columns("mean", ["a", "b"])
        ('minimum(minimum(a, b), c)', '(a + b) / 2')
    """
    if name in ("minimum", "maximum"):
        return reduce(lambda first, second: f"{name}({first}, {second})", columns)
    total = " + ".join(map(parenthesize, columns))
    return f"({total}) / {len(columns)}" if name == "mean" else total


def means_time(name: str) -> bool:
    """Return whether a function of another language reads times."""
    return _find_meant(name) == "timestamp"


def write_date(name: str, parts: Sequence[str]) -> str | None:
    """Write the text in ISO 8601 that `name` would make a time of: of a year, a month, a day, and parts of a day.

    None of another call.

    Example:
        >>> write_date("datetime", ["year", "month", "1"])
        "string(year) + '-' + slice('0' + string(month), -2, 9) + '-01'"
    """
    makes_time = means_time(name) or name.lower() == "date"
    if not makes_time or not 3 <= len(parts) <= 6 or any(map(_LITERAL.fullmatch, parts)):
        return None
    text = f"'{parts[0]}'" if parts[0].isdigit() else f"string({parts[0]})"
    for mark, part in zip("--T::", parts[1:], strict=False):
        text += f" + '{mark}' + " + (f"'{part:0>2}'" if part.isdigit() else f"slice('0' + string({part}), -2, 9)")
    return text.replace("' + '", "")


def suggest_aggregate(name: str, column: str, before: str, after: str) -> str:
    """Suggest how a number of all of a column's rows, or of a group of them, gets between two parts of a text."""
    function = AGGREGATES[name]
    number = f"number = data.select({column!r}).compute()[{column!r}].{function}()"
    groups = f"data.join(data.group_by('key').agg(number=({column!r}, {function!r})), on='key')"
    texts = f"{before}{{number}}{after}", f"{before}number{after}"
    return f"{number}, then f{texts[0]!r}; of each group {groups}, then {texts[1]!r}"


def suggest_function(name: str) -> str:
    """Suggest what `name` was meant to be: another language's name for it, or the closest spelling."""
    step = _look_up(name, _STEPS)
    if step is not None:
        return step
    meant = _find_meant(name)
    if meant is None:
        return "one of the functions above, or Map(fn, reads=..., adds=...) for your own"
    return describe_call(meant) if meant in NAMES else meant.format(*_EXAMPLES.get(meant, ("x", "y")))


def _find_meant(name: str) -> str | None:
    if _look_up(name, _STEPS) is not None:
        return None
    is_aggregate = name in AGGREGATES and name not in NAMES  # a median is no mean
    return _look_up(name, _ELSEWHERE) or (None if is_aggregate else nearest(name, NAMES))


def _look_up(name: str, meanings: Mapping[str, str]) -> str | None:
    return next((meaning for meaning, names in meanings.items() if name.lower() in names.split()), None)


def parenthesize(text: str) -> str:
    """Return an operand in parentheses, unless it is a name, a constant or a call, or has them."""
    try:
        body = ast.parse(text, mode="eval").body
    except SyntaxError:
        return f"({text})"
    is_whole = body.col_offset > 0 or isinstance(body, ast.Name | ast.Constant | ast.Call | ast.List)
    return text if is_whole else f"({text})"
