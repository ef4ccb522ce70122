"""In-memory source: frames, sliced without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Self

import pyarrow as pa

from gpupipe.backend import Backend, Frame, infer_backend
from gpupipe.backend.arrow_types import Reading
from gpupipe.io.planning.table import Partition, ReadCounter, RowRange, Source, row_bytes, write_conversion_notes
from gpupipe.schema import Field, Schema


class FrameSource(Source):
    """The rows of one coded frame, shared, not copied.

    Args:
        frame: coded.
        schema: of the frame.
        cuts: first row and number of rows of each partition.
        readings: of each column of the table its type and what it is read as.
    """

    made_by: str | None = ""
    partitions: Sequence[Partition] = ()

    def __init__(
        self,
        frame: Frame,
        schema: Schema,
        cuts: Sequence[tuple[int, int]],
        readings: Mapping[str, tuple[object, Reading]],
    ) -> None:
        self.schema, self.reads, self._frame, self._first_row = schema, ReadCounter(), frame, 0
        self.left_out = {name: str(kind) for name, (kind, reading) in readings.items() if reading.dtype is None}
        self.notes = write_conversion_notes("frame", readings)
        self.partitions = [
            Partition(
                index,
                (RowRange(0, index, first, num_rows),) if num_rows else (),
                f"rows {first:,} to {first + num_rows:,} of a frame",
            )
            for index, (first, num_rows) in enumerate(cuts)
        ]

    def read(self, partition: Partition, fields: Sequence[Field], backend: Backend) -> Frame:
        """Slice these columns: shared on the backend that owns the frame, else copied from one to the other."""
        names, num_rows = [item.name for item in fields], partition.num_rows
        self.reads.add(partition.spans, names, num_rows * row_bytes(fields))
        if not names:
            return backend.frame({}, num_rows)
        owner = infer_backend(self._frame)
        part = owner.select(self._rows(partition.first_row, num_rows), names).reset_index(drop=True)
        return part if backend.name == owner.name else backend.from_arrow(owner.to_arrow(part), fields)

    def table(self, partition: Partition, fields: Sequence[Field]) -> pa.Table:
        owner = infer_backend(self._frame)
        return owner.to_arrow(self.read(partition, fields, owner))

    def only(self, partitions: Sequence[Partition]) -> Self:
        rows = [span for partition in partitions for span in partition.spans]
        first = min((span.first_row for span in rows), default=self._first_row)
        last = max((span.first_row + span.num_rows for span in rows), default=first)
        part = copy(self)
        vars(part).update(_frame=self._rows(first, last - first), _first_row=first, partitions=list(partitions))
        return part

    def _rows(self, first: int, num_rows: int) -> Frame:
        first -= self._first_row
        return self._frame.iloc[first : first + num_rows]
