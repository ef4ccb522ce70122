"""Origins: which columns of which tables a column's values come from, and from rows of what time."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias


class When(StrEnum):
    """Which rows a value comes from, relative to its own; or the row's own value says which row was looked up."""

    BEFORE = "before"
    NOW = "now"
    AFTER = "after"
    KEY = "key"


IN_MEMORY = "memory "
"""What the names of tables in memory begin with; the rest is random."""
_RANK = {When.BEFORE: -1, When.NOW: 0, When.KEY: 0, When.AFTER: 1}
_ROWS = frozenset({When.BEFORE, When.NOW, When.AFTER})
# What a value of a row before or after is to the row that looks there: a step back from a later row may end anywhere.
_STEPS: dict[When, dict[When, frozenset[When]]] = {
    When.BEFORE: dict.fromkeys((When.BEFORE, When.NOW, When.KEY), frozenset({When.BEFORE})) | {When.AFTER: _ROWS},
    When.NOW: {when: frozenset({when}) for when in When},
    When.AFTER: {
        **dict.fromkeys((When.NOW, When.AFTER), frozenset({When.AFTER})),
        When.BEFORE: _ROWS,
        When.KEY: frozenset({When.KEY}),
    },
    When.KEY: {when: frozenset({when if when == When.BEFORE else When.KEY}) for when in When},
}


class Origin(NamedTuple):
    """Column of a table that values come from; the table is empty for the one at hand."""

    table: str
    column: str
    when: When = When.NOW


Origins: TypeAlias = frozenset[Origin]


def shift(origins: Origins, *whens: When) -> Origins:
    """Return the origins of a value that is looked up in rows of these times.

    Example:
        A lag of `sales` holds `sales` of a row before. A lag of tomorrow's `sales` may be that of any row.

        >>> [one.when.value for one in shift(frozenset({Origin("", "sales")}), When.BEFORE)]
        ['before']
    """
    return frozenset(one._replace(when=when) for by in whens for one in origins for when in _STEPS[by][one.when])


def find_leaks(feature: Origins, target: Origins) -> list[str]:
    """List the columns of the target of which a feature holds values as late as the target's latest, or later.

    Keys by which a target was looked up tell nothing of it. Parts of a table are related to all of it, and to parts of
    themselves: `a` to `a/x`, but `a/x` not to `a/y`.

    Example:
        >>> sales, lag = Origin("", "sales"), Origin("", "sales", When.BEFORE)
        >>> find_leaks(frozenset({sales}), frozenset({sales})), find_leaks(frozenset({lag}), frozenset({sales}))
        (['sales'], [])
    """
    latest: dict[tuple[str, str], int] = {}
    for one in target:
        if one.when != When.KEY:
            name = one.table, one.column
            latest[name] = max(latest.get(name, -1), _RANK[one.when])
    return sorted(
        {
            one.column
            for one in feature
            for (table, column), rank in latest.items()
            if one.column == column and _RANK[one.when] >= rank and _is_related(one.table, table)
        }
    )


def _is_related(one: str, other: str) -> bool:
    return one == other or f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def trace(origins: Origins, sources: Mapping[str, Origins]) -> Origins:
    """Replace columns of the table at hand by their own origins.

    Example:
        >>> sources = {"lag": frozenset({Origin("a", "sales", When.BEFORE)})}
        >>> trace(frozenset({Origin("", "lag")}), sources) == sources["lag"]
        True
    """
    found: Origins = frozenset()
    for one in origins:
        is_here = not one.table and one.column in sources
        found |= shift(sources[one.column], one.when) if is_here else {one}
    return found


def rename_tables(origins: Origins, rename: Callable[[str], str]) -> Origins:
    """Return the origins in tables of other names."""
    return frozenset(one._replace(table=rename(one.table)) for one in origins)


def name_memory() -> str:
    """Name a table in memory, as no other is named."""
    return f"{IN_MEMORY}{uuid.uuid4().hex}"


def write_origins(origins: Iterable[Origin]) -> str:
    """Return origins as text, for a file's metadata."""
    return json.dumps(sorted(map(list, origins)), ensure_ascii=False)


def read_origins(text: str | bytes) -> Origins:
    """Parse what `write_origins` returned; none where it is anything else.

    Example:
        >>> read_origins(write_origins([Origin("a", "x")])), read_origins("other")
        (frozenset({Origin(table='a', column='x', when=<When.NOW: 'now'>)}), frozenset())
    """
    try:
        rows: Any = json.loads(text)
        return frozenset(Origin(str(table), str(column), When(when)) for table, column, when in rows)
    except (ValueError, TypeError, RecursionError):
        return frozenset()
