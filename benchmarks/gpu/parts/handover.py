"""Hand-overs between libraries: microseconds, whether the memory is the same, and bytes the device has less after.

By pointer and by the device's free bytes: a copy shows in both.
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


def measure(stage: Stage) -> None:
    backend, xp = stage.backend, stage.backend.xp
    rows = stage.rows(ROWS)
    array = xp.ones(rows, dtype="float32")
    frame = backend.decode(backend.frame({"x": Column("float32", array)}, rows))
    coded = backend.encode(frame)
    tensor = torch.zeros(rows, device=stage.device)
    block = torch.zeros((rows // 8, 8), device=stage.device)
    fitted = outputs(stage, rows)
    hops: dict[str, tuple[Callable[[], Any], Any]] = {
        "frame's column to array": (lambda: backend.column(coded, "x").data, backend.column(coded, "x").data),
        "array to tensor": (lambda: torch.from_dlpack(array), array),
        "frame's column to tensor (share)": (
            lambda: share(frame, "x"),
            backend.column(backend.encode(frame), "x").data,
        ),
        "feature block to array": (lambda: xp.from_dlpack(block), block),
        "tensor to frame's column": (
            lambda: backend.column(backend.frame({"x": Column("float32", xp.from_dlpack(tensor))}, rows), "x").data,
            tensor,
        ),
        "estimator's output to tensor": (lambda: torch.from_dlpack(fitted), fitted),
    }
    for name, (hop, source) in hops.items():
        stage.tell(name, of_hop(stage, hop, address(source)))


def of_hop(stage: Stage, hop: Callable[[], Any], wanted: int) -> dict[str, Any]:
    """One hop, made often; what it gives is kept while the device's free bytes are asked for."""
    calls, kept = CALLS if stage.gpu else 5, hop()
    same = address(kept) == wanted
    del kept
    gc.collect()
    stage.wait()
    stage.backend.make_room(0)  # what both allocators keep for reuse would hide a copy
    free = torch.cuda.mem_get_info()[0] if stage.gpu else 0
    kept = hop()
    stage.wait()
    copied = free - torch.cuda.mem_get_info()[0] if stage.gpu else 0
    started = time.perf_counter()
    for _ in range(calls):
        kept = hop()
    stage.wait()
    took = (time.perf_counter() - started) / calls
    return {"microseconds": took * 1e6, "same_memory": same, "bytes_copied": copied, "is": type(kept).__name__}


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
