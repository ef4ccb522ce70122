"""Ranking of the rows of two classes by score: areas, curves and thresholds of one sort, weights and ties included.

At each score that occurs it holds the weight of the positive and of the negative rows that score as high or higher;
rows of one score are one point, as in scikit-learn. All of it stays on the scores' device.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from gpupipe.errors import BadData

TINY_DOUBLE = torch.finfo(torch.float64).tiny


class Ranking:
    """Ranking of N rows by score, the highest first.

    Args:
        scores: N values in any unit.
        positive: whether a row is of the class that high scores speak for.
        weight: of the rows; None counts all alike.

    Memory: 20 bytes per different score; some 50 a row while it sorts.

    Example:
        >>> ranking = Ranking(torch.tensor([0.9, 0.4, 0.4]), torch.tensor([True, True, False]))
        >>> ranking.scores.tolist(), ranking.hits.tolist(), ranking.false_alarms.tolist()
        ([0.8999999761581421, 0.4000000059604645], [1.0, 2.0], [0.0, 1.0])
    """

    def __init__(self, scores: Tensor, positive: Tensor, weight: Tensor | None = None) -> None:
        scores, order = scores.sort(descending=True)
        positive = positive[order]
        weight = torch.ones_like(scores) if weight is None else weight[order]
        del order  # the memory of 8 bytes a row
        ends = torch.ones_like(positive)  # the last row of each score
        ends[:-1] = scores[:-1] != scores[1:]
        self.scores = scores[ends]
        self.hits, self.false_alarms = (
            torch.where(rows, weight, 0.0).cumsum(0, dtype=torch.float64)[ends] for rows in (positive, ~positive)
        )

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The weights of all positive and of all negative rows."""
        return self.hits[-1:].sum(), self.false_alarms[-1:].sum()

    def thin(self, points: int) -> Ranking:
        """Return about that many of the scores, the last among them, at even steps along the ROC curve."""
        if len(self.scores) <= points:
            return self
        positives, negatives = self.ends
        along = self.hits / positives.clamp_min(TINY_DOUBLE) + self.false_alarms / negatives.clamp_min(TINY_DOUBLE)
        steps = torch.linspace(0, float(along[-1]), points, dtype=along.dtype, device=along.device)
        places = torch.unique(torch.searchsorted(along, steps).clamp_max(len(along) - 1))
        thinned = copy(self)
        thinned.scores, thinned.hits = self.scores[places], self.hits[places]
        thinned.false_alarms = self.false_alarms[places]
        return thinned

    def roc_auc(self) -> Tensor:
        """Compute the area under the ROC curve; NaN where one of the classes has no row."""
        positives, negatives = self.ends
        return torch.trapezoid(F.pad(self.hits, (1, 0)), F.pad(self.false_alarms, (1, 0))) / (positives * negatives)

    def average_precision(self) -> Tensor:
        """Compute the mean precision over the positive rows; NaN where there is none."""
        gains = self.hits.diff(prepend=self.hits.new_zeros(1))
        return (gains * self.hits / (self.hits + self.false_alarms).clamp_min(TINY_DOUBLE)).sum() / self.ends[0]

    def roc_curve(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the shares of false alarms and of hits from each score on, and the scores, the first one infinite."""
        positives, negatives = self.ends
        scores = F.pad(self.scores.double(), (1, 0), value=torch.inf)
        return F.pad(self.false_alarms / negatives, (1, 0)), F.pad(self.hits / positives, (1, 0)), scores

    def precision_recall_curve(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return precision and recall at each score, ascending and then (1, 0), and the scores."""
        precision = self.hits / (self.hits + self.false_alarms).clamp_min(TINY_DOUBLE)
        recall = self.hits / self.ends[0]
        return F.pad(precision.flip(0), (0, 1), value=1.0), F.pad(recall.flip(0), (0, 1)), self.scores.double().flip(0)

    def choose_threshold(
        self,
        probability: Callable[[Tensor], Tensor],
        maximize: str,
        *,
        cost: tuple[float, float] | None = None,
        min_precision: float = 0.0,
        min_recall: float = 0.0,
    ) -> float:
        """Choose the probability from which on a row is positive; half-way to the next lower one that occurs.

        `probability` converts scores as the decision will. Rows of one probability cannot be told apart; that none or
        all are positive are choices too. Of equal ones the highest is taken. Raises `BadData`: none has that precision
        and recall.
        """
        steps = F.pad(F.pad(probability(self.scores).double(), (1, 0), value=1.0), (0, 1))
        apart = steps[:-1] > steps[1:]
        hits, false_alarms = F.pad(self.hits, (1, 0))[apart], F.pad(self.false_alarms, (1, 0))[apart]
        positives, negatives = self.ends
        recall, precision = hits / positives, hits / (hits + false_alarms).clamp_min(TINY_DOUBLE)
        if cost is None:
            values = DECISION_METRICS[maximize](hits, false_alarms, positives, negatives)
        else:
            values = -(cost[0] * false_alarms + cost[1] * (positives - hits))
        good = (precision >= min_precision) & (recall >= min_recall)
        best, choice = torch.where(good, values, -torch.inf).max(0)
        if not bool(best > -torch.inf):
            reached = float(precision[recall >= min_recall].max())
            where, problem = (
                "Report.threshold",
                f"no threshold has precision {min_precision:g} and recall {min_recall:g}",
            )
            expected = f"a precision of at most {reached:.4g}" + (" at that recall" if min_recall else "")
            remedy = f"min_precision={reached * 0.999:.3g}"
            raise BadData(where, problem, expected=expected, remedy=remedy)
        return float((steps[:-1] + steps[1:])[apart][choice] / 2)


def is_positive(output: Tensor, threshold: float | Tensor) -> Tensor:
    """Return whether the probability of a logit, as it is shown, reaches the threshold; compared in float64."""
    return output.sigmoid().double() >= threshold


def _divide(value: Tensor, by: Tensor) -> Tensor:
    return value / by.clamp_min(TINY_DOUBLE)


def _compute_mcc(hits: Tensor, false_alarms: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    alarms, total = hits + false_alarms, positives + negatives
    spread = positives * negatives * alarms * (total - alarms)
    return _divide(hits * negatives - false_alarms * positives, spread.sqrt())


def _compute_kappa(hits: Tensor, false_alarms: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    alarms, total = hits + false_alarms, positives + negatives
    chance = alarms * negatives + positives * (total - alarms)
    return _divide(2 * (hits * negatives - false_alarms * positives), chance)


# Of the weights of hits and false alarms at each threshold, and of all positive and negative rows.
DECISION_METRICS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "f1": lambda hits, false, positives, _: 2 * hits / (positives + hits + false),
    "accuracy": lambda hits, false, positives, negatives: (hits + negatives - false) / (positives + negatives),
    "balanced_accuracy": lambda hits, false, positives, negatives: (hits / positives + 1 - false / negatives) / 2,
    "mcc": _compute_mcc,
    "kappa": _compute_kappa,
    "precision": lambda hits, false, *_: _divide(hits, hits + false),
    "recall": lambda hits, _, positives, __: hits / positives,
}
