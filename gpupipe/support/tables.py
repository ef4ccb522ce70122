"""Text and HTML tables for objects that display themselves."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

__all__ = ["flush_right", "html_table", "text_table"]

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
