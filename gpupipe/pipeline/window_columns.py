"""Window steps' columns: computed from a whole Dataset before a pass, and looked up by row in it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from gpupipe.backend import Backend, Column, Frame
from gpupipe.errors import BadConfig
from gpupipe.io import Dataset
from gpupipe.io.planning.table import Table
from gpupipe.io.relational.side_columns import SideColumns, compute_columns
from gpupipe.io.relational.sort import ensure_unique_row_ids
from gpupipe.pipeline.plan import TransformPlan
from gpupipe.schema import ROW
from gpupipe.step import in_step
from gpupipe.support.text import shorten_list
from gpupipe.transforms import Join

__all__ = ["Typed", "materialize_window_columns"]

_log = logging.getLogger("gpupipe")

Typed = Callable[[Frame, Backend], Frame]
"""Gives the columns of a frame as read the types that steps expect."""


def materialize_window_columns(
    prefix: TransformPlan, dataset: Dataset, backend: str, typed: Typed | None = None
) -> tuple[TransformPlan, Dataset]:
    """Compute the columns of window steps; return the plan that contains them, and the dataset to run it on.

    Args:
        prefix: the steps.
        dataset: all rows that such a step is to see.
        backend: `"cpu"` or `"gpu"`.
        typed: what is done to a frame before the first step; None does nothing.

    Raises:
        BadConfig: a join that repeats rows stands before such a step.

    Memory: see `compute_columns`.
    """
    if not prefix.window_steps:
        return prefix, dataset
    blind = [
        step.class_name
        for step, _, _ in map(prefix.window_step, prefix.window_steps)
        if dataset.query.cuts_history(step.keys)
    ]
    if blind:
        _log.warning(
            "%s: a split part of the data, whose rows do not see those of the other parts; for a whole history "
            "transform first, gp.Pipeline(steps).fit(data).transform(data), and split what comes out",
            shorten_list(dict.fromkeys(blind)),
        )
    dataset = ensure_unique_row_ids(replace(dataset, backend=backend))
    found: dict[int, SideColumns] = {}
    for position in prefix.window_steps:
        before = prefix.prefix_of(position, found)
        _check_identities(before)
        step, schema, wanted = prefix.window_step(position)
        inputs = list(schema.select(step.reads))
        made = [item for item in step.made_fields(schema) if item.name in wanted]
        plan = partial(step.plan, schema=schema, wanted=frozenset(wanted), backend=backend)
        rows = None if typed is None and before.is_empty else _Gathering(before, typed)
        with in_step(step):
            found[position] = compute_columns(dataset, inputs, step.keys, plan, made, type(step).__name__, rows)
    return prefix.with_side_columns(found), dataset


def _check_identities(before: TransformPlan) -> None:
    for step in before.steps:
        if isinstance(step, Join) and step.many:
            raise BadConfig(
                "Pipeline",
                "a window step follows a join that repeats rows",
                got=step,
                expected="rows that can be told apart",
                remedy="the join after it, or Dataset.join(..., many=True) before the pipeline",
            )


@dataclass(frozen=True)
class _Gathering:
    """Function that reads a partition's columns for a window step."""

    before: TransformPlan
    typed: Typed | None

    def __call__(self, part: Table, backend: Backend) -> Frame:
        (partition,) = part.partitions
        ids = partition.row_ids(backend.xp)
        frame = part.read(partition, self.before.reads, backend)
        frame = frame if self.typed is None else self.typed(frame, backend)
        frame = self.before.copy().run(frame, backend, ids)
        return backend.assign(frame, {ROW: Column("uint64", ids[backend.positions(frame)])})
