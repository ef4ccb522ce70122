"""Fit of a model that learns from loaders by itself, as trees do: the settings that count for it, and its history."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpupipe.progress import Progress
from gpupipe.support.validation import refuse_argument
from gpupipe.tensors.batch import Batch
from gpupipe.training.callbacks.history import History
from gpupipe.training.loop.losses import LOSS_OF_TASK
from gpupipe.training.loop.metrics import Metric
from gpupipe.training.loop.quantiles import get_quantiles
from gpupipe.training.loop.rank_group import RankGroup

_COUNTING = {"model", "loss", "class_weight", "metrics", "seed", "deterministic", "device", "progress", "timeout"}

logger = logging.getLogger(__name__)


@runtime_checkable
class FitsLoaders(Protocol):
    """Protocol of a model whose fit is its own, without gradients."""

    task: str

    def fit_loaders(
        self,
        train: Any,
        valid: Any = None,
        *,
        device: torch.device | None = None,
        class_weight: Tensor | None = None,
        ranks: Any = None,
        on_round: Callable[[int, dict[str, float], Tensor | None, Batch | None], None] | None = None,
    ) -> None:
        """Learn from the rows of all ranks, and report rounds: their losses, and what they give for `valid`.

        That are the outputs for this rank's rows, with their targets and weights.
        """


def refuse_settings(trainer: Any, resume: object) -> None:
    """Raise `BadConfig` for a setting that means nothing to such a model, unless it has its default."""
    model, name = trainer.model, type(trainer.model).__name__
    settings = {field.name: (getattr(trainer, field.name), field.default) for field in fields(trainer)}
    settings["resume"] = (resume, None)
    loss = LOSS_OF_TASK[model.task] if get_quantiles(model) is None else "pinball"
    settings["loss"] = ("auto" if trainer.loss == loss else trainer.loss, "auto")
    for setting, (value, default) in settings.items():
        is_default = value is default or value == default or default is MISSING
        if is_default or (setting in _COUNTING and setting != "loss"):
            continue
        raise refuse_argument(
            "Trainer.fit" if setting == "resume" else "Trainer",
            setting,
            value,
            f"the default, {default!r}: the arguments of {name} say how it learns",
            f"gp.Trainer(model) without {setting}=, and an argument of {name}",
            problem=f"it means nothing to {name}",
        )


def fit_loaders(
    trainer: Any,
    train: Any,
    valid: Any,
    metrics: Sequence[Metric],
    history: History,
    *,
    device: torch.device,
    class_weight: Tensor | None,
    ranks: RankGroup,
) -> None:
    """Fit the trainer's model, and write a row of history for each round that it reports, an epoch being a round."""
    hidden = not ranks.is_main or (None if trainer.progress == "auto" else not trainer.progress)
    with Progress(title="fit", disable=hidden, unit=" rounds") as bar:
        before = time.perf_counter()

        def append_row(number: int, losses: dict[str, float], output: Tensor | None, truth: Batch | None) -> None:
            nonlocal before
            row = {"epoch": number, **losses}
            if output is not None and truth is not None:
                output, truth = _gather(output, truth, ranks)
                for metric in metrics:
                    metric.reset()
                    metric.update(output, truth)
                    if (value := metric.compute()) is not None:
                        row[f"valid_{metric.name}"] = float(value)
            now = time.perf_counter()
            history.append(row | {"seconds": now - before})
            before = now
            bar.set_postfix(losses, refresh=False)
            bar.update(number - bar.n)

        options = {"device": device, "class_weight": class_weight, "ranks": ranks}
        trainer.model.fit_loaders(train, valid, on_round=append_row, **options)
    history.rows.sort(key=lambda row: row["epoch"])  # the best round comes last
    trainer.model.eval()
    rounds = int(history.rows[-1]["epoch"])
    logger.info("%s learned %d rounds, %d are kept", type(trainer.model).__name__, rounds, history.best["epoch"])


def _gather(output: Tensor, truth: Batch, ranks: RankGroup) -> tuple[Tensor, Batch]:
    """Gather outputs, targets and weights of all ranks' rows, of which each may have another number."""
    if ranks.size == 1:
        return output, truth
    parts = ranks.gather((output, truth.target, truth.weight))
    outputs, targets, weights = zip(*parts, strict=True)
    output, nothing = torch.cat(outputs), torch.empty(sum(map(len, outputs)), 0)
    weight = None if truth.weight is None else torch.cat(weights)
    return output, Batch(nothing, nothing.int(), torch.cat(targets), weight)
