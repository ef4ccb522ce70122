"""Type inference of expressions: operand and result dtypes of each operation and function."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from gpupipe.errors import nearest
from gpupipe.expressions.tree import Comparison, Constant, Name, Node, Operation, Source, has_offset, value_as
from gpupipe.schema import FLOATS, INTEGERS, LISTS, Schema, is_passenger, suggest_conversion
from gpupipe.support.text import derive
from gpupipe.support.time_zones import closest_zones, is_zone


@dataclass(frozen=True, slots=True)
class Function:
    """Signature of a function: its arguments' names, for messages, a kind of `_KINDS` or `any` for each, and a type.

    It gives a type of `schema.DTYPES`; `number` (int64, or the float it got), `float` (float32 if it got that, else
    float64), `common` (what holds the values of the arguments that are no condition) or `ordered` (the same, no text).
    `may_take` are kinds of further arguments.
    """

    arguments: str
    takes: tuple[str, ...]
    gives: str
    may_take: tuple[str, ...] = ()


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


_UNESCAPED = r"(?<!\\)(?:\\\\)*"
_UNKNOWN_TO_RE2 = (
    (_UNESCAPED + r"\(\?(?:=|!|<=|<!)", "it has no lookaround"),
    (_UNESCAPED + r"(?:\\[1-9]|\(\?P=)", "it has no backreferences"),
    (_UNESCAPED + r"\(\?[>(]", "it has no conditions and no atomic groups"),
)
_UNKNOWN_TO_PYTHON = r"\\[pP](?:\{\^?\w+\}|\w)"


def pattern_problem(pattern: str) -> str | None:
    """Return why RE2 would reject a pattern; None where it would not."""
    for unknown, problem in _UNKNOWN_TO_RE2:
        if re.search(unknown, pattern):
            return problem
    try:
        re.compile(re.sub(_UNKNOWN_TO_PYTHON, r"\\w", pattern))
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return None


_NUMBERS = (*INTEGERS, *FLOATS, "bool")
_KINDS: dict[str, tuple[Sequence[str], str]] = {
    "number": (_NUMBERS, "a number"),
    "condition": (("bool",), "a condition, true or false per row"),
    "text": (("string",), "text"),
    "text or list": (("string", *LISTS), "text or a list"),
    "constant text": (("string",), "a constant text"),
    "part": (("string",), "a constant text that is not empty"),
    "pattern": (("string",), "a constant text, a regular expression"),
    "zone": (("string",), "a time zone's name, such as 'America/New_York'"),
    "constant integer": (INTEGERS, "a constant integer"),
    "time": (("timestamp",), "a timestamp"),
    "plain": ((*INTEGERS, "bool", "string"), "an integer, a boolean or text"),
}
_CONSTANT_EXAMPLES = {
    **dict.fromkeys(("constant text", "part", "pattern"), "'text' in quotation marks"),
    "zone": "'America/New_York'",
    "constant integer": "0, a number written out",
}
_CONDITIONS = {"string": "== '...'", "timestamp": ">= '2013-10-01'"}
_LARGEST_FLOAT32 = 3.4028234663852886e38


def infer_dtype(node: Node, dtypes: Mapping[str, str], source: Source) -> str:
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
    return infer_operation(node, [infer_dtype(operand, dtypes, source) for operand in node.operands], source)


def find_zones(node: Node, schema: Schema, source: Source) -> dict[Node, str]:
    """Find the columns and the constants with an offset that a node takes its times from, each with its zone.

    Raise for times with a zone or an offset beside columns of times without a zone in one operation.
    """
    if isinstance(node, Name):
        return {node: schema[node.name].zone} if schema[node.name].dtype == "timestamp" else {}
    if isinstance(node, Constant):
        return {node: "an offset"} if node.has_offset or has_offset(node.value) else {}
    zones: dict[Node, str] = {}
    for operand in node.operands:
        zones |= find_zones(operand, schema, source)
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
    if node.name in FUNCTIONS:
        return _call(node, dtypes, source)
    return _arithmetic(node, dtypes, source)


def common_dtype(operands: Sequence[Node], dtypes: Sequence[str]) -> str | None:
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
    alike = all(dtype == family or _is_time(node, family) for node, dtype in zip(operands, dtypes, strict=True))
    return family if alike else None


def _arithmetic(node: Operation, dtypes: Sequence[str], source: Source) -> str:
    if node.name == "-" and set(dtypes) == {"timestamp"}:
        return "float64"
    _require(node, dtypes, ["number"] * len(dtypes), source)
    exponent = node.operands[-1]
    is_fraction = node.name == "**" and isinstance(exponent, Constant) and float(exponent.value) < 0
    if node.name == "/" or is_fraction or any(dtype in FLOATS for dtype in dtypes):
        return "float32" if common_dtype(node.operands, dtypes) == "float32" else "float64"
    _require_int64(node, source)
    return "int64"


def _call(node: Operation, dtypes: Sequence[str], source: Source) -> str:
    function = FUNCTIONS[node.name]
    _require(node, dtypes, (*function.takes, *function.may_take)[: len(dtypes)], source)
    match function.gives:
        case "float":
            return "float32" if dtypes[0] == "float32" else "float64"
        case "number":
            return dtypes[0] if dtypes[0] in FLOATS else "int64"
        case "common" | "ordered":
            first = sum(kind == "condition" for kind in function.takes)
            found = common_dtype(node.operands[first:], dtypes[first:])
            if found is None or (found == "string" and function.gives == "ordered"):
                pairs = zip(node.operands[first:], dtypes[first:], strict=True)
                given = " and ".join(f"{_titled(operand, source)} ({dtype})" for operand, dtype in pairs)
                alike = "values of one kind" if found is None else "numbers or timestamps"
                remedy = f"{node.name}({function.arguments}) with {alike}"
                raise source.error(node.span, f"`{node.name}` is given {given}", alike, remedy)
            if found == "int64":
                _require_int64(node, source)
            return found
    return function.gives


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
        taken, words = _KINDS[kind]
        if dtype not in taken or (kind in _CONSTANT_EXAMPLES and not isinstance(operand, Constant)):
            sign = "unary -" if node.name == "negative" else node.name
            problem = f"`{sign}` is given {_titled(operand, source)} ({dtype})"
            raise source.error(operand.span, problem, words, _remedy(kind, operand, dtype, source))
        text = str(operand.value) if isinstance(operand, Constant) else ""
        if kind == "zone" and not is_zone(text):
            near = " or ".join(map(repr, closest_zones(text)))
            remedy = near or "'UTC', or pip install tzdata where no zone is known"
            raise source.error(operand.span, "no time zone of this name", words, remedy, got=text)
        if kind == "part" and not text:
            raise source.error(operand.span, "the text is empty", "one character at least", "','")
        if kind == "pattern" and (wrong := pattern_problem(text)) is not None:
            raise source.error(operand.span, f"no regular expression of RE2 ({wrong})", words, "'[A-Z]+'")


def _require_alike(left: tuple[Node, str], right: tuple[Node, str], source: Source) -> None:
    """Raise unless two operands can be held against each other."""
    if common_dtype((left[0], right[0]), (left[1], right[1])) is not None:
        return
    culprit, remedy = right[0], "two values of one kind; Cast changes a column's type"
    for (node, dtype), (beside, other) in ((left, right), (right, left)):
        culprit = node if isinstance(node, Constant) else culprit
        if other in LISTS or is_passenger(other):
            remedy = _remedy("text" if dtype == "string" else "number", beside, other, source)
            break
        if isinstance(node, Constant):
            if other == "timestamp":
                remedy = "a time as text in ISO 8601: '2013-10-01 06:00'"
            elif dtype == "timestamp":
                remedy = _remedy("time", beside, other, source)
            elif other == "string":
                remedy = f"{str(node.value)!r}, with quotation marks"
            elif isinstance(node.value, str):
                remedy = _without_quotes(node.value)
    first, second = (f"{_titled(node, source)} ({dtype})" for node, dtype in (left, right))
    expected = "two numbers, two texts or two times"
    raise source.error(culprit.span, f"{first} is compared with {second}", expected, remedy)


def _titled(node: Node, source: Source) -> str:
    return f"column {node.name!r}" if isinstance(node, Name) else source.slice(node.span)


def _remedy(kind: str, operand: Node, dtype: str, source: Source) -> str:
    """Suggest what makes an operand one of that kind."""
    shown, is_text = source.slice(operand.span), kind in ("text", "text or list", "plain")
    if dtype in LISTS:
        return f"len({shown}) for how many elements it has"
    if is_passenger(dtype):
        assert isinstance(operand, Name)
        return suggest_conversion(operand.name, dtype, text=is_text)
    if kind in _CONSTANT_EXAMPLES:
        return _CONSTANT_EXAMPLES[kind]
    value = shown if isinstance(operand, Name) else f"({shown})"
    if kind == "condition":
        return f"{value} {_CONDITIONS.get(dtype, '!= 0')}"
    if isinstance(operand, Constant) and dtype != "timestamp":
        if kind == "time":
            return f"timestamp({shown if _is_time(operand, 'timestamp') else repr('2013-10-01 06:00')})"
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


def _fits(value: bool | float | str, dtype: str) -> bool:
    """Return whether a constant combines with a column without widening it; a float may be rounded to float32."""
    if dtype in FLOATS:
        return dtype == "float64" or abs(float(value)) <= _LARGEST_FLOAT32
    bits = int(dtype.lstrip("uint"))
    low = 0 if dtype.startswith("u") else -(1 << (bits - 1))
    return isinstance(value, int) and low <= value < low + (1 << bits)


def _is_time(node: Node, family: str) -> bool:
    """Return whether a node is text that is read as a time because the other operands are times."""
    if family != "timestamp" or not isinstance(node, Constant) or not isinstance(node.value, str):
        return False
    try:
        value_as(node, "timestamp")
    except ValueError:
        return False
    return True


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
