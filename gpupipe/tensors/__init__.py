"""Tensors: from columns to batches, without a copy beyond the one write into the feature table.

In: feature columns. Does: one feature table, typed views, gathers of rows. Out: `Batch`es on one device.
"""

from typing import TYPE_CHECKING

from gpupipe.support.attributes import answer_names
from gpupipe.tensors.batch import Batch, Ragged
from gpupipe.tensors.feature_table import MISSING_TIME, FeatureTable, require_device, share
from gpupipe.tensors.loader import BatchOptions, Loader, LoaderOptions
from gpupipe.tensors.order import Permutation

__all__ = ["MISSING_TIME", "Batch", "BatchOptions", "FeatureTable", "Loader", "LoaderOptions", "Permutation", "Ragged"]
__all__ += ["require_device", "share"]

if not TYPE_CHECKING:  # for which any name would be one
    __getattr__ = answer_names(__name__, __all__)
