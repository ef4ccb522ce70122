"""What every benchmark shares: the machine it ran on, rounds in turns, medians with their range, one result file."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from gpupipe.backend.device.probe import probe

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
    changes = _git("status", "--porcelain", "--", "gpupipe", "benchmarks/*.py")
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
        "libraries": {name: found.version for name, found in machine.libraries.items()}
        | _installed("polars")
        | _installed("triton"),
        "commit": commit(),
        "uncommitted_changes": None if changes is None else bool(changes),
    }


def commit(root: Path = HERE.parent) -> str | None:
    """The commit in the tree below `root`, None where nothing tells it.

    `git archive` writes it into `commit.txt`. GPUPIPE_COMMIT tells it where the files were carried in another way and
    there is no git to be asked.
    """
    written = (root / "benchmarks" / "commit.txt").read_text().strip()
    if not written.startswith("$"):
        return written
    return os.environ.get("GPUPIPE_COMMIT") or _git("rev-parse", "HEAD", root=root)


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


def peak_gb() -> float:
    """The peak memory of this process in 10^9 bytes; `ru_maxrss` may be that of the process which started it."""
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) * 1024 / 1e9


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
    told = {"what": name, "machine": environment(), **figures}
    return write_whole(out / f"{name}.json", json.dumps(told, indent=1) + "\n")


def write_whole(path: Path, text: str) -> Path:
    """Write all of a file or, where the program is ended meanwhile, leave what was there before."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text)
    return draft.replace(path)


def failures(found: Any, name: str = "") -> Iterator[str]:
    """The names of what failed among findings, and among what those hold: each says why under `failed`."""
    if isinstance(found, Mapping) and "failed" in found:
        yield name
    inner = found if isinstance(found, Mapping) else dict(enumerate(found)) if isinstance(found, list) else {}
    for key, value in inner.items():
        yield from failures(value, f"{name}: {key}" if name else str(key))


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def _installed(name: str) -> dict[str, str]:
    try:
        return {name: version(name)}
    except PackageNotFoundError:
        return {}


def _git(*arguments: str, root: Path = HERE.parent) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return None
    return done.stdout.strip() if done.returncode == 0 else None
