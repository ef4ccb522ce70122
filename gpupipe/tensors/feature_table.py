"""Feature table: one allocation that preprocessing writes and the model reads; lists and passthrough columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from gpupipe.backend import Array, Backend, Column, Frame, infer_backend
from gpupipe.backend.dictionaries import Dictionary, find_positions, unite_dictionaries
from gpupipe.errors import BackendMissing, BadConfig, BadData, ColumnNotFound, CopyRequired, SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, Field, Kind, Role, Schema, get_element_dtype
from gpupipe.support.calls import answer_calls
from gpupipe.support.text import derive, format_count
from gpupipe.support.validation import check_choice
from gpupipe.tensors.batch import Batch, Ragged, concat_ragged

MISSING_TIME = -(1 << 63)  # what a missing time, integer or boolean of a kept column is stored as

_WORD, _ALIGN, _LINE = 4, 32, 64
_HOST_ROWS, _DEVICE_ROWS = 1 << 12, 1 << 24  # written at a time: on the CPU they stay in its cache for all columns


@answer_calls
class FeatureTable:
    """Feature table: n rows of 4-byte words, `numeric float32 | codes int32 | target | weight`, and kept columns.

    A row is padded to a multiple of 32 bytes, so that one gather moves whole rows; the typed columns are views of it.

    Args:
        keep: n values per kept column: floats unchanged, strings as int64 codes (-1 where missing), anything else as
            int64 (`MISSING_TIME` where missing), of which times are microseconds.
        dictionaries: the strings of a kept column's codes, by its name.
        dtype: what the numeric columns are stored as: "float32", or "bfloat16" in half the memory, with 8 bits of
            mantissa; what is made of it is float32 again.

    Example:
        >>> from gpupipe.schema import Field
        >>> table = FeatureTable.allocate(Schema([Field("x", "float32", role=Role.FEATURE)]), 3, "cpu")
        >>> table.numeric.shape, table.row_bytes
        (torch.Size([3, 1]), 32)
    """

    def __init__(
        self,
        schema: Schema,
        words: Tensor,
        keep: dict[str, Tensor],
        dictionaries: dict[str, Dictionary],
        dtype: str = "float32",
    ) -> None:
        self.schema, self.words, self.keep, self.dictionaries, self.dtype = schema, words, keep, dictionaries, dtype
        self.written_lists: dict[int, Mapping[str, Ragged]] = {}  # by the first of the rows that they are of
        self.list_fields = schema.lists  # each batch asks for them
        self._fields = _order_fields(schema)
        self._num_numeric, self._num_codes = len(schema.numeric), len(schema.categorical)
        self._numeric_words = _count_numeric_words(schema, dtype)

    @classmethod
    def allocate(
        cls, schema: Schema, num_rows: int, device: torch.device | str, *, dtype: str = "float32"
    ) -> FeatureTable:
        """Allocate a table whose rows are not written yet.

        Raises:
            BadConfig: no such dtype.
            torch.OutOfMemoryError: it does not fit on the GPU; `MemoryError`: on the host.
            SchemaMismatch: a kept column holds lists.

        Memory: `num_rows * row_bytes`, and 8 bytes (float32: 4) per row and kept column, on `device`.
        """
        require_device(device)
        words = _allocate_words(num_rows, cls.row_bytes_of(schema, dtype) // _WORD, torch.device(device))
        keep = {}
        for item in get_stored_fields(schema):
            if item.kind == Kind.LIST:
                problem, expected = "a loader keeps no lists with the features", "one value in each row"
                where, remedy = f"column {item.name!r}", f"leave {item.name!r} out of keep="
                remedy += "; as a feature it is in batch.lists"
                raise SchemaMismatch(where, problem, got=item.dtype, expected=expected, remedy=remedy)
            kind = getattr(torch, item.dtype) if item.dtype in FLOATS else torch.int64
            keep[item.name] = torch.empty(num_rows, dtype=kind, device=device)
        return cls(schema, words, keep, {}, dtype)

    def empty_like(
        self, num_rows: int, device: torch.device | None = None, *, words: Tensor | None = None, pinned: bool = False
    ) -> FeatureTable:
        """Allocate a table with the same columns, in the memory of `words` if given, whose rows are not written yet.

        It is on the same device by default; `pinned` memory is locked, for copies to a GPU.
        """
        table, location = copy(self), self.device if device is None else device
        if words is None:
            words = _allocate_words(num_rows, self.words.shape[1], location, pinned=pinned)
        table.words, table.written_lists = words[:num_rows], {}
        table.keep = {
            name: torch.empty(num_rows, dtype=values.dtype, device=location, pin_memory=pinned)
            for name, values in self.keep.items()
        }
        return table

    @staticmethod
    def row_bytes_of(schema: Schema, dtype: str = "float32") -> int:
        """Return the bytes per row of a table of that schema, padding included, kept columns apart."""
        words = len(_order_fields(schema)) - len(schema.numeric) + _count_numeric_words(schema, dtype)
        return -(-max(words, 1) * _WORD // _ALIGN) * _ALIGN

    def __len__(self) -> int:
        return self.words.shape[0]

    @property
    def row_bytes(self) -> int:
        """The bytes per row, padding included, kept columns apart."""
        return self.words.shape[1] * _WORD

    @property
    def device(self) -> torch.device:
        """The device of the table."""
        return self.words.device

    @property
    def numeric(self) -> Tensor:
        """The numbers, n x F float32, a view; a copy where they are stored as bfloat16."""
        return self.batch_of(self.words).numeric

    @property
    def codes(self) -> Tensor:
        """The ids, n x C int32, a view."""
        return self.batch_of(self.words).codes

    @property
    def target(self) -> Tensor | None:
        """The target, n values (n x T for several), a view; None without a target."""
        return self.batch_of(self.words).target

    @property
    def weight(self) -> Tensor | None:
        """The weights, n float32, a view; None without weights."""
        return self.batch_of(self.words).weight

    @property
    def lists(self) -> Mapping[str, Ragged]:
        """The features that are lists, by name; shared, or where several `write`s brought them copied together once."""
        self.join_lists()
        return self.written_lists[0]

    def join_lists(self) -> None:
        """Concatenate the lists of several writes, on the current stream; later `lists` shares the result."""
        self.written_lists = {0: self.lists_between(0, len(self))}

    def lists_between(self, start: int, stop: int) -> dict[str, Ragged]:
        """Return the lists that were written to these rows, by name. Memory: shares where one write brought them."""
        parts = [lists for row, lists in sorted(self.written_lists.items()) if start <= row < max(stop, 1)]
        return {
            item.name: concat_ragged([lists[item.name] for lists in parts] or [_make_empty_list(item, self.device)])
            for item in self.list_fields
        }

    @property
    def stored(self) -> list[Tensor]:
        """The tensors that hold a value or more of each row: the words, and each kept column."""
        return [self.words, *self.keep.values()]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that hold its values."""
        lists = [part for group in self.written_lists.values() for part in group.values()]
        return [*self.stored, *(tensor for part in lists for tensor in (part.values, part.offsets))]

    def copy_rows(self, other: FeatureTable) -> None:
        """Start to copy all rows of a table with the same columns; from pinned memory the host does not wait."""
        for target, source in zip(self.stored, other.stored, strict=True):
            target.copy_(source, non_blocking=True)
        self.written_lists = {
            row: {name: part.to(self.device) for name, part in lists.items()}
            for row, lists in other.written_lists.items()
        }

    def batch_of(self, words: Tensor) -> Batch:
        """Return the typed views of some rows of words. Memory: shares, but for numbers stored as bfloat16."""
        floats = words.view(torch.float32)
        if self.dtype == "float32":
            numeric = floats.narrow(1, 0, self._num_numeric)
        else:
            numeric = words.view(torch.bfloat16).narrow(1, 0, self._num_numeric).float()
        batch = Batch(numeric, words.narrow(1, self._numeric_words, self._num_codes))
        position = self._numeric_words + self._num_codes
        labels = self._fields[self._num_numeric + self._num_codes :]
        targets = [item for item in labels if item.role == Role.TARGET]
        if len(targets) > 1:
            batch.target = floats.narrow(1, position, len(targets))
        elif targets:
            batch.target = (words if _is_index(targets[0]) else floats).select(1, position)
        if len(labels) > len(targets):
            batch.weight = floats.select(1, position + len(targets))
        return batch

    def write(self, first_row: int, columns: Mapping[str, Column], backend: Backend) -> int:
        """Write columns, every one of the schema and equally long, from row `first_row` on; return the number of rows.

        Raises:
            BadConfig: the table has fewer rows than are written.
            BadData: a value is missing, or float32 cannot hold it; names column and count.
            ColumnNotFound: a column of the schema is not among `columns`.
            SchemaMismatch: a column of strings or times where a number belongs.

        Memory: one write per value, through DLPack; one byte per number of a chunk of rows to look for what must not
            be there. Columns on another device are first written to a table there. Lists are shared, not copied.
        """
        keep_fields = get_stored_fields(self.schema)
        for item in [*self._fields, *keep_fields, *self.schema.lists]:
            if item.name not in columns:
                raise ColumnNotFound.among("FeatureTable.write", item.name, columns)
        num_rows = len(next(iter(columns.values()))) if columns else 0
        rows = slice(first_row, first_row + num_rows)
        if rows.stop > len(self):
            expected, remedy = f"at most {len(self):,}", f"FeatureTable.allocate(schema, {rows.stop}, device)"
            raise BadConfig(
                "FeatureTable.write", "more rows than it has", got=rows.stop, expected=expected, remedy=remedy
            )
        table, part = self, rows
        if str(self.device) != backend.device:
            table, part = self.empty_like(num_rows, torch.device(backend.device)), slice(None)
        self._write_packed(table.words[part], columns, backend)
        for item in keep_fields:
            values = _encode_kept(item, columns[item.name], self.dictionaries, backend)
            _array(table.keep[item.name][part], backend)[:] = values
        self.written_lists[first_row] = {
            item.name: _read_lists(item, columns[item.name], backend, self.device) for item in self.list_fields
        }
        if table is not self:
            for target, source in zip(self.stored, table.stored, strict=True):
                target[rows].copy_(source)
        return num_rows

    def first(self, num_rows: int) -> FeatureTable:
        """Return the first rows only. Memory: shares."""
        table = copy(self)
        table.words = self.words[:num_rows]
        table.keep = {name: values[:num_rows] for name, values in self.keep.items()}
        return table

    def take(self, rows: Tensor) -> FeatureTable:
        """Return these rows, int64 positions on the table's device, in that order. Memory: copies them there."""
        table = self.empty_like(len(rows))
        for target, source in zip(table.stored, self.stored, strict=True):
            torch.index_select(source, 0, rows, out=target)
        table.written_lists = {0: {name: lists.take(rows) for name, lists in self.lists.items()}}
        return table

    def narrow(self, num_rows: int) -> FeatureTable:
        """Return the first rows only. Memory: shares, unless that would hold on to a third more than is needed."""
        if num_rows == len(self):
            return self
        table = self.first(num_rows)
        if num_rows < 0.75 * len(self):
            table.words = table.words.clone()
            table.keep = {name: values.clone() for name, values in table.keep.items()}
        return table

    def _write_packed(self, words: Tensor, columns: Mapping[str, Column], backend: Backend) -> None:
        for item in self._fields:
            _check_column(item, columns[item.name])
        xp, ids, floats = backend.xp, _array(words, backend), _array(words.view(torch.float32), backend)
        num_numeric, half = self._num_numeric, self.dtype != "float32"
        inputs, indices = [columns[item.name] for item in self._fields], [*map(_is_index, self._fields)]
        if backend.write_rows(ids, inputs, indices, num_numeric if half else 0):
            return
        step = min(_HOST_ROWS if backend.name == "cpu" else _DEVICE_ROWS, max(len(words), 1))
        halves = torch.empty((step, num_numeric), device=words.device) if half else None
        staged = floats if halves is None else _array(halves, backend)
        finite = xp.asarray(True)
        with np.errstate(over="ignore"):  # the error below names what overflows
            for start in range(0, len(words), step):
                chunk = slice(start, start + step)
                staged_rows = chunk if halves is None else slice(len(words[chunk]))
                for position, column in enumerate(inputs[:num_numeric]):
                    staged[staged_rows, position] = column.data[chunk]
                finite &= xp.isfinite(staged[staged_rows, :num_numeric]).all()
                pairs = zip(inputs[num_numeric:], indices[num_numeric:], strict=True)
                for position, (column, is_index) in enumerate(pairs, start=self._numeric_words):
                    (ids if is_index else floats)[chunk, position] = column.data[chunk]
                    if not is_index:
                        finite &= xp.isfinite(floats[chunk, position]).all()
                if halves is not None:
                    words[chunk].view(torch.bfloat16)[:, :num_numeric].copy_(halves[staged_rows])
            if not bool(finite):
                for item, column, is_index in zip(self._fields, inputs, indices, strict=True):
                    if not is_index:
                        values = column.data.astype("float32")
                        _refuse_values(item, "missing", int(xp.isnan(values).sum()))
                        _refuse_values(item, "infinite", int(xp.isinf(values).sum()))


