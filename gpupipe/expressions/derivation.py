"""Derivation: columns of a frame that are computed from expressions in order, as `Derive` and `Dataset.assign` do."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from gpupipe.backend import Backend, Column, Frame
from gpupipe.expressions.evaluate import evaluate
from gpupipe.expressions.expression import Expression, parse
from gpupipe.schema import Field, Schema
from gpupipe.support.origins import mark_part
from gpupipe.support.validation import refuse_argument


@dataclass(frozen=True)
class Derivation:
    """Expressions by the columns that they compute, in order: a later one may read an earlier one."""

    where: str  # what they were given to, for messages
    named: dict[str, str]

    def check(self, arguments: tuple[Any, ...]) -> None:
        """Raise `BadConfig` for arguments without a name, and `ExpressionError` for what does not parse."""
        if arguments:
            remedy = f"{self.where}(night='hour < 6')"
            if isinstance(arguments[0], Mapping):
                remedy = f"{self.where}(**{arguments[0]!r})"
            raise refuse_argument(self.where, "named", arguments[0], "expressions by the names of columns", remedy)
        for name in self.named:
            self._parse(name)

    def derive_schema(self, schema: Schema) -> Schema:
        """Return the schema with the new columns; `ExpressionError` where an expression does not go with the others."""
        marks = mark_part(item.origins for item in schema)
        for name in self.named:
            expression = self._parse(name)
            dtype = expression.check(schema)
            sources = map(schema.__getitem__, expression.reads)
            written_as = expression.get_written_as(schema)
            field = Field.derived(name, dtype, sources, self.where, written_as)
            schema = schema.assign([field.replace(origins=expression.locate_origins(schema) | marks)])
        return schema

    def trace(self, outputs: AbstractSet[str]) -> tuple[set[str], dict[str, str]]:
        """Return the columns that are read for `outputs`, and the expressions that it needs, the last one first."""
        needed, used = set(outputs), {}
        for name, text in reversed(self.named.items()):
            if name in needed:
                used[name] = text
                needed = {*(needed - {name}), *self._parse(name).reads}
        return needed, used

    def __call__(self, frame: Frame, outputs: AbstractSet[str], backend: Backend) -> Frame:
        """Return a coded frame with those of the new columns that `outputs` needs; the others are shared."""
        results: dict[str, Column] = {}
        for name in reversed(self.trace(outputs)[1]):
            expression = self._parse(name)
            columns = {
                read: results[read] if read in results else backend.column(frame, read) for read in expression.reads
            }
            results[name] = evaluate(expression, columns, backend, len(frame))
        return backend.assign(frame, results) if results else frame

    def _parse(self, name: str) -> Expression:
        return parse(self.named[name], f"{self.where}({name}=...)")
