"""Batch: the input of a network's `forward`, some rows as tensors on one device; lists as values and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from gpupipe.errors import BadConfig
from gpupipe.support.calls import answer_calls


@dataclass(slots=True)
class Ragged:
    """Ragged lists: B of different lengths on one device.

    Args:
        values: the elements of all lists, one list after the other: int32 ids, or float32 numbers.
        offsets: B + 1 int64, where each list begins in `values`, and where the last one ends. The first is 0.

    Example:
        >>> lists = Ragged(torch.tensor([7, 8, 9], dtype=torch.int32), torch.tensor([0, 2, 2, 3]))
        >>> len(lists), lists.lengths.tolist(), lists.pad(2).tolist()
        (3, [2, 0, 1], [[7, 8], [0, 0], [9, 0]])
    """

    values: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    @property
    def lengths(self) -> Tensor:
        """The lengths of the lists, B int64. Memory: 8 B bytes."""
        return self.offsets.diff()

    def mask(self, length: int) -> Tensor:
        """Return B x length booleans: where `pad(length)` holds elements. Memory: B x length bytes on the device."""
        return torch.arange(length, device=self.offsets.device) < self.lengths[:, None]

    def pad(self, length: int, value: float = 0) -> Tensor:
        """Return the first `length` elements of each list, B x length, shorter ones padded; without a host sync.

        Raises `BadConfig`: no positive length.
        Memory: B x length values and as many int64 positions, on the device.
        """
        if length < 1:
            raise BadConfig("Ragged.pad", "no length", got=length, expected="1 or more", remedy="pad(50)")
        places = self.offsets[:-1, None] + torch.arange(length, device=self.offsets.device)
        # One value more, where all places beyond the end of a list look.
        extended = torch.cat([self.values, self.values.new_full((1,), value)])
        return extended[torch.where(self.mask(length), places, len(self.values))]

    def narrow(self, start: int, stop: int) -> Ragged:
        """Return the lists of these rows. Memory: shares the elements; the device is asked for two offsets."""
        offsets = self.offsets[start : stop + 1]
        first, last = offsets[[0, -1]].tolist()
        return Ragged(self.values[first:last], offsets - first)

    def followed_by_empty(self, num_lists: int) -> Ragged:
        """Append so many empty lists. Memory: shares the elements."""
        if num_lists == 0:
            return self
        return Ragged(self.values, torch.cat([self.offsets, self.offsets[-1:].expand(num_lists)]))

    def to(self, device: torch.device) -> Ragged:
        """Return the lists on a device. Memory: shares what is there already."""
        return Ragged(self.values.to(device), self.offsets.to(device))

    def take(self, rows: Tensor, num_values: int | None = None) -> Ragged:
        """Return the lists of these rows, in that order; the device is asked how many elements they have, unless given.

        Memory: the elements, and two int64 for each while they are gathered.
        """
        starts, lengths = self.offsets[:-1][rows], self.lengths[rows]
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        shift = torch.repeat_interleave(starts - offsets[:-1], lengths, output_size=num_values)
        places = shift + torch.arange(len(shift), device=shift.device)
        return Ragged(self.values[places], offsets)


def concat_ragged(parts: Sequence[Ragged]) -> Ragged:
    """Concatenate the lists of all parts; share a single part."""
    if len(parts) == 1:
        return parts[0]
    starts = accumulate((len(part.values) for part in parts), initial=0)
    ends = [part.offsets[1:] + start for part, start in zip(parts, starts, strict=False)]
    return Ragged(torch.cat([part.values for part in parts]), torch.cat([parts[0].offsets[:1], *ends]))


@answer_calls
@dataclass(slots=True)
class Batch:
    """Batch of B rows of features with targets, weights, kept columns and lists, all on one device.

    Args:
        numeric: B x F float32, in the order of `schema.numeric`.
        codes: B x C int32 ids, in the order of `schema.categorical`; 0 missing, 1 unknown.
        target: B values, float32 (regression, binary 0/1) or int32 class indices; B x T float32 for several targets.
        weight: B float32 sample weights.
        keep: columns carried with the features: timestamps as int64 microseconds, strings as int64 codes.
        lists: the lists among the features, by name; ids int32, numbers float32. A missing list is an empty one.

    Example:
        >>> len(Batch(torch.zeros(5, 3), torch.zeros(5, 0, dtype=torch.int32)))
        5
    """

    numeric: Tensor
    codes: Tensor
    target: Tensor | None = None
    weight: Tensor | None = None
    keep: dict[str, Tensor] = field(default_factory=dict)
    lists: dict[str, Ragged] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.numeric.shape[0]
