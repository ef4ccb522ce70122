"""Lists of different lengths as offsets into one array of values: array code for both backends."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__all__ = ["module_of", "offsets_of", "places_of", "rows_of"]


def module_of(array: Any) -> ModuleType:
    """NumPy or CuPy, whichever made the array; CuPy's have no `__array_namespace__`.

    Example:
        >>> import numpy as np
        >>> module_of(np.zeros(1)) is np
        True
    """
    return sys.modules[type(array).__module__]


def offsets_of(lengths: Any, xp: ModuleType) -> Any:
    """n + 1 int64: where each of n lists begins in the values of all, and where the last one ends.

    Example:
        >>> import numpy as np
        >>> offsets_of(np.array([2, 0, 1]), np)
        array([0, 2, 2, 3])
    """
    offsets = xp.zeros(len(lengths) + 1, dtype="int64")
    offsets[1:] = xp.cumsum(lengths)
    return offsets


def rows_of(offsets: Any, num_values: int, xp: ModuleType) -> Any:
    """For each of the values the number of the list it is in.

    Memory: two arrays of 8 bytes a value.

    Example:
        >>> import numpy as np
        >>> rows_of(np.array([0, 2, 2, 3]), 3, np)
        array([0, 0, 2])
    """
    # How many lists have begun behind the first one: np.repeat would do on the host, but CuPy's waits for the device.
    begun = xp.bincount(offsets[1:-1], minlength=num_values + 1)
    return xp.cumsum(begun[:num_values])


def places_of(starts: Any, lengths: Any, xp: ModuleType) -> tuple[Any, Any]:
    """The positions of the values of some lists, one list after the other, and the lists' new offsets.

    Args:
        starts: where each list begins.
        lengths: how many values it has.
        xp: the arrays' module.

    Memory: three arrays of 8 bytes a value at a time; their number goes to the host.

    Example:
        >>> import numpy as np
        >>> places_of(np.array([5, 0]), np.array([2, 1]), np)
        (array([5, 6, 0]), array([0, 2, 3]))
    """
    offsets = offsets_of(lengths, xp)
    num_values = int(offsets[-1])
    places = (starts - offsets[:-1])[rows_of(offsets, num_values, xp)] if num_values else starts[:0].astype("int64")
    places += xp.arange(num_values)
    return places, offsets
