"""Steps that look at other rows of a Dataset: their columns are made before a pass, and found in it by row."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from gpupipe.backend import Backend, Column, Frame
from gpupipe.errors import BadConfig
from gpupipe.io import Dataset
from gpupipe.io.planning.table import Table
from gpupipe.io.relational.side_columns import SideColumns, make_columns
from gpupipe.io.relational.sort import numbered
from gpupipe.pipeline.plan import Prefix
from gpupipe.schema import ROW
from gpupipe.step import in_step
from gpupipe.support.text import shortened
from gpupipe.transforms import Join

__all__ = ["Typed", "put_together"]

_log = logging.getLogger("gpupipe")

Typed = Callable[[Frame, Backend], Frame]
"""Gives the columns of a frame as read the types that steps expect."""


def put_together(prefix: Prefix, dataset: Dataset, backend: str, typed: Typed | None = None) -> tuple[Prefix, Dataset]:
    """The steps with the columns of those among them that look at other rows, and the dataset to run them on.

    Args:
        prefix: the steps.
        dataset: all rows that such a step is to see.
        backend: `"cpu"` or `"gpu"`.
        typed: what is done to a frame before the first step; None does nothing.

    Raises:
        BadConfig: a join that repeats rows stands before such a step.

    Memory: see `make_columns`.
    """
    if not prefix.meeting:
        return prefix, dataset
    blind = [
        step.class_name for step, _, _ in map(prefix.stage, prefix.meeting) if dataset.query.cuts_history(step.keys)
    ]
    if blind:
        _log.warning(
            "%s: a split part of the data, whose rows do not see those of the other parts; for a whole history "
            "transform first, gp.Pipeline(steps).fit(data).transform(data), and split what comes out",
            shortened(dict.fromkeys(blind)),
        )
    dataset = numbered(replace(dataset, backend=backend))
    found: dict[int, SideColumns] = {}
    for position in prefix.meeting:
        before = prefix.before(position, found)
        _check_identities(before)
        step, schema, wanted = prefix.stage(position)
        inputs = list(schema.select(step.reads))
        made = [item for item in step.made_fields(schema) if item.name in wanted]
        plan = partial(step.plan, schema=schema, wanted=frozenset(wanted), backend=backend)
        rows = None if typed is None and before.is_empty else _Gathering(before, typed)
        with in_step(step):
            found[position] = make_columns(dataset, inputs, step.keys, plan, made, type(step).__name__, rows)
    return prefix.knowing(found), dataset


def _check_identities(before: Prefix) -> None:
    for step in before.steps:
        if isinstance(step, Join) and step.many:
            raise BadConfig(
                "Pipeline",
                "a step that looks at other rows stands behind a join that repeats rows",
                got=step,
                expected="rows that can be told apart",
                remedy="the join behind it, or Dataset.join(..., many=True) before the pipeline",
            )


@dataclass(frozen=True)
class _Gathering:
    """What is read of a partition for a step that needs other rows too."""

    before: Prefix
    typed: Typed | None

    def __call__(self, part: Table, backend: Backend) -> Frame:
        (partition,) = part.partitions
        ids = partition.row_ids(backend.xp)
        frame = part.read(partition, self.before.reads, backend)
        frame = frame if self.typed is None else self.typed(frame, backend)
        frame = self.before.copy().run(frame, backend, ids)
        return backend.assign(frame, {ROW: Column("uint64", ids[backend.positions(frame)])})
