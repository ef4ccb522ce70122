from __future__ import annotations

import pytest

from gpupipe.backend import Backend


@pytest.fixture(autouse=True)
def default_backend(backend: Backend) -> None:
    """Every test of this room runs on each backend there is."""
