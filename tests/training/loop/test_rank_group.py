"""Real processes that train one model: as one would, whatever their shares, and never waiting for one that is gone."""

from __future__ import annotations

import json
import multiprocessing
import signal
import socket
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gpupipe.training.checkpointing.checkpoints import list_checkpoints
from gpupipe.training.loop.rank_group import FailureStore, RankGroup, choose_host
from tests.training import ranked

LIMIT, BOUND = 300, 150
"""Seconds for a job, and for the other ranks to end after one of them is gone; 15 are enough on an idle machine."""
CASES = ["unequal", "infinite", "fail", "double", "plain", "accumulate", "rowwise", "lists", "some"]
CASES += ["waits", "stop", "halt", "shards", "shards", "refused", "empty", "vacant", "balanced"]


def start(folder: Path, cases: Sequence[str], size: int) -> list[BaseProcess]:
    """As torchrun starts them, but that nobody ends the others when one fails; libraries are loaded once for all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([ranked.__name__])
    processes: list[BaseProcess] = []
    for rank in range(size):
        processes.append(forks.Process(target=ranked.run, args=(group | {"RANK": str(rank)}, str(folder), *cases)))
        processes[-1].start()
    return processes


def ran(
    folder: Path, cases: Sequence[str], size: int, gone: int | None = None
) -> tuple[list[int | None], list[str], dict[str, list[Any]]]:
    """The exit codes, what went to stderr, and what each rank found in each case; none is left behind.

    After the rank `gone` the others have to end in time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LIMIT
    processes = start(folder, cases, size)
    try:
        if gone is not None:
            processes[gone].join(LIMIT)
            deadline = time.monotonic() + BOUND
        for process in processes:
            process.join(deadline - time.monotonic())
        codes = [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
    told = [(folder / f"stderr{rank}").read_text() for rank in range(size)]
    return codes, told, {case: [found_in(folder / f"{case}{rank}.json") for rank in range(size)] for case in cases}


def found_in(file: Path) -> Any:
    return json.loads(file.read_text()) if file.is_file() else {}


def curve(folder: Path, case: str) -> list[float]:
    return [json.loads(line) for line in (folder / f"{case}-log0.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def two(folder: Path) -> tuple[list[str], dict[str, list[Any]]]:
    """What two ranks told and found, in one job of many fits; the first are those of different lengths, which end."""
    codes, told, found = ran(folder, CASES, 2)
    assert codes == [0, 0], told
    return told, found


# as one ---------------------------------------------------------------------------------------------------------------


def is_that_of_one(ranks: list[Any], case: str, tmp_path: Path, within: float) -> None:
    """Weights and history of each rank, against those of a fit in this process."""
    one = ranked.fitted(str(tmp_path), case)
    assert all(rank == ranks[0] for rank in ranks), "to the last bit"
    np.testing.assert_allclose(ranks[0]["weights"], one["weights"], atol=within, rtol=0)
    for mine, theirs in zip(ranks[0]["history"], one["history"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize("case", ["double", "lists"])
def test_weights_of_two_ranks_are_those_of_one(case: str, two: Any, tmp_path: Path) -> None:
    """In float64: 5 epochs of 10 updates; and gradients of single rows, as many as a rank's lists have elements."""
    is_that_of_one(two[1][case], case, tmp_path, 1e-5)


@pytest.mark.parametrize("case", ["plain", "accumulate", "rowwise", "some"])
def test_the_curve_and_the_figures_are_those_of_one(case: str, two: Any, folder: Path, tmp_path: Path) -> None:
    is_that_of_one(two[1][case], case, tmp_path, 1e-3)
    np.testing.assert_allclose(curve(folder, case), curve(tmp_path, case), atol=1e-3)


def test_only_the_first_rank_logs_and_shows(two: Any, folder: Path) -> None:
    assert not list(folder.glob("*log1.jsonl")) and list(folder.glob("*log0.jsonl"))
    assert "epoch 1/3" in two[0][0] and "epoch 1/3" not in two[0][1]


def test_an_empty_rank_takes_part(two: Any, tmp_path: Path) -> None:
    is_that_of_one(two[1]["empty"], "empty", tmp_path, 1e-6)


def test_all_ranks_end_when_one_says_so_or_the_figure_does(two: Any, tmp_path: Path) -> None:
    for case, epochs in (("stop", 1), ("halt", 1), ("waits", 2)):
        is_that_of_one(two[1][case], case, tmp_path, 1e-3)
        assert [len(rank["history"]) for rank in two[1][case]] == [epochs, epochs]


def test_a_value_that_is_not_finite_is_named_on_all_ranks(two: Any) -> None:
    for rank in two[1]["infinite"]:
        assert rank["error"] == "BadData" and "column 'x1'" in rank["text"] and "(rows 17)" in rank["text"]


def test_ranks_of_different_lengths_are_told_at_the_start(two: Any) -> None:
    for rank in two[1]["unequal"]:
        assert rank["error"] == "BadConfig" and "got [3, 4]" in rank["text"]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Any]]]:
    """What four ranks found, and where their curves are."""
    folder = tmp_path_factory.mktemp("four")
    codes, told, found = ran(folder, ["double", "plain", "uneven", "lists", "spread", "spread-2"], 4)
    assert codes == [0] * 4, told
    return folder, found


@pytest.mark.parametrize(("case", "within"), [("double", 1e-5), ("plain", 1e-3), ("uneven", 1e-5), ("lists", 1e-5)])
def test_four_ranks_and_uneven_shards(case: str, within: float, four: Any, tmp_path: Path) -> None:
    folder, found = four
    is_that_of_one(found[case], case, tmp_path, within)
    np.testing.assert_allclose(curve(folder, case), curve(tmp_path, case), atol=1e-3)


@pytest.mark.parametrize("case", ["spread", "spread-2", "vacant", "balanced"])
def test_many_updates_of_unequal_shards_are_those_of_one(case: str, two: Any, four: Any, tmp_path: Path) -> None:
    """In float64 and to 1e-7: a rank with no rows at all, ranks with none in most updates, classes counted over all."""
    ranks = (four if case.startswith("spread") else two)[1][case]
    one = ranked.fitted(str(tmp_path), case)
    assert all(rank == ranks[0] for rank in ranks), "to the last bit"
    np.testing.assert_allclose(ranks[0]["weights"], one["weights"], atol=1e-7, rtol=0)
    for mine, theirs in zip(ranks[0]["history"], one["history"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-6)
    losses = [row["train_loss"] for row in one["history"]]
    assert losses[0] - losses[-1] > 0.1, "the weights have moved"
    assert ranks[0]["counted"] == pytest.approx([300] * 3, abs=1e-4), "each row once an epoch"


def test_a_row_counts_once_in_an_update_of_unequal_parts() -> None:
    """Two ranks of 3 and 1 rows: sum(weight * gradient) / sum(weight) over the four of them."""

    class Two(RankGroup):
        """The other rank's numbers, put in where they would be added."""

        def __init__(self, other: torch.Tensor) -> None:
            super().__init__(0, 2)
            self.other = other

        def _call_collective(self, tensor: torch.Tensor, call: Any) -> None:
            tensor += self.other

    weight, parameter = torch.tensor(3.0), nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([6.0, 3.0])
    Two(torch.tensor([1.0, 2.0, 5.0])).sum_gradients([parameter], weight)
    assert weight.item() == 4 and (parameter.grad / weight).tolist() == [2.0, 2.0]


def test_a_rank_that_fails_ends_the_fit_of_all_and_is_named_and_they_fit_again(two: Any) -> None:
    first, second = two[1]["fail"]
    assert first["error"] == "ClusterLost" and "rank 1 failed (ValueError: there is a fly in it)" in first["text"]
    assert "rank 0 of 2" in first["text"] and second == {"error": "ValueError", "text": "there is a fly in it"}
    assert CASES.index("fail") < CASES.index("plain")


def test_a_fit_of_shards_goes_on_and_finds_nothing_left_to_do(two: Any, folder: Path) -> None:
    """The case came twice: 3 epochs of 13 updates, looked at after 5, 10 and 13 of them, once."""
    first, second = two[1]["shards"]
    assert first == second and len(first["history"]) == 3 and len(curve(folder, "shards")) == 9


def test_what_the_first_rank_is_refused_is_told_by_all(two: Any) -> None:
    first, second = two[1]["refused"]
    told = "the folder holds checkpoints of another run"
    assert first["error"] == "BadConfig" and told in first["text"]
    assert second["error"] == "ClusterLost" and "rank 0 failed (BadConfig" in second["text"] and told in second["text"]


# ends -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "size", "lost"), [("kill", 4, 1), ("behead", 2, 0), ("hang", 2, 1)])
def test_a_rank_that_is_gone_ends_all_and_is_named(case: str, size: int, lost: int, tmp_path: Path) -> None:
    codes, told, found = ran(tmp_path, [case], size, gone=None if case == "hang" else lost)
    assert codes[lost] == (1 if case == "hang" else -signal.SIGKILL), told
    for rank in {*range(size)} - {lost}:
        result = found[case][rank]
        assert codes[rank] == 1 and result["error"] == "ClusterLost"
        assert f"rank {rank} of {size}" in result["text"] and f"rank {lost} is gone or hangs" in result["text"]


def test_sigterm_on_one_rank_saves_and_ends_all_and_they_go_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    codes, told, _ = ran(tmp_path / "a", ["term"], 2)
    assert codes == [143, 143], told
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "a" / "saved0")] == [10, 15], (
        "agreed at the next look"
    )
    codes, told, stopped = ran(tmp_path / "a", ["resume"], 2)
    assert codes == [0, 0], told
    _, _, undisturbed = ran(tmp_path / "b", ["resume"], 2)
    assert stopped == undisturbed
    assert not (tmp_path / "a" / "saved1").exists(), "the first rank alone writes, and reads for all"


# other ranks than before ----------------------------------------------------------------------------------------------


def goes_on(folder: Path, begun: str, before: int, after: int) -> list[Any]:
    """What each rank finds that goes on with a fit that failed, so many before and after; 1 is this process."""
    for case, size in ((begun, before), (begun.partition("-")[0], after)):
        if size > 1:
            found = ran(folder, [case], size)[2][case]
            continue
        folder.mkdir(parents=True, exist_ok=True)
        try:
            found = [ranked.fitted(str(folder), case)]
        except ValueError as error:
            found = [{"error": type(error).__name__, "text": str(error)}]
        if case == begun:
            assert "there is a fly in it" in found[0]["text"], found
    return found


@pytest.mark.parametrize(("before", "after", "step"), [(1, 2, 20), (2, 1, 16)], ids=["between epochs", "within one"])
def test_a_fit_goes_on_with_more_ranks_or_fewer(before: int, after: int, step: int, tmp_path: Path) -> None:
    """Where all have the whole table batches are the same, so it may be anywhere."""
    found = goes_on(tmp_path / "ranks", f"moved-{step}", before, after)
    assert [len(rank["history"]) for rank in found] == [3] * after
    is_that_of_one(found, "moved", tmp_path / "whole", 1e-5)
    assert step in [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "ranks" / "moved")]


