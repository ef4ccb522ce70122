from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpupipe as gp
from gpupipe.backend import Backend
from gpupipe.config import settings
from tests.io.s3_server import serving


@pytest.fixture(autouse=True)
def default_backend(backend: Backend) -> Iterator[None]:
    """Every test of this room runs on each backend there is."""
    before = settings().backend
    gp.configure(backend=backend.name)
    yield
    gp.configure(backend=before)


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The endpoint of an S3 server of this test process alone."""
    pytest.importorskip("moto", reason="moto is not installed here")
    pytest.importorskip("s3fs", reason="s3fs is not installed here")
    with serving() as endpoint:
        yield endpoint