def _order_fields(schema: Schema) -> list[Field]:
    """Return the columns of a row, in the order of its words."""
    weight = [] if schema.weight is None else [schema.weight]
    return [*schema.numeric, *schema.categorical, *schema.targets, *weight]


def _count_numeric_words(schema: Schema, dtype: str) -> int:
    """Return the number of words of a row that hold its numbers."""
    check_choice("FeatureTable", ("float32", "bfloat16"), dtype=dtype)
    return len(schema.numeric) if dtype == "float32" else -(-len(schema.numeric) // 2)


def get_stored_fields(schema: Schema) -> list[Field]:
    """Return the kept columns that a feature table stores: all but those that no tensor can hold."""
    return [item for item in schema.with_role(Role.KEEP) if item.kind != Kind.PASSENGER]


def _allocate_words(num_rows: int, width: int, device: torch.device, *, pinned: bool = False) -> Tensor:
    """Allocate rows that are aligned to cache lines."""
    if device.type != "cpu" or pinned:
        return torch.empty((num_rows, width), dtype=torch.int32, device=device, pin_memory=pinned)
    # NumPy asks Linux for pages of 2 MB, where torch does not, and to gather rows from them takes a sixth less time.
    size = num_rows * width * _WORD
    memory = np.empty(size + _LINE, dtype=np.uint8)
    start = -memory.ctypes.data % _LINE
    return torch.from_numpy(memory[start : start + size]).view(torch.int32).view(num_rows, width)


def _array(tensor: Tensor, backend: Backend) -> Array:
    """Return the tensor's memory as the backend's array, for a tensor of autograd or inference mode too."""
    return backend.xp.from_dlpack(tensor.detach())


def require_device(device: torch.device | str) -> None:
    """Raise an error where torch cannot use the device.

    Raises:
        BackendMissing: a GPU that torch does not see.
        BadConfig: no name of a CPU or CUDA device.

    Example:
        >>> require_device("cpu")
    """
    if re.fullmatch(r"cpu(:0)?|cuda(:\d+)?", str(device)) is None:
        expected, remedy = "'auto', 'cpu', 'cuda' or 'cuda:0'", f"device='{'cuda' if 'gpu' in str(device) else 'cpu'}'"
        raise BadConfig("device", "no such device", got=device, expected=expected, remedy=remedy)
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        problem, expected = "torch sees no GPU it can use", "a visible GPU and a CUDA build of torch"
        remedy = "device='cpu', or gpupipe doctor, which says what is missing"
        raise BackendMissing("device", problem, got=str(device), expected=expected, remedy=remedy)


def _is_index(item: Field) -> bool:
    """Return whether its word is an int32: an id, or the index of a class."""
    return item.kind == Kind.CATEGORICAL if item.role == Role.FEATURE else item.dtype == "int32"


def _check_column(item: Field, column: Column) -> None:
    """Raise for a column whose type or missing values a table cannot hold: text, times, fractions, missing integers."""
    name, index = item.name, _is_index(item)
    if column.dtype in ("string", "timestamp") or (index and column.dtype in FLOATS):
        problem = f"{column.dtype} values cannot be fed to a network{' as ids' if index else ''}"
        hour = f"T.{derive(name, 'hour({})', f'{name}_hour')}"
        remedies = {"string": "pre.Categorify() on this column", "timestamp": hour}
        remedy = remedies.get(column.dtype, f"T.Cast({{{name!r}: 'int32'}})")
        expected = "integers" if index else "numbers or ids"
        raise SchemaMismatch(f"column {name!r}", problem, expected=expected, remedy=remedy)
    if column.valid is not None:
        _refuse_values(item, "missing", int((~column.valid).sum()))


def _refuse_values(item: Field, kind: str, count: int) -> None:
    """Raise `BadData` for so many values that are missing, or infinite in float32."""
    if not count:
        return
    noun, expected, remedy = "value", "a value in every row", "pre.SimpleImputer() on this column"
    target = "that gives a value in every row"
    if kind == "infinite":
        expected, target = "finite values, in float32 at most 3.4e38", "within that range, such as one divided by 1e6"
        remedy = f"T.{derive(item.name, 'clip({}, low, high)')} before it"
    if item.kind == Kind.LIST:
        noun, expected = "element", "ids, or finite numbers in every place of a list"
        remedy = "pre.Categorify() for ids; lists without them before they are read"
    problem = f"{format_count(count, f'{kind} {noun}')} would reach the model"
    remedy = remedy if item.role == Role.FEATURE else f"an expression for {item.role} {target}"
    raise BadData(f"column {item.name!r}", problem, expected=expected, remedy=remedy)


def _read_lists(item: Field, column: Column, backend: Backend, device: torch.device) -> Ragged:
    """Convert a column of lists of ids or numbers, a missing one to an empty one; share what is on the device."""
    values, is_number = column.elements, item.cardinality is None
    if values is None or get_element_dtype(column.dtype) in ("string", "timestamp"):
        problem, expected = f"{column.dtype} values cannot be fed to a network", "lists of ids or numbers"
        remedy = "pre.Categorify() on this column"
        raise SchemaMismatch(f"column {item.name!r}", problem, expected=expected, remedy=remedy)
    data, missing = values.data.astype("float32" if is_number else "int32", copy=False), values.missing(backend.xp)
    _refuse_values(item, "missing", 0 if missing is None else int(missing.sum()))
    _refuse_values(item, "infinite", int(backend.xp.isinf(data).sum()) if is_number else 0)
    return Ragged(from_dlpack(data), from_dlpack(column.data)).to(device)


def _make_empty_list(item: Field, device: torch.device) -> Ragged:
    values = torch.zeros(0, dtype=torch.float32 if item.cardinality is None else torch.int32, device=device)
    return Ragged(values, torch.zeros(1, dtype=torch.int64, device=device))


def _encode_kept(item: Field, column: Column, dictionaries: dict[str, Dictionary], backend: Backend) -> Array:
    """Return n values of a kept column as they are stored; the dictionaries grow with new strings."""
    xp = backend.xp
    if column.dictionary is not None:
        values = dictionaries.get(item.name)
        dictionaries[item.name] = (
            column.dictionary if values is None else unite_dictionaries([values, column.dictionary])
        )
        places = find_positions(column.dictionary, dictionaries[item.name])
        return xp.append(backend.to_device(places), -1)[column.data]
    if column.dtype in FLOATS:
        return column.data
    data = column.data if column.valid is None else xp.where(column.valid, column.data, 0)
    if column.dtype == "uint64" and len(data) and int(data.max()) >= -MISSING_TIME:
        problem, expected = "a kept column holds a value beyond 64 signed bits", f"at most {-MISSING_TIME - 1}"
        remedy = f"T.Cast({{{item.name!r}: 'float64'}}), or leave it out of keep="
        raise BadData(f"column {item.name!r}", problem, got=int(data.max()), expected=expected, remedy=remedy)
    data = data.astype("int64")
    return data if column.valid is None else xp.where(column.valid, data, MISSING_TIME)


def share(frame: Frame, column: str) -> Tensor:
    """Return a column of a pandas or cuDF frame as a tensor of n values, in the same memory.

    Read it only: an operation in place would change the frame, and every frame that shares with it.

    Raises:
        ColumnNotFound: the frame has no such column.
        CopyRequired: the column holds text, times, numbers with a mask, or runs backwards through memory.

    Memory: shares; nothing is copied.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"x": [1.0, 2.0]})
        >>> share(frame, "x").data_ptr() == frame["x"].to_numpy().ctypes.data
        True
    """
    backend = infer_backend(frame)
    if column not in frame.columns:
        raise ColumnNotFound.among("share", column, frame.columns)
    source, again = (backend.column(backend.encode(frame[[column]]), column) for _ in range(2))
    if source.dtype not in (*FLOATS, *INTEGERS, "bool"):
        problem = f"a column of {source.dtype} cannot be shared"
    elif source.valid is not None:
        problem = f"a column of {source.dtype} with missing values cannot be shared"
    elif min(source.data.strides) < 0:  # torch would end the process
        problem = "a column that runs backwards through memory cannot be shared"
    # The frame's own memory has the same address at each access; memory allocated for the access has not.
    elif (shared := from_dlpack(source.data)).data_ptr() == from_dlpack(again.data).data_ptr():
        return shared
    else:
        problem = f"a column of {source.dtype} is not stored as a tensor would be"
    expected = "numbers without a mask, one after the other"
    remedy = "pipeline.loader(...), which writes every column into one table"
    raise CopyRequired(f"share({column!r})", problem, expected=expected, remedy=remedy)
