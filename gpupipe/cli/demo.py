"""Demonstration: a year of flights from New York, from Parquet to a model that predicts arrival 15 minutes late.

`gpupipe demo` runs it; `notebooks/01_quickstart.ipynb` goes through it a step at a time.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend import select
from gpupipe.backend.candidates import gradient_boosting_auc
from gpupipe.errors import BadConfig

HOLIDAYS = ["2013-01-01", "2013-05-27", "2013-07-04", "2013-09-02", "2013-11-28", "2013-12-25"]
SPLIT = "2013-10-01"

SECOND_PROCESS = """
import sys, gpupipe as gp
scorer = gp.load(sys.argv[1], allow=["gpupipe.cli.demo.add_holiday"])
flights = gp.read_parquet(sys.argv[2]).select(sys.argv[4].split(","))
_, valid = flights.split(by="time_hour", at=sys.argv[5])
scorer.predict_proba(valid).write_parquet(sys.argv[3])
"""


def add_holiday(frame: Any) -> Any:
    """Add whether a flight leaves on a federal holiday: a user function for pandas and cuDF alike."""
    frame["holiday"] = frame["time_hour"].dt.strftime("%Y-%m-%d").isin(HOLIDAYS)
    return frame


def flights_pipeline(weather: Any, **target: Any) -> gp.Pipeline:
    """Build the demonstration's unfitted pipeline; `weather` is the table it joins, `target` as `Features` takes it."""
    return gp.Pipeline(
        [
            T.Join(weather, on=["origin", "time_hour"], how="left", name="weather"),
            T.Derive(night="hour < 6 or hour >= 22", storm="wind_speed > 20 and visib < 5"),
            T.Map(add_holiday, reads=["time_hour"], adds=["holiday"]),
        ],
        features=gp.Features(
            (["dep_delay", "distance"], [pre.SimpleImputer(strategy="median"), pre.StandardScaler()]),
            (["temp", "dewp", "humid", "wind_speed"], [pre.SimpleImputer(), pre.StandardScaler(), pre.PCA(3)]),
            (["temp", "wind_speed"], [pre.SimpleImputer(), pre.KMeans(n_clusters=16)]),
            (["carrier", "origin", "dest"], pre.Categorify(min_frequency=20)),
            (["storm"], pre.SimpleImputer(strategy="most_frequent")),
            ["night", "holiday"],
            keep=["flight", "time_hour"],
            **{"target": "arr_delay > 15", **target},
        ),
    )


def run(data: Path, out: Path, *, seed: int = 7, reference: bool = True) -> dict[str, float]:
    """Run the demonstration on the tables in `data`, save to `out` and print what happens; returns the figures.

    With `reference`, scikit-learn's gradient boosting is fitted on the same columns and rows, for comparison.
    """
    if not (data / "flights.parquet").is_file():
        problem, expected = "flights.parquet is not there", "the folder data/ of the repository"
        raise BadConfig("gpupipe demo", problem, got=str(data), expected=expected, remedy="gpupipe demo --data PATH")
    started = time.perf_counter()
    flights = gp.read_parquet(data / "flights.parquet")
    weather = gp.read_parquet(data / "weather.parquet")
    train, valid = flights.split(by="time_hour", at=SPLIT)
    parts = f"{len(train):,} flights before {SPLIT} to learn from, {len(valid):,} after it to check"
    print(f"backend {select().name}: {parts}\n")

    pipeline = flights_pipeline(weather).fit(train)
    print(f"{pipeline.explain()}\n{pipeline.fit_report}\n")
    model = gp.models.MLP.from_schema(pipeline.schema, hidden=(256, 128), seed=seed)
    trainer = gp.Trainer(model, max_epochs=3, seed=seed)
    loader = pipeline.loader(train, batch_size=2048, shuffle="rows", seed=seed)
    history = trainer.fit(loader, pipeline.loader(valid))
    print(f"{history}\n")

    gp.save(out, pipeline, model, overwrite=True)
    scorer = gp.load(out, allow=["gpupipe.cli.demo.add_holiday"])
    unlabelled = [name for name in flights.columns if name != "arr_delay"]
    scores = scorer.predict_proba(valid.select(unlabelled)).compute()
    seconds = time.perf_counter() - started
    figures = {"auc": float(history.rows[-1]["valid_auc"]), "seconds": seconds, "peak_gb": _peak_gb()}
    print(f"saved to {out}; loaded again, it scores flights whose delay it is not shown:")
    print(f"{scores.head().to_string()}\n")

    same_file = out.with_name(out.name + "-scores.parquet")
    same_file.unlink(missing_ok=True)
    arguments = [str(out), str(data / "flights.parquet"), str(same_file), ",".join(unlabelled), SPLIT]
    # This interpreter, our own text.
    subprocess.run([sys.executable, "-c", SECOND_PROCESS, *arguments], check=True)  # noqa: S603
    same = gp.read_parquet(same_file).compute()
    equal = bool((same["probability"].to_numpy() == scores["probability"].to_numpy()).all())
    print(f"a second process loads it and gives {'the same scores, bit for bit' if equal else 'OTHER SCORES'}")
    print(f"pipeline, training, saving and scoring took {seconds:.1f} s and at most {figures['peak_gb']:.2f} GB")
    if not equal:
        raise AssertionError("a saved pipeline scored differently in a second process")
    if reference:
        figures["reference_auc"] = reference_auc(pipeline, train, valid)
        peer = f"scikit-learn's gradient boosting on the same columns {figures['reference_auc']:.4f}"
        print(f"AUC {figures['auc']:.4f}; {peer}")
    return figures


def reference_auc(pipeline: gp.Pipeline, train: gp.Dataset, valid: gp.Dataset) -> float:
    """Compute the AUC on `valid` of scikit-learn's gradient boosting on the raw feature columns of `train`."""
    assert pipeline.features is not None
    columns = sorted(pipeline.features.inputs)
    plain = gp.Pipeline(pipeline.steps, backend="cpu").fit(train)
    parts = []
    for part in (train, valid):
        frame = plain.transform(part).compute().dropna(subset="arr_delay")
        late = np.asarray(frame["arr_delay"] > 15)
        parts += [frame[columns].astype(dict.fromkeys(["storm", "night", "holiday"], "float32")), late]
    return gradient_boosting_auc(*parts)


def _peak_gb() -> float:
    """Return the program's peak resident size in 10^9 bytes; `ru_maxrss` may be that of the parent process."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.findall(r"VmHWM:\s*(\d+) kB", status.read_text())[0]) * 1024 / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9
