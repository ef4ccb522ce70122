"""Origins: which columns of which tables a column's values come from, and from rows of what time."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, unquote


class When(StrEnum):
    """Which rows a value comes from, relative to its own; or the row's own value says which row was looked up.

    A row of `group_by` is its group: what is computed from it comes from no other group's rows.
    """

    BEFORE = "before"
    NOW = "now"
    AFTER = "after"
    GROUP = "group"
    EARLIER_GROUP = "earlier group"
    LATER_GROUP = "later group"
    KEY = "key"
    TIME = "time"  # a key, too: the first column by whose order a row before or after was found
    MATCH = "match"  # a key, too: the value tells whether a row was found by it, as `isnull` of a joined column does
    EARLIER_KEY = "earlier key"  # the value of a row before, as where sessions are numbered by the gaps between clicks
    LATER_KEY = "later key"  # the value of a row after, as where next month's price is looked up
    ORDER = "order"  # no value: the table was sorted by the column, and its rows stand in that order
    CHOICE = "choice"  # no value: rows were kept or left out by the column, as those of a filter are
    PART = "part"  # no value: computed after such a choice, and so perhaps another in each part that was kept
    PICKED = "picked"  # no value: of the rows with equal ones in the column all but one were left out
    POSITION = "position"  # no value: which rows are earlier was read from where they stand in the column's table

    __hash__ = str.__hash__  # in C, of the value that is compared


IN_MEMORY = "memory "
"""What the names of tables in memory begin with."""
_EARLIER = frozenset({When.BEFORE, When.EARLIER_GROUP, When.EARLIER_KEY})
_LATER = frozenset({When.AFTER, When.LATER_GROUP, When.LATER_KEY})
_MOVED = frozenset({When.BEFORE, When.AFTER, When.EARLIER_GROUP, When.LATER_GROUP})
_KEYS = frozenset({When.KEY, When.TIME, When.MATCH, When.EARLIER_KEY, When.LATER_KEY})
_ANY_KEY = frozenset({When.EARLIER_KEY, When.KEY, When.LATER_KEY})
_CHOICES = frozenset({When.CHOICE, When.PART})
_NO_VALUES = _CHOICES | {When.ORDER, When.PICKED, When.POSITION}
_RANK = {when: -1 if when in _EARLIER else 1 if when in _LATER else 0 for when in When}
_ROWS = frozenset({When.BEFORE, When.NOW, When.AFTER})
_GROUPS = frozenset({When.EARLIER_GROUP, When.GROUP, When.LATER_GROUP})
_SAME_ROW = {when: frozenset({when}) for when in When}
_ELSEWHERE = _SAME_ROW | dict.fromkeys(_GROUPS, _ROWS)
_OF_OWN_KEY = {When.EARLIER_GROUP: frozenset({When.BEFORE}), When.LATER_GROUP: frozenset({When.AFTER})}
# Values of groups have other origins than those of rows before the groups were made: a lag that is summed up may be of
# rows in any groups.
_IN_GROUP = dict.fromkeys(When, _ROWS) | dict.fromkeys(_KEYS, frozenset({When.KEY}))
_IN_GROUP |= {When.LATER_KEY: frozenset({When.LATER_KEY})}
_STAY = {mark: frozenset({mark}) for mark in _NO_VALUES}
_CHOSEN = {mark: frozenset({mark}) for mark in _CHOICES}
_VANISH = dict.fromkeys(_NO_VALUES, frozenset[When]())
# What a value of a row before or after is to the row that looks there: a step back from a later row may end anywhere.
_STEPS: dict[When, dict[When, frozenset[When]]] = {
    When.BEFORE: {
        **dict.fromkeys((When.BEFORE, When.NOW), frozenset({When.BEFORE})),
        When.AFTER: _ROWS,
        **dict.fromkeys((When.EARLIER_GROUP, When.GROUP), frozenset({When.EARLIER_GROUP})),
        When.LATER_GROUP: _GROUPS,
        **dict.fromkeys(_KEYS, frozenset({When.EARLIER_KEY})),
        When.LATER_KEY: _ANY_KEY,
        **_STAY,
    },
    When.NOW: _SAME_ROW,
    When.AFTER: {
        **dict.fromkeys((When.NOW, When.AFTER), frozenset({When.AFTER})),
        When.BEFORE: _ROWS,
        **dict.fromkeys((When.GROUP, When.LATER_GROUP), frozenset({When.LATER_GROUP})),
        When.EARLIER_GROUP: _GROUPS,
        **dict.fromkeys(_KEYS, frozenset({When.LATER_KEY})),
        When.EARLIER_KEY: _ANY_KEY,
        **_STAY,
    },
    **{
        key: dict.fromkeys(When, frozenset({key}))
        | dict.fromkeys(_EARLIER, frozenset({When.EARLIER_KEY}))
        | dict.fromkeys(_LATER, frozenset({When.LATER_KEY, *({key} - {When.KEY})}))
        | _STAY
        for key in (When.KEY, When.TIME, When.MATCH)
    },
    When.EARLIER_KEY: dict.fromkeys(When, frozenset({When.EARLIER_KEY})) | dict.fromkeys(_LATER, _ANY_KEY) | _STAY,
    When.LATER_KEY: dict.fromkeys(When, frozenset({When.LATER_KEY})) | dict.fromkeys(_EARLIER, _ANY_KEY) | _STAY,
    # What rows were sorted by is what every window without an order of its own looks them up by.
    **{
        mark: {when: frozenset() if when in _EARLIER else frozenset({mark}) for when in When} | _VANISH
        for mark in (When.ORDER, When.PICKED, *_CHOICES)
    },
    When.POSITION: {when: frozenset({When.POSITION}) for when in When} | {When.ORDER: frozenset({When.KEY})},
    **{
        when: _IN_GROUP | dict.fromkeys((When.NOW, When.GROUP), frozenset({when})) | _VANISH | _CHOSEN
        for when in (When.EARLIER_GROUP, When.GROUP, When.LATER_GROUP)
    },
}


ANY_ROW = (When.BEFORE, When.NOW, When.AFTER)
"""The times of a row that may be any, as those of a group are."""


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

        >>> [origin.when.value for origin in shift(frozenset({Origin("", "sales")}), When.BEFORE)]
        ['before']
    """
    if whens == (When.NOW,):
        return origins
    return frozenset(
        origin._replace(when=when) for by in whens for origin in origins for when in _STEPS[by][origin.when]
    )


