"""Adapter for metrics of other libraries, which take predictions and targets, as torchmetrics' do."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.support.validation import refuse_argument
from gpupipe.training.loop.batches import full_precision, get_weight, matching_target


class PredictionMetric:
    """Metric by an object with `update(preds, target)`, `compute` and `reset`, named after its class.

    `preds` are probabilities of two classes (B, or B x T for several targets) or of K (B x K), numbers of a regression;
    `target` is int64 but for a regression. `higher_is_better` is the object's own, True where it does not say.

    Args:
        metric: the object; a torch module is moved to the outputs' device.
        task: of the target; None hands over the outputs as they are.

    Raises:
        BadConfig: a method is missing, or rows have weights, which the object cannot take.
        SchemaMismatch: it computes no single number.
    """

    def __init__(self, metric: Any, task: str | None) -> None:
        self.metric, self.task, self.name = metric, task, type(metric).__name__
        self.higher_is_better = getattr(metric, "higher_is_better", None) is not False
        self._has_rows = False

    def reset(self) -> None:
        self.metric.reset()
        self._has_rows = False

    def update(self, output: Any, batch: Any) -> None:
        where, output, classes = f"metric {self.name}", full_precision(output), self.task == "multiclass"
        if get_weight(batch) is not None:
            problem, expected = (
                "it takes no weights, and the rows have some",
                "rows without weights, or a metric by name",
            )
            raise BadConfig(where, problem, expected=expected, remedy="metrics='auto', whose metrics are weighted")
        target = matching_target(output, batch, where, classes=classes)
        if classes:
            output, target = output.softmax(1), target.long()
        elif self.task in ("binary", "multilabel"):
            output, target = output.sigmoid(), target.long()
        if isinstance(self.metric, nn.Module):
            self.metric.to(output.device)
        self.metric.update(output.clone(), target.clone())
        self._has_rows = self._has_rows or bool(len(target))

    def compute(self) -> float | None:
        if not self._has_rows:
            return None
        value = self.metric.compute()
        if isinstance(value, Tensor) and value.numel() != 1:
            got, expected = f"a tensor of shape {tuple(value.shape)}", "one number"
            remedy = "an average over classes, as with average='macro'"
            raise SchemaMismatch(f"metric {self.name}", "not a number", got=got, expected=expected, remedy=remedy)
        return float(value)


def flatten_metrics(metrics: Any) -> list[Any]:
    """List metrics that are given alone or in a list; of a collection, such as torchmetrics', those that are in it."""
    if isinstance(metrics, list | tuple):
        return [item for metric in metrics for item in flatten_metrics(metric)]
    return list(metrics.values()) if hasattr(metrics, "values") and hasattr(metrics, "compute") else [metrics]


def require_methods(metric: object) -> None:
    """Raise `BadConfig` for an object that lacks what a metric has."""
    names = ["update", "compute", "reset", *(["higher_is_better"] if hasattr(metric, "name") else [])]
    for name in names:
        if not hasattr(metric, name):
            expected = "an object with update(preds, target), compute() and reset(), or a gpupipe.training.Metric"
            problem = f"it has no `{name}`"
            raise refuse_argument("Trainer", "metrics", type(metric), expected, "metrics=['auc']", problem=problem)
