"""Plots of result files as SVG that needs nothing to be shown: bars with their range, and lines on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

INK, PALE, OURS, OTHERS = "#57606a", "#77777744", "#76b900", "#8aa1b4"
INK_ON_BLACK = "#adbac7"
LINES = ("#76b900", "#3f7fbf", "#c06030", "#8860b0")
WIDTH, NAME_WIDTH, BAR, GAP = 800, 290, 18, 8
NAME_HEIGHT = 14
FONT = 'font-family="system-ui, sans-serif" font-size="12"'

Spread = Mapping[str, float]


def bars(
    title: str,
    unit: str,
    figures: Mapping[str, Spread],
    *,
    ours: str | tuple[str, ...] = "gpupipe",
    digits: int = 1,
) -> str:
    """A bar for each name, as long as its median, with a line from the smallest to the largest; shorter is better.

    Args:
        title: of the plot, for those who cannot see it too.
        unit: what the medians are in.
        figures: median, min and max by name.
        ours: names that begin with this, or one of these, have the other colour.
        digits: after the point.
    """
    largest = max(found["max"] for found in figures.values()) or 1.0
    room = WIDTH - NAME_WIDTH - 90
    drawn = []
    for place, (name, found) in enumerate(figures.items()):
        top = 30 + place * (BAR + GAP)
        middle, low, high = (NAME_WIDTH + room * found[key] / largest for key in ("median", "min", "max"))
        text, line = top + BAR - 5, top + BAR / 2
        colour = OURS if name.startswith(ours) else OTHERS
        drawn += [
            _text(NAME_WIDTH - 8, text, name, anchor="end"),
            f'<rect x="{NAME_WIDTH}" y="{top}" width="{middle - NAME_WIDTH:.1f}" height="{BAR}" fill="{colour}"/>',
            f'<path d="M{low:.1f} {line}H{high:.1f}M{low:.1f} {line - 4}v8M{high:.1f} {line - 4}v8" class="ink"/>',
            _text(max(high, middle) + 8, text, f"{found['median']:.{digits}f}"),
        ]
    return _framed(f"{title}, {unit}", drawn, 36 + len(figures) * (BAR + GAP))


def lines(title: str, across: str, unit: str, series: Mapping[str, Mapping[float, Spread]]) -> str:
    """A line for each series on axes that are both logarithmic: what is proportional rises by a decade in a decade."""
    sizes = [size for found in series.values() for size in found]
    values = [each[key] for found in series.values() for each in found.values() for key in ("min", "max")]
    left, right, top, bottom = 70, WIDTH - 170, 40, 320
    lowest, highest = (round_(math.log10(edge(sizes))) for edge, round_ in ((min, math.floor), (max, math.ceil)))
    least, most = (round_(math.log10(edge(values))) for edge, round_ in ((min, math.floor), (max, math.ceil)))

    def x(size: float) -> float:
        return left + (right - left) * (math.log10(size) - lowest) / max(highest - lowest, 1)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (math.log10(value) - least) / max(most - least, 1)

    placed: list[float] = []
    drawn = [_text((left + right) / 2, bottom + 34, across, anchor="middle")]
    for power in range(lowest, highest + 1):
        drawn.append(f'<path d="M{x(10**power):.1f} {top}V{bottom}" stroke="{PALE}"/>')
        drawn.append(_text(x(10**power), bottom + 16, _power_of_ten(power), anchor="middle"))
    for power in range(least, most + 1):
        drawn.append(f'<path d="M{left} {y(10**power):.1f}H{right}" stroke="{PALE}"/>')
        drawn.append(_text(left - 8, y(10**power) + 4, f"{10.0**power:g}", anchor="end"))
    ends = {name: list(found.values())[-1]["median"] for name, found in series.items()}
    colours = dict(zip(series, LINES, strict=False))
    for name in sorted(colours, key=lambda name: -ends[name]):  # the highest first: names give way downwards
        found, colour = series[name], colours[name]
        points = [(x(size), y(each["median"])) for size, each in found.items()]
        path = "L".join(f"{across_:.1f} {up:.1f}" for across_, up in points)
        drawn.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn += [f'<circle cx="{across_:.1f}" cy="{up:.1f}" r="3" fill="{colour}"/>' for across_, up in points]
        placed.append(_free(points[-1][1] + 4, placed))
        drawn.append(_text(points[-1][0] + 8, placed[-1], name, colour=colour))
    return _framed(f"{title}, {unit}", drawn, bottom + 44)


def _free(height: float, taken: Sequence[float]) -> float:
    """The height nearest below or at this one where a name touches none of those that stand already."""
    touched = [other for other in taken if abs(other - height) < NAME_HEIGHT]
    return _free(max(touched) + NAME_HEIGHT, taken) if touched else height


def _power_of_ten(power: int) -> str:
    """Short, since every power on the axis has its own."""
    names = {3: "k", 6: "M", 9: "G"}
    base = max((known for known in names if known <= power), default=0)
    return f"{10 ** (power - base)}{names.get(base, '')}"


def _text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = "") -> str:
    drawn = f'fill="{colour}"' if colour else 'class="words"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {drawn} {FONT}>{escape(words)}</text>'


def _framed(title: str, drawn: Sequence[str], height: float) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
    ink = f".words {{ fill: {INK} }} .ink {{ stroke: {INK} }}"
    on_black = ink.replace(INK, INK_ON_BLACK)
    style = f"<style>{ink} @media (prefers-color-scheme: dark) {{ {on_black} }}</style>"
    return "\n".join([head, f"<title>{escape(title)}</title>", style, _text(8, 18, title), *drawn, "</svg>"]) + "\n"
