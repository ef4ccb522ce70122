"""The demonstration's model beside gradient boosting, for three seeds; and what one demonstration takes.

    python benchmarks/accuracy.py [--seeds 7 8 9]

Both learn from the same columns of the same flights before 2013-10-01 and are checked on those after it; the reference
is scikit-learn's HistGradientBoostingClassifier with its defaults, which draws its own early-stopping sample each time.
Then the demonstration runs once in a process of its own, without the reference.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from environment import spread, write_result

import gpupipe as gp
from gpupipe.cli.demo import SPLIT, flights_pipeline, reference_auc

DATA = Path(__file__).parents[1] / "data"


def areas(seeds: list[int]) -> tuple[list[float], list[float]]:
    """Validation AUC of the demonstration's model and of the reference, per seed."""
    train, valid = gp.read_parquet(DATA / "flights.parquet").split(by="time_hour", at=SPLIT)
    pipeline = flights_pipeline(gp.read_parquet(DATA / "weather.parquet")).fit(train)
    checked = pipeline.loader(valid)
    ours, theirs = [], []
    for seed in seeds:
        model = gp.models.MLP.from_schema(pipeline.schema, hidden=(256, 128), seed=seed)
        loader = pipeline.loader(train, batch_size=2048, shuffle="rows", seed=seed)
        history = gp.Trainer(model, max_epochs=3, seed=seed).fit(loader, checked)
        ours.append(float(history.rows[-1]["valid_auc"]))
        theirs.append(reference_auc(pipeline, train, valid))
        print(f"seed {seed}: AUC {ours[-1]:.4f}, gradient boosting {theirs[-1]:.4f}", file=sys.stderr, flush=True)
    return ours, theirs


def demonstration() -> dict[str, float]:
    """Seconds and memory of `gpupipe demo --no-reference` in a new process, the imports included."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gpupipe", "demo", "--no-reference", "--out", f"{folder}/flights"]
        before, started, peak = children_cpu_seconds(), time.perf_counter(), 0
        with subprocess.Popen([*command, "--data", str(DATA)], stdout=subprocess.DEVNULL) as running:
            while running.poll() is None:
                peak = max(peak, sum(map(resident_bytes, family(running.pid))))
                time.sleep(0.05)
        if running.returncode:
            raise SystemExit(f"the demonstration failed with exit code {running.returncode}")
        wall = time.perf_counter() - started
        return {"wall_s": wall, "cpu_s": children_cpu_seconds() - before, "peak_gb": peak / 1e9}


def children_cpu_seconds() -> float:
    """User and system time of the processes this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def family(process: int) -> list[int]:
    """A process and those it started, the second process of the demonstration among them."""
    try:
        started = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [process, *(member for child in started for member in family(int(child)))]


def resident_bytes(process: int) -> int:
    """What a process has in memory now."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0  # it has just ended


def measure(seeds: list[int]) -> dict[str, Any]:
    """The areas, what one demonstration takes, and the bars."""
    ours, theirs = map(spread, areas(seeds))
    once = demonstration()
    behind = theirs["median"] - ours["median"]
    bars = [
        {"what": "AUC, reference - gpupipe", "bar": "at most 0.005", "found": behind, "met": behind <= 0.005},
        {
            "what": "seconds of one demonstration",
            "bar": "at most 30",
            "found": once["wall_s"],
            "met": once["wall_s"] <= 30,
        },
        {
            "what": "peak GB of one demonstration",
            "bar": "at most 2",
            "found": once["peak_gb"],
            "met": once["peak_gb"] <= 2,
        },
    ]
    figures = {"gpupipe": {"auc": ours}, "HistGradientBoostingClassifier()": {"auc": theirs}}
    return {"seeds": seeds, "figures": figures, "one_demonstration": once, "bars": bars}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    print(write_result("accuracy_cpu", measure(parser.parse_args().seeds)))


if __name__ == "__main__":
    main()
