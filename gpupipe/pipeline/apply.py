"""Pipeline application: a fitted pipeline bound to the columns of a dataset or frame, and the ranges of its results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from functools import partial
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame, Matrix, infer_backend, select
from gpupipe.backend.arrow_types import arrow_type, holds_fields
from gpupipe.backend.columns import cast_column, missing_column
from gpupipe.cluster import get_executor
from gpupipe.errors import ColumnNotFound, SchemaMismatch
from gpupipe.io import Dataset, FrameFunction
from gpupipe.pipeline.column_stats import ColumnStats
from gpupipe.pipeline.feature_group import FeatureGroup
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.plan import TransformPlan, Typed, materialize_window_columns
from gpupipe.schema import FLOATS, INTEGERS, Field, Kind, Role, Schema, get_element_dtype, is_passenger
from gpupipe.transforms import Transform

_COUNTERS = {"rows_seen_", "rows_unmatched_"}  # of joins, which decide nothing
_MOST_BINDINGS = 16


class Bindings:
    """Cache of bound pipelines by source columns; an entry is dropped once a step has changed.

    Threads may ask at once: the worst is that two of them make the same.
    """

    def __init__(self) -> None:
        self._known: tuple[list[Any], dict[Hashable, BoundPipeline]] = ([], {})

    def __reduce__(self) -> tuple[type[Bindings], tuple[()]]:
        """Pickle as an empty cache."""
        return Bindings, ()

    def get_or_make(
        self,
        steps: Sequence[Transform],
        features: Features | None,
        source: Schema,
        key: Hashable,
        make: Callable[[], BoundPipeline],
    ) -> BoundPipeline:
        """Return the bound pipeline for `key`, built with `make` unless a cached one is still valid."""
        state = _state(steps, features, source)
        if features is not None:  # lists that may be changed in place
            lists = (features.keep, features.allow_leak, *(group.columns for group in features.groups))
            key = key, tuple(map(tuple, lists))
        before, known = self._known
        if len(before) != len(state) or any(a is not b for a, b in zip(before, state, strict=True)):
            known = {}
            self._known = state, known
        found = known.get(key)
        if found is None:
            found = make()
            if len(known) >= _MOST_BINDINGS:
                known = {}
                self._known = state, known
            known[key] = found
        return copy(found)  # which is then told of the data's types


def _state(steps: Sequence[Transform], features: Features | None, source: Schema) -> list[Any]:
    """List every object that a binding depends on, so that a replaced object invalidates it."""
    holders: list[Any] = list(steps)
    found: list[Any] = [source, features]
    if features is not None:
        holders += [step for group in features.learned for step in group.steps]
        holders += [] if features.target is None else features.target.each
        found += [*features.groups, features.target, features.weight, features.keep, features.allow_leak]
    for holder in holders:
        found.append(holder)
        found += [value for name, value in vars(holder).items() if name not in _COUNTERS]
    return found


class BoundPipeline:
    """A fitted pipeline bound to data that holds certain columns.

    Args:
        steps, features: fitted.
        source: the schema of the data they were fitted on, labels marked.
        names: the columns of the data.
        with_target_only: leave out rows whose target is missing.
        predicting: features and kept columns only; steps that drop rows only in training are skipped.
        out_of_fold: the rows are those of the fit, and what they get was learned from the target of others.
        wanted: the columns asked for after the transforms; None for those that `features` and labels need.
        counting: whether each `T.Expect` counts.

    Attributes:
        schema: of what a block is written from.
        table_schema: of what `apply` gives, the target in its own units.

    Raises:
        ColumnNotFound: a column that is read is not in the data.
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
        wanted: AbstractSet[str] | None = None,
        counting: bool = False,
    ) -> None:
        after, there = None, set(names)
        self.owned_columns: set[str] = set()
        if features is not None:
            after = TransformPlan(steps, source, None, predicting=predicting).output_schema
            self.owned_columns = {name for group in features.groups for name in group.allocated(after)}
            wanted = _select_wanted(features, after, source, names, predicting) if wanted is None else wanted
            if with_target_only:
                _check_weight(features, after, {*source.names} - there)
        self.prefix = TransformPlan(steps, source, wanted, predicting=predicting, there=there, counting=counting)
        self.seen = self.prefix.output_schema.select(self.prefix.wanted)
        self._features = features
        self._only_with_target = with_target_only and features is not None and features.target is not None
        self.schema = self.seen if features is None else features.output_schema(self.seen, after)
        target = None if features is None else features.target
        self.table_schema = self.schema if target is None else target.in_own_units(self.schema)
        self.reads = self.prefix.reads
        self.keeps_rows = self.prefix.keeps_rows and not self._only_with_target
        self._out_of_fold = out_of_fold
        self.draws_rows = self.prefix.draws_rows or (features is not None and features.cross_fits and out_of_fold)
        self._casts: dict[str, str] = {}
        for name in self.reads:
            if name not in there:
                raise ColumnNotFound.among("the data", name, names)
        self._dtypes = {name: source[name].dtype for name in self.reads}
        self._zones = _zones(source.select(self.reads))

    def plan_casts(self, dataset: Dataset) -> Self:
        """Record the columns that are stored as another dtype than in the fit; return self.

        Times of another zone than in fit are the same times; times without any zone are not. A column without a value
        may be of any type, for which it is read here.

        Raises:
            SchemaMismatch: a column is of another family, or has a time zone where it had none in fit, or none now.
        """
        there = dataset.schema
        return self._expect({item.name: item.dtype for item in there}, _zones(there), partial(_is_empty, dataset))

    def _expect(self, there: Mapping[str, str], zones: Mapping[str, str], is_empty: Callable[[str], bool]) -> Self:
        self._casts = _casts(self._dtypes, there, is_empty)
        for name in self._zones.keys() & zones.keys():
            if bool(zones[name]) != bool(self._zones[name]) and not is_empty(name):
                raise _another_zone(name, zones[name], self._zones[name])
        return self

    def run_on(
        self,
        data: Any,
        function: FrameFunction,
        schema: Schema,
        backend: str,
        identity: Callable[[], str | None],
        own: Collection[str] = (),
    ) -> Any:
        """Map `function`, from a coded frame of `reads` to one of `schema`, over a Dataset (lazily) or a frame.

        With `draws_rows` it takes the rows' identities as a third argument, by default the frame's own row numbers.

        `own` are the columns it puts out in memory nobody else holds.

        Memory: a new frame, which has the given one's index; unused columns are not read.
        """
        if isinstance(data, Dataset):
            self.plan_casts(data)
            identity = self._identity(data, identity)
            data = self.attach_window_columns(data, get_executor().resolve(backend))
            if self._features is None and not self._casts:
                function = self.prefix.attach or function
            return data.map_frames(
                function,
                schema,
                self.reads,
                keeps_rows=self.keeps_rows,
                backend=backend,
                identity=identity,
                draws_rows=self.draws_rows,
                own=own,
            )
        owner = infer_backend(data)
        coded = owner.encode(owner.select(data, self.reads))
        read = owner.classify(owner.select(data, list(self._zones))) if self._zones else {}
        times = [Field(name, found.dtype, written_as=found.written_as) for name, found in read.items() if found.dtype]
        self._expect(owner.dtypes(coded), _zones(times), lambda name: _is_missing(owner.column(coded, name), owner))
        made = function(coded, owner)
        result = owner.decode(made, own, schema)
        result.index = data.index.take(owner.positions(made))
        return result

    def attach_window_columns(self, data: Dataset, backend: str) -> Dataset:
        """Compute the window steps' columns and return the dataset whose rows they belong to."""
        self.prefix, data = materialize_window_columns(self.prefix, data, backend, self.typed)
        self.draws_rows = self.draws_rows or self.prefix.draws_rows
        return data

    def _identity(self, data: Dataset, identity: Callable[[], str | None]) -> Callable[[], str | None]:
        """Return a function that computes the job id, including the input files of window steps."""
        if not self.prefix.window_steps:
            return identity
        inputs = sorted((data.source.inputs() or {}).items())

        def whole() -> str | None:
            found = identity()
            return None if found is None else f"{found} {inputs}"

        return whole

    def load(self, frame: Frame, backend: Backend, row_ids: Array | None = None) -> Mapping[str, Column]:
        """Compute the output columns of a coded frame that holds `reads`, the target as it is stored for training.

        `row_ids` as for `TransformPlan.run`.
        """
        return self._outputs(self._run(frame, backend, row_ids), backend, row_ids, stored=True)

    def apply(self, frame: Frame, backend: Backend, row_ids: Array | None = None) -> Frame:
        """Compute the output frame of a coded frame, the target in its own units; its index holds the row positions.

        `row_ids` as for `TransformPlan.run`.
        """
        outputs, seen = self.columns(frame, backend, row_ids)
        if self._features is None:
            return seen
        made = backend.frame(outputs, len(seen))
        made.index = seen.index
        return made

    def columns(
        self, frame: Frame, backend: Backend, row_ids: Array | None = None
    ) -> tuple[Mapping[str, Column], Frame]:
        """Compute the output columns of a coded frame, the target in its own units, and the frame after the transforms.

        `row_ids` as for `TransformPlan.run`.
        """
        seen = self._run(frame, backend, row_ids)
        return self._outputs(seen, backend, row_ids, stored=False), seen

    @property
    def typed(self) -> Typed | None:
        """Gives a frame the types of the fit; None where it has them."""
        return partial(_cast_columns, self._casts) if self._casts else None

    def _run(self, frame: Frame, backend: Backend, row_ids: Array | None) -> Frame:
        frame = frame if self.typed is None else self.typed(frame, backend)
        seen = self.prefix.run(frame, backend, row_ids)
        if self._only_with_target:
            assert self._features is not None
            target = self._features.target
            if target is not None and target.is_in(self.seen):
                present = target.present(seen, self.seen, backend)
                seen = seen if present is None else backend.filter(seen, present)
        return seen

    def _outputs(self, seen: Frame, backend: Backend, row_ids: Array | None, *, stored: bool) -> Mapping[str, Column]:
        if self._features is None:
            return {name: backend.column(seen, name) for name in seen.columns}
        ids = _get_row_ids(seen, backend, row_ids) if self._out_of_fold else None
        return self._features.columns(seen, self.seen, backend, ids, stored=stored)


