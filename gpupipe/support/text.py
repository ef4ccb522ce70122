"""Text helpers: lists of names, integers and plurals for messages; text and HTML tables for reprs."""

from __future__ import annotations

import html
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SHORTEST_RUN = 5


def as_list(words: str | Iterable[str]) -> list[str]:
    """Convert one or several words, such as columns' names, to a list; one word becomes a list of one.

    Example:
        >>> as_list("origin"), as_list(("origin", "dest"))
        (['origin'], ['origin', 'dest'])
    """
    return [words] if isinstance(words, str) else list(words)


def arguments(named: Mapping[str, Any]) -> str:
    """Write arguments by name as Python; names that it does not take as such are in a mapping.

    Example:
        >>> arguments({"night": "hour < 6", "class": "x * 2"})
        "night='hour < 6', **{'class': 'x * 2'}"
    """
    plain = {name: value for name, value in named.items() if name.isidentifier() and not keyword.iskeyword(name)}
    other = {name: value for name, value in named.items() if name not in plain}
    return ", ".join([*(f"{name}={value!r}" for name, value in plain.items()), *([f"**{other!r}"] if other else [])])


def derive(column: str, expression: str, made: str | None = None) -> str:
    r"""Write the step that makes a column of another one, for an error's remedy.

    Args:
        column: the one that is read.
        expression: with `{}` where it stands.
        made: the name of the new one; by default it takes the other's place.

    Example:
        >>> derive("x", "round({})"), derive("a b", "len({})", "n")
        ("Derive(x='round(x)')", 'Derive(n="len(col(\'a b\'))")')
    """
    read = column if column.isidentifier() and not keyword.iskeyword(column) else f"col({column!r})"
    return f"Derive({arguments({column if made is None else made: expression.format(read)})})"


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun, for a message.

    Example:
        >>> format_count(1, "row"), format_count(24_951, "row")
        ('1 row', '24,951 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shorten_list(words: Iterable[str], most: int = 4) -> str:
    """Join words in one short line, and count the rest.

    Example:
        >>> shorten_list(["temp", "dewp"]), shorten_list("abcdef", 2)
        ('temp, dewp', 'a, b and 4 more')
    """
    every = list(words)
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def format_columns(names: Sequence[str], most: int = 12) -> str:
    """Join column names in one line: numbered runs by their ends; of very many the first and the last.

    Example:
        >>> format_columns(["id", *(f"x{number}" for number in range(2000)), "y"]), format_columns("abcdef", 3)
        ('id, x0 ... x1999 (2,000 columns), y', 'a, b, ... 3 more ..., f')
    """
    told: list[str] = []
    sizes: list[int] = []
    place = 0
    while place < len(names):
        size = _run(names, place)
        run = names[place : place + size]
        parts = [f"{run[0]} ... {run[-1]} ({format_count(size, 'column')})"] if size >= _SHORTEST_RUN else list(run)
        told, sizes, place = told + parts, sizes + [size // len(parts)] * len(parts), place + size
    if len(told) > most:
        told = [*told[: most - 1], f"... {sum(sizes[most - 1 : -1]):,} more ...", told[-1]]
    return ", ".join(told)


def _run(names: Sequence[str], start: int) -> int:
    """Count the names from `start` on that have one stem and consecutive numbers."""
    stem, number = _split_number(names[start])
    size = 1
    while (
        number is not None and start + size < len(names) and _split_number(names[start + size]) == (stem, number + size)
    ):
        size += 1
    return size


def _split_number(name: str) -> tuple[str, int | None]:
    digits = re.search(r"(?<!\d)(0|[1-9]\d{0,17})$", name)
    return (name, None) if digits is None else (name[: digits.start()], int(digits[1]))


_MOST_ROWS, _FIRST_ROWS, _LAST_ROWS = 100, 40, 10


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of cells, the first the head, in aligned columns; of more than 100 the first and the last.

    Example:
        >>> print(text_table([["column", "dtype"], ["x", "float64"]]))
        column  dtype
        x       float64
    """
    rows = [[_one_line(cell) for cell in row] for row in _shorten_rows(rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def flush_right(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Pad all cells but the first of each row, so that the digits of a column align.

    Example:
        >>> flush_right([["model", "rmse"], ["Ridge", "2"]])
        [['model', 'rmse'], ['Ridge', '   2']]
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [[row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))] for row in rows]


def _one_line(cell: str) -> str:
    """Escape line breaks and invisible characters as Python does."""
    return cell if cell.isprintable() else repr(cell)[1:-1]


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of cells, the first the head, as HTML; align a column of numbers right, others left.

    Of more than 100 rows the first and the last are shown.

    Example:
        >>> html_table([["column"], ["a<b"]])[70:]
        '<tbody><tr><td style="text-align:left">a&lt;b</td></tr></tbody></table>'
    """
    head, *body = _shorten_rows(rows)
    # Said for each cell, since notebooks set all of them flush right by rules for cells.
    sides = ["right" if all(map(_is_figure, column)) else "left" for column in zip(*body, strict=True)]
    sides = sides or ["left"] * len(head)

    def line(row: Sequence[str], tag: str) -> str:
        cells = (
            f'<{tag} style="text-align:{side}">{html.escape(cell)}</{tag}>'
            for side, cell in zip(sides, row, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    lines = "".join(line(row, "td") for row in body)
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{lines}</tbody></table>"


def _shorten_rows(rows: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
    head, *body = rows
    if len(body) <= _MOST_ROWS:
        return rows
    gap = [f"... {len(body) - _FIRST_ROWS - _LAST_ROWS:,} more ...", *[""] * (len(head) - 1)]
    return [head, *body[:_FIRST_ROWS], gap, *body[-_LAST_ROWS:]]


def _is_figure(cell: str) -> bool:
    return re.fullmatch(r"\s*([+-]?[\d,]+(\.\d+)?(e[+-]?\d+)?%?)?\s*", cell) is not None
