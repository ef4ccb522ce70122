"""Evaluation and prediction: metrics or outputs of a model over a loader."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gpupipe.errors import BadData
from gpupipe.training.distributed.rank_group import RankGroup
from gpupipe.training.loop.batches import full_precision, move_batches
from gpupipe.training.loop.device import make_forward
from gpupipe.training.loop.losses import Loss, LossMean, compute_mean_loss
from gpupipe.training.loop.metrics import Metric


def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    loss: Loss,
    metrics: Sequence[Metric],
    device: torch.device,
    precision: str,
    ranks: RankGroup | None = None,
) -> dict[str, float]:
    """Compute the mean loss and the metrics by name, without those that are undefined for the loader's rows.

    If the loader shards its rows over the ranks, each evaluates its part, and the metrics get the outputs of all.
    """
    dealt = ranks is not None and getattr(loader, "world_size", 1) == ranks.size
    readers = ranks if ranks is not None and dealt else RankGroup()
    losses = LossMean(device, readers)
    for metric in metrics:
        metric.reset()
    with _eval_mode(model, device, precision) as forward:
        for batch in move_batches(loader, device):
            output = forward(batch)
            losses.add(*compute_mean_loss(loss(output, batch), batch))
            for metric in metrics:
                metric.update(*_gather_ranks(output, batch, readers))
    figures = {"loss": losses.read("evaluation")} | {metric.name: metric.compute() for metric in metrics}
    defined = {name: float(value) for name, value in figures.items() if value is not None and math.isfinite(value)}
    return (ranks or readers).broadcast_object(lambda: defined)  # all decide by the same, to the last bit


def _gather_ranks(output: Any, batch: Any, ranks: RankGroup) -> tuple[Any, Any]:
    """Gather outputs, targets, weights and kept columns of all ranks' rows; features are not gathered."""
    if ranks.size == 1:
        return output, batch
    there = {
        name: ranks.all_gather_rows(value)
        for name in ("target", "weight")
        if (value := getattr(batch, name)) is not None
    }
    output = ranks.all_gather_rows(output)
    numeric, codes = batch.numeric.new_empty(len(output), 0), batch.codes.new_empty(len(output), 0)
    kept = {name: ranks.all_gather_rows(value) for name, value in batch.keep.items()}
    return output, replace(batch, numeric=numeric, codes=codes, keep=kept, lists={}, **there)


def predict(model: nn.Module, loader: Iterable[Any], device: torch.device, precision: str) -> Tensor:
    """Return the model's outputs in the loader's order, in full precision."""
    outputs = []
    with _eval_mode(model, device, precision) as forward:
        for batch in move_batches(loader, device):
            output = forward(batch)
            if not isinstance(output, Tensor):
                raise BadData(
                    "Trainer.predict",
                    "the model's output is no tensor",
                    got=type(output).__name__,
                    expected="one tensor whose first dimension is the row",
                    remedy="model(batch) yourself, batch by batch",
                )
            outputs.append(full_precision(output).clone())  # an output may be a view of a batch that is used again
        return torch.cat(outputs) if outputs else torch.empty(0, device=device)


@contextmanager
def _eval_mode(model: nn.Module, device: torch.device, precision: str) -> Iterator[Callable[[Any], Any]]:
    """Give the model's call on the device, in evaluation mode without gradients, and restore the mode."""
    was_training = model.training
    model.to(device).eval()
    try:
        with torch.no_grad():
            yield make_forward(precision, model, device)
    finally:
        model.train(was_training)
