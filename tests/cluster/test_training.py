"""Training inside Dask's workers: as in one process, on blocks that stay, and ending when a worker does."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from distributed import Client, LocalCluster
from torch import Tensor, nn

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.cluster.cluster import _start_thread
from gpupipe.tensors import Batch
from gpupipe.training import Callback
from tests.cluster.inputs import pipeline, until
from tests.raising import raises

BOUND = 120
"""Seconds for a fit of which a worker dies; it builds its blocks in that time, too."""


class InDouble(nn.Module):
    """A network in float64."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.double()

    def forward(self, batch: Batch) -> Tensor:
        made: Tensor = self.network(replace(batch, numeric=batch.numeric.double()))
        return made


class DiesHere(Callback):
    """Kills its process, the second worker's, in the middle of a fit."""

    every_rank = True

    def on_step_end(self, run: Any) -> None:
        if run.ranks.rank == 1 and run.step == 3:
            os.kill(os.getpid(), signal.SIGKILL)


class Ends(Callback):
    """Ends a fit after its first epoch."""

    def on_epoch_end(self, run: Any) -> None:
        run.stop = True


class Fails(Callback):
    """Raises on the second worker."""

    every_rank = True

    def on_step_end(self, run: Any) -> None:
        if run.ranks.rank == 1:
            raise KeyError("no such key here")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, days: Path) -> gp.Pipeline:
    return pipeline().fit(gp.read_parquet(days, partition_bytes=120_000, backend="cpu"))


def trainer(fitted: gp.Pipeline, **more: Any) -> gp.Trainer:
    torch.manual_seed(0)
    network = gp.models.MLP.from_schema(fitted.schema, hidden=(8,), dropout=0.0, seed=1)
    return gp.Trainer(network, **{"max_epochs": 2, "lr": 0.01, "progress": False, "timeout": 60.0} | more)


def weights(model: torch.nn.Module) -> np.ndarray:
    return torch.cat([value.double().flatten() for value in model.state_dict().values()]).numpy()


