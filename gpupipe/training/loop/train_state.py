"""Where a fit stands: what callbacks look at, what a checkpoint holds, and how a fit goes on from one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from gpupipe.tensors import Loader
from gpupipe.tensors.loader import TorchBatches
from gpupipe.training.callbacks.early_stopping import BestWeights
from gpupipe.training.callbacks.history import History
from gpupipe.training.cuda.cuda_graph import CursorBatches
from gpupipe.training.cuda.profiler_ranges import Range, unnamed
from gpupipe.training.distributed.rank_group import Together
from gpupipe.training.loop.train_step import Update

__all__ = ["Run"]


@dataclass(eq=False)
class Run:
    """A fit under way.

    Args:
        model: what is trained.
        update: one step of it, with the optimiser in `update.optimizer`.
        train: the loader.
        history: the rows of the epochs so far.
        steps_per_epoch: batches in an epoch.
        max_epochs: epochs in all.
        rates: the learning rate of each update, on the host.
        device: where it runs.
        best: early stopping's weights, where there is early stopping.
        together: the ranks that train.
        epoch: the one under way, from 1.
        step_in_epoch: batches done in it.
        rows: rows seen in it, by all ranks.
        figures: of the last look: loss (the epoch's mean so far), lr, rows_per_second and data_wait (the share of time
            spent waiting for batches) since the look before.
        stop: whether this epoch is the last one; set it to end a fit.
        validating: whether the validation loader is being gone through.
        fallen: what a plateau has multiplied the schedule by.
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
    together: Together = field(default_factory=Together)
    epoch: int = 1
    step_in_epoch: int = 0
    rows: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    stop: bool = False
    validating: bool = False
    fallen: float = 1.0
    range: Range = unnamed
    _offset: int = 0  # batches done more (or fewer) than epochs of this length would make
    _before: float = 0.0  # seconds spent in this epoch by the run that this one goes on from
    _started: float = 0.0
    _waited: float = 0.0
    _looked: tuple[float, float, int] = (0.0, 0.0, 0)  # time, seconds waited and rows at the last look
    _rng: list[Tensor] | None = None  # what torch would have drawn at the start of the epoch
    _continues: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.rates = self.rates.clone()  # on the CPU it would be the table that is written to

    @property
    def step(self) -> int:
        """Batches done since the fit began."""
        return (self.epoch - 1) * self.steps_per_epoch + self.step_in_epoch + self._offset

    @property
    def last_step(self) -> int:
        """The batches done when all epochs are."""
        return self.max_epochs * self.steps_per_epoch + self._offset

    def place(self, batch: int) -> str:
        """Where a batch of this epoch is, by its number from 1: its update, and itself where that has several."""
        each = self.update.accumulate
        update = -(-batch // each)
        of_several = "" if each == 1 else f", batch {batch}"
        return f"epoch {self.epoch}, update {update}{of_several}"

    @property
    def completes_update(self) -> bool:
        """Whether the last batch is the last one of an update."""
        done = self.step_in_epoch
        return done % self.update.accumulate == 0 or done == self.steps_per_epoch

    @property
    def seconds(self) -> float:
        """Spent on this epoch so far."""
        return self._before + time.perf_counter() - self._started

    @property
    def lr(self) -> float:
        """The learning rate of the last update."""
        per_update = self.update.accumulate
        updates = (self.epoch - 1) * -(-self.steps_per_epoch // per_update) + -(-self.step_in_epoch // per_update)
        return float(self.rates[max(updates, 1) - 1]) * self.fallen

    @property
    def over(self) -> bool:
        """Whether no epoch follows the one under way."""
        return self.stop or self.epoch >= self.max_epochs

    def epochs(self) -> Iterator[int]:
        """The epochs that are left, until `stop`; each is under way when it is given."""
        while not self.stop and self.epoch <= self.max_epochs:
            yield self.epoch
            if self.over:
                return
            self.epoch, self.step_in_epoch, self.rows, self._before = self.epoch + 1, 0, 0, 0.0

    def batches(self) -> Iterator[Any]:
        """The batches of this epoch, from where it stands; the time they take is counted."""
        iterator, end, clock = self._placed(), object(), time.perf_counter
        self._started = clock()
        self._waited, self._looked = 0.0, (self._started, 0.0, self.rows)
        while True:
            before = clock()
            with self.range("data"):
                batch = next(iterator, end)
            self._waited += clock() - before
            if batch is end:
                return
            yield batch

    def batch_at(self, number: int) -> Any:
        """A batch of this epoch once more, by its number from 1; None where the loader cannot give it again."""
        if self._rng is None:
            return None
        before = random_state(self.device)
        set_random_state(self._rng, self.device)
        self._to_its_beginning()
        batch = next(islice(self.train, number - 1, None), None)
        set_random_state(before, self.device)
        return batch

    @contextmanager
    def validation(self) -> Iterator[None]:
        """Inside, the validation loader is gone through."""
        self.validating = True
        try:
            yield
        finally:
            self.validating = False

    def look(self, loss: float | None) -> None:
        """Renew `figures`."""
        now, waited, rows = time.perf_counter(), self._waited, self.rows
        then, waited_then, rows_then = self._looked
        passed = max(now - then, 1e-9)
        self._looked = now, waited, rows
        self.figures = {
            **({} if loss is None else {"loss": loss}),
            "lr": self.lr,
            "rows_per_second": (rows - rows_then) / passed,
            "data_wait": (waited - waited_then) / passed,
        }

    def state_dict(self) -> dict[str, Any]:
        """All that a fit needs to go on from here as if it had never stopped; the ranks gather it together."""
        ended = len(self.history) >= self.epoch  # the epoch's row is there: only the next epoch is left to do
        loader = None if ended else getattr(self.train, "state_dict", None)
        if self._continues is not None:  # nothing has been done since; the loader is not there yet
            return self._continues
        return {
            "epoch": self.epoch + ended,
            "step_in_epoch": 0 if ended else self.step_in_epoch,
            "rows": 0 if ended else self.rows,
            "seconds": 0.0 if ended else self.seconds,
            "lengths": [self.steps_per_epoch, self.update.accumulate],
            "offset": self._offset,
            "fallen": self.fallen,
            "model": self.model.state_dict(),
            "update": self.update.state_dict(),
            "losses": self.update.losses.of_all(),
            "history": self.history.rows,
            "best": None if self.best is None else self.best.state_dict(),
            "loader": None if loader is None else loader(),
            "rng": self.together.gather(random_state(self.device)),
            "rng_of_epoch": self.together.gather(None if ended else self._rng),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Stand where another run of the same model and data stood."""
        self.epoch, self.step_in_epoch, self.rows = state["epoch"], state["step_in_epoch"], state["rows"]
        self._before = state["seconds"]
        self.model.load_state_dict(state["model"])
        self.update.load_state_dict(state["update"])
        self.update.losses.sums.copy_(state["losses"])
        if not self.together.first:
            self.update.losses.sums[:2] = 0  # the first counts for all
        self._measure(state["offset"], *state["lengths"])
        self.scale_rates(state["fallen"])
        self.history.rows[:] = state["history"]
        if self.best is not None and state["best"] is not None:
            self.best.load_state_dict(state["best"])
            self.stop = self.best.exhausted
        self._continues = state

    def scale_rates(self, fallen: float) -> None:
        """Multiply the schedule, from the next update on."""
        self.fallen = fallen
        self.update.rates.copy_(self.rates * fallen)

    def _measure(self, offset: int, steps_per_epoch: int, accumulate: int) -> None:
        """Where epochs or updates were of another length: batches are counted on, and the schedule goes by epochs."""
        self._offset = offset + (self.epoch - 1) * (steps_per_epoch - self.steps_per_epoch)
        steps, each, done = self.steps_per_epoch, self.update.accumulate, self.step_in_epoch
        if (steps, each) != (steps_per_epoch, accumulate):
            begun = -(-done // each) if done == steps else done // each
            self.update.count.fill_((self.epoch - 1) * -(-steps // each) + begun)

    def _placed(self) -> Iterator[Any]:
        """An iterator over what is left of this epoch."""
        state, self._continues = self._continues, None
        if state is not None:
            self._draw_on(state["rng_of_epoch"] if self.step_in_epoch else state["rng"])
        self._rng = random_state(self.device)
        self._to_its_beginning()
        if state is None or not self.step_in_epoch:
            return iter(self.train)
        if self.step_in_epoch >= self.steps_per_epoch:  # only validation is left to do
            iterator = iter(())
        elif state["loader"] is not None:
            self.train.load_state_dict(state["loader"])
            iterator = iter(self.train)
        else:
            iterator = iter(self.train)
            for _ in range(self.step_in_epoch):
                next(iterator)
        self._draw_on(state["rng"])
        return iterator

    def _to_its_beginning(self) -> None:
        """Put the loader at the first batch of this epoch."""
        if hasattr(self.train, "set_epoch"):
            if isinstance(self.train, Loader | TorchBatches | CursorBatches):
                self.train.set_epoch(self.epoch)  # one that was put at a place in this epoch forgets it
            self.train.set_epoch(self.epoch - 1)

    def _draw_on(self, states: list[list[Tensor]]) -> None:
        """Take up this rank's random state; ranks that were not there keep their own."""
        if self.together.rank < len(states):
            set_random_state(states[self.together.rank], self.device)


def random_state(device: torch.device) -> list[Tensor]:
    """What torch would draw next on the CPU and on the device; the host does not wait."""
    states = [torch.default_generator.get_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def set_random_state(states: list[Tensor], device: torch.device) -> None:
    """Draw on from there."""
    torch.default_generator.set_state(states[0])
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
