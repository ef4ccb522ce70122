"""CUDA graph of a whole step: gather, forward, backward, clip, optimiser and sums, launched by one call.

Everything a step reads or writes has the same address each time. So the very function that runs eagerly is captured; on
a CPU it runs uncaptured, and is tested there. The first steps of a run are the warm-up, and count.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gpupipe.errors import BadConfig
from gpupipe.tensors.batch import Batch
from gpupipe.tensors.loader import Loader
from gpupipe.training.loop.train_step import Update

WARM_UP = 3  # eager steps before the capture: libraries choose kernels and workspaces, optimisers make their state

logger = logging.getLogger(__name__)


def explain_no_capture(
    wanted: bool | str,
    loader: object,
    device: torch.device,
    accumulate: int = 1,
    *,
    activation_checkpointing: bool = False,
) -> str | None:
    """Explain why a run cannot be captured, or return None; refuse what has to be captured and cannot be."""
    if wanted is False:
        return "Trainer(cuda_graph=False)"
    reasons = {
        "it runs on a CPU": device.type != "cuda",
        "gradients are accumulated": accumulate > 1,
        "inner values are computed again, for which torch asks the device what it drew": activation_checkpointing,
    }
    reason = next((why for why, holds in reasons.items() if holds), None) or explain_not_resident(loader, device)
    if reason is not None and wanted is True:
        where, problem = "Trainer(cuda_graph=True)", f"the step cannot be captured: {reason}"
        expected = "a Loader of one process over a table on the GPU"
        raise BadConfig(where, problem, got=type(loader).__name__, expected=expected, remedy="cuda_graph='auto'")
    return reason


def explain_not_resident(loader: object, device: torch.device) -> str | None:
    """Explain why a loader's batches cannot be gathered at a cursor on the device, or return None."""
    if not isinstance(loader, Loader):
        return "the batches are not those of gp.Pipeline's loader"
    if loader.residency != "device" or loader.device != device:
        return "the table is not on the device"
    if loader.world_size > 1 or not {"sampler", "shards"}.isdisjoint(loader.state_dict()):
        return "rows are drawn, or dealt to several processes"
    if loader.schema.lists:
        return "lists are longer in one batch than in another"
    return None if loader.num_rows >= loader.batch_size else "there is no full batch"


class CursorBatches:
    """Batches of a loader with its table on the device, gathered there at a cursor that is there too.

    An iteration gives `full` in the place of each full batch, and a smaller last one as it is.

    Memory: 8 bytes per row for the epoch's order, and one batch, kept columns included.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader, self._block, size = loader, loader.table, loader.batch_size
        device = loader.device
        self._order = torch.arange(loader.num_rows, device=device)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self._places = torch.arange(size, device=device)
        self._positions, self._rows = torch.empty_like(self._places), torch.empty_like(self._places)
        self._words = self._block.words.new_empty((size, self._block.words.shape[1]))
        self._keep = {name: values.new_empty(size) for name, values in self._block.keep.items()}
        self.full = self._make_batch(self._words, self._keep)
        self._at: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def gather(self) -> Batch:
        """Gather the batch at the cursor and advance it; overwrites the previous batch."""
        torch.add(self._places, self._cursor, out=self._positions)
        torch.index_select(self._order, 0, self._positions, out=self._rows)
        torch.index_select(self._block.words, 0, self._rows, out=self._words)
        for name, values in self._block.keep.items():
            torch.index_select(values, 0, self._rows, out=self._keep[name])
        self._cursor.add_(len(self._places))
        return self._make_batch(self._words, self._keep)

    def _make_batch(self, words: Tensor, keep: Mapping[str, Tensor]) -> Batch:
        batch = self._block.batch_of(words)
        batch.keep |= keep
        return batch

    def __iter__(self) -> Iterator[Any]:
        begun, size = self.loader.state_dict(), self.loader.batch_size
        epoch, first, full = begun["epoch"], begun["batch"], self.loader.num_rows // size
        order = self.loader.order(epoch)
        if not isinstance(order, slice):
            self._order.copy_(order)
        self._cursor.fill_(first * size)
        for number in range(first, len(self)):
            self._at = epoch, number + 1
            if number < full:
                yield self.full
            else:
                rows = self._order[full * size :]
                keep = {name: values.index_select(0, rows) for name, values in self._block.keep.items()}
                yield self._make_batch(self._block.words.index_select(0, rows), keep)
        self._at = None
        self.loader.set_epoch(epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state at the current batch."""
        state = self.loader.state_dict()
        return state if self._at is None else state | {"epoch": self._at[0], "batch": self._at[1]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._at = None
        self.loader.load_state_dict(state)


class CapturedUpdate:
    """Captured `Update`: full batches come from a cursor, and replay as one graph, which keeps its gradients, on a GPU.

    It goes on eagerly, with the reason logged, where it cannot be captured.
    """

    def __init__(self, update: Update, batches: CursorBatches) -> None:
        self._update, self._batches = update, batches
        self._device = torch.device(batches.device)
        self._eager = WARM_UP if self._device.type == "cuda" else -1  # steps left; -1: all
        self.graph: torch.cuda.CUDAGraph | None = None
        self._stepped = False

    def learn(self, batch: Any) -> None:
        """Learn a batch; a full one makes the step at once."""
        self._stepped = batch is self._batches.full
        if not self._stepped:
            self._update.learn(batch)
            return
        if self.graph is None and not self._eager:
            self._capture()
        if self.graph is not None:
            self.graph.replay()
        else:
            self.run_full_step()
            self._eager -= self._eager > 0

    def step(self) -> None:
        """Make the step, if it is not made."""
        if not self._stepped:
            self._update.step()

    def run_full_step(self) -> None:
        """Run a whole step over a full batch: what the graph holds."""
        self._update(self._batches.gather())

    def _capture(self) -> None:
        update, outer = self._update, sys.exception()
        update.splits = False  # what does not fit is no half of a graph: the eager step learns in parts
        try:
            graph = torch.cuda.CUDAGraph()
            # Other threads (of a profiler, of NVML) may call CUDA meanwhile: only this one is watched.
            # On its own stream: the end of a graph frees the cuBLAS workspace of its stream (pytorch/pytorch#193402).
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self.run_full_step()
        except RuntimeError as error:
            self._eager = -1
            update.forget()  # gradients that were never computed
            first: BaseException = error  # of a chain: ending a broken capture raises another error
            while first.__context__ is not None and first.__context__ is not outer:
                first = first.__context__
            logger.warning("the step is not captured and runs eagerly: %s", str(first).splitlines()[0])
        else:
            self.graph = graph
            logger.info("the step is captured as a CUDA graph")
        finally:
            update.splits = True
