"""Loader: batches of a table, in order or shuffled, wherever the table is stored, and the position of an iteration."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate
from typing import Any, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from gpupipe.backend import free_host_memory, select
from gpupipe.backend.dictionaries import Dictionary
from gpupipe.config import BLOCK_ROWS, WINDOW
from gpupipe.errors import BadConfig
from gpupipe.schema import Schema
from gpupipe.support.validation import check_bool, check_choice, check_integer, check_seed, to_python
from gpupipe.tensors.batch import Batch
from gpupipe.tensors.feature_table import (
    FeatureTable,
    RowSource,
    fill,
    gather,
    group_steps,
    require_device,
    split_batches,
)
from gpupipe.tensors.order import (
    ByBlocks,
    Drawn,
    InOrder,
    Order,
    Permutation,
    Rows,
    Sharding,
    gather_row_counts,
    get_rank,
    sum_weights,
)
from gpupipe.tensors.streaming import Parts, iterate_slabs, open_windows, warn_of_rereads

# Positions whose rows are looked up at a time: between copies of rows each call would find the cache emptied.
_HOST_POSITIONS, _DEVICE_POSITIONS = 1 << 20, 1 << 24
_TOGETHER = 256 << 10  # bytes of small batches that one copy makes
_SHARE = 0.8  # of the host's free memory that a table may take

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

    batch_size: int
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


class Loader:
    """Loader of `Batch`es over a table, all on one device.

    Changing a batch in place does not change the table. The order is the same wherever the table is stored.

    Args:
        table: a feature table, or parts that are read while batches are made.
        batch_size: rows per batch; of all ranks together.
        shuffle: `"rows"` (or True) for another permutation of all rows each epoch; `"blocks"` for another permutation
            of blocks of `block_rows` consecutive rows, and of the rows among `window` blocks at a time; False for the
            table's order. It depends on `seed`, the epoch and the number of rows alone.
        drop_last: leave out a last batch that is not full.
        reuse_buffers: each batch overwrites the one before (kept columns do not): right where a batch is used up before
            the next one is asked for. Without it every batch is new memory.
        target_units: brings stored targets, or outputs for them, into the target's own units, for metrics.
        rank: this process's number among the `world_size` that train together; by default torch.distributed's, or 0.
        sharded: True where each rank's table holds rows of its own, or the number of rows of each; False where all
            ranks have the same table and take a part of each batch. Ranks that run out of rows get padding of weight 0.
        sampler: rows drawn with replacement instead of each once: "balanced" for classes of the target that come
            equally often, "weights" for rows in proportion to their weight (which batches then no longer have), or
            a tensor of a weight for each row.
        device: the device of the batches; by default that of the table.
        residency: "device" for a table there, "host" for one whose batches a thread copies there in slabs, "stream"
            for parts; "auto" for what the table is.

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
        batch_size: int = 4096,
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
        check_integer("loader", "[1, inf)", batch_size=batch_size, block_rows=block_rows, window=window)
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
        batch_size, block_rows, window, seed = map(to_python, (batch_size, block_rows, window, seed))
        self.batch_size, self.block_rows, self.window, self.seed = batch_size, block_rows, window, seed
        self.shuffle = "rows" if shuffle is True else shuffle
        self.drop_last, self.reuse_buffers, self.target_units = drop_last, reuse_buffers, target_units
        self.rank, self.world_size = get_rank(rank, world_size)
        shards = None  # all ranks have the same table
        if sharded is not False:
            shards = gather_row_counts(sharded, self.num_rows, self.rank, self.world_size)
        self._ranks = Sharding(self.num_rows, batch_size, drop_last, self.rank, self.world_size, shards)
        self._next = self._reached = _Position()
        self._check_order(sampler)
        self._sampler = sampler
        self._sums: Tensor | None = None
        if isinstance(sampler, Tensor):
            self._sampler, sampler = "given", sampler.to(self.table.device)
        if sampler is not None:
            whole = self.table.batch_of(self.table.words)
            self._sums = sum_weights(sampler, len(whole), whole.target, whole.weight)

    def __len__(self) -> int:
        """Return the number of batches per epoch, wherever the next iteration begins."""
        return len(self._ranks)

    @property
    def table(self) -> FeatureTable:
        """The whole table.

        Raises:
            BadConfig: it is streamed.
        """
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
        """Set the epoch of the next iteration, from 0; each iteration advances it by one.

        The epoch that `load_state_dict` has just restored continues.

        Raises:
            BadConfig: no number of an epoch.
        """
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
        table may be others than those of the state.

        Raises:
            BadConfig: the state is from the middle of an epoch of another order, or is invalid.
        """
        where, then = "Loader.load_state_dict", dict(state) if isinstance(state, Mapping) else {}
        epoch, batch = then.pop("epoch", None), then.pop("batch", None)
        if not (isinstance(epoch, int) and isinstance(batch, int) and min(epoch, batch) >= 0):
            expected, remedy = "what state_dict() gave", "loader.load_state_dict(saved['loader'])"
            raise BadConfig(where, "this is no state of a loader", got=state, expected=expected, remedy=remedy)
        now = self._identity()
        names = [name for name in now | then if now.get(name) != then.get(name)]
        if batch and names:
            problem = f"the state is from the middle of an epoch with another {' and '.join(names)}"
            got, ours = ({name: values.get(name) for name in names} for values in (then, now))
            expected = f"{ours}, or a state from the beginning of an epoch"
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

        Raises:
            BadConfig: the table is streamed.

        Memory: shares; numbers stored as bfloat16, and a target that went through steps, are copied.
        """
        whole, arrays = self.table.batch_of(self.table.words), {}
        if whole.target is not None and self.target_units is not None:
            whole.target = self.target_units(whole.target)
        parts = {name: getattr(whole, name) for name in ("numeric", "codes", "target", "weight")} | self.table.keep
        for name, values in parts.items():
            if values is not None and values.device.type == "cuda":
                arrays[name] = select("gpu").xp.from_dlpack(values.detach())
            elif values is not None:
                arrays[name] = values.detach().numpy()
                arrays[name].flags.writeable = False
        return arrays

    def as_torch(self, convert: Callable[[Batch], Any] | None = None) -> TorchBatches:
        """Return the batches, each passed through `convert`, as an IterableDataset for torch's DataLoader."""
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
            source = _Resident(table, self._order(epoch)).copy_rows
            for steps in group_steps(ranks, first, many):
                slab = table.empty_like(sum(step.size for step in steps), words=words)
                fill(slab, steps, source)
                yield from split_batches(slab, steps, pads=ranks.pads, unweighted=unweighted)
            return

        def opened() -> Generator[RowSource]:
            if isinstance(self._table, FeatureTable):
                yield _Resident(self._table, self._order(epoch)).copy_rows
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

    def _choose_residency(self, asked: str) -> str:
        kinds = ["stream"]
        if isinstance(self._table, FeatureTable):
            kinds = ["device", "host"] if self.device == self._table.device else ["host"]
        if asked == "auto":
            return kinds[0]
        if asked not in kinds:
            problem = f"this table cannot be used as residency={asked!r}"
            got = f"{type(self._table).__name__} on {self._like.device}, batches wanted on {self.device}"
            raise BadConfig("loader", problem, got=got, expected=" or ".join(kinds), remedy="residency='auto'")
        return asked

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


