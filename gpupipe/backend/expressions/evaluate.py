"""Values of expressions over columns: comparisons, arithmetic and strings, with missing values as in SQL."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import and_, or_
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.cast import cast_column
from gpupipe.backend.columns import Array, Backend, Column, gather
from gpupipe.backend.dictionaries import find_positions, strings, unite_dictionaries
from gpupipe.backend.expressions.dates import date_parts, local_time
from gpupipe.errors import BadData, ExpressionError
from gpupipe.expressions import (
    DATE_FLAGS,
    DATE_PARTS,
    FUNCTIONS,
    Comparison,
    Constant,
    Expression,
    Name,
    Node,
    Operation,
    infer_operation,
    value_as,
)
from gpupipe.schema import FLOATS


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """Truth value of a condition per row: booleans where it is known to hold, and where not (None: everywhere else).

    With two arrays each of and, or, not is a single pass over each; an array and a mask would need three.
    """

    true: Array
    false: Array | None = None

    dtype = "bool"

    @classmethod
    def from_valid(cls, true: Array, valid: Array | None) -> Truth:
        """Build from booleans and a validity mask; missing where not `valid`."""
        if valid is None:
            return cls(true)
        true = true & valid
        return cls(true, true ^ valid)

    def column(self) -> Column:
        """Convert to a boolean column."""
        return Column("bool", self.true, None if self.false is None else self.true | self.false)

    def __and__(self, other: Truth) -> Truth:
        if self.false is None and other.false is None:
            return Truth(self.true & other.true)
        return Truth(self.true & other.true, self._not_true() | other._not_true())

    def __or__(self, other: Truth) -> Truth:
        if self.false is None and other.false is None:
            return Truth(self.true | other.true)
        return Truth(self.true | other.true, self._not_true() & other._not_true())

    def __invert__(self) -> Truth:
        return Truth(self._not_true(), None if self.false is None else self.true)

    def _not_true(self) -> Array:
        return ~self.true if self.false is None else self.false


_UFUNCS = {"==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_UFUNCS |= {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "//": "floor_divide", "%": "remainder"}
_UFUNCS |= {"**": "power", "minimum": "minimum", "maximum": "maximum", "round": "rint"}
_REWRITE: dict[str, Callable[..., Any]] = {
    "lower": lambda texts: _change_case(texts, pc.utf8_lower, str.lower),
    "upper": lambda texts: _change_case(texts, pc.utf8_upper, str.upper),
    "strip": pc.utf8_trim_whitespace,
    "extract": lambda texts, pattern: pc.struct_field(pc.extract_regex(texts, _one_group(pattern)), "part"),
    "split": lambda texts, separator, part: _part(pc.split_pattern(texts, separator), part),
    "slice": pc.utf8_slice_codeunits,
    "replace": pc.replace_substring,
    "sub": pc.replace_substring_regex,
}
_MATCH: dict[str, Callable[..., Any]] = {"contains": pc.match_substring, "search": pc.match_substring_regex}
_MATCH |= {"startswith": pc.starts_with, "endswith": pc.ends_with}
_GROUPS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?P<\w+>|(?!\?))", re.DOTALL)  # and what has no group in it


def _compare_texts(operator: str, left: Column, right: Column | Constant, backend: Backend) -> Truth:
    """Compare strings per row, in the order of code points; the distinct ones are compared on the host."""
    if isinstance(right, Constant):
        held = getattr(pc, _UFUNCS[operator])(left.dictionary, pa.scalar(right.value, pa.large_string()))
        return _gather_result(left, held, backend)
    texts = unite_dictionaries([left.dictionary, right.dictionary])
    ranks = pc.rank(texts).to_numpy().astype("int32")
    places = [(column, ranks[find_positions(column.dictionary, texts)]) for column in (left, right)]
    a, b = (gather(column, place, -1, backend) for column, place in places)
    return Truth.from_valid(_compare_alike(operator, a, b, backend.xp), (a >= 0) & (b >= 0))


def _change_case(texts: pa.Array, of_ascii: Callable[..., Any], of_any: Callable[[str], str]) -> pa.Array:
    """Change case as Python does: Arrow maps each character to one, but Unicode maps `ß` to `SS`."""
    made, other = of_ascii(texts), pc.invert(pc.string_is_ascii(texts))
    if not pc.any(other).as_py():
        return made
    return pc.replace_with_mask(made, other, strings([of_any(text) for text in texts.filter(other).to_pylist()]))


def _one_group(pattern: str) -> str:
    """Name the first group of a pattern `part`, and drop all others; without a group name all of it."""
    openings = [found for found in _GROUPS.finditer(pattern) if found.group().startswith("(")]
    if not openings:
        return f"(?P<part>{pattern})"
    made, end = "", 0
    for number, found in enumerate(openings):
        made += pattern[end : found.start()] + ("(?:" if number else "(?P<part>")
        end = found.end()
    return made + pattern[end:]


def _part(lists: pa.Array, number: int) -> pa.Array:
    """Take one item of each list, counted from the end if `number` is negative; null if there is none."""
    starts, ends = lists.offsets.to_numpy()[:-1], lists.offsets.to_numpy()[1:]
    place = (starts if number >= 0 else ends) + number
    return lists.values.take(pa.array(place, mask=(place < starts) | (place >= ends)))


def replace_texts(
    column: Column, olds: Sequence[str], news: Sequence[str | None], fill: str | None, backend: Backend
) -> Column:
    """Replace whole strings `olds` by `news`, all at once, and missing ones by `fill`; None is missing."""
    place = pc.index_in(column.dictionary, value_set=strings(olds))
    texts = pc.if_else(pc.is_valid(place), strings(news).take(place), column.dictionary)
    encoded = pa.concat_arrays([texts, strings([fill])]).dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy().astype("int32")  # the last one is that of missing values
    return Column("string", backend.to_device(codes)[column.data], None, encoded.dictionary)


def _pick_text(condition: Truth, yes: Column | Constant, no: Column | Constant, backend: Backend) -> Column:
    """Select `yes` where the condition is true, `no` where it is false, missing elsewhere."""
    own = [strings([str(side.value)]) if isinstance(side, Constant) else side.dictionary for side in (yes, no)]
    texts = unite_dictionaries(own)
    places = [find_positions(dictionary, texts).astype("int32") for dictionary in own]
    sides = zip((yes, no), places, strict=True)
    codes = [at[0] if isinstance(side, Constant) else gather(side, at, -1, backend) for side, at in sides]
    found, known = backend.xp.where(condition.true, *codes), condition.column().valid
    return Column("string", found if known is None else backend.xp.where(known, found, np.int32(-1)), None, texts)


def _gather_result(column: Column, outcome: pa.Array, backend: Backend) -> Truth:
    """Gather a condition's result per entry of the dictionary for each row."""
    true = gather(column, outcome.to_numpy(zero_copy_only=False).astype(bool), False, backend)
    return Truth(true, true ^ (column.data >= 0))


