"""Progress bar on a terminal or in a notebook."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from gpupipe.training.callbacks.callback import Callback
from gpupipe.training.loop.train_state import TrainState


class ProgressBar(Callback):
    """Progress bar: epoch, loss, rows a second and the fraction of time spent waiting for data, at each log.

    Args:
        show: "auto" where stderr is a terminal, else True or False.
    """

    def __init__(self, show: str | bool) -> None:
        self._hidden = None if show == "auto" else not show
        self._bar: Any = None

    def on_fit_start(self, run: TrainState) -> None:
        """Draw the bar."""
        self._bar = tqdm(total=run.last_step, initial=run.step, disable=self._hidden, unit=" batches")

    def on_epoch_start(self, run: TrainState) -> None:
        """Show the epoch."""
        self._bar.set_description(f"epoch {run.epoch}/{run.max_epochs}")

    def on_log(self, run: TrainState) -> None:
        """Advance the bar."""
        figures = run.metrics
        shown = {
            "loss": figures.get("loss"),
            "rows/s": f"{figures['rows_per_second']:,.0f}",
            "data wait": f"{figures['data_wait']:.0%}",
        }
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(run.step - self._bar.n)

    def on_fit_end(self, run: TrainState) -> None:
        """Close the bar."""
        self._bar.close()

    def on_exception(self, run: TrainState, error: BaseException) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
