"""Rows of a feature table on the host, as estimators get them: numbers, with lists as numbers, then ids."""

from __future__ import annotations

import torch
from torch import Tensor

from gpupipe.backend.candidates import Layout, Rows
from gpupipe.errors import BadConfig
from gpupipe.schema import Field, Schema
from gpupipe.tensors import FeatureTable, Ragged

MAX_ELEMENTS = 100  # ids of a feature of lists that have a column of their counts, the most frequent ones


def make_layout(schema: Schema) -> Layout:
    """Return what of a schema estimators get; `BadConfig` without a target."""
    if schema.target is None or schema.task is None:
        problem, remedy = "nothing to learn", "gp.Features(..., target='column')"
        raise BadConfig("compare", problem, got=schema.names, expected="a column with the role target", remedy=remedy)
    classes = schema.target.classes
    outputs = len(classes) if classes is not None and schema.task == "multiclass" else len(schema.targets)
    numbers = [item.name for item in schema.numeric]
    numbers += [f"{item.name}_{column}" for item in schema.lists for column in range(_count_columns(item))]
    return Layout(numbers, {item.name: item.cardinality or 0 for item in schema.categorical}, schema.task, outputs)


def copy_to_host(block: FeatureTable) -> Rows:
    """Copy a block's features, target and weight to the host, lists as numbers."""
    bags = [_sum_lists(block.lists[item.name], _count_columns(item)) for item in block.schema.lists]
    numbers = torch.cat([block.numeric, *bags], 1) if bags else block.numeric
    # Columns of the block have gaps between their values, which LightGBM does not take.
    labels = (None if part is None else part.cpu().contiguous().numpy() for part in (block.target, block.weight))
    return Rows(numbers.cpu().numpy(), block.codes.cpu().numpy(), *labels)


def _count_columns(item: Field) -> int:
    """Return the number of columns that a list feature becomes."""
    return 2 if item.cardinality is None else min(item.cardinality, MAX_ELEMENTS)


def _sum_lists(lists: Ragged, width: int) -> Tensor:
    """Count how often each id is in a list (n x width), large ids as unknown; of number lists length and mean."""
    if lists.values.is_floating_point():
        sums = torch.segment_reduce(lists.values, "sum", offsets=lists.offsets)
        return torch.stack([lists.lengths.float(), sums / lists.lengths.clamp_min(1)], 1)
    rows = torch.repeat_interleave(torch.arange(len(lists), device=lists.values.device), lists.lengths)
    cells = rows * width + torch.where(lists.values < width, lists.values, 1)
    counts = torch.zeros(len(lists) * width, device=cells.device)  # torch's bincount takes two int64 beside them
    return counts.scatter_add_(0, cells, torch.ones(1, device=cells.device).expand(len(cells))).view(-1, width)


def describe_lists(item: Field) -> str:
    """Say what a list feature becomes."""
    if item.cardinality is None:
        return f"{item.name}: its lists' length and mean"
    more = item.cardinality - _count_columns(item)
    remainder = f", the other {more:,} together as unknown" if more else ""
    return f"{item.name}: counts of {_count_columns(item):,} ids in its lists{remainder}"
