"""Callbacks: the hooks of a fit and the order in which they run."""

from __future__ import annotations

import logging
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile
from tqdm import tqdm

from gpupipe.support.files import writing
from gpupipe.support.nvml import throttles
from gpupipe.training.loop.train_state import TrainState
from gpupipe.training.loop.train_step import no_range, record_nvtx_range, record_range


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


TRACE = "trace.json"
SKIPPED, WARMING, TRACED = 10, 2, 20


class Profiling(Callback):
    """Profiler trace of twenty updates (after ten if there are enough) in a file that Perfetto opens.

    The parts are named data, forward, backward and optimizer, there and, on a GPU, as NVTX ranges for Nsight Systems.

    Args:
        folder: gets trace.json.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def on_fit_start(self, run: TrainState) -> None:
        """Start counting updates."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        left = (run.last_step - run.step) // run.update.accumulate  # of updates, at the least
        first = SKIPPED if left > SKIPPED + WARMING + TRACED else 0

        def action(step: int) -> ProfilerAction:
            if first <= step < first + WARMING:
                return ProfilerAction.WARMUP
            if first + WARMING <= step < first + WARMING + TRACED - 1:
                return ProfilerAction.RECORD
            return ProfilerAction.RECORD_AND_SAVE if step == first + WARMING + TRACED - 1 else ProfilerAction.NONE

        on_gpu = run.device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        self._profile = profile(activities=activities, schedule=action, on_trace_ready=self._export)
        run.range = run.update.range = record_nvtx_range if on_gpu else record_range
        self._profile.start()

    def on_step_end(self, run: TrainState) -> None:
        """Count an update."""
        self._profile.step()

    def on_fit_end(self, run: TrainState) -> None:
        """Write the trace."""
        self._profile.stop()
        run.range = run.update.range = no_range

    def on_exception(self, run: TrainState, error: BaseException) -> None:
        """Write the trace."""
        self.on_fit_end(run)

    def _export(self, traced: profile) -> None:
        traced.export_chrome_trace(str(self.folder / TRACE))


EVERY = 1.0

logger = logging.getLogger(__name__)


class GpuStats(Callback):
    """Minimum, median and maximum over the fit in `history.gpu`, and a warning if the GPU was throttled.

    If NVML does not answer, a line is logged and the fit goes on.

    Args:
        nvml: the module `pynvml`, or an object with the functions of it that are used here.
        every: seconds between two looks.
    """

    def __init__(self, nvml: Any = pynvml, *, every: float = EVERY) -> None:
        self.nvml, self.every = nvml, every
        self._thread: threading.Thread | None = None

    def on_fit_start(self, run: TrainState) -> None:
        """Start sampling."""
        self._samples: dict[str, list[float]] = {}
        self._throttled: Counter[str] = Counter()
        try:
            self.nvml.nvmlInit()
            handle = self._handle(run.device)
        except self.nvml.NVMLError as error:
            logger.warning("no figures of the GPU: NVML does not answer (%s)", error)
            return
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._sample_until_stopped, args=(handle,), name="gpupipe-nvml", daemon=True
        )
        self._thread.start()

    def on_fit_end(self, run: TrainState) -> None:
        """Store the statistics in the history."""
        self._stop()
        run.history.gpu = {name: _spread(values) for name, values in self._samples.items()}
        total = max((len(values) for values in self._samples.values()), default=0)
        run.history.throttled = {reason: count / total for reason, count in self._throttled.items()}
        for reason, share in run.history.throttled.items():
            logger.warning("the GPU was throttled for %.0f %% of the fit: %s", 100 * share, reason)

    def on_exception(self, run: TrainState, error: BaseException) -> None:
        """Store the statistics in the history of a failed run too."""
        self.on_fit_end(run)

    def _handle(self, device: torch.device) -> Any:
        """Find the NVML handle of a device by its UUID: NVML counts all GPUs, CUDA the visible ones."""
        if device.type != "cuda":
            return self.nvml.nvmlDeviceGetHandleByIndex(0)
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return self.nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")

    def _sample_until_stopped(self, handle: Any) -> None:
        while True:
            self._sample(handle)
            if self._ended.wait(self.every):
                return

    def _sample(self, handle: Any) -> None:
        nvml = self.nvml
        figures: dict[str, Callable[[], Any]] = {
            "utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }
        for name, ask in figures.items():
            try:
                value = float(ask())
            except nvml.NVMLError:  # not every GPU answers every question
                continue
            self._samples.setdefault(name, []).append(value)
        try:
            reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        except nvml.NVMLError:
            return
        self._throttled.update(throttles(reasons))

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.set()
            thread.join(timeout=10)
            self.nvml.nvmlShutdown()


def _spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}
