"""Pipeline application: pruned transforms, a fitted pipeline bound to a table's columns, and the loader's table."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from gpupipe.backend import Array, Backend, Column, Frame, infer_backend, select, select_for
from gpupipe.backend.arrow import arrow_type, holds_fields
from gpupipe.backend.cast import cast_column
from gpupipe.backend.columns import missing_column, sample_texts
from gpupipe.cluster.executor import Executor, get_executor
from gpupipe.errors import BadConfig, BadData, ColumnNotFound, SchemaMismatch
from gpupipe.expressions import parse
from gpupipe.io import Dataset, FrameFunction, concat, from_frame, in_halves, run_partitions
from gpupipe.io.planning.table import Table, identify_job, map_frames
from gpupipe.io.relational.side_columns import Attach, SideColumns, compute_columns
from gpupipe.io.relational.sort import ensure_unique_row_ids
from gpupipe.io.stores import Listing
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.target import TargetSet
from gpupipe.preprocessing import Invertible
from gpupipe.schema import (
    FLOATS,
    INTEGERS,
    ROW,
    Field,
    Kind,
    Role,
    Schema,
    get_element_dtype,
    is_passenger,
    shorten_list,
)
from gpupipe.step import in_step
from gpupipe.support.calls import check_call
from gpupipe.support.origins import Origin, Origins, is_earlier, trace
from gpupipe.support.text import format_columns, format_count
from gpupipe.support.text_kinds import recognise_texts, suggest_parsing
from gpupipe.support.validation import check_choice, check_name
from gpupipe.transforms import Cast, Derive, Expect, Join, Rename, Sample, Transform, WholeTableTransform
from gpupipe.transforms.join import TableJoin
from gpupipe.transforms.window_transform import TIE

if TYPE_CHECKING:
    import torch

    from gpupipe.tensors import FeatureTable, Loader

_log = logging.getLogger("gpupipe")
_COUNTERS = {"rows_seen_", "rows_unmatched_"}  # of joins, which decide nothing
_MOST_WITHOUT_PAST = 0.1  # of the rows, those of new keys
_KEPT_BYTES = 8  # of a kept column, per row
# `gpupipe.tensors` is imported where tensors are made: PyTorch takes longer to import than a small fit.


class _Stage(NamedTuple):
    step: Transform
    schema: Schema  # of its input
    outputs: frozenset[str]


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

    @property
    def draws_rows(self) -> bool:
        """Whether `run` asks for the rows' identities."""
        return bool(self.side_columns) or any(isinstance(step, Sample) for step in self.steps)

    @property
    def window_steps(self) -> dict[int, tuple[WholeTableTransform, Schema, list[str]]]:
        """By its position each window step whose columns are wanted, the schema before it, and these columns."""
        return {
            position: (step, before, [name for name in step.makes if name in outputs])
            for position, (step, before, outputs) in enumerate(self._stages)
            if isinstance(step, WholeTableTransform) and not outputs.isdisjoint(step.makes)
        }

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
            cast = {name: _cast(backend.column(frame, name), dtype, name, backend) for name, dtype in casts.items()}
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
                if empty := [name for name in names if _is_missing(backend.column(frame, name), backend)]:
                    _warn_of_gaps(step, empty, len(frame), len(frame), has_history=False)
            if isinstance(step, TableJoin) and summaries is not None:
                summaries["join", step.name] = Counter(seen=step.rows_seen_, lost=step.rows_unmatched_)
        return backend.select(frame, self.outputs)

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

    def warn_of_cuts(self, dataset: Dataset) -> None:
        """Warn of window steps that look at a part of a table without the rows before it."""
        blind = [step.class_name for step, _, _ in self.window_steps.values() if dataset.cuts_history(step.keys)]
        if blind:
            _log.warning(
                "%s: a split part of the data, whose rows do not see those of the other parts; give all of it, and the "
                "part as a condition, fit(data, rows=\"date < '2024-06-01'\"), or the rows before it as history=",
                shorten_list(dict.fromkeys(blind)),
            )

    def warn_of_overlap(self, history: Dataset, data: Dataset, tables: tuple[Dataset, Dataset]) -> None:
        """Warn of rows of the history whose key and time rows of the data have, too: they may be the same rows.

        `tables` are both as they are given, whose times are read without any other column.
        """
        steps = [step for step, _, _ in self.window_steps.values() if step.order]
        for names, time in {(*step.keys, *step.order): step.order[0] for step in steps}.items():
            if not {*names} <= {*data.schema.names}:
                continue  # computed by earlier steps
            if _is_before(*tables, time):
                continue
            # The data are the fewer rows: these are hashed, and the history is only looked up.
            rows = data.select(names).deduplicate(names)
            if num_shared := len(history.select(names).join(rows, on=names, how="inner")):
                _log.warning(
                    "history= overlaps the data: %s of it have the %s of rows there, whose windows see their values; "
                    "history.filter(...) leaves those out",
                    format_count(num_shared, "row"),
                    shorten_list(names),
                )

    def warn_of_copies(self, history: Dataset) -> None:
        """Warn of rows that a history has twice, if windows have met rows alike in their order."""
        names = [
            item.name for item in history.schema if item.dtype in (*INTEGERS, *FLOATS, "bool", "string", "timestamp")
        ]
        if self.ties and (num_copies := len(history) - len(history.select(names).deduplicate())):
            _log.warning(
                "history= has %s again, and windows see both; history.deduplicate() leaves them out",
                format_count(num_copies, "row"),
            )

    def warn_of_no_past(self, data: Dataset, *, has_history: bool) -> None:
        """Warn of columns of windows that have no value in any row of `data`; of a tenth where there is a history."""
        names_by_step = {position: list(names) for position, (*_, names) in self.window_steps.items()}
        if not names_by_step:
            return
        num_rows, num_missing = Counter[int](), Counter[tuple[int, str]]()
        backend = get_executor().resolve(data.backend)
        count = partial(_count_gaps, self.reads[:1], self.side_columns, names_by_step, backend)
        with closing(run_partitions(count, data, backend, "windows")) as parts:
            for rows, gaps in parts:
                num_rows.update(rows)
                num_missing.update(gaps)
                if not has_history and all(num_missing[key] < num_rows[key[0]] for key in gaps):
                    return
        for position, names in names_by_step.items():
            most = _MOST_WITHOUT_PAST * num_rows[position] if has_history else num_rows[position]
            blind = [name for name in names if num_missing[position, name] >= most]
            if blind and num_rows[position]:
                step, least = self.window_steps[position][0], min(num_missing[position, name] for name in blind)
                _warn_of_gaps(step, blind, least, num_rows[position], has_history=has_history)

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


