"""Loader: batches of a table, in order or shuffled, wherever the table is stored, and the position of an iteration."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from gpupipe.backend import select
from gpupipe.backend.device.host_memory import free_host_memory
from gpupipe.backend.dictionaries import Dictionary
from gpupipe.config import BLOCK_ROWS, WINDOW
from gpupipe.errors import BadConfig
from gpupipe.schema import Schema
from gpupipe.support.validation import check_bool, check_choice, check_integer, check_seed
from gpupipe.tensors.batch import Batch
from gpupipe.tensors.feature_table import FeatureTable, RowSource
from gpupipe.tensors.order import (
    ByBlocks,
    ByRows,
    InOrder,
    Order,
    Rows,
    Sharding,
    Windowed,
    gather_row_counts,
    get_rank,
)
from gpupipe.tensors.sampling import Drawn, running_sum
from gpupipe.tensors.stream_table import Parts, open_windows, warn_of_rereads
from gpupipe.tensors.tables import Resident, iterate_device_table, iterate_slabs


@dataclass(frozen=True, slots=True)
class Position:
    """Position of the next batch.

    Args:
        epoch: from 0.
        batch: its number in the epoch, from 0.
    """

    epoch: int = 0
    batch: int = 0


def to_state(position: Position, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the position, and what the order of the epoch depends on, as plain numbers and strings.

    Example:
        >>> to_state(Position(1, 5), {"seed": 7})
        {'epoch': 1, 'batch': 5, 'seed': 7}
    """
    return {"epoch": position.epoch, "batch": position.batch, **identity}


