"""Real processes with gloo: each knows its rank, all take equally many steps, an empty one too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing

from gpupipe import errors
from gpupipe.tensors import Loader
from gpupipe.tensors.order import Sharding, get_rank
from tests.raising import raises

from .tables import block_of, rows_of

SHARDS = [0, 40]


def run(rank: int, folder: str) -> None:
    """What one process does; in each step the ranks meet, as they do to reduce gradients."""
    store = distributed.FileStore(f"{folder}/store", len(SHARDS))
    distributed.init_process_group("gloo", rank=rank, world_size=len(SHARDS), store=store)
    torch.set_num_threads(1)
    tables = {
        "replicated": Loader(block_of(50, first=1), batch_size=12, shuffle=True),
        "sharded": Loader(
            block_of(SHARDS[rank], first=1 + sum(SHARDS[:rank])), batch_size=12, shuffle=True, sharded=True
        ),
        "empty": Loader(block_of(0), batch_size=12, sharded=True),
    }
    found: dict[str, list[list[int]]] = {}
    for name, loader in tables.items():
        found[name] = []
        for batch in loader:
            met = torch.ones(())
            distributed.all_reduce(met)
            assert met == len(SHARDS)
            found[name].append(rows_of([batch]))
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def test_real_ranks(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=run, args=(rank, str(tmp_path))) for rank in range(len(SHARDS))]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    hung = [process for process in processes if process.is_alive()]
    for process in hung:
        process.kill()
    assert not hung and [process.exitcode for process in processes] == [0] * len(SHARDS)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(len(SHARDS))]
    alone = [rows_of([batch]) for batch in Loader(block_of(50, first=1), batch_size=12, shuffle=True)]
    parts = zip(*(found["replicated"] for found in ranks), strict=True)
    assert [[row for part in step for row in part] for step in parts] == alone
    rows = [row for found in ranks for step in found["sharded"] for row in step]
    assert sorted(rows) == list(range(1, sum(SHARDS) + 1))
    assert {len(found["sharded"]) for found in ranks} == {7} and {len(found["empty"]) for found in ranks} == {0}


def test_padding_is_weight_0_and_nothing_else() -> None:
    (batch,) = Loader(block_of(3, first=1), batch_size=8, rank=1, world_size=2)
    assert batch.weight is not None and batch.weight.tolist() == [1.0, 0.0]
    assert batch.codes[:, 0].tolist() == [3, 0] and batch.keep["k"].tolist() == [15, 0]
    assert batch.numeric.isfinite().all()
    for loader in (Loader(block_of(8), batch_size=4, rank=0, world_size=2), Loader(block_of(3), batch_size=2)):
        assert all(batch.weight is None for batch in loader), "no weights where nothing is padded"


def test_padding_is_told_before_it_comes() -> None:
    for rows in range(30):
        for batch_size in range(1, 9):
            for drop_last in (False, True):
                ranks = [Sharding(rows, batch_size, drop_last, rank, 3) for rank in range(3)]
                steps = [rank.step(number) for rank in ranks for number in range(len(rank))]
                padded = any(step.size > step.stop - step.start for step in steps)
                assert {rank.pads for rank in ranks} == {padded}


def test_no_rank_of_a_group() -> None:
    assert get_rank(None, None) == (0, 1)
    for rank, world_size in ((0, None), (None, 2), (2, 2), (-1, 2)):
        with pytest.raises(errors.BadConfig, match="no rank of a group"):
            Loader(block_of(1), rank=rank, world_size=world_size)
    with raises(errors.BadConfig, where="loader", got="[2, 1] for rank 0 of 2, whose table has 1 rows"):
        Loader(block_of(1), rank=0, world_size=2, sharded=[2, 1])
    with raises(errors.BadConfig, where="loader", got="sharded=True without torch.distributed"):
        Loader(block_of(1), rank=0, world_size=2, sharded=True)
