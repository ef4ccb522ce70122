"""Cross-validation: a model fitted anew on each fold, its metrics on the rows left out, and their predictions."""

from __future__ import annotations

import logging
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from inspect import signature
from typing import Any

import torch

from gpupipe.backend import Column, Frame, resolve, select
from gpupipe.errors import BadConfig, BadData, LeakageError
from gpupipe.evaluation.row_table import FigureTable
from gpupipe.io import Dataset, run_partitions
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.saving.scorer import Scorer
from gpupipe.support.calls import answer_calls
from gpupipe.support.text import flush_right
from gpupipe.support.validation import is_sequence, refuse_argument
from gpupipe.tensors import Loader
from gpupipe.training import Trainer
from gpupipe.training.loop.metrics import Metric
from gpupipe.training.loop.run_start import choose_loss_and_metrics

_FACTS = ("fold", "rows", "seconds")  # of a fold, besides its metrics

_log = logging.getLogger("gpupipe")


@answer_calls
class CrossValidation(FigureTable):
    """Cross-validation's figures, a row per fold, and the fitted models; displays itself with mean and deviation.

    Rows have the fold's number, the rows that were validated, each metric, and the seconds the fit took.

    Example:
        >>> CrossValidation([{"fold": 1, "rows": 50, "auc": 0.75, "seconds": 2.0}], [])
        fold  rows   auc  seconds
        1       50  0.75      2.0
        mean        0.75      2.0
        std            0      0.0
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], scored: Sequence[tuple[Scorer, Dataset]]) -> None:
        self.rows, self._scored = [dict(row) for row in rows], list(scored)

    @property
    def scorers(self) -> list[Scorer]:
        """The fitted pipelines and models, a scorer per fold."""
        return [scorer for scorer, _ in self._scored]

    def mean(self) -> dict[str, float]:
        """Compute the mean of each metric over the folds."""
        return {name: statistics.fmean(values) for name, values in self._metrics.items()}

    def std(self) -> dict[str, float]:
        """Compute the standard deviation of each metric over the folds, as NumPy's `std`."""
        return {name: statistics.pstdev(values) for name, values in self._metrics.items()}

    @cached_property
    def predictions(self) -> Frame:
        """Out-of-fold predictions: for each validated row what the model says that has not seen it, in the rows' order.

        A frame of `fold`, then what `Scorer.predict_proba` gives (a regression: `Scorer.predict`), kept columns
        included. Its index is the row's identity: its number in the frame or file, each further file counting from
        another 2^40. Drawn folds have every row once (but those that the pipeline's steps leave out), folds forward in
        time the rows of their parts. Computed when first asked for. Raises `BadData`: folds of other classes.

        Memory: a few numbers per row, twice while they are put in order; one partition per thread.
        """
        backend = select(resolve(self.scorers[0].pipeline.backend))
        frames, ids, fields = list[Frame](), list[Any](), None
        for number, (scorer, valid) in enumerate(self._scored, start=1):
            predict = scorer.predict if scorer.schema.task == "regression" else scorer.predict_proba
            predicted = predict(valid)
            if fields is not None and [item.name for item in predicted.schema] != fields:
                problem, expected = "the folds' predictions have other columns", "the same classes and columns in all"
                got, remedy = predicted.schema.names, "kfold(..., stratify=) by the target's column"
                raise BadData(f"cross_validate, fold {number}", problem, got=got, expected=expected, remedy=remedy)
            fields = predicted.schema.names
            for frame, row_ids in run_partitions(
                partial(_read_rows, number, backend.name), predicted, backend.name, f"predict fold {number}"
            ):
                frames.append(frame)
                ids.append(row_ids)
        row_ids = backend.xp.concatenate(ids)
        order = backend.xp.argsort(row_ids, kind="stable")
        whole = backend.take(backend.concat(frames), order)
        whole.index = row_ids[order].astype("int64")
        return whole

    @property
    def _metrics(self) -> dict[str, list[float]]:
        names = [name for name in self.rows[0] if name not in _FACTS] if self.rows else []
        return {name: [row[name] for row in self.rows] for name in names}

    def _table(self) -> list[list[str]]:
        head = list(self.rows[0]) if self.rows else list(_FACTS)
        seconds = [row["seconds"] for row in self.rows]
        last: list[dict[str, Any]] = []
        if self.rows:
            last += [{"fold": "mean", "rows": None, **self.mean(), "seconds": statistics.fmean(seconds)}]
            last += [{"fold": "std", "rows": None, **self.std(), "seconds": statistics.pstdev(seconds)}]
        return flush_right([head, *([self._format(name, row[name]) for name in head] for row in [*self.rows, *last])])

    def _format(self, name: str, value: Any) -> str:
        return f"{value:,}" if isinstance(value, int) else super()._format(name, value)


