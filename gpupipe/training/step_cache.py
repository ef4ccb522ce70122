"""The steps of fits, kept for the next fits: the optimiser's memory and the CUDA graph are made once.

A graph is bound to memory: of weights, moments and rates. So a kept step has a model of its own; a fit that takes it up
puts its values there, and takes them back at the end.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gpupipe.errors import BadConfig
from gpupipe.tensors.loader import Loader
from gpupipe.training.alike import NotPlain, likeness, on_stage, plain
from gpupipe.training.capture import CapturedUpdate, CursorBatches, not_resident
from gpupipe.training.together import Together
from gpupipe.training.update import Update

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


@dataclass(eq=False)
class _Kept:
    model: nn.Module
    update: Update
    learner: Update | CapturedUpdate
    batches: Any

    @property
    def intact(self) -> bool:
        return not isinstance(self.learner, CapturedUpdate) or self.learner.intact


class StepCache:
    """Keeps steps, for `Trainer(step_cache=)` of many fits: a search captures and allocates once for all.

    A fit takes up the step of an earlier one that was the same but for: the values of weights; learning rate, schedule,
    epochs, seed; the values of `gradient_clip` and `average`; metrics, callbacks and all else that is no part of a
    step. Another batch size, width, dropout, decay or loss is another step. The figures are those of fits without it.

    A step is kept for an optimiser by name, a `Loader` over rows in memory, one process, and a model whose attributes
    are plain values; a fit of other things, or one that goes on from a checkpoint, makes its own, and a warning says
    why. One step serves one fit at a time.

    Args:
        size: steps that are kept at most; the one unused for longest goes.

    Raises:
        BadConfig: a size below 1.

    Memory:
        Per step, until `clear()`: weights and the optimiser's state, on a GPU the inner values of one batch too. The
        loader's table lives as long.

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
        if size < 1:
            raise BadConfig("StepCache(size=)", "too small", got=size, expected="at least 1", remedy="size=8")
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
        self, key: Hashable, trainer: Trainer, rates: Tensor, make: Callable[[Trainer, Tensor], Any], train: Loader
    ) -> Iterator[Step]:
        """A step for a fit: a kept one of that key, or what `make` makes; kept when the fit is over.

        Args:
            key: of `key_of`.
            trainer: of the fit; inside, its model's weights lie where the step has them.
            rates: of the fit, on the host.
            make: of a trainer and rates the update, its learner and the batches.
            train: the loader.
        """
        kept = self._kept.pop(key, None)
        if kept is None:
            model = deepcopy(trainer.model)
            kept = _Kept(model, *make(replace(trainer, model=model.train()), torch.zeros(_room(rates))))
        else:
            logger.info("the step of an earlier fit is taken up")
        with on_stage(trainer.model, kept.model):
            _begin(kept.update, trainer)
            batches: Any = train
            if isinstance(kept.batches, CursorBatches):
                batches = kept.batches
                batches.take(train)
            try:
                yield Step(kept.update, kept.learner, batches, rates)
            except RuntimeError:
                raise  # a device that failed: nothing there is kept
            except BaseException:
                self._keep(key, kept)
                raise
            self._keep(key, kept)

    def _keep(self, key: Hashable, kept: _Kept) -> None:
        if kept.intact:
            self._kept[key] = kept
            while len(self._kept) > self.size:
                self._kept.popitem(last=False)


def key_of(
    trainer: Trainer, loss: Any, train: Any, device: torch.device, together: Together, rates: Tensor, *, fresh: bool
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
        raise NotPlain("it goes on from a checkpoint")
    if together.size > 1:
        raise NotPlain("several processes train")
    if not isinstance(trainer.optimizer, str):
        raise NotPlain("the optimiser is not one by name, and its state may begin with other values than 0")
    if not isinstance(train, Loader) or train.residency == "stream":
        raise NotPlain("the batches are not those of a Loader over rows in memory")
    settings = {each.name: getattr(trainer, each.name) for each in fields(trainer) if each.name not in NOT_BUILT_IN}
    settings |= {"loss": loss, "clips": trainer.gradient_clip is None, "averages": trainer.average is None}
    settings |= {"highest": trainer.learning_rate if trainer.groups else None}  # which their own rates are shares of
    settings |= {"products": torch.get_float32_matmul_precision(), "room": _room(rates), "device": device}
    block = train.block
    places = [tensor.data_ptr() for tensor in (block.words, *block.keep.values())]
    table = (block, *places, tuple(block.keep), train.num_rows, train.batch_size, not_resident(train, device))
    return plain(settings), table, likeness(trainer.model)


def _room(rates: Tensor) -> int:
    """How many rates a kept step has room for: a power of two."""
    return max(RATES, 1 << (len(rates) - 1).bit_length())


def _begin(update: Update, trainer: Trainer) -> None:
    """As a new update with these settings, in the memory it has; a run writes the rates."""
    update.reset()
    if update.gradient_clip is not None and trainer.gradient_clip is not None:
        update.gradient_clip.fill_(trainer.gradient_clip)
    if update.average is not None and trainer.average is not None:
        update.average.decay.fill_(trainer.average)
