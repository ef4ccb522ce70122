"""Calibrator of a scorer: probabilities by temperatures or isotonic curves, intervals and sets of a coverage.

`gp.calibrate` makes one. It is saved as numbers of `model.json`, which are checked where they are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from gpupipe.backend import Backend, Column
from gpupipe.backend.kernels import hash_column
from gpupipe.errors import BadConfig
from gpupipe.schema import INTEGERS, Role, Schema
from gpupipe.support.text import TableReport, flush_right, format_count

METHODS = ("temperature", "isotonic")
LEAST_PROBABILITY = 1e-7  # of an isotonic curve, whose 0 and 1 would be infinite log-odds
_GROUP_TYPES = (*INTEGERS, "string", "bool")
_NUMBER = (int, float)
_CURVE = {"probabilities": [_NUMBER], "shares": [_NUMBER]}
_GROUP = {"name": str, "hash": int, "num_rows": int, "limits": ([_NUMBER], None)}
_PROBABILITIES = {"method": str, "temperatures": [_NUMBER], "curves": [_CURVE]}
_CONFORMAL = {"coverage": float, "num_rows": int, "limits": [_NUMBER], "by": (str, None), "groups": [_GROUP]}
SHAPE = {"probabilities": (_PROBABILITIES, None), "conformal": (_CONFORMAL, None)}
"""The form of `Calibrator.to_json`, for the reader of artifacts."""


@dataclass(frozen=True)
class Curve:
    """Curve of an isotonic regression: the shares that go with ascending probabilities, in between straight lines."""

    probabilities: Sequence[float]
    shares: Sequence[float]

    def apply(self, probability: Tensor) -> Tensor:
        """Compute n shares in float64, beyond the ends those of the ends, as `numpy.interp` does."""
        x, y = (probability.new_tensor(side, dtype=torch.float64) for side in (self.probabilities, self.shares))
        if len(x) == 1:
            return y.expand(len(probability))
        value = probability.double().clamp(x[0], x[-1])
        right = torch.searchsorted(x, value).clamp(1, len(x) - 1)
        slope = (y[right] - y[right - 1]) / (x[right] - x[right - 1])
        return y[right - 1] + slope * (value - x[right - 1])


@dataclass(frozen=True)
class Probabilities:
    """Calibration of probabilities.

    "temperature" divides logits by a number, by one for each label of several (Guo et al. 2017, arXiv:1706.04599).
    "isotonic" has a curve for a binary target, for each label of several, and for each class of more than two, whose
    shares are then divided by their sum (Zadrozny & Elkan 2002).
    """

    method: str
    temperatures: Sequence[float] = ()
    curves: Sequence[Curve] = ()

    def adjust(self, output: Tensor, task: str) -> Tensor:
        """Compute the logits of the calibrated probabilities, of the same shape as a network's logits."""
        if self.method == "temperature":
            temperatures = output.new_tensor(self.temperatures, dtype=torch.float64)
            return (output.double() / (temperatures if task == "multilabel" else temperatures[0])).to(output.dtype)
        columns = output[:, None] if output.ndim == 1 else output
        chances = torch.softmax(columns, 1) if task == "multiclass" else torch.sigmoid(columns)
        shares = [curve.apply(part) for curve, part in zip(self.curves, chances.unbind(1), strict=True)]
        share = torch.stack(shares, 1).clamp(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
        logits = share.log() if task == "multiclass" else torch.logit(share)
        return logits.reshape(output.shape).to(output.dtype)


class CalibratedNetwork(nn.Module):
    """Network in evaluation, whose logits are those of calibrated probabilities."""

    def __init__(self, network: nn.Module, probabilities: Probabilities, task: str) -> None:
        super().__init__()
        self.network, self._probabilities, self._task = network, probabilities, task

    def forward(self, batch: Any) -> Tensor:
        return self._probabilities.adjust(self.network(batch), self._task)


@dataclass(frozen=True)
class Group:
    """Group of rows of one value: its name, the value's hash, and its limits; None where it has too few rows."""

    name: str
    hash: int
    num_rows: int
    limits: Sequence[float] | None


@dataclass(frozen=True)
class Conformal:
    """Split-conformal limits: how far an interval reaches beyond a prediction, or the least probability in a set.

    Args:
        coverage: the share of rows whose truth is to be inside.
        num_rows: how many calibrated it.
        limits: a number per target, of classes one: for rows of no group, and of groups without limits.
        by: the column of the groups; None without groups.
        groups: by ascending hash.
    """

    coverage: float
    num_rows: int
    limits: Sequence[float]
    by: str | None = None
    groups: Sequence[Group] = ()

    def get_limits(self, column: Column | None, backend: Backend, device: torch.device) -> Tensor:
        """Return each row's limits by its group, n x T float64; without groups 1 x T."""
        table = [self.limits, *(self.limits if group.limits is None else group.limits for group in self.groups)]
        limits = torch.tensor(table, dtype=torch.float64, device=device)
        if column is None:
            return limits[:1]
        xp, hashes = backend.xp, hash_column(column, 0, backend)
        groups = backend.to_device(np.array([group.hash for group in self.groups], dtype=np.uint64))
        nearest = xp.minimum(xp.searchsorted(groups, hashes), len(groups) - 1)
        rows = xp.where(groups[nearest] == hashes, nearest + 1, 0).astype("int64")
        return limits[torch.as_tensor(rows, device=device)]


def reach_beyond(values: Tensor, limits: Tensor, *, are_quantiles: bool) -> tuple[Tensor, Tensor]:
    """Compute the ends, n x T, of intervals about n x T predictions, or about n x K quantiles of one target.

    Ends that negative limits take past each other change places.
    """
    low, high = (values[:, :1], values[:, -1:]) if are_quantiles else (values, values)
    first, second = low.double() - limits, high.double() + limits
    return torch.minimum(first, second), torch.maximum(first, second)


@dataclass(frozen=True, repr=False)
class Calibrator(TableReport):
    """Calibrator of a scorer: of its probabilities, and of its intervals or sets; displays itself.

    Example:
        >>> Calibrator(Probabilities("temperature", [1.25]), Conformal(0.9, 500, [0.21]))
        probabilities: temperature, 1.25; coverage 0.9 by 500 rows
        rows  count  limit
        all     500   0.21
    """

    probabilities: Probabilities | None = None
    conformal: Conformal | None = None

    def check(self, schema: Schema, columns: Schema) -> None:
        """Raise `BadConfig` for numbers that cannot be those of this target, or groups of no column of rows to score.

        `columns` are those before the features. Raises `ColumnNotFound`: the groups' is not among them.
        """
        target = schema.target
        classes, targets = len((target and target.classes) or ()), len(schema.targets)
        if self.probabilities is not None:
            steps = {"binary": 1, "multiclass": classes, "multilabel": targets}.get(schema.task or "", 0)
            _check_probabilities(self.probabilities, schema.task, steps)
        if self.conformal is not None:
            _check_conformal(self.conformal, targets if schema.task == "regression" else 1)
            if schema.task not in ("regression", "binary", "multiclass"):
                raise _refuse(schema.task, "a regression, or classes of one target")
            if self.conformal.by is not None:
                check_groups("Calibrator", self.conformal.by, columns)

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Build it from what `to_json` gave, of the form `SHAPE`."""
        probabilities, conformal = content["probabilities"], content["conformal"]
        if probabilities is not None:
            probabilities = Probabilities(**probabilities | {"curves": [Curve(**x) for x in probabilities["curves"]]})
        if conformal is not None:
            conformal = Conformal(**conformal | {"groups": [Group(**each) for each in conformal["groups"]]})
        return cls(probabilities, conformal)

    @property
    def title(self) -> str:
        """What is calibrated, and how."""
        lines = list[str]()
        if (part := self.probabilities) is not None:
            steps = [f"{value:.4g}" for value in part.temperatures]
            steps += [format_count(len(curve.probabilities), "point") for curve in part.curves]
            lines.append(f"probabilities: {part.method}, {', '.join(steps)}")
        if (sets := self.conformal) is not None:
            by = "" if sets.by is None else f", by {sets.by}"
            lines.append(f"coverage {sets.coverage:.4g} by {format_count(sets.num_rows, 'row')}{by}")
        return "; ".join(lines) or "not calibrated"

    @property
    def _title(self) -> str:
        return self.title

    def _table(self) -> list[list[str]]:
        if (sets := self.conformal) is None:
            return []
        rows = [["all", f"{sets.num_rows:,}", _join(sets.limits)]]
        rows += [[group.name, f"{group.num_rows:,}", _join(group.limits)] for group in _sort(sets.groups)]
        return flush_right([[sets.by or "rows", "count", "limit"], *rows])


def check_groups(where: str, by: str, columns: Schema) -> None:
    """Raise `ColumnNotFound` or `BadConfig` unless a column of these has values that can be groups."""
    columns.require(by, where)
    if columns[by].dtype not in _GROUP_TYPES or columns[by].role == Role.LABEL:
        got = "a label" if columns[by].role == Role.LABEL else columns[by].dtype
        expected = "a column of rows to score: text, integers or booleans"
        problem, remedy = f"column {by!r} has no groups", "T.Derive(group=...) before, such as 'floor(x / 10)'"
        raise BadConfig(f"{where}(by=)", problem, got=got, expected=expected, remedy=remedy)


def _sort(groups: Sequence[Group]) -> list[Group]:
    """Sort groups by name, numbers by size."""
    return sorted(groups, key=lambda group: (len(group.name) if group.name.isdigit() else 0, group.name))


def _join(limits: Sequence[float] | None) -> str:
    return "as all" if limits is None else ", ".join(f"{limit:.4g}" for limit in limits)


def _check_probabilities(part: Probabilities, task: str | None, steps: int) -> None:
    """Raise `BadConfig` unless there are so many curves, or temperatures: of classes one."""
    is_isotonic = part.method == "isotonic"
    number = 1 if task == "multiclass" and not is_isotonic else steps
    parts, unused_parts = (part.curves, part.temperatures) if is_isotonic else (part.temperatures, part.curves)
    if part.method not in METHODS or not number or len(parts) != number or unused_parts:
        raise _refuse(part.method, f"one of {METHODS}, and {number} of them for a {task} target")
    if not all(0 < temperature < math.inf for temperature in part.temperatures):
        raise _refuse(part.temperatures, "finite temperatures above 0")
    for curve in part.curves:
        x, y = curve.probabilities, curve.shares
        rises = all(a < b for a, b in pairwise(x)) and all(a <= b for a, b in pairwise(y))
        if not x or len(x) != len(y) or not rises or not 0 <= min(*x, *y) <= max(*x, *y) <= 1:
            raise _refuse(curve, "probabilities that ascend, and as many shares that never fall")


def _check_conformal(part: Conformal, width: int) -> None:
    """Raise `BadConfig` unless it has `width` finite limits for all rows and for each group, by ascending hash."""
    every = [part.limits, *(group.limits for group in part.groups if group.limits is not None)]
    if not 0 < part.coverage < 1 or any(len(each) != width for each in every):
        raise _refuse(part, f"a coverage between 0 and 1, and {format_count(width, 'limit')}")
    if not all(math.isfinite(limit) for each in every for limit in each):
        raise _refuse(every, "finite limits")
    hashes = [group.hash for group in part.groups]
    if any(a >= b for a, b in pairwise([-1, *hashes, 1 << 64])) or (part.by is None) != (not hashes):
        raise _refuse(hashes, "groups of a column, by ascending hash")


def _refuse(got: object, expected: str) -> BadConfig:
    remedy = "gp.calibrate(scorer, data)"
    return BadConfig("Calibrator", "these numbers calibrate nothing", got=got, expected=expected, remedy=remedy)
