"""What every benchmark shares: the machine it ran on, rounds in turns, medians with their range, one result file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from gpupipe.backend.probe import probe

HERE = Path(__file__).parent
RESULTS = HERE / "results"

# Without these glibc hands freed memory back and faults it in again, and what is timed is the kernel.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}

_LOAD_BEFORE = round(os.getloadavg()[0], 1)  # once the rounds run they are the load


def environment() -> dict[str, Any]:
    """The machine, the versions and the commit, as plain values; the load says whether others were at work."""
    machine = probe()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load_before": _LOAD_BEFORE,
        "load_after": round(os.getloadavg()[0], 1),
        "gpus": [gpu.name for gpu in machine.gpus],
        "driver": machine.driver,
        "python": platform.python_version(),
        "libraries": {name: found.version for name, found in machine.libraries.items()} | _installed("polars"),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", "gpupipe", "benchmarks/*.py")),
    }


def with_steady_malloc() -> None:
    """Start this program again, once, with glibc's allocator told to keep what it has: it is told at the start only."""
    if any(os.environ.get(name) != value for name, value in MALLOC.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | MALLOC)  # noqa: S606 - ourselves


def timed(job: Callable[[], Any]) -> dict[str, float]:
    """Wall and CPU seconds (user + system, all threads of this process) of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    job()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def interleaved(jobs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[dict[str, float]]]:
    """Time each job once per round, in turns, so that what slows the machine slows all; a first round warms up."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, job in jobs.items():
            run = timed(job)
            if number:
                runs[name].append(run)
    return runs


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, the best and the worst."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def shown(figures: Mapping[str, float], scale: float = 1.0, digits: int = 1) -> str:
    """A spread as text: `median (min-max)`."""
    middle, low, high = (f"{figures[key] * scale:.{digits}f}" for key in ("median", "min", "max"))
    return f"{middle} ({low}-{high})"


def write_result(name: str, figures: Mapping[str, Any], out: Path = RESULTS) -> Path:
    """Write `figures` with the environment as `out/name.json`."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps({"what": name, "machine": environment(), **figures}, indent=1) + "\n")
    return path


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def _installed(name: str) -> dict[str, str]:
    try:
        return {name: version(name)}
    except PackageNotFoundError:
        return {}


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
