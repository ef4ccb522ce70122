"""Training step: forward, backward, clip, optimiser; eager, or captured as a CUDA graph. It never makes the host wait.

What changes from update to update (learning rate, loss scale) is read on the device from tensors that are written in
place, at a counter that is there too: everything has the same address each time. So the very function that runs eagerly
is captured; on a CPU it runs uncaptured, and is tested there. The first steps of a run are the warm-up, and count.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpupipe.errors import BadConfig
from gpupipe.tensors.batch import Batch
from gpupipe.tensors.loader import Loader
from gpupipe.training.loop.batches import num_rows, split_rows
from gpupipe.training.loop.losses import TINY, LossMean
from gpupipe.training.loop.rank_group import RankGroup
from gpupipe.training.optim.optimizers import EMA, Lamb, LossScale, add_gradients, compact, get_entries

# Names a part of an update (data, forward, backward, optimizer) for a profiler.
Range: TypeAlias = Callable[[str], AbstractContextManager[object]]

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Update:
    """Update of the weights: the gradients of one or several batches, and one step of the optimiser.

    With several, or a batch in parts, sum(weight * loss) is differentiated, and divided by sum(weight) at the step.
    `objective` gives a batch's mean loss and its weight. `rates`, one per update, are on the device, and written before
    each step to the groups' 0-d rates. Sums of weights are divided by `unit`, about a batch's weight, to stay near 1.
    """

    objective: Callable[[Any], tuple[Tensor, Tensor | int]]
    optimizer: Optimizer
    _: KW_ONLY
    rates: Tensor
    max_grad_norm: float | None = None
    accumulate: int = 1
    unit: float = 1.0
    scale: LossScale | None = None
    average: EMA | None = None
    ranks: RankGroup = field(default_factory=RankGroup)
    parts: int = 1
    splits: bool = True  # a batch that does not fit in memory
    range: Range = nullcontext  # no profiler
    _waiting: bool = False  # whether there are gradients that wait for the step

    def __post_init__(self) -> None:
        groups, device = self.optimizer.param_groups, self.rates.device
        self.parameters: list[nn.Parameter] = [parameter for group in groups for parameter in group["params"]]
        self._maybe_sparse = self.parameters
        self.count = torch.zeros(1, dtype=torch.int64, device=device)
        self.losses = LossMean(device, self.ranks)
        self._weight = torch.zeros((), device=device)
        self._owners = {name: owner for name in ("scale", "average") if (owner := getattr(self, name)) is not None}
        # The rate that most groups share is written to directly; others are multiples of it.
        rates_of = {id(group["lr"]): (group["lr"].view(1), group.get("lr_factor", 1.0)) for group in groups}
        shared = [lr for lr, factor in rates_of.values() if factor == 1]
        self._rate = shared[0] if shared else torch.zeros(1, device=device)
        self._own_rates = [(lr, factor) for lr, factor in rates_of.values() if factor != 1]

    def __call__(self, batch: Any) -> None:
        self.learn(batch)
        self.step()

    def learn(self, batch: Any) -> None:
        """Add the gradients of `batch`, in smaller parts from now on if memory does not suffice; count its loss."""
        parts = [batch] if self.parts == 1 else list(split_rows(batch, self.parts))
        while parts:
            try:
                self._learn(parts[0])
            except torch.OutOfMemoryError:
                rows = num_rows(parts[0])
                if rows == 1 or not self.splits:
                    raise
            else:
                del parts[0]
                continue
            self.parts *= 2
            parts = [half for part in parts for half in split_rows(part, 2)]
            text = (
                "out of memory: each batch is learnt in %d parts from now on, of %d rows or fewer; the result is the "
                "same, unless rows of a batch see each other (batch normalisation, a loss of pairs)"
            )
            logger.warning(text, self.parts, -(-rows // 2))

    def _learn(self, batch: Any) -> None:
        with self.range("forward"):
            loss, weight = self.objective(batch)
        objective = loss
        if self._summed:
            share = weight / self.unit
            objective = loss * share
        if self.scale is not None:
            objective = objective * self.scale.value
        # Aside, not added to: a backward pass that fails half-way (out of memory) has then spoilt nothing.
        aside = [parameter.grad for parameter in self.parameters] if self._waiting else []
        for parameter in self.parameters:
            parameter.grad = None
        try:
            with self.range("backward"):
                torch.autograd.backward(objective)
        except torch.OutOfMemoryError:
            for parameter, gradient in zip(self.parameters, aside or [None] * len(self.parameters), strict=True):
                parameter.grad = gradient
            raise
        if aside:
            add_gradients(self.parameters, aside)
        if self._summed:
            self._weight.add_(share)
        self._waiting = True
        self.losses.add(loss.detach(), weight)

    @property
    def _summed(self) -> bool:
        return self.accumulate > 1 or self.parts > 1 or self.ranks.size > 1

    def forget(self) -> None:
        """Discard the gradients since the last step."""
        for parameter in self.parameters:
            parameter.grad = None
        self._weight.zero_()
        self._waiting = False

    def step(self) -> None:
        """Step the optimiser with the gradients."""
        if not self._waiting:  # all batches were empty
            if self.ranks.size == 1:
                return
            self.forget()  # the gradients are the last update's, and the other ranks may have rows
        self._finish_gradients()
        torch.index_select(self.rates, 0, self.count, out=self._rate)
        for lr, factor in self._own_rates:
            torch.mul(self._rate, factor, out=lr)
        with self.range("optimizer"):
            self.optimizer.step()
        if self.average is not None:
            self.average.update(self.count)
        self.count += 1
        self._waiting = False

    def _finish_gradients(self) -> None:
        """Unscale, divide by the weights' sum and clip: one norm and one product over all gradients, or nothing."""
        self.ranks.sum_gradients(self.parameters, self._weight)
        for parameter in self._maybe_sparse:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = compact(parameter.grad)
        # A gradient that was dense once stays so: asking all of them each time would take a small network longer.
        self._maybe_sparse = [p for p in self._maybe_sparse if p.grad is None or p.grad.is_sparse]
        if self.max_grad_norm is None and self.scale is None and not self._summed:
            return
        gradients = [get_entries(g)[1] if g.is_sparse else g for p in self.parameters if (g := p.grad) is not None]
        factor = torch.ones((), device=self.rates.device)
        if self._summed:
            factor = factor / self._weight.clamp_min(TINY)
            self._weight.zero_()
        if self.scale is not None:
            factor = factor / self.scale.value
        if self.max_grad_norm is not None or self.scale is not None:
            norm = nn.utils.get_total_norm(gradients) * factor
            if self.scale is not None:
                self.scale.update(norm)
            if self.max_grad_norm is not None:
                factor = factor * (self.max_grad_norm / (norm + 1e-6)).clamp_max(1.0)
        if gradients:
            torch._foreach_mul_(gradients, factor)

    @contextmanager
    def use_ema(self) -> Iterator[None]:
        """Give the model the average of its weights inside, if there is one."""
        if self.average is not None:
            self.average.swap()
        try:
            yield
        finally:
            if self.average is not None:
                self.average.swap()

    def state_dict(self) -> dict[str, Tensor]:
        """Return all state of the next update except model and loader, as tensors by name, or refuse what is none."""
        state = {"count": self.count}
        for index, parameter in enumerate(self.parameters):
            for name, value in self.optimizer.state[parameter].items():
                if value is not None and not isinstance(value, Tensor):
                    where, got = "Trainer(optimizer=)", type(self.optimizer).__name__
                    problem = f"its state {name!r} is no tensor and cannot be saved"
                    expected = "an optimiser whose state is tensors, as torch's are"
                    raise BadConfig(where, problem, got=got, expected=expected, remedy="optimizer='adamw'")
                if value is not None:
                    state[f"optimizer.{index}.{name}"] = value
        for part, owner in self._owners.items():
            state |= {f"{part}.{name}": value for name, value in owner.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave, between two updates and before anything is captured."""
        self.count.copy_(state["count"])
        parts: dict[str, dict[str, Tensor]] = {name: {} for name in ("optimizer", *self._owners)}
        for name, value in state.items():
            part, _, suffix = name.partition(".")
            parts.setdefault(part, {})[suffix] = value
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in parts["optimizer"].items():
            index, _, key = name.partition(".")
            shape = self.parameters[int(index)].shape
            if key in _LIKE_PARAMETERS and (value.shape != shape or not value.is_floating_point()):
                raise ValueError(f"{name} is {value.dtype} {list(value.shape)} of a parameter {list(shape)}")
            if key == "step" and value.shape:
                raise ValueError(f"{name} is {list(value.shape)}, not one number")
            moments.setdefault(int(index), {})[key] = value
        shared = {"step"} if isinstance(self.optimizer, Lamb) else set()  # which the first parameter of a group has
        for group in self.optimizer.param_groups:
            members = set(map(id, group["params"]))
            keys = {
                frozenset(each.keys() - shared)
                for index, each in moments.items()
                if id(self.parameters[index]) in members
            }
            if len(keys) > 1:
                raise ValueError(f"parameters have different moments, {sorted(map(sorted, keys))}")
        settings = [dict(group) for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": moments})
        for group, before in zip(self.optimizer.param_groups, settings, strict=True):
            # torch puts a copy of the rate in its place, which the schedule would not reach, and AdamW sets
            # `decoupled_weight_decay` anew.
            group.update(before)
        for part, owner in self._owners.items():
            owner.load_state_dict(parts[part])


# State of optimisers that compiled kernels read for as long as the parameter is.
_LIKE_PARAMETERS: tuple[str, ...] = (
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "exp_inf",
    "momentum_buffer",
    "square_avg",
    "grad_avg",
)
_LIKE_PARAMETERS += ("sum",)

WARM_UP = 3  # eager steps before the capture: libraries choose kernels and workspaces, optimisers make their state


def explain_no_capture(
    choice: bool | str, loader: Any, device: torch.device, accumulate: int = 1, *, activation_checkpointing: Any = False
) -> str | None:
    """Explain why a run cannot be captured, or return None; refuse what has to be captured and cannot be."""
    if choice is False:
        return "Trainer(cuda_graph=False)"
    reason = explain_not_resident(loader, device)
    if activation_checkpointing:
        reason = "inner values are computed again, for which torch asks the device what it drew"
    if accumulate > 1:
        reason = "gradients are accumulated"
    if device.type != "cuda":
        reason = "it runs on a CPU"
    if reason is not None and choice is True:
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
    if loader.world_size > 1 or "sampler" in loader.state_dict():
        return "rows are drawn, or dealt to several processes"
    if loader.schema.lists:
        return "lists are longer in one batch than in another"
    return None if loader.num_rows >= loader.batch_size else "there is no full batch"


class CursorBatches:
    """Batches gathered on the device at a cursor there; an iteration gives `full` in the place of each full batch.

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
    """Captured `Update`: full batches come from a cursor and replay as one graph on a GPU; else it runs eagerly."""

    def __init__(self, update: Update, batches: CursorBatches) -> None:
        self._update, self._batches = update, batches
        self._device = torch.device(batches.device)
        self._eager = WARM_UP if self._device.type == "cuda" else -1  # steps left; -1: all
        self.graph: torch.cuda.CUDAGraph | None = None
        self._stepped = False

    def learn(self, batch: Any) -> None:
        """Learn a batch; a full one makes the step at once."""
        self._stepped = batch is self._batches.full
        if self._stepped and self.graph is None and not self._eager:
            self._capture()
        if not self._stepped:
            self._update.learn(batch)
        elif self.graph is not None:
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
