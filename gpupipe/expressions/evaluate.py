"""Values of expressions over the columns of a frame, with missing values as in SQL; the same on both backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa

from gpupipe.backend.columns import Backend, Column, sample_texts
from gpupipe.errors import BadData, ExpressionError
from gpupipe.expressions.comparisons import compare
from gpupipe.expressions.dtypes import infer_comparison, infer_operation
from gpupipe.expressions.expression import Expression
from gpupipe.expressions.functions import describe_call
from gpupipe.expressions.operands import AnyValue, Call, Operand, to_column
from gpupipe.expressions.tree import Comparison, Constant, Name, Node, Null, Operation
from gpupipe.schema import LISTS
from gpupipe.support.text_dates import find_dates_in_other_formats, find_misordered_periods, shorten_date
from gpupipe.support.text_kinds import recognise_texts, suggest_ordering, suggest_parsing


def evaluate(expression: Expression, columns: Mapping[str, Column], backend: Backend, num_rows: int) -> Column:
    """Evaluate an expression per row, to the type that `expression.check` returns.

    A result of integers that does not fit int64 is `BadData`. A plain column is shared. Distinct strings, and distinct
    integers that become text, go through the host.
    """
    require_date_format(expression, columns)
    rows = _Rows(expression, columns, backend, num_rows)
    with np.errstate(all="ignore"):  # 1 / 0 is inf, log(-1) is missing
        value = rows.evaluate(expression.tree)
        return to_column(value, value.dtype, num_rows, backend.xp)


def require_date_format(expression: Expression, columns: Mapping[str, Column]) -> None:
    """Raise `ExpressionError` for a date beside dates as text in another format: '2024-01-31' beside 01/31/2024."""
    for name, operator, constant in expression.date_tests:
        text, texts = str(constant.value), sample_texts(columns[name]) if name in columns else []
        units = find_misordered_periods([*texts, text]) if texts and operator in ("<", "<=", ">", ">=") else []
        if dates := [unit for unit in units if unit != text] or find_dates_in_other_formats(texts, text, operator):
            kind = "times of day" if ":" in dates[0] and units else "dates"
            problem = f"{kind} as text are compared by their letters, and column {name!r} has such as {dates[0]!r}"
            remedy = suggest_parsing(name, recognise_texts(dates) or "dates", texts)
            if units:
                is_unpadded = len(text) < min(map(len, texts))  # as 2023-9 beside 2023-09 is
                remedy = f"a text like {dates[0]!r}" if is_unpadded else suggest_ordering(name, units)
            remedy = f"{short!r}; or {remedy}" if (short := shorten_date(text, dates[0])) else remedy
            raise expression.source.error(constant.span, problem, "a column of times", remedy, got=text)


class _Rows:
    """Evaluation context: the columns and rows of one expression."""

    def __init__(self, expression: Expression, columns: Mapping[str, Column], backend: Backend, num_rows: int) -> None:
        self._source, self._columns, self._backend, self._num_rows = expression.source, columns, backend, num_rows

    def evaluate(self, node: Node) -> AnyValue:
        """Evaluate a node; a constant is not repeated per row."""
        if isinstance(node, Constant | Null):
            return node
        if isinstance(node, Name):
            if node.name not in self._columns:
                raise self._source.no_column(node.span, node.name, self._columns)
            return self._columns[node.name]
        values = [self.evaluate(operand) for operand in node.operands]
        dtypes = [value.dtype for value in values]
        if isinstance(node, Comparison):
            infer_comparison(node, dtypes, self._source)
            pairs = zip(node.operators, map(self._ensure_column, pairwise(values)), strict=True)
            return reduce(and_, (compare(sign, left, right, self._backend) for sign, (left, right) in pairs))
        form, dtype = infer_operation(node, dtypes, self._source)
        call = Call(node.name, self._ensure_column(values), dtype, self._backend, self._num_rows)
        try:
            return form.compute(call)
        except OverflowError as cause:
            raise self._make_overflow_error(node, call, cause.args[0]) from None
        except pa.ArrowInvalid as cause:
            problem = f"`{node.name}` cannot do this ({cause})"
            got = [constant.value for constant in call.constants]
            expected, remedy = "a regular expression of RE2, and groups that it has", describe_call(node.name)
            raise ExpressionError(self._source.where, problem, got=got, expected=expected, remedy=remedy) from None

    def _ensure_column(self, values: Sequence[AnyValue]) -> list[Operand]:
        """Convert operands so that at least one is a column; text compared with times is a time."""
        operands = [value if isinstance(value, Constant | Null) else self._to_column(value) for value in values]
        if not any(isinstance(operand, Column) for operand in operands):
            is_time = operands[0].dtype == "string" and any(operand.dtype == "timestamp" for operand in operands)
            operands[0] = self._to_column(operands[0], "timestamp" if is_time else None)
        return operands

    def _to_column(self, value: AnyValue, dtype: str | None = None) -> Column:
        return to_column(value, dtype or value.dtype, self._num_rows, self._backend.xp)

    def _show(self, value: Column | Constant, row: int) -> Any:
        """Return a value of one row as Python has it, of a list its elements."""
        if isinstance(value, Constant):
            return value.value
        item = value.take(self._backend.xp.asarray([row]))
        return (
            self._backend.to_host(item.data).item()
            if item.elements is None
            else self._backend.to_host(item.elements.data).tolist()
        )

    def _make_overflow_error(self, node: Operation, call: Call, row: int) -> BadData:
        """Create the error for a row whose result, or an operand, is out of range of int64."""
        values = [self._show(value, row) for value in call.values if not isinstance(value, Null)]
        slice_of = self._source.slice
        pairs = zip(node.operands, call.values, strict=True)
        first = next(slice_of(part.span) for part, value in pairs if value.dtype not in ("bool", "string"))
        text = slice_of(node.span)
        remedy = f"float({first}) in place of {text if node.name == 'int' else first}, which gives float64"
        remedy = f"T.Cast({{{first!r}: 'list<float64>'}}) before" if call.values[0].dtype in LISTS else remedy
        problem, expected = f"row {row:,}: `{text}` does not fit int64", "integers from -2**63 to 2**63 - 1"
        got = values[0] if len(values) == 1 else tuple(values)
        error = BadData(self._source.where, problem, got=got, expected=expected, remedy=remedy)
        error.row = row
        return error
