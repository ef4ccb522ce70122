"""Masks of bytes: what compiled loops compute of 64 bytes at once is what Python computes of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpupipe.backend.byte_masks import BLOCK, count_bits, fill_quoted, find_byte, shift_mask
from gpupipe.backend.compiled import compile_loop


@compile_loop()
def _scan(rows: Any, text: Any, byte: int, before: Any) -> int:
    for row in range(rows.shape[0]):
        mask = find_byte(text, row * BLOCK, byte)
        rows[row, 0], rows[row, 1] = mask, count_bits(mask)
        rows[row, 2], rows[row, 3] = shift_mask(mask, before), fill_quoted(mask)
        before = mask
    return 0


@pytest.mark.slow
@pytest.mark.parametrize("byte", [0, 10, 34, 128, 255])
def test_bytes_are_found_as_bits(byte: int) -> None:
    text = np.random.default_rng(byte).choice(np.array([0, 10, 34, 127, 128, 255], np.uint8), 7 * BLOCK)
    found = np.zeros((7, 4), np.uint64)
    _scan(found, text, byte, np.uint64(0))
    for row, (mask, count, shifted, filled) in enumerate(found.tolist()):
        bits = [bool(one == byte) for one in text[row * BLOCK : row * BLOCK + BLOCK]]
        assert [bool(mask >> place & 1) for place in range(BLOCK)] == bits
        assert (mask, count) == (find_byte(text, row * BLOCK, byte), count_bits(mask)) == (mask, sum(bits))
        before = row > 0 and bool(text[row * BLOCK - 1] == byte)
        assert [bool(shifted >> place & 1) for place in range(BLOCK)] == [before, *bits[:-1]]
        assert [bool(filled >> place & 1) for place in range(BLOCK)] == [
            sum(bits[: place + 1]) % 2 == 1 for place in range(BLOCK)
        ]
