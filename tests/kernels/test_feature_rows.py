"""The kernel in Triton's interpreter against NumPy, on columns that hypothesis makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpupipe.backend import Column, RawColumn
from gpupipe.backend.kernels import DeferredColumn, ElementwiseProgram, Scale

from .reference import block_of, is_refused, values_of

Write = Callable[..., bool]
TYPES = ["float64", "float32", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"]
NUM_ROWS = st.sampled_from([0, 1, 63, 64, 127, 128, 129, 255, 256, 257, 300, 512])
SOME = settings(deadline=None, max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])
finite = st.floats(-1e6, 1e6, width=32)


def numbers(draw: st.DrawFn, num_rows: int, dtype: str) -> Any:
    """Values of one type, of few different ones; floats with NaN."""
    if dtype == "bool":
        pool = st.booleans()
    elif dtype.startswith("float"):
        pool = finite | st.sampled_from([np.nan, 0.0, -0.0, 1e-8, -1.0, -0.5])
    else:
        info = np.iinfo(dtype)
        pool = st.integers(max(int(info.min), -(2**53)), min(int(info.max), 2**53))
    few = np.array(draw(st.lists(pool, min_size=1, max_size=6)), dtype)
    return few[np.random.default_rng(draw(st.integers(0, 99))).integers(0, len(few), num_rows)]


@st.composite
def stored(draw: st.DrawFn, num_rows: int) -> RawColumn:
    """A column of any type, at any address, with no mask, one of bytes, or one of bits from some bit on."""
    data = numbers(draw, num_rows + 1, draw(st.sampled_from(TYPES)))
    data = data[1:] if draw(st.booleans()) else data[:num_rows].copy()
    form = draw(st.sampled_from(["none", "bytes", "bits"]))
    if form == "none":
        return RawColumn(data)
    first = draw(st.integers(0, 11))
    there = np.random.default_rng(num_rows + first).random(num_rows + first) < 0.7
    if form == "bytes":
        return RawColumn(data, there, first)
    return RawColumn(data, np.packbits(there, bitorder="little"), first, 8)


@st.composite
def programs(draw: st.DrawFn) -> ElementwiseProgram:
    """Any parts; those that are there fill what is missing, mostly."""
    low, width = draw(st.floats(-0.9, 5)), draw(st.floats(0, 100))
    scale = Scale(draw(finite), draw(st.sampled_from([1.0, 0.1, 3.0, 1e6])))
    if draw(st.booleans()):
        scale = Scale(scale.offset, scale.divisor, 2.0, -1.0, *draw(st.sampled_from([(-1.0, 1.0), (-np.inf, np.inf)])))
    return ElementwiseProgram(
        fill=draw(st.none() | finite) if draw(st.integers(0, 5)) == 0 else 1.5,
        clip=(low, low + width) if draw(st.booleans()) else None,
        log=draw(st.booleans()),
        scale=scale if draw(st.booleans()) else None,
    )


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[Column], list[bool], int]:
    """Columns, which of them are ids, and how many are stored as bfloat16."""
    num_rows, num_late, num_ids = draw(NUM_ROWS), draw(st.integers(0, 18)), draw(st.integers(0, 5))
    late: list[Column] = [DeferredColumn(draw(stored(num_rows)), draw(programs()), _nobody) for _ in range(num_late)]
    ids = [Column("int32", numbers(draw, num_rows, "int32")) for _ in range(num_ids)]
    label = [Column("float64", np.arange(num_rows) / 3)]
    halves = num_late if draw(st.booleans()) else 0
    return late + ids + label, [False] * num_late + [True] * num_ids + [False], halves


def _nobody() -> Column:
    raise AssertionError("the kernel computes it: nobody looks")


def written(write: Write, given: list[Column], ids: list[bool], halves: int = 0) -> tuple[bool, Any, Any]:
    """What `write_rows` says, what it wrote and what it should have written, one row before and after left alone."""
    num_words = len(given) - halves + -(-halves // 2)
    width = -(-max(num_words, 1) // 8) * 8
    memory = np.full((len(given[0]) + 2, width), -7, np.int32)
    done = write(memory[1:-1], given, ids, halves)
    assert (memory[[0, -1]] == -7).all()
    return done, memory[1:-1], block_of(given, ids, width, halves)


def ulps(found: Any, wanted: Any, halves: int, num_columns: int) -> int:
    """How many steps of their type the furthest words are apart."""
    apart = np.abs(ordered(found[:, -(-halves // 2) : num_columns]) - ordered(wanted[:, -(-halves // 2) : num_columns]))
    half = np.abs(found.view(np.int16)[:, :halves].astype(int) - wanted.view(np.int16)[:, :halves])
    return int(max(apart.max(initial=0), half.max(initial=0)))


def ordered(bits: Any) -> Any:
    """Integers in the order of the floats with these bits, 0 for both zeros."""
    bits = bits.astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


@SOME
@given(case=columns())
def test_any_columns(write_rows: Write, case: tuple[list[Column], list[bool], int]) -> None:
    given_columns, ids, halves = case
    late = [column for column in given_columns if isinstance(column, DeferredColumn)]
    refused = any(is_refused(values_of(column.source), column.program) for column in late)
    done, found, wanted = written(write_rows, given_columns, ids, halves)
    assert done == (not refused), [str(column) for column in late]
    if not done:
        return
    exact = not any(column.program.log for column in late)
    if exact:
        np.testing.assert_array_equal(ordered(found), ordered(wanted))
    else:  # the logarithm may be rounded to its neighbour, which a scale may blow up
        floats = [c for c, column in enumerate(given_columns) if not (halves or ids[c])]
        np.testing.assert_allclose(found.view("f4")[:, floats], wanted.view("f4")[:, floats], rtol=1e-5, atol=1e-5)


def test_a_block_that_the_kernel_could_not_store_to_is_refused(write_rows: Write) -> None:
    """Triton takes the word of a hint: at an odd address 16 bytes at a time are a fault of the device."""
    memory = np.zeros(8 * 4 + 4, np.int32)
    for words in (memory[1:33].reshape(4, 8), memory[:24].reshape(4, 6), memory[:32].reshape(4, 8)[::-1]):
        with pytest.raises(AssertionError):
            write_rows(words, [Column("float32", np.ones(4, np.float32))], [False])
