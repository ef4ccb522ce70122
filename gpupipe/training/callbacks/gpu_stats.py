"""What the GPU did during a fit, looked at once a second: how busy, how fast, how hot, and whether it was held back.

The driver's management library (NVML) answers in microseconds, from a thread, and does not touch the training.
"""

from __future__ import annotations

import logging
import statistics
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pynvml
import torch

from gpupipe.support.nvml import throttles
from gpupipe.training.callbacks.callback import Callback
from gpupipe.training.loop.train_state import Run

__all__ = ["GpuStats"]

EVERY = 1.0

logger = logging.getLogger(__name__)


class GpuStats(Callback):
    """Minimum, median and maximum over the fit in `history.gpu`, and a warning where the GPU was throttled.

    Where NVML does not answer there is one line in the log, and the fit goes on.

    Args:
        nvml: the module `pynvml`, or an object with the functions of it that are used here.
        every: seconds between two looks.
    """

    def __init__(self, nvml: Any = pynvml, *, every: float = EVERY) -> None:
        self.nvml, self.every = nvml, every
        self._thread: threading.Thread | None = None

    def on_fit_start(self, run: Run) -> None:
        """Start looking."""
        self._samples: dict[str, list[float]] = {}
        self._throttled: Counter[str] = Counter()
        try:
            self.nvml.nvmlInit()
            handle = self._handle(run.device)
        except self.nvml.NVMLError as error:
            logger.warning("no figures of the GPU: NVML does not answer (%s)", error)
            return
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, args=(handle,), name="gpupipe-nvml", daemon=True)
        self._thread.start()

    def on_fit_end(self, run: Run) -> None:
        """Put what was seen into the history."""
        self._stop()
        run.history.gpu = {name: _spread(values) for name, values in self._samples.items()}
        total = max((len(values) for values in self._samples.values()), default=0)
        run.history.throttled = {reason: count / total for reason, count in self._throttled.items()}
        for reason, share in run.history.throttled.items():
            logger.warning("the GPU was throttled for %.0f %% of the fit: %s", 100 * share, reason)

    def on_exception(self, run: Run, error: BaseException) -> None:
        """The same: a run that failed may be one to look at."""
        self.on_fit_end(run)

    def _handle(self, device: torch.device) -> Any:
        """NVML counts all GPUs, CUDA those that are visible: the UUID tells which is meant."""
        if device.type != "cuda":
            return self.nvml.nvmlDeviceGetHandleByIndex(0)
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return self.nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")

    def _look_on(self, handle: Any) -> None:
        while True:
            self._look(handle)
            if self._ended.wait(self.every):
                return

    def _look(self, handle: Any) -> None:
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
