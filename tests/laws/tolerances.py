"""How far two backends, or two partitionings, may differ: the one table."""

from __future__ import annotations

STATE = 1e-9
"""Learned float64 state, relative to 1 + |value|, for any partitioning on one backend."""

FEATURES = 1e-5
"""Features as float32, relative to 1 + |value|, between backends."""

LABELS = 1e-5
"""K-means labels may differ where the two nearest centres are closer to each other than this, relatively."""
