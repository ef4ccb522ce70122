"""Transform plan: the steps before the features, pruned to the columns that are wanted after them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from gpupipe.backend import Array, Backend, Column, Frame, select
from gpupipe.errors import BadConfig
from gpupipe.io import Dataset, run_partitions
from gpupipe.io.planning.table import Table
from gpupipe.io.relational.side_columns import Attach, SideColumns, compute_columns
from gpupipe.io.relational.sort import ensure_unique_row_ids
from gpupipe.io.stores import Listing
from gpupipe.pipeline.column_types import cast_as_fitted, lacks_values
from gpupipe.pipeline.stretches import Stretches, is_longer
from gpupipe.pipeline.window_warnings import WindowSteps, find_frame_ends, warn_of_gaps
from gpupipe.schema import INTEGERS, ROW, Schema
from gpupipe.step import in_step
from gpupipe.support.origins import Origins, is_earlier
from gpupipe.support.text import format_columns
from gpupipe.transforms import Cast, Derive, Expect, Join, Rename, Sample, Transform, WholeTableTransform
from gpupipe.transforms.join import JoinAsOf, TableJoin
from gpupipe.transforms.window_transform import TIE

_log = logging.getLogger("gpupipe")
_LEAST_JOINED = 20  # rows, of which none has a match


class _Stage(NamedTuple):
    step: Transform
    schema: Schema  # of its input
    outputs: frozenset[str]


def _find_late_key(step: TableJoin, frame: Frame, backend: Backend) -> str | None:
    """Find a key by which all rows are after those of the table of a join."""
    keys = [key for key in step.keys if backend.dtypes(frame)[key] in (*INTEGERS, "timestamp")]
    ends, table = find_frame_ends(frame, keys, backend), step.table(backend)
    for key, other in zip(step.keys, step.right_keys, strict=True):
        if key in ends and ends[key][0] > find_frame_ends(table, [other], backend).get(other, ends[key])[1]:
            return key
    return None


def _take_later(step: TableJoin) -> str:
    return f"gp.load(path, tables={{{step.name!r}: ...}}) takes a later table"


class TransformPlan:
    """Plan of the transforms in order, pruned to the columns that are wanted after the last (all, with None).

    `predicting` leaves out the steps that drop rows only in training. `data_columns` are those of the source that the
    data has: others are not checked by `Expect`, of which those that raise are applied, or if `counting` all.
    """

    casts: Mapping[str, str] = {}  # the types that steps expect of the columns that the data stores as another
    side_columns: Mapping[int, SideColumns] = {}
    """Of window steps, by position; without these, `run` takes a frame to hold all rows there are."""
    ties: Mapping[int, int] = {}
    """The rows that are alike in key and order to the row before them, of window steps that have some, by position."""

    def __init__(
        self,
        steps: Sequence[Transform],
        schema: Schema,
        outputs: Iterable[str] | None,
        *,
        predicting: bool = False,
        data_columns: AbstractSet[str] | None = None,
        counting: bool = False,
    ) -> None:
        self.steps, schemas = [s for s in steps if not (predicting and getattr(s, "when", "") == "train")], [schema]
        for step in self.steps:
            schemas.append(step.output_schema(schemas[-1]))
        self.output_schema = schemas.pop()
        needed = set(self.output_schema.names if outputs is None else outputs)
        self.outputs = [name for name in self.output_schema.names if name in needed]
        if len(self.outputs) < len(needed):
            self.output_schema.require(sorted(needed), "pipeline")
        lacking = set() if data_columns is None else {*schema.names} - data_columns
        self.blind_joins = set[str]()  # those that are warned of, once in a job
        self._stages: list[_Stage] = []
        for step, before in zip(reversed(self.steps), reversed(schemas), strict=True):
            used_as = step
            if isinstance(step, Expect):
                columns = step.columns if counting or step.on_violation == "raise" else []
                used_as = step.of([name for name in columns if lacking.isdisjoint(before[name].lineage)])
            self._stages.insert(0, _Stage(used_as, before, frozenset(needed)))
            needed = used_as.needs(needed, before)
        self.reads = [name for name in schema.names if name in needed]
        self._source = schema
        self.keeps_rows = not any(step.changes_rows for step in self.steps)
        self.adds_rows = any(step.adds_rows for step in self.steps)

    @property
    def draws_rows(self) -> bool:
        """Whether `run` asks for the rows' identities."""
        return bool(self.side_columns) or any(isinstance(step, Sample) for step in self.steps)

    @property
    def window_steps(self) -> WindowSteps:
        """By its position each window step whose columns are wanted, the schema before it, and these columns."""
        return {
            position: (step, before, [name for name in step.makes if name in outputs])
            for position, (step, before, outputs) in enumerate(self._stages)
            if isinstance(step, WholeTableTransform) and not outputs.isdisjoint(step.makes)
        }

    @property
    def joins(self) -> list[TableJoin]:
        """The joins of which columns are wanted."""
        return [
            step
            for step, before, outputs in self._stages
            if isinstance(step, TableJoin) and not outputs <= {*before.names}
        ]

    def list_unused(self) -> list[str]:
        """List the steps with columns that neither they nor anything after them uses, as sentences."""
        sentences = []
        for step, before, outputs in self._stages:
            added = [name for name in step.output_schema(before).names if name not in before]
            used = {*outputs, *step.trace(outputs)[1]} if isinstance(step, Derive) else outputs
            unused = [name for name in added if name not in used]
            is_table = isinstance(step, TableJoin) and len(unused) < len(added)  # a table has columns for other uses
            if unused and not is_table and not isinstance(step, Rename):
                sentences.append(f"{step.class_name} makes {format_columns(unused)}, which nothing uses")
        return sentences

    def list_owned(self) -> AbstractSet[str]:
        """List the columns that `run` puts out in memory nobody else holds."""
        owned: AbstractSet[str] = frozenset()
        for step, before, _ in self._stages:
            owned = step.list_owned(owned, before)
        return owned

    def replace(self, **attributes: Any) -> TransformPlan:
        """Return the plan with other attributes."""
        plan = copy(self)
        vars(plan).update(attributes)
        return plan

    def copy(self) -> TransformPlan:
        """Return a copy with copies of the steps, whose joins count from 0."""
        stages = [stage._replace(step=copy(stage.step)) for stage in self._stages]
        for stage in stages:
            if isinstance(stage.step, TableJoin):
                stage.step.reset()
        return self.replace(_stages=stages)

    @property
    def _only_attaches(self) -> bool:
        """Whether nothing but window steps has to run."""
        return not self.casts and all(isinstance(stage.step, WholeTableTransform) for stage in self._stages)

    @property
    def attach(self) -> Attach | None:
        """What gives the wanted columns where no step has to run any more; None where one has to."""
        if not self.side_columns or not self._only_attaches:
            return None
        pairs = ((self.side_columns[position], tuple(names)) for position, (_, _, names) in self.window_steps.items())
        return Attach(tuple(pairs), tuple(self.outputs))

    def run(
        self,
        frame: Frame,
        backend: Backend,
        row_ids: Array | None = None,
        summaries: dict[Hashable, Any] | None = None,
        first_row: int = 0,
    ) -> Frame:
        """Run all steps on a coded frame that holds `reads`; return the frame of the wanted columns.

        With `draws_rows`, `row_ids` are the identities of the rows that the frame's index counts, by default its
        numbers. `summaries` gets what steps count; `first_row` is the identity of the first row there.
        """
        frame = backend.select(frame, self.reads)
        if casts := {name: dtype for name, dtype in self.casts.items() if name in frame.columns}:
            cast = {
                name: cast_as_fitted(backend.column(frame, name), dtype, name, backend) for name, dtype in casts.items()
            }
            frame = backend.assign(frame, cast)
        for position, (step, before, outputs) in enumerate(self._stages):
            with in_step(step):
                if isinstance(step, Sample):
                    frame = step.apply(frame, before, outputs, backend, row_ids)
                elif position in self.side_columns and isinstance(step, WholeTableTransform):
                    assert row_ids is not None, "these columns are found by the rows' identities"
                    names, ids = [name for name in step.makes if name in outputs], row_ids[backend.positions(frame)]
                    frame = backend.assign(frame, self.side_columns[position].columns(names, ids, backend))
                elif isinstance(step, Cast) and step.errors == "coerce" and summaries is not None:
                    frame, summaries["coerced", position] = step.convert(frame, before, outputs, backend)
                elif isinstance(step, Expect) and summaries is not None:
                    summaries["expect", position] = step.look(frame, before, backend, first_row)
                else:
                    frame = step.apply(frame, before, outputs, backend)
            if isinstance(step, WholeTableTransform) and position not in self.side_columns and len(frame):
                names = [name for name in step.makes if name in outputs]
                if empty := [name for name in names if lacks_values(backend.column(frame, name), backend)]:
                    warn_of_gaps(step, empty, len(frame), len(frame), has_history=False)
            if isinstance(step, TableJoin) and summaries is not None:
                summaries["join", step.name] = Counter(seen=step.rows_seen_, lost=step.rows_unmatched_)
            elif isinstance(step, TableJoin):
                self._warn_of_no_match(step, before, frame, [name for name in outputs if name not in before], backend)
        return backend.select(frame, self.outputs)

    def _warn_of_no_match(
        self, step: TableJoin, before: Schema, frame: Frame, names: Sequence[str], backend: Backend
    ) -> None:
        """Warn, once in a job, of rows without a match that are all after the table's, or unlike most rows of the fit.

        Others may have none, too: of the days of a week none may be a holiday. An as-of join without a tolerance finds
        a row however old it is.
        """
        if len(frame) < _LEAST_JOINED or not names or step.name in self.blind_joins:
            return
        finds_any_age = isinstance(step, JoinAsOf) and step.tolerance is None
        if not all(lacks_values(backend.column(frame, name), backend) for name in names):
            if isinstance(step, JoinAsOf) and finds_any_age:
                self._warn_of_old_table(step, before, frame, backend)
            return
        self.blind_joins.add(step.name)
        problem = f"{step.class_name}({step.name!r}): none of {len(frame):,} rows has a match"
        if key := None if finds_any_age else _find_late_key(step, frame, backend):
            _log.warning("%s, and all are after the table's last one, by %r; %s", problem, key, _take_later(step))
        elif step.matches_most_:
            _log.warning("%s, as most rows of the fit had: %s", problem, step.explain_no_match())

    def _warn_of_old_table(self, step: JoinAsOf, before: Schema, frame: Frame, backend: Backend) -> None:
        """Warn, once in a job, of rows that are all long after the last one of a table.

        Long is more than lies between any two of its times: of prices by day it ends the week before.
        """
        key, times = step.keys[0], step.list_times(before, backend)
        ends = find_frame_ends(frame, [key], backend)
        if not ends or not len(times) or (age := ends[key][0] - times[-1].item()) <= 0:
            return
        if (gap := Stretches.of(times, backend).longest_gap) is not None and is_longer(age, gap):
            self.blind_joins.add(step.name)
            _log.warning(
                "%s(%r): %s rows are at least %s after the table's last one, by %r, and it has no gap as long; %s",
                step.class_name,
                step.name,
                f"{len(frame):,}",
                timedelta(microseconds=age) if before[key].dtype == "timestamp" else f"{age:g}",
                key,
                _take_later(step),
            )

    @property
    def window_reads(self) -> set[str]:
        """The source's columns that window steps look at in other rows."""
        plans = (self._before(position, step) for position, (step, _, _) in self.window_steps.items())
        return {name for plan in plans for name in plan.reads}

    @property
    def listings(self) -> frozenset[Listing]:
        """The folders and patterns of the tables that its steps join."""
        tables = (step.right for step in self.steps if isinstance(step, TableJoin))
        return frozenset[Listing]().union(*(table.listings for table in tables if isinstance(table, Dataset)))

    @property
    def current_reads(self) -> set[str]:
        """The source's columns of which more is wanted than values of strictly earlier rows."""
        read = list(self.output_schema.select(self.outputs))
        for step, before, _ in self._stages:  # what steps read whatever is wanted, as filters do
            read += before.select(sorted(step.needs(frozenset(), before)))
        return {
            origin.column for item in read for origin in item.origins if not origin.table and not is_earlier(origin)
        }

    def _before(self, position: int, step: WholeTableTransform) -> TransformPlan:
        """Return the plan of what a window step reads; each `Expect` checks in `run`."""
        return TransformPlan(self.steps[:position], self._source, step.reads, data_columns=frozenset())

    def compute_schema(self, positions: AbstractSet[int], origins: Mapping[str, Origins] | None = None) -> Schema:
        """Compute the schema after all steps, given which window steps have `ties`, and the origins of the source."""
        steps = [
            step.with_ties() if position in positions and isinstance(step, WholeTableTransform) else step
            for position, step in enumerate(self.steps)
        ]
        origins = origins or {}
        source = Schema(item.replace(origins=origins.get(item.name, item.origins)) for item in self._source)
        return TransformPlan(steps, source, None).output_schema

    def attach_window_columns(
        self, dataset: Dataset, backend: str, *, counts_ties: bool = False
    ) -> tuple[TransformPlan, Dataset]:
        """Compute the columns of window steps; return the plan that has them, and the dataset to run it on."""
        windows = self.window_steps
        if not windows:
            return self, dataset
        dataset = ensure_unique_row_ids(replace(dataset, backend=backend))
        side_columns: dict[int, SideColumns] = {}
        ties: dict[int, int] = {}
        for position, (step, schema, names) in windows.items():
            before = self._before(position, step)
            for repeating in (other for other in before.steps if isinstance(other, Join) and other.many):
                problem, expected = "a window step follows a join that repeats rows", "rows that can be told apart"
                remedy = "the join after it, or Dataset.join(..., many=True) before the pipeline"
                raise BadConfig("Pipeline", problem, got=repeating, expected=expected, remedy=remedy)
            before.casts, before.side_columns = self.casts, {n: side_columns[n] for n in before.window_steps}
            inputs = list(schema.select(step.reads))
            fields = [item for item in step.made_fields(schema) if item.name in names]
            fields += [TIE] if counts_ties and step.breaks_ties else []
            plan = partial(step.plan, schema=schema, outputs=frozenset(names), backend=backend)
            is_source = before._only_attaches and not before.side_columns
            rows = None if is_source else partial(_gather, before)
            if any(schema[name].dtype == "string" for name in step.order):
                first = dataset.of_partitions(dataset.partitions[:1])
                check = partial(_check_order, before, step, backend)
                list(run_partitions(check, first, backend, type(step).__name__))  # where the rows are
            with in_step(step):
                side_columns[position] = compute_columns(
                    dataset, inputs, step.keys, plan, fields, type(step).__name__, rows
                )
            if TIE in fields and (num_ties := side_columns[position].count(TIE.name)):
                ties[position] = num_ties
        return self.replace(side_columns=side_columns, ties=ties), dataset


def _check_order(before: TransformPlan, step: WholeTableTransform, backend_name: str, part: Dataset) -> None:
    """Raise `BadData` where the first rows show that the order of a window is that of dates as text."""
    backend = select(backend_name)
    step.check_order(_gather(before, part, backend), backend)


def _gather(before: TransformPlan, part: Table, backend: Backend) -> Frame:
    (partition,) = part.partitions
    ids = partition.row_ids(backend.xp)
    frame = before.copy().run(part.read(partition, before.reads, backend), backend, ids)
    return backend.assign(frame, {ROW: Column("uint64", ids[backend.positions(frame)])})
