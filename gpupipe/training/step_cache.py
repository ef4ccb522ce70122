"""The steps of fits, kept for the next fits: the optimiser's memory and the CUDA graph are made once.

A graph is bound to memory: of weights, moments and rates. So a kept step has memory of its own; a fit that takes it up
puts its model's values there, lets the model work on them, and takes them back at the end.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from gpupipe.support.validation import check_integer
from gpupipe.tensors.loader import Loader
from gpupipe.training.alike import NotPlain, likeness, on_stage, plain, surroundings, tensors_of
from gpupipe.training.capture import CapturedUpdate, CursorBatches, not_resident
from gpupipe.training.losses import Loss
from gpupipe.training.together import Together
from gpupipe.training.update import Update
from gpupipe.training.watched import Watched

if TYPE_CHECKING:
    from gpupipe.training.trainer import Trainer

__all__ = ["Step", "StepCache", "key_of"]

RATES = 1 << 16  # at least: a longer schedule of a later fit finds room

# What of a trainer's settings a step reads from memory, or not at all; all others are built into it.
NOT_BUILT_IN = {
    *("model", "max_epochs", "lr", "schedule", "warmup", "gradient_clip", "average", "seed", "device", "patience"),
    *("metrics", "early_stopping", "progress", "log_every", "callbacks", "checkpoints", "on_divergence", "profile"),
    *("gpu_stats", "step_cache"),
}

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Part:
    """What the fit under way plays: a kept step calls its model and loss, not those of the fit that made the step.

    Args:
        model: of the fit; None between fits.
        objective: its loss.
    """

    model: nn.Module | None = None
    objective: Loss | None = None

    def forward(self, batch: Any) -> Any:
        """The model's output."""
        return cast(nn.Module, self.model)(batch)

    def loss(self, output: Any, batch: Any) -> Tensor:
        """The loss of the output."""
        return cast(Loss, self.objective)(output, batch)


@dataclass(eq=False)
class Step:
    """What a fit learns with.

    Args:
        update: one step, with the optimiser.
        learner: which makes it: itself, or replayed.
        batches: what it is made from.
        rates: the learning rate of each update, on the host.
    """

    update: Update
    learner: Update | CapturedUpdate
    batches: Any
    rates: Tensor


# Of the loss, the forward pass and the rates.
Make: TypeAlias = Callable[[Loss, Callable[[Any], Any], Tensor], Step]


@dataclass(eq=False)
class _Kept:
    stage: list[Tensor]
    part: _Part
    step: Step


