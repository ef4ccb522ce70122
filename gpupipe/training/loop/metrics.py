"""Metrics of a model, summed on the device batch by batch.

They equal scikit-learn's, weights included; what is not defined (no rows, AUC of one class, R2 of a constant target) is
None. Outputs are logits: B values for binary targets, B x K for K classes. Of several targets a metric is their mean.
"""

from __future__ import annotations

import math
import re
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
from gpupipe.training.loop.metric_adapter import PredictionMetric, flatten_metrics, require_methods
from gpupipe.training.loop.quantiles import OF_QUANTILES, compute_pinball, is_covered, lack_quantiles
from gpupipe.training.loop.ranking import Ranking, is_positive

EPSILON_DOUBLE = torch.finfo(torch.float64).eps


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


class Decision(_Sums):
    """Base class of metrics of classes taken: the likeliest, of two the second from the probability `threshold` on."""

    threshold: float | Tensor = 0.5

    def decide(self, output: Tensor, batch: Any) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return true classes, classes taken and weights, B x T, and the number of classes."""
        where = f"metric {self.name!r}"
        if _has_class_logits(output, batch):
            truth = matching_target(output, batch, where, classes=True).long()[:, None]
            predictions, width = output.argmax(1)[:, None], output.shape[1]
        else:
            truth = _to_columns(matching_target(output, batch, where) >= 0.5).long()
            predictions, width = _to_columns(is_positive(full_precision(output), self.threshold)).long(), 2
        return truth, predictions, _get_weights(batch, truth[:, 0].double())[:, None].expand_as(truth), width


class _Accuracy(Decision):
    """Share of the rows whose class is taken."""

    name = "accuracy"

    def sum_rows(self, output: Tensor, batch: Any) -> Tensor:
        truth, predictions, weight, _ = self.decide(output, batch)
        return torch.stack([weight.sum(0), (weight * (truth == predictions)).sum(0)], 1)

    def finish(self, *sums: float) -> float | None:
        weight, hits = sums
        return hits / weight if weight else None


class _TopK(_Accuracy):
    """Share of the rows whose class is among the k likeliest; of equally likely ones the later class comes first."""

    def __init__(self, k: int) -> None:
        self.name, self.k = f"top_{k}_accuracy", k

    def sum_rows(self, output: Tensor, batch: Any) -> Tensor:
        truth = matching_target(output, batch, f"metric {self.name!r}", classes=True).long()[:, None]
        logit, later = output.gather(1, truth), torch.arange(output.shape[1], device=output.device) > truth
        before = ((output > logit) | ((output == logit) & later)).sum(1)
        weight = _get_weights(batch, before.double())
        return torch.stack([weight.sum(), (weight * (before < self.k)).sum()])[None]


@dataclass(eq=False)
class _OfClasses(Decision):
    """Metric of each class's weights of hits, of its rows, and of the rows taken for it."""

    name: str
    of_classes: Callable[[Sequence[list[float]]], float | None]

    def sum_rows(self, output: Tensor, batch: Any) -> Tensor:
        truth, predictions, weight, width = self.decide(output, batch)
        first = torch.arange(truth.shape[1], device=truth.device) * width
        zeros = torch.zeros(truth.shape[1] * width, dtype=torch.float64, device=truth.device)
        counts = [
            zeros.index_add(0, (classes + first).flatten(), rows.flatten())
            for classes, rows in ((truth, weight * (truth == predictions)), (truth, weight), (predictions, weight))
        ]
        return torch.stack(counts, 1).view(-1, width, 3)

    def finish(self, *sums: list[float]) -> float | None:
        return self.of_classes(sums) if any(rows for _, rows, _ in sums) else None


def _average_classes(
    of_class: Callable[[float, float, float], float | None], sums: Sequence[list[float]], *, of_both: bool = False
) -> float:
    """Compute the mean over the classes that occur; of two classes the second's value, or the mean `of_both`."""
    two = len(sums) == 2
    present = [each for each in sums[two and not of_both :] if two or each[1] or each[2]]
    defined = [value for each in present if (value := of_class(*each)) is not None]
    return sum(defined) / len(defined)


def _compute_mcc(sums: Sequence[list[float]]) -> float:
    """Compute the correlation of true and taken classes (Gorodkin 2004), 0 where one of them is constant."""
    hits, total, _ = map(math.fsum, zip(*sums, strict=True))
    squares, chance, guesses = (
        math.fsum(part) for part in zip(*((r * r, r * t, t * t) for _, r, t in sums), strict=True)
    )
    spread = (total**2 - squares) * (total**2 - guesses)
    return (hits * total - chance) / math.sqrt(spread) if spread > 0 else 0.0


