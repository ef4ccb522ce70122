"""Random numbers that are a function of a seed and a counter: the same on both backends and for any partitions."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpupipe.backend import Array

__all__ = ["splitmix64", "uniform"]


def splitmix64(seed: int, counters: Array) -> Array:
    """64 well mixed bits for each counter, distinct for distinct counters.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

    Args:
        seed: any integer.
        counters: n integers, NumPy or CuPy; row numbers, for instance.

    Memory: three arrays of n uint64 at a time.

    Example:
        >>> splitmix64(0, np.arange(2))
        array([16294208416658607535,  7960286522194355700], dtype=uint64)
    """
    step = 0x9E3779B97F4A7C15
    mixed = (counters.astype("uint64") + np.uint64(1)) * np.uint64(step) + np.uint64(seed * step % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def uniform(seed: int, counter: int, size: int) -> Any:
    """`size` float64 in [0, 1), on the host, for the counters from `counter` up.

    Example:
        >>> uniform(7, 0, 2).shape
        (2,)
    """
    return (splitmix64(seed, np.arange(counter, counter + size)) >> np.uint64(11)) * 2.0**-53
