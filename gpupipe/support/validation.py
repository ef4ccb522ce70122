"""Argument checks, called by constructors; the first invalid argument raises `BadConfigError`.

Each takes the owner (the object being made, or a function or its name), what is allowed, and the arguments by name.
Values are compared by type as well: `True` is no number, and what cannot be compared is simply not equal. NumPy's
scalars count as the numbers they are. A check returns nothing, for a constructor stores what it is given.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from datetime import timedelta
from functools import cache
from math import isfinite
from numbers import Integral, Rational, Real
from typing import Any

from gpupipe.errors import BadConfig, nearest

_UNITS = {
    **dict.fromkeys(("week", "weeks", "w"), 604_800_000_000),
    **dict.fromkeys(("day", "days", "d"), 86_400_000_000),
    **dict.fromkeys(("hour", "hours", "h"), 3_600_000_000),
    **dict.fromkeys(("minute", "minutes", "min"), 60_000_000),
    **dict.fromkeys(("second", "seconds", "s"), 1_000_000),
    **dict.fromkeys(("millisecond", "milliseconds", "ms"), 1000),
    **dict.fromkeys(("microsecond", "microseconds", "us"), 1),
}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_LONGEST = 1 << 62  # 146,000 years: from no date on is the difference beyond int64


def parse_duration_us(length: Any, *, least: int = 1) -> int | None:
    """Convert a timedelta (pandas' and NumPy's too) or text such as `"7 days"` or `"2h"` to microseconds.

    None for what is no length of time, is below `least`, or is longer than times can lie apart.

    Example:
        >>> parse_duration_us("36 hours"), parse_duration_us("1.5s"), parse_duration_us(timedelta(days=1))
        (129600000000, 1500000, 86400000000)
        >>> parse_duration_us("7 moons"), parse_duration_us("0 days"), parse_duration_us(7)
        (None, None, None)
    """
    if isinstance(length, str):
        text = _TEXT.fullmatch(length)
        if text is None or text[2] not in _UNITS:
            return None
        found = round(float(text[1]) * _UNITS[text[2]])
    else:
        if getattr(getattr(length, "dtype", None), "kind", None) == "m" and not length.ndim:  # NumPy's
            length = length.astype("timedelta64[us]").item()
        if not isinstance(length, timedelta):
            return None
        found = length // timedelta(microseconds=1)
    return found if least <= found < _LONGEST else None


_MOST = 2**63 - 1
_NONE = object()


def check_choice(owner: object, choices: Iterable[Any], /, *also: Any, **given: Any) -> None:
    """Raise `BadConfig` for an argument that is neither one of `choices` nor of `also`; the closest is offered.

    Example:
        >>> check_choice("PCA", ("auto", "library"), solver="auto")
        >>> check_choice("PCA", ("auto", "library"), solver="librry")
        Traceback (most recent call last):
        gpupipe.errors.BadConfig: PCA(solver=): no such choice, got 'librry'.
        Expected 'auto' or 'library'.
        Try: solver='library'
    """
    known = [*choices, *also]
    for name, value in given.items():
        if not is_one_of(value, known):
            raise refuse_choice(owner, name, value, known)


def check_bool(owner: object, /, *also: Any, **given: Any) -> None:
    """Raise `BadConfig` for an argument that is neither True nor False.

    Example:
        >>> check_bool("PCA", whiten=False)
    """
    for name, value in given.items():
        if not is_bool(value) and not is_one_of(value, also):
            raise refuse_argument(owner, name, value, _join_choices([True, False, *also]), example=True)


def check_integer(owner: object, interval: str, /, *also: Any, **given: Any) -> None:
    """Raise `BadConfig` for an argument that is no integer of an interval, nor one of `also`.

    Args:
        owner: as for all of them.
        interval: as mathematics writes it: `"[1, inf)"`, `"(0, 100]"`. Integers of more than 63 bits are in none.
        also: other values that are fine, such as None.
        given: the arguments by name.

    Example:
        >>> check_integer("PCA", "[1, inf)", None, n_components=None)
        >>> check_integer("PCA", "[1, inf)", None, n_components=True)
        Traceback (most recent call last):
        gpupipe.errors.BadConfig: PCA(n_components=): makes no sense, got True.
        Expected an integer in [1, inf), or None.
        Try: n_components=None
    """
    for name, value in given.items():
        if not (is_integer(value) and _is_within(value, interval)) and not is_one_of(value, also):
            expected = ", or ".join([f"an integer in {interval}", *map(repr, also)])
            raise refuse_argument(owner, name, value, expected, example=also[0] if also else _example(interval))


def check_integers(owner: object, interval: str, /, *also: Any, **given: Any) -> None:
    """Raise `BadConfig` for an argument that is no list of integers of an interval, nor one of `also`.

    Example:
        >>> check_integers("MLP", "[1, inf)", hidden=(256, 128))
    """
    for name, value in given.items():
        numbers = list(value) if is_sequence(value) else [None]
        if not all(is_integer(one) and _is_within(one, interval) for one in numbers) and not is_one_of(value, also):
            expected = ", or ".join([f"a list of integers in {interval}", *map(repr, also)])
            raise refuse_argument(owner, name, value, expected, example=also[0] if also else [_example(interval)])


def check_number(owner: object, interval: str, /, *also: Any, **given: Any) -> None:
    """Raise `BadConfig` for an argument that is no number of an interval, nor one of `also`; NaN is in no interval.

    Example:
        >>> check_number("KMeans", "[0, inf)", tol=0.5)
        >>> check_number("KMeans", "[0, inf)", tol=float("inf"))
        Traceback (most recent call last):
        gpupipe.errors.BadConfig: KMeans(tol=): makes no sense, got inf.
        Expected a number in [0, inf).
        Try: tol=0
    """
    for name, value in given.items():
        if not (is_number(value) and _is_within(value, interval)) and not is_one_of(value, also):
            expected = ", or ".join([f"a number in {interval}", *map(repr, also)])
            raise refuse_argument(owner, name, value, expected, example=also[0] if also else _example(interval))


def check_seed(owner: object, /, *also: Any, **given: Any) -> None:
    """Raise `BadConfig` for an argument that is no integer of at most 64 bits, with a sign or without.

    Example:
        >>> check_seed("split", seed=-7)
    """
    for name, value in given.items():
        if not is_integer(value, -(2**63), 2**64 - 1) and not is_one_of(value, also):
            expected = ", or ".join(["an integer of at most 64 bits", *map(repr, also)])
            raise refuse_argument(owner, name, value, expected, example=0)


def check_pair(owner: object, interval: str, /, **given: Any) -> None:
    """Raise `BadConfig` for an argument that is not two numbers of an interval, the first below the second.

    Example:
        >>> check_pair("MinMaxScaler", "(-inf, inf)", feature_range=(0, 1))
    """
    for name, value in given.items():
        pair = list(value) if is_sequence(value) else []
        good = len(pair) == 2 and all(is_number(end) and _is_within(end, interval) for end in pair)
        if not good or not pair[0] < pair[1]:
            raise refuse_argument(owner, name, value, f"(low, high) with low < high, both in {interval}")


def check_name(owner: object, /, *also: Any, **given: Any) -> None:
    """Raise `BadConfig` for an argument that is no text, nor one of `also`.

    Example:
        >>> check_name("Filter", expr="dep_delay > 15")
    """
    for name, value in given.items():
        if not isinstance(value, str) and not is_one_of(value, also):
            raise refuse_argument(owner, name, value, ", or ".join(["text", *map(repr, also)]), example="...")


def check_names(owner: object, /, *also: Any, empty: bool = True, **given: Any) -> None:
    """Raise `BadConfig` for an argument that is no name and no list of names, or names one twice.

    Args:
        owner: as for all of them.
        also: other values that are fine, such as None.
        empty: whether a list of none is fine.
        given: the arguments by name.

    Example:
        >>> check_names("Select", columns=["origin", "dest"])
        >>> check_names("Select", columns={"origin", "dest"})
        Traceback (most recent call last):
        gpupipe.errors.BadConfig: Select(columns=): makes no sense, got ...
        Expected a name, or a list of different ones.
        Try: columns=['...']
    """
    for name, value in given.items():
        if isinstance(value, str) or is_one_of(value, also):
            continue
        names = list(value) if is_sequence(value) else [None]
        if not all(isinstance(one, str) for one in names) or len({*names}) < len(names) or not (names or empty):
            expected = ", or ".join(["a name", "a list of different ones", *map(repr, also)])
            raise refuse_argument(owner, name, value, expected, example=["..."])


_MEANT = {
    ("int", "long"): "int64",
    ("float", "double", "decimal", "number"): "float64",
    ("bool",): "bool",
    ("date", "time"): "timestamp",
}
"""What types of other libraries are called here, by how their names begin; all others are text."""


def check_dtypes(owner: object, allowed: Sequence[str], dtypes: Mapping[str, Any]) -> None:
    """Raise `BadConfig` for the first column whose type is none of `allowed`; the one that was meant is offered.

    Example:
        >>> check_dtypes("read_csv", ("int64", "string"), {"id": "str"})
        Traceback (most recent call last):
        gpupipe.errors.BadConfig: read_csv(dtypes=): no such type for column 'id', got 'str'.
        Expected one of int64, string.
        Try: dtypes={'id': 'string'}
    """
    for name, dtype in dtypes.items():
        check_name(owner, dtypes=name)
        if not is_one_of(dtype, allowed):
            text = (dtype.__name__ if isinstance(dtype, type) else str(dtype)).lower()
            near = next((ours for begins, ours in _MEANT.items() if text.startswith(begins)), "string")
            remedy = f"dtypes={{{name!r}: {(text if text in allowed else near)!r}}}"
            problem, expected = f"no such type for column {name!r}", f"one of {', '.join(allowed)}"
            raise refuse_argument(owner, "dtypes", dtype, expected, remedy, problem=problem)


def check_path(owner: object, /, **given: Any) -> None:
    """Raise `BadConfig` for an argument that is no path of this machine.

    Example:
        >>> check_path("Checkpoints", folder="runs/flights")
    """
    for name, value in given.items():
        if not is_path(value) or "://" in str(value):
            remedy = f"{name}='runs/flights'"
            raise refuse_argument(owner, name, value, "a path of this machine, no URL", remedy)


def check_callable(owner: object, /, *also: Any, **given: Any) -> None:
    """Raise `BadConfig` for an argument that cannot be called, nor is one of `also`.

    Example:
        >>> check_callable("Map", fn=len)
    """
    for name, value in given.items():
        if not callable(value) and not is_one_of(value, also):
            raise refuse_argument(owner, name, value, "a function", f"{name}=function")


def check_instance(
    owner: object,
    kinds: type | tuple[type, ...],
    expected: str,
    /,
    *also: Any,
    remedy: str | None = None,
    **given: Any,
) -> None:
    """Raise `BadConfig` for an argument that is of none of these classes, nor one of `also`.

    Example:
        >>> check_instance("Rename", Mapping, "new names by the old ones", names={"dep": "departure"})
    """
    for name, value in given.items():
        if not isinstance(value, kinds) and not is_one_of(value, also):
            wanted, example = ", or ".join([expected, *map(repr, also)]), also[0] if also else _NONE
            raise refuse_argument(owner, name, value, wanted, remedy, example=example)


def refuse_argument(
    owner: object,
    name: str,
    value: object,
    expected: str,
    remedy: str | None = None,
    *,
    example: object = _NONE,
    problem: str = "makes no sense",
) -> BadConfig:
    """Build the error for an argument.

    Args:
        owner: the object being made, or a function or its name.
        name: of the argument.
        value: what was given.
        expected: what would have done.
        remedy: what to try; by default the argument's own default, or the example.
        example: a value that would have done.
        problem: what is wrong.

    Example:
        >>> refuse_argument("split", "fraction", 2, "a share", "fraction=0.8").where
        'split(fraction=)'
    """
    called, default = owner, inspect.Parameter.empty
    if not isinstance(owner, str):
        makes = owner if inspect.isfunction(owner) else type(owner)
        called, parameter = makes.__name__, inspect.signature(makes).parameters.get(name)
        default = default if parameter is None else parameter.default
    if remedy is None and default is not inspect.Parameter.empty:
        remedy = f"{name}={default!r}"
    elif remedy is None:
        remedy = f"another {name}" if example is _NONE else f"{name}={example!r}"
    return BadConfig(f"{called}({name}=)", problem, got=value, expected=expected, remedy=remedy)


def refuse_choice(
    owner: object, name: str, value: object, choices: Iterable[Any], also: str | None = None
) -> BadConfig:
    """Build the error for an argument that is none of `choices`; `also` names other valid values.

    Example:
        >>> refuse_choice("Trainer", "loss", "mes", ["bce", "mse"], "a function").remedy
        "loss='mse'"
    """
    known = list(choices)
    near = nearest(value, [one for one in known if isinstance(one, str)]) if isinstance(value, str) else None
    expected = _join_choices(known) + (f", or {also}" if also else "")
    remedy = f"{name}={(known[0] if near is None else near)!r}"
    return refuse_argument(owner, name, value, expected, remedy, problem="no such choice")


def is_bool(value: Any) -> bool:
    """Return whether it is True or False, Python's or NumPy's.

    Example:
        >>> is_bool(False), is_bool(0)
        (True, False)
    """
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def is_integer(value: Any, least: int = -_MOST, most: int = _MOST) -> bool:
    """Return whether it is an integer within these bounds, Python's or NumPy's; a boolean is not.

    Example:
        >>> is_integer(3, 1), is_integer(3.0), is_integer(True), is_integer(0, 1)
        (True, False, False, False)
    """
    return isinstance(value, Integral) and not is_bool(value) and least <= int(value) <= most


def is_number(value: Any) -> bool:
    """Return whether it is an integer or float, Python's or NumPy's, that float64 holds; NaN is one, a boolean not.

    Example:
        >>> is_number(0.5), is_number("0.5"), is_number(True)
        (True, False, False)
    """
    if isinstance(value, Integral):
        return not is_bool(value) and abs(int(value)) <= sys.float_info.max
    return isinstance(value, Real) and not is_bool(value) and not isinstance(value, Rational)


def is_path(value: Any) -> bool:
    r"""Return whether it is the path of something: text, not empty, without the character NUL.

    Example:
        >>> is_path("runs/flights"), is_path(""), is_path("a\0b")
        (True, False, False)
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    return isinstance(text, str) and text != "" and "\0" not in text


