"""Where a table goes is decided by what has room; the bytes are those that are free."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

import gpupipe as gp
from gpupipe import backend, errors
from gpupipe.backend.cpu import CpuBackend
from gpupipe.tensors import Loader, loader
from gpupipe.tensors.loader import choose_residency, get_free_bytes
from tests.raising import raises

from .tables import block_of

GPU, CPU = torch.device("cuda"), torch.device("cpu")


def test_the_first_that_has_room() -> None:
    rooms: dict[str, int | None] = {"cuda": 80, "cpu": 500}
    assert [choose_residency("auto", size, GPU, rooms) for size in (80, 81, 501)] == ["device", "host", "stream"]
    assert [choose_residency("auto", size, CPU, rooms) for size in (81, 501)] == ["device", "stream"]
    assert choose_residency("stream", 1, GPU, {}) == "stream", "as asked"
    assert choose_residency("auto", 1 << 60, CPU, {"cpu": None}) == "device", "nobody knows"
    with raises(errors.BadConfig, where="loader(residency=)", got="gpu"):
        choose_residency("gpu", 1, CPU, rooms)


def test_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  99 kB\nMemAvailable:   10 kB\n")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("2048\n")
    monkeypatch.setattr(backend, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(backend, "_CGROUP", tmp_path)
    assert get_free_bytes(CPU) == 8192
    (tmp_path / "memory.max").write_text("4096\n")
    assert get_free_bytes(CPU) == 1638, "a container may have less than its machine"
    monkeypatch.setattr(backend, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(backend, "_CGROUP", tmp_path / "none")
    assert get_free_bytes(CPU) is None


def test_what_a_table_cannot_be_used_as() -> None:
    with raises(errors.BadConfig, where="loader", got="FeatureTable on cpu, batches wanted on cpu"):
        Loader(block_of(1), residency="stream")
    assert Loader(block_of(1)).residency == "device"


def test_what_is_kept_for_reuse_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fit has left in the backend's pool, and an earlier loader in torch's, is given back first."""
    done: list[str] = []

    def free(device: torch.device) -> tuple[int, int]:
        done.append(f"asked {device}")
        return 70 << 30, 80 << 30

    monkeypatch.setattr(CpuBackend, "trim", lambda _: done.append("backend"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("torch"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    assert get_free_bytes(GPU) == 62 << 30
    assert done == ["torch", "asked cuda"]
    done.clear()
    monkeypatch.setattr(loader, "get_free_bytes", lambda device: done.append(f"asked {device}"))
    frame = pd.DataFrame({"x": [1.0, 2.0]})
    gp.Pipeline([], gp.Features(["x"]), backend="cpu").fit(frame).loader(frame)
    assert done == ["backend", "asked cpu"]