def _count_gaps(
    reads: Sequence[str],
    side_columns: Mapping[int, SideColumns],
    names_by_step: Mapping[int, Sequence[str]],
    backend_name: str,
    part: Dataset,
) -> tuple[Counter[int], Counter[tuple[int, str]]]:
    """Count by window step the rows of a partition that it has seen, and by column those without a value."""
    num_rows, num_missing = Counter[int](), Counter[tuple[int, str]]()
    backend, (partition,) = select(backend_name), part.partitions
    positions = backend.positions(part.read(partition, reads, backend))
    for step, names in names_by_step.items():
        ids = side_columns[step].keep(partition.row_ids(backend.xp)[positions], backend)
        num_rows[step] = len(ids)
        columns = side_columns[step].columns(names, ids, backend) if len(ids) else {}
        for name in names:
            missing = columns[name].missing(backend.xp) if name in columns else None
            num_missing[step, name] = 0 if missing is None else int(missing.sum())
    return num_rows, num_missing


def _warn_of_gaps(
    step: WholeTableTransform, names: Sequence[str], num_missing: int, num_rows: int, *, has_history: bool
) -> None:
    if has_history:
        counts = f"{num_missing:,} of {num_rows:,} rows of the data no value"
        _log.warning(
            "history= gives %s of %s: the %s there are others, the times later, or the values missing",
            counts if num_missing < num_rows else "no row of the data a value",
            shorten_list(names),
            shorten_list(step.keys) or "rows",
        )
    else:
        _log.warning(
            "no row of the data has a value of %s: %s sees the rows that are given alone; history= takes those before "
            "them, or all are given, and these by rows= as a condition",
            shorten_list(names),
            step.class_name,
        )


def _is_before(history: Dataset, data: Dataset, time: str) -> bool:
    """Return whether all times of the history are before all of the data; False where the order is of other values."""
    if any(time not in table.schema or table.schema[time].kind != Kind.TIME for table in (history, data)):
        return False
    ends = []
    for table in (history, data):
        backend = select(table.backend)
        columns = [backend.column(table.read(part, [time], backend), time) for part in table.partitions]
        values = [column.data if column.valid is None else column.data[column.valid] for column in columns]
        ends.append([(int(part.min()), int(part.max())) for part in values if len(part)])
    return not all(ends) or max(high for _, high in ends[0]) < min(low for low, _ in ends[1])


def _check_order(before: TransformPlan, step: WholeTableTransform, backend_name: str, part: Dataset) -> None:
    """Raise `BadData` where the first rows show that the order of a window is that of dates as text."""
    backend = select(backend_name)
    step.check_order(_gather(before, part, backend), backend)