def restore(state: Mapping[str, Any], identity: Mapping[str, Any]) -> Position:
    """Return the position in a state; in the middle of an epoch all else must be unchanged.

    Raises:
        BadConfig: it is not, or the state is invalid.

    Example:
        >>> restore({"epoch": 1, "batch": 0, "seed": 7}, {"seed": 8})
        Position(epoch=1, batch=0)
    """
    known = isinstance(state, Mapping)
    epoch, batch = (state.get("epoch"), state.get("batch")) if known else (None, None)
    if not (isinstance(epoch, int) and isinstance(batch, int) and min(epoch, batch) >= 0):
        raise BadConfig(
            "Loader.load_state_dict",
            "this is no state of a loader",
            got=dict(state) if known else state,
            expected="what state_dict() gave",
            remedy="loader.load_state_dict(saved['loader'])",
        )
    then = {name: value for name, value in state.items() if name not in ("epoch", "batch")}
    if batch and then != identity:
        names = [name for name in {**identity, **then} if identity.get(name) != then.get(name)]
        raise BadConfig(
            "Loader.load_state_dict",
            f"the state is from the middle of an epoch with another {' and '.join(names)}",
            got={name: then.get(name) for name in names},
            expected=f"{ {name: identity.get(name) for name in names} }, or a state from the beginning of an epoch",
            remedy="a loader like the one that was saved, or loader.set_epoch(n) to begin an epoch anew",
        )
    return Position(epoch, batch)


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
            of blocks of consecutive rows, and of the rows among `window` blocks at a time; False for the table's order.
        block_rows: rows of a block.
        window: blocks whose rows are mixed.
        seed: of the permutation; the order depends on it, the epoch and the number of rows alone.
        drop_last: leave out a last batch that is not full.
        reuse_buffers: each batch overwrites the one before (kept columns do not): right where a batch is used up before
            the next one is asked for. Without it every batch is new memory.
        target_units: brings stored targets, or outputs for them, into the target's own units, for metrics; None where
            they are in those.
        rank: this process's number among those that train together; by default torch.distributed's, or 0.
        world_size: how many there are; by default torch.distributed's, or 1.
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

    Memory: a batch is a copy of its rows, `row_bytes` each, and its tensors are views of that copy. A table on the
        device: some bytes per row of the batches at hand; a sampler 8 bytes per row of the table. On the host: three
        slabs of 8 MB or a batch. Parts: two windows (`block_rows * window` rows) besides. Lists
        are copied too, their elements one list after the other.

    Example:
        >>> from gpupipe.schema import Field, Role
        >>> schema = Schema([Field("x", "float32", role=Role.FEATURE)])
        >>> loader = Loader(FeatureTable.allocate(schema, 10, "cpu"), batch_size=4)
        >>> [len(batch) for batch in loader]
        [4, 4, 2]
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
        self._table = table
        self._like = (
            table
            if isinstance(table, FeatureTable)
            else FeatureTable.allocate(table.schema, 0, table.backend.device, dtype=table.dtype)
        )
        self.device = self._like.device if device is None else torch.empty(0, device=device).device  # cuda is cuda:0
        self.residency = self._residency(residency)
        self.batch_size = batch_size
        self.shuffle = "rows" if shuffle is True else shuffle
        self.block_rows = block_rows
        self.window = window
        self.seed = seed
        self.drop_last = drop_last
        self.reuse_buffers = reuse_buffers
        self.target_units = target_units
        self.rank, self.world_size = get_rank(rank, world_size)
        shards = gather_row_counts(sharded, self.num_rows, self.rank, self.world_size)
        self._ranks = Sharding(self.num_rows, batch_size, drop_last, self.rank, self.world_size, shards)
        self._next = self._reached = Position()
        self._check_order(sampler)
        self._sampler = "given" if isinstance(sampler, Tensor) else sampler
        self._sums = None if sampler is None else running_sum(self.table, sampler)

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
        raise BadConfig(
            "loader",
            "the whole table is asked for, and it is streamed",
            expected="a table that fits in memory",
            remedy="residency='host' or 'device'",
        )

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
        return self._ranks.total_rows

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
            self._next = Position(epoch)
        self._reached = self._next

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the iteration that was advanced last, as plain numbers and strings (JSON).

        Inside the loop the batch that was given last counts as seen; after its last batch comes the next epoch.
        """
        return to_state(self._reached, self._identity())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state: the next iteration gives the batches still to come, in the same order, at no cost.

        `len` stays that of a whole epoch. At the beginning of an epoch, the number of ranks, the batch size and the
        table may be others than those of the state.

        Raises:
            BadConfig: the state is from the middle of an epoch of another order, or is invalid.
        """
        self._next = self._reached = restore(state, self._identity())

    def _identity(self) -> dict[str, Any]:
        """Return what the batches of an epoch depend on, besides its number."""
        parts: dict[str, Any] = {
            "num_rows": self._ranks.total_rows,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "drop_last": self.drop_last,
        }
        if self.shuffle == "blocks":
            parts |= {"block_rows": self.block_rows, "window": self.window}
        if self._sums is not None:
            parts |= {"sampler": self._sampler, "weights": int(self._sums[-1]) if len(self._sums) else 0}
        if self._ranks.shards is not None:
            parts |= {"shards": list(self._ranks.shards)}
        return parts

    def __iter__(self) -> Iterator[Batch]:
        begun, self._next = self._next, Position(self._next.epoch + 1)
        self._reached = begun
        return self._batches(begun)

    def arrays(self) -> dict[str, Any]:
        """Return the whole table as NumPy or CuPy arrays: numeric, codes, target, weight and the kept columns, by name.

        A regression's target is in its own units, of classes it is their index.

        Raises:
            BadConfig: the table is streamed.

        Memory: shares (numbers stored as bfloat16, and a target that went through steps, are copied); NumPy's arrays
            are read only.

        Example:
            >>> from gpupipe.schema import Field, Role
            >>> table = FeatureTable.allocate(Schema([Field("x", "float32", role=Role.FEATURE)]), 3, "cpu")
            >>> {name: values.shape for name, values in Loader(table).arrays().items()}
            {'numeric': (3, 1), 'codes': (3, 0)}
        """
        return to_arrays(self.table, self.target_units)

    def as_torch(self, convert: Callable[[Batch], Any] | None = None) -> TorchBatches:
        """Return the batches as a `torch.utils.data.IterableDataset`, for code that expects a DataLoader.

        Args:
            convert: converts a batch, as `lambda batch: (batch.numeric, batch.target)`.

        Example:
            >>> from gpupipe.schema import Field, Role
            >>> from torch.utils.data import DataLoader
            >>> table = FeatureTable.allocate(Schema([Field("x", "float32", role=Role.FEATURE)]), 3, "cpu")
            >>> [len(batch) for batch in DataLoader(Loader(table, batch_size=2).as_torch(), batch_size=None)]
            [2, 1]
        """
        return TorchBatches(self, convert)

    def order(self, epoch: int) -> Rows:
        """Return the rows in an epoch's order: a slice of them, or int64 row numbers on the table's device.

        Memory: 8 bytes per row.

        Example:
            >>> from gpupipe.schema import Field, Role
            >>> table = FeatureTable.allocate(Schema([Field("x", "float32", role=Role.FEATURE)]), 3, "cpu")
            >>> sorted(Loader(table, shuffle="rows").order(0).tolist())
            [0, 1, 2]
        """
        return self._order(epoch).at(0, self.num_rows, self.table.device)

    def row_numbers(self, epoch: int, batch: int) -> Tensor:
        """Return the table's rows in a batch of an epoch, both counted from 0; int64, padding left out.

        Example:
            >>> from gpupipe.schema import Field, Role
            >>> table = FeatureTable.allocate(Schema([Field("x", "float32", role=Role.FEATURE)]), 5, "cpu")
            >>> Loader(table, batch_size=2).row_numbers(0, 1)
            tensor([2, 3])
        """
        step = self._ranks.step(batch)
        rows = self._order(epoch).at(step.start, step.stop, self.device)
        return torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows

    def _batches(self, begun: Position) -> Generator[Batch]:
        with closing(self._source(begun.epoch, begun.batch)) as batches:
            for number, batch in enumerate(batches, start=begun.batch + 1):
                self._reached = Position(begun.epoch, number)
                yield batch
        self._reached = Position(begun.epoch + 1)

    def _source(self, epoch: int, first: int) -> Generator[Batch]:
        ranks, reuse, unweighted = self._ranks, self.reuse_buffers, self._sampler == "weights"
        if self.residency == "device":
            return iterate_device_table(
                self.table, self._order(epoch), ranks, first, reuse=reuse, unweighted=unweighted
            )

        def opened() -> Generator[RowSource]:
            if isinstance(self._table, FeatureTable):
                yield Resident(self._table, self._order(epoch))
            else:
                order, position = self._windowed(epoch), ranks.step(first).start
                yield from open_windows(self._table, order, position, self._like.dictionaries)

        return iterate_slabs(self._like, opened, ranks, first, self.device, reuse=reuse, unweighted=unweighted)

    def _order(self, epoch: int) -> Order:
        if self._sums is not None:
            return Drawn(self._sums, seed=self.seed, epoch=epoch)
        if self.shuffle == "rows":
            return ByRows(self.num_rows, seed=self.seed, epoch=epoch)
        return self._windowed(epoch)

    def _windowed(self, epoch: int) -> Windowed:
        if self.shuffle == "blocks":
            return ByBlocks(self.num_rows, self.block_rows, self.window, seed=self.seed, epoch=epoch)
        rows = [self.num_rows] if isinstance(self._table, FeatureTable) else self._table.rows
        return InOrder(list(accumulate(rows, initial=0)))  # of a streamed table each part is read once

    def _residency(self, asked: str) -> str:
        kinds = {"stream"}
        if isinstance(self._table, FeatureTable):
            kinds = {"device", "host"} if self.device == self._table.device else {"host"}
        if asked == "auto":
            return min(kinds)
        if asked not in kinds:
            raise BadConfig(
                "loader",
                f"this table cannot be used as residency={asked!r}",
                got=f"{type(self._table).__name__} on {self._like.device}, batches wanted on {self.device}",
                expected=" or ".join(sorted(kinds)),
                remedy="residency='auto'",
            )
        return asked

    def _check_order(self, sampler: object) -> None:
        if sampler is not None and self.shuffle:
            raise BadConfig(
                "loader",
                "a sampler and a shuffle: a sampler draws rows at random already",
                got=f"shuffle={self.shuffle!r}",
                expected="one of them",
                remedy="shuffle=False",
            )
        if isinstance(self._table, FeatureTable):
            return
        if sampler is not None or self.shuffle == "rows":
            raise BadConfig(
                "loader",
                "rows of a streamed table cannot be fetched one by one",
                got="a sampler" if sampler is not None else f"shuffle={self.shuffle!r}",
                expected="shuffle='blocks' or False, or a table that fits in memory",
                remedy="shuffle='blocks'",
            )
        warn_of_rereads(self._table, self._windowed(0))


