"""What one rank of several does: fits under torchrun's variables, whose results go to files."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from gpupipe.models import MLP
from gpupipe.schema import Field, Role, Schema
from gpupipe.tensors import Batch, FeatureTable, Loader, Ragged
from gpupipe.training import Callback, Checkpoints, EarlyStopping, Trainer, TrainState
from gpupipe.training.optim import optimizers
from tests.training.resumed import SCHEMA, block

RANK = int(os.environ.get("RANK", "0"))
SEVERAL = "RANK" in os.environ
LISTS = Schema([*SCHEMA, Field("seen", "list<int32>", cardinality=7, role=Role.FEATURE)])
# "uneven" learns all rows in one batch, "empty" in many of them, at a rate that moves nothing; of those in `AS_DEALT`
# one process learns the very batches that the ranks have together.
SHARDS = {"uneven": [200, 70, 0, 30], "empty": [300, 0], "shards": [200, 100], "dealt": [200, 100]}
AS_DEALT = {"spread": [200, 70, 0, 30], "vacant": [0, 300], "balanced": [90, 210]}
SHARDS |= AS_DEALT


class Writes(Callback):
    """The curve of the loss, in the first rank's file."""

    def __init__(self, folder: str, case: str) -> None:
        self.path = Path(folder, f"{case}-log{RANK}.jsonl")

    def on_log(self, run: TrainState) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(run.metrics["loss"]) + "\n")


