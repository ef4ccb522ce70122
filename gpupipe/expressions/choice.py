"""Missing values, and the choice between values: `isnull`, `where`, `coalesce`."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from types import ModuleType

import numpy as np

from gpupipe.backend.columns import Backend, Column, gather
from gpupipe.backend.dictionaries import Dictionary, find_positions, strings, unite_dictionaries
from gpupipe.expressions.operands import Call, Operand, Truth, as_numbers, both_valid
from gpupipe.expressions.tree import Constant
from gpupipe.schema import FLOATS


def find_missing(call: Call) -> Truth:
    """Find where the first value is missing, or for `notnull` where it is not."""
    is_missing = _find_missing(call.first, call.xp)
    return is_missing if call.name == "isnull" else ~is_missing


def choose(call: Call) -> Column:
    """Compute `where(condition, x, y)`."""
    condition, yes, no = call.values
    return _choose(call, call.truth(condition), yes, no)


def coalesce(call: Call) -> Column:
    """Compute the first value of each row that is not missing."""

    def fill(column: Column, other: Operand) -> Column:
        return _choose(call, ~_find_missing(column, call.xp), replace(column, valid=None), other)

    return reduce(fill, call.values[1:], call.column(call.values[0], call.dtype))


def _find_missing(column: Column, xp: ModuleType) -> Truth:
    missing = column.missing(xp)
    return Truth(xp.zeros(len(column), dtype=bool) if missing is None else missing)


def _choose(call: Call, condition: Truth, yes: Operand, no: Operand) -> Column:
    if call.dtype == "string":
        return _pick_text(condition, yes, no, call.backend)
    return _pick_number(condition, yes, no, call.dtype, call.xp)


def _pick_text(condition: Truth, yes: Operand, no: Operand, backend: Backend) -> Column:
    """Select `yes` where the condition is true, `no` where it is false, missing elsewhere."""
    dictionaries = [_list_texts(side) for side in (yes, no)]
    texts = unite_dictionaries(dictionaries)
    codes = []
    for side, dictionary in zip((yes, no), dictionaries, strict=True):
        positions = find_positions(dictionary, texts).astype("int32")
        if isinstance(side, Column):
            codes.append(gather(side, positions, -1, backend))
        else:
            codes.append(positions[0] if len(positions) else np.int32(-1))
    picked, valid = backend.xp.where(condition.true, *codes), condition.column().valid
    return Column("string", picked if valid is None else backend.xp.where(valid, picked, np.int32(-1)), None, texts)


def _list_texts(operand: Operand) -> Dictionary:
    if isinstance(operand, Column):
        return operand.dictionary
    return strings([str(operand.value)] if isinstance(operand, Constant) else [])


def _pick_number(condition: Truth, yes: Operand, no: Operand, dtype: str, xp: ModuleType) -> Column:
    """Select `yes` where the condition is true, `no` where it is false, missing elsewhere; as `dtype`."""
    (a, a_valid), (b, b_valid) = as_numbers(yes, dtype, xp), as_numbers(no, dtype, xp)
    data, valid = xp.where(condition.true, a, b), condition.column().valid
    if dtype in FLOATS:
        return Column(dtype, data if valid is None else xp.where(valid, data, data.dtype.type(np.nan)))
    if a_valid is not None or b_valid is not None:
        sides = (True if side is None else side for side in (a_valid, b_valid))
        valid = both_valid(xp.where(condition.true, *sides), valid)
    return Column(dtype, data, valid)
