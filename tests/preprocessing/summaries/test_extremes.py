"""Extremes over blocks and partitions."""

from __future__ import annotations

import numpy as np

from gpupipe import errors
from gpupipe.backend import Column, select
from gpupipe.preprocessing.summaries import Extremes
from tests.raising import raises

CPU = select("cpu")


def extremes(values: object) -> Extremes:
    return Extremes.of({"x": Column("float64", np.asarray(values, dtype="float64"))}, CPU, "test")


def test_over_blocks_and_partitions() -> None:
    values = np.random.default_rng(0).normal(size=100_000)
    values[::7] = np.nan
    total = extremes(values[:5]) + extremes([np.nan]) + extremes([]) + extremes(values[5:])
    assert (total.low[0], total.high[0]) == (np.nanmin(values), np.nanmax(values))
    assert total.missing[0] == np.isnan(values).sum() + 1


def test_a_fill_counts_only_where_something_is_missing() -> None:
    assert extremes([1.0, np.nan]).filled({"x": 9.0}).high[0] == 9.0
    assert extremes([1.0, 2.0]).filled({"x": 9.0}).high[0] == 2.0


def test_infinities_are_refused() -> None:
    with raises(errors.BadData, where="test, column 'x'", got=np.inf):
        extremes([1.0, np.inf])
