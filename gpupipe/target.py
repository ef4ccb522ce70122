"""What is learned from and how much each row counts: label columns, or expressions over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.columns import refuse_passengers
from gpupipe.backend.dictionaries import Dictionary, positions_in, strings, united
from gpupipe.backend.evaluate import evaluate
from gpupipe.errors import BadConfig, BadData, ExpressionError, SchemaMismatch
from gpupipe.expressions import Expression, parse
from gpupipe.schema import FLOATS, INTEGERS, Field, Kind, Role, Schema

__all__ = ["Target", "TargetSummary", "Weight"]


class _Label:
    """A column, or an expression over columns, that stands beside the features."""

    role: Role

    def __init__(self, text: str) -> None:
        self.text = text

    def expression(self, schema: Schema) -> Expression | None:
        """The parsed expression; None where `text` is the name of a column."""
        return None if self.text in schema else parse(self.text, f"{self.role}={self.text!r}")

    def reads(self, schema: Schema) -> list[str]:
        """The columns it is computed from."""
        expression = self.expression(schema)
        return [self.text] if expression is None else list(expression.reads)

    def is_in(self, schema: Schema) -> bool:
        """Whether all columns it reads are there."""
        try:
            return all(name in schema for name in self.reads(schema))
        except ExpressionError:  # the name of a column, and no expression, where that column is not there
            return False

    def lineage(self, schema: Schema) -> frozenset[str]:
        """The source columns it is computed from."""
        return frozenset().union(*(schema[name].lineage for name in self.reads(schema)))

    def raw_field(self, schema: Schema) -> Field:
        """The values' own type, before they are stored as a target or a weight."""
        expression = self.expression(schema)
        if expression is None:
            refuse_passengers([schema[self.text]], self.role.value)
            return replace(schema[self.text], role=self.role, written_as="")
        made = Field.derived(
            self.role.value, expression.check(schema), map(schema.__getitem__, expression.reads), "Features"
        )
        return replace(made, role=self.role)

    def raw_column(self, frame: Frame, schema: Schema, backend: Backend) -> Column:
        """The values of one frame as they are computed."""
        expression = self.expression(schema)
        if expression is None:
            return backend.column(frame, self.text)
        columns = {name: backend.column(frame, name) for name in expression.reads}
        return evaluate(expression, columns, backend, len(frame))


@dataclass(frozen=True)
class TargetSummary:
    """The target's values in some partitions: how many there are, their distinct strings, their range."""

    num_rows: int = 0
    num_missing: int = 0
    strings: Dictionary | None = None
    low: float | None = None
    high: float | None = None

    def __add__(self, other: TargetSummary) -> TargetSummary:
        ranges = [value for value in (self.low, other.low, self.high, other.high) if value is not None]
        found = [part for part in (self.strings, other.strings) if part is not None]
        return TargetSummary(
            self.num_rows + other.num_rows,
            self.num_missing + other.num_missing,
            united(found) if found else None,
            min(ranges, default=None),
            max(ranges, default=None),
        )