def tell_matches(origins: Origins) -> Origins:
    """Return the origins of a value that tells whether one of these is missing: whether any row was found for it.

    Example:
        >>> spent = frozenset({Origin("orders", "amount"), Origin("users", "user", When.KEY)})
        >>> sorted((origin.column, origin.when.value) for origin in tell_matches(spent))
        [('amount', 'now'), ('user', 'key'), ('user', 'match')]
    """
    return origins | {origin._replace(when=When.MATCH) for origin in origins if origin.when in (When.KEY, When.TIME)}


def forget_order(origins: Origins) -> Origins:
    """Return the origins of values whose rows stand in another order now.

    Example:
        >>> sales = frozenset({Origin("", "sales")})
        >>> forget_order(sales | shift(sales, When.ORDER)) == sales
        True
    """
    return frozenset(origin for origin in origins if origin.when != When.ORDER)


def pick(origins: Origins) -> Origins:
    """Return the origins of values of one of several rows, the first or the last by where they stand.

    Example:
        >>> price = frozenset({Origin("", "price"), Origin("", "sales", When.ORDER)})
        >>> sorted((origin.column, origin.when.value) for origin in pick(price))
        [('price', 'now'), ('price', 'position'), ('sales', 'key')]
    """
    return forget_order(origins) | shift(origins, When.POSITION)