def _gather(before: TransformPlan, part: Table, backend: Backend) -> Frame:
    (partition,) = part.partitions
    ids = partition.row_ids(backend.xp)
    frame = before.copy().run(part.read(partition, before.reads, backend), backend, ids)
    return backend.assign(frame, {ROW: Column("uint64", ids[backend.positions(frame)])})


def list_state(steps: Sequence[Transform], features: Features | None, source: Schema) -> tuple[list[Any], Hashable]:
    """List every object that a bound pipeline depends on; return with them what tells that none has changed."""
    holders: list[Any] = list(steps)
    objects: list[Any] = [source, features]
    lists: list[list[str]] = []  # which may be changed in place
    if features is not None:
        holders += [*features._steps, *features._labels]
        lists = [features.keep, features.allow_leak, *(group.columns for group in features.groups)]
        objects += [*features.groups, *lists]
    for holder in holders:
        objects.append(holder)
        objects += [value for name, value in vars(holder).items() if name not in _COUNTERS]
    return objects, (*map(tuple, lists), *map(id, objects))


class BoundPipeline:
    """A pipeline fitted on data of the schema `source`, bound to data that holds the columns `names`.

    `predicting` gives features and kept columns only; with `out_of_fold` the rows are those of the fit, and get what
    was learned from the target of others. `outputs` are the columns after the transforms, by default those needed.
    `history` are the columns of earlier rows: the data may lack what only windows that end before a row read of them.
    """

    def __init__(
        self,
        steps: Sequence[Transform],
        features: Features | None,
        source: Schema,
        names: Sequence[str],
        *,
        with_target_only: bool = False,
        predicting: bool = False,
        out_of_fold: bool = False,
        outputs: AbstractSet[str] | None = None,
        also: str | None = None,
        counting: bool = False,
        history: AbstractSet[str] | None = None,
    ) -> None:
        past = (history or frozenset()) - {*names}
        source = source.assign(replace(source[name], nullable=True) for name in source.names if name in past)
        after, data_columns, target = None, set(names), None if features is None else features.target
        if features is not None:
            after = TransformPlan(steps, source, None, predicting=predicting).output_schema
            outputs = _select_wanted(features, after, source, data_columns, predicting) if outputs is None else outputs
            outputs = outputs if also is None else {*outputs, also}
            if with_target_only:
                _check_weight(features, after, {*source.names} - data_columns)
        self.plan = TransformPlan(
            steps, source, outputs, predicting=predicting, data_columns=data_columns, counting=counting
        )
        self.plan_schema = self.plan.output_schema.select(self.plan.outputs)
        self._features, self._only_with = features, target if with_target_only else None
        self.schema, self.owned_columns = self.plan_schema, self.plan.list_owned()
        if features is not None and after is not None:
            owned = [group for group in features.groups if group.steps and group.steps[-1].allocates]
            self.owned_columns = {group.rename(item.name) for group in owned for item in group.fields(after)}
            self.schema = features._output_schema(self.plan_schema, features._output_fields(after))
        self.table_schema = self.schema if target is None else target.in_own_units(self.schema)
        self.reads = self.plan.reads
        self.keeps_rows = self.plan.keeps_rows and self._only_with is None
        self._out_of_fold = out_of_fold
        if history is not None:
            self._check_history(history, source.names)
            data_columns |= past - self.plan.current_reads
        for name in self.reads:
            if name not in data_columns:
                is_past = history is None and name not in self.plan.current_reads
                offer = f"history=, a table of earlier rows with {name!r}, beside the data" if is_past else None
                raise ColumnNotFound.among("the data", name, names, offer, source.names)
        self._source = source.select(self.reads)
        self._zones = _zones(self._source)

    def _check_history(self, names: AbstractSet[str], other_names: Sequence[str]) -> None:
        if not self.plan.window_steps:
            problem, expected = "no feature is computed from other rows", "a pipeline with T.Lag, T.Rolling or the like"
            raise BadConfig("history=", problem, expected=expected, remedy="the call without history=")
        for name in sorted(self.plan.window_reads - names):
            raise ColumnNotFound.among("history=", name, sorted(names), f"a table that has {name!r}, too", other_names)

    @property
    def draws_rows(self) -> bool:
        """Whether `columns` asks for the rows' identities."""
        return self.plan.draws_rows or (self._features is not None and self._features._cross_fits and self._out_of_fold)

    def _locate_origins(self, schema: Schema, origins: Mapping[str, Origins]) -> Schema:
        """Return a result's schema, given the origins of the data's columns: where each of its columns comes from.

        Steps are asked anew: whether they look rows up in the very table that the data is of is seen here alone.
        """
        after = self.plan.compute_schema({*self.plan.ties}, origins)
        if self._features is not None:
            after = self._features._output_schema(after, self._features._output_fields(after))
        fields = []
        for item in schema:
            more, own_origins = item.origins, frozenset[Origin]()
            if item.name in self.schema and item.name in after:
                # What the caller knows beside the steps: that an encoder has learned the target of these very rows.
                more, own_origins = item.origins - self.schema[item.name].origins, after[item.name].origins
            fields.append(item.replace(origins=own_origins | trace(more, origins)))
        return schema.assign(fields)

    def prepare(
        self,
        data: Dataset,
        backend: str,
        rows: str | None = None,
        history: Dataset | None = None,
        *,
        counts_ties: bool = False,
    ) -> Dataset:
        """Check types and compute the window steps' columns; return the dataset whose rows they belong to.

        Windows look at all rows of `history`, then at all of `data`; what is returned are those of `data` for which
        `rows` is true. Of the sales of a store, with a lag of one row and `rows="day > 3"`:

            history: day 1, sales 5, day 2, sales 8; data: day 3, sales 6, day 4, sales unknown -> day 4, whose lag is 6
        """
        select_rows(data, rows)  # before anything is computed for nothing
        if history is None:
            self.plan = self.plan.replace(casts=self._find_casts(data))
            self.plan.warn_of_cuts(data)
            self.plan, data = self.plan.attach_window_columns(data, backend, counts_ties=counts_ties)
            data = data if rows is None else data.filter(rows)
            self.plan.warn_of_no_past(data, has_history=False)
            return data
        also = [] if rows is None else [name for name in parse(rows, "filter").reads if name not in self._source]
        schema = Schema(replace(item, nullable=True) for item in (*self._source, *data.schema.select(also)))
        parts = [
            ensure_unique_row_ids(replace(self._conform(table, schema), backend=backend)) for table in (history, data)
        ]
        self.plan.warn_of_overlap(parts[0], parts[1], (history, data))
        self.plan, whole = self.plan.attach_window_columns(concat(parts), backend, counts_ties=True)
        self.plan.warn_of_copies(history)
        data = whole.of_partitions(whole.partitions[parts[0].num_partitions :])
        self.plan.warn_of_no_past(data, has_history=True)
        return data if rows is None else data.filter(rows)

    def _conform(self, data: Dataset, schema: Schema) -> Dataset:
        """Return the columns of `schema` in the types of the fit; all values are missing of one that is not there."""
        casts, names = self._find_casts(data), [name for name in schema.names if name in data.schema]
        identity = partial(repr, (schema.to_json(), casts))
        return map_frames(data, partial(_conform, schema, casts), schema, names, keeps_rows=True, identity=identity)

    def _find_casts(self, data: Dataset) -> dict[str, str]:
        dtypes = {item.name: item.dtype for item in data.schema}
        return self._compare(dtypes, _zones(data.schema), partial(_find_values, data), is_dataset=True)

    def _compare(
        self,
        dtypes: Mapping[str, str],
        zones: Mapping[str, str],
        find_values: Callable[[str], Column | None],
        *,
        is_dataset: bool = False,
    ) -> dict[str, str]:
        """Return the columns of another dtype than in the fit; raise where it or a time zone does not fit.

        `find_values` returns some values of a column, None where all are missing.
        """
        pairs = ((item.name, item.dtype) for item in self._source if item.name in dtypes)
        casts = {name: dtype for name, dtype in pairs if dtypes[name] != dtype}
        for name, dtype in casts.items():
            if _differs(dtypes[name], dtype) and (values := find_values(name)) is not None:
                raise _another_type(name, dtypes[name], dtype, sample_texts(values), is_dataset=is_dataset)
        for name in self._zones.keys() & zones.keys():
            got, expected = zones[name] or "no zone", self._zones[name] or "no zone"
            if "no zone" in {got, expected} and got != expected and find_values(name) is not None:
                problem = f"its times have {'no' if got == 'no zone' else 'a'} time zone, other than in fit"
                table = "frame" if is_dataset else "data"
                remedy = f"{table}[{name!r}].dt.tz_localize({self._zones[name] or None!r})"
                if is_dataset:
                    remedy = f"frame = data.compute(); frame[{name!r}] = {remedy}"
                    remedy += "  # and frame in place of data, which is gp.read_parquet(path) or gp.read_csv(path)"
                raise SchemaMismatch(f"column {name!r}", problem, got=got, expected=expected, remedy=remedy)
        return casts

    def run_on(
        self,
        data: Any,
        function: FrameFunction,
        schema: Schema,
        backend: str,
        identity: Callable[[], str | None],
        owned_columns: Collection[str] = (),
        rows: str | None = None,
        history: Dataset | None = None,
    ) -> Any:
        """Map `function`, from a coded frame of `reads` to one of `schema`, over a Dataset (lazily) or a frame.

        With `draws_rows` it takes the rows' identities as a third argument, by default the frame's own row numbers.
        `owned_columns` are those it puts out in memory nobody else holds; for `rows` and `history` see `prepare`. The
        result has the given frame's index.
        """
        if isinstance(data, Dataset):
            if self.plan.window_steps:  # which see rows of other partitions: their files are part of the job's id
                identity = partial(_add_inputs, identity, data, history)
            origins = {item.name: item.origins for item in data.locate_origins()}
            data = self.prepare(data, get_executor().resolve(backend), rows, history, counts_ties=True)
            schema = self._locate_origins(schema, origins)
            return map_frames(
                data,
                function if self._features is not None else self.plan.attach or function,
                schema,
                self.reads,
                keeps_rows=self.keeps_rows,
                backend=backend,
                identity=identity,
                draws_rows=self.draws_rows,
                owned_columns=owned_columns,
                listings=self.plan.listings,
            )
        owner = infer_backend(data)
        coded, row_ids = self._read_frame(data, owner, rows, history)
        output = function(coded, owner, row_ids)
        result = owner.decode(output, owned_columns, schema)
        result.index = data.index.take(owner.positions(output))
        return result

    def _read_frame(
        self, data: Any, owner: Backend, rows: str | None, history: Dataset | None
    ) -> tuple[Frame, Array | None]:
        """Return a coded frame of `reads`, its types checked, and the identities of the rows that its index counts."""
        if rows is not None or history is not None:
            used = {*self.reads, *(parse(rows, "filter").reads if isinstance(rows, str) else ())}
            part = owner.select(data, [name for name in data.columns if name in used]).reset_index(drop=True)
            table = self.prepare(from_frame(part, num_partitions=1, backend=owner.name), owner.name, rows, history)
            (partition,) = table.partitions
            return table.read(partition, self.reads, owner), partition.row_ids(owner.xp)
        coded = owner.encode(owner.select(data, self.reads))
        readings = owner.classify(owner.select(data, list(self._zones))) if self._zones else {}
        times = [Field(name, item.dtype, written_as=item.written_as) for name, item in readings.items() if item.dtype]

        def find_values(name: str) -> Column | None:
            column = owner.column(coded, name)
            return None if _is_missing(column, owner) else column

        casts = self._compare(owner.dtypes(coded), _zones(times), find_values)
        self.plan = self.plan.replace(casts=casts)
        return coded, None

    def apply(self, frame: Frame, backend: Backend, row_ids: Array | None = None) -> Frame:
        """Compute the output frame of a coded frame, the target in its own units; its index holds the row positions."""
        outputs, inputs = self.columns(frame, backend, row_ids)
        if self._features is None:
            return inputs
        output = backend.frame(outputs, len(inputs))
        output.index = inputs.index
        return output

    def columns(
        self, frame: Frame, backend: Backend, row_ids: Array | None = None, *, stored: bool = False
    ) -> tuple[Mapping[str, Column], Frame]:
        """Compute the output columns, with the target in its units or as `stored`, and the frame they are made of."""
        inputs = self.plan.run(frame, backend, row_ids)
        if self._only_with is not None and self._only_with.is_in(self.plan_schema):
            present = self._only_with.present(inputs, self.plan_schema, backend)
            inputs = inputs if present is None else backend.filter(inputs, present)
        if self._features is None:
            return {name: backend.column(inputs, name) for name in inputs.columns}, inputs
        ids = None
        if self._out_of_fold:
            positions = backend.positions(inputs)
            ids = positions.astype("uint64") if row_ids is None else row_ids[positions]
        return self._features._columns(inputs, self.plan_schema, backend, ids, stored=stored), inputs


