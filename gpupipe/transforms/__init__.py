"""Transforms: from frame to frame, nothing learned.

In: a coded frame. Does: filters, joins, derives, maps. Out: a frame; the input is never modified.
"""

from gpupipe.transforms.columns import Cast, Drop, Rename, Select
from gpupipe.transforms.dates import DateParts
from gpupipe.transforms.derive import Derive
from gpupipe.transforms.expect import Expect
from gpupipe.transforms.join import Join
from gpupipe.transforms.join_asof import JoinAsOf
from gpupipe.transforms.map import Map
from gpupipe.transforms.rolling import Expanding, Rolling
from gpupipe.transforms.rows import DropMissing, Filter, Sample
from gpupipe.transforms.transform import Transform
from gpupipe.transforms.values import Clip, Log1p, Replace
from gpupipe.transforms.window_transform import CumulativeCount, Difference, Lag, WholeTableTransform

__all__ = [
    "Cast",
    "Clip",
    "CumulativeCount",
    "DateParts",
    "Derive",
    "Difference",
    "Drop",
    "DropMissing",
    "Expanding",
    "Expect",
    "Filter",
    "Join",
    "JoinAsOf",
    "Lag",
    "Log1p",
    "Map",
    "Rename",
    "Replace",
    "Rolling",
    "Sample",
    "Select",
    "Transform",
    "WholeTableTransform",
]
