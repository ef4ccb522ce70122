"""Bars of a distribution, as a line of text and as a small SVG."""

from __future__ import annotations

from collections.abc import Sequence

from gpupipe.support.svg import BLUE
from gpupipe.support.text import escape_html

LEVELS = "▁▂▃▄▅▆▇█"
_HEIGHT, _GAP = 32, 1  # pixels


def format_bars(sizes: Sequence[float]) -> str:
    """Format numbers from 0 up as a line of bars, the highest for the largest, a space for 0.

    Example:
        >>> format_bars([1, 0, 4, 2])
        '▂ █▄'
    """
    largest = max(sizes, default=0)
    steps = (-(-size * len(LEVELS) // largest) if size else 0 for size in sizes)
    return "".join(LEVELS[int(step) - 1] if step else " " for step in steps)


def draw_bars(sizes: Sequence[float], titles: Sequence[str], width: int = 160) -> str:
    """Draw numbers from 0 up as an SVG of bars, each with a title that shows where the pointer is."""
    largest, step = max(sizes, default=0) or 1, width / max(len(sizes), 1)
    rectangles = ""
    for index, (size, title) in enumerate(zip(sizes, titles, strict=True)):
        height = max(size / largest * _HEIGHT, 1.0 if size else 0.0)
        shape = f'x="{index * step:.1f}" y="{_HEIGHT - height:.1f}" width="{step - _GAP:.1f}" height="{height:.1f}"'
        rectangles += f'<rect {shape} fill="{BLUE}"><title>{escape_html(title)}</title></rect>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}" role="img">{rectangles}</svg>'
