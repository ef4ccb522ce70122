"""Column selection, renaming, casts and derived columns."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cache
from typing import Any

from gpupipe.backend import Backend, Column, Frame
from gpupipe.backend.cast import Losses, cast_column, require_castable
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.expressions.derivation import Derivation
from gpupipe.schema import DTYPES, FLOATS, INTEGERS, LISTS, Field, Schema, is_passenger, suggest_times
from gpupipe.support.validation import as_list, check_choice, check_dtypes, check_instance, check_names
from gpupipe.transforms.transform import ColumnwiseTransform, Names, Transform

_log = logging.getLogger("gpupipe")
_YEAR_US = 365 * 24 * 3600 * 1_000_000


class Select(ColumnwiseTransform):
    """Keep these columns, in this order; one that is not there raises ColumnNotFound.

    Memory: shares.

    Example:
        >>> import pandas as pd
        >>> list(Select(["b"]).transform(pd.DataFrame({"a": [1], "b": [2]})))
        ['b']
    """

    def __init__(self, columns: Names) -> None:
        check_names(self, columns=columns)
        self.columns = as_list(columns)

    def output_schema(self, schema: Schema) -> Schema:
        schema.require(self.columns, "Select")
        return schema.select(self.columns)

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        return backend.select(frame, [name for name in self.columns if name in outputs])

    def list_owned(self, owned: AbstractSet[str], schema: Schema) -> AbstractSet[str]:
        return owned


class Drop(ColumnwiseTransform):
    """Leave these columns out; one that is not there raises ColumnNotFound.

    Memory: shares.

    Example:
        >>> import pandas as pd
        >>> list(Drop(["b"]).transform(pd.DataFrame({"a": [1], "b": [2]})))
        ['a']
    """

    def __init__(self, columns: Names) -> None:
        check_names(self, columns=columns)
        self.columns = as_list(columns)

    def output_schema(self, schema: Schema) -> Schema:
        schema.require(self.columns, "Drop")
        return schema.drop(self.columns)

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        return backend.select(frame, [name for name in frame.columns if name not in self.columns])

    def list_owned(self, owned: AbstractSet[str], schema: Schema) -> AbstractSet[str]:
        return owned


class Rename(Transform):
    """Rename columns from key to value.

    Memory: shares.

    Example:
        >>> import pandas as pd
        >>> list(Rename({"a": "x"}).transform(pd.DataFrame({"a": [1], "b": [2]})))
        ['x', 'b']
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        check_instance(self, Mapping, "new names by the old ones", remedy="names={'old': 'new'}", names=names)
        check_names(self, names=list(names))
        check_names(self, names=list(names.values()))
        self.names = dict(names)

    def output_schema(self, schema: Schema) -> Schema:
        schema.require(self.names, "Rename")
        for new in self.names.values():
            if new in schema and new not in self.names:
                remedy = f"Drop([{new!r}]) before it, or another name than {new!r}"
                problem, expected = "two columns have the same name", "unique names"
                raise BadConfig("Rename", problem, got=new, expected=expected, remedy=remedy)
        return Schema(replace(item, name=self.names.get(item.name, item.name)) for item in schema)

    def needs(self, outputs: AbstractSet[str], schema: Schema) -> set[str]:
        old = {new: name for name, new in self.names.items()}
        return {old.get(name, name) for name in outputs}

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        return backend.rename(frame, {old: new for old, new in self.names.items() if old in frame.columns})


