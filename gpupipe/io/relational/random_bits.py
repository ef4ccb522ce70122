"""Random bits of SplitMix64 as Polars expressions, equal to those of the NumPy and CuPy implementation."""

from __future__ import annotations

import polars as pl

from gpupipe.backend.hashing import mix_seed

__all__ = ["STEP", "number", "random_bits"]

STEP = 0x9E3779B97F4A7C15


def random_bits(seed: int, counter: pl.Expr) -> pl.Expr:
    """Draw the bits of `backend.hashing.splitmix64` as an expression.

    Example:
        >>> pl.select(random_bits(0, pl.lit(1))).item()
        7960286522194355700
    """
    bits = (counter.cast(pl.UInt64) + number(1)) * number(STEP) + number(int(mix_seed(seed)))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits // number(1 << shift))) * number(factor)
    return bits ^ (bits // number(1 << 31))


def number(value: int) -> pl.Expr:
    """Build an unsigned 64-bit constant."""
    return pl.lit(value, pl.UInt64)
