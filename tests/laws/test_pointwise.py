"""What a step says it does to each number is what it does, to the bit: every step that says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from gpupipe import preprocessing as pre
from gpupipe.backend import Column, RawColumn, select
from gpupipe.backend.columns import get_storage
from gpupipe.errors import BadData
from tests.kernels.reference import results_of, values_of

CPU = select("cpu")
MADE: dict[str, list[pre.LearnedStep]] = {
    "SimpleImputer": [pre.SimpleImputer(), pre.SimpleImputer("median"), pre.SimpleImputer("constant", fill_value=1)],
    "StandardScaler": [pre.StandardScaler(), pre.StandardScaler(with_mean=False)],
    "MinMaxScaler": [pre.MinMaxScaler(), pre.MinMaxScaler((-1, 0.3)), pre.MinMaxScaler(clip=True)],
    "MaxAbsScaler": [pre.MaxAbsScaler()],
    "RobustScaler": [pre.RobustScaler(), pre.RobustScaler(with_scaling=False)],
    "Log1p": [pre.Log1p()],
}
STEPS = [step for steps in MADE.values() for step in steps]
SOME = settings(deadline=None, max_examples=15)


def test_every_step_that_speaks_is_heard() -> None:
    public = (getattr(pre, name) for name in pre.__all__)
    steps = [kind for kind in public if isinstance(kind, type) and issubclass(kind, pre.LearnedStep)]
    speak = {kind.__name__ for kind in steps if kind.pointwise is not pre.LearnedStep.pointwise}
    assert speak == MADE.keys()


@st.composite
def columns(draw: st.DrawFn, least: float) -> Column:
    """Numbers of any type from `least` on, some of them missing, one at least there."""
    dtype = draw(st.sampled_from(["float64", "float32", "int64", "int8", "uint16", "bool"]))
    values = draw(st.lists(st.floats(least, 1e6, width=32), min_size=2, max_size=9))
    valid = np.array([True, *draw(st.lists(st.booleans(), min_size=len(values) - 1, max_size=len(values) - 1))])
    data = np.array(values) if dtype.startswith("float") else np.array(values).clip(0 if dtype != "int64" else None, 99)
    data = data.astype(dtype)
    if not dtype.startswith("float"):
        return Column(dtype, data, None if valid.all() else valid)
    return Column(dtype, np.where(valid, data, np.nan).astype(dtype))


@pytest.mark.parametrize("step", STEPS, ids=repr)
@SOME
@given(data=st.data())
def test_a_program_gives_the_bits_of_its_step(step: pre.LearnedStep, data: Any) -> None:
    least = -0.5 if isinstance(step, pre.Log1p) else -1e6
    learned, given_later = (data.draw(columns(least)) for _ in range(2))
    step.finalize(step.summarize({"x": learned}, CPU))
    try:
        made = step.transform_columns({"x": given_later}, CPU)["x"]
    except BadData:  # a column learned from may be so small that later values leave float32's range
        reject()
    program = step.pointwise("x", given_later.dtype)
    stored = get_storage(given_later)
    assert program is not None and isinstance(stored, RawColumn)
    found = results_of(values_of(stored), program).astype(np.float32)
    np.testing.assert_array_equal(found, values_of(RawColumn(made.data, made.valid)).astype(np.float32))
    assert program.dtype == made.dtype
