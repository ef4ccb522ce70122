"""Bars and formats of one column."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe.errors import BadConfig
from gpupipe.io.description.column_description import ColumnDescription, format_value, looks_like_id
from tests.raising import raises


def describe(values: object) -> ColumnDescription:
    return gp.from_frame(pd.DataFrame({"x": values})).describe()["x"]


def test_a_figure_is_no_item() -> None:
    for name, remedy in (("mean", "mean"), ("num_distint", "num_distinct"), (0, "mean")):
        with raises(BadConfig, where="describe()['x'][...]", got=name, remedy=f"describe()['x'].{remedy}"):
            describe([1, 2])[name]


def test_few_numbers_have_a_bar_each_in_their_order() -> None:
    assert [(b.label, b.size) for b in describe([10, 2, 2, 7]).bars] == [("2", 2), ("7", 1), ("10", 1)]


def test_texts_have_theirs_by_frequency() -> None:
    assert [b.label for b in describe(["b", "a", "b", "c", "a", "b"]).bars] == ["b", "a", "c"]


def test_integers_fall_into_whole_ranges_of_one_width() -> None:
    bars = describe(np.repeat(np.arange(1, 32), 3)).bars
    assert [b.label for b in bars[:2]] == ["1 to 2", "3 to 4"] and {b.size for b in bars[:-1]} == {6}
    assert sum(b.size for b in bars) == 93


def test_numbers_fall_where_numpy_has_them() -> None:
    values = np.random.default_rng(0).uniform(0, 1, 5000)
    counts, _ = np.histogram(values, 16)
    assert [b.size for b in describe(values).bars] == counts.tolist()


def test_a_few_far_away_values_do_not_flatten_the_others() -> None:
    values = np.append(np.random.default_rng(0).normal(size=10_000), [1e9, -1e9])
    bars = describe(values).bars
    assert sum(b.size for b in bars) == 10_002 and max(b.size for b in bars) < 4000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (float("nan"), ""),
        (1234567.0, "1.23457e+06"),
        (7, "7"),
        (True, "True"),
        (np.datetime64("2013-01-01T05:00", "us"), "2013-01-01 05:00:00"),
    ],
)
def test_values_as_text(value: object, text: str) -> None:
    assert format_value(value) == text


def test_a_day_as_text() -> None:
    assert format_value(np.datetime64("2013-01-01", "us"), is_date=True) == "2013-01-01"


@pytest.mark.parametrize(
    ("name", "values", "is_id"),
    [
        ("x", range(1000, 1020), True),
        ("x", range(0, 2000, 5), True),
        ("x", range(0, 200, 10), False),
        ("x", range(0, 4000, 11), False),
        ("id", range(0, 4000, 11), True),
        ("PassengerId", range(0, 4000, 11), True),
        ("id_customer", range(0, 4000, 11), True),
        ("order-number", range(0, 4000, 11), True),
        ("paid", range(0, 4000, 11), False),
        ("number_of_rooms", range(0, 4000, 11), False),
        ("monkey", range(0, 4000, 11), False),
    ],
)
def test_ids_are_told_from_amounts(name: str, values: range, is_id: bool) -> None:
    assert looks_like_id(name, len(values), values[0], values[-1]) is is_id
    note = ("an id: no value occurs twice",) if is_id else ()
    for numbers in (pd.Series(values), pd.Series(values, dtype="float32"), pd.Series([*values, None])):
        data = gp.from_frame(numbers.to_frame(name), num_partitions=2)
        assert data.describe()[name].notes == note
        fractions = data.assign(half=f"where(col({name!r}) == {values[0]}, 0.5, col({name!r}))")
        assert fractions.describe()["half"].notes == ()
