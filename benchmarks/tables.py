"""The default run and other models beside trees and linear models, on real tables that packages of PyPI hold.

    python benchmarks/tables.py [--group tune | judge | flights] [--tables NAME ...] [--models NAME ...] [--seeds 0 1 2]
                                [--measured]

Each seed splits a table anew (`public_tables.py`), the same for every model: rows to train, to validate (best epoch,
early stopping), to test. A network gets what a new user writes; a peer the raw columns as somebody who knows it would
give them (`table_peers.py`). The slowest models have the first seed only. Errors are 1 - AUC (two classes), log loss
(more) and RMSE (numbers, in the target's units). Every error is a line of `build/tables/runs.jsonl`, and is computed
again only after the program, the table or the library changes. A model that fails on a table has lost there, and the
line says how. The result file is written where all tables and the default run are asked for. `--measured` computes
nothing: the tables on which the default run is measured count, the others are named and their bars missed, and a model
counts in each group whose tables it is all measured on.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from environment import HERE, RESULTS, commit, spread, write_result
from public_tables import FLIGHTS, GROUPS, JUDGE, ROOT, TABLES, TUNE, Split, split_table, table_file
from scipy.special import log_softmax
from sklearn.metrics import roc_auc_score, root_mean_squared_error
from table_peers import PEERS
from threadpoolctl import threadpool_limits

import gpupipe as gp

HIST, LINEAR, DEFAULT = "HistGradientBoosting", "linear", "default"
ONE_SEED = ("ResNet", "DCNv2", "FTTransformer", "MLP, 20 epochs of 256")  # most of an hour for all tables, each
MAX_MEDIAN, MAX_WORST, MAX_OVER_LINEAR, MAX_FLIGHTS = 1.02, 1.12, 1.03, 1.0  # times an error
RUNS = TABLES / "runs.jsonl"
Data = dict[str, gp.Dataset]
Run = dict[str, Any]  # table, model, seed, key, and either error, wall_s, cpu_s or failed


def run_default(data: Data, target: str, seed: int) -> np.ndarray:
    """What a new user writes: no argument but the target."""
    features = gp.Features.auto(data["train"], target=target)
    pipeline = gp.Pipeline([], features).fit(data["train"])
    model = gp.models.auto(pipeline.schema, seed=seed)
    trainer = gp.Trainer(model, seed=seed, progress=False)
    trainer.fit(pipeline.loader(data["train"], shuffle="rows"), pipeline.loader(data["valid"]))
    return trainer.predict(pipeline.loader(data["test"])).numpy()


def run_network(
    name: str, data: Data, target: str, seed: int, *, batch_size: int | str = "auto", max_epochs: int | str = "auto"
) -> np.ndarray:
    """The same with another network, or with batches and epochs by hand."""
    pipeline = gp.Pipeline([], gp.Features.auto(data["train"], target=target)).fit(data["train"])
    model = getattr(gp.models, name).from_schema(pipeline.schema, seed=seed)
    trainer = gp.Trainer(model, max_epochs=max_epochs, seed=seed, progress=False)
    train = pipeline.loader(data["train"], shuffle="rows", batch_size=batch_size)
    trainer.fit(train, pipeline.loader(data["valid"]))
    return trainer.predict(pipeline.loader(data["test"])).numpy()


NETWORKS: dict[str, partial[np.ndarray]] = {
    DEFAULT: partial(run_default),
    **{name: partial(run_network, name) for name in ("MLP", "ResNet", "DCNv2", "FTTransformer", "XGB")},
    "MLP, 20 epochs of 256": partial(run_network, "MLP", batch_size=256, max_epochs=20),
}


def compute_error(split: Split, scores: np.ndarray) -> float:
    """1 - AUC, log loss or RMSE of a model's log-odds, log-probabilities or values of the test rows."""
    target = split.codes(split.test)
    if split.task == "binary":
        return 1 - float(roc_auc_score(target, scores))
    if split.task == "multiclass":
        return -float(np.mean(log_softmax(scores, axis=1)[np.arange(len(target)), target]))
    return float(root_mean_squared_error(target, scores))


