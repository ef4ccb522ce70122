from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import gpupipe as gp
from tests.cluster.inputs import DAYS, read_days, write_days


@pytest.fixture(scope="session")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file per day."""
    return write_days(tmp_path_factory.mktemp("days") / "in", range(1, DAYS + 1))


@pytest.fixture
def flights(days: Path) -> gp.Dataset:
    dataset = read_days(days)
    assert dataset.num_partitions == DAYS
    return dataset


@pytest.fixture(scope="module")
def cluster() -> Iterator[gp.Cluster]:
    """Two workers for all tests of a file; in force only where a test says so."""
    made = gp.Cluster(n_workers=2, gpu=False, timeout=60)
    yield made
    made.release()
