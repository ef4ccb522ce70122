"""Comparison of a trained model: with baseline models on the same rows, and with itself on permuted features.

Permutation importance is that of Breiman 2001 ("Random forests", section 10), as scikit-learn computes it.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gpupipe.backend.baselines import BASELINES, MatrixLayout, make_baselines
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.saving.artifact import Scorer
from gpupipe.schema import Field, Schema
from gpupipe.support.text import TableReport, flush_right
from gpupipe.support.validation import as_list, check_choice, check_instance, check_integer, check_seed, refuse_argument
from gpupipe.tensors import Batch, FeatureTable, Loader, Permutation, Ragged
from gpupipe.training import Trainer
from gpupipe.training.loop.losses import LOSS_OF_TASK
from gpupipe.training.loop.metrics import InUnits, Metric, choose_metrics
from gpupipe.training.loop.trainer import choose_loss_and_metrics

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
    """Comparison of models by their metrics on the same rows, the best first by the metric `order`.

    Rows have a model's name, its metrics (None where not defined) and the seconds its fit took (None for a network);
    `notes` say which features the models get in another form than the network.

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
    run on one). Lists of ids become counts of their first 100 ids and of all others; lists of numbers their length and
    mean, as the result says. Metrics are in the target's own units.

    They learn from the block of `train` and are compared on that of `valid`, weights included, with the networks in
    `trainers`: one, or several by the names to show. `only` names the models to fit; XGBoost named there has to be
    installed. The first of `metrics`, which are as for `Trainer`, orders the table. `seed` is the random state.

    Raises:
        BadConfig: a loader without a resident block, no target, an unknown model, or trainers that are none.
        SchemaMismatch: the loaders have other columns.
        BackendMissing: XGBoost was asked for and is not installed.

    Memory: the features twice more as float32 on the host; lists up to 400 bytes a row, and 20 bytes an element.

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
    counts = torch.zeros(len(lists) * width, device=places.device)  # torch's bincount takes two int64 beside them
    return counts.scatter_add_(0, places, torch.ones(1, device=places.device).expand(len(places))).view(-1, width)


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


class Importance(RowTable):
    """Importance of each feature, the most important first: a metric, its `value`, and its losses per permutation.

    Example:
        >>> Importance({"night": [0.0, 0.0], "distance": [0.2, 0.4]}, "auc", 0.75)
        auc 0.75, lost without
        feature   mean  std
        distance   0.3  0.1
        night        0    0
    """

    def __init__(self, losses: Mapping[str, Sequence[float]], metric: str, value: float) -> None:
        self.losses, self.metric, self.value = losses, metric, value
        rows = [
            {"feature": n, "mean": statistics.fmean(each), "std": statistics.pstdev(each)} for n, each in losses.items()
        ]
        self.rows = sorted(rows, key=lambda row: -row["mean"])

    @property
    def _title(self) -> str:
        return f"{self.metric} {self.value:.4g}, lost without"


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
    whole = trainer.evaluate(_Rows(loader))
    check_choice("importance", ["auto", *whole], metric=metric)
    name = next((name for name in whole if name != "loss"), "loss") if metric == "auto" else metric
    _, metrics = choose_loss_and_metrics(trainer, loader)
    sign = 1 if any(each.name == name and each.higher_is_better for each in metrics) else -1
    features = [*block.schema.numeric, *block.schema.categorical, *block.schema.lists]
    losses: dict[str, list[float]] = {item.name: [] for item in features}
    for repeat in range(int(repeats)):
        order = Permutation(len(block), seed=int(seed), epoch=repeat).order(block.device)
        for item in features:
            losses[item.name].append(sign * (whole[name] - trainer.evaluate(_Rows(loader, item, order))[name]))
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
            found = self._find(block)
            self._values = found.take(order) if isinstance(found, Ragged) else found[order].to(self.device)

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
            place = fields.index(item)
            return lambda rows: getattr(rows, part)[:, place]
    return lambda rows: rows.lists[item.name]
