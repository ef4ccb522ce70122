"""Blocks of numbers: the compiled loop and the array code agree, and numpy is the oracle of both."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gpupipe.backend.kernels import Scale, compute_moments, fill_into, find_bounds, scale_into

ARRAY_CODE = ModuleType("what a GPU runs")
vars(ARRAY_CODE).update(vars(np))
FORMS = pytest.mark.parametrize("xp", [np, ARRAY_CODE], ids=["loop", "arrays"])
NUMBERS = arrays(np.float64, st.integers(0, 70), elements=st.floats(-1e100, 1e100, width=64) | st.just(float("nan")))


@FORMS
@settings(deadline=None, max_examples=60)
@given(block=NUMBERS)
def test_ends_pass_over_what_is_missing(xp: ModuleType, block: np.ndarray) -> None:
    missing, low, high = find_bounds(block, xp) if len(block) or xp is np else (0, np.inf, -np.inf)
    there = block[~np.isnan(block)]
    assert missing == len(block) - len(there)
    assert (low, high) == ((there.min(), there.max()) if len(there) else (np.inf, -np.inf))


@FORMS
@settings(deadline=None, max_examples=60)
@given(
    block=arrays(np.float64, st.integers(1, 70), elements=st.floats(-1e6, 1e6) | st.just(float("nan"))),
    centre=st.floats(-1e6, 1e6),
)
def test_a_look_adds_up_what_is_there(xp: ModuleType, block: np.ndarray, centre: float) -> None:
    *found, total, squares = compute_moments(block, xp, centre)
    rest = block[~np.isnan(block)] - centre
    assert tuple(found) == tuple(find_bounds(block, xp))
    assert total == pytest.approx(rest.sum(), rel=1e-12, abs=1e-12 * np.abs(rest).sum())
    assert squares == pytest.approx((rest**2).sum(), rel=1e-12)


@FORMS
def test_infinities_and_zeros_of_both_signs(xp: ModuleType) -> None:
    assert find_bounds(np.array([np.inf, np.nan, -np.inf, 0.0]), xp) == (1, -np.inf, np.inf)
    assert find_bounds(np.array([-0.0, 0.0, -5e-324]), xp)[1:] == (-5e-324, 0.0)
    assert not np.isfinite(compute_moments(np.array([np.inf, 1.0]), xp, 0.0)[3])


SCALES = st.builds(
    Scale,
    offset=st.floats(-1e3, 1e3),
    divisor=st.floats(1e-3, 1e3),
    multiplier=st.sampled_from([1.0, 3.0]),
    shift=st.sampled_from([0.0, -1.0]),
    low=st.sampled_from([-np.inf, -1.0]),
    high=st.sampled_from([np.inf, 2.0]),
)


@settings(deadline=None, max_examples=100)
@given(block=arrays(np.float64, 33, elements=st.floats(-1e6, 1e6) | st.just(float("nan"))), by=SCALES)
def test_both_forms_store_the_same_bits(block: np.ndarray, by: Scale) -> None:
    loop, array = np.empty(33, dtype="float32"), np.empty(33, dtype="float32")
    with np.errstate(over="ignore", invalid="ignore"):
        infinite = bool(scale_into(loop, block, by, np)), bool(scale_into(array, block, by, ARRAY_CODE))
    np.testing.assert_array_equal(loop, array)
    assert infinite[0] == infinite[1] == np.isinf(loop).any()


@FORMS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_missing_is_filled(xp: ModuleType, dtype: str) -> None:
    values = np.array([1.5, np.nan, -0.0, np.inf], dtype=dtype)
    out = np.empty_like(values)
    assert fill_into(out, values, 0.1, xp)
    np.testing.assert_array_equal(out, np.array([1.5, 0.1, -0.0, np.inf], dtype=dtype))
    assert not fill_into(out[:3], values[:3], 0.1, xp)


def test_numbers_may_lie_apart_and_be_read_only() -> None:
    values = np.arange(10.0)
    values.flags.writeable = False
    assert find_bounds(values[::3], np) == (0, 0.0, 9.0)


def test_a_range_of_whole_numbers_is_that_of_floats() -> None:
    block, found = np.array([1.0, 4.0]), []
    for scale in (Scale(1, 3, 2, -1, -1, 0), Scale(1.0, 3.0, 2.0, -1.0, -1.0, 0.0)):
        out = np.empty(2, dtype="float32")
        scale_into(out, block, scale, np)
        found.append(out.tolist())
    assert found == [[-1.0, 0.0], [-1.0, 0.0]]