class StepCache:
    """Keeps steps, for `Trainer(step_cache=)` of many fits: a search captures and allocates once for all.

    A fit takes up the step of an earlier one that was the same but for: the values of weights; learning rate (unless
    `groups` are given), schedule, epochs and seeds; the values of `gradient_clip` and `average`; metrics, callbacks and
    all else that is no part of a step. Another batch size, width, dropout, decay or loss is another step. A fit learns
    what it would without a cache, bit for bit on a CPU.

    A step is kept for an optimiser by name, a `Loader` over rows in memory, one process, a model of tensors and plain
    values, and a loss that is a function or dataclass of plain values. A fit of other things, with `resume=` or
    `recompute=`, or whose model or optimiser is changed by a callback keeps none, and a warning says why. One step
    serves one fit at a time. What is read besides (global variables, attributes of classes, the table, the counts
    behind `class_weight`) is taken to be as it was. A callback reaches the fit's tensors through `run`: those the model
    had before stand still until the fit ends, and those of `run` are the step's, which change in later fits.

    Args:
        size: steps that are kept at most; the one unused for longest goes.

    Raises:
        BadConfig: a size below 1.

    Memory:
        Per step, until `clear()`: weights (in a fit twice), their average and the optimiser's state; on a GPU also
        cuBLAS's workspace, a batch's gradients and inner values, and 8 bytes a row for the order. Each step's table
        lives as long.

    Example:
        >>> from gpupipe.models import MLP
        >>> from gpupipe.schema import Field, Role, Schema
        >>> from gpupipe.tensors import Block, Loader
        >>> from gpupipe.training import Trainer
        >>> schema = Schema([Field("x", "float32", role=Role.FEATURE), Field("y", "float32", role=Role.TARGET)])
        >>> block = Block.allocate(schema, 64, "cpu")
        >>> _ = block.words.zero_()
        >>> cache, loader = StepCache(), Loader(block, device="cpu")
        >>> for lr in (0.1, 0.01):
        ...     _ = Trainer(MLP.from_schema(schema), max_epochs=1, lr=lr, step_cache=cache).fit(loader)
        >>> len(cache)
        1
    """

    def __init__(self, size: int = 8) -> None:
        check_integer(self, "[1, inf)", size=size)
        self.size = size
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    def __len__(self) -> int:
        """How many steps are kept."""
        return len(self._kept)

    def __getstate__(self) -> dict[str, Any]:
        """Where it is copied or sent it begins empty: what it keeps is bound to memory here."""
        return {"size": self.size, "_kept": OrderedDict()}

    def clear(self) -> None:
        """Give back the memory."""
        self._kept.clear()

    @contextmanager
    def step(
        self, key: Hashable, trainer: Trainer, loss: Loss, rates: Tensor, train: Loader, make: Make
    ) -> Iterator[Step]:
        """A step for a fit: a kept one of that key, or what `make` makes; kept when the fit is over.

        Inside, the weights of the fit's model lie where the step has them, and the step is as a new one.

        Args:
            key: of `key_of`.
            trainer: of the fit.
            loss: of the fit.
            rates: of the fit, on the host.
            train: the loader.
            make: of a loss, a forward pass and rates a step.
        """
        model, kept = trainer.model, self._kept.pop(key, None)
        stage = self._room_for(model) if kept is None else kept.stage
        with on_stage(model, stage):
            if kept is None:
                logger.info("a step is made, and kept for later fits")
                part = _Part(model, loss)
                kept = _Kept(stage, part, make(part.loss, part.forward, torch.zeros(_capacity(rates))))
            else:
                logger.info("the step of an earlier fit is taken up")
                kept.part.model, kept.part.objective = model, loss
            update, learner, batches = kept.step.update, kept.step.learner, kept.step.batches
            update.reset(gradient_clip=trainer.gradient_clip, average=trainer.average)
            if isinstance(batches, CursorBatches):
                batches.take(train)
            fit, failed = Watched(model, update), False
            if isinstance(learner, CapturedUpdate):
                learner.on_capture = fit.look
            try:
                yield Step(update, learner, batches if isinstance(batches, CursorBatches) else train, rates)
            except RuntimeError:
                failed = True  # as a device does: nothing there is kept
                raise
            finally:
                if not failed:
                    self._keep(key, kept, changed=fit.changed)

    def _room_for(self, model: nn.Module) -> list[Tensor]:
        """Memory for a model's tensors, given back first where as many steps are kept as may be."""
        self._shrink(self.size - 1)
        return deepcopy(tensors_of(model))

    def _keep(self, key: Hashable, kept: _Kept, *, changed: bool) -> None:
        """Keep a step, if the next fit finds it as this one did."""
        update, learner = kept.step.update, kept.step.learner
        kept.part.model = kept.part.objective = None
        if isinstance(learner, CapturedUpdate):
            learner.on_capture = None
        update.forget()
        if changed:
            logger.warning("the step is not kept: the fit's model or optimiser was changed meanwhile")
        elif not isinstance(learner, CapturedUpdate) or learner.intact:
            self._kept[key] = kept
            self._shrink(self.size)  # another fit may have ended inside this one

    def _shrink(self, size: int) -> None:
        with suppress(KeyError):  # another thread was faster
            while len(self._kept) > size:
                self._kept.popitem(last=False)


def key_of(
    trainer: Trainer, loss: Loss, train: Any, device: torch.device, together: Together, rates: Tensor, *, fresh: bool
) -> Hashable:
    """Equal for fits that can take up each other's steps.

    Args:
        trainer: of the fit.
        loss: what its `loss` says, found out.
        train: the loader.
        device: where it runs.
        together: the ranks.
        rates: of the fit.
        fresh: whether it begins at the beginning.

    Raises:
        NotPlain: none can.
    """
    if not fresh:
        raise NotPlain("resume= is given")
    if together.size > 1:
        raise NotPlain("several processes train")
    if trainer.recompute:
        raise NotPlain("recompute= is given")
    if not isinstance(trainer.optimizer, str):
        raise NotPlain("the optimiser is not one by name, and its state may begin with other values than 0")
    if not isinstance(train, Loader) or train.residency == "stream":
        raise NotPlain("the batches are not those of a Loader over rows in memory")
    settings = {each.name: getattr(trainer, each.name) for each in fields(trainer) if each.name not in NOT_BUILT_IN}
    settings |= {"loss": loss, "clips": trainer.gradient_clip is None, "averages": trainer.average is None}
    settings |= {"highest": trainer.learning_rate if trainer.groups else None}  # which their own rates are shares of
    settings |= {"room": _capacity(rates), "device": device}
    block = train.block
    places = [tensor.data_ptr() for tensor in (block.words, *block.keep.values())]
    table = (block, *places, tuple(block.keep), train.num_rows, train.batch_size, not_resident(train, device))
    return plain(settings), surroundings(device), table, likeness(trainer.model)


def _capacity(rates: Tensor) -> int:
    """How many rates a kept step has room for: a power of two."""
    return max(RATES, 1 << (len(rates) - 1).bit_length())