def as_numbers(operand: Column | Constant, dtype: str, xp: ModuleType) -> tuple[Array, Array | None]:
    """Convert to values of `dtype` (a scalar for a constant) and their validity; a missing float is NaN, no mask."""
    stored = "int64" if dtype == "timestamp" else dtype
    if isinstance(operand, Constant):
        return np.dtype(stored).type(value_as(operand, dtype)), None
    if stored == "int64" and operand.dtype == "uint64":
        _refuse_where(operand.data > np.uint64(2**63 - 1), operand.valid, xp)
    data = operand.data.astype(stored, copy=False)
    if dtype in FLOATS and operand.valid is not None:
        return xp.where(operand.valid, data, data.dtype.type(np.nan)), None
    return data, operand.valid


def both_valid(left: Array | None, right: Array | None) -> Array | None:
    """Combine two validity masks by and; None means that all are valid."""
    if left is None or right is None:
        return right if left is None else left
    return left & right


def compute(sign: str, left: Column | Constant, right: Column | Constant, dtype: str, xp: ModuleType) -> Column:
    """Compute one of + - * / // % ** minimum maximum as `dtype`; OverflowError has the first row beyond int64."""
    is_natural = dtype == "int64" and sign in ("//", "%") and _is_natural(left) and _is_natural(right)
    wide, ufunc = "uint64" if is_natural else dtype, getattr(xp, _UFUNCS[sign])
    (a, a_valid), (b, b_valid) = as_numbers(left, wide, xp), as_numbers(right, wide, xp)
    valid = both_valid(a_valid, b_valid)
    if sign not in ("//", "%", "**"):
        made = Column(dtype, ufunc(a, b), valid)
    elif dtype in FLOATS:
        return Column(dtype, _power(a, b, xp) if sign == "**" else _divide(sign, a, b, xp))
    else:
        made = _compute_integers(sign, a, b, valid, xp)
        if is_natural:
            return Column(dtype, *as_numbers(replace(made, dtype=wide), dtype, xp))
    if dtype == "int64" and sign not in ("%", "minimum", "maximum"):
        _refuse_wrapped(made, ufunc(xp.asarray(a, dtype="float64"), xp.asarray(b, dtype="float64")), xp)
    return made


