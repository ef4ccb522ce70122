"""Integer keys are found where a dictionary of Python's finds them, however they lie, and counted as it counts."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.backend import Backend
from gpupipe.backend.kernels import KeyIndex, count_keys

ENDS = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1]
near = st.integers(-50, 50)
far = st.one_of(st.sampled_from(ENDS), st.integers(-(2**63), 2**63 - 1))


@settings(deadline=None)  # loops are compiled at the first call
@given(keys=st.one_of(st.lists(near, unique=True), st.lists(far, unique=True)), others=st.lists(st.one_of(near, far)))
def test_keys_are_found_where_they_stand(keys: list[int], others: list[int]) -> None:
    index = KeyIndex(np.array(keys, dtype=np.int64))
    place = {key: number for number, key in enumerate(keys)}
    wanted = [*others, *keys]
    assert index.find(np.array(wanted, dtype=np.int64)).tolist() == [place.get(key, -1) for key in wanted]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [[], [7], [5, 2**40, -3], [0, 2**63 - 1, -(2**63)]])
def test_a_backend_finds_them_too(keys: list[int], backend: Backend) -> None:
    wanted = np.array([*keys, 6, -(2**62)], dtype=np.int64)
    found = KeyIndex(np.array(keys, dtype=np.int64)).positions(backend.to_device(wanted), backend)
    assert found.dtype == np.int32
    assert backend.to_host(found).tolist() == [*range(len(keys)), -1, -1]


def test_unsigned_keys_beyond_the_signed() -> None:
    keys = np.array([2**64 - 1, 0, 2**63], dtype=np.uint64)
    assert KeyIndex(keys).find(np.array([2**63, 2**63 - 1, 2**64 - 1], dtype=np.uint64)).tolist() == [2, -1, 0]


def test_many_keys_that_differ_in_few_bits() -> None:
    keys = np.arange(2**17, dtype=np.int64) << 46
    places = np.arange(len(keys))
    is_other = places % 3 == 1
    assert KeyIndex(keys).find(keys + is_other).tolist() == np.where(is_other, -1, places).tolist()


@pytest.mark.slow
@settings(deadline=None)
@given(parts=st.lists(st.lists(st.tuples(st.one_of(near, far), st.integers(1, 2**40)), max_size=30), max_size=6))
def test_counts_of_equal_keys_are_added(parts: list[list[tuple[int, int]]]) -> None:
    expected: Counter[int] = Counter()
    arrays: list[tuple[Any, Any]] = []
    for part in parts:
        for key, count in part:
            expected[key] += count
        table = np.array(part, dtype=np.int64).reshape(-1, 2)
        arrays.append((table[:, 0], table[:, 1]))
    keys, counts = count_keys(arrays)
    assert dict(zip(keys.tolist(), counts.tolist(), strict=True)) == dict(expected)
    assert keys.tolist() == list(expected)


def test_one_count_stands_for_all_keys() -> None:
    keys, counts = count_keys([(np.array([4, 4, -1]), np.ones(1, np.int64))])
    assert (keys.tolist(), counts.tolist()) == ([4, -1], [2, 1])
