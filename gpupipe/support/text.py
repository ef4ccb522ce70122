"""Text helpers: lists of names, integers and plurals for messages; text and HTML tables for reprs."""

from __future__ import annotations

import html
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from math import inf
from typing import Any, ClassVar

from gpupipe.errors import BadConfig, nearest
from gpupipe.support.attributes import Answering

_SHORTEST_RUN = 5
_MOST_ROWS, _FIRST_ROWS, _LAST_ROWS = 100, 40, 10
_BAR_PIXELS = 120


def _is_argument(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def arguments(named: Mapping[str, Any]) -> str:
    """Write arguments by name as Python; those whose names it does not take are in a mapping: `a=1, **{'class': 2}`."""
    other = {name: value for name, value in named.items() if not _is_argument(name)}
    parts = [f"{name}={value!r}" for name, value in named.items() if name not in other]
    return ", ".join([*parts, f"**{other!r}"] if other else parts)


def refer_to(column: str) -> str:
    """Write a column as an expression does: by its name, or as `col('my column')`."""
    return column if _is_argument(column) else f"col({column!r})"


def derive(column: str, expression: str, name: str | None = None) -> str:
    """Write the step that makes `name`, by default in its place, of a column, which is `{}` in the expression."""
    return f"Derive({arguments({column if name is None else name: expression.format(refer_to(column))})})"


def parse_number(text: str) -> int | float | None:
    """Parse the finite number that a text spells; None where it spells none.

    Example:
        >>> parse_number("1850"), parse_number("-1.5"), parse_number("inf")
        (1850, -1.5, None)
    """
    for parse in (int, float):
        with suppress(ValueError):
            number: int | float = parse(text)
            return number if -inf < number < inf else None
    return None


def write_cast(column: str, dtype: str, expression: str = "") -> str:
    """Write the step that casts a column, after the one that makes it of an expression, if it is made of one."""
    derived = f"T.Derive({arguments({column: expression})}), " if expression else ""
    return f"{derived}T.Cast({{{column!r}: {dtype!r}}})"


def write_time_formats(column: str, texts: str = "other text", form: str = "%m/%d/%Y") -> str:
    """Write the calls that parse a column of text which is not in ISO 8601, for an error that knows no text of it."""
    form = repr(form)
    read = f"gp.read_csv(..., timestamp_formats={{{column!r}: {form}}})"
    return f"of {texts} {read}, or pd.to_datetime(frame[{column!r}], format={form}), in the format that it has"


def escape_line(text: str) -> str:
    r"""Escape line breaks and invisible characters as Python does: a name or a value writes no lines of its own.

    Example:
        >>> print(escape_line("delay\nERROR"))
        delay\nERROR
    """
    return text if text.isprintable() else repr(text)[1:-1]


def escape_html(text: str) -> str:
    """Escape a line of text for HTML; see `escape_line`."""
    return html.escape(escape_line(text))


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun, for a message; `plural` is where it takes no -s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def format_columns(names: Sequence[str], most: int = 12) -> str:
    """Join column names in one line: numbered runs by their ends (`x0 ... x9`), of very many the first and last."""
    entries: list[tuple[str, int]] = []  # with how many names each stands for
    for _, indices in groupby(range(len(names)), key=lambda index: _find_run(names[index], index)):
        run = [names[index] for index in indices]
        if len(run) < _SHORTEST_RUN:
            entries += [(escape_line(name), 1) for name in run]
        else:
            entries.append(
                (f"{escape_line(run[0])} ... {escape_line(run[-1])} ({format_count(len(run), 'column')})", len(run))
            )
    if len(entries) > most:
        num_more = sum(size for _, size in entries[most - 1 : -1])
        entries = [*entries[: most - 1], (f"... {num_more:,} more ...", num_more), entries[-1]]
    return ", ".join(text for text, _ in entries)


def _find_run(name: str, index: int) -> tuple[str, int | None]:
    """Return what a name has in common with its neighbours of one stem and consecutive numbers."""
    digits = re.search(r"(?<!\d)(0|[1-9]\d{0,17})$", name)
    return (name, None) if digits is None else (name[: digits.start()], int(digits[1]) - index)


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of cells, the first the head, in aligned columns; of more than 100 the first and the last."""
    rows = [list(map(escape_line, row)) for row in _shorten_rows(rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def flush_right(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Pad all cells but the first of each row, so that the digits of a column align."""
    widths = [0, *(max(map(len, column)) for column in list(zip(*rows, strict=True))[1:])]
    return [list(map(str.rjust, row, widths)) for row in rows]


class TableReport(Answering):
    """Base class of reports that display as text and in a notebook: a title, a table, and notes."""

    notes: Sequence[str] = ()

    @property
    def _title(self) -> str:
        return ""

    @property
    def _bars(self) -> Sequence[float]:
        return ()  # a length per row, in shares of the longest

    def _table(self) -> Sequence[Sequence[str]]:
        """Return rows of cells, the first the head; none at all for no table."""
        raise NotImplementedError

    def __repr__(self) -> str:
        table = self._table()
        title, *notes = map(escape_line, (self._title, *self.notes))
        return "\n".join(filter(None, [title, text_table(table) if table else "", *notes]))

    def _repr_html_(self) -> str:
        title, *notes = (f"<p>{escape_html(line)}</p>" if line else "" for line in (self._title, *self.notes))
        table = self._table()
        return "".join([title, html_table(table, self._bars) if table else "", *notes])


class RowTable(TableReport):
    """Base class of tables of figures, whose first column names the row; displays itself."""

    rows: list[dict[str, Any]]
    _formats: ClassVar[Mapping[str, str]] = {"rows": ",", "seconds": ".1f", "std": ".2g"}

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows' names, as over those of a mapping."""
        return (next(iter(row.values())) for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: Any) -> dict[str, Any]:
        names = [*self]
        if name not in names:
            near = nearest(str(name), list(map(str, names)))
            remedy = f"[{names[0] if near is None else near!r}]" if names else "rows"
            raise BadConfig(type(self).__name__, "no such row", got=name, expected=f"one of {names}", remedy=remedy)
        return self.rows[names.index(name)]

    def _table(self) -> list[list[str]]:
        head = list(self.rows[0]) if self.rows else ["model"]
        return flush_right([head, *([self._format(name, row[name]) for name in head] for row in self.rows)])

    def _format(self, name: str, value: Any) -> str:
        return (value or "") if isinstance(value, str | None) else format(value, self._formats.get(name, ".4g"))


def html_table(rows: Sequence[Sequence[str]], bars: Sequence[float] = ()) -> str:
    """Format rows of cells, the first the head, as HTML, columns of numbers flush right; of more than 100 as text.

    `bars` are lengths from 0 to 1, one per row but the head, drawn at the rows' ends; more than 100 rows have none.
    """
    head, *body = _shorten_rows(rows)
    # Said for each cell, since notebooks set all of them flush right by rules for cells.
    sides = ["right" if all(map(_is_figure, column)) else "left" for column in zip(*body, strict=True)]

    def line(row: Sequence[str], tag: str, drawing: str = "") -> str:
        pairs = zip(sides or ["left"] * len(head), row, strict=True)
        cells = (f'<{tag} style="text-align:{side}">{escape_html(cell)}</{tag}>' for side, cell in pairs)
        return f"<tr>{''.join(cells)}{drawing}</tr>"

    drawings = [f"<td>{_draw_bar(length)}</td>" for length in bars] if len(bars) == len(body) else [""] * len(body)
    lines = "".join(line(row, "td", drawing) for row, drawing in zip(body, drawings, strict=True))
    top = line(head, "th", "<th></th>" if any(drawings) else "")
    return f"<table><thead>{top}</thead><tbody>{lines}</tbody></table>"


def _draw_bar(length: float) -> str:
    return f'<div style="width:{_BAR_PIXELS * length:.0f}px;height:0.8em;background:#1f77b4"></div>'


def _shorten_rows(rows: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
    head, *body = rows
    if len(body) <= _MOST_ROWS:
        return rows
    gap = [f"... {len(body) - _FIRST_ROWS - _LAST_ROWS:,} more ...", *[""] * (len(head) - 1)]
    return [head, *body[:_FIRST_ROWS], gap, *body[-_LAST_ROWS:]]


def _is_figure(cell: str) -> bool:
    return re.fullmatch(r"\s*([+-]?[\d,]+(\.\d+)?(e[+-]?\d+)?%?)?\s*", cell) is not None
