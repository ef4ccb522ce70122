"""Learned steps: mergeable summaries of partitions (`summarize`, `+`, `finalize`), then columns to columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from secrets import randbits
from typing import Any, Generic, Protocol, Self, TypeVar

from gpupipe.backend import Backend, Column, Frame, RawColumn, infer_backend
from gpupipe.backend.columns import missing_column, refuse_passengers
from gpupipe.backend.estimators import transformer_tags
from gpupipe.backend.kernels import DeferredColumn, ElementwiseProgram
from gpupipe.errors import BadConfig, NotFitted
from gpupipe.schema import FLOATS, Field, Kind, get_element_dtype, to_list_dtype
from gpupipe.step import Step, in_step
from gpupipe.support.text import as_list

Columns = Mapping[str, Column]


class Summary(Protocol):
    """Protocol of what one partition contributes to a fit; small.

    `+` is associative and commutative and, for any split of the rows, gives what the whole would give (counts exactly,
    floats within the tolerance table).
    """

    def __add__(self, other: Self, /) -> Self: ...


class LearnedStep(Step, ABC):
    """Base class of steps whose state is learned from mergeable summaries, with scikit-learn's methods.

    Subclasses define `summarize`, `finalize`, `transform_columns` and `output_fields`; what `finalize` learns are
    attributes that end in `_`, among them `names_in_`, the list of the columns. `get_state` and `set_state` are there
    for attributes that are numbers, strings, lists or arrays; others override them.
    """

    fills_late: bool = False
    """Whether the step can be fitted in the pass of an imputer right before it: its summary has `filled(values)`."""
    unfinished: bool = False
    """Whether `finalize` asks for one more pass, whose `summarize` and `finalize` go on from what is learned."""
    may_repeat: bool = False
    """Whether `unfinished` may become true: what the step reads is then kept in memory where it fits."""
    keeps_units: bool = False
    """Whether an output of an input's name counts the same: minutes stay minutes."""
    monotone: bool = False
    """Whether numbers keep their order, whatever the other columns hold: then ranges of outputs follow from inputs'."""
    allocates: bool = False
    """Whether all arrays it puts out are new: then they need no copy. A subclass's `transform_columns` says it anew."""
    summary_key: Hashable = None
    """Steps of one key share a summary of the same columns. A subclass with another `summarize` says it anew."""
    names_in_: list[str]

    learned_by_name: tuple[str, ...] = ()
    """Learned attributes that hold an array, a number or a text for each column by name."""
    _dtypes_seen: Mapping[str, str] = {}
    """The types of the columns of the frame given to `fit`, but for columns without values."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "transform_columns" in vars(cls) and "allocates" not in vars(cls):
            cls.allocates = False
        if "summarize" in vars(cls) and "summary_key" not in vars(cls):
            cls.summary_key = None

    @abstractmethod
    def summarize(self, columns: Columns, backend: Backend) -> Any:
        """Return one partition's `Summary`; `BadData` for a value the step cannot learn from. It may have no rows."""

    @abstractmethod
    def finalize(self, summary: Any) -> Self:
        """Learn the state (attributes ending in `_`) from all partitions' sum; returns self, or raises `BadData`."""

    @abstractmethod
    def transform_columns(self, columns: Columns, backend: Backend) -> Columns:
        """Return the output for one partition, named as in `output_fields`; inputs are not modified.

        Adjacent columns of one array come as a `Matrix`, which may be processed as one.
        """

    @abstractmethod
    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        """Return the output's fields for these input fields; `SchemaMismatch` for a type the step does not work on."""

    def pointwise(self, name: str, dtype: str) -> ElementwiseProgram | None:
        """Return what the fitted step makes of each number of a column, to the bit; None where it does more."""
        return None

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names of the outputs for inputs of these names; the same unless a step overrides it."""
        return list(names)

    def looks_at(self, names: Sequence[str]) -> list[str]:
        """Return the fitted columns that `transform_columns` reads; all unless a step overrides it."""
        return list(names)

    def get_state(self) -> dict[str, Any]:
        """Return the learned numbers, strings, lists and arrays by attribute name; `NotFitted` before `fit`."""
        self.check_fitted()
        state = {name: value for name, value in vars(self).items() if name.endswith("_")}
        for attribute in self.learned_by_name:
            by_name = state.pop(attribute)
            state |= {f"{attribute}{place}": by_name[name] for place, name in enumerate(self.names_in_)}
        return state

    def set_state(self, state: Mapping[str, Any]) -> Self:
        """Restore what `get_state` returned; returns self."""
        for name in (name for name in state if name.endswith("_")):
            setattr(self, name, state[name])
        for attribute in self.learned_by_name:
            setattr(self, attribute, {name: state[f"{attribute}{i}"] for i, name in enumerate(self.names_in_)})
        return self

    @property
    def is_fitted(self) -> bool:
        """Whether `finalize` has run, or `set_state` has restored its state."""
        return "names_in_" in vars(self)

    def check_fitted(self) -> None:
        """Raise `NotFitted` unless `finalize` has run."""
        if not self.is_fitted:
            where, remedy = type(self).__name__, f"{type(self).__name__}().fit(frame)"
            raise NotFitted(where, "it has not been fitted", expected="fit before transform", remedy=remedy)

    def fit(self, frame: Frame, y: object = None) -> Self:
        """Learn from a user's frame, all columns. `y` is ignored."""
        columns, backend = self._columns_to_fit(frame)
        self.finalize(self.summarize(columns, backend))
        while self.unfinished:
            self.finalize(self.summarize(columns, backend))
        return self

    def _columns_to_fit(self, frame: Frame) -> tuple[Columns, Backend]:
        """Return a user's frame as columns, whose types are checked and kept."""
        columns, fields, backend = to_columns(frame, None, type(self).__name__)
        self.output_fields(fields)
        self._dtypes_seen = {item.name: item.dtype for item in fields}
        return columns, backend

    def transform(self, frame: Frame) -> Frame:
        """Return the output columns for a user's frame, with its index; columns outside the fit are left out.

        Raises:
            ColumnNotFound, SchemaMismatch: a column it was fitted on is not there, or has another type.
        """
        self.check_fitted()
        names = self.looks_at(self.names_in_)
        columns, fields, backend = to_columns(frame, names, type(self).__name__, self._dtypes_seen)
        if len(names) == len(self.names_in_):
            self.output_fields(fields)
        return to_frame(self.transform_columns(columns, backend), frame, backend)

    def fit_transform(self, frame: Frame, y: object = None) -> Frame:
        """Fit and transform the same frame."""
        return self.fit(frame).transform(frame)

    def get_feature_names_out(self, input_features: str | Sequence[str] | None = None) -> list[str]:
        """Return the names of the outputs, for the fitted columns unless others are given."""
        self.check_fitted()
        return self.output_names(self.names_in_ if input_features is None else as_list(input_features))

    def set_output(self, *, transform: str | None = None) -> Self:
        """Accept scikit-learn's request for frames, which a step returns anyway; `BadConfig` for anything else."""
        if transform not in (None, "default", "pandas"):
            where, expected = f"{type(self).__name__}.set_output(transform=)", "'pandas' or 'default'"
            problem, remedy = "a step gives frames of the library it is given", "gp.from_frame(...) for other tables"
            raise BadConfig(where, problem, got=transform, expected=expected, remedy=remedy)
        return self

    def __sklearn_tags__(self) -> Any:
        return transformer_tags(needs_target=getattr(self, "needs_target", False))

    def __sklearn_is_fitted__(self) -> bool:
        return self.is_fitted


