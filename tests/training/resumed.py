"""A fit in a process of its own, that can be killed and started again: weights and history go to a file.

python resumed.py FOLDER OUT [PAUSE]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from gpupipe.models import MLP
from gpupipe.schema import Field, Kind, Role, Schema
from gpupipe.tensors import FeatureTable, Loader
from gpupipe.training import Callback, Checkpoints, EarlyStopping, Trainer, TrainState

SCHEMA = Schema(
    [
        *(Field(f"x{i}", "float32", role=Role.FEATURE) for i in range(3)),
        Field("c", "int32", Kind.CATEGORICAL, cardinality=6, role=Role.FEATURE),
        Field("late", "bool", role=Role.TARGET, classes=(False, True)),
    ]
)


def block(count: int, seed: int = 0) -> FeatureTable:
    """Rows whose target follows from their features."""
    draw = torch.Generator().manual_seed(seed)
    made = FeatureTable.allocate(SCHEMA, count, "cpu")
    made.numeric.copy_(torch.randn(count, 3, generator=draw))
    made.codes.copy_(torch.randint(2, 6, (count, 1), generator=draw))
    made.target.copy_((2 * made.numeric[:, 0] - made.numeric[:, 1] ** 2 + made.codes[:, 0] > 2.5).float())
    return made


class Pace(Callback):
    """Says how far a fit is, takes its time, and at one step waits until its input ends."""

    def __init__(self, pause: float, wait_at: float) -> None:
        self.pause, self.wait_at = pause, wait_at

    def on_step_end(self, run: TrainState) -> None:
        if self.pause:
            print(run.step, flush=True)
            time.sleep(self.pause)
        if run.step == self.wait_at:
            sys.stdin.read()


def model() -> MLP:
    return MLP.from_schema(SCHEMA, hidden=(16, 8), dropout=0.2, seed=1)


def trainer(folder: str | Path | None, network: MLP, **arguments: object) -> Trainer:
    saves = None if folder is None else Checkpoints(folder, every_steps=7, keep=2)
    settings = {"max_epochs": 4, "lr": 0.01, "device": "cpu", "max_grad_norm": 1.0, "progress": False, "log_every": 5}
    settings |= {"early_stopping": EarlyStopping(patience=4), "checkpoints": saves}
    return Trainer(network, **settings | arguments)


def loaders() -> tuple[Loader, Loader]:
    return Loader(block(640), batch_size=32, shuffle="rows", seed=3), Loader(block(200, 9), batch_size=64)


def main(folder: str, out: str, pause: float = 0.0, wait_at: float = 0.0) -> None:
    torch.set_num_threads(1)
    network = model()
    train, valid = loaders()
    history = trainer(folder, network, callbacks=[Pace(pause, wait_at)]).fit(train, valid, resume="latest")
    weights = torch.cat([weight.flatten() for weight in network.state_dict().values()]).double()
    timeless = [{k: v for k, v in row.items() if not k.startswith(("seconds", "rows"))} for row in history]
    Path(out).write_text(json.dumps([weights.tolist(), timeless]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(float, sys.argv[3:]))