class Acts(Callback):
    """Does something to itself after some updates, on one rank."""

    every_rank = True

    def __init__(self, rank: int, what: str, step: int = 5) -> None:
        self.rank, self.what, self.step = rank, what, step

    def on_step_end(self, run: TrainState) -> None:
        if self.rank != RANK or run.step != self.step:
            return
        if self.what == "stop":
            run.stop = True
        if self.what in ("kill", "behead"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        if self.what == "hang":
            time.sleep(20)
        if self.what == "fail":
            raise ValueError("there is a fly in it")


class Counts(Callback):
    """The weight of all rows that an epoch has learnt, on all ranks."""

    every_rank = True

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_epoch_end(self, run: TrainState) -> None:
        self.found.append(run.update.losses.sum_over_ranks()[1].item())


class Dealt:
    """What several ranks have of each batch, one rank's rows after another's, without padding."""

    def __init__(self, whole: FeatureTable, sizes: list[int], each: int) -> None:
        parts = [part(whole, sizes, rank) for rank in range(len(sizes))]
        self.loaders = [Loader(rows, batch_size=each, shuffle="rows", seed=3) for rows in parts]
        self.schema, self.device, self.total_rows = whole.schema, whole.device, len(whole)

    def set_epoch(self, epoch: int) -> None:
        for loader in self.loaders:
            loader.set_epoch(epoch)

    def __len__(self) -> int:
        return max(map(len, self.loaders))

    def __iter__(self) -> Iterator[Batch]:
        for batches in zip_longest(*self.loaders):
            there = [batch for batch in batches if batch is not None]
            yield Batch(*(torch.cat([getattr(b, name) for b in there]) for name in ("numeric", "codes", "target")))


def part(whole: FeatureTable, sizes: list[int], rank: int) -> FeatureTable:
    """A rank's rows."""
    first = sum(sizes[:rank])
    own = FeatureTable.allocate(SCHEMA, sizes[rank], "cpu")
    own.words.copy_(whole.words[first : first + sizes[rank]])
    return own


def with_lists(plain: FeatureTable) -> FeatureTable:
    """The rows, each with none to four ids."""
    made = FeatureTable(LISTS, plain.words, {}, {})
    draw = torch.Generator().manual_seed(5)
    lengths = torch.randint(0, 5, (len(plain),), generator=draw)
    ids = torch.randint(0, 7, (int(lengths.sum()),), generator=draw, dtype=torch.int32)
    made.written_lists = {0: {"seen": Ragged(ids, torch.nn.functional.pad(lengths.cumsum(0), (1, 0)))}}
    return made


def some(batches: list[Batch]) -> list[Batch]:
    """This rank's parts, of which the second has rows in every other batch only, and fewer."""
    parts = []
    for number, batch in enumerate(batches):
        cut = len(batch) if number % 2 else 20
        rows = slice(cut) if RANK == 0 else slice(cut, None)
        parts.append(Batch(batch.numeric[rows], batch.codes[rows], batch.target[rows]) if SEVERAL else batch)
    return parts


def fitted(folder: str, case: str) -> dict[str, Any]:
    case, _, step = case.partition(
        "-"
    )  # "moved-16" and "dealt-16" fail after update 17, and have saved 16; "spread-2" accumulates 2
    settings: dict[str, Any] = {
        "max_epochs": 3,
        "lr": 0.01,
        "device": "cpu",
        "max_grad_norm": 1.0,
        "progress": True,
        "log_every": 5,
        "callbacks": [Writes(folder, case)],
        "timeout": 120.0,
    }
    rows, sharded, resume = block(300), False, None
    if case in SHARDS:
        sizes = SHARDS[case]
        rows, sharded = (part(rows, sizes, RANK), True) if SEVERAL else (rows, False)
    rows, other = (with_lists(rows), with_lists(block(101, 9))) if case == "lists" else (rows, block(101, 9))
    if case == "infinite":
        rows.numeric[17, 1] = float("inf")
    dropout = 0.2 if case in ("term", "resume") else 0.0
    network = MLP.from_schema(rows.schema, hidden=(16, 8), dropout=dropout, seed=1 + RANK)
    batch_size = 4 * 200 if case == "uneven" else 32
    train: Any = Loader(rows, batch_size=batch_size, shuffle="rows", seed=3, sharded=sharded)
    if case in AS_DEALT and not SEVERAL:
        train = Dealt(rows, sizes, batch_size // len(sizes))
    valid = Loader(other, batch_size=32)
    counts = Counts()
    if case in AS_DEALT:
        settings["callbacks"].append(counts)
        settings["accumulate"] = int(step or 1)
        settings["class_weight"] = "balanced" if case == "balanced" else None
    if case in ("double", "lists", "moved", *AS_DEALT):
        network.double()
        train, valid = Double(train), Double(valid)
    if case == "double":
        settings["max_epochs"] = 5
    elif case in ("kill", "behead", "hang", "fail", "stop"):
        settings["callbacks"].append(Acts(0 if case in ("stop", "behead") else 1, case))
        settings["timeout"] = 8.0 if case == "hang" else 600.0
    elif case == "halt":  # all ranks save, and only where the fit ends
        settings["callbacks"].append(Acts(1 if SEVERAL else 0, "stop"))
        settings["checkpoints"] = Checkpoints(f"{folder}/halt", every_epochs=None)
    elif case == "waits":
        settings |= {"early_stopping": EarlyStopping(patience=1, min_delta=0.1), "lr": 1e-6}
    elif case in ("term", "resume"):
        settings |= {"checkpoints": f"{folder}/saved{RANK}", "early_stopping": EarlyStopping(patience=4)}
        resume = "latest"
        if case == "term":
            settings["callbacks"].append(Acts(1, "term", 14))
    elif case == "shards":
        settings["checkpoints"], resume = f"{folder}/shards{RANK}", "latest"
    elif case in ("moved", "dealt"):
        settings["checkpoints"], resume = Checkpoints(f"{folder}/moved", every_steps=int(step or 99), keep=9), "latest"
        settings["callbacks"] += [Acts(0, "fail", int(step) + 1)] if step else []
    elif case == "refused":
        settings["checkpoints"] = f"{folder}/shards{RANK}"  # where there are some of another run, of the first rank's
    elif case == "empty":
        settings["lr"] = 1e-12
    elif case in ("accumulate", "lists"):
        settings["accumulate"] = 2
    if case in ("rowwise", "lists"):
        settings["optimizer"] = "rowwise"
    elif case == "unequal":
        train, settings["loss"] = list(train)[: 3 + RANK], "bce"
    elif case == "some":
        train, settings["loss"] = some(list(Loader(rows, batch_size=32, rank=0, world_size=1))), "bce"
    with patch.object(optimizers, "TABLE", 1):  # or these tables would be too small for gradients of single rows
        history = Trainer(network, **settings).fit(train, valid, resume=resume)
    weights = torch.cat([weight.flatten() for weight in network.state_dict().values()]).double()
    timeless = [{k: v for k, v in row.items() if not k.startswith(("seconds", "rows"))} for row in history]
    return {"weights": weights.tolist(), "history": timeless, "counted": counts.found}


def refuse_code(event: str, arguments: tuple[Any, ...]) -> None:
    """Nothing that a fit reads, from other ranks or from files, may name something to call."""
    if event == "pickle.find_class":
        raise RuntimeError(f"{arguments} is unpickled")


class Double:
    """A loader's batches in float64."""

    def __init__(self, loader: Loader | Dealt) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        for batch in self.loader:
            batch.numeric = batch.numeric.double()
            yield batch


def run(environment: dict[str, str], folder: str, *cases: str) -> None:
    """Train as the rank that an environment like torchrun's says; what goes to stderr is kept in a file."""
    global RANK, SEVERAL
    os.environ |= environment
    RANK, SEVERAL = int(environment["RANK"]), True
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(f"{folder}/stderr{RANK}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    torch.set_num_threads(1)
    sys.addaudithook(refuse_code)
    errors = []  # kept, as Dask keeps them: their tracebacks must not hold on to connections
    for case in cases:
        try:
            found = fitted(folder, case)
        except Exception as error:
            errors.append(error)
            found = {"error": type(error).__name__, "text": str(error)}
            if case == cases[-1]:
                raise
        finally:
            if not isinstance(sys.exc_info()[1], SystemExit):
                Path(folder, f"{case}{RANK}.json").write_text(json.dumps(found))