class SeededStep(LearnedStep):
    """Base class of learned steps that draw from `random_state`: a seed, or None for one of the system's.

    A seed is drawn when a step is made, so that its copies, in other processes too, have the same.
    """

    random_state: int | None
    _drawn: int

    def __new__(cls, *_: Any, **__: Any) -> Self:
        step = super().__new__(cls)
        step._drawn = randbits(32)
        return step

    @property
    def random_state_(self) -> int:
        """The seed, given or drawn."""
        return self._drawn if self.random_state is None else int(self.random_state)

    @random_state_.setter
    def random_state_(self, seed: int) -> None:
        self._drawn = seed

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "random_state_": self.random_state_}


class Invertible(LearnedStep):
    """Mixin of steps that can be inverted."""

    @abstractmethod
    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """Return the inputs of these outputs as far as they can be recovered; outputs are not modified."""

    def inverse_transform(self, frame: Frame) -> Frame:
        """Return the inputs for a frame of outputs, with its index.

        Raises:
            BadConfig, ColumnNotFound: there are no outputs, or one is not in the frame.
        """
        self.check_fitted()
        where, outputs = type(self).__name__, self.get_feature_names_out()
        if self.names_in_ and not outputs:
            problem, expected = "the step has no outputs, from which inputs could be computed", "an output at least"
            remedy = "a step that leaves no column out, such as drop=None"
            raise BadConfig(f"{where}.inverse_transform", problem, got=self.names_in_, expected=expected, remedy=remedy)
        columns, _, backend = to_columns(frame, outputs, where)
        return to_frame(self.inverse_columns(columns, backend), frame, backend)


