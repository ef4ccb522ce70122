"""Metrics of a model, summed on the device batch by batch.

They equal scikit-learn's, weights included; what is not defined (no rows, AUC of one class, R2 of a constant target) is
None. Outputs are logits: B values for binary targets, B x K for K classes. Of several targets a metric is their mean.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gpupipe.schema import Schema
from gpupipe.support.validation import is_one_of, refuse_argument, refuse_choice
from gpupipe.training.loop.batches import full_precision, get_weight, matching_target
from gpupipe.training.loop.quantiles import compute_pinball, is_covered, lack_quantiles

TINY_DOUBLE = torch.finfo(torch.float64).tiny


class Metric(Protocol):
    """Protocol of a metric; any object with these methods will do.

    Example:
        >>> METRICS["auc"]().name
        'auc'
    """

    name: str
    higher_is_better: bool

    def reset(self) -> None:
        """Reset to no batches."""

    def update(self, output: Any, batch: Any) -> None:
        """Add the model's output for a batch; must not keep memory of the batch."""

    def compute(self) -> float | None:
        """Return the value over all batches, or None where it is undefined."""


class _Sums(ABC):
    """Base class of metrics made of float64 sums over rows, for T targets."""

    name: str
    higher_is_better = True
    _sums: Tensor | None = None

    @abstractmethod
    def sum_rows(self, output: Tensor, batch: Any) -> Tensor:
        """Compute the sums of a batch; the first dimension is T."""

    @abstractmethod
    def finish(self, *sums: Any) -> float | None:
        """Compute a target's value of its sums; None where it is undefined."""

    def reset(self) -> None:
        self._sums = None

    def update(self, output: Tensor, batch: Any) -> None:
        sums = self.sum_rows(output, batch)
        self._sums = sums if self._sums is None else self._sums + sums

    def compute(self) -> float | None:
        values = [] if self._sums is None else [self.finish(*sums) for sums in self._sums.tolist()]
        defined = [value for value in values if value is not None]
        return sum(defined) / len(defined) if values and len(defined) == len(values) else None


@dataclass(eq=False)
class _Mean(_Sums):
    """Weighted mean over rows of a function of outputs and targets; `classes`: of one target's class logits too."""

    name: str
    values: Callable[[Tensor, Tensor], Tensor]
    higher_is_better: bool = False
    classes: bool = False
    of_mean: Callable[[float], float] = float

    def sum_rows(self, output: Tensor, batch: Any) -> Tensor:
        output = full_precision(output)
        classes = self.classes and _has_class_logits(output, batch)
        target = matching_target(output, batch, f"metric {self.name!r}", classes=classes)
        values = _to_columns(self.values(output, target))
        weight = _get_weights(batch, values[:, 0])
        totals = (values * weight[:, None]).sum(0)
        return torch.stack([weight.sum().expand_as(totals), totals], 1)

    def finish(self, *sums: float) -> float | None:
        weight, total = sums
        return self.of_mean(total / weight) if weight else None


def _is_right(output: Tensor, target: Tensor) -> Tensor:
    """Return whether probability 0.5 or the largest logit says the true class."""
    return output.argmax(1) == target if output.ndim > target.ndim else (output.sigmoid() >= 0.5) == (target >= 0.5)


def _compute_log_loss(output: Tensor, target: Tensor) -> Tensor:
    if output.ndim > target.ndim:
        return F.cross_entropy(output, target.long(), reduction="none")
    return F.binary_cross_entropy_with_logits(output, target.to(output.dtype), reduction="none")


class _R2(_Sums):
    """R2 score: 1 - (squared error) / (squared distance of the target from its mean); None for a constant target."""

    name = "r2"
    _origin: Tensor | None = None

    def reset(self) -> None:
        self._sums = self._origin = None

    def sum_rows(self, output: Tensor, batch: Any) -> Tensor:
        target = _to_columns(matching_target(output, batch, "metric 'r2'"))
        weight = _get_weights(batch, target[:, 0])[:, None].expand_as(target)
        if self._origin is None:  # counting from a value near the mean keeps the digits of a target far from zero
            self._origin = target[:1].clone()
        distance, error = target - self._origin, _to_columns(output) - target
        terms = (weight, weight * distance, weight * distance**2, weight * error**2)
        return torch.stack([term.sum(0) for term in terms], 1)

    def finish(self, *sums: float) -> float | None:
        rows, first, second, error = sums
        spread = second - first**2 / rows if rows else 0.0
        return 1 - error / spread if spread > 0 else None


