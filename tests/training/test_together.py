"""Real processes that train one model: as one would, whatever their shares, and never waiting for one that is gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gpupipe.training.checkpoints import folders
from gpupipe.training.rollcall import RollCall, host_for
from gpupipe.training.together import Together
from tests.training import ranked

ROOT = Path(__file__).parents[2]
LIMIT = 120


def start(folder: Path, case: str, size: int) -> list[subprocess.Popen[str]]:
    """As torchrun starts them, but that nobody ends the others when one fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if size > 1 else {}
    plain = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    always = plain | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | group
    command = [sys.executable, "-m", "tests.training.ranked", str(folder), case]
    return [
        subprocess.Popen(
            command,
            env=always | ({"RANK": str(rank)} if size > 1 else {}),
            cwd=ROOT,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]


def ran(folder: Path, case: str, size: int) -> tuple[list[int], list[str], list[dict[str, Any]]]:
    """The exit codes, what went to stderr, and what each rank found; none is left behind."""
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LIMIT
    with ExitStack() as stack:
        processes = [stack.enter_context(process) for process in start(folder, case, size)]
        for process in processes:
            stack.callback(process.kill)
        told = [process.communicate(timeout=deadline - time.monotonic())[1] for process in processes]
        codes = [process.returncode for process in processes]
    files = [folder / f"rank{rank}.json" for rank in range(size)]
    return codes, told, [json.loads(file.read_text()) if file.is_file() else {} for file in files]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """What one process finds."""
    found: dict[str, dict[str, Any]] = {}

    def find(case: str) -> dict[str, Any]:
        if case not in found:
            folder = tmp_path_factory.mktemp("alone")
            (result,) = [ranked.fitted(str(folder), case)]
            curve = [json.loads(line) for line in (folder / "log0.jsonl").read_text().splitlines()]
            found[case] = result | {"curve": curve}
        return found[case]

    return find


# as one ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4])
def test_weights_are_those_of_one_process(size: int, tmp_path: Path, alone: Any) -> None:
    codes, _, found = ran(tmp_path, "double", size)  # 5 epochs of 10 updates in float64
    assert codes == [0] * size
    one = alone("double")
    for rank in found:
        np.testing.assert_allclose(rank["weights"], one["weights"], atol=1e-5, rtol=0)
        assert rank["weights"] == found[0]["weights"] and rank["history"] == found[0]["history"]


@pytest.mark.parametrize(("case", "size"), [("plain", 2), ("accumulate", 4), ("rowwise", 2)])
def test_the_curve_and_the_figures_are_those_of_one_process(case: str, size: int, tmp_path: Path, alone: Any) -> None:
    codes, told, found = ran(tmp_path, case, size)
    assert codes == [0] * size, told
    one = alone(case)
    assert found[0]["history"] == found[-1]["history"]
    for mine, theirs in zip(found[0]["history"], one["history"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3)
    curve = [json.loads(line) for line in (tmp_path / "log0.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(curve, one["curve"], atol=1e-3)
    assert sorted(path.name for path in tmp_path.glob("log*")) == ["log0.jsonl"], "only the first rank logs"
    assert "epoch 1/3" in told[0] and not any("epoch 1/3" in text for text in told[1:])


@pytest.mark.parametrize("case", ["uneven", "empty"])
def test_unequal_shards_end_and_every_row_counts_once(case: str, tmp_path: Path, alone: Any) -> None:
    sizes = ranked.SHARDS[case]
    codes, told, found = ran(tmp_path, case, len(sizes))
    assert codes == [0] * len(sizes), told
    assert all(rank == found[0] for rank in found)
    one = alone(case)
    np.testing.assert_allclose(found[0]["weights"], one["weights"], atol=1e-5)
    for mine, theirs in zip(found[0]["history"], one["history"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)


def test_a_row_counts_once_in_an_update_of_unequal_parts() -> None:
    """Two ranks of 3 and 1 rows: sum(weight * gradient) / sum(weight) over the four of them."""

    class Two(Together):
        """The other rank's numbers, put in where they would be added."""

        def __init__(self, other: torch.Tensor) -> None:
            super().__init__(0, 2)
            self.other = other

        def _sum(self, tensor: torch.Tensor) -> None:
            tensor += self.other

    weight, parameter = torch.tensor(3.0), nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([6.0, 3.0])
    Two(torch.tensor([1.0, 2.0, 5.0])).sum_gradients([parameter], weight)
    assert weight.item() == 4 and (parameter.grad / weight).tolist() == [2.0, 2.0]


# ends -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("kill", "rank 1 is gone or hangs"),
        ("hang", "rank 1 is gone or hangs"),
        ("fail", "rank 1 failed (ValueError: there is a fly in it)"),
    ],
)
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_that_fails_ends_all_and_is_named(case: str, reason: str, size: int, tmp_path: Path) -> None:
    if case == "hang" and size == 4:
        pytest.skip("as with two")
    codes, _, found = ran(tmp_path, case, size)
    assert codes[1] == (-signal.SIGKILL if case == "kill" else 1)
    others = [rank for rank in range(size) if rank != 1]
    assert all(codes[rank] == 1 for rank in others)
    for rank in others:
        assert found[rank]["error"] == "ClusterLost" and reason in found[rank]["text"]
        assert f"rank {rank} of {size}" in found[rank]["text"]


def test_ranks_of_different_lengths_are_told_at_the_start(tmp_path: Path) -> None:
    codes, _, found = ran(tmp_path, "unequal", 2)
    assert codes == [1, 1]
    assert all(rank["error"] == "BadConfig" and "got [3, 4]" in rank["text"] for rank in found)


def test_sigterm_on_one_rank_saves_and_ends_all_and_they_go_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    codes, told, _ = ran(tmp_path / "a", "term", 2)
    assert codes == [143, 143], told
    assert [checkpoint.step for checkpoint in folders(tmp_path / "a" / "saved")] == [10, 15], "agreed at the next look"
    codes, told, stopped = ran(tmp_path / "a", "resume", 2)
    assert codes == [0, 0], told
    _, _, undisturbed = ran(tmp_path / "b", "resume", 2)
    assert stopped == undisturbed


# alone ----------------------------------------------------------------------------------------------------------------


def test_a_process_alone_asks_nobody() -> None:
    together, parameter = Together(), nn.Parameter(torch.ones(1))
    together.share(nn.Linear(1, 1))
    together.sum_gradients([parameter], torch.ones(()))
    assert parameter.grad is None and together.first
    assert together.gather("x") == ["x"] and together.any(True) and not together.any(False)
    assert together.from_first(lambda: 3) == 3 and together.rows(torch.ones(2)).tolist() == [1, 1]


def test_word_is_left_and_read() -> None:
    first = RollCall(0, 3)
    second, third = (RollCall(rank, 3, ("127.0.0.1", first.port)) for rank in (1, 2))
    assert not first.alarm()
    second.leave("MemoryError: none left")
    assert first.alarm() and third.alarm()
    assert "rank 1 failed (MemoryError: none left)" in str(third.lost(RuntimeError("broken")))
    assert host_for(["a", "a"]) == "127.0.0.1"