def _is_natural(operand: Column | Constant) -> bool:
    """Return whether the type or a constant proves that an operand is not negative."""
    return operand.dtype.startswith("u") or (isinstance(operand, Constant) and float(operand.value) >= 0)


def _refuse_wrapped(made: Column, near: Array, xp: ModuleType) -> None:
    """Raise OverflowError where integers have wrapped: they differ from the float64 result by about 2**64."""
    _refuse_where(xp.abs(near - made.data) > 2.0**62, made.valid, xp)


def _refuse_where(bad: Array, valid: Array | None, xp: ModuleType) -> None:
    bad = xp.atleast_1d(bad if valid is None else bad & valid)
    if bool(bad.any()):
        raise OverflowError(int(bad.argmax()))


def _power(a: Any, b: Any, xp: ModuleType) -> Array:
    data = xp.power(a, b)
    for operand in (a, b):
        if not isinstance(operand, np.generic):  # 1 to any power and anything to the power of 0 are 1, even NaN
            data = xp.where(xp.isnan(operand), data.dtype.type(np.nan), data)
    return data


def _divide(sign: str, a: Any, b: Any, xp: ModuleType) -> Array:
    """Compute Python's // and %, NaN for a divisor of 0.

    Source: `float_divmod` of CPython's Objects/floatobject.c. fmod is exact, so both backends find the same whole part.
    """
    rest = xp.fmod(a, b)
    other_side = (rest != 0) & ((rest < 0) != (b < 0))
    if sign == "%":
        return xp.where(other_side, rest + b, xp.where(rest == 0, xp.copysign(rest, b), rest))
    quotient = (a - rest) / b - other_side
    whole = xp.floor(quotient)
    whole = whole + (quotient - whole > 0.5)
    return xp.where(quotient == 0, xp.copysign(xp.zeros_like(whole), a / b), whole)


def _compute_integers(sign: str, a: Any, b: Any, valid: Array | None, xp: ModuleType) -> Column:
    """Compute // % ** of integers, missing where the divisor is 0 or the exponent negative."""
    refused = b < 0 if sign == "**" else b == 0
    if not isinstance(b, np.generic):
        b, valid = xp.where(refused, b.dtype.type(1), b), both_valid(valid, ~refused)
    elif refused:
        return Column("int64", a, xp.zeros(a.shape, dtype=bool))
    return Column("int64", getattr(xp, _UFUNCS[sign])(a, b), valid)


