"""Text helpers: lists of names, integers and plurals for arguments and messages."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["arguments", "as_list", "derive", "format_columns", "format_count", "shorten_list"]

_SHORTEST_RUN = 5


def as_list(words: str | Iterable[str]) -> list[str]:
    """Convert one or several words, such as columns' names, to a list; one word becomes a list of one.

    Example:
        >>> as_list("origin"), as_list(("origin", "dest"))
        (['origin'], ['origin', 'dest'])
    """
    return [words] if isinstance(words, str) else list(words)


def arguments(named: Mapping[str, Any]) -> str:
    """Write arguments by name as Python; names that it does not take as such are in a mapping.

    Example:
        >>> arguments({"night": "hour < 6", "class": "x * 2"})
        "night='hour < 6', **{'class': 'x * 2'}"
    """
    plain = {name: value for name, value in named.items() if name.isidentifier() and not keyword.iskeyword(name)}
    other = {name: value for name, value in named.items() if name not in plain}
    return ", ".join([*(f"{name}={value!r}" for name, value in plain.items()), *([f"**{other!r}"] if other else [])])


def derive(column: str, expression: str, made: str | None = None) -> str:
    r"""Write the step that makes a column of another one, for an error's remedy.

    Args:
        column: the one that is read.
        expression: with `{}` where it stands.
        made: the name of the new one; by default it takes the other's place.

    Example:
        >>> derive("x", "round({})"), derive("a b", "len({})", "n")
        ("Derive(x='round(x)')", 'Derive(n="len(col(\'a b\'))")')
    """
    read = column if column.isidentifier() and not keyword.iskeyword(column) else f"col({column!r})"
    return f"Derive({arguments({column if made is None else made: expression.format(read)})})"


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun, for a message.

    Example:
        >>> format_count(1, "row"), format_count(24_951, "row")
        ('1 row', '24,951 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shorten_list(words: Iterable[str], most: int = 4) -> str:
    """Join words in one short line, and count the rest.

    Example:
        >>> shorten_list(["temp", "dewp"]), shorten_list("abcdef", 2)
        ('temp, dewp', 'a, b and 4 more')
    """
    every = list(words)
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def format_columns(names: Sequence[str], most: int = 12) -> str:
    """Join column names in one line: numbered runs by their ends; of very many the first and the last.

    Example:
        >>> format_columns(["id", *(f"x{number}" for number in range(2000)), "y"]), format_columns("abcdef", 3)
        ('id, x0 ... x1999 (2,000 columns), y', 'a, b, ... 3 more ..., f')
    """
    told: list[str] = []
    sizes: list[int] = []
    place = 0
    while place < len(names):
        size = _run(names, place)
        run = names[place : place + size]
        parts = [f"{run[0]} ... {run[-1]} ({format_count(size, 'column')})"] if size >= _SHORTEST_RUN else list(run)
        told, sizes, place = told + parts, sizes + [size // len(parts)] * len(parts), place + size
    if len(told) > most:
        told = [*told[: most - 1], f"... {sum(sizes[most - 1 : -1]):,} more ...", told[-1]]
    return ", ".join(told)


def _run(names: Sequence[str], start: int) -> int:
    """Count the names from `start` on that have one stem and consecutive numbers."""
    stem, number = _split_number(names[start])
    size = 1
    while (
        number is not None and start + size < len(names) and _split_number(names[start + size]) == (stem, number + size)
    ):
        size += 1
    return size


def _split_number(name: str) -> tuple[str, int | None]:
    digits = re.search(r"(?<!\d)(0|[1-9]\d{0,17})$", name)
    return (name, None) if digits is None else (name[: digits.start()], int(digits[1]))