class TorchBatches(IterableDataset[Any]):
    """IterableDataset of a loader's batches; made by `Loader.as_torch`.

    Args:
        loader: gives the batches.
        convert: converts a batch.
    """

    def __init__(self, loader: Loader, convert: Callable[[Batch], Any] | None = None) -> None:
        self.loader, self.convert = loader, convert

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise BadConfig(
                "Loader.as_torch",
                "batches are asked for in a worker process",
                expected="num_workers=0: batches are made in this process, which is faster than to send them",
                remedy="DataLoader(loader.as_torch(), batch_size=None, num_workers=0)",
            )
        return iter(self.loader) if self.convert is None else map(self.convert, self.loader)

    def set_epoch(self, epoch: int) -> None:
        """See `Loader.set_epoch`."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See `Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Loader.load_state_dict`."""
        self.loader.load_state_dict(state)


def to_arrays(table: FeatureTable, units: Callable[[Tensor], Tensor] | None = None) -> dict[str, Any]:
    """Return the table as NumPy (on a GPU: CuPy) arrays: numeric, codes, target, weight, kept columns, by name.

    With `units`, what they make of the target.

    Memory: shares, but for numbers stored as bfloat16 and a target in other units; NumPy's are read only.
    """
    whole = table.batch_of(table.words)
    target = whole.target if whole.target is None or units is None else units(whole.target)
    parts = {"numeric": whole.numeric, "codes": whole.codes, "target": target, "weight": whole.weight}
    return {name: _array(values) for name, values in (parts | table.keep).items() if values is not None}


