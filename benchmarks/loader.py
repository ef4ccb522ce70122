"""Shuffled batches side by side: our loader, three plain `index_select`s of a permutation, torch's stock DataLoader.

    python benchmarks/loader.py [--rows 2000000] [--rounds 9] [--threads 1 2]

The table: 40 float32, 8 ids and a target; batches of 8192 rows in fresh tensors, an epoch at a time, the making of its
order included. The ids of the others are int64, as is usual; ours are int32 in the same row as the numbers. The stock
loader would take most of a minute: it is timed on the batches after its first, and extrapolated. `packed by hand` is
our gather with `torch.randperm`'s order, and no batches made of it. How many times as fast ours is, is the median of
the rounds' own ratios: memory is slower in some minutes than in others. The stock loader's three runs come after the
rounds, and are put beside the first three.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from environment import RESULTS, interleaved, shown, spread, with_steady_malloc, write_result
from torch.utils.data import DataLoader, TensorDataset

from gpupipe.backend import Column, select
from gpupipe.schema import Field, Kind, Role, Schema
from gpupipe.tensors import FeatureTable, Loader, Permutation

Runs = dict[str, list[dict[str, float]]]  # by what was timed
NUMBERS, IDS, BATCH, STOCK_BATCHES = 40, 8, 8192, 8
SMALL = 64
BARS = [  # ours, what it is put beside, how many times faster it should be
    ("gpupipe", "three index_selects", 1.5),
    ("gpupipe, reuse_buffers", "three index_selects", 1.6),
    ("gpupipe", "stock DataLoader", 150.0),
]


def table(rows: int) -> tuple[FeatureTable, list[torch.Tensor]]:
    """The same values as a block, and as three tensors: numbers, ids, target."""
    draw = np.random.default_rng(0)
    numbers = draw.standard_normal((rows, NUMBERS), dtype=np.float32)
    ids = draw.integers(0, 1000, (rows, IDS))
    target = draw.random(rows, dtype=np.float32)
    fields = [Field(f"x{i}", "float32", role=Role.FEATURE) for i in range(NUMBERS)]
    fields += [Field(f"c{i}", "int32", Kind.CATEGORICAL, cardinality=1000, role=Role.FEATURE) for i in range(IDS)]
    schema = Schema([*fields, Field("y", "float32", role=Role.TARGET)])
    columns = {f"x{i}": Column("float32", numbers[:, i]) for i in range(NUMBERS)}
    columns |= {f"c{i}": Column("int64", ids[:, i]) for i in range(IDS)}
    block = FeatureTable.allocate(schema, rows, "cpu")
    block.write(0, columns | {"y": Column("float32", target)}, select("cpu"))
    return block, [torch.from_numpy(values) for values in (numbers, ids, target)]


def jobs(block: FeatureTable, tensors: list[torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """One epoch each, and what an epoch's order costs by itself."""
    rows = len(block)
    loader = Loader(block, batch_size=BATCH, shuffle="rows")
    reusing = Loader(block, batch_size=BATCH, shuffle="rows", reuse_buffers=True)
    slabs = Loader(block, batch_size=BATCH, shuffle="rows", residency="host", reuse_buffers=True)
    blocks = Loader(block, batch_size=BATCH, shuffle="blocks")
    small = Loader(block, batch_size=SMALL, shuffle="rows")

    def three() -> Iterator[tuple[torch.Tensor, ...]]:
        order = torch.randperm(rows)
        for start in range(0, rows, BATCH):
            index = order[start : start + BATCH]
            yield tuple(values.index_select(0, index) for values in tensors)

    def packed() -> Iterator[torch.Tensor]:
        order = torch.randperm(rows)
        for start in range(0, rows, BATCH):
            yield block.words.index_select(0, order[start : start + BATCH])

    def epoch(batches: Any) -> Callable[[], None]:
        def run() -> None:
            for _ in batches() if callable(batches) else batches:
                pass

        return run

    return {
        "gpupipe": epoch(loader),
        "three index_selects": epoch(three),
        "gpupipe, reuse_buffers": epoch(reusing),
        "packed by hand": epoch(packed),
        "in slabs, by a thread": epoch(slabs),
        'shuffle="blocks"': epoch(blocks),
        f"batches of {SMALL}": epoch(small),
        "order: gpupipe": lambda: Permutation(rows, seed=1).order("cpu"),
        "order: torch.randperm": lambda: torch.randperm(rows),
    }


