"""Types of an expression's parts, and the errors of those that do not go together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from gpupipe.expressions.functions import FUNCTIONS, KINDS, NUMBERS, OPERATORS, Function
from gpupipe.expressions.spellings import MISSING_WORDS, parenthesize, suggest_aggregate
from gpupipe.expressions.tree import Comparison, Constant, Name, Node, Null, Operation, Source, Value
from gpupipe.schema import FLOATS, LISTS, Schema, get_element_dtype, is_passenger, suggest_conversion, suggest_times
from gpupipe.support.text import parse_number, write_cast
from gpupipe.support.time_zones import closest_zones, is_zone
from gpupipe.support.times import has_offset, parse_microseconds
from gpupipe.support.validation import correct_duration, parse_duration_us

_VALUE_WORDS = (*MISSING_WORDS, "true", "false")
_KEEPING_TIMES = ("common", "ordered", "timestamp")
_CONDITIONS = {"string": "== '...'", "timestamp": ">= '2013-10-01'"}
_LARGEST_FLOAT32 = 3.4028234663852886e38


def infer_dtype(node: Node, dtypes: Mapping[str, str], source: Source) -> str:
    """Infer the dtype of a whole tree over columns of these dtypes."""
    if isinstance(node, Constant | Null):
        return node.dtype
    if isinstance(node, Name):
        word = node.name.lower()
        if node.name not in dtypes and word in _VALUE_WORDS:
            expected, remedy = "a column, or None for a missing value", "None"
            expected, remedy = (expected, remedy) if word in MISSING_WORDS else ("True or False", word.title())
            raise source.error(node.span, f"no column is called {node.name!r}", expected, remedy)
        if node.name not in dtypes:
            raise source.no_column(node.span, node.name, dtypes)
        return dtypes[node.name]
    constants = [operand for operand in node.operands if isinstance(operand, Constant)]
    if len(constants) == len(node.operands):
        _refuse_names(node, constants, dtypes, source)
    if isinstance(node, Comparison):
        names = {operand for operand in node.operands if isinstance(operand, Name) and operand.name not in dtypes}
        missing = {name for name in names if name.name.lower() in MISSING_WORDS}
        _refuse_unquoted(node, dtypes, source)
        return infer_comparison(
            node, ["null" if each in missing else infer_dtype(each, dtypes, source) for each in node.operands], source
        )
    return infer_operation(node, [infer_dtype(operand, dtypes, source) for operand in node.operands], source)[1]


def _refuse_names(node: Node, constants: Sequence[Constant], dtypes: Mapping[str, str], source: Source) -> None:
    """Raise for constants alone of which one is a column's name, such as 2010 - 1960 of columns of years."""
    is_sign = isinstance(node, Operation) and node.name == "negative"
    for constant in constants:
        name = constant.value if isinstance(constant.value, str) else source.slice(constant.span)
        if name in dtypes and (isinstance(node, Comparison) or name is not constant.value) and not is_sign:
            kind = "in quotation marks is a text" if name is constant.value else "in digits is a number"
            problem = f"a column's name {kind}, the same in every row"
            raise source.error(constant.span, problem, "a column", f"col({name!r})", got=constant.value)


def _refuse_unquoted(node: Comparison, dtypes: Mapping[str, str], source: Source) -> None:
    """Raise for a name of no column that is held against a column of text, as in `city == Paris`."""
    for operator, pair in zip(node.operators, pairwise(node.operands), strict=True):
        for name, other in (pair, pair[::-1]):
            if operator not in ("==", "!=") or not (isinstance(name, Name) and isinstance(other, Name)):
                continue
            is_word = source.slice(name.span) == name.name and name.name.lower() not in _VALUE_WORDS
            if is_word and name.name not in dtypes and dtypes.get(other.name) == "string":
                text = f"{source.text[: name.span.start]}{name.name!r}{source.text[name.span.end :]}"
                raise source.no_column(name.span, name.name, dtypes, text)