def _get_row_ids(seen: Frame, backend: Backend, row_ids: Array | None) -> Array:
    """Return the row id of each row; of a frame's rows, their positions."""
    positions = backend.positions(seen)
    return positions.astype("uint64") if row_ids is None else row_ids[positions]


def _select_wanted(
    features: Features, after: Schema, source: Schema, names: Sequence[str], predicting: bool
) -> set[str]:
    """Return the features, kept columns, and the labels whose source columns are all in the data."""
    there = set(names)

    def is_there(name: str) -> bool:
        return all(column in there for column in after[name].lineage if column in source)

    after.require(features.keep, "Features")
    wanted = features.inputs | {name for name in features.keep if after[name].role != Role.LABEL or is_there(name)}
    for label in (features.target, features.weight):
        if label is not None and not predicting:
            reads = label.reads(after)
            after.require(reads, "Features")
            if all(map(is_there, reads)):
                wanted |= set(reads)
    return wanted


def _check_weight(features: Features, after: Schema, absent: AbstractSet[str]) -> None:
    """Raise where rows have the target, but not the weight that they had in the fit."""
    target, weight = features.target, features.weight
    lost = [] if weight is None else sorted(weight.lineage(after) & absent)
    if target is None or weight is None or not lost or target.lineage(after) & absent:
        return
    error = ColumnNotFound(
        f"loader, weight {weight.text!r}",
        f"column {lost[0]!r} not found",
        expected="the weight beside the target, as in the fit",
        remedy=f"data with {lost[0]!r}, 1.0 in each row to count all alike; or a fit of Features(weight=None)",
    )
    error.column = lost[0]
    raise error


