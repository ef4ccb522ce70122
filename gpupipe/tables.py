"""Rows of cells as aligned text and as HTML, for what shows itself."""

from __future__ import annotations

import html
from collections.abc import Sequence

__all__ = ["html_table", "text_table"]


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the first the head, in aligned columns.

    Example:
        >>> print(text_table([["column", "dtype"], ["x", "float64"]]))
        column  dtype
        x       float64
    """
    rows = [[_one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _one_line(cell: str) -> str:
    """What would break a line, or not be seen, as Python writes it."""
    return cell if cell.isprintable() else repr(cell)[1:-1]


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the first the head, as HTML.

    Example:
        >>> html_table([["column"], ["a<b"]])
        '<table><thead><tr><th>column</th></tr></thead><tbody><tr><td>a&lt;b</td></tr></tbody></table>'
    """
    head, *body = [[html.escape(cell) for cell in row] for row in rows]
    cells = "".join(f"<th>{cell}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
