"""What CUDA would show, against its documented rules for CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import inspect

import pynvml
import pytest

from gpupipe.backend.device.probe import visible_gpus
from tests.backend.fake_nvml import GIB, FakeGpu, FakeInstance, FakeNvml

A, B, C = FakeGpu("GPU-aa11"), FakeGpu("GPU-aa22"), FakeGpu("GPU-cc33")
PARTS = [FakeInstance("MIG-p1", (1, 0)), None, FakeInstance("MIG-p2", (2, 0))]
SPLIT = FakeGpu("GPU-dd44", instances=PARTS)


def shown(mask: str | None, *gpus: FakeGpu, order: str = "PCI_BUS_ID") -> list[str]:
    environ = {"CUDA_DEVICE_ORDER": order} | ({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask})
    return [gpu.uuid for gpu in visible_gpus(environ, FakeNvml(list(gpus)))[0]]


def why(mask: str | None, *gpus: FakeGpu) -> str:
    return visible_gpus({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}, FakeNvml(list(gpus)))[1]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, ["GPU-aa11", "GPU-aa22", "GPU-cc33"]),
        ("0", ["GPU-aa11"]),
        ("2,0", ["GPU-cc33", "GPU-aa11"]),
        (" 2 , 0 ", ["GPU-cc33", "GPU-aa11"]),
        ("1gpu,2nd", ["GPU-aa22", "GPU-cc33"]),  # digits are read as far as they go
        ("", []),
        ("-1", []),
        ("0,2,-1,1", ["GPU-aa11", "GPU-cc33"]),  # the guide's own example
        ("0,7,1", ["GPU-aa11"]),
        ("0,nonsense,1", ["GPU-aa11"]),
        ("nonsense", []),
        ("1,1", []),
        ("GPU-cc33,GPU-aa11", ["GPU-cc33", "GPU-aa11"]),
        ("GPU-c", ["GPU-cc33"]),
        ("GPU-aa", []),  # two begin so
        ("GPU-aa2,GPU-aa", ["GPU-aa22"]),
        ("gpu-cc33", []),
        ("cc33", []),
        ("GPU-c,2", []),  # the same one twice
    ],
)
def test_mask_over_three_gpus(mask: str | None, expected: list[str]) -> None:
    assert shown(mask, A, B, C) == expected


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, ["MIG-p1"]),
        ("0", ["MIG-p1"]),
        ("GPU-dd44", ["MIG-p1"]),
        ("MIG-p2", ["MIG-p2"]),
        ("MIG-GPU-dd44/2/0", ["MIG-p2"]),  # the name drivers before 470 gave
        ("MIG-p2,MIG-p1", ["MIG-p2"]),  # one instance to a process
        ("MIG-p", []),  # only whole GPUs have abbreviations
        ("MIG-p3", []),
    ],
)
def test_mask_over_instances(mask: str | None, expected: list[str]) -> None:
    assert shown(mask, SPLIT) == expected


def test_an_instance_beside_whole_gpus_stands_alone() -> None:
    assert shown("0,1", A, SPLIT) == ["MIG-p1"]
    assert "one MIG instance only" in why("0,1", A, SPLIT)
    assert shown("0", A, SPLIT) == ["GPU-aa11"]


def test_instances_tell_their_own_memory() -> None:
    (gpu,), _ = visible_gpus({}, FakeNvml([SPLIT]))
    assert (gpu.memory_total, gpu.memory_free, gpu.compute_capability) == (5 * GIB, 4 * GIB, (8, 0))


def test_fastest_comes_first_unless_bus_order_is_asked_for() -> None:
    small = FakeGpu("GPU-small", capability=(7, 5), cores=2560)
    assert shown(None, small, A, order="FASTEST_FIRST") == ["GPU-aa11", "GPU-small"]
    assert shown("0", small, A, order="FASTEST_FIRST") == ["GPU-aa11"]
    assert shown("0", small, A) == ["GPU-small"]
    assert shown(None, A, B, C, order="FASTEST_FIRST") == ["GPU-aa11", "GPU-aa22", "GPU-cc33"]


def test_a_lost_gpu_keeps_its_place_and_spares_the_others() -> None:
    lost = FakeGpu("GPU-lost", is_lost=True)
    assert shown(None, A, lost, C) == ["GPU-aa11", "GPU-cc33"]
    assert shown("2", A, lost, C) == ["GPU-cc33"]
    assert shown("0,1,2", A, lost, C) == ["GPU-aa11"]
    assert why(None, A, lost, C).startswith("1 of 3 GPUs do not answer")


def test_memory_may_be_unknown() -> None:
    (gpu,), _ = visible_gpus({}, FakeNvml([FakeGpu("GPU-e", knows_memory=False)]))
    assert (gpu.memory_total, gpu.memory_free) == (0, 0)


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ("0", ""),
        ("0,-1", ""),
        ("", "CUDA_VISIBLE_DEVICES='' hides all GPUs"),
        ("0,7", "no device is called '7', which hides it and all after it"),
        ("GPU-aa", "more than one device is called 'GPU-aa'"),
        ("0,0", "repeats '0', which hides all GPUs"),
    ],
)
def test_what_is_hidden_has_a_reason(mask: str, reason: str) -> None:
    seen = why(mask, A, B, C)
    assert reason in seen if reason else seen == ""


def test_no_gpu_at_all() -> None:
    assert why(None) == "the driver lists no GPU"
    assert shown("0") == []


def test_the_fake_has_the_functions_of_pynvml() -> None:
    """Every function the fake offers exists in pynvml and takes as many arguments."""
    for name, fake in inspect.getmembers(FakeNvml, inspect.isfunction):
        if name.startswith("nvml"):
            real = inspect.signature(getattr(pynvml, name)).parameters.values()
            required = [parameter for parameter in real if parameter.default is inspect.Parameter.empty]
            assert len(required) == len(inspect.signature(fake).parameters) - 1, name
    assert pynvml.NVML_DEVICE_MIG_ENABLE == FakeNvml.NVML_DEVICE_MIG_ENABLE
    assert pynvml.NVML_CLOCK_SM == FakeNvml.NVML_CLOCK_SM