@pytest.mark.parametrize(("before", "after", "end", "last"), [(1, 2, 20, 33), (2, 1, 26, 36)])
def test_rows_are_dealt_anew_between_epochs(before: int, after: int, end: int, last: int, tmp_path: Path) -> None:
    """10 batches an epoch in one process, 13 of two with 200 and 100 rows: the schedule goes by epochs."""
    found = goes_on(tmp_path, f"dealt-{end}", before, after)
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "moved")] == [end // 2, end, last]
    whole = ranked.fitted(str(tmp_path), "plain")["history"]
    for rank in found:
        assert [row["lr"] for row in rank["history"]][2] == pytest.approx(whole[2]["lr"], rel=1e-3)
        assert rank["history"][2]["train_loss"] < rank["history"][1]["train_loss"]


def test_in_the_middle_of_an_epoch_they_are_not(tmp_path: Path) -> None:
    (found,) = goes_on(tmp_path, "dealt-16", 2, 1)
    assert found["error"] == "SchemaMismatch" and "as many ranks, and the batch size, as then" in found["text"]
    assert "from the middle of an epoch of other batches: batches per epoch, got 13" in found["text"]


# alone ----------------------------------------------------------------------------------------------------------------


def test_a_process_alone_asks_nobody() -> None:
    ranks, parameter = RankGroup(), nn.Parameter(torch.ones(1))
    ranks.broadcast_model(nn.Linear(1, 1))
    ranks.sum_gradients([parameter], torch.ones(()))
    assert parameter.grad is None and ranks.is_main
    assert ranks.gather("x") == ["x"] and ranks.any(True) and not ranks.any(False)
    assert ranks.broadcast_object(lambda: 3) == 3 and ranks.all_gather_rows(torch.ones(2)).tolist() == [1, 1]


def test_word_is_left_and_read() -> None:
    first = FailureStore(0, 3)
    second, third = (FailureStore(rank, 3, ("127.0.0.1", first.port)) for rank in (1, 2))
    assert not first.any_failed()
    second.report("MemoryError: none left")
    deadline = time.monotonic() + 30  # a client does not wait until the store has what it sends
    while not (first.any_failed() and third.any_failed()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert first.any_failed() and third.any_failed()
    for other in (third, first):
        assert "rank 1 failed (MemoryError: none left)" in str(other.make_lost_error(RuntimeError("broken")))
    assert choose_host(["a", "a"]) == "127.0.0.1"
