"""Whether two models make the same step: the same modules, with the same settings, over tensors of the same shapes.

A step that is kept has all built in that Python code read of a module, the values of tensors apart. So whatever of a
model is neither a tensor nor a plain value makes it like no other.
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["NotPlain", "likeness", "on_stage", "plain"]

# What every module has for torch's own bookkeeping; of it hooks count, and tensors, which are told apart by shape.
OF_TORCH = frozenset(vars(nn.Module()))
HOOKS = sorted(name for name in OF_TORCH if name.endswith("_hooks"))
HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
AS_THEY_ARE = (
    *(type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, type),
    *(types.FunctionType, types.BuiltinFunctionType),
)


class NotPlain(Exception):
    """Something that cannot be told to be like something else."""


def likeness(model: nn.Module) -> Hashable:
    """Equal for models that make the same step: alike in all but the values of their tensors.

    Raises:
        NotPlain: a module has hooks, or an attribute that is no plain value.

    Example:
        >>> likeness(nn.Linear(2, 1)) == likeness(nn.Linear(2, 1))
        True
        >>> likeness(nn.Dropout(0.1)) == likeness(nn.Dropout(0.2))
        False
    """
    parts: list[Hashable] = []
    seen: dict[int, int] = {}  # what two names share is one tensor, or one module
    for name, module in model.named_modules(remove_duplicate=False):
        hooked = [hooks for hooks in HOOKS if getattr(module, hooks)]
        if hooked:
            raise NotPlain(f"{name or 'the model'} has {hooked[0].strip('_').replace('_', ' ')}")
        unread = OF_TORCH | getattr(type(module), "made_with", frozenset())
        own = {key: value for key, value in vars(module).items() if key not in unread}
        try:
            settings = plain(own)
        except NotPlain as error:
            raise NotPlain(f"{type(module).__name__}.{error}") from None
        parts.append((name, seen.setdefault(id(module), len(seen)), type(module), settings))
    for name, tensor in _tensors(model):
        if any(getattr(tensor, hooks, None) for hooks in HOOKS_OF_TENSORS):
            raise NotPlain(f"{name} has hooks")
        layout = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)
        parts.append((name, seen.setdefault(id(tensor), len(seen)), type(tensor), layout))
    return tuple(parts)


def _tensors(model: nn.Module, *, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(recurse=recurse, remove_duplicate=False)
    yield from model.named_buffers(recurse=recurse, remove_duplicate=False)


def plain(value: Any) -> Hashable:
    """The same for equal values of the same types; numbers, strings, functions and collections of them.

    Raises:
        NotPlain: it is something else, a tensor or an object.

    Example:
        >>> plain({"p": [0.1, True]}) == plain({"p": [0.1, 1]})
        False
    """
    if isinstance(value, AS_THEY_ARE):
        return type(value), value
    if isinstance(value, Mapping):
        items = []
        for key, each in value.items():
            try:
                items.append((key, plain(each)))
            except NotPlain as error:
                raise NotPlain(f"{key}: {error}") from None
        return type(value), tuple(items)
    if isinstance(value, list | tuple):
        return type(value), tuple(map(plain, value))
    if is_dataclass(value):
        return type(value), tuple(plain(getattr(value, field.name)) for field in fields(value))
    raise NotPlain(f"a {type(value).__name__}, which may change unseen")


@contextmanager
def on_stage(model: nn.Module, stage: nn.Module) -> Iterator[None]:
    """Inside, the model's weights and buffers are those of `stage`, with the model's values; afterwards its own again.

    What is done to the model inside is done in the memory of `stage`, where a kept step finds it, and is copied back.

    Args:
        model: of the same `likeness` as `stage`.
        stage: whose values are overwritten.

    Memory: copies the model's tensors on their device, there and back; both are kept meanwhile.
    """
    places: list[tuple[nn.Module, str, Tensor, Tensor]] = []
    for module, other in zip(model.modules(), stage.modules(), strict=True):
        twins = dict(_tensors(other, recurse=False))
        places += [(module, name, value, twins[name]) for name, value in _tensors(module, recurse=False)]
    with torch.no_grad():
        for module, name, value, twin in places:
            twin.copy_(value)
            value.grad = twin.grad = None
            setattr(module, name, twin)
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, value, twin in places:
                value.copy_(twin)
                setattr(module, name, value)
