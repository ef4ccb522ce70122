from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpupipe.backend import Backend
from tests.io.s3_server import Proxy, proxied, serving


@pytest.fixture(autouse=True)
def default_backend(backend: Backend) -> None:
    """Every test of this room runs on each backend there is."""


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The endpoint of an S3 server of this test process alone."""
    pytest.importorskip("moto", reason="moto is not installed here")
    pytest.importorskip("s3fs", reason="s3fs is not installed here")
    with serving() as endpoint:
        yield endpoint


@pytest.fixture
def proxy(s3: str) -> Iterator[Proxy]:
    """What is between a client and that server, and fails when told to."""
    with proxied(s3) as proxy:
        yield proxy


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waits between attempts, and none of s3fs' own; botocore's are switched off by `NO_RETRIES`."""
    monkeypatch.setattr("gpupipe.io.stores.FIRST_WAIT", 0.01)
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