class Target(_Label):
    """The values a model learns to predict.

    A boolean, or an integer that is only ever 0 or 1, is a binary target; strings are classes in sorted order; any
    other number is a regression's.
    """

    role = Role.TARGET

    def reset(self) -> None:
        """Forget the classes an earlier `fit` found."""
        self.classes_: tuple[Any, ...] | None = None

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.reset()

    def present(self, frame: Frame, schema: Schema, backend: Backend) -> Array | None:
        """n booleans, False where the target is missing; None when none is."""
        missing = self.raw_column(frame, schema, backend).missing(backend.xp)
        return None if missing is None else ~missing

    def summarise(self, frame: Frame, schema: Schema, backend: Backend) -> TargetSummary:
        """One partition's contribution to what `finish` learns."""
        xp = backend.xp
        column = self.raw_column(frame, schema, backend)
        missing = column.missing(xp)
        present = column.data if missing is None else column.data[~missing]
        counts = {"num_rows": len(column), "num_missing": len(column) - len(present)}
        if column.dictionary is not None:
            used = backend.to_host(xp.unique(present))
            return TargetSummary(**counts, strings=column.dictionary.take(used))
        if not len(present):
            return TargetSummary(**counts)
        ends = backend.to_host(xp.stack([present.min(), present.max()]).astype("float64"))
        return TargetSummary(**counts, low=float(ends[0]), high=float(ends[1]))

    def finish(self, summary: TargetSummary, schema: Schema, *, number: bool = False) -> Self:
        """Fix the classes; with `number`, 0 and 1 are none.

        Raises:
            BadData: there is no row with a target, or only one class.
        """
        where = f"target {self.text!r}"
        if summary.num_rows == summary.num_missing:
            raise BadData(
                where,
                f"none of {summary.num_rows} rows has a value",
                expected="rows with a target",
                remedy="another split, or a look at the steps before",
            )
        dtype = self.raw_field(schema).dtype
        zeros_and_ones = dtype in INTEGERS and summary.low == 0 and summary.high == 1 and not number
        binary = dtype == "bool" or zeros_and_ones
        if summary.strings is not None:
            self.classes_ = tuple(sorted(summary.strings.to_pylist()))
        elif binary:
            self.classes_ = (False, True)
        elif dtype == "timestamp":
            raise SchemaMismatch(
                where,
                "a time cannot be predicted",
                expected="a number, a condition or strings",
                remedy="the difference of two times",
            )
        if self.classes_ is not None and (len(self.classes_) < 2 or (binary and summary.low == summary.high)):
            only = summary.low if binary else self.classes_[0]
            raise BadData(
                where,
                "all rows have the same value",
                got=only,
                expected="at least two classes",
                remedy="another split or target",
            )
        return self

    def field(self, schema: Schema) -> Field:
        """The stored target: float32 0/1 or number, or int32 class index."""
        raw = self.raw_field(schema)
        indexed = self.classes_ is not None and self.classes_ != (False, True)
        return replace(
            raw,
            dtype="int32" if indexed else "float32",
            kind=Kind.CATEGORICAL if indexed else Kind.CONTINUOUS,
            cardinality=len(self.classes_) if indexed and self.classes_ else None,
            classes=self.classes_,
        )

    def column(self, frame: Frame, schema: Schema, backend: Backend) -> Column:
        """The stored target of one frame; missing stays missing.

        Raises:
            BadData: a string that is none of the classes; an integer other than 0 and 1 in a binary target.
        """
        xp = backend.xp
        column = self.raw_column(frame, schema, backend)
        missing = column.missing(xp)
        if column.dictionary is not None:
            table = backend.to_device(positions_in(column.dictionary, strings(self.classes_ or ())))
            index = xp.append(table, -1)[column.data].astype("int32")
            unknown = (index < 0) & (column.data >= 0)
            if bool(unknown.any()):
                code = int(backend.to_host(column.data[unknown][:1])[0])
                raise BadData(
                    f"target {self.text!r}",
                    "a class that was not there in fit",
                    got=column.dictionary[code].as_py(),
                    expected=f"one of {self.classes_}",
                    remedy="fit on data that holds every class",
                )
            return Column("int32", index, ~missing if missing is not None and bool(missing.any()) else None)
        data = column.data.astype("float32")
        if self.classes_ is not None and column.dtype != "bool" and bool(((data != 0) & (data != 1)).any()):
            raise BadData(
                f"target {self.text!r}",
                "a value other than 0 and 1 in a binary target",
                got=float(backend.to_host(data[(data != 0) & (data != 1)][:1])[0]),
                expected="0 or 1",
                remedy="fit on data that holds every value, or target='int(...) == 1'",
            )
        return Column("float32", data if missing is None else xp.where(missing, xp.float32(xp.nan), data))

    def get_state(self) -> dict[str, Any]:
        """The classes."""
        return {"classes_": None if self.classes_ is None else list(self.classes_)}

    def set_state(self, state: Mapping[str, Any]) -> Self:
        """Take back what `get_state` gave; returns self."""
        self.classes_ = None if state["classes_"] is None else tuple(state["classes_"])
        return self


class Weight(_Label):
    """How much each row counts: a number that is never negative, never missing."""

    role = Role.WEIGHT

    def field(self, schema: Schema) -> Field:
        """The stored weight, float32.

        Raises:
            BadConfig: it is no number.
        """
        raw = self.raw_field(schema)
        if raw.dtype not in (*INTEGERS, *FLOATS, "bool"):
            raise BadConfig(
                f"weight {self.text!r}",
                "a weight has to be a number",
                got=raw.dtype,
                expected="numbers",
                remedy="a numeric column",
            )
        return replace(raw, dtype="float32", kind=Kind.CONTINUOUS)

    def column(self, frame: Frame, schema: Schema, backend: Backend) -> Column:
        """The stored weights of one frame.

        Raises:
            BadData: a weight is negative, infinite or missing.
        """
        xp = backend.xp
        column = self.raw_column(frame, schema, backend)
        missing = column.missing(xp)
        data = column.data.astype("float32")
        bad = (data < 0) | ~xp.isfinite(data)
        if missing is not None:
            bad |= missing
        if bool(bad.any()):
            raise BadData(
                f"weight {self.text!r}",
                f"{int(bad.sum())} weights are negative, infinite or missing",
                expected="numbers from 0 up",
                remedy=f"weight='fillna({self.text}, 1.0)' or a Filter",
            )
        return Column("float32", data)
