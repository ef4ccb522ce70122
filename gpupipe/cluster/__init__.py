"""Beside the rooms: runs plain functions over partitions somewhere. No stage knows where."""

from gpupipe.cluster.local import default_threads, ordered_map

__all__ = ["default_threads", "ordered_map"]
