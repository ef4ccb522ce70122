"""What libraries hand to one another is the same memory, written before it is read; and each leaves the other room."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.backend import Backend, Column, select
from gpupipe.backend.device.memory import explain_out_of_memory
from gpupipe.errors import OutOfDeviceMemory
from gpupipe.schema import Field, Role, Schema
from gpupipe.tensors import FeatureTable, share
from gpupipe.training.loop.device import session

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")


def size(backend: Backend) -> int:
    """Rows of a column that is too large for what allocators round to."""
    return 1 << 24 if backend.name == "gpu" else 1 << 10


def column_to_array(backend: Backend) -> tuple[Any, Callable[[], Any]]:
    frame = backend.frame({"x": Column("float32", backend.xp.ones(size(backend), dtype="float32"))}, size(backend))
    return backend.column(frame, "x").data, lambda: backend.column(frame, "x").data


def users_column_to_tensor(backend: Backend) -> tuple[Any, Callable[[], Any]]:
    coded = backend.frame({"x": Column("float32", backend.xp.ones(size(backend), dtype="float32"))}, size(backend))
    frame = backend.decode(coded)
    return backend.column(backend.encode(frame), "x").data, lambda: share(frame, "x")


def estimators_output_to_tensor(backend: Backend) -> tuple[Any, Callable[[], Any]]:
    given = backend.to_device(np.ones((size(backend) // 4, 4), dtype=np.float32))
    if backend.name == "gpu":
        from cuml.preprocessing import StandardScaler
    else:
        from sklearn.preprocessing import StandardScaler
    fitted = StandardScaler().fit_transform(given)
    return fitted, lambda: torch.from_dlpack(fitted)


def block_to_tensor(backend: Backend) -> tuple[Any, Callable[[], Any]]:
    block = FeatureTable.allocate(
        Schema([Field("x", "float32", role=Role.FEATURE)]), size(backend) // 8, backend.device
    )
    return block.words, lambda: block.numeric


def block_to_array(backend: Backend) -> tuple[Any, Callable[[], Any]]:
    words = torch.zeros((size(backend) // 8, 8), dtype=torch.int32, device=backend.device)
    return words, lambda: backend.xp.from_dlpack(words)


def tensor_to_column(backend: Backend) -> tuple[Any, Callable[[], Any]]:
    tensor = torch.zeros(size(backend), device=backend.device)

    def hop() -> Any:
        frame = backend.frame({"x": Column("float32", backend.xp.from_dlpack(tensor))}, size(backend))
        return backend.column(frame, "x").data

    return tensor, hop


HOPS = [
    *(column_to_array, users_column_to_tensor, estimators_output_to_tensor, block_to_tensor, block_to_array),
    tensor_to_column,
]


@pytest.mark.parametrize("prepared", HOPS)
@pytest.mark.slow
def test_a_hand_over_copies_nothing(prepared: Callable[..., Any], backend: Backend) -> None:
    source, hop = prepared(backend)
    kept, moved = hop(), backend.transfers.num_bytes
    assert address(kept) == address(source)
    del kept
    before = free(backend)
    kept = hop()
    if backend.name == "gpu":
        torch.cuda.synchronize()
        assert before - torch.cuda.mem_get_info()[0] < 4 * size(backend) // 2
    assert address(kept) == address(source) and backend.transfers.num_bytes == moved


def test_a_copy_would_be_noticed(backend: Backend) -> None:
    tensor = torch.zeros(size(backend), device=backend.device)
    before = free(backend)
    copied = tensor.clone()
    assert address(copied) != address(tensor)
    if backend.name == "gpu":
        torch.cuda.synchronize()
        assert before - torch.cuda.mem_get_info()[0] > 4 * size(backend) // 2


def address(values: Any) -> int:
    tensor = values if isinstance(values, torch.Tensor) else torch.from_dlpack(values)
    return int(tensor.data_ptr())


def free(backend: Backend) -> int:
    """Bytes of the device that nobody holds, also for reuse: what is held so would hide a copy."""
    gc.collect()
    backend.make_room(0)
    if backend.name == "cpu":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def test_both_streams_wait_for_what_the_other_writes(backend: Backend) -> None:
    """A slow kernel stands before each write: who does not wait reads what was there before."""
    device, rows = torch.device(backend.device), size(backend)
    ones, block = backend.xp.ones(rows, dtype="float32"), torch.zeros(rows, device=device)
    keep_busy(device)
    backend.xp.from_dlpack(block)[:] = ones
    with session(device, seed=0):
        handed_over = block.clone()
        keep_busy(device)
        given_back = block.clone()
    backend.xp.from_dlpack(block)[:] = 7 * ones
    assert bool((handed_over == 1).all()) and bool((given_back == 1).all()) and bool((block == 7).all())


def keep_busy(device: torch.device) -> None:
    """A tenth of a second or so of work on the current stream of a GPU."""
    matrix = torch.ones((4096, 4096) if device.type == "cuda" else (8, 8), device=device)
    for _ in range(40):
        matrix = matrix @ matrix * 1e-4


@pytest.fixture
def gpu() -> Iterator[Backend]:
    """The GPU's backend, which may take afterwards what it could before."""
    backend = select("gpu")
    yield backend
    torch.cuda.empty_cache()
    backend.make_room(0)


@on_gpu
@pytest.mark.gpu
def test_frames_leave_a_block_its_room_and_get_over_a_shortage(gpu: Backend) -> None:
    available, total = torch.cuda.mem_get_info()
    block_bytes = available // 2
    gpu.make_room(block_bytes)
    with pytest.raises(OutOfDeviceMemory, match="the device has not enough memory"), explain_out_of_memory("frames"):
        gpu.xp.empty(available - block_bytes, dtype="uint8")  # it is free, and not for frames: training has a tenth
    block = torch.empty(block_bytes, dtype=torch.uint8, device="cuda")
    assert int(gpu.xp.ones(1000, dtype="int64").sum()) == 1000
    with pytest.raises(OutOfDeviceMemory), explain_out_of_memory("training"):
        torch.empty(total, dtype=torch.uint8, device="cuda")
    assert block.nbytes == block_bytes and int(gpu.xp.ones(1000, dtype="int64").sum()) == 1000


@on_gpu
@pytest.mark.gpu
def test_idle_memory_of_frames_goes_to_who_asks_for_room(gpu: Backend) -> None:
    before = free(gpu)
    held = gpu.xp.empty(1 << 30, dtype="uint8")
    del held
    gpu.make_room(1 << 30)
    assert before - torch.cuda.mem_get_info()[0] < 1 << 28