def is_one_of(value: Any, choices: Iterable[Any]) -> bool:
    """Return whether it is one of these, of the same type; never fails, whatever the value.

    Example:
        >>> is_one_of(1, [True, None]), is_one_of(None, [True, None])
        (False, True)
    """
    return any(value is one or (isinstance(value, type(one)) and value == one) for one in choices)


def is_sequence(value: Any) -> bool:
    """Return whether it holds several values in an order: a list, a tuple, an array, an index, but no text.

    Example:
        >>> is_sequence((1, 2)), is_sequence("ab"), is_sequence({1, 2})
        (True, False, False)
    """
    if isinstance(value, str | bytes | bytearray | Mapping | AbstractSet) or hasattr(value, "columns"):
        return False
    # An array without a dimension has a length in name only.
    return isinstance(value, Sized) and isinstance(value, Iterable) and getattr(value, "shape", None) != ()


def _join_choices(choices: Collection[Any]) -> str:
    *first, last = map(repr, choices)
    return f"{', '.join(first)} or {last}" if first else last


def _is_within(value: Any, interval: str) -> bool:
    low, high, with_low, with_high = _ends(interval)
    return bool((low <= value if with_low else low < value) and (value <= high if with_high else value < high))


@cache
def _ends(interval: str) -> tuple[float, float, bool, bool]:
    low, high = (float(end) for end in interval[1:-1].split(","))
    return low, high, interval[0] == "[", interval[-1] == "]"


def _example(interval: str) -> float:
    """Return a number of an interval, for the remedy."""
    low, high, with_low, with_high = _ends(interval)
    ends = [end for end, inside in ((low, with_low), (high, with_high)) if inside and isfinite(end)]
    if not ends:
        ends = [(low + high) / 2 if isfinite(low + high) else low + 1 if isfinite(low) else 0]
    return int(ends[0]) if ends[0] == int(ends[0]) else ends[0]
