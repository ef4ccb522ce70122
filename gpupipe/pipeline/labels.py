"""Labels: columns that are learned and no features, or expressions over them; among these is the weight."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from gpupipe.backend import Backend, Column, Frame
from gpupipe.backend.columns import as_floats, refuse_passengers
from gpupipe.errors import BadConfig, BadData, ColumnNotFound, ExpressionError
from gpupipe.expressions import Expression, parse_label
from gpupipe.expressions.evaluate import evaluate
from gpupipe.schema import FLOATS, INTEGERS, Field, Kind, Role, Schema
from gpupipe.support.origins import Origins
from gpupipe.support.text import refer_to


class Labels:
    """Base class of target and weight: columns, or expressions over columns, by their text."""

    role: Role

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self._columns: AbstractSet[str] | None = None

    def reset(self) -> None:
        """Clear what an earlier `fit` learned."""
        self._columns = None

    def bind(self, schema: Schema) -> None:
        """Remember which texts name columns of the fit's schema: `1960` is a number where no column is there."""
        self._columns = {text for text in self.texts if text in schema}

    @property
    def text(self) -> str:
        return ", ".join(self.texts)

    def _parse(self, text: str, schema: Schema) -> Expression | None:
        """Parse the expression; None for the name of a column."""
        is_column = text in (schema if self._columns is None else self._columns)
        return None if is_column else parse_label(text, f"{self.role}={text!r}", schema)

    def reads(self, schema: Schema, texts: Sequence[str] | None = None) -> list[str]:
        """List the columns that these labels (by default all) are computed from."""
        parsed = {text: self._parse(text, schema) for text in (self.texts if texts is None else texts)}
        return list(dict.fromkeys(n for text, tree in parsed.items() for n in (tree.reads if tree else [text])))

    def is_in(self, schema: Schema) -> bool:
        """Return whether all columns they read are present."""
        try:
            return all(name in schema for name in self.reads(schema))
        except (ColumnNotFound, ExpressionError):  # the name of a column that is not there
            return False

    def rename(self, name: str, names: AbstractSet[str]) -> str:
        """Return an output's name: the role for an expression, or its text where a feature has that name."""
        return self.text if name in names and name == self.role else name

    def lineage(self, schema: Schema) -> frozenset[str]:
        """Return the source columns they are computed from."""
        return frozenset().union(*(schema[name].lineage for name in self.reads(schema)))

    def origins(self, schema: Schema) -> Origins:
        """Return the columns of tables read that their values come from."""
        parsed = {text: self._parse(text, schema) for text in self.texts}
        return frozenset().union(
            *(tree.locate_origins(schema) if tree else schema[text].origins for text, tree in parsed.items())
        )

    def raw_fields(self, schema: Schema) -> dict[str, Field]:
        """Return by text the fields of the values before they are stored."""
        fields: dict[str, Field] = {}
        for text in self.texts:
            expression = self._parse(text, schema)
            if expression is None:
                refuse_passengers([schema[text]], self.role.value)
                raw = replace(schema[text], written_as="")
            else:
                read = map(schema.__getitem__, expression.reads)
                raw = Field.derived(self.role.value, expression.check(schema), read, "Features")
                raw = replace(raw, origins=expression.locate_origins(schema))
            fields[text] = replace(raw, role=self.role)
        return fields

    def raw_columns(self, frame: Frame, schema: Schema, backend: Backend) -> dict[str, Column]:
        """Compute by text the values of one frame."""
        values: dict[str, Column] = {}
        for text in self.texts:
            expression = self._parse(text, schema)
            if expression is None:
                values[text] = backend.column(frame, text)
            else:
                columns = {name: backend.column(frame, name) for name in expression.reads}
                values[text] = evaluate(expression, columns, backend, len(frame))
        return values


class Weight(Labels):
    """Weight: how much each row counts; a number that is never negative, never missing."""

    role = Role.WEIGHT

    def fields(self, schema: Schema) -> list[Field]:
        """Return the stored weight's field, float32; `BadConfig` where it is no number."""
        (raw,) = self.raw_fields(schema).values()
        if raw.dtype not in (*INTEGERS, *FLOATS, "bool"):
            where, problem = f"weight {self.text!r}", "a weight has to be a number"
            raise BadConfig(where, problem, got=raw.dtype, expected="numbers", remedy="a numeric column")
        return [replace(raw, dtype="float32", kind=Kind.CONTINUOUS)]

    def columns(self, frame: Frame, schema: Schema, backend: Backend, *, stored: bool) -> dict[str, Column]:
        """Compute the weights of one frame; `BadData` where one is negative, infinite or missing."""
        xp = backend.xp
        (column,) = self.raw_columns(frame, schema, backend).values()
        missing = column.missing(xp)
        data = as_floats(column.data, "float32")
        bad = (data < 0) | ~xp.isfinite(data)
        bad = bad if missing is None else bad | missing
        if bool(bad.any()):
            present = data if missing is None else data[~missing]
            weight = refer_to(self.text) if self._parse(self.text, schema) is None else self.text
            text = f"coalesce({weight}, 1.0)"
            if len(present) == len(data):
                text = f"abs({weight})" if bool((present < 0).any()) else f"clip({weight}, 0.0, 1e6)"
            where, problem = f"weight {self.text!r}", f"{int(bad.sum())} weights are negative, infinite or missing"
            raise BadData(where, problem, expected="numbers from 0 up", remedy=f"weight={text!r} or a Filter")
        return {self.fields(schema)[0].name: Column("float32", data)}
