"""List columns: a decorator of steps that work on the elements of lists as on the values of other columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from gpupipe.backend import Backend, Column
from gpupipe.preprocessing.learned_step import LearnedStep
from gpupipe.schema import Field, Kind, get_element_dtype, to_list_dtype

__all__ = ["by_element"]

StepClass = TypeVar("StepClass", bound=type[LearnedStep])


def by_element(cls: StepClass) -> StepClass:
    """Let a step with one output of the same name for each of its columns accept lists too.

    What it is given of a column of lists are all their elements, as one column; what it makes of them goes back into
    lists of the same lengths. A missing list stays missing; a missing element is to the step what a missing value is.
    The rest of the step need not know.

    Memory: shares the offsets.

    Example:
        >>> import pandas as pd
        >>> from gpupipe.preprocessing import Categorify
        >>> frame = pd.DataFrame({"words": [["b", "a"], None, ["b", None], []]})
        >>> Categorify().fit_transform(frame)["words"].tolist()
        [[2, 3], <NA>, [2, 0], []]
    """
    cls.summarize = _apply_to_elements(cls.summarize)  # type: ignore[method-assign]
    cls.transform_columns = _closing(cls.transform_columns)  # type: ignore[method-assign]
    if hasattr(cls, "inverse_columns"):
        cls.inverse_columns = _closing(cls.inverse_columns)
    cls.output_fields = _closing_fields(cls.output_fields)  # type: ignore[method-assign]
    return cls


def _elements(columns: Mapping[str, Column]) -> dict[str, Column]:
    return {name: column if column.elements is None else column.elements for name, column in columns.items()}


def _apply_to_elements(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def summarize(self: LearnedStep, columns: Mapping[str, Column], backend: Backend) -> Any:
        return method(self, _elements(columns), backend)

    return summarize


def _closing(method: Callable[..., Any]) -> Callable[..., dict[str, Column]]:
    @wraps(method)
    def transform(self: LearnedStep, columns: Mapping[str, Column], backend: Backend) -> dict[str, Column]:
        made: dict[str, Column] = method(self, _elements(columns), backend)
        for name, column in columns.items():
            if column.elements is not None:
                made[name] = Column(to_list_dtype(made[name].dtype), column.data, column.valid, None, made[name])
        return made

    return transform


def _closing_fields(method: Callable[..., list[Field]]) -> Callable[..., list[Field]]:
    @wraps(method)
    def output_fields(self: LearnedStep, fields: Sequence[Field]) -> list[Field]:
        elements = [get_element_dtype(item.dtype) for item in fields]
        opened = [
            item if element is None else replace(item, dtype=element, kind=None)
            for item, element in zip(fields, elements, strict=True)
        ]
        return [
            made
            if item.kind != Kind.LIST
            else replace(made, dtype=to_list_dtype(made.dtype), kind=Kind.LIST, nullable=item.nullable)
            for item, made in zip(fields, method(self, opened), strict=True)
        ]

    return output_fields