@pytest.mark.parametrize("double", [True, False])
def test_twenty_updates_of_all_rows_are_those_of_one_process(
    flights: gp.Dataset,
    fitted: gp.Pipeline,
    cluster: gp.Cluster,
    double: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Workers whose days have different numbers of flights: weights in float64, the curve in float32."""
    rows = len(flights)
    here, there = trainer(fitted, max_epochs=20), trainer(fitted, max_epochs=20)
    if double:
        here.model, there.model = InDouble(here.model), InDouble(there.model)
    one = here.fit(fitted.loader(flights, batch_size=rows), fitted.loader(flights, batch_size=5000))
    train = gp.ClusterLoader(cluster, fitted, flights, batch_size=2 * rows)
    valid = gp.ClusterLoader(cluster, fitted, flights, batch_size=5000)
    caplog.clear()
    two = there.fit(train, valid, executor=cluster)
    assert "rows of valid may be among those of train" in caplog.text
    assert len({rows for _, _, rows in kept(cluster)}) > 1, "of different lengths"
    if double:
        np.testing.assert_allclose(weights(there.model), weights(here.model), atol=1e-5)
    for mine, theirs in zip(two, one, strict=True):
        for name in ("train_loss", "valid_loss", "valid_auc"):
            assert mine[name] == pytest.approx(theirs[name], abs=1e-3)
    assert not there.model.training


def test_blocks_that_workers_build_have_their_lists(cluster: gp.Cluster) -> None:
    rows = [[number % 7 + place for place in range(number % 4)] for number in range(301)]
    frame = pd.DataFrame(
        {
            "x": np.arange(301.0) / 300,
            "seen": pd.Series(rows, dtype=pd.ArrowDtype(pa.list_(pa.int64()))),
            "many": [len(row) > 1 for row in rows],
        }
    )
    data = gp.from_frame(frame, num_partitions=5, backend="cpu")
    features = gp.Features((["x"], pre.SimpleImputer()), (["seen"], pre.Categorify(min_frequency=1)), target="many")
    fitted = gp.Pipeline([], features, backend="cpu").fit(data)
    here, there = trainer(fitted, max_epochs=5), trainer(fitted, max_epochs=5)
    train = gp.ClusterLoader(cluster, fitted, data, batch_size=2 * len(frame))
    two = there.fit(train)
    one = here.fit(fitted.loader(data, batch_size=len(frame)))
    np.testing.assert_allclose(weights(there.model), weights(here.model), atol=1e-4)
    assert [row["train_loss"] for row in two] == pytest.approx([row["train_loss"] for row in one], abs=1e-4)

    def look(key: str) -> dict[int, Any]:
        from gpupipe.pipeline import cluster_loader

        mine = {
            rank: value[0].lists["seen"] for (name, rank, _), value in cluster_loader._tables.items() if name == key
        }
        return {rank: (lists.pad(3).tolist(), lists.offsets.tolist()) for rank, lists in mine.items()}

    for found in cluster._client.run(look, train._key).values():
        for rank, lists in found.items():
            mine = fitted.loader(data.of_partitions(data.partitions[rank::2])).table.lists["seen"]
            assert lists == (mine.pad(3).tolist(), mine.offsets.tolist()) and mine.lengths.any()


def test_steps_that_look_at_other_rows_see_those_of_all_workers(flights: gp.Dataset, cluster: gp.Cluster) -> None:
    """Planes fly on several days, which lie in partitions and on workers of their own."""
    steps = [T.Lag("dep_delay", by="tailnum", order_by=["day", "hour"])]
    numbers = ["dep_delay_lag_1_by_tailnum"], [pre.SimpleImputer(), pre.StandardScaler()]
    watching = gp.Pipeline(steps, gp.Features(numbers, target="arr_delay > 15"), "cpu").fit(flights)
    (wanted,) = watching.loader(flights, batch_size=100_000)
    train = gp.ClusterLoader(cluster, watching, flights, batch_size=1024)
    network = gp.models.Linear.from_schema(watching.schema)
    gp.Trainer(network, max_epochs=1, progress=False).fit(train)

    def look(key: str) -> list[Any]:
        from gpupipe.pipeline import cluster_loader

        return [
            value[0].numeric[:, 0].tolist() for (name, _, _), value in cluster_loader._tables.items() if name == key
        ]

    found = [x for blocks in cluster._client.run(look, train._key).values() for block in blocks for x in block]
    assert sorted(found) == sorted(wanted.numeric[:, 0].tolist())


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


def test_workers_that_go_on_keep_no_blocks_of_a_cluster_that_was_released(
    flights: gp.Dataset, fitted: gp.Pipeline
) -> None:
    one = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with patch.dict(os.environ), LocalCluster(**one) as theirs, Client(theirs) as client:
        with gp.Cluster(address=client) as cluster:
            train = gp.ClusterLoader(cluster, fitted, flights, batch_size=1024)
            trainer(fitted).fit(train)
            assert len(kept(cluster)) == 1
        assert kept(cluster) == []
        assert client.status == "running"


def kept(cluster: gp.Cluster) -> list[tuple[str, int, int]]:
    """The blocks there are: their names and ranks, which they are in their processes, and their lengths."""

    def look() -> list[tuple[str, int, int]]:
        from gpupipe.pipeline import cluster_loader

        return [(f"{key}", id(value[0]), len(value[0])) for key, value in cluster_loader._tables.items()]

    return sorted(item for found in cluster._client.run(look).values() for item in found)


def test_more_workers_than_partitions(flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster) -> None:
    one = flights.of_partitions(flights.partitions[:1])
    here, there = trainer(fitted), trainer(fitted)
    mine = here.fit(fitted.loader(one, batch_size=100))
    theirs = there.fit(gp.ClusterLoader(cluster, fitted, one, batch_size=200), executor=cluster)
    np.testing.assert_allclose(weights(there.model), weights(here.model), atol=1e-4)
    assert [row["train_loss"] for row in theirs] == pytest.approx([row["train_loss"] for row in mine], abs=1e-4)


def test_a_fit_goes_on_from_what_the_first_worker_saved(
    flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster, tmp_path: Path
) -> None:
    train = gp.ClusterLoader(cluster, fitted, flights, batch_size=1024, shuffle="rows")
    whole, resumed = trainer(fitted), trainer(fitted, checkpoints=tmp_path)
    assert len(trainer(fitted, checkpoints=tmp_path, callbacks=[Ends()]).fit(train)) == 1
    history = trainer(fitted, checkpoints=tmp_path).fit(train, resume="latest")
    assert len(history) == 2 and resumed.fit(train, resume="latest").rows == history.rows
    assert [row["train_loss"] for row in whole.fit(train)] == [row["train_loss"] for row in history]
    np.testing.assert_array_equal(weights(resumed.model), weights(whole.model))


def test_an_error_on_one_worker_is_the_one_that_is_raised(
    flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster
) -> None:
    train = gp.ClusterLoader(cluster, fitted, flights, batch_size=256)
    with pytest.raises(KeyError, match="no such key here"):
        _start_thread(trainer(fitted, callbacks=[Fails()]).fit, train).result(BOUND)
    assert len(trainer(fitted).fit(train)) == 2, "the workers are there for the next one"


def test_a_worker_that_dies_ends_the_fit_and_is_named(
    flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster
) -> None:
    train = gp.ClusterLoader(cluster, fitted, flights, batch_size=256)
    environment = dict(os.environ)
    with pytest.raises(errors.ClusterLost, match="rank 1"):
        _start_thread(trainer(fitted, callbacks=[DiesHere()]).fit, train).result(BOUND)
    until(lambda: cluster.num_workers == 2)
    os.environ.clear()
    os.environ.update(environment)
    assert len(trainer(fitted).fit(train)) == 2, "the block is built again"


def test_rows_have_to_lie_there(flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster) -> None:
    train = gp.ClusterLoader(cluster, fitted, flights)
    local = fitted.loader(flights)
    with raises(errors.BadConfig, where="Trainer.fit", got="Loader"):
        trainer(fitted).fit(local, executor=cluster)
    with raises(errors.BadConfig, where="Trainer.fit", got="Loader"):
        trainer(fitted).fit(train, local)
    with raises(errors.BadConfig, where="Trainer.fit", got="ClusterLoader"):
        trainer(fitted).fit(train, executor=object())
    with pytest.raises(errors.BadConfig, match="gone through there"):
        iter(train)
    with raises(errors.BadConfig, where="ClusterLoader", got="tcp://nowhere"):
        gp.ClusterLoader("tcp://nowhere", fitted, flights)


def grow(fitted: gp.Pipeline, train: Any, valid: Any) -> tuple[gp.models.XGB, gp.training.History]:
    model = gp.models.XGB.from_schema(fitted.schema, n_estimators=20, learning_rate=0.3, early_stopping_rounds=5)
    return model, tree_trainer(model).fit(train, valid)


def tree_trainer(model: gp.models.XGB, **more: Any) -> gp.Trainer:
    return gp.Trainer(model, progress=False, timeout=60.0, **more)


def test_trees_of_two_workers_are_those_of_one_process(
    flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster
) -> None:
    train, valid = flights.split(fraction=0.8, seed=0)
    one, here = grow(fitted, fitted.loader(train), fitted.loader(valid))
    two, there = grow(fitted, *(gp.ClusterLoader(cluster, fitted, data) for data in (train, valid)))
    assert there.best["epoch"] == here.best["epoch"]
    for name in ("train_loss", "valid_loss", "valid_auc"):
        assert there.best[name] == pytest.approx(here.best[name], abs=1e-3)
    batch = next(iter(fitted.loader(valid)))
    assert float((one(batch) - two(batch)).abs().mean()) < 0.05, "but for where a column's bins are cut"


class SameOnAllRanks:
    """A metric of 1.0 where all ranks have gathered the same outputs."""

    name, higher_is_better = "same", True

    def reset(self) -> None:
        self.same = False

    def update(self, output: Tensor, batch: Any) -> None:
        mine = torch.stack([output.double().sum(), output.double().square().sum(), batch.target.sum().double()])
        each = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(each, mine)
        self.same = len(each) == 2 and all(torch.equal(other, mine) for other in each)

    def compute(self) -> float:
        return float(self.same)


class FailsOnOneRank(SameOnAllRanks):
    """A metric that raises on the second worker, or kills it."""

    def __init__(self, *, dies: bool) -> None:
        self.dies = dies

    def update(self, output: Tensor, batch: Any) -> None:
        if torch.distributed.get_rank() == 1:
            if self.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError("no such key here")


def test_all_workers_have_the_same_trees(flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster) -> None:
    model = gp.models.XGB.from_schema(fitted.schema, n_estimators=3)
    train = gp.ClusterLoader(cluster, fitted, flights)
    history = tree_trainer(model, metrics=[SameOnAllRanks()]).fit(train, train)
    assert [row["valid_same"] for row in history] == [1.0, 1.0, 1.0]


def test_trees_of_a_worker_without_rows(flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster) -> None:
    day = flights.of_partitions(flights.partitions[:1])
    one, _ = grow(fitted, fitted.loader(day), fitted.loader(flights))
    two, _ = grow(fitted, gp.ClusterLoader(cluster, fitted, day), gp.ClusterLoader(cluster, fitted, flights))
    batch = next(iter(fitted.loader(flights)))
    torch.testing.assert_close(one(batch), two(batch), rtol=0, atol=1e-4)


def test_a_worker_that_fails_or_dies_among_trees_ends_the_fit(
    flights: gp.Dataset, fitted: gp.Pipeline, cluster: gp.Cluster
) -> None:
    train = gp.ClusterLoader(cluster, fitted, flights)
    model, environment = gp.models.XGB.from_schema(fitted.schema, n_estimators=10), dict(os.environ)
    fails, dies = (tree_trainer(model, metrics=[FailsOnOneRank(dies=dies)]) for dies in (False, True))
    with pytest.raises(KeyError, match="no such key here"):
        _start_thread(fails.fit, train, train).result(BOUND)
    with pytest.raises(errors.ClusterLost, match="rank 1"):
        _start_thread(dies.fit, train, train).result(BOUND)
    until(lambda: cluster.num_workers == 2)
    os.environ.clear()
    os.environ.update(environment)
    assert len(tree_trainer(model).fit(train, train)) == 10, "the workers are there for the next one"
