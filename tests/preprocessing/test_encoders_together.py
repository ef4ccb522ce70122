"""All encoders in one pipeline: in any partitions, saved without pickle, in scikit-learn's pipeline, and on flights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sklearn.pipeline
import sklearn.preprocessing as peers

import gpupipe as gp
from gpupipe import preprocessing as pre

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return pd.read_parquet(DATA / "flights.parquet", columns=["carrier", "origin", "dest", "tailnum", "month"])


def features() -> gp.Features:
    return gp.Features(
        (["tailnum"], pre.Categorify(min_frequency=100, num_buckets=50), "id"),
        (["origin", "dest"], pre.Categorify(joint=True), "joint"),
        (["origin"], pre.Categorify(vocabulary=pa.array(["LGA", "EWR"])), "given"),
        (["carrier", "month"], [pre.SimpleImputer("most_frequent"), pre.OneHotEncoder(max_categories=5)], "hot"),
        (["origin"], pre.OrdinalEncoder(categories=[["EWR", "LGA", "JFK"]]), "order"),
        (["tailnum"], pre.CountEncoder(normalize=True), "count"),
        (["tailnum"], pre.HashBucket(100), "hash"),
        (["carrier", "dest"], pre.HashedCross(500)),
        (["tailnum"], pre.HashedNgrams(4, analyzer="char", ngram_range=(2, 2))),
    )


@pytest.mark.slow
def test_partitions_and_files_make_no_difference(flights: pd.DataFrame, tmp_path: Path) -> None:
    part = flights.iloc[::20].reset_index(drop=True)
    whole = gp.Pipeline([], features()).fit(gp.from_frame(part))
    pieces = gp.Pipeline([], features()).fit(gp.from_frame(part, num_partitions=7))
    wanted = whole.transform(gp.from_frame(part)).compute()
    pd.testing.assert_frame_equal(pieces.transform(gp.from_frame(part, num_partitions=3)).compute(), wanted)
    gp.save(tmp_path / "saved", whole)
    loaded = gp.load(tmp_path / "saved").pipeline
    pd.testing.assert_frame_equal(loaded.transform(gp.from_frame(part)).compute(), wanted)
    assert loaded.schema == whole.schema
    names = ["id_tailnum", "joint_dest", "given_origin", "hash_tailnum", "carrier_x_dest"]
    sizes = [whole.schema[name].cardinality for name in names]
    assert all(wanted[name].max() < size for name, size in zip(names, sizes, strict=True))


@pytest.mark.slow
def test_flights_as_scikit_learn_encodes_them(flights: pd.DataFrame) -> None:
    names = ["carrier", "dest", "tailnum", "month"]
    pairs = [
        (pre.OneHotEncoder(min_frequency=0.01), peers.OneHotEncoder(min_frequency=0.01, sparse_output=False)),
        (pre.OneHotEncoder(max_categories=7), peers.OneHotEncoder(max_categories=7, sparse_output=False)),
        (pre.OrdinalEncoder(), peers.OrdinalEncoder()),
    ]
    for step, peer in pairs:
        np.testing.assert_array_equal(step.fit_transform(flights[names]).to_numpy(), peer.fit_transform(flights[names]))
        assert step.get_feature_names_out() == peer.get_feature_names_out().tolist()


@pytest.mark.parametrize("step", [pre.Categorify(), pre.OrdinalEncoder()], ids=repr)
def test_the_way_back_of_what_is_no_id(step: pre.Invertible) -> None:
    step.fit(pd.DataFrame({"x": [5, 6, 7, 8, 9]}))
    odd = pd.DataFrame({"x": [4.0, np.nan, 2.5, 1e300, -1.0, np.inf]})
    assert step.inverse_transform(odd)["x"].isna().tolist() == [False, *[True] * 5]
    masked = pd.DataFrame({"x": pd.arrays.IntegerArray(np.array([4, 4, 2**32 + 4]), np.array([False, True, False]))})
    assert step.inverse_transform(masked)["x"].isna().tolist() == [False, True, True]


def test_in_a_pipeline_of_scikit_learn(flights: pd.DataFrame) -> None:
    part = flights[["carrier", "tailnum"]].iloc[:500]
    chain = sklearn.pipeline.make_pipeline(pre.CountEncoder(), peers.StandardScaler()).fit(part)
    assert chain.transform(part).shape == (500, 2)


ENCODERS = [
    pre.Categorify(),
    pre.OneHotEncoder(handle_unknown="ignore"),
    pre.OrdinalEncoder(),
    pre.CountEncoder(),
    pre.TargetEncoder(),
]


@pytest.mark.parametrize("step", ENCODERS, ids=repr)
@pytest.mark.parametrize("values", [["b", "a", None], [7, 5, None]], ids=["text", "integers"])
def test_a_row_whose_category_is_missing_comes_without_a_type(step: pre.LearnedStep, values: list[Any]) -> None:
    learned = pd.DataFrame({"x": pd.array(values, "Int64" if 7 in values else "str")})
    step.fit(learned, [1.0, 2.0, 3.0])
    wanted = step.transform(learned.iloc[2:]).to_numpy()
    for nothing in (None, np.nan, pd.NA):
        found = step.transform(pd.DataFrame({"x": [nothing]})).to_numpy()
        np.testing.assert_array_equal(found, wanted)
