"""Bound pipeline: a fitted pipeline, and what of it some columns of a table can be given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Any

from gpupipe.backend import Array, Backend, Column, Frame, infer_backend, select
from gpupipe.backend.columns import missing_column
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import BadConfig, BadData, ColumnNotFound
from gpupipe.expressions import parse
from gpupipe.io import Dataset, FrameFunction, concat, from_frame
from gpupipe.io.planning.table import identify_job, map_frames
from gpupipe.io.relational.sort import ensure_unique_row_ids
from gpupipe.pipeline.column_types import cast_as_fitted, find_casts, find_values, lacks_values, list_zones
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.transform_plan import TransformPlan
from gpupipe.pipeline.window_warnings import (
    find_ends,
    find_frame_ends,
    list_orders,
    warn_of_copies,
    warn_of_cuts,
    warn_of_later_rows,
    warn_of_no_past,
    warn_of_overlap,
)
from gpupipe.schema import Field, Role, Schema
from gpupipe.support.origins import Origin, Origins, trace
from gpupipe.support.validation import check_name
from gpupipe.transforms import Transform

_COUNTERS = {"rows_seen_", "rows_unmatched_"}  # of joins, which decide nothing


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
        past, self._fit_ends, self._fit_gaps = (history or frozenset()) - {*names}, source.ranges, source.gaps
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
        self._orders = [name for name in list_orders(self.plan.window_steps, self._source) if name in self._fit_ends]

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
        is_dataset: bool = True,
    ) -> Dataset:
        """Check types and compute the window steps' columns; return the dataset whose rows they belong to.

        Windows look at all rows of `history`, then at all of `data`; what is returned are those of `data` for which
        `rows` is true. Of the sales of a store, with a lag of one row and `rows="day > 3"`:

            history: day 1, sales 5, day 2, sales 8; data: day 3, sales 6, day 4, sales unknown -> day 4, whose lag is 6

        Errors offer what a Dataset takes, or with `is_dataset=False` what the frame does that the data were given as.
        """
        select_rows(data, rows)  # before anything is computed for nothing
        self.plan = self.plan.replace(blind_joins=set())
        if history is None:
            self.plan = self.plan.replace(casts=self._find_casts(data, is_dataset))
            steps, orders = self.plan.window_steps, [name for name in self._orders if name in data.schema]
            is_blind = warn_of_cuts(steps, data) or (
                bool(orders) and warn_of_later_rows(steps, self._fit_ends, find_ends(data, orders, backend))
            )
            self.plan, data = self.plan.attach_window_columns(data, backend, counts_ties=counts_ties)
            data = data if rows is None else data.filter(rows)
            if not is_blind:
                warn_of_no_past(self.plan.window_steps, self.plan.side_columns, data, has_history=False)
            return data
        also = [] if rows is None else [name for name in parse(rows, "filter").reads if name not in self._source]
        schema = Schema(replace(item, nullable=True) for item in (*self._source, *data.schema.select(also)))
        tables = self._conform(history, schema), self._conform(data, schema, is_dataset)
        parts = [ensure_unique_row_ids(replace(table, backend=backend)) for table in tables]
        warn_of_overlap(self.plan.window_steps, parts[0], parts[1], (history, data), self._fit_gaps)
        self.plan, whole = self.plan.attach_window_columns(concat(parts), backend, counts_ties=True)
        if self.plan.ties:
            warn_of_copies(history)
        data = whole.of_partitions(whole.partitions[parts[0].num_partitions :])
        warn_of_no_past(self.plan.window_steps, self.plan.side_columns, data, has_history=True)
        return data if rows is None else data.filter(rows)

    def _conform(self, data: Dataset, schema: Schema, is_dataset: bool = True) -> Dataset:
        """Return the columns of `schema` in the types of the fit; all values are missing of one that is not there."""
        casts, names = self._find_casts(data, is_dataset), [name for name in schema.names if name in data.schema]
        identity = partial(repr, (schema.to_json(), casts))
        return map_frames(data, partial(_conform, schema, casts), schema, names, keeps_rows=True, identity=identity)

    def _find_casts(self, data: Dataset, is_dataset: bool) -> dict[str, str]:
        dtypes = {item.name: item.dtype for item in data.schema}
        values = partial(find_values, data)
        return find_casts(self._source, dtypes, list_zones(data.schema), values, is_dataset=is_dataset)

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
                adds_rows=self.plan.adds_rows,
                backend=backend,
                identity=identity,
                draws_rows=self.draws_rows,
                owned_columns=owned_columns,
                listings=self.plan.listings,
            )
        owner = infer_backend(data)
        self.plan = self.plan.replace(blind_joins=set())
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
            table = from_frame(part, num_partitions=1, backend=owner.name)
            table = self.prepare(table, owner.name, rows, history, is_dataset=False)
            (partition,) = table.partitions
            return table.read(partition, self.reads, owner), partition.row_ids(owner.xp)
        coded = owner.encode(owner.select(data, self.reads))
        names = [item.name for item in self._source if item.dtype == "timestamp"]
        readings = owner.classify(owner.select(data, names)) if names else {}
        times = [Field(name, item.dtype, written_as=item.written_as) for name, item in readings.items() if item.dtype]

        def find_column(name: str) -> Column | None:
            column = owner.column(coded, name)
            return None if lacks_values(column, owner) else column

        warn_of_later_rows(self.plan.window_steps, self._fit_ends, find_frame_ends(coded, self._orders, owner))
        casts = find_casts(self._source, owner.dtypes(coded), list_zones(times), find_column)
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
    columns = {name: cast_as_fitted(backend.column(frame, name), dtype, name, backend) for name, dtype in casts.items()}
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