def find_zones(node: Node, schema: Schema, source: Source) -> dict[Node, str]:
    """Find the columns and constants with an offset that a node takes times from, with its zone; refuse a mixture."""
    if isinstance(node, Name):
        return {node: schema[node.name].zone} if schema[node.name].dtype == "timestamp" else {}
    if isinstance(node, Null):
        return {}
    if isinstance(node, Constant):
        return {node: "an offset"} if node.has_offset or has_offset(node.value) else {}
    zones: dict[Node, str] = {}
    for operand in node.operands:
        zones |= find_zones(operand, schema, source)
    if any(zones.values()) and not all(zones.values()):
        columns = [item.name for item in zones if isinstance(item, Name)]
        listing = " and ".join(f"{_titled(item, source)} ({zone or 'no time zone'})" for item, zone in zones.items())
        cast = f"T.Cast({dict.fromkeys(columns, 'int64')}) before, if both are UTC"
        remedy = cast if len(columns) == len(zones) else "the time without its offset"
        problem, remedy = f"times with a time zone beside times without: {listing}", f"{remedy}; else tz_localize"
        raise source.error(node.span, problem, "a zone on both sides, or on none", f"{remedy} of the frame")
    forms = FUNCTIONS.get(node.name, []) if isinstance(node, Operation) else []
    return zones if any(form.gives in _KEEPING_TIMES for form in forms) else {}


def infer_comparison(node: Comparison, dtypes: Sequence[str], source: Source) -> str:
    """Infer the result dtype of comparisons of operands of these dtypes."""
    pairs = pairwise(zip(node.operands, dtypes, strict=True))
    for operator, (left, right) in zip(node.operators, pairs, strict=True):
        _require_alike(left, right, source, operator)
    return "bool"


def infer_operation(node: Operation, dtypes: Sequence[str], source: Source) -> tuple[Function, str]:
    """Choose the form of an operation on operands of these dtypes, and infer the result's."""
    form, kinds = _choose_form(node, dtypes)
    _require(node, dtypes, kinds, source)
    if node.name == "in":
        first, *members = zip(node.operands, dtypes, strict=True)
        for member in members:
            _require_alike(first, member, source)
    element = get_element_dtype(dtypes[0]) or dtypes[0]
    if "element" in kinds:
        _require_alike((node.operands[0], element), (node.operands[1], dtypes[1]), source)
    match form.gives:
        case "arithmetic":
            return form, _infer_arithmetic(node, dtypes, source)
        case "float":
            return form, "float32" if element == "float32" else "float64"
        case "number":
            return form, element if element in FLOATS else "int64"
        case "element":
            return form, element
        case "common" | "ordered":
            return form, _infer_common(form, node, dtypes, source)
    return form, form.gives


def _choose_form(node: Operation, dtypes: Sequence[str]) -> tuple[Function, tuple[str, ...]]:
    """Choose the form that takes these types, else the one that takes the most of them from the left; and its kinds."""
    forms = OPERATORS.get(node.name) or FUNCTIONS[node.name]
    candidates = [(form, kinds) for form in forms if (kinds := form.list_kinds(len(dtypes))) is not None]

    def count_accepted(candidate: tuple[Function, tuple[str, ...]]) -> int:
        pairs = zip(candidate[1], dtypes, strict=True)
        accepted = [not KINDS[kind].dtypes or dtype in KINDS[kind].dtypes for kind, dtype in pairs]
        return [*accepted, False].index(False)

    return max(candidates, key=count_accepted)


def _infer_arithmetic(node: Operation, dtypes: Sequence[str], source: Source) -> str:
    exponent = node.operands[-1]
    is_fraction = node.name == "**" and isinstance(exponent, Constant) and float(exponent.value) < 0
    if node.name == "/" or is_fraction or any(dtype in FLOATS for dtype in dtypes):
        return "float32" if _common_dtype(node.operands, dtypes) == "float32" else "float64"
    _require_int64(node, source)
    return "int64"


def _infer_common(form: Function, node: Operation, dtypes: Sequence[str], source: Source) -> str:
    first = sum(kind == "condition" for kind in form.takes)
    operands, dtypes = node.operands[first:], dtypes[first:]
    common = _common_dtype(operands, dtypes)
    if common is None or (common == "string" and form.gives == "ordered"):
        pairs = zip(operands, dtypes, strict=True)
        titles = " and ".join(f"{_titled(operand, source)} ({dtype})" for operand, dtype in pairs)
        alike = "values of one kind" if common is None else "numbers or timestamps"
        remedy = f"{node.name}({form.arguments}) with {alike}"
        raise source.error(node.span, f"`{node.name}` is given {titles}", alike, remedy)
    if common == "int64":
        _require_int64(node, source)
    return common


