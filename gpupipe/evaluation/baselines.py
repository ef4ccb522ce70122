"""Baseline models: trained on the same rows as a network, and compared in one table."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gpupipe.backend.baselines import BASELINES, MatrixLayout, make_baselines
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.schema import Field, Schema
from gpupipe.support.text import TableReport, flush_right
from gpupipe.support.validation import as_list, check_integer, refuse_argument
from gpupipe.tensors import FeatureTable, Loader, Ragged
from gpupipe.training import Trainer
from gpupipe.training.loop.losses import LOSS_OF_TASK
from gpupipe.training.loop.metrics import InUnits, Metric, choose_metrics

EXACT_IN_FLOAT32 = 1 << 24
MAX_ELEMENTS = 100  # ids of a feature of lists that have a column of their counts, the most frequent ones

_log = logging.getLogger("gpupipe")


class RowTable(TableReport):
    """Base class of tables of figures, a row by name; displays itself."""

    rows: list[dict[str, Any]]
    _formats: ClassVar[Mapping[str, str]] = {"seconds": ".1f", "std": ".2g"}

    def __getitem__(self, name: str) -> dict[str, Any]:
        return next(row for row in self.rows if name == next(iter(row.values())))

    def _table(self) -> list[list[str]]:
        head = list(self.rows[0]) if self.rows else ["model"]
        return flush_right([head, *([self._format(name, row[name]) for name in head] for row in self.rows)])

    def _format(self, name: str, value: Any) -> str:
        return (value or "") if isinstance(value, str | None) else format(value, self._formats.get(name, ".4g"))


class Baselines(RowTable):
    """Comparison of models by their metrics on the same rows, the best first.

    Args:
        rows: for each model its name, its metrics by name (None where not defined) and the seconds its fit took (None
            for a network, whose history has them).
        order: the metric that orders them.
        notes: which features the models get in another form than the network.

    Example:
        >>> Baselines([{"model": "Ridge", "rmse": 2.0, "seconds": 0.1}])
        model  rmse  seconds
        Ridge     2      0.1
    """

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], order: Metric | None = None, notes: Sequence[str] = ()
    ) -> None:
        self.rows, self.notes = [dict(row) for row in rows], list(notes)
        if order is not None:
            name, sign = order.name, -1 if order.higher_is_better else 1
            self.rows.sort(key=lambda row: (row[name] is None, sign * (row[name] or 0)))


def baselines(
    train: Loader,
    valid: Loader,
    trainers: Trainer | Mapping[str, Trainer] | None = None,
    *,
    only: str | Sequence[str] | None = None,
    metrics: str | Sequence[str | Metric] = "auto",
    seed: int = 0,
) -> Baselines:
    """Fit other models on the rows a network learned from, and compare all on the same other rows, the best first.

    "linear" (logistic or ridge regression, ids one-hot), "forest", "hist-gradient-boosting" and, if installed,
    "xgboost", each with its library's settings, on the host; where the rows lie on a GPU, XGBoost works there (not yet
    run on one). Lists of ids become counts of their first 100 ids and of all others; lists of numbers become their
    length and mean. The result says so. Metrics are in the target's own units.

    Args:
        train: whose block they learn from, weights included. A shuffled loader is as good as any: the block counts.
        valid: whose block they are compared on, weights included.
        trainers: trained networks to compare with them: one, or several by the names to show.
        only: some of these models, or one; XGBoost asked for by name has to be there.
        metrics: as for `Trainer`; the first of them orders the table.
        seed: the random state of the models that have one.

    Raises:
        BadConfig: a loader without a resident block, no target, an unknown model, or trainers that are none.
        SchemaMismatch: the loaders have other columns.
        BackendMissing: XGBoost was asked for and is not installed.

    Memory: the features once more as float32 on the host, and what the libraries make of them (about as much again). A
        feature of lists takes up to 400 bytes a row, and 20 bytes for each element meanwhile.

    Example:
        >>> import gpupipe as gp, pandas as pd
        >>> frame = pd.DataFrame({"x": range(300), "y": [v // 100 % 2 for v in range(300)]})
        >>> loader = gp.Pipeline([], gp.Features(["x"], target="y == 1")).fit(frame).loader(frame)
        >>> baselines(loader, loader, only="hist-gradient-boosting")["HistGradientBoostingClassifier"]["auc"] > 0.99
        True
    """
    networks: Any = {type(trainers.model).__name__: trainers} if isinstance(trainers, Trainer) else trainers or {}
    if not isinstance(networks, Mapping) or not all(isinstance(each, Trainer) for each in networks.values()):
        expected, remedy = "a Trainer, or several by the names to show", "gp.baselines(train, valid, {'wide': trainer})"
        raise refuse_argument("baselines", "trainers", type(trainers), expected, remedy, problem="not trainers by name")
    check_integer(baselines, "[0, inf)", seed=seed)
    learned, judged = get_block("baselines", "train", train), get_block("baselines", "valid", valid)
    names, others = (
        [item.name for item in (*s.numeric, *s.categorical, *s.lists, *s.targets)]
        for s in (learned.schema, judged.schema)
    )
    if names != others:
        problem, expected = "the loaders have other columns", ", ".join(names)
        raise SchemaMismatch("baselines", problem, got=others, expected=expected, remedy="loaders of one pipeline")
    columns, notes = _describe_matrix(learned.schema, seed), [_note(item) for item in learned.schema.lists]
    for note in notes:
        _log.info("baselines: %s", note)
    models = make_baselines(BASELINES if only is None else as_list(only), columns, on_gpu=learned.device.type == "cuda")
    units, batch = valid.target_units, judged.batch_of(judged.words)
    chosen = choose_metrics(metrics, LOSS_OF_TASK[columns.task])
    measures = chosen if units is None else [InUnits(metric, units) for metric in chosen]
    rows: list[dict[str, Any]] = []

    def judge(name: str, output: Tensor, seconds: float | None) -> None:
        for metric in measures:
            metric.reset()
            metric.update(output.to(judged.device), batch)
        rows.append({"model": name, **{metric.name: metric.compute() for metric in measures}, "seconds": seconds})

    for name, trainer in networks.items():
        judge(name, trainer.predict(Loader(judged, batch_size=valid.batch_size)), None)
    features, asked = _make_matrix(learned, columns), _make_matrix(judged, columns)
    target, weight = (None if part is None else part.cpu().numpy() for part in (learned.target, learned.weight))
    for model in models:
        started = time.perf_counter()
        model.fit(features, target, weight)
        seconds = time.perf_counter() - started
        judge(model.name, torch.as_tensor(model.outputs(asked)), seconds)
    return Baselines(rows, measures[0] if measures else None, notes)


def _make_matrix(block: FeatureTable, columns: MatrixLayout) -> Any:
    """Concatenate the features on the host: numbers, lists, ids."""
    kind = torch.float32 if all(n <= EXACT_IN_FLOAT32 for n in columns.cardinalities) else torch.float64
    bags = [_bag(block.lists[item.name], _width(item)).to(kind) for item in block.schema.lists]
    return torch.cat([block.numeric.to(kind), *bags, block.codes.to(kind)], 1).cpu().numpy()


def _describe_matrix(schema: Schema, seed: int) -> MatrixLayout:
    if schema.target is None or schema.task is None:
        problem, remedy = "nothing to learn", "gp.Features(..., target='column')"
        raise BadConfig("baselines", problem, got=schema.names, expected="a column with the role target", remedy=remedy)
    classes = schema.target.classes
    outputs = len(classes) if classes is not None and schema.task == "multiclass" else len(schema.targets)
    numbers = len(schema.numeric) + sum(map(_width, schema.lists))
    return MatrixLayout(numbers, [item.cardinality or 0 for item in schema.categorical], schema.task, outputs, seed)


def _width(item: Field) -> int:
    """Return the number of columns that a list feature becomes."""
    return 2 if item.cardinality is None else min(item.cardinality, MAX_ELEMENTS)


def _bag(lists: Ragged, width: int) -> Tensor:
    """Count how often each id is in a list (n x width), large ids as unknown; of number lists length and mean."""
    if lists.values.is_floating_point():
        sums = torch.segment_reduce(lists.values, "sum", offsets=lists.offsets)
        return torch.stack([lists.lengths.float(), sums / lists.lengths.clamp_min(1)], 1)
    rows = torch.repeat_interleave(torch.arange(len(lists), device=lists.values.device), lists.lengths)
    places = rows * width + torch.where(lists.values < width, lists.values, 1)
    return torch.bincount(places, minlength=len(lists) * width).float().view(-1, width)


def _note(item: Field) -> str:
    if item.cardinality is None:
        return f"{item.name}: its lists' length and mean"
    rest = item.cardinality - _width(item)
    others = f", the other {rest:,} together as unknown" if rest else ""
    return f"{item.name}: counts of {_width(item):,} ids in its lists{others}"


def get_block(where: str, name: str, loader: object) -> FeatureTable:
    """Return a loader's block; `BadConfig` where its rows are not in memory."""
    block = getattr(loader, "table", None)
    if isinstance(block, FeatureTable):
        return block
    expected, remedy = "a loader with a resident block", "pipeline.loader(data), on a part of the rows that fits"
    problem = "its rows are not in memory as one block"
    raise refuse_argument(where, name, type(loader).__name__, expected, remedy, problem=problem)
