"""What nothing on this device can beat: a copy in its memory, a matrix product, a copy from the host."""

from __future__ import annotations

import torch
from stage import Stage

SIDE = 8192
COPIED, LINKED = 4 << 30, 1 << 30


def measure(stage: Stage) -> None:
    copied, linked, side = (COPIED, LINKED, SIDE) if stage.gpu else (1 << 20, 1 << 20, 64)
    source = torch.ones(copied, dtype=torch.uint8, device=stage.device)
    target = torch.empty_like(source)
    found = stage.seconds("copy", lambda: target.copy_(source), 20)
    stage.tell("copy", {"bytes": copied, "gb_per_s": 2 * copied / found["median"] / 1e9, "seconds": found})

    left, right = (torch.randn(side, side, device=stage.device, dtype=torch.bfloat16) for _ in range(2))
    found = stage.seconds("matmul", lambda: left @ right, 20)
    stage.tell("matmul", {"side": side, "tflops": 2 * side**3 / found["median"] / 1e12, "seconds": found})

    host = torch.ones(linked, dtype=torch.uint8, pin_memory=stage.gpu)
    there = torch.empty(linked, dtype=torch.uint8, device=stage.device)
    found = stage.seconds("host link", lambda: there.copy_(host, non_blocking=True), 10)
    stage.tell("host_link", {"bytes": linked, "gb_per_s": linked / found["median"] / 1e9, "seconds": found})