def keep_one(origins: Origins) -> Origins:
    """Return the origins of values of rows that were kept for where they stood among others, the first or the last.

    Example:
        >>> sorted(origin.when.value for origin in keep_one(frozenset({Origin("", "sales", When.ORDER)})))
        ['choice', 'order']
    """
    return origins | {origin._replace(when=When.CHOICE) for origin in origins if origin.when == When.ORDER}


def mark_picked(origins: Origins, keys: Iterable[Origins]) -> Origins:
    """Return the origins of values of rows of which each is one of several with equal keys.

    Example:
        >>> price, store = (frozenset({Origin("", name)}) for name in ("price", "store"))
        >>> sorted((origin.column, origin.when.value) for origin in mark_picked(price, [store]))
        [('price', 'now'), ('store', 'picked')]
    """
    columns = frozenset(origin for key in keys for origin in key if has_values(origin))
    return origins | {origin._replace(when=When.PICKED) for origin in columns}


def reveal_choice(origins: Origins, left: Origins) -> Origins:
    """Return the origins of values that other rows look up: which rows there are to be found tells why they were kept.

    It tells nothing of a column by which the rows that look, of the origins `left`, were kept themselves.

    Example:
        >>> price = frozenset({Origin("", "price"), Origin("", "sales", When.CHOICE)})
        >>> sorted((origin.column, origin.when.value) for origin in reveal_choice(price, frozenset()))
        [('price', 'now'), ('sales', 'key')]
        >>> reveal_choice(price, price) == price
        True
    """
    tables = [(origin.table, origin.column) for origin in left if origin.when == When.CHOICE]

    def is_known(origin: Origin) -> bool:
        return any(origin.column == column and are_related(origin.table, table) for table, column in tables)

    return frozenset(
        origin if origin.when not in _CHOICES or is_known(origin) else origin._replace(when=When.KEY)
        for origin in origins
    )


def keep_related(origins: Origins, left: Origins) -> Origins:
    """Return the origins of values in tables that rows of the origins `left` may be in.

    Example:
        >>> left = frozenset({Origin("a", "y")})
        >>> [origin.table for origin in keep_related(frozenset({Origin("a", "x"), Origin("b", "x")}), left)]
        ['a']
    """
    tables = {origin.table for origin in left}
    return frozenset(
        origin for origin in origins if has_values(origin) and any(are_related(origin.table, name) for name in tables)
    )


def list_choices(field_origins: Iterable[Origins]) -> Origins:
    """Return the marks of what rows were kept by, of the origins of their fields."""
    return frozenset(origin for origins in field_origins for origin in origins if origin.when == When.CHOICE)


def mark_part(field_origins: Iterable[Origins]) -> Origins:
    """Return the marks of a value that is computed of rows which are only a part of a table, by the table's fields.

    Example:
        >>> price = frozenset({Origin("", "price"), Origin("", "sales", When.CHOICE)})
        >>> [(origin.column, origin.when.value) for origin in mark_part([price])]
        [('sales', 'part')]
    """
    return frozenset(origin._replace(when=When.PART) for origin in list_choices(field_origins))


def tell_parts(origins: Origins) -> Origins:
    """Return the origins of values of parts that are put together: what was computed in each tells the part.

    Example:
        >>> [origin.when.value for origin in tell_parts(frozenset({Origin("", "sales", When.PART)}))]
        ['key']
    """
    return frozenset(origin._replace(when=When.KEY) if origin.when == When.PART else origin for origin in origins)


def leave_groups(origins: Origins, *, by_own_key: bool = False) -> Origins:
    """Return the origins of values that go from rows of groups to other rows, for which a group holds any rows.

    `by_own_key` is where rows look groups up by the key that these were made by: of the sums of each day those of days
    before a row's own are of earlier rows alone.

    Example:
        >>> day_before = frozenset({Origin("", "sales", When.EARLIER_GROUP)})
        >>> len(leave_groups(day_before)), len(leave_groups(day_before, by_own_key=True))
        (3, 1)
    """
    whens = _ELSEWHERE | (_OF_OWN_KEY if by_own_key else {})
    return frozenset(origin._replace(when=when) for origin in origins for when in whens[origin.when])


