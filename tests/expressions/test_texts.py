"""Text: every partition has its own dictionary, and some lack a value."""

from __future__ import annotations

import re
from collections.abc import Callable

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupipe.backend import Backend
from gpupipe.errors import ExpressionError
from gpupipe.expressions import parse
from gpupipe.schema import Field, Schema
from tests.examples import examples
from tests.expressions.evaluated import COMPARE, column, result_of, run


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
        assert result_of(backend, "s == coalesce(s, 'JFK')", s=s) == [None if value is None else True for value in own]
        named = [value or "none" for value in own]
        assert result_of(backend, "where(isnull(s), 'none', upper(s))", s=s) == named
        assert result_of(backend, "len(s) > 0", s=s) == [None if value is None else True for value in own]


TEXTS = st.text(st.sampled_from("aAbB ,.-_09ßé日\U0001f6eb\n"), max_size=8)
CALLS: dict[str, Callable[[str], object]] = {
    r"search(s, 'a[0-9b]')": lambda s: re.search(r"a[0-9b]", s) is not None,
    r"search(s, '^[ab]')": lambda s: re.search(r"^[ab]", s) is not None,
    r"search(s, '(?i)ab')": lambda s: re.search(r"(?i)ab", s) is not None,
    r"extract(s, '([aA]+)[bB]')": lambda s: (found := re.search(r"([aA]+)[bB]", s)) and found[1],
    r"extract(s, '[(a](?:b)(?P<n>.)(9)?')": lambda s: (found := re.search(r"[(a](?:b)(?P<n>.)(9)?", s)) and found[1],
    r"extract(s, '[0-9]+')": lambda s: (found := re.search(r"[0-9]+", s)) and found[0],
    r"extract(s, '[0-9ab]+$')": lambda s: (found := re.search(r"[0-9ab]+\Z", s)) and found[0],
    r"split(s, ',', 0)": lambda s: s.split(",")[0],
    r"split(s, ',', 2)": lambda s: dict(enumerate(s.split(","))).get(2),
    r"split(s, 'a', -1)": lambda s: s.split("a")[-1],
    r"split(s, ',', -2)": lambda s: dict(enumerate(s.split(",")[::-1])).get(1),
    r"split(s, 'a', 2147483648)": lambda _: None,
    r"split(s, 'a', -2147483649)": lambda _: None,
    r"split(s, 'a', 18446744073709551615)": lambda _: None,
    r"slice(s, 1, 3)": lambda s: s[1:3],
    r"slice(s, 1, 18446744073709551615)": lambda s: s[1:],
    r"slice(s, -2, 100)": lambda s: s[-2:],
    r"slice(s, 0, -1)": lambda s: s[:-1],
    r"replace(s, '.', 'dot')": lambda s: s.replace(".", "dot"),
    r"replace(s, 'ab', '')": lambda s: s.replace("ab", ""),
    r"sub(s, '([ab])([0-9])', '\\2\\1')": lambda s: re.sub(r"([ab])([0-9])", r"\2\1", s),
    r"sub(s, '[^a-z]+', ' ')": lambda s: re.sub(r"[^a-z]+", " ", s),
}


@pytest.mark.slow
@pytest.mark.parametrize("text", CALLS)
@examples(60)
@given(st.lists(st.none() | TEXTS, max_size=6))
def test_a_text_function_is_pythons(backend: Backend, text: str, values: list[str | None]) -> None:
    wanted = [None if value is None else CALLS[text](value) for value in values]
    assert result_of(backend, text, s=column("string", values)) == wanted


