"""What the trainer's loop costs the host beside a loop written by hand: same model, optimiser and batches, in turns.

    python benchmarks/trainer.py [--rounds 25] [--steps 400] [--batches 64 8192] [--alone]

The loop by hand: batches by `index_select` of a permutation from the same packed table, forward, loss, backward, fused
AdamW with the same parameter groups, the rate of the same schedule written to a tensor, the loss looked at once per 100
steps. No metrics, no validation in either. One thread. A pair is one fit and one such loop, each over `steps` batches
(fewer, larger ones), in turns first and second. Lightning, Accelerate and PyTorch Frame are timed in the same way where
they are installed: `pip install lightning accelerate pytorch-frame` into an environment of their own.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from environment import RESULTS, spread, timed, with_steady_malloc, write_result
from loader import table
from torch import nn

from gpupipe.models import MLP
from gpupipe.tensors import Batch, FeatureTable, Loader
from gpupipe.training import Trainer
from gpupipe.training.optim.optimizers import compute_learning_rates, make_parameter_groups

SMALL, LARGE = 64, 8192
MOST_MS, MOST_SHARE, MOST_LARGE = 0.1, 0.10, 1.02


def model_of(block: FeatureTable) -> MLP:
    """40 numbers, 8 ids of 1000, two hidden layers."""
    return MLP.from_schema(block.schema, hidden=(64, 32), seed=1)


def loss_of(output: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The same function for all."""
    return F.mse_loss(output, batch.target)


def ours(block: FeatureTable, batch: int) -> Callable[[], None]:
    """One epoch of the trainer."""
    loader = Loader(block, batch_size=batch, shuffle="rows")
    model = model_of(block)

    def run() -> None:
        Trainer(model, max_epochs=1, loss=loss_of, lr=1e-3, metrics=[], device="cpu", progress=False).fit(loader)

    return run


