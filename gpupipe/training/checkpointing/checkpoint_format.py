"""Checkpoint format: nested state as named tensors and plain JSON, for safetensors and a text file.

{"rate": 0.1, "moments": {0: (tensor, tensor)}}  ->  {"0": tensor, "1": tensor} and text that says where they go
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gpupipe.errors import BadConfig

__all__ = ["join_tensors", "snapshot", "split_tensors"]

_TENSOR, _PAIRS, _TUPLE = "$tensor", "$pairs", "$tuple"


def split_tensors(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """Split a tree into plain JSON with numbers for the tensors, and the tensors by these numbers.

    Args:
        tree: mappings, lists and tuples of tensors, numbers, strings, booleans and None.

    Raises:
        BadConfig: something else is in it.

    Memory: shares the tensors' memory.

    Example:
        >>> text, tensors = split_tensors({"a": torch.ones(2), "b": [1.5, None]})
        >>> text
        {'a': {'$tensor': '0'}, 'b': [1.5, None]}
    """
    tensors: dict[str, Tensor] = {}

    def part(node: Any) -> Any:
        if isinstance(node, Tensor):
            name = str(len(tensors))
            tensors[name] = node.detach()
            return {_TENSOR: name}
        if isinstance(node, Mapping):
            if all(isinstance(key, str) and not key.startswith("$") for key in node):
                return {key: part(value) for key, value in node.items()}
            return {_PAIRS: [[part(key), part(value)] for key, value in node.items()]}
        if isinstance(node, tuple):
            return {_TUPLE: [part(value) for value in node]}
        if isinstance(node, list):
            return [part(value) for value in node]
        if node is None or isinstance(node, str | bool | int | float):
            return node
        raise BadConfig(
            "checkpoint",
            "the state of the loader or optimiser holds something that cannot be written without pickle",
            got=type(node).__name__,
            expected="tensors, numbers, strings, None, and lists, tuples and mappings of them",
            remedy="a loader without state_dict, whose batches are passed over when a fit goes on",
        )

    return part(tree), tensors


def join_tensors(text: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Rebuild the tree that `split_tensors` split.

    Example:
        >>> join_tensors(*split_tensors({"a": (1, {2: torch.zeros(1)})}))
        {'a': (1, {2: tensor([0.])})}
    """
    if isinstance(text, list):
        return [join_tensors(value, tensors) for value in text]
    if not isinstance(text, dict):
        return text
    if text.keys() == {_TENSOR}:
        return tensors[text[_TENSOR]]
    if text.keys() == {_PAIRS}:
        return {join_tensors(key, tensors): join_tensors(value, tensors) for key, value in text[_PAIRS]}
    if text.keys() == {_TUPLE}:
        return tuple(join_tensors(value, tensors) for value in text[_TUPLE])
    return {key: join_tensors(value, tensors) for key, value in text.items()}


def snapshot(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], torch.cuda.Event | None]:
    """Copy tensors to the host as of this point of the stream; return the event after which the copies are complete.

    The host does not wait: what follows on the stream may change the originals.

    Memory: a copy of each on the host, pinned where the original lies on a GPU.
    """
    copies = {name: _on_host(tensor) for name, tensor in tensors.items()}
    on_gpu = any(tensor.is_cuda for tensor in tensors.values())
    return copies, torch.cuda.current_stream().record_event() if on_gpu else None


def _on_host(tensor: Tensor) -> Tensor:
    # Contiguous and never shared: safetensors writes neither tied weights nor views.
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return copy.copy_(tensor, non_blocking=True)
