"""Every network of `gpupipe.models` on flights, beside the baselines on the same rows and columns.

    python benchmarks/models.py [--seeds 7 8 9] [--models MLP ...] [--out FOLDER]

Two tasks: whether a flight arrives more than 15 minutes late (AUC), and by how many minutes (RMSE). The pipeline is the
demonstration's. Of the flights before 2013-10-01 a tenth, drawn by row, is measured on ("same months"), and so are all
flights after ("later months"); of the rest another tenth stops the networks early, which have their own defaults and
learning rates. What `gp.compare` fits learns from the same block, the stopping part included; "raw columns" is gradient
boosting on the columns before preprocessing, as in `accuracy.py`. Forests are fitted for the first seed only.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from environment import RESULTS, spread, write_result

import gpupipe as gp
from gpupipe import models
from gpupipe import preprocessing as pre
from gpupipe.cli.demo import SPLIT, flights_pipeline, reference_auc
from gpupipe.tensors import Loader

DATA = Path(__file__).parents[1] / "data"
TASKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "late": ("auc", "linear", {"target": "arr_delay > 15"}),
    "minutes": ("rmse", "linear", {"target": "arr_delay", "target_transform": [pre.StandardScaler()]}),
}
EPOCHS, BATCH, AVERAGE = 12, 2048, 0.999
DROPOUT, DECAY = 0.1, 1.0
REGULARISED = {"MLP, regularised": models.MLP, "DCNv2, regularised": models.DCNv2}
RAW = "HistGradientBoostingClassifier, raw columns"
Runs = dict[str, dict[str, list[float]]]  # by model and figure, one value per seed


def networks(schema: gp.Schema) -> dict[str, Any]:
    """A function of the seed for each network, by the name to show."""
    plain = (models.Linear, models.MLP, models.ResNet, models.DCNv2, models.FTTransformer)
    made = {cls.__name__: partial(cls.from_schema, schema) for cls in plain}
    for name, numbers in (
        ("piecewise linear", models.PiecewiseLinear.from_schema(schema)),
        ("periodic", models.Periodic()),
    ):
        made[f"MLP, {name}"] = partial(models.MLP.from_schema, schema, numbers=numbers)
    for name, cls in REGULARISED.items():
        made[name] = partial(cls.from_schema, schema, dropout=DROPOUT)
    return made


def measure(seeds: list[int], wanted: list[str] | None) -> dict[str, Any]:
    flights = gp.read_parquet(DATA / "flights.parquet")
    weather = gp.read_parquet(DATA / "weather.parquet")
    before, after = flights.split(by="time_hour", at=SPLIT)
    known, aside = before.split(fraction=0.9, seed=1)
    learned, stopping = known.split(fraction=0.9, by="day", seed=2)
    figures: dict[str, dict[str, Any]] = {}
    parameters: dict[str, int] = {}
    for task, (metric, _, target) in TASKS.items():
        pipeline = flights_pipeline(weather, **target).fit(known)
        train, stop, whole = (pipeline.loader(part, batch_size=BATCH) for part in (learned, stopping, known))
        checked = {f"{task}, same months": aside, f"{task}, later months": after}
        valid = {name: pipeline.loader(part, batch_size=BATCH) for name, part in checked.items()}
        runs: dict[str, Runs] = {name: {} for name in checked}
        for name, make in networks(pipeline.schema).items():
            if wanted is None or name in wanted:
                parameters[name] = sum(each.numel() for each in make(seed=0).parameters())
                for seed in seeds:
                    settings = {"weight_decay": DECAY} if name in REGULARISED else {}
                    trainer, seconds = trained(make(seed=seed), train, stop, seed, settings)
                    for place, loader in valid.items():
                        note(runs[place], name, {metric: trainer.evaluate(loader)[metric], "fit_s": seconds})
        for seed in seeds:
            only = ["linear", "hist-gradient-boosting", *(["forest"] if seed == seeds[0] else [])]
            for place, loader in valid.items():
                for row in gp.compare(whole, loader, only, seed=seed).rows:
                    note(runs[place], row["model"], {metric: row[metric], "fit_s": row["fit_seconds"]})
                if task == "late":
                    started = time.perf_counter()
                    area = reference_auc(pipeline, known, checked[place])
                    note(runs[place], RAW, {metric: area, "fit_s": time.perf_counter() - started})
        for place, found in runs.items():
            figures[place] = {
                name: {key: spread(values) for key, values in each.items()} for name, each in found.items()
            }
    setting = {
        "max_epochs": EPOCHS,
        "batch_size": BATCH,
        "average": AVERAGE,
        "regularised": {"dropout": DROPOUT, "weight_decay": DECAY},
        "parameters": parameters,
    }
    judged = [name for name in parameters if name not in REGULARISED]
    return {"seeds": seeds, "setting": setting, "figures": figures, "bars": bars(figures, judged)}


def trained(model: Any, train: Any, stop: Any, seed: int, settings: dict[str, float]) -> tuple[gp.Trainer, float]:
    """The trainer after its fit, and the seconds that took."""
    started = time.perf_counter()
    loader = Loader(train.table, batch_size=BATCH, shuffle="rows", seed=seed, target_units=train.target_units)
    early = gp.EarlyStopping(patience=3)
    trainer = gp.Trainer(
        model,
        max_epochs=EPOCHS,
        ema_decay=AVERAGE,
        early_stopping=early,
        seed=seed,
        progress=False,
        **settings,
    )
    history = trainer.fit(loader, stop)
    seconds = time.perf_counter() - started
    print(f"{type(model).__name__}, seed {seed}: {history.best}, {seconds:.0f} s", file=sys.stderr, flush=True)
    return trainer, seconds


def note(runs: Runs, model: str, figures: dict[str, float]) -> None:
    """Put a run's figures with those of the other seeds."""
    for key, value in figures.items():
        runs.setdefault(model, {}).setdefault(key, []).append(value)


def bars(figures: dict[str, Any], networks: list[str]) -> list[dict[str, Any]]:
    """No network with its own defaults worse than the linear baseline, the best near gradient boosting."""
    made = []
    for place, found in figures.items():
        metric, linear, _ = TASKS[place.partition(",")[0]]
        sign = 1 if metric == "auc" else -1
        middle = {name: sign * each[metric]["median"] for name, each in found.items()}
        worst = min((name for name in networks if name != "Linear"), key=middle.__getitem__, default="Linear")
        ahead = middle[worst] - middle[linear]
        what = f"{place}: {metric.upper()}, the last network ({worst}) ahead of {linear} by"
        made.append({"what": what, "bar": "at least 0", "found": ahead, "met": ahead >= 0})
        if metric == "auc":
            boosted = max(value for name, value in middle.items() if name in ("hist-gradient-boosting", RAW))
            best = max(networks, key=middle.__getitem__)
            what = f"{place}: AUC, gradient boosting (the better of two) - the first network ({best})"
            behind = boosted - middle[best]
            made.append({"what": what, "bar": "at most 0.003", "found": behind, "met": behind <= 0.003})
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parsed = parser.parse_args()
    print(write_result("models_cpu", measure(parsed.seeds, parsed.models), parsed.out))


if __name__ == "__main__":
    main()
