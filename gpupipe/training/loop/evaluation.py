"""Evaluation of a model over a loader: its loss and metrics, batch by batch, of all ranks' rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gpupipe.training.loop.batches import move_batches
from gpupipe.training.loop.device import make_forward
from gpupipe.training.loop.losses import Loss, LossMean, compute_mean_loss
from gpupipe.training.loop.metrics import Metric
from gpupipe.training.loop.rank_group import RankGroup


@contextmanager
def eval_mode(model: nn.Module, device: torch.device, precision: str) -> Iterator[Callable[[Any], Any]]:
    """Give the model's call on the device, in evaluation mode without gradients, and restore the mode."""
    was_training = model.training
    model.to(device).eval()
    try:
        with torch.no_grad():
            yield make_forward(precision, model, device)
    finally:
        model.train(was_training)


def evaluate_model(
    model: nn.Module,
    loader: Iterable[Any],
    loss: Loss,
    metrics: Sequence[Metric],
    *,
    device: torch.device,
    precision: str,
    ranks: RankGroup,
) -> dict[str, float]:
    """Compute the mean loss and the metrics, by name, without those undefined for the rows.

    Each rank evaluates its part of sharded rows, and metrics get all outputs.
    """
    readers = choose_readers(loader, ranks)
    mean_loss = LossMean(device, readers)
    for metric in metrics:
        metric.reset()
    with eval_mode(model, device, precision) as forward:
        for batch in move_batches(loader, device):
            output = forward(batch)
            mean_loss.add(*compute_mean_loss(loss(output, batch), batch))
            everywhere = _gather_ranks(output, batch, readers) if metrics else ()
            for metric in metrics:
                metric.update(*everywhere)
    values = {"loss": mean_loss.read("evaluation")} | {metric.name: metric.compute() for metric in metrics}
    defined = {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}
    return ranks.broadcast_object(lambda: defined)  # all decide by the same, to the last bit


def choose_readers(loader: Any, ranks: RankGroup) -> RankGroup:
    """Return the ranks that share a loader's rows: all of them, or this one alone."""
    return ranks if getattr(loader, "world_size", 1) == ranks.size else RankGroup()


def _gather_ranks(output: Any, batch: Any, ranks: RankGroup) -> tuple[Any, Any]:
    """Gather outputs, targets, weights and kept columns of all ranks' rows; features are not gathered."""
    if ranks.size == 1:
        return output, batch
    labels = {"target": batch.target, "weight": batch.weight}
    gathered = {name: ranks.all_gather_rows(value) for name, value in labels.items() if value is not None}
    output = ranks.all_gather_rows(output)
    numeric, codes = batch.numeric.new_empty(len(output), 0), batch.codes.new_empty(len(output), 0)
    keep = {name: ranks.all_gather_rows(value) for name, value in batch.keep.items()}
    return output, replace(batch, numeric=numeric, codes=codes, keep=keep, lists={}, **gathered)
