"""The GPU's clocks, heat and throttling, looked at once a second while a part runs, from outside its process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml
from environment import spread

from gpupipe.backend.device.probe import probe
from gpupipe.training.callbacks.gpu_stats import throttles

__all__ = ["card", "watched"]

EVERY = 1.0


def card(nvml: Any = pynvml) -> dict[str, Any]:
    """The first visible GPU, its driver, and the clocks it could have; nothing where there is none."""
    gpus = probe(nvml=nvml).gpus
    if not gpus:
        return {}
    nvml.nvmlInit()
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpus[0].uuid)
        asked: dict[str, Callable[[], Any]] = {
            "driver": nvml.nvmlSystemGetDriverVersion,
            "cuda_driver": nvml.nvmlSystemGetCudaDriverVersion,
            "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "max_memory_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "power_limit_watts": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            "pcie_generation": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            "pcie_lanes": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        }
        return {"name": gpus[0].name, "memory_bytes": gpus[0].memory_total} | _answers(asked, nvml)
    finally:
        nvml.nvmlShutdown()


@contextmanager
def watched(nvml: Any = pynvml) -> Iterator[dict[str, Any]]:
    """What is seen until the block ends, filled then: spreads, and the share of looks with each throttle reason."""
    seen: dict[str, Any] = {}
    gpus = probe(nvml=nvml).gpus
    if not gpus:
        yield seen
        return
    samples: dict[str, list[float]] = {}
    reasons: Counter[str] = Counter()
    nvml.nvmlInit()
    handle, ended, looks = nvml.nvmlDeviceGetHandleByUUID(gpus[0].uuid), threading.Event(), 0

    def look_on() -> None:
        nonlocal looks
        asked: dict[str, Callable[[], Any]] = {
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "throttled": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        }
        while True:
            found, looks = _answers(asked, nvml), looks + 1
            reasons.update(throttles(int(found.pop("throttled", 0))))
            for name, value in found.items():
                samples.setdefault(name, []).append(float(value))
            if ended.wait(EVERY):
                return

    thread = threading.Thread(target=look_on, name="clocks", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join(timeout=10)
        nvml.nvmlShutdown()
        seen |= {name: spread(values) for name, values in samples.items()}
        seen["throttled"] = {name: count / max(looks, 1) for name, count in reasons.items()}


def _answers(asked: dict[str, Callable[[], Any]], nvml: Any) -> dict[str, Any]:
    """What the driver answers; not every GPU answers every question."""
    found = {}
    for name, ask in asked.items():
        try:
            found[name] = ask()
        except nvml.NVMLError:
            continue
    return found
