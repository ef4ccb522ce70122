"""Learned steps: mergeable summaries of partitions, then columns to columns, numbers as float64 blocks of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from secrets import randbits
from types import ModuleType
from typing import Any, ClassVar, NoReturn, Protocol, Self, TypeVar

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame, Matrix, RawColumn, infer_backend, kernels
from gpupipe.backend.columns import floats, missing_column, refuse_passengers
from gpupipe.backend.estimators import transformer_tags
from gpupipe.backend.kernels import DeferredColumn, ElementwiseProgram
from gpupipe.errors import BadConfig, BadData, NotFitted, SchemaMismatch
from gpupipe.preprocessing.learned_state import check_value, find_lengths, require_state
from gpupipe.schema import FLOATS, INTEGERS, Field, Kind, get_element_dtype, to_list_dtype
from gpupipe.step import Step, in_step
from gpupipe.support.calls import answer_calls
from gpupipe.support.text import derive, format_count
from gpupipe.support.validation import as_list

Columns = Mapping[str, Column]

_CACHED_NUMBERS = 1 << 15  # 256 KiB of float64: a block and a temporary stay in a core's second-level cache
_LOOPED_NUMBERS = 1 << 17  # compiled loops have no temporaries but float64, and calls cost more than leaving the cache
_DEVICE_NUMBERS = 1 << 26  # 512 MiB: more at once does not make a GPU faster
LARGEST_SQUARED = 1e145  # the squares of 10^17 numbers of this size still have a sum that is a float


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

    fills_late: bool = False  # it can be fitted in the pass of an imputer before it: its summary has `filled(values)`
    unfinished: bool = False  # `finalize` asks for one more pass, which goes on from what is learned
    may_repeat: bool = False  # `unfinished` may become true: what the step reads is kept in memory where it fits
    keeps_units: bool = False  # an output of an input's name counts the same: minutes stay minutes
    monotone: bool = False  # numbers keep their order, whatever the other columns hold: so ranges follow from ranges
    allocates: bool = False  # all outputs are new arrays, which need no copy; another `transform_columns` says it anew
    summary_key: Hashable = None  # steps of one key share a summary; a subclass with another `summarize` says it anew
    names_in_: list[str]
    learned_by_name: tuple[str, ...] = ()  # attributes that hold an array, a number or a text for each column by name
    learned_shapes: ClassVar[Mapping[str, str]] = {}  # of attributes that come from files, see `learned_state`
    _dtypes_seen: Mapping[str, str] = {}  # of the columns of the frame given to `fit`, but for columns without values

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
        """Learn the state (attributes ending in `_`) from all partitions' sum; returns self, or raises `BadData`.

        This one, which subclasses may call last, keeps the names of the columns of a summary that has them.
        """
        self.names_in_ = list(summary.names)
        return self

    @abstractmethod
    def transform_columns(self, columns: Columns, backend: Backend) -> Columns:
        """Return one partition's output, named as `output_fields`; inputs, perhaps a `Matrix`, are not modified."""

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
            state |= {f"{attribute}{index}": by_name[name] for index, name in enumerate(self.names_in_)}
        return state

    def set_state(self, state: Mapping[str, Any]) -> Self:
        """Restore what `get_state` returned; returns self. Raises ArtifactError for what `learned_shapes` rules out."""
        check_value(self.class_name, "names_in_", state["names_in_"], "text[C]", {})
        for name in (name for name in state if name.endswith("_")):
            setattr(self, name, state[name])
        for attribute in self.learned_by_name:
            setattr(self, attribute, {name: state[f"{attribute}{i}"] for i, name in enumerate(self.names_in_)})
        self._check_state()
        return self

    def _check_state(self) -> None:
        """Raise `ArtifactError` for learned state that cannot be of this step."""
        names, lengths = self.names_in_, dict[str, int]()
        require_state(len(set(names)) == len(names), self.class_name, "names_in_", names, "names that differ")
        for attribute, declaration in self.learned_shapes.items():
            if attribute not in self.learned_by_name:
                self._check_attribute(attribute, getattr(self, attribute), declaration, names, lengths)
        by_name = [attribute for attribute in self.learned_by_name if attribute in self.learned_shapes]
        for name in names:
            lengths = {}
            for attribute in by_name:
                value, declaration = getattr(self, attribute)[name], self.learned_shapes[attribute]
                self._check_attribute(f"{attribute}[{name!r}]", value, declaration, [name], lengths)

    def _check_attribute(
        self, attribute: str, value: Any, declaration: str, names: Sequence[str], lengths: dict[str, int]
    ) -> None:
        for name in find_lengths(declaration):
            if name == "C":
                lengths[name] = len(names)
            elif name == "O":
                lengths[name] = len(self.output_names(names))
            elif hasattr(self, name):
                lengths[name] = getattr(self, name)
        check_value(self.class_name, attribute, value, declaration, lengths)

    @property
    def is_fitted(self) -> bool:
        """Whether `finalize` has run, or `set_state` has restored its state."""
        return "names_in_" in vars(self)

    def check_fitted(self) -> None:
        """Raise `NotFitted` unless `finalize` has run."""
        if not self.is_fitted:
            where, remedy = type(self).__name__, f"{type(self).__name__}().fit(frame)"
            raise NotFitted(where, "it has not been fitted", expected="fit before transform", remedy=remedy)

    def reset(self) -> None:
        """Begin a new fit: a step is not fitted where that fails, as part of its state may be of an earlier one."""
        for name in ("names_in_", "unfinished"):
            vars(self).pop(name, None)

    @answer_calls
    def fit(self, frame: Frame, y: object = None) -> Self:
        """Learn from a user's frame, all columns. `y` is ignored."""
        columns, backend = self._columns_to_fit(frame)
        self.reset()
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

    @answer_calls
    def transform(self, frame: Frame) -> Frame:
        """Return the output columns for a user's frame, with its index; columns outside the fit are left out.

        Raises ColumnNotFound or SchemaMismatch where a column it was fitted on is not there, or has another type.
        """
        self.check_fitted()
        names = self.looks_at(self.names_in_)
        columns, fields, backend = to_columns(frame, names, type(self).__name__, self._dtypes_seen)
        if len(names) == len(self.names_in_):
            self.output_fields(fields)
        return to_frame(self.transform_columns(columns, backend), frame, backend)

    @answer_calls
    def fit_transform(self, frame: Frame, y: object = None) -> Frame:
        """Fit and transform the same frame."""
        return self.fit(frame).transform(frame)

    @answer_calls
    def get_feature_names_out(self, input_features: str | Sequence[str] | None = None) -> list[str]:
        """Return the names of the outputs, for the fitted columns unless others are given."""
        self.check_fitted()
        return self.output_names(self.names_in_ if input_features is None else as_list(input_features))

    @answer_calls
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
    _random_seed: int

    def __new__(cls, *_: Any, **__: Any) -> Self:
        step = super().__new__(cls)
        step._random_seed = randbits(32)
        return step

    @property
    def random_state_(self) -> int:
        """The seed, given or drawn."""
        return self._random_seed if self.random_state is None else int(self.random_state)

    @random_state_.setter
    def random_state_(self, seed: int) -> None:
        self._random_seed = seed

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "random_state_": self.random_state_}


