"""Tensors: from columns to batches, without a copy beyond the one write into the feature table.

In: feature columns. Does: one feature table, typed views, gathers of rows. Out: `Batch`es on one device.
"""

from gpupipe.tensors.batch import Batch
from gpupipe.tensors.feature_table import FeatureTable, require_device
from gpupipe.tensors.loader import BatchOptions, Loader, LoaderOptions
from gpupipe.tensors.passthrough import MISSING_TIME
from gpupipe.tensors.permutation import Permutation
from gpupipe.tensors.ragged import Ragged
from gpupipe.tensors.zero_copy import share

__all__ = [
    "MISSING_TIME",
    "Batch",
    "BatchOptions",
    "FeatureTable",
    "Loader",
    "LoaderOptions",
    "Permutation",
    "Ragged",
    "require_device",
    "share",
]
