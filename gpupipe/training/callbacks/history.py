"""History of a fit: a row per epoch, printed as text and drawn as curves; and early stopping, which goes by it."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

from torch import nn

from gpupipe.backend.report_frame import make_frame
from gpupipe.drawing import Drawing
from gpupipe.errors import BadConfig, BadData, ColumnNotFound, NotFitted, nearest
from gpupipe.support.attributes import Answering
from gpupipe.support.bars import LEVELS
from gpupipe.support.calls import answer_calls
from gpupipe.support.svg import BLUE, GRAY, Line, draw_panel, join_drawings
from gpupipe.support.text import format_count
from gpupipe.support.validation import check_integer, check_name, check_number

COLORS = {"train": GRAY, "valid": BLUE}

_Points = list[tuple[float, float]]


class _BestRow(dict[str, float]):
    """Row of the best epoch, which answers a name that is not there."""

    def __missing__(self, name: str) -> NoReturn:
        raise ColumnNotFound.among("History.best", name, self)


@answer_calls
@dataclass(repr=False)
class History(Answering):
    """History of a fit, one row per epoch; prints as a table with curves, and draws itself in a notebook.

    Args:
        rows: epoch, train_loss, valid_<figure> where defined, lr, seconds, rows_per_second.
        settings: what the fit chose, or was told: max_epochs, updates, lr (the highest), batch_size where it is known.
        gpu: min, median and max of NVML's values, by name; empty unless `Trainer(gpu_stats=True)` found a GPU.
        throttled: the fraction of samples at which the GPU was throttled, by reason.

    Example:
        >>> history = History("valid_loss")
        >>> history.append({"epoch": 1, "train_loss": 0.5, "valid_loss": 0.25})
        >>> print(history)
        epoch  train_loss  valid_loss
            1         0.5        0.25  best valid_loss
        train_loss  ▁  0.5 to 0.5
        valid_loss  ▁  0.25 to 0.25
    """

    _ELSEWHERE: ClassVar = {
        "history": "history.rows",
        **dict.fromkeys(("loss", "losses"), "[row['train_loss'] for row in history]"),
    }

    monitor: str = "train_loss"
    higher_is_better: bool = False
    rows: list[dict[str, float]] = field(default_factory=list)
    settings: dict[str, float] = field(default_factory=dict)
    gpu: dict[str, dict[str, float]] = field(default_factory=dict)
    throttled: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, float]]:
        return iter(self.rows)

    def __getitem__(self, key: object) -> NoReturn:
        """Raise BadConfig with what has the epoch or the figure."""
        is_place = isinstance(key, slice) or key in range(-len(self), len(self))
        near = nearest(str(key), self._cells[0])
        frame = "history.to_frame()" if near is None else f"history.to_frame()[{near!r}]"
        remedy = f"history.rows[{key!r}]" if is_place else frame
        expected = "history.rows, history.best or history.to_frame()"
        raise BadConfig("History[...]", "a history has no items", got=key, expected=expected, remedy=remedy)

    def append(self, row: dict[str, float]) -> None:
        """Append an epoch."""
        self.rows.append(row)

    @property
    def monitored(self) -> float:
        """The last epoch's monitored metric; `BadData` where it is not defined for the data it was computed on."""
        if self.monitor not in self.rows[-1]:
            where, got = f"the monitored figure {self.monitor!r}", list(self.rows[-1])
            problem = "it is not defined for the validation data"
            expected = "validation rows, of more than one class for AUC"
            raise BadData(where, problem, got=got, expected=expected, remedy="EarlyStopping(monitor='train_loss')")
        return self.rows[-1][self.monitor]

    @property
    def best(self) -> dict[str, float]:
        """The row of the epoch whose monitored metric is best, the first of equals; `NotFitted` where none has it."""
        if self._best is None:
            problem, expected = f"no epoch has {self.monitor!r}", "at least one epoch with it"
            raise NotFitted("History.best", problem, expected=expected, remedy="history.rows")
        return _BestRow(self._best)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        content = {"monitor": self.monitor, "higher_is_better": self.higher_is_better, "rows": [*map(dict, self.rows)]}
        content |= {"settings": self.settings} if self.settings else {}
        return content | ({"gpu": self.gpu, "throttled": self.throttled} if self.gpu else {})

    def to_json(self) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    @property
    def _best(self) -> dict[str, float] | None:
        rows = [row for row in self.rows if self.monitor in row]
        return (max if self.higher_is_better else min)(rows, key=lambda row: row[self.monitor], default=None)

    @property
    def _cells(self) -> list[list[str]]:
        """The table: all names that any row has, in the order they appear, and the rows."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        return [names, *([_short(row.get(name)) for name in names] for row in self.rows)]

    def to_frame(self) -> Any:
        """Return the rows as a pandas frame, a row per epoch; missing where an epoch has no such figure.

        Memory: copies, on the host.
        """
        return make_frame(self.rows)

    def plot(self) -> Drawing:
        """Draw the losses and metrics over the epochs, a panel each; shows in a notebook, and `save(path)` writes it.

        Raises `NotFitted`: there is no epoch.
        """
        if not self.rows:
            problem, remedy = "there is no epoch to draw", "trainer.fit(train, valid).plot()"
            raise NotFitted("History.plot", problem, expected="at least one epoch", remedy=remedy)
        return Drawing(join_drawings(self._panels))

    @property
    def _panels(self) -> list[str]:
        """The drawings of a loss or metric each."""
        panels: dict[str, dict[str, _Points]] = {}
        for name, points in self._curves.items():
            part, _, figure = name.partition("_")
            panels.setdefault(figure, {})[part] = points
        return [_draw_figure(figure, parts) for figure, parts in panels.items()]

    @property
    def _curves(self) -> dict[str, _Points]:
        """The (epoch, value) points of losses and metrics."""
        names = [name for name in self._cells[0] if name.startswith(("train_", "valid_"))]
        return {name: [(row["epoch"], row[name]) for row in self.rows if name in row] for name in names}

    def __repr__(self) -> str:
        if not self.rows:
            return "History of no epochs"
        widths = [max(map(len, column)) for column in zip(*self._cells, strict=True)]
        lines = ["  ".join(map(str.rjust, line, widths)) for line in self._cells]
        best = self._best
        for index, row in enumerate(self.rows, start=1):
            lines[index] += f"  best {self.monitor}" if row is best else ""
        pad = max(map(len, self._curves), default=0)
        for name, points in self._curves.items():
            values = [value for _, value in points]
            scale = (len(LEVELS) - 1) / (max(values) - min(values) or 1.0)
            bars = "".join(LEVELS[round((value - min(values)) * scale)] for value in values)
            lines.append(f"{name.ljust(pad)}  {bars}  {_short(values[0])} to {_short(values[-1])}")
        for name, spread in self.gpu.items():
            lines.append(f"gpu {name}  " + ", ".join(f"{how} {_short(value)}" for how, value in spread.items()))
        lines += [f"gpu throttled {share:.0%} of the time: {reason}" for reason, share in self.throttled.items()]
        lines += [format_settings(self.settings)] if self.settings else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        names, *lines = self._cells
        head, body, best = "".join(f"<th>{html.escape(name)}</th>" for name in names), "", self._best
        for row, line in zip(self.rows, lines, strict=True):
            style = ' style="font-weight:bold"' if row is best else ""
            body += f"<tr{style}>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>"
        settings = f"<p>{html.escape(format_settings(self.settings))}</p>" if self.settings else ""
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<div>{''.join(self._panels)}</div>{settings}{table}"


def format_settings(settings: Mapping[str, float]) -> str:
    """Format what a fit chose as one line."""
    size = f" of {settings['batch_size']:,} rows" if "batch_size" in settings else ""
    epochs, updates = (
        format_count(int(settings[name]), noun) for name, noun in (("max_epochs", "epoch"), ("updates", "update"))
    )
    return f"{epochs}, {updates}{size}, learning rate up to {settings['lr']:g}"


def _short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if float(value).is_integer() or 1e3 <= abs(value) < 1e9 else f"{value:.4g}"


def _draw_figure(name: str, parts: dict[str, _Points]) -> str:
    """Draw one figure over the epochs, a line for training and one for validation."""
    return draw_panel(name, [Line(points, COLORS[part], part) for part, points in parts.items()], "epoch")


@answer_calls
@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """Stop when a figure has not improved for some epochs; `fit` always ends with the weights of the best one.

    Whether larger is better is the metric's to say. A schedule that falls over `max_epochs` is cut off by stopping.

    Args:
        patience: epochs in a row without improvement after which training stops, at least 1; None never stops. Epochs
            before the learning rate has been at its highest do not count: the loss is not expected to fall steadily.
        monitor: a figure of the history: "valid_loss", "valid_auc", "train_loss" ...
        min_delta: a change has to be larger than this to be one.

    Memory: one more copy of the model's state on its device; two while a better one is taken.

    Example:
        >>> EarlyStopping(patience=2, monitor="valid_auc")
        EarlyStopping(patience=2, monitor='valid_auc', min_delta=0.0)
    """

    patience: int | None = 3
    monitor: str = "valid_loss"
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        check_integer(self, "[1, inf)", None, patience=self.patience)
        check_name(self, monitor=self.monitor)
        check_number(self, "[0, inf)", min_delta=self.min_delta)


class BestWeights:
    """Model state of the best epoch so far."""

    def __init__(self, model: nn.Module, stopping: EarlyStopping, *, higher_is_better: bool) -> None:
        self._model, self._stopping, self._sign = model, stopping, 1.0 if higher_is_better else -1.0
        self._best, self._waited = -float("inf"), 0
        self._state: dict[str, Any] = {}

    def update(self, value: float, *, counts: bool = True) -> bool:
        """Compare an epoch's metric, keep the weights if it is the best, and return whether to stop.

        An epoch that does not count is one not waited for: patience begins after it.
        """
        self._waited += counts
        if self._sign * value - self._best > self._stopping.min_delta:
            self._best, self._waited = self._sign * value, 0
            self._state = deepcopy(self._model.state_dict())
        return self.should_stop

    @property
    def should_stop(self) -> bool:
        """True when patience is exhausted."""
        return self._stopping.patience is not None and self._waited >= self._stopping.patience

    def restore(self) -> bool:
        """Restore the best weights in the model, and return whether there are any."""
        if self._state:
            self._model.load_state_dict(self._state)
        return bool(self._state)

    def state_dict(self) -> dict[str, Any]:
        """Return the best metric and weights, and the epochs since; aliases the tensors' memory."""
        return {"best": self._best, "waited": self._waited, "weights": self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._waited, self._state = state["best"], state["waited"], state["weights"]
