"""The one answer to a name that is not in the list."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from gpupipe.errors import BadConfig

__all__ = ["unknown"]


def unknown(owner: str, parameter: str, value: object, choices: Iterable[str], also: str = "") -> BadConfig:
    """The error for a value that is not one of `choices`; `also` says what else would do."""
    names = list(choices)
    near = get_close_matches(str(value).lower(), names, n=1, cutoff=0.4) or names[:1]
    expected = "one of " + ", ".join(map(repr, names)) + (f", or {also}" if also else "")
    remedy = f"{parameter}={near[0]!r}"
    return BadConfig(f"{owner}({parameter}=)", "no such choice", got=value, expected=expected, remedy=remedy)
