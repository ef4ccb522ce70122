"""Comparison of networks and estimators that learn from the same rows, by their metrics on the same other rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.evaluation.entrants import HELD_OUT, TrainRows, make_entrants, measure
from gpupipe.evaluation.fit import fit_proposal
from gpupipe.evaluation.host_rows import describe_lists, make_layout
from gpupipe.evaluation.importance import get_block
from gpupipe.evaluation.row_table import FigureTable
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.saving.scorer import Scorer
from gpupipe.schema import Schema
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import check_choice, check_integer
from gpupipe.tensors import FeatureTable, Loader
from gpupipe.training.loop.losses import LOSS_OF_TASK
from gpupipe.training.loop.metrics import METRICS, InUnits, Metric, check_task, choose_metrics, make_quantile_metrics
from gpupipe.training.loop.quantiles import get_quantiles
from gpupipe.training.loop.settings import warn_of_shared_rows

_log = logging.getLogger("gpupipe")


class Comparison(FigureTable):
    """Comparison of models by their metrics on the same rows, the best by `metric` first.

    Rows have a model's name, its metrics (None where not defined), the `difference` of the first of them to the best
    model's, the seconds of its fit (None of a model that was trained before) and of its predictions, its bytes in
    memory, the parameters of a network or linear model or the nodes of trees, and how it took ids. `models` has the
    fitted models by name; `gp.save` takes the networks among them, "linear" and "xgboost" too. `pipeline` is the one
    that `compare(target=)` has fitted.

    Example:
        >>> rows = [{"model": "linear", "auc": 0.75}, {"model": "MLP", "auc": 0.875}]
        >>> comparison = Comparison(rows, "auc", higher_is_better=True)
        >>> comparison.best, comparison["linear"]["difference"]
        ('MLP', -0.125)
        >>> comparison
        model     auc  difference
        MLP     0.875           0
        linear   0.75      -0.125
    """

    _formats: ClassVar[Mapping[str, str]] = {
        "difference": ".3g",
        "fit_seconds": ".1f",
        "predict_seconds": ".2f",
        **dict.fromkeys(("bytes", "parameters", "nodes"), ","),
    }

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        metric: str,
        *,
        higher_is_better: bool,
        models: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
        pipeline: Pipeline | None = None,
    ) -> None:
        sign = -1 if higher_is_better else 1
        ordered = sorted(rows, key=lambda row: (row[metric] is None, sign * (row[metric] or 0)))
        first = ordered[0][metric] if ordered else None
        self.metric, self.models, self.notes, self.pipeline = metric, dict(models or {}), list(notes), pipeline
        self.rows = []
        for row in ordered:
            difference = None if row[metric] is None else row[metric] - first
            head = {"model": row["model"], metric: row[metric], "difference": difference}
            self.rows.append(head | {name: value for name, value in row.items() if name not in head})

    @property
    def best(self) -> str:
        """The name of the best model: its row is `comparison[name]`, the model itself `comparison.models[name]`."""
        return str(self.rows[0]["model"])

    @property
    def scorer(self) -> Scorer:
        """The pipeline that `compare(target=)` has fitted and the best of the models that `gp.save` takes.

        A warning names an estimator that is better. Raises `BadConfig`: loaders were compared, or only estimators.
        """
        names = [row["model"] for row in self.rows if isinstance(self.models.get(row["model"]), nn.Module)]
        if self.pipeline is None or not names:
            problem = "there is no pipeline" if self.pipeline is None else "only estimators were compared"
            expected = "compare(train, valid, models, target=...) of tables"
            remedy = (
                f"gp.Scorer(pipeline, comparison.models[{names[0]!r}])" if names else "models=['linear', 'xgboost']"
            )
            raise BadConfig("Comparison.scorer", problem, expected=expected, remedy=remedy)
        if names[0] != self.best:
            text = "Comparison.scorer: %s, of which gp.save takes no model, is better than %s by %.3g %s"
            _log.warning(text, self.best, names[0], abs(self[names[0]]["difference"] or 0), self.metric)
        return Scorer(self.pipeline, self.models[names[0]])

    @property
    def _bars(self) -> list[float]:
        differences = [abs(row["difference"] or 0) for row in self.rows]
        longest = max(differences, default=0) or 1
        return [difference / longest for difference in differences]


@answer_calls
def compare(
    train: Loader | Any,
    valid: Loader | Any,
    models: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    target: str | Sequence[str] | None = None,
    task: str = "auto",
    metric: str = "auto",
    seed: int = 0,
) -> Comparison:
    """Fit models on the rows of `train`, judge them on those of `valid`, and return the table of all, the best first.

    Estimators learn from all rows of `train`. Networks and gp.models.XGB learn from nine tenths and stop by the last
    one, of each class the same share. By that tenth, too, boosted trees choose how they take ids: as categories, as
    categories only in columns of at most 32, or as numbers. Nothing is fitted or chosen by `valid`. Weights count
    everywhere; metrics are in the target's own units.

    Args:
        train: a loader with its rows in memory as one block, and the target among them.
        valid: another of the same pipeline, on other rows.
        target: with it `train` and `valid` are tables, as for `gp.fit`: their features are those that `Features.auto`
            proposes, and `comparison.scorer` is the best model behind them.
        task: beside a target, "regression", "classification" or "auto", as of `gp.Features`.
        models: objects or names, in a list, or in a mapping from the names to show. The names are "linear" (logistic
            or ridge regression, ids one-hot), "forest" and "hist-gradient-boosting", scikit-learn's, and "xgboost"
            (gp.models.XGB, if XGBoost is installed); None for all. A `Trainer` that has fitted and what `gp.load` gives
            are judged as they are; any other `Trainer` is fitted here, and so is a copy of an `nn.Module`, by
            `gp.Trainer(module)`, or what a class of `gp.models` or a function of the schema, such as `gp.models.auto`,
            makes. All else has to have scikit-learn's `fit`, and `predict` (a regression) or
            `predict_proba`; a copy of it gets a frame of the features by name, ids as integers.
        metric: what orders the table, a name as in `Trainer(metrics=)`; "auto" is the first of the task's, "pinball" of
            models that predict quantiles: all the same ones, and "xgboost" by name the others'.
        seed: of the tenth, the models that are named, and the trainers of modules.

    Lists of ids become counts of their first 100 ids and of all others, for estimators; lists of numbers their length
    and mean, as the result says.

    Raises:
        BadConfig: a loader without a resident block, no target, no models, two of the same name, one that is none.
        BadData: fewer than 10 rows, a target of one class, or an estimator that fails.
        SchemaMismatch: the loaders have other columns, or a network was made for others.
        BackendMissing: "xgboost" was asked for, and XGBoost is not installed.

    Memory: the block once more for its parts, the features as float32 twice on the host; lists up to 400 bytes a row,
        and 20 bytes an element.

    Example:
        >>> import gpupipe as gp, pandas as pd
        >>> frame = pd.DataFrame({"x": range(300), "y": [v // 100 % 2 for v in range(300)]})
        >>> loader = gp.Pipeline([], gp.Features(["x"], target="y == 1")).fit(frame).loader(frame)
        >>> compare(loader, loader, ["linear", "hist-gradient-boosting"]).best
        'hist-gradient-boosting'
    """
    check_integer(compare, "[0, 4294967295]", seed=seed)
    pipeline: Pipeline | None = None
    if target is not None:
        pipeline, train, valid = fit_proposal(train, valid, seed, target=target, task=task)
    remedy = "pipeline.loader(data) on a part that fits, or target='column' beside two tables"
    warn_of_shared_rows("compare", train, valid)
    pairs = {"train": train, "valid": valid}
    blocks = {name: get_block("compare", name, loader, remedy) for name, loader in pairs.items()}
    schema = blocks["train"].schema
    _check_columns(schema, blocks["valid"].schema)
    layout = make_layout(schema)
    for name, block in blocks.items():
        _check_target(name, block)
    entrants = make_entrants(models, schema, layout, seed)
    levels = {get_quantiles(entrant.model) for entrant in entrants.values()}
    measures = _choose_measures(metric, schema, valid, levels.pop())
    train_rows, rows = TrainRows(train, layout, seed), list[dict[str, Any]]()
    for name, entrant in entrants.items():
        started = time.perf_counter()
        entrant.fit(train_rows, measures[0])
        fitted = time.perf_counter()
        output = entrant.predict(valid)
        predicted = time.perf_counter()
        row = {"model": name} | {each.name: measure(each, output, blocks["valid"]) for each in measures}
        row |= {"fit_seconds": fitted - started if entrant.fits else None, "predict_seconds": predicted - fitted}
        row |= {"bytes": entrant.count_bytes(), "parameters": None, "nodes": None, **entrant.count_parts()}
        rows.append(row | ({"ids": entrant.ids} if layout.ids else {}))
    empty = {part for part in ("parameters", "nodes") if all(row[part] is None for row in rows)}
    rows = [{name: value for name, value in row.items() if name not in empty} for row in rows]
    notes = [describe_lists(item) for item in schema.lists]
    notes += [note for entrant in entrants.values() for note in entrant.list_notes()]
    for note in notes:
        _log.info("compare: %s", note)
    fitted_models = {name: entrant.model for name, entrant in entrants.items()}
    first = measures[0]
    more: dict[str, Any] = {"models": fitted_models, "notes": notes, "pipeline": pipeline}
    return Comparison(rows, first.name, higher_is_better=first.higher_is_better, **more)


def _check_columns(schema: Schema, other: Schema) -> None:
    """Raise `SchemaMismatch` where the loaders have other columns."""
    names, other_names = (
        [item.name for item in (*each.numeric, *each.categorical, *each.lists, *each.targets)]
        for each in (schema, other)
    )
    if names != other_names:
        problem, expected = "the loaders have other columns", ", ".join(names)
        raise SchemaMismatch("compare", problem, got=other_names, expected=expected, remedy="loaders of one pipeline")


def _check_target(name: str, block: FeatureTable) -> None:
    """Raise `BadData` for few rows, and for classes of which there is one."""
    if len(block) < HELD_OUT:
        problem, expected = "too few rows", f"at least {HELD_OUT}"
        raise BadData(
            f"compare({name}=)", problem, got=len(block), expected=expected, remedy="a larger part of the data"
        )
    target = block.target
    if block.schema.task == "regression" or target is None:
        return
    for item, column in zip(block.schema.targets, target.reshape(len(target), -1).unbind(1), strict=True):
        if bool((column == column[0]).all()):
            problem = f"all rows have one class of {item.name!r}"
            got = column[0].item() if item.classes is None else item.classes[int(column[0])]
            remedy = "dataset.split(fraction=0.8, stratify='column')"
            raise BadData(f"compare({name}=)", problem, got=got, expected="rows of two classes at least", remedy=remedy)


def _choose_measures(metric: str, schema: Schema, valid: Loader, quantiles: tuple[float, ...] | None) -> list[Metric]:
    """Choose the metrics of the task or of quantiles, the one that orders the table first, in the target's units."""
    available = {name: METRICS[name] for name in METRICS if _fits_task(name, schema)}
    loss = LOSS_OF_TASK[schema.task or ""]
    if quantiles is not None:
        available, loss = make_quantile_metrics(quantiles), "pinball"
    check_choice(compare, ["auto", *available], metric=metric)
    measures = choose_metrics("auto", loss, quantiles=quantiles)
    if metric != "auto":
        measures = [available[metric](), *(each for each in measures if each.name != metric)]
    units = valid.target_units
    return measures if units is None else [InUnits(each, units) for each in measures]


def _fits_task(name: str, schema: Schema) -> bool:
    try:
        check_task([METRICS[name]()], schema)
    except BadConfig:
        return False
    return True
