"""Moments of numbers that come in parts: counts, means and sums of squared deviations, merged."""

from __future__ import annotations

from typing import Any

import numpy as np


def merge_moments(count: Any, mean: Any, m2: Any) -> tuple[Any, Any, Any]:
    """Merge the moments of parts; all three are parts x C, or parts x any one shape."""
    total = count.sum(axis=0)
    if not len(count):
        return total, np.zeros_like(total), np.zeros_like(total)
    # Means are averaged around that of the largest part, so that equal ones stay what they are to the last digit.
    centre = np.take_along_axis(mean, count.argmax(axis=0)[None], axis=0)[0]
    with np.errstate(over="ignore", invalid="ignore"):
        shift = np.where(count > 0, mean - centre, 0.0)
        step = (count / np.maximum(total, 1) * shift).sum(axis=0)
        return total, centre + step, m2.sum(axis=0) + (count * np.square(shift - step)).sum(axis=0)
