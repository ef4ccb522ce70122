"""Column selection, renaming and casts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from gpupipe.backend import Backend, Frame
from gpupipe.backend.columns import cast_column, require_castable
from gpupipe.errors import BadConfig
from gpupipe.schema import DTYPES, FLOATS, INTEGERS, LISTS, Field, Schema
from gpupipe.support.text import as_list
from gpupipe.support.validation import check_dtypes, check_instance, check_names
from gpupipe.transforms.transform import Transform


class Select(Transform):
    """Keep these columns, in this order.

    Args:
        columns: a name, or several.

    Raises:
        ColumnNotFound: one of them is not there.

    Memory: shares.

    Example:
        >>> import pandas as pd
        >>> list(Select(["b"]).transform(pd.DataFrame({"a": [1], "b": [2]})))
        ['b']
    """

    def __init__(self, columns: str | Sequence[str]) -> None:
        check_names(self, columns=columns)
        self.columns = as_list(columns)

    def output_schema(self, schema: Schema) -> Schema:
        schema.require(self.columns, "Select")
        return schema.select(self.columns)

    def needs(self, wanted: AbstractSet[str], schema: Schema) -> set[str]:
        return set(wanted)

    def apply(self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend) -> Frame:
        return backend.select(frame, [name for name in self.columns if name in wanted])


class Drop(Transform):
    """Leave these columns out.

    Args:
        columns: a name, or several.

    Raises:
        ColumnNotFound: one of them is not there.

    Memory: shares.

    Example:
        >>> import pandas as pd
        >>> list(Drop(["b"]).transform(pd.DataFrame({"a": [1], "b": [2]})))
        ['a']
    """

    def __init__(self, columns: str | Sequence[str]) -> None:
        check_names(self, columns=columns)
        self.columns = as_list(columns)

    def output_schema(self, schema: Schema) -> Schema:
        schema.require(self.columns, "Drop")
        return schema.drop(self.columns)

    def needs(self, wanted: AbstractSet[str], schema: Schema) -> set[str]:
        return set(wanted)

    def apply(self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend) -> Frame:
        return backend.select(frame, [name for name in frame.columns if name not in self.columns])


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

    def needs(self, wanted: AbstractSet[str], schema: Schema) -> set[str]:
        old = {new: name for name, new in self.names.items()}
        return {old.get(name, name) for name in wanted}

    def apply(self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend) -> Frame:
        return backend.rename(frame, {old: new for old, new in self.names.items() if old in frame.columns})


class Cast(Transform):
    """Store columns as another type; every value has to fit.

    Args:
        dtypes: the new type per column, one of `schema.DTYPES`. Strings are parsed, numbers are written out as text,
            and so are times, with all six digits of their fraction and, where they have a zone, local and with its
            offset. Times as `"timestamp"` keep their zone, and dates become times. A decimal becomes the nearest float,
            an integer where it is whole, or text; a duration or a time of day float64 seconds or int64 microseconds.

    Raises:
        BadConfig: a type that does not exist.
        BadData: a value does not fit; names column and value. A fraction is no integer; an integer beyond 2**53 is a
            float64 (beyond 2**24 a float32) only where that holds it exactly; nothing becomes infinite.

    Memory: one new column per cast, and as much while values are checked.

    Example:
        >>> import pandas as pd
        >>> Cast({"flight": "string"}).transform(pd.DataFrame({"flight": [11, 7]}))["flight"].tolist()
        ['11', '7']
    """

    def __init__(self, dtypes: Mapping[str, str]) -> None:
        check_instance(self, Mapping, "types by the names of columns", remedy="dtypes={'x': 'float32'}", dtypes=dtypes)
        check_dtypes(self, (*DTYPES, *LISTS), dtypes)
        self.dtypes = dict(dtypes)

    def output_schema(self, schema: Schema) -> Schema:
        schema.require(self.dtypes, "Cast")
        for name, dtype in self.dtypes.items():
            require_castable(schema[name].dtype, dtype, name)
        return schema.assign(
            replace(
                Field.derived(name, dtype, [schema[name]], "Cast", _get_file_type(schema[name], dtype)),
                nullable=schema[name].nullable,
                units=schema[name].units if dtype in (*INTEGERS, *FLOATS) else "",
            )
            for name, dtype in self.dtypes.items()
        )

    def needs(self, wanted: AbstractSet[str], schema: Schema) -> set[str]:
        return set(wanted)

    def apply(self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend) -> Frame:
        asked = {name: dtype for name, dtype in self.dtypes.items() if name in wanted}
        return backend.assign(
            frame,
            {
                name: cast_column(backend.column(frame, name), dtype, name, backend, zone=schema[name].zone)
                for name, dtype in asked.items()
            },
        )


def _get_file_type(item: Field, dtype: str) -> str:
    """Return the type of a column in files after a cast: times keep their zone, a date becomes a time."""
    return item.with_instants().written_as if item.dtype == dtype else ""