def is_earlier(origin: Origin) -> bool:
    """Whether the values are those of strictly earlier rows, or there are none."""
    return origin.when in _EARLIER or origin.when in _NO_VALUES


def is_known(origin: Origin) -> bool:
    """Whether the values are those of the own row or of strictly earlier ones, or there are none."""
    return origin.when == When.NOW or is_earlier(origin)


def comes_later(origin: Origin) -> bool:
    """Whether the values are those of strictly later rows."""
    return origin.when in _LATER


def is_of_row(origin: Origin) -> bool:
    """Whether the values are those of the own row, or of the group that it is."""
    return origin.when in (When.NOW, When.GROUP)


def has_values(origin: Origin) -> bool:
    """Whether it is one of values, and does not only say how rows were chosen or stand."""
    return origin.when not in _NO_VALUES


def is_key(origin: Origin) -> bool:
    """Whether the value says which row was looked up."""
    return origin.when in _KEYS


def look_up(origins: Origins, keys: Iterable[Origins], left: Origins) -> Origins:
    """Return the origins of a value that is found by equal keys, given those of the keys in the table it is found in.

    A lag by store and date that the store alone finds, as in a table of each store's last row, is of any row. So is a
    value of one of the rows with equal keys, for rows of the same table, of which `left` are the origins.

    Example:
        >>> store, date = (frozenset({Origin("", name)}) for name in ("store", "date"))
        >>> lag = frozenset({Origin("", "sales", When.BEFORE)}) | shift(store | date, When.KEY)
        >>> look_up(lag, [store, date], store) == lag
        True
        >>> Origin("", "sales", When.AFTER) in look_up(lag, [store], store)
        True
    """
    columns = {_name_whole(origin) for key in keys for origin in key if origin.when == When.NOW}
    of_window = {_name_whole(origin) for origin in origins if origin.when in (When.KEY, When.TIME)}
    is_any, is_moved = columns < of_window, any(origin.when in _MOVED for origin in origins)
    if not is_any and any(origin.when == When.PICKED for origin in origins):
        left_tables, tables = ({origin.table for origin in part} for part in (left, origins))
        is_own = any(are_related(left_table, table) for left_table in left_tables for table in tables)
        is_any = not of_window <= columns if is_moved else is_own
    return shift(origins, *ANY_ROW) if columns and is_any else origins


def is_in_other_order(origins: Origins, order: Origins) -> bool:
    """Whether values of rows before or after were not found in the order of the column that orders rows now.

    A lag by time of a row that has a smaller id may be the value of any row.

    Example:
        >>> time, number = (frozenset({Origin("", name)}) for name in ("time", "number"))
        >>> lag = frozenset({Origin("", "sales", When.BEFORE)}) | shift(time, When.TIME)
        >>> is_in_other_order(lag, time), is_in_other_order(lag, number)
        (False, True)
    """
    if not any(origin.when in _MOVED for origin in origins):
        return False
    times, columns = [o for o in origins if o.when == When.TIME], list(filter(has_values, order))
    return not times or not all(
        any(time.column == column.column and are_related(time.table, column.table) for column in columns)
        for time in times
    )


def name_table(origin: Origin) -> str:
    """Return the name of the table, whole where the origin is in a part of it."""
    return origin.table.partition("/")[0]


def _name_whole(origin: Origin) -> tuple[str, str]:
    return name_table(origin), origin.column


def list_shared(origins: Origins, keys: Origins) -> Origins:
    """Return the origins of what all rows with equal keys share, as another table's value that the keys looked up.

    Of a label that each customer has in another table, a customer's row before holds the own one.

    Example:
        >>> customer = frozenset({Origin("orders", "customer")})
        >>> label = frozenset({Origin("customers", "label")}) | shift(customer, When.KEY)
        >>> [origin.column for origin in list_shared(label, customer)]
        ['label']
    """
    columns = {_name_whole(origin) for origin in keys if origin.when == When.NOW}
    tables = {origin.table for origin in keys if origin.when == When.NOW}
    looked_up_by = {
        _name_whole(origin)
        for origin in origins
        if is_key(origin) and any(are_related(origin.table, table) for table in tables)
    }
    if not looked_up_by or not looked_up_by <= columns:
        return frozenset()
    return frozenset(
        origin
        for origin in origins
        if has_values(origin)
        and not is_key(origin)
        and not any(are_related(origin.table, table) for table, _ in looked_up_by)
    )


