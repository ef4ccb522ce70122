"""Training inside Dask's workers: as in one process, on blocks that stay, and ending when a worker does."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe as gp
from gpupipe import errors
from gpupipe.training import Callback
from tests.cluster.inputs import pipeline, until


class DiesHere(Callback):
    """Kills its process, the second worker's, in the middle of a fit."""

    every_rank = True

    def on_step_end(self, run: Any) -> None:
        if run.together.rank == 1 and run.step == 3:
            os.kill(os.getpid(), signal.SIGKILL)


class Fails(Callback):
    """Raises on the second worker."""

    every_rank = True

    def on_step_end(self, run: Any) -> None:
        if run.together.rank == 1:
            raise KeyError("no such key here")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, days: Path) -> gp.Pipeline:
    return pipeline().fit(gp.read_parquet(days, partition_bytes=120_000, backend="cpu"))


def trainer(fitted: gp.Pipeline, **more: Any) -> gp.Trainer:
    torch.manual_seed(0)
    network = gp.models.MLP.from_schema(fitted.schema, hidden=(8,), dropout=0.0, seed=1)
    return gp.Trainer(network, **{"max_epochs": 2, "lr": 0.01, "progress": False, "patience": 60.0} | more)


def weights(model: torch.nn.Module) -> np.ndarray:
    return torch.cat([value.double().flatten() for value in model.state_dict().values()]).numpy()


def test_one_update_of_all_rows_is_that_of_one_process(
    flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster
) -> None:
    rows = len(flights)
    here, there = trainer(fitted), trainer(fitted)
    one = here.fit(fitted.loader(flights, batch_size=rows), fitted.loader(flights, batch_size=500))
    train = gp.ClusterLoader(cluster, fitted, flights, batch_size=2 * rows)
    valid = gp.ClusterLoader(cluster, fitted, flights, batch_size=500)
    two = there.fit(train, valid, executor=cluster)
    np.testing.assert_allclose(weights(there.model), weights(here.model), atol=1e-4)
    for mine, theirs in zip(two, one, strict=True):
        for name in ("train_loss", "valid_loss", "valid_auc"):
            assert mine[name] == pytest.approx(theirs[name], abs=1e-4)
    assert not there.model.training


def test_blocks_stay_and_are_dropped_with_their_loader(
    flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster
) -> None:
    train = gp.ClusterLoader(cluster, fitted, flights, batch_size=1024, shuffle="rows")
    trainer(fitted).fit(train)
    before = kept(cluster)
    trainer(fitted).fit(train)
    assert kept(cluster) == before and len(before) == 2, "a block per worker, the same one"
    del train
    other = gp.ClusterLoader(cluster, fitted, flights, batch_size=1024)
    trainer(fitted).fit(other)
    assert not set(before) & set(kept(cluster))


def kept(cluster: gp.Cluster) -> list[tuple[str, int, int, int]]:
    """Which blocks lie where."""

    def look() -> list[tuple[str, int, int, int]]:
        from gpupipe import spread

        return [(*key, id(value[0])) for key, value in spread._tables.items()]

    return sorted(item for found in cluster._client.run(look).values() for item in found)


def test_more_workers_than_partitions(flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster) -> None:
    one = flights.of_partitions(flights.partitions[:1])
    history = trainer(fitted).fit(gp.ClusterLoader(cluster, fitted, one, batch_size=200), executor=cluster)
    assert len(history) == 2


def test_an_error_on_one_worker_is_the_one_that_is_raised(
    flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster
) -> None:
    train = gp.ClusterLoader(cluster, fitted, flights, batch_size=256)
    with pytest.raises(KeyError, match="no such key here"):
        trainer(fitted, callbacks=[Fails()]).fit(train)
    assert len(trainer(fitted).fit(train)) == 2, "the workers are there for the next one"


def test_a_worker_that_dies_ends_the_fit_and_is_named(
    flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster
) -> None:
    train = gp.ClusterLoader(cluster, fitted, flights, batch_size=256)
    environment = dict(os.environ)
    with pytest.raises(errors.ClusterLost, match="rank 1"):
        trainer(fitted, callbacks=[DiesHere()]).fit(train)
    until(lambda: cluster.num_workers == 2)
    os.environ.clear()
    os.environ.update(environment)
    assert len(trainer(fitted).fit(train)) == 2, "the block is built again"


def test_rows_have_to_lie_there(flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster) -> None:
    train = gp.ClusterLoader(cluster, fitted, flights)
    local = fitted.loader(flights)
    with pytest.raises(errors.BadConfig, match="lie in this process"):
        trainer(fitted).fit(local, executor=cluster)
    with pytest.raises(errors.BadConfig, match="lie in this process"):
        trainer(fitted).fit(train, local)
    with pytest.raises(errors.BadConfig, match="on other workers"):
        trainer(fitted).fit(train, executor=object())
    with pytest.raises(errors.BadConfig, match="gone through there"):
        iter(train)
    with pytest.raises(errors.BadConfig, match="no cluster"):
        gp.ClusterLoader("tcp://nowhere", fitted, flights)
