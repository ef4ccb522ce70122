"""Table file: the protocol of every file format for reading rows in groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import pyarrow as pa

from gpupipe.backend import Backend, Frame
from gpupipe.io.planning.statistics import Bounds
from gpupipe.io.stores.find_files import Input
from gpupipe.schema import Field

__all__ = ["TableFile"]


class TableFile(Protocol):
    """File whose rows are read in groups: row groups, stripes, record batches."""

    unit: ClassVar[str]
    """What its groups are called."""

    @property
    def origin(self) -> Input:
        """The file that was named."""

    @property
    def schema(self) -> pa.Schema:
        """The columns it holds."""

    @property
    def group_rows(self) -> Sequence[int]:
        """Rows of each group."""

    def read(self, groups: Sequence[int], fields: Sequence[Field], backend: Backend) -> Frame:
        """Read all rows of these groups as a coded frame of these columns, which are among its own."""

    def table(self, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
        """Read all rows of these groups, these columns at least, in the file's types."""

    def bounds(self, group: int, name: str) -> Bounds | None:
        """See `Source.bounds`."""

    def null_count(self, name: str) -> int | None:
        """Return the nulls of a column in all rows; None where the number is unavailable."""

    def text_bytes(self, group: int, names: Sequence[str]) -> int:
        """Return an upper bound, or an estimate, of the bytes of these columns' dictionaries."""

    def stored_bytes(self, group: int, names: Sequence[str]) -> int:
        """Return the bytes of these columns in the file."""

    def change(self) -> str | None:
        """Describe how the file has changed since it was opened; None where it has not, or cannot."""