class Invertible(LearnedStep):
    """Mixin of steps that can be inverted."""

    @abstractmethod
    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """Return the inputs of these outputs as far as they can be recovered; outputs are not modified."""

    @answer_calls
    def inverse_transform(self, frame: Frame) -> Frame:
        """Return the inputs for a user's frame of outputs, with its index.

        Raises BadConfig where the step has no outputs, ColumnNotFound where one is not in the frame.
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

    `dtypes` are the types of columns that come as float64 since all their values, or elements of lists, are missing.
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
    for index, item in enumerate(fields):
        dtype, column = (dtypes or {}).get(item.name, item.dtype), columns[item.name]
        values, inner, element = column, dtype, get_element_dtype(dtype)
        if column.elements is not None and element is not None:
            values, inner = column.elements, element
        absent = values.missing(backend.xp)
        if values.dtype != "float64" or inner in FLOATS or absent is None:
            continue
        if backend.to_host(absent.all()[None])[0]:
            missing = missing_column(inner, len(values), backend.xp)
            fields[index] = replace(item, dtype=dtype, kind=None)
            columns[item.name] = missing if values is column else replace(column, dtype=dtype, elements=missing)
    return columns, fields, backend


def to_frame(columns: Columns, frame: Frame, backend: Backend) -> Frame:
    """Return these columns as a user's frame, with the index of `frame`."""
    output = backend.decode(backend.frame(columns, len(frame)))
    output.index = frame.index
    return output