def run_model(model: str, split: Split, folder: Path, seed: int, threads: int) -> Run:
    """Error and seconds of a model on a split, or how it failed."""
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        with threadpool_limits(threads):
            if model in PEERS:
                scores = PEERS[model][1](split, seed, threads)
            else:
                data = {name: gp.read_parquet(folder / f"{name}.parquet") for name in ("train", "valid", "test")}
                scores = NETWORKS[model](data, split.target, seed)
        error = compute_error(split, scores)
    except Exception as problem:  # noqa: BLE001 - whatever it is, the model has lost here, and the others go on
        return {"failed": f"{type(problem).__name__}: {problem}"}
    return {"error": error, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def measure(tables: Sequence[str], models: Sequence[str], seeds: Sequence[int], threads: int) -> list[Run]:
    """The run of each table, model and seed: from the file of runs, else computed and written there."""
    torch.set_num_threads(threads)
    RUNS.parent.mkdir(parents=True, exist_ok=True)
    past = read_runs()
    runs = []
    for table in tables:
        for seed in seeds:
            measured = [model for model in models if seed == seeds[0] or model not in ONE_SEED]
            keys = {model: (table, model, seed, run_key(table, model)) for model in measured}
            missing = [model for model, key in keys.items() if key not in past]
            with tempfile.TemporaryDirectory() as folder:
                split = split_table(table, seed) if missing else None
                for name in ("train", "valid", "test") if split else ():
                    getattr(split, name).to_parquet(Path(folder) / f"{name}.parquet", index=False)
                for model in missing:
                    run = dict(zip(("table", "model", "seed", "key"), keys[model], strict=True))
                    run |= run_model(model, split, Path(folder), seed, threads) | {"commit": commit()}
                    past[keys[model]] = run
                    with RUNS.open("a") as file:
                        file.write(json.dumps(run) + "\n")
                    figures = run.get("failed") or f"{run['error']:.5f}, {run['cpu_s']:.0f} CPU s"
                    print(f"{table}, seed {seed}, {model}: {figures}", file=sys.stderr, flush=True)
            runs += [past[key] for key in keys.values()]
    return runs


def read_runs() -> dict[tuple[str, str, int, str], Run]:
    """The runs of the file by table, model, seed and key."""
    lines = RUNS.read_text().splitlines() if RUNS.exists() else []
    return {(run["table"], run["model"], run["seed"], run["key"]): run for run in map(json.loads, lines)}


def recall(tables: Sequence[str], models: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """The runs of the file that are of today's programs, of tables with a default run."""
    past = read_runs()
    keys = [(table, model, seed, run_key(table, model)) for table in tables for model in models for seed in seeds]
    runs = [past[key] for key in keys if key in past]
    measured = {run["table"] for run in runs if run["model"] == DEFAULT}
    return [run for run in runs if run["table"] in measured]


@cache
def run_key(table: str, model: str) -> str:
    """What a run depends on: the table, the model's program, and its library's version or the package's files."""
    data = ROOT / "data" / "flights.parquet" if table in FLIGHTS else table_file(table)
    if model in PEERS:
        library = version(PEERS[model][0])
        source = (HERE / "table_peers.py").read_text()
    else:
        program = NETWORKS[model]
        library = package_state()
        source = f"{inspect.getsource(program.func)}{program.args}{program.keywords}"
    parts = [data.read_bytes(), inspect.getsource(split_table).encode(), library.encode(), source.encode()]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


@cache
def package_state() -> str:
    """The files of the package as git names them, and what is changed in them."""
    tree, changes = (
        subprocess.run(["git", *words, "--", "gpupipe"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for words in (["ls-tree", "HEAD"], ["diff", "HEAD"])
    )
    return tree + changes


def summarise(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """By table and model: errors, their ratios to the better of trees and linear, seconds, or how it failed."""
    errors = {(run["table"], run["seed"], run["model"]): run["error"] for run in runs if "error" in run}
    series: dict[tuple[str, str], dict[str, list[float]]] = {}
    figures: dict[str, dict[str, Any]] = {}
    for run in runs:
        table, model = run["table"], run["model"]
        entry = figures.setdefault(table, {}).setdefault(model, {})
        if "failed" in run:
            entry["failed"] = run["failed"]
            continue
        linear, hist = (errors.get((table, run["seed"], name), float("nan")) for name in (LINEAR, HIST))
        ratios = {"ratio": run["error"] / min(linear, hist), "to_linear": run["error"] / linear}
        for key, value in ({key: run[key] for key in ("error", "cpu_s")} | ratios).items():
            series.setdefault((table, model), {}).setdefault(key, []).append(value)
    for (table, model), values in series.items():
        figures[table][model] |= {key: spread(each) for key, each in values.items()} | {"seeds": len(values["error"])}
    return figures


def rank_models(figures: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each model that was run on all tables, best median first: ratios, ranks, tables behind linear, failures, seconds.

    A model that failed on a table has the last rank there, and counts as behind linear.
    """
    first, *others = figures.values()
    models = [model for model in first if all(model in entries for entries in others)]
    ratios = {model: {table: middle(entry[model], "ratio") for table, entry in figures.items()} for model in models}
    ranks = {
        model: [1 + sum(ratios[other][table] < ratio for other in models) for table, ratio in ratios[model].items()]
        for model in models
    }
    summary = {}
    for model in sorted(models, key=lambda model: median(ratios[model].values())):
        entries = [entry[model] for entry in figures.values()]
        summary[model] = {
            "median": median(ratios[model].values()),
            "worst": max(ratios[model].values()),
            "mean_rank": mean(ranks[model]),
            "behind_linear": sum(middle(entry, "to_linear") > MAX_OVER_LINEAR for entry in entries),
            "failed": sum("failed" in entry for entry in entries),
            "cpu_s": sum(entry["cpu_s"]["median"] for entry in entries if "cpu_s" in entry),
            "seeds": min(entry.get("seeds", 0) for entry in entries),
        }
    return summary


def middle(entry: dict[str, Any], key: str) -> float:
    """The median over seeds, infinite where the model failed."""
    return math.inf if "failed" in entry else float(entry[key]["median"])


def bars(figures: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Whether the default run is near the better of trees and linear models on every table, and no worse on flights."""
    lines = []
    for group, names in GROUPS.items():
        tables = [name for name in names if name in figures]
        left = f"; {len(names) - len(tables)} tables not measured" if len(tables) < len(names) else ""
        entries = {table: figures[table][DEFAULT] for table in tables}
        ratios = {table: middle(entry, "ratio") for table, entry in entries.items()}
        to_linear = {table: middle(entry, "to_linear") for table, entry in entries.items()}
        if group == "flights":
            to_hist = [
                middle(entry, "error") / middle(figures[table][HIST], "error") for table, entry in entries.items()
            ]
            asked = {"that of HistGradientBoosting, worst": (max(to_hist), MAX_FLIGHTS)}
        else:
            of = "that of the better of HistGradientBoosting and linear"
            asked = {
                f"{of}, median": (median(ratios.values()), MAX_MEDIAN),
                f"{of}, worst ({max(ratios, key=ratios.__getitem__)})": (max(ratios.values()), MAX_WORST),
                f"that of linear, worst ({max(to_linear, key=to_linear.__getitem__)})": (
                    max(to_linear.values()),
                    MAX_OVER_LINEAR,
                ),
            }
        lines += [
            {"what": f"{group}: error of the default run per {what}{left}", "bar": f"at most {bar:g}", "found": found}
            | {"met": found <= bar and not left}
            for what, (found, bar) in asked.items()
        ]
    return lines


def print_ratios(figures: dict[str, dict[str, Any]]) -> None:
    """Ratios of the errors by table and model, then what they come to, group by group."""
    for names in GROUPS.values():
        entries = {name: figures[name] for name in names if name in figures}
        if not entries:
            continue
        ranks = rank_models(entries)
        print("| table |", " | ".join(ranks), "|\n|---|" + "---:|" * len(ranks))
        for table, models in entries.items():
            print(f"| {table} |", " | ".join(f"{middle(models[model], 'ratio'):.3f}" for model in ranks), "|")
        for key in ("median", "worst", "mean_rank", "behind_linear", "failed", "cpu_s", "seeds"):
            print(f"| **{key}** |", " | ".join(f"{each[key]:.4g}" for each in ranks.values()), "|")
        print()


def describe_table(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Rows, task, where the table is from, and the error that ratios are of."""
    split = split_table(name, seed=0)
    source = "data/flights.parquet" if name in FLIGHTS else (TUNE | JUDGE)[name].package
    better = min(middle(figures[model], "error") for model in (LINEAR, HIST))
    return {"rows": sum(map(len, split.parts)), "task": split.task, "source": source, "better": better}


def assemble(figures: dict[str, dict[str, Any]], seeds: Sequence[int], threads: int) -> dict[str, Any]:
    """What the result file holds."""
    groups = {group: [name for name in names if name in figures] for group, names in GROUPS.items()}
    return {
        "seeds": seeds,
        "threads": threads,
        "groups": groups,
        "not_measured": {group: [name for name in names if name not in figures] for group, names in GROUPS.items()},
        "tables": {name: describe_table(name, entries) for name, entries in figures.items()},
        "ranks": {group: rank_models({name: figures[name] for name in names}) for group, names in groups.items()},
        "figures": figures,
        "bars": bars(figures),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = [*(name for name, (package, _) in PEERS.items() if is_installed(package)), *NETWORKS]
    parser.add_argument("--group", choices=GROUPS, nargs="+", default=list(GROUPS))
    parser.add_argument("--tables", nargs="+")
    parser.add_argument("--models", nargs="+", choices=models, metavar="NAME", help=" | ".join(models))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--measured", action="store_true", help="compute nothing: take the runs that are there")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parsed = parser.parse_args()
    tables = parsed.tables or list(dict.fromkeys(name for group in parsed.group for name in GROUPS[group]))
    chosen = list(dict.fromkeys([LINEAR, HIST, *(parsed.models or models)]))  # the two that all errors are divided by
    if parsed.measured:
        runs = recall(tables, chosen, parsed.seeds)
    else:
        runs = measure(tables, chosen, parsed.seeds, parsed.threads)
    figures = summarise(runs)
    print_ratios(figures)
    if DEFAULT in next(iter(figures.values())) and set(tables) == {name for names in GROUPS.values() for name in names}:
        result = assemble(figures, parsed.seeds, parsed.threads)
        print(write_result("tables_cpu", result, parsed.out))


def is_installed(package: str) -> bool:
    """Whether a peer is there to be measured; XGBoost and LightGBM may be missing."""
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


if __name__ == "__main__":
    main()