def _compute_kappa(sums: Sequence[list[float]]) -> float | None:
    """Compute Cohen's kappa, the agreement beyond that by chance; None where all agree by chance."""
    hits, total, _ = map(math.fsum, zip(*sums, strict=True))
    chance = math.fsum(rows * predictions for _, rows, predictions in sums) / total
    return (hits - chance) / (total - chance) if total > chance else None


@dataclass(eq=False)
class _OfAllRows:
    """Metric that takes all rows at once, exact; of several classes or targets the mean over them.

    Memory: 9 bytes a row on the device (5 without weights; 5 more per further class); `compute` takes some 60 more.
    """

    name: str
    # What is kept of outputs and a batch, each B or B x C; its measure for one of the C, NaN where undefined.
    read: Callable[[Tensor, Any, str], tuple[Tensor, ...]]
    measure: Callable[..., Tensor]
    higher_is_better: bool = True
    _parts: list[tuple[Tensor, ...]] = field(default_factory=list)

    def reset(self) -> None:
        self._parts = []

    def update(self, output: Any, batch: Any) -> None:
        values = self.read(full_precision(output), batch, f"metric {self.name!r}")
        weight = get_weight(batch)
        weight = values[0].new_ones(()).expand(len(values[0])) if weight is None else weight.clone()
        self._parts.append((*values, weight))

    def compute(self) -> float | None:
        if not self._parts or not sum(len(part[0]) for part in self._parts):
            return None
        *values, weight = (torch.cat(parts) for parts in zip(*self._parts, strict=True))
        columns = zip(*((each if each.ndim == 2 else each[:, None]).unbind(1) for each in values), strict=True)
        measures: list[float] = torch.stack([self.measure(*column, weight) for column in columns]).tolist()
        mean = math.fsum(measures) / len(measures)
        return None if math.isnan(mean) else mean


def _read_scores(output: Tensor, batch: Any, where: str) -> tuple[Tensor, Tensor]:
    if _has_class_logits(output, batch):
        index = matching_target(output, batch, where, classes=True)
        return output.softmax(1), index[:, None] == torch.arange(output.shape[1], device=output.device)
    return output.clone(), matching_target(output, batch, where) >= 0.5


def _read_errors(output: Tensor, batch: Any, where: str) -> tuple[Tensor]:
    return ((output.double() - matching_target(output, batch, where)).abs(),)


def _compute_median(values: Tensor, weight: Tensor) -> Tensor:
    """Compute the weighted median, the mean of two where half of the weight lies below the second."""
    values, order = values.sort()
    below = weight[order].double().cumsum(0)
    half = below[-1:] / 2
    middle = [torch.searchsorted(below, half, right=after).clamp_max(len(below) - 1) for after in (False, True)]
    return torch.where(half[0] > 0, values[torch.cat(middle)].mean(), torch.nan)


