"""What a dataset can do only with all its rows: they are brought together on disk, a partition's worth at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from gpupipe.backend import Backend, Frame, resolve, select
from gpupipe.errors import BadConfig
from gpupipe.io.buckets import Hashed, Ranges, Shuffled, shuffle_bits
from gpupipe.io.exchange import ROW, Reading, exchange, origin_of, settle
from gpupipe.io.grouping import GroupBy
from gpupipe.io.joining import join
from gpupipe.io.ordering import grouped, sort_order
from gpupipe.io.passes import over_partitions
from gpupipe.io.selection import Without
from gpupipe.io.spool import Spool
from gpupipe.schema import Field, Schema
from gpupipe.words import as_list
