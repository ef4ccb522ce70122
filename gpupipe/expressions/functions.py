"""Functions of the expression language: argument and result dtypes."""

from __future__ import annotations

from dataclasses import dataclass

from gpupipe.errors import nearest

__all__ = ["DATE_FLAGS", "DATE_PARTS", "FUNCTIONS", "Function", "closest"]


@dataclass(frozen=True, slots=True)
class Function:
    """One function's signature.

    Args:
        arguments: their names, for messages.
        takes: a kind per argument: `number` (a boolean counts 0 or 1), `condition`, `text`, `time`, `text or list`,
            `plain` (an integer, a boolean or text) or `any`; constants are `constant text`, `part` (text that is not
            empty), `pattern` (a regular expression), `zone` (a time zone's name) and `constant integer`.
        gives: a type of `schema.DTYPES`; `number` (int64, or the float it got), `float` (float32 if it got that, else
            float64), `common` (what holds the values of the arguments that are no condition) or `ordered` (the same, no
            text).
        may_take: kinds of further arguments that may be left out.
    """

    arguments: str
    takes: tuple[str, ...]
    gives: str
    may_take: tuple[str, ...] = ()


DATE_PARTS = ("year", "quarter", "month", "week", "day", "dayofyear", "weekday", "hour", "minute", "second")
DATE_FLAGS = (
    "is_weekend",
    *(f"is_{unit}_{end}" for unit in ("month", "quarter", "year") for end in ("start", "end")),
)

_FLOATING = Function("x", ("number",), "float")
_NUMBER = Function("x", ("number",), "number")
_TEXT = Function("text", ("text",), "string")
_SEARCH = Function('text, "part"', ("text", "constant text"), "bool")

FUNCTIONS: dict[str, Function] = {
    "where": Function("condition, x, y", ("condition", "any", "any"), "common"),
    "isnull": Function("x", ("any",), "bool"),
    "notnull": Function("x", ("any",), "bool"),
    "fillna": Function("x, value", ("any", "any"), "common"),
    "log1p": _FLOATING,
    "log": _FLOATING,
    "exp": _FLOATING,
    "sqrt": _FLOATING,
    "abs": _NUMBER,
    "round": _NUMBER,
    "floor": _NUMBER,
    "ceil": _NUMBER,
    "clip": Function("x, low, high", ("any", "any", "any"), "ordered"),
    "minimum": Function("x, y", ("any", "any"), "ordered"),
    "maximum": Function("x, y", ("any", "any"), "ordered"),
    **dict.fromkeys(DATE_PARTS, Function("time", ("time",), "int64", ("zone",))),
    **dict.fromkeys(DATE_FLAGS, Function("time", ("time",), "bool", ("zone",))),
    "lower": _TEXT,
    "upper": _TEXT,
    "strip": _TEXT,
    "len": Function("text", ("text or list",), "int64"),
    "contains": _SEARCH,
    "startswith": _SEARCH,
    "endswith": _SEARCH,
    "search": Function('text, "pattern"', ("text", "pattern"), "bool"),
    "extract": Function('text, "pattern"', ("text", "pattern"), "string"),
    "split": Function('text, "separator", 0', ("text", "part", "constant integer"), "string"),
    "slice": Function("text, start, stop", ("text", "constant integer", "constant integer"), "string"),
    "replace": Function('text, "old", "new"', ("text", "part", "constant text"), "string"),
    "sub": Function('text, "pattern", "new"', ("text", "pattern", "constant text"), "string"),
    "int": Function("x", ("number",), "int64"),
    "float": Function("x", ("number",), "float64"),
    "string": Function("x", ("plain",), "string"),
}
"""By name; the language also has `col("a name")` and `timestamp("2013-10-01")`, which take a constant.

A missing condition makes `where` missing. `round` goes to the even neighbour; `int` cuts the fraction off; a
value that no int64 can hold is an error. Parts of a time are those of UTC, or of the local time of a zone:
`hour(time, "America/New_York")`. `weekday` counts from Monday, 0; `week` is that of ISO 8601. `contains` looks for the
text as it is; patterns are RE2's regular expressions: no lookaround, no backreference, `\\d` and `\\w` are ASCII
(`\\p{L}` is any letter). `search` looks anywhere in the text; `extract` gives the first group of the first match (the
whole match where the pattern has no group), missing without a match; `sub` replaces every match, `\\1` in the new text
being the first group. `split` gives the part of that number, from the end where it is negative, missing where there are
fewer; `slice` counts characters as Python does.
"""


_ELSEWHERE = {
    **dict.fromkeys(("pow", "power"), "x ** y"),
    **dict.fromkeys(("mod", "fmod"), "x % y"),
    "between": "low <= x <= high",
    "isin": "x in [1, 2]",
    "log10": "log(x) / 2.302585092994046",
    "log2": "log(x) / 0.6931471805599453",
    "square": "x ** 2",
}
"""What other languages have a function for, and this one says otherwise."""
_SYNONYMS = {
    **dict.fromkeys(("min", "least"), "minimum"),
    **dict.fromkeys(("max", "greatest"), "maximum"),
    **dict.fromkeys(("coalesce", "ifnull", "nvl", "fill_null", "fill_nan"), "fillna"),
    **dict.fromkeys(("if", "if_else", "ifelse", "iff", "iif", "case", "when"), "where"),
    **dict.fromkeys(("isna", "isnan", "is_nan", "is_null"), "isnull"),
    **dict.fromkeys(("notna", "is_not_null"), "notnull"),
    **dict.fromkeys(("length", "size", "char_length"), "len"),
    **dict.fromkeys(("substr", "substring"), "slice"),
    **dict.fromkeys(("trim", "lstrip", "rstrip"), "strip"),
    **dict.fromkeys(("dayofweek", "day_of_week"), "weekday"),
    **dict.fromkeys(("match", "matches", "regexp", "rlike"), "search"),
    **dict.fromkeys(("regex_replace", "regexp_replace"), "sub"),
    **dict.fromkeys(("trunc", "truncate", "astype"), "int"),
    **dict.fromkeys(("str", "text", "to_string"), "string"),
    **dict.fromkeys(("datetime", "to_datetime"), "timestamp"),
    "ln": "log",
    "lowercase": "lower",
    "uppercase": "upper",
}
"""What other languages call functions that are here."""


def closest(name: str) -> str:
    """Suggest what `name` was meant to be: another language's name for it, or the closest spelling."""
    if name.lower() in _ELSEWHERE:
        return _ELSEWHERE[name.lower()]
    near = _SYNONYMS.get(name.lower()) or nearest(name, [*FUNCTIONS, "col", "timestamp"])
    if near is None:
        return "one of the functions above, or Map(fn, reads=..., adds=...) for your own"
    known = FUNCTIONS.get(near)
    return f"{near}({known.arguments if known else repr('...')})"
