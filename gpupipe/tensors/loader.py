"""Loader: batches of a table, in order or shuffled, wherever the table is stored, and the position of an iteration.

A thread reads a table in parts, or copies one to another device, while the model computes; not yet run on a GPU.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from gpupipe.backend import Backend, Column, free_host_memory, select_for
from gpupipe.backend.dictionaries import Dictionary
from gpupipe.config import BLOCK_ROWS, WINDOW
from gpupipe.errors import BadConfig, BadData, GpupipeError
from gpupipe.schema import Schema, count_features
from gpupipe.support.calls import answer_calls
from gpupipe.support.text import format_count
from gpupipe.support.validation import check_bool, check_choice, check_integer, check_seed, to_python
from gpupipe.tensors.batch import Batch
from gpupipe.tensors.feature_table import FeatureTable, require_device
from gpupipe.tensors.order import (
    ByBlocks,
    Drawn,
    InOrder,
    Order,
    Permutation,
    Ranges,
    Rows,
    Sharding,
    Step,
    gather_row_counts,
    get_rank,
    sum_weights,
)

Columns: TypeAlias = Mapping[str, Column]
Dictionaries: TypeAlias = dict[str, Dictionary]
RowSource: TypeAlias = Callable[[int, int, FeatureTable, int], None]
"""Copies the rows from one position of an epoch's order to before another into a table, from a row of it on."""
Item = TypeVar("Item")
SLAB_BYTES = 8 << 20  # at least: smaller copies do not fill the way to the GPU
_WAITING = 1  # slabs that are ready
_RING = _WAITING + 2  # and one that is filled, and one whose batches are used
_PATIENCE = 60.0  # seconds for the thread to end
_log = logging.getLogger("gpupipe")
# Positions whose rows are looked up at a time: between copies of rows each call would find the cache emptied.
_HOST_POSITIONS, _DEVICE_POSITIONS = 1 << 20, 1 << 24
_TOGETHER = 256 << 10  # bytes of small batches that one copy makes
_SHARE = 0.8  # of the host's free memory that a table may take

SMALLEST_BATCH, SMALL_BATCH, LARGEST_BATCH = 16, 128, 4096  # rows, of those that "auto" chooses from
FEWEST_UPDATES_PER_EPOCH, UPDATES_PER_EPOCH = 4, 64  # of a table of few rows: its batches
FEW_ROWS = 512  # the largest batch of two passes that make UPDATES_PER_TWO_EPOCHS
UPDATES_PER_TWO_EPOCHS = 600

RESIDENCIES = ("auto", "device", "host", "stream")


class _Position(NamedTuple):
    """Epoch of the next batch, and its number there; both from 0."""

    epoch: int = 0
    batch: int = 0


class BatchOptions(TypedDict, total=False):
    """Options of how rows become batches; see `Loader`.

    Example:
        >>> options: BatchOptions = {"batch_size": 1024, "shuffle": "rows"}
    """

    batch_size: int | str
    shuffle: bool | str
    block_rows: int
    window: int
    seed: int
    drop_last: bool


class LoaderOptions(BatchOptions, total=False):
    """Options of how rows become batches, and on which rank; see `Loader`.

    Example:
        >>> options: LoaderOptions = {"batch_size": 1024, "rank": 0, "world_size": 2}
    """

    reuse_buffers: bool
    rank: int | None
    world_size: int | None
    sharded: bool | Sequence[int]
    sampler: Any


def choose_batch_size(num_rows: int) -> int:
    """Choose the rows per batch to train on, a power of two: near a 64th of the rows from 128 to 512, then a 600th.

    A network needs some hundred updates before it is better than a linear model, and in more than some passes over the
    rows it learns them by heart. A 600th is what makes 1,200 updates of two passes; no batch has more than 4096. Of a
    few hundred rows batches are a fourth: one batch for all would make 40 updates of 40 passes.

    Example:
        >>> [choose_batch_size(rows) for rows in (120, 1_000, 15_000, 35_000, 300_000, 1_000_000, 10_000_000)]
        [32, 128, 256, 512, 512, 2048, 4096]
    """
    few = max(SMALLEST_BATCH, min(num_rows / FEWEST_UPDATES_PER_EPOCH, SMALL_BATCH))
    rows = max(num_rows / UPDATES_PER_TWO_EPOCHS, min(num_rows / UPDATES_PER_EPOCH, FEW_ROWS), few)
    return min(1 << round(math.log2(rows)), LARGEST_BATCH)


