"""Activation checkpointing: a block's activations are not kept but recomputed in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from gpupipe.errors import BadConfig
from gpupipe.support.text import as_list


@contextmanager
def checkpoint_activations(model: nn.Module, blocks: bool | Sequence[str]) -> Iterator[None]:
    """Recompute the activations of some of the model's blocks inside (Chen et al., arXiv:1604.06174).

    What a block draws (dropout) is drawn the same again.

    Args:
        model: whose blocks.
        blocks: patterns of modules' names, or True for the members of all `nn.ModuleList`s.

    Raises:
        BadConfig: no module that fits.

    Memory: of each block its inputs instead of all its values, for about a third more time.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> with checkpoint_activations(model, ["0"]):
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> model[0].weight.grad is not None
        True
    """
    names = dict(model.named_modules())
    if blocks is True:
        lists = [module for module in names.values() if isinstance(module, nn.ModuleList)]
        chosen: list[Any] = [member for members in lists for member in members]
    else:
        patterns = as_list(blocks or [])
        chosen = [m for name, m in names.items() if name and any(fnmatchcase(name, p) for p in patterns)]
    if not chosen:
        raise BadConfig(
            "Trainer(activation_checkpointing=)",
            "the model has no such blocks",
            got=blocks,
            expected="members of an nn.ModuleList" if blocks is True else f"patterns of {[n for n in names if n]}",
            remedy="activation_checkpointing=False, or activation_checkpointing=['layers.*']",
        )
    for module in chosen:
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    try:
        yield
    finally:
        for module in chosen:
            del module.forward  # the class's own comes to light again
