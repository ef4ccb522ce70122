"""Arguments that make no sense: names that are not in a list, numbers out of their range, paths that are none."""

from __future__ import annotations

import os
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

from gpupipe.errors import BadConfig, nearest
from gpupipe.support.validation import is_number

__all__ = ["TINY", "Rule", "check_path", "is_real", "refuse", "unknown"]

TINY = 2.0**-1022
"""The least number above 0, for what has to be more than that."""

# An argument, whether its value is good, what would be, and an example.
Rule: TypeAlias = tuple[str, bool, str, str]


def unknown(owner: str, parameter: str, value: object, choices: Iterable[str], also: str = "") -> BadConfig:
    """The error for a value that is not one of `choices`; `also` says what else would do."""
    names = list(choices)
    near = nearest(str(value), names) or names[0]
    expected = "one of " + ", ".join(map(repr, names)) + (f", or {also}" if also else "")
    remedy = f"{parameter}={near!r}"
    return BadConfig(f"{owner}({parameter}=)", "no such choice", got=value, expected=expected, remedy=remedy)


def refuse(owner: object, rules: Iterable[Rule]) -> None:
    """Raise for the first rule that an attribute of `owner` breaks.

    Raises:
        BadConfig: one does.
    """
    for name, good, expected, remedy in rules:
        if not good:
            where, got = f"{type(owner).__name__}({name}=)", getattr(owner, name)
            raise BadConfig(where, "makes no sense", got=got, expected=expected, remedy=remedy)


def is_real(value: Any, least: float = -inf, below: float = inf) -> bool:
    """Whether it is a finite number in [least, below); a boolean is none.

    Example:
        >>> is_real(0.5, 0, 1), is_real(True), is_real("0.5"), is_real(float("nan"))
        (True, False, False, False)
    """
    return is_number(value) and not isinstance(value, bool) and least <= value < below and abs(value) < inf


def check_path(owner: str, parameter: str, value: object, example: str) -> Path:
    """A path of this machine.

    Raises:
        BadConfig: no path, or a URL.
    """
    if isinstance(value, str | os.PathLike) and "://" not in str(value):
        return Path(value)
    problem = "a URL" if isinstance(value, str) else "not a path"
    expected, remedy = "a path of this machine", f"{parameter}={example!r}"
    raise BadConfig(f"{owner}({parameter}=)", problem, got=value, expected=expected, remedy=remedy)
