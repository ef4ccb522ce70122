"""Date parts: columns from times, as parts of the date, cyclic features, or time since another one."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import numpy as np

from gpupipe.backend import Backend, Column, Frame
from gpupipe.backend.columns import require_comparable_constant, require_comparable_times
from gpupipe.backend.dates import (
    CYCLES,
    DATE_FLAGS,
    DATE_PARTS,
    check_zone,
    compute_phase,
    date_parts,
    local_time,
)
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.expressions.times import seconds_between
from gpupipe.expressions.tree import Constant, Span
from gpupipe.schema import Field, Schema, suggest_times
from gpupipe.support.times import parse_microseconds
from gpupipe.support.validation import as_list, check_choice, check_name, check_names, refuse_argument
from gpupipe.transforms.transform import Names, Transform

_SECONDS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86_400.0, "weeks": 604_800.0}


class DateParts(Transform):
    """Add columns made of times, in UTC and the Gregorian calendar (before 1582 too); the times themselves stay.

    Args:
        columns: timestamps; where one is missing, so is every part.
        parts: `year`, `quarter`, `month`, `week` (of ISO 8601), `day`, `dayofyear`, `dayofweek` (Monday is 0), `hour`,
            `minute`, `second`, int32; `is_weekend`, `is_month_start`, `is_month_end` and the same of `quarter` and
            `year`, booleans. The column `at_hour` is the hour of `at`.
        cyclic: parts as places on a circle, so that the last hour is next to the first: `at_hour_sin` and
            `at_hour_cos`, float32. A `day` goes round its own month, a `dayofyear` its own year.
        since: a time in ISO 8601, or another timestamp column: `at_since` is the float64 time passed, negative before.
        unit: of the time passed, `"seconds"`, `"minutes"`, `"hours"`, `"days"` or `"weeks"`.
        tz: a time zone such as `"America/New_York"`, whose local time, summer time included, `parts` and `cyclic` are
            of; UTC by default. `since` does not depend on it.

    Raises:
        BadConfig: no such part, unit or time zone, nothing is asked for, or a column of the name is there already.
        SchemaMismatch: a column holds no times.

    Memory: the new columns, and up to ten int32 per row.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"at": pd.to_datetime(["2013-02-02"])})
        >>> DateParts("at", ["month", "is_weekend"], since="2013-01-01").transform(frame).iloc[:, 1:].to_dict("records")
        [{'at_month': 2, 'at_is_weekend': True, 'at_since': 32.0}]
    """

    def __init__(
        self,
        columns: Names,
        parts: Names = (),
        *,
        cyclic: Names = (),
        since: str | None = None,
        unit: str = "days",
        tz: str | None = None,
    ) -> None:
        check_names(self, columns=columns, parts=parts, cyclic=cyclic)
        self.columns, self.parts, self.cyclic = as_list(columns), as_list(parts), as_list(cyclic)
        for part in self.parts:
            check_choice(self, (*DATE_PARTS, *DATE_FLAGS), parts=part)
        for part in self.cyclic:
            check_choice(self, CYCLES, cyclic=part)
        value: Any = since
        if hasattr(value, "isoformat"):
            expected = "a time as text in ISO 8601, or a column"
            raise refuse_argument(self, "since", value, expected, f"since={value.isoformat()!r}")
        check_name(self, None, since=since)
        check_choice(self, _SECONDS, unit=unit)
        if not (self.parts or self.cyclic or since):
            raise refuse_argument(self, "parts", parts, "a part, a cyclic one, or since", "parts=['year']")
        self.since, self.unit, self.tz = since, unit, tz
        check_zone(self, tz)

    def output_schema(self, schema: Schema) -> Schema:
        self._check(schema)
        fields = []
        for item in (schema[name] for name in self.columns):
            for part in self.parts:
                dtype = "bool" if part in DATE_FLAGS else "int32"
                field = Field.derived(f"{item.name}_{part}", dtype, [item], "DateParts")
                fields.append(replace(field, nullable=item.nullable))
            both = [f"{item.name}_{part}_{function}" for part in self.cyclic for function in ("sin", "cos")]
            fields += [Field.derived(name, "float32", [item], "DateParts") for name in both]
            if self.since is not None:
                reads = [item, *(schema[name] for name in self._other(schema))]
                fields.append(Field.derived(f"{item.name}_since", "float64", reads, "DateParts"))
        duplicates = [item.name for item in fields if item.name in schema]
        if duplicates:
            problem, remedy = "a column of this name is there already", f"Drop({duplicates[0]!r}) or Rename before it"
            raise BadConfig("DateParts", problem, got=duplicates[0], expected="new names", remedy=remedy)
        return schema.assign(fields)

    def needs(self, outputs: AbstractSet[str], schema: Schema) -> set[str]:
        needed = set(outputs)
        for name in self.columns:
            names = set(self._made_of(name)) & outputs
            if names:
                needed = (needed - names) | {name}
            if f"{name}_since" in names:
                needed.update(self._other(schema))
        return needed

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        xp = backend.xp
        columns: dict[str, Column] = {}
        for name in self.columns:
            names = [output for output in self._made_of(name) if output in outputs]
            if not names:
                continue
            time = backend.column(frame, name)
            local = local_time(time, self.tz, backend)
            parts = [part for part in self.parts if f"{name}_{part}" in names]
            columns |= {f"{name}_{part}": column for part, column in date_parts(parts, local).items()}
            for part in self.cyclic:
                functions = {n: getattr(xp, n) for n in ("sin", "cos") if f"{name}_{part}_{n}" in names}
                angle = compute_phase(part, local) * (2 * np.pi) if functions else None
                for function, of in functions.items():
                    columns[f"{name}_{part}_{function}"] = Column("float32", of(angle).astype("float32"))
            if f"{name}_since" in names:
                columns[f"{name}_since"] = self._passed(time, frame, schema, backend)
        return backend.assign(frame, columns) if columns else frame

    def _passed(self, time: Column, frame: Frame, schema: Schema, backend: Backend) -> Column:
        start: Column | Constant
        if other := self._other(schema):
            start = backend.column(frame, other[0])
        else:
            start = Constant(parse_microseconds(self.since or ""), "timestamp", Span(0, 0))
        return Column("float64", seconds_between(time, start, backend.xp).data / _SECONDS[self.unit])

    def _made_of(self, name: str) -> Iterator[str]:
        """Yield the names of the new columns of one column."""
        yield from (f"{name}_{part}" for part in self.parts)
        yield from (f"{name}_{part}_{function}" for part in self.cyclic for function in ("sin", "cos"))
        if self.since is not None:
            yield f"{name}_since"

    def _other(self, schema: Schema) -> list[str]:
        """Return the column that times are counted from, if it is one."""
        return [self.since] if self.since is not None and self.since in schema else []

    def _check(self, schema: Schema) -> None:
        schema.require(self.columns, "DateParts")
        for name in (*self.columns, *self._other(schema)):
            if schema[name].dtype != "timestamp":
                where, dtype = f"DateParts of column {name!r}", schema[name].dtype
                remedy = suggest_times(name, dtype)
                raise SchemaMismatch(where, "no times", got=dtype, expected="timestamp", remedy=remedy)
        for other in self._other(schema):
            for name in self.columns:
                require_comparable_times(schema[name], schema[other], "DateParts(since=)")
        if self.since is not None and not self._other(schema):
            try:
                parse_microseconds(self.since)
            except (TypeError, ValueError):
                problem = "since is no time and no column"
                expected, remedy = "a time in ISO 8601, or the name of a timestamp column", "since='2013-01-01'"
                raise BadConfig("DateParts", problem, got=self.since, expected=expected, remedy=remedy) from None
            for name in self.columns:
                require_comparable_constant(schema[name], self.since, "DateParts(since=)")
