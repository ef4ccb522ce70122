"""Fit plans explained before the fit, and diagrams from source to tensors, as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from copy import copy

from gpupipe.cluster.executor import default_threads
from gpupipe.io import Dataset, row_bytes
from gpupipe.pipeline.apply import TransformPlan
from gpupipe.pipeline.features import FeatureGroup, Features
from gpupipe.pipeline.fit import FitTask, collect_wanted, mark_source, plan_passes, resolve_selectors
from gpupipe.preprocessing import GatheredStep
from gpupipe.schema import shorten_list
from gpupipe.support.text import format_columns, format_count
from gpupipe.transforms import Transform, WholeTableTransform
from gpupipe.transforms.join import TableJoin

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
    """Render the pipeline as HTML: the columns read, the transforms, each group of features, and the outputs."""
    tables = [_box(f"table {step.name}", sign="+") for step in steps if isinstance(step, TableJoin)]
    rows = [[_box("data"), *tables, *(_box(step.class_name, repr(step), "&rarr;") for step in steps)]]
    if features is not None:
        rows += [_draw_group(group, "features") for group in features.groups]
        rows += [] if features.target is None else [_draw_group(features.target.group, "target")]
        rows += [] if features.weight is None else [[_box(features.weight.text), _box("weight", sign="&rarr;")]]
        kept = [_box(shorten_list(features.keep), format_columns(features.keep)), _box("kept", sign="&rarr;")]
        rows += [kept] if features.keep else []
    lines = "".join(f'<div style="{_ROW}">{"".join(cells)}</div>' for cells in rows)
    return f'<div style="font-family:monospace;font-size:90%">{lines}</div>'


def _draw_group(group: FeatureGroup, made: str) -> list[str]:
    names = group.given if group.selector is not None else shorten_list(group.columns)
    steps = [_box(step.class_name, repr(step), "&rarr;") for step in group.steps]
    made = made if group.name is None else f"{made} {group.name}_*"
    return [_box(names, group.given), *steps, _box(made, sign="&rarr;")]


def _box(text: str, title: str = "", sign: str = "") -> str:
    told = f' title="{html.escape(title)}"' if title and title != text else ""
    before = f'<span style="{_PALE}">{sign}</span>' if sign else ""
    return f'{before}<span style="{_BOX}"{told}>{html.escape(text)}</span>'


class Explanation(str):
    """Text that a notebook shows below a diagram."""

    __slots__ = ("picture",)
    picture: str  # HTML

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"{self.picture}<pre>{html.escape(self)}</pre>"


def explain_fit(
    steps: Sequence[Transform],
    features: Features | None,
    dataset: Dataset | None,
    backend: str,
    unsaveable: Sequence[str],
) -> Explanation:
    """Explain what a fit on this data would do; without data, only what follows from the steps."""
    lines = ["nothing is learned"] if features is None else []
    if features is not None:
        if dataset is not None:
            features = copy(features)
            resolve_selectors(steps, features, dataset.schema, strict=False)
        passes = plan_passes(features)
        for step in (step for step in steps if isinstance(step, WholeTableTransform)):
            what = f"{step.class_name} of {format_columns(step.inputs) or 'rows'}"
            of_what = f"of each {', '.join(step.keys)}" if step.keys else "of the table"
            lines.append(f"before: {what} brings all rows {of_what} together")
        lines += [
            f"pass {number}: {' + '.join(step.class_name for step in task.steps)} of {task.group.given}"
            for number, tasks in enumerate(passes, 1)
            for task in tasks
        ]
        lines += [line for tasks in passes for task in tasks for line in _explain_samples(task, dataset)]
        lines += features.left_out
        lines += [] if dataset is None else _estimate_costs(steps, features, dataset, backend)
    explanation = Explanation("\n".join([*lines, *unsaveable]))
    explanation.picture = diagram(steps, features)
    return explanation


def _explain_samples(task: FitTask, dataset: Dataset | None) -> list[str]:
    """Describe the steps that learn from gathered rows: from all of them, or from a sample."""
    told, rows = [], None if dataset is None else sum(partition.num_rows for partition in dataset.partitions)
    for step in (step for step in task.steps if isinstance(step, GatheredStep)):
        how, of_what = "gathered", "from all rows, in memory"
        if rows is None or rows > step.max_rows:
            how, of_what = "sampled", f"from at most {step.max_rows:,} rows, gathered in memory"
        told.append(f"{how}: {step.class_name} of {task.group.given} learns {of_what}")
    return told


def _estimate_costs(steps: Sequence[Transform], features: Features, dataset: Dataset, backend: str) -> list[str]:
    """Estimate what the first pass reads, and its memory: a partition per thread, read and transformed."""
    source = mark_source(steps, features, dataset.schema)
    wanted = collect_wanted(plan_passes(features), features, TransformPlan(steps, source, None).output_schema)
    plan = TransformPlan(steps, source, wanted, counting=True)
    width = row_bytes(source.select(plan.reads)) + row_bytes(plan.output_schema.select(plan.wanted))
    rows = max(partition.num_rows for partition in dataset.partitions)
    at_once = min(1 if backend == "gpu" else default_threads(), dataset.num_partitions)
    parts = f"{at_once} of {format_count(dataset.num_partitions, 'partition')} at a time"
    parts += f", up to {format_count(rows, 'row')} of {width} bytes"
    return [
        f"reads: {_format_names(plan.reads)}",
        f"not read: {_format_names([name for name in source.names if name not in plan.reads]) or 'nothing'}",
        f"memory: about {rows * width * at_once / 1e9:.2f} GB ({parts})",
    ]


def _format_names(names: Sequence[str]) -> str:
    """Format columns' names, in quotes where one is empty or contains a comma."""
    return format_columns([name if name.strip() and "," not in name else repr(name) for name in names])
