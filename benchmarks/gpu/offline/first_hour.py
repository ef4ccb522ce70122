"""The first half hour on a rented GPU host without a network: the commands to give, what each proves, its minutes.

    python benchmarks/gpu/offline/first_hour.py              where the parts were packed: the plan (`make first-hour`)
    python3 benchmarks/gpu/offline/first_hour.py STEP        on the host: one step of it, ended after its minutes
    python3 ... STEP --out FOLDER                            and what is to be brought back copied there as it comes

A step may be given again: what has passed is not done again. `build/first-hour` has the results, written as they come:
`first-hour.json` (each command with what it proves, its status, seconds and last lines) and `first-hour.log`. Needs
Python's standard library alone, and no make.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Job", "Step", "plan"]

ROOT = Path(__file__).resolve().parents[3]
PARTS = ROOT / "build" / "offline"
ENVIRONMENT = ROOT / "build" / "gpupipe-env"
RESULTS = ROOT / "build" / "first-hour"
BENCHMARKS = ROOT / "benchmarks" / "results"
PYTHON = str(ENVIRONMENT / "bin" / "python")
START_MINUTES = 1.5  # until a machine is there
CARRY_MINUTES = 0.3  # 50 MiB
HELD_MINUTES, COMMAND_MINUTES, TRANSFER_MIB = 30, 10, 64
LAST_SECONDS = 15  # for a command that is told to end

# What needs torch alone: capture, every named optimiser, precisions, slabs and streams.
TORCH_TESTS = ["tests/training/loop/test_cuda_graph.py", "tests/training/loop/test_device.py"]
TORCH_TESTS += ["tests/tensors/test_streams.py"]
TORCH_CASES = 19

TORCH = """
import torch
print(torch.__version__, torch.version.cuda, torch.cuda.get_device_properties(0))
assert float(torch.ones(1000, device="cuda").sum()) == 1000
"""
CUDF = """
import cudf, pyarrow.parquet as pq
path = "data/flights.parquet"
frame, table = cudf.read_parquet(path), pq.read_table(path)
assert len(frame) == len(table) and frame.to_arrow().column_names == table.column_names
print(len(frame), "rows by cuDF", cudf.__version__)
"""
POLARS = """
import polars as pl
plan = pl.scan_parquet("data/flights.parquet").group_by("origin").agg(pl.len()).sort("origin")
assert plan.collect(engine=pl.GPUEngine(raise_on_fail=True)).equals(plan.collect())
print("a plan by cudf-polars")
"""
CUML = """
import cupy
from cuml.cluster import KMeans
block = cupy.random.standard_normal((10_000, 4))
print("k-means by cuML", KMeans(n_clusters=3, n_init=1, random_state=0).fit(block).inertia_)
"""
DASK = """
import dask_cuda, distributed_ucxx, cudf, cuml, rapidsmpf
print("dask-cuda", dask_cuda.__version__)
"""


class Job(NamedTuple):
    """A command, and what it proves."""

    name: str
    proves: str
    command: list[str]


class Step(NamedTuple):
    """What one command to the host does: the minutes it is planned to take, and those after which it is ended."""

    name: str
    minutes: float
    limit: float
    jobs: list[Job]
    carried: list[str]


# The last package of `wheels.txt` that a job needs.
JOBS = {
    "mpmath": [
        Job("torch", "the card, and that torch uses it", [PYTHON, "-c", TORCH]),
        Job(
            "training",
            "capture, optimisers, precisions, slabs and streams: all that needs torch alone",
            [PYTHON, "-m", "pytest", "-q", "-m", "gpu", "-n", "4", "--gpu-cases", str(TORCH_CASES), *TORCH_TESTS],
        ),
    ],
    "cudf_cu13": [Job("cudf", "cuDF reads Parquet", [PYTHON, "-c", CUDF])],
    "cudf_polars_cu13": [Job("cudf-polars", "a plan runs on the card, as on the CPU", [PYTHON, "-c", POLARS])],
    "cuml_cu13": [Job("cuml", "cuML and the newer nvJitLink", [PYTHON, "-c", CUML])],
    "dask_cuda": [
        Job("dask-cuda", "all libraries, every symbol of them", ["env", "LD_BIND_NOW=1", PYTHON, "-c", DASK])
    ],
}


def plan(manifest: dict[str, Any]) -> list[Step]:
    """One step for each part, with what it makes possible, then the questions, the tests and the benchmarks."""
    unpack = Job("unpack", "transport", [sys.executable, str(PARTS / "unpack.py"), str(ENVIRONMENT), "--so-far"])
    ready: dict[str, list[Job]] = {}
    needed: set[str] = set()
    for wheel in manifest["wheels"]:
        needed.update(wheel["parts"])
        ready.setdefault(max(needed), []).extend(JOBS.get(wheel["name"].split("-")[0], []))
    steps = []
    for number, part in enumerate(manifest["parts"]):
        jobs = [unpack, *ready.get(part["name"], [])]
        minutes = 2.5 if number == 0 else 0.4 + 0.2 * (len(jobs) - 1)
        carried = [part["name"], *(["manifest.json", "unpack.py"] if number == 0 else [])]
        steps.append(Step(part["name"], minutes, 4, jobs, carried))  # half a package is of no use
    doctor = [PYTHON, "-c", "import sys; from gpupipe.cli.main import main; sys.exit(main(['doctor']))"]
    smoke = [PYTHON, "benchmarks/gpu/smoke.py", str(BENCHMARKS / "smoke_gpu.json")]
    (cases,) = re.findall(r"^GPU_CASES := (\d+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    tests = [PYTHON, "-m", "pytest", "-q", "-n", "6", "--require-gpu", "--gpu-cases", cases]
    measure = [PYTHON, "benchmarks/gpu/measure.py", "--minutes", "7"]
    return [
        *steps,
        Step(
            "smoke", 5.5, 5.5, [Job("doctor", "warm-up", doctor), Job("smoke", "what reading cannot answer", smoke)], []
        ),
        Step("tests", 7, 7, [Job("tests", "every case on a GPU", [*tests, "--resume", "build/passed-on-gpu.txt"])], []),
        Step("bench", 7.5, 7.5, [Job("bench", "ceilings first, then each part", measure)], []),
    ]


def describe(steps: list[Step], manifest: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the plan; a limit that is not kept is an error."""
    sizes = {part["name"]: part["bytes"] for part in manifest["parts"]}
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tree = sum((ROOT / name).stat().st_size for name in tracked.split("\0") if (ROOT / name).is_file())
    largest = (tree + max(sizes.values())) / 2**20
    yield f"{len(sizes)} parts, {sum(sizes.values()) / 2**20:.0f} MiB; with this repository a transfer is at most"
    yield f"{largest:.0f} MiB of {TRANSFER_MIB}. Give each command as soon as the one before has ended: an idle machine"
    yield "is taken back. Each may be given again. OUT is the folder that is brought back."
    minute = START_MINUTES
    for step in steps:
        minute += CARRY_MINUTES if step.carried else 0
        yield f"\nminute {minute:.1f} to {minute + step.minutes:.1f}"
        if step.carried:
            yield f"  carry    {' '.join(f'build/offline/{name}' for name in step.carried)}"
        yield f"  command  python3 benchmarks/gpu/offline/first_hour.py {step.name} --out OUT"
        yield from (f"  proves   {job.name}: {job.proves}" for job in step.jobs)
        minute += step.minutes
    assert largest <= TRANSFER_MIB, "cut smaller parts: pack.py --mib"
    assert max(step.limit for step in steps) <= COMMAND_MINUTES
    assert minute <= HELD_MINUTES
    yield f"\n{minute:.1f} minutes of {HELD_MINUTES}. A second holding goes on with the tests from passed-on-gpu.txt,"
    yield "brought back into build, and has time for `make bench-gpu-large`."


