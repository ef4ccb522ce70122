"""Origins of values: rows before and after, keys, and parts of tables."""

from __future__ import annotations

import pytest

from gpupipe.support.origins import Origin, When, find_leaks, read_origins, rename_tables, shift, trace, write_origins

X = Origin("a", "x")
BEFORE, NOW, AFTER, KEY = When.BEFORE, When.NOW, When.AFTER, When.KEY


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
        ([KEY], [NOW, BEFORE], [KEY, BEFORE]),
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
        ([NOW], [KEY], False),  # a target looked up by a key
        ([NOW], [AFTER], False),  # today's value, where tomorrow's is the target
        ([AFTER], [AFTER], True),
        ([BEFORE], [NOW, BEFORE], False),  # yesterday's value, where the change since then is the target
    ],
)
def test_what_is_as_late_as_the_target_leaks(feature: list[When], target: list[When], leaks: bool) -> None:
    assert find_leaks(origins(*feature), origins(*target)) == (["x"] if leaks else [])
    assert find_leaks(origins(*feature, table="b"), origins(*target)) == []


def test_parts_are_related_to_the_whole_and_not_to_each_other() -> None:
    whole, one, other = origins(NOW), origins(NOW, table="a/1"), origins(NOW, table="a/2")
    assert find_leaks(whole, one) == find_leaks(one, whole) == find_leaks(one, one) == ["x"]
    assert find_leaks(one, other) == [] == find_leaks(origins(NOW, table="a/11"), one)


def test_columns_at_hand_are_traced_to_their_own_origins() -> None:
    here = frozenset({Origin("", "y", BEFORE), Origin("", "z")})
    assert trace(here, {"y": origins(NOW)}) == origins(BEFORE) | {Origin("", "z")}


def test_text_goes_back_and_other_text_states_nothing() -> None:
    some = origins(NOW, BEFORE) | rename_tables(origins(KEY), str.upper)
    assert read_origins(write_origins(some)) == some
    for text in ("", "7", "[[1]]", '[["a", "x", "never"]]', "[" * 100_000, b"\xff"):
        assert read_origins(text) == frozenset()