def to_columns(
    frame: Frame, names: Sequence[str] | None, where: str, dtypes: Mapping[str, str] | None = None
) -> tuple[Columns, list[Field], Backend]:
    """Return the columns (all, or those named) of a user's frame, their fields, and their backend.

    `dtypes` are the types of columns that come without one, as float64, where all their values are missing; or all
    their elements, of columns of lists.
    """
    backend = infer_backend(frame)
    if names is not None and set(names) <= set(frame.columns):
        frame = backend.select(frame, names)
    coded = backend.encode(frame)
    schema = backend.schema_of(coded)
    if names is not None:
        schema.require(names, where)
        schema = schema.select(names)
    refuse_passengers(schema, where)
    matrix = backend.matrix(coded, schema.names)
    if matrix is not None and all((dtypes or {}).get(item.name, "float64") in FLOATS for item in schema):
        return matrix, list(schema), backend
    columns, fields = {name: backend.column(coded, name) for name in schema.names}, list(schema)
    for place, item in enumerate(fields):
        known, column = (dtypes or {}).get(item.name, item.dtype), columns[item.name]
        values, inner, element = column, known, get_element_dtype(known)
        if column.elements is not None and element is not None:
            values, inner = column.elements, element
        absent = values.missing(backend.xp)
        if values.dtype != "float64" or inner in FLOATS or absent is None:
            continue
        if backend.to_host(absent.all()[None])[0]:
            missing = missing_column(inner, len(values), backend.xp)
            fields[place] = replace(item, dtype=known, kind=None)
            columns[item.name] = missing if values is column else replace(column, dtype=known, elements=missing)
    return columns, fields, backend


def to_frame(columns: Columns, frame: Frame, backend: Backend) -> Frame:
    """Return these columns as a user's frame, with the index of `frame`."""
    made = backend.decode(backend.frame(columns, len(frame)))
    made.index = frame.index
    return made


ColumnSummary = TypeVar("ColumnSummary", bound=Any)


@dataclass(frozen=True)
class ColumnSummaries(Generic[ColumnSummary]):
    """Summary of some columns, each by itself."""

    names: tuple[str, ...]
    columns: tuple[ColumnSummary, ...]

    def __add__(self, other: Self) -> Self:
        return type(self)(self.names, tuple(a + b for a, b in zip(self.columns, other.columns, strict=True)))

    def filled(self, values: Mapping[str, Any]) -> Self:
        """Return the summary with each missing value replaced by `values[name]`."""
        pairs = zip(self.names, self.columns, strict=True)
        return type(self)(self.names, tuple(column.filled(values[name]) for name, column in pairs))


class Types(dict[str, str]):
    """Summary of a step that reads no value: the columns' types by name."""

    def __add__(self, other: Self) -> Self:
        return self

    def filled(self, values: Mapping[str, Any]) -> Self:
        """Return the same summary: it holds no value."""
        return self


class StatelessStep(LearnedStep):
    """Base class of steps of rows or values alone: `fit` keeps the columns' names, and does not read the data."""

    fills_late = True

    def summarize(self, columns: Columns, backend: Backend) -> Types:
        return Types({name: column.dtype for name, column in columns.items()})

    def finalize(self, summary: Types) -> Self:
        self.names_in_ = list(summary)
        return self


