"""Permutation importance of features: that of Breiman 2001 ("Random forests", section 10), as scikit-learn's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from gpupipe.errors import BadConfig
from gpupipe.evaluation.row_table import FigureTable
from gpupipe.saving.scorer import Scorer
from gpupipe.schema import Field, Schema
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import check_choice, check_instance, check_integer, check_seed, refuse_argument
from gpupipe.tensors import Batch, FeatureTable, Loader, Permutation, Ragged
from gpupipe.training import Trainer
from gpupipe.training.loop.run_start import choose_loss_and_metrics
from gpupipe.training.loop.trainer import compute_metrics

_REMEDY = "pipeline.loader(data), on a part of the rows that fits"


def get_block(where: str, name: str, loader: object, remedy: str = _REMEDY) -> FeatureTable:
    """Return a loader's block; `BadConfig` where its rows are not in memory."""
    block = None if getattr(loader, "residency", None) == "stream" else getattr(loader, "table", None)
    if isinstance(block, FeatureTable):
        return block
    problem, expected = "its rows are not in memory as one block", "a loader with a resident block"
    raise refuse_argument(where, name, type(loader).__name__, expected, remedy, problem=problem)


class Importance(FigureTable):
    """Importance of each feature, the most important first: a metric, its `value`, and its losses per permutation.

    Example:
        >>> Importance({"night": [0.0, 0.0], "distance": [0.2, 0.4]}, "auc", 0.75)
        auc 0.75, lost without
        feature   mean  std
        distance   0.3  0.1
        night        0    0
    """

    _formats: ClassVar[Mapping[str, str]] = {"std": ".2g"}

    def __init__(self, losses: Mapping[str, Sequence[float]], metric: str, value: float) -> None:
        self.losses, self.metric, self.value = losses, metric, value
        rows = [
            {"feature": n, "mean": statistics.fmean(each), "std": statistics.pstdev(each)} for n, each in losses.items()
        ]
        self.rows = sorted(rows, key=lambda row: -row["mean"])

    @property
    def _title(self) -> str:
        return f"{self.metric} {self.value:.4g}, lost without"

    @property
    def _bars(self) -> list[float]:
        longest = max((row["mean"] for row in self.rows), default=0)
        return [max(row["mean"], 0) / longest if longest > 0 else 0.0 for row in self.rows]


@answer_calls
def importance(
    model: Trainer | Scorer | nn.Module, loader: Loader | Any, *, metric: str = "auto", repeats: int = 5, seed: int = 0
) -> Importance:
    """Compute the loss of a metric for each permuted feature, what matters most first: its mean and deviation.

    Features that say the same stand in for each other: permuting one of them alone costs little. Rows come in the order
    of the block whatever the loader's; the host waits once per feature and permutation. The model is evaluated on the
    loader's block, which should not be the one it learned from; weights count.

    Args:
        model: a trained one, in its trainer, in what `gp.load` gives, or by itself.
        loader: with what `gp.load` gives, a Dataset or a frame will do, with its target.
        metric: a name among the trainer's figures, "loss" included; "auto" is its first metric, else the loss.
        repeats: permutations, the same for all features.
        seed: of the permutations.

    Raises `BadConfig`: a loader without a resident block, fewer than one repeat, no such metric or one that is not
    defined.
    Memory: as `Trainer.evaluate`, and on the block's device 8 bytes per row for the permutation and 4 for the permuted
        column (of numbers as bfloat16: for all of them; of lists: their elements, and 16 bytes for each meanwhile).

    Example:
        >>> import gpupipe as gp, pandas as pd
        >>> frame = pd.DataFrame({"a": [0.0, 1.0] * 50, "b": 0.5, "y": [True, False] * 50})
        >>> pipeline = gp.Pipeline([], gp.Features(["a", "b"], target="y")).fit(frame)
        >>> model = gp.models.Linear.from_schema(pipeline.schema)
        >>> importance(model, pipeline.loader(frame), metric="loss")["b"]["mean"]
        0.0
    """
    remedy = "gp.importance(trainer, pipeline.loader(valid))"
    kinds = (Trainer, Scorer, nn.Module)
    check_instance(importance, kinds, "a Trainer, what gp.load gives, or a torch.nn.Module", remedy=remedy, model=model)
    check_integer(importance, "[1, inf)", repeats=repeats)
    check_seed(importance, seed=seed)
    if isinstance(model, Scorer) and not isinstance(loader, Loader):
        loader = model.pipeline.loader(loader)
    block = get_block("importance", "loader", loader)
    module = model.model if isinstance(model, Scorer | Trainer) else model
    if module is None:
        remedy = "gp.save(path, pipeline, model)"
        raise BadConfig("importance", "there is no model", expected="a pipeline saved with one", remedy=remedy)
    trainer = model if isinstance(model, Trainer) else Trainer(module)
    whole = compute_metrics(trainer, _Rows(loader))
    check_choice("importance", ["auto", *whole], metric=metric)
    name = next((name for name in whole if name != "loss"), "loss") if metric == "auto" else metric
    _, metrics = choose_loss_and_metrics(trainer, loader)
    sign = 1 if any(each.name == name and each.higher_is_better for each in metrics) else -1
    features = [*block.schema.numeric, *block.schema.categorical, *block.schema.lists]
    losses: dict[str, list[float]] = {item.name: [] for item in features}
    for repeat in range(int(repeats)):
        order = Permutation(len(block), seed=int(seed), epoch=repeat).order(block.device)
        for item in features:
            losses[item.name].append(sign * (whole[name] - compute_metrics(trainer, _Rows(loader, item, order))[name]))
    return Importance(losses, name, whole[name])


class _Rows:
    """Loader's rows in the order of its block, with one feature permuted if requested."""

    def __init__(self, loader: Loader, item: Any = None, order: Tensor | None = None) -> None:
        block, self.device, self.target_units = loader.table, loader.device, loader.target_units
        self.schema, self._item = block.schema, item
        self._values: Any = None
        self._in_order = Loader(block, batch_size=loader.batch_size, device=self.device, target_units=self.target_units)
        if order is not None:
            self._find = _find_feature(self.schema, item)
            values = self._find(block)
            self._values = values.take(order) if isinstance(values, Ragged) else values[order].to(self.device)

    def __len__(self) -> int:
        return len(self._in_order)

    def __iter__(self) -> Iterator[Batch]:
        start = 0
        for batch in self._in_order:  # copies of the block's rows, which may be written to
            end = start + len(batch)
            if isinstance(self._values, Ragged):
                batch.lists[self._item.name] = self._values.narrow(start, end)
            elif self._values is not None:
                self._find(batch)[:] = self._values[start:end]
            yield batch
            start = end


def _find_feature(schema: Schema, item: Field) -> Callable[[Any], Any]:
    """Return what gets a feature of a block or a batch: its lists, or a view of its column."""
    for part, fields in (("numeric", schema.numeric), ("codes", schema.categorical)):
        if item in fields:
            position = fields.index(item)
            return lambda rows: getattr(rows, part)[:, position]
    return lambda rows: rows.lists[item.name]
