"""Who may take how much of the device, and what an out-of-memory error says; this needs no RAPIDS and no device."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
import torch

from gpupipe import config
from gpupipe.backend import is_out_of_memory
from gpupipe.backend.device.memory import etl_limit, explain_out_of_memory
from gpupipe.errors import BadConfig, OutOfDeviceMemory

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "total", "block", "limit"),
    [
        (78, 80, 0, 70),
        (78, 80, 20, 50),
        (7, 8, 2, 4),
        (138, 140, 100, 24),
    ],  # at least 1 GiB, else a tenth, is training's
)
def test_frames_get_what_block_and_training_leave(free: int, total: int, block: int, limit: int) -> None:
    assert etl_limit(free * GIB, total * GIB, block * GIB) == limit * GIB


def test_frames_get_no_more_than_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPIPE_DEVICE_MEMORY", str(30 * GIB))
    monkeypatch.setattr(config, "_in_force", [])
    assert etl_limit(78 * GIB, 80 * GIB, 0) == 30 * GIB
    assert etl_limit(78 * GIB, 80 * GIB, 60 * GIB) == 10 * GIB
    config.configure(device_memory=5 * GIB)
    assert etl_limit(78 * GIB, 80 * GIB, 0) == 5 * GIB
    monkeypatch.setenv("GPUPIPE_DEVICE_MEMORY", "30 GB")
    monkeypatch.setattr(config, "_in_force", [])
    with pytest.raises(BadConfig) as caught:
        config.settings()
    assert (caught.value.where, caught.value.got) == ("GPUPIPE_DEVICE_MEMORY", "30 GB")


def test_a_full_device_is_an_error_that_says_how_full() -> None:
    with pytest.raises(OutOfDeviceMemory) as caught:
        etl_limit(3 * GIB, 80 * GIB)
    assert (caught.value.requested, caught.value.free) == (8 * GIB, 3 * GIB)
    assert "partition_bytes" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.requested, again.free) == (str(caught.value), 8 * GIB, 3 * GIB)


@pytest.mark.parametrize(
    ("cause", "requested"),
    [
        (
            MemoryError("std::bad_alloc: out_of_memory: CUDA error (failed to allocate 4096 bytes) at: x.hpp:62"),
            4096,
        ),
        (
            MemoryError(
                "std::bad_alloc: out_of_memory: RMM failure at: Exceeded memory limit (failed to allocate 2.5 KiB)"
            ),
            2560,
        ),
        (MemoryError("Out of memory allocating 1,024 bytes (allocated so far: 512 bytes)."), 1024),
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 4 GiB"
            ),
            20 << 20,
        ),
        (RuntimeError("exception occurred: std::bad_alloc: out_of_memory: RMM failure"), None),
        (RuntimeError("cudaErrorMemoryAllocation: out of memory"), None),
    ],
)
def test_every_librarys_words_for_it_are_understood(cause: Exception, requested: int | None) -> None:
    with (
        pytest.raises(OutOfDeviceMemory, match="reading Parquet: the device has not enough memory") as caught,
        explain_out_of_memory("reading Parquet"),
    ):
        raise cause
    assert caught.value.requested == requested
    assert caught.value.__cause__ is cause


def test_other_errors_and_our_own_pass_unchanged() -> None:
    with pytest.raises(RuntimeError, match="illegal address"), explain_out_of_memory("x"):
        raise RuntimeError("an illegal address was met")
    with (
        pytest.raises(OutOfDeviceMemory, match="inner"),
        explain_out_of_memory("outer"),
        explain_out_of_memory("inner"),
    ):
        raise torch.OutOfMemoryError


@pytest.mark.parametrize(
    "cause",
    [
        MemoryError(),
        MemoryError("Unable to allocate 8.00 GiB for an array"),
        pa.ArrowMemoryError("malloc of 64 failed"),
    ],
)
def test_the_hosts_memory_is_not_the_devices(cause: MemoryError) -> None:
    with pytest.raises(MemoryError) as caught, explain_out_of_memory("reading Parquet"):
        raise cause
    assert caught.value is cause
    assert is_out_of_memory(cause), "and is a reason to work on halves"
