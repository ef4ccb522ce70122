"""Progress: shown where somebody looks, logged where nobody does."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from itertools import count

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import progress
from gpupipe.models import MLP
from gpupipe.progress import Progress


@pytest.mark.parametrize(
    ("in_notebook", "variable", "hidden"),
    [(True, None, False), (True, "1", True), (True, "0", False), (False, None, True)],
)
def test_progress_is_shown_in_notebooks(
    monkeypatch: pytest.MonkeyPatch, in_notebook: bool, variable: str | None, hidden: bool
) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    if variable is not None:
        monkeypatch.setenv("TQDM_DISABLE", variable)
    if in_notebook:
        monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", sys)
    else:
        monkeypatch.delitem(sys.modules, "ipykernel.kernelapp", raising=False)
    assert Progress([1], "count", leave=False).disable is hidden  # a test's error stream is no terminal
    assert Progress(total=3, disable=True).disable and not Progress(total=3, disable=False).disable


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """A line for everything that is done: each look at the clock is a minute later."""
    monkeypatch.setattr(progress, "monotonic", count(0, 60).__next__)
    monkeypatch.delitem(sys.modules, "ipykernel.kernelapp", raising=False)
    caplog.set_level(logging.INFO, "gpupipe")
    return caplog


def test_a_job_logs_how_much_is_done(impatient: pytest.LogCaptureFixture) -> None:
    gp.from_frame(pd.DataFrame({"x": range(100)}), num_partitions=4).describe()
    lines = [line for line in impatient.messages if line.startswith("describe: ")]
    assert len(lines) == 4 and lines[0].startswith("describe: 1 of 4 parts, 25%, ")
    assert lines[0].endswith(" left") and " rows/s, " in lines[0]
    assert lines[3].startswith("describe: 4 of 4 parts, 100%, ") and lines[3].endswith(" 0 s left")


def test_a_fit_logs_its_epochs(impatient: pytest.LogCaptureFixture) -> None:
    data = pd.DataFrame({"x": [0.0, 1.0] * 32, "y": [0, 1] * 32})
    pipeline = gp.Pipeline([], gp.Features(["x"], target="y")).fit(data)
    loader = pipeline.loader(data, batch_size=8)
    impatient.clear()
    gp.Trainer(MLP.from_schema(pipeline.schema, hidden=(2,)), max_epochs=2, schedule="constant").fit(loader)
    lines = [line for line in impatient.messages if line.startswith("epoch ")]
    assert [line.partition(", ")[0] for line in lines] == ["epoch 1/2: 8 of 16 batches", "epoch 2/2: 16 of 16 batches"]
    assert all("loss=" in line and "rows/s=" in line for line in lines)


@pytest.mark.parametrize("hidden", [True, False])
def test_who_hides_the_bar_or_sees_it_gets_no_lines(impatient: pytest.LogCaptureFixture, hidden: bool) -> None:
    assert list(Progress(range(3), "count", disable=hidden)) == [0, 1, 2]
    assert impatient.messages == []


def test_nothing_is_logged_before_a_minute_has_passed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpupipe")
    assert list(Progress(iter("ab"), "count")) == ["a", "b"]
    assert caplog.messages == []


def test_work_of_unknown_length(impatient: pytest.LogCaptureFixture) -> None:
    list(Progress(iter([10, 20]), "read", count_rows=int, unit=" batches"))
    assert impatient.messages[1].startswith("read: 2 batches, ")
    assert " rows/s, " in impatient.messages[1] and impatient.messages[1].endswith(" min so far")


def test_lines_come_while_nothing_is_done_yet(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a sort, which gives its first rows when all are sorted."""
    monkeypatch.setattr(progress, "LOG_EVERY_S", 0.01)
    caplog.set_level(logging.INFO, "gpupipe")

    def sort() -> Iterator[int]:
        while len(caplog.messages) < 2:
            threading.Event().wait(0.01)
        yield 1

    list(Progress(sort(), "sort", unit=" batches"))
    assert caplog.messages[0] == "sort: 0 batches, 0 s so far"
    ended = [thread for thread in threading.enumerate() if thread.name == "gpupipe-progress"]
    [thread.join() for thread in ended]
    with Progress(total=3, title="fit", disable=True):
        assert "gpupipe-progress" not in [thread.name for thread in threading.enumerate()]
