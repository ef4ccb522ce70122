from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.backend import Column, select
from gpupipe.backend.kernels import draw_positions, hash_column, hash_strings, splitmix64

several = settings(deadline=None, max_examples=50)


def test_splitmix64_gives_the_published_numbers() -> None:
    # The first outputs of the reference implementation for the state 0 and for 1234567.
    assert splitmix64(0, np.arange(3)).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert splitmix64(np.int64(3), np.arange(3)).tolist() == splitmix64(3, np.arange(3)).tolist()


@several
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**60), st.integers(0, 500), st.integers(0, 2**64 - 1))
def test_positions_are_drawn_by_a_loop_as_by_array_code(seed: int, first: int, count: int, limit: int) -> None:
    counters = np.arange(first, first + count, dtype=np.uint64)
    for few in (limit, limit >> 6):
        by_array = np.flatnonzero(splitmix64(seed, counters) < np.uint64(few))
        assert draw_positions(seed, first, count, few, np).tolist() == by_array.tolist()


def test_splitmix64_is_a_bijection_that_spreads() -> None:
    bits = splitmix64(7, np.arange(1 << 16))
    assert len(np.unique(bits)) == 1 << 16
    for bit in range(64):
        share = ((bits >> np.uint64(bit)) & np.uint64(1)).mean()
        assert abs(share - 0.5) < 0.01


@several
@given(st.lists(st.text(max_size=20), max_size=50), st.integers(0, 10))
def test_a_string_has_its_own_bits_wherever_it_stands(texts: list[str], skipped: int) -> None:
    array = pa.array(["before"] * skipped + texts, pa.large_string()).slice(skipped)
    bits = hash_strings(array).tolist()
    for text, found in zip(texts, bits, strict=True):
        assert hash_strings(pa.array([text], pa.large_string()))[0] == found
    assert len(set(bits)) == len(set(texts))


def test_many_strings_in_several_chunks() -> None:
    texts = [f"customer {n}" for n in range(150_000)] + ["", "\0", "\0\0"]
    bits = hash_strings(pa.array(texts, pa.large_string()))
    assert len(np.unique(bits)) == len(texts)
    assert bits[70_000] == hash_strings(pa.array([texts[70_000]], pa.large_string()))[0]


def test_equal_values_have_equal_bits() -> None:
    backend = select("cpu")

    def bits(column: Column, seed: int = 3) -> list[int]:
        return hash_column(column, seed, backend).tolist()

    wide = bits(Column("int64", np.array([-1, 7])))
    assert wide == bits(Column("int8", np.array([-1, 7], "int8")))
    zero, negative, missing, one = bits(Column("float64", np.array([0.0, -0.0, np.nan, 1.0])))
    assert zero == negative
    assert len({zero, missing, one}) == 3
    valid = np.array([True, False, False])
    assert len(set(bits(Column("int64", np.array([5, 5, 6]), valid)))) == 2
    words = pa.array(["a", "b"], pa.large_string())
    swapped = pa.array(["b", "a", "unused"], pa.large_string())
    first = bits(Column("string", np.array([0, 1, -1], "int8"), None, words))
    assert first == bits(Column("string", np.array([1, 0, -1], "int32"), None, swapped))
    assert first != bits(Column("string", np.array([0, 1, -1], "int8"), None, words), seed=4)
