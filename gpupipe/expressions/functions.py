"""Table of functions and operators: what each takes and gives, and what computes it. A new one is entered here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from gpupipe.backend.columns import Column
from gpupipe.backend.dates import DATE_FLAGS, DATE_PARTS
from gpupipe.expressions.choice import choose, coalesce, find_missing
from gpupipe.expressions.comparisons import find_members, join_conditions
from gpupipe.expressions.lists import average, contain_value, count_elements, find_extreme, total
from gpupipe.expressions.numbers import clip, convert, do_arithmetic, transform
from gpupipe.expressions.operands import Call, Truth
from gpupipe.expressions.texts import concatenate, count_characters, match, rewrite, split
from gpupipe.expressions.times import floor_time, get_part, subtract_times
from gpupipe.schema import FLOATS, INTEGERS, LISTS, to_list_dtype

NUMBERS = (*INTEGERS, *FLOATS, "bool")
_Compute: TypeAlias = Callable[[Call], Column | Truth]


class Kind(NamedTuple):
    """Kind of an argument."""

    dtypes: Sequence[str]  # none: any
    words: str  # what it is called in messages
    example: str = ""  # of one that has to be a constant


KINDS = {
    "any": Kind((), "a value"),
    "element": Kind((), "a value as the list holds"),
    "number": Kind(NUMBERS, "a number"),
    "condition": Kind(("bool",), "a condition, true or false per row"),
    "text": Kind(("string",), "text"),
    "list": Kind(LISTS, "a list"),
    "list of numbers": Kind(tuple(map(to_list_dtype, NUMBERS)), "a list of numbers"),
    "list of numbers or times": Kind(tuple(map(to_list_dtype, (*NUMBERS, "timestamp"))), "a list of numbers or times"),
    "time": Kind(("timestamp",), "a timestamp"),
    "plain": Kind((*INTEGERS, "bool", "string"), "an integer, a boolean or text"),
    "constant text": Kind(("string",), "a constant text", "'text' in quotation marks"),
    "part": Kind(("string",), "a constant text that is not empty", "'text' in quotation marks"),
    "pattern": Kind(("string",), "a constant text, a regular expression", "'text' in quotation marks"),
    "zone": Kind(("string",), "a time zone's name, such as 'America/New_York'", "'America/New_York'"),
    "length": Kind(("string",), "a length of time in weeks, days, hours, min, s, ms or us", "'1h'"),
    "constant integer": Kind(INTEGERS, "a constant integer", "0, a number written out"),
}


@dataclass(frozen=True, slots=True)
class Function:
    """Form of a function or an operator.

    Args:
        names: of all that have this form, with spaces between them.
        arguments: their names, for messages.
        takes: the kind of each argument, one of `KINDS`.
        gives: a type of `schema.DTYPES` or `LISTS`; `number` (int64, or the float it got), `float` (float32 if it got
            that, else float64), `element` (that of a list's elements, of which also `number` and `float` are),
            `common` (what holds the arguments that are no condition), `ordered` (the same, no text) or `arithmetic`
            (int64, or a float where an argument is one or the result is).
        compute: what computes it from operands of which one at least is a column.
        optional: how many of the last arguments may be left out.
        repeats: whether any number of arguments of the last kind may follow.
    """

    names: str
    arguments: str
    takes: tuple[str, ...]
    gives: str
    compute: _Compute
    optional: int = 0
    repeats: bool = False

    @property
    def least(self) -> int:
        """The least number of arguments."""
        return len(self.takes) - self.optional

    def list_kinds(self, count: int) -> tuple[str, ...] | None:
        """List the kinds of so many arguments; None if it does not take so many."""
        if count < self.least or (count > len(self.takes) and not self.repeats):
            return None
        return (*self.takes[:count], *self.takes[-1:] * (count - len(self.takes)))


def _group_by_name(forms: Iterable[Function]) -> dict[str, list[Function]]:
    by_name: dict[str, list[Function]] = {}
    for form in forms:
        for name in form.names.split():
            by_name.setdefault(name, []).append(form)
    return by_name


OPERATORS = _group_by_name(
    [
        Function("and or", "x, y", ("condition", "condition"), "bool", join_conditions, repeats=True),
        Function("not", "x", ("condition",), "bool", join_conditions),
        Function("in", "x, ...", ("any",), "bool", find_members, repeats=True),
        Function("+ - * / // % **", "x, y", ("number", "number"), "arithmetic", do_arithmetic),
        Function("+", "text, text", ("text", "text"), "string", concatenate),
        Function("-", "time, time", ("time", "time"), "float64", subtract_times),
        Function("negative", "x", ("number",), "arithmetic", transform),
    ]
)
FUNCTIONS = _group_by_name(
    [
        Function("where", "condition, x, y", ("condition", "any", "any"), "common", choose),
        Function("isnull notnull", "x", ("any",), "bool", find_missing),
        Function("coalesce", "x, y, ...", ("any", "any"), "common", coalesce, repeats=True),
        Function("log1p log exp sqrt sin cos", "x", ("number",), "float", transform),
        Function("abs round floor ceil", "x", ("number",), "number", transform),
        Function("floor", 'time, "1h"', ("time", "length", "zone"), "timestamp", floor_time, optional=1),
        Function("clip", "x, low, high", ("any", "any", "any"), "ordered", clip),
        Function("minimum maximum", "x, y", ("any", "any"), "ordered", do_arithmetic),
        Function(" ".join(DATE_PARTS), "time", ("time", "zone"), "int64", get_part, optional=1),
        Function(" ".join(DATE_FLAGS), "time", ("time", "zone"), "bool", get_part, optional=1),
        Function("lower upper strip", "text", ("text",), "string", rewrite),
        Function("len", "text", ("text",), "int64", count_characters),
        Function("contains startswith endswith", 'text, "part"', ("text", "constant text"), "bool", match),
        Function("search", 'text, "pattern"', ("text", "pattern"), "bool", match),
        Function("extract", 'text, "pattern"', ("text", "pattern"), "string", rewrite),
        Function("split", 'text, "separator", 0', ("text", "part", "constant integer"), "string", rewrite),
        Function("slice", "text, start, stop", ("text", "constant integer", "constant integer"), "string", rewrite),
        Function("replace", 'text, "old", "new"', ("text", "part", "constant text"), "string", rewrite),
        Function("sub", 'text, "pattern", "new"', ("text", "pattern", "constant text"), "string", rewrite),
        Function("split", 'text, "separator"', ("text", "part"), "list<string>", split),
        Function("len", "list", ("list",), "int64", count_elements),
        Function("contains", "list, value", ("list", "element"), "bool", contain_value),
        Function("sum", "list", ("list of numbers",), "number", total),
        Function("mean", "list", ("list of numbers",), "float", average),
        Function("min max", "list", ("list of numbers or times",), "element", find_extreme),
        Function("int", "x", ("number",), "int64", convert),
        Function("float", "x", ("number",), "float64", convert),
        Function("string", "x", ("plain",), "string", convert),
    ]
)
"""By name, the forms of each; the language also has `col("a name")` and `timestamp("2013-10-01")`, of constants.

A missing condition makes `where` missing; `where(condition, x, None)` is missing where the condition is false.
`coalesce` gives the first that is not missing. `round` goes to the even neighbour; `int` cuts the fraction off; a
value that no int64 can hold is an error. Parts of a time are those of UTC, or of the local time of a zone:
`hour(time, "America/New_York")`. `dayofweek` counts from Monday, 0; `week` is that of ISO 8601. `floor(time, "15min")`
is the beginning of its quarter of an hour; lengths are counted from 1970 in UTC, so that days begin at midnight and
weeks on a Thursday, or in the local time of a zone: `floor(time, "1d", "America/New_York")`, an hour that comes twice
as one. `contains` looks for the text as it is; patterns are RE2's regular expressions: no lookaround, no
backreference, `\\d` and `\\w` are ASCII (`\\p{L}` is any letter). `search` looks anywhere in the text; `extract` gives
the first group of the first match (the whole match where the pattern has no group), missing without a match; `sub`
replaces every match, `\\1` in the new text being the first group. `split` gives the list of all parts, or the part of
that number, from the end where it is negative, missing where there are fewer; `slice` counts characters as Python does.
Of a list, `sum`, `mean`, `min` and `max` skip missing elements, which `len` counts; `sum` of none is 0, the others are
missing; `contains` is true where an element equals the value, and missing only where the list or the value is.
"""
NAMES = (*FUNCTIONS, "col", "timestamp")


def describe_call(name: str) -> str:
    """Write the call of a function, in all its forms."""
    forms = FUNCTIONS.get(name)
    return " or ".join(f"{name}({form.arguments})" for form in forms) if forms else f"{name}('...')"