def _casts(wanted: Mapping[str, str], there: Mapping[str, str], is_empty: Callable[[str], bool]) -> dict[str, str]:
    casts = {}
    for name, dtype in wanted.items():
        found = there[name]
        if found == dtype:
            continue
        # A column in which every value is missing may come as float64; it is checked again with its values.
        elements = (get_element_dtype(found), get_element_dtype(dtype))
        of_lists = None not in elements
        one, other = elements if of_lists else (found, dtype)
        carried = is_passenger(found) != is_passenger(dtype)
        differs = one != "float64" and (any(elements) != of_lists or carried or {"string", "timestamp"} & {one, other})
        if is_passenger(found) and is_passenger(dtype):
            differs = differs or not holds_fields(arrow_type(dtype), arrow_type(found))
        if differs and not is_empty(name):
            raise _another_type(name, found, dtype)
        casts[name] = dtype
    return casts


def _cast_columns(casts: Mapping[str, str], frame: Frame, backend: Backend) -> Frame:
    """Cast the columns that are present to the dtypes of the fit."""
    there = {name: dtype for name, dtype in casts.items() if name in frame.columns}
    made = {name: _cast(backend.column(frame, name), dtype, name, backend) for name, dtype in there.items()}
    return backend.assign(frame, made) if made else frame


def _cast(column: Column, dtype: str, name: str, backend: Backend) -> Column:
    element = get_element_dtype(dtype)
    if _is_missing(column, backend):
        return missing_column(dtype, len(column), backend.xp)
    if element is not None and column.elements is not None:
        elements = _cast(column.elements, element, name, backend)
        return Column(dtype, column.data, column.valid, None, elements)
    if element is not None or dtype in ("string", "timestamp") or is_passenger(dtype) != is_passenger(column.dtype):
        raise _another_type(name, column.dtype, dtype)
    return cast_column(column, dtype, name, backend)


