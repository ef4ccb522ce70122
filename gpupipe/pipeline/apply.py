"""Pipeline application: a fitted pipeline bound to the columns of a dataset or frame."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from functools import partial
from typing import Any, Self

from gpupipe.backend import Array, Backend, Column, Frame, infer_backend, select
from gpupipe.backend.arrow import arrow_type, holds_fields
from gpupipe.backend.cast import cast_column
from gpupipe.backend.columns import missing_column
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import ColumnNotFound, SchemaMismatch
from gpupipe.io import Dataset, FrameFunction
from gpupipe.io.planning.table import map_frames
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.plan import TransformPlan, Typed, materialize_window_columns
from gpupipe.schema import FLOATS, INTEGERS, Field, Role, Schema, get_element_dtype, is_passenger
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

    def bind(
        self,
        steps: Sequence[Transform],
        features: Features | None,
        source: Schema,
        names: tuple[str, ...],
        **options: Any,
    ) -> BoundPipeline:
        """Return the bound pipeline for data of these columns, a cached one where it is still valid."""
        key: Hashable = names, *options.items()
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
            found = BoundPipeline(steps, features, source, names, **options)
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
        holders += features._steps
        holders += [] if features.target is None else features.target.each
        found += [*features.groups, features.target, features.weight, features.keep, features.allow_leak]
    for holder in holders:
        found.append(holder)
        found += [value for name, value in vars(holder).items() if name not in _COUNTERS]
    return found


class BoundPipeline:
    """A pipeline fitted on data of the schema `source`, bound to data that holds the columns `names`.

    `with_target_only` leaves out rows whose target is missing; `predicting` gives features and kept columns only, and
    skips steps that drop rows only in training; with `out_of_fold` the rows are those of the fit, and what they get was
    learned from the target of others. `wanted` are the columns asked for after the transforms, by default those that
    `features` and labels need; `counting` as for `TransformPlan`.
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
            owned = [group for group in features.groups if group.steps and group.steps[-1].allocates]
            self.owned_columns = {group.rename(item.name) for group in owned for item in group.fields(after)}
            wanted = _select_wanted(features, after, source, there, predicting) if wanted is None else wanted
            if with_target_only:
                _check_weight(features, after, {*source.names} - there)
        self.prefix = TransformPlan(steps, source, wanted, predicting=predicting, there=there, counting=counting)
        self.seen = self.prefix.output_schema.select(self.prefix.wanted)
        self._features = features
        target = None if features is None else features.target
        self._only_with = target if with_target_only else None
        self.schema = self.seen if features is None else features._output_schema(self.seen, after)
        self.table_schema = self.schema if target is None else target.in_own_units(self.schema)
        self.reads = self.prefix.reads
        self.keeps_rows = self.prefix.keeps_rows and self._only_with is None
        self._out_of_fold = out_of_fold
        self.draws_rows = self.prefix.draws_rows or (features is not None and features._cross_fits and out_of_fold)
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
        """
        there = dataset.schema
        return self._expect({item.name: item.dtype for item in there}, _zones(there), partial(_is_empty, dataset))

    def _expect(self, there: Mapping[str, str], zones: Mapping[str, str], is_empty: Callable[[str], bool]) -> Self:
        self._casts = {name: dtype for name, dtype in self._dtypes.items() if there[name] != dtype}
        for name, dtype in self._casts.items():
            if _differs(there[name], dtype) and not is_empty(name):
                raise _another_type(name, there[name], dtype)
        for name in self._zones.keys() & zones.keys():
            found, wanted = zones[name], self._zones[name]
            if bool(found) != bool(wanted) and not is_empty(name):
                raise SchemaMismatch(
                    f"column {name!r}",
                    f"its times have {'no' if wanted else 'a'} time zone, other than in fit",
                    got=found or "no zone",
                    expected=wanted or "no zone",
                    remedy=f"data[{name!r}].dt.tz_localize({wanted or None!r})",
                )
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
        `own` are the columns it puts out in memory nobody else holds. The result has the given frame's index.
        """
        if isinstance(data, Dataset):
            self.plan_casts(data)
            if self.prefix.window_steps:  # which see rows of other partitions: their files are part of the job's id
                identity = partial(_add_inputs, identity, sorted((data.source.inputs() or {}).items()))
            data = self.attach_window_columns(data, get_executor().resolve(backend))
            if self._features is None and not self._casts:
                function = self.prefix.attach or function
            return map_frames(
                data,
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

    def apply(self, frame: Frame, backend: Backend, row_ids: Array | None = None) -> Frame:
        """Compute the output frame of a coded frame, the target in its own units; its index holds the row positions."""
        outputs, seen = self.columns(frame, backend, row_ids)
        if self._features is None:
            return seen
        made = backend.frame(outputs, len(seen))
        made.index = seen.index
        return made

    def columns(
        self, frame: Frame, backend: Backend, row_ids: Array | None = None, *, stored: bool = False
    ) -> tuple[Mapping[str, Column], Frame]:
        """Compute the output columns of a coded frame that holds `reads`, and the frame after the transforms.

        The target is in its own units, unless it is to be as it is `stored` for training. `row_ids` as for
        `TransformPlan.run`.
        """
        seen = self.prefix.run(_cast_columns(self._casts, frame, backend), backend, row_ids)
        if self._only_with is not None and self._only_with.is_in(self.seen):
            present = self._only_with.present(seen, self.seen, backend)
            seen = seen if present is None else backend.filter(seen, present)
        if self._features is None:
            return {name: backend.column(seen, name) for name in seen.columns}, seen
        ids = None
        if self._out_of_fold:
            positions = backend.positions(seen)
            ids = positions.astype("uint64") if row_ids is None else row_ids[positions]
        return self._features._columns(seen, self.seen, backend, ids, stored=stored), seen

    @property
    def typed(self) -> Typed | None:
        """Gives a frame the types of the fit; None where it has them."""
        return partial(_cast_columns, self._casts) if self._casts else None


def _add_inputs(identity: Callable[[], str | None], inputs: Sequence[tuple[str, Any]]) -> str | None:
    found = identity()
    return None if found is None else f"{found} {inputs}"


def _select_wanted(
    features: Features, after: Schema, source: Schema, there: AbstractSet[str], predicting: bool
) -> set[str]:
    """Return the features, kept columns, and the labels whose source columns are all in the data."""

    def is_there(name: str) -> bool:
        return all(column in there for column in after[name].lineage if column in source)

    after.require(features.keep, "Features")
    wanted = features.inputs | {name for name in features.keep if after[name].role != Role.LABEL or is_there(name)}
    for label in () if predicting else features._labels:
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


def _differs(found: str, wanted: str) -> bool:
    """Return whether values of one type cannot stand for the other's; lists are compared by their elements."""
    if is_passenger(found) and is_passenger(wanted) and not holds_fields(arrow_type(wanted), arrow_type(found)):
        return True
    elements = (get_element_dtype(found), get_element_dtype(wanted))
    of_lists = None not in elements
    one, other = elements if of_lists else (found, wanted)
    if one == "float64":  # in which a column of missing values may come; it is checked again with its values
        return False
    mixed = any(elements) != of_lists or is_passenger(found) != is_passenger(wanted)
    return mixed or bool({"string", "timestamp"} & {one, other})


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


def _another_type(name: str, found: str, wanted: str) -> SchemaMismatch:
    remedy = f"the column as {wanted} before it is given"
    if found == "string" and (wanted == "timestamp" or wanted in (*INTEGERS, *FLOATS)):
        remedy = f"pd.to_{'datetime' if wanted == 'timestamp' else 'numeric'}(data[{name!r}])"
    return SchemaMismatch(f"column {name!r}", "another type than in fit", got=found, expected=wanted, remedy=remedy)
