"""Beside the rooms: runs plain functions over partitions somewhere. No stage knows where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpupipe.cluster.executor import Executor, active, in_force
from gpupipe.cluster.local import LocalThreads, default_threads

if TYPE_CHECKING:
    from gpupipe.cluster.cluster import Cluster

__all__ = ["Cluster", "Executor", "LocalThreads", "active", "default_threads", "in_force"]


def __getattr__(name: str) -> Any:
    if name != "Cluster":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpupipe.cluster.cluster import Cluster  # Dask costs most of a second

    return Cluster
