"""Evaluation of expressions over the columns of a frame, by the rules of `gpupipe.expressions`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import and_, or_
from types import ModuleType
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from gpupipe.backend.cast import cast_column
from gpupipe.backend.dictionaries import strings
from gpupipe.backend.expressions.arithmetic import (
    apply_function,
    as_numbers,
    compute,
    pick_number,
    seconds_between,
    truncate,
)
from gpupipe.backend.expressions.comparisons import compare, isin
from gpupipe.backend.expressions.dates import date_part, local_time
from gpupipe.backend.expressions.kleene import Truth
from gpupipe.backend.expressions.strings import length, matches, pick_text, rewrite_texts
from gpupipe.backend.protocol import Array, Backend, Column
from gpupipe.errors import BadData, ExpressionError
from gpupipe.expressions import Expression
from gpupipe.expressions.dtypes import infer_operation
from gpupipe.expressions.functions import DATE_FLAGS, DATE_PARTS, FUNCTIONS
from gpupipe.expressions.tree import Comparison, Constant, Name, Node, Operation

__all__ = ["evaluate", "truth"]

_Value: TypeAlias = Column | Constant | Truth


def evaluate(expression: Expression, columns: Mapping[str, Column], backend: Backend, num_rows: int) -> Column:
    """Evaluate an expression per row, to the type that `expression.check` returns.

    Args:
        expression: parsed.
        columns: those that it reads, of `num_rows` rows each.
        backend: of the columns.
        num_rows: how many rows there are, for an expression without columns.

    Raises:
        ColumnNotFound: a column is not among them.
        ExpressionError: types that do not go together.
        BadData: arithmetic on integers whose result does not fit int64.

    Memory: the result on the device, and a few columns of its size on the way; a plain column is shared. Distinct
        strings, and distinct integers that become text, go through the host.

    Example:
        >>> from gpupipe.backend import select
        >>> from gpupipe.expressions import parse
        >>> delay = Column("float64", np.array([20.0, np.nan, 3.0]))
        >>> late = evaluate(parse("dep_delay > 15"), {"dep_delay": delay}, select("cpu"), 3)
        >>> late.data, late.valid
        (array([ True, False, False]), array([ True, False,  True]))
    """
    rows = _Rows(expression, columns, backend, num_rows)
    with np.errstate(all="ignore"):  # 1 / 0 is inf, log(-1) is missing
        return rows.column(rows.value(expression.tree))


def truth(column: Column, xp: ModuleType) -> Array:
    """Return n booleans, True where a condition is true, and False where it is false or missing.

    Memory: shares the column's data where nothing can be missing.

    Example:
        >>> truth(Column("bool", np.array([True, True, False]), np.array([True, False, True])), np)
        array([ True, False, False])
    """
    return column.data if column.valid is None else xp.logical_and(column.data, column.valid)


class _Rows:
    """Evaluation context: the columns and rows of one expression."""

    def __init__(self, expression: Expression, columns: Mapping[str, Column], backend: Backend, num_rows: int) -> None:
        self.backend, self.xp = backend, backend.xp
        self._source, self._columns, self._num_rows = expression.source, columns, num_rows

    def value(self, node: Node) -> _Value:
        """Evaluate a node; a constant is not repeated per row."""
        if isinstance(node, Constant):
            return node
        if isinstance(node, Name):
            if node.name not in self._columns:
                raise self._source.no_column(node.span, node.name, self._columns)
            return self._columns[node.name]
        values = [self.value(operand) for operand in node.operands]
        dtype = infer_operation(node, [value.dtype for value in values], self._source)
        if isinstance(node, Comparison):
            return reduce(and_, map(self._compare, node.operators, pairwise(values)))
        call = _Call(node.name, self._ensure_column(values), dtype, self)
        try:
            return _OPERATIONS[node.name](call)
        except OverflowError as cause:
            raise self._make_overflow_error(node, call, cause.args[0]) from None

    def _make_overflow_error(self, node: Operation, call: _Call, row: int) -> BadData:
        """Create the error for a row whose result, or an operand, is out of range of int64."""
        values = [
            value.value if isinstance(value, Constant) else self.backend.to_host(value.data[row : row + 1])[0].item()
            for value in call.values
        ]
        shown = self._source.slice(node.span)
        pairs = zip(node.operands, call.values, strict=True)
        first = next(self._source.slice(part.span) for part, value in pairs if value.dtype not in ("bool", "string"))
        error = BadData(
            self.where,
            f"row {row:,}: `{shown}` does not fit int64",
            got=values[0] if len(values) == 1 else tuple(values),
            expected="integers from -2**63 to 2**63 - 1",
            remedy=f"float({first}) in place of {shown if node.name == 'int' else first}, which gives float64",
        )
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

    @property
    def where(self) -> str:
        """The owner of the expression, for messages."""
        return self._source.where

    def truth(self, value: _Value) -> Truth:
        """Convert a condition's value to `Truth`."""
        return value if isinstance(value, Truth) else Truth.from_column(self.column(value))

    def _compare(self, operator: str, pair: Sequence[_Value]) -> Truth:
        left, right = self._ensure_column(pair)
        return compare(operator, left, right, self.backend)

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


