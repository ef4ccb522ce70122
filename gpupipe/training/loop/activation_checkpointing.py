"""Activation checkpointing: blocks whose activations are computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from gpupipe.support.validation import as_list, refuse_argument


@contextmanager
def checkpoint_activations(model: nn.Module, blocks: bool | Sequence[str]) -> Iterator[None]:
    """Recompute in the backward pass, with the same draws, what blocks computed (Chen et al., arXiv:1604.06174)."""
    names = dict(model.named_modules())
    if blocks is True:
        lists = [module for module in names.values() if isinstance(module, nn.ModuleList)]
        modules: list[Any] = [member for members in lists for member in members]
    else:
        patterns = as_list(blocks or [])
        modules = [m for name, m in names.items() if name and any(fnmatchcase(name, p) for p in patterns)]
    if not modules:
        expected = "members of an nn.ModuleList" if blocks is True else f"patterns of {[n for n in names if n]}"
        remedy = "activation_checkpointing=False, or activation_checkpointing=['layers.*']"
        problem = "the model has no such blocks"
        raise refuse_argument("Trainer", "activation_checkpointing", blocks, expected, remedy, problem=problem)
    for module in modules:
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    try:
        yield
    finally:
        for module in modules:
            del module.forward  # the class's own comes to light again
