"""A table of features as one allocation: what preprocessing writes is what the model reads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.dictionaries import Dictionary, positions_in, united
from gpupipe.errors import BackendMissing, BadData, ColumnNotFound, SchemaMismatch
from gpupipe.schema import FLOATS, Field, Kind, Role, Schema
from gpupipe.tensors.batch import Batch
from gpupipe.tensors.lists import ListParts
from gpupipe.tensors.ragged import Ragged

__all__ = ["MISSING_TIME", "Block", "require_device"]

MISSING_TIME = -(1 << 63)
"""What a missing time, integer or boolean of a kept column is stored as."""

_WORD, _ALIGN = 4, 32
_HOST_ROWS, _DEVICE_ROWS = 1 << 12, 1 << 24  # written at a time: on the CPU they stay in its cache for all columns


class Block:
    """n rows of 4-byte words, `numeric float32 | codes int32 | target | weight`, and kept columns beside.

    A row is padded to a multiple of 32 bytes, so that one gather moves whole rows. `numeric` (n x F), `codes` (n x C),
    `target` and `weight` (n) are views of the same memory.

    Args:
        schema: the roles and types of the columns.
        words: n x W int32.
        keep: n values per kept column: floats as they are, strings as int64 codes (-1 where missing), anything else as
            int64 (`MISSING_TIME` where missing), of which times are microseconds.
        dictionaries: the strings that a kept column's codes stand for, by its name.
        lists: the features that are lists, as what was written of them (first row and lists), by name.

    Example:
        >>> from gpupipe.schema import Field
        >>> block = Block.allocate(Schema([Field("x", "float32", role=Role.FEATURE)]), 3, "cpu")
        >>> block.numeric.shape, block.row_bytes
        (torch.Size([3, 1]), 32)
    """

    def __init__(
        self,
        schema: Schema,
        words: Tensor,
        keep: dict[str, Tensor],
        dictionaries: dict[str, Dictionary],
        lists: Mapping[str, ListParts] | None = None,
    ) -> None:
        self.schema, self.words, self.keep, self.dictionaries = schema, words, keep, dictionaries
        self._lists = {item.name: ListParts(item) for item in schema.lists} if lists is None else lists
        self._fields = _packed(schema)
        self._num_numeric, self._num_codes = len(schema.numeric), len(schema.categorical)

    @classmethod
    def allocate(cls, schema: Schema, num_rows: int, device: torch.device | str) -> Block:
        """A block whose rows are not written yet.

        Raises:
            torch.OutOfMemoryError: there is no room for it on the device.

        Memory: `num_rows * row_bytes`, and 8 bytes (float32: 4) per row and kept column, on `device`; none for lists,
            of which is shared what is written.
        """
        require_device(device)
        words = torch.empty((num_rows, cls.row_bytes_of(schema) // _WORD), dtype=torch.int32, device=device)
        kept = schema.with_role(Role.KEEP)
        keep = {item.name: torch.empty(num_rows, dtype=_kept_dtype(item), device=device) for item in kept}
        return cls(schema, words, keep, {})

    @staticmethod
    def row_bytes_of(schema: Schema) -> int:
        """Bytes per row of a block of that schema, padding included, kept columns apart."""
        return -(-max(len(_packed(schema)), 1) * _WORD // _ALIGN) * _ALIGN

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
        """n values (n x T for several targets), a view; None without a target."""
        return self.batch_of(self.words).target

    @property
    def weight(self) -> Tensor | None:
        """n float32, a view; None without weights."""
        return self.batch_of(self.words).weight

    @property
    def lists(self) -> dict[str, Ragged]:
        """The features that are lists, by name, of all rows that were written.

        Memory: shares what one `write` brought; what several brought is copied together once.
        """
        return {name: parts.whole(self.device) for name, parts in self._lists.items()}

    def batch_of(self, words: Tensor) -> Batch:
        """The typed views of some rows of words. Memory: shares."""
        floats = words.view(torch.float32)
        place = self._num_numeric + self._num_codes
        batch = Batch(floats.narrow(1, 0, self._num_numeric), words.narrow(1, self._num_numeric, self._num_codes))
        labels = self._fields[place:]
        targets = [item for item in labels if item.role == Role.TARGET]
        if len(targets) > 1:
            batch.target = floats.narrow(1, place, len(targets))
        elif targets:
            batch.target = (words if _is_index(targets[0]) else floats).select(1, place)
        if len(labels) > len(targets):
            batch.weight = floats.select(1, place + len(targets))
        return batch

    def write(self, first_row: int, columns: Mapping[str, Column], backend: Backend) -> int:
        """Write columns into the rows from `first_row` on; returns how many rows that were.

        Args:
            first_row: the block's row of the columns' first value.
            columns: every column of the schema, equally long.
            backend: the one whose arrays the columns are.

        Raises:
            BadData: a value is missing, or float32 cannot hold it; names column and count.
            ColumnNotFound: a column of the schema is not among `columns`.
            SchemaMismatch: a column of strings or times where a number belongs.

        Memory: one write per value, through DLPack; one byte per number of a chunk of rows to look for what must not
            be there. Columns that lie on another device than the block are first written to a block of their own there.
            Lists are shared, not copied.
        """
        kept = self.schema.with_role(Role.KEEP)
        for item in [*self._fields, *kept, *self.schema.lists]:
            if item.name not in columns:
                raise ColumnNotFound.among("Block.write", item.name, columns)
        num_rows = len(next(iter(columns.values()))) if columns else 0
        rows = slice(first_row, first_row + num_rows)
        there = self if str(self.device) == backend.device else Block.allocate(self.schema, num_rows, backend.device)
        part = rows if there is self else slice(None)
        self._write_packed(there.words[part], columns, backend)
        for item in kept:
            _array(there.keep[item.name][part], backend)[:] = self._kept_values(item, columns[item.name], backend)
        for name, parts in self._lists.items():
            parts.add(first_row, columns[name], backend, self.device)
        if there is not self:
            self.words[rows].copy_(there.words)
            for name, values in there.keep.items():
                self.keep[name][rows].copy_(values)
        return num_rows

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
        return Block(self.schema, words.clone() if wasteful else words, keep, self.dictionaries, self._lists)

    def _write_packed(self, words: Tensor, columns: Mapping[str, Column], backend: Backend) -> None:
        for item in self._fields:
            _check(item, columns[item.name])
        xp, ids, floats = backend.xp, _array(words, backend), _array(words.view(torch.float32), backend)
        if backend.write_rows(ids, [columns[item.name] for item in self._fields], [*map(_is_index, self._fields)]):
            return
        numbers = [floats[:, : self._num_numeric]]
        numbers += [floats[:, p] for p, i in enumerate(self._fields) if p >= self._num_numeric and not _is_index(i)]
        finite = xp.asarray(True)
        step = _HOST_ROWS if backend.name == "cpu" else _DEVICE_ROWS
        with np.errstate(over="ignore"):  # what overflows is told by name below
            for start in range(0, len(words), step):
                chunk = slice(start, start + step)
                for place, item in enumerate(self._fields):
                    (ids if _is_index(item) else floats)[chunk, place] = columns[item.name].data[chunk]
                for values in numbers:
                    finite &= xp.isfinite(values[chunk]).all()
        if not bool(finite):
            raise self._not_finite(floats, columns, backend)

    def _not_finite(self, floats: Array, columns: Mapping[str, Column], backend: Backend) -> BadData:
        xp = backend.xp
        for place, item in enumerate(self._fields):
            if not _is_index(item):
                missing = int(xp.isnan(floats[:, place]).sum())
                if missing:
                    return _missing(item, missing)
                endless = int(xp.isinf(floats[:, place]).sum())
                if endless:
                    return _endless(item, endless)
        raise AssertionError("some value was not finite")

    def _kept_values(self, item: Field, column: Column, backend: Backend) -> Array:
        xp = backend.xp
        if column.dictionary is not None:
            known = self.dictionaries.get(item.name)
            self.dictionaries[item.name] = column.dictionary if known is None else united([known, column.dictionary])
            places = positions_in(column.dictionary, self.dictionaries[item.name])
            return xp.append(backend.to_device(places), -1)[column.data]
        if column.dtype in FLOATS:
            return column.data
        data = column.data if column.valid is None else xp.where(column.valid, column.data, 0)
        if column.dtype == "uint64" and len(data) and int(data.max()) >= -MISSING_TIME:
            raise BadData(
                f"column {item.name!r}",
                "a kept column holds a value beyond 64 signed bits",
                got=int(data.max()),
                expected=f"at most {-MISSING_TIME - 1}",
                remedy=f"T.Cast({{{item.name!r}: 'float64'}}), or leave it out of keep=",
            )
        data = data.astype("int64")
        return data if column.valid is None else xp.where(column.valid, data, MISSING_TIME)


def require_device(device: torch.device | str) -> None:
    """Raise `BackendMissing` where torch cannot use the device.

    Example:
        >>> require_device("cpu")
    """
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise BackendMissing(
            "device",
            "torch sees no GPU it can use",
            got=str(device),
            expected="a visible GPU and a CUDA build of torch",
            remedy="device='cpu', or gpupipe doctor, which says what is missing",
        )


def _packed(schema: Schema) -> list[Field]:
    """The columns of a row, in the order of its words."""
    weight = [] if schema.weight is None else [schema.weight]
    return [*schema.numeric, *schema.categorical, *schema.targets, *weight]


def _is_index(item: Field) -> bool:
    """Whether its word is an int32: an id, or the index of a class."""
    return item.kind == Kind.CATEGORICAL if item.role == Role.FEATURE else item.dtype == "int32"


def _array(tensor: Tensor, backend: Backend) -> Array:
    """The tensor's memory as the backend's array; a tensor that autograd or inference mode watches too."""
    return backend.xp.from_dlpack(tensor.detach())


def _kept_dtype(item: Field) -> torch.dtype:
    if item.dtype == "float32":
        return torch.float32
    return torch.float64 if item.dtype == "float64" else torch.int64


def _check(item: Field, column: Column) -> None:
    """What the values cannot tell once they are written: text, times, fractions, and integers that are missing."""
    name, index = item.name, _is_index(item)
    if column.dtype in ("string", "timestamp") or (index and column.dtype in FLOATS):
        remedies = {"string": "pre.Categorify() on this column", "timestamp": f"T.Derive({name}_hour='hour({name})')"}
        raise SchemaMismatch(
            f"column {name!r}",
            f"{column.dtype} values cannot be fed to a network{' as ids' if index else ''}",
            expected="integers" if index else "numbers or ids",
            remedy=remedies.get(column.dtype, f"T.Cast({{{name!r}: 'int32'}})"),
        )
    missing = 0 if column.valid is None else int((~column.valid).sum())
    if missing:
        raise _missing(item, missing)


def _missing(item: Field, count: int) -> BadData:
    return BadData(
        f"column {item.name!r}",
        f"{count} missing value{'s' if count > 1 else ''} would reach the model",
        expected="a value in every row",
        remedy="pre.SimpleImputer() on this column"
        if item.role == Role.FEATURE
        else f"an expression for {item.role} that gives a value in every row",
    )


def _endless(item: Field, count: int) -> BadData:
    return BadData(
        f"column {item.name!r}",
        f"{count} infinite value{'s' if count > 1 else ''} would reach the model",
        expected="finite values, in float32 at most 3.4e38",
        remedy=f"T.Derive({item.name}='clip({item.name}, low, high)') before it",
    )
