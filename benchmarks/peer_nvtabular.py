"""NVTabular 23.8.0 beside gpupipe on its own kind of job, both on the CPU, in turns.

    python benchmarks/peer_nvtabular.py --nvtabular PYTHON [--data data/big] [--rounds 3]

Fit, transform and write 10 million rows: Categorify on eight columns, fill missing values and normalise four, carry the
label. NVTabular needs an interpreter of its own with the pins of its time (pandas 1.5, pyarrow 12, Dask 2023.5);
without one there is no comparison, and no ratio. Its ids begin at 3 and ours at 2, so what is compared of the output is
the number of rows and, of each column of ids, how many ids there are.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CATEGORIES = ["carrier", "tailnum", "origin", "dest", "month", "day", "hour", "flight"]
NUMBERS = ["dep_delay", "air_time", "distance", "sched_dep_time"]
LABEL = "arr_delay"
OURS, THEIRS = "gpupipe", "NVTabular 23.8.0"


def with_gpupipe(source: Path, out: Path) -> Callable[[], Any]:
    import gpupipe as gp
    from gpupipe import preprocessing as pre
    from gpupipe.backend import select

    select("cpu")

    def job() -> None:
        data = gp.read_parquet(source)
        features = gp.Features(
            (CATEGORIES, pre.Categorify()),
            (NUMBERS, [pre.SimpleImputer(strategy="constant", fill_value=0), pre.StandardScaler()]),
            keep=[LABEL],
        )
        gp.Pipeline([], features, backend="cpu").fit(data).transform(data).write_parquet(out)

    assert gp.Pipeline is not None
    return job


def with_nvtabular(source: Path, out: Path) -> Callable[[], Any]:
    import nvtabular as nvt
    from merlin.io import Dataset
    from nvtabular import ops

    def job() -> None:
        categories = CATEGORIES >> ops.Categorify(out_path=str(out) + "_statistics")
        numbers = NUMBERS >> ops.FillMissing() >> ops.Normalize(out_dtype="float32")
        workflow = nvt.Workflow(categories + numbers + ([LABEL] >> ops.FillMissing()))
        data = Dataset(str(source), engine="parquet", part_size="256MB")
        workflow.fit(data)
        workflow.transform(data).to_parquet(str(out), out_files_per_proc=None)

    return job


ENGINES = {OURS: with_gpupipe, THEIRS: with_nvtabular}


def run_one(engine: str, source: Path) -> None:
    """One engine once, in this process; its figures, and what it wrote, as one JSON line."""
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        out = Path(folder) / "out"
        job = ENGINES[engine](source, out)
        cpu, wall = time.process_time(), time.perf_counter()
        job()
        figures = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        figures["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        tables = [pq.read_table(path, columns=CATEGORIES) for path in sorted(out.glob("*.parquet"))]
        ids = {name: len({v for t in tables for v in t[name].unique().to_pylist()}) for name in CATEGORIES}
        print(json.dumps({"figures": figures, "rows": sum(t.num_rows for t in tables), "ids": ids}))


def measure(source: Path, interpreter: str, rounds: int) -> dict[str, Any]:
    """Seconds and memory of both, in turns, and how many times as fast ours is."""
    from environment import spread

    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ENGINES}
    written = {}
    for number in range(rounds):
        for name, python in ((OURS, sys.executable), (THEIRS, interpreter)):
            call = [python, __file__, "--data", str(source.parent), "--engine", name]
            done = subprocess.run(call, check=True, stdout=subprocess.PIPE)
            found = json.loads(done.stdout.splitlines()[-1])
            runs[name].append(found["figures"])
            written[name] = (found["rows"], found["ids"])
            print(f"round {number + 1}, {name}: {found['figures']['wall_s']:.1f} s", file=sys.stderr, flush=True)
    assert written[OURS] == written[THEIRS], written
    keys = ("wall_s", "cpu_s", "peak_gb")
    figures = {name: {key: spread([run[key] for run in done]) for key in keys} for name, done in runs.items()}
    ratio = figures[THEIRS]["wall_s"]["median"] / figures[OURS]["wall_s"]["median"]
    bar = {"what": f"wall s, {THEIRS} / {OURS}", "bar": "at least 5", "found": ratio, "met": ratio >= 5}
    return {"rounds": rounds, "figures": figures, "bars": [bar]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[1] / "data" / "big")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nvtabular", help="an interpreter that can import nvtabular")
    parser.add_argument("--engine", choices=ENGINES, help="run this one once, in this process")
    parsed = parser.parse_args()
    source = parsed.data / "flights.parquet"
    if parsed.engine:
        run_one(parsed.engine, source)
    elif parsed.nvtabular is None:
        parser.error("--nvtabular names no interpreter, and alone there is nothing to compare")
    else:
        from environment import write_result

        print(write_result("peer_nvtabular_cpu", measure(source, parsed.nvtabular, parsed.rounds)))


if __name__ == "__main__":
    main()
