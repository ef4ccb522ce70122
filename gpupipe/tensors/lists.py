"""List columns of a feature table: shared, checked, and concatenated once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from gpupipe.backend import Backend, Column
from gpupipe.errors import BadData, SchemaMismatch
from gpupipe.schema import Field, get_element_dtype
from gpupipe.tensors.ragged import Ragged, concat_ragged

__all__ = ["ListParts"]


class ListParts:
    """Lists of one feature, in the parts they were written in.

    Args:
        item: the feature; with a cardinality its elements are ids.
    """

    def __init__(self, item: Field) -> None:
        self._item, self._parts = item, dict[int, Ragged]()

    def add(self, first_row: int, column: Column, backend: Backend, device: torch.device) -> None:
        """Add the lists of the rows from `first_row` on, a missing one as an empty one.

        Raises:
            BadData: an element is missing or infinite; names column and count.
            SchemaMismatch: the elements are text or times.

        Memory: shares int32 ids and float32 numbers that are on the device already, else copies.
        """
        values, element = column.elements, get_element_dtype(column.dtype)
        if values is None or element in ("string", "timestamp"):
            raise SchemaMismatch(
                f"column {self._item.name!r}",
                f"{column.dtype} values cannot be fed to a network",
                expected="lists of ids or numbers",
                remedy="pre.Categorify() on this column",
            )
        xp = backend.xp
        data = values.data.astype("float32" if self._item.cardinality is None else "int32", copy=False)
        missing = values.missing(xp)
        self._refuse(0 if missing is None else int(missing.sum()), "missing")
        if self._item.cardinality is None:
            self._refuse(int(xp.isinf(data).sum()), "infinite")
        parts = [from_dlpack(array) for array in (data, column.data)]
        self.put(first_row, Ragged(*(part.to(device) for part in parts)))

    def put(self, first_row: int, lists: Ragged) -> None:
        """Store lists, uncopied, as those of the rows from `first_row` on. Memory: shares."""
        self._parts[first_row] = lists

    def copy(self, other: ListParts, device: torch.device) -> None:
        """Copy all lists of another one. Memory: copies to the device."""
        for row, lists in other._parts.items():
            self.put(row, Ragged(lists.values.to(device), lists.offsets.to(device)))

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that hold the lists."""
        return [tensor for lists in self._parts.values() for tensor in (lists.values, lists.offsets)]

    def whole(self, device: torch.device) -> Ragged:
        """Return all lists in the order of the rows."""
        if len(self._parts) != 1:
            self._parts = {0: self._joined(sorted(self._parts), device)}
        (found,) = self._parts.values()
        return found

    def between(self, start: int, stop: int, device: torch.device) -> Ragged:
        """Return the lists whose first rows are among these, in the order of the rows."""
        return self._joined(sorted(row for row in self._parts if start <= row < stop), device)

    def _joined(self, rows: list[int], device: torch.device) -> Ragged:
        return concat_ragged([self._parts[row] for row in rows]) if rows else self._none(device)

    def _none(self, device: torch.device) -> Ragged:
        dtype = torch.float32 if self._item.cardinality is None else torch.int32
        return Ragged(torch.zeros(0, dtype=dtype, device=device), torch.zeros(1, dtype=torch.int64, device=device))

    def _refuse(self, count: int, problem: str) -> None:
        if count:
            raise BadData(
                f"column {self._item.name!r}",
                f"{count} {problem} element{'s' if count > 1 else ''} would reach the model",
                expected="ids, or finite numbers in every place of a list",
                remedy="pre.Categorify() for ids; lists without them before they are read",
            )