def stock(tensors: list[torch.Tensor], rounds: int) -> list[dict[str, float]]:
    """Seconds per epoch of the stock loader, extrapolated from a few batches after the first."""
    loader = DataLoader(TensorDataset(*tensors), batch_size=BATCH, shuffle=True)
    runs = []
    for _ in range(rounds):
        batches = iter(loader)
        next(batches)
        cpu, wall = time.process_time(), time.perf_counter()
        timed_rows = sum(len(batch[0]) for batch in itertools.islice(batches, STOCK_BATCHES))
        scale = len(tensors[0]) / timed_rows
        runs.append({"wall_s": (time.perf_counter() - wall) * scale, "cpu_s": (time.process_time() - cpu) * scale})
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, torch.get_num_threads()}))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parsed = parser.parse_args()
    block, tensors = table(parsed.rows)
    figures, times = {}, {}
    for threads in parsed.threads:
        torch.set_num_threads(threads)
        runs = interleaved(jobs(block, tensors), parsed.rounds)
        runs["stock DataLoader"] = stock(tensors, 3)
        found = {
            name: {key: spread([run[key] for run in done]) for key in ("wall_s", "cpu_s")}
            for name, done in runs.items()
        }
        ratios = {key: [_ratios(runs, mine, other, key) for mine, other, _ in BARS] for key in ("wall_s", "cpu_s")}
        report(found, ratios, threads, parsed.rows)
        figures[f"{threads} threads"], times[f"{threads} threads"] = found, ratios["wall_s"]
    setting = {
        "rows": parsed.rows,
        "numbers": NUMBERS,
        "ids": IDS,
        "batch": BATCH,
        "stock_batches_timed": STOCK_BATCHES,
    }
    print(
        write_result("loader_cpu", {"setting": setting, "bars": BARS, "figures": figures, "times": times}, parsed.out)
    )


def _ratios(runs: Runs, mine: str, other: str, key: str) -> dict[str, float]:
    """How many times as long the other takes, run by run."""
    return spread([others[key] / ours[key] for ours, others in zip(runs[mine], runs[other], strict=False)])


def report(found: dict[str, Any], times: dict[str, list[dict[str, float]]], threads: int, rows: int) -> None:
    """Print one table, and each bar with what was reached."""
    print(f"\n{threads} thread{'s' if threads > 1 else ''}, {rows:,} rows; milliseconds per epoch: median (best-worst)")
    ours = found["gpupipe"]
    for name, figures in found.items():
        wall, cpu = (shown(figures[key], 1e3, 0) for key in ("wall_s", "cpu_s"))
        rate = rows / figures["wall_s"]["median"] / 1e6
        ratios = [figures[key]["median"] / ours[key]["median"] for key in ("wall_s", "cpu_s")]
        compared = "" if name.startswith("order") else f"{ratios[0]:8.2f} x wall {ratios[1]:8.2f} x CPU of ours"
        print(f"{name:24}{wall:>26} wall{cpu:>26} CPU{rate:>9.2f} M rows/s{compared}")
    for number, (mine, other, bar) in enumerate(BARS):
        reached = [times[key][number]["median"] for key in ("wall_s", "cpu_s")]
        verdict = "held" if reached[0] >= bar else "MISSED"  # by the clock, which is what an epoch takes
        print(f"bar: {mine} {bar:g} x {other}: {verdict} (wall {reached[0]:.2f}, CPU {reached[1]:.2f})")


if __name__ == "__main__":
    with_steady_malloc()
    main()
