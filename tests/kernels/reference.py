"""What the feature kernel has to write, in NumPy: column by column, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpupipe.backend import Column, RawColumn
from gpupipe.backend.kernels import DeferredColumn, ElementwiseProgram


def values_of(stored: RawColumn) -> Any:
    """Float64 with NaN where missing."""
    values = stored.data.astype(np.float64)
    if stored.mask is not None:
        bits = stored.mask if stored.per_byte == 1 else np.unpackbits(stored.mask, bitorder="little")
        values[bits[stored.first : stored.first + len(values)] == 0] = np.nan
    return values


def results_of(x: Any, program: ElementwiseProgram) -> Any:
    """What becomes of float64s, in float64."""
    with np.errstate(all="ignore"):
        if program.fill is not None:
            x = np.where(np.isnan(x), program.fill, x)
        if program.clip is not None:
            x = np.clip(x, *program.clip)
        if program.log:
            x = np.log1p(x).astype(np.float32).astype(np.float64)
        if program.scale is not None:
            scale = program.scale
            x = (x - scale.offset) / scale.divisor * scale.multiplier + scale.shift
            x = np.clip(x, scale.low, scale.high)
    return x


def is_refused(x: Any, program: ElementwiseProgram) -> bool:
    """Whether float64s hold something that no block may, or no logarithm is of."""
    filled = x if program.fill is None else np.where(np.isnan(x), program.fill, x)
    clipped = filled if program.clip is None else np.clip(filled, *program.clip)
    with np.errstate(all="ignore"):
        result = results_of(x, program).astype(np.float32)
    too_low = program.log and bool((clipped <= -1).any())
    return too_low or bool(np.isinf(filled).any()) or not bool(np.isfinite(result).all())


def block_of(columns: Sequence[Column], ids: Sequence[bool], width: int, halves: int) -> Any:
    """n x `width` int32, as `write_rows` says."""
    words = np.zeros((len(columns[0]), width), np.int32)
    for place, (column, is_id) in enumerate(zip(columns, ids, strict=True)):
        late = isinstance(column, DeferredColumn)
        x = results_of(values_of(column.source), column.program) if late else column.data.astype(np.float64)
        if place < halves:
            words.view(np.int16)[:, place] = bfloat16(x.astype(np.float32))
        else:
            words[:, place - halves + -(-halves // 2)] = x if is_id else x.astype(np.float32).view(np.int32)
    return words


def bfloat16(x: Any) -> Any:
    """The bits of float32s rounded to the nearest, to even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.int16)
