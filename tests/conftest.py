"""One suite, two backends: `backend` is the CPU always, and the GPU where there is one. And nothing leaks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch

from gpupipe import config
from gpupipe.backend import Backend, select
from gpupipe.errors import BackendMissing


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="fail where no GPU can be used, instead of skipping")


@pytest.fixture(scope="session", params=["cpu", "gpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    try:
        return select(request.param)
    except BackendMissing as missing:
        if request.config.getoption("--require-gpu"):
            pytest.fail(f"a GPU is required: {missing}")
        pytest.skip(f"no GPU here: {missing.problem}")


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """A test leaves the environment and the non-daemon threads as they were; its draws and settings are its own."""
    environment, configured = dict(os.environ), list(config._in_force)
    threads = {thread.ident for thread in threading.enumerate()}
    with torch.random.fork_rng(devices=[]):
        yield
    config._in_force[:] = configured
    changed = {key for key in {*os.environ, *environment} if os.environ.get(key) != environment.get(key)}
    # OpenMP libraries, torch and Polars (its allocator) set variables of their own when they are loaded.
    ours = {key for key in changed if not key.startswith(("KMP_", "PYTEST_", "TORCH", "_RJEM"))}
    assert not ours, f"environment variables changed: {ours}"
    left = [t for t in threading.enumerate() if t.ident not in threads and t.is_alive() and not t.daemon]
    assert not left, f"threads left: {left}"