class Types(dict[str, str]):
    """Summary of a step that reads no value: the columns' types by name."""

    def __add__(self, other: Self) -> Self:
        return self

    def filled(self, values: Mapping[str, Any]) -> Self:
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
    """Let a step with one output of the same name for each of its columns accept lists too, by their elements.

    What it makes of them goes back into lists that share the offsets. A missing list stays missing.
    """
    cls.summarize = _with_elements(cls.summarize)  # type: ignore[method-assign]
    cls.transform_columns = _with_elements(cls.transform_columns, refill=True)  # type: ignore[method-assign]
    if hasattr(cls, "inverse_columns"):
        cls.inverse_columns = _with_elements(cls.inverse_columns, refill=True)
    fields_of = cls.output_fields

    @wraps(fields_of)
    def output_fields(self: LearnedStep, fields: Sequence[Field]) -> list[Field]:
        dtypes = [get_element_dtype(item.dtype) for item in fields]
        opened = [replace(f, dtype=d, kind=None) if d else f for f, d in zip(fields, dtypes, strict=True)]
        return [
            replace(field, dtype=to_list_dtype(field.dtype), kind=Kind.LIST, nullable=item.nullable) if dtype else field
            for item, dtype, field in zip(fields, dtypes, fields_of(self, opened), strict=True)
        ]

    cls.output_fields = output_fields  # type: ignore[method-assign]
    return cls


def _with_elements(method: Callable[..., Any], *, refill: bool = False) -> Callable[..., Any]:
    """Give a method the elements of lists, and with `refill` put the columns it makes of them back into lists."""

    @wraps(method)
    def with_elements(self: LearnedStep, columns: Columns, backend: Backend) -> Any:
        lists = {name: column for name, column in columns.items() if column.elements is not None}
        outputs = method(self, {**columns, **{name: column.elements for name, column in lists.items()}}, backend)
        for name, column in lists.items() if refill else ():
            outputs[name] = Column(to_list_dtype(outputs[name].dtype), column.data, column.valid, None, outputs[name])
        return outputs

    return with_elements


def find_fused_start(steps: Sequence[LearnedStep]) -> int:
    """Return the position in a chain of fitted steps from which on they fuse to one program for each column."""
    for start in range(len(steps), 0, -1):
        names = steps[start - 1].names_in_
        if not names or not all(fuse_program(steps[start - 1 :], name, "float64") for name in names):
            return start
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
    """Return the fused chain's columns, made later of `stored` (`read` evaluates it); None where one has no numbers."""
    outputs: dict[str, Column] = {}
    for name, source in stored.items():
        program = None if source is None else fuse_program(steps, name, source.data.dtype.name)
        if source is None or program is None:
            return None
        outputs[name] = DeferredColumn(source, program, partial(_apply_chain, name, read[name], steps, backend))
    return outputs


def _apply_chain(name: str, read: Callable[[], Column], steps: Sequence[LearnedStep], backend: Backend) -> Column:
    columns: Mapping[str, Column] = {name: read()}
    for step in steps:
        with in_step(step):
            columns = step.transform_columns(columns, backend)
    return columns[name]