def select_rows(dataset: Dataset, rows: str | None) -> Dataset:
    """Return the rows for which a condition is true, all rows with None; `BadData` where it is true for none."""
    if rows is None:
        return dataset
    check_name("Pipeline", None, rows=rows)
    part, backend = dataset.filter(rows), select(dataset.backend)
    if not any(len(part.read(partition, [], backend)) for partition in part.partitions):
        expected, remedy = "a condition that is true for some rows", "data.describe(), which shows the columns' ranges"
        raise BadData("rows=", "it selects no row", got=rows, expected=expected, remedy=remedy)
    return part


def _conform(schema: Schema, casts: Mapping[str, str], frame: Frame, backend: Backend) -> Frame:
    columns = {name: _cast(backend.column(frame, name), dtype, name, backend) for name, dtype in casts.items()}
    for item in schema:
        if item.name not in frame.columns:
            columns[item.name] = missing_column(item.dtype, len(frame), backend.xp)
    return backend.select(backend.assign(frame, columns), schema.names)


def _add_inputs(identity: Callable[[], str | None], data: Dataset, history: Dataset | None) -> str | None:
    key, inputs = identity(), sorted((data.source.inputs() or {}).items())
    if key is None or history is None:
        return None if key is None else f"{key} {inputs}"
    earlier, job = history.source.inputs(), identify_job(history)
    return None if earlier is None or job is None else f"{key} {inputs} {sorted(earlier.items())} {job}"


