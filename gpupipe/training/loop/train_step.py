"""Training step: forward, backward, clip, optimiser. Nothing in it makes the host wait for the device.

What changes from update to update (learning rate, loss scale) is read on the device from tensors
that are written in place, at a counter that is there too, so a CUDA graph can capture an update and replay it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpupipe.errors import BadConfig
from gpupipe.training.loop.batches import num_rows, split_rows
from gpupipe.training.loop.losses import TINY, LossMean
from gpupipe.training.loop.rank_group import RankGroup
from gpupipe.training.optim.optimizers import EMA, LossScale, add_gradients, compact, get_entries

# Names a part of an update (data, forward, backward, optimizer) for a profiler.
Range: TypeAlias = Callable[[str], AbstractContextManager[object]]

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Update:
    """Update of the weights: the gradients of one or several batches, and one step of the optimiser.

    With several, or a batch in parts, gradients are those of the mean over all their rows: sum(weight * loss) is what
    is summed, and divided by sum(weight) at the step.

    `objective` gives a batch's mean loss and the weight it carries. `rates`, one per update, are on the device, and
    written before each step to the 0-d rates of the optimiser's groups. Sums of weights are divided by `unit`, about a
    batch's weight and the same in each process, to stay near 1.
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
        # A gradient that was dense once stays so: asking all of them each time would cost a small network's step 2 %.
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

    def use_ema(self) -> AbstractContextManager[None]:
        """Give the model the average of its weights inside, if there is one."""
        return nullcontext() if self.average is None else self.average.swap_in()

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
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = value
        found: dict[int, dict[str, Tensor]] = {}
        for name, value in parts["optimizer"].items():
            index, _, key = name.partition(".")
            found.setdefault(int(index), {})[key] = value
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": found})
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = lr  # torch puts a copy in its place, which the schedule would not reach
        for part, owner in self._owners.items():
            owner.load_state_dict(parts[part])
