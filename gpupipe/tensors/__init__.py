"""Room 4: columns -> tensors, without a copy beyond the one write into the block.

In: feature columns. Does: one block, typed views, gathers of rows. Out: `Batch`es on one device.
"""

from gpupipe.tensors.batch import Batch
from gpupipe.tensors.feature_table import Block, require_device
from gpupipe.tensors.loader import BatchOptions, Loader, LoaderOptions
from gpupipe.tensors.passthrough import MISSING_TIME
from gpupipe.tensors.permutation import Permutation
from gpupipe.tensors.ragged import Ragged
from gpupipe.tensors.zero_copy import share

__all__ = [
    "MISSING_TIME",
    "Batch",
    "BatchOptions",
    "Block",
    "Loader",
    "LoaderOptions",
    "Permutation",
    "Ragged",
    "require_device",
    "share",
]