def keep_shared(origins: Origins, keys: Origins) -> Origins:
    """Return the origins of values that these keys find again, in whatever part of the rows: see `list_shared`.

    Of labels by customer, joined to orders, a customer's orders of one week hold the label of those of the next.

    Example:
        >>> customer = frozenset({Origin("orders/week 1", "customer")})
        >>> label = frozenset({Origin("customers/week 1", "label"), Origin("orders", "customer", When.KEY)})
        >>> sorted(origin.table for origin in keep_shared(label, customer))
        ['customers', 'customers/week 1', 'orders']
    """
    return origins | {origin._replace(table=name_table(origin)) for origin in list_shared(origins, keys)}


def keep_lookups(origins: Origins, keys: Origins) -> Origins:
    """Return the origins of values that go into groups by these keys, with what has found them in other tables.

    Of the categories of a customer's purchases, by the products, the group is of purchases: of their products, too.

    Example:
        >>> category = frozenset({Origin("products", "category"), Origin("purchases", "product", When.KEY)})
        >>> customer = frozenset({Origin("purchases", "customer")})
        >>> sorted((origin.column, origin.when.value) for origin in keep_lookups(category, customer))
        [('category', 'now'), ('product', 'key'), ('product', 'now')]
    """
    columns = {_name_whole(origin) for origin in keys}
    tables = {name_table(origin) for origin in origins if has_values(origin) and not is_key(origin)}
    return origins | {
        origin._replace(when=When.NOW)
        for origin in origins
        if origin.when == When.KEY and _name_whole(origin) not in columns and tables - {name_table(origin)}
    }


def find_leaks(feature: Origins, target: Origins) -> list[str]:
    """List the columns of the target of which a feature holds values as late as the target's latest, or later.

    Of a target that comes from any rows, as a sum over a group that was joined back does, these are also values of the
    own row, a part of it. A row before in another order than the target's may be any row. Keys by which a target was
    looked up tell nothing of it, nor does the order of its rows. Where it comes from nothing else, as a count does,
    what holds all of the keys tells it. Where it tells whether a row was found by them, so does what is of that row,
    alone or among those that fewer keys find. Parts of a table are related to all of it, and to each other unless no
    row can be in both; see `are_related`.

    Example:
        >>> sales, lag = Origin("", "sales"), Origin("", "sales", When.BEFORE)
        >>> find_leaks(frozenset({sales}), frozenset({sales})), find_leaks(frozenset({lag}), frozenset({sales}))
        (['sales'], [])
    """
    if not target:
        return []
    feature, target = (
        frozenset(origin for origin in part if origin.when not in _NO_VALUES) for part in (feature, target)
    )
    values = _list_secrets({origin for origin in target if origin.when not in _KEYS}, target)
    times = frozenset(origin for origin in target if origin.when == When.TIME)
    is_any = bool(times) and any(o.when in _MOVED for o in values) and is_in_other_order(feature, times)
    leaks = set[Origin]()
    for origin in shift(feature, *ANY_ROW) if is_any else feature:
        related = [o for o in values or target if o.column == origin.column and are_related(o.table, origin.table)]
        for of_groups in (False, True):
            same = [o for o in related if (o.when in _GROUPS) == of_groups]
            ranks = {_RANK[o.when] for o in same}
            latest = 0 if len(ranks) == len(ANY_ROW) else max(ranks, default=math.inf)
            if _RANK[origin.when] >= latest or (origin.when in _GROUPS and not of_groups):  # a group holds any rows
                leaks.update(same)
    leaks = leaks or _find_matches(feature, target, values)
    columns, all_columns = ({(o.table, o.column) for o in each} for each in (leaks, values or target))
    is_part = not values and columns < all_columns
    return [] if is_part else sorted({column for _, column in columns})


