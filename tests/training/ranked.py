"""What one rank of several does: fits under torchrun's variables, whose results go to files.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python ranked.py FOLDER CASE ...
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from gpupipe.models import MLP
from gpupipe.tensors import Block, Loader
from gpupipe.training import Callback, EarlyStopping, Run, Trainer
from tests.training.resumed import SCHEMA, block

RANK = int(os.environ.get("RANK", "0"))
# "uneven" learns all rows in one batch, "empty" in many of them, at a rate that moves nothing.
SHARDS = {"uneven": [200, 70, 0, 30], "empty": [300, 0]}


class Writes(Callback):
    """The curve of the loss, in the first rank's file."""

    def __init__(self, folder: str, case: str) -> None:
        self.path = Path(folder, f"{case}-log{RANK}.jsonl")

    def on_log(self, run: Run) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(run.figures["loss"]) + "\n")


class Acts(Callback):
    """Does something to itself after some updates, on one rank."""

    every_rank = True

    def __init__(self, rank: int, what: str, step: int = 5) -> None:
        self.rank, self.what, self.step = rank, what, step

    def on_step_end(self, run: Run) -> None:
        if self.rank != RANK or run.step != self.step:
            return
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        if self.what == "hang":
            time.sleep(20)
        if self.what == "fail":
            raise ValueError("there is a fly in it")


def part(whole: Block, sizes: list[int]) -> Block:
    """This rank's rows."""
    first = sum(sizes[:RANK])
    own = Block.allocate(SCHEMA, sizes[RANK], "cpu")
    own.words.copy_(whole.words[first : first + sizes[RANK]])
    return own


def fitted(folder: str, case: str) -> dict[str, Any]:
    double = case == "double"
    settings: dict[str, Any] = {
        "max_epochs": 5 if double else 3,
        "lr": 0.01,
        "device": "cpu",
        "gradient_clip": 1.0,
        "progress": True,
        "log_every": 5,
        "callbacks": [Writes(folder, case)],
        "patience": 120.0,
    }
    network = MLP.from_schema(SCHEMA, hidden=(16, 8), dropout=0.2 if case in ("term", "resume") else 0.0, seed=1 + RANK)
    rows, sharded = block(300), False
    if case in SHARDS:
        sizes = SHARDS[case]
        rows, sharded = (part(rows, sizes), True) if "RANK" in os.environ else (rows, False)
    batch_size = 4 * 200 if case == "uneven" else 32
    train = Loader(rows, batch_size=batch_size, shuffle="rows", seed=3, sharded=sharded)
    valid = Loader(block(101, 9), batch_size=32)
    resume = None
    if double:
        network.double()
        train, valid = Double(train), Double(valid)
    elif case in ("kill", "hang", "fail"):
        settings["callbacks"].append(Acts(1, case))
        settings["patience"] = 8.0
    elif case in ("term", "resume"):
        settings |= {"checkpoints": f"{folder}/saved", "early_stopping": EarlyStopping(patience=4)}
        resume = "latest"
        if case == "term":
            settings["callbacks"].append(Acts(1, "term", 14))
    elif case == "empty":
        settings["lr"] = 1e-12
    elif case == "accumulate":
        settings["accumulate"] = 2
    elif case == "rowwise":
        settings["optimizer"] = "rowwise"
    elif case == "unequal":
        train, settings["loss"] = list(train)[: 3 + RANK], "bce"
    history = Trainer(network, **settings).fit(train, valid, resume=resume)
    weights = torch.cat([weight.flatten() for weight in network.state_dict().values()]).double()
    timeless = [{k: v for k, v in row.items() if not k.startswith(("seconds", "rows"))} for row in history]
    return {"weights": weights.tolist(), "history": timeless}


class Double:
    """A loader's batches in float64."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        for batch in self.loader:
            batch.numeric = batch.numeric.double()
            yield batch


def main(folder: str, *cases: str) -> None:
    torch.set_num_threads(1)
    for case in cases:
        try:
            found = fitted(folder, case)
        except Exception as error:
            found = {"error": type(error).__name__, "text": str(error)}
            if case == cases[-1]:
                raise
        finally:
            if not isinstance(sys.exc_info()[1], SystemExit):
                Path(folder, f"{case}{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
