"""Plan of a fit: how columns are used, which steps learn in which pass, and what a fit reads."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from gpupipe import preprocessing as pre
from gpupipe.cluster.executor import default_threads
from gpupipe.io import Dataset, row_bytes
from gpupipe.pipeline.feature_group import FeatureGroup
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.transform_plan import TransformPlan
from gpupipe.schema import FLOATS, INTEGERS, LISTS, WIDE, Role, Schema
from gpupipe.support.text import format_columns, format_count
from gpupipe.transforms import Expect, Map, Transform, WholeTableTransform

_LEAST_GB = 0.01  # of memory that is shown


def mark_source(steps: Sequence[Transform], features: Features | None, schema: Schema) -> Schema:
    """Return the source's schema, each column the start of a lineage, and those for labels alone marked."""
    plain = Schema(item.as_source() if item.role is None else item.as_source().replace(role=None) for item in schema)
    if features is None:
        return plain
    schemas = infer_schemas(steps, plain)
    labels = trace_columns(steps, schemas, features._label_reads(schemas[-1]))
    labels -= trace_columns(steps, schemas, features.inputs, predicting=True)
    return Schema(replace(item, role=Role.LABEL) if item.name in labels else item for item in plain)


def resolve_selectors(steps: Sequence[Transform], features: Features, schema: Schema, *, strict: bool) -> None:
    """Resolve the selectors of `features`; without `strict`, functions that have not run yet may still add columns."""
    features._resolve(infer_schemas(steps, Schema(item.as_source() for item in schema))[-1], strict=strict)


def infer_schemas(steps: Sequence[Transform], schema: Schema) -> list[Schema]:
    """List the schema before each step and after the last, up to the first function that has not run yet."""
    schemas, is_known = [schema], True
    for step in steps:
        is_known = is_known and not (isinstance(step, Map) and step.dtypes_ is None)
        schemas.append(step.output_schema(schemas[-1]) if is_known else schemas[-1])
    return schemas


def trace_columns(
    steps: Sequence[Transform], schemas: Sequence[Schema], names: AbstractSet[str], *, predicting: bool = False
) -> set[str]:
    """Return the columns that `names` are computed from; functions that read everything, and checks, name none."""
    needed = set(names)
    for step, before in zip(reversed(steps), reversed(schemas[:-1]), strict=True):
        if isinstance(step, Map) and step.reads is None:
            needed -= set(step.adds or ())
        elif not isinstance(step, Expect) and not (predicting and getattr(step, "when", "always") == "train"):
            needed = step.needs(needed, before)
    return needed


@dataclass(frozen=True)
class FitTask:
    """Task of one pass for one group: `size` steps, the `free` first of which learn nothing from rows."""

    group: FeatureGroup
    position: int
    size: int = 1
    free: int = 0

    def reads(self, features: Features, schema: Schema) -> set[str]:
        """Return the columns it reads, including the target's where needed; `schema` is that after the transforms."""
        of_target = self.group.of_target or self.group.cross_fits
        labels = features.target.reads(schema) if of_target and features.target is not None else []
        return set(labels) | (set() if self.group.of_target else set(self.group.columns))

    @property
    def steps(self) -> list[pre.LearnedStep]:
        return self.group.steps[self.position : self.position + self.size]

    @property
    def last(self) -> FitTask:
        """The same for its last step alone."""
        return FitTask(self.group, self.position + self.size - 1)


def plan_passes(features: Features) -> list[list[FitTask]]:
    """Plan the tasks of each pass; there are as many passes as the longest chain of dependent steps."""
    passes: list[list[FitTask]] = []
    for group in features._learned:
        position, number = 0, 0
        while position < len(group.steps):
            free = _num_free(group.steps[position:])
            size = free + 1 + _merges_with_next(group.steps[position + free : position + free + 2])
            if number == len(passes):
                passes.append([])
            passes[number].append(FitTask(group, position, size, free))
            position, number = position + size, number + 1
    return passes


def collect_columns(passes: Sequence[Sequence[FitTask]], features: Features, schema: Schema) -> set[str]:
    """Return the columns that these passes read, the labels' too; `schema` is that after the transforms."""
    read = (task.reads(features, schema) for tasks in passes for task in tasks)
    return features._label_reads(schema).union(*read)


def _num_free(steps: Sequence[pre.LearnedStep]) -> int:
    """Count the steps before the first that learns from the rows; the last one is never among them."""
    free = [*(not _learns(step) for step in steps[:-1]), False].index(False)
    # The fill of an imputer costs nothing where it enters the summary of the step that learns.
    return free - (free > 0 and _learns(steps[free]) and _merges_with_next(steps[free - 1 : free + 1]))


def _learns(step: pre.LearnedStep) -> bool:
    is_constant = isinstance(step, pre.SimpleImputer) and step.strategy == "constant"
    return not is_constant and not isinstance(step, pre.StatelessStep)


def _merges_with_next(steps: Sequence[pre.LearnedStep]) -> bool:
    """Return whether an imputer's fill can enter the summary of the step after it."""
    if len(steps) < 2 or not isinstance(steps[0], pre.SimpleImputer):
        return False
    return not steps[0].add_indicator and steps[1].fills_late