def apply_function(name: str, column: Column, dtype: str, xp: ModuleType) -> Column:
    """Apply a function of one number, in and as `dtype`; missing where undefined; OverflowError as in `compute`."""
    data, valid = as_numbers(column, dtype, xp)
    if name in ("ceil", "floor", "round") and dtype not in FLOATS:
        return Column(dtype, data, valid)
    ufunc = getattr(xp, _UFUNCS.get(name, name))
    made = Column(dtype, ufunc(data), valid)
    if dtype not in FLOATS:
        _refuse_wrapped(made, ufunc(data.astype("float64")), xp)
    return made


def seconds_between(later: Column | Constant, earlier: Column | Constant, xp: ModuleType) -> Column:
    """Compute the seconds from one time to another, float64."""
    (a, a_valid), (b, b_valid) = as_numbers(later, "timestamp", xp), as_numbers(earlier, "timestamp", xp)
    valid = both_valid(a_valid, b_valid)
    seconds = xp.subtract(a, b) / np.float64(1e6)
    return Column("float64", seconds if valid is None else xp.where(valid, seconds, np.float64(np.nan)))


def _pick_number(condition: Truth, yes: Column | Constant, no: Column | Constant, dtype: str, xp: ModuleType) -> Column:
    """Select `yes` where the condition is true, `no` where it is false, missing elsewhere; as `dtype`."""
    (a, a_valid), (b, b_valid) = as_numbers(yes, dtype, xp), as_numbers(no, dtype, xp)
    data, valid = xp.where(condition.true, a, b), condition.column().valid
    if dtype in FLOATS:
        return Column(dtype, data if valid is None else xp.where(valid, data, data.dtype.type(np.nan)))
    if a_valid is not None or b_valid is not None:
        sides = (True if side is None else side for side in (a_valid, b_valid))
        valid = both_valid(xp.where(condition.true, *sides), valid)
    return Column(dtype, data, valid)


_INVERSE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# The comparison with the nearest value of the column's type, where that is above or below the constant.
_WITH_ABOVE = {"<": "<", "<=": "<", ">": ">=", ">=": ">="}
_WITH_BELOW = {"<": "<=", "<=": "<=", ">": ">", ">=": ">"}


def compare(operator: str, left: Column | Constant, right: Column | Constant, backend: Backend) -> Truth:
    """Compare `left` with `right` per row; one of them is a column."""
    if isinstance(left, Constant):
        assert isinstance(right, Column)
        left, right, operator = right, left, _FLIPPED[operator]
    if left.dtype == "string":
        return _compare_texts(operator, left, right, backend)
    if isinstance(right, Constant):
        return _compare_constant(operator, left, right, backend.xp)
    return _compare_columns(operator, left, right, backend.xp)


def _compare_constant(operator: str, column: Column, constant: Constant, xp: ModuleType) -> Truth:
    value, near = _find_nearest(column, constant)
    if near.item() != value:
        if operator in ("==", "!="):
            return Truth.from_valid(xp.full(len(column), operator == "!=", dtype=bool), column.present(xp))
        operator = (_WITH_ABOVE if near.item() > value else _WITH_BELOW)[operator]
    if column.dtype in FLOATS:
        return _compare_floats(operator, column.data, near, xp)
    return Truth.from_valid(_compare_alike(operator, column.data, near, xp), column.valid)


def _find_nearest(column: Column, constant: Constant) -> tuple[Any, Any]:
    """Return the number to compare, and a NumPy scalar of the column's type with no other value between the two."""
    value: Any = value_as(constant, column.dtype if column.dtype == "timestamp" else constant.dtype)
    dtype = column.data.dtype
    if dtype.name == "bool":
        return value, np.bool_(value >= 1)
    if dtype.name in FLOATS:
        with np.errstate(over="ignore"):  # beyond float32 is infinity
            return value, dtype.type(value)
    info = np.iinfo(dtype)
    return value, dtype.type(min(max(math.floor(value), info.min), info.max))