def _select_wanted(
    features: Features, after: Schema, source: Schema, data_columns: AbstractSet[str], predicting: bool
) -> set[str]:
    """Return the features, kept columns, and the labels whose source columns are all in the data."""

    def is_there(name: str) -> bool:
        return all(column in data_columns for column in after[name].lineage if column in source)

    after.require(features.keep, "Features")
    names = features.inputs | {name for name in features.keep if after[name].role != Role.LABEL or is_there(name)}
    for label in () if predicting else features._labels:
        reads = label.reads(after)
        after.require(reads, "Features")
        if all(map(is_there, reads)):
            names |= set(reads)
    return names


def _check_weight(features: Features, after: Schema, absent: AbstractSet[str]) -> None:
    """Raise where rows have the target, but not the weight that they had in the fit."""
    target, weight = features.target, features.weight
    lost = [] if weight is None else sorted(weight.lineage(after) & absent)
    if target is None or weight is None or not lost or target.lineage(after) & absent:
        return
    expected = "the weight beside the target, as in the fit"
    remedy = f"data with {lost[0]!r}, 1.0 in each row to count all alike; or a fit of Features(weight=None)"
    where, problem = f"loader, weight {weight.text!r}", f"column {lost[0]!r} not found"
    error = ColumnNotFound(where, problem, expected=expected, remedy=remedy)
    error.column = lost[0]
    raise error


