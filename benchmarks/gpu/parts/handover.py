"""Hand-overs between libraries: microseconds, whether the memory is the same, and bytes that are in use after.

By pointer and by the bytes that both allocators have handed out: a copy shows in both. The device's free bytes would
tell how much the allocators keep, which grows by tens of megabytes for a few.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from stage import Stage

from gpupipe.backend import Column
from gpupipe.tensors import share

ROWS, CALLS = 100_000_000, 200
Hop = tuple[Callable[[], Any], Any]  # makes it, and from what


def measure(stage: Stage) -> None:
    backend, xp = stage.backend, stage.backend.xp
    rows = stage.rows(ROWS)
    array = xp.ones(rows, dtype="float32")
    frame = backend.decode(backend.frame({"x": Column("float32", array)}, rows))
    coded = backend.encode(frame)

    def of_column() -> Hop:
        return lambda: backend.column(coded, "x").data, backend.column(coded, "x").data

    def of_array() -> Hop:
        return lambda: torch.from_dlpack(array), array

    def shared() -> Hop:
        return lambda: share(frame, "x"), backend.column(backend.encode(frame), "x").data

    def of_block() -> Hop:
        block = torch.zeros((rows // 8, 8), device=stage.device)
        return lambda: xp.from_dlpack(block), block

    def of_tensor() -> Hop:
        tensor = torch.zeros(rows, device=stage.device)
        column = lambda: Column("float32", xp.from_dlpack(tensor))  # noqa: E731 - of each hop anew
        return lambda: backend.column(backend.frame({"x": column()}, rows), "x").data, tensor

    def of_estimator() -> Hop:
        fitted = outputs(stage, rows)
        return lambda: torch.from_dlpack(fitted), fitted

    hops: dict[str, Callable[[], Hop]] = {
        "frame's column to array": of_column,
        "array to tensor": of_array,
        "frame's column to tensor (share)": shared,
        "feature block to array": of_block,
        "tensor to frame's column": of_tensor,
        "estimator's output to tensor": of_estimator,
    }
    for name, hop in hops.items():
        stage.tell(name, stage.tried(lambda hop=hop: of_hop(stage, *hop())))


def of_hop(stage: Stage, hop: Callable[[], Any], source: Any) -> dict[str, Any]:
    """One hop, made often; what it gives is kept while the bytes in use are counted."""
    calls, wanted, kept = CALLS if stage.gpu else 5, address(source), hop()
    same = address(kept) == wanted
    del kept
    gc.collect()
    before = in_use(stage)
    kept = hop()
    copied = in_use(stage) - before
    started = time.perf_counter()
    for _ in range(calls):
        kept = hop()
    stage.wait()
    took = (time.perf_counter() - started) / calls
    return {"microseconds": took * 1e6, "same_memory": same, "bytes_copied": copied, "is": type(kept).__name__}


def in_use(stage: Stage) -> int:
    """Bytes that torch's allocator and the device's pool, which is RMM's, have handed out."""
    if not stage.gpu:
        return 0
    import cupy

    stage.wait()
    runtime = cupy.cuda.runtime
    pool = runtime.deviceGetDefaultMemPool(runtime.getDevice())
    return torch.cuda.memory_allocated() + int(runtime.memPoolGetAttribute(pool, runtime.cudaMemPoolAttrUsedMemCurrent))


def address(values: Any) -> int:
    """Where a tensor or an array lies."""
    return int(values.data_ptr() if isinstance(values, torch.Tensor) else torch.from_dlpack(values).data_ptr())


def outputs(stage: Stage, rows: int) -> Any:
    """What the device's estimator library gives: cuML on a GPU, else scikit-learn."""
    block = np.ones((rows // 100, 4), dtype=np.float32)
    if not stage.gpu:
        return stage.backend.to_device(StandardScaler().fit_transform(block))
    import cuml.preprocessing

    return cuml.preprocessing.StandardScaler().fit_transform(stage.backend.to_device(block))
