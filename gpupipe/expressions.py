"""Expression language of `Filter`, `Derive`, `target=` and `weight=`: Python's syntax over columns, never executed.

    columns       dep_delay, col("dep delay") for a name that is no identifier
    constants     15, 2.5, "JFK", True, timestamp("2013-10-01")
    arithmetic    + - * / // % ** and unary -
    comparisons   == != < <= > >=, chained too: 6 <= hour < 22; origin in ["JFK", "LGA"], not in
    conditions    and, or, not
    functions     those of `FUNCTIONS`

A missing value makes what is computed from it missing; conditions follow Kleene: false and missing is false, true or
missing is true. Arithmetic on integers gives int64, and a result that does not fit is an error; `//` and `%` by zero
are missing; `/` gives a float. A float that is NaN is missing, infinity is a value. float32 stays float32 with itself
and constants. A comparison with a constant is exact, whatever the column is stored as, and so is one of integer
columns; with a float column, integers are float64. A time minus a time is float64 seconds. True counts 1 in
arithmetic.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple, TypeAlias, TypeVar

from gpupipe.errors import ColumnNotFound, ExpressionError, GpupipeError, nearest
from gpupipe.schema import FLOATS, INTEGERS, LISTS, Schema, is_passenger, suggest_conversion
from gpupipe.support.text import derive, format_count
from gpupipe.support.time_zones import closest_zones, is_zone

__all__ = ["Expression", "parse"]

ALLOWED = "columns, constants, + - * / // % **, comparisons, and or not, in [...] and functions"
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  times are UTC and naive
_MAX_LENGTH = 100_000  # characters
_MAX_DEPTH = 100  # operations inside one another; each costs a few frames of Python's stack, and there are 1000
_WIDTH = 100  # of the line that an error shows
_Error = TypeVar("_Error", bound=GpupipeError)
Value: TypeAlias = bool | int | float | str


class Span(NamedTuple):
    """Part of the text, in characters; `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Source:
    """Expression text, whose lines end in a line feed, and the step or parameter it was given to, for messages."""

    text: str
    where: str

    def slice(self, span: Span) -> str:
        """Return the text of a part."""
        return self.text[span.start : span.end]

    def error(self, span: Span, problem: str, expected: str, remedy: str, **got: Any) -> ExpressionError:
        """Build an error whose last lines show the text and mark the part."""
        return self._point(ExpressionError(self.where, problem, expected=expected, remedy=remedy, **got), span)

    def no_column(self, span: Span, name: str, names: Iterable[str]) -> ColumnNotFound:
        """Build the error for a column that is not one of `names`."""
        return self._point(ColumnNotFound.among(self.where, name, names), span)

    def _point(self, error: _Error, span: Span) -> _Error:
        """Add to an error the line a part begins in, shortened around it, with carets below the part."""
        first = self.text.rfind("\n", 0, span.start) + 1
        last = self.text.find("\n", first)
        last = len(self.text) if last < 0 else last
        left = max(first, min(span.start - _WIDTH // 2, last - _WIDTH))
        right = min(last, left + _WIDTH)
        before, after = "..." * (left > first), "..." * (right < last)
        shown = self.text[left:right].replace("\t", " ")
        carets = " " * (len(before) + span.start - left) + "^" * max(1, min(span.end, right) - span.start)
        error.args = (f"{error}\n    {before}{shown}{after}\n    {carets}",)
        return error


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant value; a timestamp is an integer, microseconds since 1970, of text that may have an offset from UTC."""

    value: Value
    dtype: str
    span: Span = field(compare=False)
    has_offset: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Name:
    """Column name."""

    name: str
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of neighbouring operands; true when all pairs are. One operator less than operands."""

    operators: tuple[str, ...]
    operands: tuple[Node, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Operation:
    """An arithmetic sign, `negative`, `and`, `or`, `not`, `in` (a value, then constants) or a function's name."""

    name: str
    operands: tuple[Node, ...]
    span: Span = field(compare=False)


Node: TypeAlias = Constant | Name | Comparison | Operation


def value_as(constant: Constant, dtype: str) -> Value:
    """Convert a constant to the dtype of a column; text compared with times is a time, or a ValueError."""
    value = constant.value
    if dtype in FLOATS:
        return float(value)
    if isinstance(value, str):
        return microseconds(value) if dtype == "timestamp" else value
    return bool(value) if dtype == "bool" else int(value)


def has_offset(value: Any) -> bool:
    """Return whether a time, as text in ISO 8601 or a datetime, has an offset from UTC or a zone."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return False
    return getattr(moment, "tzinfo", None) is not None


def microseconds(text: str) -> int:
    """Parse an ISO 8601 date or time, UTC by default, to microseconds since 1970; a ValueError for other text."""
    return to_microseconds(datetime.fromisoformat(text))


def to_microseconds(value: date) -> int:
    """Convert a date or time, UTC by default, to microseconds since 1970."""
    moment = value if isinstance(value, datetime) else datetime.combine(value, time())
    since = moment.replace(tzinfo=None) - EPOCH - (moment.utcoffset() or timedelta())
    return since // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Function:
    """Signature of a function: its arguments' names, for messages, a kind of `_KINDS` or `any` for each, and a type.

    It gives a type of `schema.DTYPES`; `number` (int64, or the float it got), `float` (float32 if it got that, else
    float64), `common` (what holds the arguments that are no condition) or `ordered` (the same, no text).
    """

    arguments: str
    takes: tuple[str, ...]
    gives: str
    may_take: tuple[str, ...] = ()  # kinds of further arguments


DATE_PARTS = ("year", "quarter", "month", "week", "day", "dayofyear", "weekday", "hour", "minute", "second")
DATE_FLAGS = ("is_weekend", *(f"is_{unit}_{end}" for unit in ("month", "quarter", "year") for end in ("start", "end")))

FUNCTIONS: dict[str, Function] = {
    "where": Function("condition, x, y", ("condition", "any", "any"), "common"),
    **dict.fromkeys(("isnull", "notnull"), Function("x", ("any",), "bool")),
    "fillna": Function("x, value", ("any", "any"), "common"),
    **dict.fromkeys(("log1p", "log", "exp", "sqrt"), Function("x", ("number",), "float")),
    **dict.fromkeys(("abs", "round", "floor", "ceil"), Function("x", ("number",), "number")),
    "clip": Function("x, low, high", ("any", "any", "any"), "ordered"),
    **dict.fromkeys(("minimum", "maximum"), Function("x, y", ("any", "any"), "ordered")),
    **dict.fromkeys(DATE_PARTS, Function("time", ("time",), "int64", ("zone",))),
    **dict.fromkeys(DATE_FLAGS, Function("time", ("time",), "bool", ("zone",))),
    **dict.fromkeys(("lower", "upper", "strip"), Function("text", ("text",), "string")),
    "len": Function("text", ("text or list",), "int64"),
    **dict.fromkeys(
        ("contains", "startswith", "endswith"), Function('text, "part"', ("text", "constant text"), "bool")
    ),
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
_NAMES = (*FUNCTIONS, "col", "timestamp")

_ELSEWHERE = {"x ** y": "pow power", "x % y": "mod fmod", "low <= x <= high": "between", "x in [1, 2]": "isin"}
_ELSEWHERE |= {"log(x) / 2.302585092994046": "log10", "log(x) / 0.6931471805599453": "log2", "x ** 2": "square"}
_ELSEWHERE |= {"minimum": "min least", "maximum": "max greatest", "fillna": "coalesce ifnull nvl fill_null fill_nan"}
_ELSEWHERE |= {"where": "if if_else ifelse iff iif case when", "isnull": "isna isnan is_nan is_null"}
_ELSEWHERE |= {"notnull": "notna is_not_null", "len": "length size char_length", "slice": "substr substring"}
_ELSEWHERE |= {"strip": "trim lstrip rstrip", "weekday": "dayofweek day_of_week", "timestamp": "datetime to_datetime"}
_ELSEWHERE |= {"sub": "regex_replace regexp_replace", "int": "trunc truncate astype", "string": "str text to_string"}
_ELSEWHERE |= {"search": "match matches regexp rlike", "log": "ln", "lower": "lowercase", "upper": "uppercase"}
"""What other languages call a function that is here, or what this one writes otherwise."""


def _suggest_function(name: str) -> str:
    """Suggest what `name` was meant to be: another language's name for it, or the closest spelling."""
    near = next((ours for ours, names in _ELSEWHERE.items() if name.lower() in names.split()), nearest(name, _NAMES))
    if near is None:
        return "one of the functions above, or Map(fn, reads=..., adds=...) for your own"
    known = FUNCTIONS.get(near)
    return near if near not in _NAMES else f"{near}({known.arguments if known else repr('...')})"


_UNESCAPED = r"(?<!\\)(?:\\\\)*"
_UNKNOWN_TO_RE2 = (
    (_UNESCAPED + r"\(\?(?:=|!|<=|<!)", "it has no lookaround"),
    (_UNESCAPED + r"(?:\\[1-9]|\(\?P=)", "it has no backreferences"),
    (_UNESCAPED + r"\(\?[>(]", "it has no conditions and no atomic groups"),
)


def _find_pattern_problem(pattern: str) -> str | None:
    """Return why RE2 would reject a pattern; None where it would not."""
    for unknown, problem in _UNKNOWN_TO_RE2:
        if re.search(unknown, pattern):
            return problem
    try:
        re.compile(re.sub(r"\\[pP](?:\{\^?\w+\}|\w)", r"\\w", pattern))
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return None


_NUMBERS = (*INTEGERS, *FLOATS, "bool")
_KINDS: dict[str, tuple[Sequence[str], str, str]] = {
    "number": (_NUMBERS, "a number", ""),
    "condition": (("bool",), "a condition, true or false per row", ""),
    "text": (("string",), "text", ""),
    "text or list": (("string", *LISTS), "text or a list", ""),
    "constant text": (("string",), "a constant text", "'text' in quotation marks"),
    "part": (("string",), "a constant text that is not empty", "'text' in quotation marks"),
    "pattern": (("string",), "a constant text, a regular expression", "'text' in quotation marks"),
    "zone": (("string",), "a time zone's name, such as 'America/New_York'", "'America/New_York'"),
    "constant integer": (INTEGERS, "a constant integer", "0, a number written out"),
    "time": (("timestamp",), "a timestamp", ""),
    "plain": ((*INTEGERS, "bool", "string"), "an integer, a boolean or text", ""),
}
"""The types of each kind of argument, what it is called in messages, and an example of one that has to be constant."""
_CONDITIONS = {"string": "== '...'", "timestamp": ">= '2013-10-01'"}
_LARGEST_FLOAT32 = 3.4028234663852886e38


def _infer_dtype(node: Node, dtypes: Mapping[str, str], source: Source) -> str:
    """Infer the dtype of a whole tree over columns of these dtypes."""
    if isinstance(node, Constant):
        return node.dtype
    if isinstance(node, Name):
        if node.name not in dtypes:
            raise source.no_column(node.span, node.name, dtypes)
        return dtypes[node.name]
    constants = [operand for operand in node.operands if isinstance(operand, Constant)]
    quoted = next((constant for constant in constants if constant.value in dtypes), None)
    if isinstance(node, Comparison) and quoted is not None and len(constants) == len(node.operands):
        problem = "a column's name in quotation marks is a text, the same in every row"
        raise source.error(quoted.span, problem, "a column", f"col({quoted.value!r})", got=quoted.value)
    return infer_operation(node, [_infer_dtype(operand, dtypes, source) for operand in node.operands], source)


def _find_zones(node: Node, schema: Schema, source: Source) -> dict[Node, str]:
    """Find the columns and constants with an offset that a node takes times from, with its zone; refuse a mixture."""
    if isinstance(node, Name):
        return {node: schema[node.name].zone} if schema[node.name].dtype == "timestamp" else {}
    if isinstance(node, Constant):
        return {node: "an offset"} if node.has_offset or has_offset(node.value) else {}
    zones: dict[Node, str] = {}
    for operand in node.operands:
        zones |= _find_zones(operand, schema, source)
    if any(zones.values()) and not all(zones.values()):
        columns = [item.name for item in zones if isinstance(item, Name)]
        shown = " and ".join(f"{_titled(item, source)} ({zone or 'no time zone'})" for item, zone in zones.items())
        cast = f"T.Cast({dict.fromkeys(columns, 'int64')}) before, if both are UTC"
        remedy = cast if len(columns) == len(zones) else "the time without its offset"
        problem, remedy = f"times with a time zone beside times without: {shown}", f"{remedy}; else tz_localize"
        raise source.error(node.span, problem, "a zone on both sides, or on none", f"{remedy} of the frame")
    gives = FUNCTIONS[node.name].gives if isinstance(node, Operation) and node.name in FUNCTIONS else ""
    return zones if gives in ("common", "ordered") else {}


def infer_operation(node: Comparison | Operation, dtypes: Sequence[str], source: Source) -> str:
    """Infer the result dtype of one operation on operands of these dtypes."""
    if isinstance(node, Comparison) or node.name == "in":
        first, *others = operands = list(zip(node.operands, dtypes, strict=True))
        pairs = pairwise(operands) if isinstance(node, Comparison) else ((first, other) for other in others)
        for left, right in pairs:
            _require_alike(left, right, source)
        return "bool"
    if node.name in ("and", "or", "not"):
        _require(node, dtypes, ["condition"] * len(dtypes), source)
        return "bool"
    return _infer_call(node, dtypes, source) if node.name in FUNCTIONS else _infer_arithmetic(node, dtypes, source)


def _infer_arithmetic(node: Operation, dtypes: Sequence[str], source: Source) -> str:
    if node.name == "-" and set(dtypes) == {"timestamp"}:
        return "float64"
    _require(node, dtypes, ["number"] * len(dtypes), source)
    exponent = node.operands[-1]
    is_fraction = node.name == "**" and isinstance(exponent, Constant) and float(exponent.value) < 0
    if node.name == "/" or is_fraction or any(dtype in FLOATS for dtype in dtypes):
        return "float32" if _common_dtype(node.operands, dtypes) == "float32" else "float64"
    _require_int64(node, source)
    return "int64"


def _infer_call(node: Operation, dtypes: Sequence[str], source: Source) -> str:
    function = FUNCTIONS[node.name]
    _require(node, dtypes, (*function.takes, *function.may_take)[: len(dtypes)], source)
    if function.gives == "float":
        return "float32" if dtypes[0] == "float32" else "float64"
    if function.gives == "number":
        return dtypes[0] if dtypes[0] in FLOATS else "int64"
    if function.gives not in ("common", "ordered"):
        return function.gives
    first = sum(kind == "condition" for kind in function.takes)
    found = _common_dtype(node.operands[first:], dtypes[first:])
    if found is None or (found == "string" and function.gives == "ordered"):
        pairs = zip(node.operands[first:], dtypes[first:], strict=True)
        given = " and ".join(f"{_titled(operand, source)} ({dtype})" for operand, dtype in pairs)
        alike = "values of one kind" if found is None else "numbers or timestamps"
        remedy = f"{node.name}({function.arguments}) with {alike}"
        raise source.error(node.span, f"`{node.name}` is given {given}", alike, remedy)
    if found == "int64":
        _require_int64(node, source)
    return found


def _common_dtype(operands: Sequence[Node], dtypes: Sequence[str]) -> str | None:
    """Return the dtype that holds the values of all operands; None if there is none. Constants adapt where possible."""
    if all(dtype == "bool" for dtype in dtypes):
        return "bool"
    if all(dtype in _NUMBERS for dtype in dtypes):
        columns = {dtype for node, dtype in zip(operands, dtypes, strict=True) if not isinstance(node, Constant)}
        constants = [node.value for node in operands if isinstance(node, Constant)]
        if len(columns) == 1 and columns != {"bool"} and all(_fits(value, *columns) for value in constants):
            return columns.pop()
        return "float64" if any(dtype in FLOATS for dtype in dtypes) else "int64"
    family = "timestamp" if "timestamp" in dtypes else "string"
    as_times = [family == "timestamp" and _is_time(node) for node in operands]
    return family if all(dtype == family or fits for dtype, fits in zip(dtypes, as_times, strict=True)) else None


def _fits(value: Value, dtype: str) -> bool:
    """Return whether a constant combines with a column without widening it; a float may be rounded to float32."""
    if dtype in FLOATS:
        return dtype == "float64" or abs(float(value)) <= _LARGEST_FLOAT32
    bits = int(dtype.lstrip("uint"))
    low = 0 if dtype.startswith("u") else -(1 << (bits - 1))
    return isinstance(value, int) and low <= value < low + (1 << bits)


def _is_time(node: Node) -> bool:
    """Return whether a node is text that is read as a time beside times."""
    if not isinstance(node, Constant) or not isinstance(node.value, str):
        return False
    try:
        microseconds(node.value)
    except ValueError:
        return False
    return True


def _require_int64(node: Operation, source: Source) -> None:
    """Raise for a constant beyond int64 where the operands become int64."""
    for operand in node.operands:
        if isinstance(operand, Constant) and operand.dtype == "uint64":
            problem = f"the number is too large for `{node.name}`, which works in int64 here"
            raise source.error(operand.span, problem, "an int64 or a float64", f"{float(operand.value)!r}, a float")


def _require(node: Operation, dtypes: Sequence[str], kinds: Sequence[str], source: Source) -> None:
    """Raise for the first operand that is not of its kind."""
    for operand, dtype, kind in zip(node.operands, dtypes, kinds, strict=True):
        if kind == "any":
            continue
        taken, words, example = _KINDS[kind]
        if dtype not in taken or (example and not isinstance(operand, Constant)):
            sign = "unary -" if node.name == "negative" else node.name
            problem = f"`{sign}` is given {_titled(operand, source)} ({dtype})"
            raise source.error(operand.span, problem, words, _suggest_operand(kind, operand, dtype, source))
        text = str(operand.value) if isinstance(operand, Constant) else ""
        if kind == "zone" and not is_zone(text):
            near = " or ".join(map(repr, closest_zones(text)))
            remedy = near or "'UTC', or pip install tzdata where no zone is known"
            raise source.error(operand.span, "no time zone of this name", words, remedy, got=text)
        if kind == "part" and not text:
            raise source.error(operand.span, "the text is empty", "one character at least", "','")
        if kind == "pattern" and (wrong := _find_pattern_problem(text)) is not None:
            raise source.error(operand.span, f"no regular expression of RE2 ({wrong})", words, "'[A-Z]+'")


def _require_alike(left: tuple[Node, str], right: tuple[Node, str], source: Source) -> None:
    """Raise unless two operands can be held against each other."""
    if _common_dtype((left[0], right[0]), (left[1], right[1])) is not None:
        return
    culprit, remedy = right[0], "two values of one kind; Cast changes a column's type"
    for (node, dtype), (beside, other) in ((left, right), (right, left)):
        culprit = node if isinstance(node, Constant) else culprit
        if other in LISTS or is_passenger(other):
            remedy = _suggest_operand("text" if dtype == "string" else "number", beside, other, source)
            break
        if isinstance(node, Constant):
            if other == "timestamp":
                remedy = "a time as text in ISO 8601: '2013-10-01 06:00'"
            elif dtype == "timestamp":
                remedy = _suggest_operand("time", beside, other, source)
            elif other == "string":
                remedy = f"{str(node.value)!r}, with quotation marks"
            elif isinstance(node.value, str):
                remedy = _without_quotes(node.value)
    first, second = (f"{_titled(node, source)} ({dtype})" for node, dtype in (left, right))
    expected = "two numbers, two texts or two times"
    raise source.error(culprit.span, f"{first} is compared with {second}", expected, remedy)


def _titled(node: Node, source: Source) -> str:
    return f"column {node.name!r}" if isinstance(node, Name) else source.slice(node.span)


def _suggest_operand(kind: str, operand: Node, dtype: str, source: Source) -> str:
    """Suggest what makes an operand one of that kind."""
    shown, is_text = source.slice(operand.span), kind in ("text", "text or list", "plain")
    if dtype in LISTS:
        return f"len({shown}) for how many elements it has"
    if is_passenger(dtype):
        assert isinstance(operand, Name)
        return suggest_conversion(operand.name, dtype, text=is_text)
    if example := _KINDS[kind][2]:
        return example
    value = shown if isinstance(operand, Name) else f"({shown})"
    if kind == "condition":
        return f"{value} {_CONDITIONS.get(dtype, '!= 0')}"
    if isinstance(operand, Constant) and dtype != "timestamp":
        if kind == "time":
            return f"timestamp({shown if _is_time(operand) else repr('2013-10-01 06:00')})"
        return repr(str(operand.value)) if is_text else _without_quotes(str(operand.value))
    if kind == "number":
        if dtype == "timestamp":
            return f"hour({shown}), or {value} - timestamp('2013-10-01') for seconds"
        return f"len({shown}), or {_cast(operand, source, 'float64')}"
    if kind == "time":
        return _cast(operand, source, *([] if dtype in ("string", "int64") else ["int64"]), "timestamp")
    if kind == "plain" and dtype in FLOATS:
        return f"string(int({shown}))"
    return _cast(operand, source, "string") if dtype in ("timestamp", *FLOATS) else f"string({shown})"


def _cast(operand: Node, source: Source, *dtypes: str) -> str:
    """Write the steps that cast an operand, by way of microseconds for two types."""
    name = operand.name if isinstance(operand, Name) else "made"
    derived = "" if isinstance(operand, Name) else f"T.{derive('', source.slice(operand.span), name)}, "
    casts = [f"T.Cast({{{name!r}: {dtype!r}}})" for dtype in dtypes]
    return f"{derived}{', microseconds since 1970, and '.join(casts)} before"


def _without_quotes(text: str) -> str:
    """Suggest the number that a text spells."""
    for read in (int, float):
        try:
            number = read(text)
        except ValueError:
            continue
        if -inf < number < inf:
            return f"{number}, without quotation marks"
    return "a number"


_TYPOS = [(r"&&", " and "), (r"\|\|", " or "), (r"<>", "!="), (r"(?<![<>=!])=(?!=)", "==")]
_TYPOS += [(rf"\b{word.upper()}\b", word) for word in ("and", "or", "not", "in")]
_BITS: dict[type[Any], tuple[str, str]] = {ast.BitAnd: ("&", "and"), ast.BitOr: ("|", "or"), ast.BitXor: ("^", "!=")}
_ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_ARITHMETIC |= {ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**"}
_COMPARISONS: dict[type[ast.cmpop], str] = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<="}
_COMPARISONS |= {ast.Gt: ">", ast.GtE: ">="}
_REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    **dict.fromkeys(
        (ast.DictComp, ast.GeneratorExp, ast.ListComp, ast.SetComp), ("a comprehension", "in [...] with constants")
    ),
    ast.Attribute: ("a dot", "col('a.b') for a column with a dot in its name"),
    ast.BinOp: ("this sign", "+ - * / // % **"),
    ast.Dict: ("{...}", "where(condition, x, y)"),
    ast.IfExp: ("if ... else", "where(condition, x, y)"),
    ast.JoinedStr: ("an f-string", "a plain string"),
    ast.Lambda: ("a lambda", "Map(fn, reads=..., adds=...)"),
    ast.List: ("a list", "x in [...]"),
    ast.NamedExpr: ("an assignment", "another column in Derive"),
    ast.Set: ("{...}", "x in [...]"),
    ast.Starred: ("a star", "the values one by one"),
    ast.Subscript: ("[...] behind a value", "one column per value"),
    ast.Tuple: ("a comma", "one expression per column"),
    ast.UnaryOp: ("unary +", "the value itself"),
}


def _is_python(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def _list_bit_operations(item: ast.expr) -> list[ast.BinOp]:
    """List the operations joined by & | ^ in a node, from left to right."""
    if isinstance(item, ast.BinOp) and type(item.op) in _BITS:
        return [*_list_bit_operations(item.left), item, *_list_bit_operations(item.right)]
    return []


def _parenthesize(text: str) -> str:
    return text if text.isidentifier() or (text[:1] == "(" and text[-1:] == ")") else f"({text})"


class _Reader:
    """Converter of Python's syntax tree to ours, by an allow list; anything else is an error that points at it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lines: list[tuple[int, list[int] | None]] = []
        start = 0
        for line in source.text.split("\n"):
            # `ast` counts columns in bytes of UTF-8.
            chars = None
            if not line.isascii():
                widths = (len(char.encode("utf-8", "surrogatepass")) for char in line)
                chars = [i for i, width in enumerate(widths) for _ in range(width)] + [len(line)]
            self._lines.append((start, chars))
            start += len(line) + 1

    def tree(self) -> Node:
        """Convert the whole text."""
        source = self._source
        if len(source.text) > _MAX_LENGTH:
            problem, remedy = f"{len(source.text)} characters are too many", "several expressions in Derive, or a Join"
            raise source.error(Span(0, 1), problem, f"at most {_MAX_LENGTH}", f"{remedy} for a long list")
        try:
            item = ast.parse(source.text, mode="eval").body
        except SyntaxError as error:
            raise self._syntax_error(error) from None
        except (ValueError, MemoryError, RecursionError):  # characters no source may hold; nested too deep
            raise source.error(Span(0, 1), "this cannot be read", ALLOWED, "a shorter expression") from None
        return self._node(item, 0)

    def _syntax_error(self, error: SyntaxError) -> ExpressionError:
        text = self._source.text
        if not text:
            return self._source.error(Span(0, 1), "the text is empty", ALLOWED, "'distance > 200'")
        row = min((error.lineno or 1), len(self._lines)) - 1
        start = self._lines[row][0] + max(0, (error.offset or 1) - 1)
        length = (error.end_offset or 0) - (error.offset or 0) if error.end_lineno == error.lineno else 1
        remedy = "Python's signs: == and or not; names that are no identifiers as col('dep delay')"
        mended = text
        for typo, sign in _TYPOS:
            mended = re.sub(typo, sign, mended)
        for candidate in (f"({mended})", re.sub(" +", " ", mended)):
            remedy = candidate if _is_python(candidate) else remedy
        span = Span(start, start + max(1, length))
        return self._source.error(span, f"not an expression ({error.msg})", ALLOWED, remedy)

    def _node(self, item: ast.expr, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            expected = f"{_MAX_DEPTH} levels at most"
            raise self._error(item, "nested too deep", expected, "several expressions in Derive")
        match item:
            case ast.Constant(value):
                return self._constant(item, value)
            case ast.Name():
                span = self._span(item)
                return Name(self._source.slice(span), span)  # `ast` would normalise its characters
            case ast.BoolOp(op, values):
                return self._operation("and" if isinstance(op, ast.And) else "or", values, item, depth)
            case ast.UnaryOp(ast.Not(), operand):
                return self._operation("not", [operand], item, depth)
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)) if not isinstance(value, bool):
                return self._constant(item, -value)
            case ast.UnaryOp(ast.USub(), operand):
                return self._operation("negative", [operand], item, depth)
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                return self._operation(_ARITHMETIC[type(op)], [left, right], item, depth)
            case ast.Compare():
                return self._comparison(item, depth)
            case ast.Call():
                return self._call(item, depth)
        self._refuse_bits(item)
        what, remedy = _REFUSED.get(type(item), (type(item).__name__, "Map(fn, reads=..., adds=...)"))
        if isinstance(item, ast.Attribute):
            remedy = f"col({self._text(item)!r}) if that is a column's name"
        raise self._error(item, f"{what} is not allowed", ALLOWED, remedy)

    def _operation(self, name: str, operands: list[ast.expr], item: ast.expr, depth: int) -> Operation:
        return Operation(name, tuple(self._node(operand, depth + 1) for operand in operands), self._span(item))

    def _constant(self, item: ast.expr, value: object) -> Constant:
        span = self._span(item)
        match value:
            case bool():
                return Constant(value, "bool", span)
            case int() if -(2**63) <= value < 2**63:
                return Constant(value, "int64", span)
            case int() if 0 < value < 2**64:
                return Constant(value, "uint64", span)
            case float() if abs(value) < inf:
                return Constant(value, "float64", span)
            case str():
                return Constant(value, "string", span)
            case None:
                error = "None is no value", "a test for missing values", "isnull(x) or notnull(x)"
            case int() | float():
                expected = "an int64, a uint64 or a float64"
                error = "the number is too large", expected, "a smaller one, or 1e19 for a float"
            case _:
                error = "not a constant of this language", "numbers, strings, True, False", '"text" or 1.5'
        raise self._error(item, *error)

    def _comparison(self, item: ast.Compare, depth: int) -> Node:
        if any(isinstance(op, ast.Is | ast.IsNot) for op in item.ops):
            raise self._error(item, "`is` is not allowed", "a comparison", "isnull(x), notnull(x) or x == y")
        self._refuse_bits(item)
        if isinstance(item.ops[0], ast.In | ast.NotIn) and len(item.ops) == 1:
            return self._is_in(item, depth)
        if any(type(op) not in _COMPARISONS for op in item.ops):
            raise self._error(item, "`in` inside a chain", "one comparison each", "(a < b) and (b in [...])")
        operands = tuple(self._node(operand, depth + 1) for operand in (item.left, *item.comparators))
        return Comparison(tuple(_COMPARISONS[type(op)] for op in item.ops), operands, self._span(item))

    def _is_in(self, item: ast.Compare, depth: int) -> Node:
        values, expected, left = item.comparators[0], "constants in [...]", self._text(item.left)
        if not isinstance(values, ast.List | ast.Tuple | ast.Set):
            remedy = f"contains({self._text(values)}, {left}) for a part of a text"
            raise self._error(values, "`in` without a list", expected, remedy)
        read = [self._node(value, depth + 1) for value in values.elts]
        for value in read:
            if not isinstance(value, Constant):
                raise self._source.error(value.span, "not a constant", expected, f"{left} == ... or ...")
        span = self._span(item)
        found_in = Operation("in", (self._node(item.left, depth + 2), *read), span)
        return found_in if isinstance(item.ops[0], ast.In) else Operation("not", (found_in,), span)

    def _call(self, item: ast.Call, depth: int) -> Node:
        known = ", ".join(_NAMES)
        if isinstance(item.func, ast.Attribute):
            given = ", ".join(map(self._text, [item.func.value, *item.args]))
            name = item.func.attr
            remedy = f"{name}({given})" if name in FUNCTIONS else _suggest_function(name)
            raise self._error(item.func, "methods cannot be called", f"a function: {known}", remedy)
        if not isinstance(item.func, ast.Name):
            raise self._error(item.func, "this cannot be called", f"a function: {known}", "its name, then (...)")
        name = self._text(item.func)
        if item.keywords:
            problem, first = f"{name} is called with a keyword", item.keywords[0].arg
            raise self._error(item, problem, "positions", _suggest_function(name), got=first)
        if name in ("col", "timestamp"):
            return self._named(name, item)
        if name not in FUNCTIONS:
            problem = f"no function is called {name!r}"
            raise self._error(item.func, problem, f"one of {known}", _suggest_function(name))
        least = len(FUNCTIONS[name].takes)
        most = least + len(FUNCTIONS[name].may_take)
        if not least <= len(item.args) <= most:
            problem = f"{name} is called with {format_count(len(item.args), 'argument')}"
            expected = format_count(least, "argument") if least == most else f"{least} or {most} arguments"
            raise self._error(item, problem, expected, f"{name}({FUNCTIONS[name].arguments})")
        return self._operation(name, item.args, item, depth)

    def _named(self, name: str, item: ast.Call) -> Node:
        """Convert a call of `col` or `timestamp`."""
        span, remedy = self._span(item), _suggest_function(name)
        match item.args:
            case [ast.Constant(str() as text)] if name == "col":
                return Name(text, span)
            case [ast.Constant(str() as text)]:
                try:
                    return Constant(microseconds(text), "timestamp", span, has_offset(text))
                except ValueError:
                    remedy = 'timestamp("2013-10-01 06:00")'
                    raise self._error(item, "not a date or time", "ISO 8601", remedy, got=text) from None
            case [one] if name == "timestamp" and isinstance(column := self._node(one, 0), Name):
                remedy = f"T.Cast({{{column.name!r}: 'timestamp'}}) before"
        expected = "one string" + (", a column's name" if name == "col" else ", a date or time")
        raise self._error(item, f"{name} is called with something else", expected, remedy)

    def _refuse_bits(self, item: ast.expr) -> None:
        """Raise for & | ^ ~ in a node or between a comparison's operands, with the corrected text."""
        text, span, operands = self._source.text, self._span(item), [item]
        if isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.Invert):
            inner, is_joined = self._text(item.operand), isinstance(item.operand, ast.Compare | ast.BoolOp | ast.BinOp)
            remedy = self._replace(span, f"not ({inner})" if is_joined else f"not {inner}")
            raise self._error(item, "`~` is no negation here", "`not`", remedy)
        if isinstance(item, ast.Compare):
            operands = [part for part in (item.left, *item.comparators) if not self._is_wrapped(part)]
        found = [one for operand in operands for one in _list_bit_operations(operand)]
        if not found:
            return
        if isinstance(found[0].op, ast.BitXor):
            expected = "`!=` between conditions, `**` for powers"
            raise self._error(found[0], "`^` is not allowed", expected, "(a) != (b)")
        signs, words = zip(*(_BITS[type(one.op)] for one in found), strict=True)
        places = [text.index(sign, self._span(one.left).end) for one, sign in zip(found, signs, strict=True)]
        ends = zip([span.start, *(place + 1 for place in places)], [*places, span.end], strict=True)
        pieces = [_parenthesize(text[start:end].strip()) for start, end in ends]
        corrected = " ".join([pieces[0], *(f"{word} {piece}" for word, piece in zip(words, pieces[1:], strict=True))])
        what = "binds tighter than comparisons" if isinstance(item, ast.Compare) else "does not join conditions"
        sign = Span(places[0], places[0] + 1)
        raise self._source.error(sign, f"`{signs[0]}` {what}", f"`{words[0]}`", self._replace(span, corrected))

    def _is_wrapped(self, item: ast.expr) -> bool:
        text, span = self._source.text, self._span(item)
        return text[: span.start].rstrip().endswith("(") and text[span.end :].lstrip().startswith(")")

    def _replace(self, span: Span, part: str) -> str:
        """Return the whole text with the corrected part if Python parses it; else only the advice."""
        whole = f"{self._source.text[: span.start]}{part}{self._source.text[span.end :]}"
        return whole if _is_python(whole) else "(a < 6) or (b > 2), with `and`, `or`, `not` in place of & | ~"

    def _error(self, item: ast.expr, problem: str, expected: str, remedy: str, **got: object) -> ExpressionError:
        return self._source.error(self._span(item), problem, expected, remedy, **got)

    def _text(self, item: ast.expr) -> str:
        return self._source.slice(self._span(item))

    def _span(self, item: ast.expr) -> Span:
        return Span(self._at(item.lineno, item.col_offset), self._at(item.end_lineno, item.end_col_offset))

    def _at(self, row: int | None, column: int | None) -> int:
        start, chars = self._lines[(row or 1) - 1]
        column = column or 0
        return start + (column if chars is None else chars[column])


@dataclass(frozen=True, repr=False)
class Expression:
    """Parsed expression, created by `parse`; `reads` are the columns it reads, each once, in the order of the text."""

    source: Source
    tree: Node = field(compare=False)
    reads: tuple[str, ...] = field(compare=False)

    @property
    def text(self) -> str:
        """The expression as it was written, without space around it."""
        return self.source.text

    def check(self, schema: Schema) -> str:
        """Return the dtype of the values, one of `schema.DTYPES`.

        Raises:
            ColumnNotFound: a column is not in the schema; the closest name is offered.
            ExpressionError: types that do not go together; names the column and points at the place.
        """
        found = _infer_dtype(self.tree, {item.name: item.dtype for item in schema}, self.source)
        _find_zones(self.tree, schema, self.source)
        return found

    def check_condition(self, schema: Schema) -> None:
        """Raise `ExpressionError` unless the values are true or false; errors as of `check`."""
        found, text, where = self.check(schema), self.text, self.source.where
        if found == "bool":
            return
        condition = f"({text}) > 0" if found in (*INTEGERS, *FLOATS) else f"notnull({text})"
        condition = f"({text}) == '...'" if found == "string" else condition
        expected, remedy = "a condition, true or false per row", f"{where}({condition!r})"
        raise ExpressionError(f"{where}({text!r})", f"the expression gives {found}", expected=expected, remedy=remedy)

    def conjuncts(self) -> list[tuple[str, str, Any]]:
        """Return simple conditions, to test against statistics, that all rows satisfy for which the expression is true.

        A condition is a column, one of `== != < <= > >= in notnull` and a constant (a tuple for `in`, None for
        `notnull`); a timestamp is a `datetime`, but text that is compared with a time column stays text. A row with a
        missing value satisfies none. Parts that are not that simple are left out.

        Example:
            >>> parse("6 <= hour < 22 and origin in ['JFK'] and log(distance) > 5").conjuncts()
            [('hour', '>=', 6), ('hour', '<', 22), ('origin', 'in', ('JFK',))]
        """
        return list(_iter_conjuncts(self.tree))

    def __repr__(self) -> str:
        return f"parse({self.text!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return parse, (self.source.text, self.source.where)


def parse(text: str, where: str = "expression") -> Expression:
    """Read an expression; `where` is what it was given to, for messages.

    Raises `ExpressionError`: it does not parse, or asks for something that is not allowed; points at the place.
    Memory: the last few hundred are kept, so that parsing again costs nothing.

    Example:
        >>> parse("6 <= hour < 22 and dep_delay > 15").reads
        ('hour', 'dep_delay')
    """
    if not isinstance(text, str):
        raise ExpressionError(where, "not an expression", got=text, expected="text", remedy="'dep_delay > 15'")
    return _parse(text.replace("\r\n", "\n").replace("\r", "\n").strip(" \t\n\f\ufeff"), where)


@lru_cache(maxsize=512)
def _parse(text: str, where: str) -> Expression:
    source = Source(text, where)
    tree = _Reader(source).tree()
    return Expression(source, tree, tuple(dict.fromkeys(_iter_names(tree))))


def _iter_names(node: Node) -> Iterator[str]:
    """Yield the columns a tree reads, from left to right, with repeats."""
    if isinstance(node, Name):
        yield node.name
    for operand in getattr(node, "operands", ()):
        yield from _iter_names(operand)


_FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _iter_conjuncts(node: Node) -> Iterator[tuple[str, str, Any]]:
    match node:
        case Operation("and", operands):
            for operand in operands:
                yield from _iter_conjuncts(operand)
        case Comparison(operators, operands):
            for operator, pair in zip(operators, pairwise(operands), strict=True):
                match pair:
                    case Name(name), Constant():
                        yield name, operator, _plain(pair[1])
                    case Constant(), Name(name):
                        yield name, _FLIPPED[operator], _plain(pair[0])
        case Operation("in", (Name(name), *constants)):
            yield name, "in", tuple(_plain(item) for item in constants if isinstance(item, Constant))
        case Operation("notnull", (Name(name),)):
            yield name, "notnull", None
        case Name(name):
            yield name, "==", True


def _plain(constant: Constant) -> Any:
    """Convert a constant for statistics: a whole float to an integer, which compares exactly with large integers."""
    value = constant.value
    if constant.dtype == "timestamp":
        return EPOCH + timedelta(microseconds=int(value))
    return int(value) if isinstance(value, float) and value.is_integer() else value