def row_blocks(num_rows: int, backend: Backend, width: int = 1, *, looped: bool = False) -> Iterator[slice]:
    """Yield slices that cover the rows, for work on `width` float64 per row; on a GPU mostly one, for no rows none."""
    on_cpu = _LOOPED_NUMBERS if looped else _CACHED_NUMBERS
    size = max((on_cpu if backend.name == "cpu" else _DEVICE_NUMBERS) // width, 1024)
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def loop_blocks(column: Column, backend: Backend) -> Iterator[slice]:
    """Yield slices that cover the rows for a compiled loop over float64: one if no block has to be converted first."""
    if backend.name == "cpu" and column.dtype == "float64":
        return iter([slice(0, len(column))] if len(column) else [])
    return row_blocks(len(column), backend, looped=True)


def gather(table: Any, places: Array, backend: Backend) -> Array:
    """Return `table[places]` for a table on the host, in blocks of rows on the device."""
    device_table, out = backend.to_device(table), backend.xp.empty(len(places), dtype=table.dtype)
    for rows in row_blocks(len(places), backend):
        out[rows] = device_table[places[rows]]
    return out


def any_true(flags: Sequence[Array], backend: Backend) -> bool:
    """Return whether one of these booleans of the device is true; they are read at once."""
    return bool(flags) and bool(backend.to_host(backend.xp.stack(flags)).any())


def stack_rows(columns: Columns, rows: slice, xp: ModuleType) -> Array:
    """Copy these rows of all columns into one F x R float64 array, NaN where missing."""
    if isinstance(columns, Matrix):
        return columns.data[:, rows].astype(xp.float64)
    return xp.stack([floats(column.take(rows), xp) for column in columns.values()])


def tabulate(
    columns: Columns, function: Callable[..., Any], width: int, backend: Backend, centres: Sequence[float] | None = None
) -> Any:
    """Compute `function(block, xp)` for each block of rows of each column: B x C x `width` float64 on the host.

    With `centres`, one for each column, it is `function(block, xp, centre)`. Blocks are shared.
    """
    xp = backend.xp
    if xp is np and function in (kernels.find_bounds, kernels.compute_moments):
        around = np.zeros(len(columns)) if centres is None else np.array(centres)
        return _tabulate_moments(columns, around, backend)[..., :width]
    results = []
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in row_blocks(num_rows(columns), backend, looped=True):
            for index, column in enumerate(columns.values()):
                more = () if centres is None else (centres[index],)
                numbers = function(floats(column.take(rows), xp), xp, *more)
                results += [xp.asarray(item, dtype=xp.float64) for item in numbers]
    table = backend.to_host(xp.stack(results)) if results else np.zeros(0)
    return table.reshape(-1, len(columns), width)


def _tabulate_moments(columns: Columns, centres: Any, backend: Backend) -> Any:
    """Compute the moments of each block of each column on a CPU, of a matrix's columns together: B x C x 5."""
    tables = [np.zeros((0, 1, 5))]
    if isinstance(columns, Matrix):
        for rows, places in matrix_pieces(columns, backend):
            block = columns.data[places, rows].astype(np.float64, copy=False)
            tables.append(kernels.compute_moments_each(block, centres[places], _LOOPED_NUMBERS).reshape(-1, 1, 5))
        return np.concatenate(tables).reshape(-1, len(columns), 5)
    for number, column in enumerate(columns.values()):
        for rows in loop_blocks(column, backend):
            block = floats(column.take(rows), np)[None]
            tables.append(kernels.compute_moments_each(block, centres[number : number + 1], _LOOPED_NUMBERS))
    return np.concatenate(tables).reshape(len(columns), -1, 5).swapaxes(0, 1)


def matrix_pieces(columns: Matrix, backend: Backend) -> Iterator[tuple[slice, Any]]:
    """Yield blocks of rows, and pieces of the columns that a compiled loop processes in one call."""
    for rows in row_blocks(columns.data.shape[1], backend, looped=True):
        for places in columns.pieces(rows.stop - rows.start):
            yield rows, places


def map_columns(
    columns: Columns, function: Callable[[str, Array], Array], backend: Backend, where: str, dtype: str = "float32"
) -> dict[str, Column]:
    """Map each column through `function(name, block)` in float64 blocks; missing stays NaN, infinite is refused."""

    def write(name: str, out: Array, block: Array) -> Array:
        out[:] = function(name, block)
        return backend.xp.isinf(out).any()

    return write_columns(columns, write, backend, where, dtype)


def write_columns(
    columns: Columns, write: Callable[..., Array], backend: Backend, where: str, dtype: str, *, looped: bool = False
) -> dict[str, Column]:
    """Return columns filled block by block by `write(name, out, block)`, which says whether a result is infinite."""
    xp = backend.xp
    outputs, names, infinite = {}, [], []
    with np.errstate(over="ignore", invalid="ignore"):
        for name, column in columns.items():
            out = xp.empty(len(column), dtype=dtype)
            for rows in loop_blocks(column, backend) if looped else row_blocks(len(column), backend):
                infinite.append(xp.asarray(write(name, out[rows], floats(column.take(rows), xp))))
                names.append(name)
            outputs[name] = Column(dtype, out)
    flags = backend.to_host(xp.stack(infinite)) if infinite else np.zeros(0, dtype=bool)
    if flags.any():
        name = names[int(flags.argmax())]
        refuse({name: columns[name]}, backend, where, too_large=f"a result does not fit {dtype}")
    return outputs


def float32_rows(
    columns: Columns,
    names: Sequence[str],
    function: Callable[[Array], Iterable[Array]],
    backend: Backend,
    where: str,
    *,
    result: str = "a result",
) -> dict[str, Column]:
    """Compute float32 columns from blocks of rows, F x R float64; refuses missing values and infinite results."""
    xp, size = backend.xp, num_rows(columns)
    outputs = {name: Column("float32", xp.empty(size, dtype=xp.float32)) for name in names}
    bad = []
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in row_blocks(size, backend, len(columns)):
            for column, values in zip(outputs.values(), function(stack_rows(columns, rows, xp)), strict=True):
                column.data[rows] = values
                bad.append(~xp.isfinite(column.data[rows]).all())
    if any_true(bad, backend):
        refuse(columns, backend, where, too_large=f"{result} does not fit float32", missing=True)
    return outputs


def float32_fields(fields: Sequence[Field], where: str) -> list[Field]:
    """Return the fields of numbers or booleans that become other numbers of the same names; checks types."""
    check_numeric(fields, where)
    attributes = {"dtype": "float32", "kind": Kind.CONTINUOUS, "cardinality": None, "classes": None, "vocabulary": None}
    return [item.replace(**attributes) for item in fields]


class FloatStep(Invertible):
    """Base class of steps that map each number to a float32, in the same order; missing stays missing."""

    fills_late = True
    monotone = True

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        return float32_fields(fields, type(self).__name__)


def num_rows(columns: Columns) -> int:
    """Return the number of rows of these columns."""
    return len(next(iter(columns.values())))


def refuse(
    columns: Columns, backend: Backend, where: str, *, too_large: str = "a value is too large", missing: bool = False
) -> NoReturn:
    """Raise `BadData` for an infinity, for a missing value if that is a problem, or else for what is `too_large`."""
    xp = backend.xp
    largest = (0.0, "")
    for name, column in columns.items():
        values = floats(column, xp)
        absent, infinite = xp.isnan(values), xp.isinf(values)
        counts = backend.to_host(xp.stack([infinite.sum(), absent.sum()]))
        if counts[0]:
            value = float(backend.to_host(values[infinite][:1])[0])
            problem, expected = format_count(int(counts[0]), "infinite value"), "finite numbers or missing values"
            remedy = f"{derive(name, 'clip({}, low, high)')}, or 'where(...)' to replace them"
            raise BadData(f"{where}, column {name!r}", problem, got=value, expected=expected, remedy=remedy)
        if missing and counts[1]:
            problem, remedy = format_count(int(counts[1]), "missing value"), "put a SimpleImputer before this step"
            raise BadData(f"{where}, column {name!r}", problem, expected="no missing values", remedy=remedy)
        magnitudes = xp.abs(values[~absent])
        if len(magnitudes):
            largest = max(largest, (float(backend.to_host(magnitudes.max()[None])[0]), name))
    value, name = largest
    expected = "values of a size that can be worked with"
    remedy = f"{derive(name, 'clip({}, low, high)')}, or another unit"
    raise BadData(f"{where}, column {name!r}", too_large, got=value, expected=expected, remedy=remedy)


def check_finite(names: Sequence[str], numbers: Any, where: str) -> None:
    """Raise `BadData` for the first column whose number (C float64) has left the range of floats."""
    for name, number in zip(names, numbers, strict=True):
        if not np.isfinite(number):
            problem, expected = "its range is too large for a float", "values less than 1.8e308 apart"
            remedy = f"{derive(name, 'clip({}, low, high)')}, or another unit"
            raise BadData(f"{where}, column {name!r}", problem, expected=expected, remedy=remedy)


def check_values(names: Sequence[str], counts: Any, where: str) -> None:
    """Raise `BadData` for the first column without a value, its count being 0."""
    for name, count in zip(names, counts, strict=True):
        if not count:
            remedy = f"SimpleImputer(strategy='constant') before it, or leave {name!r} out"
            refuse_empty(name, where, "it has no value, so there is no scale to learn", remedy)


def refuse_empty(name: str, where: str, problem: str, remedy: str) -> NoReturn:
    """Raise `BadData` for a column without a value to learn from."""
    expected = "at least one value that is not missing"
    raise BadData(f"{where}, column {name!r}", problem, expected=expected, remedy=remedy)


def check_rows(count: int, where: str, least: int = 1) -> None:
    """Raise `BadData` for a fit on fewer rows."""
    if count < least:
        problem = "there are too few rows to learn from" if count else "there are no rows to learn from"
        remedy = "fit on more rows, or leave the step out"
        raise BadData(where, problem, got=count, expected=f"at least {least}", remedy=remedy)


def check_squares(columns: Columns, mean: Any, m2: Any, backend: Backend, where: str) -> None:
    """Raise `BadData` where a value is missing, or too large to be squared and summed; where `m2` is small, none is."""
    farthest = np.abs(mean) + np.sqrt(np.abs(m2))  # from 0; no value is farther
    if (farthest < LARGEST_SQUARED / 2).all():
        return
    xp = backend.xp
    for column in columns.values():
        if any_true([~(xp.abs(floats(column, xp)) <= LARGEST_SQUARED).all()], backend):
            refuse(columns, backend, where, too_large="a value is too large to be squared", missing=True)


def fits(dtype: str, value: Any) -> bool:
    """Return whether a type of numbers or booleans can hold a number; NaN is none."""
    if dtype in FLOATS:
        return abs(float(value)) <= float(np.finfo(dtype).max)
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool(low <= value <= high and value == int(value))


def check_numeric(fields: Sequence[Field], where: str, of_strings: str = "Categorify() for strings") -> None:
    """Raise `SchemaMismatch` for the first field that is neither number nor boolean; for text with that remedy."""
    for item in fields:
        column = f"{where}, column {item.name!r}"
        if item.dtype not in (*FLOATS, *INTEGERS, "bool"):
            remedy = f"{derive(item.name, 'hour({})', 'hour')} for parts of a time"
            if item.dtype == "string":
                cast = f"T.Cast({{{item.name!r}: 'float64'}}, errors='coerce')"
                remedy = f"{of_strings}; {cast} before, if it holds numbers"
            elif item.kind == Kind.LIST:
                remedy = f"{derive(item.name, 'len({})', f'{item.name}_length')} for the number of elements"
            raise SchemaMismatch(column, "not a number", got=item.dtype, expected="numbers or booleans", remedy=remedy)
        if item.kind == Kind.CATEGORICAL:
            problem, remedy = "its values are ids, whose size means nothing", f"leave {item.name!r} out of this step"
            raise SchemaMismatch(column, problem, got=item.kind.value, expected="a column of numbers", remedy=remedy)
