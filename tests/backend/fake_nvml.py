"""The functions of `pynvml` that the probe uses, over GPUs a test makes up."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

GIB = 2**30


@dataclass(frozen=True)
class FakeInstance:
    """A MIG instance, by GPU instance and compute instance id."""

    uuid: str
    ids: tuple[int, int]
    name: str = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    memory: int = 5 * GIB


@dataclass(frozen=True)
class FakeGpu:
    """A GPU; `instances` is None where MIG mode is off, and a place in it is None where there is no instance."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB"
    memory: int = 40 * GIB
    capability: tuple[int, int] = (8, 0)
    cores: int = 6912
    instances: list[FakeInstance | None] | None = None
    is_lost: bool = False
    knows_memory: bool = True


class NVMLError(Exception):
    """As pynvml's, the root of its errors."""


@dataclass
class FakeNvml:
    """Stands for the module; a handle is the fake device itself."""

    gpus: list[FakeGpu] = field(default_factory=list)
    driver: str | None = "580.82.07"
    cuda: int = 13000
    sessions: int = 0
    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_CLOCK_SM = 1

    def nvmlInit(self) -> None:
        if self.driver is None:
            raise NVMLError("NVML Shared Library Not Found")
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> str | None:
        return self.driver

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return self.cuda

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if self.gpus[index].is_lost:
            raise NVMLError("GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetName(self, handle: FakeGpu | FakeInstance) -> str:
        return handle.name

    def nvmlDeviceGetUUID(self, handle: FakeGpu | FakeInstance) -> str:
        return handle.uuid

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu | FakeInstance) -> SimpleNamespace:
        if isinstance(handle, FakeGpu) and not handle.knows_memory:
            raise NVMLError("Not Supported")
        return SimpleNamespace(total=handle.memory, free=handle.memory - GIB, used=GIB)

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeGpu) -> tuple[int, int]:
        return handle.capability

    def nvmlDeviceGetNumGpuCores(self, handle: FakeGpu) -> int:
        return handle.cores

    def nvmlDeviceGetMaxClockInfo(self, handle: FakeGpu, clock: int) -> int:
        return 1410

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> list[int]:
        if handle.capability < (8, 0):
            raise NVMLError("Not Supported")
        return [int(handle.instances is not None)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeGpu) -> int:
        return len(handle.instances or [])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: FakeGpu, index: int) -> FakeInstance:
        instance = (handle.instances or [])[index]
        if instance is None:
            raise NVMLError("Not Found")
        return instance

    def nvmlDeviceGetGpuInstanceId(self, handle: FakeInstance) -> int:
        return handle.ids[0]

    def nvmlDeviceGetComputeInstanceId(self, handle: FakeInstance) -> int:
        return handle.ids[1]