@answer_calls
class Loader:
    """Loader of `Batch`es over a table, all on one device.

    Changing a batch in place does not change the table. The order is the same wherever the table is stored.

    Args:
        table: a feature table, or parts that are read while batches are made.
        batch_size: rows per batch, of all ranks together; "auto" chooses by the number of rows where they are shuffled
            or drawn, see `choose_batch_size`, else 4096.
        shuffle: `"rows"` (or True) for another permutation of all rows each epoch; `"blocks"` for one of blocks of
            `block_rows` consecutive rows, and of the rows among `window` blocks at a time; False for the table's order.
            It depends on `seed`, the epoch and the number of rows alone.
        drop_last: leave out a last batch that is not full.
        reuse_buffers: each batch overwrites the one before (kept columns do not), which has to be used up by then.
        target_units: brings stored targets, or outputs for them, into the target's own units, for metrics.
        rank: this process's number among the `world_size` that train together; by default torch.distributed's, or 0.
        sharded: True where each rank's table holds rows of its own, or the number of rows of each; False where all
            ranks have the same table and take a part of each batch. Ranks that run out of rows get padding of weight 0.
        sampler: rows drawn with replacement: "balanced" for classes of the target that come equally often, "weights"
            for rows in proportion to their weight (which batches then no longer have), or a tensor of each row's
            weight.
        device: of the batches; by default the table's.
        residency: "device" for a table there, "host" for one whose batches a thread copies there in slabs, "stream" for
            parts; "auto" for what the table is.

    Raises:
        BadConfig: options that are unknown, too small, or not to be had together.
        BadData: weights that no rows can be drawn by.

    Memory: a batch is a copy of its rows, `row_bytes` each and lists besides, and its tensors are views of that copy. A
        sampler takes 8 bytes per row of the table; a table on the host three slabs of 8 MB or a batch; parts two
        windows (`block_rows * window` rows) besides.

    Example:
        >>> from gpupipe.schema import Field, Role
        >>> schema = Schema([Field("x", "float32", role=Role.FEATURE)])
        >>> loader = Loader(FeatureTable.allocate(schema, 10, "cpu"), batch_size=4, shuffle="rows")
        >>> [len(batch) for batch in loader], sorted(loader.order(0).tolist()) == list(range(10))
        ([4, 4, 2], True)
    """

    def __init__(
        self,
        table: FeatureTable | Parts,
        *,
        batch_size: int | str = "auto",
        shuffle: bool | str = False,
        block_rows: int = BLOCK_ROWS,
        window: int = WINDOW,
        seed: int = 0,
        drop_last: bool = False,
        reuse_buffers: bool = False,
        target_units: Callable[[Tensor], Tensor] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        sharded: bool | Sequence[int] = False,
        sampler: str | Tensor | None = None,
        device: torch.device | str | None = None,
        residency: str = "auto",
    ) -> None:
        check_integer("loader", "[1, inf)", block_rows=block_rows, window=window)
        if batch_size != "auto":
            check_integer("loader", "[1, inf)", batch_size=batch_size)
        check_choice("loader", ("rows", "blocks", True, False), shuffle=shuffle)
        check_seed("loader", seed=seed)
        check_bool("loader", drop_last=drop_last, reuse_buffers=reuse_buffers)
        check_choice("loader", RESIDENCIES, residency=residency)
        if device is not None:
            require_device(device)
        self._table = table
        if isinstance(table, FeatureTable):
            self._like = table
        else:
            self._like = FeatureTable.allocate(table.schema, 0, table.backend.device, dtype=table.dtype)
        self.device = self._like.device if device is None else torch.empty(0, device=device).device  # cuda is cuda:0
        self.residency = self._choose_residency(residency)
        self.block_rows, self.window, self.seed = map(to_python, (block_rows, window, seed))
        self.shuffle = "rows" if shuffle is True else shuffle
        self.drop_last, self.reuse_buffers, self.target_units = drop_last, reuse_buffers, target_units
        self.rank, self.world_size = get_rank(rank, world_size)
        shards = None  # all ranks have the same table
        if sharded is not False:
            shards = gather_row_counts(sharded, self.num_rows, self.rank, self.world_size)
        self.batch_size: int = to_python(batch_size)
        if batch_size == "auto":
            trains = self.shuffle is not False or sampler is not None
            self.batch_size = choose_batch_size(sum(shards or [self.num_rows])) if trains else LARGEST_BATCH
        self._ranks = Sharding(self.num_rows, self.batch_size, drop_last, self.rank, self.world_size, shards)
        self.row_set: Any = None  # which rows of which tables these are, where a pipeline knows it
        self._next = self._reached = _Position()
        self._check_order(sampler)
        self._sampler = sampler
        self._sums: Tensor | None = None
        if isinstance(sampler, Tensor):
            self._sampler, sampler = "given", sampler.to(self.table.device)
        if sampler is not None:
            whole = self.table.batch_of(self.table.words)
            self._sums = sum_weights(sampler, len(whole), whole.target, whole.weight)

    def __repr__(self) -> str:
        order = f"shuffled by {self.shuffle}" if self._sampler is None else f"drawn by {self._sampler}"
        is_random = self.shuffle or self._sampler is not None
        parts = [
            f"{format_count(len(self), 'batch', 'batches')} of {self.batch_size:,}",
            f"{order}, seed {self.seed}" if is_random else "in order",
            count_features(self.schema),
            *([f"{self.schema.task} target"] if self.schema.targets else []),
            f"residency {self.residency}, on {self.device}",
            *([f"rank {self.rank} of {self.world_size}"] if self.world_size > 1 else []),
        ]
        return f"Loader of {format_count(self.total_rows, 'row')}: {'; '.join(parts)}"

    def __len__(self) -> int:
        """Return the number of batches per epoch, wherever the next iteration begins."""
        return len(self._ranks)

    @property
    def table(self) -> FeatureTable:
        """The whole table; `BadConfig` where it is streamed."""
        if isinstance(self._table, FeatureTable):
            return self._table
        problem, expected = "the whole table is asked for, and it is streamed", "a table that fits in memory"
        raise BadConfig("loader", problem, expected=expected, remedy="residency='host' or 'device'")

    @property
    def schema(self) -> Schema:
        """The schema of the table."""
        return self._like.schema

    @property
    def num_rows(self) -> int:
        """The number of rows of the table."""
        return len(self._table) if isinstance(self._table, FeatureTable) else sum(self._table.rows)

    @property
    def total_rows(self) -> int:
        """The number of rows of the tables of all ranks, each counted once."""
        return sum(self._ranks.shards or [self.num_rows])

    @property
    def dictionaries(self) -> Mapping[str, Dictionary]:
        """The strings of the codes of kept columns, by column; on the host."""
        return self._like.dictionaries

    def set_epoch(self, epoch: int) -> None:
        """Set the next iteration's epoch, from 0 (else `BadConfig`); one `load_state_dict` just restored goes on."""
        check_integer("Loader.set_epoch", "[0, inf)", epoch=epoch)
        if epoch != self._next.epoch:
            self._next = _Position(epoch)
        self._reached = self._next

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the iteration that was advanced last, as JSON; the batch that was given last is seen."""
        return {**self._reached._asdict(), **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state: the next iteration gives the batches still to come, in the same order, at no cost.

        `len` stays that of a whole epoch. At the beginning of an epoch, the number of ranks, the batch size and the
        table may be others than those of the state. Raises `BadConfig`: the state is from the middle of an epoch of
        another order, or is invalid.
        """
        where, is_mapping = "Loader.load_state_dict", isinstance(state, Mapping)
        then = dict(state) if is_mapping else {}
        epoch, batch = then.pop("epoch", None), then.pop("batch", None)
        if not (isinstance(epoch, int) and isinstance(batch, int) and min(epoch, batch) >= 0):
            expected, remedy = "what state_dict() gave", "loader.load_state_dict(saved['loader'])"
            raise BadConfig(where, "this is no state of a loader", got=state, expected=expected, remedy=remedy)
        now = self._identity()
        names = [name for name in now | then if now.get(name) != then.get(name)]
        if batch and names:
            problem = f"the state is from the middle of an epoch with another {' and '.join(names)}"
            got, identity = ({name: values.get(name) for name in names} for values in (then, now))
            expected = f"{identity}, or a state from the beginning of an epoch"
            remedy = "a loader like the one that was saved, or loader.set_epoch(n) to begin an epoch anew"
            raise BadConfig(where, problem, got=got, expected=expected, remedy=remedy)
        self._next = self._reached = _Position(epoch, batch)

    def _identity(self) -> dict[str, Any]:
        """Return what the batches of an epoch depend on, besides its number."""
        names = ["batch_size", "shuffle", "seed", "drop_last"]
        names += ["block_rows", "window"] if self.shuffle == "blocks" else []
        parts: dict[str, Any] = {"num_rows": self.total_rows} | {name: getattr(self, name) for name in names}
        if self._sums is not None:
            parts |= {"sampler": self._sampler, "weights": int(self._sums[-1]) if len(self._sums) else 0}
        if self._ranks.shards is not None:
            parts |= {"shards": list(self._ranks.shards)}
        return parts

    def __iter__(self) -> Iterator[Batch]:
        begun, self._next = self._next, _Position(self._next.epoch + 1)
        self._reached = begun
        return self._batches(begun)

    def arrays(self) -> dict[str, Any]:
        """Return the whole table as NumPy or CuPy arrays: numeric, codes, target, weight and the kept columns, by name.

        A regression's target is in its own units, of classes it is their index. NumPy's arrays are read only.
        Raises `BadConfig`: the table is streamed.
        Memory: shares; numbers stored as bfloat16, a target that went through steps, and all of a table on a GPU
            without RAPIDS, which comes as NumPy arrays, are copied.
        """
        whole, arrays = self.table.batch_of(self.table.words), {}
        if whole.target is not None and self.target_units is not None:
            whole.target = self.target_units(whole.target)
        parts = {name: getattr(whole, name) for name in ("numeric", "codes", "target", "weight")} | self.table.keep
        for name, values in parts.items():
            if values is None:
                continue
            backend = select_for(values)
            if backend.name == "gpu":
                arrays[name] = backend.xp.from_dlpack(values.detach())
            else:
                arrays[name] = values.detach().cpu().numpy()
                arrays[name].flags.writeable = False
        return arrays

    def as_torch(self, convert: Callable[[Batch], Any] | None = None) -> TorchBatches:
        """Return the batches for torch's `DataLoader(..., batch_size=None)`, each passed through `convert`.

        That is a function of a `Batch`, such as `lambda batch: (batch.numeric, batch.target)`.
        """
        return TorchBatches(self, convert)

    def order(self, epoch: int) -> Rows:
        """Return the rows in an epoch's order: a slice, or int64 on the table's device. Memory: 8 bytes per row."""
        return self._order(epoch)(0, self.num_rows, self.table.device)

    def row_numbers(self, epoch: int, batch: int) -> Tensor:
        """Return the table's rows in a batch of an epoch, both counted from 0; int64, padding left out."""
        step = self._ranks.step(batch)
        rows = self._order(epoch)(step.start, step.stop, self.device)
        return torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows

    def _batches(self, begun: _Position) -> Generator[Batch]:
        with closing(self._iterate(begun.epoch, begun.batch)) as batches:
            for number, batch in enumerate(batches, start=begun.batch + 1):
                self._reached = _Position(begun.epoch, number)
                yield batch
        self._reached = _Position(begun.epoch + 1)

    def _iterate(self, epoch: int, first: int) -> Generator[Batch]:
        """Yield the batches of an epoch from number `first` on."""
        ranks, unweighted = self._ranks, self._sampler == "weights"
        if self.residency == "device":  # each batch is copied when it is needed, small ones several at once
            table, words, many = self.table, None, max(1, _TOGETHER // max(ranks.largest * self._like.row_bytes, 1))
            if self.reuse_buffers:
                words, many = table.empty_like(ranks.largest).words, 1
            source = _open_table(table, self._order(epoch))
            for steps in group_steps(ranks, first, many):
                slab = table.empty_like(sum(step.size for step in steps), words=words)
                fill(slab, steps, source)
                yield from split_batches(slab, steps, pads=ranks.pads, unweighted=unweighted)
            return

        def opened() -> Generator[RowSource]:
            if isinstance(self._table, FeatureTable):
                yield _open_table(self._table, self._order(epoch))
            else:
                order, position = self._windowed(epoch), ranks.step(first).start
                yield from open_windows(self._table, order, position, self._like.dictionaries)

        reuse = self.reuse_buffers
        yield from iterate_slabs(self._like, opened, ranks, first, self.device, reuse=reuse, unweighted=unweighted)

    def _order(self, epoch: int) -> Order:
        if self._sums is not None:
            return Drawn(self._sums, seed=self.seed, epoch=epoch).at
        if self.shuffle == "rows":
            permutation = Permutation(self.num_rows, seed=self.seed, epoch=epoch)
            return lambda start, stop, device: permutation.order(device, start, stop)
        return self._windowed(epoch).at

    def _windowed(self, epoch: int) -> InOrder:
        if self.shuffle == "blocks":
            return ByBlocks(self.num_rows, self.block_rows, self.window, seed=self.seed, epoch=epoch)
        rows = [self.num_rows] if isinstance(self._table, FeatureTable) else self._table.rows
        return InOrder(list(accumulate(rows, initial=0)))  # of a streamed table each part is read once

    def _choose_residency(self, residency: str) -> str:
        kinds = ["stream"]
        if isinstance(self._table, FeatureTable):
            kinds = ["device", "host"] if self.device == self._table.device else ["host"]
        if residency == "auto":
            return kinds[0]
        if residency not in kinds:
            problem = f"this table cannot be used as residency={residency!r}"
            got = f"{type(self._table).__name__} on {self._like.device}, batches wanted on {self.device}"
            raise BadConfig("loader", problem, got=got, expected=" or ".join(kinds), remedy="residency='auto'")
        return residency

    def _check_order(self, sampler: object) -> None:
        got = f"shuffle={self.shuffle!r}"
        if sampler is not None and self.shuffle:
            problem, remedy = "a sampler and a shuffle: a sampler draws rows at random already", "shuffle=False"
            raise BadConfig("loader", problem, got=got, expected="one of them", remedy=remedy)
        if isinstance(self._table, FeatureTable):
            return
        if sampler is not None or self.shuffle == "rows":
            problem = "rows of a streamed table cannot be fetched one by one"
            expected = "shuffle='blocks' or False, or a table that fits in memory"
            got = got if sampler is None else "a sampler"
            raise BadConfig("loader", problem, got=got, expected=expected, remedy="shuffle='blocks'")
        warn_of_rereads(self._table, self._windowed(0))


def _open_table(table: FeatureTable, order: Order) -> RowSource:
    """Return the source of a whole table's rows. Memory: 8 bytes per position ahead, and per column of lists."""
    most = _HOST_POSITIONS if table.device.type == "cpu" else _DEVICE_POSITIONS
    begin, end, ends = 0, 0, dict[str, Tensor]()
    ahead: Rows = slice(0)

    def copy_rows(start: int, stop: int, out: FeatureTable, at: int) -> None:
        nonlocal begin, end, ahead, ends
        if start < begin or stop > end:
            begin, end = start, max(stop, min(start + most, len(table)))
            ahead = order(begin, end, table.device)
            # The offsets of their lists, on the host: the device is asked once, for many batches.
            ends = {name: F.pad(lists.lengths[ahead].cumsum(0), (1, 0)).cpu() for name, lists in table.lists.items()}
        first, last = start - begin, stop - begin
        rows = slice(start, stop) if isinstance(ahead, slice) else ahead[first:last]
        gather(table, rows, out, at, {name: int(offsets[last] - offsets[first]) for name, offsets in ends.items()})

    return copy_rows


class TorchBatches(IterableDataset[Any]):
    """IterableDataset of a loader's batches; made by `Loader.as_torch`."""

    def __init__(self, loader: Loader, convert: Callable[[Batch], Any] | None = None) -> None:
        self.loader, self.convert = loader, convert
        self.set_epoch = loader.set_epoch
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            problem, remedy = "a worker process asks for batches", "DataLoader(..., batch_size=None, num_workers=0)"
            expected = "num_workers=0: batches are made in this process, which is faster than to send them"
            raise BadConfig("Loader.as_torch", problem, expected=expected, remedy=remedy)
        return iter(self.loader) if self.convert is None else map(self.convert, self.loader)


def choose_residency(requested: str, table_bytes: int, device: torch.device, free_bytes: dict[str, int | None]) -> str:
    """Return the residency asked for, or the first with enough free bytes (by kind of device; None for unknown)."""
    check_choice("loader", RESIDENCIES, residency=requested)
    if requested != "auto":
        return requested
    for residency, kind in (("device", device.type), ("host", "cpu")):
        free = free_bytes.get(kind)
        if free is None or table_bytes <= free:
            return residency
    return "stream"


def get_free_bytes(device: torch.device) -> int | None:
    """Return the bytes a table may occupy there, besides what training needs; None where that is unknown."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # else the table of an earlier loader would take it
        free, total = torch.cuda.mem_get_info(device)
        return max(free - max(1 << 30, total // 10), 0)
    on_host = free_host_memory()
    return None if on_host is None else int(on_host * _SHARE)


def gather(
    table: FeatureTable, rows: Rows, out: FeatureTable, at: int = 0, num_values: Mapping[str, int] | None = None
) -> None:
    """Copy rows into `out`, from its row `at` on; `num_values`, of each list column, spares asking the device."""
    for source, target in zip(table.stored, out.stored, strict=True):
        if isinstance(rows, slice):
            target[at : at + rows.stop - rows.start].copy_(source[rows])
        else:
            torch.index_select(source, 0, rows, out=target[at : at + len(rows)])
    if table.list_fields:
        numbers = torch.arange(rows.start, rows.stop, device=table.device) if isinstance(rows, slice) else rows
        counts = num_values or {}
        out.written_lists[at] = {name: lists.take(numbers, counts.get(name)) for name, lists in table.lists.items()}


def group_steps(ranks: Sharding, first: int, many: int) -> Iterator[list[Step]]:
    """Yield the steps of an epoch from number `first` on, so many at a time."""
    for start in range(first, len(ranks), many):
        yield [ranks.step(number) for number in range(start, min(start + many, len(ranks)))]


def fill(slab: FeatureTable, steps: Sequence[Step], source: RowSource) -> None:
    """Copy the rows of consecutive steps into a table of just as many; padding becomes zeros, which are missing ids."""
    at, waiting = 0, 0  # rows that are copied; steps before this one that follow each other and are copied at once
    alone = len(slab.list_fields) > 0  # a step's lists stay together: their end is known
    slab.written_lists = {}
    for number, step in enumerate(steps):
        last = number + 1 == len(steps)
        if alone or last or step.size != step.stop - step.start or steps[number + 1].start != step.stop:
            source(steps[waiting].start, step.stop, slab, at)
            at += step.stop - steps[waiting].start
            padded = step.size - (step.stop - step.start)
            if padded:
                for values in slab.stored:
                    values[at : at + padded].zero_()
            at, waiting = at + padded, number + 1


def split_batches(slab: FeatureTable, steps: Sequence[Step], *, pads: bool, unweighted: bool) -> Iterator[Batch]:
    """Yield the batches in a table of the rows of these steps; `unweighted` leaves out its weights. Memory: shares.

    With `pads` all batches have weights, as some have padding.
    """
    sizes, whole = [step.size for step in steps], slab.batch_of(slab.words)
    none = [None] * len(steps)
    numeric, codes = whole.numeric.split_with_sizes(sizes), whole.codes.split_with_sizes(sizes)
    targets = none if whole.target is None else whole.target.split_with_sizes(sizes)
    weights = none if whole.weight is None or unweighted else whole.weight.split_with_sizes(sizes)
    keep_parts = {name: values.split_with_sizes(sizes) for name, values in slab.keep.items()}
    for number, (step, end) in enumerate(zip(steps, accumulate(sizes), strict=True)):
        keep = {name: parts[number] for name, parts in keep_parts.items()}
        batch = Batch(numeric[number], codes[number], targets[number], weights[number], keep)
        for name, lists in slab.lists_between(end - step.size, end).items():
            batch.lists[name] = lists.followed_by_empty(step.size - len(lists))
        if pads and batch.weight is None:
            batch.weight = torch.ones(step.size, device=slab.device)
            batch.weight[step.stop - step.start :] = 0
        yield batch


def prefetch(items: Generator[Item], depth: int = 1) -> Generator[Item]:
    """Yield the items of a generator, computed in a thread: `depth` wait, one is in progress, and one is in use.

    Whoever may stop before the end closes it (`contextlib.closing`): the generator is then closed too, in its thread.
    An error of the generator is raised at the place of its item.
    """
    thread = ThreadPoolExecutor(1, "gpupipe-prefetch")
    ahead: deque[Future[Item | None]] = deque()
    try:
        while True:
            while len(ahead) < depth + 2:
                ahead.append(thread.submit(next, items, None))
            item = ahead.popleft().result()
            if item is None:
                return
            yield item
            del item  # its memory is the thread's again
    finally:
        for future in ahead:
            future.cancel()
        ahead.clear()
        try:
            closed = thread.submit(items.close)
        except (RuntimeError, TypeError):  # the interpreter ends and has waited for the thread, or cleared its module
            items.close()
        else:
            if not wait([closed], _PATIENCE).done:
                _log.warning("a prefetch thread is still at work %d s after the stop request", _PATIENCE)
            elif error := closed.exception():
                _log.warning("a prefetch thread failed after the stop request: %r", error)
            thread.shutdown(wait=closed.done())


class _Slab(NamedTuple):
    """Slab of the rows of some steps; on a GPU with an event after the copy and one to record after the last use."""

    rows: FeatureTable
    steps: list[Step]
    arrived: torch.cuda.Event | None = None
    used: torch.cuda.Event | None = None


def iterate_slabs(
    like: FeatureTable,
    open_source: Callable[[], Generator[RowSource]],
    ranks: Sharding,
    first: int,
    device: torch.device,
    *,
    reuse: bool,
    unweighted: bool,
) -> Generator[Batch]:
    """Yield the batches on `device` from number `first` on, copied there in slabs of new memory, or three in turn.

    `like` has the columns, and is on the device of the one source that `open_source` yields. Memory: three slabs of
    `SLAB_BYTES` or a batch on the device; for a GPU two pinned ones on the host.
    """
    many = max(1, -(-SLAB_BYTES // max(ranks.largest * like.row_bytes, 1)))
    maker = _Slabs(like, ranks.largest * min(many, len(ranks)), device, reuse=reuse)

    def slabs() -> Generator[_Slab]:
        with closing(open_source()) as opened:
            source = next(opened)
            for steps in group_steps(ranks, first, many):
                yield maker.make(steps, source)

    with closing(prefetch(slabs(), _WAITING)) as ready:
        for slab in ready:
            if slab.arrived is not None:  # the current stream waits for it, and the allocator hears who uses it
                stream = torch.cuda.current_stream(slab.rows.device)
                stream.wait_event(slab.arrived)
                for tensor in slab.rows.tensors:
                    tensor.record_stream(stream)
            yield from split_batches(slab.rows, slab.steps, pads=ranks.pads, unweighted=unweighted)
            if slab.used is not None:
                slab.used.record()


class _Slabs:
    """Maker of slabs of at most `num_rows` rows."""

    def __init__(self, like: FeatureTable, num_rows: int, device: torch.device, *, reuse: bool) -> None:
        self._like, self._device, self._num_slabs = like, device, 0
        self._stream: torch.cuda.Stream | None = None
        self._used: list[torch.cuda.Event | None] = [None] * _RING
        self._pinned = list[FeatureTable]()
        self._ring = [like.empty_like(num_rows, device).words for _ in range(_RING)] if reuse else []
        if device.type != "cuda":
            return
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # What the new memory was used for before may still be at work, on the stream it was asked for on.
        self._used = [torch.cuda.current_stream(device).record_event() for _ in self._ring]
        for words in self._ring:
            words.record_stream(self._stream)
        if like.device.type == "cpu":
            self._pinned = [like.empty_like(num_rows, pinned=True) for _ in range(2)]
            self._copy_events = [torch.cuda.Event() for _ in self._pinned]  # type: ignore[no-untyped-call]

    def make(self, steps: list[Step], source: RowSource) -> _Slab:
        """Return the slab of these steps, whose copy has begun."""
        turn, half, num_rows = self._num_slabs % _RING, self._num_slabs % 2, sum(step.size for step in steps)
        self._num_slabs += 1
        words, used = (self._ring[turn], self._used[turn]) if self._ring else (None, None)
        if self._stream is None:
            slab = self._like.empty_like(num_rows, self._device, words=words)
            fill(slab, steps, source)
            return _Slab(slab, steps)
        if self._pinned:
            self._copy_events[half].synchronize()  # the thread alone waits, and for its own memory
            staged = self._pinned[half].first(num_rows)
            fill(staged, steps, source)
        with torch.cuda.stream(self._stream):
            if used is not None:
                self._stream.wait_event(used)
            slab = self._like.empty_like(num_rows, self._device, words=words)
            if self._pinned:
                slab.copy_rows(staged)
            else:
                fill(slab, steps, source)
            arrived = self._stream.record_event()
        if self._pinned:
            self._copy_events[half] = arrived
        return _Slab(slab, steps, arrived, used)


class Parts(Protocol):
    """Table in parts, each of which can be read any number of times, with the same rows."""

    schema: Schema
    dtype: str
    backend: Backend
    rows: Sequence[int]  # of each part
    names: Sequence[str]  # of each part, for messages

    def read(self, parts: Sequence[int]) -> Generator[Iterable[Columns]]:
        """Yield the columns of these parts, in order, of each in one or more pieces."""


def open_windows(parts: Parts, order: InOrder, position: int, dictionaries: Dictionaries) -> Generator[RowSource]:
    """Yield a source of the rows of an epoch from `position` on, which a thread reads. Memory: two windows, a part."""
    with closing(prefetch(_read_windows(parts, order, order.window_of(position), dictionaries))) as windows:
        source = _Windows(order, windows)
        try:
            yield source.copy_rows
        finally:
            source.leave()


def warn_of_rereads(parts: Parts, order: InOrder) -> None:
    """Warn where an epoch reads parts over and over, for a few of their rows each time."""
    starts = list(accumulate(parts.rows, initial=0))
    num_windows = order.window_of(starts[-1] - 1) + 1 if starts[-1] else 0
    needed = [number for window in range(num_windows) for number in _find_needed_parts(starts, order.ranges(window))]
    rows = sum(parts.rows[number] for number in needed)
    if rows > 2 * starts[-1]:
        message = "loader: an epoch reads each row %.1f times, for its parts have up to %s rows: %s"
        _log.warning(message, rows / starts[-1], f"{max(parts.rows):,}", "larger block_rows read less")


class _Window(NamedTuple):
    """Window of rows in memory; on a GPU with an event after it was written, as rows are read on another stream."""

    number: int
    table: FeatureTable
    event: torch.cuda.Event | None


class _Windows:
    """Row source over the windows of an epoch."""

    def __init__(self, order: InOrder, windows: Iterator[_Window]) -> None:
        self._order, self._windows = order, windows
        self._window: _Window | None = None
        self._stream: torch.cuda.Stream | None = None

    def copy_rows(self, start: int, stop: int, out: FeatureTable, at: int) -> None:
        """Copy the rows at these positions into `out` from its row `at` on; positions only ascend."""
        while start < stop:
            while self._window is None or self._order.starts_at(self._window.number + 1) <= start:
                self.leave()  # its memory is needed for one after the next
                self._window = next(self._windows)
                if self._window.event is not None:
                    self._stream = torch.cuda.current_stream(self._window.table.device)
                    self._stream.wait_event(self._window.event)
            number, table = self._window.number, self._window.table
            end = min(stop, self._order.starts_at(number + 1))
            gather(table, self._order.inside(number, start, end, table.device), out, at)
            at, start = at + end - start, end

    def leave(self) -> None:
        """Release the window, of which copies may still wait on their stream."""
        if self._window is not None and self._stream is not None:
            table = self._window.table
            for tensor in table.tensors:
                tensor.record_stream(self._stream)
            if table.list_fields:  # they are in the backend's own memory, which goes back in the order of its stream
                torch.cuda.default_stream(table.device).wait_stream(self._stream)
        self._window = None


def _read_windows(parts: Parts, order: InOrder, number: int, dictionaries: Dictionaries) -> Generator[_Window]:
    starts = list(accumulate(parts.rows, initial=0))
    while order.starts_at(number) < starts[-1]:
        num_rows = order.starts_at(number + 1) - order.starts_at(number)
        table = FeatureTable.allocate(parts.schema, num_rows, parts.backend.device, dtype=parts.dtype)
        table.dictionaries = dictionaries
        _read_into(table, parts, order.ranges(number), starts)
        table.join_lists()  # here, where they were written: what they are copied from is freed at once
        on_gpu = table.device.type == "cuda"  # frames, arrays and this thread's torch work on the default stream
        window = _Window(number, table, torch.cuda.default_stream(table.device).record_event() if on_gpu else None)
        del table
        yield window
        del window
        number += 1


def _read_into(table: FeatureTable, parts: Parts, ranges: Ranges, starts: list[int]) -> None:
    needed = _find_needed_parts(starts, ranges)
    with closing(parts.read(needed)) as batches:
        for number, pieces in zip(needed, batches, strict=True):
            row = starts[number]
            for columns in pieces:
                num_rows = len(next(iter(columns.values())))
                try:
                    _write(table, columns, row, num_rows, ranges, parts.backend)
                except GpupipeError as error:
                    error.add_note(f"in {parts.names[number]}")
                    raise
                row += num_rows
            if row != starts[number + 1]:
                where, problem = parts.names[number], "it has another number of rows than when the loader was made"
                got, expected = row - starts[number], f"{parts.rows[number]} rows"
                remedy = "files that do not change during training, or a new loader"
                raise BadData(where, problem, got=got, expected=expected, remedy=remedy)


def _write(table: FeatureTable, columns: Columns, first: int, num_rows: int, ranges: Ranges, backend: Backend) -> None:
    """Write the rows of the ranges, each where its range belongs in the table."""
    at = 0
    for start, stop in ranges:
        begin, end = max(start, first), min(stop, first + num_rows)
        if begin < end:
            cut = {name: column.take(slice(begin - first, end - first)) for name, column in columns.items()}
            table.write(at + begin - start, cut, backend)
        at += stop - start


def _find_needed_parts(starts: list[int], ranges: Ranges) -> list[int]:
    """Return the parts that hold a row of the ranges, ascending: more ranges begin before their end than end so far."""
    begins, ends = np.array(ranges).T
    begun, ended = np.searchsorted(begins, starts[1:]), np.searchsorted(ends, starts[:-1], side="right")
    return [int(part) for part in np.flatnonzero(begun > ended)]
