"""GPU warm-up: a small pipeline that compiles the kernels which the first fit of a process would wait for."""

from __future__ import annotations

import os
from time import perf_counter

import numpy as np
import pyarrow as pa

from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend.device.probe import this_machine
from gpupipe.cli.doctor import Row, Verdict
from gpupipe.io import from_frame
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.pipeline import Pipeline

_ROWS = 4096


def warm_up(backend: str = "gpu") -> Row:
    """Run a pipeline of the commonest steps on a small table, and report how long it took.

    CuPy keeps what it compiles in `CUPY_CACHE_DIR` (by default `~/.cupy/kernel_cache`), Triton in `TRITON_CACHE_DIR`
    (`~/.triton/cache`): where these folders last, the next process finds it there.
    """
    start = perf_counter()
    try:
        _run(backend)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what a user's first fit would meet
        remedy = "what the line above names; backend='cpu' works meanwhile"
        return Row("small pipeline", f"fails: {type(error).__name__}: {error}", Verdict.FAIL, remedy)
    kept = os.environ.get("CUPY_CACHE_DIR", "~/.cupy/kernel_cache")
    return Row("small pipeline", f"runs; {perf_counter() - start:.0f} s with its kernels, which are kept in {kept}")


def _run(backend: str) -> None:
    dataset = from_frame(_table())
    by_cuml = [
        (["x", "y"], [pre.SimpleImputer(), pre.PCA(n_components=1)]),
        (["x", "y"], [pre.SimpleImputer(), pre.KMeans(n_clusters=2)]),
    ]
    features = Features(
        (["x", "y", "n"], [pre.SimpleImputer(), pre.StandardScaler()]),
        (["late"], [pre.SimpleImputer(strategy="median"), pre.Log1p(), pre.MinMaxScaler()]),
        (["word"], pre.Categorify()),
        (["at_hour"], pre.Categorify()),
        *(by_cuml if "cuml" in this_machine().libraries else []),
        target="flag",
    )
    steps = [T.Filter("n >= 0 or isnull(n)"), T.Derive(late="where(x > 0, x, -x)"), T.DateParts("at", ["hour"])]
    pipeline = Pipeline(steps, features, backend=backend).fit(dataset)
    for _ in pipeline.loader(dataset, batch_size=1024, shuffle="rows"):
        pass
    pipeline.transform(dataset).compute()


def _table() -> pa.Table:
    rng = np.random.default_rng(0)
    number, gap = rng.standard_normal(_ROWS), rng.random(_ROWS) < 0.1
    return pa.table(
        {
            "x": pa.array(number.astype("float32"), mask=gap),
            "y": pa.array(number * 3 + 1, mask=gap[::-1]),
            "n": pa.array(rng.integers(0, 99, _ROWS), mask=gap),
            "flag": pa.array(number > 0),
            "word": pa.array(rng.choice(["a", "b", "c"], _ROWS)),
            "at": pa.array(rng.integers(0, 10**15, _ROWS).astype("datetime64[us]")),
        }
    )
