"""Text: every partition has its own dictionary, and some lack a value."""

from __future__ import annotations

from gpupipe.backend import Backend

from .evaluated import COMPARE, column, result_of


def test_text(backend: Backend) -> None:
    s = column("string", ["JFK", None, " lga ", "jfk", ""], dictionary=["unused", " lga ", "jfk", "JFK", ""])
    assert result_of(backend, "lower(s)", s=s) == ["jfk", None, " lga ", "jfk", ""]
    assert result_of(backend, "upper(strip(s))", s=s) == ["JFK", None, "LGA", "JFK", ""]
    assert result_of(backend, "len(s)", s=s) == [3, None, 5, 3, 0]
    assert result_of(backend, "len(s)", s=column("string", ["é", "日本", None])) == [1, 2, None]
    assert result_of(backend, "contains(s, 'fk')", s=s) == [False, None, False, True, False]
    assert result_of(backend, "contains(s, '.')", s=s) == [False, None, False, False, False]
    assert result_of(backend, "s == 'ZZZ'", s=s) == [False, None, False, False, False]
    assert result_of(backend, "s != 'JFK' and s not in ['jfk']", s=s) == [False, None, True, False, True]
    assert result_of(backend, "where(s == 'JFK', 'here', s)", s=s) == ["here", None, " lga ", "jfk", ""]
    assert result_of(backend, "where(len(s) > 3, 'long', 'short')", s=s) == ["short", None, "long", "short", "short"]


def test_text_is_ordered_by_code_points(backend: Backend) -> None:
    values = ["a", "B", "é", "日", "\U0001f600", "", "\uffff"]
    pairs = [(x, y) for x in values for y in values]
    left, right = (
        column("string", [x for x, _ in pairs]),
        column("string", [y for _, y in pairs], dictionary=values[::-1]),
    )
    for sign, compared in COMPARE.items():
        assert result_of(backend, f"a {sign} b", a=left, b=right) == [compared(x, y) for x, y in pairs]
        assert result_of(backend, f"a {sign} 'é'", a=left) == [compared(x, "é") for x, _ in pairs]


def test_partitions_without_a_value(backend: Backend) -> None:
    """What is asked for may be in no dictionary; a dictionary may be empty."""
    for own in ([], [None, None], ["LGA"], ["JFK"]):
        s = column("string", own)
        there = [None if value is None else value == "JFK" for value in own]
        assert result_of(backend, "s == 'JFK'", s=s) == there
        assert result_of(backend, "s in ['JFK', 'EWR']", s=s) == there
        assert result_of(backend, "lower(s) == 'jfk'", s=s) == there
        assert result_of(backend, "s == fillna(s, 'JFK')", s=s) == [None if value is None else True for value in own]
        named = [value or "none" for value in own]
        assert result_of(backend, "where(isnull(s), 'none', upper(s))", s=s) == named
        assert result_of(backend, "len(s) > 0", s=s) == [None if value is None else True for value in own]