StepClass = TypeVar("StepClass", bound=type[LearnedStep])


def by_element(cls: StepClass) -> StepClass:
    """Let a step with one output of the same name for each of its columns accept lists too.

    What it is given of a column of lists are all their elements, as one column; what it makes of them goes back into
    lists of the same lengths, which share the offsets. A missing list stays missing.
    """
    cls.summarize = _with_elements(cls.summarize)  # type: ignore[method-assign]
    cls.transform_columns = _with_lists(cls.transform_columns)  # type: ignore[method-assign]
    if hasattr(cls, "inverse_columns"):
        cls.inverse_columns = _with_lists(cls.inverse_columns)
    cls.output_fields = _with_list_fields(cls.output_fields)  # type: ignore[method-assign]
    return cls


def _with_elements(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def summarize(self: LearnedStep, columns: Columns, backend: Backend) -> Any:
        opened = {name: column if column.elements is None else column.elements for name, column in columns.items()}
        return method(self, opened, backend)

    return summarize


def _with_lists(method: Callable[..., Any]) -> Callable[..., dict[str, Column]]:
    open_lists = _with_elements(method)

    @wraps(method)
    def transform(self: LearnedStep, columns: Columns, backend: Backend) -> dict[str, Column]:
        made: dict[str, Column] = open_lists(self, columns, backend)
        for name, column in columns.items():
            if column.elements is not None:
                made[name] = Column(to_list_dtype(made[name].dtype), column.data, column.valid, None, made[name])
        return made

    return transform


def _with_list_fields(method: Callable[..., list[Field]]) -> Callable[..., list[Field]]:
    @wraps(method)
    def output_fields(self: LearnedStep, fields: Sequence[Field]) -> list[Field]:
        dtypes = [get_element_dtype(item.dtype) for item in fields]
        opened = [replace(f, dtype=d, kind=None) if d else f for f, d in zip(fields, dtypes, strict=True)]
        return [
            replace(made, dtype=to_list_dtype(made.dtype), kind=Kind.LIST, nullable=item.nullable) if dtype else made
            for item, dtype, made in zip(fields, dtypes, method(self, opened), strict=True)
        ]

    return output_fields


def find_fused_start(steps: Sequence[LearnedStep]) -> int:
    """Return the position in a chain of fitted steps from which on they fuse to one program for each column."""
    for place in range(len(steps), 0, -1):
        names = steps[place - 1].names_in_
        if not names or not all(fuse_program(steps[place - 1 :], name, "float64") for name in names):
            return place
    return 0


def fuse_program(steps: Sequence[LearnedStep], name: str, dtype: str) -> ElementwiseProgram | None:
    """Return what the steps compute from each number of a column; None where that is not one program."""
    program: ElementwiseProgram | None = ElementwiseProgram(dtype=dtype)
    for step in steps:
        after = None if program is None else step.pointwise(name, program.dtype)
        program = None if program is None or after is None else program.then(after)
    return program


def defer_columns(
    stored: Mapping[str, RawColumn | None],
    read: Mapping[str, Callable[[], Column]],
    steps: Sequence[LearnedStep],
    backend: Backend,
) -> dict[str, Column] | None:
    """Return the columns that a fused chain of fitted steps computes, evaluated later; None where one has no numbers.

    `stored` is what they are made of, by name, and `read` returns the same as evaluated columns.
    """
    made: dict[str, Column] = {}
    for name, source in stored.items():
        program = None if source is None else fuse_program(steps, name, source.data.dtype.name)
        if source is None or program is None:
            return None
        made[name] = DeferredColumn(source, program, partial(_apply_chain, name, read[name], steps, backend))
    return made


def _apply_chain(name: str, read: Callable[[], Column], steps: Sequence[LearnedStep], backend: Backend) -> Column:
    columns: Mapping[str, Column] = {name: read()}
    for step in steps:
        with in_step(step):
            columns = step.transform_columns(columns, backend)
    return columns[name]
