"""Argument checks, called by constructors; the first invalid argument raises `BadConfig`.

Each takes the owner (the object being made, or a function or its name), what is allowed (`also` are further values that
are fine, such as None), and the arguments by name. Intervals are written as in mathematics: `"[1, inf)"`, `"(0, 100]"`.
Values are compared by type as well: `True` is no number, and what cannot be compared is simply not equal. NumPy's
scalars count as the numbers they are (`to_python`). A check returns nothing: a constructor stores what it is given.
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
    **dict.fromkeys(("day", "days", "d", "D"), 86_400_000_000),
    **dict.fromkeys(("hour", "hours", "h"), 3_600_000_000),
    **dict.fromkeys(("minute", "minutes", "min"), 60_000_000),
    **dict.fromkeys(("second", "seconds", "s"), 1_000_000),
    **dict.fromkeys(("millisecond", "milliseconds", "ms"), 1000),
    **dict.fromkeys(("microsecond", "microseconds", "us"), 1),
}
_CHOICES = {"seconds": "s S sec", "minutes": "m min T", "hours": "h H hr", "days": "d D", "weeks": "w W"}
_CHOICES |= {"dayofweek": "weekday dow", "temperature": "platt sigmoid"}
"""What other libraries call a choice, where the words are not alike."""
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(D|[a-z]+)\s*")
_LONGEST = 1 << 62  # 146,000 years: from no date on is the difference beyond int64
_MOST = 2**63 - 1
_NONE = object()


def parse_duration_us(length: Any, *, least: int = 1) -> int | None:
    """Convert a timedelta (pandas' and NumPy's too) or text such as `"7 days"` or `"2h"` to microseconds.

    None for what is no length of time, is below `least`, or is longer than times can lie apart.
    """
    if isinstance(length, str):
        text = _TEXT.fullmatch(length)
        if text is None or text[2] not in _UNITS:
            return None
        duration = round(float(text[1]) * _UNITS[text[2]])
    else:
        if getattr(getattr(length, "dtype", None), "kind", None) == "m" and not length.ndim:  # NumPy's
            length = length.astype("timedelta64[us]").item()
        if not isinstance(length, timedelta):
            return None
        duration = length // timedelta(microseconds=1)
    return duration if least <= duration < _LONGEST else None


def correct_duration(text: str) -> str:
    """Correct a length of time whose unit is misspelt, as `"30 mins"`; an hour where that says nothing."""
    unit = text.lstrip(" .0123456789")
    mended = f"{text.removesuffix(unit).strip()} {nearest(unit, _UNITS)}"
    return mended if parse_duration_us(mended) else "1h"


def as_list(words: str | Iterable[str]) -> list[str]:
    """Convert one or several words, such as columns' names, to a list; one word becomes a list of one."""
    return [words] if isinstance(words, str) else list(words)


def get_sides(both: Any, left: Any, right: Any, owner: object, name: str) -> tuple[Any, Any]:
    """Return the names for the left and for the right of a join, given once or separately; else raise `BadConfig`."""
    if both is not None and left is None and right is None:
        return both, both
    if both is not None or left is None or right is None:
        where = owner if isinstance(owner, str) else type(owner).__name__
        got = {name: both, f"left_{name}": left, f"right_{name}": right}
        expected = f"{name}=, or left_{name}= and right_{name}="
        raise BadConfig(where, "not one way to say the keys", got=got, expected=expected, remedy=f"{name}='key'")
    return left, right


def check_choice(owner: object, choices: Iterable[Any], /, *also: Any, **arguments: Any) -> None:
    """Raise `BadConfig` for an argument that is neither one of `choices` nor of `also`; the closest is offered."""
    options = [*choices, *also]
    for name, value in arguments.items():
        if not is_one_of(value, options):
            raise refuse_choice(owner, name, value, options)


def check_bool(owner: object, /, *also: Any, **arguments: Any) -> None:
    """Raise `BadConfig` for an argument that is neither True nor False, nor one of `also`."""
    bad = {name: value for name, value in arguments.items() if not is_bool(value)}
    _refuse(owner, bad, "True or False", also, example=True)


def check_integer(owner: object, interval: str, /, *also: Any, **arguments: Any) -> None:
    """Raise `BadConfig` for an argument that is no integer, of at most 63 bits, of an interval, nor one of `also`."""
    bad = {name: value for name, value in arguments.items() if not (is_integer(value) and _is_within(value, interval))}
    _refuse(owner, bad, f"an integer in {interval}", also, example=_example(interval))