def _logic(call: _Call) -> Truth:
    outcomes = map(call.rows.truth, call.values)
    return ~next(outcomes) if call.name == "not" else reduce(and_ if call.name == "and" else or_, outcomes)


def _isin(call: _Call) -> Truth:
    return isin(call.first, [value for value in call.values[1:] if isinstance(value, Constant)], call.rows.backend)


def _arithmetic(call: _Call) -> Column:
    left, right = call.values
    if call.name == "-" and left.dtype == "timestamp":
        return seconds_between(left, right, call.rows.xp)
    return compute(call.name, left, right, call.dtype, call.rows.xp)


def _transform(call: _Call) -> Column:
    return apply_function(call.name, call.first, call.dtype, call.rows.xp)


def _where(call: _Call) -> Column:
    return _pick(call, call.rows.truth(call.values[0]), *call.values[1:])


def _fillna(call: _Call) -> Column:
    present = Column(call.first.dtype, call.first.data, None, call.first.dictionary)  # where it is taken
    return _pick(call, ~_missing(call), present, call.values[1])


def _pick(call: _Call, condition: Truth, yes: Column | Constant, no: Column | Constant) -> Column:
    if call.dtype == "string":
        return pick_text(condition, yes, no, call.rows.backend)
    return pick_number(condition, yes, no, call.dtype, call.rows.xp)


def _is_missing(call: _Call) -> Truth:
    return _missing(call) if call.name == "isnull" else ~_missing(call)


def _missing(call: _Call) -> Truth:
    xp = call.rows.xp
    missing = call.first.missing(xp)
    return Truth(xp.zeros(len(call.first), dtype=bool) if missing is None else missing)


def _clip(call: _Call) -> Column:
    _, low, high = call.values
    if isinstance(low, Constant) and isinstance(high, Constant):
        xp = call.rows.xp
        data, valid = as_numbers(call.rows.column(call.values[0], call.dtype), call.dtype, xp)
        least, most = (as_numbers(bound, call.dtype, xp)[0] for bound in (low, high))
        return Column(call.dtype, xp.clip(data, least, most), valid)
    raised = compute("maximum", call.rows.column(call.values[0], call.dtype), low, call.dtype, call.rows.xp)
    return compute("minimum", raised, high, call.dtype, call.rows.xp)


def _date_part(call: _Call) -> Column:
    zone = next((str(value.value) for value in call.values[1:] if isinstance(value, Constant)), None)
    return date_part(call.name, local_time(call.first, zone, call.rows.backend))


def _text(call: _Call) -> Column | Truth:
    backend, constants = call.rows.backend, [value.value for value in call.values[1:] if isinstance(value, Constant)]
    if call.name == "len":
        return length(call.first, backend)
    try:
        if call.dtype == "string":
            return rewrite_texts(call.name, call.first, backend, *constants)
        return matches(call.name, call.first, str(constants[0]), backend)
    except pa.ArrowInvalid as cause:
        raise ExpressionError(
            call.rows.where,
            f"`{call.name}` cannot do this ({cause})",
            got=constants,
            expected="a regular expression of RE2, and groups that it has",
            remedy=f"{call.name}({FUNCTIONS[call.name].arguments})",
        ) from None


def _cast(call: _Call) -> Column:
    if call.name == "string":
        return cast_column(call.first, call.dtype, "", call.rows.backend)
    if call.name == "int":
        return truncate(call.first, call.rows.xp)
    return Column(call.dtype, *as_numbers(call.first, call.dtype, call.rows.xp))


_OPERATIONS: dict[str, Callable[[_Call], Column | Truth]] = {
    **dict.fromkeys(("and", "or", "not"), _logic),
    **dict.fromkeys(("+", "-", "*", "/", "//", "%", "**", "minimum", "maximum"), _arithmetic),
    **dict.fromkeys(("negative", "log1p", "log", "exp", "sqrt", "abs", "round", "floor", "ceil"), _transform),
    **dict.fromkeys(("isnull", "notnull"), _is_missing),
    **dict.fromkeys((*DATE_PARTS, *DATE_FLAGS), _date_part),
    **dict.fromkeys(("lower", "upper", "strip", "extract", "split", "slice", "replace", "sub"), _text),
    **dict.fromkeys(("len", "contains", "startswith", "endswith", "search"), _text),
    **dict.fromkeys(("int", "float", "string"), _cast),
    "in": _isin,
    "where": _where,
    "fillna": _fillna,
    "clip": _clip,
}