def _compare_columns(operator: str, left: Column, right: Column, xp: ModuleType) -> Truth:
    if left.dtype in FLOATS or right.dtype in FLOATS:
        dtype = "float32" if left.dtype == right.dtype == "float32" else "float64"
        return _compare_floats(operator, as_numbers(left, dtype, xp)[0], as_numbers(right, dtype, xp)[0], xp)
    if right.dtype == "uint64":
        left, right, operator = right, left, _FLIPPED[operator]
    is_mixed = left.dtype == "uint64" and right.data.dtype.kind == "i"
    held = _compare_unsigned if is_mixed else _compare_alike
    return Truth.from_valid(held(operator, left.data, right.data, xp), both_valid(left.valid, right.valid))


def _compare_floats(operator: str, left: Array, right: Any, xp: ModuleType) -> Truth:
    """Compare floats; with NaN on a side a comparison and its inverse are false, `!=` included."""

    def holds(sign: str) -> Array:
        if sign == "!=":
            return xp.less(left, right) | xp.greater(left, right)
        return _compare_alike(sign, left, right, xp)

    return Truth(holds(operator), holds(_INVERSE[operator]))


def _compare_alike(operator: str, left: Array, right: Any, xp: ModuleType) -> Array:
    return getattr(xp, _UFUNCS[operator])(left, right)


def _compare_unsigned(operator: str, left: Array, right: Array, xp: ModuleType) -> Array:
    """Compare uint64 with signed integers, which have no common integer type: a negative one is less than all."""
    negative = right < 0
    found = _compare_alike(operator, left, right.astype("uint64"), xp)
    return found | negative if operator in (">", ">=", "!=") else found & ~negative


_Value: TypeAlias = Column | Constant | Truth


def evaluate(expression: Expression, columns: Mapping[str, Column], backend: Backend, num_rows: int) -> Column:
    """Evaluate an expression per row, to the type that `expression.check` returns.

    A result of integers that does not fit int64 is `BadData`. A plain column is shared. Distinct strings, and distinct
    integers that become text, go through the host.
    """
    rows = _Rows(expression, columns, backend, num_rows)
    with np.errstate(all="ignore"):  # 1 / 0 is inf, log(-1) is missing
        return rows.column(rows.value(expression.tree))


def truth(column: Column, xp: ModuleType) -> Array:
    """Return n booleans, True where a condition is true, and False where it is false or missing."""
    return column.data if column.valid is None else xp.logical_and(column.data, column.valid)


