"""Trees fitted from loaders beside XGBoost by hand; their memory at ever more streamed rows; how fast they are checked.

    python benchmarks/trees.py [--rounds 5]

By hand: the arrays of the same loaders as two matrices, `xgboost.train` with the same settings, stopped by the same
rows, its best rounds as JSON. One thread, in turns. Memory: numbers and ids are made once, 10 million rows in Parquet;
each size is fitted from a streamed loader in a process of its own, a few rounds deep.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import xgboost as xgb
from environment import interleaved, peak_gb, spread, timed, with_steady_malloc, write_result
from large import file_system

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.models.booster import find_fault, write_booster

FLIGHTS = Path(__file__).parents[1] / "data" / "flights.parquet"
MILLIONS = (2.5, 5.0, 10.0)
NUMBERS, IDS, GROUP = 6, 3, 500_000
BYTES_PER_VALUE = 9
FEATURES = gp.Features(
    (["dep_delay", "distance", "hour", "air_time"], pre.SimpleImputer()),
    (["carrier", "origin", "dest"], pre.Categorify(min_frequency=5)),
    target="arr_delay > 15",
)


def measure_speed(rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Seconds of a fit on three months of flights with the default settings, and of the same by hand."""
    train_data, valid_data = gp.read_parquet(FLIGHTS, filters="month <= 3").split(fraction=0.8, seed=0)
    pipeline = gp.Pipeline([], FEATURES).fit(train_data)
    train, valid = pipeline.loader(train_data), pipeline.loader(valid_data)
    kept: dict[str, int] = {}

    def with_gpupipe() -> None:
        model = gp.models.XGB.from_schema(pipeline.schema)
        kept["gpupipe"] = int(gp.Trainer(model, progress=False).fit(train, valid).best["epoch"])

    def matrix(loader: Any, **options: Any) -> xgb.QuantileDMatrix:
        arrays = loader.arrays()
        codes = arrays["codes"].astype("float32")
        codes[codes == 0] = np.nan
        types = ["q"] * arrays["numeric"].shape[1] + ["c"] * codes.shape[1]
        values = np.hstack([arrays["numeric"], codes])
        return xgb.QuantileDMatrix(
            values, arrays["target"], feature_types=types, enable_categorical=True, nthread=1, **options
        )

    def by_hand() -> None:
        learned = matrix(train)
        judged = matrix(valid, ref=learned)
        params = {"objective": "binary:logistic", "eta": 0.05, "max_depth": 6, "tree_method": "hist", "nthread": 1}
        booster = xgb.train(
            params, learned, 1000, evals=[(judged, "valid")], early_stopping_rounds=50, verbose_eval=False
        )
        kept["by hand"] = booster.best_iteration + 1
        booster[: kept["by hand"]].save_raw("json")

    runs = interleaved({"gpupipe": with_gpupipe, "XGBoost by hand": by_hand}, rounds)
    keys = ("cpu_s", "wall_s")
    figures = {who: {key: spread([run[key] for run in done]) for key in keys} for who, done in runs.items()}
    ratios = [mine["cpu_s"] / other["cpu_s"] for mine, other in zip(*runs.values(), strict=True)]
    return figures, {"train_rows": train.num_rows, "kept_rounds": kept, "ratio": spread(ratios)}


def write_rows(path: Path, rows: int) -> None:
    """Numbers, names and a target that they tell, in row groups of half a million."""
    with pq.ParquetWriter(path, schema_of_rows()) as writer:
        for start in range(0, rows, GROUP):
            draw = np.random.default_rng(start)
            numbers = draw.standard_normal((NUMBERS, GROUP), dtype="float32")
            names = draw.integers(0, 200, (IDS, GROUP))
            y = numbers[0] * numbers[1] + (names[0] % 3 == 1) > 0.5
            columns = [*numbers, *(pa.array(np.char.add("n", each.astype(str))) for each in names), y]
            writer.write_table(pa.table(columns, schema=schema_of_rows()))


def schema_of_rows() -> pa.Schema:
    numbers = [(f"x{number}", pa.float32()) for number in range(NUMBERS)]
    return pa.schema([*numbers, *((f"id{number}", pa.string()) for number in range(IDS)), ("y", pa.bool_())])