class Cast(ColumnwiseTransform):
    """Store columns as another type, one of `schema.DTYPES`; a value that does not fit raises BadData, or is missing.

    With `errors="coerce"`, as in pandas' `to_numeric`, what cannot be parsed or does not fit becomes missing; a fit
    counts such values of the columns that it reads (`fit_report.coerced`). Decimals, times of day, durations and bytes
    cannot be coerced (SchemaMismatch).

    Strings are parsed, numbers are written out as text, and so are times, with all six digits of their fraction and,
    where they have a zone, local and with its offset; dates without a time. Times as `"timestamp"` keep their zone, and
    dates become times. Between times and int64, the integers are microseconds since 1970: seconds are multiplied by
    1000000 before, `Derive(at="at * 1000000")`, and integers that are all too small are warned of. A decimal becomes
    the nearest float, an integer where it is whole, or text; a duration or a time of day float64 seconds or int64
    microseconds. A fraction is no integer; an integer beyond 2**53 is a float64 (beyond 2**24 a float32) only where
    that holds it exactly; nothing becomes infinite.

    Memory: one new column per cast, and as much while values are checked.

    Example:
        >>> import pandas as pd
        >>> Cast({"flight": "string"}).transform(pd.DataFrame({"flight": [11, 7]}))["flight"].tolist()
        ['11', '7']
        >>> Cast({"age": "float64"}, errors="coerce").transform(pd.DataFrame({"age": ["40", "n/a"]}))["age"].tolist()
        [40.0, nan]
    """

    def __init__(self, dtypes: Mapping[str, str], *, errors: str = "raise") -> None:
        check_instance(self, Mapping, "types by the names of columns", remedy="dtypes={'x': 'float32'}", dtypes=dtypes)
        check_dtypes(self, (*DTYPES, *LISTS), dtypes)
        check_choice(self, ("raise", "coerce"), errors=errors)
        self.dtypes, self.errors = dict(dtypes), errors

    def output_schema(self, schema: Schema) -> Schema:
        schema.require(self.dtypes, "Cast")
        fields, coerces = [], self.errors == "coerce"
        for name, dtype in self.dtypes.items():
            item = schema[name]
            require_castable(item.dtype, dtype, name)
            if coerces and is_passenger(item.dtype):
                problem, expected = f"column {name!r} cannot be coerced", "text, numbers, times or lists of them"
                remedy = f"Cast({{{name!r}: {dtype!r}}}), which raises"
                raise SchemaMismatch("Cast", problem, got=item.dtype, expected=expected, remedy=remedy)
            written_as = item.with_instants().written_as if item.dtype == dtype else ""  # a date becomes a time
            cast = Field.derived(name, dtype, [item], "Cast", written_as)
            units = item.units if dtype in (*INTEGERS, *FLOATS) else ""
            fields.append(replace(cast, nullable=item.nullable or (coerces and item.dtype != dtype), units=units))
        return schema.assign(fields)

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        return self.convert(frame, schema, outputs, backend)[0]

    def convert(
        self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend
    ) -> tuple[Frame, Counter[str]]:
        """Do as `apply`, and count by column the values that were made missing."""
        columns, counts = {}, Counter[str]()
        for name, dtype in self.dtypes.items():
            if name in outputs:
                losses = Losses() if self.errors == "coerce" else None
                column, written_as = backend.column(frame, name), schema[name].written_as
                if (column.dtype, dtype) == ("int64", "timestamp") and _are_of_1970(column, backend):
                    _warn_of_units(name)
                columns[name] = cast_column(column, dtype, name, backend, written_as=written_as, losses=losses)
                counts[name] += losses.count if losses else 0
        return backend.assign(frame, columns), counts


def _are_of_1970(column: Column, backend: Backend) -> bool:
    """Return whether integers are too small for microseconds since 1970: seconds and milliseconds are, and dates.

    A day of 2024 is 20240131, 1706659200 seconds or 1706659200000 milliseconds; all three are microseconds of 1970.
    """
    missing = column.missing(backend.xp)
    values = column.data if missing is None else column.data[~missing]
    return len(values) > 0 and 0 < int(values.max()) < _YEAR_US and int(values.min()) > -_YEAR_US


@cache
def _warn_of_units(name: str) -> None:
    _log.warning(
        "Cast: as microseconds since 1970 the integers of column %r are times of 1970; %s",
        name,
        suggest_times(name, "int64"),
    )


class Derive(Transform):
    """Add columns computed row by row from expressions, or replace them; a later one may use an earlier one.

    Names that Python does not take are given as `Derive(**{"class": "x * 2"})`. Raises ExpressionError with the column
    and the position; at `output_schema` where an expression does not go with the columns.

    Memory: one new column per expression; the others are shared.

    Example:
        >>> import pandas as pd
        >>> Derive(night="hour < 6 or hour >= 22").transform(pd.DataFrame({"hour": [5, 12]}))["night"].tolist()
        [True, False]
    """

    def __init__(self, /, *arguments: Any, **named: str) -> None:
        self.named = named
        self._derivation.check(arguments)

    @property
    def _derivation(self) -> Derivation:
        return Derivation("Derive", self.named)

    def get_params(self, deep: bool = True) -> dict[str, str]:
        """Return the expressions by the name of their column."""
        return dict(self.named)

    def output_schema(self, schema: Schema) -> Schema:
        return self._derivation.derive_schema(schema)

    def needs(self, outputs: AbstractSet[str], schema: Schema) -> set[str]:
        return self.trace(outputs)[0]

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        return self._derivation(frame, outputs, backend)

    def trace(self, outputs: AbstractSet[str]) -> tuple[set[str], dict[str, str]]:
        """Return the columns that are read for `outputs`, and the expressions that it needs, the last one first."""
        return self._derivation.trace(outputs)
