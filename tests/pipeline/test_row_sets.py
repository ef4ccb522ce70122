"""Which rows may have taught a step their own target: those of the fit, under whatever verbs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T

RNG = np.random.default_rng(0)
FLIGHTS = pd.DataFrame(
    {"origin": RNG.choice(["JFK", "LGA"], 200), "hour": RNG.integers(0, 24, 200), "delay": RNG.normal(size=200)}
)
KINDS = ["memory", "file"]
VERBS: dict[str, Callable[[gp.Dataset], gp.Dataset]] = {
    "shuffle": lambda data: data.shuffle(),
    "sort": lambda data: data.sort("hour"),
    "filter": lambda data: data.filter("hour > 3"),
    "split": lambda data: data.split(0.5)[0],
    "sample": lambda data: data.sample(0.5),
    "sorted part": lambda data: data.filter("hour > 3").sort("hour").split(0.5)[0],
    "deduplicate": lambda data: data.deduplicate(["origin", "hour"]),
    "concat": lambda data: gp.concat([data, gp.from_frame(FLIGHTS)]),
    "pipeline": lambda data: gp.Pipeline([T.Derive(late="hour > 12")]).fit(data).transform(data),
    "join": lambda data: data.join(data.group_by("origin").agg(n=("hour", "count")), on="origin"),
}


def take_first(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(y=[value["n"][0] for value in frame["y"]])


def read(kind: str, folder: Path) -> gp.Dataset:
    if kind == "memory":
        return gp.from_frame(FLIGHTS)
    FLIGHTS.to_parquet(folder / "flights.parquet")
    return gp.read_parquet(folder / "flights.parquet")


def fit(data: gp.Dataset, rows: str | None = None) -> gp.Pipeline:
    features = gp.Features((["origin"], pre.TargetEncoder()), target="delay")
    return gp.Pipeline([], features).fit(data, rows=rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_rows_of_the_fit_are_known_after_a_verb(verb: str, kind: str, tmp_path: Path) -> None:
    data = read(kind, tmp_path)
    part = VERBS[verb](data)
    pipeline = fit(data)
    with pytest.raises(errors.LeakageError, match="the pipeline was fitted on"):
        pipeline.loader(part)
    assert len(pipeline.loader(part, out_of_fold=False)) > 0
    encoded = pipeline.transform(part)
    with pytest.raises(errors.LeakageError, match="feature 'origin'"):
        gp.Pipeline([], gp.Features(["origin"], target="delay")).fit(encoded)
    if verb not in ("concat", "join", "pipeline"):  # the rows of a part teach those of the whole
        with pytest.raises(errors.LeakageError, match="of the table"):
            fit(part).loader(data)


@pytest.mark.parametrize("kind", KINDS)
def test_other_rows_are_none_of_the_fit(kind: str, tmp_path: Path) -> None:
    data = read(kind, tmp_path)
    past, later = data.filter("hour < 12"), data.filter("hour >= 12")
    train, valid = data.split(0.5)
    for fitted, others in ((past, later), (train, valid), (past.sort("hour"), later.shuffle())):
        pipeline = fit(fitted)
        assert len(pipeline.loader(others)) > 0
        second = gp.Pipeline([], gp.Features(["origin"], target="delay")).fit(pipeline.transform(others))
        assert second.schema.numeric
    pipeline = fit(data, rows="hour < 12")
    assert len(pipeline.loader(data, rows="hour >= 12")) > 0
    with pytest.raises(errors.LeakageError, match="of the table"):
        pipeline.loader(data)


def test_out_of_fold_values_are_features() -> None:
    data = gp.from_frame(FLIGHTS)
    encoded = gp.Pipeline([], gp.Features((["origin"], pre.TargetEncoder()), target="delay")).fit_transform(data)
    assert gp.Pipeline([], gp.Features(["origin"], target="delay")).fit(encoded).schema.numeric


def test_a_file_written_anew_holds_other_rows(tmp_path: Path) -> None:
    pipeline = fit(read("file", tmp_path))
    FLIGHTS.assign(delay=FLIGHTS["delay"] + 1).head(150).to_parquet(tmp_path / "flights.parquet")
    assert len(pipeline.loader(gp.read_parquet(tmp_path / "flights.parquet"))) > 0


@pytest.mark.parametrize(
    ("make", "step"),
    [
        (Decimal, T.Cast({"y": "int64"})),
        (lambda number: timedelta(minutes=number), T.Cast({"y": "int64"})),
        (lambda number: time(minute=number), T.Cast({"y": "int64"})),
        (lambda number: b"%d" % number, T.Cast({"y": "string"})),
        (lambda number: [number] * number or None, T.Derive(y="len(y)")),
        (lambda number: {"n": [str(number)]}, T.Map(take_first, reads=["y"], adds=["y"])),
    ],
)
def test_rows_of_the_fit_are_known_by_values_that_are_only_carried(make: Any, step: Any) -> None:
    table = pa.table({"x": range(60), "y": [make(number % 7) for number in range(60)]})
    pipeline = gp.Pipeline([step], gp.Features((["y"], pre.TargetEncoder()), target="x")).fit(table)
    assert len(pipeline.loader(table, out_of_fold=True)) > 0
    with pytest.raises(errors.LeakageError, match="the pipeline was fitted on"):
        pipeline.loader(gp.from_frame(table))
    other = table.set_column(1, "y", pa.concat_arrays([table["y"].chunk(0)[1:], table["y"].chunk(0)[:1]]))
    with pytest.raises(errors.BadConfig, match="not the rows of the fit"):
        pipeline.loader(other, out_of_fold=True)


@pytest.mark.parametrize("route", ["joined", "grouped", "joined groups", "written", "lead"])
def test_the_other_part_of_a_table_whose_target_was_looked_up_is_no_part_of_the_fit(route: str, tmp_path: Path) -> None:
    """Labels out of another table, by a key, are the own row's; so is tomorrow's value, of the row that holds it."""
    frame = FLIGHTS.assign(flight=range(len(FLIGHTS)), at=range(len(FLIGHTS)))
    flights, delays = gp.from_frame(frame.drop(columns="delay")), gp.from_frame(frame[["flight", "delay"]])
    groups = delays.group_by("flight").agg(delay=("delay", "max"))
    data = flights.join(groups if "groups" in route else delays, on="flight")
    if route == "grouped":
        data = data.group_by(["flight", "origin", "at"]).agg(delay=("delay", "max"))
    elif route == "written":
        data.write_parquet(tmp_path / "flights")
        data = gp.read_parquet(tmp_path / "flights")
    elif route == "lead":
        ahead = gp.Pipeline([T.Lag("delay", -1, order_by="at"), T.Derive(delay="delay_lead_1")]).fit(data)
        data = ahead.transform(data)
    for train, valid in (data.split(by="at", at=150), data.split(0.6), data.split(0.6, by="flight")):
        pipeline = fit(train)
        assert len(pipeline.loader(valid)) > 0
        for same in (train.sort("flight"), data):
            with pytest.raises(errors.LeakageError, match="the pipeline was fitted on"):
                pipeline.loader(same)
    if route.startswith("joined"):
        train, valid = (part.join(groups if "groups" in route else delays, on="flight") for part in flights.split(0.6))
        assert len(fit(train).loader(valid)) > 0
        with pytest.raises(errors.LeakageError, match="the pipeline was fitted on"):
            fit(train).loader(train.sort("flight"))
