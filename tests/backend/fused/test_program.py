"""Programs put together, and columns that are worked out when somebody looks at them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from gpupipe.backend import Column, RawColumn
from gpupipe.backend.kernels import DeferredColumn, ElementwiseProgram, Scale, split_program

FILL, CLIP, LOG = (
    ElementwiseProgram(fill=0.0, dtype="int8"),
    ElementwiseProgram(clip=(0.0, 1.0), dtype="float64"),
    ElementwiseProgram(log=True),
)
SCALE = ElementwiseProgram(scale=Scale(1.0, 2.0))
PARTS = [FILL, CLIP, LOG, SCALE]


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("second", range(4))
def test_two_go_together_in_the_order_of_the_parts_alone(first: int, second: int) -> None:
    both = PARTS[first].then(PARTS[second])
    if first >= second:
        assert both is None
    else:
        assert both is not None and both.dtype == PARTS[second].dtype
        assert both.parts == PARTS[first].parts + PARTS[second].parts


def test_nothing_goes_with_everything() -> None:
    for part in PARTS:
        assert ElementwiseProgram(dtype="int64").then(part) == part


def test_a_late_column_is_worked_out_once() -> None:
    made: list[int] = []

    def make() -> Column:
        made.append(1)
        return Column("float32", np.zeros(2))

    late = DeferredColumn(RawColumn(np.ones(2)), ElementwiseProgram(), make)
    assert (len(late), late.dtype, late.valid, made) == (2, "float32", None, [])
    assert "RawColumn" in repr(late) and not made
    assert late.data.sum() == late.take(np.array([0])).data.sum() == 0
    assert made == [1]


def test_the_kernel_takes_what_is_stored_and_nobody_works_it_out() -> None:
    late = DeferredColumn(RawColumn(np.ones(2)), LOG, pytest.fail)
    assert split_program(late) == (late.source, LOG)
    plain = Column("int32", np.ones(2, np.int32))
    stored, program = split_program(plain)
    assert stored.data is plain.data and program == ElementwiseProgram()


def test_another_process_gets_the_numbers() -> None:
    late = DeferredColumn(RawColumn(np.ones(2)), ElementwiseProgram(), lambda: Column("float32", np.zeros(2)))
    sent = pickle.loads(pickle.dumps(late))
    assert type(sent) is Column and sent.dtype == "float32" and sent.data.tolist() == [0, 0]