class ColumnUses(NamedTuple):
    """How features use the columns after the transforms."""

    numbers: list[str]
    unscaled: list[str]  # wide numbers that are features without a step
    rangeless: list[str]  # those that steps read, which have no range
    categories: dict[str, pre.Categorify]  # those that become ids unchanged, except for missing values

    @classmethod
    def of(cls, features: Features, schema: Schema) -> Self:
        """Find out how `features` use the columns of `schema`."""
        groups = [group for group in features.groups if group.steps]
        alone = {name for group in features.groups if not group.steps for name in group.columns}
        scaling = [group for group in groups if not isinstance(group.steps[-1], pre.Categorify)]
        scaled = {name for group in scaling for name in group.looks_at}
        dtypes = (*FLOATS, *INTEGERS, "bool")
        numbers = [item.name for item in schema if item.name in scaled and item.dtype in dtypes]
        unscaled = [item.name for item in schema if item.name in alone and item.dtype in WIDE]
        read = {name for group in groups for name in group.looks_at}.difference(numbers)
        rangeless = [item.name for item in schema if item.name in read and item.dtype not in LISTS]
        categories: dict[str, pre.Categorify] = {}
        for group in groups:
            *before, last = group.steps
            if isinstance(last, pre.Categorify) and all(isinstance(step, pre.SimpleImputer) for step in before):
                names = [name for name in group.columns if name in schema and schema[name].dtype not in LISTS]
                categories = dict.fromkeys(names, last) | categories
        return cls(numbers, unscaled, rangeless, categories)


def explain_fit(
    steps: Sequence[Transform], features: Features | None, dataset: Dataset | None, backend: str
) -> list[str]:
    """Explain what a fit on this data would do; without data, only what follows from the steps."""
    if features is None:
        return ["nothing is learned"]
    if dataset is not None:
        features = copy(features)
        resolve_selectors(steps, features, dataset.schema, strict=False)
    passes, lines = plan_passes(features), list[str]()
    for window in (step for step in steps if isinstance(step, WholeTableTransform)):
        what = f"{window.class_name} of {format_columns(window.inputs) or 'rows'}"
        of_what = f"of each {', '.join(window.keys)}" if window.keys else "of the table"
        lines.append(f"before: {what} brings all rows {of_what} together")
    lines += [
        f"pass {number}: {' + '.join(step.class_name for step in task.steps)} of {task.group.caption}"
        for number, tasks in enumerate(passes, 1)
        for task in tasks
    ]
    rows = None if dataset is None else sum(partition.num_rows for partition in dataset.partitions)
    gathered = ((task, step) for tasks in passes for task in tasks for step in task.steps)
    for task, step in gathered:
        if isinstance(step, pre.GatheredStep):
            how, of_what = "gathered", "from all rows, in memory"
            if rows is None or rows > step.max_rows:
                how, of_what = "sampled", f"from at most {step.max_rows:,} rows, gathered in memory"
            lines.append(f"{how}: {step.class_name} of {task.group.caption} learns {of_what}")
    if dataset is None:
        return [*lines, *features.left_out]
    unused = list_unused(steps, features, mark_source(steps, features, dataset.schema))
    return [*lines, *unused, *features.left_out, *_estimate_costs(steps, features, dataset, backend)]


def list_unused(steps: Sequence[Transform], features: Features, source: Schema) -> list[str]:
    """List the steps that make columns for nothing."""
    after = TransformPlan(steps, source, None).output_schema
    names = features.inputs.union(features.keep, features._label_reads(after))
    return TransformPlan(steps, source, names, counting=True).list_unused()


def _estimate_costs(steps: Sequence[Transform], features: Features, dataset: Dataset, backend: str) -> list[str]:
    """Estimate what the first pass reads, and its memory: a partition per thread, read and transformed."""
    source = mark_source(steps, features, dataset.schema)
    names = collect_columns(plan_passes(features), features, TransformPlan(steps, source, None).output_schema)
    plan = TransformPlan(steps, source, names, counting=True)
    width = row_bytes(source.select(plan.reads)) + row_bytes(plan.output_schema.select(plan.outputs))
    rows = max(partition.num_rows for partition in dataset.partitions)
    at_once = min(1 if backend == "gpu" else default_threads(), dataset.num_partitions)
    parts = f"{at_once} of {format_count(dataset.num_partitions, 'partition')} at a time"
    parts += f", up to {format_count(rows, 'row')} of {width} bytes"
    size = rows * width * at_once / 1e9
    unread = _format_names([name for name in source.names if name not in plan.reads]) or "nothing"
    return [
        f"the fit reads: {_format_names(plan.reads)}",
        f"the fit does not read: {unread}",
        f"memory: {f'about {size:.2f}' if size >= _LEAST_GB else f'less than {_LEAST_GB}'} GB ({parts})",
    ]


def _format_names(names: Sequence[str]) -> str:
    """Format columns' names, in quotes where one is empty or contains a comma."""
    return format_columns([name if name.strip() and "," not in name else repr(name) for name in names])
