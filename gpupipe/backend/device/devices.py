"""GPU discovery: the devices CUDA would show this process, and their order, without initialising CUDA."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Gpu", "visible_gpus"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """GPU device as CUDA would list it: a whole GPU, or a MIG instance.

    Args:
        memory_total: bytes; 0 if the driver does not report it (memory shared with the CPU).
        memory_free: bytes that no process holds now; 0 likewise.
    """

    name: str
    uuid: str
    memory_total: int
    memory_free: int
    compute_capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Slot:
    """GPU of the machine, visible or not.

    Args:
        shown: what CUDA shows for it: the GPU, or its first instance in MIG mode; None where there is nothing to show.
        names: what CUDA_VISIBLE_DEVICES can call it, or an instance of it, by; the old names of instances included.
        speed: cores times clock, to put the fastest first.
    """

    shown: Gpu | None
    names: Mapping[str, Gpu]
    speed: int


def visible_gpus(environ: Mapping[str, str], nvml: Any) -> tuple[tuple[Gpu, ...], str]:
    """List the devices CUDA_VISIBLE_DEVICES leaves visible, in CUDA's order, and why others are hidden, if any are.

    An invalid entry hides itself and all after it, UUIDs may be abbreviated, and a process sees one MIG instance at
    most. Source: CUDA C++ Programming Guide, CUDA environment variables; that a repeated entry hides everything is what
    the driver does.

    Args:
        environ: where CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are read.
        nvml: the initialised module `pynvml`, or an object with the functions of it that are used here.

    Example:
        >>> from types import SimpleNamespace
        >>> visible_gpus({}, SimpleNamespace(nvmlDeviceGetCount=lambda: 0))
        ((), 'the driver lists no GPU')
    """
    slots = _slots(nvml, environ)
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if not slots:
        return (), "the driver lists no GPU"
    if mask is None:
        found = [slot.shown for slot in slots if slot.shown is not None]
        missing = len(slots) - len(found)
        hidden = (
            f"{missing} of {len(slots)} GPUs do not answer, or are in MIG mode without an instance" if missing else ""
        )
    else:
        found, hidden = _apply_mask(mask, slots)
    for gpu in found:
        if gpu.uuid.startswith("MIG-") and len(found) > 1:
            return (gpu,), "CUDA shows a process one MIG instance only"
    return tuple(found), hidden


def _apply_mask(mask: str, slots: Sequence[_Slot]) -> tuple[list[Gpu], str]:
    found: list[Gpu] = []
    for entry in map(str.strip, mask.split(",")):
        matches = _matches(entry, slots)
        if entry in ("", "-1"):
            return found, "" if found else f"CUDA_VISIBLE_DEVICES={mask!r} hides all GPUs"
        if len(matches) != 1:
            trouble = "more than one device is" if matches else "no device is"
            return found, f"CUDA_VISIBLE_DEVICES={mask!r}: {trouble} called {entry!r}, which hides it and all after it"
        if matches[0] in found:
            return [], f"CUDA_VISIBLE_DEVICES={mask!r} repeats {entry!r}, which hides all GPUs"
        found += matches
    return found, ""


def _matches(entry: str, slots: Sequence[_Slot]) -> list[Gpu]:
    """Find the devices that an entry names: by index, UUID, or prefix of a GPU's UUID."""
    if digits := re.match(r"[+-]?\d+", entry):  # CUDA reads as many digits as there are: "1st" is 1
        index = int(digits[0])
        shown = slots[index].shown if 0 <= index < len(slots) else None
        return [] if shown is None else [shown]
    named = [(name, gpu) for slot in slots for name, gpu in slot.names.items()]
    return [gpu for name, gpu in named if name == entry or (entry.startswith("GPU-") and name.startswith(entry))]


def _slots(nvml: Any, environ: Mapping[str, str]) -> list[_Slot]:
    """List all GPUs in the order of CUDA's indices.

    CUDA documents its default order only as fastest first; cores times clock is the estimate used here. It matters on
    machines with different GPUs, where CUDA_DEVICE_ORDER=PCI_BUS_ID, NVML's own order, settles it.
    """
    slots = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            slots.append(_slot(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
        except nvml.NVMLError:  # fallen off the bus: it keeps its place, or the others would be taken for it
            slots.append(_Slot(None, {}, 0))
    return slots if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else sorted(slots, key=lambda slot: -slot.speed)


def _slot(nvml: Any, handle: Any) -> _Slot:
    def ask(default: Any, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except nvml.NVMLError:  # not every GPU answers every question
            return default

    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))

    def describe(handle: Any) -> Gpu:
        memory = ask(None, nvml.nvmlDeviceGetMemoryInfo, handle)
        total, free = (memory.total, memory.free) if memory else (0, 0)
        return Gpu(nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle), total, free, capability)

    gpu = describe(handle)
    cores = ask(0, nvml.nvmlDeviceGetNumGpuCores, handle)
    speed = cores * ask(0, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM)
    if ask((0, 0), nvml.nvmlDeviceGetMigMode, handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        return _Slot(gpu, {gpu.uuid: gpu}, speed)
    names: dict[str, Gpu] = {}
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        part = ask(None, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if part is not None:
            instance = describe(part)
            ids = f"{nvml.nvmlDeviceGetGpuInstanceId(part)}/{nvml.nvmlDeviceGetComputeInstanceId(part)}"
            names |= {instance.uuid: instance, f"MIG-{gpu.uuid}/{ids}": instance}
    first = next(iter(names.values()), None)
    return _Slot(first, names if first is None else {gpu.uuid: first, **names}, speed)