def check_integers(owner: object, interval: str, /, *also: Any, **arguments: Any) -> None:
    """Raise `BadConfig` for an argument that is no list of integers of an interval, nor one of `also`."""
    several = {name: list(value) if is_sequence(value) else [None] for name, value in arguments.items()}
    good = {
        n for n, values in several.items() if all(is_integer(item) and _is_within(item, interval) for item in values)
    }
    bad = {name: value for name, value in arguments.items() if name not in good}
    _refuse(owner, bad, f"a list of integers in {interval}", also, example=[_example(interval)])


def check_number(owner: object, interval: str, /, *also: Any, **arguments: Any) -> None:
    """Raise `BadConfig` for an argument that is no number of an interval, nor one of `also`; NaN is in no interval."""
    bad = {name: value for name, value in arguments.items() if not (is_number(value) and _is_within(value, interval))}
    _refuse(owner, bad, f"a number in {interval}", also, example=_example(interval))


def check_seed(owner: object, /, *also: Any, **arguments: Any) -> None:
    """Raise `BadConfig` for an argument that is no integer of at most 64 bits, with a sign or without."""
    bad = {name: value for name, value in arguments.items() if not is_integer(value, -(2**63), 2**64 - 1)}
    _refuse(owner, bad, "an integer of at most 64 bits", also, example=0)


def check_pair(owner: object, interval: str, /, **arguments: Any) -> None:
    """Raise `BadConfig` for an argument that is not two numbers of an interval, the first below the second."""
    for name, value in arguments.items():
        pair = list(value) if is_sequence(value) else []
        inside = len(pair) == 2 and all(is_number(end) and _is_within(end, interval) for end in pair)
        if not inside or not pair[0] < pair[1]:
            raise refuse_argument(owner, name, value, f"(low, high) with low < high, both in {interval}")


def check_name(owner: object, /, *also: Any, **arguments: Any) -> None:
    """Raise `BadConfig` for an argument that is no text, nor one of `also`."""
    bad = {name: value for name, value in arguments.items() if not isinstance(value, str)}
    _refuse(owner, bad, "text", also, example="...")


def check_names(owner: object, /, *also: Any, empty: bool = True, **arguments: Any) -> None:
    """Raise `BadConfig` for an argument that is no name and no list of different names, which may be `empty`."""
    for name, value in arguments.items():
        names = [value] if isinstance(value, str) else list(value) if is_sequence(value) else [None]
        if not all(isinstance(item, str) for item in names) or len({*names}) < len(names) or not (names or empty):
            are_names = bool(names) and all(isinstance(item, str) for item in names)
            remedy = f"{name}={list(dict.fromkeys(names))!r}" if are_names else None
            if isinstance(column := getattr(value, "name", None), str):  # of a column of pandas or Polars
                remedy = f"{name}={column!r}"
            _refuse(owner, {name: value}, "a name, or a list of different ones", also, remedy, example=["..."])


_MEANT = {
    ("uint", "unsigned"): "uint64",
    ("int", "long"): "int64",
    ("float", "double", "decimal", "number", "timedelta", "duration"): "float64",
    ("bool",): "bool",
    ("date", "time"): "timestamp",
}
"""What types of other libraries are called here, by how their names begin; all others are text."""


def check_dtypes(owner: object, allowed: Sequence[str], dtypes: Mapping[str, Any]) -> None:
    """Raise `BadConfig` for the first column whose type is none of `allowed`; the one that was meant is offered."""
    for name, dtype in dtypes.items():
        check_name(owner, dtypes=name)
        if not is_one_of(dtype, allowed):
            text = (dtype.__name__ if isinstance(dtype, type) else str(dtype)).lower()
            near = next((suggestion for begins, suggestion in _MEANT.items() if text.startswith(begins)), "string")
            remedy = f"dtypes={{{name!r}: {(text if text in allowed else near)!r}}}"
            problem, expected = f"no such type for column {name!r}", f"one of {', '.join(allowed)}"
            raise refuse_argument(owner, "dtypes", dtype, expected, remedy, problem=problem)


def check_path(owner: object, /, **arguments: Any) -> None:
    """Raise `BadConfig` for an argument that is no path of this machine."""
    bad = {name: value for name, value in arguments.items() if not is_path(value) or "://" in str(value)}
    _refuse(owner, bad, "a path of this machine, no URL", (), example="runs/flights")


def check_instance(
    owner: object, kinds: Any, expected: str, /, *also: Any, remedy: str | None = None, **arguments: Any
) -> None:
    """Raise `BadConfig` for an argument that is of none of these classes, nor one of `also`."""
    bad = {name: value for name, value in arguments.items() if not isinstance(value, kinds)}
    _refuse(owner, bad, expected, also, remedy)


