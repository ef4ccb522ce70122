"""Batch size finder: the size from which larger batches are hardly faster, found by trial; the model is unchanged."""

from __future__ import annotations

import logging
import time
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any

import torch

from gpupipe.errors import BadConfig
from gpupipe.support.calls import answer_calls
from gpupipe.tensors.loader import Loader
from gpupipe.training.loop.device import choose_device, session
from gpupipe.training.loop.rank_group import RankGroup
from gpupipe.training.loop.run_start import build_update, capture_update, choose_loss_and_metrics, prepare_model
from gpupipe.training.loop.trainer import Trainer
from gpupipe.training.optim.optimizers import compute_learning_rates

WARM_UP = 5  # updates before the clock: libraries choose their kernels, and a graph is captured after three

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Speed of training by batch size: the knee, rows per second, and why no larger one was tried.

    Example:
        >>> print(BatchSizes(512, {256: 1e6, 512: 1.8e6, 1024: 1.9e6}, "1024 was hardly faster than 512"))
        batch_size=512: 1,800,000 rows/s; 1024 was hardly faster than 512
    """

    best: int
    rows_per_second: dict[int, float]
    stopped: str

    def __str__(self) -> str:
        return f"batch_size={self.best}: {self.rows_per_second[self.best]:,.0f} rows/s; {self.stopped}"


@answer_calls
def tune_batch_size(
    trainer: Trainer,
    loader: Loader,
    *,
    smallest: int = 256,
    largest: int | None = None,
    updates: int = 20,
    least_gain: float = 1.1,
) -> BatchSizes:
    """Train some updates with doubling batch sizes, until they are hardly faster or do not fit in memory.

    The fastest batch is not the one that learns best: bring the rate along with `scaled_rate`. Afterwards weights,
    random numbers and the loader's place are as they were.

    The loader's table must not be streamed; its own batch size does not matter. Sizes go from `smallest` to `largest`
    (by default all rows); `updates` are timed at each, and a doubled batch has to be `least_gain` times as fast.

    Raises `BadConfig`: no such loader, no memory for the smallest batch, or sizes that make no sense.
    Memory: as training with the largest batch that was tried, and one more copy of the weights.

    Example:
        >>> import gpupipe as gp, pandas as pd
        >>> frame = pd.DataFrame({"x": [0.0, 1.0] * 32, "y": [2.0, 1.0] * 32})
        >>> loader = gp.Pipeline([], gp.Features(["x"], target="y")).fit(frame).loader(frame)
        >>> tune_batch_size(Trainer(gp.models.Linear(1), max_epochs=1), loader, smallest=64, updates=2).best
        64
    """
    if not isinstance(loader, Loader):
        raise BadConfig(
            "tune_batch_size",
            "the loader cannot be made with another batch size",
            got=type(loader).__name__,
            expected="a Loader, as pipeline.loader(...) gives it",
            remedy="measure it yourself: history.rows[-1]['rows_per_second']",
        )
    most = min(largest or loader.num_rows, loader.num_rows)
    if not 1 <= smallest <= most:
        got = f"from {smallest} to {most}"
        expected = f"1 <= smallest <= largest, and no more than the {loader.num_rows} rows there are"
        raise BadConfig("tune_batch_size", "no batch size to try", got=got, expected=expected, remedy="smallest=256")
    model, device = trainer.model, choose_device(trainer.device, loader)
    weights, training = deepcopy(model.state_dict()), model.training
    speeds: dict[int, float] = {}
    best, size, stopped = 0, smallest, "larger ones were not asked for"
    try:
        while size <= most:
            speed = _measure_speed(trainer, loader, size, updates, device)
            if speed is None:
                stopped = f"{size} rows do not fit in memory"
                break
            speeds[size] = speed
            if best and speed < least_gain * speeds[best]:
                stopped = f"{size} was hardly faster than {best}"
                break
            best, size = size, 2 * size
    finally:
        model.load_state_dict(weights)
        model.train(training).zero_grad()
    if not speeds:
        problem, remedy = "the smallest batch does not fit in memory", f"smallest={max(smallest // 8, 1)}"
        raise BadConfig("tune_batch_size", problem, got=smallest, expected="one that does", remedy=remedy)
    sizes = BatchSizes(best, speeds, stopped)
    logger.info("%s", sizes)
    return sizes


def _measure_speed(trainer: Trainer, loader: Loader, size: int, updates: int, device: torch.device) -> float | None:
    """Measure rows per second of updates of that size; None if they do not fit in memory."""
    options: Any = {name: getattr(loader, name) for name in ("shuffle", "block_rows", "window", "device")}
    batches: Any = Loader(
        loader.table, batch_size=size, drop_last=True, reuse_buffers=True, rank=0, world_size=1, **options
    )
    rates = compute_learning_rates("constant", lr=trainer.learning_rate, steps=WARM_UP + updates)
    with session(device, seed=trainer.seed, precision=trainer.precision), prepare_model(trainer):
        loss, _ = choose_loss_and_metrics(trainer, loader)
        trainer.model.to(device).train()
        update = build_update(trainer, loss, rates, device, batches, RankGroup())
        learner, batches = capture_update(trainer, update, batches, device)
        endless = chain.from_iterable(repeat(batches))
        try:
            for number in range(WARM_UP + updates):
                if number == WARM_UP:
                    _synchronize(device)
                    started = time.perf_counter()
                for batch in islice(endless, trainer.accumulate):
                    learner.learn(batch)
                learner.step()
            _synchronize(device)
        except torch.OutOfMemoryError:
            return None
        seconds = time.perf_counter() - started
    return None if update.parts > 1 else updates * trainer.accumulate * size / max(seconds, 1e-9)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
