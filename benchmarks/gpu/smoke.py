"""The questions that reading could not answer, asked of a GPU through gpupipe's own code.

    python benchmarks/gpu/smoke.py OUT.json [--only NAME ...] [--dry]

Each check runs alone and reports what it saw, not a verdict; one that fails reports its traceback and the rest go on.
The report is written after each of them: what ends the program loses the check it was at. PYTHONPATH has this
repository and its `benchmarks`. With `--dry` the same checks run on the CPU backend, small, without what only a device
has. Exits with 0 if none failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import frames  # noqa: F401 - its questions are asked too
import learned as _learned  # noqa: F401
import numpy as np
import plans as _plans  # noqa: F401
import pyarrow as pa
import torch
import training_runs as _training_runs  # noqa: F401
from environment import environment, failures, write_whole
from lab import CHECKS, GIB, Lab, check

import gpupipe as gp
from gpupipe import preprocessing
from gpupipe.backend import select
from gpupipe.backend.device.memory import etl_limit, explain_out_of_memory
from gpupipe.cli.demo import flights_pipeline
from gpupipe.errors import OutOfDeviceMemory
from gpupipe.schema import Field
from gpupipe.tensors.batch import Batch
from gpupipe.training.loop.device import make_forward, session
from gpupipe.training.loop.losses import LOSSES
from gpupipe.training.loop.run_start import make_objective
from gpupipe.training.loop.train_step import Update
from gpupipe.training.optim.optimizers import compute_learning_rates, make_optimizer, make_parameter_groups

ROOT = Path(__file__).parents[2]


@check
def streams(lab: Lab) -> dict[str, Any]:
    """Do both hand-overs wait? A slow kernel stands before each write; `raced` shows what happens without the wait."""
    ones = lab.backend.xp.ones(lab.rows, dtype="float32")
    block = torch.zeros(lab.rows, device=lab.device)
    lab.keep_busy()
    lab.backend.xp.from_dlpack(block)[:] = ones
    raced = None
    if lab.gpu:
        with torch.cuda.stream(torch.cuda.Stream()):
            raced = block.clone()
    with session(lab.device, seed=0):
        handed_over = block.clone()
        lab.keep_busy()
        given_back = block.clone()
    lab.backend.xp.from_dlpack(block)[:] = 7 * ones
    lab.wait()
    return {
        "handed_over_right": bool((handed_over == 1).all()),
        "given_back_right": bool((given_back == 1).all()),
        "raced_without_waiting": None if raced is None else bool((raced != 1).any()),
    }


@check
def graph_capture(lab: Lab) -> dict[str, Any]:
    """Does one update, embedding backward included, give the same weights captured as eager, and how much sooner?"""
    steps, warm = lab.steps, 3
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 20, (4096, 2), generator=generator, dtype=torch.int32).to(lab.device)
    batch = Batch(torch.randn(4096, 8, generator=generator).to(lab.device), codes, (codes[:, 0] > 9).float())

    def make() -> tuple[torch.nn.Module, Update]:
        model = gp.models.MLP(8, [20, 20], hidden=(64, 32), seed=7).to(lab.device)
        lr = torch.zeros((), device=lab.device)
        rates = compute_learning_rates("one-cycle", lr=3e-3, steps=100_000).to(lab.device)
        optimizer = make_optimizer("adamw", make_parameter_groups(model, lr, highest=3e-3, weight_decay=0.01), lr)
        objective = make_objective(make_forward("auto", model, lab.device), LOSSES["bce"])
        return model, Update(objective, optimizer, rates=rates, max_grad_norm=1.0)

    (eager_model, eager), (model, update) = make(), make()
    with session(lab.device, seed=0):
        for _ in range(warm + steps):
            eager(batch)
        for _ in range(warm):
            update(batch)
        replay = captured(partial(update, batch)).replay if lab.gpu else partial(update, batch)
        for _ in range(steps):
            replay()
        lab.wait()
        pairs = zip(eager_model.parameters(), model.parameters(), strict=True)
        seen = {
            "largest_difference": max(float((a - b).detach().abs().max()) for a, b in pairs),
            "updates_counted": int(update.count),
        }
        seen["eager_ms"] = lab.milliseconds(lambda: eager(batch))
        return seen | {"replay_ms": lab.milliseconds(replay)}


def captured(step: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
        step()
    return graph


@check
def memory_split(lab: Lab) -> dict[str, Any]:
    """Is RMM's share limited, does idle memory go back, and is either library's out-of-memory error told in ours?"""
    xp, before = lab.backend.xp, lab.free()
    held = xp.empty(GIB if lab.gpu else 1024, dtype="uint8")
    del held
    idle = lab.free()
    lab.backend.make_room(GIB if lab.gpu else 0)
    seen: dict[str, Any] = {"idle_bytes_kept": before - idle, "idle_bytes_after_make_room": before - lab.free()}
    total = torch.cuda.mem_get_info()[1] if lab.gpu else 80 * GIB
    limit = etl_limit(lab.free() or total, total, GIB)
    seen["limit_gib"] = limit / GIB
    for name, ask in {"rmm": lambda: over_the_limit(lab, limit + GIB), "torch": lambda: torch_over(lab)}.items():
        try:
            with explain_out_of_memory(name):
                ask()
        except OutOfDeviceMemory as error:
            seen[name] = {
                "cause": f"{type(error.__cause__).__name__}: {error.__cause__}"[:200],
                "asked": error.requested,
                "free": error.free,
            }
    return seen


def over_the_limit(lab: Lab, num_bytes: int) -> None:
    if not lab.gpu:
        raise MemoryError(
            "std::bad_alloc: out_of_memory: RMM failure: Exceeded memory limit (failed to allocate 2.0 GiB)"
        )
    lab.backend.xp.empty(num_bytes, dtype="uint8")


def torch_over(lab: Lab) -> None:
    if not lab.gpu:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 400.00 GiB.")
    torch.empty(400 * GIB, dtype=torch.uint8, device=lab.device)


@check
def one_worker_cluster(lab: Lab) -> dict[str, Any]:
    """Does a fold run on a worker of its own, with a memory pool of its own?"""
    if not lab.gpu and find_spec("distributed") is None:
        return {"not asked": "Dask comes with the CUDA extras"}
    from distributed import Client, LocalCluster

    if lab.gpu:
        from dask_cuda import LocalCUDACluster

        made = LocalCUDACluster(n_workers=1, rmm_async=True, enable_cudf_spill=False)
    else:
        made = LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None)
    with made as cluster, Client(cluster) as client:
        means = client.gather(client.map(mean_of_part, [10, 100, 1000], backend=lab.backend.name))
        return {"means": means, "workers": len(client.scheduler_info()["workers"])}


def mean_of_part(rows: int, backend: str) -> float:
    own = select(backend)
    frame = own.decode(own.from_arrow(pa.table({"x": np.arange(rows, dtype="float64")}), [Field("x", "float64")]))
    return float(preprocessing.StandardScaler().fit(frame).mean_[0])


@check
def main_job(lab: Lab) -> dict[str, Any]:
    """The demonstration's pipeline and one epoch, here and on the CPU: features apart, seconds, losses."""
    flights, weather = (gp.read_parquet(ROOT / "data" / f"{name}.parquet") for name in ("flights", "weather"))
    if not lab.gpu:
        flights, _ = flights.split(by="time_hour", at="2013-01-08")
    results: dict[str, Any] = {}
    for name in ("cpu", lab.backend.name):
        started = time.perf_counter()
        pipeline = flights_pipeline(weather)
        pipeline.backend = name
        loader = pipeline.fit(flights).loader(flights, batch_size=8192)
        fitted = time.perf_counter()
        model = gp.models.MLP.from_schema(pipeline.schema, hidden=(256, 128), seed=7)
        history = gp.Trainer(model, max_epochs=1, seed=7, progress=False).fit(loader)
        numeric = torch.cat([batch.numeric for batch in loader]).cpu().numpy()
        seconds = {"fit_and_load": fitted - started, "train": time.perf_counter() - fitted}
        results[name] = {"numeric": numeric, "seconds": seconds, "train_loss": history.rows[-1]["train_loss"]}
    far = np.abs(results["cpu"]["numeric"] - results[lab.backend.name]["numeric"])
    told = {name: {key: value for key, value in result.items() if key != "numeric"} for name, result in results.items()}
    return told | {"largest_difference": float(far.max()), "rows_apart": int((far > 1e-4).any(axis=1).sum())}


