"""Metrics summed on the device batch by batch, read once, and equal to scikit-learn's, sample weights included.

A metric that is not defined for what it saw (no rows, AUC of one class, R2 of a constant target) is None, never NaN.
Outputs are logits for classification: B values for binary targets, B x K for K classes. Of several targets the value is
the mean of theirs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gpupipe.errors import BadConfig
from gpupipe.schema import Schema
from gpupipe.support.validation import is_one_of, refuse_choice
from gpupipe.training.loop.batches import full_precision, get_weight, matching_target

TINY = torch.finfo(torch.float64).tiny


class Metric(Protocol):
    """Protocol of a metric; any object with these methods will do.

    Example:
        >>> isinstance(Accuracy().name, str)
        True
    """

    name: str
    higher_is_better: bool

    def reset(self) -> None:
        """Reset to no batches."""

    def update(self, output: Any, batch: Any) -> None:
        """Add the model's output for a batch; must not keep memory of the batch."""

    def compute(self) -> float | None:
        """Return the value over all batches, or None where it is undefined."""


class _Mean(ABC):
    """Weighted mean over rows, in float64."""

    name: str
    higher_is_better: bool = False

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    @abstractmethod
    def per_row(self, output: Tensor, batch: Any) -> Tensor:
        """Compute B values, or B x T for several targets."""

    def finish(self, mean: float) -> float:
        return mean

    def reset(self) -> None:
        self._sums = None

    def update(self, output: Tensor, batch: Any) -> None:
        values = _to_columns(self.per_row(full_precision(output), batch))
        weight = _get_weights(batch, values[:, 0])
        sums = torch.cat([weight.sum()[None], (values * weight[:, None]).sum(0)])
        self._sums = sums if self._sums is None else self._sums + sums

    def compute(self) -> float | None:
        weight, *totals = (0.0,) if self._sums is None else self._sums.tolist()
        return None if weight == 0 else sum(self.finish(total / weight) for total in totals) / len(totals)


class Accuracy(_Mean):
    """Accuracy: the fraction of rows whose class is right (probability >= 0.5, or the largest logit).

    Example:
        >>> from gpupipe.tensors.batch import Batch
        >>> metric, target = Accuracy(), torch.tensor([1.0, 1.0])
        >>> metric.update(torch.tensor([2.0, -1.0]), Batch(torch.zeros(2, 0), torch.zeros(2, 0), target))
        >>> metric.compute()
        0.5
    """

    name = "accuracy"
    higher_is_better = True

    def per_row(self, output: Tensor, batch: Any) -> Tensor:
        if _has_class_logits(output, batch):
            return output.argmax(1) == matching_target(output, batch, "metric 'accuracy'", classes=True)
        return (output.sigmoid() >= 0.5) == (matching_target(output, batch, "metric 'accuracy'") >= 0.5)


class LogLoss(_Mean):
    """Log loss: the mean of -log(probability of the true class)."""

    name = "log_loss"

    def per_row(self, output: Tensor, batch: Any) -> Tensor:
        if _has_class_logits(output, batch):
            target = matching_target(output, batch, "metric 'log_loss'", classes=True)
            return F.cross_entropy(output, target.long(), reduction="none")
        target = matching_target(output, batch, "metric 'log_loss'")
        return F.binary_cross_entropy_with_logits(output, target.to(output.dtype), reduction="none")


class Brier(_Mean):
    """Brier score: the mean squared difference between probability and label, 0 or 1 (binary targets)."""

    name = "brier"

    def per_row(self, output: Tensor, batch: Any) -> Tensor:
        return (output.sigmoid() - matching_target(output, batch, "metric 'brier'")) ** 2


class MAE(_Mean):
    """Mean absolute error."""

    name = "mae"

    def per_row(self, output: Tensor, batch: Any) -> Tensor:
        return (output.double() - matching_target(output, batch, "metric 'mae'")).abs()


class RMSE(_Mean):
    """Root mean squared error."""

    name = "rmse"

    def per_row(self, output: Tensor, batch: Any) -> Tensor:
        return (output.double() - matching_target(output, batch, "metric 'rmse'")) ** 2

    def finish(self, mean: float) -> float:
        return math.sqrt(mean)


