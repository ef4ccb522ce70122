"""The one answer to a name that is not in the list."""

from __future__ import annotations

from collections.abc import Iterable

from gpupipe.errors import BadConfig, nearest

__all__ = ["unknown"]


def unknown(owner: str, parameter: str, value: object, choices: Iterable[str], also: str = "") -> BadConfig:
    """The error for a value that is not one of `choices`; `also` says what else would do."""
    names = list(choices)
    near = nearest(str(value), names) or names[0]
    expected = "one of " + ", ".join(map(repr, names)) + (f", or {also}" if also else "")
    remedy = f"{parameter}={near!r}"
    return BadConfig(f"{owner}({parameter}=)", "no such choice", got=value, expected=expected, remedy=remedy)
