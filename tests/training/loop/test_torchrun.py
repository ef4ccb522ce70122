"""A script as a user starts it on several processes, and on one: the same weights."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
LIMIT = 300
"""Seconds for the job, most of which are imports."""
SCRIPT = """
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import gpupipe as gp
from gpupipe import preprocessing as pre

torch.set_num_threads(1)
draw = np.random.default_rng(0)
frame = pd.DataFrame(draw.standard_normal((501, 2)), columns=["x", "y"])
frame["day"] = draw.choice(["Mon", "Tue", "Wed"], 501)
frame["late"] = frame["x"] - frame["y"] ** 2 + (frame["day"] == "Tue") > 0

features = gp.Features((["x", "y"], pre.StandardScaler()), (["day"], pre.Categorify()), target="late")
pipeline = gp.Pipeline([], features, backend="cpu").fit(frame)
rank = int(os.environ.get("RANK", "0"))
model = gp.models.MLP.from_schema(pipeline.schema, hidden=(8,), seed=rank)  # the first rank's counts
train = pipeline.loader(frame, batch_size=64, shuffle="rows", seed=1)
valid = pipeline.loader(frame[:99], batch_size=64)
trainer = gp.Trainer(model, max_epochs=3, lr=0.3, optimizer="sgd", device="cpu", progress=False)
history = trainer.fit(train, valid)

weights = torch.cat([value.double().flatten() for value in model.state_dict().values()])
losses = [[row["train_loss"], row["valid_loss"], row["valid_auc"]] for row in history]
np.savez(Path(sys.argv[1], f"{rank}.npz"), weights=weights.numpy(), losses=losses, world_size=train.world_size)
"""


def launched(script: Path, processes: int) -> tuple[int, str]:
    """The exit code of `torchrun`, and what went to stderr; where it takes too long it is told to end its processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    group = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in group}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, str(script), str(script.parent)], env=environment, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            told = job.communicate(timeout=LIMIT)[1]
        except BaseException:
            job.terminate()
            job.communicate(timeout=60)
            raise
    return job.returncode, told


def test_torchrun_of_a_script_learns_what_one_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    code, told = launched(script, 2)
    assert code == 0, told
    assert "destroy_process_group" not in told, "the group has been left"
    first, second = (dict(np.load(tmp_path / f"{rank}.npz")) for rank in range(2))

    alone = tmp_path / "alone"
    alone.mkdir()
    monkeypatch.setattr(sys, "argv", [str(script), str(alone)])
    runpy.run_path(str(script))
    one: dict[str, Any] = dict(np.load(alone / "0.npz"))

    assert [first["world_size"], second["world_size"], one["world_size"]] == [2, 2, 1]
    np.testing.assert_array_equal(first["weights"], second["weights"])
    np.testing.assert_array_equal(first["losses"], second["losses"])
    np.testing.assert_allclose(first["weights"], one["weights"], atol=1e-5, rtol=0)
    np.testing.assert_allclose(first["losses"], one["losses"], atol=1e-5, rtol=0)
    assert one["losses"][0, 0] - one["losses"][-1, 0] > 0.05, "the weights have moved"
