"""Statistics of the rows of the same key that lie shortly before a row, or anywhere before it."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import ModuleType
from typing import Literal

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.columns import floats
from gpupipe.durations import microseconds_of
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.schema import Field, Schema
from gpupipe.support.validation import check_choice, check_integer, check_names, is_integer, refuse_argument
from gpupipe.transforms.segments import Segments
from gpupipe.transforms.stretches import STATS, statistics
from gpupipe.transforms.whole_table import WholeTableTransform
from gpupipe.words import as_list

__all__ = ["Expanding", "Rolling"]


class _Windowed(WholeTableTransform):
    """What two steps with a window before each row have in common."""

    columns: list[str]
    stats: str | Sequence[str]
    min_periods: int | None
    closed: str

    @property
    def _rows(self) -> int | None:
        """How many rows a window has at most, where the user says so."""
        return None

    def _check_window(self) -> None:
        """Raise `BadConfig` for a statistic, a number of values or a side that there is not."""
        check_names(self, empty=False, stats=self.stats)
        for stat in as_list(self.stats):
            check_choice(self, STATS, stats=stat)
        check_integer(
            self, f"[0, {self._rows or 'inf'}{']' if self._rows else ')'}", None, min_periods=self.min_periods
        )
        check_choice(self, ("left", "right"), closed=self.closed)

    @property
    def inputs(self) -> list[str]:
        return self.columns

    @abstractmethod
    def _what(self, stat: str) -> list[str]:
        """What stands between the column's name and the keys' in that of a new column."""

    @property
    @abstractmethod
    def _least(self) -> int:
        """How many values a window has to have."""

    @abstractmethod
    def _stretch(self, segments: Segments, frame: Frame) -> tuple[Array, Array, Array | None, int]:
        """Of each place the first place of its window and that behind it, whether there is one, and the longest."""

    @property
    def makes(self) -> list[str]:
        return [self._name(name, *self._what(stat)) for name in self.columns for stat in as_list(self.stats)]

    def made_fields(self, schema: Schema) -> list[Field]:
        where, stats = type(self).__name__, as_list(self.stats)
        may_lack_key = any(schema[name].nullable for name in [*self.keys, *self.order])
        made = []
        for item in self._numbers(schema, self.columns):
            for stat in stats:
                dtype = "int64" if stat == "count" else "float64"
                new = Field.derived(self._name(item.name, *self._what(stat)), dtype, [item], where)
                made.append(replace(new, nullable=stat != "count" or may_lack_key))
        return made

    def made_columns(
        self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend
    ) -> dict[str, Column]:
        segments = Segments.of(frame, self.keys, self.order, backend)
        first, behind, there, longest = self._stretch(segments, frame)
        made = {}
        for name in self.columns:
            names = {stat: self._name(name, *self._what(stat)) for stat in as_list(self.stats)}
            names = {stat: out for stat, out in names.items() if out in wanted}
            if not names:
                continue
            values = floats(backend.column(frame, name), backend.xp)[segments.order]
            found = statistics(list(names), values, first, behind, longest, self._least, backend)
            for stat, out in names.items():
                made[out] = segments.column(found[stat], "int64" if stat == "count" else "float64", there)
        return made


class Rolling(_Windowed):
    """Statistics of the last rows of the same key, or of the last days; pandas' `groupby(by).rolling(window)`.

    New columns are called `dep_delay_rolling_mean_3_by_tailnum` or `dep_delay_rolling_mean_7_days_by_tailnum`, and are
    float64; a `count` is int64.

    A window ends with the row itself. What is to be predicted from the past alone must not hold the row's own value:
    `closed="left"` ends the window before the row, and a window of time before all rows of the same time. Else rows
    alike in `order_by` stand as in the table, and those that stand earlier are in the window.

    Args:
        columns: numbers or booleans; missing values are left out.
        window: so many rows, or a time such as `"7 days"` or `"12 hours"`, for which `order_by` names one timestamp; a
            row without a time has missing values and is in no window.
        stats: of `"count"`, `"sum"`, `"mean"`, `"std"` and `"var"` (with n - 1), `"min"`, `"max"`.
        by: the key columns; this and the next as for `Lag`.
        order_by: the columns that put the rows of a key in order.
        min_periods: so many values a window has to have, or its statistics (but not `count`) are missing. By default as
            many as it has rows, or one where the window is a time, as in pandas.
        closed: `"right"` for the window (t - w, t], `"left"` for [t - w, t), in rows as in time.

    Raises:
        BadConfig: no such window, statistic, `closed` or `min_periods`; a window of time without one time as order; or
            a column of a new one's name is there.
        SchemaMismatch: a column holds no numbers, or the order is no time.

    Memory: of a frame, twenty arrays of n float64 and the new columns. Of a Dataset see `docs/guide-groups.md`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"plane": ["a", "b", "a", "a"], "delay": [5.0, 1.0, 3.0, 7.0]})
        >>> step = Rolling("delay", 2, "mean", by="plane", min_periods=1, closed="left")
        >>> step.transform(frame)["delay_rolling_mean_2_by_plane"].tolist()
        [nan, nan, 5.0, 4.0]
    """

    def __init__(
        self,
        columns: str | Sequence[str],
        window: int | str,
        stats: str | Sequence[str] = "mean",
        *,
        by: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
        min_periods: int | None = None,
        closed: Literal["left", "right"] = "right",
    ) -> None:
        super().__init__(by, order_by)
        check_names(self, columns=columns)
        if not is_integer(window, 1) and not (isinstance(window, str) and microseconds_of(window)):
            expected = "a number of rows, or one of seconds, minutes, hours, days or weeks"
            raise refuse_argument(self, "window", window, expected, "window='7 days'")
        self.columns = as_list(columns)
        self.window, self.stats, self.min_periods, self.closed = window, stats, min_periods, closed
        self._check_window()

    def made_fields(self, schema: Schema) -> list[Field]:
        if self._microseconds is not None:
            times = [schema[name] for name in self.order]
            if len(times) != 1:
                raise BadConfig(
                    "Rolling",
                    "a window of time goes by one time",
                    got=self.order_by,
                    expected="one timestamp column as order_by",
                    remedy="order_by='time_hour'",
                )
            if times[0].dtype != "timestamp":
                raise SchemaMismatch(
                    f"Rolling, column {times[0].name!r}",
                    "it is no time, and the window is one",
                    got=times[0].dtype,
                    expected="a timestamp",
                    remedy="window=7, which are rows",
                )
        return super().made_fields(schema)

    def _what(self, stat: str) -> list[str]:
        return ["rolling", stat, re.sub(r"\s+", "_", str(self.window).strip())]

    @property
    def _least(self) -> int:
        if self.min_periods is not None:
            return self.min_periods
        return self._rows or 1

    @property
    def _rows(self) -> int | None:
        return None if isinstance(self.window, str) else int(self.window)

    @property
    def _microseconds(self) -> int | None:
        """The window's length in time; None where it is one in rows."""
        return microseconds_of(self.window) if isinstance(self.window, str) else None

    def _stretch(self, segments: Segments, frame: Frame) -> tuple[Array, Array, Array | None, int]:
        xp, place, span, rows = segments.backend.xp, segments.places, self._microseconds, self._rows
        behind = place + 1 if self.closed == "right" else place
        if span is None:
            assert rows is not None
            return xp.maximum(segments.start, behind - rows), behind, None, min(rows, len(segments))
        time = segments.backend.column(frame, self.order[0])
        missing = time.missing(xp)
        times = time.data[segments.order]
        limit = times - (span - 1 if self.closed == "right" else span)
        there = None if missing is None else ~missing[segments.order]
        if there is not None:  # nobody asks for their windows, and they are in no other
            limit = xp.where(there, limit, times)
        first = _first_from(times, limit, segments.start, place, xp)
        if self.closed == "left":
            behind = _first_from(times, times, first, place, xp)
        longest = segments.backend.to_host(xp.max(behind - first)[None])[0] if len(segments) else 0
        return first, behind, there, int(longest)


