"""Origins of values: rows before and after, keys, and parts of tables."""

from __future__ import annotations

import pytest

from gpupipe.support.origins import (
    Origin,
    When,
    are_related,
    find_leaks,
    name_part,
    read_origins,
    rename_tables,
    shift,
    trace,
    write_origins,
)

X = Origin("a", "x")
BEFORE, NOW, AFTER, GROUP, EARLIER_GROUP, LATER_GROUP, KEY, TIME, MATCH, EARLIER_KEY, LATER_KEY, *MARKS = When
ORDER, CHOICE, PART, PICKED, POSITION = MARKS


def origins(*whens: When, table: str = "a") -> frozenset[Origin]:
    return frozenset(Origin(table, "x", when) for when in whens)


@pytest.mark.parametrize(
    ("by", "of", "wanted"),
    [
        ([BEFORE], [NOW], [BEFORE]),
        ([BEFORE, NOW], [NOW], [BEFORE, NOW]),
        ([BEFORE], [AFTER], [BEFORE, NOW, AFTER]),  # the lag of a lead is the row itself, for one
        ([AFTER], [BEFORE], [BEFORE, NOW, AFTER]),
        ([NOW], [AFTER, KEY], [AFTER, KEY]),
        ([KEY], [NOW, BEFORE], [KEY, EARLIER_KEY]),
        ([BEFORE], [KEY], [EARLIER_KEY]),
        ([KEY], [AFTER], [LATER_KEY]),  # next month's price
        ([TIME], [AFTER], [TIME, LATER_KEY]),
        ([AFTER], [KEY, TIME], [LATER_KEY]),
        ([AFTER], [EARLIER_KEY], [EARLIER_KEY, KEY, LATER_KEY]),
        ([BEFORE], [LATER_KEY], [EARLIER_KEY, KEY, LATER_KEY]),
        ([GROUP], [LATER_KEY], [LATER_KEY]),
        ([TIME], [NOW, BEFORE], [TIME, EARLIER_KEY]),
        ([BEFORE], [TIME], [EARLIER_KEY]),
        ([MATCH], [NOW, KEY, BEFORE], [MATCH, EARLIER_KEY]),
        ([GROUP], [MATCH], [KEY]),
        ([BEFORE], [NOW, PICKED], [BEFORE, PICKED]),
        ([GROUP], [NOW, TIME, PICKED], [GROUP, KEY]),
        ([GROUP], [NOW, KEY], [GROUP, KEY]),
        ([GROUP], [BEFORE], [BEFORE, NOW, AFTER]),  # lags that are summed up
        ([BEFORE], [GROUP], [EARLIER_GROUP]),
        ([AFTER], [GROUP], [LATER_GROUP]),
        ([BEFORE], [LATER_GROUP], [EARLIER_GROUP, GROUP, LATER_GROUP]),
        ([BEFORE], [NOW, ORDER], [BEFORE, ORDER]),  # a lag stands in the row of its own
        ([ORDER], [NOW, BEFORE, ORDER], [ORDER]),
        ([POSITION], [NOW, ORDER], [POSITION, KEY]),  # a window over sorted rows
        ([CHOICE], [NOW, BEFORE, ORDER], [CHOICE]),
        ([BEFORE], [CHOICE], [CHOICE]),
        ([BEFORE], [PART], [PART]),
        ([GROUP], [NOW, CHOICE], [GROUP, CHOICE]),  # whose rows were chosen
        ([GROUP], [NOW, PART], [GROUP, PART]),
        ([GROUP], [NOW, ORDER], [GROUP]),  # whose rows are sorted by their keys
    ],
)
def test_a_value_looked_up_elsewhere(by: list[When], of: list[When], wanted: list[When]) -> None:
    assert shift(origins(*of), *by) == origins(*wanted)


