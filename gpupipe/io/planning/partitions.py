"""Partitions: ranges of rows of files that are read together, how large they may be, and counts of what was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from threading import Lock
from types import ModuleType

import numpy as np

from gpupipe.backend import Array, Backend, Frame, resolve
from gpupipe.backend.arrow import arrow_type
from gpupipe.backend.device.probe import this_machine
from gpupipe.backend.kernels import draw_positions
from gpupipe.cluster.executor import default_threads
from gpupipe.config import BACKENDS, settings
from gpupipe.schema import Field, get_element_dtype, is_passenger
from gpupipe.support.validation import check_choice, check_integer

_HOST_BYTES, _LEAST_DEVICE_BYTES, _MOST_DEVICE_BYTES = 64 << 20, 128 << 20, 1 << 30
_DEVICE_SHARE = 32  # a partition and the temporaries of a step take up to twenty times its size
FILE_SHIFT = 40  # a row's identity: the file's number above 2^40 rows
_WIDTHS = {"string": 4, "timestamp": 8}
_VARYING = 32  # a guess at the bytes of a struct, a map and the like; files tell more


@dataclass(frozen=True, slots=True)
class RowRange:
    """Row range: rows of one file that are read together, of a row group, a stripe or a record batch, or a part of it.

    `file` is its position among those that were found, the skipped ones too; `first_row` the number in the file.
    """

    file: int
    group: int
    first_row: int
    num_rows: int
    first_id: int | None = None  # the first row's identity; by default it follows from `file` and `first_row`

    @property
    def identity(self) -> int:
        """The first row's identity; those of the others follow it."""
        return (self.file << FILE_SHIFT) + self.first_row if self.first_id is None else self.first_id

    def piece(self, start: int, num_rows: int) -> RowRange:
        """Return `num_rows` of its rows, from its row `start` on."""
        first_id = None if self.first_id is None else self.first_id + start
        return replace(self, first_row=self.first_row + start, num_rows=num_rows, first_id=first_id)


@dataclass(frozen=True, slots=True)
class Partition:
    """Partition: the rows of `spans` in order, which are processed at a time; may be empty.

    `index` is unique in a dataset; `description` has files and row groups, for messages.
    """

    index: int
    spans: tuple[RowRange, ...]
    description: str

    @property
    def num_rows(self) -> int:
        """Rows before any filter: an upper bound."""
        return sum(span.num_rows for span in self.spans)

    @property
    def first_row(self) -> int:
        """The first row's number in its file."""
        return self.spans[0].first_row if self.spans else 0

    def keep(self, spans: Iterable[RowRange]) -> Partition:
        """Return the partition with these of its spans only."""
        return replace(self, spans=tuple(spans))

    def split_at(self, num_rows: int) -> tuple[Partition, Partition]:
        """Return the first `num_rows` rows and the rest as two partitions."""
        left, right = list[RowRange](), list[RowRange]()
        for span in self.spans:
            num_left = min(num_rows, span.num_rows)
            left += [span.piece(0, num_left)] if num_left else []
            right += [span.piece(num_left, span.num_rows - num_left)] if num_left < span.num_rows else []
            num_rows -= num_left
        return self.keep(left), self.keep(right)

    def row_ids(self, xp: ModuleType) -> Array:
        """Return a row id (uint64) per row, the same under any partitioning: file and row number in the file or table.

        Memory: allocates 8 bytes per row.
        """
        ends = [(span.identity, span.identity + span.num_rows) for span in self.spans]
        ids = [xp.arange(*pair, dtype="uint64") for pair in ends]
        return ids[0] if len(ids) == 1 else xp.concatenate(ids) if ids else xp.zeros(0, dtype="uint64")

    def frame_ids(self, frame: Frame, backend: Backend) -> Array:
        """Return the row ids (uint64) of a frame whose index says which of these rows it holds.

        Memory: allocates 8 bytes per row.
        """
        positions = backend.positions(frame)
        if len(self.spans) == 1:
            return positions.astype("uint64", copy=False) + np.uint64(self.spans[0].identity)
        return self.row_ids(backend.xp)[positions]

    def draw(self, frame: Frame, seed: int, limit: int, backend: Backend) -> Array:
        """Draw the positions in a frame, whose index says which of these rows it holds, by the rows' ids alone.

        Memory: allocates 8 bytes per row of the largest span while it is drawn, then 8 per row drawn.
        """
        xp, ends = backend.xp, accumulate((span.num_rows for span in self.spans), initial=0)
        parts = [
            draw_positions(seed, span.identity, span.num_rows, limit, xp) + start
            for span, start in zip(self.spans, ends, strict=False)
        ]
        positions = xp.concatenate(parts) if parts else xp.zeros(0, dtype="int64")
        if backend.is_range(frame, self.num_rows):
            return positions
        return xp.flatnonzero(xp.isin(backend.positions(frame), positions))


