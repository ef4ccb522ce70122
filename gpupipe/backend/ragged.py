"""Ragged arrays: lists of different lengths as offsets into one array of values, for both backends."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def get_array_module(array: Any) -> ModuleType:
    """Return the array's module, NumPy or CuPy; CuPy's arrays have no `__array_namespace__`.

    Example:
        >>> import numpy as np
        >>> get_array_module(np.zeros(1)) is np
        True
    """
    return sys.modules[type(array).__module__]


def accumulate_lengths(lengths: Any, xp: ModuleType) -> Any:
    """Compute the n + 1 int64 offsets of n lists from their lengths.

    Example:
        >>> import numpy as np
        >>> accumulate_lengths(np.array([2, 0, 1]), np)
        array([0, 2, 2, 3])
    """
    offsets = xp.zeros(len(lengths) + 1, dtype="int64")
    offsets[1:] = xp.cumsum(lengths)
    return offsets


def list_parent_indices(offsets: Any, num_values: int, xp: ModuleType) -> Any:
    """Compute for each value the index of its list.

    Memory: two arrays of 8 bytes a value.

    Example:
        >>> import numpy as np
        >>> list_parent_indices(np.array([0, 2, 2, 3]), 3, np)
        array([0, 0, 2])
    """
    # How many lists have begun behind the first one: np.repeat would do on the host, but CuPy's waits for the device.
    begun = xp.bincount(offsets[1:-1], minlength=num_values + 1)
    return xp.cumsum(begun[:num_values])


def locate_values(starts: Any, lengths: Any, xp: ModuleType) -> tuple[Any, Any]:
    """Compute the positions of the values of some lists, one list after the other, and the lists' new offsets.

    Args:
        starts: where each list begins.
        lengths: how many values it has.
        xp: the arrays' module.

    Memory: three arrays of 8 bytes a value at a time; their number goes to the host.

    Example:
        >>> import numpy as np
        >>> locate_values(np.array([5, 0]), np.array([2, 1]), np)
        (array([5, 6, 0]), array([0, 2, 3]))
    """
    offsets = accumulate_lengths(lengths, xp)
    num_values = int(offsets[-1])
    places = (
        (starts - offsets[:-1])[list_parent_indices(offsets, num_values, xp)]
        if num_values
        else starts[:0].astype("int64")
    )
    places += xp.arange(num_values)
    return places, offsets
