"""Where the questions of `smoke.py` are asked: a backend, a device, some rows; and the list of the questions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from gpupipe.backend import Backend
from gpupipe.schema import Field

__all__ = ["CHECKS", "GIB", "TYPES", "Lab", "check", "coded", "flights_like"]

GIB = 1 << 30
WORDS = ["JFK", "LGA", "EWR", "straße", ""]
TYPES = {
    "x": "float64",
    "y": "float64",
    "price": "float64",
    "count": "int64",
    "open": "bool",
    "word": "string",
    "at": "timestamp",
}
CHECKS: dict[str, Callable[[Lab], dict[str, Any]]] = {}


@dataclass
class Lab:
    """Where the checks run: the backend, torch's device, how many rows, how many steps."""

    backend: Backend
    gpu: bool
    rows: int
    steps: int

    @property
    def device(self) -> torch.device:
        return torch.device(self.backend.device)

    def milliseconds(self, run: Callable[[], Any], repeat: int = 5) -> float:
        """The median over a few runs after one to warm up, the device's work included."""
        times = []
        for _ in range(repeat + 1):
            started = time.perf_counter()
            run()
            self.wait()
            times.append((time.perf_counter() - started) * 1e3)
        return sorted(times[1:])[repeat // 2]

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def free(self) -> int:
        return torch.cuda.mem_get_info()[0] if self.gpu else 0

    def keep_busy(self) -> None:
        """About a tenth of a second of work on the current stream of a GPU."""
        matrix = torch.ones((4096, 4096) if self.gpu else (8, 8), device=self.device)
        for _ in range(40):
            matrix = matrix @ matrix * 1e-4


def check(function: Callable[[Lab], dict[str, Any]]) -> Callable[[Lab], dict[str, Any]]:
    CHECKS[function.__name__] = function
    return function


def flights_like(rows: int) -> pa.Table:
    """Numbers with and without gaps, words, times; the same for every backend."""
    random = np.random.default_rng(0)
    gap = random.random(rows) < 0.1
    return pa.table(
        {
            "x": random.standard_normal(rows),
            "y": random.standard_normal(rows) * 5 + 40,
            "price": pa.array(np.where(gap, np.nan, random.standard_normal(rows)), from_pandas=True),
            "count": pa.array(2**53 + random.integers(0, 9, rows), mask=gap),
            "open": pa.array(random.random(rows) < 0.5, mask=gap),
            "word": pa.array(
                np.array(WORDS, object)[random.integers(0, len(WORDS), rows)], pa.large_string(), mask=gap
            ),
            "at": pa.array(np.arange(rows) * 3_600_000_000, pa.timestamp("us"), mask=gap),
        }
    )


def coded(backend: Backend, table: pa.Table) -> Any:
    """A coded frame of columns of `flights_like`."""
    return backend.from_arrow(table, [Field(name, TYPES[name]) for name in table.column_names])