@check
def estimators(lab: Lab) -> dict[str, Any]:
    """Do the library's estimators change the block they are given, and does k-means repeat itself?"""
    backend = lab.backend
    block = backend.to_device(np.random.default_rng(0).standard_normal((lab.rows, 8)).astype("float32"))
    before, centres = block.copy(), backend.to_host(block[:16])
    first, second = (backend.kmeans(block.copy(), centres, 50, 1e-4) for _ in range(2))
    learned = backend.pca(block, 3)
    return {
        "pca_changes_its_input": bool((block != before).any()),
        "pca_largest_loadings": np.abs(learned.components).max(axis=1).tolist(),
        "kmeans_repeats": bool((first == second).all()),
        "kmeans_largest_difference": float(np.abs(first - second).max()),
    }


def machine(lab: Lab) -> dict[str, Any]:
    """What ran this, and the device."""
    if not lab.gpu:
        return environment()
    found = torch.cuda.get_device_properties(lab.device)
    device = {"name": found.name, "sm": f"{found.major}{found.minor}", "memory_gib": found.total_memory / GIB}
    return environment() | {"device": device}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the report goes")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS), help="the checks to run")
    parser.add_argument("--dry", action="store_true", help="on the CPU, small")
    given = parser.parse_args()
    lab = (
        Lab(select("cpu"), gpu=False, rows=2000, steps=4)
        if given.dry
        else Lab(select("gpu"), gpu=True, rows=4_000_000, steps=50)
    )
    checks: dict[str, dict[str, Any]] = {}
    report = {
        "what": given.out.stem,
        "dry": given.dry,
        "lab": {"rows": lab.rows, "steps": lab.steps},
        "machine": machine(lab),
        "checks": checks,
    }
    for name in given.only:
        started = time.perf_counter()
        try:
            checks[name] = {"saw": CHECKS[name](lab)}
        except Exception:  # noqa: BLE001 - the rest of the questions are still worth asking
            checks[name] = {"failed": traceback.format_exc()}
        checks[name]["seconds"] = time.perf_counter() - started
        failed = list(failures({name: checks[name]}))
        print(f"{'FAILED' if failed else 'asked '} {name} {checks[name]['seconds']:.1f} s", *failed[:9], flush=True)
        write_whole(given.out, json.dumps(report, indent=1, default=str) + "\n")
    return int(any(failures(checks)))


if __name__ == "__main__":
    sys.exit(main())
