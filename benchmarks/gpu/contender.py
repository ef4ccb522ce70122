"""From Parquet to a trained model, by one contender in a process of its own; one JSON line per run.

    python benchmarks/gpu/contender.py NAME FOLDER BORN UNTIL ROWS ... [--dry]

The first run is the cold one: it counts from BORN, when the process was asked for, so imports are in it, and what is
compiled, captured and pooled once; its files are not in the page cache. The second is begun whatever the time: the cold
one says nothing of how long it takes, and it is what contenders are compared by. A run after it that would not end
before UNTIL, going by the rate of the one before, is left out and told. The network, batches of 8192 rows, 3 epochs,
AdamW and bfloat16 products on a GPU are the same for all. Times are `time.time()`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from by_hand import with_cudf, with_sklearn
from table import CARDINALITY, IDS, NUMBERS, TARGET, files_of, forget
from torch.utils.data import DataLoader, TensorDataset

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.backend import select
from gpupipe.tensors import Batch

BATCH, EPOCHS, HIDDEN, LR = 8192, 3, (256, 256), 1e-3
Made = tuple[Any, Any, Any]


def of_gpupipe(files: list[Path], backend: str) -> float:
    """The program that a user of gpupipe writes."""
    data = gp.read_parquet(files, backend=backend)
    features = gp.Features(
        (NUMBERS, [pre.SimpleImputer(), pre.StandardScaler()]), (IDS, pre.Categorify()), target=TARGET
    )
    pipeline = gp.Pipeline([], features, backend=backend).fit(data)
    loader = pipeline.loader(data, batch_size=BATCH, shuffle="rows", reuse_buffers=True)
    model, device = gp.models.MLP.from_schema(pipeline.schema, hidden=HIDDEN, seed=0), select(pipeline.backend).device
    history = gp.Trainer(model, max_epochs=EPOCHS, lr=LR, loss="mse", device=device, progress=False).fit(loader)
    return float(history.rows[-1]["train_loss"])


def trained(batches: Callable[[], Iterator[Batch]], device: torch.device) -> float:
    """A loop as many write it: eager, AdamW, bfloat16 on a GPU; the loss is looked at once an epoch."""
    torch.set_float32_matmul_precision("high")
    model = gp.models.MLP(len(NUMBERS), [CARDINALITY + 1] * len(IDS), hidden=HIDDEN, seed=0).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=device.type == "cuda")
    total, count = torch.zeros((), device=device), 0
    for _ in range(EPOCHS):
        total, count = torch.zeros((), device=device), 0
        for batch in batches():
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                output = model(batch)
            loss = F.mse_loss(output.float(), batch.target)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total, count = total + loss.detach(), count + 1
        total.item()
    return float(total) / count


def by_slices(made: Made, device: torch.device) -> float:
    """Everything on the device; a permutation an epoch, and slices of it."""
    tensors = [torch.from_dlpack(values).to(device) for values in made]

    def batches() -> Iterator[Batch]:
        order = torch.randperm(len(tensors[0]), device=device)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            yield Batch(*(values.index_select(0, rows) for values in tensors))

    return trained(batches, device)


def by_stock_loader(made: Made, device: torch.device) -> float:
    """torch's DataLoader over a TensorDataset, as in its tutorial."""
    dataset = TensorDataset(*(torch.from_dlpack(values) for values in made))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    return trained(lambda: (Batch(*(values.to(device) for values in batch)) for batch in loader), device)


def contenders(*, gpu: bool) -> dict[str, Callable[[list[Path]], float]]:
    """By name; without a GPU all have pandas in cuDF's place."""
    device = torch.device("cuda" if gpu else "cpu")
    on_device = with_cudf if gpu else with_sklearn
    return {
        "gpupipe": lambda files: of_gpupipe(files, "gpu" if gpu else "cpu"),
        "gpupipe on the CPU": lambda files: of_gpupipe(files, "cpu"),
        "cuDF, slices": lambda files: by_slices(on_device(files), device),
        "cuDF, DataLoader": lambda files: by_stock_loader(on_device(files), device),
        "pandas, scikit-learn, DataLoader": lambda files: by_stock_loader(with_sklearn(files), device),
    }


def lines(arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One for each run that was done or left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("born", type=float)
    parser.add_argument("until", type=float)
    parser.add_argument("rows", type=int, nargs="+", help="of one run after the other")
    parser.add_argument("--dry", action="store_true")
    given = parser.parse_args(arguments)
    run = contenders(gpu=not given.dry)[given.name]
    before, took = 0, 0.0
    for number, rows in enumerate(given.rows):
        expected = took * rows / max(before, 1)
        if number > 1 and time.time() + expected > given.until:
            yield {"rows": rows, "dropped": f"{expected:.0f} s were not left"}
            continue
        files = files_of(given.folder, rows)
        if number == 0:
            forget(files)
        started = time.time() if number else given.born
        loss = run(files)
        before, took = rows, time.time() - started
        yield {"rows": rows, "cold": number == 0, "seconds": took, "loss": loss}


if __name__ == "__main__":
    for line in lines(sys.argv[1:]):
        print(json.dumps(line), flush=True)