class _Resident:
    """Row source over a whole table. Memory: 8 bytes per position that is looked up ahead, and per column of lists."""

    def __init__(self, table: FeatureTable, order: Order) -> None:
        self._table, self._order = table, order
        self._ahead = _HOST_POSITIONS if table.device.type == "cpu" else _DEVICE_POSITIONS
        self._start = self._stop = 0
        self._rows: Rows = slice(0)
        self._ends: dict[str, Tensor] = {}

    def copy_rows(self, start: int, stop: int, out: FeatureTable, at: int) -> None:
        """Copy the rows at these positions into `out` from its row `at` on."""
        if start < self._start or stop > self._stop:
            self._start, self._stop = start, max(stop, min(start + self._ahead, len(self._table)))
            self._rows = rows = self._order(self._start, self._stop, self._table.device)
            # The offsets of their lists, on the host: the device is asked once, for many batches.
            self._ends = {
                name: F.pad(lists.lengths[rows].cumsum(0), (1, 0)).cpu() for name, lists in self._table.lists.items()
            }
        first, last = start - self._start, stop - self._start
        rows = slice(start, stop) if isinstance(self._rows, slice) else self._rows[first:last]
        num_values = {name: int(ends[last] - ends[first]) for name, ends in self._ends.items()}
        gather(self._table, rows, out, at, num_values)


class TorchBatches(IterableDataset[Any]):
    """IterableDataset of a loader's batches; made by `Loader.as_torch`."""

    def __init__(self, loader: Loader, convert: Callable[[Batch], Any] | None = None) -> None:
        self.loader, self.convert = loader, convert

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            problem, remedy = "a worker process asks for batches", "DataLoader(..., batch_size=None, num_workers=0)"
            expected = "num_workers=0: batches are made in this process, which is faster than to send them"
            raise BadConfig("Loader.as_torch", problem, expected=expected, remedy=remedy)
        return iter(self.loader) if self.convert is None else map(self.convert, self.loader)

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(state)


def choose_residency(asked: str, table_bytes: int, device: torch.device, free_bytes: dict[str, int | None]) -> str:
    """Return the residency of a table: as given, or the first of device, host and stream with enough free bytes.

    `free_bytes` has them by kind of device; None where that is not known and taken for enough.
    """
    check_choice("loader", RESIDENCIES, residency=asked)
    if asked != "auto":
        return asked
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