def optimizer_of(model: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    """Fused AdamW over the trainer's parameter groups."""
    rate = torch.tensor(lr)
    groups = make_parameter_groups(model, rate, highest=lr, weight_decay=0.01)
    return torch.optim.AdamW(groups, lr=rate, fused=True)


def by_hand(block: FeatureTable, batch: int) -> Callable[[], None]:
    """The same epoch in ten lines."""
    model, rows = model_of(block), len(block)

    def run() -> None:
        optimizer = optimizer_of(model)
        rate = optimizer.param_groups[0]["lr"]
        rates = compute_learning_rates("one-cycle", lr=1e-3, steps=-(-rows // batch)).tolist()
        model.train()
        order, total = torch.randperm(rows), torch.zeros(())
        for step, start in enumerate(range(0, rows, batch), start=1):
            given = block.batch_of(block.words.index_select(0, order[start : start + batch]))
            loss = loss_of(model(given), given)
            optimizer.zero_grad()
            loss.backward()
            rate.fill_(rates[step - 1])
            optimizer.step()
            total += loss.detach()
            if step % 100 == 0:
                total.item()

    return run


def accelerated(block: FeatureTable, batch: int) -> Callable[[], None]:
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


def lightning(block: FeatureTable, batch: int) -> Callable[[], None]:
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


def framed(block: FeatureTable, batch: int) -> Callable[[], None]:
    """PyTorch Frame's table and DataLoader; the loop is by hand, as in its examples."""
    from torch_frame import stype
    from torch_frame.data import DataLoader, TensorFrame

    schema, model = block.schema, model_of(block)
    names = {
        stype.numerical: [field.name for field in schema.numeric],
        stype.categorical: [field.name for field in schema.categorical],
    }
    values = {stype.numerical: block.numeric.clone(), stype.categorical: block.codes.clone()}
    assert block.target is not None
    loader = DataLoader(TensorFrame(values, names, y=block.target.clone()), batch_size=batch, shuffle=True)

    def run() -> None:
        optimizer = optimizer_of(model)
        model.train()
        for frame in loader:
            given = Batch(frame.feat_dict[stype.numerical], frame.feat_dict[stype.categorical], frame.y)
            loss = loss_of(model(given), given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


PEERS = {
    "Accelerate": ("accelerate", accelerated),
    "Lightning, extras off": ("pytorch_lightning", lightning),
    "PyTorch Frame's loader": ("torch_frame", framed),
}


def pairs_of(
    first: Callable[[], None], second: Callable[[], None], pairs: int, steps: int
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Milliseconds per step of both, by the clock and of the processor, pair by pair, after one to warm up."""
    found = []
    for number in range(pairs + 1):
        times = {}
        for job in (first, second) if number % 2 else (second, first):
            times[job] = {name: taken / steps * 1e3 for name, taken in timed(job).items()}
        if number:
            found.append((times[first], times[second]))
    return found


def interval(values: list[float], draws: int = 2000) -> tuple[float, float]:
    """95 % of the median's bootstrap distribution."""
    draw = random.Random(0)  # noqa: S311 - no secret
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(draws))
    return medians[round(0.025 * draws)], medians[round(0.975 * draws)]


def compared(pairs: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, Any]:
    """What the first of each pair costs over the second: milliseconds a step, their difference and ratio."""
    found: dict[str, Any] = {}
    for clock, name in (("wall_s", "wall"), ("cpu_s", "cpu")):
        both = [(a[clock], b[clock]) for a, b in pairs]
        differences, ratios = [a - b for a, b in both], [a / b for a, b in both]
        found[name] = {
            "ms": spread([a for a, _ in both]),
            "by_hand_ms": spread([b for _, b in both]),
            "difference_ms": {**spread(differences), "interval": interval(differences)},
            "ratio": {**spread(ratios), "interval": interval(ratios)},
        }
    return found


def bars_of(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """What is asked for, and what was found."""
    found = []
    if (small := figures.get(f"batch {SMALL}")) is not None:
        wall = small["gpupipe"]["wall"]
        more, share = wall["difference_ms"]["median"], wall["ratio"]["median"] - 1
        found.append((f"ms per step over a loop by hand, batch {SMALL}", f"at most {MOST_MS}", more, more <= MOST_MS))
        told = f"at most {MOST_SHARE}"
        found.append((f"share of a step over a loop by hand, batch {SMALL}", told, share, share <= MOST_SHARE))
    if (large := figures.get(f"batch {LARGE}")) is not None:
        low = large["gpupipe"]["wall"]["ratio"]["interval"][0]
        what = f"time beside a loop by hand, batch {LARGE}: lower end of its 95 % interval"
        found.append((what, f"at most {MOST_LARGE}", low, low <= MOST_LARGE))
    return [{"what": what, "bar": bar, "found": value, "met": met} for what, bar, value, met in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="pairs")
    parser.add_argument("--steps", type=int, default=400, help="of small batches; of large ones a sixteenth")
    parser.add_argument("--batches", type=int, nargs="+", default=[SMALL, LARGE])
    parser.add_argument("--alone", action="store_true", help="without the other libraries")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    peers = {} if parsed.alone else {n: make for n, (m, make) in PEERS.items() if importlib.util.find_spec(m)}
    missing = [] if parsed.alone else sorted(set(PEERS) - set(peers))
    print(f"not installed, left out: {', '.join(missing)}" if missing else "", end="\n" if missing else "")
    figures: dict[str, Any] = {}
    for batch in parsed.batches:
        steps = parsed.steps if batch < 1024 else max(parsed.steps // 16, 1)
        block, _ = table(batch * steps)
        hand = by_hand(block, batch)
        jobs = {"gpupipe": ours(block, batch)} | {name: make(block, batch) for name, make in peers.items()}
        figures[f"batch {batch}"] = {
            name: compared(pairs_of(job, hand, parsed.rounds, steps)) for name, job in jobs.items()
        }
        for name, found in figures[f"batch {batch}"].items():
            for clock, of in found.items():
                low, high = of["ratio"]["interval"]
                print(
                    f"batch {batch:>6}  {name:22} {clock:4} {of['ms']['median']:.3f} ms a step, by hand "
                    f"{of['by_hand_ms']['median']:.3f}: {of['difference_ms']['median']:+.3f} ms, "
                    f"x {of['ratio']['median']:.3f} (95 %: {low:.3f} to {high:.3f})",
                    flush=True,
                )
    versions = {PEERS[name][0]: importlib.import_module(PEERS[name][0]).__version__ for name in peers}
    setting = {"rounds": parsed.rounds, "steps": parsed.steps, "not_installed": missing, "versions": versions}
    result = {"setting": setting, "figures": figures, "bars": bars_of(figures)}
    print(write_result("trainer_cpu", result, parsed.out))


if __name__ == "__main__":
    with_steady_malloc()
    main()