class R2:
    """R2 score: 1 - (squared error) / (squared distance of the target from its mean); None for a constant target."""

    name = "r2"
    higher_is_better = True

    def __init__(self) -> None:
        self._sums: Tensor | None = None
        self._origin: Tensor | None = None

    def reset(self) -> None:
        """Reset to no batches."""
        self._sums = self._origin = None

    def update(self, output: Tensor, batch: Any) -> None:
        """Add B outputs."""
        target = _to_columns(matching_target(output, batch, "metric 'r2'"))
        weight = _get_weights(batch, target[:, 0])[:, None].expand_as(target)
        if self._origin is None:  # counting from a value near the mean keeps the digits of a target far from zero
            self._origin = target[:1].clone()
        distance, error = target - self._origin, _to_columns(output) - target
        sums = torch.stack(
            [term.sum(0) for term in (weight, weight * distance, weight * distance**2, weight * error**2)]
        )
        self._sums = sums if self._sums is None else self._sums + sums

    def compute(self) -> float | None:
        """Return the value over all batches."""
        found = []
        for rows, first, second, error in [] if self._sums is None else self._sums.T.tolist():
            spread = second - first**2 / rows if rows else 0.0
            if spread <= 0:
                return None
            found.append(1 - error / spread)
        return sum(found) / len(found) if found else None


class _Ranking(ABC):
    """Base class of ranking metrics, exact; of several classes the mean of each against the rest."""

    name: str
    higher_is_better = True

    def __init__(self) -> None:
        self._seen: list[tuple[Tensor, Tensor, Tensor | None]] = []

    @abstractmethod
    def compute_parts(self, scores: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Compute numerator and denominator, float64; scores ascend, positive rows are True in the target."""

    def reset(self) -> None:
        """Reset to no batches."""
        self._seen = []

    def update(self, output: Tensor, batch: Any) -> None:
        """Add B logits or scores, B x T for several targets, or B x K logits for K classes."""
        where, score = f"metric {self.name!r}", full_precision(output)
        if _has_class_logits(output, batch):
            index = matching_target(output, batch, where, classes=True)
            score, target = score.softmax(1), index[:, None] == torch.arange(output.shape[1], device=output.device)
        else:
            target = matching_target(output, batch, where) >= 0.5
        weight = get_weight(batch)
        self._seen.append((score.clone(), target, None if weight is None else weight.clone()))

    def compute(self) -> float | None:
        """Return the value over all batches."""
        if not self._seen:
            return None
        scores = torch.cat([score for score, _, _ in self._seen])
        target = torch.cat([target for _, target, _ in self._seen])
        ones = [torch.ones(len(score), device=score.device) if w is None else w for score, _, w in self._seen]
        weight = torch.cat(ones)
        if scores.ndim == 1:
            scores, target = scores[:, None], target[:, None]
        found = []
        for column, positive in zip(scores.unbind(1), target.unbind(1), strict=True):
            ascending, order = column.sort()
            found.append(self.compute_parts(ascending, positive[order].double(), weight[order].double()))
        values: list[list[float]] = torch.stack(found).tolist()
        if any(whole <= 0 for _, whole in values):
            return None
        return sum(part / whole for part, whole in values) / len(values)


class AUC(_Ranking):
    """Area under the ROC curve, exact: the probability that a positive row scores above a negative; ties count half.

    Of three classes or more it is the mean of each class's against the rest (scikit-learn's `multi_class="ovr"`).

    Memory:
        Copies 9 bytes a row on the device (5 without weights; 5 more per further class) until `reset`; `compute` takes
        some 60 more meanwhile.

    Example:
        >>> from gpupipe.tensors.batch import Batch
        >>> metric = AUC()
        >>> target = torch.tensor([0.0, 1.0, 1.0])
        >>> metric.update(torch.tensor([0.1, 0.1, 0.9]), Batch(torch.zeros(3, 0), torch.zeros(3, 0), target))
        >>> metric.compute()
        0.75
    """

    name = "auc"

    def compute_parts(self, scores: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Compute the weight of the ordered pairs of a positive and a negative row, ties half, and of all pairs."""
        below = F.pad((weight * (1 - target)).cumsum(0), (1, 0))  # weight of the negatives before each rank
        smaller = below[torch.searchsorted(scores, scores, right=False)]
        not_larger = below[torch.searchsorted(scores, scores, right=True)]
        won = (weight * target * (smaller + not_larger)).sum() / 2
        return torch.stack([won, (weight * target).sum() * below[-1]])