class _Rows:
    """Evaluation context: the columns and rows of one expression."""

    def __init__(self, expression: Expression, columns: Mapping[str, Column], backend: Backend, num_rows: int) -> None:
        self.backend, self.xp = backend, backend.xp
        self.source, self._columns, self._num_rows = expression.source, columns, num_rows

    def value(self, node: Node) -> _Value:
        """Evaluate a node; a constant is not repeated per row."""
        if isinstance(node, Constant):
            return node
        if isinstance(node, Name):
            if node.name not in self._columns:
                raise self.source.no_column(node.span, node.name, self._columns)
            return self._columns[node.name]
        values = [self.value(operand) for operand in node.operands]
        dtype = infer_operation(node, [value.dtype for value in values], self.source)
        if isinstance(node, Comparison):
            pairs = zip(node.operators, map(self._ensure_column, pairwise(values)), strict=True)
            return reduce(and_, (compare(sign, left, right, self.backend) for sign, (left, right) in pairs))
        call = _Call(node.name, self._ensure_column(values), dtype, self)
        try:
            return _OPERATIONS[node.name](call)
        except OverflowError as cause:
            raise self._make_overflow_error(node, call, cause.args[0]) from None

    def _make_overflow_error(self, node: Operation, call: _Call, row: int) -> BadData:
        """Create the error for a row whose result, or an operand, is out of range of int64."""
        values = [
            one.value if isinstance(one, Constant) else self.backend.to_host(one.data[row : row + 1])[0].item()
            for one in call.values
        ]
        slice_of = self.source.slice
        pairs = zip(node.operands, call.values, strict=True)
        first = next(slice_of(part.span) for part, value in pairs if value.dtype not in ("bool", "string"))
        shown = slice_of(node.span)
        remedy = f"float({first}) in place of {shown if node.name == 'int' else first}, which gives float64"
        problem, expected = f"row {row:,}: `{shown}` does not fit int64", "integers from -2**63 to 2**63 - 1"
        got = values[0] if len(values) == 1 else tuple(values)
        error = BadData(self.source.where, problem, got=got, expected=expected, remedy=remedy)
        error.row = row
        return error

    def column(self, value: _Value, dtype: str | None = None) -> Column:
        """Convert a value to a column; `dtype` is the type for a constant, by default its own."""
        if isinstance(value, Truth):
            return value.column()
        if isinstance(value, Column):
            return value
        dtype = dtype or value.dtype
        if dtype == "string":
            return Column(dtype, self.xp.zeros(self._num_rows, dtype="int32"), None, strings([str(value.value)]))
        scalar, _ = as_numbers(value, dtype, self.xp)
        return Column(dtype, self.xp.full(self._num_rows, scalar, dtype=scalar.dtype))

    def truth(self, value: _Value) -> Truth:
        """Convert a condition's value to `Truth`."""
        if isinstance(value, Truth):
            return value
        column = self.column(value)
        return Truth.from_valid(column.data, column.valid)

    def _ensure_column(self, values: Sequence[_Value]) -> list[Column | Constant]:
        """Convert operands so that at least one is a column; text compared with times is a time."""
        found = [value if isinstance(value, Constant) else self.column(value) for value in values]
        if all(isinstance(value, Constant) for value in found):
            is_time = found[0].dtype == "string" and any(value.dtype == "timestamp" for value in found)
            found[0] = self.column(found[0], "timestamp" if is_time else None)
        return found


@dataclass(frozen=True, slots=True)
class _Call:
    """Call of an operation on values, at least one of them a column, and the type of its result."""

    name: str
    values: Sequence[Column | Constant]
    dtype: str
    rows: _Rows

    @property
    def first(self) -> Column:
        return self.rows.column(self.values[0])

    @property
    def constants(self) -> list[Constant]:
        """Those behind the first value."""
        return [value for value in self.values[1:] if isinstance(value, Constant)]


def _logic(call: _Call) -> Truth:
    outcomes = map(call.rows.truth, call.values)
    return ~next(outcomes) if call.name == "not" else reduce(and_ if call.name == "and" else or_, outcomes)


def _isin(call: _Call) -> Truth:
    column, backend = call.first, call.rows.backend
    if column.dtype == "string":
        texts = strings([str(item.value) for item in call.constants])
        return _gather_result(column, pc.is_in(column.dictionary, value_set=texts), backend)
    pairs = [_find_nearest(column, item) for item in call.constants]
    own = [near for value, near in pairs if near.item() == value]
    found = backend.xp.isin(column.data, backend.to_device(np.array(own, dtype=column.data.dtype)))
    return Truth.from_valid(found, column.present(backend.xp))


def _arithmetic(call: _Call) -> Column:
    left, right = call.values
    if call.name == "-" and left.dtype == "timestamp":
        return seconds_between(left, right, call.rows.xp)
    return compute(call.name, left, right, call.dtype, call.rows.xp)


def _transform(call: _Call) -> Column:
    return apply_function(call.name, call.first, call.dtype, call.rows.xp)


def _where(call: _Call) -> Column:
    yes, no = call.values[-2:]
    if call.name == "where":
        condition = call.rows.truth(call.values[0])
    else:
        condition, yes = _missing(call), replace(call.first, valid=None)
    if call.dtype == "string":
        return _pick_text(condition, yes, no, call.rows.backend)
    return _pick_number(condition, yes, no, call.dtype, call.rows.xp)


