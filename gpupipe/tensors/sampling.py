"""Weighted sampling with replacement: an order that is computed, as a permutation is.

Draw number p of an epoch is SplitMix64's p-th number of the stream that seed and epoch choose (Steele, Lea and Flood,
2014), looked up in the running sum of the weights. The sum is of integers, so it is the same on every device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpupipe.errors import BadConfig, BadData
from gpupipe.support.validation import is_one_of
from gpupipe.tensors.feature_table import FeatureTable
from gpupipe.tensors.order import Rows, stream_key

_SCALE_BITS = 44  # of all weights together: 17,000 steps for the average of a billion rows, and a bias below 1e-5
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Drawn:
    """Order of weighted draws, as many as there are rows.

    Args:
        sums: n int64, the running sum of the rows' weights; see `running_sum`.
        seed: any integer.
        epoch: from 0.

    Memory: some arrays of 8 bytes per position asked for.
    """

    def __init__(self, sums: Tensor, *, seed: int, epoch: int) -> None:
        self._sums, self._total = sums, int(sums[-1]) if len(sums) else 0
        self._key = stream_key(seed, epoch)

    def at(self, start: int, stop: int, device: torch.device) -> Rows:
        """Return the rows at the draws from `start` to before `stop`."""
        if device.type == "cpu":
            values = torch.from_numpy(self._drawn(np.arange(start + 1, stop + 1, dtype="int64")))
        else:
            values = self._drawn(torch.arange(start + 1, stop + 1, device=device))
        return torch.searchsorted(self._sums, values, right=True)

    def _drawn(self, counters: Any) -> Any:
        """Draw a number from 0 to below the total for each; NumPy's and torch's int64 wrap alike."""
        value = counters * _to_signed(_GAMMA) + _to_signed(self._key)
        for bits, factor in ((30, _FIRST), (27, _SECOND)):
            value = (value ^ _shift_right(value, bits)) * _to_signed(factor)
        return _shift_right(value ^ _shift_right(value, 31), 2) % self._total


def running_sum(table: FeatureTable, sampler: str | Tensor) -> Tensor:
    """Return the running sum of the weights, in which `Drawn` finds rows.

    Args:
        table: n rows.
        sampler: "balanced" for classes of the target that come equally often, "weights" for the table's weights, or
            n weights.

    Raises:
        BadConfig: no such sampler, or the table has not what it asks for.
        BadData: a weight is negative or not finite, or all are 0.

    Memory: n int64 on the table's device, and as much again for a moment.
    """
    if isinstance(sampler, Tensor):
        shares = _check_weights(sampler.to(table.device), len(table))
    elif is_one_of(sampler, ["balanced"]):
        shares = _compute_class_weights(table.target)
    elif is_one_of(sampler, ["weights"]):
        if table.weight is None:
            raise _bad("the table has no weights", sampler, "Features(..., weight=...)", "sampler='balanced'")
        shares = _check_weights(table.weight, len(table))
    else:
        raise _bad("no such sampler", sampler, "'balanced', 'weights' or a weight for each row", "sampler='balanced'")
    return torch.cumsum(shares, 0)


def _compute_class_weights(target: Tensor | None) -> Tensor:
    if target is None or target.ndim != 1 or (target.is_floating_point() and bool((target != target.round()).any())):
        got = "none" if target is None else f"{target.ndim} dimensions of {target.dtype}"
        raise _bad("the target has no classes", got, "one target of class numbers, or of 0 and 1", "sampler='weights'")
    _, classes, counts = torch.unique(target, return_inverse=True, return_counts=True)
    each = (1 << _SCALE_BITS) // (counts * len(counts)).clamp(min=1)
    return torch.index_select(each, 0, classes)


def _check_weights(weights: Tensor, num_rows: int) -> Tensor:
    if weights.shape != (num_rows,):
        raise _bad("not a weight for each row", tuple(weights.shape), (num_rows,), "sampler=weights of that shape")
    weights = weights.double()
    total = float(weights.sum())
    if num_rows and not (total > 0 and total < float("inf") and bool((weights >= 0).all())):
        raise BadData(
            "loader(sampler=)",
            "rows cannot be drawn by these weights",
            got=f"from {float(weights.min())} to {float(weights.max())}",
            expected="finite weights of 0 or more, some above 0",
            remedy="a weight of 0 for rows that are never drawn",
        )
    # By a power of two, which changes no digit of a weight.
    return (weights * 2.0 ** (_SCALE_BITS - _exponent(total))).long()


def _exponent(total: float) -> int:
    return int(np.frexp(total)[1])


def _shift_right(value: Any, bits: int) -> Any:
    """Shift right, with zeros coming in from the left."""
    return (value >> bits) & (1 << 64 - bits) - 1


def _to_signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _bad(problem: str, got: object, expected: object, remedy: str) -> BadConfig:
    return BadConfig("loader(sampler=)", problem, got=got, expected=str(expected), remedy=remedy)
