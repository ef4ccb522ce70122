"""What `fit` takes, `transform`, `predict`, `predict_proba` and `importance` take too, in the same order of rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T

ROWS = 50


class Geo(pd.DataFrame):
    """A class made of pandas' frame, as GeoPandas has one."""

    @property
    def _constructor(self) -> type[Geo]:
        return Geo


class Streamed:
    """Anything with the Arrow C stream protocol, and no more."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


IN_MEMORY: dict[str, Callable[[pa.Table], Any]] = {
    "arrow": lambda table: table,
    "arrow in chunks": lambda table: pa.concat_tables([table[:20], table[20:]]),
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "polars": pl.from_arrow,
    "pandas with Arrow's types": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "subclass": lambda table: Geo(table.to_pandas()),
}
LAZY: dict[str, Callable[[pa.Table], Any]] = {
    "dataset": gp.from_frame,
    "pyarrow dataset": pads.dataset,
    "reader": lambda table: table.to_reader(),
    "stream": Streamed,
}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(1)
    missing = rng.random(ROWS) < 0.2
    return pa.table(
        {
            "x": pa.array(rng.normal(size=ROWS), mask=missing),
            "origin": pa.array(rng.choice(["JFK", "LGA", "EWR"], ROWS), mask=rng.random(ROWS) < 0.1),
            "unread": ["-"] * ROWS,
            "n": rng.integers(0, 9, ROWS),
            "late": rng.random(ROWS) < 0.5,
        }
    )


@pytest.fixture(scope="module")
def scorer(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> gp.Scorer:
    features = gp.Features(
        (["x"], [pre.SimpleImputer(), pre.StandardScaler()]), (["origin"], pre.Categorify()), target="late", keep="n"
    )
    steps = [T.Derive(x="x + n"), T.Filter("n > 0", when="always")]
    pipeline = gp.Pipeline(steps, features).fit(table)
    path = tmp_path_factory.mktemp("scorer") / "run"
    gp.save(path, pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=8, seed=3))
    return gp.load(path)


def uses(scorer: gp.Scorer) -> dict[str, Callable[[Any], Any]]:
    return {
        "transform": scorer.pipeline.transform,
        "predict": scorer.predict,
        "predict_proba": scorer.predict_proba,
    }


@pytest.mark.slow
@pytest.mark.parametrize("use", ["transform", "predict", "predict_proba"])
@pytest.mark.parametrize("kind", IN_MEMORY)
def test_a_table_in_memory_gives_a_frame_with_the_same_rows(
    table: pa.Table, scorer: gp.Scorer, kind: str, use: str
) -> None:
    expected = uses(scorer)[use](table.to_pandas())
    found = uses(scorer)[use](IN_MEMORY[kind](table))
    assert type(found) is pd.DataFrame and len(found) < ROWS
    pd.testing.assert_frame_equal(found, expected)


@pytest.mark.parametrize("use", ["transform", "predict", "predict_proba"])
@pytest.mark.parametrize("kind", LAZY)
def test_what_is_lazy_gives_a_dataset_with_the_same_rows(
    table: pa.Table, scorer: gp.Scorer, kind: str, use: str
) -> None:
    given = gp.from_frame(table, num_partitions=1) if kind == "dataset" else LAZY[kind](table)
    expected = uses(scorer)[use](table.to_pandas()).reset_index(drop=True)
    found = uses(scorer)[use](given)
    assert isinstance(found, gp.Dataset)
    pd.testing.assert_frame_equal(found.compute(), expected)


@pytest.mark.parametrize("kind", [*IN_MEMORY, *LAZY])
def test_fit_takes_the_same(table: pa.Table, kind: str) -> None:
    given = {**IN_MEMORY, **LAZY}[kind](table)
    features = gp.Features((["x"], [pre.SimpleImputer(), pre.StandardScaler()]), target="late")
    made = gp.Pipeline(features).fit_transform(given)
    made = made.compute() if isinstance(made, gp.Dataset) else made
    pd.testing.assert_frame_equal(made, gp.Pipeline(features).fit_transform(table.to_pandas()))


def test_a_table_without_rows_gives_a_frame_without_rows(table: pa.Table, scorer: gp.Scorer) -> None:
    assert scorer.predict(table[:0]).shape == (0, 2)
    assert scorer.predict(pl.from_arrow(table[:0])).shape == (0, 2)


def test_the_given_table_stays_as_it_was(table: pa.Table, scorer: gp.Scorer) -> None:
    given = pa.table(table.to_pydict(), schema=table.schema)
    made = scorer.pipeline.transform(given)
    made.loc[:, :] = 0
    assert given.equals(table)


def test_importance_of_a_scorer_takes_a_table(table: pa.Table, scorer: gp.Scorer) -> None:
    found = gp.importance(scorer, table, repeats=2)
    loader = scorer.pipeline.loader(table)
    assert found.losses == gp.importance(scorer, loader, repeats=2).losses


def test_a_subclass_of_a_frame_goes_through_single_steps(table: pa.Table) -> None:
    frame = table.select(["n"]).to_pandas()
    for step in (pre.StandardScaler().fit(Geo(frame)), T.Filter("n > 3")):
        pd.testing.assert_frame_equal(step.transform(Geo(frame)), step.transform(frame))


def test_one_step_and_features_alone_are_a_pipeline(table: pa.Table) -> None:
    features = gp.Features(["n"], target="late")
    assert gp.Pipeline(features).steps == [] and gp.Pipeline(features).features is not None
    (step,) = gp.Pipeline(T.Filter("n > 3"), features).steps
    assert isinstance(step, T.Filter)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([np.array(["a", "b"]), np.array([])], "list<string>"),
        ([np.array([]), np.array(["a"], dtype=object), None], "list<string>"),
        ([np.array([]), np.array([1, 2])], "list<int64>"),
        ([np.array([], dtype="int64"), None], "list<int64>"),
        ([np.array([]), np.array([])], "list<float64>"),
    ],
)
def test_an_empty_array_among_lists_is_a_list_of_their_type(values: list[Any], dtype: str) -> None:
    dataset = gp.from_frame(pd.DataFrame({"words": pd.Series(values, dtype=object)}))
    assert dataset.schema["words"].dtype == dtype
    assert [None if v is pd.NA else len(v) for v in dataset.compute()["words"]] == [
        None if v is None else len(v) for v in values
    ]


def test_tables_to_join_with_may_be_of_another_library(table: pa.Table, tmp_path: Path) -> None:
    cities = pl.DataFrame({"origin": ["JFK", "LGA"], "fare": [1.0, 2.0]})
    join = T.Join(gp.from_frame(cities), on="origin", name="cities")
    pipeline = gp.Pipeline([join], gp.Features((["fare"], pre.SimpleImputer()), target="late")).fit(table)
    gp.save(tmp_path / "run", pipeline)
    again = gp.load(tmp_path / "run", tables={"cities": cities.with_columns(fare=pl.col("fare") * 2)}).pipeline
    assert again.transform(table)["fare"].max() == 4.0
