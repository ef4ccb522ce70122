"""Collectives of plain values: trees as bytes, JSON and safetensors, which cannot run code."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of
from torch import Tensor

from gpupipe.training.checkpointing.checkpoint_format import join_tensors, split_tensors

__all__ = ["all_gather_object", "pack_tree", "unpack_tree"]

Value = TypeVar("Value")

_LENGTH = 8


def pack_tree(value: object) -> Tensor:
    """Serialize a tree of tensors, numbers, strings, booleans and None to bytes on the host: uint8.

    Raises:
        BadConfig: something else is in it.

    Memory: the tensors' bytes, three times meanwhile.

    Example:
        >>> unpack_tree(pack_tree({"a": (1, None, torch.zeros(2)), "b": float("inf")}))
        {'a': (1, None, tensor([0., 0.])), 'b': inf}
    """
    text, tensors = split_tensors(value)
    inside = json.dumps(text).encode()
    content = len(inside).to_bytes(_LENGTH, "little") + inside + bytes_of(tensors)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def unpack_tree(content: Tensor) -> Any:
    """Deserialize a tree that `pack_tree` wrote. Memory: its bytes once more."""
    whole = content.numpy().tobytes()
    end = _LENGTH + int.from_bytes(whole[:_LENGTH], "little")
    return join_tensors(json.loads(whole[_LENGTH:end]), tensors_from(whole[end:]))


def all_gather_object(value: Value, each: Callable[[Tensor], Tensor]) -> list[Value]:
    """Gather a plain value of every rank, in rank order, on all ranks; `each` stacks a small tensor of every rank.

    Example:
        >>> all_gather_object("x", lambda tensor: tensor[None])
        ['x']
    """
    content = pack_tree(value)
    sizes = each(torch.tensor(len(content))).tolist()
    padded = each(torch.cat([content, content.new_zeros(max(sizes) - len(content))]))
    return [unpack_tree(row[:size]) for row, size in zip(padded, sizes, strict=True)]
