"""What a user is given may be written on: nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend import Backend, Column


def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "x": np.arange(6.0),
            "y": np.arange(6.0, 12),
            "n": pd.array([1, 2, None, 4, 5, 6], "Int64"),
            "word": list("abcabc"),
            "when": pd.date_range("2024-01-01", periods=6),
        }
    )


PIPELINES: dict[str, Any] = {
    "scaled": ([], gp.Features((["x", "y"], pre.StandardScaler()), keep=["when"])),
    "new memory alone": ([], gp.Features((["x", "y"], pre.StandardScaler()))),
    "as they are": ([], gp.Features(["x", "y"], keep=["n", "word"])),
    "one memory under two names": ([T.Derive(a="x + 1"), T.Derive(b="a")], None),
    "one memory under two names, and features": ([T.Derive(a="x + 1"), T.Derive(b="a")], gp.Features(["a", "b"])),
    "clipped": ([T.Clip(["x", "n"], 1, 4), T.Log1p("y"), T.Drop("word")], None),
    "clipped, under two names": ([T.Clip("x", 1, 4), T.Derive(b="x")], None),
    "derived of a whole number": ([T.Derive(m="n")], gp.Features(["m"], keep=["n"])),
}


@pytest.mark.slow
@pytest.mark.parametrize("given", ["frame", "dataset", "arrow"])
@pytest.mark.parametrize("name", PIPELINES)
def test_writing_on_a_result_changes_nothing_else(name: str, given: str) -> None:
    frame = table()
    data: Any = {"frame": frame, "dataset": gp.from_frame(frame, num_partitions=2, backend="cpu")}.get(given)
    data = gp.from_frame(pa.Table.from_pandas(frame), backend="cpu") if data is None else data
    steps, features = PIPELINES[name]
    pipeline = gp.Pipeline(steps, features, backend="cpu").fit(data)

    def made() -> pd.DataFrame:
        result = pipeline.transform(data)
        return result if isinstance(result, pd.DataFrame) else result.compute()

    first, second = made(), made()
    for column in first.columns:
        if first[column].dtype.kind == "f":
            first.loc[:, column] = -1.0
            first[column].array[0] = -2.0
            rest = [other for other in first.columns if other != column]
            pd.testing.assert_frame_equal(first[rest], second[rest])
            first[column] = second[column]
            first.loc[:, column] = -3.0
            first.loc[:, column] = second[column]
    pd.testing.assert_frame_equal(made(), second)
    pd.testing.assert_frame_equal(frame, table())


class AsItIs(pre.StandardScaler):
    """A subclass that puts out what it is given, where its parent puts out new numbers."""

    def transform_columns(self, columns: pre.Columns, backend: Backend) -> dict[str, Column]:
        return dict(columns)


def test_a_subclass_with_another_transform_is_not_taken_to_put_out_new_memory() -> None:
    frame = table()
    result = gp.Pipeline([], gp.Features((["x"], AsItIs())), backend="cpu").fit(frame).transform(frame)
    result.loc[0, "x"] = -1.0
    assert frame["x"].tolist() == table()["x"].tolist()
    steps = pre.StandardScaler(), pre.SimpleImputer(), pre.SimpleImputer("constant"), AsItIs()
    assert [step.allocates for step in steps] == [True, True, False, False]


@pytest.mark.filterwarnings("error")
def test_a_column_is_added_to_a_wide_result_without_a_warning() -> None:
    names = [f"x{number}" for number in range(120)]
    frame = pd.DataFrame({name: np.arange(3.0) for name in names})
    result = gp.Pipeline([], gp.Features((names, pre.StandardScaler())), backend="cpu").fit(frame).transform(frame)
    result["one"] = 1.0
    assert result.shape == (3, 121)