@dataclass(eq=False)
class _OfClasses(_Sums):
    """Metric of the weights of a class's hits, its rows, and the rows taken for it; of two classes of the second's."""

    name: str
    of_class: Callable[[float, float, float], float | None]
    of_both: bool = False

    def sum_rows(self, output: Tensor, batch: Any) -> Tensor:
        where = f"metric {self.name!r}"
        if _has_class_logits(output, batch):
            truth = matching_target(output, batch, where, classes=True).long()[:, None]
            taken, width = output.argmax(1)[:, None], output.shape[1]
        else:
            truth = _to_columns(matching_target(output, batch, where) >= 0.5).long()
            taken, width = _to_columns(full_precision(output).sigmoid() >= 0.5).long(), 2
        weight = _get_weights(batch, truth[:, 0].double())[:, None].expand_as(truth)
        first = torch.arange(truth.shape[1], device=truth.device) * width
        zeros = torch.zeros(truth.shape[1] * width, dtype=torch.float64, device=truth.device)
        counts = [
            zeros.index_add(0, (classes + first).flatten(), rows.flatten())
            for classes, rows in ((truth, weight * (truth == taken)), (truth, weight), (taken, weight))
        ]
        return torch.stack(counts, 1).view(-1, width, 3)

    def finish(self, *sums: list[float]) -> float | None:
        two = len(sums) == 2
        seen = [one for one in sums[two and not self.of_both :] if two or one[1] or one[2]]
        known = [value for one in seen if (value := self.of_class(*one)) is not None]
        return sum(known) / len(known) if any(rows for _, rows, _ in sums) else None


@dataclass(eq=False)
class _Ranking:
    """Metric of the order of all rows, exact; of several classes the mean of each against the rest.

    Memory: 9 bytes a row on the device (5 without weights; 5 more per further class); `compute` takes some 60 more.
    """

    name: str
    # Numerator and denominator, of ascending scores, and of targets and weights in float64.
    compute_parts: Callable[[Tensor, Tensor, Tensor], Tensor]
    higher_is_better: bool = True
    _seen: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def reset(self) -> None:
        self._seen = []

    def update(self, output: Tensor, batch: Any) -> None:
        where, score = f"metric {self.name!r}", full_precision(output)
        if _has_class_logits(output, batch):
            index = matching_target(output, batch, where, classes=True)
            score, target = score.softmax(1), index[:, None] == torch.arange(output.shape[1], device=output.device)
        else:
            target = matching_target(output, batch, where) >= 0.5
        weight = get_weight(batch)
        weight = score.new_ones(()).expand(len(score)) if weight is None else weight.clone()
        self._seen.append((score.clone(), target, weight))

    def compute(self) -> float | None:
        if not self._seen:
            return None
        scores, targets, weight = (torch.cat(parts) for parts in zip(*self._seen, strict=True))
        if scores.ndim == 1:
            scores, targets = scores[:, None], targets[:, None]
        found = []
        for column, target in zip(scores.unbind(1), targets.unbind(1), strict=True):
            ascending, order = column.sort()
            found.append(self.compute_parts(ascending, target[order].double(), weight[order].double()))
        values: list[list[float]] = torch.stack(found).tolist()
        defined = all(whole > 0 for _, whole in values)
        return sum(part / whole for part, whole in values) / len(values) if defined else None


