"""Training state: what callbacks read, what a checkpoint holds, how a fit resumes, and its error of a bad loss."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from gpupipe.errors import BadData
from gpupipe.tensors import Loader
from gpupipe.tensors.loader import TorchBatches
from gpupipe.training.callbacks.history import BestWeights, History
from gpupipe.training.loop.device import fork_rng
from gpupipe.training.loop.rank_group import RankGroup
from gpupipe.training.loop.train_step import CursorBatches, Range, Update


@dataclass(eq=False)
class TrainState:
    """Training state of a fit in progress.

    Args:
        update: one step of it, with the optimiser in `update.optimizer`.
        rates: the learning rate of each update, on the host, before what a plateau multiplies them by.
        best: early stopping's weights, if any.
        epoch: the one under way, from 1; `step_in_epoch` batches and `rows` rows (of all ranks) of it are done.
        metrics: of the last log: loss (the epoch's mean so far), lr, rows_per_second and data_wait (the share of time
            spent waiting for batches) since the log before.
        stop: whether this epoch is the last one; set it to end a fit.
        validating: whether the validation loader is being gone through.
        range: names parts of an update for a profiler.
    """

    model: nn.Module
    update: Update
    train: Any
    history: History
    steps_per_epoch: int
    max_epochs: int
    rates: Tensor
    device: torch.device
    best: BestWeights | None = None
    ranks: RankGroup = field(default_factory=RankGroup)
    epoch: int = 1
    step_in_epoch: int = 0
    rows: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    stop: bool = False
    validating: bool = False
    plateau_lr_factor: float = 1.0
    range: Range = nullcontext
    _offset: int = 0  # batches done more (or fewer) than epochs of this length would make
    _earlier_seconds: float = 0.0  # seconds spent in this epoch by the run that this one goes on from
    _started: float = 0.0
    _waited: float = 0.0
    _last_log: tuple[float, float, int] = (0.0, 0.0, 0)  # time, seconds waited and rows at the last log
    _rng: list[Tensor] | None = None  # what torch would have drawn at the start of the epoch
    _resumed_from: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.rates = self.rates.clone()  # on the CPU it would be the table that is written to

    @property
    def step(self) -> int:
        """The number of batches since the fit began."""
        return (self.epoch - 1) * self.steps_per_epoch + self.step_in_epoch + self._offset

    @property
    def last_step(self) -> int:
        """The number of batches of all epochs."""
        return self.max_epochs * self.steps_per_epoch + self._offset

    @property
    def completes_update(self) -> bool:
        """True if the last batch ends an update."""
        return self.step_in_epoch % self.update.accumulate == 0 or self.step_in_epoch == self.steps_per_epoch

    @property
    def seconds(self) -> float:
        """The seconds spent on this epoch so far."""
        return self._earlier_seconds + time.perf_counter() - self._started

    @property
    def lr(self) -> float:
        """The learning rate of the last update."""
        each = self.update.accumulate
        updates = (self.epoch - 1) * -(-self.steps_per_epoch // each) + -(-self.step_in_epoch // each)
        return float(self.rates[max(updates, 1) - 1]) * self.plateau_lr_factor

    @property
    def finished(self) -> bool:
        """True if no epoch follows this one."""
        return self.stop or self.epoch >= self.max_epochs

    def epochs(self) -> Iterator[int]:
        """Yield the epochs that are left, until `stop`."""
        while not self.stop and self.epoch <= self.max_epochs:
            yield self.epoch
            if self.finished:
                return
            self.epoch, self.step_in_epoch, self.rows, self._earlier_seconds = self.epoch + 1, 0, 0, 0.0

    def batches(self) -> Iterator[Any]:
        """Yield the batches of this epoch that are left, and time them."""
        iterator, end, clock = self._iterate_batches(), object(), time.perf_counter
        self._started = clock()
        self._waited, self._last_log = 0.0, (self._started, 0.0, self.rows)
        while True:
            before = clock()
            with self.range("data"):
                batch = next(iterator, end)
            self._waited += clock() - before
            if batch is end:
                return
            yield batch

    def log_metrics(self, loss: float | None) -> None:
        """Update `metrics`."""
        now, waited, rows = time.perf_counter(), self._waited, self.rows
        then, waited_then, rows_then = self._last_log
        passed = max(now - then, 1e-9)
        self._last_log = now, waited, rows
        self.metrics = {} if loss is None else {"loss": loss}
        self.metrics |= {"lr": self.lr, "rows_per_second": (rows - rows_then) / passed}
        self.metrics["data_wait"] = (waited - waited_then) / passed

    def state_dict(self) -> dict[str, Any]:
        """Return all that a fit needs to resume from here; the ranks gather it together."""
        ended = len(self.history) >= self.epoch  # the epoch's row is there: only the next epoch is left to do
        loader = None if ended else getattr(self.train, "state_dict", None)
        if self._resumed_from is not None:  # nothing has been done since; the loader is not there yet
            return self._resumed_from
        return {
            "epoch": self.epoch + ended,
            "step_in_epoch": 0 if ended else self.step_in_epoch,
            "rows": 0 if ended else self.rows,
            "seconds": 0.0 if ended else self.seconds,
            "lengths": [self.steps_per_epoch, self.update.accumulate],
            "offset": self._offset,
            "fallen": self.plateau_lr_factor,
            "model": self.model.state_dict(),
            "update": self.update.state_dict(),
            "losses": self.update.losses.sum_over_ranks(),
            "history": self.history.rows,
            "best": None if self.best is None else self.best.state_dict(),
            "loader": None if loader is None else loader(),
            "rng": self.ranks.gather(_get_random_state(self.device)),
            "rng_of_epoch": self.ranks.gather(None if ended else self._rng),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of another run of the same model and data, whose epochs may have another length."""
        self.epoch, self.step_in_epoch, self.rows = state["epoch"], state["step_in_epoch"], state["rows"]
        self._earlier_seconds = state["seconds"]
        self.model.load_state_dict(state["model"])
        self.update.load_state_dict(state["update"])
        self.update.losses.sums.copy_(state["losses"])
        if not self.ranks.is_main:
            self.update.losses.sums[:2] = 0  # the first counts for all
        (steps_then, each_then), steps, each = state["lengths"], self.steps_per_epoch, self.update.accumulate
        count = (self.epoch - 1) * -(-steps_then // each_then) - (-self.step_in_epoch // each_then)
        if self.epoch < 1 or not 0 <= self.step_in_epoch <= steps_then or not 0 <= int(self.update.count) <= count:
            at = f"batch {self.step_in_epoch} of {steps_then} in epoch {self.epoch}"
            raise ValueError(f"{int(self.update.count)} updates by {at}")
        self._offset = state["offset"] + (self.epoch - 1) * (steps_then - steps)
        if (steps, each) != (steps_then, each_then):  # the schedule goes by epochs
            done = self.step_in_epoch
            begun = -(-done // each) if done == steps else done // each
            self.update.count.fill_((self.epoch - 1) * -(-steps // each) + begun)
        self.scale_rates(state["fallen"])
        self.history.rows[:] = state["history"]
        if self.best is not None and state["best"] is not None:
            self.best.load_state_dict(state["best"])
            self.stop = self.best.should_stop
        self._resumed_from = state

    def scale_rates(self, plateau_lr_factor: float) -> None:
        """Multiply the schedule, from the next update on."""
        self.plateau_lr_factor = plateau_lr_factor
        self.update.rates.copy_(self.rates * plateau_lr_factor)

    def _iterate_batches(self) -> Iterator[Any]:
        """Return an iterator over the rest of this epoch."""
        state, self._resumed_from = self._resumed_from, None
        if state is not None:
            self._restore_rng(state["rng_of_epoch"] if self.step_in_epoch else state["rng"])
        self._rng = _get_random_state(self.device)
        self._rewind_loader()
        if state is None or not self.step_in_epoch:
            return iter(self.train)
        if state["loader"] is not None and self.step_in_epoch < self.steps_per_epoch:
            self.train.load_state_dict(state["loader"])
        # At an epoch's end only validation is left to do.
        iterator = iter(self.train if self.step_in_epoch < self.steps_per_epoch else ())
        if state["loader"] is None:
            next(islice(iterator, self.step_in_epoch, self.step_in_epoch), None)
        self._restore_rng(state["rng"])
        return iterator

    def batch_at(self, number: int) -> Any:
        """Read a batch of this epoch again, numbered from 1; return None if the loader cannot give it again."""
        if self._rng is None:
            return None
        with fork_rng(self.device):
            _set_random_state(self._rng, self.device)
            self._rewind_loader()
            return next(islice(self.train, number - 1, None), None)

    def _rewind_loader(self) -> None:
        """Rewind the loader, or what torch's DataLoader reads, to the first batch of this epoch."""
        parts: list[Any] = [self.train, getattr(self.train, "dataset", None), getattr(self.train, "sampler", None)]
        for part in (part for part in parts if hasattr(part, "set_epoch")):
            if isinstance(part, Loader | TorchBatches | CursorBatches):
                part.set_epoch(self.epoch)  # one that was put at a place in this epoch forgets it
            part.set_epoch(self.epoch - 1)

    def _restore_rng(self, states: list[list[Tensor]]) -> None:
        """Restore this rank's random state; ranks without a saved one keep their own."""
        if self.ranks.rank < len(states):
            _set_random_state(states[self.ranks.rank], self.device)


def _get_random_state(device: torch.device) -> list[Tensor]:
    """Return torch's random state on the CPU and on the device; the host does not wait."""
    states = [torch.default_generator.get_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_random_state(states: list[Tensor], device: torch.device) -> None:
    torch.default_generator.set_state(states[0])
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)


def check_loss(run: TrainState, since: int) -> float | None:
    """Read the epoch's mean loss so far; None where no weight was counted. The host waits for the device.

    A healthy run costs no extra read. An error names the first bad batch after `since`, and its rows if these are bad.
    """
    try:
        return run.update.losses.read(f"Trainer.fit, epoch {run.epoch}, batches {since + 1} to {run.step_in_epoch}")
    except BadData as seen:
        if isinstance(run.train, CursorBatches):
            run.train = run.train.loader  # batches to look into
        number = min(int(run.update.losses.sum_over_ranks()[2]) + 1, run.step_in_epoch)  # of the batch, from 1
        reason = next(filter(None, run.ranks.gather(_describe_rows(run, number))), "")  # of the first rank with one
        bad = [name for name, weight in run.model.named_parameters() if not weight.isfinite().all()]
        if not reason and bad:
            more = f" and of {len(bad) - 1} more" if len(bad) > 1 else ""
            reason = f"its features and target are finite, the weights of {bad[0]!r}{more} are not"
        problem = f"the loss is not finite: {reason or 'its features, its target and the weights are finite'}"
        each = run.update.accumulate
        where = f"Trainer.fit, epoch {run.epoch}, update {-(-number // each)}"
        where += "" if each == 1 else f", batch {number}"
        raise BadData(where, problem, got=seen.got, expected=seen.expected, remedy=seen.remedy) from None


def _describe_rows(run: TrainState, number: int) -> str:
    """Name the first tensor of a batch that holds non-finite values, and their rows; "" if there is none."""
    batch: Any = run.batch_at(number)
    schema: Any = getattr(run.train, "schema", None)
    values = {item.name: getattr(batch, item.name) for item in fields(batch)} if is_dataclass(batch) else {}
    for name, tensor in values.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.isfinite().all():
            continue
        places = (~tensor.isfinite()).nonzero().cpu()
        in_column = name == "numeric" and schema is not None
        what = f"column {schema.numeric[int(places[0, 1])].name!r}" if in_column else name
        rows, row_numbers = torch.unique(places[:, 0]), getattr(run.train, "row_numbers", None)
        if row_numbers is not None:
            rows = row_numbers(run.epoch - 1, number - 1).cpu()[rows]
        examples = ", ".join(map(str, rows[:5].tolist())) + (" ..." if len(rows) > 5 else "")
        whose = "rows" if row_numbers is not None else "of the batch the rows"
        return f"its batch has values in {what} that are not finite ({whose} {examples})"
    return ""
