"""A model over a loader without learning: figures, or outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gpupipe.errors import BadData
from gpupipe.training.distributed.rank_group import Together
from gpupipe.training.loop.batches import full_precision, moved_rows
from gpupipe.training.loop.device import forward_in
from gpupipe.training.loop.losses import Loss, LossMean, mean_loss
from gpupipe.training.loop.metrics import Metric

__all__ = ["evaluate", "predict"]


def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    loss: Loss,
    metrics: Sequence[Metric],
    device: torch.device,
    precision: str,
    together: Together | None = None,
) -> dict[str, float]:
    """The mean loss and the metrics by name; without those that are not defined for the loader's rows.

    Of a loader that deals its rows to the ranks each goes through its part, and the metrics see the outputs for all.
    """
    dealt = together is not None and getattr(loader, "world_size", 1) == together.size
    ranks = together if together is not None and dealt else Together()
    losses = LossMean(device, ranks)
    for metric in metrics:
        metric.reset()
    with _evaluating(model, device, precision) as forward:
        for batch in moved_rows(loader, device):
            output = forward(batch)
            losses.add(*mean_loss(loss(output, batch), batch))
            for metric in metrics:
                metric.update(*_of_all(output, batch, ranks))
    figures = {"loss": losses.read("evaluation")} | {metric.name: metric.compute() for metric in metrics}
    defined = {name: float(value) for name, value in figures.items() if value is not None and math.isfinite(value)}
    return (together or ranks).from_first(lambda: defined)  # all decide by the same, to the last bit


def _of_all(output: Any, batch: Any, ranks: Together) -> tuple[Any, Any]:
    """Outputs, targets, weights and kept columns of all ranks' rows; the features stay where they are."""
    if ranks.size == 1:
        return output, batch
    there = {name: ranks.rows(value) for name in ("target", "weight") if (value := getattr(batch, name)) is not None}
    output = ranks.rows(output)
    numeric, codes = batch.numeric.new_empty(len(output), 0), batch.codes.new_empty(len(output), 0)
    kept = {name: ranks.rows(value) for name, value in batch.keep.items()}
    return output, replace(batch, numeric=numeric, codes=codes, keep=kept, lists={}, **there)


def predict(model: nn.Module, loader: Iterable[Any], device: torch.device, precision: str) -> Tensor:
    """The model's outputs in the loader's order, in full precision."""
    outputs = []
    with _evaluating(model, device, precision) as forward:
        for batch in moved_rows(loader, device):
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
def _evaluating(model: nn.Module, device: torch.device, precision: str) -> Iterator[Callable[[Any], Any]]:
    """The model's call on the device, in evaluation mode and without gradients; the mode is put back afterwards."""
    was_training = model.training
    model.to(device).eval()
    try:
        with torch.no_grad():
            yield forward_in(precision, model, device)
    finally:
        model.train(was_training)
