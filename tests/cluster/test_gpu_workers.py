"""A cluster whose workers have GPUs, by a stand-in: the driver puts nothing on a device, and asks the workers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.inputs import environment, script

# Every process of a program imports this: the GPU's twin is pandas on arrays that, like CuPy's, come out of a pickle on
# the device of the process that opens it. The driver has none.
STAND_IN = """
import os, sys
from types import ModuleType
os.environ.pop("GPUPIPE_BACKEND", None)
import numpy as np
import gpupipe as gp
from gpupipe import backend, preprocessing as pre
from gpupipe.backend.cpu import CpuBackend
from gpupipe.errors import BackendMissing

DRIVER = __name__ == "__main__"

class DeviceArray(np.ndarray):
    def __reduce__(self):
        return put_on_device, (np.array(self),)
    def get(self):
        return np.array(self)

def put_on_device(host):
    assert not DRIVER, "the driver put an array on a device"
    return host.view(DeviceArray)

class Twin(CpuBackend):
    name = "gpu"
    def __init__(self):
        assert not DRIVER, "the driver made a GPU backend"
        super().__init__()
    def column(self, frame, name):
        return super().column(frame, name).move(self.to_device)
    def to_device(self, array):
        return put_on_device(np.asarray(array))
    def to_host(self, array):
        return np.asarray(super().to_host(array))

class MaxAbsScaler:
    def get_params(self, deep=True):
        return {}
    def fit(self, block):
        assert not DRIVER, "the driver fitted a cuML estimator"
        self.scale_ = self.max_abs_ = abs(block).max(axis=0)
        self.n_samples_seen_ = self.n_features_in_ = len(block)
        return self
    def transform(self, block):
        return block / self.scale_

class Shift(MaxAbsScaler):
    pass

cuml = sys.modules["cuml"] = ModuleType("cuml")
for made in (MaxAbsScaler, Shift):
    made.__module__ = "cuml"
    setattr(cuml, made.__name__, made)

def choose(name, machine):
    if DRIVER and name == "gpu":
        raise BackendMissing("here", "no GPU", expected="one", remedy="none")
    return ("cpu" if DRIVER or name == "cpu" else "gpu"), "stand-in"

backend._CLASSES["gpu"] = __name__, "Twin"
backend.choose_backend = choose
"""

PROGRAM = """
import json
import pandas as pd
from distributed import LocalCluster
from gpupipe import transforms as T
from tests.cluster.inputs import ROOT, state_of
from tests.cluster.steps import lateness

def pipeline(where, *more):
    planes = gp.read_parquet(ROOT / "data" / "planes.parquet", columns=["tailnum", "seats"])
    joined = T.Join(planes, on="tailnum", name="planes")
    return gp.Pipeline([T.Map(lateness, reads=["day", "dep_delay"], adds=["late"]), joined], gp.Features(
        (["late"], pre.SimpleImputer(strategy="most_frequent")),
        (["seats"], [pre.SimpleImputer(strategy="median"), pre.StandardScaler()]),
        (["dep_delay", "distance"], [pre.SimpleImputer(), pre.StandardScaler()]),
        (["dep_delay", "distance"], [pre.SimpleImputer(), pre.PCA(solver="library")], "directions"),
        (["dep_delay", "distance"], [pre.SimpleImputer(), pre.KMeans(n_clusters=3)], "near"),
        (["carrier"], pre.Categorify()),
        *more, target="arr_delay > 15", keep=["flight", "tailnum"],
    ), backend=where)

def main(days, out):
    said = {}
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as theirs:
        with gp.Cluster(address=theirs) as cluster:
            flights = gp.read_parquet(days, partition_bytes=120_000)
            said["auto"], said["gpu"] = cluster.resolve(), cluster.resolve("gpu")
            plain = pipeline("auto").fit(flights)
            block = plain.loader(flights, batch_size=100_000)
            more = (["distance"], [cuml.MaxAbsScaler()], "saved"), (["distance"], [cuml.Shift()], "unsaved")
            fitted = pipeline("gpu", *more).fit(flights)
            unlabelled = flights.select(["day", "dep_delay", "distance", "carrier", "flight", "tailnum"])
            fitted.transform(unlabelled).write_parquet(out)
            held = [group.steps[-1] for group in fitted.features.groups if group.name in ("saved", "unsaved")]
            said["saved"] = held[0].get_state()["estimator.max_abs_"].tolist()
            try:
                held[1].get_state()
            except gp.errors.ArtifactError as error:
                said["unsaved"] = error.got
            try:
                fitted.transform(flights.head())
            except BackendMissing as error:
                said["here"] = error.problem
    alone = pipeline("cpu").fit(gp.read_parquet(days, partition_bytes=120_000, backend="cpu"))
    said["same state"] = state_of(alone) == state_of(plain)
    (mine,), (theirs,) = alone.loader(flights, batch_size=100_000), block
    said["same block"] = bool((mine.numeric == theirs.numeric).all() and (mine.codes == theirs.codes).all())
    said["same kept"] = bool(all((mine.keep[name] == theirs.keep[name]).all() for name in mine.keep))
    written, distance = pd.read_parquet(out), flights.compute()["distance"]
    columns = [name for name in written if "saved" in name]
    said["columns"] = {n: bool(np.allclose(written[n], distance / distance.max())) for n in columns}
    print(json.dumps(said))

if __name__ == "__main__":
    main(*sys.argv[1:])
"""

MIXED = """
from distributed import LocalCluster

def choose_by_process(name, machine):
    try:
        open(sys.argv[1], "x").close()
        return "gpu", "the first worker"
    except FileExistsError:
        return "cpu", "another one"

if not DRIVER:
    backend.choose_backend = choose_by_process

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as theirs:
        with gp.Cluster(address=theirs) as cluster:
            try:
                gp.from_frame(__import__("pandas").DataFrame({"x": [1.0, 2.0]})).sort("x")
            except BackendMissing as error:
                print(sorted(error.got.values()), error.where)
            print(cluster.resolve("cpu"))
"""


def run(path: Path, program: str, *arguments: object) -> str:
    """What a program on the stand-in prints."""
    command = [*script(path, STAND_IN + program), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=path.parent, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def said(days: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("driver")
    told: dict[str, Any] = json.loads(run(folder / "driver.py", PROGRAM, days, folder / "out"))
    return told


def test_a_driver_without_a_gpu_works_on_the_workers(said: dict[str, Any]) -> None:
    assert (said["auto"], said["gpu"]) == ("gpu", "gpu")


def test_steps_that_gather_rows_learn_on_a_worker_what_one_process_learns(said: dict[str, Any]) -> None:
    assert said["same state"]


def test_a_loader_gets_rows_from_the_hosts_memory(said: dict[str, Any]) -> None:
    assert said["same block"] and said["same kept"]


def test_a_cuml_estimator_is_fitted_and_applied_on_workers_and_held_by_the_driver(said: dict[str, Any]) -> None:
    assert said["columns"] == {"saved_maxabsscaler0": True, "unsaved_shift0": True}
    assert said["saved"][0] > 1000 and said["unsaved"] == "cuml.Shift"
    assert said["here"] == "a cuML estimator on the CPU backend"


def test_workers_that_differ_are_an_error(tmp_path: Path) -> None:
    printed = run(tmp_path / "mixed.py", MIXED, tmp_path / "first")
    assert printed == "['cpu', 'gpu'] Cluster\ncpu\n"
