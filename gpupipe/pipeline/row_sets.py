"""Row sets: which rows of which tables a dataset holds, to tell whether another one may share some of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpupipe.io import Dataset
from gpupipe.support.origins import Origins, are_related


@dataclass(frozen=True)
class RowSet:
    """Rows by where some of their columns come from, the filters they have passed, and their files' stamps."""

    origins: Origins
    filters: frozenset[str]
    stamps: Mapping[str, str]

    @classmethod
    def of(cls, dataset: Dataset, names: Iterable[str]) -> RowSet:
        """Describe a dataset's rows, by those of the columns that it has."""
        schema = dataset.locate_origins()
        origins = (schema[name].origins for name in names if name in schema)
        return cls(frozenset().union(*origins), dataset.filters, dataset.source.inputs() or {})

    def may_share(self, other: RowSet) -> bool:
        """Whether rows may be in both: of one table, and not of two parts of it.

        Of rows that passed other filters nobody knows; a file that was written anew holds other rows.
        """
        stamps = other.stamps
        if any(stamps[name] != stamp for name, stamp in self.stamps.items() if name in stamps):
            return False
        is_nested = self.filters <= other.filters or other.filters <= self.filters
        tables = {one.table for one in other.origins}
        return is_nested and any(are_related(one.table, table) for one in self.origins for table in tables)
