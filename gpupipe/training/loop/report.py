"""Report of an evaluation: every metric of the task, what the rows tell besides, and groups; as text, page and data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gpupipe.backend import to_pandas
from gpupipe.errors import ColumnNotFound, nearest
from gpupipe.support.attributes import Answering
from gpupipe.support.calls import answer_calls
from gpupipe.support.svg import PALETTE
from gpupipe.support.text import RowTable, escape_html, flush_right, format_count, html_table, text_table
from gpupipe.tensors import Batch
from gpupipe.training.loop.metrics import METRICS, METRICS_OF_TASK, Decision, InUnits, Metric
from gpupipe.training.loop.report_view import make_drawings, make_notes, make_tables
from gpupipe.training.loop.scored_rows import ScoredRows, get_limits

MAX_RANKED_CLASSES = 100  # each takes a sort of all rows; of more classes a report has no AUC by itself
CHUNK_ROWS = 1 << 20  # that a metric gets at once


class GroupTable(RowTable):
    """Table of metrics, a row per group of rows."""

    def __init__(self, by: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self.by, self.rows = by, [dict(row) for row in rows]

    def _format(self, name: str, value: Any) -> str:
        return str(value) if name == self.by else super()._format(name, value)

    def to_frame(self) -> Any:
        """Return the table as a pandas frame, a row per group."""
        return to_pandas(self.rows)


@answer_calls
class Report(ScoredRows, Mapping[str, float], Answering):
    """Report of an evaluation: a mapping from names of metrics to values, and what the rows tell besides.

    Metrics that are not defined for the rows are left out. `confusion_matrix`, `curve`, `calibration`,
    `residual_quantiles` and `threshold` ask the rows; `by` has the metrics of each group, or is None. It displays
    itself, in a notebook with pictures. `Trainer.evaluate` and `Scorer.evaluate` make it.

    Args:
        metrics: those computed already, by name; the others of the task are added.
        groups: a column's name, its labels, and for each row the place of its label.
        options: task, labels, threshold and units, as for `ScoredRows`, and so are the tensors.

    Memory: shares outputs, targets and weights as long as it is kept: 8 to 12 bytes a row of one output, 4 more a
        further class. Metrics take some 80 a row meanwhile; `curve` and `threshold` keep 20 a different score.

    Example:
        >>> output, target = torch.tensor([-2.0, 0.5, 1.0, 3.0]), torch.tensor([0.0, 1.0, 0.0, 1.0])
        >>> report = Report({}, output, target, task="binary", labels=[False, True])
        >>> report["auc"], report["accuracy"], report.confusion_matrix().tolist()
        (0.75, 0.75, [[1, 1], [0, 2]])
        >>> round(report.threshold(min_precision=0.9), 3)
        0.842
    """

    _ELSEWHERE: ClassVar = {name: f"report[{name!r}]" for name in METRICS}

    def __init__(
        self,
        metrics: Mapping[str, float],
        output: Tensor | None = None,
        target: Tensor | None = None,
        weight: Tensor | None = None,
        *,
        groups: tuple[str, Sequence[Any], Tensor] | None = None,
        **options: Any,
    ) -> None:
        if output is not None and target is not None and weight is not None and bool((weight == 0).any()):
            counts = weight != 0
            output, target, weight = output[counts], target[counts], weight[counts]
            groups = None if groups is None else (*groups[:2], groups[2][counts])
        super().__init__(output, target, weight, **options)
        self._metrics, self.by = dict(metrics), None
        if self._scored is not None:
            names = [name for name in self._list_metrics() if name not in self._metrics]
            figures = self._compute_metrics(names, *self._scored)
            self._metrics |= {name: value for name, value in figures.items() if value is not None}
            self.by = None if groups is None else self._compare_groups(*groups)

    def __getitem__(self, name: str) -> float:
        if name not in self._metrics:
            problem, expected = "these rows have no such metric", f"one of {[*self]}"
            remedy = f"report[{nearest(str(name), [*self]) or 'loss'!r}]"
            raise ColumnNotFound("Report", problem, got=name, expected=expected, remedy=remedy)
        return self._metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def _list_metrics(self) -> list[str]:
        names = METRICS_OF_TASK.get(self.task or "", [])
        too_many = self.task == "multiclass" and len(self.labels) > MAX_RANKED_CLASSES
        return [name for name in names if not (too_many and name in ("auc", "average_precision"))]

    def _compute_metrics(
        self, names: Sequence[str], output: Tensor, target: Tensor, weight: Tensor | None
    ) -> dict[str, float | None]:
        """Compute metrics of some rows, one after the other."""
        figures: dict[str, float | None] = {}
        for name in names:
            metric: Metric = METRICS[name]()
            if isinstance(metric, Decision):
                metric.threshold = get_limits(self.decision_threshold, self.labels, output.device)
            metric = metric if self._units is None else InUnits(metric, self._units)
            for start in range(0, len(output), CHUNK_ROWS):
                rows = slice(start, start + CHUNK_ROWS)
                empty = output.new_empty(len(output[rows]), 0)
                metric.update(output[rows], Batch(empty, empty, target[rows], None if weight is None else weight[rows]))
            value = metric.compute()
            figures[name] = value if value is not None and math.isfinite(value) else None
        return figures

    def _compare_groups(self, by: str, labels: Sequence[Any], places: Tensor) -> GroupTable:
        """Compute the metrics of each group that has rows; the rows are sorted by group once."""
        assert self._scored is not None
        (output, target, weight), names = self._scored, self._list_metrics()
        rows: list[dict[str, Any]] = []
        by = f"{by}_keep" if by in {"rows", *names, *self._metrics} else by
        sizes: list[int] = torch.bincount(places, minlength=len(labels)).tolist()
        for label, part in zip(labels, places.argsort(stable=True).split_with_sizes(sizes), strict=True):
            if len(part):
                weights = None if weight is None else weight[part]
                rows.append({by: label, "rows": len(part)})
                rows[-1] |= self._compute_metrics(names, output[part], target[part], weights)
        return GroupTable(by, rows)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        content: dict[str, Any] = {"task": self.task, "rows": self.num_rows, "metrics": dict(self._metrics)}
        if self.num_rows and self.task != "regression":
            content |= {"labels": [*map(_to_plain, self.labels)], "threshold": self.decision_threshold}
            content |= {"confusion_matrix": self.confusion_matrix().tolist()}
        for label in self.columns if self.num_rows else ():
            bins = self.calibration(label=label)
            lists = {name: part.tolist() for name, part in bins._asdict().items() if name != "error"}
            content.setdefault("calibration", []).append({"label": _to_plain(label), **lists, "error": bins.error})
        if self.by is not None:
            content["by"] = [{name: _to_plain(value) for name, value in row.items()} for row in self.by.rows]
        return content

    def to_frame(self) -> Any:
        """Return the metrics as a pandas frame: a row of all rows, whose group is missing, then one for each group."""
        whole = {"rows": self.num_rows, **self._metrics}
        return to_pandas([whole] if self.by is None else [{self.by.by: None, **whole}, *self.by.rows])

    def to_json(self) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    def __repr__(self) -> str:
        groups = [] if self.by is None else [repr(self.by)]
        tables = (text_table(flush_right(table)) for table in self._tables())
        return "\n\n".join([self._title, *tables, *groups, *self._notes()])

    def _repr_html_(self) -> str:
        parts = [f"<p>{escape_html(self._title)}</p>"]
        if self.num_rows:
            parts.append(f"<div>{''.join(make_drawings(self))}</div>")
        if len(self.columns) > 1:
            pairs = zip(self.columns, PALETTE, strict=False)
            names = (f'<span style="color:{color}">{escape_html(str(label))}</span>' for label, color in pairs)
            parts.append(f"<p>{' '.join(names)}</p>")
        parts += [*map(html_table, self._tables()), *([] if self.by is None else [self.by._repr_html_()])]
        return "".join([*parts, *(f"<p>{escape_html(line)}</p>" for line in self._notes())])

    @property
    def _title(self) -> str:
        rows = "metrics alone, no outputs" if self._scored is None else format_count(self.num_rows, "row")
        return rows if self.task is None else f"{rows}, {self.task}"

    def _tables(self) -> Iterator[list[list[str]]]:
        if self._metrics:
            yield [["metric", "value"], *([name, f"{value:.4g}"] for name, value in self._metrics.items())]
        if self.num_rows:
            yield from make_tables(self)

    def _notes(self) -> list[str]:
        return [*make_notes(self)] if self.num_rows else []


def _to_plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
