"""Bucket assignment for tables larger than memory: by ranges of the sort keys, or by a hash of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import polars as pl

from gpupipe.io.relational.engine import collect, count_buckets
from gpupipe.io.relational.random_bits import STEP, number, random_bits
from gpupipe.io.relational.scan import Scan
from gpupipe.schema import ROW

__all__ = ["assign_hashes", "assign_ranges", "has_many_groups", "hash_keys"]

_SAMPLES_PER_BUCKET = 1000
_SAMPLE = 2


def assign_ranges(scan: Scan, by: Sequence[str], ascending: Sequence[bool], num_buckets: int) -> pl.Expr:
    """Assign rows to ranges of about equal size; rows with equal keys share one.

    Args:
        scan: the rows.
        by: the key columns; `ROW` as the last one divides rows with equal keys by their order.
        ascending: for each.
        num_buckets: how many.

    Memory: a thousand keys for each bucket.
    """
    sample = _draw_sample(scan, by, _SAMPLES_PER_BUCKET * num_buckets)
    sample = sample.sort(by, descending=[not up for up in ascending], nulls_last=True)
    places = [sample.height * bucket // num_buckets for bucket in range(1, num_buckets)] if sample.height else []
    cuts = [_not_before(list(zip(by, row, ascending, strict=True))) for row in sample[places].rows()]
    return pl.sum_horizontal(pl.lit(0, pl.Int64), *(cut.cast(pl.Int64) for cut in cuts))


def has_many_groups(scan: Scan, keys: Sequence[str], backend: str) -> bool:
    """Return whether the groups may exceed the memory: fewer than half of a sample's rows repeat others.

    Memory: the keys of 10,000 rows.
    """
    if count_buckets([scan], backend) == 1:
        return False
    sample = _draw_sample(scan, keys, 10 * _SAMPLES_PER_BUCKET)
    return sample.n_unique() > sample.height // 2


def hash_keys(keys: Sequence[str]) -> pl.Expr:
    """Hash the keys of a row together."""
    hashes = (pl.col(key).hash(number) for number, key in enumerate(keys))
    return reduce(lambda one, other: (one * number(STEP)) ^ other, hashes)


def assign_hashes(keys: Sequence[str], num_buckets: int, *, missing_meet: bool = False) -> pl.Expr:
    """Assign rows to buckets by a hash of their keys; by row id where a key is missing, unless `missing_meet`."""
    alone = pl.lit(value=False) if missing_meet else pl.any_horizontal(pl.col(key).is_null() for key in keys)
    bits = pl.when(alone).then(pl.col(ROW).hash()).otherwise(hash_keys(keys))
    return (bits % number(num_buckets)).cast(pl.Int64)


def _draw_sample(scan: Scan, columns: Sequence[str], num_rows: int) -> pl.DataFrame:
    """Draw a sample of about this many rows by their row ids."""
    share = min(1.0, num_rows / max(1, scan.num_rows))
    drawn = random_bits(_SAMPLE, pl.col(ROW)) // number(1 << 11) < number(int(share * 2**53))
    return collect(scan.frame.filter(drawn).select(columns), [scan], "sample")


def _not_before(parts: list[tuple[str, Any, bool]]) -> pl.Expr:
    """Compare a row's keys with these values: whether they are equal or later; missing values come last."""
    (name, value, up), *rest = parts
    key = pl.col(name)
    if value is None:
        same, after = key.is_null(), pl.lit(value=False)
    else:
        same = key.eq_missing(value)
        after = key.is_null() | (key > value if up else key < value)
    return after | (same & (_not_before(rest) if rest else pl.lit(value=True)))
