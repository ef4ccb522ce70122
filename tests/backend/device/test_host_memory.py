"""Freed buffers are found again without page faults, unless the user has said what glibc should do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpupipe import backend as h

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is Linux'")

FAULTS = """
import resource, sys
import numpy as np
import pyarrow as pa
from gpupipe.backend.cpu import keep_freed_memory
print(keep_freed_memory())
size = 3_000_000  # below what NumPy asks huge pages for
def rounds(n):
    for _ in range(n):
        held = [np.ones(size // 8) for _ in range(8)]
        del held
rounds(2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
rounds(20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, pa.default_memory_pool().backend_name)
"""


def run(**variables: str) -> tuple[str, int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[3])} | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    said, faults, pool = done.stdout.split()
    return said, int(faults), pool


@pytest.mark.slow
def test_freed_buffers_are_used_again_without_page_faults() -> None:
    said, faults, pool = run()
    assert said == "True"
    assert pool == "system"
    assert faults < 1_000  # 20 rounds of 24 MB are 117,000 pages


@pytest.mark.slow
def test_what_the_user_has_set_is_left_alone() -> None:
    said, faults, pool = run(MALLOC_TRIM_THRESHOLD_="65536", MALLOC_MMAP_THRESHOLD_="65536")
    assert said == "False"
    assert pool == "mimalloc"
    assert faults > 100_000


def test_errors_of_memory_and_of_the_device() -> None:
    assert h.is_out_of_memory(MemoryError()) and h.is_out_of_memory(RuntimeError("std::bad_alloc: out_of_memory"))
    assert not h.is_out_of_memory(RuntimeError("an illegal memory access was encountered"))
    assert h.is_out_of_device_memory(MemoryError("std::bad_alloc: out_of_memory: (failed to allocate 8 bytes)"))
    assert not h.is_out_of_device_memory(MemoryError("Unable to allocate 8.00 GiB for an array"))
    assert h.is_device_error(RuntimeError("CUDA error encountered at: a.cu:9: 700 cudaErrorIllegalAddress"))
    assert not h.is_device_error(RuntimeError("JSON Parser encountered an invalid format at location 7"))


def test_free_memory_is_that_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (h.free_host_memory() or 1) > 0
    monkeypatch.setattr(h, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(h, "_CGROUP", tmp_path)
    assert h.free_host_memory() is None
    (tmp_path / "meminfo").write_text("MemTotal: 64 kB\nMemAvailable: 32 kB\n")
    (tmp_path / "memory.current").write_text("5000\n")
    found = []
    for limit in ("max", "20000", "4000"):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        found.append(h.free_host_memory())
    assert found == [32 << 10, 15_000, 0]
