"""Datetime encoding: times as numbers for a network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpupipe.backend import Backend, Column
from gpupipe.backend.expressions.dates import CYCLES, check_zone, compute_phase, date_parts, local_time
from gpupipe.errors import SchemaMismatch
from gpupipe.expressions import DATE_FLAGS, DATE_PARTS
from gpupipe.preprocessing.learned_step import Columns, StatelessStep
from gpupipe.schema import Field
from gpupipe.support.validation import as_list, check_choice, check_names, refuse_argument


class DatetimeEncoder(StatelessStep):
    """Datetime encoding: parts of the date and cyclic features, float32 and missing where the time is.

    `transforms.DateParts`, of which `parts`, `cyclic` and `tz` are, adds the same as columns that other steps can use.
    Flags become 0 and 1, each cycle a sine and a cosine.

    Raises:
        SchemaMismatch: a column holds no times.

    Memory: n float32 per output, and up to ten int32 per row.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"at": pd.to_datetime(["2013-02-02 06:00"])})
        >>> DatetimeEncoder(["year", "is_weekend"], cyclic="hour").fit_transform(frame).round(3).values.tolist()
        [[2013.0, 1.0, 1.0, 0.0]]
    """

    fills_late = False  # no imputer takes times

    def __init__(
        self,
        parts: str | Sequence[str] = ("year", "is_weekend"),
        *,
        cyclic: str | Sequence[str] = ("dayofyear", "weekday", "hour"),
        tz: str | None = None,
    ) -> None:
        check_names(self, parts=parts, cyclic=cyclic)
        for part in as_list(parts):
            check_choice(self, (*DATE_PARTS, *DATE_FLAGS), parts=part)
        for part in as_list(cyclic):
            check_choice(self, CYCLES, cyclic=part)
        if not as_list(parts) and not as_list(cyclic):
            raise refuse_argument(self, "parts", parts, "one part at least, or a cyclic one")
        check_zone(self, tz)
        self.parts, self.cyclic, self.tz = parts, cyclic, tz

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        for item in fields:
            if item.dtype != "timestamp":
                where, remedy = f"DatetimeEncoder, column {item.name!r}", f"Cast({{{item.name!r}: 'timestamp'}}) before"
                raise SchemaMismatch(where, "no times", got=item.dtype, expected="timestamp", remedy=remedy)
        named = [(name, item) for item in fields for name in self.output_names([item.name])]
        return [Field.derived(name, "float32", [item], "DatetimeEncoder") for name, item in named]

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names of the outputs: for each column its parts, then sine and cosine of its cycles."""
        made = []
        for name in names:
            made += [f"{name}_{part}" for part in as_list(self.parts)]
            made += [f"{name}_{part}_{function}" for part in as_list(self.cyclic) for function in ("sin", "cos")]
        return made

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, made = backend.xp, {}
        for name, given in columns.items():
            time = local_time(given, self.tz, backend)
            for part, column in date_parts(as_list(self.parts), time).items():
                values = column.data.astype("float32")
                if column.valid is not None:
                    values[~column.valid] = np.nan
                made[f"{name}_{part}"] = Column("float32", values)
            for part in as_list(self.cyclic):
                angle = compute_phase(part, time) * (2 * np.pi)
                made[f"{name}_{part}_sin"] = Column("float32", xp.sin(angle).astype("float32"))
                made[f"{name}_{part}_cos"] = Column("float32", xp.cos(angle).astype("float32"))
        return made
