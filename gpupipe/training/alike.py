"""Whether two models make the same step: the same modules, with the same settings, over tensors of the same shapes.

A step that is kept has all built in that Python code read of a module, the values of tensors apart. So whatever of a
model is neither a tensor nor a plain value makes it like no other.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

__all__ = ["NotPlain", "likeness", "on_stage", "plain", "surroundings", "tensors_of"]

# What every module has for torch's own bookkeeping; of it hooks count, and tensors, which are told apart by shape.
OF_TORCH = frozenset(vars(nn.Module()))
HOOKS = sorted(name for name in OF_TORCH if name.endswith("_hooks"))
HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
AS_THEY_ARE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, type)


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
    memory: dict[int, tuple[int, int, int]] = {}
    for name, tensor in _tensors(model):
        if any(getattr(tensor, hooks, None) for hooks in HOOKS_OF_TENSORS):
            raise NotPlain(f"{name} has hooks")
        if tensor.layout != torch.strided or tensor.is_inference() or not tensor.is_leaf:
            raise NotPlain(f"{name} cannot be written to, or is sparse")
        layout = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)
        parts.append((name, seen.setdefault(id(tensor), len(seen)), type(tensor), layout))
        memory[id(tensor)] = _bytes_of(tensor)
    places = sorted(memory.values())
    shared = (one[0] == other[0] and one[2] > other[1] for one, other in itertools.pairwise(places))
    if any(shared) or any(0 in tensor.stride() for _, tensor in _tensors(model)):
        raise NotPlain("values of the model's tensors share memory")
    return tuple(parts)


def _bytes_of(tensor: Tensor) -> tuple[int, int, int]:
    """Its storage, its first byte there, and the one after its last."""
    storage, start, size = tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()), tensor.element_size()
    if not tensor.numel():
        return storage, start * size, start * size
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return storage, start * size, (start + last + 1) * size


def _tensors(model: nn.Module, *, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(recurse=recurse, remove_duplicate=False)
    yield from model.named_buffers(recurse=recurse, remove_duplicate=False)


def plain(value: Any) -> Hashable:
    """The same for equal values of the same types: numbers, strings, collections of them; functions with what they see.

    Raises:
        NotPlain: it is something else, a tensor or an object.

    Example:
        >>> plain({"p": [0.1, True]}) == plain({"p": [0.1, 1]})
        False
    """
    if isinstance(value, AS_THEY_ARE):
        return type(value), repr(value) if isinstance(value, float) else value  # nan is like nan
    if isinstance(value, types.BuiltinFunctionType):
        return value
    if isinstance(value, types.FunctionType):
        try:
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            return value.__code__, id(value.__globals__), plain([cells, value.__defaults__, value.__kwdefaults__])
        except (ValueError, RecursionError):
            raise NotPlain(f"{value.__name__} sees itself, or a variable with nothing in it") from None
    if isinstance(value, partial):
        return partial, plain([value.func, value.args, value.keywords])
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
        own = {field.name: getattr(value, field.name) for field in fields(value)}
        return type(value), plain(own | getattr(value, "__dict__", {}))
    raise NotPlain(f"a {type(value).__name__}, which may change unseen")


def surroundings(device: torch.device) -> Hashable:
    """What of torch's own settings kernels are chosen by."""
    kind, backends = device.type, cast(Any, torch.backends)
    cuda, cudnn = backends.cuda, backends.cudnn
    kernels = (cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled, cuda.cudnn_sdp_enabled)
    return (
        *(torch.get_default_dtype(), torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)),
        *(torch.are_deterministic_algorithms_enabled(), cudnn.enabled, cudnn.deterministic, cudnn.benchmark),
        *(part.fp32_precision for part in (cuda.matmul, cudnn.conv, cudnn.rnn, backends.mkldnn.matmul)),
        *(enabled() for enabled in kernels),
    )


def tensors_of(model: nn.Module) -> list[Tensor]:
    """The parameters and buffers in a model's slots, module by module; one that several share comes as often."""
    return [value for module in model.modules() for _, value in _tensors(module, recurse=False)]


@contextmanager
def on_stage(model: nn.Module, stage: Sequence[Tensor]) -> Iterator[None]:
    """Inside, the model's weights and buffers are those of `stage`, with the model's values; afterwards its own again.

    What is done to the model inside is done in the memory of `stage`, where a kept step finds it, and is copied back.

    Args:
        model: whose modules are as they are, inside too.
        stage: as `tensors_of` a model of the same `likeness` gives them; their values are overwritten.

    Memory: copies the model's tensors on their device, there and back; both are kept meanwhile.
    """
    slots = [(module, name) for module in model.modules() for name, _ in _tensors(module, recurse=False)]
    own = tensors_of(model)
    try:
        with torch.no_grad():
            for (module, name), value, place in zip(slots, own, stage, strict=True):
                place.copy_(value).requires_grad_(value.requires_grad)
                value.grad = place.grad = None
                setattr(module, name, place)
        yield
    finally:
        homes = {id(place): value for value, place in zip(own, stage, strict=True)}
        for module, name in slots:
            home = homes.get(id(getattr(module, name, None)))
            if home is not None:  # else it is what the model itself has put there, or has taken away
                setattr(module, name, home)
        with torch.no_grad():
            for value, place in zip(own, stage, strict=True):
                value.requires_grad_(place.requires_grad).copy_(place)
