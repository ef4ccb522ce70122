"""Law 6: the same pipeline gives the same features on both backends, and an artifact of one loads on the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.backend import Backend, Column
from gpupipe.cli.demo import flights_pipeline

from .tolerances import FEATURES

ROOT = Path(__file__).parents[2]
ALLOW = ["gpupipe.cli.demo.add_holiday"]


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    frame = gp.read_parquet(ROOT / "data" / "flights.parquet", backend="cpu").compute()
    return frame.iloc[::8].reset_index(drop=True)


def features_on(backend: str, flights: pd.DataFrame) -> tuple[gp.Pipeline, pd.DataFrame]:
    pipeline = flights_pipeline(gp.read_parquet(ROOT / "data" / "weather.parquet", backend=backend))
    pipeline.backend = backend
    pipeline.fit(gp.from_frame(flights, num_partitions=3, backend=backend))
    return pipeline, on_the_host(pipeline.transform(gp.from_frame(flights, backend=backend)))


def on_the_host(data: gp.Dataset) -> pd.DataFrame:
    frame = data.compute()
    return frame if isinstance(frame, pd.DataFrame) else frame.to_pandas()


def assert_same_features(mine: pd.DataFrame, theirs: pd.DataFrame, schema: gp.Schema) -> None:
    for item in schema.numeric:
        left, right = mine[item.name].to_numpy("float64"), theirs[item.name].to_numpy("float64")
        np.testing.assert_array_less(np.abs(left - right) / (1 + np.abs(right)), FEATURES, err_msg=item.name)
    for item in schema.categorical:
        if item.step != "KMeans":  # cuML adds in no fixed order: its centres may differ
            assert (mine[item.name].to_numpy() == theirs[item.name].to_numpy()).all(), item.name


def test_features_agree(backend: Backend, flights: pd.DataFrame) -> None:
    ours, here = features_on("cpu", flights)
    _, there = features_on(backend.name, flights)
    assert_same_features(there, here, ours.schema)


def test_an_artifact_of_one_backend_loads_on_the_other(backend: Backend, flights: pd.DataFrame, tmp_path: Path) -> None:
    for made_on, loaded_on in (("cpu", backend.name), (backend.name, "cpu")):
        pipeline, expected = features_on(made_on, flights)
        gp.save(tmp_path / made_on, pipeline, overwrite=True)
        loaded = gp.load(tmp_path / made_on, allow=ALLOW, backend=loaded_on).pipeline
        found = on_the_host(loaded.transform(gp.from_frame(flights, backend=loaded_on)))
        assert_same_features(found, expected, pipeline.schema)


def test_the_same_centres_give_the_same_labels(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(5000, 3)), columns=list("abc"))
    step = pre.KMeans(n_clusters=8).fit(frame)
    given = {name: Column("float64", backend.to_device(frame[name].to_numpy())) for name in frame}
    labels = backend.to_host(step.transform_columns(given, backend)["kmeans"].data)
    assert (labels == step.transform(frame)["kmeans"].to_numpy()).mean() > 0.9999
