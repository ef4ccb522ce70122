"""Steps that decide which rows stay."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Literal

from gpupipe.backend import Backend, Frame
from gpupipe.backend.evaluate import evaluate, truth
from gpupipe.errors import ExpressionError
from gpupipe.expressions import parse
from gpupipe.schema import Schema
from gpupipe.transforms.transform import Transform

__all__ = ["Filter"]


class Filter(Transform):
    """Keep the rows for which an expression is true; where it is missing, the row goes.

    Args:
        expr: an expression over columns, such as `"distance >= 200 and dep_delay < 600"`.
        when: `"train"` acts in `fit`, `transform` and every loader and is skipped when a loaded pipeline predicts;
            `"always"` acts there too, and predictions then have the surviving rows only.

    Raises:
        ExpressionError: at `output_schema`, when `expr` is not a condition.

    Memory: copies the kept rows of every column; nothing when all stay.

    Example:
        >>> import pandas as pd
        >>> Filter("distance >= 200").transform(pd.DataFrame({"distance": [100.0, 500.0, None]}))
           distance
        1     500.0
    """

    changes_rows = True

    def __init__(self, expr: str, *, when: Literal["train", "always"] = "train") -> None:
        self.expr = expr
        self.when = when

    def output_schema(self, schema: Schema) -> Schema:
        found = parse(self.expr, "Filter").check(schema)
        if found != "bool":
            raise ExpressionError(
                f"Filter({self.expr!r})",
                f"the expression gives {found}",
                expected="a condition, true or false per row",
                remedy=f"Filter('({self.expr}) > 0')",
            )
        return schema

    def needs(self, wanted: AbstractSet[str], schema: Schema) -> set[str]:
        return {*wanted, *parse(self.expr, "Filter").reads}

    def apply(self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend) -> Frame:
        expression = parse(self.expr, "Filter")
        columns = {name: backend.column(frame, name) for name in expression.reads}
        keep = truth(evaluate(expression, columns, backend, len(frame)), backend.xp)
        return backend.filter(backend.select(frame, [n for n in frame.columns if n in wanted]), keep)
