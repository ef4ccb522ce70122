"""Description of one column: the figures that a report shows of its summary, its bars, and what is remarkable."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np

from gpupipe.errors import BadConfig, nearest
from gpupipe.io.description.column_summary import ColumnSummary, NumberSummary, ValueSummary
from gpupipe.schema import INTEGERS, Field, get_element_dtype
from gpupipe.support.attributes import Answering
from gpupipe.support.text import format_count
from gpupipe.support.text_kinds import explain_likeness, explain_texts

MAX_BARS = 16
_NUM_TOP = 5
_QUARTERS = np.array([0.25, 0.5, 0.75])
_LEAST_ID_ROWS, _LEAST_ID_SHARE = 20, 0.98
_MANY_TEXTS = 1_000  # distinct ones, among which some are alike by chance
_ID_NAME = re.compile(
    r"(^|[\W_])(?i:id|key|no|nr|number|code|index)$|[a-z](Id|ID|Key|No|Nr|Number|Code|Index)$|^(?i:id)_"
)


class Bar(NamedTuple):
    """Bar of a distribution: a value or a range in words, and how many values are in it."""

    label: str
    size: int


@dataclass(frozen=True)
class ColumnDescription(Answering):
    """Description of one column; of lists its figures are those of the elements.

    What a type has not is None: text has neither mean nor quartiles, times have no `std`, booleans no quartiles.

    Args:
        num_missing: rows without a value.
        num_distinct: different present values; about so many unless `is_exact` (within 1 %, of tables of up to 64
            columns).
        std: the sample's standard deviation.
        q25: the lower quartile; as `median` and `q75` exact for up to 65,536 different values, else within one in 500.
        top: the most frequent values and in how many rows they are, the most frequent first, at most five.
        bars: of few different values each one, else ranges of numbers of equal width, or the most frequent texts.
        association: Cramér's V with the target of the report, from 0 to 1.
        notes: what is remarkable, in words.
    """

    _ELSEWHERE: ClassVar = {"avg": "'mean'", "average": "'mean'", "nunique": "'num_distinct'"}

    name: str
    dtype: str
    num_rows: int
    num_missing: int
    num_distinct: int | None
    is_exact: bool = True
    mean: Any = None
    std: float | None = None
    min: Any = None
    q25: Any = None
    median: Any = None
    q75: Any = None
    max: Any = None
    top: tuple[tuple[Any, int], ...] = ()
    bars: tuple[Bar, ...] = ()
    association: float | None = None
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: object) -> NoReturn:
        """Raise BadConfig with the attribute that has the figure."""
        names = [each.name for each in fields(self)]
        figure = nearest(str(name), names) or "mean"
        where, expected = f"describe()[{self.name!r}][...]", f"an attribute, one of {', '.join(names)}"
        remedy = f"describe()[{self.name!r}].{figure}"
        raise BadConfig(where, "a column's figures are attributes", got=name, expected=expected, remedy=remedy)

    @property
    def missing(self) -> float:
        """The share of rows without a value."""
        return self.num_missing / self.num_rows if self.num_rows else 0.0

    @property
    def distinct_text(self) -> str:
        """The number of different values, with a sign where it is an estimate."""
        if self.num_distinct is None:
            return ""
        return f"{self.num_distinct:,}" if self.is_exact else f"~{float(f'{self.num_distinct:.3g}'):,.0f}"


def describe_column(item: Field, summary: ColumnSummary, association: float | None) -> ColumnDescription:
    """Describe a column by its summary."""
    facts, values = _Facts(item, summary), summary.present
    head = (item.name, item.dtype, summary.num_rows, summary.num_missing)
    if values is None:
        distinct = None if summary.lengths is None and summary.num_missing < summary.num_rows else 0
        return ColumnDescription(*head, distinct, association=association, notes=tuple(facts.list_notes()))
    numbers = values.numbers
    figures: dict[str, Any] = {"min": facts.to_value(values.low), "max": facts.to_value(values.high)}
    if numbers is not None:
        figures["mean"] = numbers.mean if values.dtype == "bool" else facts.to_value(numbers.mean)
        if values.dtype not in ("bool", "timestamp"):
            figures["std"] = numbers.std
        if values.dtype != "bool":
            quarters = numbers.histogram.quantiles(_QUARTERS).tolist()
            figures |= zip(("q25", "median", "q75"), map(facts.to_value, quarters), strict=True)
    return ColumnDescription(
        *head,
        values.num_distinct,
        values.is_exact,
        **figures,
        top=tuple((facts.to_value(value), count) for value, count in values.frequent.rank(_NUM_TOP)),
        bars=tuple(facts.list_bars(values)),
        association=association,
        notes=tuple(facts.list_notes()),
    )


def looks_like_id(name: str, count: int, low: int, high: int) -> bool:
    """Return whether so many whole numbers, all of which differ, are ids and no amounts: by their name or range.

    In a range of less than ten times their count (a tenth of its square, of less than a hundred), amounts would repeat.

    Example:
        >>> looks_like_id("population", 300, 40, 900_000), looks_like_id("customer_id", 300, 40, 900_000)
        (False, True)
    """
    return bool(_ID_NAME.search(name)) or high - low < count * min(10, count / 10)


def format_value(value: Any, *, is_date: bool = False) -> str:
    """Format a value of a column for a table."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, np.datetime64):
        text = str(value).replace("T", " ").removesuffix(".000000")
        return text.partition(" ")[0] if is_date else text
    return str(value)