def _common_dtype(operands: Sequence[Node], dtypes: Sequence[str]) -> str | None:
    """Return the dtype that holds the values of all operands; None if there is none. Constants adapt where possible."""
    operands = [node for node in operands if not isinstance(node, Null)]
    dtypes = [dtype for dtype in dtypes if dtype != "null"]
    if not dtypes:
        return None
    if all(dtype == "bool" for dtype in dtypes):
        return "bool"
    if all(dtype in NUMBERS for dtype in dtypes):
        columns = {dtype for node, dtype in zip(operands, dtypes, strict=True) if not isinstance(node, Constant)}
        constants = [node.value for node in operands if isinstance(node, Constant)]
        if len(columns) == 1 and columns != {"bool"} and all(_fits(value, *columns) for value in constants):
            return columns.pop()
        return "float64" if any(dtype in FLOATS for dtype in dtypes) else "int64"
    family = "timestamp" if "timestamp" in dtypes else "string"
    as_times = [family == "timestamp" and is_time(node) for node in operands]
    return family if all(dtype == family or fits for dtype, fits in zip(dtypes, as_times, strict=True)) else None


def _fits(value: Value, dtype: str) -> bool:
    """Return whether a constant combines with a column without widening it; a float may be rounded to float32."""
    if dtype in FLOATS:
        return dtype == "float64" or abs(float(value)) <= _LARGEST_FLOAT32
    bits = int(dtype.lstrip("uint"))
    low = 0 if dtype.startswith("u") else -(1 << (bits - 1))
    return isinstance(value, int) and low <= value < low + (1 << bits)


def is_time(node: Node) -> bool:
    """Return whether a node is text that is read as a time beside times."""
    if not isinstance(node, Constant) or not isinstance(node.value, str):
        return False
    try:
        parse_microseconds(node.value)
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
    takes_null = node.name == "where"
    for position, (operand, dtype, name) in enumerate(zip(node.operands, dtypes, kinds, strict=True)):
        kind, sign = KINDS[name], "unary -" if node.name == "negative" else node.name
        if isinstance(operand, Null) and not (takes_null and name == "any"):
            remedy = "where(condition, x, None), isnull(x) or notnull(x)"
            raise source.error(operand.span, f"`{sign}` is given None", kind.words, remedy)
        if (kind.dtypes and dtype not in kind.dtypes) or (kind.example and not isinstance(operand, Constant)):
            problem = f"`{sign}` is given {_titled(operand, source)} ({dtype})"
            expected = kind.words if position else _describe_first_kinds(node)
            if name == "condition":
                remedy = _test_operands(node, position, dtypes, kinds, source)
            elif isinstance(operand, Name) and name.startswith("list of") and dtype in (*NUMBERS, "timestamp"):
                remedy = _suggest_rows(node, operand.name, source)
            elif (shift := _suggest_shift(node, dtypes, source)) is not None:
                is_column = isinstance(operand, Name)  # which may hold times as numbers, or may be meant as one
                remedy = shift + (f"; {_suggest_operand(name, operand, dtype, source)}" if is_column else "")
            else:
                remedy = _suggest_arguments(node, dtypes, source) or _suggest_operand(name, operand, dtype, source)
                if node.name == "-" and dtype == "string" and isinstance(operand, Name):
                    remedy += f"; of dates {suggest_times(operand.name, dtype)}"
            raise source.error(operand.span, problem, expected, remedy)
        text = str(operand.value) if isinstance(operand, Constant) else ""
        if name == "zone" and not is_zone(text):
            near = " or ".join(map(repr, closest_zones(text)))
            remedy = near or "'UTC', or pip install tzdata where no zone is known"
            raise source.error(operand.span, "no time zone of this name", kind.words, remedy, got=text)
        if name == "length" and parse_duration_us(text) is None:
            remedy = f"{correct_duration(text)!r}; for a month year(time) * 12 + month(time)"
            raise source.error(operand.span, "no length of time", kind.words, remedy, got=text)
        if name == "part" and not text:
            raise source.error(operand.span, "the text is empty", "one character at least", "','")
        if name == "pattern" and (wrong := _find_pattern_problem(text)) is not None:
            raise source.error(operand.span, f"no regular expression of RE2 ({wrong})", kind.words, "'[A-Z]+'")


