"""The default run and other models beside trees and linear models, on real tables that packages of PyPI hold.

    python benchmarks/tables.py [--group tune | judge | flights] [--tables NAME ...] [--models NAME ...] [--seeds 0 1 2]

Each seed splits a table anew (`public_tables.py`), the same for every model: rows to train, to validate (best epoch,
early stopping), to test. A network gets what a new user writes; a peer the raw columns as somebody who knows it would
give them (`table_peers.py`). Errors are 1 - AUC (two classes), log loss (more) and RMSE (numbers, in the target's
units). Every error is a line of `build/tables/runs.jsonl`, and is computed again only after the program, the table or
the library changes. A model that fails on a table has lost there, and the line says how. Without names of tables or
models the result file is written.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from environment import HERE, RESULTS, commit, spread, write_result
from public_tables import FLIGHTS, GROUPS, ROOT, TABLES, Split, split_table, table_file
from scipy.special import log_softmax
from sklearn.metrics import roc_auc_score, root_mean_squared_error
from table_peers import PEERS
from threadpoolctl import threadpool_limits

import gpupipe as gp

HIST, LINEAR, DEFAULT = "HistGradientBoosting", "linear", "default"
MAX_MEDIAN, MAX_WORST, MAX_OVER_LINEAR, MAX_FLIGHTS = 1.02, 1.12, 1.03, 1.0  # times an error
RUNS = TABLES / "runs.jsonl"
Data = dict[str, gp.Dataset]
Run = dict[str, Any]  # table, model, seed, key, and either error, wall_s, cpu_s or failed


def run_default(data: Data, target: str, seed: int) -> np.ndarray:
    """What a new user writes: no argument but the target."""
    features = gp.Features.auto(data["train"], target=target)
    pipeline = gp.Pipeline([], features).fit(data["train"])
    model = gp.models.MLP.from_schema(pipeline.schema, seed=seed)
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
    **{name: partial(run_network, name) for name in ("TabM", "ResNet", "DCNv2", "FTTransformer")},
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
    lines = RUNS.read_text().splitlines() if RUNS.exists() else []
    past = {(run["table"], run["model"], run["seed"], run["key"]): run for run in map(json.loads, lines)}
    runs = []
    for table in tables:
        for seed in seeds:
            wanted = {model: (table, model, seed, run_key(table, model)) for model in models}
            missing = [model for model, key in wanted.items() if key not in past]
            with tempfile.TemporaryDirectory() as folder:
                split = split_table(table, seed) if missing else None
                for name in ("train", "valid", "test") if split else ():
                    getattr(split, name).to_parquet(Path(folder) / f"{name}.parquet", index=False)
                for model in missing:
                    run = dict(zip(("table", "model", "seed", "key"), wanted[model], strict=True))
                    run |= run_model(model, split, Path(folder), seed, threads) | {"commit": commit()}
                    past[wanted[model]] = run
                    with RUNS.open("a") as file:
                        file.write(json.dumps(run) + "\n")
                    figures = run.get("failed") or f"{run['error']:.5f}, {run['cpu_s']:.0f} CPU s"
                    print(f"{table}, seed {seed}, {model}: {figures}", file=sys.stderr, flush=True)
            runs += [past[key] for key in wanted.values()]
    return runs


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
    figures: dict[str, dict[str, Any]] = {}
    for run in runs:
        table, seed, model = run["table"], run["seed"], run["model"]
        entry = figures.setdefault(table, {}).setdefault(model, {"runs": []})
        if "failed" in run:
            entry["failed"] = run["failed"]
            continue
        linear, hist = (errors.get((table, seed, name), float("nan")) for name in (LINEAR, HIST))
        ratios = {"ratio": run["error"] / min(linear, hist), "to_linear": run["error"] / linear}
        entry["runs"].append({key: run[key] for key in ("error", "wall_s", "cpu_s")} | ratios)
    for entry in (entry for models in figures.values() for entry in models.values()):
        done = entry.pop("runs")
        entry |= {key: spread([run[key] for run in done]) for key in (done[0] if done else ())}
    return figures


def rank_models(figures: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each model over all tables: median and worst ratio, mean rank, tables behind linear by more than 3 %, failures.

    A model that failed on a table has the last rank there, and counts as behind linear.
    """
    models = list(dict.fromkeys(model for entries in figures.values() for model in entries))
    ratios = {
        m: {t: entry_ratio(entries, m, "ratio") for t, entries in figures.items() if m in entries} for m in models
    }
    ranks: dict[str, list[float]] = {model: [] for model in models}
    for table in figures:
        present = {model: ratios[model][table] for model in models if table in ratios[model]}
        for model, ratio in present.items():
            ranks[model].append(1 + sum(other < ratio for other in present.values()))
    return {
        model: {
            "tables": len(ratios[model]),
            "median": median(ratios[model].values()),
            "worst": max(ratios[model].values()),
            "worst_table": max(ratios[model], key=ratios[model].__getitem__),
            "mean_rank": mean(ranks[model]),
            "behind_linear": sum(
                entry_ratio(figures[table], model, "to_linear") > MAX_OVER_LINEAR for table in ratios[model]
            ),
            "failed": sum("failed" in figures[table][model] for table in ratios[model]),
        }
        for model in sorted(models, key=lambda model: median(ratios[model].values()))
    }


