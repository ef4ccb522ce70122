"""Base of the joins: the right table, the columns read from it, and the count of rows without a match."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, Self

from gpupipe.backend import Backend, Column, Frame, infer_backend, is_frame, select
from gpupipe.backend.arrow import read_stream
from gpupipe.errors import BadConfig, ColumnNotFound
from gpupipe.schema import Field, Schema
from gpupipe.support.text import as_list
from gpupipe.support.validation import check_name, check_names, refuse_argument
from gpupipe.transforms.transform import Transform

__all__ = ["TableJoin", "take_or_missing"]


class TableJoin(Transform):
    """Base class of steps that add columns of a table, saved with the pipeline or named when it is loaded.

    Args:
        right: the table, a Dataset, a frame, or another library's that `from_frame` takes.
        columns: the right columns to add; None adds all but the keys.
        suffix: put behind the name of a right column that the left has too.
        name: what the table is called.
    """

    def __init__(self, right: Any, columns: str | Sequence[str] | None, suffix: str, name: str | None) -> None:
        schema: Schema | None = None
        if hasattr(right, "__arrow_c_stream__") and hasattr(right, "schema") and not _is_dataset(right):
            table, fields = read_stream(right, type(self).__name__)
            right, schema = select("cpu").from_arrow(table, fields), Schema(fields)  # frames have no dates and zones
        if not (_is_dataset(right) or is_frame(right)):
            raise refuse_argument(self, "right", right, "a Dataset or a frame", "gp.from_frame(right)")
        check_names(self, None, columns=columns)
        check_name(self, suffix=suffix)
        check_name(self, None, name=name)
        self.right = right
        self.columns = None if columns is None else as_list(columns)
        self.suffix = suffix
        self.name = name or "_".join(self.keys)
        self.when = "always"
        self._lock = Lock()
        self._tables: dict[str, Any] = {}
        self._schema = schema
        self.reset()

    @property
    @abstractmethod
    def keys(self) -> list[str]:
        """The columns that are compared, of the same names on both sides."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what every process prepares for itself."""
        return self.__dict__ | {"_lock": None, "_tables": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": Lock()}

    def __copy__(self) -> Self:
        """Copy the step: it shares the prepared table, but not the count."""
        made = object.__new__(type(self))
        made.__dict__ |= self.__dict__
        return made

    def reset(self) -> None:
        """Reset the count of unmatched rows."""
        self.rows_seen_ = 0
        self.rows_unmatched_ = 0

    @property
    def unmatched_share(self) -> float:
        """The fraction of rows since the last `fit` (or load) without a match on the right; 0 before any."""
        return self.rows_unmatched_ / self.rows_seen_ if self.rows_seen_ else 0.0

    @property
    def right_schema(self) -> Schema:
        """The schema of the right table."""
        if self._schema is None:
            if _is_dataset(self.right):
                self._schema = self.right.schema
            else:
                backend = infer_backend(self.right)
                names = list(self.right.columns) if self.columns is None else [*self.keys, *self.columns]
                there = [name for name in dict.fromkeys(names) if name in self.right.columns]
                right = backend.select(self.right, there)
                self._schema = backend.schema_of(backend.encode(right), backend.classify(right))
        return self._schema

    def _require_right(self) -> None:
        """Raise `ColumnNotFound` for a key, or a column to add, that the right table has not."""
        names, where = [*self.keys, *(self.columns or ())], f"{self._where} right"
        if _is_dataset(self.right):
            self.right.require(names, where)
        known = list(self.right.columns)
        for name in names:
            if name not in known:
                raise ColumnNotFound.among(where, name, known)

    def table(self, backend: Backend) -> Frame:
        """Read the right table as a coded frame: the keys and the columns the join adds."""
        names = list(dict.fromkeys([*self.keys, *self._names_out(Schema())]))
        if _is_dataset(self.right):
            return backend.concat([self.right.read(part, names, backend) for part in self.right.partitions])
        owner = infer_backend(self.right)
        frame = owner.encode(owner.select(self.right, names))
        if owner.name == backend.name:
            return frame
        return backend.from_arrow(owner.to_arrow(frame), list(self.right_schema.select(names)))

    @property
    def _where(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _names_out(self, left: Schema) -> dict[str, str]:
        """Return the right columns that are added, and their names in the result."""
        chosen = self.columns
        if chosen is None:
            chosen = [name for name in self.right_schema.names if name not in self.keys]
        return {name: name + self.suffix if name in left else name for name in chosen}

    def _added_fields(self, left: Schema) -> list[Field]:
        """Return the added columns, each computed from the keys and from a lineage of its own."""
        keys, right, where = [left[key] for key in self.keys], self.right_schema, type(self).__name__
        names = self._names_out(left)
        self._check_unique(names, left)
        return [
            Field.derived(out, item.dtype, [*keys, self._source(item)], where, written_as=item.written_as)
            for name, out in names.items()
            for item in [right[name]]
        ]

    def _source(self, item: Field) -> Field:
        """Return a right column as the start of a lineage of its own."""
        return replace(item, lineage=frozenset({f"{self.name}.{item.name}"}))

    def _check_unique(self, names: Mapping[str, str], left: Schema) -> None:
        taken = {name: f"the left column {name!r}" for name in left.names}
        for name, out in names.items():
            if out in taken:
                raise BadConfig(
                    self._where,
                    f"{taken[out]} and the right column {name!r} would both be called {out!r}",
                    expected="a name of its own for each column",
                    remedy=f"another suffix than {self.suffix!r}, or one of the two renamed before the join",
                )
            taken[out] = f"the right column {name!r}"

    def _count(self, num_rows: int, unmatched: Any) -> None:
        """Count the rows without a match, given their mask."""
        with self._lock:
            self.rows_seen_ += num_rows
            self.rows_unmatched_ += int(unmatched.sum())


def take_or_missing(column: Column, rows: Any) -> Column:
    """Take the values at these rows, missing at -1, without a mask where all are there."""
    taken = column.take(rows)
    if taken.valid is not None and bool(taken.valid.all()):
        return replace(taken, valid=None)
    return taken


def _is_dataset(table: Any) -> bool:
    return hasattr(table, "partitions") and hasattr(table, "read")
