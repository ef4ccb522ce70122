"""Pipeline diagrams: boxes from source to tensors, as text and as HTML without scripts, files or colours."""

from __future__ import annotations

import html
from collections.abc import Sequence

from gpupipe.pipeline.feature_group import FeatureGroup
from gpupipe.pipeline.features import Features
from gpupipe.support.text import format_columns, shorten_list
from gpupipe.transforms import Transform
from gpupipe.transforms.table_join import TableJoin

__all__ = ["diagram", "outline"]

# Borders and text have the page's own colour, so that light and dark notebooks both show them.
_BOX = "border:1px solid;border-radius:4px;padding:2px 8px;margin:2px;display:inline-block;vertical-align:middle"
_ROW = "display:flex;flex-wrap:wrap;align-items:center;margin:2px 0"
_PALE = "opacity:.7"


def outline(steps: Sequence[Transform], features: Features | None) -> str:
    """Render the pipeline as text, a line per step and per group of features."""
    lines = [repr(step) for step in steps]
    if features is not None:
        lines += [f"features: {' -> '.join([group.given, *map(repr, group.steps)])}" for group in features.groups]
        if features.target is not None:
            lines.append(f"target: {' -> '.join([features.target.text, *map(repr, features.target.group.steps)])}")
        lines += [] if features.weight is None else [f"weight: {features.weight.text}"]
        lines += [f"keep: {format_columns(features.keep)}"] if features.keep else []
    return "Pipeline\n  " + "\n  ".join(lines or ["nothing"])


def diagram(steps: Sequence[Transform], features: Features | None) -> str:
    """Render the pipeline as HTML: the columns read, the transforms in order, each group of features, and the outputs.

    Example:
        >>> diagram([], None)[:27]
        '<div style="font-family:mon'
    """
    tables = [f"table {step.name}" for step in steps if isinstance(step, TableJoin)]
    sources = [_box("data"), *(_prefix_box("+", _box(table)) for table in tables)]
    rows = [_row([*sources, *(_arrow(_box(s.class_name, repr(s))) for s in steps)])]
    if features is not None:
        rows += [_row(_group(group, "features")) for group in features.groups]
        if features.target is not None:
            rows.append(_row(_group(features.target.group, "target")))
        if features.weight is not None:
            rows.append(_row([_box(features.weight.text), _arrow(_box("weight"))]))
        if features.keep:
            rows.append(_row([_box(shorten_list(features.keep), format_columns(features.keep)), _arrow(_box("kept"))]))
    return f'<div style="font-family:monospace;font-size:90%">{"".join(rows)}</div>'


def _group(group: FeatureGroup, made: str) -> list[str]:
    names = group.given if group.selector is not None else shorten_list(group.columns)
    steps = [_arrow(_box(step.class_name, repr(step))) for step in group.steps]
    return [_box(names, group.given), *steps, _arrow(_box(made if group.name is None else f"{made} {group.name}_*"))]


def _row(cells: Sequence[str]) -> str:
    return f'<div style="{_ROW}">{"".join(cells)}</div>'


def _arrow(box: str) -> str:
    return _prefix_box("&rarr;", box)


def _prefix_box(sign: str, box: str) -> str:
    return f'<span style="{_PALE}">{sign}</span>{box}'


def _box(text: str, title: str = "") -> str:
    told = f' title="{html.escape(title)}"' if title and title != text else ""
    return f'<span style="{_BOX}"{told}>{html.escape(text)}</span>'