def _differs(got: str, expected: str) -> bool:
    """Return whether values of one type cannot stand for the other's; lists are compared by their elements."""
    if is_passenger(got) and is_passenger(expected) and not holds_fields(arrow_type(expected), arrow_type(got)):
        return True
    elements = (get_element_dtype(got), get_element_dtype(expected))
    of_lists = None not in elements
    first, second = elements if of_lists else (got, expected)
    if first == "float64":  # in which a column of missing values may come; it is checked again with its values
        return False
    mixed = any(elements) != of_lists or is_passenger(got) != is_passenger(expected)
    return mixed or bool({"string", "timestamp"} & {first, second})


def _cast(column: Column, dtype: str, name: str, backend: Backend) -> Column:
    element = get_element_dtype(dtype)
    if _is_missing(column, backend):
        return missing_column(dtype, len(column), backend.xp)
    if element is not None and column.elements is not None:
        return Column(dtype, column.data, column.valid, None, _cast(column.elements, element, name, backend))
    if element is not None or dtype in ("string", "timestamp") or is_passenger(dtype) != is_passenger(column.dtype):
        raise _another_type(name, column.dtype, dtype, sample_texts(column))
    return cast_column(column, dtype, name, backend)


def _is_missing(column: Column, backend: Backend) -> bool:
    missing = column.missing(backend.xp)
    return not len(column) or (missing is not None and bool(missing.all()))


def _find_values(dataset: Dataset, name: str) -> Column | None:
    """Read a column of the first partition in which it has values; None where no row has one."""
    backend = select(dataset.backend)
    frames = (dataset.read(partition, [name], backend) for partition in dataset.partitions)
    columns = (backend.column(frame, name) for frame in frames)
    return next((column for column in columns if not _is_missing(column, backend)), None)


def _zones(fields: Iterable[Field]) -> dict[str, str]:
    return {item.name: item.zone for item in fields if item.dtype == "timestamp"}


