"""What the GPU benchmark says of the card and its clocks, of GPUs a test makes up."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from tests.backend.fake_nvml import FakeGpu, FakeNvml, NVMLError
from tests.project.benchmark_scripts import benchmark_script


class Driver(FakeNvml):
    """Of a GPU that is held back by its power cap, and does not tell its heat."""

    NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 2, 0

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        return next(gpu for gpu in self.gpus if gpu.uuid == uuid)

    def nvmlDeviceGetClockInfo(self, handle: FakeGpu, clock: int) -> int:
        return 1000 * clock

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: FakeGpu) -> int:
        return 0x4 | 0x1  # the power cap, and idleness, which holds nothing back

    def nvmlDeviceGetPowerUsage(self, handle: FakeGpu) -> int:
        return 350_000

    def nvmlDeviceGetTemperature(self, handle: FakeGpu, sensor: int) -> int:
        raise NVMLError("Not Supported")

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: FakeGpu) -> int:
        raise NVMLError("Not Supported")

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: FakeGpu) -> int:
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: FakeGpu) -> int:
        return 16


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return benchmark_script("gpu/clocks.py", monkeypatch)


def test_clocks_and_throttling_are_told(clocks: ModuleType) -> None:
    driver = Driver([FakeGpu("GPU-1")])
    with clocks.watched(driver) as seen:
        pass
    assert seen["sm_clock_mhz"]["median"] == 1000 and seen["memory_clock_mhz"]["max"] == 2000
    assert seen["power_watts"]["min"] == 350 and "temperature_celsius" not in seen
    assert seen["throttled"] == {"software power cap": 1.0}
    card = clocks.card(driver)
    assert (
        card["driver"] == "580.82.07"
        and "power_limit_watts" not in card
        and card["pcie_lanes"] == 16
        and json.dumps([seen, card])
    )
    assert driver.sessions == 0


def test_without_a_gpu_there_is_nothing_to_tell(clocks: ModuleType) -> None:
    driver = Driver(driver=None)
    with clocks.watched(driver) as seen:
        pass
    assert seen == {} and clocks.card(driver) == {}
