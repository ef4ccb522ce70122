"""The functions of the language: what each takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

__all__ = ["FUNCTIONS", "Function", "closest"]


@dataclass(frozen=True, slots=True)
class Function:
    """One function's signature.

    Args:
        arguments: their names, for messages.
        takes: a kind per argument: `number` (a boolean counts 0 or 1), `condition`, `text`, `constant text`, `time`,
            `plain` (an integer, a boolean or text) or `any`.
        gives: a type of `schema.DTYPES`; `number` (int64, or the float it got), `float` (float32 if it got that, else
            float64), `common` (what holds the values of the arguments that are no condition) or `ordered` (the same, no
            text).
    """

    arguments: str
    takes: tuple[str, ...]
    gives: str


_FLOATING = Function("x", ("number",), "float")
_NUMBER = Function("x", ("number",), "number")
_DATE_PART = Function("time", ("time",), "int64")
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
    "year": _DATE_PART,
    "month": _DATE_PART,
    "day": _DATE_PART,
    "hour": _DATE_PART,
    "minute": _DATE_PART,
    "second": _DATE_PART,
    "weekday": _DATE_PART,
    "dayofyear": _DATE_PART,
    "lower": _TEXT,
    "upper": _TEXT,
    "strip": _TEXT,
    "len": Function("text", ("text",), "int64"),
    "contains": _SEARCH,
    "startswith": _SEARCH,
    "endswith": _SEARCH,
    "int": Function("x", ("number",), "int64"),
    "float": Function("x", ("number",), "float64"),
    "string": Function("x", ("plain",), "string"),
}
"""By name; beside them stand `col("a name")` and `timestamp("2013-10-01")`, which take a constant.

A missing condition makes `where` missing. `round` goes to the even neighbour; `int` cuts the fraction off and is
missing where no int64 can hold the value. `weekday` counts from Monday, 0. `contains` looks for the text as it is.
"""


def closest(name: str) -> str:
    """The signature of the function a misspelt name is nearest to, or what there is."""
    near = get_close_matches(name.lower(), [*FUNCTIONS, "col", "timestamp"], n=1, cutoff=0.5)
    if not near:
        return "one of the functions above, or Map(fn, reads=..., adds=...) for your own"
    known = FUNCTIONS.get(near[0])
    return f"{near[0]}({known.arguments if known else repr('...')})"
