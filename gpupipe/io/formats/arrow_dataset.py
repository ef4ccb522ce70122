"""Datasets of pyarrow, and of libraries that return such (Delta tables by deltalake), read by row group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.dataset as pads

from gpupipe.backend.arrow import dtype_from_arrow
from gpupipe.errors import BadFile
from gpupipe.io.formats.file_source import BadFilePolicy, TableFile, open_all
from gpupipe.io.formats.parquet import convert_bounds
from gpupipe.io.planning.row_filters import Bounds, exactly
from gpupipe.io.stores import Input, one_line


@dataclass(frozen=True)
class _Place(Input):
    """File location; pyarrow's own file system reports changes."""

    fragment: Any = None

    def stamped(self) -> _Place:
        return replace(self, stamp=self._look())

    def change(self) -> str | None:
        now = self._look()
        return None if now == self.stamp else f"it was {self.stamp} at first, and is {now} now"

    def _look(self) -> str | None:
        info = self.fragment.filesystem.get_file_info(self.fragment.path)
        return f"{info.size} {info.mtime_ns}" if info.is_file else None


@dataclass(frozen=True)
class _Fragment(TableFile):
    """File of a pyarrow dataset: `schema` is the dataset's, and pyarrow fills in columns that the file lacks.

    Columns of other types than the dataset's come as the file has them: pyarrow would round what it casts.
    """

    fragment: Any = None
    unit: ClassVar[str] = "row group"

    def table(self, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
        whole = len(groups) == len(self.group_rows)
        fragment = self.fragment if whole else self.fragment.subset(row_group_ids=list(groups))
        fields, schema = {item.name: item for item in self.fragment.physical_schema}, []
        for item in self.schema:
            field = fields.get(item.name, item)
            is_carried = None not in (dtype_from_arrow(field.type), dtype_from_arrow(item.type))
            schema.append(field if is_carried and field.type != item.type else item)
        return fragment.to_table(schema=pa.schema(schema), columns=list(names))

    def bounds(self, group: int, name: str) -> Bounds | None:
        """Return the bounds from the fragment's partition, or from the statistics of a Parquet row group."""
        keys = pads.get_partition_keys(self.fragment.partition_expression)
        if name in keys:
            return exactly(keys[name])
        schema = self.fragment.physical_schema
        if not isinstance(self.fragment, pads.ParquetFileFragment) or schema.get_field_index(name) < 0:
            return None
        kind = schema.field(name).type
        statistics = self.fragment.row_groups[group].statistics
        if not statistics or name not in statistics or dtype_from_arrow(kind) != self.dtype(name):
            return None
        try:
            return convert_bounds(statistics[name]["min"], statistics[name]["max"], kind)
        except (ValueError, OverflowError):  # a time Python's datetime cannot say
            return None


def list_fragments(dataset: pads.Dataset) -> dict[int, _Fragment] | None:
    """Return the dataset's files; None where it is filtered, so that row counts differ, or has no files."""
    try:
        fragments = list(dataset.get_fragments())
    except ValueError:  # filtered
        return None
    if not fragments or not all(isinstance(fragment, pads.FileFragment) for fragment in fragments):
        return None

    def opener(file: Any) -> _Fragment:
        fragment = file.fragment
        try:
            if isinstance(fragment, pads.ParquetFileFragment):
                groups = fragment.row_groups
                rows = tuple(group.num_rows for group in groups)
                num_bytes = sum(group.total_byte_size for group in groups)
            else:  # one group
                rows = (fragment.count_rows(),)
                num_bytes = fragment.filesystem.get_file_info(fragment.path).size
        except (OSError, pa.ArrowException) as cause:
            problem = f"cannot be opened ({one_line(cause)})"
            remedy = "the dataset made anew; or the file written again"
            raise BadFile(fragment.path, problem, expected="a file of the dataset", remedy=remedy) from cause
        return _Fragment(file, dataset.schema, rows, num_bytes, fragment=fragment)

    return open_all([_Place(fragment.path, fragment=fragment) for fragment in fragments], opener, BadFilePolicy())
