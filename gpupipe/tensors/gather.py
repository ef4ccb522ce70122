"""Gathering: rows copied from one feature table into another, and batches as views of the copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from gpupipe.tensors.batch import Batch
from gpupipe.tensors.feature_table import FeatureTable
from gpupipe.tensors.order import Rows
from gpupipe.tensors.sharding import Sharding, Step

__all__ = ["RowSource", "fill", "gather", "group_steps", "split_batches"]


class RowSource(Protocol):
    """Source of the rows of an epoch's order."""

    def copy_rows(self, start: int, stop: int, out: FeatureTable, at: int) -> None:
        """Copy the rows at these positions into `out` from its row `at` on."""


def gather(
    table: FeatureTable, rows: Rows, out: FeatureTable, at: int = 0, num_values: Mapping[str, int] | None = None
) -> None:
    """Copy rows of `table` into `out` from its row `at` on; both are on one device.

    Args:
        table: of the same columns as `out`.
        rows: of it.
        out: where they go.
        at: the first row there.
        num_values: how many elements the rows' lists have, by column; where it is not given, the device is asked.
    """
    _copy(table.words, rows, out.words, at)
    for name, values in table.keep.items():
        _copy(values, rows, out.keep[name], at)
    if table.schema.lists:
        numbers = torch.arange(rows.start, rows.stop, device=table.device) if isinstance(rows, slice) else rows
        counts = num_values or {}
        out.put_lists(at, {name: lists.take(numbers, counts.get(name)) for name, lists in table.lists.items()})


def group_steps(ranks: Sharding, first: int, many: int) -> Iterator[list[Step]]:
    """Yield the steps of an epoch from number `first` on, so many at a time."""
    for start in range(first, len(ranks), many):
        yield [ranks.step(number) for number in range(start, min(start + many, len(ranks)))]


def fill(slab: FeatureTable, steps: Sequence[Step], source: RowSource) -> None:
    """Copy the rows of consecutive steps into a table of just as many; padding becomes zeros, which are missing ids."""
    at, waiting = 0, 0  # rows that are copied; steps before this one that follow each other and are copied at once
    alone = len(slab.schema.lists) > 0  # a step's lists stay together: their end is known
    slab.forget_lists()
    for number, step in enumerate(steps):
        last = number + 1 == len(steps)
        if alone or last or step.size != step.stop - step.start or steps[number + 1].start != step.stop:
            source.copy_rows(steps[waiting].start, step.stop, slab, at)
            at += step.stop - steps[waiting].start
            padded = step.size - (step.stop - step.start)
            if padded:
                slab.words[at : at + padded].zero_()
                for values in slab.keep.values():
                    values[at : at + padded].zero_()
            at, waiting = at + padded, number + 1


def split_batches(
    slab: FeatureTable, steps: Sequence[Step], *, pads: bool, unweighted: bool = False
) -> Iterator[Batch]:
    """Yield the batches in a table that was filled. Memory: shares.

    Args:
        slab: holds the rows of the steps, one after the other.
        steps: whose they are.
        pads: whether all batches have weights, as some have padding.
        unweighted: whether the table's own weights are left out, as they decided which rows were drawn.
    """
    sizes, whole = [step.size for step in steps], slab.batch_of(slab.words)
    none = [None] * len(steps)
    numeric, codes = whole.numeric.split_with_sizes(sizes), whole.codes.split_with_sizes(sizes)
    targets = none if whole.target is None else whole.target.split_with_sizes(sizes)
    weights = none if whole.weight is None or unweighted else whole.weight.split_with_sizes(sizes)
    kept = {name: values.split_with_sizes(sizes) for name, values in slab.keep.items()}
    for number, (step, end) in enumerate(zip(steps, accumulate(sizes), strict=True)):
        keep = {name: parts[number] for name, parts in kept.items()}
        batch = Batch(numeric[number], codes[number], targets[number], weights[number], keep)
        for name, lists in slab.lists_between(end - step.size, end).items():
            batch.lists[name] = lists.followed_by_empty(step.size - len(lists))
        if pads and batch.weight is None:
            batch.weight = torch.ones(step.size, device=slab.device)
            batch.weight[step.stop - step.start :] = 0
        yield batch


def _copy(source: Tensor, rows: Rows, out: Tensor, at: int) -> None:
    if isinstance(rows, slice):
        out[at : at + rows.stop - rows.start].copy_(source[rows])
    else:
        torch.index_select(source, 0, rows, out=out[at : at + len(rows)])