class ReadCounter:
    """Read counts of a source in this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset all counts."""
        self.row_groups: Counter[tuple[int, int]] = Counter()  # how often each (file, row group) was read
        self.columns: Counter[str] = Counter()  # row groups read, by column
        # Compressed bytes of the column chunks read, or an even share of the file; of frames their own bytes.
        self.num_bytes = 0
        self._lock = Lock()

    def add(self, spans: Iterable[RowRange], names: Sequence[str], num_bytes: int) -> None:
        with self._lock:
            for span in spans:
                self.row_groups[span.file, span.group] += 1
                self.columns.update(names)
            self.num_bytes += num_bytes

    @property
    def passes(self) -> int:
        """How often the row group read most often was read."""
        return max(self.row_groups.values(), default=0)

    def __reduce__(self) -> tuple[type[ReadCounter], tuple[()]]:
        return ReadCounter, ()

    def __repr__(self) -> str:
        return f"ReadCounter(passes={self.passes}, row_groups={self.row_groups.total()}, num_bytes={self.num_bytes})"


def partition_limit(partition_bytes: int | None, backend: str) -> int:
    """Return the decoded bytes a partition may have: as requested, as configured, or by the backend's memory."""
    check_choice("read", BACKENDS, backend=backend)
    check_integer("read", "[1, inf)", None, partition_bytes=partition_bytes)
    configured = settings()
    if requested := partition_bytes or configured.partition_bytes:
        return requested
    kind = configured.backend if backend == "auto" else backend
    if (resolve() if kind == "auto" else kind) == "gpu":
        return _device_bytes()
    # Each thread holds a partition as read, as transformed and as put out, and what is between.
    shared, limit = 8 * default_threads(), configured.memory_limit
    return min(_HOST_BYTES, limit // shared) if limit else _HOST_BYTES


@cache
def _device_bytes() -> int:
    """Return a fraction of the smallest visible GPU's memory, 1 GiB at most; 1 GiB where the size is unavailable."""
    memory = min((gpu.memory_total for gpu in this_machine().gpus if gpu.memory_total), default=_MOST_DEVICE_BYTES << 5)
    return min(max(memory // _DEVICE_SHARE, _LEAST_DEVICE_BYTES), _MOST_DEVICE_BYTES)


def row_bytes(fields: Iterable[Field]) -> int:
    """Compute the bytes of a row in a coded frame, without dictionaries and masks; lists count as ten elements.

    Example:
        >>> row_bytes([Field("x", "float64"), Field("ok", "bool"), Field("origin", "string")])
        13
    """
    return sum(_width(item.dtype) for item in fields)


def _width(dtype: str) -> int:
    if is_passenger(dtype):
        try:
            return int(arrow_type(dtype).bit_width + 7) // 8
        except ValueError:  # of varying width
            return _VARYING
    element = get_element_dtype(dtype)
    return 8 + 10 * _width(element) if element is not None else _WIDTHS.get(dtype) or np.dtype(dtype).itemsize
