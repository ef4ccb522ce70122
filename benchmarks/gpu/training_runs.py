"""Questions about training: metrics beside a streamed table, README's program as one graph, the fused feature block."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from lab import Lab, check, flights_like

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.backend import Column, RawColumn
from gpupipe.backend.kernels import DeferredColumn, ElementwiseProgram, Scale
from gpupipe.cli.demo import flights_pipeline

__all__ = ["captured_program", "fused_block", "streamed_regression"]

DATA = Path(__file__).parents[2] / "data"
COLUMNS = 24


@check
def streamed_regression(lab: Lab) -> dict[str, Any]:
    """Are a regression's metrics over streamed rows, in the target's units, those over rows in memory?"""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        pq.write_table(flights_like(min(lab.rows, 1_000_000)), path, row_group_size=max(1, lab.rows // 40))
        train, valid = gp.read_parquet(path, backend=lab.backend.name).split(fraction=0.8, seed=0)
        features = gp.Features((["x", "price"], [pre.SimpleImputer(), pre.StandardScaler()]), target="y")
        pipeline = gp.Pipeline([], features, backend=lab.backend.name).fit(train)
        told = {}
        for residency in ("device", "stream"):
            loaders = [
                pipeline.loader(part, batch_size=max(100, lab.rows // 400), residency=residency)
                for part in (train, valid)
            ]
            model = gp.models.MLP.from_schema(pipeline.schema, hidden=(32,), seed=7)
            trainer = gp.Trainer(model, max_epochs=2, seed=7, precision="32-true", progress=False)
            told[residency] = trainer.fit(*loaders).rows[-1]
    names = [name for name, value in told["device"].items() if name.startswith("valid_") and isinstance(value, float)]
    apart = max(abs(told["device"][name] - told["stream"][name]) for name in names)
    return {"metrics": {name: told["stream"][name] for name in names}, "largest_difference": apart}


@check
def captured_program(lab: Lab) -> dict[str, Any]:
    """Is the training of README's program captured as one graph? On a GPU it is an error if it is not."""
    flights, weather = (
        gp.read_parquet(DATA / f"{name}.parquet", backend=lab.backend.name) for name in ("flights", "weather")
    )
    flights, _ = flights.split(by="time_hour", at="2013-03-01" if lab.gpu else "2013-01-03")
    pipeline = flights_pipeline(weather)
    pipeline.backend = lab.backend.name
    loader = pipeline.fit(flights).loader(flights, batch_size=2048, shuffle="rows")
    model = gp.models.MLP.from_schema(pipeline.schema, hidden=(256, 128), seed=7)
    with logged() as lines:
        history = gp.Trainer(model, max_epochs=1, seed=7, progress=False).fit(loader)
    step = [line for line in lines if line.startswith("the step ")]
    if lab.gpu and not any("captured as a CUDA graph" in line for line in step):
        raise RuntimeError(f"the step is not captured: {step}")
    return {"step": step, "train_loss": history.rows[-1]["train_loss"]}


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect the lines that gpupipe logs meanwhile."""
    lines: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    log, handler = logging.getLogger("gpupipe"), Collector()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@check
def fused_block(lab: Lab) -> dict[str, Any]:
    """Does the fused kernel leave every column uncomputed, and how long does a block take with it and without?

    On a GPU it is an error if there is no kernel, or if it computed a column.
    """
    backend = lab.backend
    values = backend.to_device(np.random.default_rng(0).standard_normal(lab.rows).astype("float32"))
    program = ElementwiseProgram(fill=0.25, scale=Scale(offset=0.25, divisor=1.5))
    computed: list[int] = []

    def compute(number: int) -> Column:
        computed.append(number)
        filled = backend.xp.where(backend.xp.isnan(values), np.float32(0.25), values)
        return Column("float32", (filled - np.float32(0.25)) / np.float32(1.5))

    def build_columns() -> list[DeferredColumn]:
        return [DeferredColumn(RawColumn(values), program, partial(compute, number)) for number in range(COLUMNS)]

    words = torch.zeros((lab.rows, COLUMNS), dtype=torch.int32, device=lab.device)
    table, ids = backend.xp.from_dlpack(words), [False] * COLUMNS

    def write_unfused() -> None:
        for number, column in enumerate(build_columns()):
            table[:, number] = column.data.view("int32")

    seen: dict[str, Any] = {"unfused_ms": lab.milliseconds(write_unfused), "fused_ms": None}
    wanted = words.clone()
    if not backend.write_rows(table, build_columns(), ids):  # the first of a kind is compared, column by column
        if lab.gpu:
            raise RuntimeError("the fused kernel does not run")
        return seen
    computed.clear()
    words.zero_()
    seen["fused_ms"] = lab.milliseconds(lambda: backend.write_rows(table, build_columns(), ids))
    if computed:
        raise RuntimeError(f"the fused kernel computed {len(computed)} columns by their steps")
    apart = (words.view(torch.float32) - wanted.view(torch.float32)).abs().max()
    return seen | {"largest_difference": float(apart)}
