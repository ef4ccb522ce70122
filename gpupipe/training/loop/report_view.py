"""Tables and drawings of scored rows: what becomes of the classes, how far off predictions are, curves, calibration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from gpupipe.errors import BadData
from gpupipe.support.svg import GRAY, PALETTE, Line, draw_matrix, draw_panel
from gpupipe.support.text import escape_line
from gpupipe.training.loop.scored_rows import Calibration, ScoredRows

MAX_CLASSES = 12  # of a confusion matrix that is shown
DRAWN_POINTS, PANEL_HEIGHT = 200, 240
UNIT = (0.0, 1.0)
_CAPTIONS = {"roc": "false alarms across, hits up", "precision-recall": "recall across, precision up"}


def make_tables(rows: ScoredRows) -> Iterator[list[list[str]]]:
    """Make the table of decisions by class or target, or of a regression's residuals."""
    labels = [*map(str, rows.labels)]
    if rows.task == "regression":
        quantiles = [rows.residual_quantiles(label=label) for label in rows.labels]
        lines = [
            [label, *(f"{value:.4g}" for value in values.values())]
            for label, values in zip(labels, quantiles, strict=True)
        ]
        yield [["target - prediction", *(f"{share:.0%}" for share in quantiles[0])], *lines]
    elif rows.task == "multilabel":
        head = ["target", "true negatives", "false positives", "false negatives", "true positives"]
        counts = rows.confusion_matrix().flatten(1).tolist()
        yield [head, *([label, *map(_format_weight, each)] for label, each in zip(labels, counts, strict=True))]
    elif len(labels) <= MAX_CLASSES:
        counts = rows.confusion_matrix().tolist()
        lines = [[label, *map(_format_weight, each)] for label, each in zip(labels, counts, strict=True)]
        yield [["true / predicted", *labels], *lines]


def make_notes(rows: ScoredRows) -> Iterator[str]:
    """Make the lines below the tables: from which probability on a row is positive, the calibration error."""
    limits = rows.decision_threshold
    if isinstance(limits, dict):
        yield "true from a probability of " + ", ".join(
            f"{limit:.4g} ({escape_line(name)})" for name, limit in limits.items()
        )
    elif limits is not None:
        positive = rows.labels[1] if rows.task == "binary" else "true"
        yield f"{escape_line(str(positive))} from a probability of {limits:.4g} on"
    if rows.task in ("binary", "multiclass"):
        yield f"expected calibration error {rows.calibration().error:.4g}"


def make_drawings(rows: ScoredRows) -> Iterator[str]:
    """Draw curves, calibration and confusion matrix; of several labels a line each, of the first ones."""
    colors = list(zip(rows.columns, PALETTE, strict=False))
    if rows.task == "regression":
        for label, color in colors:
            yield _draw_calibration(
                f"{label}: target by prediction", [(rows.calibration(label=label), color)], is_probability=False
            )
        return
    lines: dict[str, list[Line]] = {name: [] for name in _CAPTIONS}
    for label, color in colors:
        for name in _CAPTIONS:
            with suppress(BadData):  # rows of one class have no curve
                first, second, _ = rows.curve(name, label=label, points=DRAWN_POINTS)
                across, up = (first, second) if name == "roc" else (second, first)
                lines[name].append(Line([*zip(across.tolist(), up.tolist(), strict=True)], color, dots=False))
    for name, curves in lines.items():
        reference = [Line([(0, 0), (1, 1)], GRAY, dots=False, dashed=True)] if name == "roc" else []
        if curves:
            yield draw_panel(name, [*reference, *curves], _CAPTIONS[name], x=UNIT, y=UNIT, height=PANEL_HEIGHT)
    calibrated = colors if rows.task == "multilabel" else [(None, PALETTE[0])]
    bins = [(rows.calibration(label=label), color) for label, color in calibrated]
    yield _draw_calibration("calibration", bins, is_probability=True)
    if len(rows.labels) <= MAX_CLASSES and rows.task != "multilabel":
        counts: list[list[Any]] = rows.confusion_matrix().tolist()
        shares = [[count / (sum(line) or 1) for count in line] for line in counts]
        texts = [[*map(_format_weight, line)] for line in counts]
        yield draw_matrix("confusion matrix", shares, texts, [*map(str, rows.labels)])


def _draw_calibration(title: str, bins: list[tuple[Calibration, str]], *, is_probability: bool) -> str:
    points = [[*zip(each.predicted.tolist(), each.observed.tolist(), strict=True)] for each, _ in bins]
    values = [value for line in points for point in line for value in point]
    ends = UNIT if is_probability else (min(values), max(values))
    lines = [Line([(end, end) for end in ends], GRAY, dots=False, dashed=True)]
    lines += [Line(line, color) for line, (_, color) in zip(points, bins, strict=True)]
    return draw_panel(title, lines, "predicted across, observed up", x=ends, y=ends, height=PANEL_HEIGHT)


def _format_weight(count: float) -> str:
    return f"{count:,}" if isinstance(count, int) else f"{count:.4g}"
