"""So many rows of a table, drawn at random."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpupipe.backend.hashing import splitmix64
from gpupipe.errors import BadConfig
from gpupipe.io.relational.engine import collect
from gpupipe.io.relational.ordering import numbered
from gpupipe.io.relational.random_bits import random_bits
from gpupipe.io.relational.scan import scan
from gpupipe.io.selection import Draw
from gpupipe.schema import ROW

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["draw"]


def draw(table: Dataset, n: int, seed: int) -> Dataset:
    """Make what `Dataset.sample` describes of `n`: the n rows with the lowest bits."""
    table = numbered(table)
    own = int(splitmix64(seed, np.array([table.query.num_draws]))[0])
    rows = scan(table, [], "sample")
    bits = rows.frame.select(random_bits(own, pl.col(ROW)).alias(ROW))
    num_rows = collect(bits.select(pl.len()), [rows], "sample").item()
    if not 0 <= n <= num_rows:
        raise BadConfig("sample", "not so many rows", got=n, expected=f"0 to {num_rows:,}", remedy=f"n={num_rows}")
    high = collect(bits.bottom_k(n, by=ROW).select(pl.col(ROW).max()), [rows], "sample").item() + 1 if n else 0
    return replace(table, query=table.query.then(Draw(own, 0, high)))
