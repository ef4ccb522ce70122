"""Room 2, frame -> frame, nothing learned.

In: a coded frame. Does: filters, joins, derives, maps. Out: a frame; the input is never modified.
"""

from gpupipe.transforms.columns import Cast, Drop, Rename, Select
from gpupipe.transforms.dates import DateParts
from gpupipe.transforms.derive import Derive
from gpupipe.transforms.join import Join
from gpupipe.transforms.map import Map
from gpupipe.transforms.rows import DropMissing, Filter, Sample
from gpupipe.transforms.transform import Transform
from gpupipe.transforms.values import Clip, Log1p, Replace

__all__ = [
    "Cast",
    "Clip",
    "DateParts",
    "Derive",
    "Drop",
    "DropMissing",
    "Filter",
    "Join",
    "Log1p",
    "Map",
    "Rename",
    "Replace",
    "Sample",
    "Select",
    "Transform",
]
