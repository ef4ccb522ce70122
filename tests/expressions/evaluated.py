"""Columns out of plain values, expressions over them, and the results as plain values again."""

from __future__ import annotations

import operator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from gpupipe.backend import Backend, Column
from gpupipe.expressions import parse
from gpupipe.expressions.evaluate import evaluate
from gpupipe.schema import Field, Schema, get_element_dtype

COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def column(dtype: str, values: list[Any], *, dictionary: list[str] | None = None) -> Column:
    """A column of these values on the host, None where missing."""
    missing = np.array([value is None for value in values], dtype=bool)
    valid = ~missing if missing.any() else None
    if element := get_element_dtype(dtype):
        offsets = np.cumsum([0, *(len(value or ()) for value in values)])
        return Column(dtype, offsets, valid, None, column(element, [item for value in values for item in value or ()]))
    if dtype == "string":
        texts = dictionary or sorted({value for value in values if value is not None})
        codes = np.array([-1 if value is None else texts.index(value) for value in values], dtype="int16")
        return Column(dtype, codes, None, pa.array(texts, pa.large_string()))
    if dtype.startswith("float"):
        return Column(dtype, np.array([np.nan if value is None else value for value in values], dtype=dtype))
    if dtype == "timestamp":
        moments = [None if value is None else np.datetime64(value, "us") for value in values]
        return Column(dtype, np.array(moments, "datetime64[us]").view("int64"), valid)
    # What stands at a missing place must not matter.
    return Column(dtype, np.array([1 if value is None else value for value in values], dtype=dtype), valid)


def plain(result: Column) -> list[Any]:
    """The values of a column on the host as Python has them, None where missing."""
    missing = result.missing(np)
    gone = np.zeros(len(result), dtype=bool) if missing is None else missing
    values = result.data.tolist()
    if result.elements is not None:
        elements = plain(result.elements)
        values = [elements[start:end] for start, end in pairwise(values)]
    if result.dictionary is not None:
        texts = result.dictionary.to_pylist()
        assert len(set(texts)) == len(texts) and None not in texts, "a dictionary holds each string once"
        values = [texts[code] if code >= 0 else None for code in values]
    return [None if is_gone else value for value, is_gone in zip(values, gone, strict=True)]


def to_device(item: Column, backend: Backend) -> Column:
    return item.move(backend.to_device)


def to_host(item: Column, backend: Backend) -> Column:
    return item.move(backend.to_host)


def run(backend: Backend, text: str, num_rows: int | None = None, **columns: Column) -> Column:
    """Evaluate, hold the result against what `check` promised, and bring it to the host."""
    expression = parse(text)
    if num_rows is None:
        num_rows = len(next(iter(columns.values())))
    inputs = {name: to_device(item, backend) for name, item in columns.items()}
    before = [plain(item) for item in columns.values()]
    result = to_host(evaluate(expression, inputs, backend, num_rows), backend)
    assert repr(before) == repr([plain(to_host(item, backend)) for item in inputs.values()]), (
        "inputs are never modified"
    )
    promised = expression.check(Schema(Field(name, item.dtype) for name, item in columns.items()))
    stored = {"timestamp": "int64", "string": result.data.dtype.name}.get(promised, promised)
    stored = "int64" if result.elements is not None else stored
    assert (result.dtype, result.data.dtype.name, len(result)) == (promised, stored, num_rows)
    if result.valid is not None:
        assert result.valid.dtype == bool and result.valid.shape == (num_rows,)
        assert promised not in ("string", "float32", "float64")
    return result


def result_of(backend: Backend, text: str, num_rows: int | None = None, **columns: Column) -> list[Any]:
    """An expression's values over these columns."""
    return plain(run(backend, text, num_rows, **columns))
