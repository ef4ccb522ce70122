"""One suite, two backends: `backend` is the CPU always, and the GPU where there is one. And nothing leaks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch

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
    """A test leaves the environment, torch's random state and the number of non-daemon threads as they were."""
    environment, state = dict(os.environ), torch.get_rng_state()
    threads = {thread.ident for thread in threading.enumerate()}
    yield
    changed = {key for key in {*os.environ, *environment} if os.environ.get(key) != environment.get(key)}
    assert changed <= {"PYTEST_CURRENT_TEST"}, f"environment variables changed: {changed}"
    assert torch.equal(state, torch.get_rng_state()), "torch's random state changed"
    left = [t for t in threading.enumerate() if t.ident not in threads and t.is_alive() and not t.daemon]
    assert not left, f"threads left: {left}"
