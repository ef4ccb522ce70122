"""scikit-learn's protocol on a user's frame, for a step of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone

from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe.backend import Backend, Column
from gpupipe.preprocessing import Categorify, Columns, LearnedStep
from gpupipe.schema import Field
from tests.raising import raises


@dataclass
class Total:
    names: list[str]
    rows: int

    def __add__(self, other: Self) -> Total:
        return Total(self.names, self.rows + other.rows)


class Share(LearnedStep):
    """Each value divided by the number of fitted rows and by `unit`."""

    def __init__(self, unit: float = 1.0) -> None:
        self.unit = unit

    def summarize(self, columns: Columns, backend: Backend) -> Total:
        return Total(list(columns), len(next(iter(columns.values()))))

    def finalize(self, summary: Total) -> Self:
        self.names_in_, self.rows_ = summary.names, summary.rows
        return self

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        return {name: Column("float64", column.data / self.rows_ / self.unit) for name, column in columns.items()}

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        return list(fields)


def test_fit_and_transform() -> None:
    table = pd.DataFrame({"x": [2.0, 4.0], "y": [1.0, 1.0]}, index=["p", "q"])
    step = Share(2.0)
    found = step.fit_transform(table)
    assert found["x"].tolist() == [0.5, 1.0] and list(found.index) == ["p", "q"]
    assert step.get_feature_names_out() == ["x", "y"] and step.get_feature_names_out(["z"]) == ["z"]
    assert step.get_state() == {"names_in_": ["x", "y"], "rows_": 2}
    assert Share(2.0).set_state(step.get_state()).transform(table).equals(found)


def test_columns_are_taken_by_name() -> None:
    step = Share().fit(pd.DataFrame({"x": [2.0], "y": [3.0]}))
    found = step.transform(pd.DataFrame({"other": ["text"], "y": [5.0], "x": [7.0]}))
    assert found.to_dict("list") == {"x": [7.0], "y": [5.0]}
    with raises(errors.ColumnNotFound, where="Share", column="x") as caught:
        step.transform(pd.DataFrame({"X": [1.0], "y": [2.0]}))
    assert caught.value.column == "x"


def test_a_clone_forgets_what_was_learned() -> None:
    step = Share(3.0).fit(pd.DataFrame({"x": [2.0]}))
    twin: Any = clone(step)
    assert twin.unit == 3.0 and not twin.is_fitted
    with pytest.raises(errors.NotFitted, match="Share: it has not been fitted"):
        twin.get_feature_names_out()
    with pytest.raises(errors.NotFitted):
        twin.get_state()


def test_a_long_parameter_is_not_written_out() -> None:
    assert (
        repr(Categorify(vocabulary=[str(i) for i in range(10_000)])) == "Categorify(vocabulary=<list of 10,000 values>)"
    )
    assert repr(Categorify(vocabulary=["b", "a"])) == "Categorify(vocabulary=['b', 'a'])"
    vocabularies = {"k": pa.array(["b", "a"])}
    assert repr(Categorify(vocabulary=vocabularies)) == "Categorify(vocabulary={'k': <StringArray of 2 values>})"


def test_half_a_step_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        LearnedStep()  # type: ignore[abstract]


def test_something_else_than_a_frame() -> None:
    with pytest.raises(errors.SchemaMismatch, match="not a frame"):
        Share().fit([1.0, 2.0])


@pytest.mark.parametrize(
    ("step", "y", "refused"),
    [
        (pre.GroupStats("k"), None, ({"k": ["c", "b"], "x": [np.nan, np.nan]}, None)),
        (pre.OrdinalEncoder(categories={"k": ["a", "b"]}), None, ({"k": ["a", "z"], "x": [1.0, 2.0]}, None)),
        (pre.TargetEncoder(), [1.0, 2.0, 3.0], ({"k": ["a", "b"], "x": [1.0, 2.0]}, ["one", "one"])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_step_that_refuses_a_second_fit_is_not_fitted(step: Any, y: Any, refused: Any) -> None:
    """Part of its state may be of either fit."""
    columns = ["k", "x"] if isinstance(step, pre.GroupStats) else ["k"]
    table, (bad, bad_y) = pd.DataFrame({"k": ["a", "b", "a"], "x": [1.0, 2.0, 4.0]})[columns], refused
    step.fit(table, y)
    with pytest.raises(errors.BadData):
        step.fit(pd.DataFrame(bad)[columns], bad_y)
    with raises(errors.NotFitted, where=type(step).__name__):
        step.transform(table)
