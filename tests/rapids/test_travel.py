"""What GPU workers send to the program that drives them lies on the host: by an executor that pickles as Dask does."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import numpy as np

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend import Backend
from gpupipe.cluster.executor import Executor, use_executor
from gpupipe.preprocessing import CrossFittedStep

from .standin_cupy import DeviceArray
from .standin_frame import cudf
from .test_rooms import FLIGHTS, STEPS, compare_states, concrete, input_for


class Guarded(cloudpickle.CloudPickler):
    """Refuses backends, which each process has of its own, and what else must not travel."""

    def __init__(self, file: Any, refused: tuple[type, ...]) -> None:
        super().__init__(file)
        self.refused = refused

    def reducer_override(self, obj: Any) -> Any:
        assert not isinstance(obj, self.refused) and not hasattr(obj, "make_room"), f"a {type(obj).__name__} travels"
        return super().reducer_override(obj)


def sent(value: Any, *refused: type) -> Any:
    file = io.BytesIO()
    Guarded(file, refused).dump(value)
    return pickle.loads(file.getvalue())


class Elsewhere(Executor):
    """Works here, one item after the other, on copies; what comes back is a copy, too."""

    in_process = False

    def map(self, function: Callable[[Any], Any], items: Iterable[Any], **_: Any) -> Iterator[Any]:
        return (self.call(function, item) for item in items)

    def call(self, function: Callable[[Any], Any], item: Any) -> Any:
        function, item = sent((function, item))
        with use_executor(Executor(1)):
            return sent(function(item), DeviceArray)  # which would make a CUDA context where it is opened


def fitted(pipeline: gp.Pipeline, data: gp.Dataset, executor: Any = None) -> gp.Pipeline:
    return gp.Pipeline(pipeline.steps, pipeline.features, backend="gpu").fit(data, executor=executor)


@pytest.mark.parametrize(("cls", "settings"), STEPS)
def test_a_step_learns_elsewhere_what_it_learns_here(
    rehearsed_backend: Backend, cls: Any, settings: dict[str, Any]
) -> None:
    frame = input_for(cls)
    data = gp.from_frame(frame, num_partitions=3, backend="gpu")
    pipeline = gp.Pipeline([], gp.Features((list(frame.columns), cls(**settings))))
    here, there = fitted(pipeline, data), fitted(pipeline, data, Elsewhere())
    states = [p.features.groups[0].steps[0].get_state() for p in (there, here) if p.features is not None]
    compare_states(*states)


@pytest.mark.parametrize("cls", concrete(pre, CrossFittedStep))
def test_a_step_that_learns_from_the_target_does_so_elsewhere(rehearsed_backend: Backend, cls: Any) -> None:
    data = gp.from_frame(FLIGHTS.fillna({"y": 0.0}), num_partitions=3, backend="gpu")
    pipeline = gp.Pipeline([], gp.Features((["a", "b"], cls()), target="y > 40"))
    here, there = fitted(pipeline, data), fitted(pipeline, data, Elsewhere())
    states = [p.features.groups[0].steps[0].get_state() for p in (there, here) if p.features is not None]
    compare_states(*states)


def test_a_job_runs_elsewhere_from_tables_to_a_loader(rehearsed_backend: Backend, tmp_path: Path) -> None:
    FLIGHTS.to_parquet(tmp_path / "in.parquet", row_group_size=40)
    data = gp.read_parquet(tmp_path / "in.parquet", partition_bytes=3000, backend="gpu")
    assert data.num_partitions > 1
    steps = [T.Derive(high="y > 40"), T.Lag("x", by="a", order_by="at"), T.DateParts("at", ["hour"])]
    features = gp.Features(
        (["x", "y", "x_lag_1_by_a"], [pre.SimpleImputer(), pre.StandardScaler()]),
        (["x", "y"], [pre.SimpleImputer(), pre.PCA(solver="library")], "turned"),
        (["x", "y"], [pre.SimpleImputer(), pre.KMeans(n_clusters=3)], "near"),
        (["a"], pre.Categorify()),
        ["at_hour"],
        target="z > 1000",
        keep=["at", "b"],
    )
    pipeline = gp.Pipeline(steps, features)
    blocks, tables = [], []
    for executor, name in ((Executor(1), "here"), (Elsewhere(), "there")):
        with use_executor(executor):
            made = fitted(pipeline, data)
            (block,) = made.loader(data.filter("z > -1e9"), batch_size=1000)
            blocks.append(block)
            made.transform(data).write_parquet(tmp_path / name)
            verbs = data.sort("x").filter("y > 0").deduplicate(["a", "at"]).shuffle(3)
            groups = verbs.group_by("a").agg(n=("x", "size"), low=("y", "min"))
            tables.append((verbs.to_pandas(), groups.to_pandas(), len(verbs)))
            left, right = data.split(fraction=0.5, by="a")
            tables[-1] += (len(left), len(right), made.drift(data).moved)
    for name in ("numeric", "codes"):
        np.testing.assert_array_equal(getattr(blocks[0], name), getattr(blocks[1], name))
    assert all(bool((blocks[0].keep[name] == blocks[1].keep[name]).all()) for name in ("at", "b"))
    assert tables[0][0].equals(tables[1][0]) and tables[0][1].equals(tables[1][1]) and tables[0][2:] == tables[1][2:]


def test_a_frame_on_the_device_goes_to_workers(rehearsed_backend: Backend) -> None:
    data = gp.from_frame(cudf.from_pandas(FLIGHTS[["x", "a"]]), num_partitions=2)
    pipeline = gp.Pipeline([], gp.Features((["x"], [pre.SimpleImputer(), pre.StandardScaler()]), target="a == 'JFK'"))
    found = fitted(pipeline, data, Elsewhere()).features
    assert found is not None and found.groups[0].steps[1].is_fitted
