"""Words and numbers as users give them, and words for how many there are; every room uses them."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["as_list", "counted", "shortened"]


def as_list(words: str | Iterable[str]) -> list[str]:
    """Several words, such as columns' names, as a list; a single one is a list of one, never its letters.

    Example:
        >>> as_list("origin"), as_list(("origin", "dest"))
        (['origin'], ['origin', 'dest'])
    """
    return [words] if isinstance(words, str) else list(words)


def counted(number: int, noun: str) -> str:
    """So many of something, for a message.

    Example:
        >>> counted(1, "row"), counted(24_951, "row")
        ('1 row', '24,951 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shortened(words: Iterable[str], most: int = 4) -> str:
    """Several words in one short line, the rest of them counted.

    Example:
        >>> shortened(["temp", "dewp"]), shortened("abcdef", 2)
        ('temp, dewp', 'a, b and 4 more')
    """
    every = list(words)
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest:,} more" if rest > 0 else "")