def _list_secrets(values: set[Origin], target: Origins) -> set[Origin]:
    """List the values that a target is computed from, but for the time by which those of another table were looked up.

    Of the days until the next failure, `failed_at - read_at`, where an as-of join has found `failed_at` by `read_at`,
    the time of the reading is known. In one table a window may be ordered by what is no time, such as the target.
    """
    times = {_name_whole(origin) for origin in target if origin.when == When.TIME}
    moved = {_name_whole(origin) for origin in values if origin.when != When.NOW}
    secrets = {origin for origin in values if _name_whole(origin) not in times - moved}
    other_tables = {name_table(origin) for origin in secrets} - {table for table, _ in times}
    return secrets if other_tables else values


def _find_matches(feature: Origins, target: Origins, values: AbstractSet[Origin]) -> set[Origin]:
    """Find the keys by which a target tells whether a row was found, if a feature tells of that row, or of its group.

    A user's target is true where no order was found in May, `isnull(amount)`, and there is one of user 2 alone:

        user  amount  item  isnull(amount)
        1     missing missing  true          `item` of the same row tells the target, and so does the number of orders
        2     5       "pen"    false         of the user in all months; what another table, or April, has does not
    """
    matches = {origin for origin in target if origin.when == When.MATCH}
    contents = [origin for origin in feature if origin.when not in _KEYS]
    columns = {_name_whole(origin) for origin in contents}
    all_keys = [origin for origin in feature if origin.when in _KEYS]
    keys = [origin for origin in all_keys if _name_whole(origin) not in columns]
    rows = {(origin.table, _RANK[origin.when]) for origin in values or matches}
    own_rows = contents or keys
    if not any(are_related(o.table, table) and _RANK[o.when] == rank for o in own_rows for table, rank in rows):
        return set()
    ranks = {(table.partition("/")[0], rank) for table, rank in rows}
    looked_up = {table for table, _ in ranks if all((table, rank) in ranks for rank in _RANK.values())}  # as groups are
    in_windows = {table for table, _ in rows if table.partition("/")[0] not in looked_up}
    elsewhere = {match for match in matches if match.table not in in_windows}
    pairs = [(k, m) for k in keys for m in elsewhere or matches if _is_within(k.table, m.table)]
    same = [(k, m) for k, m in pairs if k.column == m.column]
    has_all = {m for _, m in same} == (elsewhere or matches)
    # Fewer keys find more rows, among them that one: of all failures of a machine beside the next one after a time.
    has_fewer = bool(elsewhere and pairs) and {k for k, _ in same} == {k for k, _ in pairs}
    if has_all or has_fewer:
        return matches
    # So do later rows of a customer tell whether there is one: of 3 orders in all the third has none behind it.
    is_later = any(rank > 0 for _, rank in rows) and any(_RANK[origin.when] > 0 for origin in contents)
    times = {_name_whole(origin) for origin in target if origin.when == When.TIME}
    if all(_name_whole(match) in times for match in matches):  # rows are groups, whose keys their times are found by
        times = {_name_whole(origin) for origin in values}
    owners = {match for match in matches - elsewhere if _name_whole(match) not in times}
    names, tables = ({match[index] for match in owners} for index in (1, 0))
    own_names = {
        key.column
        for key in all_keys
        if _name_whole(key) not in times and any(are_related(key.table, table) for table in tables)
    }
    has_owners = bool(own_names) and (own_names <= names or own_names >= names)
    return matches if owners and is_later and has_owners else set()


def _is_within(name: str, other_name: str) -> bool:
    """Whether all rows of a table, or of a part of one, are in another."""
    return f"{name}/".startswith(f"{other_name}/")


