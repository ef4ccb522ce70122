"""Rows with outputs and their targets: confusion, curves, calibration, residuals, and the choice of a threshold.

All of it is weighted and computed where the outputs are; what is returned is small and on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpupipe.errors import BadConfig, BadData
from gpupipe.schema import shorten_list
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import (
    check_choice,
    check_integer,
    check_number,
    is_number,
    is_sequence,
    refuse_argument,
)
from gpupipe.training.loop.ranking import DECISION_METRICS, Ranking, is_positive

DECIDED_TASKS = ("binary", "multilabel")  # whose targets are true from a probability on
CURVES = ("roc", "precision-recall")
Threshold = float | Mapping[str, float]


class Calibration(NamedTuple):
    """Bins of rows by what is predicted, without those that have no row; tensors on the host.

    Args:
        observed: the share of rows that are of the class; of a regression the mean target.
        predicted: the mean probability, or the mean prediction.
        weight: the bin's rows: their number, or the sum of their weights.
        error: the weighted mean distance of the two: the expected calibration error (Naeini et al. 2015).
    """

    observed: Tensor
    predicted: Tensor
    weight: Tensor
    error: float


@answer_calls
class ScoredRows:
    """Rows with outputs and targets.

    Args:
        output: B values or logits, B x K logits of classes, or B x T of several targets; None where they are not kept.
        target: B values, B class indices or B x T.
        weight: B weights, or None; rows of weight 0 are left out.
        task: "binary", "multiclass", "multilabel" or "regression"; None where nothing tells.
        labels: the two or K classes; of several targets their names.
        threshold: the probability from which on a row is taken for positive, or one by the targets' names; None is 0.5.
        units: converts a regression's outputs and targets to its own units.
    """

    def __init__(
        self,
        output: Tensor | None,
        target: Tensor | None,
        weight: Tensor | None = None,
        *,
        task: str | None,
        labels: Sequence[Any] = (),
        threshold: Threshold | None = None,
        units: Any = None,
    ) -> None:
        self.task, self.labels, self._units = task, list(labels), units
        if not self.labels and output is not None:
            width = output.shape[1] if output.ndim == 2 else 1
            self.labels = [0, 1] if task == "binary" else list(range(width))
        self.decision_threshold = check_threshold("Report", threshold, task, self.labels)
        self._scored = None if output is None or target is None else (output, target, weight)
        self._ranking: tuple[int, Ranking] | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows that have a weight."""
        return 0 if self._scored is None else len(self._scored[0])

    def confusion_matrix(self, threshold: float | None = None) -> Tensor:
        """Compute the weight of the rows of each class (rows) that are taken for each (columns), K x K.

        Of two classes the second one is taken from a probability of `threshold` on, by default the report's own; of
        more the likeliest. Several targets have a 2 x 2 matrix each, T x 2 x 2. Without weights it holds int64 counts.
        Raises `BadConfig`: a regression, a threshold of more than two classes, or one that is no probability.
        """
        output, target, weight = self._require_rows("confusion_matrix", "binary", "multilabel", "multiclass")
        if self.task == "multiclass":
            check_threshold("Report.confusion_matrix", threshold, self.task, self.labels)
            truth, predictions, width = target.long()[:, None], output.argmax(1)[:, None], output.shape[1]
        else:
            limit = get_limits(self.decision_threshold, self.labels, output.device) if threshold is None else threshold
            check_number("Report.confusion_matrix", "[0, 1]", None, threshold=threshold)
            positive, above = _widen(target >= 0.5), _widen(is_positive(output, limit))
            truth, predictions, width = positive.long(), above.long(), 2
        first = torch.arange(truth.shape[1], device=output.device) * width**2
        places = (first + truth * width + predictions).flatten()
        weights = torch.ones_like(truth) if weight is None else weight.double()[:, None].expand_as(truth)
        counts = weights.new_zeros(truth.shape[1] * width**2).index_add_(0, places, weights.flatten())
        return counts.view(-1, width, width).squeeze(0).cpu()

    def curve(self, name: str, *, label: Any = None, points: int | None = 1000) -> tuple[Tensor, Tensor, Tensor]:
        """Return the points of a curve, in scikit-learn's order: two float64 tensors and the thresholds.

        Args:
            name: "roc" (share of false alarms, share of hits) or "precision-recall" (precision, recall).
            label: of several classes the one told from the rest, of several targets its name.
            points: about how many at most, at even steps along the ROC curve; None for one per different score.

        Raises `BadConfig`: a regression, no such curve or label. `BadData`: the rows are of one class.
        """
        check_choice("Report.curve", CURVES, name=name)
        check_integer("Report.curve", "[2, inf)", None, points=points)
        column = self._choose_column("Report.curve", label)
        ranking = self._rank("Report.curve", column, both=name == "roc")
        ranking = ranking if points is None else ranking.thin(points)
        across, up, scores = ranking.roc_curve() if name == "roc" else ranking.precision_recall_curve()
        scores = torch.where(scores.isinf(), scores, self._to_probability(scores))
        return across.cpu(), up.cpu(), scores.cpu()

    def calibration(self, bins: int = 10, *, label: Any = None, strategy: str | None = None) -> Calibration:
        """Compare what is predicted with what is observed, in bins of the prediction.

        Of several classes the likeliest one's probability is compared with how often it is right (Guo et al. 2017), or
        with `label` that class's with its share.

        Args:
            bins: how many.
            label: a class, or one of several targets.
            strategy: "uniform" for bins of equal width, which probabilities have by default, "quantile" for bins of
                equal weight, a regression's default.

        Raises `BadConfig`: no such label or strategy. `BadData`: no rows.
        """
        where = "Report.calibration"
        check_integer(where, "[1, inf)", bins=bins)
        check_choice(where, (None, "uniform", "quantile"), strategy=strategy)
        output, target, weight = self._require_rows("calibration")
        if self.task == "multiclass" and label is None:
            predicted, likeliest = output.double().softmax(1).max(1)
            observed = likeliest == target
        elif self.task == "regression":
            predicted, observed = self._read_values(where, label)
        else:
            scores, observed = self._read_column(self._choose_column(where, label))
            predicted = self._to_probability(scores.double())
        observed = observed.double()
        weight = torch.ones_like(predicted) if weight is None else weight.double()
        edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=predicted.device)[1:-1]
        if strategy == "quantile" or (strategy is None and self.task == "regression"):
            edges = compute_quantiles(predicted, weight, edges, interpolate=False)
        elif self.task == "regression":
            edges = torch.lerp(predicted.min(), predicted.max(), edges)
        bin_of_row = torch.searchsorted(edges, predicted)
        sums = predicted.new_zeros(3, bins)
        sums.index_add_(1, bin_of_row, torch.stack([weight, weight * predicted, weight * observed]))
        total, mean, share = sums[:, sums[0] > 0].cpu()
        mean, share = mean / total, share / total
        return Calibration(share, mean, total, float(((mean - share).abs() * total).sum() / total.sum()))

    def residual_quantiles(
        self, quantiles: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95), *, label: Any = None
    ) -> dict[float, float]:
        """Compute quantiles of target - prediction, in the target's units; between two rows they are interpolated.

        `label` is one of several targets. Raises `BadConfig`: a classification, or no quantile. `BadData`: no rows.
        """
        weight = self._require_rows("residual_quantiles", "regression")[2]
        where = "Report.residual_quantiles"
        if not is_sequence(quantiles) or not all(is_number(share) and 0 <= share <= 1 for share in quantiles):
            expected, remedy = "a list of numbers of 0 to 1", "quantiles=[0.1, 0.5, 0.9]"
            raise refuse_argument(where, "quantiles", quantiles, expected, remedy)
        predicted, observed = self._read_values(where, label)
        weight = torch.ones_like(predicted) if weight is None else weight.double()
        steps = torch.tensor(list(quantiles), dtype=torch.float64, device=predicted.device)
        values: list[float] = compute_quantiles(observed - predicted, weight, steps).tolist()
        return dict(zip(quantiles, values, strict=True))

    def threshold(
        self,
        maximize: str | None = None,
        *,
        min_precision: float | None = None,
        min_recall: float | None = None,
        cost: tuple[float, float] | None = None,
        label: Any = None,
    ) -> float:
        """Choose the probability from which on a row is taken for positive, for `gp.save(threshold=)`.

        It lies half-way between two probabilities that occur, so that rounding moves no row across. Choose it on rows
        that the model was not trained on, and judge it on others.

        Args:
            maximize: "f1", "accuracy", "balanced_accuracy", "mcc", "kappa", "precision" or "recall". By default f1;
                recall where a precision is asked for, precision where a recall is.
            min_precision: the least precision it may have on these rows.
            min_recall: the least recall.
            cost: what a false positive and a false negative cost; their sum is the least, instead of `maximize`.
            label: one of several targets.

        Raises `BadConfig`: no binary decision, no such metric, or both a metric and costs. `BadData`: rows of one
        class, or no threshold reaches that precision and recall.
        """
        where = "Report.threshold"
        self._require_rows("threshold", *DECIDED_TASKS)
        check_choice(where, DECISION_METRICS, None, maximize=maximize)
        check_number(where, "(0, 1]", None, min_precision=min_precision, min_recall=min_recall)
        costs: list[Any] = list(cost) if isinstance(cost, tuple | list) else [cost]
        good = len(costs) == 2 and all(is_number(each) and 0 <= each < float("inf") for each in costs) and any(costs)
        if cost is not None and not (good and maximize is None):
            problem = "costs and a metric" if good else "no costs"
            expected = "(false positive, false negative), two numbers of at least 0, instead of maximize="
            raise refuse_argument(where, "cost", cost, expected, "cost=(1, 5)", problem=problem)
        if maximize is None:
            maximize = "precision" if min_precision is None and min_recall is not None else "f1"
            maximize = "recall" if min_precision is not None and min_recall is None else maximize
        return self._rank(where, self._choose_column(where, label)).choose_threshold(
            self._to_probability,
            maximize,
            cost=None if cost is None else (float(costs[0]), float(costs[1])),
            min_precision=min_precision or 0.0,
            min_recall=min_recall or 0.0,
        )

    @property
    def columns(self) -> list[Any]:
        """The labels to choose from: the second of two classes, each of more, each of several targets."""
        return self.labels[1:] if self.task == "binary" else self.labels

    def _require_rows(self, method: str, *tasks: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return outputs, targets and weights; refuse another task, outputs that were not kept, or no rows."""
        where = f"Report.{method}"
        if self._scored is None:
            problem, expected = "the outputs were not kept", "an output, or K logits, a row, and a target that they fit"
            raise BadConfig(where, problem, expected=expected, remedy="trainer.predict(loader)")
        if tasks and self.task not in tasks:
            expected, remedy = f"a {' or '.join(tasks)} target", "report.residual_quantiles(), report.calibration()"
            if self.task == "multiclass":
                remedy = "predict, which takes the likeliest class; report.curve('roc', label=...) for one of them"
            elif self.task != "regression":
                remedy = "report.calibration()"
            raise BadConfig(where, "it does not go with the task", got=self.task, expected=expected, remedy=remedy)
        if not self.num_rows:
            problem, expected = "no row has a weight", "rows that count"
            raise BadData(where, problem, expected=expected, remedy="rows with a target and a weight")
        return self._scored

    def _choose_column(self, where: str, label: Any) -> int:
        """Return the place of a label, which may be left out where there is but one."""
        if label is None and len(self.columns) == 1:
            return 0
        if label not in self.columns:
            problem = "which of several labels" if label is None else "no such label"
            remedy = f"label={self.columns[0]!r}" if self.columns else "no label"
            expected = f"one of {shorten_list(map(repr, self.columns), 20)}"
            raise refuse_argument(where, "label", label, expected, remedy, problem=problem)
        return self.columns.index(label)

    def _read_column(self, column: int) -> tuple[Tensor, Tensor]:
        """Return the scores of a label, B, and whether rows are of it."""
        output, target, _ = self._require_rows("curve", "binary", "multilabel", "multiclass")
        if self.task == "multiclass":
            return output.double().softmax(1)[:, column].contiguous(), target == column
        return _widen(output)[:, column].contiguous(), _widen(target)[:, column] >= 0.5

    def _rank(self, where: str, column: int, *, both: bool = True) -> Ranking:
        """Return the ranking by a label's scores, the last one asked for again; refuse rows of one class."""
        if self._ranking is None or self._ranking[0] != column:
            scores, positive = self._read_column(column)
            assert self._scored is not None
            self._ranking = column, Ranking(scores, positive, self._scored[2])
        ranking = self._ranking[1]
        positives, negatives = (float(end) for end in ranking.ends)
        if not positives or (both and not negatives):
            got = {"positive": positives, "negative": negatives}
            problem, expected = "the rows are of one class", "rows of both classes"
            raise BadData(where, problem, got=got, expected=expected, remedy="other rows, as of kfold(stratify=)")
        return ranking

    def _to_probability(self, scores: Tensor) -> Tensor:
        return scores if self.task == "multiclass" else scores.sigmoid()

    def _read_values(self, where: str, label: Any) -> tuple[Tensor, Tensor]:
        """Return a regression's predictions and targets in its units, float64."""
        column, (output, target, _) = self._choose_column(where, label), self._require_rows("calibration")
        pair = (output, target) if self._units is None else (self._units(output), self._units(target))
        predicted, observed = (_widen(values)[:, column].double().contiguous() for values in pair)
        return predicted, observed


def compute_quantiles(values: Tensor, weight: Tensor, quantiles: Tensor, *, interpolate: bool = True) -> Tensor:
    """Compute weighted quantiles; with equal weights those of numpy.quantile, or the value at or below each."""
    values, order = values.sort()
    weight = weight[order]
    below = weight.cumsum(0) - weight
    places = quantiles * below[-1]
    if not interpolate:
        places *= 1 + 1e-14  # where a product is a hair too small for the row that it means
    first = (torch.searchsorted(below, places, right=True) - 1).clamp_min(0)
    if not interpolate:
        return values[first]
    after = (first + 1).clamp_max(len(values) - 1)
    step = below[after] - below[first]
    share = torch.where(step > 0, (places - below[first]) / step.clamp_min(1e-300), 0.0).clamp(0.0, 1.0)
    return values[first] + share * (values[after] - values[first])


def check_threshold(
    owner: object, threshold: Any, task: str | None, labels: Sequence[Any]
) -> float | dict[str, float] | None:
    """Check the probability from which on a row is positive; complete one by targets' names with 0.5 for the others."""
    if threshold is None:
        return 0.5 if task in DECIDED_TASKS else None
    if task not in DECIDED_TASKS:
        problem = f"a {task or 'model without a task'} has no threshold"
        expected, remedy = "None: a threshold is for a target of two classes", "threshold=None"
        raise refuse_argument(owner, "threshold", threshold, expected, remedy, problem=problem)
    named = dict(threshold) if isinstance(threshold, Mapping) else {}
    values = list(named.values()) if isinstance(threshold, Mapping) else [threshold]
    unknown = [name for name in named if task == "binary" or name not in labels]
    if unknown or not all(is_number(value) and 0 < value < 1 for value in values):
        expected = "a probability above 0 and below 1"
        expected += f", or one by the names of some of {list(labels)}" if task == "multilabel" else ""
        remedy = "threshold=report.threshold(maximize='f1')"
        raise refuse_argument(owner, "threshold", threshold, expected, remedy, problem="not a threshold")
    if not isinstance(threshold, Mapping):
        return float(threshold)
    return {name: float(named.get(name, 0.5)) for name in labels}


def get_limits(
    threshold: float | dict[str, float] | None, labels: Sequence[Any], device: torch.device
) -> float | Tensor:
    """Return a checked threshold as a number, or as one a target on the device."""
    if not isinstance(threshold, dict):
        return 0.5 if threshold is None else threshold
    return torch.tensor([threshold[name] for name in labels], dtype=torch.float64, device=device)


def _widen(values: Tensor) -> Tensor:
    return values if values.ndim == 2 else values[:, None]