@answer_calls
def cross_validate(
    fit: Callable[[Dataset, Dataset], Any],
    folds: Sequence[tuple[Dataset, Dataset]],
    *,
    metrics: str | Sequence[str | Metric] = "auto",
) -> CrossValidation:
    """Fit a model on each fold, and compute its metrics on the fold's rows to validate.

    `fit(train, valid)` makes a pipeline and a model, both new, fits them on `train`, and returns the pipeline and the
    trainer (or the model), or a `Scorer`. Nothing that it learns outside of it is checked: a pipeline that was fitted
    on all rows has seen those that judge it. It may stop early by `valid`, which flatters the figures a little; to be
    strict let it split `train` again.

    Args:
        fit: the function, called once per fold.
        folds: pairs of datasets, `dataset.kfold(...)`.
        metrics: as for `Trainer`; "auto" for those of the trainer that `fit` returns.

    Raises:
        BadConfig: `folds` are no pairs of datasets, or `fit` takes or returns something else.
        BadData: a fold whose rows to validate are of one class, or none, or for which a metric is not defined.
        LeakageError: `fit` returns the pipeline or the model of the fold before, or a pipeline that was fitted on rows
            of `valid`.

    Memory: as what `fit` does, and the models and pipelines of all folds.

    Example:
        >>> import gpupipe as gp, pandas as pd
        >>> data = gp.from_frame(pd.DataFrame({"x": range(200), "late": [number >= 120 for number in range(200)]}))
        >>> def fit(train, valid):
        ...     pipeline = gp.Pipeline([], gp.Features((["x"], gp.preprocessing.StandardScaler()), target="late"))
        ...     trainer = gp.Trainer(gp.models.Linear.from_schema(pipeline.fit(train).schema), max_epochs=20)
        ...     trainer.fit(pipeline.loader(train, batch_size=32, shuffle=True))
        ...     return pipeline, trainer
        >>> scores = cross_validate(fit, data.kfold(4, stratify="late"))
        >>> scores.mean()["auc"], len(scores.predictions)
        (1.0, 200)
    """
    function: Any = fit
    expected, remedy = "a function of a dataset to train on and one to validate on", "def fit(train, valid): ..."
    if not callable(function):
        raise refuse_argument(cross_validate, "fit", fit, expected, remedy, problem="not a function")
    try:
        signature(function).bind(None, None)
    except TypeError as cause:
        problem = f"the function takes {signature(function)}"
        raise refuse_argument(cross_validate, "fit", fit, expected, remedy, problem=problem) from cause
    pairs: list[Any] = list(folds) if is_sequence(folds) and not isinstance(folds, Dataset) else []
    if not pairs or not all(isinstance(pair, tuple | list) and [*map(type, pair)] == [Dataset] * 2 for pair in pairs):
        expected, remedy = "pairs of datasets", "gp.from_frame(data).kfold(5)"
        raise refuse_argument(cross_validate, "folds", type(folds), expected, remedy, problem="no folds")
    rows, scored, repeated = list[dict[str, Any]](), list[tuple[Scorer, Dataset]](), _Repeated()
    for number, (train, valid) in enumerate(pairs, start=1):
        where, started = f"cross_validate, fold {number}", time.perf_counter()
        try:
            with repeated.left_out():
                result = fit(train, valid)
            seconds = time.perf_counter() - started
            scorer, trainer = _read_result(result, where, metrics)
            _check_new(scorer, scored, train, valid, where)
            loader, threshold = scorer.pipeline.loader(valid), scorer.threshold
            row = {"fold": number, **_evaluate(trainer, loader, threshold, where), "seconds": seconds}
        except Exception as error:
            error.add_note(f"in fold {number} of {len(pairs)}")
            raise
        rows.append(row)
        scored.append((scorer, valid))
        figures = ", ".join(f"{name} {value:.4g}" for name, value in row.items() if name not in _FACTS)
        _log.info("cross_validate: fold %d of %d: %s; fitted in %.1f s", number, len(pairs), figures, seconds)
    return CrossValidation(rows, scored)


class _Repeated(logging.Filter):
    """Filter for warnings on the data that an earlier fold has given, with whatever numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._earlier, self._latest = set[str](), set[str]()

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Leave the warnings of earlier folds out of the log of this one."""
        _log.addFilter(self)
        try:
            yield
        finally:
            _log.removeFilter(self)
            self._earlier |= self._latest

    def filter(self, record: logging.LogRecord) -> bool:
        text = re.sub(r"(?<!\w)\d[\d,.]*", "#", record.getMessage())
        self._latest.add(text)
        return record.levelno < logging.WARNING or text not in self._earlier


