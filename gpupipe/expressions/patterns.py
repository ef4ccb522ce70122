"""Regular expression checks: the syntax that Python and RE2 have in common."""

from __future__ import annotations

import re

__all__ = ["pattern_problem"]

_UNESCAPED = r"(?<!\\)(?:\\\\)*"
_UNKNOWN_TO_RE2 = (
    (_UNESCAPED + r"\(\?(?:=|!|<=|<!)", "it has no lookaround"),
    (_UNESCAPED + r"(?:\\[1-9]|\(\?P=)", "it has no backreferences"),
    (_UNESCAPED + r"\(\?[>(]", "it has no conditions and no atomic groups"),
)
_UNKNOWN_TO_PYTHON = r"\\[pP](?:\{\^?\w+\}|\w)"


def pattern_problem(pattern: str) -> str | None:
    """Return why RE2 would reject a pattern; None where it would not.

    Example:
        >>> pattern_problem("(a"), pattern_problem("a(?=b)"), pattern_problem("[0-9]+")
        ('missing ), unterminated subpattern at position 0', 'it has no lookaround', None)
    """
    for unknown, problem in _UNKNOWN_TO_RE2:
        if re.search(unknown, pattern):
            return problem
    try:
        re.compile(re.sub(_UNKNOWN_TO_PYTHON, r"\\w", pattern))
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return None