def _test_operands(node: Operation, position: int, dtypes: Sequence[str], kinds: Sequence[str], source: Source) -> str:
    """Write the whole text with a test in place of each operand that is no condition; else what a constant lacks."""
    text = source.text
    if isinstance(node.operands[position], Constant):
        return f"a comparison, such as x == {source.slice(node.operands[position].span)}"
    for operand, dtype, kind in reversed([*zip(node.operands, dtypes, kinds, strict=True)]):
        if kind == "condition" and dtype != "bool" and not isinstance(operand, Constant | Null):
            start, end = operand.span
            value = text[start:end] if isinstance(operand, Name) else f"({text[start:end]})"
            text = f"{text[:start]}{value} {_CONDITIONS.get(dtype, '!= 0')}{text[end:]}"
    return text


def _suggest_rows(node: Operation, column: str, source: Source) -> str:
    """Suggest what aggregates the rows of a column, where a function of lists is called."""
    before, after = source.text[: node.span.start], source.text[node.span.end :]
    of_two = f"; {node.name}imum(x, y) of two numbers" if node.name in ("min", "max") else ""
    return suggest_aggregate(node.name, column, before, after) + of_two


def _suggest_shift(node: Operation, dtypes: Sequence[str], source: Source) -> str | None:
    """Suggest the steps that shift a time by seconds, or the time that a column is subtracted from; None elsewhere."""
    sides = [*zip(node.operands, dtypes, strict=True)]
    if node.name == "-" and is_time(node.operands[0]) and dtypes[1] == "timestamp":
        return f"timestamp({source.slice(node.operands[0].span)})"
    if node.name == "+":
        sides.sort(key=lambda side: side[1] != "timestamp")
    if node.name not in ("+", "-") or sides[0][1] != "timestamp" or sides[1][1] not in NUMBERS:
        return None
    time, number = (parenthesize(source.slice(operand.span)) for operand, _ in sides)
    microseconds = f"int(round(({time} - timestamp('1970-01-01') {node.name} {number}) * 1000000))"
    return f"{write_cast('made', 'timestamp', microseconds)} before, where the number counts seconds (86400 a day)"


def _suggest_arguments(node: Operation, dtypes: Sequence[str], source: Source) -> str | None:
    """Suggest the call of a form that takes these types and lacks the rest, as `floor` of a time; None without one."""
    arguments = [source.slice(operand.span) for operand in node.operands]
    for form in FUNCTIONS.get(node.name, ()):
        pairs, kinds = zip(dtypes, form.takes, strict=False), form.takes[len(dtypes) : form.least]
        if kinds and all(dtype in KINDS[kind].dtypes for dtype, kind in pairs):
            return f"{node.name}({', '.join([*arguments, *(KINDS[kind].example for kind in kinds)])})"
    return None


def _describe_first_kinds(node: Operation) -> str:
    """Describe the kinds of the first argument in all forms with so many arguments."""
    forms = OPERATORS.get(node.name) or FUNCTIONS[node.name]
    kinds = [form.list_kinds(len(node.operands)) for form in forms]
    return " or ".join(dict.fromkeys(KINDS[names[0]].words for names in kinds if names))


def _require_alike(left: tuple[Node, str], right: tuple[Node, str], source: Source, operator: str = "==") -> None:
    """Raise unless two operands can be held against each other."""
    for (side, dtype), (other_side, _) in ((left, right), (right, left)):
        if dtype == "null":
            remedy = f"{'notnull' if operator == '!=' else 'isnull'}({source.slice(other_side.span)})"
            problem = "None is compared, and nothing is equal to it"
            raise source.error(side.span, problem, "a test for missing values", remedy)
    if _common_dtype((left[0], right[0]), (left[1], right[1])) is not None:
        return
    culprit, remedy = right[0], "two values of one kind; Cast changes a column's type"
    for operand, other in ((right, left), (left, right)):
        if suggestion := _suggest_side(*operand, *other, source, operator):
            culprit, remedy = operand[0], suggestion
            break
    first, second = (f"{_titled(node, source)} ({dtype})" for node, dtype in (left, right))
    expected = "two numbers, two texts or two times"
    raise source.error(culprit.span, f"{first} is compared with {second}", expected, remedy)


