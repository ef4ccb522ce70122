"""One suite, two backends: `backend` is the CPU always, and the GPU where there is one. And nothing leaks.

What a test leaves open is done by its `backend`, and where it has none on the CPU, whatever the machine has. The
doctests of the package keep to that where they run with the tests.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from gpupipe import config
from gpupipe.backend import Backend, select
from gpupipe.errors import BackendMissing
from tests.io.s3_server import Proxy, proxied, serving

ROOT = Path(__file__).parents[1]

# Of this process and those that tests start; read when first asked for.
os.environ["GPUPIPE_BACKEND"] = "cpu"

# Property tests try the same examples each time, so that a test is red because of a change and not by chance: some in
# `make test`, more in `make test-all`. `make soak` tries all, and others each time.
hypothesis.settings.register_profile("few", derandomize=True, database=None, max_examples=12)
hypothesis.settings.register_profile("fixed", derandomize=True, database=None, max_examples=25)
hypothesis.settings.register_profile("random", derandomize=False, print_blob=True)
hypothesis.settings.load_profile("fixed")

# What `make test` leaves to `make test-all`: areas by path here, single tests by `pytest.mark.slow`.
SLOW = (
    "gpupipe/pipeline/cluster_loader.py",  # clusters and ranks: processes that start and end
    "tests/cluster",
    "tests/tensors/test_ranks.py",
    "tests/training/loop/test_rank_group.py",
    "tests/training/loop/test_torchrun.py",
    "tests/io/relational/test_plan_faults.py",  # faults
    "tests/io/test_lakes.py",  # stores and libraries that are installed for the tests alone
    "tests/io/stores/test_remote_file.py",
    "tests/io/jobs/test_store_folders.py",
    "tests/io/stores/test_s3.py",
    "tests/io/stores/test_store_errors.py",
    "tests/io/stores/test_store_names.py",
    "tests/io/jobs/test_store_writers.py",
    "tests/project",  # documentation, packaging, benchmarks
    "tests/kernels",  # rehearsals of GPU code
    "tests/rapids",
)

# OpenMP libraries, torch, Triton, Polars (its allocator) and Dask-CUDA set variables of their own when they are loaded
# or first look at a GPU.
_OTHERS = ("KMP_", "PYTEST_", "TORCH", "TRITON_", "_RJEM", "CUDA_MODULE_LOADING", "RAPIDS_NO_INITIALIZE")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="fail where no GPU can be used, instead of skipping")
    parser.addoption("--gpu-cases", type=int, default=0, help="fail where fewer cases than these ran on a GPU")
    parser.addoption("--resume", type=Path, help="a file of what passed: after a run that was ended, only the rest")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import nothing of the areas that are left out, as their tests are."""
    is_slow = any(collection_path.is_relative_to(ROOT / path) for path in SLOW)
    return True if is_slow and config.option.markexpr == "not slow" else None


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # of xdist: it leaves out what has passed, and who shares the tests out counts
        config.pluginmanager.register(Remaining(config.workerinput["passed"]))
        return
    cases = GpuCases(config.getoption("--gpu-cases"), config.getoption("--resume"))
    config.pluginmanager.register(cases)
    config.pluginmanager.register(Remaining(cases.done))


GPU_CASES = pytest.StashKey[int]()  # how many there are among all that was collected


@pytest.hookimpl(tryfirst=True)  # `-m` chooses among the marked
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if repr(params.get("backend")) == "'gpu'":
            item.add_marker("gpu")
        if item.get_closest_marker("soak") or any(item.path.is_relative_to(ROOT / path) for path in SLOW):
            item.add_marker("slow")
    config.stash[GPU_CASES] = sum(item.get_closest_marker("gpu") is not None for item in items)


class Remaining:
    """Leaves out the cases that have passed. Where a GPU is required, its cases come first: it is there on loan."""

    def __init__(self, done: Iterable[str]) -> None:
        self.done = set(done)

    @pytest.hookimpl(trylast=True)  # pytest's own order is by fixtures
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in self.done])
        items[:] = [item for item in items if item.nodeid not in self.done]
        if config.getoption("--require-gpu"):
            items.sort(key=lambda item: item.get_closest_marker("gpu") is None)


class GpuCases:
    """Counts the cases that ran on a GPU: a suite that skips them all is not to pass for a proof.

    What passed is in a file until all has: whose time is up after some minutes runs the suite again, and again. A file
    of other code than this counts for nothing. A line is a case, after `gpu` and a blank if it ran on a GPU.
    """

    def __init__(self, least: int, file: Path | None) -> None:
        self.least, self.passed, self.file = least, 0, file
        self.called: set[str] = set()
        self.done: set[str] = set()
        if file is not None:
            paths = sorted([*ROOT.glob("gpupipe/**/*.py"), *ROOT.glob("tests/**/*.py")])
            code = sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
            first, *rest = (file.read_text() if file.exists() else "").split("\n")
            lines = [line for line in rest if line] if first == code else []
            self.passed = sum(line.startswith("gpu ") for line in lines)
            self.done = {line.removeprefix("gpu ") for line in lines}
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{line}\n" for line in [code, *lines]))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["passed"] = sorted(self.done)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.called.add(report.nodeid)
            self.passed += "gpu" in report.keywords
        if report.when == "teardown" and report.passed and report.nodeid in self.called and self.file is not None:
            with self.file.open("a") as file:
                file.write(f"{'gpu ' if 'gpu' in report.keywords else ''}{report.nodeid}\n")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.done and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
        if self.passed < self.least and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.file is not None and session.exitstatus == pytest.ExitCode.OK:
            self.file.unlink()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.least:
            told = f"{self.passed} cases passed on a GPU, at least {self.least} are asked for"
            terminalreporter.write_line(told, red=self.passed < self.least, green=self.passed >= self.least)


@pytest.fixture(scope="session", params=["cpu", "gpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    try:
        return select(request.param)
    except BackendMissing as missing:
        if request.config.getoption("--require-gpu"):
            pytest.fail(f"a GPU is required: {missing}")
        pytest.skip(f"no GPU here: {missing.problem}")


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test leaves the environment and the non-daemon threads as they were; its draws and settings are its own."""
    environment, configured = dict(os.environ), list(config._in_force)
    threads = {thread.ident for thread in threading.enumerate()}
    if "backend" in request.fixturenames:
        config.configure(backend=request.getfixturevalue("backend").name)
    with torch.random.fork_rng(devices=[]):
        yield
    config._in_force[:] = configured
    changed = {key for key in {*os.environ, *environment} if os.environ.get(key) != environment.get(key)}
    ours = {key for key in changed if not key.startswith(_OTHERS)}
    assert not ours, f"environment variables changed: {ours}"
    left = [t for t in threading.enumerate() if t.ident not in threads and t.is_alive() and not t.daemon]
    assert not left, f"threads left: {left}"


@pytest.fixture(autouse=True)
def no_eager_step(request: pytest.FixtureRequest) -> Iterator[None]:
    """A run that is to be captured and falls back to eager fails its test; see the marker `falls_back`."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gpupipe").addHandler(handler)
    yield
    logging.getLogger("gpupipe").removeHandler(handler)
    fell_back = [message for message in messages if message.startswith("the step is not captured")]
    assert not fell_back or "falls_back" in request.keywords, fell_back


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
