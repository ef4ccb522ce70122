"""GPU statistics of a fit, sampled once a second: utilization, clocks, temperature, throttling.

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

from gpupipe.training.callbacks.callback import Callback
from gpupipe.training.loop.train_state import TrainState

EVERY = 1.0

logger = logging.getLogger(__name__)
_SLOWDOWNS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def throttles(bits: int) -> list[str]:
    """List the reasons in NVML's clock event bits that slow a busy GPU down. Source: nvml.h, "Clocks Event Reasons"."""
    return [reason for bit, reason in _SLOWDOWNS.items() if bits & bit]


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