def test_text_functions_are_pandas(backend: Backend) -> None:
    tails = ["N14228", "N24211", None, "N3ALAA", "", "NÄ9", "n9é日"]
    series, s = pd.Series(tails, dtype="str"), column("string", tails)

    def listed(found: pd.Series) -> list[object]:
        return [None if pd.isna(one) or tail is None else one for one, tail in zip(found, tails, strict=True)]

    text = series.str
    assert result_of(backend, "extract(s, 'N([0-9]+)')", s=s) == listed(text.extract("N([0-9]+)")[0])
    assert result_of(backend, "search(s, '[A-Z]{2}$')", s=s) == listed(text.contains("[A-Z]{2}$"))
    assert result_of(backend, "contains(s, '9')", s=s) == listed(text.contains("9", regex=False))
    assert result_of(backend, "split(s, '2', 1)", s=s) == listed(text.split("2").str.get(1))
    assert result_of(backend, "slice(s, 1, 4)", s=s) == listed(text.slice(1, 4))
    assert result_of(backend, "sub(s, '[0-9]+', '#')", s=s) == listed(text.replace("[0-9]+", "#", regex=True))
    assert result_of(backend, "len(s)", s=s) == listed(text.len())
    assert result_of(backend, r"sub(s, '\\P{L}', '')", s=s) == ["N", "N", None, "NALAA", "", "NÄ", "né日"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("search(s, '(a')", r"no regular expression of RE2 \(missing \)"),
        ("extract(s, 'a(?=b)')", "no lookaround"),
        (r"search(s, '(a)\\1')", "no backreferences"),
        ("split(s, '', 0)", "the text is empty"),
        ("replace(s, '', 'x')", "the text is empty"),
        ("split(s, ',', n)", "Expected a constant integer"),
        ("split(s, ',', 1.5)", "Expected a constant integer"),
        ("search(s, s)", "Expected a constant text, a regular expression"),
        ("slice(s, 1)", "called with 2 arguments"),
        ("split(n, ',', 1)", r"Expected text[\s\S]*string\(n\)"),
    ],
)
def test_a_wrong_call_is_told_before_any_text_is_seen(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        parse(text).check(Schema([Field("s", "string"), Field("n", "int64")]))


def test_what_only_the_engine_knows_is_told_too(backend: Backend) -> None:
    for text in (r"sub(s, 'a', '\\3')", "search(s, 'a{1,5000}')"):
        with pytest.raises(ExpressionError, match="cannot do this"):
            result_of(backend, text, s=column("string", ["a"]))


def test_each_distinct_text_is_worked_on_once(backend: Backend) -> None:
    """Rows are gathered by code, and texts that become equal have one."""
    result = run(backend, "split(s, '-', 0)", s=column("string", ["a-1", "a-2", "b", "a-1"] * 1000))
    assert result.dictionary is not None and result.dictionary.to_pylist() == ["a", "b"]


@pytest.mark.slow
@examples(200)
@given(
    st.lists(
        st.text(max_size=8) | st.sampled_from(["straße", "ΑΣ", "ΑΣ\u0392", "İstanbul", "ŉ", "ǆ", "ﬁ", "AbC"]),
        max_size=6,
    )
)
def test_case_is_pythons(backend: Backend, texts: list[str]) -> None:
    s = column("string", texts)
    assert result_of(backend, "lower(s)", s=s) == [text.lower() for text in texts]
    assert result_of(backend, "upper(s)", s=s) == [text.upper() for text in texts]


@examples(100)
@given(st.lists(st.tuples(st.none() | TEXTS, st.none() | TEXTS), max_size=8))
def test_texts_are_joined(backend: Backend, rows: list[tuple[str | None, str | None]]) -> None:
    a, b = (column("string", [row[side] for row in rows]) for side in (0, 1))
    wanted = [None if left is None or right is None else f"{left} {right}!" for left, right in rows]
    assert result_of(backend, "a + ' ' + b + '!'", len(rows), a=a, b=b) == wanted
    assert result_of(backend, "'<' + a", len(rows), a=a) == [None if left is None else f"<{left}" for left, _ in rows]
    assert result_of(backend, "a + a", len(rows), a=a) == [None if left is None else left * 2 for left, _ in rows]


def test_constants_are_joined(backend: Backend) -> None:
    assert result_of(backend, "'a' + 'b'", 2) == ["ab", "ab"]
    assert result_of(backend, "s + '-' + string(n)", s=column("string", ["x", "x"]), n=column("int8", [1, None])) == [
        "x-1",
        None,
    ]


def test_each_distinct_pair_is_joined_once(backend: Backend) -> None:
    a, b = column("string", ["a", "b", None, "a"] * 500), column("string", ["x", "x", "x", None] * 500)
    result = run(backend, "a + b", a=a, b=b)
    assert result.dictionary is not None and result.dictionary.to_pylist() == ["ax", "bx"]


@examples(100)
@given(st.lists(st.none() | TEXTS, max_size=6))
def test_split_to_a_list_is_pythons(backend: Backend, values: list[str | None]) -> None:
    for separator in (",", "a", "ab"):
        found = result_of(backend, f"split(s, {separator!r})", len(values), s=column("string", values))
        assert found == [None if value is None else value.split(separator) for value in values]
    parts = result_of(backend, "len(split(s, ','))", len(values), s=column("string", values))
    assert parts == [None if value is None else value.count(",") + 1 for value in values]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s + n", r"`\+` is given column 'n' \(int64\)[\s\S]*Expected text[\s\S]*string\(n\)"),
        ("n + s", r"`\+` is given column 's' \(string\)[\s\S]*Expected a number"),
        ("s - s", r"`-` is given column 's' \(string\)"),
        ("split(s)", r"split is called with 1 argument[\s\S]*2 or 3 arguments"),
        ("concat(s, s)", r"s \+ s"),
    ],
)
def test_what_cannot_be_joined_or_split(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        parse(text).check(Schema([Field("s", "string"), Field("n", "int64")]))
