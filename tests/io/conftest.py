from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpupipe as gp
from gpupipe.backend import Backend
from gpupipe.config import settings


@pytest.fixture(autouse=True)
def default_backend(backend: Backend) -> Iterator[None]:
    """Every test of this room runs on each backend there is."""
    before = settings().backend
    gp.configure(backend=backend.name)
    yield
    gp.configure(backend=before)
