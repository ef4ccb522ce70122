"""A cluster of one worker with a GPU gives what one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gpupipe as gp
from gpupipe import preprocessing as pre

ON_GPU = pytest.param(
    "gpu", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]
)


@pytest.mark.parametrize("backend", ["cpu", ON_GPU])
def test_one_worker_fits_and_fills_the_same_block(backend: str, days: Path) -> None:
    def fitted() -> gp.Pipeline:
        numbers = ["dep_delay", "distance"], [pre.SimpleImputer(strategy="median"), pre.StandardScaler()]
        features = gp.Features(numbers, (["carrier", "dest"], pre.Categorify()), target="arr_delay > 15")
        return gp.Pipeline([], features, backend=backend).fit(flights)

    flights = gp.read_parquet(days, backend=backend)
    (mine,) = fitted().loader(flights, batch_size=100_000)
    with gp.Cluster(n_workers=1, gpu=backend == "gpu") as cluster:
        assert cluster.num_workers == 1
        (theirs,) = fitted().loader(flights, batch_size=100_000)
    assert mine.numeric.device.type == ("cuda" if backend == "gpu" else "cpu")
    torch.testing.assert_close(theirs.numeric, mine.numeric)
    assert torch.equal(theirs.codes, mine.codes)