def run(step: Step, out: Path | None) -> int:
    """Run the jobs of a step that have not passed, within its limit; the number of those that have not then."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / "first-hour.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    stop = time.monotonic() + 60 * step.limit
    for job in step.jobs:
        if results.get(job.name, {}).get("status") == 0 and job.name != "unpack":
            print(f"{job.name}: has passed")
            continue
        started = time.monotonic()
        status, text = run_until(stop - LAST_SECONDS, job.command)
        seconds = round(time.monotonic() - started, 1)
        last = text.strip().splitlines()[-30:]
        results[job.name] = {"proves": job.proves, "status": status, "seconds": seconds, "last": last}
        with (RESULTS / "first-hour.log").open("a") as log:
            log.write(f"== {step.name}: {job.name}, status {status}, {seconds} s\n{text}\n")
        draft = file.with_suffix(".draft")
        draft.write_text(json.dumps(results, indent=1) + "\n")
        draft.replace(file)
        bring_back(out)
        print(f"{job.name}: {'passed' if status == 0 else f'status {status}'}, {seconds} s", *last[-12:], sep="\n    ")
    return sum(results[job.name]["status"] != 0 for job in step.jobs)


def run_until(stop: float, command: list[str]) -> tuple[int, str]:
    """Run a command, which is told to end at a time and killed soon after; its status and what it wrote."""
    RESULTS.joinpath("running.log").write_bytes(b"")
    with (RESULTS / "running.log").open("r+b") as written:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}", "PYTHONUNBUFFERED": "1"},
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for way in (signal.SIGINT, signal.SIGKILL):
            try:
                process.wait(max(1, stop - time.monotonic()))
                break
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, way)
                stop = time.monotonic() + LAST_SECONDS - 3
        status = process.wait()
        written.seek(0)
        return status, written.read().decode(errors="replace")


def bring_back(out: Path | None) -> None:
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    files = [RESULTS / "first-hour.json", RESULTS / "first-hour.log", ROOT / "build" / "passed-on-gpu.txt"]
    for file in [*files, BENCHMARKS / "smoke_gpu.json", BENCHMARKS / "gpu.json"]:
        if file.exists():
            shutil.copy(file, out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", nargs="?", help="of the plan, by its name")
    parser.add_argument("--out", type=Path, help="where what is to be brought back is copied")
    given = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # in the background shells ignore it, and so would commands
    if not (PARTS / "manifest.json").exists():
        sys.exit(f"{PARTS} has no manifest.json: run `make pack-gpu`, or carry it here with unpack.py and part-00.")
    manifest = json.loads((PARTS / "manifest.json").read_text())
    steps = {step.name: step for step in plan(manifest)}
    if given.step is None:
        print("\n".join(describe(list(steps.values()), manifest)))
        return 0
    if given.step not in steps:
        sys.exit(f"There is no step {given.step!r}, but {', '.join(steps)}.")
    return int(run(steps[given.step], given.out) > 0)


if __name__ == "__main__":
    sys.exit(main())