class _Facts:
    """Facts of a column on their way into its description."""

    def __init__(self, item: Field, summary: ColumnSummary) -> None:
        self.item, self.summary = item, summary
        self.is_date = item.written_as.startswith("date")

    def to_value(self, value: Any) -> Any:
        """Convert a value from a summary's form to the column's: times from microseconds, booleans from 0 and 1."""
        dtype = get_element_dtype(self.item.dtype) or self.item.dtype
        if dtype == "timestamp":
            return np.datetime64(round(value), "us") if math.isfinite(value) else None
        return bool(value) if dtype == "bool" else value

    def format(self, value: Any) -> str:
        """Format a value as summaries hold it."""
        return format_value(self.to_value(value), is_date=self.is_date)

    def list_bars(self, values: ValueSummary) -> Iterator[Bar]:
        """List the bars of a distribution."""
        few = values.frequent.error == 0 and values.num_distinct <= MAX_BARS
        if values.numbers is None or few:
            ranked = values.frequent.rank(MAX_BARS)
            ranked = ranked if values.numbers is None else sorted(ranked)
            yield from (Bar(self.format(value), count) for value, count in ranked)
            return
        is_whole, histogram = values.dtype in INTEGERS, values.numbers.histogram
        edges = _find_edges(values.numbers, is_whole=is_whole)
        if not np.isfinite(edges).all():
            return
        counts = _count_between(histogram.values, histogram.counts, edges)
        for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True):
            ends = dict.fromkeys(map(self.format, (low, high - 1 if is_whole else high)))
            yield Bar(" to ".join(ends), count)

    def list_notes(self) -> Iterator[str]:
        """List what is remarkable about the column."""
        summary, values = self.summary, self.summary.present
        if summary.num_rows and summary.num_missing == summary.num_rows:
            yield "no value"
        if summary.lengths is not None:
            low, high = summary.lengths
            yield f"{low:,} to {format_count(high, 'element')}" if low < high else format_count(low, "element")
        if summary.num_missing_elements:
            yield f"{format_count(summary.num_missing_elements, 'missing element')}"
        if values is None or summary.lengths is not None:
            return
        num_present = summary.num_rows - summary.num_missing
        may_be_id = values.dtype == "string"
        if values.is_whole:
            may_be_id = looks_like_id(self.item.name, values.num_distinct, values.low, values.high)
        if values.low == values.high and num_present > 1:
            yield f"constant: {self.format(values.low)}{' or missing' if summary.num_missing else ''}"
        elif may_be_id and num_present >= _LEAST_ID_ROWS:
            if values.is_exact and values.num_distinct == num_present:
                yield "an id: no value occurs twice"
            elif not values.is_exact and values.num_distinct >= _LEAST_ID_SHARE * num_present:
                yield "looks like an id: about as many values as rows"
        if values.numbers is not None and not (math.isfinite(values.low) and math.isfinite(values.high)):
            yield "infinite values"
        if note := _explain_texts(self.item.name, values):
            yield note


def _explain_texts(name: str, values: ValueSummary) -> str:
    """Say what the texts stand for, or which of them differ in spaces or in case alone; else nothing."""
    counts = values.count_texts()
    if kinds := explain_texts(name, counts):
        return f"texts of {kinds}"
    return explain_likeness(name, counts) if values.num_distinct < _MANY_TEXTS else ""


def _find_edges(numbers: NumberSummary, *, is_whole: bool) -> Any:
    """Return the edges of bars: from the least to the greatest value, or as far as the bulk of the values goes.

    Where less than a hundredth of the values lies more than a quarter of the bulk's width beyond it, they would leave
    one bar of all others; the first and the last bar count them.
    """
    histogram = numbers.histogram
    low, bulk_low, bulk_high, high = histogram.quantiles(np.array([0.0, 0.01, 0.99, 1.0])).tolist()
    margin = bulk_high / 4 - bulk_low / 4  # the difference itself may be more than a float holds
    if margin > 0:
        low, high = max(low, bulk_low - margin), min(high, bulk_high + margin)
    if is_whole:
        low, high = math.floor(low), math.floor(high) + 1
        width = -(-(high - low) // MAX_BARS)
        return low + width * np.arange(-(-(high - low) // width) + 1, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # of infinite values
        return np.linspace(low / 2, high / 2, MAX_BARS + 1) * 2


def _count_between(values: Any, counts: Any, edges: Any) -> Any:
    """Count values between edges; those beyond the first and the last edge count as in the bar beside it."""
    places = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return np.bincount(places, weights=counts, minlength=len(edges) - 1).astype(np.int64)