def _is_missing(column: Column, backend: Backend) -> bool:
    missing = column.missing(backend.xp)
    return not len(column) or (missing is not None and bool(missing.all()))


def _is_empty(dataset: Dataset, name: str) -> bool:
    """Whether no row of a dataset has a value in a column."""
    backend = select(dataset.backend)
    frames = (dataset.read(partition, [name], backend) for partition in dataset.partitions)
    return all(_is_missing(backend.column(frame, name), backend) for frame in frames)


def _zones(fields: Iterable[Field]) -> dict[str, str]:
    return {item.name: item.zone for item in fields if item.dtype == "timestamp"}


def _another_zone(name: str, found: str, wanted: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"column {name!r}",
        f"its times have {'no' if wanted else 'a'} time zone, other than in fit",
        got=found or "no zone",
        expected=wanted or "no zone",
        remedy=f"data[{name!r}].dt.tz_localize({wanted or None!r})",
    )


def _another_type(name: str, found: str, wanted: str) -> SchemaMismatch:
    remedy = f"the column as {wanted} before it is given"
    if found == "string" and (wanted == "timestamp" or wanted in (*INTEGERS, *FLOATS)):
        remedy = f"pd.to_{'datetime' if wanted == 'timestamp' else 'numeric'}(data[{name!r}])"
    return SchemaMismatch(
        f"column {name!r}",
        "another type than in fit",
        got=found,
        expected=wanted,
        remedy=remedy,
    )


Range = tuple[float, float]


def output_ranges(features: Features, schema: Schema, seen: Mapping[str, ColumnStats]) -> dict[str, Range]:
    """Compute the minimum and maximum of outputs, by name.

    Ids go from 0 to the last. Numbers are known where every step keeps their order: the ends of the input's range, and
    a missing value where there was one, go through the steps.

    Args:
        features: fitted.
        schema: the columns after the transforms.
        seen: what the fit has seen of them.
    """
    found: dict[str, Range] = {}
    for group in features.groups:
        for item in group.fields(schema):
            if item.kind == Kind.CATEGORICAL and item.cardinality is not None:
                found[group.rename(item.name)] = (0, item.cardinality - 1)
        if group.steps and all(step.monotone for step in group.steps):
            ends = {name: seen[name] for name in group.columns if name in seen and seen[name].range is not None}
            if len(ends) == len(group.columns):
                found |= {group.rename(name): ends for name, ends in _compute_ranges(group, schema, ends).items()}
    return found


def source_ranges(source: Schema, schema: Schema, seen: Mapping[str, ColumnStats]) -> Schema:
    """Return the source's schema with the ranges of columns that the transforms leave unchanged."""
    same = (item.name for item in source if item.name in schema and schema[item.name] == item)
    ranges = {name: seen[name].range for name in same if name in seen}
    return Schema(source, {name: ends for name, ends in ranges.items() if ends is not None})


def _compute_ranges(group: FeatureGroup, schema: Schema, seen: Mapping[str, ColumnStats]) -> dict[str, Range]:
    """Compute the ranges of a group's outputs, on the host."""
    num_rows = 2 + any(item.missing for item in seen.values())
    columns: Mapping[str, Column] = {name: _ends(schema[name].dtype, item, num_rows) for name, item in seen.items()}
    if len({column.dtype for column in columns.values()} | {"float64"}) == 1:
        columns = Matrix(list(columns), np.stack([column.data for column in columns.values()]))
    ranges = {}
    for name, column in group.apply_steps(columns, select("cpu")).items():
        missing = column.missing(np)
        data = column.data.astype("float64")
        data = data[np.isfinite(data) if missing is None else np.isfinite(data) & ~missing]
        if len(data) and column.dtype != "bool":
            ranges[name] = (float(data.min()), float(data.max()))
    return ranges


def _ends(dtype: str, seen: ColumnStats, num_rows: int) -> Column:
    """Build a column of the minimum, the maximum, and a third row: missing if the column has gaps, else the minimum."""
    values, gaps = np.array([seen.low, seen.high, seen.low][:num_rows]), bool(seen.missing) and num_rows == 3
    if dtype in FLOATS:
        values[2:] = np.nan if gaps else seen.low
        return Column(dtype, values.astype(dtype))
    if dtype != "bool":
        info = np.iinfo(dtype)  # the float nearest to 2**63 - 1 is one more than it
        values = np.array([min(max(int(value), info.min), info.max) for value in values], dtype=dtype)
    return Column(dtype, values.astype(dtype), np.array([True, True, False]) if gaps else None)