def _another_type(
    name: str, got: str, expected: str, texts: Sequence[str], *, is_dataset: bool = False
) -> SchemaMismatch:
    remedy, is_number = f"the column as {expected} before it is given", expected in (*INTEGERS, *FLOATS)
    if got == "string" and is_number and (steps := _suggest_numbers(name, texts)):
        remedy = steps
    # A cast of pandas makes True of any text.
    elif got == "string" and (expected == "bool" or (is_dataset and (is_number or expected == "timestamp"))):
        arguments = f"{{{name!r}: 'float64'}}, errors='coerce'" if is_number else f"{{{name!r}: {expected!r}}}"
        remedy = f"gp.Pipeline([T.Cast({arguments})]).fit(data).transform(data)"
    elif got == "string" and expected == "timestamp":
        remedy = f"pd.to_datetime(data[{name!r}]), of Polars data[{name!r}].str.to_datetime()"
    elif got == "string" and is_number:
        remedy = f"pd.to_numeric(data[{name!r}], errors='coerce'), of Polars "
        remedy += f"data[{name!r}].cast(pl.Float64, strict=False)"
    elif expected == "string" and got in (*INTEGERS, *FLOATS, "bool", "timestamp"):
        reader = f"gp.read_csv(..., dtypes={{{name!r}: 'string'}})"
        if is_dataset:
            remedy = f"gp.Pipeline([T.Cast({{{name!r}: 'string'}})]).fit(data).transform(data)"
        else:
            reader += f" or pd.read_csv(..., dtype={{{name!r}: 'str'}})"
        remedy = f"{reader} of a CSV file, else {remedy}"
    return SchemaMismatch(f"column {name!r}", "another type than in fit", got=got, expected=expected, remedy=remedy)


def _suggest_numbers(name: str, texts: Sequence[str]) -> str:
    """Suggest what makes numbers of texts that a cast makes missing, such as "$5"; nothing where it makes some."""
    valued = [text for text in texts if recognise_texts([text])]
    kind = recognise_texts(valued) or ""
    if kind == "numbers" or any(recognise_texts([text]) == "numbers" for text in valued if not kind):
        return ""
    if not kind.startswith(("amounts", "numbers", "percentages")):
        return f"numbers in place of text such as {texts[0]!r}"
    steps = suggest_parsing(name, kind, texts).partition(";")[0].replace(", then ", ", ")
    return f"gp.Pipeline([{steps}]).fit(data).transform(data)"


class TargetInverse:
    """Inverse of a fitted `target_transform`; `by_default` where nobody asked for that transform."""

    def __init__(self, targets: TargetSet) -> None:
        self._targets = targets
        self.by_default = targets.auto

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Convert B values, or B x T, to the targets' units, float64 there; `SchemaMismatch` for another shape.

        Of one target B x K values are K of it, such as quantiles.
        """
        backend = select_for(values)
        wide, names = values if values.ndim == 2 else values[:, None], self._targets.texts
        if len(names) == 1 and wide.ndim == 2 and wide.shape[1] > 1:
            quantiles: torch.Tensor = import_module("torch").stack([self(column) for column in wide.unbind(1)], 1)
            return quantiles
        if wide.ndim != 2 or wide.shape[1] != len(names):
            problem = "the model's outputs are not one value per target, so they have no units of its own"
            got, expected = tuple(values.shape), f"a value a row for each of {names}"
            remedy = "Features(target_transform=None)"
            raise SchemaMismatch("target_transform", problem, got=got, expected=expected, remedy=remedy)
        device = values.device if backend.name == "gpu" else "cpu"
        parts = [backend.xp.from_dlpack(part.contiguous()) for part in wide.detach().double().to(device).unbind(1)]
        columns = {name: Column("float64", part) for name, part in zip(names, parts, strict=True)}
        for step in reversed(self._targets.group.steps):
            assert isinstance(step, Invertible), "the constructor checks that"
            columns = step.inverse_columns(columns, backend)
        # Written into torch's memory: what CuPy frees may be taken by another thread before torch's stream has read it.
        output: torch.Tensor = wide.new_empty(wide.shape, dtype=import_module("torch").float64, device=device)
        backend.xp.stack([column.data for column in columns.values()], axis=1, out=backend.xp.from_dlpack(output))
        if output.device.type == "cuda":  # CuPy has written on the default stream; the caller reads on its own
            cuda = import_module("torch").cuda
            cuda.current_stream(output.device).wait_stream(cuda.default_stream(output.device))
        return output.to(values.device).reshape(values.shape)


class StreamedParts:
    """Row groups of a Dataset, read again each epoch; where steps leave out rows, one pass counts those that stay."""

    def __init__(self, run: BoundPipeline, dataset: Dataset, backend: Backend, dtype: str) -> None:
        self.schema, self.backend, self.dtype = run.schema, backend, dtype
        self._run, self._dataset = run, dataset
        self._pieces = [part.keep([span]) for part in dataset.partitions for span in part.spans if span.num_rows]
        self.names: Sequence[str] = [piece.description for piece in self._pieces]
        self.rows: Sequence[int] = [piece.num_rows for piece in self._pieces]
        if self._pieces and (run.draws_rows or not (run.keeps_rows and dataset.keeps_rows)):
            self.rows = self._count()

    def read(self, parts: Sequence[int]) -> Generator[Iterable[Mapping[str, Column]]]:
        """Yield the columns of these parts in order, each in one piece, or in several where memory does not suffice."""
        work = partial(load_columns, self._run, self.backend.name)

        def pieces(number: int) -> list[Mapping[str, Column]]:
            return list(in_halves(work, self._dataset.of_partitions([self._pieces[number]])))

        yield from Executor().map(pieces, parts, at_once=1 if self.backend.name == "gpu" else None)

    def _count(self) -> list[int]:
        work, rows = partial(_count_rows, self._run, self.backend.name), [0] * len(self._pieces)
        dataset, number, counted = self._dataset.of_partitions(self._pieces), 0, 0
        with closing(run_partitions(work, dataset, self.backend.name, "count")) as counts:
            for num_inputs, num_outputs in counts:  # a part in halves gives two counts
                rows[number], counted = rows[number] + num_outputs, counted + num_inputs
                if counted == self._pieces[number].num_rows:
                    number, counted = number + 1, 0
        return rows


def load_columns(
    run: BoundPipeline, backend_name: str, part: Dataset, *, on_host: bool = False
) -> Mapping[str, Column]:
    """Compute the output columns of one partition; a worker's go to the host, lest they are opened on the GPU here."""
    backend, partition = select(backend_name), part.partitions[0]
    row_ids = partition.row_ids(backend.xp) if run.draws_rows else None
    columns = run.columns(part.read(partition, run.reads, backend), backend, row_ids, stored=True)[0]
    return {name: column.move(backend.to_host) for name, column in columns.items()} if on_host else columns


