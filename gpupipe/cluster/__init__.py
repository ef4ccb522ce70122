"""Executors: run plain functions over partitions on threads, Dask or Dask-CUDA workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpupipe.cluster.cluster import Cluster

__all__ = ["Cluster"]


def __getattr__(name: str) -> Any:
    if name != "Cluster":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpupipe.cluster.cluster import Cluster  # Dask costs most of a second

    return Cluster