def _suggest_side(node: Node, dtype: str, beside: Node, other: str, source: Source, operator: str) -> str | None:
    """Suggest what makes one side of a comparison, or the one `beside` it, such that they can be compared."""
    text, is_equality, element = source.slice(node.span), operator in ("==", "!="), get_element_dtype(other)
    if is_equality and element is not None and _common_dtype((beside, node), (element, dtype)) is not None:
        return f"{'not ' if operator == '!=' else ''}contains({source.slice(beside.span)}, {text})"
    if other in LISTS or is_passenger(other):
        return _suggest_operand("text" if dtype == "string" else "number", beside, other, source)
    if other == "timestamp" and is_time(Constant(text, "string", node.span)):
        return f"{text!r}, with quotation marks"
    if not isinstance(node, Constant):
        return None
    if other == "timestamp":
        return "a time as text in ISO 8601: '2013-10-01 06:00'"
    if dtype == "timestamp":
        return _suggest_operand("time", beside, other, source)
    if other == "string" and is_equality:
        return f"{str(node.value)!r}, with quotation marks"
    if other == "string":
        condition = f"{source.slice(beside.span)} {_CONDITIONS[other]}"
        return f"{condition}, one of its texts; or {_cast(beside, source, 'float64')}, where these are numbers"
    if other == "bool":
        word = str(node.value).capitalize()
        return f"{word}, without quotation marks" if word in ("True", "False") else "True or False"
    return _without_quotes(node.value) if isinstance(node.value, str) else None


def _titled(node: Node, source: Source) -> str:
    return f"column {node.name!r}" if isinstance(node, Name) else source.slice(node.span)


def _suggest_operand(kind: str, operand: Node, dtype: str, source: Source) -> str:
    """Suggest what makes an operand one of that kind."""
    text, is_text = source.slice(operand.span), kind in ("text", "plain")
    if dtype in LISTS:
        elements = "; pre.ListSlice(0, 2) among the steps of Features for the first two" if kind == "text" else ""
        return f"len({text}) for how many elements it has{elements}"
    if kind.startswith("list"):
        of_rows = "data.group_by('key').agg(...) or a window such as T.Rolling, of rows"
        of_numbers = of_rows if kind == "list of numbers" else f"minimum(x, y) and maximum(x, y) of numbers, {of_rows}"
        return f"split({text}, ',')" if dtype == "string" else of_numbers
    if is_passenger(dtype):
        assert isinstance(operand, Name)
        return suggest_conversion(operand.name, dtype, text=is_text)
    if example := KINDS[kind].example:
        return example
    value = text if isinstance(operand, Name) else f"({text})"
    if isinstance(operand, Constant) and dtype != "timestamp":
        if kind == "time":
            return f"timestamp({text if is_time(operand) else repr('2013-10-01 06:00')})"
        return repr(str(operand.value)) if is_text else _without_quotes(str(operand.value))
    if kind == "number":
        if dtype == "timestamp":
            return f"hour({text}), or {value} - timestamp('2013-10-01') for seconds"
        return f"len({text}), or {_cast(operand, source, 'float64')}"
    if kind == "time":
        name, expression = _name_values(operand, source)
        return suggest_times(name, dtype, expression)
    if kind == "plain" and dtype in FLOATS:
        return f"string(int({text}))"
    return _cast(operand, source, "string") if dtype in ("timestamp", *FLOATS) else f"string({text})"


def _cast(operand: Node, source: Source, dtype: str) -> str:
    """Write the steps that cast an operand."""
    name, expression = _name_values(operand, source)
    return f"{write_cast(name, dtype, expression)} before"


def _name_values(operand: Node, source: Source) -> tuple[str, str]:
    """Name the column of an operand's values; and the expression that makes them, which a column's name is not."""
    return (operand.name, "") if isinstance(operand, Name) else ("made", source.slice(operand.span))


def _without_quotes(text: str) -> str:
    """Suggest the number that a text spells."""
    number = parse_number(text)
    return "a number" if number is None else f"{number}, without quotation marks"


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
