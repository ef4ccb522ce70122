"""Small drawings for notebooks, as SVG: lines in a panel, and counts in a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpupipe.support.text import escape_html

GRAY, BLUE = "#888888", "#1f77b4"
PALETTE = (BLUE, "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf")
WIDTH, HEIGHT, MARGIN, LEFT = 260, 140, 22, 44  # of a panel, in pixels; on the left stand numbers
CELL, LABEL_WIDTH = 56, 70  # of a matrix, in pixels
_LONGEST_LABEL = 10  # letters


@dataclass(frozen=True)
class Line:
    """Line of a panel through points of finite numbers."""

    points: Sequence[tuple[float, float]]
    color: str = BLUE
    name: str = ""
    dots: bool = True
    dashed: bool = False


def draw_panel(
    title: str,
    lines: Sequence[Line],
    caption: str,
    *,
    x: tuple[float, float] | None = None,
    y: tuple[float, float] | None = None,
    height: int = HEIGHT,
) -> str:
    """Draw axes with the numbers at their ends `x` and `y`, by default those of the points, and lines between them."""
    points = [point for line in lines for point in line.points]
    (left, right), (low, high) = (
        ends or (min(axis), max(axis)) for ends, axis in zip((x, y), zip(*points, strict=True), strict=True)
    )
    bottom = height - MARGIN
    corner = f"{LEFT},{MARGIN} {LEFT},{bottom} {WIDTH - MARGIN},{bottom}"
    elements = f'<polyline points="{corner}" fill="none" stroke="{GRAY}" stroke-width="0.5"/>'
    for row, end in {MARGIN + 4: high, bottom: low}.items():
        elements += _write(LEFT - 4, row, f"{end:.4g}", GRAY, ' text-anchor="end"')
    for column, end in {LEFT: left, WIDTH - MARGIN: right}.items():
        elements += _write(column, height - 6, f"{end:.4g}", GRAY, ' text-anchor="middle"')
    for index, line in enumerate(lines):
        places = []
        for position, value in line.points:
            across = (position - left) / (right - left) if right > left else 0.5
            up = (value - low) / (high - low) if high > low else 0.5
            places.append((LEFT + across * (WIDTH - LEFT - MARGIN), bottom - up * (bottom - MARGIN)))
        path, dash = " ".join(f"{x:.1f},{y:.1f}" for x, y in places), ' stroke-dasharray="4"' if line.dashed else ""
        elements += f'<polyline points="{path}" fill="none" stroke="{line.color}" stroke-width="1.5"{dash}/>'
        for across, up in places if line.dots else ():
            elements += f'<circle cx="{across:.1f}" cy="{up:.1f}" r="2" fill="{line.color}"/>'
        if line.name:
            elements += _write(WIDTH - MARGIN - 70 + 40 * index, 14, line.name, line.color)
    elements = _write(MARGIN, 14, title, "currentColor", ' font-weight="bold"') + elements
    middle = (LEFT + WIDTH - MARGIN) // 2
    return _svg(WIDTH, height, elements + _write(middle, height - 6, caption, GRAY, ' text-anchor="middle"'))


def draw_matrix(
    title: str, shares: Sequence[Sequence[float]], texts: Sequence[Sequence[str]], labels: Sequence[str]
) -> str:
    """Draw a square of cells, each as dark as its share of 0 to 1; rows are true, columns predicted."""
    short = [label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…" for label in labels]
    top, elements = 2 * MARGIN, _write(MARGIN, 14, title, "currentColor", ' font-weight="bold"')
    for row, name in enumerate(short):
        elements += _write(MARGIN, top + CELL * row + CELL // 2 + 4, name, "currentColor")
        elements += _write(LABEL_WIDTH + MARGIN + CELL * row + 4, top - 6, name, "currentColor")
    for row, (line, words) in enumerate(zip(shares, texts, strict=True)):
        for column, (share, word) in enumerate(zip(line, words, strict=True)):
            across, down = LABEL_WIDTH + MARGIN + CELL * column, top + CELL * row
            elements += f'<rect x="{across}" y="{down}" width="{CELL - 2}" height="{CELL - 2}" fill="{BLUE}" '
            elements += f'fill-opacity="{0.08 + 0.72 * share:.2f}"/>'
            elements += _write(across + 4, down + CELL // 2 + 4, word, "currentColor")
    side = CELL * len(labels)
    caption = _write(MARGIN, top + side + 16, "rows: true, columns: predicted", GRAY)
    return _svg(max(LABEL_WIDTH + 2 * MARGIN + side, WIDTH), top + side + MARGIN, elements + caption)


def join_drawings(drawings: Sequence[str]) -> str:
    """Join drawings, each as wide as a panel, to one, side by side."""
    inner = "".join(text.replace("<svg ", f'<svg x="{WIDTH * index}" ', 1) for index, text in enumerate(drawings))
    return _svg(WIDTH * len(drawings), HEIGHT, inner)


def _write(x: int, y: int, text: str, color: str, style: str = "") -> str:
    return f'<text x="{x}" y="{y}"{style} fill="{color}">{escape_html(text)}</text>'


def _svg(width: int, height: int, elements: str) -> str:
    font = 'font-size="11" font-family="sans-serif"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {font}>{elements}</svg>'