def entry_ratio(entries: dict[str, Any], model: str, key: str) -> float:
    """The median over seeds, infinite where the model failed."""
    return float("inf") if "failed" in entries[model] else float(entries[model][key]["median"])


def bars(figures: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Whether the default run is near the better of trees and linear models on every table, and no worse on flights."""
    lines = []
    for group, tables in GROUPS.items():
        entries = [figures[table] for table in tables if table in figures]
        ratios = [entry_ratio(entry, DEFAULT, "ratio") for entry in entries]
        to_linear = [entry_ratio(entry, DEFAULT, "to_linear") for entry in entries]
        asked = {"error of the default run per HistGradientBoosting's, worst": (max(ratios), MAX_FLIGHTS)}
        if group != "flights":
            of = "error of the default run per that of the better of HistGradientBoosting and linear"
            asked = {f"{of}, median": (median(ratios), MAX_MEDIAN), f"{of}, worst": (max(ratios), MAX_WORST)}
            asked |= {"error of the default run per that of linear, worst": (max(to_linear), MAX_OVER_LINEAR)}
        lines += [
            {"what": f"{group}: {what}", "bar": f"at most {bar:g}", "found": found, "met": found <= bar}
            for what, (found, bar) in asked.items()
        ]
    return lines


def print_ratios(figures: dict[str, dict[str, Any]], ranks: dict[str, dict[str, Any]]) -> None:
    """Ratios of the errors by table and model, then what they come to."""
    print("| table |", " | ".join(ranks), "|\n|---|" + "---:|" * len(ranks))
    for table, entries in figures.items():
        cells = [f"{entry_ratio(entries, model, 'ratio'):.3f}" if model in entries else "" for model in ranks]
        print(f"| {table} |", " | ".join(cells), "|")
    for key in ("median", "worst", "mean_rank", "behind_linear", "failed"):
        cells = [f"{each[key]:.3f}" if isinstance(each[key], float) else f"{each[key]}" for each in ranks.values()]
        print(f"| **{key}** |", " | ".join(cells), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = [*PEERS, *NETWORKS]
    parser.add_argument("--group", choices=GROUPS, nargs="+", default=list(GROUPS))
    parser.add_argument("--tables", nargs="+")
    parser.add_argument("--models", nargs="+", choices=models, metavar="NAME", help=" | ".join(models))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parsed = parser.parse_args()
    tables = parsed.tables or list(dict.fromkeys(name for group in parsed.group for name in GROUPS[group]))
    chosen = list(dict.fromkeys([LINEAR, HIST, *(parsed.models or models)]))  # the two that all errors are divided by
    runs = measure(tables, chosen, parsed.seeds, parsed.threads)
    figures = summarise(runs)
    print_ratios(figures, rank_models(figures))
    if not parsed.tables and not parsed.models and parsed.group == list(GROUPS):
        ranks = {group: rank_models({name: figures[name] for name in GROUPS[group]}) for group in GROUPS}
        result = {"seeds": parsed.seeds, "threads": parsed.threads, "figures": figures, "ranks": ranks}
        print(write_result("tables_cpu", result | {"bars": bars(figures)}, parsed.out))


if __name__ == "__main__":
    main()