class AveragePrecision(_Ranking):
    """Average precision: the mean over positive rows of the precision among rows that score as high or higher.

    Of three classes or more it is the mean of each class's against the rest. Memory: as `AUC`.
    """

    name = "average_precision"

    def compute_parts(self, scores: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Compute the sum of the precisions, and the weight of the positive rows."""
        first = torch.searchsorted(scores, scores, right=False)  # of the rows that score the same
        positive, every = ((part.flip(0).cumsum(0).flip(0))[first] for part in (weight * target, weight))
        return torch.stack([(weight * target * positive / every.clamp_min(TINY)).sum(), (weight * target).sum()])


class _ClassMetric(ABC):
    """Base class of metrics of predicted classes: weights of true rows, predicted rows and both, by class."""

    name: str
    higher_is_better = True

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    @abstractmethod
    def compute_class(self, both: float, are: float, taken: float) -> float | None:
        """Compute the metric of one class; None where it is undefined."""

    def select_classes(self, figures: Sequence[float | None], *, two: bool) -> Sequence[float | None]:
        """Select the classes whose mean is the metric: of two the second one."""
        return figures[1:] if two else figures

    def reset(self) -> None:
        """Reset to no batches."""
        self._sums = None

    def update(self, output: Tensor, batch: Any) -> None:
        """Add B logits, B x T for several targets, or B x K logits for K classes."""
        where = f"metric {self.name!r}"
        if _has_class_logits(output, batch):
            truth = matching_target(output, batch, where, classes=True).long()[:, None]
            taken, width = output.argmax(1)[:, None], output.shape[1]
        else:
            truth = _to_columns(matching_target(output, batch, where) >= 0.5).long()
            taken, width = _to_columns(full_precision(output).sigmoid() >= 0.5).long(), 2
        weight = _get_weights(batch, truth[:, 0].double())
        places = torch.arange(truth.shape[1], device=truth.device) * width
        weights = weight[:, None].expand_as(truth)
        counts = torch.zeros((3, truth.shape[1] * width), dtype=torch.float64, device=truth.device)
        for row, at, rows in zip(
            counts, (truth, truth, taken), (weights * (truth == taken), weights, weights), strict=True
        ):
            row.index_add_(0, (at + places).flatten(), rows.flatten())
        sums = counts.view(3, truth.shape[1], width)
        self._sums = sums if self._sums is None else self._sums + sums

    def compute(self) -> float | None:
        """Return the value over all batches."""
        found = []
        for target in [] if self._sums is None else self._sums.permute(1, 2, 0).tolist():
            if not any(are for _, are, _ in target):
                return None
            figures = [self.compute_class(*one) if one[1] or one[2] or len(target) == 2 else None for one in target]
            known = [figure for figure in self.select_classes(figures, two=len(target) == 2) if figure is not None]
            found.append(sum(known) / len(known))
        return sum(found) / len(found) if found else None


class Precision(_ClassMetric):
    """Precision of the second of two classes; of more classes the mean over classes.

    0 where none was taken for it, as in scikit-learn.
    """

    name = "precision"

    def compute_class(self, both: float, are: float, taken: float) -> float:
        """Compute the precision of one class."""
        return both / taken if taken else 0.0


class Recall(_ClassMetric):
    """Recall of the second of two classes; of more classes the mean over classes.

    0 where there is none, as in scikit-learn.
    """

    name = "recall"

    def compute_class(self, both: float, are: float, taken: float) -> float:
        """Compute the recall of one class."""
        return both / are if are else 0.0


class F1(_ClassMetric):
    """F1 score: the harmonic mean of precision and recall; of more than two classes the mean over classes.

    Example:
        >>> from gpupipe.tensors.batch import Batch
        >>> metric, target = F1(), torch.tensor([1.0, 1.0, 0.0])
        >>> metric.update(torch.tensor([2.0, -1.0, -1.0]), Batch(torch.zeros(3, 0), torch.zeros(3, 0), target))
        >>> round(metric.compute(), 4)
        0.6667
    """

    name = "f1"

    def compute_class(self, both: float, are: float, taken: float) -> float:
        """Compute the F1 score of one class."""
        return 2 * both / (are + taken) if are + taken else 0.0


class BalancedAccuracy(_ClassMetric):
    """Balanced accuracy: the mean recall over the classes that occur."""

    name = "balanced_accuracy"

    def compute_class(self, both: float, are: float, taken: float) -> float | None:
        """Compute the recall of one class."""
        return both / are if are else None

    def select_classes(self, figures: Sequence[float | None], *, two: bool) -> Sequence[float | None]:
        """Select all classes."""
        return figures


class InUnits:
    """Metric of outputs and targets that are first converted to other units.

    Args:
        metric: any.
        units: of B or B x T values, as `Loader.target_units`.
    """

    def __init__(self, metric: Metric, units: Callable[[Tensor], Tensor]) -> None:
        self.name, self.higher_is_better = metric.name, metric.higher_is_better
        self._metric, self._units = metric, units

    def reset(self) -> None:
        """Reset to no batches."""
        self._metric.reset()

    def update(self, output: Tensor, batch: Any) -> None:
        """Add the outputs for a batch."""
        target = matching_target(output, batch, f"metric {self.name!r}")
        self._metric.update(self._units(output), replace(batch, target=self._units(target)))

    def compute(self) -> float | None:
        """Return the value over all batches."""
        return self._metric.compute()


METRICS: dict[str, Callable[[], Metric]] = {
    metric.name: metric
    for metric in (
        AUC,
        AveragePrecision,
        Accuracy,
        BalancedAccuracy,
        F1,
        Precision,
        Recall,
        LogLoss,
        Brier,
        RMSE,
        MAE,
        R2,
    )
}
_PROTOCOL = ("name", "higher_is_better", "reset", "update", "compute")
METRICS_OF_LOSS = {
    "bce": ("auc", "accuracy"),
    "cross-entropy": ("accuracy",),
    "mse": ("rmse", "mae", "r2"),
    "huber": ("rmse", "mae", "r2"),
}


OF_CLASSES = {"auc", "accuracy", "log_loss", "brier"}


def check_task(metrics: Sequence[Metric], schema: Schema) -> None:
    """Raise for a metric that does not fit the task of the schema's target.

    Raises:
        BadConfig: there is one.
    """
    of_one = schema.task == "regression" and len(schema.targets) == 1
    for name in (metric.name for metric in metrics if type(metric) in METRICS.values()):
        if (of_one and name in OF_CLASSES) or (schema.task == "multiclass" and name in {"brier", "rmse", "mae", "r2"}):
            fit = ("rmse", "mae", "r2") if of_one else ("accuracy", "auc", "log_loss")
            raise BadConfig(
                "Trainer(metrics=)",
                f"{name!r} says nothing of {'a regression' if of_one else 'a target of several classes'}",
                got=name,
                expected=f"some of {', '.join(map(repr, fit))}",
                remedy=f"metrics={[*fit]!r}",
            )


def choose_metrics(metrics: str | Sequence[str | Metric], loss: object) -> list[Metric]:
    """Make metrics by name, and keep the caller's own objects; "auto" chooses those of a named loss.

    Raises:
        BadConfig: a name that is no metric, or an object that is none.

    Example:
        >>> [metric.name for metric in choose_metrics("auto", "bce")]
        ['auc', 'accuracy']
    """
    if is_one_of(metrics, ["auto"]):
        metrics = METRICS_OF_LOSS.get(loss, ()) if isinstance(loss, str) else ()
    elif isinstance(metrics, str):
        metrics = [metrics]
    also, chosen = "a list of these and of Metrics", list[Metric]()
    if not isinstance(metrics, list | tuple):
        raise refuse_choice("Trainer", "metrics", metrics, ["auto", *METRICS], also)
    for metric in metrics:
        own = not isinstance(metric, str | type) and all(hasattr(metric, name) for name in _PROTOCOL)
        if not own and (not isinstance(metric, str) or metric not in METRICS):
            raise refuse_choice("Trainer", "metrics", metric, ["auto", *METRICS], also)
        chosen.append(METRICS[metric]() if isinstance(metric, str) else metric)
        chosen[-1].reset()
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
