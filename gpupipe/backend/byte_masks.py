"""Bytes as bits: a byte is looked for in 64 others at once, in compiled loops that scan a text.

A loop that looks at one byte after the other guesses wrongly at the end of each value what comes next, and takes ten
times as long; what is computed of the bits of a uint64 is computed of 64 bytes by one instruction. Source: Langdale,
Lemire, "Parsing gigabytes of JSON per second", VLDB Journal 28, 2019.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from gpupipe.backend.compiled import inline, prepare

BLOCK = 64
_ONE, _LAST = np.uint64(1), np.uint64(BLOCK - 1)


def find_byte(text: Any, start: int, byte: int) -> Any:
    """Find a byte in the 64 of a uint8 array from `start` on: bit i of a uint64 is set where byte `start + i` is it."""
    return np.packbits(text[start : start + BLOCK] == byte, bitorder="little").view(np.uint64)[0]


def count_bits(mask: Any) -> Any:
    """Count the bits of a uint64 that are set."""
    return int(mask).bit_count()


@inline
def shift_mask(mask: Any, before: Any) -> Any:
    """Move bits to the following bytes; bit 0 is that of the last byte of the block `before`."""
    return mask << _ONE | before >> _LAST


@inline
def fill_quoted(quotes: Any) -> Any:
    """Set the bits from each first quotation mark up to the second: each bit XORed with all before it."""
    for shift in (1, 2, 4, 8, 16, 32):
        quotes ^= quotes << np.uint64(shift)
    return quotes


def _lower(extending: Any) -> None:
    """Tell Numba the instructions of `find_byte` and `count_bits`, which LLVM does not find in loops over bytes."""
    ir, types = import_module("llvmlite.ir"), import_module("numba").types
    block = ir.VectorType(ir.IntType(8), BLOCK)

    def compare(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        text = context.make_array(signature.args[0])(context, builder, values[0])
        start = context.cast(builder, values[1], signature.args[1], types.intp)
        byte = context.cast(builder, values[2], signature.args[2], types.uint8)
        address = builder.bitcast(builder.gep(text.data, [start]), block.as_pointer())
        single = builder.insert_element(ir.Constant(block, ir.Undefined), byte, ir.IntType(32)(0))
        places = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), [0] * BLOCK)
        each = builder.shuffle_vector(single, single, places)
        return builder.bitcast(builder.icmp_unsigned("==", builder.load(address, align=1), each), ir.IntType(BLOCK))

    extending.type_callable(find_byte)(lambda _: lambda _text, _start, _byte: types.uint64)
    extending.lower_builtin(find_byte, types.Array, types.Integer, types.Integer)(compare)
    extending.type_callable(count_bits)(lambda _: lambda _mask: types.int64)
    extending.lower_builtin(count_bits, types.uint64)(
        lambda _context, builder, _signature, values: builder.ctpop(*values)
    )


prepare(_lower)