@pytest.mark.parametrize(
    ("feature", "target", "leaks"),
    [
        ([NOW], [NOW], True),
        ([BEFORE], [NOW], False),
        ([BEFORE, NOW], [NOW], True),
        ([AFTER], [NOW], True),
        ([KEY], [NOW], True),  # found by the target's own value
        ([BEFORE, *MARKS], [NOW, ORDER], False),
        ([NOW], [KEY], True),  # the number of rows so far, and what is computed from it
        ([EARLIER_KEY], [NOW], False),
        ([KEY], [AFTER], False),
        ([LATER_KEY], [AFTER], True),  # what was found by tomorrow's value
        ([GROUP], [GROUP], True),
        ([EARLIER_GROUP], [GROUP], False),
        ([GROUP], [LATER_GROUP], False),
        ([GROUP], [AFTER], True),  # of rows that were joined: the group may hold any of them
        ([EARLIER_GROUP], [NOW], True),
        ([NOW], [AFTER], False),  # today's value, where tomorrow's is the target
        ([AFTER], [AFTER], True),
        ([BEFORE], [NOW, BEFORE], False),  # yesterday's value, where the change since then is the target
    ],
)
def test_what_is_as_late_as_the_target_leaks(feature: list[When], target: list[When], leaks: bool) -> None:
    assert find_leaks(origins(*feature), origins(*target)) == (["x"] if leaks else [])
    assert find_leaks(origins(*feature, table="b"), origins(*target)) == []


@pytest.mark.parametrize("key", [KEY, EARLIER_KEY])
def test_a_key_of_the_target_is_no_leak_beside_its_values(key: When) -> None:
    assert find_leaks(origins(NOW), origins(key) | {Origin("a", "y")}) == []


def test_a_target_of_keys_alone_is_told_by_all_of_them() -> None:
    target = frozenset({Origin("a", "user", KEY), Origin("a", "item", KEY), Origin("a", "day", KEY)})
    assert find_leaks(target | origins(BEFORE), target) == ["day", "item", "user"]
    assert find_leaks(target - {Origin("a", "item", KEY)} | origins(BEFORE), target) == []
    assert find_leaks(frozenset({Origin("a", "day")}), target) == []


def test_parts_are_related_unless_no_row_can_be_in_both() -> None:
    def are_apart(one: str, other: str) -> bool:
        assert are_related(f"a/{one}", "a") and are_related("a", f"a/{other}") and not are_related(f"a/{one}", "b")
        apart = not are_related(f"a/{one}", f"a/{other}")
        assert apart == (not are_related(f"a/x/{other}", f"a/{one}/y"))
        return apart

    early, late, some = (name_part("time", bounds) for bounds in ((None, 5), (5, None), (4, 9)))
    assert are_apart(early, late)
    assert not are_apart(early, early) and not are_apart(early, some) and not are_apart(late, some)
    assert not are_apart(early, name_part("price", (5, None)))
    assert are_apart(name_part("name", (None, "a/b")), name_part("name", ("a/b", "c")))
    but_some = name_part("time", (4, 9), outside=True)
    assert are_apart(some, but_some) and are_apart(name_part("time", (5, 6)), but_some)
    assert not are_apart(early, but_some) and not are_apart(but_some, but_some)
    but_early = name_part("time", (None, 5), outside=True)
    assert are_apart(early, but_early) and not are_apart(late, but_early)
    one, other, but_one = name_part("groups", "1"), name_part("groups", "2"), name_part("groups", "1", outside=True)
    assert are_apart(one, other) and are_apart(one, but_one)
    assert not are_apart(one, one) and not are_apart(other, but_one)
    for text in ("", "x", "x:", "x:[[", "x:1", f"{early}:", f'{early.split(":")[0]}:[false,"a",1]'):
        assert not are_apart(text, early) and not are_apart(text, text)


def test_columns_at_hand_are_traced_to_their_own_origins() -> None:
    here = frozenset({Origin("", "y", BEFORE), Origin("", "z")})
    assert trace(here, {"y": origins(NOW)}) == origins(BEFORE) | {Origin("", "z")}


def test_text_goes_back_and_other_text_states_nothing() -> None:
    some = origins(NOW, BEFORE) | rename_tables(origins(KEY), str.upper)
    assert read_origins(write_origins(some)) == some
    for text in ("", "7", "[[1]]", '[["a", "x", "never"]]', "[" * 100_000, b"\xff"):
        assert read_origins(text) == frozenset()