def _missing(call: _Call) -> Truth:
    """Find where the first value is missing, or for other functions than `isnull` where it is not."""
    missing = call.first.missing(call.rows.xp)
    found = Truth(call.rows.xp.zeros(len(call.first), dtype=bool) if missing is None else missing)
    return found if call.name == "isnull" else ~found


def _clip(call: _Call) -> Column:
    (_, low, high), dtype, xp = call.values, call.dtype, call.rows.xp
    column = call.rows.column(call.values[0], dtype)
    if isinstance(low, Constant) and isinstance(high, Constant):
        data, valid = as_numbers(column, dtype, xp)
        return Column(dtype, xp.clip(data, *(as_numbers(bound, dtype, xp)[0] for bound in (low, high))), valid)
    return compute("minimum", compute("maximum", column, low, dtype, xp), high, dtype, xp)


def _date_part(call: _Call) -> Column:
    zone = str(call.constants[0].value) if call.constants else None
    time = local_time(call.first, zone, call.rows.backend)
    return date_parts([call.name], time, "int64")[call.name]


def _text(call: _Call) -> Column | Truth:
    column, backend, constants = call.first, call.rows.backend, [item.value for item in call.constants]
    try:
        if call.name in _MATCH:
            return _gather_result(column, _MATCH[call.name](column.dictionary, str(constants[0])), backend)
        encoded = _REWRITE[call.name](column.dictionary, *constants).dictionary_encode()
    except pa.ArrowInvalid as cause:
        where, problem = call.rows.source.where, f"`{call.name}` cannot do this ({cause})"
        expected = "a regular expression of RE2, and groups that it has"
        remedy = f"{call.name}({FUNCTIONS[call.name].arguments})"
        raise ExpressionError(where, problem, got=constants, expected=expected, remedy=remedy) from None
    # Strings that become equal get one code.
    codes = gather(column, encoded.indices.fill_null(-1).to_numpy(), -1, backend)
    return Column("string", codes, None, encoded.dictionary)


def _length(call: _Call) -> Column:
    """Count the characters (code points) of strings or the elements of lists, int64."""
    column = call.first
    if column.elements is not None:
        return Column("int64", column.data[1:] - column.data[:-1], column.valid)
    counts = pc.utf8_length(column.dictionary).to_numpy(zero_copy_only=False).astype("int64")
    return Column("int64", gather(column, counts, 0, call.rows.backend), column.data >= 0)


def _cast(call: _Call) -> Column:
    if call.name == "string":
        return cast_column(call.first, call.dtype, "", call.rows.backend)
    xp, column = call.rows.xp, call.first
    if call.name == "float" or column.dtype not in FLOATS:
        return Column(call.dtype, *as_numbers(column, call.dtype, xp))
    whole = xp.trunc(column.data)
    fits = (whole >= -(2.0**63)) & (whole < 2.0**63)
    _refuse_where(~fits, ~xp.isnan(whole), xp)
    return Column("int64", xp.where(fits, whole, whole.dtype.type(0)).astype("int64"), fits)


_OPERATIONS: dict[str, Callable[[_Call], Column | Truth]] = {
    **dict.fromkeys(("and", "or", "not"), _logic),
    **dict.fromkeys(("+", "-", "*", "/", "//", "%", "**", "minimum", "maximum"), _arithmetic),
    **dict.fromkeys(("negative", "log1p", "log", "exp", "sqrt", "abs", "round", "floor", "ceil"), _transform),
    **dict.fromkeys(("isnull", "notnull"), _missing),
    **dict.fromkeys((*DATE_PARTS, *DATE_FLAGS), _date_part),
    **dict.fromkeys((*_REWRITE, *_MATCH), _text),
    **dict.fromkeys(("int", "float", "string"), _cast),
    **dict.fromkeys(("where", "fillna"), _where),
    "in": _isin,
    "len": _length,
    "clip": _clip,
}