def _refuse(
    owner: object,
    bad: Mapping[str, Any],
    expected: str,
    also: Sequence[Any],
    remedy: str | None = None,
    example: object = _NONE,
) -> None:
    """Raise for the first of these arguments that is none of `also`."""
    for name, value in bad.items():
        if not is_one_of(value, also):
            alternatives = ", or ".join([expected, *map(repr, also)])
            raise refuse_argument(owner, name, value, alternatives, remedy, example=also[0] if also else example)


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
    """Build the error for an argument; the remedy is the argument's own default, else `example`."""
    called, default = owner, inspect.Parameter.empty
    if not isinstance(owner, str):
        makes = owner if inspect.isfunction(owner) else type(owner)
        called, parameter = makes.__name__, inspect.signature(makes).parameters.get(name)
        default = default if parameter is None else parameter.default
    if remedy is None:
        suggestion = example if default is inspect.Parameter.empty else default
        remedy = f"another {name}" if suggestion is _NONE else f"{name}={suggestion!r}"
    several = isinstance(value, list | tuple)
    values: Any = value
    classes = [item for item in (values if several else [values]) if isinstance(item, type)]
    if classes and problem == "makes no sense":
        problem, call = "a class in the place of an object", f"{classes[0].__name__}(...)"
        if classes[0].__name__ not in remedy and any(base.__name__ in expected for base in classes[0].__mro__[:-1]):
            remedy = f"{name}=[{call}]" if several else f"{name}={call}"
    return BadConfig(f"{called}({name}=)", problem, got=value, expected=expected, remedy=remedy)


def refuse_choice(
    owner: object, name: str, value: object, choices: Iterable[Any], also: str | None = None, *, form: str = "%r"
) -> BadConfig:
    """Build the error for a value that is none of `choices`, nor `also`; the argument holds it in this form."""
    options = list(choices)
    expected = _join_choices(options) + (f", or {also}" if also else "")
    choice = _find_choice(value, options)
    remedy = "one of the choices above" if choice is None else f"{name}={form % (choice,)}"
    return refuse_argument(owner, name, value, expected, remedy, problem="no such choice")


def _find_choice(value: object, options: Sequence[Any]) -> str | None:
    """Find the choice that was meant, else the only one, or the one that decides by itself; None without one."""
    texts = [option for option in options if isinstance(option, str)]
    if isinstance(value, str):
        meant = next((word for word, words in _CHOICES.items() if word in texts and value in words.split()), None)
        if near := meant or nearest(value, texts):
            return near
    return texts[0] if texts[:1] == ["auto"] or len(texts) == len(options) == 1 else None


def is_bool(value: Any) -> bool:
    """Return whether it is True or False, Python's or NumPy's."""
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def is_integer(value: Any, least: int = -_MOST, most: int = _MOST) -> bool:
    """Return whether it is an integer within these bounds, Python's or NumPy's; a boolean is not."""
    return _is_whole(value) and least <= int(value) <= most


def is_number(value: Any) -> bool:
    """Return whether it is an integer or float, Python's or NumPy's, that float64 holds; NaN is one, a boolean not."""
    if type(value) is float:  # for which the abstract classes take five times as long
        return True
    if isinstance(value, Integral):
        return _is_whole(value) and abs(int(value)) <= sys.float_info.max
    return isinstance(value, Real) and not is_bool(value) and not isinstance(value, Rational)


def _is_whole(value: Any) -> bool:
    """Return whether it is an integer of any size; NumPy's lengths of time call themselves integers, too."""
    return isinstance(value, Integral) and not is_bool(value) and type(value).__name__ != "timedelta64"


def to_python(value: Any) -> Any:
    """Convert a number, boolean or text of NumPy's to Python's, which JSON and torch take; return others unchanged."""
    if type(value).__module__ != "numpy" or getattr(value, "ndim", None) != 0:
        return value
    return value.item() if value.dtype.kind in "biufU" else value


def is_path(value: Any) -> bool:
    """Return whether it is the path of something: text of UTF-8, not empty, without the character NUL."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    return isinstance(text, str) and text != "" and "\0" not in text and is_utf8(text)


def is_utf8(text: str) -> bool:
    """Return whether a text can be written in UTF-8, as names of files on Linux need not be."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def is_one_of(value: Any, choices: Iterable[Any]) -> bool:
    """Return whether it is one of these, of the same type; never fails, whatever the value."""
    return any(value is choice or (isinstance(value, type(choice)) and value == choice) for choice in choices)


def is_sequence(value: Any) -> bool:
    """Return whether it holds several values in an order: a list, a tuple, an array, an index, but no text."""
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
    number = ends[0] if ends else (low + high) / 2 if isfinite(low + high) else low + 1 if isfinite(low) else 0
    return int(number) if number == int(number) else number
