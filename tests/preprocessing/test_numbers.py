"""The numeric steps in a pipeline, on the flights: against scikit-learn, whatever the partitions, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing as peers

import gpupipe as gp
from gpupipe import preprocessing as pre

NAMES = ["dep_delay", "distance", "air_time"]
PAIRS: list[tuple[Callable[[], pre.LearnedStep], Any]] = [
    (pre.MaxAbsScaler, peers.MaxAbsScaler()),
    (lambda: pre.RobustScaler(unit_variance=True), peers.RobustScaler(unit_variance=True)),
    (
        lambda: pre.QuantileTransformer(output_distribution="normal"),
        peers.QuantileTransformer(output_distribution="normal", subsample=None),
    ),
    (pre.PowerTransformer, peers.PowerTransformer()),
]


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    table = gp.read_parquet(Path(__file__).parents[2] / "data" / "flights.parquet").compute()
    return table[[*NAMES, "carrier"]].iloc[::7].reset_index(drop=True)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "peer"), PAIRS, ids=lambda item: type(item).__name__)
def test_as_scikit_learn_in_pieces(make: Callable[[], pre.LearnedStep], peer: Any, flights: pd.DataFrame) -> None:
    dense = flights[NAMES].to_numpy("float64", na_value=np.nan)
    wanted = peer.fit(dense).transform(dense)
    for num_partitions in (1, 7):
        pipeline = gp.Pipeline([], features=gp.Features((NAMES, make())))
        pipeline.fit(gp.from_frame(flights, num_partitions=num_partitions))
        found = pipeline.transform(flights)[NAMES].to_numpy("float64")
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def groups() -> list[Any]:
    fill = pre.SimpleImputer
    return [
        (NAMES, pre.MaxAbsScaler(), "max"),
        (NAMES, pre.RobustScaler(unit_variance=True, exact=True), "robust"),
        (NAMES, pre.QuantileTransformer(n_quantiles=50), "quantile"),
        (NAMES, [pre.PowerTransformer(), fill(), pre.Normalizer()], "power"),
        (NAMES, pre.Bucketize({"dep_delay": [0, 15], "distance": [500], "air_time": [60, 120]}), "edges"),
        (NAMES, pre.KBinsDiscretizer([3, 4, 5]), "bins"),
        (NAMES, pre.KBinsDiscretizer(3, strategy="kmeans", encode="onehot-dense"), "flags"),
        (["carrier", *NAMES], [pre.GroupImputer("carrier", "median"), pre.VarianceThreshold()], "group"),
        (NAMES, [fill(), pre.CorrelationThreshold(0.9), pre.TruncatedSVD(2)], "svd"),
        (NAMES, [fill(), pre.IncrementalPCA(2)], "pca"),
        (NAMES, [fill(), pre.StandardScaler(), pre.KMeans(3, max_rows=5000)], "cluster"),
    ]


@pytest.mark.slow
def test_what_is_loaded_gives_what_was_saved(flights: pd.DataFrame, tmp_path: Path) -> None:
    pipeline = gp.Pipeline([], features=gp.Features(*groups()))
    pipeline.fit(gp.from_frame(flights, num_partitions=3))
    gp.save(tmp_path / "saved", pipeline)
    loaded = gp.load(tmp_path / "saved").pipeline
    wanted = pipeline.transform(flights)
    pd.testing.assert_frame_equal(loaded.transform(flights), wanted)
    assert not {name for name in wanted if name.startswith("svd")} - {"svd_truncatedsvd0", "svd_truncatedsvd1"}
    assert loaded.schema == pipeline.schema
