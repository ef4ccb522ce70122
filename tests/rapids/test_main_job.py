"""The main job through the GPU twin on stand-ins, beside the CPU's: Parquet to a trained, saved, reloaded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import gpupipe as gp
from gpupipe.backend.columns import Backend
from gpupipe.cli.demo import add_holiday, flights_pipeline

from .standin_frame import cudf

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Every fortieth flight, as Parquet of several row groups."""
    frame = pd.read_parquet(DATA / "flights.parquet")
    frame = frame.iloc[::40].reset_index(drop=True)
    path = tmp_path_factory.mktemp("rehearsal") / "flights.parquet"
    frame.to_parquet(path, index=False, row_group_size=2000)
    return path


def job(backend: str, path: Path, out: Path) -> dict[str, Any]:
    """Fit, train, save, load and predict on one backend; what it gave, on the host."""
    flights = gp.read_parquet(path, partition_bytes=400_000)
    weather = gp.read_parquet(DATA / "weather.parquet")
    train, valid = flights.split(by="time_hour", at="2013-10-01")
    pipeline = flights_pipeline(weather)
    pipeline.backend = backend
    pipeline.fit(train)
    model = gp.models.MLP.from_schema(pipeline.schema, hidden=(16,), seed=7)
    trainer = gp.Trainer(model, max_epochs=1, seed=7, progress=False)
    loader = pipeline.loader(train, batch_size=512, shuffle="rows", device="cpu")
    history = trainer.fit(loader, pipeline.loader(valid, device="cpu"))
    gp.save(out, pipeline, model)
    scorer = gp.load(out, allow=["gpupipe.cli.demo.add_holiday"], backend=backend)
    batches = list(pipeline.loader(valid, batch_size=4096, device="cpu"))
    return {
        "flights": flights,
        "history": history,
        "numeric": np.concatenate([batch.numeric.numpy() for batch in batches]),
        "codes": np.concatenate([batch.codes.numpy() for batch in batches]),
        "target": np.concatenate([batch.target.numpy() for batch in batches]),
        "schema": pipeline.schema,
        "scorer": scorer,
    }


@pytest.fixture(scope="module")
def jobs(
    rehearsed_backend: Backend, sample: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    return {name: job(name, sample, tmp_path_factory.mktemp(name) / "model") for name in ("cpu", "gpu")}


def test_the_features_are_the_same(jobs: dict[str, dict[str, Any]]) -> None:
    gpu, cpu = jobs["gpu"], jobs["cpu"]
    assert gpu["schema"] == cpu["schema"]
    np.testing.assert_array_equal(gpu["codes"], cpu["codes"])
    np.testing.assert_array_equal(gpu["target"], cpu["target"])
    np.testing.assert_allclose(gpu["numeric"], cpu["numeric"], rtol=1e-5, atol=1e-5)


def test_training_goes_the_same_way(jobs: dict[str, dict[str, Any]]) -> None:
    gpu, cpu = (jobs[name]["history"].best for name in ("gpu", "cpu"))
    assert gpu["valid_loss"] == pytest.approx(cpu["valid_loss"], rel=1e-3)


def test_an_artifact_of_either_scores_a_users_frame_on_either(jobs: dict[str, dict[str, Any]], sample: Path) -> None:
    flights = pd.read_parquet(sample).head(300).drop(columns=["arr_delay"])
    wanted = jobs["cpu"]["scorer"].predict_proba(flights)["probability"].to_numpy()
    found = jobs["gpu"]["scorer"].predict_proba(cudf.from_pandas(flights)).to_pandas()["probability"].to_numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_a_cudf_frame_in_a_cudf_frame_out(rehearsed_backend: Backend, sample: Path) -> None:
    flights = cudf.from_pandas(pd.read_parquet(sample).head(500))
    weather = cudf.from_pandas(pd.read_parquet(DATA / "weather.parquet"))
    made = flights_pipeline(weather).fit(flights).transform(flights)
    assert type(made) is cudf.DataFrame and len(made) == 500
    assert "holiday" in made.columns and add_holiday(flights.copy())["holiday"].dtype == bool
