"""Room 2, frame -> frame, nothing learned.

In: a coded frame. Does: filters, joins, derives, maps. Out: a frame; the input is never modified.
"""

from gpupipe.transforms.columns import Cast, Drop, Rename, Select
from gpupipe.transforms.derive import Derive
from gpupipe.transforms.join import Join
from gpupipe.transforms.map import Map
from gpupipe.transforms.rows import Filter
from gpupipe.transforms.transform import Transform

__all__ = ["Cast", "Derive", "Drop", "Filter", "Join", "Map", "Rename", "Select", "Transform"]
