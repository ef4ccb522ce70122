"""What the trainer's loop costs the host beside a loop written by hand: same model, optimiser and batches, in turns.

    python benchmarks/trainer.py [--pairs 25] [--steps 400] [--batches 64 8192]

The loop by hand: batches by `index_select` of a permutation from the same packed table, forward, loss, backward, fused
AdamW with the same parameter groups, the loss looked at once per 100 steps. No metrics, no validation in either. One
thread. A pair is one fit and one such loop, each over `steps` batches, in turns first and second. Lightning and
Accelerate are timed beside them where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.nn.functional as F
from environment import RESULTS, spread, with_steady_malloc, write_result
from loader import table
from torch import nn

from gpupipe.models import MLP
from gpupipe.tensors import Batch, Block, Loader
from gpupipe.training import Trainer
from gpupipe.training.optimizers import parameter_groups

BARS = {"host ms per step at batch 64": 0.1, "share at batch 64": 0.10, "ratio at batch 8192": 1.02}


def model_of(block: Block) -> MLP:
    """40 numbers, 8 ids of 1000, two hidden layers."""
    return MLP.from_schema(block.schema, hidden=(64, 32), seed=1)


def loss_of(output: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The same function for all."""
    return F.mse_loss(output, batch.target)


def ours(block: Block, batch: int) -> Callable[[], None]:
    """One epoch of the trainer."""
    loader = Loader(block, batch_size=batch, shuffle="rows")
    model = model_of(block)

    def run() -> None:
        Trainer(model, max_epochs=1, loss=loss_of, lr=1e-3, metrics=[], device="cpu", progress=False).fit(loader)

    return run


def optimizer_of(model: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    """Fused AdamW over the trainer's parameter groups."""
    rate = torch.tensor(lr)
    groups = parameter_groups(model, rate, highest=lr, weight_decay=0.01)
    return torch.optim.AdamW(groups, lr=rate, fused=True)


def by_hand(block: Block, batch: int) -> Callable[[], None]:
    """The same epoch in ten lines."""
    model, rows = model_of(block), len(block)

    def run() -> None:
        optimizer = optimizer_of(model)
        model.train()
        order, total = torch.randperm(rows), torch.zeros(())
        for step, start in enumerate(range(0, rows, batch), start=1):
            given = block.batch_of(block.words.index_select(0, order[start : start + batch]))
            loss = loss_of(model(given), given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            if step % 100 == 0:
                total.item()

    return run


def accelerated(block: Block, batch: int) -> Callable[[], None]:
    """Accelerate around model and optimiser; its loader would rebuild ours."""
    from accelerate import Accelerator

    loader, model = Loader(block, batch_size=batch, shuffle="rows", reuse_buffers=True), model_of(block)

    def run() -> None:
        accelerator = Accelerator(cpu=True)
        wrapped, optimizer = accelerator.prepare(model, optimizer_of(model))
        for given in loader:
            loss = loss_of(wrapped(given), given)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()

    return run


def lightning(block: Block, batch: int) -> Callable[[], None]:
    """Lightning with all extras off."""
    import pytorch_lightning as pl

    loader, model = Loader(block, batch_size=batch, shuffle="rows"), model_of(block)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, given: Any, number: int) -> torch.Tensor:
            return loss_of(self.net(given), given)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self.net)

    def run() -> None:
        off = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
        pl.Trainer(max_epochs=1, accelerator="cpu", **off).fit(Module(), loader.as_torch())

    return run


PEERS = {"accelerate": accelerated, "pytorch_lightning": lightning}


def pairs_of(
    first: Callable[[], None], second: Callable[[], None], pairs: int, steps: int
) -> list[tuple[float, float]]:
    """Milliseconds per step of both, pair by pair, after one to warm up."""
    found = []
    for number in range(pairs + 1):
        times = {}
        for job in (first, second) if number % 2 else (second, first):
            started = time.perf_counter()
            job()
            times[job] = (time.perf_counter() - started) / steps * 1e3
        if number:
            found.append((times[first], times[second]))
    return found


def interval(values: list[float], draws: int = 2000) -> tuple[float, float]:
    """95 % of the median's bootstrap distribution."""
    draw = random.Random(0)  # noqa: S311 - no secret
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(draws))
    return medians[round(0.025 * draws)], medians[round(0.975 * draws)]


def compared(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """What the first of each pair costs over the second."""
    differences, ratios = [a - b for a, b in pairs], [a / b for a, b in pairs]
    return {
        "ms_per_step": spread([a for a, _ in pairs]),
        "by_hand_ms_per_step": spread([b for _, b in pairs]),
        "difference_ms": {**spread(differences), "interval": interval(differences), "mean": mean(differences)},
        "ratio": {**spread(ratios), "interval": interval(ratios)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 8192])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    for batch in parsed.batches:
        steps = parsed.steps if batch < 1024 else max(parsed.steps // 16, 1)
        block, _ = table(batch * steps)
        hand = by_hand(block, batch)
        jobs = {"gpupipe": ours(block, batch)}
        for name, make in PEERS.items():
            if importlib.util.find_spec(name) is None:
                print(f"{name} is not installed: left out")
            else:
                jobs[name] = make(block, batch)
        figures[f"batch {batch}"] = {
            name: compared(pairs_of(job, hand, parsed.pairs, steps)) for name, job in jobs.items()
        }
        for name, found in figures[f"batch {batch}"].items():
            low, high = found["ratio"]["interval"]
            print(
                f"batch {batch:>6}  {name:18} {found['ms_per_step']['median']:.3f} ms a step, by hand "
                f"{found['by_hand_ms_per_step']['median']:.3f}: {found['difference_ms']['median']:+.3f} ms, "
                f"x {found['ratio']['median']:.3f} (95 %: {low:.3f} to {high:.3f})"
            )
    print(
        write_result(
            "trainer_cpu", {"setting": vars(parsed) | {"out": None}, "bars": BARS, "figures": figures}, parsed.out
        )
    )


if __name__ == "__main__":
    with_steady_malloc()
    main()