def _count_ordered_pairs(scores: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Compute the weight of the pairs of a positive row above a negative one, ties half, and of all pairs."""
    below = F.pad((weight * (1 - target)).cumsum(0), (1, 0))  # weight of the negatives before each rank
    smaller = below[torch.searchsorted(scores, scores, right=False)]
    not_larger = below[torch.searchsorted(scores, scores, right=True)]
    won = (weight * target * (smaller + not_larger)).sum() / 2
    return torch.stack([won, (weight * target).sum() * below[-1]])


def _sum_precisions(scores: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Compute the sum over positive rows of the precision among rows that score as high or higher, and their weight."""
    first = torch.searchsorted(scores, scores, right=False)  # of the rows that score the same
    positive, every = ((part.flip(0).cumsum(0).flip(0))[first] for part in (weight * target, weight))
    return torch.stack([(weight * target * positive / every.clamp_min(TINY_DOUBLE)).sum(), (weight * target).sum()])


METRICS: dict[str, Callable[[], Metric]] = {
    "auc": partial(_Ranking, "auc", _count_ordered_pairs),
    "average_precision": partial(_Ranking, "average_precision", _sum_precisions),
    "accuracy": partial(_Mean, "accuracy", _is_right, higher_is_better=True, classes=True),
    "balanced_accuracy": partial(
        _OfClasses, "balanced_accuracy", lambda hits, rows, _: hits / rows if rows else None, of_both=True
    ),
    "f1": partial(_OfClasses, "f1", lambda hits, rows, taken: 2 * hits / (rows + taken) if rows + taken else 0.0),
    "precision": partial(_OfClasses, "precision", lambda hits, _, taken: hits / taken if taken else 0.0),
    "recall": partial(_OfClasses, "recall", lambda hits, rows, _: hits / rows if rows else 0.0),
    "log_loss": partial(_Mean, "log_loss", _compute_log_loss, classes=True),
    "brier": partial(_Mean, "brier", lambda output, target: (output.sigmoid() - target) ** 2),
    "rmse": partial(_Mean, "rmse", lambda output, target: (output.double() - target) ** 2, of_mean=math.sqrt),
    "mae": partial(_Mean, "mae", lambda output, target: (output.double() - target).abs()),
    "r2": _R2,
}
METRICS_OF_LOSS = {"bce": ("auc", "accuracy"), "cross-entropy": ("accuracy",)}
METRICS_OF_LOSS |= dict.fromkeys(("mse", "huber"), ("rmse", "mae", "r2"))
_OF_LABELS, _OF_NUMBERS = {"auc", "accuracy", "log_loss", "brier"}, {"brier", "rmse", "mae", "r2"}


class InUnits:
    """Metric of outputs and targets that are first converted to other units, as `Loader.target_units` does."""

    def __init__(self, metric: Metric, units: Callable[[Tensor], Tensor]) -> None:
        self.name, self.higher_is_better = metric.name, metric.higher_is_better
        self.reset, self.compute = metric.reset, metric.compute
        self._update, self._units = metric.update, units

    def update(self, output: Tensor, batch: Any) -> None:
        several = _has_class_logits(output, batch)  # values of one target: its quantiles
        target = matching_target(output, batch, f"metric {self.name!r}", classes=several)
        self._update(self._units(output), replace(batch, target=self._units(target)))


def check_task(metrics: Sequence[Metric], schema: Schema) -> None:
    """Raise `BadConfig` for a metric that does not fit the task of the schema's target."""
    of_one = schema.task == "regression" and len(schema.targets) == 1
    wrong, fit, what = set[str](), ["accuracy", "auc", "log_loss"], "a target of several classes"
    if of_one:
        wrong, fit, what = _OF_LABELS, ["rmse", "mae", "r2"], "a regression"
    elif schema.task == "multiclass":
        wrong = _OF_NUMBERS
    for name in (metric.name for metric in metrics if isinstance(metric, _Sums | _Ranking)):
        if name in wrong:
            problem, expected = f"{name!r} says nothing of {what}", f"some of {', '.join(map(repr, fit))}"
            raise refuse_argument("Trainer", "metrics", name, expected, f"metrics={fit!r}", problem=problem)


def make_quantile_metrics(quantiles: Sequence[float]) -> dict[str, Callable[[], Metric]]:
    """Make the metrics of a model that predicts quantiles, by name."""
    metrics = {"pinball": partial(_Mean, "pinball", partial(compute_pinball, quantiles), classes=True)}
    if len(quantiles) > 1:
        metrics["coverage"] = partial(_Mean, "coverage", is_covered, higher_is_better=True, classes=True)
    return {**metrics}


def choose_metrics(
    metrics: str | Sequence[str | Metric], loss: object, quantiles: Sequence[float] | None = None
) -> list[Metric]:
    """Make metrics by name, and keep the caller's own objects; "auto" chooses those of a named loss.

    A model that predicts quantiles has metrics of its own.
    """
    available = METRICS if quantiles is None else make_quantile_metrics(quantiles)
    if is_one_of(metrics, ["auto"]):
        of_loss = METRICS_OF_LOSS if quantiles is None else {"pinball": tuple(available)}
        metrics = of_loss.get(loss, ()) if isinstance(loss, str) else ()
    chosen = list[Metric]()
    for metric in metrics if isinstance(metrics, list | tuple) else [metrics]:
        needed = ("name", "higher_is_better", "reset", "update", "compute")
        own: Any = available[metric]() if isinstance(metric, str) and metric in available else metric
        listed = isinstance(metrics, list | tuple) or isinstance(metric, str)
        if not listed or isinstance(own, type) or not all(hasattr(own, name) for name in needed):
            if quantiles is None and metric in ("pinball", "coverage"):
                raise lack_quantiles("metrics", metric)
            also = "a list of these and of Metrics"
            raise refuse_choice("Trainer", "metrics", metric, ["auto", *available], also)
        own.reset()
        chosen.append(own)
    return chosen


def _to_columns(values: Tensor) -> Tensor:
    """Convert to B x T float64, T = 1 for B values."""
    return values.double().reshape(len(values), values.shape[1] if values.ndim == 2 else 1)


def _has_class_logits(output: Tensor, batch: Any) -> bool:
    """Return whether B x K outputs are the logits of one target's classes, not values of several targets."""
    target = getattr(batch, "target", None)
    return output.ndim == 2 and (target is None or target.ndim == 1)


def _get_weights(batch: Any, values: Tensor) -> Tensor:
    weight = get_weight(batch)
    return torch.ones_like(values) if weight is None else weight.double()
