"""Derived columns, from expressions."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from gpupipe.backend import Backend, Column, Frame
from gpupipe.backend.expressions.evaluate import evaluate
from gpupipe.expressions import parse
from gpupipe.schema import Field, Schema
from gpupipe.support.validation import refuse_argument
from gpupipe.transforms.transform import Transform


class Derive(Transform):
    """Add columns computed row by row from expressions; a later one may use an earlier one.

    Args:
        named: an expression per new column; a name that is there already is replaced. Names that Python does not
            take are given as `Derive(**{"class": "x * 2"})`.

    Raises:
        ExpressionError: with the column and the position; at `output_schema` where it does not go with the columns.

    Memory: one new column per expression; the others are shared.

    Example:
        >>> import pandas as pd
        >>> Derive(night="hour < 6 or hour >= 22").transform(pd.DataFrame({"hour": [5, 12]}))
           hour  night
        0     5   True
        1    12  False
    """

    def __init__(self, /, *given: Any, **named: str) -> None:
        if given:
            remedy = f"Derive(**{given[0]!r})" if isinstance(given[0], Mapping) else "Derive(night='hour < 6')"
            raise refuse_argument("Derive", "named", given[0], "expressions by the names of columns", remedy)
        for name, text in named.items():
            parse(text, f"Derive({name}=...)")
        self.named = named

    def get_params(self, deep: bool = True) -> dict[str, str]:
        """Return the expressions by the name of their column."""
        return dict(self.named)

    def output_schema(self, schema: Schema) -> Schema:
        for name, text in self.named.items():
            expression = parse(text, f"Derive({name}=...)")
            dtype = expression.check(schema)
            made = Field.derived(name, dtype, map(schema.__getitem__, expression.reads), "Derive")
            copied = schema[text.strip()].written_as if text.strip() in schema else ""
            schema = schema.assign([replace(made, written_as=copied)])
        return schema

    def needs(self, wanted: AbstractSet[str], schema: Schema) -> set[str]:
        needed = set(wanted)
        for name, text in reversed(self.named.items()):
            if name in needed:
                needed.remove(name)
                needed.update(parse(text, f"Derive({name}=...)").reads)
        return needed

    def apply(self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend) -> Frame:
        made: dict[str, Column] = {}
        for name, text in self._asked_for(wanted).items():
            expression = parse(text, f"Derive({name}=...)")
            columns = {read: made[read] if read in made else backend.column(frame, read) for read in expression.reads}
            made[name] = evaluate(expression, columns, backend, len(frame))
        return backend.assign(frame, made) if made else frame

    def _asked_for(self, wanted: AbstractSet[str]) -> dict[str, str]:
        """Return the expressions that `wanted` needs, directly or through a later one, in order."""
        needed = set(wanted)
        used = {}
        for name, text in reversed(self.named.items()):
            if name in needed:
                used[name] = text
                needed.update(parse(text, f"Derive({name}=...)").reads)
        return dict(reversed(used.items()))
