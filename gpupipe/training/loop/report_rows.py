"""Collection of a report's rows while a model is evaluated, and of the groups they belong to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gpupipe.errors import BadConfig, BadData, ColumnNotFound
from gpupipe.schema import Role, Schema
from gpupipe.support.times import from_microseconds
from gpupipe.support.validation import check_name
from gpupipe.tensors.feature_table import MISSING_TIME
from gpupipe.training.loop.batches import full_precision, get_weight
from gpupipe.training.loop.metrics import Decision, Metric
from gpupipe.training.loop.rank_group import RankGroup
from gpupipe.training.loop.report import Report
from gpupipe.training.loop.scored_rows import Threshold, check_threshold, get_limits

MAX_GROUPS = 1000
_RANK = 1 << 40  # a string's code plus this times the rank in whose dictionary it is


class ReportRows:
    """Metric without a value that collects the rows of a report: outputs, targets, weights and groups.

    Args:
        loader: whose schema and dictionaries name classes and groups.
        task: of the target, or None where nothing tells.
        by: a kept column whose values are the groups; None for none.
        threshold: of the report.
        readers: the ranks that share the loader's rows.

    Raises:
        ColumnNotFound: `by` is not kept beside the features.
        BadConfig: a threshold that does not go with the task.

    Memory: 8 to 12 bytes a row of one output on the device, and 8 for the group; twice for a moment at the end.
    """

    name, higher_is_better = "rows", True

    def __init__(
        self, loader: Any, task: str | None, *, by: str | None, threshold: Threshold | None, readers: RankGroup
    ) -> None:
        check_name("Trainer.evaluate", None, by=by)
        self._loader, self._task, self._by, self._readers = loader, task, by, readers
        schema = getattr(loader, "schema", None)
        self._schema = schema if isinstance(schema, Schema) else Schema()
        self._keep_names = [item.name for item in self._schema.with_role(Role.KEEP)]
        if by is not None and len(self._schema):
            self._find_group(self._keep_names)
        self._labels: list[Any] = []
        if task is not None and task == self._schema.task:
            targets = self._schema.targets
            several = task in ("multilabel", "regression")
            self._labels = [item.name for item in targets] if several else list(targets[0].classes or ())
        self.threshold = check_threshold("Trainer.evaluate", threshold, task, self._labels)
        self._parts: list[tuple[Tensor, Tensor, Tensor | None, Tensor | None]] = []
        self._fits = task is not None

    def reset(self) -> None:
        self._parts = []

    def align_thresholds(self, metrics: Iterable[Metric], device: torch.device) -> None:
        """Let metrics of decisions decide as the report does."""
        for metric in metrics:
            if isinstance(metric, Decision):
                metric.threshold = get_limits(self.threshold, self._labels, device)

    def update(self, output: Any, batch: Any) -> None:
        target = getattr(batch, "target", None)
        if not (self._fits and isinstance(output, Tensor) and isinstance(target, Tensor)):
            self._fits = False
            return
        self._fits = target.shape == (output.shape[:-1] if self._task == "multiclass" else output.shape)
        weight = get_weight(batch)
        weight = weight if weight is None else weight.clone()
        self._parts.append((full_precision(output).clone(), target.clone(), weight, self._read_group(batch)))

    def compute(self) -> None:
        """Compute nothing: rows are no figure."""

    def make_report(self, metrics: Mapping[str, float]) -> Report:
        """Make the report of the rows; without them, where outputs are not one for each target or class."""
        options: dict[str, Any] = {"task": self._task, "labels": self._labels, "threshold": self.threshold}
        if not self._fits:
            if self._by is not None:
                problem, expected = "the outputs do not fit the target", "an output for each target, or K logits"
                raise BadConfig("Trainer.evaluate(by=)", problem, expected=expected, remedy="by=None")
            return Report(metrics, **options)
        parts, self._parts = self._parts or [(torch.zeros(0), torch.zeros(0), None, None)], []
        outputs, targets, weights, groups = zip(*parts, strict=True)
        weight = None
        if any(each is not None for each in weights):
            pairs = zip(outputs, weights, strict=True)
            weight = torch.cat([output.new_ones(len(output)) if each is None else each for output, each in pairs])
        if targets[0].ndim == 2 and self._task == "binary":
            options["task"] = "multilabel"
        options["units"] = getattr(self._loader, "target_units", None)
        if groups[0] is not None:
            options["groups"] = self._by, *self._decode_groups(torch.cat(groups))
        return Report(metrics, torch.cat(outputs), torch.cat(targets), weight, **options)

    def _find_group(self, names: Iterable[str]) -> str:
        """Return the name that the column of the groups has in batches."""
        available = [*names]
        if f"{self._by}_keep" in available:  # a feature has its name
            return f"{self._by}_keep"
        if self._by not in available:
            problem, expected = f"column {self._by!r} is not kept", "a column that is kept beside the features"
            remedy = f"gp.Features(..., keep=[{self._by!r}]), or scorer.evaluate(data, by={self._by!r})"
            error = ColumnNotFound("Trainer.evaluate(by=)", problem, got=available, expected=expected, remedy=remedy)
            error.column = str(self._by)
            raise error
        return str(self._by)

    def _read_group(self, batch: Any) -> Tensor | None:
        """Return each row's group as it is stored, codes of strings told apart by rank."""
        if self._by is None:
            return None
        name = self._find_group(getattr(batch, "keep", {}))
        group: Tensor = batch.keep[name]
        if self._readers.size > 1 and name in self._schema and self._schema[name].dtype == "string":
            ranks = torch.arange(len(group), device=group.device) // (len(group) // self._readers.size)
            return group + ranks * _RANK
        return group.clone()

    def _decode_groups(self, codes: Tensor) -> tuple[list[Any], Tensor]:
        """Return the groups' values in order, None for missing ones at the end, and each row's place among them."""
        name = self._find_group(self._keep_names or [str(self._by)])
        dtype = self._schema[name].dtype if name in self._schema else ""
        if codes.is_floating_point():
            codes = torch.where(codes.isnan(), torch.inf, codes)  # which are all one value
        stored, places = torch.unique(codes, return_inverse=True)
        if len(stored) > MAX_GROUPS * self._readers.size:
            problem, expected = f"column {self._by!r} has {len(stored):,} values", f"at most {MAX_GROUPS:,} groups"
            remedy = f"T.Derive(...) of coarser values of {self._by!r} before"
            raise BadData("Trainer.evaluate(by=)", problem, expected=expected, remedy=remedy)
        words: list[list[Any]] = []
        if dtype == "string":
            words = self._readers.gather(self._loader.dictionaries[name].to_pylist())
        zone = self._schema[name].zone if dtype == "timestamp" else ""
        values = [_decode(value, dtype, words, zone) for value in stored.tolist()]
        labels = sorted({*values} - {None}) + [None] * (None in values)
        renumber = torch.tensor([labels.index(value) for value in values], dtype=torch.int64, device=codes.device)
        return labels, renumber[places]


def _decode(value: Any, dtype: str, words: Sequence[Sequence[str]], zone: str) -> Any:
    """Return the value of a kept column that is stored as a number."""
    if value in (MISSING_TIME, math.inf):
        return None
    if dtype == "string":
        rank = (value + 1) // _RANK
        code = value - rank * _RANK
        return None if code < 0 else words[rank][code]
    if dtype == "timestamp":
        return from_microseconds(value, zone)
    return bool(value) if dtype == "bool" else value