class Expanding(_Windowed):
    """Statistics of all rows of the same key up to a row; pandas' `groupby(by).expanding()`.

    New columns are called `dep_delay_expanding_mean_by_tailnum`; a cumulative sum is `stats="sum"`. What is to be
    predicted from the past alone must not hold the row's own value: `closed="left"` leaves it out, see `Rolling`.

    Args:
        columns: numbers or booleans; missing values are left out.
        stats: as for `Rolling`.
        by: the key columns; this and the next as for `Lag`.
        order_by: the columns that put the rows of a key in order.
        min_periods: so many values there have to be, or the statistics (but not `count`) are missing.
        closed: `"left"` leaves the row itself out, `"right"` does not.

    Raises:
        BadConfig: no such statistic or `closed`; or a column of a new one's name is there.
        SchemaMismatch: a column holds no numbers.

    Memory: as `Rolling`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"plane": ["a", "b", "a"], "delay": [5.0, 1.0, 3.0]})
        >>> Expanding("delay", "sum", by="plane").transform(frame)["delay_expanding_sum_by_plane"].tolist()
        [5.0, 1.0, 8.0]
    """

    def __init__(
        self,
        columns: str | Sequence[str],
        stats: str | Sequence[str] = "mean",
        *,
        by: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
        min_periods: int = 1,
        closed: Literal["left", "right"] = "right",
    ) -> None:
        super().__init__(by, order_by)
        check_names(self, columns=columns)
        self.columns = as_list(columns)
        self.stats, self.min_periods, self.closed = stats, min_periods, closed
        self._check_window()

    def _what(self, stat: str) -> list[str]:
        return ["expanding", stat]

    @property
    def _least(self) -> int:
        return 1 if self.min_periods is None else self.min_periods

    def _stretch(self, segments: Segments, frame: Frame) -> tuple[Array, Array, Array | None, int]:
        xp = segments.backend.xp
        behind = segments.places + (self.closed == "right")
        longest = segments.backend.to_host(xp.max(behind - segments.start)[None])[0] if len(segments) else 0
        return segments.start, behind, None, int(longest)


def _first_from(times: Array, limit: Array, low: Array, high: Array, xp: ModuleType) -> Array:
    """The first place from `low` on whose time is not below the limit, at most `high`: all bisections at once."""
    for _ in range(len(times).bit_length()):
        middle = (low + high) // 2
        below = (low < high) & (times[xp.minimum(middle, len(times) - 1)] < limit)
        low, high = xp.where(below, middle + 1, low), xp.where(below, high, middle)
    return low
