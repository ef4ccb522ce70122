"""What ranks tell each other as bytes: JSON for plain values and safetensors for tensors, so nothing in it can run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of
from torch import Tensor

from gpupipe.training.checkpointing.checkpoint_format import joined, parted

__all__ = ["packed", "told_by_all", "unpacked"]

Value = TypeVar("Value")

_LENGTH = 8


def packed(value: object) -> Tensor:
    """A tree of tensors, numbers, strings, booleans and None as bytes on the host: uint8.

    Raises:
        BadConfig: something else is in it.

    Memory: the tensors' bytes, three times meanwhile.

    Example:
        >>> unpacked(packed({"a": (1, None, torch.zeros(2)), "b": float("inf")}))
        {'a': (1, None, tensor([0., 0.])), 'b': inf}
    """
    text, tensors = parted(value)
    inside = json.dumps(text).encode()
    content = len(inside).to_bytes(_LENGTH, "little") + inside + bytes_of(tensors)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def unpacked(content: Tensor) -> Any:
    """The tree that was packed. Memory: its bytes once more."""
    whole = content.numpy().tobytes()
    end = _LENGTH + int.from_bytes(whole[:_LENGTH], "little")
    return joined(json.loads(whole[_LENGTH:end]), tensors_from(whole[end:]))


def told_by_all(value: Value, each: Callable[[Tensor], Tensor]) -> list[Value]:
    """Such a tree of every rank, in their order, on all of them; `each` stacks a small tensor of every rank.

    Example:
        >>> told_by_all("x", lambda tensor: tensor[None])
        ['x']
    """
    content = packed(value)
    sizes = each(torch.tensor(len(content))).tolist()
    padded = each(torch.cat([content, content.new_zeros(max(sizes) - len(content))]))
    return [unpacked(row[:size]) for row, size in zip(padded, sizes, strict=True)]