def fit_streamed(path: Path, rows: int) -> dict[str, float]:
    """Peak memory and seconds of a fit on the first rows of a file, in this process."""
    torch.set_num_threads(1)
    gp.configure(memory_limit=256 << 20)  # or columns are kept between the passes of the pipeline's own fit
    data = gp.read_parquet(path)
    data = data.of_partitions(data.partitions[: data.num_partitions * rows // int(MILLIONS[-1] * 1e6)])
    features = gp.Features(
        [f"x{number}" for number in range(NUMBERS)],
        ([f"id{number}" for number in range(IDS)], pre.Categorify()),
        target="y",
    )
    pipeline = gp.Pipeline([], features).fit(data)
    loader = pipeline.loader(data, residency="stream")
    before = peak_gb()
    model = gp.models.XGB.from_schema(pipeline.schema, n_estimators=5)
    figures = timed(lambda: model.fit_loaders(loader))
    return {**figures, "peak_gb": peak_gb(), "peak_before_gb": before, "rows": loader.num_rows}


def measure_memory() -> tuple[dict[str, Any], str]:
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        write_rows(path, int(MILLIONS[-1] * 1e6))
        for millions in MILLIONS:
            call = [sys.executable, __file__, "--streamed", str(path), "--rows", str(int(millions * 1e6))]
            done = subprocess.run(call, check=True, stdout=subprocess.PIPE)
            figures[f"{millions:g} million rows"] = json.loads(done.stdout.splitlines()[-1])
            print(millions, done.stdout.decode().strip(), file=sys.stderr, flush=True)
        return figures, file_system(Path(folder))


def measure_checks() -> dict[str, float]:
    """Seconds to check 1,000 trees of depth 6, and to write them for XGBoost."""
    train = gp.read_parquet(FLIGHTS, filters="month == 1")
    pipeline = gp.Pipeline([], FEATURES).fit(train)
    model = gp.models.XGB.from_schema(pipeline.schema, n_estimators=1000)
    model.fit_loaders(pipeline.loader(train))
    arrays = model.state_dict()
    times = []
    for _ in range(5):
        started = time.perf_counter()
        assert find_fault(arrays, model.layout) is None
        checked = time.perf_counter()
        write_booster(arrays, model.layout)
        times.append((checked - started, time.perf_counter() - checked))
    check, write = (float(np.median(each)) for each in zip(*times, strict=True))
    return {"trees": 1000, "nodes": len(arrays["left_children"]), "check_s": check, "write_s": write}


def bars(speed: dict[str, Any], memory: dict[str, Any], checks: dict[str, float]) -> list[dict[str, Any]]:
    """What was asked for, what was found, whether that is enough."""
    small, large = memory[f"{MILLIONS[0]:g} million rows"], memory[f"{MILLIONS[-1]:g} million rows"]
    ratio, width = speed["ratio"]["median"], NUMBERS + IDS
    grown = (large["peak_gb"] - small["peak_gb"]) * 1e9 / (large["rows"] - small["rows"]) / width
    seconds = checks["check_s"] + checks["write_s"]
    return [
        {"what": "CPU s, gpupipe / by hand", "bar": "at most 1.1", "found": ratio, "met": ratio <= 1.1},
        {
            "what": "peak bytes a value more, 2.5 to 10 million rows",
            "bar": f"at most {BYTES_PER_VALUE}",
            "found": grown,
            "met": grown <= BYTES_PER_VALUE,
        },
        {"what": "s to check and write 1,000 trees", "bar": "at most 1", "found": seconds, "met": seconds <= 1},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streamed", type=Path, help="fit rows of this file once, in this process")
    parser.add_argument("--rows", type=int)
    parsed = parser.parse_args()
    if parsed.streamed:
        print(json.dumps(fit_streamed(parsed.streamed, parsed.rows)))
        return
    with_steady_malloc()
    torch.set_num_threads(1)
    figures, speed = measure_speed(parsed.rounds)
    memory, place = measure_memory()
    checks = measure_checks()
    setting = {"rounds": parsed.rounds, **speed, "file_system": place, "xgboost": xgb.__version__}
    result = {"setting": setting, "figures": figures, "memory": memory, "checks": checks}
    print(write_result("trees_cpu", result | {"bars": bars(speed, memory, checks)}))


if __name__ == "__main__":
    main()
