"""A cluster of one worker with a GPU gives what one process gives."""

from __future__ import annotations

from pathlib import Path

import torch

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.backend import Backend


def test_one_worker_fits_and_fills_the_same_block(backend: Backend, days: Path) -> None:
    def fitted() -> gp.Pipeline:
        numbers = ["dep_delay", "distance"], [pre.SimpleImputer(strategy="median"), pre.StandardScaler()]
        features = gp.Features(numbers, (["carrier", "dest"], pre.Categorify()), target="arr_delay > 15")
        return gp.Pipeline([], features, backend=backend.name).fit(flights)

    flights = gp.read_parquet(days, backend=backend.name)
    (mine,) = fitted().loader(flights, batch_size=100_000)
    with gp.Cluster(n_workers=1, gpu=backend.name == "gpu") as cluster:
        assert cluster.num_workers == 1
        (theirs,) = fitted().loader(flights, batch_size=100_000)
    assert mine.numeric.device.type == ("cuda" if backend.name == "gpu" else "cpu")
    torch.testing.assert_close(theirs.numeric, mine.numeric)
    assert torch.equal(theirs.codes, mine.codes)
