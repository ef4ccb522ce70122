"""Whether a fit leaves all as it found it, the values of tensors apart: only then can its step serve another."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import nn

from gpupipe.training.alike import NotPlain, likeness, plain, tensors_of
from gpupipe.training.update import Update

__all__ = ["Watched"]

HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class Watched:
    """A fit's model and update, as they are when this is made and as they are later.

    Args:
        model: of the fit.
        update: its step.
    """

    def __init__(self, model: nn.Module, update: Update) -> None:
        self._model, self._update = model, update
        self._held, self._before = self._parts(), self._state()
        self._captured_as_was = True

    @property
    def changed(self) -> bool:
        """Whether it is not as it was, or was not when the step was captured."""
        return not self._captured_as_was or self._state() != self._before

    def look(self) -> None:
        """Take in how things are at a capture: all modules have to be in training, too."""
        in_training = all(module.training for module in self._model.modules())
        self._captured_as_was = in_training and self._state() == self._before

    def _parts(self) -> list[Any]:
        """What is told apart by identity; it is held, since what is new might lie where something old was."""
        update = self._update
        own = [update.objective, update.optimizer, update.rates, update.gradient_clip, update.scale, update.average]
        groups = update.optimizer.param_groups
        return [*tensors_of(self._model), *own, *(part for group in groups for part in (group["lr"], *group["params"]))]

    def _state(self) -> Hashable:
        optimizer = self._update.optimizer
        groups = [{**group, "params": None, "lr": None} for group in optimizer.param_groups]
        hooks = [tuple(getattr(optimizer, name, ())) for name in HOOKS]
        try:
            return likeness(self._model), tuple(map(id, self._parts())), plain([groups, hooks, sorted(vars(optimizer))])
        except NotPlain:
            return None
