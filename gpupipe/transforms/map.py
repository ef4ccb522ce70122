"""Map: a function of the user's as a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Self

from gpupipe.backend import Backend, Frame
from gpupipe.backend.columns import missing_column
from gpupipe.errors import ColumnNotFound, LeakageError, SchemaMismatch
from gpupipe.schema import Field, Role, Schema
from gpupipe.support.text import format_count
from gpupipe.support.validation import as_list, check_instance, check_names
from gpupipe.transforms.transform import Names, Transform


class Map(Transform):
    """Apply a function from frame to frame, written in the API pandas and cuDF share.

    The function gets a copy of its own, with plain strings, and returns as many rows in the same order. The types of
    what it returns are fixed by the first partition of `fit` that has rows, and checked from then on.

    Args:
        fn: the function; to be saved with a pipeline it has to be defined in a module, not in a notebook.
        reads: the columns it is given; without it all but the label columns, which costs reading them.
        adds: the columns taken from its result; without it the result replaces the frame but for label columns.

    Raises:
        SchemaMismatch: the result is no frame, has other rows, or changes a type.
        LeakageError, ColumnNotFound: without `reads` it reads a label column; or the result lacks a column of `adds`.

    Memory: copies the columns it reads.

    Example:
        >>> import pandas as pd
        >>> step = Map(lambda frame: frame.assign(y=frame["x"] * 2), reads="x", adds="y")
        >>> step.transform(pd.DataFrame({"x": [1.0]}))["y"].tolist()
        [2.0]
    """

    def __init__(self, fn: Callable[[Any], Any], *, reads: Names | None = None, adds: Names | None = None) -> None:
        check_instance(self, Callable, "a function", remedy="fn=function", fn=fn)
        check_names(self, None, reads=reads, adds=adds)
        self.fn = fn
        self.reads = None if reads is None else as_list(reads)
        self.adds = None if adds is None else as_list(adds)
        self.reset()

    def reset(self) -> None:
        """Forget the types an earlier `fit` fixed."""
        self.dtypes_: dict[str, str] | None = None

    def output_schema(self, schema: Schema) -> Schema:
        """Return the schema after this step; until the function has run on rows, new columns count as float64."""
        read = self._read_names(schema)
        schema.require(read, self._where)
        dtypes = self.dtypes_ or dict.fromkeys(self.adds or (), "float64")
        sources = [schema[name] for name in read]
        fields = []
        for name, dtype in dtypes.items():
            field_dtype = _get_field_type(dtype)
            fields.append(
                Field.derived(name, field_dtype, sources, "Map", written_as="" if dtype == field_dtype else dtype)
            )
        if self.adds is None and dtypes:
            return Schema(item for item in schema if item.role == Role.LABEL).assign(fields)
        return schema.assign(fields)

    def needs(self, outputs: AbstractSet[str], schema: Schema) -> set[str]:
        if self._is_idle(outputs):
            return set(outputs)
        labels = {item.name for item in schema if item.role == Role.LABEL}
        beside = outputs & labels if self.adds is None else outputs - set(self.adds)
        return {*beside, *self._read_names(schema)}

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        if self._is_idle(outputs):
            return frame
        names = self._read_names(schema)
        for name in names:
            if name not in frame.columns:
                raise ColumnNotFound.among(self._where, name, list(frame.columns))
        result = self._run(backend.decode(backend.select(frame, names), schema=schema), schema, backend)
        beside = [name for name in frame.columns if self.adds is not None or name not in names]
        if not beside:
            return result
        return backend.assign(backend.select(frame, beside), {n: backend.column(result, n) for n in result.columns})

    def get_state(self) -> dict[str, Any]:
        """Return the types fixed by `fit`."""
        return {"dtypes_": self.dtypes_}

    def set_state(self, state: Mapping[str, Any]) -> Self:
        """Restore what `get_state` returned; returns self."""
        self.dtypes_ = state["dtypes_"]
        return self

    @property
    def _where(self) -> str:
        return f"Map({getattr(self.fn, '__name__', repr(self.fn))})"

    def _is_idle(self, outputs: AbstractSet[str]) -> bool:
        """Return whether none of its new columns is wanted."""
        return self.adds is not None and not outputs & set(self.adds)

    def _read_names(self, schema: Schema) -> list[str]:
        if self.reads is not None:
            return self.reads
        return [item.name for item in schema if item.role != Role.LABEL]

    def _run(self, frame: Frame, schema: Schema, backend: Backend) -> Frame:
        """Return the function's result, coded and of the fixed types."""
        num_rows, names = len(frame), list(frame.columns)
        try:
            result = self.fn(frame)
        except KeyError as cause:
            name = cause.args[0] if cause.args else None
            if not isinstance(name, str) or name in names or name not in schema:
                raise
            problem = f"the function looks at {name!r}, which only target, weight or filters in training read"
            expected, remedy = "columns that are there when predicting too", f"reads=[..., {name!r}] if that is meant"
            raise LeakageError(self._where, problem, expected=expected, remedy=remedy) from cause
        if not hasattr(result, "columns"):
            problem = "the function returned no frame"
            raise SchemaMismatch(self._where, problem, got=type(result), expected="a frame", remedy="return the frame")
        if len(result) != num_rows or not result.index.equals(frame.index):
            problem, got = "the function changed the rows, their order or the index", format_count(len(result), "row")
            expected = f"the {format_count(num_rows, 'row')} it was given, in their order"
            raise SchemaMismatch(self._where, problem, got=got, expected=expected, remedy="Filter(...) to drop rows")
        for name in self.adds or ():
            if name not in result.columns:
                raise ColumnNotFound.among(f"{self._where} result", name, list(result.columns))
        result = result[self.adds] if self.adds is not None else result
        coded = backend.encode(result)
        schema = backend.schema_of(coded, backend.classify(result))
        dtypes = {item.name: item.written_as or item.dtype for item in schema}
        if self.dtypes_ is None and num_rows:
            self.dtypes_ = dtypes
        return self._as_fixed(coded, dtypes, backend)

    def _as_fixed(self, coded: Frame, dtypes: Mapping[str, str], backend: Backend) -> Frame:
        """Cast the frame to the fixed types; only a column without any value may differ: libraries type it at will."""
        typed = {}
        for name, dtype in (self.dtypes_ or dtypes).items():
            if name not in dtypes:
                raise ColumnNotFound.among(f"{self._where} result", name, list(dtypes))
            if dtypes[name] == dtype:
                continue
            column = backend.column(coded, name)
            missing = column.missing(backend.xp)
            if len(column) and (missing is None or not bool(missing.all())):
                where, problem = self._where, f"column {name!r} is of type {dtypes[name]} in this partition"
                remedy = f"frame[{name!r}].astype({dtype!r}) in the function"
                raise SchemaMismatch(where, problem, expected=f"{dtype}, as in the first partition", remedy=remedy)
            typed[name] = missing_column(_get_field_type(dtype), len(column), backend.xp)
        return backend.assign(coded, typed) if typed else coded


def _get_field_type(dtype: str) -> str:
    """Return the field type of one that `dtypes_` names: dates and times with a zone are timestamps."""
    return "timestamp" if dtype.startswith(("timestamp", "date32")) else dtype
