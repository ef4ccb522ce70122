"""A table of features as one allocation: what preprocessing writes is what the model reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.dictionaries import Dictionary, positions_in, united
from gpupipe.errors import BadData, SchemaMismatch
from gpupipe.schema import Field, Role, Schema
from gpupipe.tensors.batch import Batch

__all__ = ["MISSING_TIME", "Block"]

MISSING_TIME = -(1 << 63)
"""What a missing time or integer of a kept column is stored as."""

_WORD, _ALIGN = 4, 32
_CHUNK = 4096  # rows written at a time on the CPU: they stay in its cache while one column after the other is written


class Block:
    """n rows of 4-byte words, `numeric float32 | codes int32 | target | weight`, and kept columns beside.

    A row is padded to a multiple of 32 bytes, so that one gather moves whole rows. `numeric` (n x F), `codes` (n x C),
    `target` and `weight` (n) are typed views of the same memory.

    Args:
        schema: the roles and types of the columns.
        words: n x W int32.
        keep: a tensor of n values per kept column.
        dictionaries: the strings that a kept column's codes stand for, by its name.

    Example:
        >>> from gpupipe.schema import Field
        >>> block = Block.allocate(Schema([Field("x", "float32", role=Role.FEATURE)]), 3, "cpu")
        >>> block.numeric.shape, block.row_bytes
        (torch.Size([3, 1]), 32)
    """

    def __init__(
        self, schema: Schema, words: Tensor, keep: dict[str, Tensor], dictionaries: dict[str, Dictionary]
    ) -> None:
        self.schema, self.words, self.keep, self.dictionaries = schema, words, keep, dictionaries

    @classmethod
    def allocate(cls, schema: Schema, num_rows: int, device: torch.device | str) -> Block:
        """A block whose rows are not written yet.

        Raises:
            torch.OutOfMemoryError: there is no room for it on the device.

        Memory: `num_rows * row_bytes` plus 8 bytes (or the column's width) per row and kept column, on `device`.
        """
        width = cls.row_bytes_of(schema) // _WORD
        words = torch.empty((num_rows, width), dtype=torch.int32, device=device)
        keep = {item.name: torch.empty(num_rows, dtype=_kept_dtype(item), device=device) for item in _kept(schema)}
        return cls(schema, words, keep, {})

    @staticmethod
    def row_bytes_of(schema: Schema) -> int:
        """Bytes per row of a block of that schema, padding included, kept columns apart."""
        used = len(schema.numeric) + len(schema.categorical) + bool(schema.target) + bool(schema.weight)
        return -(-max(used, 1) * _WORD // _ALIGN) * _ALIGN

    def __len__(self) -> int:
        return self.words.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes per row, padding included, kept columns apart."""
        return self.words.shape[1] * _WORD

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.words.device

    @property
    def numeric(self) -> Tensor:
        """n x F float32, a view."""
        return self.batch_of(self.words).numeric

    @property
    def codes(self) -> Tensor:
        """n x C int32, a view."""
        return self.batch_of(self.words).codes

    @property
    def target(self) -> Tensor | None:
        """n values, a view; None without a target."""
        return self.batch_of(self.words).target

    @property
    def weight(self) -> Tensor | None:
        """n float32, a view; None without weights."""
        return self.batch_of(self.words).weight

    def batch_of(self, words: Tensor) -> Batch:
        """The typed views of some rows of words. Memory: shares."""
        first = len(self.schema.numeric)
        last = first + len(self.schema.categorical)
        batch = Batch(words[:, :first].view(torch.float32), words[:, first:last])
        if self.schema.target is not None:
            target = words[:, last]
            batch.target = target if self.schema.target.dtype == "int32" else target.view(torch.float32)
            last += 1
        if self.schema.weight is not None:
            batch.weight = words[:, last].view(torch.float32)
        return batch

    def write(self, first_row: int, columns: Mapping[str, Column], backend: Backend) -> int:
        """Write columns into the rows from `first_row` on; returns how many rows that were.

        Args:
            first_row: the block's row of the columns' first value.
            columns: every column of the schema, equally long, on the block's device.
            backend: whose arrays the columns hold.

        Raises:
            BadData: a value is missing or infinite; names column and count.
            SchemaMismatch: a column of strings or times where a number belongs.

        Memory: one write per value, through DLPack; n bytes more to look for what is missing or infinite.
        """
        rows = len(next(iter(columns.values()))) if columns else 0
        part = slice(first_row, first_row + rows)
        views = self.batch_of(self.words[part])
        numeric, codes = _array(views.numeric, backend), _array(views.codes, backend)
        fields = self.schema
        for item in fields:
            if item.role != Role.KEEP:
                _check(item, columns[item.name])
        step = _CHUNK if backend.name == "cpu" else max(rows, 1)
        for start in range(0, rows, step):
            chunk = slice(start, start + step)
            for place, item in enumerate(fields.numeric):
                numeric[chunk, place] = columns[item.name].data[chunk]
            for place, item in enumerate(fields.categorical):
                codes[chunk, place] = columns[item.name].data[chunk]
        if not bool(backend.xp.isfinite(numeric).all()):
            raise _not_finite(fields.numeric, numeric, backend)
        for label, view in ((fields.target, views.target), (fields.weight, views.weight)):
            if label is not None and view is not None:
                _array(view, backend)[:] = columns[label.name].data
        for item in _kept(fields):
            _array(self.keep[item.name][part], backend)[:] = self._kept_values(item, columns[item.name], backend)
        return rows

    def narrow(self, num_rows: int) -> Block:
        """The first rows only.

        Memory: shares, unless that would hold on to a third more than is needed; then copies.
        """
        if num_rows == len(self):
            return self
        wasteful = num_rows < 0.75 * len(self)
        parts = {name: values[:num_rows] for name, values in self.keep.items()}
        keep = {name: values.clone() if wasteful else values for name, values in parts.items()}
        words = self.words[:num_rows]
        return Block(self.schema, words.clone() if wasteful else words, keep, self.dictionaries)

    def _kept_values(self, item: Field, column: Column, backend: Backend) -> Array:
        if column.dictionary is None:
            return column.data if column.valid is None else backend.xp.where(column.valid, column.data, MISSING_TIME)
        known = self.dictionaries.get(item.name)
        self.dictionaries[item.name] = column.dictionary if known is None else united([known, column.dictionary])
        places = positions_in(column.dictionary, self.dictionaries[item.name])
        table = backend.xp.append(backend.to_device(places), -1)
        return table[column.data]


def _array(tensor: Tensor, backend: Backend) -> Array:
    """The tensor's memory as the backend's array; a tensor that autograd or inference mode watches too."""
    return backend.xp.from_dlpack(tensor.detach())


def _kept(schema: Schema) -> list[Field]:
    return schema.with_role(Role.KEEP)


def _kept_dtype(item: Field) -> torch.dtype:
    if item.dtype == "float32":
        return torch.float32
    return torch.float64 if item.dtype == "float64" else torch.int64


def _check(item: Field, column: Column) -> None:
    """What the values cannot tell once they are written: text, times, and integers that are missing."""
    if column.dtype in ("string", "timestamp"):
        raise SchemaMismatch(
            f"column {item.name!r}",
            f"{column.dtype} values cannot be fed to a network",
            expected="numbers or ids",
            remedy="pre.Categorify(), or an expression that makes a number of it",
        )
    if column.valid is not None:
        missing = int((~column.valid).sum())
        if missing:
            raise _missing(item.name, missing)


def _missing(name: str, count: int) -> BadData:
    return BadData(
        f"column {name!r}",
        f"{count} missing value{'s' if count > 1 else ''} would reach the model",
        expected="a value in every row",
        remedy="pre.SimpleImputer() on this column",
    )


def _not_finite(fields: list[Field], numeric: Array, backend: Backend) -> BadData:
    xp = backend.xp
    for place, item in enumerate(fields):
        values = numeric[:, place]
        count = int(xp.isnan(values).sum())
        if count:
            return _missing(item.name, count)
        endless: Any = int(xp.isinf(values).sum())
        if endless:
            return BadData(
                f"column {item.name!r}",
                f"{endless} infinite value{'s' if endless > 1 else ''} would reach the model",
                expected="finite float32 values",
                remedy=f"T.Derive({item.name}='clip({item.name}, low, high)') before it",
            )
    raise AssertionError("some value was not finite")
