"""How fast a small network trains on a GPU, and what keeps it from being faster: launches, gaps, memory traffic.

    PYTHONPATH=.:benchmarks python benchmarks/gpu/trainer.py OUT.json [--batches 1024 8192 ...] [--dry]

Each way of making a step is the trainer's own, over a table of 40 numbers, 8 ids and a target that lies on the GPU:
eager, compiled, captured (one CUDA graph per step), both, and several captured steps per graph. `--dry` runs the same
on a CPU, small, where nothing is captured and no figure means anything.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from environment import write_result
from loader import table
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from gpupipe.models import MLP
from gpupipe.tensors import FeatureTable, Loader
from gpupipe.training import Trainer
from gpupipe.training.loop.device import session
from gpupipe.training.loop.losses import LOSSES
from gpupipe.training.loop.rank_group import RankGroup
from gpupipe.training.loop.run_start import build_update
from gpupipe.training.loop.train_step import CapturedUpdate, CursorBatches, Update
from gpupipe.training.optim.optimizers import compute_learning_rates

BATCHES = [1024, 8192, 65_536, 131_072, 262_144, 1_048_576]
WAYS = {
    "eager": {},
    "compiled": {"compiled": True},
    "captured": {"graph": 1},
    "captured, compiled": {"graph": 1, "compiled": True},
    "captured, 8 steps": {"graph": 8},
    "captured, float32": {"graph": 1, "precision": "32-true"},
}
GATHERED = 262_144
# What is asked for on an H200: (what, the way, the way beside it or None, batch, at least).
RATIOS = [
    ("captured beside eager", "captured", "eager", 1024, 4.0),
    ("captured beside eager", "captured", "eager", 8192, 2.5),
    ("captured and compiled beside eager", "captured, compiled", "eager", 8192, 5.0),
    ("8 steps per graph beside one, to be built in", "captured, 8 steps", "captured", 8192, 1.05),
    ("bfloat16 beside float32", "captured", "captured, float32", 131_072, 1.2),
]
MILLIONS = [(8192, 25.0), (131_072, 120.0)]
IDLE, GATHER = 0.15, 0.55


class Several:
    """Some steps per graph: the first of them makes all. An epoch has to be of whole graphs."""

    def __init__(self, captured: CapturedUpdate, many: int, device: torch.device) -> None:
        self._left, self._many = 0, many
        self._graph: torch.cuda.CUDAGraph | None = None
        self._all = lambda: [captured.run_full_step() for _ in range(many)]
        if device.type == "cuda":
            self._graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._all()

    def learn(self, _batch: Any) -> None:
        if not self._left:
            self._all() if self._graph is None else self._graph.replay()
            self._left = self._many
        self._left -= 1

    def step(self) -> None:
        """It is made."""


def steps_of(
    block: FeatureTable, batch: int, graph: int = 0, compiled: bool = False, precision: str = "auto"
) -> Iterator[None]:
    """One step each time it is asked for, as often as it is asked, after what has to be done once."""
    if graph > 1:  # the last graph of an epoch must not run over its end
        block = block.first(len(block) // (batch * graph) * batch * graph)
    loader = Loader(block, batch_size=batch, shuffle="rows", reuse_buffers=True)
    model = MLP.from_schema(block.schema, hidden=(256, 256), seed=1).to(block.device)
    trainer = Trainer(model, max_epochs=1, loss="mse", max_grad_norm=1.0, precision=precision, compile=compiled)
    rates = compute_learning_rates("one-cycle", lr=1e-3, steps=100_000)
    update = build_update(trainer, LOSSES["mse"], rates, block.device, loader, RankGroup())
    learner: Update | CapturedUpdate | Several = update
    batches: Loader | CursorBatches = loader
    if graph:
        batches = CursorBatches(loader)
        learner = captured = CapturedUpdate(update, batches)
        if graph > 1:
            next(iter(batches))  # the epoch's order
            for _ in range(3):
                captured.run_full_step()
            next(iter(batches))
            learner = Several(captured, graph, block.device)
    while True:
        for given in batches:
            learner.learn(given)
            learner.step()
            yield


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], Any], device: torch.device, rounds: int = 5) -> float:
    """The median of some runs after one to warm up, the device's work included."""
    found = []
    for _ in range(rounds + 1):
        wait(device)
        started = time.perf_counter()
        run()
        wait(device)
        found.append(time.perf_counter() - started)
    return median(found[1:])


def profiled(run: Callable[[], Any], device: torch.device, steps: int) -> dict[str, float | None]:
    """Kernels (on a CPU: operations) per step, and the share of time between the first and last in which none runs.

    None for both where the profiler saw none, such as where it may not read the device's counters.
    """
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if device.type == "cuda" else [ProfilerActivity.CPU]
    with profile(activities=kinds) as found:
        run()
        wait(device)
    events = work_of(found.events() or [], device)
    if not events:
        return {"kernels": None, "idle": None}
    return {"kernels": len(events) / steps, "idle": idle([(e.time_range.start, e.time_range.end) for e in events])}


def work_of(events: Sequence[FunctionEvent], device: torch.device) -> list[FunctionEvent]:
    """What the device did: a span that the host gave a name, such as the optimiser's step, only surrounds work."""
    kind = torch.autograd.DeviceType.CUDA if device.type == "cuda" else torch.autograd.DeviceType.CPU
    return [e for e in events if e.device_type == kind and not getattr(e, "is_user_annotation", False)]