def _divide(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


_OF_BOTH = partial(_average_classes, lambda hits, rows, _: hits / rows if rows else None, of_both=True)
METRICS: dict[str, Callable[[], Metric]] = {
    "auc": partial(_OfAllRows, "auc", _read_scores, lambda *rows: Ranking(*rows).roc_auc()),
    "average_precision": partial(
        _OfAllRows, "average_precision", _read_scores, lambda *rows: Ranking(*rows).average_precision()
    ),
    "accuracy": _Accuracy,
    "balanced_accuracy": partial(_OfClasses, "balanced_accuracy", _OF_BOTH),
    "f1": partial(
        _OfClasses, "f1", partial(_average_classes, lambda hits, rows, alarms: _divide(2 * hits, rows + alarms))
    ),
    "precision": partial(
        _OfClasses, "precision", partial(_average_classes, lambda hits, _, alarms: _divide(hits, alarms))
    ),
    "recall": partial(_OfClasses, "recall", partial(_average_classes, lambda hits, rows, _: _divide(hits, rows))),
    "mcc": partial(_OfClasses, "mcc", _compute_mcc),
    "kappa": partial(_OfClasses, "kappa", _compute_kappa),
    "log_loss": partial(_Mean, "log_loss", _compute_log_loss, classes=True),
    "brier": partial(_Mean, "brier", lambda output, target: (output.sigmoid() - target) ** 2),
    "rmse": partial(_Mean, "rmse", lambda output, target: (output.double() - target) ** 2, of_mean=math.sqrt),
    "mae": partial(_Mean, "mae", lambda output, target: (output.double() - target).abs()),
    "median_absolute_error": partial(
        _OfAllRows, "median_absolute_error", _read_errors, _compute_median, higher_is_better=False
    ),
    "mape": partial(
        _Mean,
        "mape",
        lambda output, target: (output.double() - target).abs() / target.double().abs().clamp_min(EPSILON_DOUBLE),
    ),
    "r2": _R2,
}
METRICS_OF_LOSS = {"bce": ("auc", "accuracy"), "cross-entropy": ("accuracy",)}
METRICS_OF_LOSS |= dict.fromkeys(("mse", "huber"), ("rmse", "mae", "r2"))
_OF_CLASSES = ["auc", "average_precision", "accuracy", "balanced_accuracy", "f1", "precision", "recall", "mcc", "kappa"]
METRICS_OF_TASK = {"multiclass": [*_OF_CLASSES, "log_loss"]}
METRICS_OF_TASK |= {task: [*_OF_CLASSES, "log_loss", "brier"] for task in ("binary", "multilabel")}
METRICS_OF_TASK["regression"] = ["rmse", "mae", "median_absolute_error", "mape", "r2"]
_TOP_K = re.compile(r"top_([1-9]\d*)_accuracy")


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
    task, good = schema.task or "", ["accuracy", "auc", "log_loss"]
    names = {name for metric in metrics if isinstance(metric, _Sums | _OfAllRows) for name in [metric.name]}
    wrong, what = set[str](), f"a {task} target"
    if task == "regression" and len(schema.targets) == 1:
        wrong, good, what = names - {*METRICS_OF_TASK[task], *OF_QUANTILES}, ["rmse", "mae", "r2"], "a regression"
    elif task == "multiclass":
        wrong = {name for name in names - {*METRICS_OF_TASK[task]} if not _TOP_K.fullmatch(name)}
        what = "a target of several classes"
    elif task in ("binary", "multilabel"):  # whose outputs are logits, no values
        wrong = names - {*METRICS_OF_TASK[task]}
    else:
        wrong = {*filter(_TOP_K.fullmatch, names)}
    for name in sorted(wrong):
        problem, expected = f"{name!r} says nothing of {what}", f"some of {', '.join(map(repr, good))}"
        raise refuse_argument("Trainer", "metrics", name, expected, f"metrics={good!r}", problem=problem)


def make_quantile_metrics(quantiles: Sequence[float]) -> dict[str, Callable[[], Metric]]:
    """Make the metrics of a model that predicts quantiles, by name."""
    metrics = {"pinball": partial(_Mean, "pinball", partial(compute_pinball, quantiles), classes=True)}
    if len(quantiles) > 1:
        metrics["coverage"] = partial(_Mean, "coverage", is_covered, higher_is_better=True, classes=True)
    return {**metrics}


def choose_metrics(
    metrics: Any, loss: object, task: str | None = None, quantiles: Sequence[float] | None = None
) -> list[Metric]:
    """Make metrics by name, and take the caller's objects; "auto" chooses those of a named loss.

    An object without a name gets what `PredictionMetric` makes of the outputs for `task`. A model that predicts
    quantiles has metrics of its own.
    """
    available = METRICS if quantiles is None else make_quantile_metrics(quantiles)
    if is_one_of(metrics, ["auto"]):
        of_loss = METRICS_OF_LOSS if quantiles is None else {"pinball": tuple(available)}
        metrics = of_loss.get(loss, ()) if isinstance(loss, str) else ()
    selection = list[Metric]()
    for metric in flatten_metrics(metrics):
        if quantiles is None and isinstance(metric, str) and (top := _TOP_K.fullmatch(metric)):
            selection.append(_TopK(int(top[1])))
        elif isinstance(metric, str) and metric in available:
            selection.append(available[metric]())
        elif isinstance(metric, str) and metric in OF_QUANTILES:
            raise lack_quantiles("metrics", metric)
        elif isinstance(metric, str | type | None):
            also = "a list of these, of 'top_3_accuracy' (or another k), and of objects with update, compute and reset"
            raise refuse_choice("Trainer", "metrics", metric, ["auto", *available], also)
        else:
            require_methods(metric)
            selection.append(metric if hasattr(metric, "name") else PredictionMetric(metric, task))
    for item in selection:
        item.reset()
    return selection


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