def are_related(name: str, other_name: str) -> bool:
    """Whether rows may be in both of two tables, or parts of tables, whose names `name_part` has gone on with.

    Example:
        >>> early, late = (f"a/{name_part('by date', bounds)}" for bounds in ((None, 5), (5, None)))
        >>> are_related(early, "a"), are_related(early, late), are_related(early, f"a/{name_part('by date', (4, 9))}")
        (True, False, True)
    """
    (table, *parts), (other_table, *other_parts) = name.split("/"), other_name.split("/")
    return table == other_table and not any(_are_apart(part, another) for part in parts for another in other_parts)


def name_part(kind: str, bounds: tuple[Any, Any] | str, *, outside: bool = False) -> str:
    """Name a part of a table's rows, by how it is cut and the range it has; or by a name, of parts without a range.

    Parts of the same `kind` are apart where their ranges or names are; `outside` is all rows but those.
    """
    name = json.dumps([outside, *([bounds] if isinstance(bounds, str) else bounds)])
    return f"{hashlib.sha256(kind.encode()).hexdigest()[:8]}:{quote(name, safe='')}"


def _are_apart(left: str, right: str) -> bool:
    """Whether no row can be in both parts; False where nobody knows."""
    try:
        pairs = [part.split(":") for part in (left, right)]
        (kind, *names), (other_kind, *other_names) = pairs
        (is_outside, *part), (is_other_outside, *other_part) = (json.loads(unquote(n)) for n in (*names, *other_names))
        if kind != other_kind or (is_outside and is_other_outside):
            return False
        if is_outside or is_other_outside:  # all but a part, and what may lie in that
            around, within = (part, other_part) if is_outside else (other_part, part)
            return bool(around == within or (len(around) == 2 and _covers(around, within)))
        if len(part) == 1:
            return bool(part != other_part)
        return _is_before(part, other_part) or _is_before(other_part, part)
    except (ValueError, TypeError, RecursionError):
        return False


def _covers(around: Sequence[Any], within: Sequence[Any]) -> bool:
    (low, high), (start, end) = around, within
    return (low is None or (start is not None and low <= start)) and (high is None or (end is not None and end <= high))


def _is_before(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return left[1] is not None and right[0] is not None and left[1] <= right[0]


def trace(origins: Origins, sources: Mapping[str, Origins]) -> Origins:
    """Replace columns of the table at hand by their own origins.

    Example:
        >>> sources = {"lag": frozenset({Origin("a", "sales", When.BEFORE)})}
        >>> trace(frozenset({Origin("", "lag")}), sources) == sources["lag"]
        True
    """
    result: Origins = frozenset()
    for origin in origins:
        is_here = not origin.table and origin.column in sources
        result |= shift(sources[origin.column], origin.when) if is_here else {origin}
    return result


def cut_out(
    origins: Origins, names: Sequence[str], names_by_table: Mapping[str, Sequence[str]] | None = None
) -> Origins:
    """Return the origins of values in the rows of a part, by `name_part`: those of the own row or group are in it.

    Tables in `names_by_table` are cut into other parts, or into none.

    Example:
        >>> price, lag = Origin("t", "price"), Origin("t", "price", When.BEFORE)
        >>> sorted(origin.table for origin in cut_out(frozenset({price, lag}), ["part"]))
        ['t', 't/part']
    """
    names_by_table = names_by_table or {}

    def cut(origin: Origin) -> Origin:
        return origin._replace(table="/".join([origin.table, *names_by_table.get(name_table(origin), names)]))

    return frozenset(cut(o) if is_of_row(o) or o.when in _NO_VALUES else o for o in origins)


def rename_tables(origins: Origins, rename: Callable[[str], str]) -> Origins:
    """Return the origins in tables of other names."""
    return frozenset(origin._replace(table=rename(origin.table)) for origin in origins)


def name_memory(contents: str = "") -> str:
    """Name a table in memory by its contents; as no other is named where they are not known."""
    return f"{IN_MEMORY}{hashlib.sha256(contents.encode()).hexdigest()[:32] if contents else uuid.uuid4().hex}"


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
