"""What one rank of several reports on its rows: under torchrun's variables, into a file.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python -m tests.training.reported FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pandas as pd
import torch

import gpupipe as gp

RANK = int(os.environ.get("RANK", "0"))
SEVERAL = "RANK" in os.environ
CUT = 40  # rows of the first rank, whose strings come in another order than the second's


def table() -> pd.DataFrame:
    """Rows of two carriers and some without one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(101, generator=generator)
    late = torch.rand(101, generator=generator) < x.sigmoid()
    carriers = ["UA", "AA", None, "UA"] * 10 + ["AA", "DL", "UA"] * 20 + [None]
    return pd.DataFrame({"x": x.double(), "late": late, "carrier": carriers, "hour": [5, 6] * 50 + [7]})


def evaluate() -> dict[str, gp.Report]:
    """Report by the kept columns, of this rank's rows and of all of the table's."""
    frame = table()
    features = gp.Features(["x"], target="late", keep=["carrier", "hour"])
    pipeline = gp.Pipeline([], features, backend="cpu").fit(frame)
    model = gp.models.Linear.from_schema(pipeline.schema, seed=1)
    trainer = gp.Trainer(model, max_epochs=1, device="cpu", progress=False)
    mine = frame[:CUT] if RANK == 0 else frame[CUT:]
    sharded = pipeline.loader(mine if SEVERAL else frame, batch_size=16, sharded=SEVERAL)
    shared = pipeline.loader(frame, batch_size=16)
    return {
        "sharded": trainer.evaluate(sharded, by="carrier"),
        "shared": trainer.evaluate(shared, by="carrier"),
        "hours": trainer.evaluate(sharded, by="hour"),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, report in evaluate().items():
        Path(sys.argv[1], f"{name}{RANK}.json").write_text(report.to_json())