def idle(spans: list[tuple[float, float]]) -> float:
    """The share of the time from the first start to the last end that no span covers."""
    spans = sorted(spans)
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return 1 - busy / max(reached - spans[0][0], 1e-9)


def of_way(block: FeatureTable, batch: int, options: dict[str, Any], steps: int) -> dict[str, float | None]:
    """One way at one batch size: milliseconds a step, million rows a second, kernels, idle share."""
    device = block.device
    if options.get("compiled"):
        torch.compiler.reset()  # after some shapes of the same function torch compiles no more, and does not say so
    with session(device, seed=0, precision=options.get("precision", "auto")):
        made = steps_of(block, batch, **options)
        run = lambda: list(islice(made, steps))  # noqa: E731 - named for what it is
        list(islice(made, 8))  # warm-up and capture
        took = seconds(run, device) / steps
        return {"ms": took * 1e3, "million_rows_per_s": batch / took / 1e6} | profiled(run, device, steps)


def gather_share(block: FeatureTable, rows: int) -> dict[str, float]:
    """The bandwidth of a gather of rows, and of a copy of as many bytes: read and written."""
    order = torch.randperm(len(block), device=block.device)[:rows]
    out = block.words.new_empty(rows, block.words.shape[1])
    moved = 2 * out.numel() * out.element_size()
    parts = cycle(order.roll(shift) for shift in range(4))
    gathered = seconds(lambda: torch.index_select(block.words, 0, next(parts), out=out), block.device, 20)
    large = torch.empty(max(moved * 8, 1 << 20), dtype=torch.uint8, device=block.device)
    half = large.numel() // 2
    copied = seconds(lambda: large[:half].copy_(large[half:]), block.device, 20)
    speeds = {"gather_gb_per_s": moved / gathered / 1e9, "copy_gb_per_s": 2 * half / copied / 1e9}
    return {"rows": rows, **speeds, "share": speeds["gather_gb_per_s"] / speeds["copy_gb_per_s"]}


def bars(figures: dict[int, dict[str, dict[str, Any]]], gathered: dict[str, float]) -> list[dict[str, Any]]:
    """What is asked for on an H200 beside what was found; without the batch sizes and ways that were not run."""
    asked: list[tuple[str, float | None, float, bool]] = []
    for what, way, beside, batch, least in RATIOS:
        if {way, beside} <= figures.get(batch, {}).keys():
            found = figures[batch][beside]["ms"] / figures[batch][way]["ms"]
            asked.append((f"{what}, batch {batch}", found, least, found >= least))
    for batch, least in MILLIONS:
        if batch in figures:
            found = max(way["million_rows_per_s"] for way in figures[batch].values())
            asked.append((f"million rows/s, batch {batch}", found, least, found >= least))
    for batch, ways in figures.items():
        if "captured" in ways:
            share = ways["captured"]["idle"]
            met = share is not None and share <= IDLE
            asked.append((f"idle share inside replays, batch {batch}", share, IDLE, met))
    asked.append(
        (f"gather of {gathered['rows']} rows, share of a copy", gathered["share"], GATHER, gathered["share"] >= GATHER)
    )
    return [{"what": what, "found": found, "bar": bar, "met": met} for what, found, bar, met in asked]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the report goes")
    parser.add_argument("--batches", type=int, nargs="+")
    parser.add_argument("--dry", action="store_true", help="on a CPU, small, nothing captured or compiled")
    given = parser.parse_args()
    sizes = given.batches or ([32, 64] if given.dry else BATCHES)
    block, _ = table(max(sizes) * 8)
    ways = dict(WAYS)
    if given.dry:
        ways = {name: options | {"compiled": False} for name, options in ways.items()}
    else:
        block.words = block.words.to("cuda")
    figures: dict[int, dict[str, dict[str, Any]]] = {}
    failed: dict[str, dict[str, str]] = {}
    for batch in sizes:
        steps = 8 if given.dry else max(16, min(400, (1 << 24) // batch) // 8 * 8)
        figures[batch] = {}
        for name, options in ways.items():
            try:
                figures[batch][name] = found = of_way(block, batch, options, steps)
            except Exception:  # noqa: BLE001 - the other ways are still worth having
                failed[f"{name}, batch {batch}"] = {"failed": traceback.format_exc()[-2000:]}
                print(f"batch {batch:>9,}  {name:20} FAILED", flush=True)
                continue
            told = f"{found['ms']:8.3f} ms  {found['million_rows_per_s']:8.1f} M rows/s"
            seen = "" if found["idle"] is None else f"  {found['kernels']:6.1f} kernels  idle {found['idle']:.0%}"
            print(f"batch {batch:>9,}  {name:20} {told}{seen}", flush=True)
    gathered = gather_share(block, min(GATHERED, len(block)))
    asked = [] if given.dry else bars(figures, gathered)
    for bar in asked:
        told = "nothing seen" if bar["found"] is None else f"{bar['found']:.2f}"
        print(f"{'met   ' if bar['met'] else 'MISSED'} {bar['what']}: {told}, asked for {bar['bar']:g}")
    report = {"dry": given.dry, "figures": figures, "failed": failed, "gather": gathered, "bars": asked}
    print(write_result(given.out.stem, report, given.out.parent))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
