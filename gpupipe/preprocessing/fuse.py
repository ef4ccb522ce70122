"""Fusion of elementwise steps: chains of them are evaluated while the rows of a feature table are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from gpupipe.backend import Backend, Column, RawColumn
from gpupipe.backend.fused.program import DeferredColumn, ElementwiseProgram
from gpupipe.preprocessing.learned_step import LearnedStep
from gpupipe.step import in_step

__all__ = ["defer_columns", "find_fused_start"]


def find_fused_start(steps: Sequence[LearnedStep]) -> int:
    """Return the position in a chain of fitted steps from which on they fuse to one program for each column.

    Example:
        >>> import pandas as pd
        >>> from gpupipe.preprocessing import PCA, SimpleImputer, StandardScaler
        >>> frame = pd.DataFrame({"x": [1.0, None, 4.0], "y": [2.0, 3.0, 5.0]})
        >>> steps = [SimpleImputer(), PCA(1), StandardScaler()]
        >>> for step in steps:
        ...     frame = step.fit_transform(frame)
        >>> find_fused_start(steps), find_fused_start(steps[:1])
        (2, 0)
    """
    place = len(steps)
    # A program's parts are the same for all columns and types: any column tells whether there is one.
    while (
        place
        and steps[place - 1].names_in_
        and all(fuse_program(steps[place - 1 :], name, "float64") for name in steps[place - 1].names_in_)
    ):
        place -= 1
    return place


def fuse_program(steps: Sequence[LearnedStep], name: str, dtype: str) -> ElementwiseProgram | None:
    """Return what the steps compute from each number of a column; None where that is not one program."""
    program: ElementwiseProgram | None = ElementwiseProgram(dtype=dtype)
    for step in steps:
        after = None if program is None else step.pointwise(name, program.dtype)
        program = None if program is None or after is None else program.then(after)
    return program


def defer_columns(
    stored: Mapping[str, RawColumn | None],
    read: Mapping[str, Callable[[], Column]],
    steps: Sequence[LearnedStep],
    backend: Backend,
) -> dict[str, Column] | None:
    """Return the columns that fitted steps compute from these, evaluated later; None where one holds no numbers.

    Args:
        stored: what they are made of, by name.
        read: returns the same as evaluated columns.
        steps: a chain that `find_fused_start` calls one program.
        backend: theirs.
    """
    made: dict[str, Column] = {}
    for name, source in stored.items():
        program = None if source is None else fuse_program(steps, name, source.data.dtype.name)
        if source is None or program is None:
            return None
        made[name] = DeferredColumn(source, program, partial(_apply_chain, name, read[name], steps, backend))
    return made


def _apply_chain(name: str, read: Callable[[], Column], steps: Sequence[LearnedStep], backend: Backend) -> Column:
    columns: Mapping[str, Column] = {name: read()}
    for step in steps:
        with in_step(step):
            columns = step.transform_columns(columns, backend)
    return columns[name]