def _array(values: Tensor) -> Any:
    if values.device.type == "cuda":
        return select("gpu").xp.from_dlpack(values.detach())
    array = values.detach().numpy()
    array.flags.writeable = False
    return array


RESIDENCIES = ("device", "host", "stream")
_SHARE = 0.8  # of the host's free memory that a table may take


def choose_residency(asked: str, table_bytes: int, device: torch.device, free_bytes: dict[str, int | None]) -> str:
    """Return the residency: as given, or the first of device, host and stream with enough free bytes.

    Args:
        asked: `"auto"` or one of `RESIDENCIES`.
        table_bytes: of the whole table.
        device: where batches are wanted.
        free_bytes: bytes that are free, by kind of device; None where that is not known and taken for enough.

    Raises:
        BadConfig: no such residency.

    Example:
        >>> gpu = torch.device("cuda")
        >>> [choose_residency("auto", size, gpu, {"cuda": 80, "cpu": 500}) for size in (50, 100, 1000)]
        ['device', 'host', 'stream']
    """
    check_choice("loader", ("auto", *RESIDENCIES), residency=asked)
    if asked != "auto":
        return asked
    for residency, kind in (("device", device.type), ("host", "cpu")):
        free = free_bytes.get(kind)
        if free is None or table_bytes <= free:
            return residency
    return "stream"


def get_free_bytes(device: torch.device) -> int | None:
    """Return the bytes a table may occupy there, besides what training needs; None where that is unknown.

    Example:
        >>> (get_free_bytes(torch.device("cpu")) or 1) > 0
        True
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()  # else the table of an earlier loader would take it
        free, total = torch.cuda.mem_get_info(device)
        return max(free - max(1 << 30, total // 10), 0)
    on_host = free_host_memory()
    return None if on_host is None else int(on_host * _SHARE)
