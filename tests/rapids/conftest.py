"""The GPU twin on stand-ins, for every test here; none of this runs without the RAPIDS wheels (which need no GPU)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from gpupipe import configure

collect_ignore_glob = [] if find_spec("cudf") else ["standin_*.py", "rehearsal.py", "conformance.py", "signatures.py"]


@pytest.fixture(scope="module")
def rehearsed_backend() -> Iterator[Any]:
    """`GpuBackend` on stand-ins; frames of it are recognised by `infer_backend`, and `select("auto")` gives it."""
    pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")
    from .rehearsal import rehearsed

    with rehearsed() as backend:
        yield backend


@pytest.fixture(autouse=True)
def auto(no_leaks: None, request: pytest.FixtureRequest) -> None:
    """What a test leaves open is done by the stand-ins where they are; `no_leaks` ends it."""
    if "rehearsed_backend" in request.fixturenames:
        configure(backend="auto")
