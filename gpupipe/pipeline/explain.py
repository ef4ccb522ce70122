"""Fit plans explained before the fit, and diagrams from source to tensors, as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Self

from gpupipe.backend import select
from gpupipe.cluster import default_threads
from gpupipe.errors import ArtifactError
from gpupipe.io import Dataset, row_bytes
from gpupipe.pipeline.feature_group import FeatureGroup
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.plan import FitTask, TransformPlan, collect_wanted, mark_source, plan_passes, resolve_selectors
from gpupipe.pipeline.serialization import Encoder
from gpupipe.preprocessing import GatheredStep
from gpupipe.step import Step
from gpupipe.support.text import format_columns, format_count, shorten_list
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


class Explanation(str):
    """Text that a notebook shows below a diagram."""

    __slots__ = ("picture",)

    picture: str

    def __new__(cls, text: str, picture: str) -> Self:
        """Create the text with its diagram, which is HTML."""
        made = super().__new__(cls, text)
        made.picture = picture
        return made

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        return type(self), (str(self), self.picture)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"{self.picture}<pre>{html.escape(self)}</pre>"


def explain_fit(
    steps: Sequence[Transform],
    features: Features | None,
    dataset: Dataset | None,
    backend: str,
) -> Explanation:
    """Explain what a fit on this data would do; without data, only what follows from the steps."""
    picture, lines = diagram(steps, features), ["nothing is learned"]
    if features is not None:
        if dataset is not None:
            features = features.copy()
            resolve_selectors(steps, features, dataset.schema, strict=False)
        passes = plan_passes(features)
        lines = [_brings_together(step) for step in steps if isinstance(step, WholeTableTransform)]
        lines += [_learns(number, task) for number, tasks in enumerate(passes, 1) for task in tasks]
        lines += [line for tasks in passes for task in tasks for line in _samples(task, dataset)]
        lines += features.left_out
        lines += [] if dataset is None else _costs(steps, features, dataset, backend)
    return Explanation("\n".join([*lines, *unsaveable(steps, features)]), picture)


def unsaveable(steps: Sequence[Transform], features: Features | None) -> list[str]:
    """List a line for each step that `save` would refuse, judged by the steps' parameters."""
    learned = [] if features is None else [step for group in features.learned for step in group.steps]
    return [line for step in (*steps, *learned) if (line := _unsaveable(step)) is not None]


def _brings_together(step: WholeTableTransform) -> str:
    of_what = f"of each {', '.join(step.keys)}" if step.keys else "of the table"
    return f"before: {step.class_name} of {format_columns(step.inputs) or 'rows'} brings all rows {of_what} together"


def _learns(number: int, task: FitTask) -> str:
    return f"pass {number}: {' + '.join(step.class_name for step in task.steps)} of {task.group.given}"


def _samples(task: FitTask, dataset: Dataset | None) -> list[str]:
    """Describe the steps that learn from gathered rows: from all of them, or from a sample."""
    told = []
    for step in (step for step in task.steps if isinstance(step, GatheredStep)):
        what = f"{step.class_name} of {task.group.given}"
        rows = None if dataset is None else sum(partition.num_rows for partition in dataset.partitions)
        if rows is None or rows > step.max_rows:
            told.append(f"sampled: {what} learns from at most {step.max_rows:,} rows, gathered in memory")
        else:
            told.append(f"gathered: {what} learns from all rows, in memory")
    return told


def _costs(steps: Sequence[Transform], features: Features, dataset: Dataset, backend: str) -> list[str]:
    """Estimate what the first pass reads, and its memory: a partition per thread, read and transformed."""
    source = mark_source(steps, features, dataset.schema)
    wanted = collect_wanted(plan_passes(features), features, TransformPlan(steps, source, None).output_schema)
    prefix = TransformPlan(steps, source, wanted, counting=True)
    reads = prefix.reads
    width = row_bytes(source.select(reads)) + row_bytes(prefix.output_schema.select(prefix.wanted))
    rows = max(partition.num_rows for partition in dataset.partitions)
    at_once = min(1 if backend == "gpu" else default_threads(), dataset.num_partitions)
    skipped = [name for name in source.names if name not in reads]
    parts = f"{at_once} of {format_count(dataset.num_partitions, 'partition')} at a time"
    parts += f", up to {format_count(rows, 'row')} of {width} bytes"
    return [
        f"reads: {format_columns(list(map(_format_name, reads)))}",
        f"not read: {format_columns(list(map(_format_name, skipped))) or 'nothing'}",
        f"memory: about {rows * width * at_once / 1e9:.2f} GB ({parts})",
    ]


def _format_name(name: str) -> str:
    """Format a column's name, in quotes where it is empty or contains a comma."""
    return name if name.strip() and "," not in name else repr(name)


def _unsaveable(step: Step) -> str | None:
    """Return why `save` would refuse a step, judged by its parameters; None where it would not."""
    params = {name: value for name, value in step.get_params().items() if name != "right"}
    try:
        Encoder(select("cpu"), 0).unfitted(step, params)
    except ArtifactError as error:
        return f"cannot be saved: {error.where}, {error.problem}: {error.got}"
    return None
