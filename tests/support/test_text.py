"""Texts of messages and reprs."""

from __future__ import annotations

from gpupipe.schema import shorten_list
from gpupipe.support.text import derive, flush_right, format_count, html_table, text_table


def test_lists_and_counts() -> None:
    assert (format_count(1, "row"), format_count(24_951, "row")) == ("1 row", "24,951 rows")
    assert (shorten_list(["temp", "dewp"]), shorten_list("abcdef", 2)) == ("temp, dewp", "a, b and 4 more")


def test_a_step_that_derives() -> None:
    assert derive("x", "round({})") == "Derive(x='round(x)')"
    assert derive("a b", "len({})", "n") == """Derive(n="len(col('a b'))")"""


def test_tables() -> None:
    assert text_table([["column", "dtype"], ["x", "float64"]]) == "column  dtype\nx       float64"
    assert flush_right([["model", "rmse"], ["Ridge", "2"]]) == [["model", "rmse"], ["Ridge", "   2"]]
    shown = '<tbody><tr><td style="text-align:left">a&lt;b</td></tr></tbody></table>'
    assert html_table([["column"], ["a<b"]]).endswith(shown)
    assert "... 51 more ..." in text_table([["n"], *([str(number)] for number in range(101))])
