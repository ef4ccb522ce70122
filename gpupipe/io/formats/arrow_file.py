"""Files that pyarrow decodes on the host, for both backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pyarrow as pa

from gpupipe.backend import Backend, Frame, select
from gpupipe.backend.arrow import conform
from gpupipe.backend.arrow_types import dtype_from_arrow
from gpupipe.backend.columns import cast_column
from gpupipe.io.planning.statistics import Bounds
from gpupipe.io.stores.find_files import Input
from gpupipe.schema import Field


@dataclass(frozen=True)
class HostFile:
    """Base class of files that report only their rows by group.

    Args:
        origin: the file.
        schema: its columns.
        group_rows: rows of each group.
        num_bytes: the file's size.
    """

    origin: Input
    schema: pa.Schema = field(repr=False)
    group_rows: tuple[int, ...]
    num_bytes: int
    unit: ClassVar[str] = "group"

    def change(self) -> str | None:
        """See `Input.change`."""
        return self.origin.change()

    def table(self, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
        """Read all rows of these groups, these columns at least."""
        raise NotImplementedError

    def read(self, groups: Sequence[int], fields: Sequence[Field], backend: Backend) -> Frame:
        """Decode by pyarrow.

        Memory: the groups on the host; on the GPU copied there.
        """
        table = self.table(groups, [item.name for item in fields])
        return backend.from_arrow(host_table(table, fields), fields)

    def bounds(self, group: int, name: str) -> Bounds | None:
        """Return None: unavailable without reading."""
        return None

    def null_count(self, name: str) -> int | None:
        """Return None: unavailable without reading."""
        return None

    def text_bytes(self, group: int, names: Sequence[str]) -> int:
        """Estimate an equal part of the file's size for each group."""
        return self.stored_bytes(group, names)

    def stored_bytes(self, group: int, names: Sequence[str]) -> int:
        """Estimate an equal part of the file's size for each group."""
        cells = max(1, sum(self.group_rows) * len(self.schema))
        return self.num_bytes * self.group_rows[group] * len(names) // cells


def narrowest(schema: pa.Schema) -> str:
    """Return the column that is fetched where only rows are counted.

    Example:
        >>> narrowest(pa.schema([("text", pa.string()), ("wide", pa.int64()), ("flag", pa.bool_())]))
        'flag'
    """

    def width(item: pa.Field) -> int:
        try:
            return int(item.type.bit_width)
        except ValueError:  # of varying width
            return 1 << 20

    return str(min(schema, key=width).name)


def host_table(table: pa.Table, fields: Sequence[Field], *, exact: bool = True) -> pa.Table:
    """Cast a table's columns to the dtypes of the fields; a NaN that becomes another dtype is missing.

    A column without a value fits any type. A float64 is rounded to float32 only where the cast need not be `exact`.

    Raises:
        BadData: a value does not fit; has its `row`.
        SchemaMismatch: nothing connects the two types.
    """
    return pa.table({item.name: _cast(table.column(item.name), item, exact=exact) for item in fields})


def _cast(column: pa.ChunkedArray, item: Field, *, exact: bool) -> pa.Array:
    own = dtype_from_arrow(column.type)
    if column.null_count == len(column):
        return conform(pa.nulls(len(column)), item)
    if own is None or own == item.dtype:
        return conform(column, item)
    cpu = select("cpu")
    frame = cpu.from_arrow(pa.table({item.name: column}), [replace(item, dtype=own)])
    made = cast_column(cpu.column(frame, item.name), item.dtype, item.name, cpu, exact=exact)
    return conform(cpu.to_arrow(cpu.assign(frame, {item.name: made})).column(item.name), item)
