"""What a program can do while a fit goes on, and the order in which it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gpupipe.training.loop.train_state import Run

__all__ = ["Agreement", "Callback", "Callbacks"]


class Callback:
    """Methods that a fit calls; fill in those you need. All are given the `Run`.

    None of them makes the host wait for the device by itself: figures are read once per `log_every` batches, and
    `on_step_end` should ask for nothing more. Of several ranks that train together the first one calls them; those with
    `every_rank = True` are called on each.

    Example:
        >>> class Shout(Callback):
        ...     def on_epoch_end(self, run):
        ...         print(f"epoch {run.epoch} of {run.max_epochs}!")
    """

    every_rank = False

    def on_fit_start(self, run: Run) -> None:
        """Before the first epoch, or before the one a resumed fit goes on with."""

    def on_epoch_start(self, run: Run) -> None:
        """Before an epoch's first update."""

    def on_step_end(self, run: Run) -> None:
        """After each update; called only where a class has it."""

    def on_log(self, run: Run) -> None:
        """After the figures have been read, once per `log_every` batches and at an epoch's end: `run.figures`."""

    def on_epoch_end(self, run: Run) -> None:
        """After validation, with the epoch's row in `run.history`; `run.stop = True` makes the epoch the last one."""

    def on_fit_end(self, run: Run) -> None:
        """At the end of a fit that went well, with the best weights restored where there is early stopping."""

    def on_exception(self, run: Run, error: BaseException) -> None:
        """In the place of `on_fit_end`, where something was raised; it is raised again afterwards."""


class Agreement(Callback):
    """Where a callback of one rank ends the fit, all ranks end it."""

    every_rank = True

    def on_epoch_end(self, run: Run) -> None:
        """Tell each other."""
        run.stop = run.together.any(run.stop)


class Callbacks:
    """All of a fit's callbacks as one; each event reaches them in their order.

    Args:
        callbacks: in that order.
        first: whether this is the first rank, which calls all of them.
    """

    def __init__(self, callbacks: Iterable[Callback], *, first: bool = True) -> None:
        self._all = [callback for callback in callbacks if first or callback.every_rank]
        # The only event that comes with every update: nobody is asked who has nothing to say.
        self.on_step_end = [c.on_step_end for c in self._all if type(c).on_step_end is not Callback.on_step_end]

    @contextmanager
    def around(self, run: Run) -> Iterator[None]:
        """A fit, from `on_fit_start` to `on_fit_end` or `on_exception`, which only those get that have started."""
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

    def on_epoch_start(self, run: Run) -> None:
        """Tell all."""
        for callback in self._all:
            callback.on_epoch_start(run)

    def on_log(self, run: Run, loss: float | None) -> None:
        """Tell all, with the figures of the updates since the last time."""
        run.look(loss)
        for callback in self._all:
            callback.on_log(run)

    def on_epoch_end(self, run: Run) -> None:
        """Tell all."""
        for callback in self._all:
            callback.on_epoch_end(run)