def _read_result(result: Any, where: str, metrics: Any) -> tuple[Scorer, Trainer]:
    """Return what `fit` returned as a scorer, and a trainer that evaluates its model."""
    is_scorer, is_pair = isinstance(result, Scorer), isinstance(result, tuple | list) and len(result) == 2
    pipeline, model = (result.pipeline, result.calibrated_model) if is_scorer else result if is_pair else (None, None)
    module = model.model if isinstance(model, Trainer) else model
    if not isinstance(pipeline, Pipeline) or not isinstance(module, torch.nn.Module):
        got = [type(item).__name__ for item in result] if isinstance(result, tuple | list) else type(result)
        expected, remedy = "the pipeline and the trainer, or a gp.Scorer with a model", "return pipeline, trainer"
        raise BadConfig(where, "fit returned something else", got=got, expected=expected, remedy=remedy)
    trainer = model if isinstance(model, Trainer) else Trainer(module)
    scorer = result if is_scorer else Scorer(pipeline, module)
    return scorer, trainer if isinstance(metrics, str) and metrics == "auto" else replace(trainer, metrics=metrics)


def _check_new(
    scorer: Scorer, scored: Sequence[tuple[Scorer, Dataset]], train: Dataset, valid: Dataset, where: str
) -> None:
    """Refuse a model or pipeline of an earlier fold, one that has learned from rows that judge it, or another task."""
    for earlier, _ in scored:
        names = [name for name in ("pipeline", "model") if getattr(earlier, name) is getattr(scorer, name)]
        if names:
            problem = f"fit returned the {' and '.join(names)} of an earlier fold, which learned from these very rows"
            expected, remedy = "a new pipeline and a new model for each fold", "both made inside of fit"
            raise LeakageError(where, problem, expected=expected, remedy=remedy)
        if earlier.schema.task != scorer.schema.task:
            problem, expected = "its target is another task than that of the folds before", f"{earlier.schema.task}"
            task = "regression" if earlier.schema.task == "regression" else "classification"
            remedy = f"Features(..., task={task!r})"
            raise BadConfig(where, problem, got=scorer.schema.task, expected=expected, remedy=remedy)
    rows, valid_rows = (scorer.pipeline._describe_rows(part) for part in (train, valid))
    if rows is not None and rows.may_share(valid_rows):
        problem, expected = "rows that judge it may be among those of train, too", "folds that share no row"
        remedy = "data.kfold(..., by=...) by a column that copies of a row share, such as its number"
        raise LeakageError(where, problem, expected=expected, remedy=remedy)
    if scorer.pipeline._shares_rows(valid):
        problem, expected = "the pipeline was fitted on rows that judge it", "one fitted on `train` alone"
        raise LeakageError(where, problem, expected=expected, remedy="pipeline.fit(train) inside of fit")


def _evaluate(trainer: Trainer, loader: Loader, threshold: Any, where: str) -> dict[str, float]:
    """Count the rows of a fold and compute the trainer's metrics; refuse rows for which they are not defined."""
    schema, remedy = loader.schema, "kfold(..., stratify=) by the target's column, or fewer folds"
    if not loader.num_rows:
        problem, expected = "no row with a target to validate", "rows in each fold"
        raise BadData(where, problem, expected=expected, remedy="fewer folds")
    has_classes = schema.task in ("binary", "multiclass") and loader.residency != "stream"
    target: Any = loader.table.target if has_classes else None
    if target is not None and bool((target == target[0]).all()):
        labels: Any = schema.target and schema.target.classes
        expected = "rows of two classes at least to validate"
        problem = "all rows to validate are of one class"
        raise BadData(where, problem, got=labels[int(target[0])], expected=expected, remedy=remedy)
    report = trainer.evaluate(loader, threshold=threshold)
    names = ["loss", *(metric.name for metric in choose_loss_and_metrics(trainer, loader)[1])]
    undefined = [name for name in names if name not in report]
    if undefined:
        problem = f"{', '.join(undefined)} is not defined for its {loader.num_rows:,} rows to validate"
        expected = "rows of every class, or of a target that is not constant"
        raise BadData(where, problem, expected=expected, remedy=remedy)
    return {"rows": loader.num_rows, **{name: report[name] for name in names}}


def _read_rows(number: int, backend_name: str, part: Dataset) -> tuple[Frame, Any]:
    """Read a partition of predictions as a plain frame with the fold's number, and the rows' identities."""
    backend = select(backend_name)
    (partition,) = part.partitions
    coded = part.read(partition, None, backend)
    row_ids = partition.frame_ids(coded, backend)
    plain = backend.decode(coded, part.query.owned_columns, part.schema).reset_index(drop=True)
    plain = plain.rename(columns={"fold": "fold_keep"})  # as of other columns whose name a prediction has
    fold = Column("int64", backend.xp.full(len(plain), number, dtype="int64"))
    return backend.select(backend.assign(plain, {"fold": fold}), ["fold", *plain.columns]), row_ids
