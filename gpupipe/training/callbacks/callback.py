"""Callbacks: the hooks of a fit and the order in which they run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gpupipe.training.loop.train_state import TrainState


class Callback:
    """Base class of callbacks: methods that a fit calls with its `TrainState`; override those you need.

    None of them makes the host wait for the device by itself: figures are read once per `log_every` batches, and
    `on_step_end` should read nothing else from the device. Rank 0 alone calls them; those with `every_rank = True` are
    called on each rank.

    Example:
        >>> class Shout(Callback):
        ...     def on_epoch_end(self, run):
        ...         print(f"epoch {run.epoch} of {run.max_epochs}!")
    """

    every_rank = False

    def on_fit_start(self, run: TrainState) -> None:
        """Run before the first epoch, or before the first one of a resumed fit."""

    def on_epoch_start(self, run: TrainState) -> None:
        """Run before an epoch's first update."""

    def on_step_end(self, run: TrainState) -> None:
        """Run after each update; called only where a class has it."""

    def on_log(self, run: TrainState) -> None:
        """Run once per `log_every` batches and at an epoch's end, when `run.metrics` is new."""

    def on_epoch_end(self, run: TrainState) -> None:
        """Run after validation, with the epoch's row in `run.history`; `run.stop = True` ends the fit after it."""

    def on_fit_end(self, run: TrainState) -> None:
        """Run at the end of a fit that succeeded, with the best weights restored under early stopping."""

    def on_exception(self, run: TrainState, error: BaseException) -> None:
        """Run instead of `on_fit_end` after an exception, which is raised again afterwards."""


class Agreement(Callback):
    """Agreement of ranks: where a callback of one rank ends the fit, all ranks end it."""

    every_rank = True

    def on_epoch_end(self, run: TrainState) -> None:
        """Share the stop flag among the ranks."""
        run.stop = run.ranks.any(run.stop)


class Callbacks:
    """Callbacks of a fit as one; each event reaches them in order.

    Args:
        callbacks: in that order.
        first: whether this is the first rank, which calls all of them.
    """

    def __init__(self, callbacks: Iterable[Callback], *, first: bool = True) -> None:
        self._all = [callback for callback in callbacks if first or callback.every_rank]
        # The only event of every update: only callbacks that define it are called.
        self.on_step_end = [c.on_step_end for c in self._all if type(c).on_step_end is not Callback.on_step_end]

    @contextmanager
    def around(self, run: TrainState) -> Iterator[None]:
        """Call `on_fit_start`, then `on_fit_end` or `on_exception` of the callbacks that started."""
        started: list[Callback] = []
        try:
            for callback in self._all:
                started.append(callback)
                callback.on_fit_start(run)
            yield
            while started:
                started[0].on_fit_end(run)
                del started[0]
        except BaseException as error:
            for callback in started:
                try:
                    callback.on_exception(run, error)
                except Exception as second:  # noqa: BLE001 - the first is what went wrong
                    error.add_note(f"and then {type(callback).__name__}.on_exception: {second}")
            raise

    def on_epoch_start(self, run: TrainState) -> None:
        """Call all."""
        for callback in self._all:
            callback.on_epoch_start(run)

    def on_log(self, run: TrainState, loss: float | None) -> None:
        """Call all, with the metrics of the updates since the last log."""
        run.log_metrics(loss)
        for callback in self._all:
            callback.on_log(run)

    def on_epoch_end(self, run: TrainState) -> None:
        """Call all."""
        for callback in self._all:
            callback.on_epoch_end(run)