def _count_rows(run: BoundPipeline, backend_name: str, part: Dataset) -> tuple[int, int]:
    return part.partitions[0].num_rows, len(next(iter(load_columns(run, backend_name, part).values())))


def make_loader(
    run: BoundPipeline, dataset: Dataset, backend: str, *, device: str, residency: str, dtype: str, **options: Any
) -> Loader:
    """Build the loader of `Pipeline.loader`; check `options`, which are `Loader`'s own, before anything is read."""
    made_by: type[Loader] = import_module("gpupipe.tensors.loader").Loader
    check_call("Pipeline.loader", made_by, None, **options)
    table, batch_device, location = build_table(run, dataset, backend, device=device, residency=residency, dtype=dtype)
    return made_by(table, device=batch_device, residency=location, **options)


def build_table(
    run: BoundPipeline, dataset: Dataset, backend: str, *, device: str, residency: str, dtype: str
) -> tuple[FeatureTable | StreamedParts, torch.device, str]:
    """Build a table of the transformed rows; return it, the batches' device and the table's location."""
    tensors, torch = import_module("gpupipe.tensors.loader"), import_module("torch")
    check_choice("loader", tensors.RESIDENCIES, residency=residency)
    is_local, keep_fields = get_executor().in_process, run.schema.with_role(Role.KEEP)
    bound = sum(partition.num_rows for partition in dataset.partitions)
    row_bytes = tensors.FeatureTable.row_bytes_of(run.schema, dtype)
    if device == "auto":  # the backend's, or a GPU of this process where the backend is elsewhere
        is_backends = is_local or backend == "cpu"
        device = select(backend).device if is_backends else ("cuda" if torch.cuda.is_available() else "cpu")
    tensors.require_device(device)
    batch_device = torch.device(device)
    if carried := [item.name for item in keep_fields if is_passenger(item.dtype)]:
        _log.info("loader: batches are without the kept columns %s, which no tensor can hold", carried)
    size = bound * (row_bytes + _KEPT_BYTES * len(keep_fields))
    free_bytes: dict[str, int | None] = {}
    if residency == "auto":
        if is_local:
            select(backend).trim()  # what the fit has left is free
        free_bytes = {kind: tensors.get_free_bytes(torch.device(kind)) for kind in {"cpu", batch_device.type}}
    location = tensors.choose_residency(residency, size, batch_device, free_bytes)
    if location != "device":
        _log.info("loader: a table of %.2f GB, residency=%r", size / 1e9, location)
    if location == "stream":
        return StreamedParts(run, dataset, select(backend if is_local else "auto"), dtype), batch_device, location
    table_device = batch_device if location == "device" else torch.device("cpu")
    if is_local and table_device.type == torch.device(select(backend).device).type:
        select(backend).make_room(bound * row_bytes)
    block, rows = tensors.FeatureTable.allocate(run.schema, bound, table_device, dtype=dtype), 0
    work, writer = partial(load_columns, run, backend, on_host=not is_local), select(backend if is_local else "cpu")
    with closing(run_partitions(work, dataset, backend, "load")) as parts:
        for columns in parts:
            rows += block.write(rows, columns, writer)
    return block.narrow(rows), batch_device, location
