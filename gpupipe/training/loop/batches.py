"""Access to batches, a `Batch` or any tree of tensors: rows, target, weight, another device; trees as plain JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.tensors.batch import Batch, Ragged

Tree = TypeVar("Tree")


def num_rows(batch: Any) -> int:
    """Return a batch's number of rows: its length, or the first dimension of the first tensor that has one."""
    if isinstance(batch, Batch):
        return len(batch)
    rows: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        rows.extend(tensor.shape[:1])
        return tensor

    _map_tensors(note, batch)
    if not rows:
        problem, got = "a batch without rows to count", type(batch).__name__
        expected = "a Batch, or tuples, lists, mappings and dataclasses of tensors whose first dimension is the row"
        raise BadData("Trainer", problem, got=got, expected=expected, remedy="yield (features, target) from the loader")
    return rows[0]


def num_batches(loader: Any) -> int:
    """Return the number of batches per epoch; refuse a loader that has no length."""
    try:
        return len(loader)
    except TypeError:
        problem, got = "the train loader does not say how many batches it has", type(loader).__name__
        expected = "an iterable with len(), which the schedule is made for"
        remedy = "pipeline.loader(...), a DataLoader over a sized dataset, or a list of batches"
        raise BadConfig("Trainer.fit", problem, got=got, expected=expected, remedy=remedy) from None


def get_weight(batch: Any) -> Tensor | None:
    """Return the batch's sample weights, or None."""
    return getattr(batch, "weight", None)


def matching_target(output: Tensor, batch: Any, where: str, *, classes: bool = False) -> Tensor:
    """Return the batch's target; refuse an output that does not fit it, which broadcasting would hide."""
    target: Tensor | None = getattr(batch, "target", None)
    if target is None:
        expected = "batches with a `target` of one value a row"
        remedy = "a loader of rows that have the columns of gp.Features(target=), or loss=lambda output, batch: ..."
        raise BadData(where, "the batch has no target", got=type(batch).__name__, expected=expected, remedy=remedy)
    if (output.shape[:-1] if classes else output.shape) != target.shape:
        problem = "the model's output does not fit the target"
        got = f"output {tuple(output.shape)}, target {tuple(target.shape)}"
        expected = "B x K logits for B class indices" if classes else "as many values as the target has, B"
        remedy = "MLP.from_schema(pipeline.schema), or `output.squeeze(1)` in the model's forward"
        if classes and output.shape == target.shape:
            remedy = "loss='auto', which is 'bce' for two classes and 'mse' for numbers"
        if not classes and output.ndim == target.ndim + 1 and output.shape[-1] > 1:
            remedy = "loss='cross-entropy' for classes, or a model of one output: MLP.from_schema(pipeline.schema)"
        raise SchemaMismatch(where, problem, got=got, expected=expected, remedy=remedy)
    return target


def full_precision(output: Any) -> Tensor:
    """Convert the output to float32; float64 stays, and what is no tensor is refused."""
    if not isinstance(output, Tensor):
        expected = "B values or B x K logits, or a loss of its own that takes what comes out"
        remedy = "`return` in the model's forward, or loss=lambda output, batch: ..."
        raise SchemaMismatch("model", "its output is no tensor", got=type(output), expected=expected, remedy=remedy)
    return output if output.dtype == torch.float64 else output.float()


def move(batch: Tree, device: torch.device) -> Tree:
    """Move the batch's tensors to `device`; return the batch itself if they are there."""
    if isinstance(batch, Batch) and batch.numeric.device == device:
        return batch
    return _map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)


def move_batches(loader: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """Yield the batches that have rows, on the device."""
    return (move(batch, device) for batch in loader if num_rows(batch))


def split_rows(batch: Tree, parts: int) -> Iterator[Tree]:
    """Split the batch's rows into up to `parts` views of equal size; tensors without rows are in each."""
    rows = num_rows(batch)
    size = max(-(-rows // parts), 1)

    def take(start: int) -> Tree:
        stop = min(start + size, rows)
        return _map_tensors(
            lambda tensor: tensor[start:stop] if tensor.ndim and tensor.shape[0] == rows else tensor,
            batch,
            lambda lists: lists.narrow(start, stop),
        )

    return map(take, range(0, rows, size))


def _map_tensors(
    function: Callable[[Tensor], Tensor], tree: Tree, of_lists: Callable[[Ragged], Ragged] | None = None
) -> Tree:
    """Replace each tensor of the tree, and each list as a whole if there is a function for lists."""

    def convert(node: Any) -> Any:
        if isinstance(node, Tensor):
            return function(node)
        if isinstance(node, Ragged) and of_lists is not None:
            return of_lists(node)
        if is_dataclass(node) and not isinstance(node, type):
            return replace(node, **{field.name: convert(getattr(node, field.name)) for field in fields(node)})
        if isinstance(node, Mapping):
            return {key: convert(value) for key, value in node.items()}
        if isinstance(node, tuple) and hasattr(node, "_make"):
            return node._make(map(convert, node))
        return type(node)(map(convert, node)) if isinstance(node, list | tuple) else node

    return cast(Tree, convert(tree))


def split_tensors(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """Split a tree into plain JSON with numbers for the tensors, and the tensors by these numbers."""
    tensors: dict[str, Tensor] = {}

    def split(node: Any) -> Any:
        if isinstance(node, Tensor):
            name = str(len(tensors))
            tensors[name] = node.detach()
            return {"$tensor": name}
        if isinstance(node, Mapping):
            if all(isinstance(key, str) and not key.startswith("$") for key in node):
                return {key: split(value) for key, value in node.items()}
            return {"$pairs": [[split(key), split(value)] for key, value in node.items()]}
        if isinstance(node, list | tuple):
            each = [split(value) for value in node]
            return {"$tuple": each} if isinstance(node, tuple) else each
        if node is None or isinstance(node, str | bool | int | float):
            return node
        problem = "the state of the loader or optimiser holds something that cannot be written without pickle"
        expected = "tensors, numbers, strings, None, and lists, tuples and mappings of them"
        remedy = "a loader without state_dict, whose batches are passed over when a fit goes on"
        raise BadConfig("checkpoint", problem, got=type(node).__name__, expected=expected, remedy=remedy)

    return split(tree), tensors


def join_tensors(text: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Rebuild the tree that `split_tensors` split."""
    match text:
        case list():
            return [join_tensors(value, tensors) for value in text]
        case {"$tensor": name}:
            return tensors[name]
        case {"$pairs": pairs}:
            return {join_tensors(key, tensors): join_tensors(value, tensors) for key, value in pairs}
        case {"$tuple": values}:
            return tuple(join_tensors(values, tensors))
        case dict():
            return {key: join_tensors(value, tensors) for key, value in text.items()}
    return text
