"""Transforms: from frame to frame, nothing learned.

In: a coded frame. Does: filters, joins, derives, maps. Out: a frame; the input is never modified.
"""

from typing import TYPE_CHECKING

from gpupipe.support.attributes import answer_names
from gpupipe.transforms.columns import Cast, Derive, Drop, Rename, Select
from gpupipe.transforms.dates import DateParts
from gpupipe.transforms.expect import Expect
from gpupipe.transforms.join import Join, JoinAsOf
from gpupipe.transforms.map import Map
from gpupipe.transforms.rows import DropMissing, Filter, Sample
from gpupipe.transforms.transform import Transform
from gpupipe.transforms.values import Clip, Log1p, Replace
from gpupipe.transforms.window_transform import (
    CumulativeCount,
    Difference,
    Expanding,
    Lag,
    Rolling,
    WholeTableTransform,
)

__all__ = ["Cast", "Clip", "CumulativeCount", "DateParts", "Derive", "Difference", "Drop", "DropMissing", "Expanding"]
__all__ += ["Expect", "Filter", "Join", "JoinAsOf", "Lag", "Log1p", "Map", "Rename", "Replace", "Rolling", "Sample"]
__all__ += ["Select", "Transform", "WholeTableTransform"]

if not TYPE_CHECKING:  # for which any name would be one
    __getattr__ = answer_names(__name__, __all__)
