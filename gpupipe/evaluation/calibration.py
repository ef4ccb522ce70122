"""Calibration on rows left out: probabilities that are shares, intervals and sets that hold a share of the truth."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

import torch
from torch import Tensor

from gpupipe.backend.isotonic import fit_isotonic
from gpupipe.errors import BadConfig, BadData
from gpupipe.io import as_dataset
from gpupipe.saving.calibration_rows import CalibrationRows, collect_rows, compute_scores
from gpupipe.saving.calibrator import METHODS, Calibrator, Conformal, Curve, Group, Probabilities
from gpupipe.saving.scorer import Scorer
from gpupipe.schema import shorten_list
from gpupipe.support.calls import answer_calls
from gpupipe.support.text import format_count
from gpupipe.support.validation import check_choice, check_instance, check_integer, check_name, check_number

MAX_GROUPS = 10_000
HIGHEST_TEMPERATURE = 1e3
_HALVINGS = 60  # of the interval that holds the logarithm of the temperature: to the last digits of a float64

_log = logging.getLogger("gpupipe")


@answer_calls
def calibrate(
    scorer: Scorer,
    data: Any,
    *,
    method: Literal["conformal", "temperature", "isotonic"] = "conformal",
    coverage: float = 0.9,
    by: str | None = None,
    rows: str | None = None,
    history: Any = None,
    batch_size: int = 32768,
) -> Scorer:
    """Calibrate a scorer on rows that its model has not learned from, and return one that `gp.save` keeps whole.

    "conformal" (the default) makes intervals and sets that hold the truth in a share `coverage` of rows (split
    conformal, Papadopoulos et al. 2002). For a regression `scorer.predict_interval` reaches as far to both sides of the
    prediction as absolute errors say, for a model with quantiles beyond the outer two (Romano et al. 2019,
    arXiv:1905.03222). For classes `scorer.predict_set` takes those of a least probability (Sadinle et al. 2019,
    arXiv:1609.00451).

    "temperature" divides logits by the number of the least log loss (Guo et al. 2017, arXiv:1706.04599), so that the
    likeliest class stays. "isotonic" replaces probabilities by the shares observed, as a rising curve per class: it
    wants some thousand rows. `predict_proba`, `predict` and `evaluate` obey. Calibrate probabilities first, then the
    coverage.

    The coverage holds for rows that could stand in for the calibration's: drawn like these, not for the next season.
    It holds on average over such rows and over draws of the calibration rows, and of several targets for each alone.
    Rows that the model was trained on make everything too narrow: a warning says where rows of the fit are among them;
    after `gp.load`, only of the very same rows. Weights count for probabilities; coverage is of rows.

    Args:
        scorer: what `gp.load` or `gp.Scorer(pipeline, model)` gives.
        data: rows with their target, in a Dataset or a frame.
        method: what is calibrated, and how.
        coverage: the share of rows whose truth is to be inside.
        by: a column of the rows, such as a carrier: for each of its values limits of its own. A group of too few rows
            for the coverage is named in a warning, and has the limits of all rows.
        rows: a condition; only rows for which it is true calibrate, after windows (`T.Lag`) have looked at all.
        history: a Dataset or a frame of earlier rows, which only windows look at.
        batch_size: rows that the model gets at a time.

    Raises:
        BadConfig: an argument that makes no sense, no model, or a task that has no such calibration; or no window would
            look at the history.
        BadData: no target, too few rows for the coverage, rows of one class, or probabilities that no temperature
            calibrates.
        ColumnNotFound: `by`, or a column of the pipeline, is not there.
        LeakageError: features of these rows hold their own target.

    Memory: outputs, targets and weights of all rows, on the device: 8 to 12 bytes a row of one output, 4 more a further
        class, twice while they are put together; "isotonic" copies them to the host.

    Example:
        >>> import gpupipe as gp, pandas as pd
        >>> frame = pd.DataFrame({"x": range(100), "y": [2.0 * number + number % 5 for number in range(100)]})
        >>> pipeline = gp.Pipeline([], gp.Features(["x"], target="y", target_transform=None)).fit(frame[:50])
        >>> scorer = calibrate(gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema)), frame[50:])
        >>> scorer.calibrator
        coverage 0.9 by 50 rows
        rows  count  limit
        all      50    192
        >>> list(scorer.predict_interval(frame))
        ['prediction', 'lower', 'upper']
    """
    check_instance(calibrate, Scorer, "a Scorer", remedy="gp.Scorer(pipeline, trainer.model)", scorer=scorer)
    check_choice(calibrate, ("conformal", *METHODS), method=method)
    check_number(calibrate, "(0, 1)", coverage=coverage)
    check_name(calibrate, None, by=by)
    check_integer(calibrate, "[1, inf)", batch_size=batch_size)
    _check_task(scorer, method, coverage, by)
    dataset, task, device = as_dataset(data), str(scorer.schema.task), str(scorer.device)
    earlier = None if history is None else as_dataset(history)
    probabilities, conformal = None, None
    if scorer.calibrator is not None:
        probabilities, conformal = scorer.calibrator.probabilities, scorer.calibrator.conformal
    if method == "conformal":
        plain = Scorer(scorer.pipeline, scorer.model, device=device, calibrator=Calibrator(probabilities))
        outputs = collect_rows(plain, dataset, by, rows, earlier, batch_size)
        calibrator = Calibrator(probabilities, _fit_limits(plain, outputs, float(coverage), by))
        return Scorer(scorer.pipeline, scorer.model, threshold=scorer.threshold, device=device, calibrator=calibrator)
    if conformal is not None:
        problem, expected = "the scorer's sets are those of its present probabilities", "probabilities calibrated first"
        remedy = f"calibrate(gp.Scorer(pipeline, model), data, method={method!r}), then calibrate(scorer, data)"
        raise BadConfig("calibrate(method=)", problem, got=method, expected=expected, remedy=remedy)
    plain = Scorer(scorer.pipeline, scorer.model, device=device)
    outputs = collect_rows(plain, dataset, None, rows, earlier, batch_size)
    part = _fit_temperatures(outputs, task) if method == "temperature" else _fit_curves(outputs, task)
    if scorer.threshold != plain.threshold:
        text = "calibrate: the threshold %s is of other probabilities, and left out: choose one anew"
        _log.warning(text, scorer.threshold)
    return Scorer(scorer.pipeline, scorer.model, device=device, calibrator=Calibrator(part))


def _check_task(scorer: Scorer, method: str, coverage: float, by: str | None) -> None:
    """Raise `BadConfig` where the scorer has no model, or its task no such calibration."""
    task, where = scorer.schema.task, "calibrate"
    if scorer.model is None or task is None:
        expected, remedy = "a scorer with a model, and a pipeline with a target", "gp.save(path, pipeline, model)"
        raise BadConfig(where, "there is nothing to calibrate", expected=expected, remedy=remedy)
    if method != "conformal" and (task == "regression" or by is not None):
        problem = "a regression has no probabilities" if task == "regression" else "probabilities have no groups"
        remedy = "method='conformal', intervals" if task == "regression" else "by=None"
        raise BadConfig(f"{where}(method={method!r})", problem, got=by or task, expected="classes", remedy=remedy)
    if method != "conformal" and coverage != 0.9:  # the default
        problem, remedy = "probabilities have no coverage", "method='conformal', sets of classes"
        raise BadConfig(f"{where}(method={method!r})", problem, got=coverage, expected="no coverage=", remedy=remedy)
    if method == "conformal" and task == "multilabel":
        problem, remedy = "sets are of classes of one target", "method='temperature' or 'isotonic'"
        raise BadConfig(where, problem, got=task, expected="a regression, or one target", remedy=remedy)
    quantiles = getattr(scorer.model, "quantiles", None)
    if quantiles is not None and len(quantiles) < 2:
        problem, remedy = "an interval reaches beyond two quantiles", "quantiles=(0.05, 0.5, 0.95), or none"
        raise BadConfig(where, problem, got=list(quantiles), expected="two quantiles at least", remedy=remedy)


def _fit_limits(scorer: Scorer, rows: CalibrationRows, coverage: float, by: str | None) -> Conformal:
    """Choose the limits of all rows, and of each group that has enough of them."""
    scores = compute_scores(scorer, rows)
    sign = 1.0 if scorer.schema.task == "regression" else -1.0
    limits = _choose_limits(scores, coverage, sign)
    if limits is None:
        problem = f"{format_count(len(scores), 'row')} cannot tell a coverage of {coverage:g}"
        least = count_least_rows(coverage)
        expected, remedy = (
            f"{least:,} rows at least, and some hundred to be near it",
            "more rows, or a smaller coverage",
        )
        raise BadData("calibrate(coverage=)", problem, expected=expected, remedy=remedy)
    if rows.hashes is None:
        return Conformal(coverage, len(scores), limits)
    hashes, order = rows.hashes.sort(stable=True)
    values, sizes = torch.unique_consecutive(hashes, return_counts=True)
    if len(values) > MAX_GROUPS:
        problem, expected = f"column {by!r} has {len(values):,} values", f"at most {MAX_GROUPS:,} groups"
        raise BadConfig("calibrate(by=)", problem, got=by, expected=expected, remedy="a column of coarser values")
    parts = scores[order].split_with_sizes(sizes.tolist())
    groups = [
        Group(rows.names[value], value % (1 << 64), len(part), _choose_limits(part, coverage, sign))
        for value, part in zip(values.tolist(), parts, strict=True)
    ]
    if few := sorted(group.name for group in groups if group.limits is None):
        text = "calibrate: fewer than %d rows of %s %s, which get the limits of all rows"
        _log.warning(text, count_least_rows(coverage), by, shorten_list(few))
    return Conformal(coverage, len(scores), limits, by, sorted(groups, key=lambda group: group.hash))


def _choose_limits(scores: Tensor, coverage: float, sign: float) -> list[float] | None:
    """Choose of each column the value of rank ceil((n + 1) coverage), times `sign`; None where n is less than that."""
    rank = _rank(len(scores), coverage)
    return None if rank > len(scores) else (scores.sort(0).values[rank - 1] * sign).tolist()


def _rank(num_rows: int, coverage: float) -> int:
    return math.ceil((num_rows + 1) * Fraction(str(coverage)))  # in floats 10 x 0.7 may be a little more than 7


def count_least_rows(coverage: float) -> int:
    """Return the least number of rows n for which ceil((n + 1) coverage) is at most n."""
    share = Fraction(str(coverage))
    return math.ceil(share / (1 - share))


def _fit_temperatures(rows: CalibrationRows, task: str) -> Probabilities:
    """Fit the temperature of the least log loss, of several labels one each."""
    output, weight = rows.output.double(), None if rows.weight is None else rows.weight.double()
    if task == "multiclass":
        _require_classes(rows.target, weight, [0, 1])
        return Probabilities("temperature", [_find_temperature(output, rows.target.long(), weight)])
    temperatures = []
    for logit, truth in zip(_split(output), _split(rows.target), strict=True):
        _require_classes(truth, weight, [0, 1])
        pair = torch.stack([torch.zeros_like(logit), logit], 1)
        temperatures.append(_find_temperature(pair, truth.long(), weight))
    return Probabilities("temperature", temperatures)


def _find_temperature(logits: Tensor, target: Tensor, weight: Tensor | None) -> float:
    """Find the temperature of the least weighted log loss, a convex function of its inverse, by bisection."""
    truth = logits.gather(1, target[:, None])[:, 0]

    def slope(log_inverse: float) -> float:
        chances = torch.softmax(logits * math.exp(log_inverse), 1)
        terms = (chances * logits).sum(1) - truth
        return float((terms if weight is None else terms * weight).sum())

    low, high = -math.log(HIGHEST_TEMPERATURE), math.log(HIGHEST_TEMPERATURE)
    if slope(low) >= 0 or slope(high) <= 0:
        problem = "the outputs say nothing of the target" if slope(low) >= 0 else "all rows are predicted right"
        expected, remedy = "a model that is right more often than not, and not always", "more rows, or other ones"
        raise BadData("calibrate(method='temperature')", problem, expected=expected, remedy=remedy)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return math.exp(-(low + high) / 2)


def _fit_curves(rows: CalibrationRows, task: str) -> Probabilities:
    """Fit the isotonic curve of a binary target, or of each class or label."""
    weight = None if rows.weight is None else rows.weight.cpu().numpy()
    if task == "multiclass":
        chances, classes = torch.softmax(rows.output, 1), range(rows.output.shape[1])
        _require_classes(rows.target, rows.weight, classes)
        labels = [rows.target == code for code in classes]
    else:
        chances, labels = torch.sigmoid(rows.output), [part >= 0.5 for part in _split(rows.target)]
        for part in labels:
            _require_classes(part, rows.weight, [0, 1])
    columns = [part.double().cpu().numpy() for part in _split(chances)]
    truths = [label.double().cpu().numpy() for label in labels]
    pairs = zip(columns, truths, strict=True)
    return Probabilities("isotonic", curves=[Curve(*fit_isotonic(column, truth, weight)) for column, truth in pairs])


def _split(values: Tensor) -> Sequence[Tensor]:
    return values.unbind(1) if values.ndim == 2 else [values]


def _require_classes(target: Tensor, weight: Tensor | None, classes: Sequence[int]) -> None:
    """Raise `BadData` unless rows that count are of so many classes as these are."""
    present = torch.unique(target if weight is None else target[weight > 0])
    if len(present) < len(classes):
        problem = "the rows lack a class"
        expected, remedy = "rows of every class", "more rows, or split(0.8, stratify=) by the target's column"
        raise BadData("calibrate", problem, got=present.tolist(), expected=expected, remedy=remedy)
