"""Argument checks: what passes, and what the error says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from gpupipe.errors import BadConfig
from gpupipe.support import validation as v


@pytest.mark.parametrize(
    ("check", "good", "bad", "expected", "remedy"),
    [
        (
            lambda x: v.check_choice("PCA", ("auto", "library"), x=x),
            "auto",
            "librry",
            "'auto' or 'library'",
            "x='library'",
        ),
        (lambda x: v.check_bool("PCA", x=x), np.bool_(False), 0, "True or False", "x=True"),
        (
            lambda x: v.check_integer("PCA", "[1, inf)", None, x=x),
            None,
            True,
            "an integer in [1, inf), or None",
            "x=None",
        ),
        (
            lambda x: v.check_integers("MLP", "[1, inf)", x=x),
            (256, 128),
            [0],
            "a list of integers in [1, inf)",
            "x=[1]",
        ),
        (lambda x: v.check_number("KMeans", "[0, inf)", x=x), 0.5, float("inf"), "a number in [0, inf)", "x=0"),
        (lambda x: v.check_number("KMeans", "(0, 1)", x=x), 0.5, float("nan"), "a number in (0, 1)", "x=0.5"),
        (lambda x: v.check_seed("split", x=x), -7, 2**64, "an integer of at most 64 bits", "x=0"),
        (
            lambda x: v.check_pair("Scaler", "(-inf, inf)", x=x),
            (0, 1),
            (1, 0),
            "(low, high) with low < high, both in (-inf, inf)",
            "another x",
        ),
        (lambda x: v.check_name("Filter", x=x), "dep_delay > 15", 5, "text", "x='...'"),
        (
            lambda x: v.check_names("Select", x=x),
            ["a", "b"],
            {"a", "b"},
            "a name, or a list of different ones",
            "x=['...']",
        ),
        (lambda x: v.check_names("Select", x=x), "a", ["a", "a"], "a name, or a list of different ones", "x=['a']"),
        (
            lambda x: v.check_names("Select", empty=False, x=x),
            ["a"],
            [],
            "a name, or a list of different ones",
            "x=['...']",
        ),
        (
            lambda x: v.check_path("Log", x=x),
            "runs/flights",
            "s3://runs",
            "a path of this machine, no URL",
            "x='runs/flights'",
        ),
        (
            lambda x: v.check_instance("Map", Callable, "a function", remedy="x=function", x=x),
            len,
            "len",
            "a function",
            "x=function",
        ),
        (lambda x: v.check_instance("Rename", Mapping, "names", x=x), {"a": "b"}, ["a"], "names", "another x"),
    ],
)
def test_a_check(check: Callable[[Any], None], good: Any, bad: Any, expected: str, remedy: str) -> None:
    check(good)
    with pytest.raises(BadConfig) as caught:
        check(bad)
    assert (caught.value.expected, caught.value.remedy) == (expected, remedy)
    assert caught.value.where.endswith("(x=)") and (caught.value.got is bad or caught.value.got == bad)


@pytest.mark.parametrize(
    ("dtype", "meant"),
    [
        ("str", "string"),
        (int, "int64"),
        ("uint", "uint64"),
        ("decimal", "float64"),
        ("timedelta", "float64"),
        ("datetime", "timestamp"),
    ],
)
def test_the_type_that_was_meant_is_offered(dtype: Any, meant: str) -> None:
    with pytest.raises(BadConfig) as caught:
        v.check_dtypes("read_csv", ("int64", "uint64", "float64", "string", "timestamp"), {"id": dtype})
    assert caught.value.remedy == f"dtypes={{'id': {meant!r}}}"


def test_lengths_of_time() -> None:
    good = {
        "36 hours": 129_600_000_000,
        "1.5s": 1_500_000,
        timedelta(days=1): 86_400_000_000,
        np.timedelta64(2, "us"): 2,
    }
    assert {length: v.parse_duration_us(length) for length in good} == good
    assert [v.parse_duration_us(bad) for bad in ("7 moons", "0 days", 7, "1e9 weeks", timedelta(0))] == [None] * 5


def test_kinds_of_values() -> None:
    assert [v.is_integer(*given) for given in ((3, 1), (3.0,), (True,), (0, 1), (np.int8(3),))] == [
        True,
        False,
        False,
        False,
        True,
    ]
    assert [v.is_number(value) for value in (0.5, "0.5", True, float("nan"), 10**400)] == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert [v.is_path(value) for value in ("runs/flights", "", "a\0b", 5)] == [True, False, False, False]
    assert [v.is_one_of(value, [True, None]) for value in (1, None, True)] == [False, True, True]
    assert [v.is_sequence(value) for value in ((1, 2), "ab", {1, 2}, np.array(1), np.array([1]))] == [
        True,
        False,
        False,
        False,
        True,
    ]
    assert (v.as_list("origin"), v.as_list(("origin", "dest"))) == (["origin"], ["origin", "dest"])
    error = v.refuse_choice("Trainer", "loss", "mes", ["bce", "mse"], "a function")
    assert error.remedy == "loss='mse'" and error.expected == "'bce' or 'mse', or a function"


@pytest.mark.parametrize(
    ("value", "choices", "remedy"),
    [
        *((word, "seconds minutes hours days weeks", "x='days'") for word in ("d", "D", "day")),
        *((word, "seconds minutes hours days weeks", "x='hours'") for word in ("h", "H")),
        *((word, "seconds minutes hours days weeks", "x='minutes'") for word in ("m", "min", "T")),
        *((word, "minutes seconds", "x='seconds'") for word in ("s", "S")),
        *((word, "seconds minutes hours days weeks", "x='weeks'") for word in ("w", "W")),
        *((word, "conformal temperature isotonic", "x='temperature'") for word in ("platt", "sigmoid")),
        *((word, "day week dayofweek", "x='dayofweek'") for word in ("weekday", "dow")),
        *((word, "seconds minutes", "one of the choices above") for word in ("D", "foo", 3, None)),
        ("gpu0", "auto cpu cuda", "x='auto'"),
        ("even", "balanced", "x='balanced'"),
    ],
)
def test_a_choice_that_is_not_there(value: object, choices: str, remedy: str) -> None:
    """Units are offered to pandas' letters for them; nothing is offered that is not like what was written."""
    with pytest.raises(BadConfig) as caught:
        v.check_choice("PCA", choices.split(), x=value)
    assert caught.value.remedy == remedy
